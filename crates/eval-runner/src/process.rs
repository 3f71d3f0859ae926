//! The process of the harness, from its start to its end: signals, its log, and the watch on its server.
//!
//! The harness has a process group of its own, so that a signal reaches its workers. Its output is passed on line by
//! line, without the API key.

use std::{
    ffi::OsStr,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::ExitStatusExt as _,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use api::launcher::evaluator::ExitCode;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::{Child, Command},
    signal::unix::{self, SignalKind},
    time::{Instant, sleep, timeout},
};

use crate::{cli::Key, fault::Fault, log::Log, message::note, server::Server};

/// What is kept of the grace period: for the end after SIGKILL, for the last lines, and for the message.
const RESERVE: Duration = Duration::from_secs(6);
/// How long a process may take to end after SIGKILL.
const KILL: Duration = Duration::from_secs(2);
/// How long a harness has to end whose server is lost.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
/// How long its last lines may take, and how often to look.
const DRAIN: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);
/// A longer line is passed on in parts.
const LONGEST_LINE: usize = 64 << 10;
/// Neither reading nor copying a log needs a deep stack.
const STACK: usize = 256 << 10;
/// How long the harness may take to print its version: it imports its libraries.
const VERSION: Duration = Duration::from_secs(180);
const LONGEST_VERSION: usize = 64;

pub(crate) type SharedLog = Arc<Mutex<Log>>;

pub(crate) fn locked(log: &SharedLog) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the harness has ended.
pub(crate) enum End {
    Exited(ExitStatus),
    /// The pod was asked to end.
    Stopped,
    /// The server did not answer for too long.
    ServerLost(String),
}

/// The signals that a kubelet or a user sends.
pub(crate) struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
        })
    }

    /// Resolves when the pod is asked to end.
    pub(crate) async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

pub(crate) fn stopped() -> Fault {
    Fault::new(
        ExitCode::Stopped,
        "the pod was asked to end before the side was complete; its next run repeats it",
    )
}

/// Runs the harness to its end.
pub(crate) async fn run(
    command: Command,
    key: &Key,
    log: &SharedLog,
    signals: &mut Signals,
    server: &Server,
    (server_within, grace): (Duration, Duration),
) -> Result<End, Fault> {
    let mut harness = start(command, key, log)?;
    let end = tokio::select! {
        biased;
        () = signals.stop() => {
            note("the pod was asked to end: the harness is stopped");
            let reserve = RESERVE.min(grace / 2);
            terminate(&mut harness.child, grace - reserve).await;
            Ok(End::Stopped)
        }
        status = harness.child.wait() => {
            status.map(End::Exited).map_err(|error| Fault::local("wait for", "the harness", &error))
        }
        cause = server.lost(server_within) => {
            note(&format!("the server does not answer any more: {cause}"));
            terminate(&mut harness.child, ENDS_WITHIN).await;
            Ok(End::ServerLost(cause))
        }
    };
    // Workers that have outlived the harness would keep its output open.
    signal(harness.group, Signal::KILL);
    drain(&harness.copiers).await;
    end
}

/// A process that has left the group can keep the output open; what it prints is not waited for.
async fn drain(copiers: &[JoinHandle<()>]) {
    let deadline = Instant::now() + DRAIN;
    while copiers.iter().any(|copier| !copier.is_finished()) && Instant::now() < deadline {
        sleep(LOOK).await;
    }
}

/// The last word that the harness prints for `--version`; empty if it prints none. An error if it cannot be started.
pub(crate) async fn version(mut command: Command) -> Result<String, Fault> {
    let name = command.as_std().get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let output = match timeout(VERSION, command.output()).await {
        Ok(output) => output.map_err(|error| not_started(&name, &error))?,
        Err(_) => return Ok(String::new()),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let word = text.split_whitespace().next_back().unwrap_or_default();
    Ok(text::cut(text::printable(word), LONGEST_VERSION))
}

struct Harness {
    child: Child,
    group: Option<Pid>,
    copiers: Vec<JoinHandle<()>>,
}

fn start(mut command: Command, key: &Key, log: &SharedLog) -> Result<Harness, Fault> {
    let name = command.as_std().get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| not_started(&name, &error))?;
    let group = group(&child);
    let pipes = (child.stdout.take(), child.stderr.take());
    let mut copiers = Vec::new();
    let failed = |error: io::Error| Fault::local("start", "a thread", &error);
    if let Some(stdout) = pipes.0 {
        let pipe = stdout.into_owned_fd().map_err(failed)?;
        copiers.push(copier(io::PipeReader::from(pipe), io::stdout(), key, log).map_err(failed)?);
    }
    if let Some(stderr) = pipes.1 {
        let pipe = stderr.into_owned_fd().map_err(failed)?;
        copiers.push(copier(io::PipeReader::from(pipe), io::stderr(), key, log).map_err(failed)?);
    }
    Ok(Harness { child, group, copiers })
}

fn not_started(program: impl AsRef<OsStr>, error: &io::Error) -> Fault {
    let program = program.as_ref().to_string_lossy();
    Fault::new(
        ExitCode::HarnessNotFound,
        format!("cannot start {program}: {error}; is it in the image and in PATH?"),
    )
}

fn copier(
    from: impl Read + Send + 'static,
    to: impl Write + Send + 'static,
    key: &Key,
    log: &SharedLog,
) -> io::Result<JoinHandle<()>> {
    let (key, log) = (key.clone(), Arc::clone(log));
    thread::Builder::new()
        .name("output".to_owned())
        .stack_size(STACK)
        .spawn(move || copy(from, to, &key, &log))
}

/// Until the end of the stream. A reader that has gone does not end the harness.
fn copy(from: impl Read, mut to: impl Write, key: &Key, log: &SharedLog) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while let Ok(count @ 1..) = read_line(&mut from, &mut line) {
        let text = String::from_utf8_lossy(&line[..count]);
        // Before the log cuts it: a part of the key would not be found.
        let text = key.removed(&text);
        locked(log).read(text.trim_end_matches(['\n', '\r']));
        let _ = to.write_all(text.as_bytes());
        let _ = to.flush();
    }
}

/// A line with its end, which is `\n` or, of a progress bar, `\r`; 0 at the end of the stream.
fn read_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    line.clear();
    loop {
        let available = match from.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            available => available?,
        };
        let end = available.iter().position(|byte| matches!(byte, b'\n' | b'\r')).map(|at| at + 1);
        let count = end.unwrap_or(available.len());
        line.extend_from_slice(&available[..count]);
        from.consume(count);
        if end.is_some() || count == 0 || line.len() >= LONGEST_LINE {
            return Ok(line.len());
        }
    }
}

/// Asks the harness to end, and kills it after a while.
async fn terminate(child: &mut Child, within: Duration) {
    let group = group(child);
    signal(group, Signal::TERM);
    if timeout(within, child.wait()).await.is_err() {
        signal(group, Signal::KILL);
        let _ = timeout(KILL, child.wait()).await;
    }
}

/// It may have ended by now.
fn signal(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        let _ = kill_process_group(group, signal);
    }
}

fn group(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// For a message.
pub(crate) fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_passed_on_without_the_key_and_however_long_they_are() {
        let mut passed = Vec::new();
        let log = SharedLog::default();
        let long = "x".repeat(LONGEST_LINE * 3);
        let text = format!("one\r50%\rtwo\n{long}\nlast");
        copy(text.as_bytes(), &mut passed, &Key::none(), &log);
        assert_eq!(passed, text.as_bytes());
        assert_eq!(locked(&log).last(), Some("last"));
    }
}
