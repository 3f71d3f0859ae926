//! What a cluster is made of. It decides nothing about processes; the supervisor reads it from `spec.json`.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Folder, Result,
    machine::{files::write_atomically, network::MOST_NODES},
    tools::NodeTools,
};

/// If every node of a cluster with one or two looks dead, Kubernetes assumes that it is itself cut off, and taints nothing.
/// A test of a dead node would never end.
const MINIMUM_NODES: u32 = 3;

/// A kubelet renews after 80 % of a token's life.
const RENEW_TOKENS_AFTER: Duration = Duration::from_mins(48);

/// A cluster that can be started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterSpec {
    /// Names the state folder; several clusters run side by side under different names.
    pub name: String,
    /// The kubeconfig of a cluster that exists: nothing of Kubernetes is started, only controllers are, and none of the
    /// other fields but `tools`, for its kubectl, has a meaning.
    #[serde(default)]
    pub existing: Option<PathBuf>,
    /// `None` starts etcd and the API server alone: objects are accepted or refused, and nothing else happens to them.
    pub nodes: Option<NodePool>,
    /// Beside the simulated ones.
    pub real: Option<RealNodes>,
    pub clock: NodeClock,
    /// When the token of a controller is renewed; it lives for an hour.
    pub renew_tokens_after: Duration,
    /// Clients that resume from a version older than this get 410 Gone: etcd is compacted so often, and the
    /// API server keeps no cache that would remember. `None`: Kubernetes' own five minutes, and more in the cache.
    pub history: Option<Duration>,
    #[serde(default)]
    pub detail: Detail,
    /// How often HorizontalPodAutoscalers are looked at. `None`: Kubernetes' own 15 s.
    #[serde(default)]
    pub hpa_period: Option<Duration>,
    /// How long a simulated trainer trains, unless its pod says it.
    #[serde(default = "default_training_time")]
    pub training_time: Duration,
    /// The folder with the programs that [`crate::tools::ensure`] built.
    pub tools: PathBuf,
}

/// How much the control plane does besides the work of its clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Detail {
    /// Pods pass through every state that README.md describes, and the audit log has the writes of all users.
    #[default]
    Full,
    /// For measurements: pods become ready in one step, and the audit log has the requests of controllers alone.
    Lean,
}

/// The simulated nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodePool {
    pub count: u32,
    /// GPUs of each node.
    pub gpus: u32,
    /// Values of the label `nvidia.com/gpu.product`, given to the nodes in turn.
    pub products: Vec<String>,
    /// Further nodes, without GPUs and without their taint.
    #[serde(default)]
    pub without_gpus: u32,
}

impl Default for NodePool {
    fn default() -> Self {
        Self { count: 4, gpus: 8, products: vec!["A100".to_owned(), "H100".to_owned()], without_gpus: 0 }
    }
}

/// Nodes that run containers, see [`crate::real`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RealNodes {
    pub count: u32,
    /// GPUs in the status of each node.
    pub gpus: u32,
    /// Value of the label `nvidia.com/gpu.product`.
    pub product: String,
    pub tools: NodeTools,
    /// The image that holds a pod's network, as a folder in OCI image layout.
    pub pause: PathBuf,
}

/// How fast the cluster treats a silent node as dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClock {
    /// A node that renewed no lease for so long gets `Ready=Unknown`.
    pub grace: Duration,
    /// How often the node controller looks.
    pub monitor_period: Duration,
    /// How long a node's lease lasts; it is renewed four times as often.
    pub lease: Duration,
    /// How long pods stay on a node with an unreachable or not-ready taint, unless their spec differs.
    pub toleration: Duration,
}

impl NodeClock {
    /// What a default cluster did before Kubernetes 1.32; since then the grace period is 50 s.
    pub const REAL: Self = Self {
        grace: Duration::from_secs(40),
        monitor_period: Duration::from_secs(2),
        lease: Duration::from_secs(40),
        toleration: Duration::from_secs(300),
    };
    /// The default, for tests in which all nodes live: a stall of the machine for some seconds makes no node lost, and a lost
    /// node keeps its pods.
    pub const CALM: Self = Self {
        grace: Duration::from_secs(20),
        monitor_period: Duration::from_millis(500),
        lease: Duration::from_secs(20),
        toleration: Duration::from_secs(300),
    };
    /// For tests that wait for the loss of a node: it is noticed after about 4 s. A stall of the machine for as long makes
    /// nodes that live lost, too.
    pub const SHORT: Self = Self {
        grace: Duration::from_secs(4),
        monitor_period: Duration::from_millis(500),
        lease: Duration::from_secs(4),
        toleration: Duration::from_secs(2),
    };
}

impl ClusterSpec {
    /// The API server alone, for tests of what it accepts.
    pub fn api_only(name: impl Into<String>, tools: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            existing: None,
            nodes: None,
            real: None,
            clock: NodeClock::CALM,
            renew_tokens_after: RENEW_TOKENS_AFTER,
            history: None,
            detail: Detail::Full,
            hpa_period: None,
            training_time: default_training_time(),
            tools: tools.into(),
        }
    }

    /// A cluster that exists, for controllers that run on this machine. `tools` is a folder with a kubectl.
    pub fn existing(name: impl Into<String>, kubeconfig: &Path, tools: impl Into<PathBuf>) -> Self {
        Self { existing: Some(kubeconfig.to_owned()), ..Self::api_only(name, tools) }
    }

    /// A whole control plane with simulated nodes.
    pub fn simulated(name: impl Into<String>, tools: impl Into<PathBuf>, nodes: NodePool) -> Self {
        Self { nodes: Some(nodes), ..Self::api_only(name, tools) }
    }

    /// Real nodes beside the simulated ones, which are what makes a cluster of one or two large enough.
    pub fn with_real_nodes(self, real: RealNodes) -> Self {
        Self { real: Some(real), ..self }
    }

    pub fn with_clock(self, clock: NodeClock) -> Self {
        Self { clock, ..self }
    }

    pub fn with_token_renewal(self, renew_tokens_after: Duration) -> Self {
        Self { renew_tokens_after, ..self }
    }

    pub fn with_detail(self, detail: Detail) -> Self {
        Self { detail, ..self }
    }

    pub fn with_hpa_period(self, hpa_period: Duration) -> Self {
        Self { hpa_period: Some(hpa_period), ..self }
    }

    pub fn with_training_time(self, training_time: Duration) -> Self {
        Self { training_time, ..self }
    }

    pub fn with_history(self, history: Duration) -> Self {
        Self { history: Some(history), ..self }
    }

    /// Writes it for the supervisor.
    pub(crate) fn write(&self, folder: &Folder) -> Result<()> {
        let path = folder.spec();
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| Error::invalid("write", path.display().to_string(), error))?;
        write_atomically(&path, text.as_bytes())
    }

    pub(crate) fn read(folder: &Folder) -> Result<Self> {
        let path = folder.spec();
        let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::invalid("read", path.display().to_string(), error))
    }

    /// Refuses what would start and then not behave.
    pub(crate) fn validate(&self) -> Result<()> {
        if let Some(real) = &self.real {
            let below_run = |path: &PathBuf| path.starts_with("/run") || path.starts_with("/var/run");
            let folder = Folder::of(&self.name)?.root().to_owned();
            let tools = &real.tools;
            if let Some(hidden) = [&folder, &tools.kubelet, &tools.containers, &tools.addons]
                .into_iter()
                .find(|path| below_run(path))
            {
                return Err(Error::HiddenFromNodes { path: hidden.clone() });
            }
            if self.nodes.is_none() || real.count == 0 || real.count > MOST_NODES {
                return Err(Error::WrongRealNodes { count: real.count, limit: MOST_NODES });
            }
        }
        let Some(nodes) = &self.nodes else { return Ok(()) };
        if nodes.count < MINIMUM_NODES {
            return Err(Error::TooFewNodes { count: nodes.count, minimum: MINIMUM_NODES });
        }
        if nodes.products.is_empty() {
            return Err(Error::NoProducts);
        }
        Ok(())
    }
}

/// That of any pod of a Job.
fn default_training_time() -> Duration {
    Duration::from_secs(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_are_refused_with_the_reason() {
        let nodes = NodePool { count: 2, ..NodePool::default() };
        let refused = ClusterSpec::simulated("dev", "tools", nodes).validate().unwrap_err().to_string();
        assert!(refused.contains("use at least 3"), "{refused}");
    }

    #[test]
    fn three_nodes_are_enough() {
        let nodes = NodePool { count: 3, ..NodePool::default() };
        ClusterSpec::simulated("dev", "tools", nodes).validate().unwrap();
    }
}
