//! One thread per file writes the bytes of all connections, because concurrent writers of a file block each other. Bytes
//! waiting to be written are bounded over all files.

use std::{collections::BTreeMap, io, sync::Arc};

use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::{JoinError, JoinHandle},
};

use super::{
    partial::{NOTE_EVERY, Partial},
    transfer::{Transfer, WAITING_KIB},
};
use crate::fault::{Cause, Fault};

/// Limit for the chunks of one file that wait to be written; their bytes are limited by `WAITING_KIB`.
const QUEUE: usize = 256;

#[derive(Debug)]
struct Chunk {
    part: usize,
    bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

/// Accepts the bytes of one file. The thread ends when all clones are dropped, or with the first error.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    chunks: mpsc::Sender<Chunk>,
    room: Arc<Semaphore>,
}

impl Queue {
    /// Waits for room. After an error of the thread it never returns; the task that started the thread reports the error.
    pub(super) async fn send(&self, part: usize, bytes: Bytes) {
        let kib = u32::try_from(bytes.len().div_ceil(1 << 10)).unwrap_or(WAITING_KIB).min(WAITING_KIB);
        // The semaphore is never closed.
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

/// The error with which the thread ended early.
pub(super) fn fault(ended: Result<io::Result<()>, JoinError>, partial: &Partial) -> Fault {
    let ended_early =
        |why: String| Fault::new(Cause::Local, format!("the thread that writes a file ended: {why}"));
    match ended {
        Ok(Err(error)) => Fault::io("write", partial.place())(error),
        Ok(Ok(())) => ended_early("too early".to_owned()),
        Err(error) => ended_early(error.to_string()),
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
