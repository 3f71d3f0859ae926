//! Metrics agents for simulated nodes: the real program on the ABI fake of NVIDIA's library, beside a kubelet that is played.
//!
//! ```text
//! API server ── pods of a node ──▶ fake-kubelet ─┬─ kubelet.sock: which pod holds which GPU ─▶ metrics-agent ──▶ controllers
//!                                                ╰─ machine.json ──▶ libfake_nvml.so: how busy ─▶
//! ```

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::ensure;
use api::controllers::METRICS_AGENT;
use local_cluster::{Cluster, Service, sibling_binary};
use tokio::time::sleep;

use super::up::free_address;

/// The program that plays the kubelets.
const KUBELET: &str = "fake-kubelet";
/// The library that the agents load instead of NVIDIA's.
const LIBRARY: &str = "libfake_nvml.so";
/// The variable by which it finds its machine.
const MACHINE: &str = "FAKE_NVML_STATE";
/// Both programs of a node have 25 MiB.
const MOST: u32 = 4;
/// A program that starts on a busy machine.
const STARTED_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// Starts one for each of the first simulated nodes, and returns the options by which controllers subscribe to them.
pub(super) async fn start(cluster: &Cluster, nodes: u32, gpus: u32) -> anyhow::Result<Vec<String>> {
    let starting = (0..nodes.min(MOST)).map(|index| of_node(cluster, format!("gpu-{index}"), gpus));
    let addresses = futures::future::try_join_all(starting).await?;
    Ok(vec![format!("--metrics-agents={}", addresses.join(",")), "--metrics-agents-plaintext".to_owned()])
}

/// The address of its gRPC server.
async fn of_node(cluster: &Cluster, node: String, gpus: u32) -> anyhow::Result<String> {
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
    until_there(&[&machine, &socket]).await?;
    let (grpc, admin) = (free_address()?, free_address()?);
    let program = sibling_binary(METRICS_AGENT.name)?;
    let library = program.parent().unwrap_or(Path::new("/")).join(LIBRARY);
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
async fn until_there(paths: &[&Path]) -> anyhow::Result<()> {
    let began = Instant::now();
    while let Some(missing) = paths.iter().find(|path| !path.exists()) {
        let log = "its log is in the folder that `cargo xtask status` names";
        ensure!(began.elapsed() < STARTED_WITHIN, "{KUBELET} has made no {}: {log}", missing.display());
        sleep(POLL).await;
    }
    Ok(())
}
