//! The PodDisruptionBudget: a drain evicts one replica at a time. A single replica has none, because it would block the
//! drain.

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
    plan::metadata::{metadata, selector},
    validate::ValidInference,
};

pub(super) fn pod_disruption_budget(valid: &ValidInference) -> Option<PodDisruptionBudget> {
    (valid.replicas > 1).then(|| PodDisruptionBudget {
        metadata: metadata(valid, names::pod_disruption_budget(&valid.name)),
        spec: Some(PodDisruptionBudgetSpec {
            selector: Some(LabelSelector {
                match_labels: Some(selector(&valid.name)),
                ..LabelSelector::default()
            }),
            max_unavailable: Some(IntOrString::Int(1)),
            // A pod that is not ready must not block a drain.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    })
}

/// The budget to delete after scaling down to one replica or none; only its metadata is set.
pub(in crate::plan) fn superfluous(
    valid: &ValidInference,
    observed: &Observed,
) -> Option<PodDisruptionBudget> {
    let is_deleted = |budget: &ObjectMeta| budget.deletion_timestamp.is_some();
    let metadata = observed.budget.clone().filter(|budget| valid.replicas <= 1 && !is_deleted(budget))?;
    Some(PodDisruptionBudget { metadata, ..PodDisruptionBudget::default() })
}
