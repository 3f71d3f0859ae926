//! The pod template: a loader that brings the model, an engine that serves it, and where they may run.
//!
//! Admitted by Pod Security `restricted`, unless the user asks for root. The same spec gives the same bytes: a template
//! that differed by a hair would restart every pod.

use std::collections::BTreeMap;

use api::{
    labels,
    pods::{self, Scheduling, TaintEffect, TolerationOperator},
};
use k8s_openapi::{
    api::core::v1::{
        Affinity, Capabilities, LocalObjectReference, NodeAffinity, NodeSelector, NodeSelectorRequirement,
        NodeSelectorTerm, PodSecurityContext, PodSpec, PodTemplateSpec, SeccompProfile, SecurityContext,
        Toleration,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    metadata::{labels_of, selector},
    resolved::Resolved,
};
use crate::validate::{Gpus, Source, ValidInference};

mod engine;
mod loader;
mod probes;
mod volumes;

/// Name of the init container; by it we find why a model is not there.
pub(super) const LOADER: &str = "model-loader";
/// Name of the main container.
pub(crate) const ENGINE: &str = "engine";

/// What GPU operators taint their nodes with.
pub(super) const GPU_TAINT: &str = "nvidia.com/gpu";
/// What Kubernetes taints nodes with whose Ready condition is False, and Unknown.
const NOT_READY_TAINT: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE_TAINT: &str = "node.kubernetes.io/unreachable";

pub(super) fn pod_template(valid: &ValidInference, resolved: &Resolved) -> PodTemplateSpec {
    let Scheduling { node_selector, tolerations, priority_class_name, runtime_class_name, scheduler_name } =
        valid.pods.scheduling.clone().unwrap_or_default();
    let loader = match &valid.source {
        Source::Store { uri, store, volume } => Some(vec![loader::loader(uri, store, volume, resolved)]),
        Source::Claim { .. } => None,
    };
    let secrets = valid.pods.image_pull_secrets.iter();
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(pod_labels(valid)),
            annotations: Some(pod_annotations(valid, resolved)),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            init_containers: loader,
            containers: vec![engine::engine(valid, resolved)],
            volumes: Some(volumes::volumes(valid)),
            affinity: valid.gpus.as_ref().and_then(product_affinity),
            tolerations: Some(
                always_tolerated().into_iter().chain(tolerations.iter().map(toleration)).collect(),
            ),
            node_selector: (!node_selector.is_empty()).then_some(node_selector),
            priority_class_name,
            runtime_class_name,
            scheduler_name,
            image_pull_secrets: non_empty(
                secrets.map(|secret| LocalObjectReference { name: secret.name.clone() }).collect(),
            ),
            service_account_name: valid.pods.service_account_name.clone(),
            automount_service_account_token: Some(valid.pods.service_account_name.is_some()),
            // A Service called `vllm` would give every engine a VLLM_PORT that it takes for its own.
            enable_service_links: Some(false),
            security_context: Some(pod_security(&valid.pods.security_context)),
            termination_grace_period_seconds: Some(probes::grace_seconds(&resolved.profile.drain)),
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

/// Where the metrics are, as Prometheus configurations conventionally look for it.
fn pod_annotations(valid: &ValidInference, resolved: &Resolved) -> BTreeMap<String, String> {
    let metrics = &resolved.profile.metrics;
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

/// Any of the products will do.
fn product_affinity(gpus: &Gpus) -> Option<Affinity> {
    let terms: Vec<NodeSelectorTerm> = gpus
        .products
        .iter()
        .map(|product| NodeSelectorTerm {
            match_expressions: Some(vec![NodeSelectorRequirement {
                key: product.key.clone(),
                operator: "In".to_owned(),
                values: Some(product.values.clone()),
            }]),
            ..NodeSelectorTerm::default()
        })
        .collect();
    (!terms.is_empty()).then(|| Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: terms,
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    })
}

/// Kubernetes would take pods off a dead node after five minutes, all at once; when and how many is ours to decide.
fn always_tolerated() -> [Toleration; 3] {
    [(GPU_TAINT, None), (NOT_READY_TAINT, Some("NoExecute")), (UNREACHABLE_TAINT, Some("NoExecute"))].map(
        |(key, effect)| Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: effect.map(str::to_owned),
            ..Toleration::default()
        },
    )
}

fn toleration(toleration: &pods::Toleration) -> Toleration {
    let pods::Toleration { key, operator, value, effect, toleration_seconds } = toleration.clone();
    let operator = match operator {
        TolerationOperator::Equal => "Equal",
        TolerationOperator::Exists => "Exists",
    };
    let effect = effect.map(|effect| match effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        TaintEffect::NoExecute => "NoExecute",
    });
    Toleration {
        key,
        operator: Some(operator.to_owned()),
        value,
        effect: effect.map(str::to_owned),
        toleration_seconds,
    }
}

fn pod_security(context: &pods::SecurityContext) -> PodSecurityContext {
    let pods::SecurityContext { run_as_user, run_as_group, fs_group } = *context;
    PodSecurityContext {
        run_as_user: Some(run_as_user),
        run_as_group: Some(run_as_group),
        run_as_non_root: (run_as_user != 0).then_some(true),
        fs_group: Some(fs_group),
        // A model of a hundred thousand files must not be walked at every start.
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        ..PodSecurityContext::default()
    }
}

/// Of every container; engines write beside their own files, so only the loader's root is read-only.
fn container_security(read_only_root: Option<bool>) -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        read_only_root_filesystem: read_only_root,
        ..SecurityContext::default()
    }
}

/// Kubernetes expands `$(NAME)` in arguments and values; users' text is taken literally.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}
