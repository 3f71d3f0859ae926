//! Advertises GPUs on real nodes that have none, as an extended resource that the kubelet leaves alone.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::sleep;
use tracing::warn;

use crate::{api_server::watch::wait_for, explained};

const GPU: &str = "nvidia.com/gpu";
/// How long one wait lasts before it begins anew; nothing depends on it.
const ROUND: Duration = Duration::from_mins(10);
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Keeps the GPUs of a node in its status: a kubelet that registers again removes them. Never returns.
pub(crate) async fn advertise(client: Client, node: String, gpus: u32) {
    let nodes: Api<Node> = Api::all(client);
    let wanted = gpus.to_string();
    loop {
        let lacks = |node: Option<&Node>| node.is_some_and(|node| !has(node, &wanted));
        if wait_for(&nodes, &node, ROUND, lacks).await.is_err() {
            continue;
        }
        let patch = json!({ "status": { "capacity": { GPU: wanted }, "allocatable": { GPU: wanted } } });
        if let Err(error) = nodes.patch_status(&node, &PatchParams::default(), &Patch::Merge(&patch)).await {
            warn!(node, error = explained(&error), "failed to advertise GPUs");
            sleep(RETRY_AFTER).await;
        }
    }
}

/// Whether the node offers so many GPUs to pods.
pub(crate) fn has(node: &Node, gpus: &str) -> bool {
    let status = node.status.as_ref();
    let of = |resources: Option<&std::collections::BTreeMap<_, _>>| {
        resources
            .and_then(|resources| resources.get(GPU))
            .is_some_and(|found: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| found.0 == gpus)
    };
    of(status.and_then(|status| status.capacity.as_ref()))
        && of(status.and_then(|status| status.allocatable.as_ref()))
}
