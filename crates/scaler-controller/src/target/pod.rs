//! Pods, as far as scaling reads them: a narrow view of what a watch delivers. It decides nothing about a pod.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::Resource;
use scaling::target::{PodState, Work};
use serde::{Deserialize, Deserializer};

/// A pod of any owner: which target's it is, is found by its labels and by its owner.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = Pod)]
#[serde(from = "Parts")]
pub(crate) struct PodView {
    pub(crate) metadata: ObjectMeta,
    /// Empty if there are more than 64.
    pub(crate) labels: BTreeMap<String, String>,
    /// What controls it.
    pub(crate) owner: Option<Box<PodOwner>>,
    /// More than 64 labels: it is a pod of no target.
    pub(crate) has_too_many_labels: bool,
    pub(crate) ip: Option<Box<str>>,
    /// Where it runs; `None`: it is not scheduled.
    pub(crate) node: Option<Box<str>>,
    /// `lastTransitionTime` of the condition PodScheduled while it is True.
    pub(crate) scheduled: Option<Timestamp>,
    pub(crate) phase: Phase,
    pub(crate) is_ready: bool,
    /// `lastTransitionTime` of the condition Ready.
    pub(crate) ready_changed: Option<Timestamp>,
    /// A container, or an init container, has ended and was started again.
    has_restarted: bool,
    /// Of a pod of a StatefulSet.
    ordinal: Option<u32>,
    pub(crate) is_crash_looping: bool,
    /// Why a container of it would start on no other node either.
    pub(crate) cannot_start: Option<StartFault>,
    /// When a container that has ended more than once last failed.
    pub(crate) crashed: Option<Timestamp>,
    /// Ports of its containers with their names, by which engines are found.
    pub(crate) ports: Vec<(Box<str>, u16)>,
}

/// The owner of a pod that is its controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodOwner {
    pub(crate) group: Box<str>,
    pub(crate) kind: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) uid: Box<str>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Phase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
    /// Its node does not answer.
    Unknown,
}

/// Why a container waits on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StartFault {
    Configuration,
    ImageName,
    ImagePull,
}

/// A container waits with this reason between crashes.
const CRASH_LOOP: &str = "CrashLoopBackOff";
/// The kubelet forgets the crashes of a container that has run for so long.
const BACK_OFF_RESET: SignedDuration = SignedDuration::from_mins(10);
/// A single failure may be of a dependency that was not there yet.
const CRASHES: u32 = 2;
/// Triton serves them on a port of their own; the others where they serve requests.
const METRICS_PORTS: [&str; 2] = ["metrics", "http"];
/// The API server sets no limit, and each is in an index.
const MOST_LABELS: usize = 64;
/// An engine has two or three.
const MOST_PORTS: usize = 32;

impl StartFault {
    /// By the reason with which a container waits. Other reasons may be of the node.
    fn of(reason: &str) -> Option<Self> {
        match reason {
            "CreateContainerConfigError" => Some(Self::Configuration),
            "InvalidImageName" => Some(Self::ImageName),
            "ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable" => Some(Self::ImagePull),
            _ => None,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Configuration => {
                "a Secret or a ConfigMap does not exist, or a setting of a container is invalid"
            }
            Self::ImageName => "the name of an image is invalid",
            Self::ImagePull => "an image cannot be pulled",
        }
    }
}

impl PodView {
    pub(crate) fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Namespace and name.
    pub(crate) fn full_name(&self) -> String {
        let of = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("{}/{}", of(&self.metadata.namespace), of(&self.metadata.name))
    }

    /// Where an engine serves its metrics: the port with a known name, or the first one. 0 if the pod names none.
    pub(crate) fn metrics_port(&self) -> u16 {
        let named =
            METRICS_PORTS.iter().find_map(|name| self.ports.iter().find(|(port, _)| **port == **name));
        named.or(self.ports.first()).map_or(0, |(_, port)| *port)
    }

    pub(crate) fn created(&self) -> Timestamp {
        self.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |created| created.0)
    }

    /// When it got its node, if it has one.
    fn started(&self) -> Timestamp {
        self.scheduled.unwrap_or_else(|| self.created())
    }

    fn state(&self, now: Timestamp) -> PodState {
        if self.metadata.deletion_timestamp.is_some() {
            return PodState::Ending;
        }
        // Between two crashes a container runs for as long as it takes to load a model.
        let has_crashed = || {
            !self.is_ready && self.crashed.is_some_and(|crashed| now.duration_since(crashed) < BACK_OFF_RESET)
        };
        let started = self.started();
        let since = self.ready_changed.unwrap_or(started);
        let phase = match self.phase {
            Phase::Pending => scaling::target::Phase::Pending,
            Phase::Running | Phase::Succeeded | Phase::Failed | Phase::Unknown => {
                scaling::target::Phase::Running
            }
        };
        match self.phase {
            Phase::Succeeded | Phase::Failed => PodState::Ending,
            Phase::Pending | Phase::Running if self.is_crash_looping || has_crashed() => {
                PodState::CrashLooping { phase }
            }
            Phase::Pending | Phase::Running if self.cannot_start.is_some() && !self.is_ready => {
                PodState::CannotStart { phase }
            }
            Phase::Pending if self.node.is_some() => PodState::Starting { since: started },
            Phase::Pending => PodState::Unscheduled,
            Phase::Running if self.is_ready => PodState::Ready { since },
            Phase::Running | Phase::Unknown => PodState::NotReady { since },
        }
    }

    /// As the arithmetic needs it.
    pub(crate) fn for_scaling(&self, now: Timestamp) -> scaling::target::Pod {
        scaling::target::Pod {
            uid: self.uid().to_owned(),
            created: self.created(),
            began: self.node.as_ref().filter(|_| !self.has_restarted).map(|_| self.started()),
            ordinal: self.ordinal,
            state: self.state(now),
            work: Work::Unknown,
        }
    }
}

#[derive(Deserialize)]
struct Parts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: SpecParts,
    #[serde(default)]
    status: StatusParts,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SpecParts {
    node_name: Option<Box<str>>,
    containers: Vec<ContainerParts>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerParts {
    ports: Vec<PortParts>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PortParts {
    name: String,
    container_port: u16,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StatusParts {
    phase: Phase,
    #[serde(rename = "podIP")]
    pod_ip: Option<Box<str>>,
    conditions: Vec<ConditionParts>,
    init_container_statuses: Vec<ContainerStatusParts>,
    container_statuses: Vec<ContainerStatusParts>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConditionParts {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    #[serde(default, deserialize_with = "timestamp")]
    last_transition_time: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatusParts {
    restart_count: u32,
    state: ContainerStateParts,
    last_state: ContainerStateParts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerStateParts {
    waiting: Option<WaitingParts>,
    terminated: Option<TerminatedParts>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TerminatedParts {
    exit_code: i32,
    #[serde(deserialize_with = "timestamp")]
    finished_at: Option<Timestamp>,
}

impl ContainerStatusParts {
    /// When it last failed, if it has ended more than once.
    fn crashed(&self) -> Option<Timestamp> {
        let ended = self.restart_count.saturating_add(u32::from(self.state.terminated.is_some()));
        let last = self.state.terminated.as_ref().or(self.last_state.terminated.as_ref())?;
        last.finished_at.filter(|_| last.exit_code != 0 && ended >= CRASHES)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WaitingParts {
    reason: String,
}

impl From<Parts> for PodView {
    fn from(Parts { metadata, spec, status }: Parts) -> Self {
        let condition = |type_| status.conditions.iter().find(|condition| condition.type_ == type_);
        let ready = condition("Ready");
        let scheduled = condition("PodScheduled").filter(|scheduled| scheduled.status == "True");
        let containers = || status.init_container_statuses.iter().chain(&status.container_statuses);
        let has_restarted = containers().any(|container| container.restart_count > 0);
        let crashed = containers().filter_map(ContainerStatusParts::crashed).max();
        let waiting = || containers().filter_map(|container| container.state.waiting.as_ref());
        let is_crash_looping = waiting().any(|waiting| waiting.reason == CRASH_LOOP);
        let cannot_start = waiting().find_map(|waiting| StartFault::of(&waiting.reason));
        let ports = spec.containers.into_iter().flat_map(|container| container.ports);
        let ports = ports.map(|port| (port.name.into_boxed_str(), port.container_port));
        Self {
            ordinal: ordinal(&metadata),
            owner: owner(&metadata),
            has_restarted,
            has_too_many_labels: metadata.labels.as_ref().is_some_and(|labels| labels.len() > MOST_LABELS),
            labels: metadata.labels.filter(|labels| labels.len() <= MOST_LABELS).unwrap_or_default(),
            metadata: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                creation_timestamp: metadata.creation_timestamp,
                deletion_timestamp: metadata.deletion_timestamp,
                ..ObjectMeta::default()
            },
            ip: status.pod_ip,
            node: spec.node_name.filter(|node| !node.is_empty()),
            scheduled: scheduled.and_then(|scheduled| scheduled.last_transition_time),
            phase: status.phase,
            is_ready: ready.is_some_and(|ready| ready.status == "True"),
            ready_changed: ready.and_then(|ready| ready.last_transition_time),
            is_crash_looping,
            cannot_start,
            crashed,
            ports: ports.take(MOST_PORTS).collect(),
        }
    }
}

/// No text of it is longer than a name may be: one that is cut is the name of nothing.
fn owner(metadata: &ObjectMeta) -> Option<Box<PodOwner>> {
    const LONGEST: usize = 253;
    let cut = |text: &str| -> Box<str> { text.chars().take(LONGEST).collect::<String>().into() };
    let owners = metadata.owner_references.iter().flatten();
    let owner = owners.into_iter().find(|owner| owner.controller == Some(true))?;
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    let (group, kind) = (cut(group), cut(&owner.kind));
    Some(Box::new(PodOwner { group, kind, name: cut(&owner.name), uid: cut(&owner.uid) }))
}

/// The end of the name, as StatefulSets give them.
fn ordinal(metadata: &ObjectMeta) -> Option<u32> {
    let owners = metadata.owner_references.iter().flatten();
    owners.into_iter().find(|owner| owner.controller == Some(true) && owner.kind == "StatefulSet")?;
    metadata.name.as_ref()?.rsplit_once('-')?.1.parse().ok()
}

fn timestamp<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(Option::<Time>::deserialize(deserializer)?.map(|time| time.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PENDING: scaling::target::Phase = scaling::target::Phase::Pending;
    const RUNNING: scaling::target::Phase = scaling::target::Phase::Running;

    fn state(parts: &str) -> PodState {
        let created = "metadata: {name: a, uid: a, creationTimestamp: '2026-01-01T00:00:00Z'}";
        serde_saphyr::from_str::<PodView>(&format!("{{{created}, {parts}}}")).unwrap().state(at("00:10:00"))
    }

    fn at(time: &str) -> Timestamp {
        format!("2026-01-01T{time}Z").parse().unwrap()
    }

    #[test]
    fn a_cold_start_begins_on_the_node_and_ends_with_a_restart() {
        let began = |parts: &str| {
            let created = "metadata: {name: a, uid: a, creationTimestamp: '2026-01-01T00:00:00Z'}";
            let pod: PodView = serde_saphyr::from_str(&format!("{{{created}, {parts}}}")).unwrap();
            pod.for_scaling(at("00:10:00")).began
        };
        let scheduled =
            "conditions: [{type: PodScheduled, status: 'True', lastTransitionTime: '2026-01-01T00:04:00Z'}]";
        assert_eq!(began("status: {phase: Pending}"), None);
        assert_eq!(began("spec: {nodeName: a}, status: {phase: Running}"), Some(at("00:00:00")));
        assert_eq!(began(&format!("spec: {{nodeName: a}}, status: {{{scheduled}}}")), Some(at("00:04:00")));
        let restarted = "containerStatuses: [{restartCount: 1}]";
        assert_eq!(began(&format!("spec: {{nodeName: a}}, status: {{{scheduled}, {restarted}}}")), None);
    }

    #[test]
    fn pods_of_a_stateful_set_have_an_ordinal() {
        let ordinal = |name: &str, kind: &str| {
            let owner = format!("{{kind: {kind}, name: a, uid: b, apiVersion: apps/v1, controller: true}}");
            let text = format!("{{metadata: {{name: {name}, ownerReferences: [{owner}]}}}}");
            serde_saphyr::from_str::<PodView>(&text).unwrap().for_scaling(at("00:00:00")).ordinal
        };
        assert_eq!(ordinal("web-0", "StatefulSet"), Some(0));
        assert_eq!(ordinal("web-12", "StatefulSet"), Some(12));
        assert_eq!(ordinal("web-12", "ReplicaSet"), None);
        assert_eq!(ordinal("web", "StatefulSet"), None);
    }

    #[test]
    fn a_pod_is_what_its_status_says() {
        let since = at("00:00:00");
        assert_eq!(state("status: {phase: Pending}"), PodState::Unscheduled);
        assert_eq!(state("spec: {nodeName: a}, status: {phase: Pending}"), PodState::Starting { since });
        let scheduled =
            "conditions: [{type: PodScheduled, status: 'True', lastTransitionTime: '2026-01-01T00:04:00Z'}]";
        assert_eq!(
            state(&format!("spec: {{nodeName: a}}, status: {{phase: Pending, {scheduled}}}")),
            PodState::Starting { since: at("00:04:00") }
        );
        assert_eq!(state("status: {phase: Running}"), PodState::NotReady { since });
        let ready = "conditions: [{type: Ready, status: 'True', lastTransitionTime: '2026-01-01T00:01:00Z'}]";
        assert_eq!(
            state(&format!("status: {{phase: Running, {ready}}}")),
            PodState::Ready { since: at("00:01:00") }
        );
        let crashing = "containerStatuses: [{state: {waiting: {reason: CrashLoopBackOff}}}]";
        assert_eq!(
            state(&format!("status: {{phase: Running, {crashing}}}")),
            PodState::CrashLooping { phase: RUNNING }
        );
        let crashing = "initContainerStatuses: [{state: {waiting: {reason: CrashLoopBackOff}}}]";
        assert_eq!(
            state(&format!("status: {{phase: Pending, {crashing}}}")),
            PodState::CrashLooping { phase: PENDING }
        );
        for reason in ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"] {
            let waits = format!("containerStatuses: [{{state: {{waiting: {{reason: {reason}}}}}}}]");
            assert_eq!(
                state(&format!("status: {{phase: Pending, {waits}}}")),
                PodState::CannotStart { phase: PENDING }
            );
        }
        assert_eq!(state(&format!("status: {{phase: Failed, {ready}}}")), PodState::Ending);
    }

    #[test]
    fn a_pod_that_loads_between_two_crashes_is_in_a_crash_loop() {
        let of = |restarts: u32, exit: i32, finished: &str, more: &str| {
            let ended = format!("{{terminated: {{exitCode: {exit}, finishedAt: '2026-01-01T{finished}Z'}}}}");
            let container =
                format!("{{restartCount: {restarts}, state: {{running: {{}}}}, lastState: {ended}}}");
            state(&format!("status: {{phase: Running, containerStatuses: [{container}]{more}}}"))
        };
        let loading = PodState::NotReady { since: at("00:00:00") };
        assert_eq!(of(2, 1, "00:09:00", ""), PodState::CrashLooping { phase: RUNNING });
        assert_eq!(of(1, 1, "00:09:00", ""), loading, "once is no loop");
        assert_eq!(of(2, 0, "00:09:00", ""), loading, "it was asked to end");
        assert_eq!(of(2, 1, "00:00:00", ""), loading, "it has run for long");
        let ready = ", conditions: [{type: Ready, status: 'True'}]";
        assert_eq!(of(9, 1, "00:09:00", ready), PodState::Ready { since: at("00:00:00") });
        let ended =
            "{restartCount: 1, state: {terminated: {exitCode: 1, finishedAt: '2026-01-01T00:09:59Z'}}}";
        let ended = format!("status: {{phase: Running, containerStatuses: [{ended}]}}");
        assert_eq!(state(&ended), PodState::CrashLooping { phase: RUNNING });
    }
}
