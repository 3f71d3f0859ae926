//! Hands images on: to a registry with crane, to the nodes of the local cluster.

use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use local_cluster::Cluster;

use super::{Folder, Packed};
use crate::dev_cluster::running;

/// Pushes each image, and makes sure that the registry calls it what we do.
pub(super) fn push(folder: &Folder, registry: &str) -> anyhow::Result<()> {
    let crane = local_cluster::tools::ensure_addons()?.join("crane");
    for image in &folder.images {
        let (_, tag) = image.reference.rsplit_once(':').context("a reference without a tag")?;
        let reference = format!("{registry}/{}:{tag}", image.name);
        let mut push = Command::new(&crane);
        push.arg("push").arg(folder.path.join(&image.layout)).arg(&reference);
        if is_loopback(registry) {
            push.arg("--insecure");
        }
        let output = push.stderr(Stdio::inherit()).output().context("failed to start crane")?;
        ensure!(output.status.success(), "crane failed to push {reference}: {}", output.status);
        let pushed = String::from_utf8_lossy(&output.stdout);
        let digest = pushed.trim().rsplit_once('@').map_or("", |(_, digest)| digest);
        ensure!(digest == image.digest, "{reference} is {digest} in the registry and {} here", image.digest);
        println!("pushed {reference}@{digest}");
    }
    Ok(())
}

/// The cluster that images are loaded into; asked for before anything is built.
pub(super) fn cluster_with_real_nodes() -> anyhow::Result<Cluster> {
    let cluster = running()?;
    ensure!(
        !cluster.real_nodes().is_empty(),
        "the running cluster has no real nodes; start one with `cargo xtask up --real-nodes 2`"
    );
    Ok(cluster)
}

/// Makes each image known to every real node of the cluster.
pub(super) fn load(folder: &Folder, cluster: &Cluster) -> anyhow::Result<()> {
    for Packed { reference, layout, .. } in &folder.images {
        cluster.load_image(&folder.path.join(layout), reference)?;
        println!("loaded {reference}");
    }
    Ok(())
}

/// Whether plain http is fine: it does not leave the machine.
fn is_loopback(registry: &str) -> bool {
    let host = registry.split('/').next().unwrap_or(registry);
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_registry_on_this_machine_is_spoken_to_in_plain_http() {
        for registry in ["127.0.0.1:5000", "localhost:5000/team", "[::1]:5000", "localhost"] {
            assert!(is_loopback(registry), "{registry}");
        }
        for registry in
            ["ghcr.io/team", "127.0.0.1.example.com:5000", "10.0.0.1:5000", "localhost.example.com"]
        {
            assert!(!is_loopback(registry), "{registry}");
        }
    }
}
