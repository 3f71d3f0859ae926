//! The pod template: the loader, which copies or checks the model, the engine, which serves it, and scheduling constraints.
//!
//! It passes Pod Security `restricted`, unless the user requests root. Equal specs give equal bytes.

use std::collections::BTreeMap;

use api::{aiinference::MAX_NODE_FAILURE_SECONDS, labels};
use k8s_openapi::{
    api::core::v1::{PodSpec, PodTemplateSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use workload::templates::{
    options::{self, Siblings, affinity, topology_spread, user_volumes},
    template::tolerations,
};

use super::{
    defaults::Defaults,
    metadata::{labels_of, selector},
};
use crate::{
    engine::Profile,
    validate::{Invalid, ValidInference},
};

mod engine;
pub(super) mod loader;
mod probes;
pub(super) mod volumes;

/// Longer than the maximum of `nodeFailureSeconds`. It must not depend on that field, whose changes restart no pods.
const LOST_NODE_SECONDS: i64 = MAX_NODE_FAILURE_SECONDS as i64 + 300;

pub(super) fn pod_template(
    valid: &ValidInference,
    profile: &Profile,
    image: &str,
    defaults: &Defaults,
) -> PodTemplateSpec {
    let scheduling = valid.pods.scheduling.as_ref();
    // Without a watch of nodes the controller replaces no pods, and Kubernetes' eviction after five minutes must apply.
    let lost_node_seconds = defaults.watches_nodes.then_some(LOST_NODE_SECONDS);
    let siblings =
        Siblings { selector: selector(&valid.name, valid.track), revision_label: labels::POD_TEMPLATE_HASH };
    let (user_volumes, user_mounts) = user_volumes(&valid.pods);
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(pod_labels(valid)),
            annotations: Some(pod_annotations(valid, profile)),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            init_containers: Some(vec![loader::loader(valid, &defaults.loader_image)]),
            containers: vec![engine::engine(valid, profile, image, user_mounts)],
            volumes: Some(volumes::volumes(valid).into_iter().chain(user_volumes).collect()),
            affinity: affinity(valid.gpus.as_ref(), scheduling, Some(&siblings)),
            topology_spread_constraints: topology_spread(scheduling, &siblings),
            tolerations: tolerations(scheduling, valid.gpus.is_some(), lost_node_seconds),
            // As process 1 of its container, an engine without a handler would ignore SIGTERM, also from the preStop hook.
            share_process_namespace: Some(true),
            termination_grace_period_seconds: Some(probes::grace_seconds(drain_seconds(valid, profile))),
            ..options::pod(&valid.pods)
        }),
    }
}

/// Refuses volumes of the user that cannot be mounted beside the controller's own.
pub(super) fn has_room_for_volumes(valid: ValidInference) -> Result<ValidInference, Invalid> {
    let (volumes, mounts) = (volumes::volumes(&valid), volumes::engine_mounts(&valid.source));
    match options::volume_conflict(&valid.pods, &volumes, &mounts) {
        Some(conflict) => Err(Invalid(conflict)),
        None => Ok(valid),
    }
}

/// How long running requests get after SIGTERM.
fn drain_seconds(valid: &ValidInference, profile: &Profile) -> i64 {
    valid.drain_seconds.map_or(profile.drain.seconds, i64::from)
}

fn pod_labels(valid: &ValidInference) -> BTreeMap<String, String> {
    let mut labels = valid.pods.pod_labels.clone();
    labels.extend(labels_of(valid));
    labels.extend(selector(&valid.name, valid.track));
    labels.insert(labels::APP.to_owned(), valid.name.clone());
    labels
}

/// The conventional annotations for scraping by Prometheus.
fn pod_annotations(valid: &ValidInference, profile: &Profile) -> BTreeMap<String, String> {
    let metrics = &profile.metrics;
    let mut annotations: BTreeMap<String, String> = [
        ("prometheus.io/scrape", "true".to_owned()),
        ("prometheus.io/port", metrics.port.to_string()),
        ("prometheus.io/path", metrics.path.to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    annotations.extend(valid.pods.pod_annotations.clone());
    annotations
}
