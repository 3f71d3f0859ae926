//! Pods on a lost node are replaced in time; pods on a node that recovers, or while most nodes are lost, are not.

use std::{convert::Infallible, pin::pin};

use api::aiinference::AIInference;
use futures::future::{Either, select};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use local_cluster::{Cluster, ClusterSpec, NodeClock, NodePool, simulation::nodes};
use serde_json::json;
use tests::{
    Scene, controller, fresh_name,
    inference::{live_pods, lose_a_node_under, name, names, node_of, until_migrated},
    start, tools, wait_for, wait_until_gone, within,
};

use super::{change, create, until_not_ready, until_ready, until_renewed};

#[tokio::test]
async fn pods_of_an_unreachable_node_are_replaced_in_time_and_not_deleted_by_force() {
    let cluster = own_cluster().await;
    let scene = Scene::new(&cluster).await;
    create(&scene, "chat", json!({"replicas": 2, "nodeFailureSeconds": 5})).await;
    until_ready(&scene, "chat").await;
    let (migration, lost) = lose_a_node_under(&scene, "chat").await;

    assert_eq!(
        (migration.from_node.as_str(), migration.reason.as_str()),
        (lost.node.as_str(), "NodeUnreachable")
    );
    until_ready(&scene, "chat").await;
    let pods = scene.api::<Pod>();
    let replacements: Vec<Pod> =
        live_pods(&scene).await.into_iter().filter(|pod| !lost.pods_before.contains(&name(pod))).collect();
    let [replacement] = replacements.as_slice() else { panic!("one pod was lost: {replacements:#?}") };
    assert_eq!(node_of(replacement), migration.to_node.as_deref());
    assert_ne!(node_of(replacement), Some(lost.node.as_str()));
    let took = created(replacement).duration_since(lost.since);
    assert!(took <= SignedDuration::from_secs(5 + 10), "{took:?}");
    // Timestamps of the API have whole seconds.
    assert!(took >= SignedDuration::from_secs(5 - 1), "{took:?}");

    let old = pods.get(&migration.pod).await.expect("a pod that was deleted by force is gone");
    assert!(old.metadata.deletion_timestamp.is_some());
    nodes::start_heartbeat(&scene.client(), &lost.node).await.unwrap();
    wait_until_gone(&pods, &migration.pod, within()).await;
}

#[tokio::test]
async fn no_pod_is_replaced_if_its_node_recovers_in_time() {
    let cluster = own_cluster().await;
    let scene = Scene::new(&cluster).await;
    create(&scene, "chat", json!({"nodeFailureSeconds": 30})).await;
    until_ready(&scene, "chat").await;
    let before = names(&live_pods(&scene).await);
    let node = node_of(&live_pods(&scene).await[0]).unwrap().to_owned();
    let all = scene.cluster_api::<Node>();
    nodes::stop_heartbeat(&scene.client(), &node).await.unwrap();
    wait_for(&all, &node, "silent", within(), |node| !nodes::is_ready(node)).await;
    nodes::start_heartbeat(&scene.client(), &node).await.unwrap();
    wait_for(&all, &node, "back", within(), nodes::is_ready).await;
    // Waits for longer than nodeFailureSeconds: two seconds per renewal.
    until_renewed(&scene, 16).await;
    assert_eq!(names(&live_pods(&scene).await), before);
    assert!(until_ready(&scene, "chat").await.status.unwrap().migrations.is_empty());
}

#[tokio::test]
async fn the_pods_of_a_deleted_node_are_replaced_too() {
    let cluster = own_cluster().await;
    let scene = Scene::new(&cluster).await;
    create(&scene, "chat", json!({"nodeFailureSeconds": 0})).await;
    until_ready(&scene, "chat").await;
    let node = node_of(&live_pods(&scene).await[0]).unwrap().to_owned();
    scene.cluster_api::<Node>().delete(&node, &DeleteParams::default()).await.unwrap();
    let migration = until_migrated(&scene, "chat").await;
    assert_eq!((migration.from_node, migration.reason.as_str()), (node, "NodeDeleted"));
    until_ready(&scene, "chat").await;
}

#[tokio::test]
async fn pods_are_replaced_despite_an_invalid_spec_or_a_refused_child() {
    let cluster = own_cluster().await;
    let (wrong, denied) = (Scene::new(&cluster).await, Scene::new(&cluster).await);
    for scene in [&wrong, &denied] {
        // A second replica then needs a new budget.
        create(scene, "chat", json!({"nodeFailureSeconds": 5, "disruption": "Allow"})).await;
        until_ready(scene, "chat").await;
    }
    change(&wrong, "chat", json!({"args": ["--por=1"]})).await;
    until_not_ready(&wrong, "chat", "InvalidSpec").await;
    let quota = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none"},
        "spec": {"hard": {"count/poddisruptionbudgets.policy": "0"}},
    }))
    .unwrap();
    let quotas = denied.api::<ResourceQuota>();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    wait_for(&quotas, "none", "enforced", within(), |quota: &ResourceQuota| {
        quota.status.as_ref().is_some_and(|status| status.hard.is_some())
    })
    .await;
    change(&denied, "chat", json!({"replicas": 2})).await;
    until_not_ready(&denied, "chat", "Denied").await;

    lose_a_node_under(&wrong, "chat").await;
    until_not_ready(&wrong, "chat", "InvalidSpec").await;
    lose_a_node_under(&denied, "chat").await;
    until_not_ready(&denied, "chat", "Denied").await;
}

#[tokio::test]
async fn a_migration_is_recorded_despite_conflicts_of_the_status() {
    let cluster = own_cluster().await;
    let scene = Scene::new(&cluster).await;
    create(&scene, "chat", json!({"nodeFailureSeconds": 5})).await;
    until_ready(&scene, "chat").await;
    let pod = live_pods(&scene).await.remove(0);
    let node = node_of(&pod).unwrap();
    nodes::stop_heartbeat(&scene.client(), node).await.unwrap();
    wait_for(&scene.cluster_api::<Node>(), node, "silent", within(), |node| !nodes::is_ready(node)).await;

    // Each change makes the write of an earlier planned status fail with a conflict.
    let inferences = scene.api::<AIInference>();
    let changes = async {
        let mut count = 0;
        loop {
            count += 1;
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"count": count.to_string()}}}));
            if let Err(error) = inferences.patch("chat", &PatchParams::default(), &patch).await {
                break Err::<Infallible, _>(error);
            }
        }
    };
    let (pods, name) = (scene.api::<Pod>(), name(&pod));
    let leaves = wait_for(&pods, &name, "deleted", within(), |pod| pod.metadata.deletion_timestamp.is_some());
    match select(pin!(changes), pin!(leaves)).await {
        Either::Left((Err(error), _)) => panic!("{error}"),
        Either::Right(_) => {}
    }
    assert_eq!(until_migrated(&scene, "chat").await.pod, name);
}

#[tokio::test]
async fn no_pod_is_replaced_while_most_nodes_are_lost() {
    let cluster = own_cluster().await;
    let scene = Scene::new(&cluster).await;
    create(&scene, "chat", json!({"replicas": 4, "nodeFailureSeconds": 20})).await;
    until_ready(&scene, "chat").await;
    let before = names(&live_pods(&scene).await);
    let all = scene.cluster_api::<Node>();
    let down = ["gpu-1", "gpu-2", "gpu-3"];
    for node in down {
        nodes::stop_heartbeat(&scene.client(), node).await.unwrap();
    }
    for node in down {
        wait_for(&all, node, "silent", within(), |node| !nodes::is_ready(node)).await;
    }
    // Longer than nodeFailureSeconds.
    until_renewed(&scene, 12).await;
    assert_eq!(names(&live_pods(&scene).await), before, "three of four nodes are down");

    nodes::start_heartbeat(&scene.client(), "gpu-1").await.unwrap();
    let migration = until_migrated(&scene, "chat").await;
    assert!(["gpu-2", "gpu-3"].contains(&migration.from_node.as_str()), "{migration:?}");
}

async fn own_cluster() -> Cluster {
    let spec = ClusterSpec::simulated(fresh_name(), tools(), NodePool::default());
    let cluster = start(spec.with_clock(NodeClock::SHORT)).await;
    cluster.start_controller(&controller("inference-controller")).await.unwrap();
    cluster
}

fn created(pod: &Pod) -> Timestamp {
    pod.metadata.creation_timestamp.as_ref().unwrap().0
}
