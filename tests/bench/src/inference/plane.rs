//! The AIInferences that are measured, and a cluster for them.

use anyhow::Context as _;
use api::aiinference::AIInference;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Service},
};
use kube::api::ApiResource;
use local_cluster::api_server::install;
use serde_json::json;

use super::CONTROLLER;
use crate::plane::{self, First, NAMESPACE, PRODUCT, Plane, Programs, nodes_with_gpus};

const MODEL: &str = "model";

/// `pods` is how many there will be at most.
pub(super) async fn start(programs: &Programs, arm: &str, pods: u32) -> anyhow::Result<(Plane, First)> {
    start_with(programs, arm, pods, None).await
}

/// As `start`, with these CustomResourceDefinitions, in YAML, before the controller starts.
pub(super) async fn start_with(
    programs: &Programs,
    arm: &str,
    pods: u32,
    kinds: Option<&str>,
) -> anyhow::Result<(Plane, First)> {
    let plane = Plane::start(programs, CONTROLLER, arm, nodes_with_gpus(pods), None).await?;
    if let Some(kinds) = kinds {
        let kinds = install::parse(kinds)?;
        install::definitions(&plane.client, &kinds).await.context("failed to install kinds")?;
    }
    plane.start_controller(programs).await?;
    let kinds = [
        ApiResource::erase::<ConfigMap>(&()),
        ApiResource::erase::<Deployment>(&()),
        ApiResource::erase::<Service>(&()),
    ];
    let name = "model-00000";
    let first = plane.warm_up(&inference(name)?, is_ready, &kinds, name).await?;
    Ok((plane, first))
}

/// The names of the n models after the first `skipped`.
pub(super) fn names(skipped: u32, count: u32) -> Vec<String> {
    plane::names(MODEL, skipped, count)
}

/// The model of this name: one replica with one GPU, and a source that is copied into the pod.
pub(super) fn inference(name: &str) -> anyhow::Result<AIInference> {
    let inference = json!({
        "apiVersion": "ai.infra.example.com/v1alpha1",
        "kind": "AIInference",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "modelSource": "s3://models/qwen/Qwen-7B-Chat",
            "engine": "vllm",
            "gpu": {"productLabel": PRODUCT, "count": 1},
            "replicas": 1,
        },
    });
    serde_json::from_value(inference).context("failed to write an AIInference")
}

pub(super) fn is_ready(inference: &AIInference) -> bool {
    inference.status.as_ref().is_some_and(|status| plane::is_ready(&status.conditions))
}
