//! The interface between the dispatcher-controller and the monitor: options, variables, ports, exit codes and the
//! termination message.
//!
//! The monitor is in each pod of a worker: `run` as a native sidecar and, with a collection or with checkpoints,
//! `load-memory` as an init container. Their exit codes and termination messages say what the controller cannot see:
//! the vector store, the checkpoints, and the tokens that a worker has used.

use serde::{Deserialize, Serialize};

use crate::reasons;

/// Part of terminationGracePeriodSeconds that is reserved for the last checkpoint, after `graceSeconds`.
pub const UPLOAD_SECONDS: u16 = 30;

/// Bytes of all files of one state. A worker with more saves nothing, and no more is restored.
pub const STATE_BYTES: u64 = 10 << 30;
/// Bytes of the records of one collection in a pod.
pub const MEMORY_BYTES: u64 = 8 << 30;

/// Names of options, without dashes.
pub mod options {
    /// PEM file with authorities that are trusted beside those of the system, for the bucket.
    pub const CA_FILE: &str = "ca-file";
    /// A folder that all workers share, for checkpoints. Instead of `CHECKPOINT_URI`.
    pub const CHECKPOINT_DIR: &str = "checkpoint-dir";
    /// Seconds between two checkpoints of a worker that runs.
    pub const CHECKPOINT_SECONDS: &str = "checkpoint-seconds";
    /// `s3://bucket[/prefix]` for checkpoints.
    pub const CHECKPOINT_URI: &str = "checkpoint-uri";
    /// `terminationGracePeriodSeconds` of the pod.
    pub const GRACE_SECONDS: &str = "grace-seconds";
    /// Folder with the keys of the bucket, which may change.
    pub const KEYS_DIR: &str = "keys-dir";
    /// File for the worker's log.
    pub const LOG_FILE: &str = "log-file";
    /// Namespace and name of the AIDispatcher, with a slash.
    pub const POOL: &str = "pool";
    /// To start without a state if the storage of states cannot be used.
    pub const START_EMPTY: &str = "start-empty";
    /// Role of the workers.
    pub const ROLE: &str = "role";
}

/// Environment variables of workers, which are a contract with the authors of agents. The monitor reads them too.
pub mod variables {
    /// File to which the worker may append its log, a JSON object in each line.
    pub const AGENT_LOG_FILE: &str = "AGENT_LOG_FILE";
    /// Port on which the worker serves its metrics.
    pub const AGENT_METRICS_PORT: &str = "AGENT_METRICS_PORT";
    /// Seconds that running tasks may still take after SIGTERM.
    pub const AGENT_GRACE_SECONDS: &str = "AGENT_GRACE_SECONDS";
    /// Host and port of all workers of the pool: the headless Service.
    pub const AGENT_PEERS: &str = "AGENT_PEERS";
    /// Port on which the worker takes tasks.
    pub const AGENT_PORT: &str = "AGENT_PORT";
    /// Role of the worker.
    pub const AGENT_ROLE: &str = "AGENT_ROLE";
    /// Key for the model's server.
    pub const MODEL_API_KEY: &str = "MODEL_API_KEY";
    /// URL of the model's server.
    pub const MODEL_ENDPOINT: &str = "MODEL_ENDPOINT";
    /// Model that the worker calls.
    pub const MODEL_REF: &str = "MODEL_REF";
    /// Name of the vector collection.
    pub const MEMORY_COLLECTION: &str = "MEMORY_COLLECTION";
    /// Dimension of its vectors.
    pub const MEMORY_DIM: &str = "MEMORY_DIM";
    /// Folder with the content of the collection.
    pub const MEMORY_DIR: &str = "MEMORY_DIR";
    /// URL of the vector store.
    pub const MEMORY_ENDPOINT: &str = "MEMORY_ENDPOINT";
    /// Folder of the worker's state.
    pub const STATE_DIR: &str = "STATE_DIR";
    /// Key for the vector store; of the monitor alone.
    pub const MEMORY_API_KEY: &str = "MEMORY_API_KEY";
    /// Address of the pod.
    pub const POD_IP: &str = "POD_IP";
    /// Name of the pod; of the monitor alone.
    pub const POD_NAME: &str = "POD_NAME";
    /// Namespace of the pod; of the monitor alone.
    pub const POD_NAMESPACE: &str = "POD_NAMESPACE";
    /// uid of the pod; of the monitor alone.
    pub const POD_UID: &str = "POD_UID";

    /// Variables that `spec.env` must not set. AGENT_METRICS_PORT may be set, and MEMORY_API_KEY,
    /// which only the loader reads.
    pub const RESERVED: [&str; 13] = [
        AGENT_LOG_FILE,
        AGENT_ROLE,
        MODEL_REF,
        MODEL_ENDPOINT,
        MODEL_API_KEY,
        MEMORY_ENDPOINT,
        MEMORY_COLLECTION,
        MEMORY_DIM,
        MEMORY_DIR,
        STATE_DIR,
        POD_NAME,
        POD_NAMESPACE,
        POD_UID,
    ];
}

/// Metrics that a worker serves, and that its monitor exports with labels.
pub mod metrics {
    /// Gauge: tasks that wait.
    pub const QUEUE_DEPTH: &str = "agent_queue_depth";
    /// Gauge: tasks that are worked on.
    pub const TASKS_IN_FLIGHT: &str = "agent_tasks_in_flight";
    /// Counter: tokens used since the worker started.
    pub const TOKENS: &str = "agent_tokens_total";
    /// Counter: tasks that have ended since the worker started, whatever came of them. By choice of the worker.
    pub const TASKS: &str = "agent_tasks_total";
}

/// Folder of the monitor's own files.
pub const FOLDER: &str = "/var/lib/monitor";

/// Port of the monitor's stream (`proto`, `metrics.v1.Metrics`).
pub const STREAM_PORT: u16 = 9411;
/// Port of the monitor's health and metrics.
pub const ADMIN_PORT: u16 = 9410;

/// Command of the monitor that loads memory and state, as an init container.
pub const LOAD_MEMORY: &str = "load-memory";
/// Command of the monitor beside a worker.
pub const RUN: &str = "run";
/// Command of the monitor that announces the end of its pod.
pub const ANNOUNCE_END: &str = "announce-end";

/// Why `load-memory` failed. The numbers are a contract between images of different releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// The command line, the environment or a folder cannot be used.
    Usage = 2,
    /// The vector store has no collection of this name.
    CollectionNotFound = 20,
    /// The vectors of the collection have another dimension.
    DimMismatch = 21,
    /// The vector store does not answer.
    StoreUnreachable = 22,
    /// It refuses the credentials.
    StoreUnauthorized = 23,
    /// The volume for the memory is full.
    OutOfSpace = 24,
    /// The bucket for checkpoints does not exist.
    BucketNotFound = 25,
    /// The bucket or the volume for checkpoints does not answer.
    CheckpointsUnreachable = 26,
    /// It refuses the credentials.
    CheckpointsUnauthorized = 27,
    /// The volume for the restored state is full.
    StateOutOfSpace = 28,
}

impl ExitCode {
    pub const ALL: [ExitCode; 10] = [
        ExitCode::Usage,
        ExitCode::CollectionNotFound,
        ExitCode::DimMismatch,
        ExitCode::StoreUnreachable,
        ExitCode::StoreUnauthorized,
        ExitCode::OutOfSpace,
        ExitCode::BucketNotFound,
        ExitCode::CheckpointsUnreachable,
        ExitCode::CheckpointsUnauthorized,
        ExitCode::StateOutOfSpace,
    ];

    /// The exit code of a terminated container, if the monitor defines it.
    pub fn from_code(code: i32) -> Option<ExitCode> {
        ExitCode::ALL.into_iter().find(|known| known.code() == code)
    }

    /// The number in the state of a container.
    pub fn code(self) -> i32 {
        i32::from(self as u8)
    }

    /// Reason of the failed condition. A usage error counts as a crash.
    pub fn reason(self) -> &'static str {
        match self {
            ExitCode::Usage => reasons::CRASH_LOOP,
            ExitCode::CollectionNotFound => reasons::COLLECTION_NOT_FOUND,
            ExitCode::DimMismatch => reasons::DIM_MISMATCH,
            ExitCode::StoreUnreachable | ExitCode::CheckpointsUnreachable => reasons::STORE_UNREACHABLE,
            ExitCode::StoreUnauthorized | ExitCode::CheckpointsUnauthorized => reasons::STORE_UNAUTHORIZED,
            ExitCode::OutOfSpace | ExitCode::StateOutOfSpace => reasons::OUT_OF_SPACE,
            ExitCode::BucketNotFound => reasons::BUCKET_NOT_FOUND,
        }
    }

    /// Whether the storage of states cannot be used at present, so that a worker may be allowed to start without one.
    pub fn is_of_unusable_storage(self) -> bool {
        match self {
            ExitCode::BucketNotFound
            | ExitCode::CheckpointsUnreachable
            | ExitCode::CheckpointsUnauthorized => true,
            ExitCode::Usage
            | ExitCode::CollectionNotFound
            | ExitCode::DimMismatch
            | ExitCode::StoreUnreachable
            | ExitCode::StoreUnauthorized
            | ExitCode::OutOfSpace
            | ExitCode::StateOutOfSpace => false,
        }
    }

    /// Whether the state could not be restored. The memory is loaded before.
    pub fn is_of_checkpoints(self) -> bool {
        match self {
            ExitCode::BucketNotFound
            | ExitCode::CheckpointsUnreachable
            | ExitCode::CheckpointsUnauthorized
            | ExitCode::StateOutOfSpace => true,
            ExitCode::Usage
            | ExitCode::CollectionNotFound
            | ExitCode::DimMismatch
            | ExitCode::StoreUnreachable
            | ExitCode::StoreUnauthorized
            | ExitCode::OutOfSpace => false,
        }
    }

    /// The code with which a loader ends if the state could not be restored for this cause.
    pub fn of_checkpoints(self) -> ExitCode {
        match self {
            ExitCode::StoreUnreachable => ExitCode::CheckpointsUnreachable,
            ExitCode::StoreUnauthorized => ExitCode::CheckpointsUnauthorized,
            ExitCode::OutOfSpace => ExitCode::StateOutOfSpace,
            other => other,
        }
    }
}

/// The termination message of `run`, as JSON. Fields that a release does not know are ignored.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Message {
    /// Tokens that all runs of the worker in the pod have used. It contains those of earlier containers of the monitor.
    pub tokens: u64,
    /// When the last complete checkpoint was written, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<i64>,
    /// Why the state of the worker is not saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// uid of the worker whose state was restored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exit_codes_of_the_monitor_are_parsed() {
        for known in ExitCode::ALL {
            assert_eq!(ExitCode::from_code(known.code()), Some(known));
        }
        for other in [0, 1, 3, 29, 137, 276, -234] {
            assert_eq!(ExitCode::from_code(other), None);
        }
    }

    #[test]
    fn a_message_of_another_release_is_read() {
        let message: Message = serde_json::from_str(r#"{"tokens": 7, "later": true}"#).unwrap();
        assert_eq!(message, Message { tokens: 7, ..Message::default() });
        assert_eq!(serde_json::to_string(&message).unwrap(), r#"{"tokens":7}"#);
    }
}
