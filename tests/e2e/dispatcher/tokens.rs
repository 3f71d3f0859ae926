//! `tokenUsage` is the sum over all workers that ever were, through restarts of workers and of the controller.

use api::aidispatcher::AIDispatcher;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use local_cluster::{ClusterSpec, NodePool};
use serde_json::json;
use tests::{
    Scene, controller,
    dispatcher::{CONTROLLER, Load, Monitors, change, create, until, until_ready, workers},
    fresh_name, simulated, start, tools, until_component, wait_until_gone, within,
};

fn used(tokens: u64) -> Load {
    Load { tokens, ..Load::default() }
}

pub(super) async fn until_tokens(scene: &Scene<'_>, name: &str, tokens: i64) -> AIDispatcher {
    until(scene, name, &format!("{tokens} tokens"), |dispatcher| {
        let usage = dispatcher.status.as_ref().map_or(0, |status| status.token_usage);
        assert!(usage <= tokens, "{usage} tokens were counted, and {tokens} were used");
        usage == tokens
    })
    .await
}

async fn names(scene: &Scene<'_>, name: &str) -> Vec<String> {
    workers(scene, name).await.into_iter().map(|pod| pod.metadata.name.unwrap()).collect()
}

#[tokio::test]
async fn tokens_of_workers_that_are_gone_stay_counted() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    create(&scene, "coders", json!({"replicas": 2})).await;
    until_ready(&scene, "coders").await;
    let first = names(&scene, "coders").await;
    monitors.one(&first[0], used(100));
    monitors.one(&first[1], used(20));
    until_tokens(&scene, "coders", 120).await;
    scene.api::<Pod>().delete(&first[0], &DeleteParams::default()).await.unwrap();
    wait_until_gone(&scene.api::<Pod>(), &first[0], within()).await;
    until_ready(&scene, "coders").await;
    let next = names(&scene, "coders").await.into_iter().find(|name| !first.contains(name)).unwrap();
    monitors.one(&next, used(3));
    until_tokens(&scene, "coders", 123).await;
    change(&scene, "coders", json!({"image": "agent:2"})).await;
    until_ready(&scene, "coders").await;
    let third = names(&scene, "coders").await;
    monitors.one(&third[0], used(4));
    until_tokens(&scene, "coders", 127).await;
}

#[tokio::test]
async fn tokens_are_counted_once_through_restarts_of_the_controller() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    cluster.start_controller(&controller(CONTROLLER)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let monitors = Monitors::of(&scene);
    create(&scene, "coders", json!({"replicas": 2})).await;
    until_ready(&scene, "coders").await;
    let first = names(&scene, "coders").await;
    monitors.one(&first[0], used(100));
    monitors.one(&first[1], used(20));
    until_tokens(&scene, "coders", 120).await;
    cluster.stop_component(CONTROLLER).await.unwrap();
    // While no controller runs, one worker uses more, and another goes.
    monitors.one(&first[1], used(25));
    scene.api::<Pod>().delete(&first[0], &DeleteParams::default()).await.unwrap();
    wait_until_gone(&scene.api::<Pod>(), &first[0], within()).await;
    cluster.start_component(CONTROLLER).await.unwrap();
    until_component(&cluster, CONTROLLER, "running", |now| now.pid.is_some()).await;
    until_tokens(&scene, "coders", 125).await;
}
