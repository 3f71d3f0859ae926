//! The Deployment: replicas, strategy and pod template.

use k8s_openapi::{
    api::apps::v1::{DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment},
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use workload::{deployment::RenderedDeployment, revision::Revision};

use super::metadata::{metadata, selector};
use crate::{names, validate::ValidDispatcher};

/// Disables the Deployment's deadline. A memory may load for long; what keeps a worker from starting is in the status.
const NO_DEADLINE: i32 = i32::MAX;
/// Enough for `kubectl rollout history`.
const REVISIONS_KEPT: i32 = 3;

pub(super) fn deployment(
    valid: &ValidDispatcher,
    revision: &Revision<'_>,
    replicas: i32,
    planned_on: Option<String>,
) -> RenderedDeployment {
    let mut metadata = metadata(valid, names::deployment(&valid.name));
    metadata.annotations = Some(revision.annotations(valid.generation));
    let spec = DeploymentSpec {
        replicas: Some(replicas),
        selector: LabelSelector { match_labels: Some(selector(&valid.name)), ..LabelSelector::default() },
        strategy: Some(DeploymentStrategy {
            type_: Some("RollingUpdate".to_owned()),
            // No worker ends before a new one is ready, so a revision that cannot start costs none.
            rolling_update: Some(RollingUpdateDeployment {
                max_surge: Some(IntOrString::Int(1)),
                max_unavailable: Some(IntOrString::Int(0)),
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
