//! Metrics agents for simulated nodes: the real program on the ABI fake of NVIDIA's library, beside a kubelet that is played.
//!
//! ```text
//! API server ── pods of a node ──▶ fake-kubelet ─┬─ kubelet.sock: which pod holds which GPU ─▶ metrics-agent ──▶ controllers
//!                                                ╰─ machine.json ──▶ libfake_nvml.so: how busy ─▶
//! ```

use std::{
    collections::BTreeMap,
    env::consts::{DLL_PREFIX, DLL_SUFFIX},
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::bail;
use api::controllers::METRICS_AGENT;
use local_cluster::{Cluster, Service, sibling_binary};
use tokio::time::sleep;

use super::free_address;

/// The program that plays the kubelets.
const KUBELET: &str = "fake-kubelet";
/// The library that the agents load instead of NVIDIA's.
const LIBRARY: &str = "fake_nvml";
/// The variable by which it finds its machine.
const MACHINE: &str = "FAKE_NVML_STATE";
/// An agent and its kubelet take 40 MiB together; further nodes have none.
const MOST_AGENTS: u32 = 4;
/// The longest time until a kubelet has made its files, on a busy machine.
const STARTED_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// Starts an agent for each of the first simulated nodes, and returns the options by which controllers subscribe to them.
pub(super) async fn start(cluster: &Cluster, nodes: u32, gpus: u32) -> anyhow::Result<Vec<String>> {
    let starting = (0..nodes.min(MOST_AGENTS)).map(|index| start_on(cluster, format!("gpu-{index}"), gpus));
    let addresses = futures::future::try_join_all(starting).await?;
    Ok(vec![format!("--metrics-agents={}", addresses.join(",")), "--metrics-agents-plaintext".to_owned()])
}

/// Starts a kubelet and an agent for a node, and returns the address of the agent's gRPC server.
async fn start_on(cluster: &Cluster, node: String, gpus: u32) -> anyhow::Result<String> {
    let folder = cluster.folder().root().join("agents").join(&node);
    let (machine, socket) = (folder.join("machine.json"), folder.join("kubelet.sock"));
    let kubelet = Service {
        name: format!("kubelet-{node}"),
        program: sibling_binary(KUBELET)?,
        args: vec![
            format!("--node={node}"),
            format!("--folder={}", folder.display()),
            format!("--gpus={gpus}"),
        ],
        env: BTreeMap::from([("KUBECONFIG".to_owned(), cluster.folder().kubeconfig().display().to_string())]),
    };
    cluster.start_service(kubelet).await?;
    until_there(&[&machine, &socket], &cluster.folder().log(&format!("kubelet-{node}"))).await?;
    let (grpc, admin) = (free_address()?, free_address()?);
    let program = sibling_binary(METRICS_AGENT.name)?;
    let library =
        program.parent().unwrap_or(Path::new("/")).join(format!("{DLL_PREFIX}{LIBRARY}{DLL_SUFFIX}"));
    let agent = Service {
        name: format!("metrics-agent-{node}"),
        program,
        args: vec![
            format!("--node-name={node}"),
            format!("--nvml-library={}", library.display()),
            format!("--pod-resources={}", socket.display()),
            format!("--listen={grpc}"),
            format!("--admin-address={admin}"),
        ],
        env: BTreeMap::from([(MACHINE.to_owned(), machine.display().to_string())]),
    };
    cluster.start_service(agent).await?;
    Ok(grpc.to_string())
}

/// What the agent reads as it starts.
async fn until_there(paths: &[&Path], log: &Path) -> anyhow::Result<()> {
    let began = Instant::now();
    while let Some(missing) = paths.iter().find(|path| !path.exists()) {
        if began.elapsed() > STARTED_WITHIN {
            // The folder of the log is removed with the cluster.
            let log = fs::read_to_string(log).unwrap_or_default();
            let last = log.lines().last().unwrap_or("its log is empty");
            bail!("{KUBELET} has made no {}: {last}", missing.display());
        }
        sleep(POLL).await;
    }
    Ok(())
}
