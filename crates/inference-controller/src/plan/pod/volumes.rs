//! The volumes of a pod: the model, a home directory with caches, shared memory, the program of the preStop hook, and the
//! certificate authorities of the store.

use k8s_openapi::{
    api::core::v1::{
        EmptyDirVolumeSource, EphemeralVolumeSource, KeyToPath, PersistentVolumeClaimSpec,
        PersistentVolumeClaimTemplate, PersistentVolumeClaimVolumeSource, SecretVolumeSource,
        Volume as PodVolume, VolumeMount, VolumeResourceRequirements,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use text::quantity::Bytes;
use workload::templates::template::mount;

use crate::{
    engine::{HOME, MODEL_PATH},
    validate::{Source, ValidInference, Volume},
};

const MODEL: &str = "model";
const HOME_VOLUME: &str = "home";
const SHARED_MEMORY: &str = "shared-memory";
const PROGRAM: &str = "model-transfer";
pub(in crate::plan) const AUTHORITY: &str = "store-ca";

/// Where the loader finds the authorities of `modelStore.caSecretName`.
const AUTHORITY_PATH: &str = "/etc/model-store";
pub(super) const AUTHORITY_FILE: &str = "/etc/model-store/ca.crt";
/// In the Secret and below `AUTHORITY_PATH`, as cert-manager and Kubernetes name it.
pub(in crate::plan) const AUTHORITY_KEY: &str = "ca.crt";

/// Where the loader installs the program of the preStop hook.
pub(super) const PROGRAM_PATH: &str = "/opt/model-transfer";
/// Several times the size of the program: a restarted loader writes a second copy before it replaces the first.
const PROGRAM_SIZE: Bytes = Bytes::mebibytes(64);

/// The default of 64 MiB is too small for the communication of an engine's workers; vLLM documents 2 GiB.
const SHARED_MEMORY_SIZE: Bytes = Bytes::mebibytes(2 * 1024);

pub(super) fn volumes(valid: &ValidInference) -> Vec<PodVolume> {
    let mut volumes = vec![
        model(&valid.source),
        PodVolume {
            name: HOME_VOLUME.to_owned(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..PodVolume::default()
        },
        PodVolume {
            name: SHARED_MEMORY.to_owned(),
            empty_dir: Some(in_memory(
                valid.pods.shared_memory.clone().unwrap_or_else(|| SHARED_MEMORY_SIZE.quantity()),
            )),
            ..PodVolume::default()
        },
        PodVolume {
            name: PROGRAM.to_owned(),
            empty_dir: Some(EmptyDirVolumeSource { medium: None, size_limit: Some(PROGRAM_SIZE.quantity()) }),
            ..PodVolume::default()
        },
    ];
    volumes.extend(authority_secret(&valid.source).map(authority));
    volumes
}

pub(in crate::plan) fn authority_secret(source: &Source) -> Option<&str> {
    match source {
        Source::Copied { origin, .. } => origin.ca_secret(),
        Source::Claim { .. } => None,
    }
}

/// A Secret without the key keeps the pod from starting, and an event of the pod says so.
fn authority(secret: &str) -> PodVolume {
    let key = KeyToPath { key: AUTHORITY_KEY.to_owned(), path: AUTHORITY_KEY.to_owned(), mode: None };
    PodVolume {
        name: AUTHORITY.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            items: Some(vec![key]),
            ..SecretVolumeSource::default()
        }),
        ..PodVolume::default()
    }
}

/// Mounted in the loader only: the engine sends no requests to the store.
pub(super) fn authority_mount(source: &Source) -> Option<VolumeMount> {
    let mount = VolumeMount { read_only: Some(true), ..mount(AUTHORITY, AUTHORITY_PATH) };
    authority_secret(source).map(|_| mount)
}

/// The path of the weights in the engine. A claim is mounted at its root, not with a `subPath`. The kubelet creates a
/// missing sub-path: a typing error would leave an empty folder in the user's volume.
pub(super) fn model_path(source: &Source) -> String {
    let below = match source {
        Source::Claim { claim: _, path } => path.as_deref(),
        Source::Copied { file, .. } => file.as_deref(),
    };
    below.map_or(MODEL_PATH.to_owned(), |path| format!("{MODEL_PATH}/{path}"))
}

pub(super) fn engine_mounts(source: &Source) -> Vec<VolumeMount> {
    let program = VolumeMount { read_only: Some(true), ..program_mount() };
    vec![read_only_model_mount(source), mount(HOME_VOLUME, HOME), mount(SHARED_MEMORY, "/dev/shm"), program]
}

pub(super) fn program_mount() -> VolumeMount {
    mount(PROGRAM, PROGRAM_PATH)
}

/// Read-only, so that even a compromised engine cannot change the weights.
pub(super) fn read_only_model_mount(source: &Source) -> VolumeMount {
    VolumeMount { read_only: Some(true), ..model_mount(source) }
}

/// An ephemeral volume is mounted with a `subPath`, because Triton takes the folder `lost+found` at the root of a new file
/// system for a broken model.
pub(super) fn model_mount(source: &Source) -> VolumeMount {
    let sub_path = match source {
        Source::Copied { volume: Volume::Ephemeral { .. }, .. } => Some(MODEL.to_owned()),
        Source::Copied { volume: Volume::Disk { .. } | Volume::Memory { .. }, .. } | Source::Claim { .. } => {
            None
        }
    };
    VolumeMount { sub_path, ..mount(MODEL, MODEL_PATH) }
}

fn model(source: &Source) -> PodVolume {
    let named = PodVolume { name: MODEL.to_owned(), ..PodVolume::default() };
    match source {
        Source::Claim { claim, path: _ } => PodVolume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.clone(),
                read_only: Some(true),
            }),
            ..named
        },
        Source::Copied { volume, .. } => match volume {
            Volume::Disk { limit } => PodVolume {
                empty_dir: Some(EmptyDirVolumeSource { medium: None, size_limit: limit.clone() }),
                ..named
            },
            Volume::Memory { size } => PodVolume { empty_dir: Some(in_memory(size.quantity())), ..named },
            Volume::Ephemeral { size, class } => {
                PodVolume { ephemeral: Some(ephemeral_claim(size, class.as_deref())), ..named }
            }
        },
    }
}

fn in_memory(limit: Quantity) -> EmptyDirVolumeSource {
    EmptyDirVolumeSource { medium: Some("Memory".to_owned()), size_limit: Some(limit) }
}

/// A claim that is created and deleted with its pod.
fn ephemeral_claim(size: &Quantity, class: Option<&str>) -> EphemeralVolumeSource {
    EphemeralVolumeSource {
        volume_claim_template: Some(PersistentVolumeClaimTemplate {
            metadata: None,
            spec: PersistentVolumeClaimSpec {
                access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
                storage_class_name: class.map(str::to_owned),
                resources: Some(VolumeResourceRequirements {
                    requests: Some([("storage".to_owned(), size.clone())].into()),
                    ..VolumeResourceRequirements::default()
                }),
                ..PersistentVolumeClaimSpec::default()
            },
        }),
    }
}
