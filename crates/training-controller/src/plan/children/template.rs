//! What the pods of attempts and those that speak to the store have in common. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaimVolumeSource, PodSpec, Volume},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use workload::templates::options;

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
    PodSpec {
        // A trainer is not repeated in place: the next attempt may have other settings and another node.
        restart_policy: Some("Never".to_owned()),
        ..options::pod(&valid.pods)
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

fn non_empty_map(map: BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    (!map.is_empty()).then_some(map)
}
