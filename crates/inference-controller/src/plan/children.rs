//! The children, one file for each. Pure.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Service},
    policy::v1::PodDisruptionBudget,
};
use serde::Serialize;
use workload::templates::{deployment::RenderedDeployment, revision::Revision};

use super::{handover::Handover, rollout::Strategy};
use crate::{
    objects::gateway_api::{grpc_route::GrpcRoute, http_route::HttpRoute, inference_pool::InferencePool},
    observe::Observed,
    validate::ValidInference,
};

mod config_map;
mod deployment;
pub(super) mod pod_disruption_budget;
pub(super) mod service;

/// The desired state of a child.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum Child {
    ConfigMap(Box<ConfigMap>),
    Deployment(Box<RenderedDeployment>),
    Service(Box<Service>),
    PodDisruptionBudget(Box<PodDisruptionBudget>),
}

/// A child that is not wanted any more, with uid and version as preconditions of its deletion. Only its metadata is set.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum Superfluous {
    Deployment(Box<Deployment>),
    ConfigMap(Box<ConfigMap>),
    Route(Box<HttpRoute>),
    GrpcRoute(Box<GrpcRoute>),
    InferencePool(Box<InferencePool>),
    Service(Box<Service>),
    PodDisruptionBudget(Box<PodDisruptionBudget>),
}

/// The children that the spec has no more.
pub(super) fn superfluous(
    valid: &ValidInference,
    observed: &Observed,
    handover: &Handover,
) -> Vec<Superfluous> {
    let budget = pod_disruption_budget::superfluous(valid, observed, handover);
    let headless = service::superfluous(valid, observed);
    let budget = budget.map(|budget| Superfluous::PodDisruptionBudget(Box::new(budget)));
    budget.into_iter().chain(headless.map(|service| Superfluous::Service(Box::new(service)))).collect()
}

/// In the order in which they are applied.
pub(super) fn children(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
    strategy: Strategy,
    handover: &Handover,
) -> Vec<Child> {
    let config_map = config_map::config_map(valid);
    let deployment = deployment::deployment(valid, revision, observed, strategy, handover);
    let service = service::service(valid, revision, observed);
    let mut children = vec![
        Child::ConfigMap(Box::new(config_map)),
        Child::Deployment(Box::new(deployment)),
        Child::Service(Box::new(service)),
    ];
    let budget = pod_disruption_budget::pod_disruption_budget(valid, handover);
    children.extend(budget.map(|budget| Child::PodDisruptionBudget(Box::new(budget))));
    children
}
