//! A node that dies under a server, really: its pods come up elsewhere, and only then get requests.

use std::time::{Duration, Instant};

use k8s_openapi::api::{
    core::v1::{Node, Pod},
    discovery::v1::EndpointSlice,
};
use kube::api::ListParams;
use local_cluster::{Cluster, NodeClock, nodes};
use serde_json::json;
use tests::{
    ENGINE_IMAGE, PRODUCT, Scene, follow,
    inference::{create, pods_of, until_ready},
    real_spec, start_real, wait_for, wait_until_gone, within,
};

use crate::claims::model_in_a_claim;

/// After which the pods of a silent node are replaced.
const NODE_FAILURE_SECONDS: u64 = 3;
/// What the replacement needs before it answers.
const LOAD_SECONDS: u64 = 4;

#[tokio::test]
async fn a_killed_node_loses_its_pods_to_another_one() {
    let cluster = cluster().await;
    let scene = Scene::restricted(&cluster).await;
    let (pod, node) = serving(&scene).await;
    let replaced = replaced_after(&scene, &pod, &node, cluster.stop_component(&node)).await;
    println!("killed: {replaced:?}");
    // It comes back as a machine does that was switched off: with nothing running, and nothing to keep.
    cluster.start_component(&node).await.unwrap();
    wait_until_gone(&scene.api::<Pod>(), &pod, within()).await;
    assert_eq!(live_pods(&scene).await.len(), 1);
}

#[tokio::test]
async fn a_node_that_is_cut_off_loses_its_pods_to_another_one() {
    let cluster = cluster().await;
    let scene = Scene::restricted(&cluster).await;
    let (pod, node) = serving(&scene).await;
    let replaced = replaced_after(&scene, &pod, &node, cluster.cut_off(&node)).await;
    println!("cut off: {replaced:?}");
    // What ran on alone is ended as soon as it hears that it is to go.
    cluster.reconnect(&node).await.unwrap();
    wait_for(&scene.cluster_api::<Node>(), &node, "back", within(), nodes::is_ready).await;
    wait_until_gone(&scene.api::<Pod>(), &pod, within() * 2).await;
    assert_eq!(live_pods(&scene).await.len(), 1);
}

/// Three real nodes beside three simulated ones: enough that one dead node is not taken for a dead cluster.
async fn cluster() -> Cluster {
    start_real(real_spec(3).with_clock(NodeClock::SHORT)).await
}

/// A server of one replica; its pod and its node.
async fn serving(scene: &Scene<'_>) -> (String, String) {
    let spec = json!({
        "modelSource": model_in_a_claim(scene).await,
        "image": ENGINE_IMAGE,
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

/// How long after its death a node's pod was replaced.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
struct Replaced {
    taken_out_of_service: Duration,
    replacement_created: Duration,
    answers_again: Duration,
}

/// Loses the node and watches what follows.
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
    assert_eq!(answering, replacement, "nothing else may get requests");
    let taken_over = scene.api::<Pod>().get(&replacement).await.unwrap();
    assert_ne!(node_of(&taken_over).as_deref(), Some(node));
    assert!(again >= created + Duration::from_secs(LOAD_SECONDS), "it got requests before it had loaded");

    let told = until_ready(scene, "chat").await;
    let migrations = told.status.unwrap().migrations;
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
