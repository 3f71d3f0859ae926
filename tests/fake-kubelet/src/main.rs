//! Plays the kubelet of a simulated node for its metrics-agent: gives GPUs to the pods of the node, answers which pod holds
//! which, and lets those GPUs work.

#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    f64::consts::TAU,
    path::PathBuf,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use clap::Parser;
use fake_kubelet::{
    Kubelet,
    gpus::{Gpus, machine_of},
};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
};

/// Answers the pod-resources API for a simulated node, and writes the machine of the ABI fake of NVIDIA's library.
#[derive(Parser)]
#[command(name = "fake-kubelet", version)]
struct Args {
    /// The cluster is that of $KUBECONFIG
    #[arg(long, value_name = "NODE")]
    node: String,
    /// Gets `kubelet.sock` and `machine.json`
    #[arg(long, value_name = "FOLDER")]
    folder: PathBuf,
    #[arg(long)]
    gpus: usize,
    /// Least utilization of a GPU that a pod holds, in percent
    #[arg(long, default_value_t = 20.0)]
    low: f64,
    /// Greatest utilization, in percent
    #[arg(long, default_value_t = 90.0)]
    high: f64,
    /// Seconds from one low to the next
    #[arg(long, default_value_t = 240.0)]
    period: f64,
}

/// After the API server was not reached.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// As often as an agent reads.
const TICK: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // An error means that another part of the process has installed one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::try_default().await.context("failed to read the kubeconfig")?;
    std::fs::create_dir_all(&args.folder)
        .with_context(|| format!("failed to create {}", args.folder.display()))?;
    let mut machine = machine_of(&args.node, args.gpus);
    let gpus = Arc::new(Mutex::new(Gpus::of(&machine)));
    let kubelet = Kubelet::start(&args.folder, Vec::new())
        .with_context(|| format!("failed to listen in {}", args.folder.display()))?;
    let follow = async {
        let pods = Api::<Pod>::all(client);
        loop {
            let followed = follow(&pods, &args.node, |pods| {
                let mut gpus = gpus.lock().unwrap_or_else(PoisonError::into_inner);
                gpus.follow(pods.values());
                kubelet.set_pods(gpus.pods());
            });
            if let Err(error) = followed.await {
                eprintln!("failed to follow the pods of {}: {error:#}", args.node);
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
    };
    let work = async {
        let (began, mut ticks) = (Instant::now(), tokio::time::interval(TICK));
        loop {
            ticks.tick().await;
            let phase = TAU * began.elapsed().as_secs_f64() / args.period;
            let busy = args.low + (args.high - args.low) * (1.0 - phase.cos()) / 2.0;
            let gpus = gpus.lock().unwrap_or_else(PoisonError::into_inner);
            for (number, gpu) in machine.gpus.iter_mut().enumerate() {
                gpu.utilization = if gpus.is_held(number) { busy.round() as u32 } else { 0 };
            }
            drop(gpus);
            if let Err(error) = machine.write(&args.folder.join("machine.json")) {
                break Err(error).with_context(|| format!("failed to write in {}", args.folder.display()));
            }
        }
    };
    tokio::select! {
        () = follow => Ok(()),
        failed = work => failed,
    }
}

/// Calls `seen` with the pods of a node, by uid, after each change, until the watch ends.
async fn follow(
    pods: &Api<Pod>,
    node: &str,
    mut seen: impl FnMut(&BTreeMap<String, Pod>),
) -> anyhow::Result<()> {
    let of_node = format!("spec.nodeName={node}");
    let list = pods.list(&ListParams::default().fields(&of_node)).await?;
    let version = list.metadata.resource_version.unwrap_or_default();
    let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
    let mut known: BTreeMap<String, Pod> = list.items.into_iter().map(|pod| (uid(&pod), pod)).collect();
    seen(&known);
    let mut events = pin!(pods.watch(&WatchParams::default().fields(&of_node), &version).await?);
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => drop(known.insert(uid(&pod), pod)),
            WatchEvent::Deleted(pod) => drop(known.remove(&uid(&pod))),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => bail!("{}", status.message),
        }
        seen(&known);
    }
    Ok(())
}
