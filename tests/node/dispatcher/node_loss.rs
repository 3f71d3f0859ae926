//! The loss of a node: the worker that replaces the lost one goes on with its last checkpoint.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use local_cluster::{NodeClock, simulation::nodes};
use serde_json::{Value, json};
use tests::{
    Scene, ask_until,
    dispatcher::{create, selector, until, until_ready, workers},
    follow, is_ready, real_spec, start_real, wait_for, within,
};

use super::{agents, give, held, states_in_a_volume, until_sessions, with_options};
use crate::store::Store;

/// Between two checkpoints.
const INTERVAL: Duration = Duration::from_secs(4);
/// Between two changes of the count in the state.
const COUNTS_EVERY: Duration = Duration::from_millis(100);
/// A checkpoint takes its time, and so does the end of a node, on a loaded machine.
const SLACK: Duration = Duration::from_secs(2);

/// With each storage in turn on one cluster, which no other test can use while a node is down.
#[tokio::test]
async fn the_worker_that_replaces_one_of_a_killed_node_has_lost_at_most_one_interval() {
    let cluster = start_real(real_spec(2).with_clock(NodeClock::SHORT)).await;
    let with_bucket = Scene::restricted(&cluster).await;
    let interval = format!("--checkpoint-seconds={}", INTERVAL.as_secs());
    with_options(&with_bucket, &[&interval, "--node-failure-seconds=3"]).await;
    let store = Store::start(&with_bucket).await;
    state_survives(&with_bucket, &interval, store.checkpoint("pools")).await;
    let with_volume = Scene::restricted(&cluster).await;
    let checkpoint = states_in_a_volume(&with_volume).await;
    state_survives(&with_volume, &interval, checkpoint).await;
}

/// The node of a worker is killed, and another worker restores its last checkpoint.
async fn state_survives(scene: &Scene<'_>, interval: &str, checkpoint: Value) {
    let env = json!([{"name": "AGENT_COUNTS_EVERY", "value": COUNTS_EVERY.as_millis().to_string()}]);
    let spec = json!({"replicas": 1, "checkpoint": checkpoint, "env": env});
    create(scene, "coders", agents(spec)).await;
    until_ready(scene, "coders").await;
    let worker = workers(scene, "coders").await.remove(0);
    let name = worker.metadata.name.clone().unwrap();
    let sidecars = worker.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let mut args = sidecars.flat_map(|sidecar| sidecar.args.iter().flatten());
    assert!(args.any(|arg| arg == interval), "{interval}");
    assert!(give(scene, &name, "session-0", "hello", 10));
    until_sessions(scene, "coders", &["session-0".to_owned()].into()).await;
    let since = jiff::Timestamp::now();
    until(scene, "coders", "a checkpoint with the session", |dispatcher| {
        let last = dispatcher.status.as_ref().and_then(|status| status.last_checkpoint_time.clone());
        last.is_some_and(|last| last.0 > since)
    })
    .await;
    let node = worker.spec.unwrap().node_name.unwrap();
    let asked = Instant::now();
    let count = held(scene, &name).expect("it answers")["count"].as_u64().expect("a count");
    scene.cluster().stop_component(&node).await.unwrap();
    // It may have counted until now.
    let count_at_most = count + units(asked.elapsed());
    let (pods, labels) = (scene.api::<Pod>(), selector("coders"));
    let replaced = follow(&pods, &labels, |pods| {
        let mut others = pods.values().filter_map(|pod| Some((pod, pod.metadata.name.clone()?)));
        others.find(|(pod, other)| *other != name && is_ready(pod)).map(|(_, other)| other)
    });
    let replaced = tokio::time::timeout(Duration::from_secs(180), replaced).await;
    let replaced = replaced.expect("another worker is ready");
    let restored = ask_until("it answers", within(), async || {
        let held = held(scene, &replaced).ok_or("no answer")?;
        assert_eq!(held["restored"], json!(["session-0"]));
        Ok::<_, &str>(held["restored_count"].as_u64().expect("a count"))
    })
    .await;
    let lost = count_at_most.saturating_sub(restored);
    println!("restored {restored} of {count} to {count_at_most}");
    assert!(restored > 0 && lost <= units(INTERVAL + SLACK), "restored {restored} of {count_at_most}");
    scene.cluster().start_component(&node).await.unwrap();
    wait_for(&scene.cluster_api::<Node>(), &node, "back", within(), nodes::is_ready).await;
}

/// How often the worker counts in this time, at most.
fn units(time: Duration) -> u64 {
    u64::try_from(time.as_millis() / COUNTS_EVERY.as_millis()).expect("a short time") + 1
}
