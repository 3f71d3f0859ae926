//! The volumes of a pod: the worker's memory, state and log, the monitor's own files, and the claim with checkpoints.

use api::monitor::FOLDER;
use k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, PersistentVolumeClaimVolumeSource, Volume, VolumeMount,
};
use quantity::Bytes;
use workload::template::mount;

use crate::validate::{Storage, ValidDispatcher};

const MEMORY: &str = "memory";
const STATE: &str = "state";
const MONITOR: &str = "monitor";
const LOG: &str = "log";
const CHECKPOINTS: &str = "checkpoints";

pub(super) const MEMORY_PATH: &str = "/var/lib/agent/memory";
pub(super) const STATE_PATH: &str = "/var/lib/agent/state";
const LOG_PATH: &str = "/var/log/agent";
/// The monitor passes its lines on.
pub(super) const LOG_FILE: &str = "/var/log/agent/agent.jsonl";
pub(super) const CHECKPOINTS_PATH: &str = "/var/lib/checkpoints";

/// The monitor keeps counts and positions there.
const MONITOR_SIZE: Bytes = Bytes::mebibytes(16);

pub(super) fn volumes(valid: &ValidDispatcher) -> Vec<Volume> {
    let mut volumes = vec![
        folder(STATE, EmptyDirVolumeSource::default()),
        folder(LOG, EmptyDirVolumeSource::default()),
        folder(MONITOR, EmptyDirVolumeSource { size_limit: Some(MONITOR_SIZE.quantity()), medium: None }),
    ];
    volumes.extend(valid.memory.as_ref().map(|_| folder(MEMORY, EmptyDirVolumeSource::default())));
    volumes.extend(claim(valid).map(|claim| Volume {
        name: CHECKPOINTS.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.to_owned(),
            read_only: None,
        }),
        ..Volume::default()
    }));
    volumes
}

/// The worker reads its memory and owns its state.
pub(super) fn of_worker(valid: &ValidDispatcher) -> Vec<VolumeMount> {
    let memory = valid.memory.as_ref();
    let memory = memory.map(|_| VolumeMount { read_only: Some(true), ..mount(MEMORY, MEMORY_PATH) });
    memory.into_iter().chain([mount(STATE, STATE_PATH), mount(LOG, LOG_PATH)]).collect()
}

pub(super) fn of_loader(valid: &ValidDispatcher) -> Vec<VolumeMount> {
    let memory = valid.memory.as_ref().map(|_| mount(MEMORY, MEMORY_PATH));
    memory.into_iter().chain(of_state(valid)).collect()
}

pub(super) fn of_monitor(valid: &ValidDispatcher) -> Vec<VolumeMount> {
    of_state(valid).into_iter().chain([mount(LOG, LOG_PATH)]).collect()
}

/// The claim is mounted in the containers of the monitor alone: a worker sees no state of another.
fn of_state(valid: &ValidDispatcher) -> Vec<VolumeMount> {
    let checkpoints = claim(valid).map(|_| mount(CHECKPOINTS, CHECKPOINTS_PATH));
    [mount(STATE, STATE_PATH), mount(MONITOR, FOLDER)].into_iter().chain(checkpoints).collect()
}

fn claim(valid: &ValidDispatcher) -> Option<&str> {
    match &valid.checkpoint.as_ref()?.storage {
        Storage::Claim(claim) => Some(claim),
        Storage::Store { .. } => None,
    }
}

fn folder(name: &str, source: EmptyDirVolumeSource) -> Volume {
    Volume { name: name.to_owned(), empty_dir: Some(source), ..Volume::default() }
}
