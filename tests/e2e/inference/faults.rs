//! What goes wrong in a pod is what `Ready` says.

use api::{aiinference::Phase, conditions};
use k8s_openapi::api::{core::v1::Pod, events::v1::Event};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tests::{Scene, simulated};

use super::{change, condition, create, until_not_ready, until_ready};

#[tokio::test]
async fn a_crash_loop_is_told_and_heals() {
    let scene = simulated().await;
    create(&scene, "chat", script(&[("SIM_CRASH_REASON", "Error"), ("SIM_CRASH_AFTER", "50ms")])).await;
    let model = until_not_ready(&scene, "chat", "CrashLoop").await;
    assert_eq!(model.status.unwrap().phase, Some(Phase::Failed));
    change(&scene, "chat", json!({"env": null})).await;
    until_ready(&scene, "chat").await;
}

#[tokio::test]
async fn too_little_memory_is_told() {
    let scene = simulated().await;
    create(&scene, "chat", script(&[("SIM_CRASH_REASON", "OOMKilled"), ("SIM_CRASH_AFTER", "50ms")])).await;
    until_not_ready(&scene, "chat", "OutOfMemory").await;
}

#[tokio::test]
async fn a_crash_after_it_was_ready_is_told() {
    let scene = simulated().await;
    create(&scene, "chat", json!({})).await;
    until_ready(&scene, "chat").await;
    annotate_pods(&scene, json!({"sim.ai.infra.example.com/crash-reason": "Error"})).await;
    let model = until_not_ready(&scene, "chat", "CrashLoop").await;
    assert_eq!(condition(&model, conditions::AVAILABLE).unwrap().status, "False");
    assert!(!model.status.unwrap().model_loaded);
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_told_and_the_old_revision_serves_on() {
    let scene = simulated().await;
    create(&scene, "chat", json!({})).await;
    until_ready(&scene, "chat").await;
    change(&scene, "chat", script(&[("SIM_IMAGE_PULL", "fail")])).await;
    let model = until_not_ready(&scene, "chat", "ImagePullFailed").await;
    assert_eq!(condition(&model, conditions::AVAILABLE).unwrap().status, "True");
    let message = &condition(&model, conditions::READY).unwrap().message;
    assert!(message.contains("1 pods of an older revision serve on"), "{message}");
}

#[tokio::test]
async fn a_loader_that_fails_says_why() {
    let scene = simulated().await;
    let fates = [
        ("unauthorized", "SourceUnauthorized"),
        ("notfound", "SourceNotFound"),
        ("unreachable", "SourceUnreachable"),
        ("checksum", "ChecksumMismatch"),
        ("outofspace", "OutOfSpace"),
    ];
    for (bucket, _) in fates {
        create(&scene, bucket, json!({"modelSource": format!("s3://sim-{bucket}/chat")})).await;
    }
    for (bucket, reason) in fates {
        let model = until_not_ready(&scene, bucket, reason).await;
        assert_eq!(condition(&model, conditions::MODEL_LOADED).unwrap().reason, reason);
        assert_eq!(model.status.unwrap().phase, Some(Phase::Failed));
    }
    annotate_pods(&scene, json!({"sim.ai.infra.example.com/load-exit-code": "0"})).await;
    for (bucket, _) in fates {
        until_ready(&scene, bucket).await;
    }
}

#[tokio::test]
async fn more_gpus_than_a_node_has_and_a_product_that_no_node_has_are_told_apart() {
    let scene = simulated().await;
    create(&scene, "large", json!({"gpu": {"count": 16, "productLabel": "A100"}})).await;
    create(&scene, "exotic", json!({"gpu": {"count": 1, "productLabel": "B9000"}})).await;
    let large = until_not_ready(&scene, "large", "InsufficientGPU").await;
    let message = &condition(&large, conditions::SCHEDULED).unwrap().message;
    assert!(message.starts_with("needs 16 nvidia.com/gpu on A100; free: "), "{message}");
    let exotic = until_not_ready(&scene, "exotic", "NoSuchProduct").await;
    let message = &condition(&exotic, conditions::SCHEDULED).unwrap().message;
    assert_eq!(message, "no node has nvidia.com/gpu.product=B9000; found: A100, H100");
    assert_eq!(exotic.status.unwrap().phase, Some(Phase::Pending));
}

#[tokio::test]
async fn a_claim_that_is_not_there_is_named() {
    let scene = simulated().await;
    create(&scene, "vision", json!({"modelSource": "pvc://models/vision", "engine": "triton"})).await;
    let model = until_not_ready(&scene, "vision", "ClaimNotFound").await;
    assert!(condition(&model, conditions::READY).unwrap().message.contains("\"models\""));
}

#[tokio::test]
async fn a_claim_that_comes_later_heals_it() {
    let scene = simulated().await;
    create(&scene, "vision", json!({"modelSource": "pvc://models/vision", "engine": "triton"})).await;
    until_not_ready(&scene, "vision", "ClaimNotFound").await;
    waiting_claim(&scene, "ReadWriteMany").await;
    until_ready(&scene, "vision").await;
}

#[tokio::test]
async fn a_claim_of_one_node_is_not_enough_for_two_replicas() {
    let scene = simulated().await;
    waiting_claim(&scene, "ReadWriteOncePod").await;
    let spec = json!({"modelSource": "pvc://models/vision", "engine": "triton", "replicas": 2});
    create(&scene, "vision", spec).await;
    let model = until_not_ready(&scene, "vision", "ClaimNotShareable").await;
    let message = &condition(&model, conditions::READY).unwrap().message;
    assert_eq!(message, "claim models is ReadWriteOncePod; 2 replicas need ReadOnlyMany or ReadWriteMany");
    change(&scene, "vision", json!({"replicas": 1})).await;
    until_ready(&scene, "vision").await;
}

#[tokio::test]
async fn a_claim_that_waits_for_its_first_consumer_is_no_error() {
    let scene = simulated().await;
    waiting_claim(&scene, "ReadWriteMany").await;
    create(&scene, "vision", json!({"modelSource": "pvc://models/vision", "engine": "triton"})).await;
    until_ready(&scene, "vision").await;
    let events = scene.api::<Event>().list(&ListParams::default()).await.unwrap();
    let ours = events.iter().filter(|e| e.reporting_controller.as_deref() == Some("inference-controller"));
    let told: Vec<&str> = ours.filter_map(|event| event.reason.as_deref()).collect();
    assert!(!told.is_empty() && told.iter().all(|reason| !reason.starts_with("Claim")), "{told:?}");
}

#[tokio::test]
async fn an_engine_that_does_not_warm_up_in_time_fails() {
    let scene = simulated().await;
    let mut slow = script(&[("SIM_NEVER_READY", "true")]);
    slow["warmupTimeoutSeconds"] = json!(10);
    create(&scene, "chat", slow).await;
    let model = until_not_ready(&scene, "chat", "WarmupTimeout").await;
    assert_eq!(model.status.unwrap().phase, Some(Phase::Failed));
    annotate_pods(&scene, json!({"sim.ai.infra.example.com/never-ready": "false"})).await;
    until_ready(&scene, "chat").await;
}

/// A claim called `models` that is bound when the first pod with it is placed.
async fn waiting_claim(scene: &Scene<'_>, mode: &str) {
    let unique = scene.namespace();
    let spec = json!({
        "accessModes": [mode],
        "storageClassName": unique,
        "resources": {"requests": {"storage": "1Gi"}},
    });
    for object in [
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": unique},
            "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}),
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": unique}, "spec": {
            "accessModes": [mode],
            "storageClassName": unique,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/models"},
        }}),
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "models", "namespace": unique}, "spec": spec}),
    ] {
        scene.apply(&object.to_string()).await.unwrap();
    }
}

fn script(settings: &[(&str, &str)]) -> Value {
    let env: Vec<Value> =
        settings.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    json!({"env": env})
}

/// Changes the fate of every live pod of the test.
async fn annotate_pods(scene: &Scene<'_>, annotations: Value) {
    let pods = scene.api::<Pod>();
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        pods.patch(&pod.metadata.name.unwrap(), &PatchParams::default(), &patch).await.unwrap();
    }
}
