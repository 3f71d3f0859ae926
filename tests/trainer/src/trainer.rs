//! The process of one rank: steps, log lines, checkpoints, and how the training ends.
//!
//! With the callback `graceful_exit` it saves and ends after the step in which the stop file appears, or in which it
//! gets SIGTERM. Under torchrun SIGTERM kills the workers of its data loader first, and it fails without a checkpoint.
//! PPO has a loop of its own, which saves after each step from then on, and does not end; neither does it resume at a
//! step.

use std::{
    env,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::PathBuf,
    process,
    time::{Duration, SystemTime},
};

use rustix::process::{Pid, Signal, getpid, kill_process};
use serde_json::{Value, json};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

use crate::{
    SLEEPER,
    arguments::Arguments,
    checkpoint,
    faults::{self, Faults},
    hub,
    lines::{self, OUT_OF_MEMORY, Progress},
    milliseconds, number, print, print_error, role,
};

/// Bytes of one line of noise.
const NOISE: usize = 200;

pub(crate) fn run(arguments: &[String]) -> i32 {
    if is_distributed() {
        let _ = rustix::process::setsid();
    }
    write_arguments(arguments);
    let parsed = match Arguments::parse(arguments) {
        Ok(parsed) => parsed,
        Err(refusal) => {
            print_error(&refusal.text);
            return refusal.code;
        }
    };
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(Training::new(parsed).run()),
        Err(_) => 1,
    }
}

fn is_distributed() -> bool {
    env::var_os("RANK").is_some()
}

/// How a step ends the training.
enum End {
    /// By itself.
    Finished,
    /// With this exit code, at once.
    Failed(i32),
}

struct Training {
    arguments: Arguments,
    faults: Faults,
    rank: u64,
    stop_file: PathBuf,
    /// Stopped by SIGTERM or by the stop file.
    is_asked: bool,
    last: Option<i64>,
}

impl Training {
    fn new(arguments: Arguments) -> Self {
        let rank = number("RANK").unwrap_or(0);
        let faults = Faults::of(&arguments.datasets, rank);
        let stop_file =
            env::var_os("FAKE_SWIFT_STOP_FILE").map_or_else(|| PathBuf::from("/tmp/stop"), PathBuf::from);
        Self { arguments, faults, rank, stop_file, is_asked: false, last: None }
    }

    async fn run(mut self) -> i32 {
        let total = self.arguments.max_steps;
        self.info(&format!("output_dir: {}", self.arguments.output.display()));
        sleep(milliseconds("FAKE_SWIFT_START_MS", 0)).await;
        if let Err(error) = hub::load(&self.arguments) {
            print_error(&lines::traceback(&error, self.rank_prefix()));
            return 1;
        }
        // Without the callback, SIGTERM ends the process.
        let mut terminate = match self.arguments.exits_gracefully {
            true => signal(SignalKind::terminate()).ok(),
            false => None,
        };
        if self.faults.since("deaf", 0) {
            terminate = signal(SignalKind::terminate()).ok();
        }
        self.info(&format!(
            "The logging file will be saved in: {}",
            self.arguments.output.join("logging.jsonl").display()
        ));
        let resumed = self.arguments.resume.as_deref().and_then(checkpoint::step_of);
        let first = resumed.filter(|_| !self.arguments.is_ppo).unwrap_or(0);
        self.bar(first);
        let mut done = first;
        for step in first + 1..=total {
            let slow = self.faults.value("slow").filter(|_| self.faults.since("slow", step));
            let duration =
                slow.map_or_else(|| milliseconds("FAKE_SWIFT_STEP_MS", 100), Duration::from_millis);
            tokio::select! {
                () = sleep(duration) => {}
                () = terminated(&mut terminate) => {
                    if is_distributed() && !self.faults.since("deaf", step) {
                        let pid = process::id() + 1;
                        let worker = format!("DataLoader worker (pid {pid})");
                        let error = format!("RuntimeError: {worker} is killed by signal: Terminated. ");
                        print_error(&lines::traceback(&error, Some(self.rank)));
                        return 1;
                    }
                    self.is_asked = true;
                }
            }
            done = step;
            match self.step(step).await {
                None => {}
                Some(End::Finished) => break,
                Some(End::Failed(code)) => return code,
            }
        }
        if self.rank == 0 {
            print(&lines::summary(Progress { step: done, total }, &self.arguments));
        }
        self.bar(done);
        if self.arguments.has_bar && self.rank == 0 {
            print_error("\n");
        }
        self.report_last();
        self.info("End time of running main: 2026-11-20 20:40:19.815594");
        0
    }

    async fn step(&mut self, step: i64) -> Option<End> {
        let total = self.arguments.max_steps;
        if let Some(code) = self.fail(step).await {
            return Some(End::Failed(code));
        }
        append("FAKE_SWIFT_STEPS", &json!({"step": step, "rank": self.rank, "host": host(), "at": now()}));
        self.bar(step);
        if self.rank == 0 && (step == 1 || step % self.arguments.logging_steps == 0) {
            print(&lines::step(Progress { step, total }, &self.arguments));
        }
        let is_deaf = self.faults.since("deaf", step);
        self.is_asked |= self.arguments.exits_gracefully && self.stop_file.exists();
        let stops = self.is_asked && !is_deaf;
        let is_early = self.faults.at("early-stop", step) || self.faults.at("early-stopping", step);
        let saves = stops || is_early || step == total || step % self.arguments.save_steps == 0;
        if saves && let Err(error) = self.save(step).await {
            print_error(&lines::traceback(&format!("OSError: {error}"), self.rank_prefix()));
            self.report_last();
            return Some(End::Failed(1));
        }
        if self.faults.at("early-stop", step) {
            self.info(&format!("Training stop because of eval metric is stable at step {step}"));
        }
        (is_early || stops && !self.arguments.is_ppo).then_some(End::Finished)
    }

    /// The faults of a step that end the training.
    async fn fail(&self, step: i64) -> Option<i32> {
        let at = |name: &str| self.faults.at(name, step);
        if at("kill-rank") && self.faults.value("kill-rank").unwrap_or(0) == self.rank {
            kill(getpid());
        }
        if self.rank > 0 && !at("hang") {
            return None;
        }
        if at("noise") {
            make_noise(self.faults.value("noise").unwrap_or(8 << 20));
        }
        if at("orphan") {
            drop(role(SLEEPER, &[]).spawn());
        }
        if at("hang") {
            faults::hang().await;
        }
        if at("host-oom") {
            kill(getpid());
        }
        if at("oom") {
            self.info("last_model_checkpoint: None");
            print_error(&lines::traceback(OUT_OF_MEMORY, self.rank_prefix()));
            return Some(1);
        }
        if at("secret") {
            let token = env::var("HF_TOKEN").unwrap_or_default();
            print_error(&lines::traceback(
                &format!("ValueError: the hub refuses {token}"),
                self.rank_prefix(),
            ));
            return Some(1);
        }
        if at("no-newline") {
            print_error("ValueError: an unfinished line");
            return Some(1);
        }
        if at("exit0") {
            return Some(0);
        }
        at("exit").then(|| self.faults.value("exit").unwrap_or(1))
    }

    async fn save(&mut self, step: i64) -> io::Result<()> {
        if self.rank > 0 {
            return Ok(());
        }
        let folder = checkpoint::folder(&self.arguments, step);
        self.info(&format!("Saving model checkpoint to {}", folder.display()));
        checkpoint::write_files(&self.arguments, step)?;
        sleep(milliseconds("FAKE_SWIFT_SAVE_MS", 0)).await;
        if self.faults.at("half", step) {
            kill(getpid());
        }
        if self.faults.at("disk-full", step) {
            fill(&folder, self.faults.value("disk-full"))?;
        }
        checkpoint::write_state(&self.arguments, step, self.faults.at("early-stopping", step))?;
        self.last = Some(step);
        Ok(())
    }

    fn report_last(&self) {
        let last = self.last.map(|step| checkpoint::folder(&self.arguments, step).display().to_string());
        self.info(&format!("last_model_checkpoint: {}", last.unwrap_or_else(|| "None".to_owned())));
        self.info("best_model_checkpoint: None");
    }

    fn info(&self, text: &str) {
        if self.rank == 0 {
            print_error(&format!("[INFO:swift] {text}\n"));
        }
    }

    fn bar(&self, step: i64) {
        if self.arguments.has_bar && self.rank == 0 {
            print_error(&lines::bar(Progress { step, total: self.arguments.max_steps }));
        }
    }

    fn rank_prefix(&self) -> Option<u64> {
        is_distributed().then_some(self.rank)
    }
}

async fn terminated(terminate: &mut Option<tokio::signal::unix::Signal>) {
    match terminate {
        Some(terminate) => drop(terminate.recv().await),
        None => std::future::pending().await,
    }
}

fn kill(pid: Pid) {
    let _ = kill_process(pid, Signal::KILL);
    std::thread::sleep(Duration::from_secs(600));
}

/// Lines of text, carriage returns, bytes that are no text, and an error now and then, on both streams.
fn make_noise(bytes: usize) {
    let mut line = vec![b'x'; NOISE];
    line.extend(b"\r\x00\xff\x1b[31m {'loss': broken\n");
    let mut stdout = io::stdout().lock();
    let mut stderr = io::stderr().lock();
    for _ in 0..bytes / line.len() {
        let _ = stdout.write_all(&line);
        let _ = stderr.write_all(&line);
    }
    let _ = stdout.flush();
}

/// Writes until the volume is full. With a limit, it says so after that many bytes.
fn fill(folder: &std::path::Path, limit: Option<usize>) -> io::Result<()> {
    let mut file = File::create(folder.join("optimizer.pt"))?;
    let chunk = vec![0; 1 << 20];
    let mut written = 0;
    while limit.is_none_or(|limit| written < limit) {
        file.write_all(&chunk)?;
        written += chunk.len();
    }
    Err(io::Error::other("[Errno 28] No space left on device"))
}

fn write_arguments(arguments: &[String]) {
    let rank = number("RANK").unwrap_or(0);
    append(
        "FAKE_SWIFT_ARGUMENTS",
        &json!({"arguments": arguments, "rank": rank, "host": host(), "at": now()}),
    );
}

/// A line in the file that an environment variable names.
fn append(variable: &str, line: &Value) {
    let Some(path) = env::var_os(variable) else { return };
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path) {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

/// The name of the pod.
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// In seconds.
fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
