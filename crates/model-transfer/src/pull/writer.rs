//! The one thread that writes a file: bytes come from many connections, and threads that write one file wait for each
//! other at its lock. Connections wait where the disk is slower than the store; what waits with them is bounded for all
//! files together.

use std::{collections::BTreeMap, io, sync::Arc};

use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::{JoinError, JoinHandle},
};

use super::{partial::Partial, request::NOTE_EVERY, transfer::Transfer};
use crate::fault::{Cause, Fault};

/// Bytes of all files that have come and are not yet written.
pub(super) const WAITING_KIB: u32 = 4 << 10;
/// Of one file; each holds its share of the above.
const QUEUE: usize = 256;

#[derive(Debug)]
struct Chunk {
    part: usize,
    bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

/// Takes the bytes of one file. The thread ends when all clones are gone, or with the first error.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    chunks: mpsc::Sender<Chunk>,
    room: Arc<Semaphore>,
}

impl Queue {
    /// Waits for room. After an error of the thread it waits for ever: the thread has the reason, and the task that
    /// started it ends the file.
    pub(super) async fn send(&self, part: usize, bytes: Bytes) {
        let kib = u32::try_from(bytes.len().div_ceil(1 << 10)).unwrap_or(WAITING_KIB).min(WAITING_KIB);
        // Never closed.
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.ok();
        if self.chunks.send(Chunk { part, bytes, _room: room }).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Starts the thread of a file.
pub(super) fn start(transfer: &Transfer, partial: &Arc<Partial>) -> (Queue, JoinHandle<io::Result<()>>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let partial = Arc::clone(partial);
    let thread = transfer.spawn_blocking(move || write(&partial, receiver));
    (Queue { chunks: sender, room: Arc::clone(&transfer.room) }, thread)
}

/// Why the thread has ended before its work was done.
pub(super) fn fault(ended: Result<io::Result<()>, JoinError>, partial: &Partial) -> Fault {
    let died = |why: String| Fault::new(Cause::Local, format!("the thread that writes a file ended: {why}"));
    match ended {
        Ok(Err(error)) => Fault::io("write", partial.stem())(error),
        Ok(Ok(())) => died("too early".to_owned()),
        Err(error) => died(error.to_string()),
    }
}

fn write(partial: &Partial, mut chunks: mpsc::Receiver<Chunk>) -> io::Result<()> {
    let mut unnoted = BTreeMap::<usize, u64>::new();
    while let Some(Chunk { part, bytes, _room }) = chunks.blocking_recv() {
        partial.write(part, &bytes)?;
        let count = unnoted.entry(part).or_default();
        *count += bytes.len() as u64;
        if *count >= NOTE_EVERY {
            partial.note(part)?;
            unnoted.remove(&part);
        }
    }
    unnoted.into_keys().try_for_each(|part| partial.note(part))
}
