//! State that all requests of a pull share: the source, the folder, and limits for concurrent work.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    sync::{RwLock, Semaphore},
    task::{JoinHandle, spawn_blocking},
};

use super::{folder::Folder, object::Object, origin::Origin};
use crate::progress::Progress;

/// Concurrent requests: enough for small files over a long distance, and few enough to keep their bytes in memory.
pub(super) const CONNECTIONS: usize = 16;

/// Threads that place small files concurrently if they do not sync: more would wait for each other at the kernel's lock of
/// the folder.
const PLACING: usize = 2;

/// Limit in KiB for bytes of all files that have arrived and are not yet written.
pub(super) const WAITING_KIB: u32 = 2 << 10;

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) origin: Origin,
    pub(super) folder: Arc<Folder>,
    pub(super) progress: Progress,
    pub(super) connections: Semaphore,
    /// Room in KiB for bytes that have arrived and are not yet written.
    pub(super) room: Arc<Semaphore>,
    /// Limit for threads that place small files.
    pub(super) placing: Semaphore,
    /// Locked for reading by each thread that writes into the folder.
    threads: Arc<RwLock<()>>,
    /// Path and version of objects whose bytes did not match their checksum, which are not fetched again.
    corrupt: Mutex<HashSet<(String, String)>>,
}

impl Transfer {
    pub(super) fn new(origin: Origin, folder: Arc<Folder>, progress: Progress) -> Self {
        Self {
            origin,
            progress,
            connections: Semaphore::new(CONNECTIONS),
            room: Arc::new(Semaphore::new(WAITING_KIB as usize)),
            placing: Semaphore::new(if folder.syncs() { CONNECTIONS } else { PLACING }),
            threads: Arc::default(),
            folder,
            corrupt: Mutex::default(),
        }
    }

    /// Runs file operations on a thread that may block.
    pub(super) fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        // Locked for writing only between two attempts.
        let running = Arc::clone(&self.threads).try_read_owned();
        spawn_blocking(move || {
            let _running = running;
            work()
        })
    }

    /// Waits for the threads of a failed attempt, because they must not write into files of the next one.
    pub(super) async fn threads_ended(&self) {
        drop(self.threads.write().await);
    }

    pub(super) fn is_known_corrupt(&self, object: &Object) -> bool {
        let known = self.corrupt.lock().unwrap_or_else(PoisonError::into_inner);
        known.contains(&(object.path.clone(), object.version.clone()))
    }

    pub(super) fn remember_corrupt(&self, object: &Object) {
        let mut known = self.corrupt.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert((object.path.clone(), object.version.clone()));
    }
}
