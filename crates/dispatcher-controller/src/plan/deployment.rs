//! The Deployment: replicas, strategy and pod template.

use api::labels;
use k8s_openapi::{
    api::apps::v1::{DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment},
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use workload::templates::{deployment::RenderedDeployment, revision::Revision};

use super::{
    metadata::{metadata, selector},
    readiness::PROVEN_AFTER_SECONDS,
    replicas::Sizing,
    rollout::Strategy,
};
use crate::{names, validate::ValidDispatcher};

/// Disables the Deployment's deadline. A memory may load for long; what keeps a worker from starting is in the status.
const NO_DEADLINE: i32 = i32::MAX;
/// Enough for `kubectl rollout history`.
const REVISIONS_KEPT: i32 = 3;

pub(super) fn deployment(
    valid: &ValidDispatcher,
    revision: &Revision<'_>,
    strategy: Strategy,
    sizing: &Sizing,
    planned_on: Option<String>,
) -> RenderedDeployment {
    let mut metadata = metadata(&valid.namespace, &valid.owner, names::deployment(&valid.name));
    let gives_way = sizing.gives_way.iter().map(|idle| (labels::GIVES_WAY.to_owned(), idle.text()));
    metadata.annotations =
        Some(revision.annotations(&valid.generation.to_string()).into_iter().chain(gives_way).collect());
    let spec = DeploymentSpec {
        replicas: Some(sizing.replicas),
        selector: LabelSelector { match_labels: Some(selector(&valid.name)), ..LabelSelector::default() },
        strategy: Some(DeploymentStrategy {
            type_: Some("RollingUpdate".to_owned()),
            rolling_update: Some(rolling_update(valid, strategy)),
        }),
        min_ready_seconds: Some(PROVEN_AFTER_SECONDS),
        progress_deadline_seconds: Some(NO_DEADLINE),
        revision_history_limit: Some(REVISIONS_KEPT),
        ..DeploymentSpec::default()
    };
    // Plain fields and string keys; serialization cannot fail.
    let mut spec = serde_json::to_value(spec).unwrap_or_default();
    spec["template"] = revision.template.clone();
    RenderedDeployment { metadata, spec, planned_on }
}

fn rolling_update(valid: &ValidDispatcher, strategy: Strategy) -> RollingUpdateDeployment {
    let (surge, unavailable) = match strategy {
        Strategy::Replace => (IntOrString::Int(0), 1),
        // The next new one restores the state of the one that ends.
        Strategy::Surge if valid.checkpoint.is_some() => (IntOrString::Int(1), 0),
        Strategy::Surge => (IntOrString::String("25%".to_owned()), 0),
    };
    RollingUpdateDeployment { max_surge: Some(surge), max_unavailable: Some(IntOrString::Int(unavailable)) }
}
