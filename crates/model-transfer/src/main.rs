//! `model-transfer` copies a model between an S3-compatible store and a folder, or from a hub into a folder.
//!
//! `pull` is the init container of a model server. `push` runs after a training run, and `check-store` before it.
//! `check` looks at a model that is there already. `pre-stop` is the preStop hook of the engine that serves the model,
//! and `alive` its liveness probe.
//!
//! A run that is interrupted at any point is resumed by the next run. The exit code and the last line of the log give
//! the reason of a failure; the line is also written to the termination log. README.md lists both for users.
//!
//! **Invariant:** a file that is in place is complete and was checked against the strongest checksum that the store
//! gave. Memory does not grow with the model. The program prints no credentials. It writes only to the folder, to the
//! folder of `--install` and to the termination log, and follows no link out of the folder.
//!
//! Its tests run against a real S3 server through a proxy that breaks connections and bytes.
//!
//! Files:
//!
//! - `cli.rs`: the command line.
//! - `pull.rs`: copies everything below a prefix into a folder; its parts are in `pull`.
//! - `push.rs`: uploads everything in a folder below a prefix; its parts are in `push`.
//! - `push/check_store.rs`: whether a push may be expected to work.
//! - `check.rs`: whether a folder holds a model that an engine can load.
//! - `check/contents.rs`: what a model consists of, and whether other pods have the same.
//! - `engine/pre_stop.rs`: the preStop hook; its parts are in `pre_stop`.
//! - `engine/alive.rs`: the liveness probe.
//! - `hub.rs`: a model on Hugging Face, ModelScope or a mirror: its list of files, and their bytes; its parts are in
//!   `hub`.
//! - `selection.rs`: which files of a hub are copied.
//! - `store.rs`: the only file that speaks to the store, through `crates/object-storage`.
//! - `store/keys.rs`: decides which keys may become paths.
//! - `store/markers.rs`: objects that stand for empty folders.
//! - `store/requests.rs`: retries of requests to a store or a hub.
//! - `store/retry.rs`: waits between attempts.
//! - `tree.rs`: opens paths below a root and follows no link.
//! - `location.rs`: parses `s3://bucket/prefix`, `hf://owner/name` and `ms://owner/name`.
//! - `digest.rs`: expected checksums, and their verification.
//! - `digest/sums.rs`: parses and writes `SHA256SUMS`.
//! - `space.rs`: checks the space for a model.
//! - `progress.rs`: progress of a transfer.
//! - `fault.rs`: the reason of a failed transfer.
//! - `fault/visitor.rs`: what a refusal of a hub means to the user.

#![forbid(unsafe_code)]

mod check;
mod cli;
mod digest;
mod engine;
mod fault;
mod hub;
mod location;
mod progress;
mod pull;
mod push;
mod selection;
mod space;
mod store;
mod tree;

use std::{io, num::NonZero, ops::RangeInclusive, path::Path, process::ExitCode, thread, time::Duration};

use clap::Parser;
use directory::install::Failed;
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};
use tracing::{error, info};

use check::contents;
use cli::{Alive, Arguments, Check, Command, Options, Transfer};
use engine::{alive, pre_stop};
use fault::{Cause, Fault};
use push::check_store;

/// The name of its copy.
const PROGRAM: &str = "model-transfer";

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // A probe has the environment of the engine. A variable that it cannot read is no fault of the engine.
        Err(error) if std::env::args().nth(1).as_deref() == Some("alive") => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => error.exit(),
    };
    progress::install_log();
    let done = match &arguments.command {
        Command::PreStop(wanted) => Ok(pre_stop::pre_stop(wanted)),
        Command::Alive(wanted) => return probe(wanted, &arguments.options),
        Command::Transfer(wanted) => run(wanted, &arguments.options),
    };
    match done {
        Ok(summary) => {
            info!("{summary}");
            ExitCode::SUCCESS
        }
        Err(fault) => {
            error!("{fault}");
            fault::write_termination_log(&arguments.options.termination_log, &fault.to_string());
            ExitCode::from(fault.cause.exit_code())
        }
    }
}

/// The kubelet shows what a probe that fails prints.
fn probe(wanted: &Alive, options: &Options) -> ExitCode {
    // Fails only if one is installed already, which is then used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string());
    let asked = runtime.and_then(|runtime| runtime.block_on(alive::alive(wanted, &options.termination_log)));
    let (text, code) = match asked {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(text) => (text, ExitCode::FAILURE),
    };
    let _ = io::Write::write_all(&mut io::stdout(), format!("{text}\n").as_bytes());
    code
}

/// Threads for the connections: one per processor, and at least two, because a write may block one.
const WORKERS: RangeInclusive<usize> = 2..=8;

fn run(wanted: &Transfer, options: &Options) -> Result<String, Fault> {
    // Fails only if one is installed already, which is then used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Signals and the time-out have a thread of their own, because a volume that hangs may block all others.
    let watch =
        Builder::new_current_thread().enable_all().build().map_err(Fault::io("start", "the clock"))?;
    let start = || start(wanted.clone(), options.clone()).map_err(Fault::io("start", "threads"));
    watch.block_on(until_stopped(start, Duration::from_secs(options.timeout_seconds)))
}

/// Begins the transfer, on threads that end with the process: a write that hangs is not waited for, and its bytes are
/// fetched again by the next run.
fn start(wanted: Transfer, options: Options) -> io::Result<oneshot::Receiver<Result<String, Fault>>> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let workers = Builder::new_multi_thread()
        .worker_threads(processors.clamp(*WORKERS.start(), *WORKERS.end()))
        .enable_all()
        .build()?;
    let (sender, receiver) = oneshot::channel();
    let run = move || drop(sender.send(workers.block_on(transfer(wanted, options))));
    thread::Builder::new().name("transfer".to_owned()).spawn(run)?;
    Ok(receiver)
}

/// Copies this program to where the engine's container finds it: see `pre_stop`.
fn install(folder: Option<&Path>) -> Result<(), Fault> {
    let Some(folder) = folder else { return Ok(()) };
    let installed = directory::install::install(folder, PROGRAM);
    installed.map_err(|Failed { step, path, error }| Fault::io(step, &path)(error))
}

async fn transfer(wanted: Transfer, options: Options) -> Result<String, Fault> {
    match wanted {
        Transfer::Pull(wanted) => {
            install(wanted.install.as_deref())?;
            pull::pull(&wanted, &options).await
        }
        Transfer::Push { folder, destination } => push::push(&folder, &destination, &options).await,
        Transfer::CheckStore { destination, name } => {
            check_store::check_store(&destination, &name, &options).await
        }
        Transfer::Check(Check { folder, engine, root, deadline_seconds, install, siblings }) => {
            self::install(install.as_deref())?;
            let root = root.as_deref().unwrap_or(&folder);
            let within = Duration::from_secs(deadline_seconds);
            check::check(&folder, root, engine, within).await?;
            if let Some(loaded) = check::contents(&folder, root, engine, within).await {
                contents::keep(siblings.digest(), &folder.display().to_string(), &loaded)?;
                fault::write_termination_log(&options.termination_log, &loaded.message());
            }
            Ok(format!("{} holds a model", folder.display()))
        }
    }
}

/// The transfer, unless a signal or the clock ends it first; both leave a state that the next run resumes.
async fn until_stopped(
    start: impl FnOnce() -> Result<oneshot::Receiver<Result<String, Fault>>, Fault>,
    timeout: Duration,
) -> Result<String, Fault> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Fault::io("listen for", "SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Fault::io("listen for", "SIGINT"))?;
    let transfer = start()?;
    tokio::select! {
        biased;
        _ = terminate.recv() => Err(Fault::new(Cause::Stopped, "stopped by SIGTERM; the next run resumes")),
        _ = interrupt.recv() => Err(Fault::new(Cause::Stopped, "stopped by SIGINT; the next run resumes")),
        ended = tokio::time::timeout(timeout, transfer) => match ended {
            Ok(Ok(ended)) => ended,
            Ok(Err(_)) => Err(Fault::new(Cause::Local, "the thread of the transfer ended early")),
            Err(_) => Err(timed_out(timeout)),
        },
    }
}

fn timed_out(timeout: Duration) -> Fault {
    let seconds = timeout.as_secs();
    let message = format!("not done after {seconds} s; the next run resumes, or allow more seconds");
    Fault::new(Cause::Unreachable, message)
}
