//! Pods on nodes that are lost: which of them are replaced, when, and the words for it.
//!
//! A pod is deleted as a user would do it, never by force: on a node that is only cut off it may still run. Its owner
//! makes another one at once; the old one stays `Terminating` until its node is back or is declared dead. A pod that is
//! ready on a node whose kubelet still reports is left alone: it serves.

use std::{collections::BTreeMap, time::Duration};

use api::reasons;
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use crate::{
    departures::Departure,
    node::{Loss, Lost},
    pace::Allowance,
    pod::PodView,
    time::elapsed,
};

/// The nodes, as far as they matter to one object that owns pods.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// Those under its pods that are lost, by name.
    pub lost: BTreeMap<String, Lost>,
    /// How many of the cluster's nodes are down; counted only if one under its pods is.
    pub down: usize,
    pub all: usize,
    /// Nodes or pods cannot be watched just now, so what is known of them may be out of date.
    pub is_blind: bool,
}

/// What the owner of pods says of lost nodes.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// For how long a node may be lost before its pods are replaced.
    pub patience: Duration,
    pub is_paused: bool,
    /// A pod serves while this container of it is ready.
    pub container: &'static str,
}

/// The pods of one object that are on lost nodes, in the order in which they go.
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
    lost: Lost,
    /// How much longer its node may take to come back.
    left: Duration,
}

/// Why no pod goes, however long its node has been lost.
#[derive(Clone, Copy, Debug)]
enum Hold {
    Paused,
    TooManyAreDown,
    Blind,
}

/// When so many nodes are down, it is more likely that the control plane is cut off than that they are dead. Kubernetes
/// itself stops evicting from a zone at the same share.
const TOO_MANY_DOWN_PERCENT: usize = 55;
/// A node that comes back starts no reconcile of objects with pods on the others.
const LOOK_AGAIN_WHILE_TOO_MANY_ARE_DOWN: Duration = Duration::from_secs(10);
/// A policy may be changed without any event that is watched here.
const LOOK_AGAIN_AFTER_REFUSAL: Duration = Duration::from_secs(60);
/// Nodes and pods are watched apart: a node may be seen after the first pod on it.
const NODES_ARE_SEEN_WITHIN: Duration = Duration::from_secs(5);

impl<'a> StrandedPods<'a> {
    pub fn of(pods: impl Iterator<Item = &'a PodView>, nodes: &Nodes, terms: &Terms, now: Timestamp) -> Self {
        let stranded = pods.filter_map(|pod| {
            let node = pod.node.as_deref()?;
            let lost = *nodes.lost.get(node)?;
            // It serves: its kubelet reports it, or has reported it after the node was last seen to be lost.
            let came_back = pod.ready_turned.is_some_and(|turned| turned > lost.reported);
            if lost.how == Loss::NotReady && serves(pod, terms.container) || pod.is_ready && came_back {
                return None;
            }
            let patience = match lost.how {
                Loss::NotReady | Loss::Unreachable => terms.patience,
                Loss::Deleted => terms.patience.max(NODES_ARE_SEEN_WITHIN),
            };
            let gone_for = elapsed(lost.since, now);
            Some(Stranded { pod, node, lost, left: patience.saturating_sub(gone_for) })
        });
        Self { pods: stranded.collect(), hold: hold(nodes, terms) }
    }

    /// uids of the pods that may be replaced now, if the pace allows it.
    pub fn due(&self) -> Vec<&'a str> {
        let due = self.pods.iter().filter(|stranded| self.hold.is_none() && stranded.left.is_zero());
        due.map(|stranded| stranded.pod.uid()).collect()
    }

    /// Those that the pace allows to go.
    pub fn leaving(&self, allowance: &Allowance) -> impl Iterator<Item = &Stranded<'a>> {
        self.pods.iter().filter(|stranded| allowance.pods.contains(stranded.pod.uid()))
    }

    /// When the next one may go, or what keeps one is looked at again. To be asked after those that the pace allows have
    /// been deleted: one of them that is still there was not.
    pub fn look_again(&self, allowance: &Allowance) -> Option<Duration> {
        self.pods.first()?;
        match self.hold {
            Some(Hold::Paused) => None,
            Some(Hold::TooManyAreDown | Hold::Blind) => Some(LOOK_AGAIN_WHILE_TOO_MANY_ARE_DOWN),
            None => {
                let waits = self.pods.iter().map(|stranded| stranded.left).filter(|left| !left.is_zero());
                let refused = self.leaving(allowance).next().map(|_| LOOK_AGAIN_AFTER_REFUSAL);
                waits.chain(allowance.look_again).chain(refused).min()
            }
        }
    }

    /// What becomes of the first pod that is still on a lost node.
    pub fn waits_for(&self) -> Option<String> {
        let outlook = match self.hold {
            Some(Hold::Paused) => "stays while spec.paused is set",
            Some(Hold::TooManyAreDown) => {
                "stays while most nodes are down, because the control plane may be cut off"
            }
            Some(Hold::Blind) => "stays while nodes or pods cannot be watched",
            None => "is replaced unless the node comes back",
        };
        let first = self.pods.first()?;
        Some(format!("{}; pod {} {outlook}", first.loss(), first.pod.name()))
    }
}

impl Stranded<'_> {
    /// What is known of it once its deletion was accepted.
    pub fn departure(&self, now: Timestamp) -> Departure {
        let reason = match self.lost.how {
            Loss::NotReady => reasons::NODE_NOT_READY,
            Loss::Unreachable => reasons::NODE_UNREACHABLE,
            Loss::Deleted => reasons::NODE_DELETED,
        };
        Departure { pod: self.pod.name().to_owned(), node: self.node.to_owned(), reason, time: now }
    }

    /// What an event says once its deletion was accepted.
    pub fn message(&self) -> String {
        format!("{}; pod {} is replaced", self.loss(), self.pod.name())
    }

    fn loss(&self) -> String {
        let how = match self.lost.how {
            Loss::NotReady => "is not ready",
            Loss::Unreachable => "does not answer",
            Loss::Deleted => "was deleted",
        };
        format!("node {} {how}", self.node)
    }

    /// What a deletion needs, so that it reaches this very pod as it was seen.
    pub fn identity(&self) -> Pod {
        let ObjectMeta { name, namespace, uid, resource_version, .. } = self.pod.metadata.clone();
        Pod {
            metadata: ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() },
            ..Pod::default()
        }
    }
}

/// As its kubelet says it of the container. When a node ceases to be ready, the control plane takes the condition Ready
/// from all pods on it, and their kubelet gives it back up to ten seconds later.
fn serves(pod: &PodView, container: &str) -> bool {
    pod.is_ready || pod.container(container).is_some_and(|container| container.ready)
}

fn hold(nodes: &Nodes, terms: &Terms) -> Option<Hold> {
    if terms.is_paused {
        Some(Hold::Paused)
    } else if nodes.down * 100 > nodes.all * TOO_MANY_DOWN_PERCENT {
        Some(Hold::TooManyAreDown)
    } else {
        nodes.is_blind.then_some(Hold::Blind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms { patience: Duration::from_secs(30), is_paused: false, container: "engine" };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    /// Pod b on gpu-1, which has been lost for so long, and pod a on gpu-0; one of four nodes is down.
    struct Scene {
        b: PodView,
        nodes: Nodes,
        terms: Terms,
    }

    fn scene(how: Loss, for_seconds: i64) -> Scene {
        let lost = Lost { how, since: at(-for_seconds), reported: at(-for_seconds) };
        Scene {
            b: pod("b", "gpu-1", "conditions: [{type: Ready, status: 'True'}]"),
            nodes: Nodes { lost: [("gpu-1".to_owned(), lost)].into(), down: 1, all: 4, is_blind: false },
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

    fn allowing(pods: &[&str], look_again: Option<u64>) -> Allowance {
        Allowance {
            pods: pods.iter().map(|&pod| pod.to_owned()).collect(),
            look_again: look_again.map(Duration::from_secs),
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

        fn look_again(&self, allowance: &Allowance) -> Option<u64> {
            self.with(|stranded| stranded.look_again(allowance)).map(|wait| wait.as_secs())
        }

        fn waits_for(&self) -> String {
            self.with(|stranded| stranded.waits_for()).unwrap()
        }
    }

    #[test]
    fn a_pod_is_due_when_its_node_has_been_lost_for_as_long_as_the_user_says() {
        assert_eq!(scene(Loss::Unreachable, 29).due(), [""; 0]);
        assert_eq!(scene(Loss::Unreachable, 30).due(), ["b"]);
        let look_again = scene(Loss::Unreachable, 12).look_again(&Allowance::default());
        assert_eq!(look_again, Some(18), "the very moment");
    }

    #[test]
    fn a_ready_pod_on_a_node_whose_kubelet_still_reports_is_left_alone() {
        let mut scene = scene(Loss::NotReady, 900);
        assert_eq!((scene.due(), scene.look_again(&Allowance::default())), (Vec::new(), None));
        scene.b = pod("b", "gpu-1", "");
        assert_eq!(scene.due(), ["b"], "one that does not serve is replaced");
        scene.b = pod("b", "gpu-1", "containerStatuses: [{name: engine, ready: true}]");
        assert_eq!(scene.due(), [""; 0], "the condition is taken from it when its node is not ready");
        scene.nodes.lost.values_mut().for_each(|lost| lost.how = Loss::Unreachable);
        assert_eq!(scene.due(), ["b"], "of a node that does not answer it says nothing");
    }

    #[test]
    fn a_pod_that_stays_for_now_is_not_said_to_be_replaced() {
        let said = |edit: fn(&mut Scene)| {
            let mut scene = scene(Loss::Unreachable, 1);
            edit(&mut scene);
            scene.waits_for()
        };
        assert_eq!(said(|_| ()), "node gpu-1 does not answer; pod b is replaced unless the node comes back");
        assert!(said(|scene| scene.terms.is_paused = true).ends_with("pod b stays while spec.paused is set"));
        let down = said(|scene| scene.nodes.down = 3);
        assert!(
            down.ends_with("pod b stays while most nodes are down, because the control plane may be cut off")
        );
        let blind = said(|scene| scene.nodes.is_blind = true);
        assert!(blind.ends_with("pod b stays while nodes or pods cannot be watched"));
    }

    #[test]
    fn a_deleted_node_gets_a_moment_to_be_seen() {
        let due_after = |seconds| {
            let mut quick = scene(Loss::Deleted, seconds);
            quick.terms.patience = Duration::ZERO;
            quick.due()
        };
        assert_eq!(due_after(4), [""; 0]);
        assert_eq!(due_after(5), ["b"]);
    }

    #[test]
    fn nothing_is_due_while_more_than_55_percent_of_the_nodes_are_down() {
        let mut scene = scene(Loss::Unreachable, 900);
        scene.nodes.down = 2;
        assert_eq!(scene.due(), ["b"]);
        scene.nodes.down = 3;
        assert_eq!(scene.due(), [""; 0]);
        assert_eq!(scene.look_again(&Allowance::default()), Some(10));
    }

    #[test]
    fn nothing_is_due_while_nodes_or_pods_cannot_be_watched() {
        let mut scene = scene(Loss::Unreachable, 900);
        scene.nodes.is_blind = true;
        assert_eq!(scene.due(), [""; 0]);
        assert_eq!(scene.look_again(&Allowance::default()), Some(10));
    }

    #[test]
    fn a_pod_that_was_seen_ready_after_its_node_was_lost_is_left_alone() {
        let mut scene = scene(Loss::Unreachable, 900);
        let ready =
            format!("conditions: [{{type: Ready, status: 'True', lastTransitionTime: '{}'}}]", at(-100));
        scene.b = pod("b", "gpu-1", &ready);
        assert_eq!(scene.due(), [""; 0]);
        // Its node reported NotReady then, and has fallen silent since.
        scene.nodes.lost.values_mut().for_each(|lost| lost.reported = at(-99));
        assert_eq!(scene.due(), ["b"]);
    }

    #[test]
    fn nothing_is_due_of_what_is_paused() {
        let mut scene = scene(Loss::Unreachable, 900);
        scene.terms.is_paused = true;
        assert_eq!((scene.due(), scene.look_again(&Allowance::default())), (Vec::new(), None));
    }

    #[test]
    fn what_may_go_goes_and_what_must_wait_for_others_waits_until_it_may_go() {
        let scene = scene(Loss::Unreachable, 30);
        let gone = |allowance: &Allowance| {
            scene.with(|stranded| {
                let gone = stranded.leaving(allowance);
                let said =
                    gone.map(|one| (one.identity().metadata.name, one.departure(at(0)), one.message()));
                said.collect::<Vec<_>>()
            })
        };
        let (pod, node, reason) = ("b".to_owned(), "gpu-1".to_owned(), reasons::NODE_UNREACHABLE);
        let departure = Departure { pod: pod.clone(), node, reason, time: at(0) };
        let message = "node gpu-1 does not answer; pod b is replaced".to_owned();
        assert_eq!(gone(&allowing(&["b"], None)), [(Some(pod), departure, message)]);
        let waiting = allowing(&[], Some(7));
        assert_eq!((gone(&waiting), scene.look_again(&waiting)), (Vec::new(), Some(7)));
    }

    #[test]
    fn a_pod_whose_deletion_was_refused_is_looked_at_again() {
        assert_eq!(scene(Loss::Unreachable, 30).look_again(&allowing(&["b"], None)), Some(60));
    }
}
