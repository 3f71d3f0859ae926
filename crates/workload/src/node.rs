//! Nodes, as far as pods depend on them: which are lost and since when, which GPUs they have, what keeps pods off.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use api::labels;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::Resource;
use serde::Deserialize;

use crate::{amounts::Extended, metadata::Condition, time::elapsed};

/// A node: whether its kubelet works, which GPUs it has, and who may use them.
#[derive(Resource, Clone, Debug, Default, Deserialize)]
#[resource(inherit = Node)]
#[serde(from = "NodeParts")]
pub struct NodeView {
    pub metadata: ObjectMeta,
    ready: Option<Condition>,
    pub allocatable: Extended,
    /// Keys of those that keep pods off.
    pub taints: Vec<String>,
}

/// A node that, by all that is known, does not run its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    pub how: Loss,
    /// When it left Ready, or was first missed.
    pub since: Timestamp,
    /// When it was first seen to be lost in this way: a node that was not ready may fall silent later.
    pub reported: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its kubelet reports it, so it lives, and its pods may serve on.
    NotReady,
    /// Its kubelet has stopped reporting.
    Unreachable,
    Deleted,
}

/// Since when nodes have not been ready. A node's condition tells when it turned last, which is too late once a node
/// that was not ready falls silent, and a deleted node has none. This is kept in memory only: after a restart of the
/// process the time counts from the condition, or from when the node was first missed, so a replacement comes later,
/// never sooner.
#[derive(Debug, Default)]
pub struct Losses(HashMap<String, Lost>);

/// For how long a loss is remembered. Controllers must not let pods wait longer than this on a lost node.
pub const FORGOTTEN_AFTER: Duration = Duration::from_hours(2);

impl NodeView {
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Of those that are kept.
    pub fn label(&self, key: &str) -> Option<&str> {
        Some(self.metadata.labels.as_ref()?.get(key)?.as_str())
    }

    /// A node without the condition is new, not lost.
    pub fn lost(&self) -> Option<Lost> {
        let ready = self.ready.as_ref()?;
        let how = match ready.status.as_str() {
            "True" => return None,
            "False" => Loss::NotReady,
            _ => Loss::Unreachable,
        };
        let turned = ready.last_transition_time?;
        Some(Lost { how, since: turned, reported: turned })
    }
}

/// Labels by which users choose nodes. The dozens of others that Kubernetes, feature discovery and drivers write are not
/// kept.
pub fn is_known_label(key: &str) -> bool {
    const COMMON: [&str; 4] = [
        labels::NVIDIA_GPU_PRODUCT,
        "kubernetes.io/hostname",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/zone",
    ];
    let (domain, _) = key.split_once('/').unwrap_or_default();
    let is_generated =
        ["kubernetes.io", "k8s.io", "nvidia.com"].iter().any(|suffix| domain.ends_with(suffix));
    COMMON.contains(&key) || !is_generated
}

impl Losses {
    /// A node was added or changed.
    pub fn note(&mut self, name: &str, node: &NodeView) {
        let Some(lost) = node.lost() else {
            self.0.remove(name);
            return;
        };
        let before = self.0.get(name);
        // The same loss at another time: the node was ready in between, which was not observed.
        let goes_on = |before: &&Lost| before.how != lost.how || before.reported == lost.reported;
        let since = before.filter(goes_on).map_or(lost.since, |before| before.since.min(lost.since));
        // A node that is lost and then deleted is asked for no more, unless a pod was on it.
        self.0.retain(|_, known| is_fresh(known, lost.since));
        self.0.insert(name.to_owned(), Lost { since, ..lost });
    }

    /// How the node is lost, if it is: `node` is `None` if there is no such node.
    pub fn of(&mut self, name: &str, node: Option<&NodeView>, now: Timestamp) -> Option<Lost> {
        match node {
            Some(node) => node.lost().map(|lost| Lost { since: self.since(name, lost), ..lost }),
            None => Some(self.missed(name, now)),
        }
    }

    fn since(&self, name: &str, lost: Lost) -> Timestamp {
        let is_same = |known: &&Lost| (known.how, known.reported) == (lost.how, lost.reported);
        self.0.get(name).filter(is_same).map_or(lost.since, |known| known.since)
    }

    /// It may have been lost before it was deleted.
    fn missed(&mut self, name: &str, now: Timestamp) -> Lost {
        let known = self.0.get(name).copied().filter(|known| is_fresh(known, now));
        if let Some(known) = known.filter(|known| known.how == Loss::Deleted) {
            return known;
        }
        // Names of nodes that come and go need not repeat.
        self.0.retain(|_, known| is_fresh(known, now));
        let since = known.map_or(now, |known| known.since);
        let missed = Lost { how: Loss::Deleted, since, reported: now };
        self.0.insert(name.to_owned(), missed);
        missed
    }
}

fn is_fresh(known: &Lost, now: Timestamp) -> bool {
    elapsed(known.since, now) < FORGOTTEN_AFTER
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
            ready: ready.map(Condition::without_words),
            allocatable: Extended::from_amounts(&status.allocatable),
            taints: keeps_off.map(|taint| taint.key).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    fn node(name: &str, status: &str, since: i64) -> NodeView {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "uid": name, "resourceVersion": "7", "labels": {"a": "b"}},
            "status": {"conditions": [
                {"type": "Ready", "status": status, "reason": "KubeletReady", "lastTransitionTime": at(since)},
            ]},
        }))
        .unwrap()
    }

    fn lost(how: Loss, since: i64) -> Option<Lost> {
        lost_later(how, since, since)
    }

    fn lost_later(how: Loss, since: i64, reported: i64) -> Option<Lost> {
        Some(Lost { how, since: at(since), reported: at(reported) })
    }

    #[test]
    fn a_node_is_lost_from_the_moment_at_which_it_left_ready() {
        assert_eq!(node("a", "True", 0).lost(), None);
        assert_eq!(node("a", "False", 0).lost(), lost(Loss::NotReady, 0));
        assert_eq!(node("a", "Unknown", 3).lost(), lost(Loss::Unreachable, 3));
        let new: NodeView = serde_saphyr::from_str("{metadata: {name: a}}").unwrap();
        assert_eq!(new.lost(), None);
    }

    #[test]
    fn a_deleted_node_is_lost_from_when_it_was_missed_until_it_is_back() {
        let mut losses = Losses::default();
        assert_eq!(losses.of("a", None, at(0)), lost(Loss::Deleted, 0));
        assert_eq!(losses.of("a", None, at(9)), lost(Loss::Deleted, 0));
        let back = node("a", "True", 10);
        losses.note("a", &back);
        assert_eq!(losses.of("a", Some(&back), at(11)), None);
        assert_eq!(losses.of("a", None, at(20)), lost(Loss::Deleted, 20));
    }

    #[test]
    fn a_node_that_falls_silent_or_is_deleted_later_is_lost_from_when_it_left_ready() {
        let mut losses = Losses::default();
        let mut change = |status: &str, since| {
            let node = node("a", status, since);
            losses.note("a", &node);
            losses.of("a", Some(&node), at(since + 1))
        };
        assert_eq!(change("False", 0), lost(Loss::NotReady, 0));
        assert_eq!(change("Unknown", 40), lost_later(Loss::Unreachable, 0, 40));
        assert_eq!(losses.of("a", None, at(50)), lost_later(Loss::Deleted, 0, 50));
        assert_eq!(losses.of("a", None, at(51)), lost_later(Loss::Deleted, 0, 50));
        let mut change = |status: &str, since| {
            let node = node("a", status, since);
            losses.note("a", &node);
            losses.of("a", Some(&node), at(since + 1))
        };
        assert_eq!(change("True", 60), None);
        assert_eq!(change("Unknown", 70), lost(Loss::Unreachable, 70));
        assert_eq!(change("Unknown", 90), lost(Loss::Unreachable, 90), "it was ready in between");
    }

    #[test]
    fn nodes_that_are_gone_do_not_add_up() {
        let mut losses = Losses::default();
        for hour in 0..99 {
            losses.note(&format!("seen-{hour}"), &node("seen", "Unknown", hour * 3_600));
            assert!(losses.0.len() <= 2, "those of the last two hours");
        }
        for hour in 99..199 {
            losses.of(&format!("missed-{hour}"), None, at(hour * 3_600));
            assert!(losses.0.len() <= 2, "those of the last two hours");
        }
    }
}
