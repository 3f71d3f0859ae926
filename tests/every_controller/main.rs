//! Tests that every controller of `api::controllers` must pass. Each controller reconciles a scripted object (`tests::lives`)
//! on simulated nodes.
//!
//! The tests are independent of kinds.

mod confined;
mod overlays;
mod policy;
mod rest;
mod rights;
mod standby;
mod sweep;
mod traces;
mod upgrade;

use std::{collections::BTreeSet, panic::AssertUnwindSafe};

use api::controllers::{CONTROLLERS, Controller};
use futures::FutureExt as _;
use k8s_openapi::api::rbac::v1::PolicyRule;
use local_cluster::{Cluster, ClusterSpec, NodeClock, NodePool};
use tests::{controller, fresh_name, start, table::life_of, tools};

/// Runs the test for all controllers concurrently, and names those that fail.
async fn for_every_controller(test: impl AsyncFn(&'static Controller)) {
    for_each(CONTROLLERS.iter(), test).await;
}

/// For what is true only of controllers that make Deployments.
async fn for_every_controller_with_children(test: impl AsyncFn(&'static Controller)) {
    for_each(CONTROLLERS.iter().filter(|controller| life_of(controller).children.is_some()), test).await;
}

async fn for_each(
    controllers: impl Iterator<Item = &'static Controller>,
    test: impl AsyncFn(&'static Controller),
) {
    let test = &test;
    let failures = controllers.map(|controller| async move {
        let ended = AssertUnwindSafe(test(controller)).catch_unwind().await;
        ended.is_err().then_some(controller.name)
    });
    let failed: Vec<&str> = futures::future::join_all(failures).await.into_iter().flatten().collect();
    assert!(failed.is_empty(), "failed for {failed:?}: each has panicked above");
}

/// A separate cluster in which this controller runs.
async fn cluster_of(tested: &Controller) -> Cluster {
    cluster_with(tested, NodeClock::CALM).await
}

async fn cluster_with(tested: &Controller, clock: NodeClock) -> Cluster {
    let spec = ClusterSpec::simulated(fresh_name(), tools(), nodes());
    let cluster = start(spec.with_clock(clock)).await;
    cluster.start_controller(&controller(tested.name)).await.unwrap();
    cluster
}

/// For samples with GPUs and without, and with a product that a short name stands for.
fn nodes() -> NodePool {
    let products = ["A100", "H100", "NVIDIA-H100-80GB-HBM3"].map(str::to_owned).to_vec();
    NodePool { products, without_gpus: 1, ..NodePool::default() }
}

/// The user name of a controller's ServiceAccount.
fn user(tested: &Controller, namespace: &str) -> String {
    format!("system:serviceaccount:{namespace}:{}", tested.name)
}

/// Group, resource with subresource, verb.
type Right = (String, String, String);

/// The single rights of rules.
fn rights<'a>(rules: impl IntoIterator<Item = &'a PolicyRule>) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    rights.insert((group.clone(), resource.clone(), verb.clone()));
                }
            }
        }
    }
    rights
}
