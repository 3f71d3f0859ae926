//! What happens to the trainer.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use api::launcher::{PROGRAM, variables};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams},
};

use super::objects::{NAMESPACE, selector};
use crate::steps::succeed;

/// Kills the first process of the trainer's container, with which the kernel ends all others, as if the node had no memory
/// left.
pub(super) async fn kill(client: &Client) -> anyhow::Result<()> {
    let pod = running_pod(client).await?;
    let variable = format!("{}={}", variables::POD_UID, pod.uid().unwrap_or_default());
    let is_launcher = |process: &&PathBuf| is_program(process, PROGRAM) && has_variable(process, &variable);
    let processes = processes()?;
    let launcher = processes.iter().find(is_launcher).and_then(|process| process.file_name());
    let launcher = launcher.with_context(|| format!("no process of pod {} is in /proc", pod.name_any()))?;
    succeed(Command::new("kill").arg("-KILL").arg(launcher))
}

/// With the grace period of the pod.
pub(super) async fn delete_pod(client: &Client) -> anyhow::Result<()> {
    let name = running_pod(client).await?.name_any();
    let deleted = pods(client).delete(&name, &DeleteParams::default()).await;
    deleted.with_context(|| format!("failed to delete pod {NAMESPACE}/{name}")).map(drop)
}

async fn running_pod(client: &Client) -> anyhow::Result<Pod> {
    let listed = pods(client).list(&ListParams::default().labels(&selector())).await;
    let listed = listed.with_context(|| format!("failed to list the pods of {NAMESPACE}"))?;
    let is_running =
        |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    listed.items.into_iter().find(is_running).context("no pod of the job is running")
}

fn pods(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), NAMESPACE)
}

/// Folders of /proc. The processes of a real node are those of this machine.
fn processes() -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir("/proc").context("failed to list the processes")?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn is_program(process: &Path, name: &str) -> bool {
    let command = fs::read(process.join("cmdline")).unwrap_or_default();
    command.split(|byte| *byte == 0).next().is_some_and(|program| program.ends_with(name.as_bytes()))
}

fn has_variable(process: &Path, variable: &str) -> bool {
    let environment = fs::read(process.join("environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|set| set == variable.as_bytes())
}
