//! Failures of real nodes: pods are replaced on other nodes, and get requests only when they are ready.

use std::time::{Duration, Instant};

use api::aiinference::AIInference;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    discovery::v1::EndpointSlice,
};
use kube::api::ListParams;
use local_cluster::{Cluster, NodeClock, simulation::nodes};
use serde_json::json;
use tests::{
    ENGINE_IMAGE, ENGINE_VERSION, PRODUCT, Scene, follow,
    inference::{CONTROLLER, create, pods_of, until_ready},
    real_spec, start_real, until_renewed, wait_for, wait_until_gone, within,
};

use crate::{claims::model_in_a_claim, store::asked};

/// `spec.nodeFailureSeconds`.
const NODE_FAILURE_SECONDS: u64 = 3;
/// Load time of the replacement.
const LOAD_SECONDS: u64 = 4;

#[tokio::test]
async fn pods_of_a_killed_node_are_replaced_on_another_one() {
    let cluster = cluster().await;
    let scene = Scene::restricted(&cluster).await;
    let (pod, node) = serving(&scene).await;
    let replaced = replaced_after(&scene, &pod, &node, cluster.stop_component(&node)).await;
    println!("killed: {replaced:?}");
    // The node restarts without running containers.
    cluster.start_component(&node).await.unwrap();
    wait_until_gone(&scene.api::<Pod>(), &pod, within()).await;
    assert_eq!(live_pods(&scene).await.len(), 1);
}

#[tokio::test]
async fn pods_of_a_disconnected_node_are_replaced_on_another_one() {
    let cluster = cluster().await;
    let scene = Scene::restricted(&cluster).await;
    let (pod, node) = serving(&scene).await;
    let replaced = replaced_after(&scene, &pod, &node, cluster.cut_off(&node)).await;
    println!("cut off: {replaced:?}");
    // The old pod ends after the node is connected again.
    cluster.reconnect(&node).await.unwrap();
    wait_for(&scene.cluster_api::<Node>(), &node, "back", within(), nodes::is_ready).await;
    wait_until_gone(&scene.api::<Pod>(), &pod, within() * 2).await;
    assert_eq!(live_pods(&scene).await.len(), 1);
}

/// A node without containerd: the kubelet reports NotReady, and the engines still serve.
#[tokio::test]
async fn a_ready_pod_on_a_not_ready_node_is_not_replaced() {
    let cluster = cluster().await;
    let scene = Scene::restricted(&cluster).await;
    let (pod, node) = serving(&scene).await;
    let before = scene.api::<Pod>().get(&pod).await.unwrap().metadata.uid;
    cluster.stop_containerd(&node).await.unwrap();
    let nodes = scene.cluster_api::<Node>();
    wait_for(&nodes, &node, "not ready", within() * 2, |node| ready_condition(node) == Some("False")).await;
    let (pods, labels) = (scene.api::<Pod>(), pods_of("chat"));
    let is_replaced = follow(&pods, &labels, |pods| {
        let others = pods
            .values()
            .filter(|pod| pod.metadata.uid != before || pod.metadata.deletion_timestamp.is_some());
        others.map(name_of).next()
    });
    tokio::select! {
        biased;
        replaced = is_replaced => panic!("a pod that serves was replaced: {replaced}"),
        () = until_renewed(&scene, CONTROLLER, RENEWALS) => {}
    }
    assert_eq!(
        ready_condition(&nodes.get(&node).await.unwrap()),
        Some("False"),
        "the node was NotReady all the time"
    );
    let live = live_pods(&scene).await;
    assert_eq!(live.iter().map(name_of).collect::<Vec<_>>(), [pod.as_str()]);
    assert!(asked(&scene, &live[0], "v1/models").contains("chat"));
    let migrations = scene.api::<AIInference>().get("chat").await.unwrap().status.unwrap().migrations;
    assert!(migrations.is_empty(), "{migrations:?}");

    cluster.start_containerd(&node).await.unwrap();
    wait_for(&nodes, &node, "back", within() * 2, nodes::is_ready).await;
    let inference = until_ready(&scene, "chat").await;
    assert!(inference.status.is_some_and(|status| status.migrations.is_empty()));
    assert_eq!(scene.api::<Pod>().get(&pod).await.unwrap().metadata.uid, before);
}

/// Renewals of two seconds: five times nodeFailureSeconds.
const RENEWALS: usize = 8;

fn ready_condition(node: &Node) -> Option<&str> {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == "Ready").map(|condition| condition.status.as_str())
}

/// Three real and three simulated nodes, so that one lost node does not exceed the limit of lost nodes.
async fn cluster() -> Cluster {
    start_real(real_spec(3).with_clock(NodeClock::SHORT)).await
}

/// A model with one replica; its pod and its node.
async fn serving(scene: &Scene<'_>) -> (String, String) {
    let spec = json!({
        "modelSource": model_in_a_claim(scene).await,
        "image": ENGINE_IMAGE,
        "engineVersion": ENGINE_VERSION,
        "gpu": { "productLabel": PRODUCT, "count": 1 },
        "nodeFailureSeconds": NODE_FAILURE_SECONDS,
        "env": [{ "name": "ENGINE_LOAD_SECONDS", "value": LOAD_SECONDS.to_string() }],
    });
    create(scene, "chat", spec).await;
    until_ready(scene, "chat").await;
    let pods = live_pods(scene).await;
    let [pod] = pods.as_slice() else { panic!("one replica: {pods:#?}") };
    (name_of(pod), node_of(pod).expect("a ready pod has a node"))
}

/// Times of the replacement, relative to the failure of the node.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
struct Replaced {
    taken_out_of_service: Duration,
    replacement_created: Duration,
    answers_again: Duration,
}

/// Makes the node fail and observes the replacement.
async fn replaced_after(
    scene: &Scene<'_>,
    pod: &str,
    node: &str,
    lose: impl Future<Output = local_cluster::Result<()>>,
) -> Replaced {
    let slices = scene.api::<EndpointSlice>();
    let of_service = "kubernetes.io/service-name=chat";
    let serves = |slices: &std::collections::BTreeMap<String, EndpointSlice>| {
        slices.values().flat_map(|slice| &slice.endpoints).find_map(|endpoint| {
            let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready);
            let target = endpoint.target_ref.as_ref().and_then(|target| target.name.clone());
            (ready == Some(true)).then_some(target).flatten()
        })
    };
    let began = Instant::now();
    lose.await.unwrap();
    let out = async {
        follow(&slices, of_service, |slices| serves(slices).is_none().then_some(())).await;
        began.elapsed()
    };
    let created = async {
        let replacement = follow(&scene.api::<Pod>(), &pods_of("chat"), |pods| {
            pods.values().find(|other| name_of(other) != pod).cloned()
        })
        .await;
        (name_of(&replacement), began.elapsed())
    };
    let watched = tokio::time::timeout(within(), futures::future::join(out, created)).await;
    let (out, (replacement, created)) = watched.expect("the pod is replaced");
    let answering =
        tokio::time::timeout(within(), follow(&slices, of_service, serves)).await.expect("it serves again");
    let again = began.elapsed();
    assert_eq!(answering, replacement, "only the replacement may get requests");
    let taken_over = scene.api::<Pod>().get(&replacement).await.unwrap();
    assert_ne!(node_of(&taken_over).as_deref(), Some(node));
    assert!(again >= created + Duration::from_secs(LOAD_SECONDS), "it got requests before it was ready");

    let inference = until_ready(scene, "chat").await;
    let migrations = inference.status.unwrap().migrations;
    let [migration] = migrations.as_slice() else { panic!("one pod was lost: {migrations:#?}") };
    assert_eq!((migration.pod.as_str(), migration.from_node.as_str()), (pod, node));
    Replaced { taken_out_of_service: out, replacement_created: created, answers_again: again }
}

async fn live_pods(scene: &Scene<'_>) -> Vec<Pod> {
    let all = scene.api::<Pod>().list(&ListParams::default().labels(&pods_of("chat"))).await.unwrap().items;
    all.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
}

fn name_of(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap_or_default()
}

fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}
