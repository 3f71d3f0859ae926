//! Answers for the monitors of all workers of a cluster, with a queue that goes up and down: for `cargo xtask up`.

#![forbid(unsafe_code)]

use std::{f64::consts::TAU, path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::Parser;
use fake_monitors::{Load, Monitors, Worker};
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

/// From an empty queue to a full one and back.
const PERIOD: Duration = Duration::from_secs(240);
/// Tasks of a pool that wait when its queue is full.
const FULL: f64 = 20.0;
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
    let mut tokens = std::collections::BTreeMap::<Worker, u64>::new();
    loop {
        ticks.tick().await;
        let workers = monitors.workers();
        tokens.retain(|worker, _| workers.contains(worker));
        let turn = began.elapsed().as_secs_f64() / PERIOD.as_secs_f64();
        let queued = FULL * (1.0 - (turn * TAU).cos()) / 2.0;
        for worker in &workers {
            let of_pool = workers.iter().filter(|other| pool(other) == pool(worker)).count().max(1);
            let share = queued / of_pool as f64;
            let in_flight = u64::from(share >= 0.5);
            let used = tokens.entry(worker.clone()).or_default();
            *used += TOKENS * in_flight;
            monitors.one(worker, Load { queued: share as u64, in_flight, tokens: *used });
        }
    }
}

/// Namespace and name of the Deployment, which names of pods begin with.
fn pool(worker: &Worker) -> (&str, &str) {
    let (namespace, pod) = worker;
    (namespace, pod.split("-workers-").next().unwrap_or(pod))
}
