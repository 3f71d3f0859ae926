//! The default status of new objects, and its replacement by the controller's first write.

use api::{
    aidispatcher::AIDispatcher,
    aiinference::{AIInference, endpoint::InferenceEndpoint, evaluation::ModelEvaluation},
    aiscaler::AIScaler,
    trainingjob::TrainingJob,
};
use futures::TryStreamExt as _;
use kube::{
    Resource, ResourceExt as _,
    api::{Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tests::{Scene, within};

use crate::table::{api, attempt, create};

#[tokio::test]
async fn a_new_aiinference_is_pending_and_not_observed() {
    let spec = json!({"modelSource": "s3://models", "engine": "vllm", "gpu": {"count": 1}});
    let zeros = json!({"readyReplicas": 0, "replicas": 0, "updatedReplicas": 0, "updatedReadyReplicas": 0,
                       "modelLoaded": false});
    starts_with::<AIInference>(spec, json!({"phase": "Pending"}), zeros).await;
}

#[tokio::test]
async fn a_new_trainingjob_is_pending_and_not_observed() {
    let spec = json!({"model": "a/b", "dataset": "c", "method": "lora"});
    starts_with::<TrainingJob>(
        spec,
        json!({"phase": "Pending"}),
        json!({"attempts": 0, "endedAttempts": 0, "attemptsWithoutProgress": 0, "retries": 0}),
    )
    .await;
}

#[tokio::test]
async fn a_new_aidispatcher_is_initializing_and_not_observed() {
    let zeros = json!({"availableReplicas": 0, "activeWorkers": 0, "tokenUsage": 0, "replicas": 0, "desiredReplicas": 0});
    starts_with::<AIDispatcher>(json!({"role": "coder"}), json!({"currentPhase": "Initializing"}), zeros)
        .await;
}

#[tokio::test]
async fn a_new_aiscaler_is_not_observed() {
    let spec = json!({"deploymentName": "web", "metricType": "latency", "targetValue": 1, "maxReplicas": 2});
    starts_with::<AIScaler>(spec, json!({}), json!({"currentReplicas": 0, "desiredReplicas": 0})).await;
}

#[tokio::test]
async fn a_new_inferenceendpoint_is_pending_and_not_observed() {
    let spec = json!({"model": "a/b", "accelerator": "h100"});
    let zeros = json!({"readyReplicas": 0, "replicas": 0});
    starts_with::<InferenceEndpoint>(spec, json!({"phase": "Pending"}), zeros).await;
}

#[tokio::test]
async fn a_new_modelevaluation_is_pending_and_not_observed() {
    let spec = json!({"baselineModel": "a/b", "candidateModel": "a/c", "testSet": "cmmlu"});
    starts_with::<ModelEvaluation>(spec, json!({"phase": "Pending"}), json!({})).await;
}

/// Checks that `first`, `zeros` and generation 0 are the whole default status in every kind of read, and that the first
/// write replaces it.
async fn starts_with<K: Resource<DynamicType = ()>>(spec: Value, first: Value, zeros: Value) {
    let scene = tests::api_server().await;
    let mut expected = json!({"observedGeneration": 0});
    for more in [&first, &zeros] {
        expected.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    }
    let objects = api::<K>(scene.client(), scene.namespace());
    let from_the_beginning =
        objects.list(&Default::default()).await.unwrap().metadata.resource_version.unwrap();

    create::<K>(&scene, "new", spec.clone()).await;
    assert_eq!(objects.get("new").await.unwrap().data["status"], expected, "read");
    assert_eq!(objects.list(&Default::default()).await.unwrap().items[0].data["status"], expected, "listed");
    assert_eq!(watched::<K>(&scene, &from_the_beginning).await, expected, "watched");
    let answered = attempt::<K>(&scene, &spec, &json!({})).await.unwrap();
    assert_eq!(answered.data["status"], expected, "answered to a create");
    assert!(
        objects.get("new").await.unwrap().managed_fields().iter().all(|fields| fields.subresource.is_none())
    );

    let condition = |status: &str| {
        json!({"type": "Accepted", "status": status, "reason": "Valid", "message": "",
               "lastTransitionTime": "2026-01-02T03:04:05Z"})
    };
    for status in ["Unknown", "True"] {
        let mut written = first.clone();
        written["observedGeneration"] = 1.into();
        written["conditions"] = json!([condition(status)]);
        let patch = Patch::Apply(json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": {"name": "new"}, "status": written,
        }));
        let params = PatchParams::apply("controller").force();
        let seen = objects.patch_status("new", &params, &patch).await.unwrap();
        assert_eq!(seen.data["status"]["observedGeneration"], 1);
        assert_eq!(seen.data["status"]["conditions"], json!([condition(status)]), "one condition of a type");
    }
    // Fields that the controller no longer applies are removed; the default is used only for an object without a status.
    let patch = Patch::Apply(json!({
        "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": {"name": "new"},
        "status": {"observedGeneration": 1},
    }));
    let seen = objects.patch_status("new", &PatchParams::apply("controller").force(), &patch).await.unwrap();
    for field in first.as_object().unwrap().keys() {
        assert_eq!(seen.data["status"].get(field), None, "{field}");
    }
}

/// The status of the first object in a watch.
async fn watched<K: Resource<DynamicType = ()>>(scene: &Scene<'_>, version: &str) -> Value {
    let objects = api::<K>(scene.client(), scene.namespace());
    let events = objects.watch(&WatchParams::default(), version).await.unwrap();
    futures::pin_mut!(events);
    let event = tokio::time::timeout(within(), events.try_next()).await.unwrap().unwrap();
    let Some(WatchEvent::Added(object)) = event else { panic!("{event:?} instead of a new object") };
    object.data["status"].clone()
}
