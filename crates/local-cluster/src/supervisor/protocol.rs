//! The protocol of a supervisor's control socket: one JSON request per connection and line, one JSON reply.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    Status,
    /// Starts a controller process under a ServiceAccount.
    AddController(ControllerProcess),
    /// Starts a program in the network that real nodes see.
    AddService(Service),
    /// Passes connections on, from an address of this machine to one in the network that real nodes see.
    AddRelay {
        name: String,
        listen: SocketAddr,
        to: SocketAddr,
    },
    /// Takes the network link of a real node down, or up again.
    Link {
        node: String,
        up: bool,
    },
    /// Ends containerd of a real node and keeps it down, or lets it start again.
    Containerd {
        node: String,
        runs: bool,
    },
    /// Does something to one component and answers when it is done.
    Component {
        name: String,
        order: Order,
    },
    /// Replaces credentials while everything runs, and answers when every component that must restart for it has been
    /// ordered to.
    Renew(Renewal),
    /// From now on the cluster outlives its owner.
    Detach,
    /// Stops everything, removes the state folder, ends.
    ShutDown,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reply {
    Status(Status),
    Done,
    Failed(String),
}

/// What can be done to a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// SIGTERM, SIGKILL if it does not go; it stays down.
    Stop,
    /// Starts what was stopped, at once.
    Start,
    /// SIGKILL; it is started again like anything that ends by itself.
    Kill,
    /// SIGSTOP.
    Pause,
    /// SIGCONT.
    Continue,
    /// Stop and Start.
    Restart,
}

impl Order {
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Stop => "stop a component",
            Self::Start => "start a component",
            Self::Kill => "kill a component",
            Self::Pause => "pause a component",
            Self::Continue => "continue a component",
            Self::Restart => "restart a component",
        }
    }
}

/// What of a running cluster's credentials can be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Renewal {
    /// Signed by the same authority; the API server notices by itself.
    ServerCertificate,
    /// And with it every certificate; all of Kubernetes restarts, and controllers have to notice.
    Authority,
}

/// A controller as a host process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ControllerProcess {
    /// Name of the component, unique in the cluster: that of the controller, or one of its replicas.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) namespace: String,
    pub(crate) service_account: String,
}

/// A program beside the cluster; pods on real nodes can reach it, at the hub's address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// Name of the component, unique in the cluster.
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
}

/// How a whole cluster is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub phase: Phase,
    pub components: Vec<ComponentStatus>,
}

impl Status {
    pub fn resident_bytes(&self) -> u64 {
        self.components.iter().filter_map(|component| component.resident_bytes).sum()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    Starting,
    /// The API server answers; the rest is still starting.
    Serving,
    /// Every component answered, so long after the supervisor began.
    Ready {
        after: Duration,
    },
    Failed {
        reason: String,
    },
    Stopping,
}

/// How one process is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentStatus {
    pub name: String,
    pub state: ComponentState,
    /// How often it was started again after it had ended by itself.
    pub restarts: u32,
    /// How it ended last, by itself or not: `exit status: 1`, `signal: 9 (SIGKILL)`.
    pub last_exit: Option<String>,
    pub pid: Option<u32>,
    pub resident_bytes: Option<u64>,
    /// Where its admin server listens, if it is a controller.
    pub admin_address: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ComponentState {
    Running,
    Paused,
    /// It ended by itself and is started again soon.
    BackingOff,
    /// It was stopped on request.
    Stopped,
}

impl std::fmt::Display for ComponentState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::BackingOff => "restarting",
            Self::Stopped => "stopped",
        })
    }
}
