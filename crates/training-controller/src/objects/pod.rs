//! Pods of a TrainingJob: their main container, the Job that each belongs to, and whether one has stopped. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use workload::views::pod::PodView;

/// Name of the main container of an attempt's pod.
pub(crate) const TRAINER: &str = "trainer";

/// Whether no process of a pod runs any more, as far as its kubelet says.
pub(crate) fn has_stopped(pod: &PodView) -> bool {
    pod.phase == "Failed" || pod.phase == "Succeeded"
}

/// The name of the Job that controls a pod.
pub(crate) fn job_of(pod: &PodView) -> Option<&str> {
    owner_of(pod).map(|owner| owner.name.as_str())
}

fn owner_of(pod: &PodView) -> Option<&OwnerReference> {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}
