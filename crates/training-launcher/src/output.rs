//! Copies the trainer's output: the bytes of each stream, unchanged and at once, to the same stream of the launcher.
//!
//! One thread for each stream, which also reads the log. A launcher's stream that does not take bytes delays the
//! trainer, and loses nothing; one that is closed is given up, and the trainer's output is still read.

use std::{
    io::{self, Read},
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustix::io::Errno;
use tokio::sync::oneshot;
use training_log::Parser;

use crate::log::Log;

/// The size of a pipe: one read empties it.
const CHUNK: usize = 64 << 10;
/// The pause before the next try, if a stream is not blocking and takes no bytes.
const FULL: Duration = Duration::from_millis(10);
/// How long a line of the launcher's own may take.
const NOTE: Duration = Duration::from_millis(200);
/// Neither the reading of a log nor its copying needs a deep stack.
const STACK: usize = 256 << 10;

/// Shared with the threads that copy.
pub(crate) type SharedLog = Arc<Mutex<Log>>;

pub(crate) fn locked(log: &SharedLog) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to copy. The receiver resolves at the end of the stream.
pub(crate) fn copy(
    from: impl Read + Send + 'static,
    to: impl AsFd + Send + 'static,
    log: SharedLog,
    resumed: Option<i64>,
) -> io::Result<oneshot::Receiver<()>> {
    let (ended, receiver) = oneshot::channel();
    let run = move || {
        copy_all(from, &to, &log, resumed);
        let _ = ended.send(());
    };
    thread::Builder::new().name("output".to_owned()).stack_size(STACK).spawn(run)?;
    Ok(receiver)
}

fn copy_all(mut from: impl Read, to: &impl AsFd, log: &SharedLog, resumed: Option<i64>) {
    let mut chunk = vec![0; CHUNK];
    let mut parser = Parser::default();
    let mut is_open = true;
    loop {
        match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => {
                // First, because the copying may be delayed, and the launcher must know how far the training is.
                locked(log).read(&mut parser, &chunk[..count], resumed, Instant::now());
                is_open = is_open && write_all(to, &chunk[..count]).is_ok();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    locked(log).finish(&mut parser, resumed, Instant::now());
}

fn write_all(to: &impl AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => thread::sleep(FULL),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A line of the launcher's own, in one write. One that cannot be written soon is not waited for: a reader that hangs
/// must not block the handling of signals.
pub(crate) fn note(message: &str) {
    let line = format!("training-launcher: {message}\n");
    let (written, receiver) = mpsc::sync_channel(1);
    let write = move || {
        let _ = rustix::io::write(io::stderr(), line.as_bytes());
        let _ = written.send(());
    };
    if thread::Builder::new().name("note".to_owned()).stack_size(STACK).spawn(write).is_ok() {
        let _ = receiver.recv_timeout(NOTE);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write as _};

    use super::*;

    #[test]
    fn a_closed_stream_is_given_up_and_the_log_is_still_read() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let log = SharedLog::default();
        copy_all(b"one\ntwo\n".as_slice(), &writer, &log, None);
        copy_all(b"x".repeat(CHUNK * 3).as_slice(), &writer, &log, None);
    }

    #[test]
    fn every_byte_arrives_unchanged() {
        let bytes: Vec<u8> = (0..CHUNK * 3).map(|at| (at * 31 % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        copy_all(bytes.as_slice(), &file, &SharedLog::default(), None);
        file.flush().unwrap();
        assert_eq!(read(file), bytes);
    }

    #[test]
    fn a_stream_that_is_not_blocking_gets_every_byte() {
        let bytes: Vec<u8> = (0..CHUNK * 5).map(|at| (at * 31 % 251) as u8).collect();
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let expected = bytes.clone();
        let copying = thread::spawn(move || copy_all(bytes.as_slice(), &writer, &SharedLog::default(), None));
        let mut received = Vec::new();
        // First so slowly that the pipe is full, then has room for a part.
        for _ in 0..5 {
            thread::sleep(FULL * 3);
            let mut part = [0; 5_000];
            let count = reader.read(&mut part).unwrap();
            received.extend(&part[..count]);
        }
        reader.read_to_end(&mut received).unwrap();
        copying.join().unwrap();
        assert!(received == expected, "{} bytes instead of {}", received.len(), expected.len());
    }

    fn read(mut file: File) -> Vec<u8> {
        use std::io::Seek as _;
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }
}
