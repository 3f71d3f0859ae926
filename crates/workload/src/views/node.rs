//! Narrow views of nodes: loss, extended resources, taints.

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

use crate::{
    time::elapsed,
    views::{amounts::Extended, metadata::Condition},
};

/// A node: its Ready condition, extended resources and taints.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = Node)]
#[serde(from = "NodeParts")]
pub struct NodeView {
    pub metadata: ObjectMeta,
    ready: Option<Condition>,
    pub allocatable: Extended,
    /// Keys of the taints with effect NoSchedule or NoExecute.
    pub taints: Vec<String>,
}

/// Why and since when a node is not Ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLoss {
    pub kind: LossKind,
    /// When the node left Ready, or when its deletion was first observed.
    pub since: Timestamp,
    /// Since when `kind` has been the same: a node may be NotReady first and Unreachable later.
    pub reported: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// Ready is False: the kubelet still reports, and pods may still serve.
    NotReady,
    /// Ready is Unknown: the kubelet has stopped reporting.
    Unreachable,
    Deleted,
}

/// Since when nodes have not been Ready, by name. The condition's `lastTransitionTime` is not enough: it changes again when
/// a NotReady node becomes Unreachable, and a deleted node has no condition. Kept in memory only. After a restart of the
/// process the time counts from the condition, or from the first observation of the deletion. So pods are replaced later,
/// never sooner.
#[derive(Debug, Default)]
pub struct NodeLosses(HashMap<String, NodeLoss>);

/// Losses older than this are dropped. Controllers must replace pods on lost nodes sooner than this.
pub const FORGOTTEN_AFTER: Duration = Duration::from_hours(2);

impl NodeView {
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// The value of a label for which `is_kept_label` is true.
    pub fn label(&self, key: &str) -> Option<&str> {
        Some(self.metadata.labels.as_ref()?.get(key)?.as_str())
    }

    /// Whether its pods are to leave it: it is cordoned, or a node autoscaler or a cloud has announced its end.
    pub fn is_leaving(&self) -> bool {
        self.taints.iter().any(|taint| {
            LEAVING_TAINTS.contains(&taint.as_str()) || taint.starts_with(AWS_TERMINATION_TAINTS)
        })
    }

    /// `None` if the node is Ready, or new and without the condition.
    pub fn lost(&self) -> Option<NodeLoss> {
        let ready = self.ready.as_ref()?;
        let kind = match ready.status.as_str() {
            "True" => return None,
            "False" => LossKind::NotReady,
            _ => LossKind::Unreachable,
        };
        let turned = ready.last_transition_time?;
        Some(NodeLoss { kind, since: turned, reported: turned })
    }
}

/// Of a cordoned node, of Karpenter (since and before v1), of the cluster autoscaler, and of GKE.
const LEAVING_TAINTS: [&str; 5] = [
    "node.kubernetes.io/unschedulable",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "ToBeDeletedByClusterAutoscaler",
    "cloud.google.com/impending-node-termination",
];
/// How the taints of the AWS Node Termination Handler begin.
const AWS_TERMINATION_TAINTS: &str = "aws-node-termination-handler/";

/// Labels by which users select nodes. Views drop the many others that Kubernetes, feature discovery and drivers write.
pub(crate) fn is_kept_label(key: &str) -> bool {
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

impl NodeLosses {
    /// Records that a node was added or changed.
    pub fn note(&mut self, name: &str, node: &NodeView) {
        let Some(lost) = node.lost() else {
            self.0.remove(name);
            return;
        };
        let before = self.0.get(name);
        // The same kind with another time means that the node was Ready in between, although this was not observed.
        let goes_on = |before: &&NodeLoss| before.kind != lost.kind || before.reported == lost.reported;
        let since = before.filter(goes_on).map_or(lost.since, |before| before.since.min(lost.since));
        // Entries of deleted nodes without pods are never read again; drop them by age.
        self.0.retain(|_, known| is_fresh(known, lost.since));
        self.0.insert(name.to_owned(), NodeLoss { since, ..lost });
    }

    /// The loss of a node, if it is lost. `node` is `None` if the node does not exist.
    pub fn of(&mut self, name: &str, node: Option<&NodeView>, now: Timestamp) -> Option<NodeLoss> {
        match node {
            Some(node) => node.lost().map(|lost| NodeLoss { since: self.since(name, lost), ..lost }),
            None => Some(self.deleted(name, now)),
        }
    }

    fn since(&self, name: &str, lost: NodeLoss) -> Timestamp {
        let is_same = |known: &&NodeLoss| (known.kind, known.reported) == (lost.kind, lost.reported);
        self.0.get(name).filter(is_same).map_or(lost.since, |known| known.since)
    }

    /// The loss of a deleted node, which counts from an earlier loss if there was one.
    fn deleted(&mut self, name: &str, now: Timestamp) -> NodeLoss {
        let known = self.0.get(name).copied().filter(|known| is_fresh(known, now));
        if let Some(known) = known.filter(|known| known.kind == LossKind::Deleted) {
            return known;
        }
        // Deleted nodes whose names are never used again; drop them by age.
        self.0.retain(|_, known| is_fresh(known, now));
        let since = known.map_or(now, |known| known.since);
        let loss = NodeLoss { kind: LossKind::Deleted, since, reported: now };
        self.0.insert(name.to_owned(), loss);
        loss
    }
}

fn is_fresh(known: &NodeLoss, now: Timestamp) -> bool {
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
        labels.retain(|key, _| is_kept_label(key));
        // Cordoned nodes have the taint `node.kubernetes.io/unschedulable`.
        let excluding = spec.taints.into_iter().filter(|taint| taint.effect != "PreferNoSchedule");
        let ready = status.conditions.into_iter().find(|condition| condition.is("Ready"));
        Self {
            metadata: ObjectMeta {
                name: metadata.name,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            ready: ready.map(Condition::without_text),
            allocatable: Extended::from_amounts(&status.allocatable),
            taints: excluding.map(|taint| taint.key).collect(),
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

    fn lost(kind: LossKind, since: i64) -> Option<NodeLoss> {
        lost_later(kind, since, since)
    }

    fn lost_later(kind: LossKind, since: i64, reported: i64) -> Option<NodeLoss> {
        Some(NodeLoss { kind, since: at(since), reported: at(reported) })
    }

    #[test]
    fn a_node_is_lost_from_its_last_transition() {
        assert_eq!(node("a", "True", 0).lost(), None);
        assert_eq!(node("a", "False", 0).lost(), lost(LossKind::NotReady, 0));
        assert_eq!(node("a", "Unknown", 3).lost(), lost(LossKind::Unreachable, 3));
        let new: NodeView = serde_saphyr::from_str("{metadata: {name: a}}").unwrap();
        assert_eq!(new.lost(), None);
    }

    #[test]
    fn a_node_is_leaving_from_its_taints() {
        let leaves = |taint: &str, effect: &str| {
            let text =
                format!("{{metadata: {{name: a}}, spec: {{taints: [{{key: {taint}, effect: {effect}}}]}}}}");
            serde_saphyr::from_str::<NodeView>(&text).unwrap().is_leaving()
        };
        for taint in LEAVING_TAINTS.into_iter().chain(["aws-node-termination-handler/spot-itn"]) {
            assert!(leaves(taint, "NoSchedule"), "{taint}");
        }
        assert!(!leaves("nvidia.com/gpu", "NoSchedule"));
        assert!(!leaves("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"));
    }

    #[test]
    fn a_deleted_node_is_lost_from_the_first_observation_until_it_is_back() {
        let mut losses = NodeLosses::default();
        assert_eq!(losses.of("a", None, at(0)), lost(LossKind::Deleted, 0));
        assert_eq!(losses.of("a", None, at(9)), lost(LossKind::Deleted, 0));
        let back = node("a", "True", 10);
        losses.note("a", &back);
        assert_eq!(losses.of("a", Some(&back), at(11)), None);
        assert_eq!(losses.of("a", None, at(20)), lost(LossKind::Deleted, 20));
    }

    #[test]
    fn a_loss_counts_from_when_the_node_left_ready_when_its_kind_changes() {
        let mut losses = NodeLosses::default();
        let mut change = |status: &str, since| {
            let node = node("a", status, since);
            losses.note("a", &node);
            losses.of("a", Some(&node), at(since + 1))
        };
        assert_eq!(change("False", 0), lost(LossKind::NotReady, 0));
        assert_eq!(change("Unknown", 40), lost_later(LossKind::Unreachable, 0, 40));
        assert_eq!(losses.of("a", None, at(50)), lost_later(LossKind::Deleted, 0, 50));
        assert_eq!(losses.of("a", None, at(51)), lost_later(LossKind::Deleted, 0, 50));
        let mut change = |status: &str, since| {
            let node = node("a", status, since);
            losses.note("a", &node);
            losses.of("a", Some(&node), at(since + 1))
        };
        assert_eq!(change("True", 60), None);
        assert_eq!(change("Unknown", 70), lost(LossKind::Unreachable, 70));
        assert_eq!(change("Unknown", 90), lost(LossKind::Unreachable, 90), "it was Ready in between");
    }

    #[test]
    fn entries_of_deleted_nodes_are_bounded() {
        let mut losses = NodeLosses::default();
        for hour in 0..99 {
            losses.note(&format!("seen-{hour}"), &node("seen", "Unknown", hour * 3_600));
            assert!(losses.0.len() <= 2, "those of the last two hours");
        }
        for hour in 99..199 {
            losses.of(&format!("deleted-{hour}"), None, at(hour * 3_600));
            assert!(losses.0.len() <= 2, "those of the last two hours");
        }
    }
}
