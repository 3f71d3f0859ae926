//! Simulated nodes: GPUs are scheduled, and a node without a heartbeat becomes unreachable.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, api::PostParams};
use local_cluster::{Cluster, ClusterSpec, NodeClock, NodePool, simulation::nodes};
use serde_json::json;
use tests::{Scene, fresh_name, simulated, start, tools, wait_for, within};

#[tokio::test]
async fn a_pod_lands_on_a_node_with_its_product() {
    let scene = simulated().await;
    let pods = scene.api::<Pod>();
    create_gpu_pod(&pods, "picky", "H100", 1).await;
    let pod = wait_for(&pods, "picky", "bound", within(), |pod| node_of(pod).is_some()).await;
    let node = scene.cluster_api::<Node>().get(node_of(&pod).unwrap()).await.unwrap();
    assert_eq!(node.metadata.labels.unwrap()["nvidia.com/gpu.product"], "H100");
}

#[tokio::test]
async fn more_gpus_than_a_node_has_are_unschedulable() {
    let scene = simulated().await;
    let pods = scene.api::<Pod>();
    create_gpu_pod(&pods, "greedy", "H100", 9).await;
    wait_for(&pods, "greedy", "unschedulable", within(), |pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|condition| condition.reason.as_deref() == Some("Unschedulable"))
    })
    .await;
}

#[tokio::test]
async fn a_node_without_a_heartbeat_is_tainted_and_comes_back() {
    let cluster = own_cluster().await;
    let scene = Scene::new(&cluster).await;
    let nodes = scene.cluster_api::<Node>();
    nodes::stop_heartbeat(&scene.client(), "gpu-1").await.unwrap();
    wait_for(&nodes, "gpu-1", "unreachable", within(), |node| !nodes::is_ready(node) && is_tainted(node))
        .await;
    let others = nodes.get("gpu-0").await.unwrap();
    assert!(nodes::is_ready(&others) && !is_tainted(&others));
    nodes::start_heartbeat(&scene.client(), "gpu-1").await.unwrap();
    wait_for(&nodes, "gpu-1", "back", within(), |node| nodes::is_ready(node) && !is_tainted(node)).await;
}

async fn own_cluster() -> Cluster {
    let spec = ClusterSpec::simulated(fresh_name(), tools(), NodePool::default());
    start(spec.with_clock(NodeClock::SHORT)).await
}

fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints
        .into_iter()
        .any(|taint| taint.key == "node.kubernetes.io/unreachable" && taint.effect == "NoExecute")
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

async fn create_gpu_pod(pods: &Api<Pod>, name: &str, product: &str, gpus: u32) {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "nodeSelector": { "nvidia.com/gpu.product": product },
            "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }],
            "containers": [{
                "name": "engine",
                "image": "example.com/engine",
                "resources": { "limits": { "nvidia.com/gpu": gpus.to_string() } },
            }],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
}
