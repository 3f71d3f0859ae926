//! Drains end workers one after the other, node autoscalers leave busy ones alone, and an idle worker gives way to one with a
//! state only once that is ready.

use std::collections::BTreeSet;

use api::{aidispatcher::AIDispatcher, labels};
use futures::future::join_all;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod, ResourceQuota},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use local_cluster::{ClusterSpec, NodePool};
use serde_json::{Value, json};
use tests::{
    Scene, ask_until, controller,
    dispatcher::{CONTROLLER, Load, Monitors, create, is_ready, until, until_ready, workers},
    drains::{cordon, evict},
    fresh_name, is_ready as is_pod_ready, simulated, start, tools, wait_for, wait_until_gone, within,
};

const BUSY: Load = Load { queued: 0, in_flight: 1, tokens: 0 };

fn annotation<'p>(pod: &'p Pod, key: &str) -> Option<&'p str> {
    pod.annotations().get(key).map(String::as_str)
}

fn is_kept(pod: &Pod) -> bool {
    annotation(pod, labels::DO_NOT_DISRUPT) == Some("true")
        && annotation(pod, labels::SAFE_TO_EVICT) == Some("false")
}

async fn until_pods(scene: &Scene<'_>, pool: &str, what: &str, holds: impl Fn(&Pod) -> bool) {
    for worker in workers(scene, pool).await {
        wait_for(&scene.api::<Pod>(), &worker.name_any(), what, within(), &holds).await;
    }
}

#[tokio::test]
async fn a_drain_ends_busy_workers_one_after_the_other() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    cluster.start_controller(&controller(CONTROLLER)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let monitors = Monitors::of(&scene);
    monitors.all(BUSY);
    let nodes = scene.cluster_api::<Node>();
    let names: Vec<String> =
        nodes.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
    let (drained, others) = names.split_first().expect("nodes");
    assert!(!others.is_empty());
    for other in others {
        cordon(&nodes, other, true).await;
    }
    create(&scene, "coders", json!({"replicas": 4})).await;
    until_ready(&scene, "coders").await;
    until_pods(&scene, "coders", "kept from node autoscalers", is_kept).await;
    for other in others {
        cordon(&nodes, other, false).await;
    }
    cordon(&nodes, drained, true).await;
    wait_for(
        &scene.api(),
        "coders-workers",
        "one eviction allowed",
        within(),
        |budget: &PodDisruptionBudget| {
            budget.status.as_ref().is_some_and(|status| status.disruptions_allowed == 1)
        },
    )
    .await;
    let pods = scene.api::<Pod>();
    let on_node: Vec<String> = workers(&scene, "coders").await.iter().map(ResourceExt::name_any).collect();
    assert_eq!(on_node.len(), 4);
    let at_once = join_all(on_node.iter().map(|pod| evict(&pods, pod))).await;
    let accepted = at_once.iter().filter(|accepted| **accepted).count();
    // On a busy machine the last answer may come after a replacement is ready, which allows one more.
    let all = workers(&scene, "coders").await;
    let replaced = all.iter().filter(|pod| !on_node.contains(&pod.name_any()) && is_pod_ready(pod)).count();
    assert!((1..=1 + replaced).contains(&accepted), "{accepted} at a time, {replaced} replaced");
    // As a drain does, until no worker is left on the node.
    for pod in &on_node {
        ask_until("an eviction", within(), async || {
            if evict(&pods, pod).await { Ok(()) } else { Err("the budget refuses it") }
        })
        .await;
        wait_until_gone(&pods, pod, within()).await;
    }
    until_ready(&scene, "coders").await;
    let left: BTreeSet<String> = workers(&scene, "coders").await.iter().map(ResourceExt::name_any).collect();
    assert!(left.len() == 4 && on_node.iter().all(|pod| !left.contains(pod)), "{left:?}");
    // Idle workers are no reason to keep a node.
    until_pods(&scene, "coders", "kept from node autoscalers", is_kept).await;
    monitors.all(Load::default());
    until_pods(&scene, "coders", "left to node autoscalers", |pod| {
        annotation(pod, labels::DO_NOT_DISRUPT).is_none() && annotation(pod, labels::SAFE_TO_EVICT).is_none()
    })
    .await;
}

fn quota(scene: &Scene<'_>, pods: u32) -> ResourceQuota {
    let quota: Value = json!({
        "metadata": {"name": "pods", "namespace": scene.namespace()},
        "spec": {"hard": {"pods": pods.to_string()}},
    });
    serde_json::from_value(quota).expect("a quota")
}

#[tokio::test]
async fn a_worker_without_state_stays_while_its_successor_cannot_start() {
    let scene = simulated().await;
    let monitors = Monitors::of(&scene);
    create(&scene, "coders", json!({"checkpoint": {"uri": "s3://states"}})).await;
    until_ready(&scene, "coders").await;
    let quotas = scene.api::<ResourceQuota>();
    quotas.create(&PostParams::default(), &quota(&scene, 1)).await.unwrap();
    wait_for(&quotas, "pods", "counted", within(), |quota: &ResourceQuota| {
        quota.status.as_ref().and_then(|status| status.used.as_ref()).is_some_and(|used| !used.is_empty())
    })
    .await;
    let idle = workers(&scene, "coders").await[0].name_any();
    monitors.finds_states(&idle, 1);
    wait_for(&scene.api(), "coders-workers", "refused pods", within(), |deployment: &Deployment| {
        let conditions = deployment.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let is_refused =
            conditions.into_iter().any(|known| known.type_ == "ReplicaFailure" && known.status == "True");
        is_refused && deployment.spec.as_ref().is_some_and(|spec| spec.replicas == Some(2))
    })
    .await;
    let left: Vec<String> = workers(&scene, "coders").await.iter().map(ResourceExt::name_any).collect();
    assert_eq!(left, std::slice::from_ref(&idle), "nothing ends");
    quotas.delete("pods", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&scene.api::<Pod>(), &idle, within()).await;
    until(&scene, "coders", "one worker", |dispatcher: &AIDispatcher| {
        is_ready(dispatcher) && dispatcher.status.as_ref().is_some_and(|status| status.replicas == 1)
    })
    .await;
}
