//! Saves the state of a worker in the storage of its pool, and restores it for a new worker.
//!
//! ```text
//!  NAMESPACE/POOL/workers/UID/heartbeat         of a worker that runs, written `BEATS` times in each `beat_interval`
//!  NAMESPACE/POOL/workers/UID/N/0, 1, …         the files of its state, by their number in the manifest
//!  NAMESPACE/POOL/workers/UID/N/manifest.json   written last: without it there is no checkpoint
//!  NAMESPACE/POOL/claims/UID/K                  who restores the state of this worker
//!  NAMESPACE/POOL/clock/UID                     written to read the clock of the storage, then deleted
//!  NAMESPACE/POOL/clock/UID.probe               written to test whether a bucket has conditional writes, then deleted
//! ```
//!
//! `save` writes the state of a worker while it runs and when it has ended. `restore` restores a state for a new
//! worker: `survey` finds what there is, `choice` decides, and `claims` claims it. `storage` is the bucket or the folder,
//! `state` is the worker's folder. A state is restored at most once: a claim is created only if none with its number
//! exists, and is final once its worker has saved a checkpoint. Until then its pod renews the claim as often as the
//! heartbeat. So a claim that is too old belongs to a pod that no longer runs. Another pod may then create the claim with
//! the next number.

use std::time::Duration;

use api::monitor::UPLOAD_SECONDS;
use serde::{Deserialize, Serialize};

use bounded::{few, short, uids};
use claims::Held;
use state::{LONGEST_PATH, MOST_FILES};

pub(crate) mod bounded;
pub(crate) mod choice;
pub(crate) mod claims;
mod newest;
pub(crate) mod restore;
pub(crate) mod save;
pub(crate) mod state;
pub(crate) mod storage;
pub(crate) mod survey;
#[cfg(test)]
mod tests;

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
        /// Certificates of authorities that are trusted beside those of the system.
        authorities: Option<std::path::PathBuf>,
    },
}

/// Written periodically by a running worker.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Heartbeat {
    pub(crate) pod: String,
    /// The end of the pod was requested. A new worker waits for its last state.
    pub(crate) ending: bool,
    /// Of heartbeats.
    pub(crate) interval_seconds: u64,
    pub(crate) grace_seconds: u64,
    /// `Storage::keys` with the uid of the worker: whether a new worker has the same keys of the bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keys: Option<String>,
}

/// A complete checkpoint.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Manifest {
    #[serde(deserialize_with = "few::<_, _, MOST_FILES>")]
    pub(crate) files: Vec<SavedFile>,
    /// The worker has ended: there is no later one.
    #[serde(rename = "final")]
    pub(crate) is_final: bool,
    /// By the clock of the worker's node, in seconds since 1970.
    pub(crate) time: i64,
    /// uids of the workers whose state this one continues and whose checkpoints may still exist, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "uids::<_, MOST_CONTINUED>")]
    pub(crate) continues: Vec<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedFile {
    /// Below the folder of the state.
    #[serde(deserialize_with = "short::<_, LONGEST_PATH>")]
    pub(crate) path: String,
    pub(crate) size: u64,
    #[serde(deserialize_with = "short::<_, 64>")]
    pub(crate) sha256: String,
}

/// What a survey reads of a manifest.
#[derive(Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct Finality {
    #[serde(rename = "final")]
    pub(crate) is_final: bool,
}

/// Who restores a state.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// uid of the pod.
    #[serde(deserialize_with = "short::<_, 64>")]
    pub(crate) by: String,
    #[serde(deserialize_with = "short::<_, 253>")]
    pub(crate) pod: String,
}

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const HEARTBEAT: &str = "heartbeat";
/// Of one pool.
pub(crate) const WORKERS: &str = "workers";
pub(crate) const CLAIMS: &str = "claims";
pub(crate) const CLOCK: &str = "clock";
/// Workers before, whose checkpoints could not be removed yet.
const MOST_CONTINUED: usize = 1_000;
/// Newest checkpoints of a worker that are kept, interrupted ones included.
pub(crate) const KEPT: usize = 2;
/// Heartbeats of a worker in each interval of heartbeats.
pub(crate) const BEATS: u32 = 2;
/// A lost worker is detected soon also where checkpoints are rare: its replacement, which starts after little more than
/// a minute, waits only for a heartbeat that is late.
const LONGEST_BEAT_INTERVAL: Duration = Duration::from_secs(60);
/// Seconds: of the option `--checkpoint-seconds`.
const LONGEST_INTERVAL: u64 = 3_600;
/// Seconds: of `spec.checkpoint.graceSeconds`, and of the upload after it.
const LONGEST_GRACE: u64 = 3_600 + UPLOAD_SECONDS as u64;
/// In the folder of the monitor: what was restored in this pod.
pub(crate) const RESTORED: &str = "restored.json";
/// In the folder of the monitor: since when the storage has refused what it was asked.
pub(crate) const REFUSED: &str = "refused";

/// What the loader leaves for the sidecar of its pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Restored {
    /// uid of the worker whose state it was; `None`: there was none to restore.
    pub(crate) from: Option<String>,
    /// The worker counted as lost. It may still run and reach the storage again.
    pub(crate) was_lost: bool,
    /// Number of the claim of this pod.
    pub(crate) claim: Option<u32>,
    /// `continues` of the manifest.
    pub(crate) continues: Vec<String>,
    /// uids of workers whose state differs from its manifests.
    pub(crate) damaged: Vec<String>,
    /// The storage could not be used, and was not searched for states.
    pub(crate) started_empty: bool,
}

impl Restored {
    /// The claim of the restored state.
    pub(crate) fn held(&self, settings: &Settings) -> Option<Held> {
        Some(Held { settings: settings.clone(), uid: self.from.clone()?, number: self.claim? })
    }
}

impl Settings {
    /// Of heartbeats and claims, which are written `BEATS` times in it. From it follows when they are too old.
    pub(crate) fn beat_interval(&self) -> Duration {
        self.interval.min(LONGEST_BEAT_INTERVAL)
    }

    /// The folder of the pool.
    pub(crate) fn base(&self) -> String {
        format!("{}/{}", self.namespace, self.pool)
    }

    /// The folder of one worker.
    pub(crate) fn worker(&self, uid: &str) -> String {
        format!("{}/{WORKERS}/{uid}", self.base())
    }

    /// The folder of the claims of one worker's state.
    pub(crate) fn claims(&self, uid: &str) -> String {
        format!("{}/{CLAIMS}/{uid}", self.base())
    }
}

impl Heartbeat {
    /// A number of the storage is not trusted: within the bounds of the option.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs(self.interval_seconds.clamp(1, LONGEST_INTERVAL))
    }

    /// As the interval.
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_secs(self.grace_seconds.min(LONGEST_GRACE))
    }
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
