//! `cargo xtask bench monitor`: the size of the monitor, and what it costs beside a worker at work.
//!
//! The monitor is the static release program that its image holds, in a process of its own on loopback. The worker is in this
//! process: it is scraped each second, its tokens grow with each scrape, and it appends a line to its log each second. One
//! subscriber reads the stream. The state of the worker stays as it is, and is saved into a folder with the interval that
//! pods have.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use proto::metrics::v1::{Metric, Snapshot, State};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    runtime::Runtime,
    task::JoinHandle,
    time::{interval, timeout},
};

use crate::{
    figures::{Figure, repeats::repeat},
    machine,
    source::{Source, next},
};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// Seconds that are measured
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=3_600))]
    seconds: u64,
    /// Repeats; medians are printed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=50))]
    runs: u32,
    /// Program of the monitor; `cargo xtask bench` builds the one that images hold
    #[arg(long, env = "BENCH_PROGRAM")]
    program: PathBuf,
}

/// Files of the state.
const FILES: usize = 16;
const FILE_BYTES: usize = 1 << 20;
const TOKENS_PER_SCRAPE: u64 = 100;
/// The first checkpoint has been saved, and the allocator has had a moment.
const SETTLE: Duration = Duration::from_secs(5);
/// For a scrape.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn run(args: &Args, tokio: &Runtime) -> anyhow::Result<()> {
    let size = fs::metadata(&args.program)
        .with_context(|| format!("failed to read {}", args.program.display()))?
        .len();
    tokio.block_on(repeat(args.runs, &format!("monitor, {} s", args.seconds), async || {
        let mut figures = vec![Figure::new("size of the program, MB", size as f64 / 1e6).at_most(8.0)];
        figures.extend(beside_a_worker(args).await?);
        Ok(figures)
    }))
}

async fn beside_a_worker(args: &Args) -> anyhow::Result<Vec<Figure>> {
    let folder = Folder::new()?;
    let worker = Worker::start(folder.log()).await?;
    let monitor = monitor(&args.program, &folder, worker.port)?;
    let mut stream = monitor.subscribe().await?;
    let settled = Instant::now() + SETTLE;
    while Instant::now() < settled {
        next(&mut stream).await?;
    }
    ensure!(folder.has_checkpoint(), "no checkpoint was saved");
    let (cpu, began) = (machine::cpu_seconds(monitor.pid())?, Instant::now());
    let (mut snapshots, mut tokens) = (0_u64, 0.0);
    while began.elapsed() < Duration::from_secs(args.seconds) {
        tokens = tokens_of(&next(&mut stream).await?)?;
        snapshots += 1;
    }
    let used = machine::cpu_seconds(monitor.pid())? - cpu;
    let elapsed = began.elapsed().as_secs_f64();
    // What it did is part of the measurement: one that does nothing is cheap.
    ensure!(snapshots + 2 >= args.seconds, "{snapshots} snapshots in {elapsed:.0} s");
    ensure!(tokens >= (args.seconds * TOKENS_PER_SCRAPE) as f64, "{tokens} tokens in {elapsed:.0} s");
    ensure!(folder.passed_on() >= args.seconds, "{} lines of the log", folder.passed_on());
    Ok(vec![
        Figure::new("resident memory, MiB", machine::resident_mib(monitor.pid())?).at_most(8.0),
        Figure::new("resident memory at its peak, MiB", machine::peak_resident_mib(monitor.pid())?),
        Figure::new("CPU, % of a core", 1e2 * used / elapsed).at_most(0.2),
    ])
}

fn tokens_of(snapshot: &Snapshot) -> anyhow::Result<f64> {
    let mut readings = snapshot.subjects.iter().flat_map(|subject| &subject.readings);
    let tokens =
        readings.find(|reading| reading.metric() == Metric::Tokens && reading.state() == State::Fresh);
    tokens.and_then(|reading| reading.value).context("the tokens are not fresh")
}

/// The volumes of a pod and the folder of checkpoints. It is removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        let folder = Self(std::env::temp_dir().join(format!("bench-monitor-{}", std::process::id())));
        for path in [folder.own(), folder.state(), folder.checkpoints()] {
            fs::create_dir_all(&path).with_context(|| format!("failed to create {}", path.display()))?;
        }
        for file in 0..FILES {
            let content = vec![u8::try_from(file)?; FILE_BYTES];
            fs::write(folder.state().join(format!("{file}.bin")), content)
                .context("failed to write a state")?;
        }
        Ok(folder)
    }

    fn own(&self) -> PathBuf {
        self.0.join("own")
    }

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    fn log(&self) -> PathBuf {
        self.0.join("agent.jsonl")
    }

    fn output(&self) -> PathBuf {
        self.0.join("stdout")
    }

    fn has_checkpoint(&self) -> bool {
        let mut folders = vec![self.checkpoints()];
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
                if path.is_dir() {
                    folders.push(path);
                } else if path.file_name().is_some_and(|name| name == "manifest.json") {
                    return true;
                }
            }
        }
        false
    }

    /// Lines of the worker's log that the monitor has passed on.
    fn passed_on(&self) -> u64 {
        let text = fs::read_to_string(self.output()).unwrap_or_default();
        text.lines().filter(|line| line.contains("\"done\"")).count() as u64
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A worker at work. It ends with this value.
struct Worker {
    port: u16,
    tasks: [JoinHandle<()>; 2],
}

impl Worker {
    async fn start(log: PathBuf) -> anyhow::Result<Self> {
        let mut file =
            File::options().create(true).append(true).open(log).context("failed to create a log")?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("failed to listen for scrapes")?;
        let port = listener.local_addr()?.port();
        let metrics = tokio::spawn(async move {
            let mut tokens = 0;
            while let Ok((mut stream, _)) = listener.accept().await {
                tokens += TOKENS_PER_SCRAPE;
                let body = page(tokens);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                // The head of a request is one packet on loopback.
                let _ = timeout(PATIENCE, stream.read(&mut [0; 4096])).await;
                let _ = timeout(PATIENCE, stream.write_all((head + &body).as_bytes())).await;
            }
        });
        let log = tokio::spawn(async move {
            let mut ticks = interval(Duration::from_secs(1));
            loop {
                ticks.tick().await;
                // The measurement fails if lines are missing.
                let _ = file.write_all(LINE.as_bytes());
            }
        });
        Ok(Self { port, tasks: [metrics, log] })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

const LINE: &str = "{\"severityText\":\"INFO\",\"body\":\"done\",\"attributes\":{\"session\":\"a\"}}\n";

fn page(tokens: u64) -> String {
    format!(
        "# TYPE agent_queue_depth gauge\nagent_queue_depth 3\n\
         # TYPE agent_tasks_in_flight gauge\nagent_tasks_in_flight 1\n\
         # TYPE agent_tokens_total counter\nagent_tokens_total {tokens}\n\
         # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1760000000\n"
    )
}

fn monitor(program: &Path, folder: &Folder, worker_port: u16) -> anyhow::Result<Source> {
    let output = File::create(folder.output()).context("failed to create a file")?;
    Source::start(
        Command::new(program)
            .args(["run", "--pool=demo/coder", "--role=coder", "--pod-name=coder-1", "--pod-uid=u"])
            .arg(format!("--worker-port={worker_port}"))
            .arg(format!("--folder={}", folder.own().display()))
            .arg(format!("--state={}", folder.state().display()))
            .arg(format!("--checkpoint-dir={}", folder.checkpoints().display()))
            .arg(format!("--log-file={}", folder.log().display()))
            .stdout(output),
    )
}
