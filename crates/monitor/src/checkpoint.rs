//! The state of a worker, saved where a new worker finds it.
//!
//! ```text
//!  NAMESPACE/POOL/workers/UID/heartbeat         of a worker that lives, written twice in each interval
//!  NAMESPACE/POOL/workers/UID/N/0, 1, …         the files of its state, by their number in the manifest
//!  NAMESPACE/POOL/workers/UID/N/manifest.json   written last: without it there is no checkpoint
//!  NAMESPACE/POOL/claims/UID/K                  who restores the state of this worker
//!  NAMESPACE/POOL/clock/UID                     written to read the clock of the storage, then deleted
//! ```
//!
//! `save` writes the state of a worker that runs and of one that ends, `restore` finds one for a new worker, `choice` decides
//! which, `storage` is the bucket or the folder, `state` the worker's folder. A state is restored at most once: a claim is
//! created only if there is none of this number, and is final once its worker has saved a checkpoint. An older one without
//! a checkpoint was left by a pod that is gone, and is replaced by the next number.

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) mod choice;
pub(crate) mod restore;
pub(crate) mod save;
pub(crate) mod state;
pub(crate) mod storage;

/// Where, how often, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The storage, and the pool in it.
    pub(crate) place: Place,
    pub(crate) namespace: String,
    pub(crate) pool: String,
    /// Of this pod.
    pub(crate) uid: String,
    pub(crate) pod: String,
    /// Between two checkpoints of a worker that runs.
    pub(crate) interval: Duration,
    /// From when the pod is asked to end until it is killed.
    pub(crate) grace: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Folder(std::path::PathBuf),
    /// `keys`: folder with the keys of a Secret, which may change.
    Bucket {
        bucket: String,
        prefix: String,
        keys: Option<std::path::PathBuf>,
    },
}

/// Written periodically by a running worker.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Heartbeat {
    pub(crate) pod: String,
    /// The pod was asked to end: a new worker waits for its state.
    pub(crate) ending: bool,
    pub(crate) interval_seconds: u64,
    pub(crate) grace_seconds: u64,
}

/// A complete checkpoint.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Manifest {
    pub(crate) files: Vec<SavedFile>,
    /// The worker has ended: there is no later one.
    #[serde(rename = "final")]
    pub(crate) is_final: bool,
    /// By the clock of the worker's node, in seconds since 1970.
    pub(crate) time: i64,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedFile {
    /// Below the folder of the state.
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) sha256: String,
}

/// Who restores a state.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// uid of the pod.
    pub(crate) by: String,
    pub(crate) pod: String,
}

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const HEARTBEAT: &str = "heartbeat";
/// Of one pool.
pub(crate) const WORKERS: &str = "workers";
pub(crate) const CLAIMS: &str = "claims";
pub(crate) const CLOCK: &str = "clock";
/// Newest checkpoints of a worker that are kept, interrupted ones included.
pub(crate) const KEPT: usize = 2;
/// Heartbeats of a worker in each interval.
pub(crate) const BEATS: u32 = 2;
/// In the folder of the monitor: what was restored in this pod.
pub(crate) const RESTORED: &str = "restored.json";

/// What the loader leaves for the sidecar of its pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Restored {
    /// uid of the worker whose state it was; `None`: there was none to restore.
    pub(crate) from: Option<String>,
    /// The worker was taken for lost, and may come back.
    pub(crate) was_lost: bool,
}

impl Manifest {
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

/// `N`, so that the order of names is that of numbers.
pub(crate) fn numbered(number: u64) -> String {
    format!("{number:010}")
}
