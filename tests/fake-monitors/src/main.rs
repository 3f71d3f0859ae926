//! Simulates the monitors of all workers of a cluster, with a queue that grows and shrinks, for `cargo xtask up`.

#![forbid(unsafe_code)]

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::Parser;
use fake_monitors::{Monitors, Worker, queue};
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::time::{Instant, interval};

#[derive(Debug, Parser)]
#[command(name = "fake-monitors", version)]
struct Arguments {
    /// Of the cluster
    #[arg(long)]
    kubeconfig: PathBuf,
}

/// Of a worker with a task in hand, each second.
const TOKENS: u64 = 25;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Arguments { kubeconfig } = Arguments::parse();
    // Fails only if it is there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let file = Kubeconfig::read_from(&kubeconfig)
        .with_context(|| format!("failed to read {}", kubeconfig.display()))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let monitors = Monitors::of(Api::all(Client::try_from(config)?));
    let (began, mut ticks) = (Instant::now(), interval(Duration::from_secs(1)));
    let mut tokens = BTreeMap::<Worker, u64>::new();
    loop {
        ticks.tick().await;
        let workers = monitors.workers();
        tokens.retain(|worker, _| workers.contains(worker));
        let tasks = queue::tasks(began.elapsed());
        let mut pools = BTreeMap::<(&str, &str), Vec<&Worker>>::new();
        workers.iter().for_each(|worker| pools.entry(pool(worker)).or_default().push(worker));
        for workers in pools.into_values() {
            for (worker, load) in workers.iter().zip(queue::loads(tasks, workers.len())) {
                let used = tokens.entry((*worker).clone()).or_default();
                *used += TOKENS * load.in_flight;
                monitors.one(worker, load.with_tokens(*used));
            }
        }
    }
}

/// Namespace and name of the Deployment, which names of pods begin with.
fn pool(worker: &Worker) -> (&str, &str) {
    let (namespace, pod) = worker;
    (namespace, pod.split("-workers-").next().unwrap_or(pod))
}
