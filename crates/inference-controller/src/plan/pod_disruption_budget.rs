//! The PodDisruptionBudget: a drained node takes one replica at a time. With a single replica it would only block
//! the drain, so there is none.

use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};

use super::metadata::{metadata, selector};
use crate::{names, observe::Observed, validate::ValidInference};

pub(super) fn pod_disruption_budget(valid: &ValidInference) -> Option<PodDisruptionBudget> {
    (valid.replicas > 1).then(|| PodDisruptionBudget {
        metadata: metadata(valid, names::pod_disruption_budget(&valid.name)),
        spec: Some(PodDisruptionBudgetSpec {
            selector: Some(LabelSelector {
                match_labels: Some(selector(&valid.name)),
                ..LabelSelector::default()
            }),
            max_unavailable: Some(IntOrString::Int(1)),
            // A replica that does not serve must not keep a node from being drained.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    })
}

/// The budget of a service that has been scaled down to one replica or none; nothing but what identifies it.
pub(super) fn superfluous(valid: &ValidInference, observed: &Observed) -> Option<PodDisruptionBudget> {
    let going = |budget: &ObjectMeta| budget.deletion_timestamp.is_some();
    let metadata = observed.budget.clone().filter(|budget| valid.replicas <= 1 && !going(budget))?;
    Some(PodDisruptionBudget { metadata, ..PodDisruptionBudget::default() })
}
