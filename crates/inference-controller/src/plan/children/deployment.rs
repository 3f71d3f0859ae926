//! The Deployment: replicas, strategy and pod template.

use k8s_openapi::{
    api::apps::v1::{DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment},
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use workload::templates::{deployment::RenderedDeployment, revision::Revision};

use crate::{
    names,
    observe::Observed,
    plan::{
        handover::Handover,
        metadata::{metadata, selector},
        rollout::Strategy,
    },
    validate::ValidInference,
};

/// Disables the Deployment's deadline. A model may load for hours; `spec.warmupTimeoutSeconds` limits the warm-up instead.
const NO_DEADLINE: i32 = i32::MAX;
/// Enough for `kubectl rollout history`.
const REVISIONS_KEPT: i32 = 3;

pub(super) fn deployment(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
    strategy: Strategy,
    handover: &Handover,
) -> RenderedDeployment {
    let planned_on = observed.deployment.as_ref().and_then(|known| known.metadata.resource_version.clone());
    let (surge, unavailable) = match strategy {
        Strategy::Surge => (1, 0),
        Strategy::Replace => (0, 1),
    };
    let mut metadata = metadata(valid, names::deployment(&valid.name, valid.track));
    metadata.annotations = Some(revision.annotations(&valid.generation_of_template()));
    let spec = DeploymentSpec {
        replicas: Some(valid.replicas.saturating_add(handover.surplus)),
        selector: LabelSelector {
            match_labels: Some(selector(&valid.name, valid.track)),
            ..LabelSelector::default()
        },
        strategy: Some(DeploymentStrategy {
            type_: Some("RollingUpdate".to_owned()),
            rolling_update: Some(RollingUpdateDeployment {
                max_surge: Some(IntOrString::Int(surge)),
                max_unavailable: Some(IntOrString::Int(unavailable)),
            }),
        }),
        progress_deadline_seconds: Some(NO_DEADLINE),
        revision_history_limit: Some(REVISIONS_KEPT),
        ..DeploymentSpec::default()
    };
    // Plain fields and string keys; serialization cannot fail.
    let mut spec = serde_json::to_value(spec).unwrap_or_default();
    spec["template"] = revision.template.clone();
    RenderedDeployment { metadata, spec, planned_on }
}
