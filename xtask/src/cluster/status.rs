//! What runs, and what it costs.

use local_cluster::{Cluster, Phase, Status};

use super::gateway;
use crate::dev_cluster::running;

const MIB: u64 = 1024 * 1024;

pub(super) async fn run() -> anyhow::Result<()> {
    print(&running()?).await
}

/// A table of the processes, then where to look.
pub(super) async fn print(cluster: &Cluster) -> anyhow::Result<()> {
    let status = cluster.status().await?;
    println!("{:<28} {:>8} {:<10} {:>8} {:>10}", "COMPONENT", "PID", "STATE", "RESTARTS", "RESIDENT");
    for component in &status.components {
        let pid = component.pid.map_or("-".to_owned(), |pid| pid.to_string());
        let resident = component.resident_bytes.map_or("-".to_owned(), mebibytes);
        let (name, state, restarts) = (&component.name, component.state, component.restarts);
        println!("{name:<28} {pid:>8} {state:<10} {restarts:>8} {resident:>10}");
    }
    println!("{:<28} {:>8} {:<10} {:>8} {:>10}", "together", "", "", "", mebibytes(status.resident_bytes()));
    println!();
    println!("cluster     {}, {}", cluster.spec().name, described(&status));
    println!("logs        {}", cluster.folder().logs().display());
    println!("kubeconfig  {}", cluster.folder().kubeconfig().display());
    if let Some(address) = gateway::address(cluster) {
        println!("gateway     http://{address}");
    }
    Ok(())
}

pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes / MIB)
}

fn described(status: &Status) -> String {
    match &status.phase {
        Phase::Starting | Phase::Serving => "starting".to_owned(),
        Phase::Ready { after } => format!("ready after {:.1} s", after.as_secs_f32()),
        Phase::Failed { reason } => format!("failed: {reason}"),
        Phase::Stopping => "stopping".to_owned(),
    }
}
