//! What a drain of a node does: it is cordoned, and its pods are evicted.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Error,
    api::{EvictParams, Patch, PatchParams},
};
use serde_json::json;

pub async fn cordon(nodes: &Api<Node>, node: &str, is_cordoned: bool) {
    let patch = Patch::Merge(json!({"spec": {"unschedulable": is_cordoned}}));
    nodes.patch(node, &PatchParams::default(), &patch).await.expect("the node is changed");
}

/// `false`: the budget refuses it for now.
pub async fn evict(pods: &Api<Pod>, pod: &str) -> bool {
    match pods.evict(pod, &EvictParams::default()).await {
        Ok(_) => true,
        Err(Error::Api(status)) if status.code == 404 => true,
        Err(Error::Api(status)) if status.code == 429 => false,
        Err(error) => panic!("the eviction of {pod} failed: {error}"),
    }
}
