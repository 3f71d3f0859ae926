//! AIInference on simulated nodes: the real controller under its own rights, pods that are played.

use std::time::Duration;

use api::{
    aiinference::{AIInference, Phase},
    conditions, labels,
};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Condition};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tests::{Scene, wait_for, within};

mod confined;
mod conflict;
mod drift;
mod faults;
mod gpus;
mod lifecycle;
mod nodes;
mod overlays;
mod rest;
mod rights;
mod rollouts;
mod scale;
mod standby;
mod traces;
mod writes;

/// How long a fault of a pod may be unknown to the status.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// A vLLM server on one GPU, with what the test changes of it.
async fn create(scene: &Scene<'_>, name: &str, changes: Value) -> AIInference {
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

async fn change(scene: &Scene<'_>, name: &str, spec: Value) -> AIInference {
    let patch = Patch::Merge(json!({"spec": spec}));
    scene.api().patch(name, &PatchParams::default(), &patch).await.expect("the change is accepted")
}

/// Waits until the newest spec is served by as many replicas as it wants.
async fn until_ready(scene: &Scene<'_>, name: &str) -> AIInference {
    wait_for(&scene.api::<AIInference>(), name, "ready", within(), is_ready).await
}

/// Waits until `Ready` is false for this reason.
async fn until_not_ready(scene: &Scene<'_>, name: &str, reason: &str) -> AIInference {
    until_not_ready_within(scene, name, reason, within()).await
}

async fn until_not_ready_within(
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

/// What the status says of a fault: `Ready` has the reason and the message of the condition that fails.
struct Told<'a> {
    condition: &'a str,
    reason: &'a str,
    /// Part of the message.
    message: &'a str,
}

/// Does something that makes a pod fail, and waits until the status tells it: in time after the pod's own status did.
fn told_in_time(
    scene: &Scene<'_>,
    name: &str,
    told: Told<'_>,
    fails: impl Fn(&Pod) -> bool,
    act: impl Future,
) -> impl Future<Output = AIInference> {
    let Told { condition: type_, reason, message } = told;
    let what = format!("{type_} and Ready are false because of {reason}: {message}");
    let models = scene.api::<AIInference>();
    let is_told = move |model: &AIInference| {
        [type_, conditions::READY].into_iter().all(|type_| {
            condition(model, type_).is_some_and(|condition| {
                condition.status == "False"
                    && condition.reason == reason
                    && condition.message.contains(message)
            })
        })
    };
    Box::pin(async move {
        let told = wait_for(&models, name, &what, within(), |model| is_observed(model) && is_told(model));
        scene.soon_after((&pods_of(name), fails), TOLD_WITHIN, act, told).await
    })
}

/// The labels of all pods of a model.
fn pods_of(model: &str) -> String {
    format!("{}=aiinference,{}={model}", labels::NAME, labels::INSTANCE)
}

fn is_ready(model: &AIInference) -> bool {
    is_observed(model)
        && condition(model, conditions::READY).is_some_and(|ready| ready.status == "True")
        && model.status.as_ref().is_some_and(|status| {
            status.phase == Some(Phase::Ready) && status.updated_ready_replicas >= model.spec.replicas
        })
}

/// The status speaks of the spec as it is now.
fn is_observed(model: &AIInference) -> bool {
    let observed = model.status.as_ref().and_then(|status| status.observed_generation);
    observed.is_some() && observed == model.metadata.generation
}

fn condition<'a>(model: &'a AIInference, type_: &str) -> Option<&'a Condition> {
    model.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_)
}
