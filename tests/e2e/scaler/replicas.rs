//! From a load to replicas.

use api::{aiscaler::AIScaler, conditions};
use fake_prometheus::Answer;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tests::{
    Scene,
    scaler::{
        change, create, message, prometheus, spec, until_active, until_condition, until_inactive,
        until_replicas,
    },
    simulated, wait_for, within,
};

use super::{deploy, load_of};

#[tokio::test]
async fn replicas_follow_the_load_in_both_directions_and_the_status_shows_it() {
    let scene = simulated().await;
    let load = load_of(&scene, "chat");
    prometheus().set(&load, Answer::Value(12.0));
    deploy(&scene, "chat", 1).await;
    create(&scene, "chat", spec("chat", &format!("sum({load})")), json!({})).await;
    until_replicas(&scene, "chat", 3).await;
    prometheus().set(&load, Answer::Value(19.0));
    until_replicas(&scene, "chat", 4).await;
    prometheus().set(&load, Answer::Value(9.0));
    until_replicas(&scene, "chat", 2).await;
    let scaler = wait_for(&scene.api::<AIScaler>(), "chat", "2 replicas in the status", within(), |scaler| {
        scaler.status.as_ref().is_some_and(|status| status.current_replicas == 2)
    })
    .await;
    let status = scaler.status.unwrap();
    let steps: Vec<(i32, i32)> = status.decisions.iter().map(|known| (known.from, known.to)).collect();
    assert_eq!(steps, [(1, 3), (3, 4), (4, 2)]);
    assert_eq!(status.desired_replicas, 2);
    assert!(status.last_scale_time.is_some());
    let shown = scene.kubectl(&["get", "ais", "chat"]);
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "TARGET", "METRIC", "VALUE", "MIN", "MAX", "REPLICAS", "AGE"]);
    assert_eq!(lines[1][..7], ["chat", "chat", "custom", "4.5/5", "1", "6", "2"]);
}

#[tokio::test]
async fn a_trial_decides_and_changes_nothing() {
    let scene = simulated().await;
    deploy(&scene, "chat", 1).await;
    create(&scene, "chat", spec("chat", "vector(15)"), json!({"mode": "DryRun"})).await;
    let scaler = until_active(&scene, "chat").await;
    let status = scaler.status.unwrap();
    assert_eq!((status.desired_replicas, status.decisions.len()), (3, 1));
    assert_eq!(replicas(&scene, "chat").await, Some(1));
    change(&scene, "chat", json!({"mode": "Apply"})).await;
    until_replicas(&scene, "chat", 3).await;
}

#[tokio::test]
async fn bounds_hold_whatever_the_load_and_a_burst_of_changes_ends_at_the_last_one() {
    let scene = simulated().await;
    let load = load_of(&scene, "chat");
    prometheus().set(&load, Answer::Value(30.0));
    deploy(&scene, "chat", 1).await;
    create(&scene, "chat", spec("chat", &format!("sum({load})")), json!({"maxReplicas": 4})).await;
    until_replicas(&scene, "chat", 4).await;
    until_condition(&scene, "chat", conditions::SCALING_LIMITED, ("True", "TooManyReplicas")).await;
    for (min, max) in [(1, 2), (5, 6), (1, 5), (2, 3), (1, 5)] {
        change(&scene, "chat", json!({"minReplicas": min, "maxReplicas": max})).await;
    }
    until_replicas(&scene, "chat", 5).await;
    prometheus().set(&load, Answer::Value(0.0));
    until_replicas(&scene, "chat", 1).await;
}

#[tokio::test]
async fn zero_replicas_by_hand_are_left_alone() {
    let scene = simulated().await;
    deploy(&scene, "chat", 1).await;
    create(&scene, "chat", spec("chat", "vector(15)"), json!({})).await;
    until_replicas(&scene, "chat", 3).await;
    scale(&scene, "chat", 0).await;
    until_inactive(&scene, "chat", "ScalingDisabled").await;
    assert_eq!(replicas(&scene, "chat").await, Some(0));
    scale(&scene, "chat", 1).await;
    until_replicas(&scene, "chat", 3).await;
}

#[tokio::test]
async fn a_mistyped_target_is_named_and_the_correction_helps() {
    let scene = simulated().await;
    deploy(&scene, "chat", 1).await;
    create(&scene, "chat", spec("chta", "vector(15)"), json!({})).await;
    let scaler =
        until_condition(&scene, "chat", conditions::ABLE_TO_SCALE, ("False", "FailedGetScale")).await;
    let text = message(&scaler, conditions::ABLE_TO_SCALE);
    assert!(text.starts_with("Deployment chta does not exist"), "{text}");
    change(&scene, "chat", json!({"deploymentName": "chat"})).await;
    until_replicas(&scene, "chat", 3).await;
}

#[tokio::test]
async fn pods_that_find_no_node_are_asked_for_once() {
    let scene = simulated().await;
    let mut target = tests::scaler::deployment("full", 1);
    let pod = &mut target["spec"]["template"]["spec"];
    pod["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": 8}});
    pod["nodeSelector"] = json!({"nvidia.com/gpu.product": "none"});
    scene.apply(&target.to_string()).await.unwrap();
    create(&scene, "full", spec("full", "vector(15)"), json!({})).await;
    // They never become ready, and the same load asks for no more of them.
    until_replicas(&scene, "full", 3).await;
    let asked = prometheus_asked_again(&scene).await;
    assert!(asked, "the controller has looked again");
    assert_eq!(replicas(&scene, "full").await, Some(3));
}

/// Lets the controller look a few times more, as seen by the queries of another object.
async fn prometheus_asked_again(scene: &Scene<'_>) -> bool {
    let load = load_of(scene, "clock");
    prometheus().set(&load, Answer::Value(5.0));
    deploy(scene, "clock", 1).await;
    create(scene, "clock", spec("clock", &format!("sum({load})")), json!({})).await;
    tests::ask_until("four more looks", within(), async || match prometheus().queries(&load) {
        count @ 0..8 => Err(format!("{count} queries")),
        _ => Ok(true),
    })
    .await
}

async fn replicas(scene: &Scene<'_>, name: &str) -> Option<i32> {
    scene.api::<Deployment>().get(name).await.unwrap().spec.unwrap().replicas
}

/// As `kubectl scale` does it.
async fn scale(scene: &Scene<'_>, name: &str, replicas: i32) {
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    scene.api::<Deployment>().patch_scale(name, &PatchParams::default(), &patch).await.unwrap();
}
