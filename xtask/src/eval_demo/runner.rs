//! Runs the eval-runner as its pod would: with a file for the termination message, without the variables of the user.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use api::launcher::evaluator::{API_KEY, Message};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    signal::unix::{self, SignalKind},
    time::{sleep, timeout},
};

/// The runner ends within it, harness included.
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// Twice as long as it may take.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
/// Between two looks at its end and its memory.
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(super) struct Runner {
    program: PathBuf,
    /// Of this command alone; it ends with it.
    folder: PathBuf,
    /// Ctrl-C, and what `kill` sends.
    interruptions: [unix::Signal; 2],
    /// Of the servers; empty: none.
    key: String,
}

/// What a run has found, and what it took.
pub(super) struct Ended {
    pub(super) message: Message,
    pub(super) took: Duration,
    /// The most memory that the runner had, without the harness. Unknown where there is no `/proc`.
    pub(super) most_kib: Option<u64>,
}

impl Runner {
    pub(super) fn new(program: PathBuf, folder: &Path, key: String) -> anyhow::Result<Self> {
        let signal = |kind| unix::signal(kind).context("failed to prepare for an interruption");
        let interruptions = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?];
        let home = folder.join("home");
        fs::create_dir(&home).with_context(|| format!("failed to create {}", home.display()))?;
        Ok(Self { program, folder: folder.to_owned(), interruptions, key })
    }

    /// `subcommand`, and its arguments. An error if it does not end by itself, or ends with an error.
    pub(super) async fn run(
        &mut self,
        what: &str,
        subcommand: &str,
        arguments: Vec<OsString>,
        within: Duration,
    ) -> anyhow::Result<Ended> {
        let began = Instant::now();
        let (mut child, files) = self.start(subcommand, arguments)?;
        let mut most_kib = None;
        let watched = async {
            loop {
                if let Some(status) = child.try_wait().context("failed to wait for the eval-runner")? {
                    break anyhow::Ok(status);
                }
                most_kib = most_kib.max(child.id().and_then(most_memory));
                sleep(LOOK_EVERY).await;
            }
        };
        let status = tokio::select! {
            status = watched => status?,
            () = sleep(within) => {
                stop(&mut child).await;
                let seconds = within.as_secs();
                bail!("{what} took more than {seconds} s; the last lines:\n{}", files.last_lines());
            }
            () = interrupted(&mut self.interruptions) => {
                stop(&mut child).await;
                bail!("interrupted: {what} was stopped");
            }
        };
        let took = began.elapsed();
        if status.success() {
            return Ok(Ended { message: files.message()?, took, most_kib });
        }
        // The log has more than the message, which a program that was killed has not written.
        bail!("{what} failed, with {status}; the last lines:\n{}", files.last_lines());
    }

    fn start(&self, subcommand: &str, arguments: Vec<OsString>) -> anyhow::Result<(Child, Files)> {
        let files = Files { message: self.folder.join("termination-log"), log: self.folder.join("log") };
        let create =
            |path: &Path| File::create(path).with_context(|| format!("failed to create {}", path.display()));
        create(&files.message)?;
        let log = create(&files.log)?;
        let errors = log.try_clone().context("failed to share the log")?;
        let mut command = Command::new(&self.program);
        // What follows `--` is of the harness.
        command.arg(subcommand).arg("--termination-log").arg(&files.message).args(arguments);
        // A proxy of the user would get the requests to loopback. Caches go with the folder.
        let home = self.folder.join("home");
        command.env_clear().envs(env::var_os("PATH").map(|path| ("PATH", path)));
        command.env("HOME", &home).env("TMPDIR", &home);
        if !self.key.is_empty() {
            command.env(API_KEY, &self.key);
        }
        command.stdin(Stdio::null()).stdout(log).stderr(errors).kill_on_drop(true);
        let child = command.spawn();
        let child = child.with_context(|| format!("failed to start {}", self.program.display()))?;
        Ok((child, files))
    }
}

struct Files {
    message: PathBuf,
    log: PathBuf,
}

impl Files {
    fn message(&self) -> anyhow::Result<Message> {
        let text = fs::read_to_string(&self.message).context("failed to read the termination message")?;
        serde_json::from_str(&text).with_context(|| format!("the termination message is invalid: {text:?}"))
    }

    fn last_lines(&self) -> String {
        const LINES: usize = 20;
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

async fn interrupted([one, other]: &mut [unix::Signal; 2]) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}

/// The runner ends its harness first.
async fn stop(child: &mut Child) {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(id) = id {
        // It may have ended by now.
        let _ = kill_process(id, Signal::TERM);
    }
    if timeout(ENDS_WITHIN, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// The high-water mark that the kernel keeps.
fn most_memory(id: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}
