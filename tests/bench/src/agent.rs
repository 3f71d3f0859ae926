//! `cargo xtask bench agent`: what the metrics-agent costs on a node with 8 GPUs and 110 pods, and how fast a reading
//! reaches its subscribers.
//!
//! The GPUs are an ABI fake of NVIDIA's library, so the figures have no time of a driver in them. The kubelet is in this
//! process. The agent is a release build in a process of its own, on loopback without TLS.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, ensure};
use fake_kubelet::{GPU, Kubelet, pod};
use fake_nvml::State as Machine;
use proto::metrics::v1::{Metric, Snapshot, State};
use tokio::runtime::Runtime;
use tonic::Streaming;

use crate::{
    figures::{Figure, percentile, repeats::repeat},
    machine,
    programs::{build, target_folder},
    source::{Source, next},
};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// Seconds that are measured at one reading a second
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=3_600))]
    seconds: u64,
    /// Readings of the sped-up hour
    #[arg(long, default_value_t = 3_600, value_parser = clap::value_parser!(u64).range(1_000..=1_000_000))]
    ticks: u64,
    /// Repeats; medians are printed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=50))]
    runs: u32,
}

const GPUS: usize = 8;
const PODS: usize = 110;
const SUBSCRIBERS: usize = 2;
/// Between two readings of the sped-up hour.
const SPED_UP: &str = "0.01";
/// Windows are full after so many readings; what counts is growth from there on.
const SHAPING: u64 = 700;
/// The first answers of the kubelet, and the allocator, have had a moment.
const SETTLE: Duration = Duration::from_secs(5);

pub(super) fn run(args: &Args, tokio: &Runtime) -> anyhow::Result<()> {
    build(&["--release", "--package", "metrics-agent", "--package", "fake-nvml"])?;
    let release = target_folder()?.join("release");
    let title = format!("{GPUS} GPUs (ABI fake), {PODS} pods");
    tokio.block_on(repeat(args.runs, &title, async || {
        let mut figures = at_rest(args, &release).await?;
        figures.extend(sped_up(args, &release).await?);
        Ok(figures)
    }))
}

/// One reading a second, as users run it.
async fn at_rest(args: &Args, release: &Path) -> anyhow::Result<Vec<Figure>> {
    let agent = Agent::start(release, "1")?;
    let mut subscribers = Vec::new();
    for _ in 0..SUBSCRIBERS {
        subscribers.push(agent.source.subscribe().await?);
    }
    tokio::time::sleep(SETTLE).await;
    let (cpu, began) = (machine::cpu_seconds(agent.source.pid())?, Instant::now());
    let lasting = Duration::from_secs(args.seconds);
    let mut delays = Vec::new();
    let measured = subscribers.into_iter().map(|stream| tokio::spawn(delays_of(stream, lasting)));
    for subscriber in measured.collect::<Vec<_>>() {
        delays.extend(subscriber.await??);
    }
    let share = (machine::cpu_seconds(agent.source.pid())? - cpu) / began.elapsed().as_secs_f64();
    let p = |share| percentile(delays.clone(), share).context("no snapshot came");
    Ok(vec![
        Figure::new("resident memory, MiB", machine::resident_mib(agent.source.pid())?).at_most(15.0),
        Figure::new("resident memory at its peak, MiB", machine::peak_resident_mib(agent.source.pid())?),
        Figure::new("CPU, % of a core", 1e2 * share).at_most(0.5),
        Figure::new("reading -> subscriber, p50, ms", p(0.5)?),
        Figure::new("reading -> subscriber, p99, ms", p(0.99)?).at_most(50.0),
    ])
}

/// An hour of readings in less time.
async fn sped_up(args: &Args, release: &Path) -> anyhow::Result<Vec<Figure>> {
    let agent = Agent::start(release, SPED_UP)?;
    let mut stream = agent.source.subscribe().await?;
    let mut other = agent.source.subscribe().await?;
    let reach = async |stream: &mut Streaming<Snapshot>, sequence: u64| {
        while next(stream).await?.sequence < sequence {}
        anyhow::Ok(())
    };
    reach(&mut stream, SHAPING).await?;
    let shaped = machine::resident_mib(agent.source.pid())?;
    // The other one does not read: it must cost nothing that grows.
    reach(&mut stream, SHAPING + args.ticks).await?;
    let grown = machine::resident_mib(agent.source.pid())? - shaped;
    reach(&mut other, SHAPING + args.ticks).await?;
    Ok(vec![
        Figure::new(format!("{} readings, sped up: resident memory before, MiB", args.ticks), shaped),
        Figure::new("  growth, with one subscriber that does not read, MiB", grown).at_most(1.0),
    ])
}

/// Milliseconds from each reading to its arrival, by the clock of this machine.
async fn delays_of(mut stream: Streaming<Snapshot>, lasting: Duration) -> anyhow::Result<Vec<f64>> {
    let began = Instant::now();
    let mut delays = Vec::new();
    // What waited in the stream is from before.
    let mut skip = SETTLE.as_secs() + 2;
    while began.elapsed() < lasting {
        let snapshot = next(&mut stream).await?;
        let now = SystemTime::now();
        if skip > 0 {
            skip -= 1;
            continue;
        }
        ensure!(snapshot.subjects.len() == GPUS, "{} subjects", snapshot.subjects.len());
        let sampled = SystemTime::try_from(snapshot.sampled_at.context("no time")?)?;
        for subject in &snapshot.subjects {
            let reading = subject.readings.iter().find(|reading| reading.metric() == Metric::Utilization);
            let reading =
                reading.filter(|it| it.state() == State::Fresh).context("a reading is not fresh")?;
            let read = sampled - Duration::try_from(reading.age.unwrap_or_default())?;
            delays.push(1e3 * now.duration_since(read).unwrap_or_default().as_secs_f64());
        }
    }
    Ok(delays)
}

/// The agent and its kubelet, which end with this value.
struct Agent {
    source: Source,
    _kubelet: Kubelet,
    folder: PathBuf,
}

impl Agent {
    fn start(release: &Path, interval: &str) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("bench-agent-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
        let machine = folder.join("machine.json");
        Machine::with_gpus(GPUS).write(&machine)?;
        let kubelet = kubelet(&folder)?;
        let source = Source::start(
            Command::new(release.join("metrics-agent"))
                .arg(format!("--interval={interval}"))
                .arg(format!("--nvml-library={}", release.join("libfake_nvml.so").display()))
                .arg(format!("--pod-resources={}", kubelet.socket().display()))
                .env(fake_nvml::STATE_VARIABLE, &machine),
        )?;
        Ok(Self { source, _kubelet: kubelet, folder })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The first of the pods hold the GPUs; the ids of the others are of no device.
fn kubelet(folder: &Path) -> anyhow::Result<Kubelet> {
    let ids = Machine::with_gpus(PODS).gpus.into_iter().map(|gpu| gpu.uuid);
    let pods = ids.zip(0..).map(|(id, number)| pod(&format!("pod-{number}"), GPU, &[&id]));
    Kubelet::start(folder, pods.collect()).context("failed to listen for the agent")
}
