//! `up --gateway`: the Gateway before the cluster, two versions of a model behind it, and how to send them a request.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use kube::Client;
use local_cluster::{
    Cluster,
    api_server::install,
    gateway::{GATEWAY, RoutesFrom},
    tools::GatewayTools,
};

/// Of the Gateway, as in the manual.
const NAMESPACE: &str = "gateways";
/// In `deploy/samples`.
const SAMPLE: &str = "aiinference-canary.yaml";
/// Its host name.
const HOST: &str = "chat.example.com";
const NAME: &str = "two-versions";
const SAMPLE_ON_REAL_NODES: &str = include_str!("gateway-real-nodes.yaml");

/// Installs the Gateway API and starts Contour. On real nodes it starts Envoy too, and a relay that leads there from this
/// machine.
pub(super) async fn start(cluster: &Cluster, tools: &GatewayTools) -> anyhow::Result<()> {
    let Some(envoy) = cluster.start_gateway(tools, NAMESPACE, RoutesFrom::All).await? else { return Ok(()) };
    let address = cluster.start_relay("gateway-relay", envoy).await?;
    let file = address_file(cluster);
    fs::write(&file, address.to_string()).with_context(|| format!("failed to write {}", file.display()))
}

pub(super) fn is_there(cluster: &Cluster) -> bool {
    cluster.folder().gateway().exists()
}

/// Where this machine reaches Envoy; `None` without one.
pub(super) fn address(cluster: &Cluster) -> Option<String> {
    // The file is removed with the cluster.
    fs::read_to_string(address_file(cluster)).ok()
}

/// Where `status` and a later `up` find the address.
fn address_file(cluster: &Cluster) -> PathBuf {
    cluster.folder().gateway().join("address")
}

pub(super) async fn apply_sample(cluster: &Cluster, client: &Client, folder: &Path) -> anyhow::Result<()> {
    let text = if cluster.real_nodes().is_empty() {
        let file = folder.join(SAMPLE);
        fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?
    } else {
        let model = model(cluster)?;
        SAMPLE_ON_REAL_NODES.replace("FOLDER", &model.display().to_string())
    };
    install::apply(client, install::DEFAULT_NAMESPACE, &text).await?;
    Ok(())
}

/// Makes a small model, which is removed with the cluster.
fn model(cluster: &Cluster) -> anyhow::Result<PathBuf> {
    let folder = cluster.folder().root().join(NAME);
    let made = fs::create_dir_all(&folder)
        .and_then(|()| fs::write(folder.join("config.json"), "{}"))
        .and_then(|()| fs::write(folder.join("weights.bin"), vec![7; 64 * 1024]));
    made.with_context(|| format!("failed to make a model in {}", folder.display()))?;
    Ok(folder)
}

pub(super) fn next_steps(cluster: &Cluster) {
    if !is_there(cluster) {
        return;
    }
    println!(
        "\nthe Gateway {GATEWAY} in the namespace {NAMESPACE}; {NAME} has a candidate, which gets 10 % of its requests within a minute:"
    );
    match address(cluster) {
        Some(address) => {
            println!(
                "  curl -sS http://{address}/v1/completions -H 'host: {HOST}' -d '{{\"prompt\": \"hello\"}}'"
            );
            println!(
                "                             # the answer names its revision: 1 is stable, 2 the candidate"
            );
        }
        None => {
            println!(
                "  no requests: simulated pods answer none. With `up --gateway --real-nodes 2` there is Envoy, and engines"
            );
        }
    }
    println!(
        "  kubectl get httproutes {NAME} -o jsonpath='{{.spec.rules[0].backendRefs}}'      # the shares"
    );
    println!(
        "  kubectl patch aii {NAME} --type=merge --patch '{{\"spec\":{{\"canary\":{{\"approvedSteps\":2}}}}}}'   # 50 %"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::workspace;

    /// What both samples share is said once in the manual.
    #[test]
    fn both_samples_have_the_same_route_and_steps() {
        let sample = fs::read_to_string(workspace().join("deploy/samples").join(SAMPLE)).unwrap();
        let spec = |text: &str| {
            let objects = install::parse(text).unwrap();
            objects.last().unwrap().data["spec"].clone()
        };
        let (simulated, real) = (spec(&sample), spec(SAMPLE_ON_REAL_NODES));
        for field in ["/gateway", "/canary/steps", "/replicas", "/drainSeconds", "/engine"] {
            assert_eq!(simulated.pointer(field), real.pointer(field), "{field}");
        }
        assert_eq!(simulated["gateway"]["hostnames"][0], HOST);
        assert_eq!(
            (&simulated["gateway"]["name"], &simulated["gateway"]["namespace"]),
            (&GATEWAY.into(), &NAMESPACE.into())
        );
    }
}
