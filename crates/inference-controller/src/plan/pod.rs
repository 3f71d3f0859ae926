//! The pod template: the loader, which copies or checks the model, the engine, which serves it, and scheduling constraints.
//!
//! It passes Pod Security `restricted`, unless the user requests root. Equal specs give equal bytes.

use std::collections::BTreeMap;

use api::{aiinference::MAX_NODE_FAILURE_SECONDS, labels, pods::Scheduling};
use k8s_openapi::{
    api::core::v1::{LocalObjectReference, PodSpec, PodTemplateSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use workload::templates::template::{non_empty, pod_security, product_affinity, tolerations};

use super::{
    defaults::Defaults,
    metadata::{labels_of, selector},
};
use crate::{engine::Profile, validate::ValidInference};

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
    let Scheduling { node_selector, tolerations: _, priority_class_name, runtime_class_name, scheduler_name } =
        scheduling.cloned().unwrap_or_default();
    let secrets = valid.pods.image_pull_secrets.iter();
    // Without a watch of nodes the controller replaces no pods, and Kubernetes' eviction after five minutes must apply.
    let lost_node_seconds = defaults.watches_nodes.then_some(LOST_NODE_SECONDS);
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(pod_labels(valid)),
            annotations: Some(pod_annotations(valid, profile)),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            init_containers: Some(vec![loader::loader(valid, &defaults.loader_image)]),
            containers: vec![engine::engine(valid, profile, image)],
            volumes: Some(volumes::volumes(valid)),
            affinity: valid.gpus.as_ref().and_then(product_affinity),
            tolerations: tolerations(scheduling, valid.gpus.is_some(), lost_node_seconds),
            node_selector: (!node_selector.is_empty()).then_some(node_selector),
            priority_class_name,
            runtime_class_name,
            scheduler_name,
            image_pull_secrets: non_empty(
                secrets.map(|secret| LocalObjectReference { name: secret.name.clone() }).collect(),
            ),
            service_account_name: valid.pods.service_account_name.clone(),
            // No engine needs the token of the Kubernetes API. Workload identity does not, either: the webhooks of clouds
            // add a volume with a token for their own audience.
            automount_service_account_token: Some(false),
            // A Service named `vllm` would set VLLM_PORT in every engine, which vLLM reads as its own option.
            enable_service_links: Some(false),
            // As process 1 of its container, an engine without a handler would ignore SIGTERM, also from the preStop hook.
            share_process_namespace: Some(true),
            security_context: Some(pod_security(&valid.pods.security_context)),
            termination_grace_period_seconds: Some(probes::grace_seconds(&profile.drain)),
            ..PodSpec::default()
        }),
    }
}

fn pod_labels(valid: &ValidInference) -> BTreeMap<String, String> {
    let mut labels = valid.pods.pod_labels.clone();
    labels.extend(labels_of(valid));
    labels.extend(selector(&valid.name));
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
