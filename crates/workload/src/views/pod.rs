//! Narrow views of pods: only the fields that decisions need. The others are dropped while decoding, to save memory.

use std::{collections::BTreeMap, net::IpAddr};

use api::labels;
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;

use crate::views::{
    amounts::{ContainerSpec, Extended, held},
    metadata::{narrow, timestamp},
};

pub use crate::views::metadata::{Condition, Instance, OfInstance};

/// A pod: its node and resources and, if a controller of this project manages it, the state of its containers.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = Pod)]
#[serde(from = "PodParts")]
pub struct PodView {
    pub metadata: ObjectMeta,
    /// `None` unless a controller of this project manages the pod.
    pub instance: Option<Instance>,
    /// Extended resources that the pod requests.
    pub held: Extended,
    pub phase: String,
    /// Why the pod failed, such as `Evicted`.
    pub reason: String,
    pub message: String,
    pub node: Option<String>,
    /// Its first address, by which other pods reach it.
    pub ip: Option<IpAddr>,
    /// The annotation [`labels::POD_DELETION_COST`], if it is a number.
    pub deletion_cost: Option<i32>,
    /// Of a pod of an Indexed Job. Its name does not show the index: Kubernetes shortens long ones.
    pub completion_index: Option<u32>,
    /// The annotation [`labels::DO_NOT_DISRUPT`] is `true`.
    pub keeps_from_karpenter: bool,
    /// The annotation [`labels::SAFE_TO_EVICT`] is `false`.
    pub keeps_from_autoscaler: bool,
    pub scheduled: Option<Condition>,
    /// The scheduler that the pod names, unless it is the cluster's own.
    pub scheduler: Option<Box<str>>,
    /// Names of the first scheduling gates.
    pub gates: Box<[Box<str>]>,
    pub is_ready: bool,
    /// `lastTransitionTime` of the condition Ready.
    pub ready_changed: Option<Timestamp>,
    /// The condition PodReadyToStartContainers (Kubernetes 1.29 and later): volumes and network are set up.
    pub is_set_up: bool,
    /// Since when the condition DisruptionTarget is True.
    pub disrupted: Option<Timestamp>,
    pub init_containers: Box<[Container]>,
    pub containers: Box<[Container]>,
}

/// Field selector of pods that were evicted, or rejected at admission.
pub const FAILED: &str = "status.phase=Failed";

/// Field selector of pods that have not ended.
pub const UNFINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    pub name: String,
    /// Of an init container: its `restartPolicy` is Always. The next containers wait for its start, and not for its end.
    #[serde(skip)]
    pub is_sidecar: bool,
    /// Whether it runs, and its startup probe has succeeded. A plain init container has no probe, and is started while it runs.
    #[serde(default)]
    pub started: Option<bool>,
    #[serde(default)]
    pub ready: bool,
    #[serde(default)]
    pub restart_count: i32,
    #[serde(default)]
    pub state: ContainerState,
    #[serde(default, rename = "lastState")]
    pub last: ContainerState,
}

/// At most one of the fields is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ContainerState {
    pub waiting: Option<Waiting>,
    pub running: Option<Running>,
    pub terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Waiting {
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Running {
    #[serde(default, deserialize_with = "timestamp")]
    pub started_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terminated {
    pub exit_code: i32,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
    #[serde(default, deserialize_with = "timestamp")]
    pub started_at: Option<Timestamp>,
    #[serde(default, deserialize_with = "timestamp")]
    pub finished_at: Option<Timestamp>,
}

impl OfInstance for PodView {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn instance(&self) -> Option<&Instance> {
        self.instance.as_ref()
    }
}

impl PodView {
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }

    pub fn init_container(&self, name: &str) -> Option<&Container> {
        self.init_containers.iter().find(|container| container.name == name)
    }

    /// Whether the scheduler found no node.
    pub fn is_unschedulable(&self) -> bool {
        self.scheduled.as_ref().is_some_and(|scheduled| scheduled.status == "False")
    }

    /// Names of insufficient resources in the scheduler's message: `2 Insufficient nvidia.com/gpu, 1 Insufficient cpu.`
    pub fn insufficient_resources(&self) -> impl Iterator<Item = &str> {
        let scheduled = self.scheduled.as_ref().filter(|_| self.is_unschedulable());
        let names =
            scheduled.into_iter().flat_map(|scheduled| scheduled.message.split("Insufficient ").skip(1));
        names.filter_map(|rest| rest.split([',', ' ']).next().map(|name| name.trim_end_matches('.')))
    }

    /// Whether the pod has failed, succeeded or is being deleted.
    pub fn is_over(&self) -> bool {
        self.metadata.deletion_timestamp.is_some() || self.phase == "Failed" || self.phase == "Succeeded"
    }

    /// Whether it comes up in good order: nothing has failed, and it is not ready yet.
    pub fn is_coming_up(&self) -> bool {
        let mut containers = self.init_containers.iter().chain(&self.containers);
        !self.is_ready
            && !self.is_over()
            && !self.is_unschedulable()
            && self.disrupted.is_none()
            && containers.all(Container::is_in_good_order)
    }

    /// Whether the kubelet has set up the volumes: containers start, run or have run.
    pub fn has_started_containers(&self) -> bool {
        let mut containers = self.init_containers.iter().chain(&self.containers);
        self.is_set_up
            || containers.any(|one| {
                one.state.running.is_some() || one.state.terminated.is_some() || one.restart_count > 0
            })
    }

    /// When the pod was scheduled; the creation time if that is not known.
    pub fn placed(&self) -> Option<Timestamp> {
        let placed = self.scheduled.as_ref().filter(|scheduled| scheduled.status == "True");
        placed.and_then(|placed| placed.last_transition_time).or(self.created())
    }

    pub fn created(&self) -> Option<Timestamp> {
        self.metadata.creation_timestamp.as_ref().map(|created| created.0)
    }

    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its name, uid and version, as preconditions of its deletion.
    pub fn identity(&self) -> Pod {
        let ObjectMeta { name, namespace, uid, resource_version, .. } = self.metadata.clone();
        Pod {
            metadata: ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() },
            ..Pod::default()
        }
    }
}

/// Why a container waits that has not failed.
const WAITS_IN_GOOD_ORDER: [&str; 3] = ["", "PodInitializing", "ContainerCreating"];

impl Container {
    /// It waits for its start, runs or has ended well, and was never restarted.
    fn is_in_good_order(&self) -> bool {
        let ContainerState { waiting, running: _, terminated } = &self.state;
        self.restart_count == 0
            && waiting.as_ref().is_none_or(|waiting| WAITS_IN_GOOD_ORDER.contains(&&*waiting.reason))
            && terminated.as_ref().is_none_or(|ended| ended.exit_code == 0)
    }
}

#[derive(Deserialize)]
struct PodParts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpecParts,
    #[serde(default)]
    status: PodStatusParts,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpecParts {
    node_name: Option<String>,
    scheduler_name: Option<Box<str>>,
    scheduling_gates: Vec<GateParts>,
    init_containers: Vec<ContainerSpec>,
    containers: Vec<ContainerSpec>,
}

#[derive(Deserialize)]
struct GateParts {
    name: Box<str>,
}

/// Gates in a message. A name has at most 317 characters.
const MOST_GATES: usize = 3;
/// Kubernetes' own scheduler.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatusParts {
    phase: String,
    reason: String,
    message: String,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    conditions: Vec<Condition>,
    init_container_statuses: Box<[Container]>,
    container_statuses: Box<[Container]>,
}

impl From<PodParts> for PodView {
    fn from(PodParts { metadata, spec, mut status }: PodParts) -> Self {
        let ready = status.conditions.iter().find(|condition| condition.is("Ready"));
        let is_ready = ready.is_some_and(|ready| ready.status == "True");
        let ready_changed = ready.and_then(|ready| ready.last_transition_time);
        let true_since = |type_: &str| {
            let condition = status.conditions.iter().find(|one| one.is(type_) && one.status == "True");
            condition.map(|condition| condition.last_transition_time)
        };
        let is_set_up = true_since("PodReadyToStartContainers").is_some();
        let disrupted = true_since("DisruptionTarget").flatten();
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|known| known.get(key));
        let deletion_cost = annotation(labels::POD_DELETION_COST).and_then(|cost| cost.parse().ok());
        let keeps_from_karpenter = annotation(labels::DO_NOT_DISRUPT).is_some_and(|value| value == "true");
        let keeps_from_autoscaler = annotation(labels::SAFE_TO_EVICT).is_some_and(|value| value == "false");
        let index = |of: &Option<BTreeMap<String, String>>| {
            of.as_ref().and_then(|known| known.get(labels::JOB_COMPLETION_INDEX)?.parse().ok())
        };
        let completion_index = index(&metadata.labels).or_else(|| index(&metadata.annotations));
        let (metadata, instance) = narrow(metadata);
        let node = spec.node_name.filter(|node| !node.is_empty());
        let held = held(&spec.init_containers, &spec.containers);
        if instance.is_none() {
            // A pod of another owner: only its resources and its node are used.
            let metadata = ObjectMeta { owner_references: None, ..metadata };
            return Self { metadata, node, held, phase: status.phase, ..Self::default() };
        }
        for init in &mut status.init_container_statuses {
            let of_spec = spec.init_containers.iter().find(|one| *one.name == *init.name);
            init.is_sidecar = of_spec.is_some_and(ContainerSpec::is_sidecar);
        }
        Self {
            metadata,
            instance,
            held,
            phase: status.phase,
            reason: status.reason,
            message: status.message,
            node,
            ip: status.pod_ip.and_then(|address| address.parse().ok()),
            deletion_cost,
            completion_index,
            keeps_from_karpenter,
            keeps_from_autoscaler,
            scheduled: status.conditions.into_iter().find(|condition| condition.is("PodScheduled")),
            scheduler: spec.scheduler_name.filter(|name| **name != *DEFAULT_SCHEDULER),
            gates: spec.scheduling_gates.into_iter().take(MOST_GATES).map(|gate| gate.name).collect(),
            is_ready,
            ready_changed,
            is_set_up,
            disrupted,
            init_containers: status.init_container_statuses,
            containers: status.container_statuses,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_without_a_status_is_decoded() {
        let pod: PodView = serde_saphyr::from_str("{metadata: {name: a}, spec: {containers: []}}").unwrap();
        assert!(pod.node.is_none() && pod.scheduled.is_none() && !pod.is_ready && pod.containers.is_empty());
    }

    #[test]
    fn only_node_and_resources_are_kept_of_a_pod_of_another_owner() {
        let pod: PodView = serde_saphyr::from_str(
            "
metadata: {name: other, labels: {app.kubernetes.io/instance: chat}}
spec: {nodeName: gpu-0, containers: [{name: a, resources: {requests: {nvidia.com/gpu: '2'}}}]}
status: {phase: Running, containerStatuses: [{name: a}]}
",
        )
        .unwrap();
        assert_eq!(pod.node.as_deref(), Some("gpu-0"));
        assert_ne!(pod.held, Extended::default());
        assert!(pod.instance.is_none() && pod.containers.is_empty());
    }

    #[test]
    fn the_index_of_a_pod_is_a_label_and_before_kubernetes_1_28_an_annotation() {
        let own = "app.kubernetes.io/instance: a, app.kubernetes.io/name: b, app.kubernetes.io/managed-by: c-controller";
        let index = |labels: &str, annotations: &str| {
            let metadata =
                format!("{{name: a-0, labels: {{{own}{labels}}}, annotations: {{{annotations}}}}}");
            let pod: PodView = serde_saphyr::from_str(&format!("{{metadata: {metadata}}}")).unwrap();
            pod.completion_index
        };
        let key = labels::JOB_COMPLETION_INDEX;
        assert_eq!(index(&format!(", {key}: '3'"), ""), Some(3));
        assert_eq!(index("", &format!("{key}: '0'")), Some(0));
        assert_eq!(index(&format!(", {key}: x"), ""), None);
        assert_eq!(index("", ""), None);
    }

    #[test]
    fn containers_start_once_the_volumes_are_set_up() {
        let labels = "app.kubernetes.io/instance: a, app.kubernetes.io/name: b, app.kubernetes.io/managed-by: c-controller";
        let started = |status: &str| {
            let text = format!("{{metadata: {{name: a, labels: {{{labels}}}}}, status: {{{status}}}}}");
            serde_saphyr::from_str::<PodView>(&text).unwrap().has_started_containers()
        };
        let set_up =
            |status: &str| format!("conditions: [{{type: PodReadyToStartContainers, status: '{status}'}}]");
        assert_eq!(
            [started(&set_up("True")), started(&set_up("False")), started("phase: Pending")],
            [true, false, false]
        );
        let container = |state: &str| started(&format!("initContainerStatuses: [{{name: a, {state}}}]"));
        assert!(container("state: {running: {}}") && container("state: {terminated: {exitCode: 0}}"));
        assert!(container("restartCount: 1") && !container("state: {waiting: {reason: PodInitializing}}"));
    }

    #[test]
    fn an_init_container_that_is_always_restarted_is_a_sidecar() {
        let labels = "app.kubernetes.io/instance: a, app.kubernetes.io/name: b, app.kubernetes.io/managed-by: c-controller";
        let spec = "initContainers: [{name: a}, {name: b, restartPolicy: Always}, {name: c}]";
        let status = "initContainerStatuses: [{name: b}, {name: c}, {name: a}, {name: of-no-spec}]";
        let text = format!(
            "{{metadata: {{name: a, labels: {{{labels}}}}}, spec: {{{spec}}}, status: {{{status}}}}}"
        );
        let pod: PodView = serde_saphyr::from_str(&text).unwrap();
        let sidecars = pod.init_containers.iter().filter(|init| init.is_sidecar);
        assert_eq!(sidecars.map(|init| init.name.as_str()).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn a_managed_pod_keeps_the_fields_that_decisions_need() {
        let pod: PodView = serde_saphyr::from_str(
            "
metadata:
  name: chat-abc
  labels:
    app.kubernetes.io/instance: chat
    app.kubernetes.io/name: aiinference
    app.kubernetes.io/managed-by: inference-controller
    other: x
  annotations: {large: text, controller.kubernetes.io/pod-deletion-cost: '7',
    karpenter.sh/do-not-disrupt: 'true', cluster-autoscaler.kubernetes.io/safe-to-evict: 'true'}
spec: {nodeName: gpu-0, containers: [{name: engine}]}
status:
  phase: Running
  podIP: 10.0.0.7
  conditions:
  - {type: Ready, status: 'True', lastTransitionTime: '2026-01-01T00:00:00Z'}
  - {type: PodScheduled, status: 'True', lastTransitionTime: '2026-01-01T00:00:00Z'}
  containerStatuses:
  - {name: engine, ready: true, image: a, imageID: b, restartCount: 1,
     state: {running: {startedAt: '2026-01-01T00:00:00Z'}},
     lastState: {terminated: {exitCode: 137, reason: OOMKilled}}}
",
        )
        .unwrap();
        assert_eq!(pod.node.as_deref(), Some("gpu-0"));
        assert!(pod.is_ready && pod.scheduled.as_ref().is_some_and(|condition| condition.status == "True"));
        assert_eq!(pod.containers[0].last.terminated.as_ref().map(|ended| ended.exit_code), Some(137));
        assert_eq!(pod.instance.as_ref().and_then(|of| of.of_kind("aiinference")), Some("chat"));
        assert_eq!((pod.ip, pod.deletion_cost), (Some(IpAddr::from([10, 0, 0, 7])), Some(7)));
        assert_eq!((pod.keeps_from_karpenter, pod.keeps_from_autoscaler), (true, false));
        assert_eq!(pod.metadata.labels, None);
        assert_eq!(pod.metadata.annotations, None);
    }
}
