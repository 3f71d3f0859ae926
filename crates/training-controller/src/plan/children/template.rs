//! What the pods of attempts and those that speak to the store have in common. Pure.

use std::collections::BTreeMap;

use api::pods::Scheduling;
use k8s_openapi::{
    api::core::v1::{
        EnvVar, EnvVarSource, LocalObjectReference, PersistentVolumeClaimVolumeSource, PodSpec,
        ResourceRequirements, SecretKeySelector, Volume,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use workload::templates::template::{non_empty, pod_security};

use super::metadata::pod_labels;
use crate::validate::ValidJob;

pub(super) fn metadata(valid: &ValidJob) -> ObjectMeta {
    ObjectMeta {
        labels: Some(pod_labels(valid)),
        annotations: non_empty_map(valid.pods.pod_annotations.clone()),
        ..ObjectMeta::default()
    }
}

/// Without containers.
pub(super) fn pod(valid: &ValidJob) -> PodSpec {
    let Scheduling {
        node_selector,
        priority_class_name,
        scheduler_name,
        tolerations: _,
        runtime_class_name: _,
    } = valid.pods.scheduling.clone().unwrap_or_default();
    let secrets = valid.pods.image_pull_secrets.iter();
    PodSpec {
        // A trainer is not repeated in place: the next attempt may have other settings and another node.
        restart_policy: Some("Never".to_owned()),
        node_selector: non_empty_map(node_selector),
        priority_class_name,
        scheduler_name,
        image_pull_secrets: non_empty(
            secrets.map(|secret| LocalObjectReference { name: secret.name.clone() }).collect(),
        ),
        service_account_name: valid.pods.service_account_name.clone(),
        // No pod needs the token of the Kubernetes API. Workload identity does not, either: the webhooks of clouds add a
        // volume with a token for their own audience.
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(pod_security(&valid.pods.security_context)),
        ..PodSpec::default()
    }
}

/// CPU and memory.
pub(super) fn resources(requests: [&str; 2], limits: [&str; 2]) -> ResourceRequirements {
    let amounts = |[cpu, memory]: [&str; 2]| {
        let amounts = [("cpu", cpu), ("memory", memory)];
        Some(amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).into())
    };
    ResourceRequirements {
        requests: amounts(requests),
        limits: amounts(limits),
        ..ResourceRequirements::default()
    }
}

pub(super) fn volume_of_claim(name: String, claim: &str) -> Volume {
    Volume {
        name,
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.to_owned(),
            ..PersistentVolumeClaimVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// A variable by reference alone.
pub(super) fn variable_of_secret(variable: &str, secret: &str, key: &str, optional: Option<bool>) -> EnvVar {
    EnvVar {
        name: variable.to_owned(),
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

fn non_empty_map(map: BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    (!map.is_empty()).then_some(map)
}
