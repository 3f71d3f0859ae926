//! Pods on lost nodes: which of them are replaced and when, and the messages about them.
//!
//! Pods are deleted with their grace period, never by force: on an unreachable node a pod may still run. The ReplicaSet
//! creates the replacement at once; the old pod stays `Terminating` until its node is back or is deleted. A pod that is
//! ready on a NotReady node still serves and is not replaced.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::reasons;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::{
    faults::{migrations::PodMigration, pace::Allowance},
    time::elapsed,
    views::{
        node::{LossKind, NodeLoss, NodeLosses, NodeView},
        pod::PodView,
    },
};

/// The nodes that matter to one owner of pods.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// Lost nodes that have pods of the owner, by name.
    pub lost: BTreeMap<String, NodeLoss>,
    /// Number of lost nodes in the cluster; counted only if `lost` is not empty.
    pub down: usize,
    pub all: usize,
    /// Whether a watch of nodes or pods is failing, so that the caches may be out of date.
    pub is_stale: bool,
}

impl Nodes {
    /// Of pods on the nodes of these names. `node`: what is known of one; `all`: the nodes of the cluster, which are counted only
    /// if one is lost.
    pub fn of<'a>(
        names: impl Iterator<Item = &'a str>,
        node: impl Fn(&str) -> Option<Arc<NodeView>>,
        all: impl FnOnce() -> Vec<Arc<NodeView>>,
        losses: &Mutex<NodeLosses>,
        now: Timestamp,
    ) -> Self {
        let mut lost = BTreeMap::new();
        for name in names {
            if !lost.contains_key(name) {
                let node = node(name);
                let mut losses = losses.lock().unwrap_or_else(PoisonError::into_inner);
                lost.extend(losses.of(name, node.as_deref(), now).map(|loss| (name.to_owned(), loss)));
            }
        }
        if lost.is_empty() {
            return Self::default();
        }
        let all = all();
        let down = all.iter().filter(|node| node.lost().is_some()).count();
        Self { lost, down, all: all.len(), is_stale: false }
    }
}

/// The owner's settings for replacing pods.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long a node may be lost before its pods are replaced.
    pub timeout: Duration,
    pub is_paused: bool,
    /// The container that decides whether a pod serves.
    pub container: &'static str,
}

/// The pods of one owner that are on lost nodes, in the order of their replacement.
#[derive(Debug)]
pub struct StrandedPods<'a> {
    pods: Vec<Stranded<'a>>,
    hold: Option<Hold>,
}

/// A pod on a lost node.
#[derive(Debug)]
pub struct Stranded<'a> {
    pod: &'a PodView,
    node: &'a str,
    lost: NodeLoss,
    /// The remaining time until the pod is replaced.
    remaining: Duration,
}

/// Why no pod is replaced at all.
#[derive(Clone, Copy, Debug)]
enum Hold {
    Paused,
    TooManyAreDown,
    Stale,
}

/// Above this share it is more likely that the control plane has lost its network than that all these nodes are down.
/// Kubernetes' `--unhealthy-zone-threshold` has the same default.
const TOO_MANY_DOWN_PERCENT: usize = 55;
/// A node that recovers starts no reconcile of owners with pods on other nodes.
const TOO_MANY_DOWN_RETRY: Duration = Duration::from_secs(10);
/// A change of an admission policy causes no watched event.
const REFUSAL_RETRY: Duration = Duration::from_secs(60);
/// The watches of nodes and pods are independent: a new node may arrive after the first pod on it.
const NODES_ARE_SEEN_WITHIN: Duration = Duration::from_secs(5);

impl<'a> StrandedPods<'a> {
    pub fn of(pods: impl Iterator<Item = &'a PodView>, nodes: &Nodes, terms: &Terms, now: Timestamp) -> Self {
        let stranded = pods.filter_map(|pod| {
            let node = pod.node.as_deref()?;
            let lost = *nodes.lost.get(node)?;
            // The pod serves: the kubelet still reports it ready, or reported it ready after the node was lost.
            let came_back = pod.ready_changed.is_some_and(|turned| turned > lost.reported);
            if lost.kind == LossKind::NotReady && serves(pod, terms.container) || pod.is_ready && came_back {
                return None;
            }
            let timeout = match lost.kind {
                LossKind::NotReady | LossKind::Unreachable => terms.timeout,
                LossKind::Deleted => terms.timeout.max(NODES_ARE_SEEN_WITHIN),
            };
            let lost_for = elapsed(lost.since, now);
            Some(Stranded { pod, node, lost, remaining: timeout.saturating_sub(lost_for) })
        });
        Self { pods: stranded.collect(), hold: hold(nodes, terms) }
    }

    /// The uids of the pods whose time has come, in the order in which `Pace` should allow them.
    pub fn due(&self) -> Vec<&'a str> {
        let due = self.pods.iter().filter(|stranded| self.hold.is_none() && stranded.remaining.is_zero());
        due.map(|stranded| stranded.pod.uid()).collect()
    }

    /// The pods to delete now.
    pub fn allowed(&self, allowance: &Allowance) -> impl Iterator<Item = &Stranded<'a>> {
        self.pods.iter().filter(|stranded| allowance.pods.contains(stranded.pod.uid()))
    }

    /// When to check again. Call it after the allowed pods have been deleted: one that still exists was refused.
    pub fn requeue_after(&self, allowance: &Allowance) -> Option<Duration> {
        self.pods.first()?;
        match self.hold {
            Some(Hold::Paused) => None,
            Some(Hold::TooManyAreDown | Hold::Stale) => Some(TOO_MANY_DOWN_RETRY),
            None => {
                let waits = self
                    .pods
                    .iter()
                    .map(|stranded| stranded.remaining)
                    .filter(|remaining| !remaining.is_zero());
                let refused = self.allowed(allowance).next().map(|_| REFUSAL_RETRY);
                waits.chain(allowance.requeue_after).chain(refused).min()
            }
        }
    }

    /// A message about the first pod that is still on a lost node.
    pub fn outlook_message(&self) -> Option<String> {
        let outlook = match self.hold {
            Some(Hold::Paused) => "is not replaced while spec.paused is true",
            Some(Hold::TooManyAreDown) => "is not replaced while more than 55 % of the nodes are down",
            Some(Hold::Stale) => "is not replaced while the watch of nodes or pods fails",
            None => "is replaced unless the node recovers",
        };
        let first = self.pods.first()?;
        Some(format!("{}; pod {} {outlook}", first.loss(), first.pod.name()))
    }
}

impl Stranded<'_> {
    /// What is known of it once its deletion was accepted.
    pub fn migration(&self, now: Timestamp) -> PodMigration {
        let reason = match self.lost.kind {
            LossKind::NotReady => reasons::NODE_NOT_READY,
            LossKind::Unreachable => reasons::NODE_UNREACHABLE,
            LossKind::Deleted => reasons::NODE_DELETED,
        };
        let (pod, node) = (self.pod.name().to_owned(), self.node.to_owned());
        PodMigration { pod, node, reason, message: None, time: now }
    }

    /// The message of the event about an accepted deletion.
    pub fn message(&self) -> String {
        format!("{}; pod {} is replaced", self.loss(), self.pod.name())
    }

    fn loss(&self) -> String {
        let how = match self.lost.kind {
            LossKind::NotReady => "is not ready",
            LossKind::Unreachable => "is unreachable",
            LossKind::Deleted => "was deleted",
        };
        format!("node {} {how}", self.node)
    }

    /// Of the pod, as preconditions of its deletion.
    pub fn identity(&self) -> Pod {
        self.pod.identity()
    }
}

/// Whether the pod serves, by the status of its container. When a node becomes NotReady, the control plane sets Ready to
/// False on all its pods, and the kubelet restores it only up to ten seconds later.
fn serves(pod: &PodView, container: &str) -> bool {
    pod.is_ready || pod.container(container).is_some_and(|container| container.ready)
}

fn hold(nodes: &Nodes, terms: &Terms) -> Option<Hold> {
    if terms.is_paused {
        Some(Hold::Paused)
    } else if nodes.down * 100 > nodes.all * TOO_MANY_DOWN_PERCENT {
        Some(Hold::TooManyAreDown)
    } else {
        nodes.is_stale.then_some(Hold::Stale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms { timeout: Duration::from_secs(30), is_paused: false, container: "engine" };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    /// Pod b on the lost node gpu-1 and pod a on gpu-0; one of four nodes is down.
    struct Scene {
        b: PodView,
        nodes: Nodes,
        terms: Terms,
    }

    fn scene(kind: LossKind, for_seconds: i64) -> Scene {
        let lost = NodeLoss { kind, since: at(-for_seconds), reported: at(-for_seconds) };
        Scene {
            b: pod("b", "gpu-1", "conditions: [{type: Ready, status: 'True'}]"),
            nodes: Nodes { lost: [("gpu-1".to_owned(), lost)].into(), down: 1, all: 4, is_stale: false },
            terms: TERMS,
        }
    }

    fn pod(name: &str, node: &str, status: &str) -> PodView {
        let labels = "app.kubernetes.io/instance: chat, app.kubernetes.io/name: aiinference, \
                      app.kubernetes.io/managed-by: inference-controller";
        let text = format!(
            "{{metadata: {{name: {name}, uid: {name}, labels: {{{labels}}}}}, spec: {{nodeName: {node}}}, \
             status: {{{status}}}}}"
        );
        serde_saphyr::from_str(&text).unwrap()
    }

    fn allowing(pods: &[&str], requeue_after: Option<u64>) -> Allowance {
        Allowance {
            pods: pods.iter().map(|&pod| pod.to_owned()).collect(),
            requeue_after: requeue_after.map(Duration::from_secs),
        }
    }

    impl Scene {
        fn with<T>(&self, read: impl FnOnce(StrandedPods<'_>) -> T) -> T {
            let a = pod("a", "gpu-0", "conditions: [{type: Ready, status: 'True'}]");
            read(StrandedPods::of([&a, &self.b].into_iter(), &self.nodes, &self.terms, at(0)))
        }

        fn due(&self) -> Vec<String> {
            self.with(|stranded| stranded.due().into_iter().map(str::to_owned).collect())
        }

        fn requeue_after(&self, allowance: &Allowance) -> Option<u64> {
            self.with(|stranded| stranded.requeue_after(allowance)).map(|wait| wait.as_secs())
        }

        fn outlook_message(&self) -> String {
            self.with(|stranded| stranded.outlook_message()).unwrap()
        }
    }

    #[test]
    fn a_pod_is_due_when_its_node_has_been_lost_for_the_timeout() {
        assert_eq!(scene(LossKind::Unreachable, 29).due(), [""; 0]);
        assert_eq!(scene(LossKind::Unreachable, 30).due(), ["b"]);
        let requeue_after = scene(LossKind::Unreachable, 12).requeue_after(&Allowance::default());
        assert_eq!(requeue_after, Some(18), "exactly when the pod is due");
    }

    #[test]
    fn a_ready_pod_on_a_not_ready_node_is_not_replaced() {
        let mut scene = scene(LossKind::NotReady, 900);
        assert_eq!((scene.due(), scene.requeue_after(&Allowance::default())), (Vec::new(), None));
        scene.b = pod("b", "gpu-1", "");
        assert_eq!(scene.due(), ["b"], "a pod that does not serve is replaced");
        scene.b = pod("b", "gpu-1", "containerStatuses: [{name: engine, ready: true}]");
        assert_eq!(scene.due(), [""; 0], "the control plane sets Ready to False with the node's");
        scene.nodes.lost.values_mut().for_each(|lost| lost.kind = LossKind::Unreachable);
        assert_eq!(scene.due(), ["b"], "the status of pods on an unreachable node is out of date");
    }

    #[test]
    fn the_message_names_why_a_pod_is_not_replaced() {
        let message = |edit: fn(&mut Scene)| {
            let mut scene = scene(LossKind::Unreachable, 1);
            edit(&mut scene);
            scene.outlook_message()
        };
        assert_eq!(message(|_| ()), "node gpu-1 is unreachable; pod b is replaced unless the node recovers");
        assert!(
            message(|scene| scene.terms.is_paused = true)
                .ends_with("pod b is not replaced while spec.paused is true")
        );
        let down = message(|scene| scene.nodes.down = 3);
        assert!(down.ends_with("pod b is not replaced while more than 55 % of the nodes are down"));
        let blind = message(|scene| scene.nodes.is_stale = true);
        assert!(blind.ends_with("pod b is not replaced while the watch of nodes or pods fails"));
    }

    #[test]
    fn a_deleted_node_may_be_one_whose_watch_event_is_late() {
        let due_after = |seconds| {
            let mut quick = scene(LossKind::Deleted, seconds);
            quick.terms.timeout = Duration::ZERO;
            quick.due()
        };
        assert_eq!(due_after(4), [""; 0]);
        assert_eq!(due_after(5), ["b"]);
    }

    #[test]
    fn nothing_is_due_while_more_than_55_percent_of_the_nodes_are_down() {
        let mut scene = scene(LossKind::Unreachable, 900);
        scene.nodes.down = 2;
        assert_eq!(scene.due(), ["b"]);
        scene.nodes.down = 3;
        assert_eq!(scene.due(), [""; 0]);
        assert_eq!(scene.requeue_after(&Allowance::default()), Some(10));
    }

    #[test]
    fn nothing_is_due_while_nodes_or_pods_cannot_be_watched() {
        let mut scene = scene(LossKind::Unreachable, 900);
        scene.nodes.is_stale = true;
        assert_eq!(scene.due(), [""; 0]);
        assert_eq!(scene.requeue_after(&Allowance::default()), Some(10));
    }

    #[test]
    fn a_pod_that_became_ready_after_its_node_was_lost_is_not_replaced() {
        let mut scene = scene(LossKind::Unreachable, 900);
        let ready =
            format!("conditions: [{{type: Ready, status: 'True', lastTransitionTime: '{}'}}]", at(-100));
        scene.b = pod("b", "gpu-1", &ready);
        assert_eq!(scene.due(), [""; 0]);
        // The node was NotReady then and is Unreachable now.
        scene.nodes.lost.values_mut().for_each(|lost| lost.reported = at(-99));
        assert_eq!(scene.due(), ["b"]);
    }

    #[test]
    fn nothing_is_due_while_the_owner_is_paused() {
        let mut scene = scene(LossKind::Unreachable, 900);
        scene.terms.is_paused = true;
        assert_eq!((scene.due(), scene.requeue_after(&Allowance::default())), (Vec::new(), None));
    }

    #[test]
    fn allowed_pods_are_deleted_and_others_are_checked_again() {
        let scene = scene(LossKind::Unreachable, 30);
        let deleted = |allowance: &Allowance| {
            scene.with(|stranded| {
                let allowed = stranded.allowed(allowance);
                let parts =
                    allowed.map(|one| (one.identity().metadata.name, one.migration(at(0)), one.message()));
                parts.collect::<Vec<_>>()
            })
        };
        let (pod, node, reason) = ("b".to_owned(), "gpu-1".to_owned(), reasons::NODE_UNREACHABLE);
        let migration = PodMigration { pod: pod.clone(), node, reason, message: None, time: at(0) };
        let message = "node gpu-1 is unreachable; pod b is replaced".to_owned();
        assert_eq!(deleted(&allowing(&["b"], None)), [(Some(pod), migration, message)]);
        let waiting = allowing(&[], Some(7));
        assert_eq!((deleted(&waiting), scene.requeue_after(&waiting)), (Vec::new(), Some(7)));
    }

    #[test]
    fn a_pod_whose_deletion_was_refused_is_checked_again() {
        assert_eq!(scene(LossKind::Unreachable, 30).requeue_after(&allowing(&["b"], None)), Some(60));
    }
}
