//! What is scaled, as observed: replicas and pods. Callers classify pods; this crate reads no Kubernetes object.

use std::time::Duration;

use jiff::Timestamp;

use crate::flow::Flow;

/// An object with replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `spec.replicas` of its scale.
    pub replicas: i32,
    /// `status.replicas` of its scale.
    pub status_replicas: i32,
    /// All pods that its selector matches, those that end included.
    pub pods: Vec<Pod>,
    /// A cold start that the target's own controller has measured. It counts until this crate has seen one itself.
    pub cold_start: Option<Duration>,
    /// Its requests, by metric of the policy, where the metric is read with counters that say enough of them. May be shorter.
    pub flows: Vec<Option<Flow>>,
}

/// A pod of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub uid: String,
    pub created: Timestamp,
    /// When it got its node. `None`: it has none, or a container of it has ended since, so that its readiness says nothing of
    /// how long a pod takes to start.
    pub began: Option<Timestamp>,
    /// Of a StatefulSet, which removes the highest ones; other kinds remove pods that are not Ready first.
    pub ordinal: Option<u32>,
    pub state: PodState,
    pub work: Work,
}

/// What a pod does for the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    /// Phase Pending, no node.
    Unscheduled,
    /// Phase Pending on a node: volumes, images, init containers. `since`: when it got the node.
    Starting { since: Timestamp },
    /// Phase Running, not Ready. `since`: the last transition of the condition Ready; without one, when it was scheduled, or
    /// created.
    NotReady { since: Timestamp },
    /// Phase Running and Ready. `since`: the last transition of the condition Ready.
    Ready { since: Timestamp },
    /// A container, or an init container, keeps ending.
    CrashLooping { phase: Phase },
    /// On no node would it start: an image cannot be pulled, or a Secret or a ConfigMap does not exist.
    CannotStart { phase: Phase },
    /// Being deleted, or its phase is Failed or Succeeded.
    Ending,
}

/// HPA's arithmetic counts pods by it, whatever keeps them from being Ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Running,
}

/// Whether a worker has a task in hand. Only [`crate::policy::Kind::TasksAndBusyWorkers`] reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Work {
    /// No report. Such a worker counts as busy before a scale-down and as idle before a scale-up.
    #[default]
    Unknown,
    Idle,
    Busy,
}
