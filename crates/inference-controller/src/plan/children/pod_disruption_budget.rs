//! The PodDisruptionBudget: a drain evicts one replica at a time, and the only one when another is ready, or the time for that is
//! over.

use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};

use crate::{
    names,
    observe::Observed,
    plan::{
        handover::Handover,
        metadata::{metadata, selector},
    },
    validate::ValidInference,
};

pub(super) fn pod_disruption_budget(
    valid: &ValidInference,
    handover: &Handover,
) -> Option<PodDisruptionBudget> {
    let (max_unavailable, min_available) = match valid.replicas {
        ..=0 => return None,
        1 if handover.is_guarded => (None, Some(IntOrString::Int(1))),
        1 => return None,
        2.. => (Some(IntOrString::Int(1)), None),
    };
    Some(PodDisruptionBudget {
        metadata: metadata(valid, names::pod_disruption_budget(&valid.name, valid.track)),
        spec: Some(PodDisruptionBudgetSpec {
            selector: Some(LabelSelector {
                match_labels: Some(selector(&valid.name, valid.track)),
                ..LabelSelector::default()
            }),
            max_unavailable,
            min_available,
            // A pod that is not ready must not block a drain.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
        }),
        ..PodDisruptionBudget::default()
    })
}

/// The budget to delete where none is wanted; only its metadata is set.
pub(in crate::plan) fn superfluous(
    valid: &ValidInference,
    observed: &Observed,
    handover: &Handover,
) -> Option<PodDisruptionBudget> {
    let is_deleted = |budget: &ObjectMeta| budget.deletion_timestamp.is_some();
    let is_wanted = pod_disruption_budget(valid, handover).is_some();
    let metadata = observed.budget.clone().filter(|budget| !is_wanted && !is_deleted(budget))?;
    Some(PodDisruptionBudget { metadata, ..PodDisruptionBudget::default() })
}
