//! Nodes as far as pods depend on them: which of them are lost, and since when.
//!
//! Decoding and looking up only: what is done about a lost node is decided in `plan`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::labels;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::Resource;
use runtime::cache::{Cache, Key};
use serde::Deserialize;

use super::{
    capacity::Extended,
    keys_by_instance,
    projections::{Condition, PodView},
};

/// A node: whether its kubelet works, which GPUs it has, and who may use them.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = Node)]
#[serde(from = "NodeParts")]
pub(crate) struct NodeView {
    pub(crate) metadata: ObjectMeta,
    ready: Option<Condition>,
    pub(super) allocatable: Extended,
    /// Keys of those that keep pods off.
    pub(crate) taints: Vec<String>,
}

/// The nodes, as far as they matter to one AIInference.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    /// Those under its pods that are lost, by name.
    pub(crate) lost: BTreeMap<String, Lost>,
    /// How many of the cluster's nodes are down; counted only if one under its pods is.
    pub(crate) down: usize,
    pub(crate) all: usize,
}

/// A node that does not run its pods, as far as anybody can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) how: Loss,
    pub(crate) since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Its kubelet says so.
    NotReady,
    /// Its kubelet says nothing.
    Unreachable,
    Deleted,
}

/// Since when nodes have not been ready. The condition of a node tells when it turned last, which is too late once a node
/// that said it was not ready says nothing any more; and a deleted node tells nothing. This is memory only: after a
/// restart of this process the time counts from what nodes tell, which only makes a replacement later.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses(Arc<Mutex<HashMap<String, Known>>>);

#[derive(Clone, Copy, Debug)]
struct Known {
    /// When it left Ready, or was first missed.
    since: Timestamp,
    /// What the node told last.
    told: Lost,
}

/// Longer than any wait for a node: what is older is of no more use.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(2);

impl NodeView {
    /// Of those that are kept.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        Some(self.metadata.labels.as_ref()?.get(key)?.as_str())
    }

    /// A node that has not said anything yet is new, not lost.
    pub(crate) fn lost(&self) -> Option<Lost> {
        let ready = self.ready.as_ref()?;
        let how = match ready.status.as_str() {
            "True" => return None,
            "False" => Loss::NotReady,
            _ => Loss::Unreachable,
        };
        Some(Lost { how, since: ready.last_transition_time? })
    }
}

/// Labels that may name a GPU product. Nodes carry dozens of others, which Kubernetes, feature discovery and drivers
/// write; those are not kept.
pub(crate) fn is_known_label(key: &str) -> bool {
    let (domain, _) = key.split_once('/').unwrap_or_default();
    let is_theirs = ["kubernetes.io", "k8s.io", "nvidia.com"].iter().any(|theirs| domain.ends_with(theirs));
    key == labels::NVIDIA_GPU_PRODUCT || !is_theirs
}

impl Losses {
    /// Kept up to date by every change of a node.
    pub(crate) fn of(nodes: &Cache<NodeView>) -> Self {
        let losses = Self::default();
        let kept = losses.clone();
        nodes.subscribe(move |change| {
            let Some(node) = change.new else { return };
            let mut known = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(told) = node.lost() else {
                known.remove(&*change.key.name);
                return;
            };
            let before = known.get(&*change.key.name);
            // The same loss at another time: it was ready in between, and we were not told.
            let goes_on = |before: &&Known| before.told.how != told.how || before.told.since == told.since;
            let since = before.filter(goes_on).map_or(told.since, |before| before.since.min(told.since));
            known.insert(change.key.name.to_string(), Known { since, told });
        });
        losses
    }

    /// Of a node that is there.
    fn since(&self, node: &str, told: Lost) -> Timestamp {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(node).filter(|known| known.told == told).map_or(told.since, |known| known.since)
    }

    /// Of a node that is not there: it may have been lost before it was deleted.
    fn missed_since(&self, node: &str, now: Timestamp) -> Timestamp {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |known: &Known| {
            Duration::try_from(now.duration_since(known.since)).is_ok_and(|lost| lost < FORGOTTEN_AFTER)
        };
        if let Some(known) = known.get(node).filter(|known| fresh(known)) {
            return known.since;
        }
        known.retain(|_, known| known.told.how != Loss::Deleted || fresh(known));
        let told = Lost { how: Loss::Deleted, since: now };
        known.insert(node.to_owned(), Known { since: now, told });
        now
    }
}

/// Looks the nodes under these pods up.
pub(super) fn nodes<'a>(
    known: &Cache<NodeView>,
    losses: &Losses,
    pods: impl Iterator<Item = &'a PodView>,
    now: Timestamp,
) -> Nodes {
    let mut lost = BTreeMap::new();
    for name in pods.filter_map(|pod| pod.node.as_deref()) {
        if lost.contains_key(name) {
            continue;
        }
        let loss = match known.get(&Key::new("", name)) {
            Some(node) => node.lost().map(|told| Lost { since: losses.since(name, told), ..told }),
            None => Some(Lost { how: Loss::Deleted, since: losses.missed_since(name, now) }),
        };
        lost.extend(loss.map(|loss| (name.to_owned(), loss)));
    }
    if lost.is_empty() {
        return Nodes::default();
    }
    let all = known.all();
    Nodes { lost, down: all.iter().filter(|node| node.lost().is_some()).count(), all: all.len() }
}

/// A node that is lost, was lost, or is gone concerns the pods on it; that it lives on concerns nobody.
pub(crate) fn keys_on_lost(known: &Cache<NodeView>, pods: &Cache<PodView>, node: &NodeView) -> Vec<Key> {
    let is_there = known.get(&Key::of(node)).is_some();
    if is_there && node.lost().is_none() {
        return Vec::new();
    }
    let name = node.metadata.name.as_deref();
    pods.all()
        .iter()
        .filter(|pod| pod.node.as_deref() == name)
        .flat_map(|pod| keys_by_instance(&**pod))
        .collect()
}

#[derive(Deserialize)]
struct NodeParts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: NodeSpecParts,
    #[serde(default)]
    status: NodeStatusParts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeSpecParts {
    taints: Vec<TaintParts>,
}

#[derive(Deserialize)]
struct TaintParts {
    key: String,
    effect: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeStatusParts {
    conditions: Vec<Condition>,
    allocatable: BTreeMap<String, Quantity>,
}

impl From<NodeParts> for NodeView {
    fn from(NodeParts { metadata, spec, status }: NodeParts) -> Self {
        let mut labels = metadata.labels.unwrap_or_default();
        labels.retain(|key, _| is_known_label(key));
        // Cordoning taints, too.
        let keeps_off = spec.taints.into_iter().filter(|taint| taint.effect != "PreferNoSchedule");
        let ready = status.conditions.into_iter().find(|condition| condition.is("Ready"));
        Self {
            metadata: ObjectMeta {
                name: metadata.name,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            // What the kubelet says in words is long, and the same on every node.
            ready: ready.map(Condition::without_words),
            allocatable: Extended::from_amounts(status.allocatable),
            taints: keeps_off.map(|taint| taint.key).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{at, pod};

    use super::*;

    pub(super) fn node(name: &str, status: &str, since: Timestamp) -> NodeView {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "uid": name, "resourceVersion": "7", "labels": {"a": "b"}},
            "status": {"conditions": [
                {"type": "Ready", "status": status, "reason": "KubeletReady", "lastTransitionTime": since},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn a_node_is_lost_from_the_moment_at_which_it_left_ready() {
        assert_eq!(node("a", "True", at(0)).lost(), None);
        assert_eq!(node("a", "False", at(0)).lost(), Some(Lost { how: Loss::NotReady, since: at(0) }));
        assert_eq!(node("a", "Unknown", at(3)).lost(), Some(Lost { how: Loss::Unreachable, since: at(3) }));
        let new: NodeView = serde_saphyr::from_str("{metadata: {name: a}}").unwrap();
        assert_eq!(new.lost(), None);
    }

    #[test]
    fn a_deleted_node_is_lost_from_when_it_was_missed_until_it_is_back() {
        let known = Cache::default();
        let losses = Losses::of(&known);
        let stranded = pod("{node: gpu-0}");
        let lost = |now| nodes(&known, &losses, std::iter::once(&stranded), now).lost.remove("gpu-0");
        assert_eq!(lost(at(0)), Some(Lost { how: Loss::Deleted, since: at(0) }));
        assert_eq!(lost(at(9)), Some(Lost { how: Loss::Deleted, since: at(0) }));
        known.upsert(node("gpu-0", "True", at(10)));
        assert_eq!(lost(at(11)), None);
        known.replace(Vec::new(), "8");
        assert_eq!(lost(at(20)), Some(Lost { how: Loss::Deleted, since: at(20) }));
    }

    #[test]
    fn a_node_that_falls_silent_or_is_deleted_later_is_lost_from_when_it_left_ready() {
        let known = Cache::default();
        let losses = Losses::of(&known);
        let stranded = pod("{node: gpu-0}");
        let lost = |now| nodes(&known, &losses, std::iter::once(&stranded), now).lost["gpu-0"];
        let tell = |version: u32, status: &str, since| {
            let mut told = node("gpu-0", status, at(since));
            told.metadata.resource_version = Some(version.to_string());
            known.upsert(told);
        };
        tell(1, "False", 0);
        tell(2, "Unknown", 40);
        assert_eq!(lost(at(41)), Lost { how: Loss::Unreachable, since: at(0) });
        known.replace(Vec::new(), "3");
        assert_eq!(lost(at(50)), Lost { how: Loss::Deleted, since: at(0) });
        tell(4, "True", 60);
        tell(5, "Unknown", 70);
        assert_eq!(lost(at(71)), Lost { how: Loss::Unreachable, since: at(70) });
        tell(6, "Unknown", 90);
        assert_eq!(lost(at(91)).since, at(90), "it was ready in between");
    }

    #[test]
    fn the_nodes_that_are_down_are_counted_over_the_cluster() {
        let (known, losses) = (Cache::default(), Losses::default());
        for (name, status) in [("a", "Unknown"), ("b", "False"), ("c", "True")] {
            known.upsert(node(name, status, at(0)));
        }
        let on = |name: &str| {
            let pod = pod(&format!("{{node: {name}}}"));
            let Nodes { lost, down, all } = nodes(&known, &losses, std::iter::once(&pod), at(1));
            (lost.len(), down, all)
        };
        assert_eq!(on("a"), (1, 2, 3));
        assert_eq!(on("c"), (0, 0, 0));
    }

    #[test]
    fn only_a_node_that_is_lost_or_gone_runs_the_objects_on_it() {
        let (known, pods) = (Cache::default(), Cache::default());
        pods.upsert(pod("{node: a}"));
        let keys = |node: &NodeView| keys_on_lost(&known, &pods, node).len();
        let (well, lost) = (node("a", "True", at(0)), node("a", "Unknown", at(1)));
        known.upsert(well.clone());
        assert_eq!((keys(&well), keys(&lost), keys(&node("b", "Unknown", at(1)))), (0, 1, 0));
        known.replace(Vec::new(), "8");
        assert_eq!(keys(&well), 1, "it is gone");
    }
}
