//! What a user reads when something is in the way.

use api::{
    aiinference::AIInference,
    aiinference::endpoint::{InferenceEndpoint, Phase},
    conditions,
};
use k8s_openapi::api::{autoscaling::v2::HorizontalPodAutoscaler, core::v1::Node};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tests::{
    inference,
    inference::endpoint::{by_cpu, change, condition, create, until_condition, until_ready},
    simulated, wait_for, within,
};

#[tokio::test]
async fn a_name_that_is_taken_is_a_conflict_and_nothing_is_written_until_it_is_free() {
    let scene = simulated().await;
    let theirs = inference::create(&scene, "chat", json!({"replicas": 0})).await;
    create(&scene, "chat", json!({"autoscaling": by_cpu()})).await;
    let endpoint = until_condition(&scene, "chat", conditions::READY, ("False", "OwnershipConflict")).await;
    let message = &condition(&endpoint, conditions::STALLED).unwrap().message;
    assert!(
        message.starts_with("AIInference test-") && message.contains("has no owner; rename the endpoint"),
        "{message}"
    );
    let there = scene.api::<AIInference>().get("chat").await.unwrap();
    assert_eq!((there.spec, there.metadata.uid), (theirs.spec, theirs.metadata.uid));
    let hpas = scene.api::<HorizontalPodAutoscaler>();
    assert!(hpas.get_opt("chat").await.unwrap().is_none(), "nothing else is written either");
    scene.api::<AIInference>().delete("chat", &DeleteParams::default()).await.unwrap();
    until_ready(&scene, "chat").await;
}

#[tokio::test]
async fn an_autoscaler_of_somebody_else_is_a_conflict_before_the_aiinference_is_written() {
    let scene = simulated().await;
    let theirs = json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "chat"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 3,
        },
    });
    scene.apply(&theirs.to_string()).await.unwrap();
    create(&scene, "chat", json!({"autoscaling": by_cpu()})).await;
    until_condition(&scene, "chat", conditions::READY, ("False", "OwnershipConflict")).await;
    assert!(scene.api::<AIInference>().get_opt("chat").await.unwrap().is_none());
    // An autoscaler that the endpoint does not want is no conflict, and stays.
    change(&scene, "chat", json!({"autoscaling": null})).await;
    until_ready(&scene, "chat").await;
    let hpa = scene.api::<HorizontalPodAutoscaler>().get("chat").await.unwrap();
    assert_eq!(hpa.spec.unwrap().max_replicas, 3);
}

#[tokio::test]
async fn a_cluster_without_the_accelerator_names_those_that_it_has_and_a_new_node_mends_it() {
    let scene = simulated().await;
    let product = format!("L40S-{}", scene.namespace());
    create(&scene, "chat", json!({"accelerator": product})).await;
    let endpoint =
        until_condition(&scene, "chat", conditions::ACCELERATOR_RESOLVED, ("False", "NoSuchProduct")).await;
    let message = &condition(&endpoint, conditions::ACCELERATOR_RESOLVED).unwrap().message;
    assert!(
        message.contains("found: A100, H100") && message.contains("a short name such as h100"),
        "{message}"
    );
    let resolved = endpoint.status.unwrap().resolved.unwrap();
    assert_eq!(resolved.product_labels, [format!("nvidia.com/gpu.product={product}")]);
    let label =
        |value: &str| Patch::Merge(json!({"metadata": {"labels": {"nvidia.com/gpu.product": value}}}));
    let nodes = scene.cluster_api::<Node>();
    nodes.patch("gpu-3", &PatchParams::default(), &label(&product)).await.unwrap();
    until_condition(&scene, "chat", conditions::ACCELERATOR_RESOLVED, ("True", "Resolved")).await;
    until_ready(&scene, "chat").await;
    nodes.patch("gpu-3", &PatchParams::default(), &label("H100")).await.unwrap();
}

#[tokio::test]
async fn what_the_api_server_refuses_of_the_aiinference_is_said_by_the_endpoint() {
    let scene = simulated().await;
    // The endpoint does not know the resource of each accelerator.
    create(&scene, "chat", json!({"resources": {"limits": {"nvidia.com/gpu": 1}}})).await;
    let endpoint = until_condition(&scene, "chat", conditions::ACCEPTED, ("False", "InvalidSpec")).await;
    let message = &condition(&endpoint, conditions::STALLED).unwrap().message;
    assert!(message.contains("must not name gpu.resourceName"), "{message}");
    change(&scene, "chat", json!({"resources": null})).await;
    until_ready(&scene, "chat").await;
}

#[tokio::test]
async fn the_fault_of_the_pods_is_the_reason_of_the_endpoint() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"gpus": 16})).await;
    let endpoint = wait_for(
        &scene.api::<InferenceEndpoint>(),
        "chat",
        "with the reason of its AIInference",
        within(),
        |endpoint: &InferenceEndpoint| {
            condition(endpoint, conditions::READY).is_some_and(|ready| ready.reason == "InsufficientGPU")
        },
    )
    .await;
    let inference = scene.api::<AIInference>().get("chat").await.unwrap();
    let theirs = tests::inference::condition(&inference, conditions::READY).unwrap();
    let ours = condition(&endpoint, conditions::INFERENCE_READY).unwrap();
    assert_eq!((&ours.status, &ours.reason), (&theirs.status, &theirs.reason));
    assert_eq!(endpoint.status.and_then(|status| status.phase), Some(Phase::Pending), "it waits for nodes");
}
