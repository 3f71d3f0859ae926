//! The only ready pod stays until another one is ready when its node is emptied, and no longer than it may.

use std::time::Duration;

use api::labels;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{ResourceExt, api::ListParams};
use local_cluster::{ClusterSpec, NodePool};
use serde_json::json;
use tests::{
    Scene, ask_until, controller,
    drains::{cordon, evict},
    fresh_name,
    inference::{live_pods, name, node_of},
    is_ready as is_pod_ready, start, tools, wait_for, wait_until_gone, within,
};
use tokio::time::Instant;

use super::{create, until_ready};

async fn ready_count(scene: &Scene<'_>) -> usize {
    live_pods(scene).await.iter().filter(|pod| is_pod_ready(pod)).count()
}

#[tokio::test]
async fn a_drain_of_the_only_pod_leaves_no_moment_without_a_ready_one() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    cluster.start_controller(&controller("inference-controller")).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let slow = json!([{"name": "SIM_READY_DELAY", "value": "5s"}]);
    create(&scene, "chat", json!({"env": slow})).await;
    until_ready(&scene, "chat").await;
    let (pods, nodes) = (scene.api::<Pod>(), scene.cluster_api::<Node>());
    let old = live_pods(&scene).await.remove(0);
    let (old, node) = (name(&old), node_of(&old).unwrap().to_owned());

    cordon(&nodes, &node, true).await;
    assert!(!evict(&pods, &old).await, "it is the only one");
    // As a drain does, until the pod is gone.
    ask_until("an eviction", within(), async || {
        assert!(ready_count(&scene).await >= 1, "no pod is ready");
        if evict(&pods, &old).await { Ok(()) } else { Err("the budget refuses it") }
    })
    .await;
    wait_until_gone(&pods, &old, within()).await;
    assert!(ready_count(&scene).await >= 1, "no pod is ready");
    until_ready(&scene, "chat").await;
    let is_alone = |left: &[Pod]| left.len() == 1 && node_of(&left[0]) != Some(&*node);
    ask_until("one pod elsewhere", within(), async || {
        let left = live_pods(&scene).await;
        if is_alone(&left) { Ok(()) } else { Err(format!("{:?}", left.iter().map(name).collect::<Vec<_>>())) }
    })
    .await;

    // A node autoscaler is kept from it, once it has been there for a while.
    let new = name(&live_pods(&scene).await[0]);
    wait_for(&pods, &new, "kept from node autoscalers", within(), |pod: &Pod| {
        labels::STAYS_ON_ITS_NODE
            .iter()
            .all(|(key, value)| pod.annotations().get(*key).map(String::as_str) == Some(value))
    })
    .await;
}

#[tokio::test]
async fn a_drain_goes_on_when_no_other_pod_becomes_ready_in_time() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    cluster.start_controller(&controller("inference-controller")).await.unwrap();
    let scene = Scene::new(&cluster).await;
    create(&scene, "chat", json!({"surgeTimeoutSeconds": 30})).await;
    until_ready(&scene, "chat").await;
    let (pods, nodes) = (scene.api::<Pod>(), scene.cluster_api::<Node>());
    let old = name(&live_pods(&scene).await[0]);
    let budgets = scene.api::<PodDisruptionBudget>();
    let is_enforced = |budget: &PodDisruptionBudget| {
        budget
            .status
            .as_ref()
            .is_some_and(|status| status.desired_healthy == 1 && status.current_healthy == 1)
    };
    wait_for(&budgets, "chat", "enforced", within(), is_enforced).await;

    // That of the pod last: before, a second pod would still find a place.
    let own = node_of(&live_pods(&scene).await[0]).unwrap().to_owned();
    let all = nodes.list(&ListParams::default()).await.unwrap();
    let others = all.iter().map(ResourceExt::name_any).filter(|node| *node != own);
    for node in others {
        cordon(&nodes, &node, true).await;
    }
    let began = Instant::now();
    cordon(&nodes, &own, true).await;
    assert!(!evict(&pods, &old).await, "it is the only one");
    ask_until("an eviction", within(), async || {
        if evict(&pods, &old).await { Ok(()) } else { Err("the budget refuses it") }
    })
    .await;
    assert!(began.elapsed() >= Duration::from_secs(25), "evicted after {:?}", began.elapsed());
}
