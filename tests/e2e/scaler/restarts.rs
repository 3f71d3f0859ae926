//! What a restarted controller remembers.

use std::time::Duration;

use fake_prometheus::Answer;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use local_cluster::{ClusterSpec, NodePool};
use serde_json::json;
use tests::{
    Scene, controller, fresh_name,
    scaler::{CONTROLLER, create, prometheus, spec, until_condition, until_replicas},
    start, tools, wait_for, within,
};

use super::{deploy, load_of};

/// Of scale-downs in this test.
const WINDOW: Duration = Duration::from_secs(25);
/// The longest time between two readings on a busy machine: the last high load was seen at most one reading before it was
/// lowered.
const READ_BEFORE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_window_of_scale_downs_outlives_the_leader() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let quick = ["--lease-duration=5", "--lease-renew-deadline=3", "--lease-retry-period=1"];
    cluster.start_controller(&controller(CONTROLLER).with_args(quick)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let load = load_of(&scene, "restarted");
    prometheus().set(&load, Answer::Value(25.0));
    deploy(&scene, "chat", 1).await;
    let window = json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": WINDOW.as_secs()}}});
    create(&scene, "chat", spec("chat", &format!("sum({load})")), window).await;
    until_replicas(&scene, "chat", 5).await;
    prometheus().set(&load, Answer::Value(5.0));
    let lowered = Timestamp::now();
    until_condition(&scene, "chat", "AbleToScale", ("True", "ScaleDownStabilized")).await;
    cluster.kill_component(CONTROLLER).await.unwrap();
    let target = wait_for(&scene.api::<Deployment>(), "chat", "fewer replicas", within(), |target| {
        target.spec.as_ref().is_some_and(|spec| spec.replicas < Some(5))
    })
    .await;
    let held = Timestamp::now().duration_since(lowered).unsigned_abs();
    assert!(held + READ_BEFORE >= WINDOW, "only {held:?}");
    assert_eq!(target.spec.unwrap().replicas, Some(1));
}
