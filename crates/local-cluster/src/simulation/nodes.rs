//! The simulated nodes: machines with GPUs that exist as objects only. kwok plays their kubelets.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{Error, NodePool, Result, control_plane::command_lines::MANAGED_LABEL};

/// Pods are spread over zones, and with one zone alone the loss of a node can look like the loss of the cluster.
const ZONES: u32 = 2;
/// The taint that the GPU operator gives nodes, which pods of the controllers must tolerate.
const GPU_TAINT: &str = "nvidia.com/gpu";

/// Creates the pool's nodes and returns their names.
pub(crate) async fn create(client: &Client, pool: &NodePool) -> Result<Vec<String>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let with_gpus = (0..pool.count).map(|index| node(pool, index));
    let wanted: Vec<(String, Value)> =
        with_gpus.chain((0..pool.without_gpus).map(node_without_gpus)).collect();
    let created = wanted.iter().map(|(name, node)| {
        let nodes = nodes.clone();
        async move {
            let node = serde_json::from_value(node.clone())
                .map_err(|error| Error::invalid("describe node", name, error))?;
            nodes.create(&PostParams::default(), &node).await.map_err(Error::api("create node", name))
        }
    });
    futures::future::try_join_all(created).await?;
    Ok(wanted.into_iter().map(|(name, _)| name).collect())
}

/// Cuts the node off: its lease, its status and its pods stand still, as if the machine had died.
pub async fn stop_heartbeat(client: &Client, node: &str) -> Result<()> {
    set_managed_label(client, node, Value::Null).await
}

/// Brings the node back.
pub async fn start_heartbeat(client: &Client, node: &str) -> Result<()> {
    set_managed_label(client, node, json!("true")).await
}

/// Whether the node is Ready.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn set_managed_label(client: &Client, node: &str, value: Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = json!({ "metadata": { "labels": { MANAGED_LABEL: value } } });
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map_err(Error::api("change the label of node", node))?;
    Ok(())
}

fn node(pool: &NodePool, index: u32) -> (String, Value) {
    let name = format!("gpu-{index}");
    let products = pool.products.len().max(1);
    let product = pool.products.get(index as usize % products).map_or("", String::as_str);
    let labels = json!({
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": pool.gpus.to_string(),
    });
    let mut node = machine(&name, index, &labels);
    node["spec"]["taints"] = json!([{ "key": GPU_TAINT, "value": "present", "effect": "NoSchedule" }]);
    for amounts in ["capacity", "allocatable"] {
        node["status"][amounts]["nvidia.com/gpu"] = json!(pool.gpus.to_string());
    }
    (name, node)
}

fn node_without_gpus(index: u32) -> (String, Value) {
    let name = format!("cpu-{index}");
    let node = machine(&name, index, &json!({}));
    (name, node)
}

fn machine(name: &str, index: u32, more: &Value) -> Value {
    let capacity = json!({
        "cpu": "64",
        "memory": "512Gi",
        "pods": "110",
        "ephemeral-storage": "1Ti",
    });
    let mut labels = json!({
        MANAGED_LABEL: "true",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "simulated",
        "topology.kubernetes.io/region": "local",
        "topology.kubernetes.io/zone": format!("zone-{}", index % ZONES),
    });
    if let (Some(labels), Some(more)) = (labels.as_object_mut(), more.as_object()) {
        labels.extend(more.clone());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "labels": labels },
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": "",
                "containerRuntimeVersion": "simulated://1",
                "kernelVersion": "",
                "kubeProxyVersion": "",
                "kubeletVersion": crate::tools::KUBERNETES_VERSION,
                "machineID": "",
                "operatingSystem": "linux",
                "osImage": "simulated",
                "systemUUID": "",
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_go_round() {
        let pool = NodePool {
            count: 4,
            gpus: 8,
            products: vec!["A100".to_owned(), "H100".to_owned()],
            without_gpus: 0,
        };
        let product = |index| node(&pool, index).1["metadata"]["labels"]["nvidia.com/gpu.product"].clone();
        assert_eq!([product(0), product(1), product(2)], ["A100", "H100", "A100"]);
    }
}
