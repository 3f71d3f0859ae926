//! How many GPUs are free on which node, counted from all nodes and all pods that have one.
//!
//! Who may use what is free is decided in `plan`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use runtime::cache::Cache;
use serde::Deserialize;

use super::{nodes::NodeView, projections::PodView};

/// Whole amounts of extended resources, by name. Most pods hold none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Extended(Box<[(Box<str>, i64)]>);

/// A node and how much of one resource is free on it.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    pub(crate) node: Arc<NodeView>,
    pub(crate) free: i64,
}

/// Every node that has some of the resource, in the order of their names.
pub(crate) fn capacity(nodes: &Cache<NodeView>, pods: &Cache<PodView>, resource: &str) -> Vec<Room> {
    let pods = pods.all();
    let mut held: HashMap<&str, i64> = HashMap::new();
    for pod in &pods {
        let amount = pod.held.of(resource);
        if amount > 0
            && let Some(node) = pod.node.as_deref()
        {
            *held.entry(node).or_default() += amount;
        }
    }
    let mut rooms: Vec<Room> = nodes
        .all()
        .into_iter()
        .filter_map(|node| {
            let all = node.allocatable.of(resource);
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let free = (all - held.get(name).copied().unwrap_or_default()).max(0);
            (all > 0).then_some(Room { node, free })
        })
        .collect();
    rooms.sort_by(|one, other| one.node.metadata.name.cmp(&other.node.metadata.name));
    rooms
}

impl Extended {
    pub(super) fn from_amounts(amounts: BTreeMap<String, Quantity>) -> Self {
        // Extended resources have a domain and are whole numbers; those of Kubernetes itself have none.
        let amounts = amounts.into_iter().filter(|(name, _)| name.contains('/'));
        Self(amounts.filter_map(|(name, amount)| Some((name.into(), amount.0.parse().ok()?))).collect())
    }

    fn of(&self, resource: &str) -> i64 {
        let found = self.0.iter().find(|(name, _)| **name == *resource);
        found.map_or(0, |(_, amount)| *amount)
    }
}

/// What a pod holds of its node.
pub(super) fn held(init_containers: Vec<ContainerSpec>, containers: Vec<ContainerSpec>) -> Extended {
    let amounts = |container: ContainerSpec| Extended::from_amounts(container.resources.requests);
    let mut held: BTreeMap<Box<str>, i64> = BTreeMap::new();
    for (name, amount) in containers.into_iter().map(amounts).flat_map(|amounts| amounts.0) {
        *held.entry(name).or_default() += amount;
    }
    // One after the other, before the containers: the largest of them counts.
    for (name, amount) in init_containers.into_iter().map(amounts).flat_map(|amounts| amounts.0) {
        let known = held.entry(name).or_default();
        *known = amount.max(*known);
    }
    Extended(held.into_iter().collect())
}

/// The requests of a container.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerSpec {
    resources: Resources,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: BTreeMap<String, Quantity>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(name: &str, node: &str, containers: &str) -> PodView {
        let text = format!("{{metadata: {{name: {name}}}, spec: {{nodeName: {node}, {containers}}}}}");
        serde_saphyr::from_str(&text).unwrap()
    }

    const TWO: &str = "{resources: {requests: {cpu: 1, memory: 1Gi, nvidia.com/gpu: '2'}}}";

    #[test]
    fn a_pod_holds_what_its_containers_hold_together_or_an_earlier_one_alone() {
        let held = |containers: &str| holder("a", "n", containers).held.of("nvidia.com/gpu");
        assert_eq!(held(&format!("containers: [{TWO}, {TWO}]")), 4);
        assert_eq!(held(&format!("containers: [{TWO}], initContainers: [{TWO}, {TWO}]")), 2);
        assert_eq!(held("containers: [{resources: {requests: {cpu: 500m}}}, {}]"), 0);
    }

    #[test]
    fn what_no_pod_holds_is_free() {
        let (nodes, pods) = (Cache::default(), Cache::default());
        for name in ["b", "a", "cpu-only"] {
            let gpus = if name == "cpu-only" { "{cpu: 4}" } else { "{cpu: 4, nvidia.com/gpu: '8'}" };
            let text = format!("{{metadata: {{name: {name}}}, status: {{allocatable: {gpus}}}}}");
            nodes.upsert(serde_saphyr::from_str(&text).unwrap());
        }
        pods.upsert(holder("x", "b", &format!("containers: [{TWO}]")));
        pods.upsert(holder("y", "b", &format!("containers: [{TWO}]")));
        let rooms = capacity(&nodes, &pods, "nvidia.com/gpu");
        let free: Vec<(&str, i64)> =
            rooms.iter().map(|room| (room.node.metadata.name.as_deref().unwrap(), room.free)).collect();
        assert_eq!(free, [("a", 8), ("b", 4)]);
    }
}
