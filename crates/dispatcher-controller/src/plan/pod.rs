//! The pod template: the loader of memory and state, the monitor, the worker, and scheduling constraints.
//!
//! It passes Pod Security `restricted`, unless the user requests root. Equal specs give equal bytes.

use std::collections::BTreeMap;

use api::{
    labels,
    monitor::{ADMIN_PORT, UPLOAD_SECONDS, variables},
    pods::Resources,
};
use k8s_openapi::{
    api::core::v1::{
        EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec, PodTemplateSpec, SecretKeySelector, Toleration,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use workload::templates::{
    options::{self, Siblings, affinity, topology_spread, user_volumes},
    template::{literal, tolerations},
};

use super::metadata::{labels_of, selector};
use crate::validate::{Invalid, ValidDispatcher, defaults::Defaults};

/// Of the resources of NVIDIA's device plugin: GPUs and MIG slices.
const NVIDIA: &str = "nvidia.com/";
const UNREACHABLE_TAINT: &str = "node.kubernetes.io/unreachable";

mod monitor;
mod volumes;
mod worker;

pub(super) fn pod_template(valid: &ValidDispatcher, defaults: &Defaults) -> PodTemplateSpec {
    let scheduling = valid.pods.scheduling.as_ref();
    let siblings = Siblings { selector: selector(&valid.name), revision_label: labels::POD_TEMPLATE_HASH };
    let (user_volumes, user_mounts) = user_volumes(&valid.pods);
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(pod_labels(valid)),
            annotations: Some(pod_annotations(valid)),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            // The kubelet starts the monitor before the worker and ends it after the worker.
            init_containers: Some(
                monitor::loader(valid, defaults)
                    .into_iter()
                    .chain([monitor::monitor(valid, defaults)])
                    .collect(),
            ),
            containers: vec![worker::worker(valid, user_mounts)],
            volumes: Some(volumes::volumes(valid).into_iter().chain(user_volumes).collect()),
            affinity: affinity(None, scheduling, Some(&siblings)),
            topology_spread_constraints: topology_spread(scheduling, &siblings),
            tolerations: Some(
                [lost_node(defaults)]
                    .into_iter()
                    .chain(tolerations(scheduling, has_gpus(&valid.resources), None).unwrap_or_default())
                    .collect(),
            ),
            termination_grace_period_seconds: Some(grace_seconds(valid)),
            ..options::pod(&valid.pods)
        }),
    }
}

/// Refuses volumes of the user that cannot be mounted beside the controller's own.
pub(super) fn has_room_for_volumes(valid: ValidDispatcher) -> Result<ValidDispatcher, Invalid> {
    let (volumes, mounts) = (volumes::volumes(&valid), volumes::of_worker(&valid));
    match options::volume_conflict(&valid.pods, &volumes, &mounts) {
        Some(conflict) => Err(Invalid(conflict)),
        None => Ok(valid),
    }
}

fn has_gpus(Resources { requests, limits }: &Resources) -> bool {
    requests.keys().chain(limits.keys()).any(|resource| resource.starts_with(NVIDIA))
}

/// Kubernetes replaces a worker on an unreachable node after this time. That of a node that is not ready, such as while its
/// runtime is restarted, works on for Kubernetes' default of five minutes.
fn lost_node(defaults: &Defaults) -> Toleration {
    Toleration {
        key: Some(UNREACHABLE_TAINT.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        toleration_seconds: Some(defaults.lost_node_seconds),
        ..Toleration::default()
    }
}

/// Kubernetes' default where no state is saved.
fn grace_seconds(valid: &ValidDispatcher) -> i64 {
    let worker = valid.checkpoint.as_ref().map_or(0, |checkpoint| i64::from(checkpoint.grace_seconds));
    worker + i64::from(UPLOAD_SECONDS)
}

fn pod_labels(valid: &ValidDispatcher) -> BTreeMap<String, String> {
    let mut labels = valid.pods.pod_labels.clone();
    labels.extend(labels_of(&valid.name));
    labels.insert(labels::APP.to_owned(), valid.name.clone());
    labels
}

/// The conventional annotations for scraping by Prometheus: the monitor serves the worker's load with the names of the pool.
fn pod_annotations(valid: &ValidDispatcher) -> BTreeMap<String, String> {
    let mut annotations: BTreeMap<String, String> = [
        ("prometheus.io/scrape", "true".to_owned()),
        ("prometheus.io/port", ADMIN_PORT.to_string()),
        ("prometheus.io/path", "/metrics".to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    annotations.extend(valid.pods.pod_annotations.clone());
    annotations
}

fn value(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(literal(value)), value_from: None }
}

fn from_field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { api_version: None, field_path: path.to_owned() }),
            ..EnvVarSource::default()
        }),
    }
}

fn from_secret(name: &str, secret: &str, key: &str, optional: Option<bool>) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.to_owned(),
                key: key.to_owned(),
                optional,
            }),
            ..EnvVarSource::default()
        }),
    }
}

/// Of the collection, for the loader and for the worker.
fn memory_variables(valid: &ValidDispatcher) -> Vec<EnvVar> {
    let Some(memory) = &valid.memory else { return Vec::new() };
    vec![
        value(variables::MEMORY_ENDPOINT, &memory.endpoint),
        value(variables::MEMORY_COLLECTION, &memory.collection),
        value(variables::MEMORY_DIM, &memory.dim.to_string()),
        value(variables::MEMORY_DIR, volumes::MEMORY_PATH),
    ]
}
