//! What all requests of a pull share: where bytes come from, where they go, and how many requests run at once.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::Semaphore;

use super::{folder::Folder, object::Object};
use crate::{progress::Progress, store::Store};

/// Requests at once: enough for small files over a distance, and little enough to hold what they bring.
pub(super) const CONNECTIONS: usize = 16;

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) store: Store,
    pub(super) folder: Arc<Folder>,
    pub(super) progress: Progress,
    pub(super) connections: Semaphore,
    /// Path and version of objects whose bytes did not match their checksum: fetched again only once they have changed.
    corrupt: Mutex<HashSet<(String, String)>>,
}

impl Transfer {
    pub(super) fn new(store: Store, folder: Arc<Folder>, progress: Progress) -> Self {
        Self { store, folder, progress, connections: Semaphore::new(CONNECTIONS), corrupt: Mutex::default() }
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
