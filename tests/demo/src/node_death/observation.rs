//! Snapshots of the API objects in the timeline, and the events between two snapshots. The comparison is pure.

use std::collections::BTreeMap;

use anyhow::Context as _;
use api::{aiinference::AIInference, conditions};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, api::ListParams};

use super::record::{EventKind, Workload};

/// The objects of the timeline at one time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Snapshot {
    /// Why the node is not Ready; `None` while it is.
    pub(crate) node_unready: Option<String>,
    /// By name.
    pub(crate) pods: BTreeMap<String, PodState>,
    /// Reason and message of the AIInference's condition Ready while it is False.
    pub(crate) unready: Option<(String, String)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodState {
    pub(crate) workload: Workload,
    pub(crate) node: Option<String>,
    /// Its containers run.
    pub(crate) is_started: bool,
    pub(crate) is_ready: bool,
    pub(crate) is_deleted: bool,
}

/// Reads snapshots from the API.
pub(crate) struct Observer {
    namespace: String,
    nodes: Api<Node>,
    pods: Api<Pod>,
    inferences: Api<AIInference>,
    inference: &'static str,
    /// Label of the Deployment's pods.
    deployment_label: &'static str,
}

impl PodState {
    pub(crate) fn is_on(&self, node: &str) -> bool {
        self.node.as_deref() == Some(node)
    }
}

impl Observer {
    pub(crate) fn new(
        client: &Client,
        namespace: &str,
        inference: &'static str,
        deployment_label: &'static str,
    ) -> Self {
        Self {
            namespace: namespace.to_owned(),
            nodes: Api::all(client.clone()),
            pods: Api::namespaced(client.clone(), namespace),
            inferences: Api::namespaced(client.clone(), namespace),
            inference,
            deployment_label,
        }
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) async fn observe(&self, node: &str) -> anyhow::Result<Snapshot> {
        let seen = self.nodes.get(node).await.with_context(|| format!("failed to read node {node}"))?;
        let node_unready = node_unready(&seen);
        Ok(Snapshot { node_unready, pods: self.pods().await?, unready: self.unready().await? })
    }

    /// By name.
    pub(crate) async fn pods(&self) -> anyhow::Result<BTreeMap<String, PodState>> {
        let pods = self.pods.list(&ListParams::default()).await.context("failed to list pods")?;
        Ok(pods.items.iter().map(|pod| self.pod_state(pod)).collect())
    }

    /// Reason and message of the AIInference's condition Ready while it is False.
    pub(crate) async fn unready(&self) -> anyhow::Result<Option<(String, String)>> {
        let inference =
            self.inferences.get(self.inference).await.context("failed to read the AIInference")?;
        Ok(unready(&inference))
    }

    fn pod_state(&self, pod: &Pod) -> (String, PodState) {
        let labels = pod.metadata.labels.as_ref();
        let is_of_deployment = labels.is_some_and(|labels| labels.contains_key(self.deployment_label));
        let status = pod.status.as_ref();
        let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
        let state = PodState {
            workload: if is_of_deployment { Workload::Deployment } else { Workload::Inference },
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            is_started: status.is_some_and(|status| status.phase.as_deref() == Some("Running")),
            is_ready: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            is_deleted: pod.metadata.deletion_timestamp.is_some(),
        };
        (pod.metadata.name.clone().unwrap_or_default(), state)
    }
}

/// The events from one snapshot to the next, causes before effects.
pub(crate) fn events_between(before: &Snapshot, now: &Snapshot) -> Vec<EventKind> {
    let mut events = Vec::new();
    if before.node_unready.is_none()
        && let Some(reason) = &now.node_unready
    {
        events.push(EventKind::NodeNotReady { reason: reason.clone() });
    }
    let mut of_pods = Vec::new();
    for (name, state) in &now.pods {
        pod_events(name, before.pods.get(name), state, &mut of_pods);
    }
    // A pod is replaced because another one was deleted.
    of_pods.sort_by_key(|what| !matches!(what, EventKind::PodUnready { .. } | EventKind::PodDeleted { .. }));
    events.extend(of_pods);
    match (&before.unready, &now.unready) {
        (Some(_), None) => events.push(EventKind::Ready),
        (before, Some((reason, message))) if before.as_ref().is_none_or(|(earlier, _)| earlier != reason) => {
            events.push(EventKind::NotReady { reason: reason.clone(), message: message.clone() });
        }
        _ => {}
    }
    events
}

fn pod_events(name: &str, before: Option<&PodState>, now: &PodState, events: &mut Vec<EventKind>) {
    let (workload, pod) = (now.workload, name.to_owned());
    let was = |claim: fn(&PodState) -> bool| before.is_some_and(claim);
    if let (Some(node), false) = (&now.node, was(|pod| pod.node.is_some())) {
        events.push(EventKind::PodScheduled { workload, pod: pod.clone(), node: node.clone() });
    }
    if now.is_started && !was(|pod| pod.is_started) {
        events.push(EventKind::PodStarted { workload, pod: pod.clone() });
    }
    if now.is_ready && !was(|pod| pod.is_ready) {
        events.push(EventKind::PodReady { workload, pod: pod.clone() });
    }
    if !now.is_ready && was(|pod| pod.is_ready) {
        events.push(EventKind::PodUnready { workload, pod: pod.clone() });
    }
    if now.is_deleted && !was(|pod| pod.is_deleted) {
        events.push(EventKind::PodDeleted { workload, pod });
    }
}

fn node_unready(node: &Node) -> Option<String> {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready")?;
    (ready.status != "True").then(|| ready.reason.clone().unwrap_or_default())
}

fn unready(inference: &AIInference) -> Option<(String, String)> {
    let conditions = inference.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions.into_iter().find(|condition| condition.type_ == conditions::READY)?;
    (ready.status != "True").then(|| (ready.reason.clone(), ready.message.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(node: Option<&str>, is_started: bool, is_ready: bool, is_deleted: bool) -> PodState {
        let workload = Workload::Inference;
        PodState { workload, node: node.map(str::to_owned), is_started, is_ready, is_deleted }
    }

    fn snapshot<const N: usize>(node_unready: Option<&str>, pods: [(&str, PodState); N]) -> Snapshot {
        Snapshot {
            node_unready: node_unready.map(str::to_owned),
            pods: pods.into_iter().map(|(name, pod)| (name.to_owned(), pod)).collect(),
            unready: None,
        }
    }

    #[test]
    fn each_change_is_one_event_and_no_change_is_none() {
        let healthy = snapshot(None, [("a", pod(Some("gpu-0"), true, true, false))]);
        assert_eq!(events_between(&healthy, &healthy), []);
        let lost = snapshot(Some("NodeStatusUnknown"), [("a", pod(Some("gpu-0"), true, false, true))]);
        let (workload, name) = (Workload::Inference, "a".to_owned());
        assert_eq!(
            events_between(&healthy, &lost),
            [
                EventKind::NodeNotReady { reason: "NodeStatusUnknown".to_owned() },
                EventKind::PodUnready { workload, pod: name.clone() },
                EventKind::PodDeleted { workload, pod: name },
            ]
        );
    }

    #[test]
    fn a_pod_that_starts_between_two_snapshots_has_all_its_events() {
        let (empty, there) =
            (snapshot(None, []), snapshot(None, [("b", pod(Some("gpu-1"), true, true, false))]));
        let (workload, name) = (Workload::Inference, || "b".to_owned());
        assert_eq!(
            events_between(&empty, &there),
            [
                EventKind::PodScheduled { workload, pod: name(), node: "gpu-1".to_owned() },
                EventKind::PodStarted { workload, pod: name() },
                EventKind::PodReady { workload, pod: name() },
            ]
        );
    }

    #[test]
    fn the_pod_that_is_lost_comes_before_the_one_that_replaces_it() {
        let before = snapshot(None, [("lost", pod(Some("gpu-0"), true, false, false))]);
        let new = pod(Some("gpu-1"), false, false, false);
        let now = snapshot(None, [("a-new-one", new), ("lost", pod(Some("gpu-0"), true, false, true))]);
        let events = events_between(&before, &now);
        assert!(
            matches!(events[..], [EventKind::PodDeleted { .. }, EventKind::PodScheduled { .. }]),
            "{events:?}"
        );
    }

    #[test]
    fn another_reason_of_the_condition_is_an_event_and_another_message_is_not() {
        let because = |reason: &str, message: &str| Snapshot {
            unready: Some((reason.to_owned(), message.to_owned())),
            ..snapshot(None, [])
        };
        assert_eq!(events_between(&because("A", "1"), &because("A", "2")), []);
        assert_eq!(events_between(&because("A", "1"), &because("B", "1")).len(), 1);
        assert_eq!(events_between(&because("A", "1"), &snapshot(None, [])), [EventKind::Ready]);
    }
}
