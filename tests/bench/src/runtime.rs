//! `cargo xtask bench runtime`: what the engine of the controllers costs by itself.
//!
//! The objects come from an API server in this process, over plain HTTP on loopback; the engine runs in a
//! process of its own, `crates/runtime/examples/reconcile_nothing.rs`, and reconciles them without a write.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use fake_api::{GeneratedApi, Object};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    runtime::Runtime,
    time::timeout,
};

use crate::{
    figures::{Figure, repeats::repeat},
    machine,
    programs::{build, target_folder},
};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// Objects that there are at any moment
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    objects: u64,
    /// Objects that come and go afterwards
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    churn: u64,
    /// Repeats; medians are printed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=50))]
    runs: u32,
}

const PROGRAM: &str = "reconcile_nothing";
/// Events of which the delay is measured.
const EVENTS: u64 = 1_000;
/// Long enough that each event finds the engine at rest.
const BETWEEN_EVENTS: Duration = Duration::from_millis(5);
/// Memory is read when the allocator has had a moment.
const SETTLE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);
/// The first tenth of the churn shapes the heap; what counts is whether it grows from there on.
const SHAPING_SHARE: u64 = 10;

pub(super) fn run(args: &Args, tokio: &Runtime) -> anyhow::Result<()> {
    build(&["--release", "--package", "runtime", "--example", PROGRAM])?;
    tokio.block_on(repeat(args.runs, &format!("{} objects", args.objects), async || measured(args).await))
}

async fn measured(args: &Args) -> anyhow::Result<Vec<Figure>> {
    let api = GeneratedApi::start(args.objects).await?;
    let began = Instant::now();
    let mut engine = Engine::start(&api.url(), args.objects)?;
    engine.says("all").await?;
    let (wall, cpu) = (began.elapsed(), machine::cpu_seconds(engine.pid)?);
    tokio::time::sleep(SETTLE).await;
    let resident = machine::resident_mib(engine.pid)?;
    let peak = machine::peak_resident_mib(engine.pid)?;

    let mut ticks = tokio::time::interval(BETWEEN_EVENTS);
    for event in 0..EVENTS {
        ticks.tick().await;
        api.modify(&Object::numbered(event % args.objects).sent_now()?).await?;
    }
    let delays = engine.reaches(&api, "events").await?;

    let shaping = args.churn / SHAPING_SHARE;
    let began = Instant::now();
    let cpu_before = machine::cpu_seconds(engine.pid)?;
    api.churn(args.objects, 0..shaping).await?;
    engine.reaches(&api, "shaped").await?;
    tokio::time::sleep(SETTLE).await;
    let shaped = machine::resident_mib(engine.pid)?;
    api.churn(args.objects, shaping..args.churn).await?;
    engine.reaches(&api, "churned").await?;
    let churn = began.elapsed().saturating_sub(SETTLE);
    let churn_cpu = machine::cpu_seconds(engine.pid)? - cpu_before;
    tokio::time::sleep(SETTLE).await;
    let churned = machine::resident_mib(engine.pid)?;
    let tens_of_thousands = (args.churn - shaping) as f64 / 1e4;
    engine.end().await?;
    Ok(vec![
        Figure::new("start -> all reconciled without a write, s", wall.as_secs_f64()),
        Figure::new("  CPU, s", cpu).at_most(0.25),
        Figure::new("  resident memory after, MiB", resident).at_most(50.0),
        Figure::new("  resident memory at its peak, MiB", peak),
        Figure::new("event sent -> its reconcile starts, p50, ms", delays.p50_ms).at_most(1.0),
        Figure::new("event sent -> its reconcile starts, p99, ms", delays.p99_ms),
        Figure::new("churn: objects that came and went", args.churn as f64),
        Figure::new("  took, s", churn.as_secs_f64()),
        Figure::new("  CPU, s", churn_cpu),
        Figure::new("  resident memory after a tenth, MiB", shaped),
        Figure::new("  resident memory after all, MiB", churned),
        Figure::new("  growth from there per 10 000 objects, MiB", (churned - shaped) / tens_of_thousands)
            .at_most(1.0),
    ])
}

/// The process with the engine. It ends with this value.
struct Engine {
    process: Child,
    pid: u32,
    lines: Lines<BufReader<ChildStdout>>,
}

struct Delays {
    p50_ms: f64,
    p99_ms: f64,
}

impl Engine {
    fn start(url: &str, objects: u64) -> anyhow::Result<Self> {
        let program = target_folder()?.join("release/examples").join(PROGRAM);
        let mut process = Command::new(&program)
            .arg(url)
            .arg(objects.to_string())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("failed to start {}", program.display()))?;
        let output = process.stdout.take().context("the engine has no standard output")?;
        let pid = process.id().context("the engine ended at once")?;
        Ok(Self { process, pid, lines: BufReader::new(output).lines() })
    }

    /// Waits for this line.
    async fn says(&mut self, expected: &str) -> anyhow::Result<String> {
        let line = async {
            while let Some(line) = self.lines.next_line().await.context("failed to read from the engine")? {
                if line.starts_with(expected) {
                    return Ok(line);
                }
            }
            bail!("the engine ended before it said {expected:?}")
        };
        timeout(PATIENCE, line)
            .await
            .with_context(|| format!("the engine did not say {expected:?} within {} s", PATIENCE.as_secs()))?
    }

    /// Sends a marked object and waits until the engine has reached it.
    async fn reaches(&mut self, api: &GeneratedApi, mark: &str) -> anyhow::Result<Delays> {
        api.add(&Object::marked(mark)).await?;
        let line = self.says(&format!("marked {mark} ")).await?;
        let fields: Vec<f64> = line.split(' ').skip(3).filter_map(|field| field.parse().ok()).collect();
        match fields.as_slice() {
            [p50, p99] => Ok(Delays { p50_ms: p50 / 1e3, p99_ms: p99 / 1e3 }),
            _ => bail!("the engine said {line:?}, which is no mark with two delays"),
        }
    }

    async fn end(mut self) -> anyhow::Result<()> {
        self.process.kill().await.context("failed to end the engine")
    }
}
