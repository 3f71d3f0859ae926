//! What a user reads when something is in the way.

use std::collections::BTreeSet;

use api::{
    aiinference::AIInference,
    aiinference::endpoint::{InferenceEndpoint, Phase},
    conditions,
};
use k8s_openapi::api::{
    autoscaling::v2::HorizontalPodAutoscaler,
    core::v1::{Node, Pod},
};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tests::{
    inference,
    inference::endpoint::{by_cpu, change, condition, create, until_condition, until_ready},
    simulated, wait_for, wait_until_gone, within,
};

#[tokio::test]
async fn a_name_that_is_taken_is_a_conflict_and_nothing_is_written_until_it_is_free() {
    let scene = simulated().await;
    let theirs = inference::create(&scene, "chat", json!({"replicas": 0})).await;
    create(&scene, "chat", json!({"autoscaling": by_cpu()})).await;
    until_condition(&scene, "chat", conditions::READY, ("False", "OwnershipConflict")).await;
    // A write that came before the controller knew the AIInference says less at first.
    let is_named = |endpoint: &InferenceEndpoint| {
        condition(endpoint, conditions::STALLED).is_some_and(|stalled| {
            stalled.message.starts_with("AIInference test-")
                && stalled.message.contains("has no owner; rename the endpoint, or let it take")
        })
    };
    wait_for(&scene.api::<InferenceEndpoint>(), "chat", "what helps", within(), is_named).await;
    let there = scene.api::<AIInference>().get("chat").await.unwrap();
    assert_eq!((there.spec, there.metadata.uid), (theirs.spec, theirs.metadata.uid));
    let hpas = scene.api::<HorizontalPodAutoscaler>();
    assert!(hpas.get_opt("chat").await.unwrap().is_none(), "nothing else is written either");
    scene.api::<AIInference>().delete("chat", &DeleteParams::default()).await.unwrap();
    until_ready(&scene, "chat").await;
}

#[tokio::test]
async fn what_a_deleted_endpoint_has_left_is_taken_over_by_the_command_of_the_message() {
    let scene = simulated().await;
    // A garbage collector that does not know the kind yet deletes what it should leave behind.
    create(&scene, "first", json!({"replicas": 0})).await;
    wait_for(&scene.api::<AIInference>(), "first", "there", within(), |_: &AIInference| true).await;
    scene.api::<InferenceEndpoint>().delete("first", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&scene.api::<AIInference>(), "first", within()).await;
    create(&scene, "chat", json!({"replicas": 2})).await;
    until_ready(&scene, "chat").await;
    let pods = scene.api::<Pod>();
    let uids = async || {
        let list = pods.list(&ListParams::default().labels(&inference::pods_of("chat"))).await.unwrap();
        list.items.into_iter().filter_map(|pod| pod.metadata.uid).collect::<BTreeSet<_>>()
    };
    let before = uids().await;
    scene.kubectl(&["delete", "ie", "chat", "--cascade=orphan"]);
    let endpoint = create(&scene, "chat", json!({"replicas": 2})).await;
    let refused = until_condition(&scene, "chat", conditions::READY, ("False", "OwnershipConflict")).await;
    let message = &condition(&refused, conditions::READY).unwrap().message;
    let (_, command) = message.split_once("kubectl ").expect("a command");
    let (words, patch) = command.split_once(" -p ").expect("a patch");
    let words = words.split(' ').chain(["-p", patch.trim_matches('\'')]);
    scene.kubectl(&words.collect::<Vec<_>>());
    let ready = until_ready(&scene, "chat").await;
    assert_eq!((ready.metadata.uid, before.len()), (endpoint.metadata.uid, 2));
    assert_eq!(uids().await, before, "the pods serve on");
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
