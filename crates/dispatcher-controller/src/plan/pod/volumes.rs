//! The volumes of a pod: the worker's memory, state, log and home, and the monitor's own files. With checkpoints also their
//! claim, or the keys of their bucket and the authorities of its store.

use api::{
    monitor::{FOLDER, MEMORY_BYTES, STATE_BYTES},
    pods::Ids,
};
use k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, KeyToPath, PersistentVolumeClaimVolumeSource, SecretVolumeSource, Volume,
    VolumeMount,
};
use text::quantity::Bytes;
use workload::templates::template::mount;

use crate::validate::{Storage, ValidDispatcher};

const MEMORY: &str = "memory";
const STATE: &str = "state";
const MONITOR: &str = "monitor";
const LOG: &str = "log";
const HOME: &str = "home";
const SHARED_MEMORY: &str = "shared-memory";
const CHECKPOINTS: &str = "checkpoints";
const CHECKPOINT_KEYS: &str = "checkpoint-keys";
const AUTHORITY: &str = "checkpoint-ca";

pub(super) const MEMORY_PATH: &str = "/var/lib/agent/memory";
pub(super) const STATE_PATH: &str = "/var/lib/agent/state";
const LOG_PATH: &str = "/var/log/agent";
/// The monitor passes its lines on.
pub(super) const LOG_FILE: &str = "/var/log/agent/agent.jsonl";
pub(super) const HOME_PATH: &str = "/home/agent";
pub(super) const CHECKPOINTS_PATH: &str = "/var/lib/checkpoints";

pub(super) const KEYS_PATH: &str = "/var/run/checkpoint-keys";
const AUTHORITY_PATH: &str = "/etc/checkpoint-store";
pub(super) const AUTHORITY_FILE: &str = "/etc/checkpoint-store/ca.crt";
/// In the Secret and below `AUTHORITY_PATH`, as cert-manager and Kubernetes name it.
const AUTHORITY_KEY: &str = "ca.crt";
/// In the Secret of `checkpoint`.
pub(super) const KEYS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];
/// For the group of the pod.
const KEYS_MODE: i32 = 0o440;

/// The monitor keeps counts and positions there.
const MONITOR_SIZE: Bytes = Bytes::mebibytes(16);
/// What a store can fill. The loader writes nothing else, and stops at the limit of a memory after at most one page.
const MEMORY_SIZE: Bytes = Bytes::mebibytes((MEMORY_BYTES >> 20) as u128 + 1_024);
/// A worker writes a file of its state beside the old one before it replaces that.
const STATE_SIZE: Bytes = Bytes::mebibytes((STATE_BYTES >> 20) as u128 * 2);

pub(super) fn volumes(valid: &ValidDispatcher) -> Vec<Volume> {
    // A state that is not saved has no limit: what it needs is not known.
    let state = valid.checkpoint.as_ref().map_or_else(EmptyDirVolumeSource::default, |_| limited(STATE_SIZE));
    let mut volumes = vec![
        folder(STATE, state),
        folder(LOG, EmptyDirVolumeSource::default()),
        folder(HOME, EmptyDirVolumeSource::default()),
        folder(MONITOR, limited(MONITOR_SIZE)),
    ];
    volumes.extend(valid.pods.shared_memory.clone().map(|size| {
        let in_memory = EmptyDirVolumeSource { medium: Some("Memory".to_owned()), size_limit: Some(size) };
        folder(SHARED_MEMORY, in_memory)
    }));
    volumes.extend(valid.memory.as_ref().map(|_| folder(MEMORY, limited(MEMORY_SIZE))));
    volumes.extend(claim(valid).map(|claim| Volume {
        name: CHECKPOINTS.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.to_owned(),
            read_only: None,
        }),
        ..Volume::default()
    }));
    volumes.extend(keys(valid).map(|secret| Volume {
        name: CHECKPOINT_KEYS.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            items: Some(
                KEYS.map(|key| KeyToPath { key: key.to_owned(), path: key.to_owned(), mode: None }).into(),
            ),
            // Where the platform chooses the groups, there may be none.
            default_mode: match valid.pods.security_context.ids {
                Ids::Fixed => Some(KEYS_MODE),
                Ids::Platform => None,
            },
            // The variables of the containers require the Secret, and the status of a waiting container names what is
            // missing.
            optional: Some(true),
        }),
        ..Volume::default()
    }));
    volumes.extend(ca_secret(valid).map(|secret| Volume {
        name: AUTHORITY.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            items: Some(vec![KeyToPath {
                key: AUTHORITY_KEY.to_owned(),
                path: AUTHORITY_KEY.to_owned(),
                mode: None,
            }]),
            default_mode: None,
            // The monitor says what is missing, and no event has to be read.
            optional: Some(true),
        }),
        ..Volume::default()
    }));
    volumes
}

/// The worker reads its memory and owns its state and its home.
pub(super) fn of_worker(valid: &ValidDispatcher) -> Vec<VolumeMount> {
    let memory = valid.memory.as_ref();
    let memory = memory.map(|_| VolumeMount { read_only: Some(true), ..mount(MEMORY, MEMORY_PATH) });
    let own = [mount(STATE, STATE_PATH), mount(LOG, LOG_PATH), mount(HOME, HOME_PATH)];
    let shared = valid.pods.shared_memory.as_ref().map(|_| mount(SHARED_MEMORY, "/dev/shm"));
    memory.into_iter().chain(own).chain(shared).collect()
}

pub(super) fn of_loader(valid: &ValidDispatcher) -> Vec<VolumeMount> {
    let memory = valid.memory.as_ref().map(|_| mount(MEMORY, MEMORY_PATH));
    memory.into_iter().chain(of_state(valid)).collect()
}

pub(super) fn of_monitor(valid: &ValidDispatcher) -> Vec<VolumeMount> {
    let keys = keys(valid);
    let keys = keys.map(|_| VolumeMount { read_only: Some(true), ..mount(CHECKPOINT_KEYS, KEYS_PATH) });
    of_state(valid).into_iter().chain([mount(LOG, LOG_PATH)]).chain(keys).collect()
}

/// The claim is mounted in the containers of the monitor alone: a worker sees no state of another.
fn of_state(valid: &ValidDispatcher) -> Vec<VolumeMount> {
    let checkpoints = claim(valid).map(|_| mount(CHECKPOINTS, CHECKPOINTS_PATH));
    let authority = VolumeMount { read_only: Some(true), ..mount(AUTHORITY, AUTHORITY_PATH) };
    let authority = ca_secret(valid).map(|_| authority);
    [mount(STATE, STATE_PATH), mount(MONITOR, FOLDER)]
        .into_iter()
        .chain(checkpoints)
        .chain(authority)
        .collect()
}

fn claim(valid: &ValidDispatcher) -> Option<&str> {
    match &valid.checkpoint.as_ref()?.storage {
        Storage::Claim(claim) => Some(claim),
        Storage::Store { .. } => None,
    }
}

/// The Secret with the keys of the bucket, which the sidecar reads again when they change.
pub(super) fn keys(valid: &ValidDispatcher) -> Option<&str> {
    match &valid.checkpoint.as_ref()?.storage {
        Storage::Claim(_) => None,
        Storage::Store { uri: _, endpoint: _, region: _, secret, ca_secret: _ } => secret.as_deref(),
    }
}

/// The Secret with the authorities of the store.
pub(super) fn ca_secret(valid: &ValidDispatcher) -> Option<&str> {
    match &valid.checkpoint.as_ref()?.storage {
        Storage::Claim(_) => None,
        Storage::Store { uri: _, endpoint: _, region: _, secret: _, ca_secret } => ca_secret.as_deref(),
    }
}

fn limited(size: Bytes) -> EmptyDirVolumeSource {
    EmptyDirVolumeSource { size_limit: Some(size.quantity()), medium: None }
}

fn folder(name: &str, source: EmptyDirVolumeSource) -> Volume {
    Volume { name: name.to_owned(), empty_dir: Some(source), ..Volume::default() }
}
