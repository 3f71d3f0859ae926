//! AIInference as the tests see it: made, changed, and waited for.

use std::time::Duration;

use api::{
    aiinference::{AIInference, Phase},
    conditions, labels,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::{Scene, wait_for, within};

/// A vLLM server on one GPU, with what the test changes of it.
pub async fn create(scene: &Scene<'_>, name: &str, changes: Value) -> AIInference {
    let mut spec = json!({
        "modelSource": "s3://models/qwen",
        "engine": "vllm",
        "gpu": {"count": 1},
    });
    if let (Some(spec), Value::Object(changes)) = (spec.as_object_mut(), changes) {
        spec.extend(changes);
    }
    let object = serde_json::from_value(json!({
        "apiVersion": "ai.infra.example.com/v1alpha1",
        "kind": "AIInference",
        "metadata": {"name": name, "namespace": scene.namespace()},
        "spec": spec,
    }))
    .expect("an AIInference");
    scene.api().create(&PostParams::default(), &object).await.expect("it is accepted")
}

pub async fn change(scene: &Scene<'_>, name: &str, spec: Value) -> AIInference {
    let patch = Patch::Merge(json!({"spec": spec}));
    scene.api().patch(name, &PatchParams::default(), &patch).await.expect("the change is accepted")
}

/// Waits until the newest spec is served by as many replicas as it wants.
pub async fn until_ready(scene: &Scene<'_>, name: &str) -> AIInference {
    wait_for(&scene.api::<AIInference>(), name, "ready", within(), is_ready).await
}

/// Waits until `Ready` is false for this reason.
pub async fn until_not_ready(scene: &Scene<'_>, name: &str, reason: &str) -> AIInference {
    until_not_ready_within(scene, name, reason, within()).await
}

pub async fn until_not_ready_within(
    scene: &Scene<'_>,
    name: &str,
    reason: &str,
    within: Duration,
) -> AIInference {
    let what = format!("not ready because of {reason}");
    wait_for(&scene.api::<AIInference>(), name, &what, within, |model: &AIInference| {
        is_observed(model)
            && condition(model, conditions::READY)
                .is_some_and(|ready| ready.status == "False" && ready.reason == reason)
    })
    .await
}

/// The labels of all pods of a model.
pub fn pods_of(model: &str) -> String {
    format!("{}=aiinference,{}={model}", labels::NAME, labels::INSTANCE)
}

pub fn is_ready(model: &AIInference) -> bool {
    is_observed(model)
        && condition(model, conditions::READY).is_some_and(|ready| ready.status == "True")
        && model.status.as_ref().is_some_and(|status| {
            status.phase == Some(Phase::Ready) && status.updated_ready_replicas >= model.spec.replicas
        })
}

/// The status speaks of the spec as it is now.
pub fn is_observed(model: &AIInference) -> bool {
    let observed = model.status.as_ref().map(|status| status.observed_generation);
    observed.is_some() && observed == model.metadata.generation
}

pub fn condition<'a>(model: &'a AIInference, type_: &str) -> Option<&'a Condition> {
    model.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_)
}
