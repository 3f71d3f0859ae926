//! The AIDispatchers that are measured, and a cluster for them.

use anyhow::Context as _;
use api::aidispatcher::AIDispatcher;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ApiResource;
use serde_json::{Value, json};

use super::CONTROLLER;
use crate::plane::{self, First, NAMESPACE, Plane, Programs, nodes_without_gpus};

/// `pods` is how many there will be at most.
pub(super) async fn start(programs: &Programs, arm: &str, pods: u32) -> anyhow::Result<(Plane, First)> {
    let plane = Plane::start(programs, CONTROLLER, arm, nodes_without_gpus(pods), None).await?;
    plane.start_controller(programs).await?;
    let first = dispatcher("pool-00000", &json!({}))?;
    let kinds = [ApiResource::erase::<Deployment>(&())];
    let first = plane.warm_up(&first, is_ready, &kinds, "pool-00000-workers").await?;
    Ok((plane, first))
}

pub(super) fn names(count: u32) -> Vec<String> {
    plane::names("pool", 0, count)
}

/// The pool of this name, with one worker.
pub(super) fn dispatcher(name: &str, more: &Value) -> anyhow::Result<AIDispatcher> {
    let mut spec = json!({"role": "coder", "image": "agent:1", "modelRef": "qwen"});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    let dispatcher = json!({
        "apiVersion": "southwest.ai/v1alpha1",
        "kind": "AIDispatcher",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    });
    serde_json::from_value(dispatcher).context("failed to write an AIDispatcher")
}

pub(super) fn is_ready(dispatcher: &AIDispatcher) -> bool {
    dispatcher.status.as_ref().is_some_and(|status| plane::is_ready(&status.conditions))
}
