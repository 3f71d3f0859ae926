//! What all requests of a pull share: where bytes come from, where they go, and how many requests run at once.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    sync::{RwLock, Semaphore},
    task::{JoinHandle, spawn_blocking},
};

use super::{folder::Folder, object::Object, writer::WAITING_KIB};
use crate::{progress::Progress, store::Store};

/// Requests at once: enough for small files over a distance, and little enough to hold what they bring.
pub(super) const CONNECTIONS: usize = 16;

/// Small files are placed by so many threads, where none of them waits for the disk: more of them wait for each other, at
/// the lock of the folder.
const PLACING: usize = 2;

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) store: Store,
    pub(super) folder: Arc<Folder>,
    pub(super) progress: Progress,
    pub(super) connections: Semaphore,
    /// In KiB, for bytes that have come and are not yet written.
    pub(super) room: Arc<Semaphore>,
    /// Threads that place small files at once.
    pub(super) placing: Semaphore,
    /// Read by each thread that writes into the folder.
    threads: Arc<RwLock<()>>,
    /// Path and version of objects whose bytes did not match their checksum: fetched again only once they have changed.
    corrupt: Mutex<HashSet<(String, String)>>,
}

impl Transfer {
    pub(super) fn new(store: Store, folder: Arc<Folder>, progress: Progress) -> Self {
        Self {
            store,
            progress,
            connections: Semaphore::new(CONNECTIONS),
            room: Arc::new(Semaphore::new(WAITING_KIB as usize)),
            placing: Semaphore::new(if folder.syncs() { CONNECTIONS } else { PLACING }),
            threads: Arc::default(),
            folder,
            corrupt: Mutex::default(),
        }
    }

    /// Runs file work where it may block.
    pub(super) fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        // Taken for writing between two attempts only.
        let running = Arc::clone(&self.threads).try_read_owned();
        spawn_blocking(move || {
            let _running = running;
            work()
        })
    }

    /// Waits for the threads of an attempt that has failed: they must not write into files of the next one.
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
