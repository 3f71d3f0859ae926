//! `agent` is the worker that ships with AIDispatcher. It keeps the contract of agents (`docs/agents-contract.md`).
//!
//! ```text
//!  client ─▶ server ─┬─▶ siblings ─▶ another worker, which holds the session
//!                    └─▶ worker ─▶ queue ─▶ prompts, memory, model ─▶ session ─▶ store (STATE_DIR)
//!  monitor ─▶ /metrics
//! ```
//!
//! It takes tasks over HTTP, and does those of one session one after the other. It calls no tools, runs no code and
//! sends no request to an API server.
//!
//! **Invariant:** a task that was accepted is in the file of its session until it has ended. An id is done once, as
//! long as its answer is kept. The key of the model is in no log, no error and no request to another host.
//!
//! Files:
//!
//! - `cli.rs`: the command line.
//! - `server.rs`: the HTTP interface; what clients send and what they get is in `server`.
//! - `siblings.rs`: which worker holds a session.
//! - `hand_over.rs`: gives the sessions of a worker that ends to its siblings.
//! - `worker.rs`: takes tasks, does them and saves; its header lists its parts.
//! - `session.rs`: messages, summary, tasks and answers of a session.
//! - `session/store.rs`: the files of sessions.
//! - `model.rs`: calls the model.
//! - `memory.rs`: records of the memory, and the nearest ones.
//! - `connections.rs`: HTTP clients.
//! - `sse.rs`: server-sent events.
//! - `metrics.rs`: the page `/metrics`.
//! - `log.rs`: the log of the contract.

#![forbid(unsafe_code)]

mod cli;
mod connections;
mod hand_over;
mod log;
mod memory;
mod metrics;
mod model;
mod server;
mod session;
mod siblings;
mod sse;
mod worker;

use std::{
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use clap::Parser as _;
use serde_json::json;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use cli::Arguments;
use hand_over::{hand_over_all, hand_over_idle};
use log::Log;
use memory::{Loaded, Memory};
use model::Model;
use server::Server;
use session::store::Store;
use siblings::Siblings;
use worker::{Settings, Worker};

/// Of the time after SIGTERM, for sessions whose tasks take all of it. A grace of less than 20 s gives a quarter.
const HAND_OVER_AT_LEAST: Duration = Duration::from_secs(5);
/// Threads that wait for the disk and for names. Each takes memory.
const WAITING_THREADS: usize = 8;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // One thread is enough: the model does the work. Each further thread takes memory.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(WAITING_THREADS)
        .build();
    let ended = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let ended = runtime.block_on(run(&arguments));
        // A thread that waits for a hanging volume must not delay the exit.
        runtime.shutdown_background();
        ended
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print(&json!({"severityText": "ERROR", "body": format!("{error:#}")}));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
    let log = Arc::new(Log::open(arguments.log_file.as_deref()).context("failed to open the log file")?);
    let (port, metrics_port) = (arguments.port, arguments.metrics_port);
    anyhow::ensure!(
        port != metrics_port || port == 0,
        "AGENT_PORT and AGENT_METRICS_PORT are both {port}: set another port in spec.service.port"
    );
    let id = format!("{:032x}", fastrand::u128(..));
    let worker = worker(arguments, id.clone(), &log)?;
    let own = arguments.pod_ip().map(|address| (address, port));
    let siblings = Siblings::new(arguments.peers(), own, id, arguments.restore_within());
    let siblings = siblings.context("failed to prepare connections to siblings")?;
    let server = Arc::new(Server::new(
        worker.clone(),
        siblings,
        log.clone(),
        arguments.task_within(),
        arguments.restore_within(),
        started,
    ));
    let tasks = listen(arguments.address, port).await?;
    let metrics = listen(arguments.address, metrics_port).await?;
    let ports = json!({"tasks": tasks.local_addr()?, "metrics": metrics.local_addr()?});
    print(&json!({"severityText": "INFO", "body": "listening", "attributes": ports}));
    let counts = worker.counts();
    log.info("started", &json!({"role": arguments.role, "unfinished": counts.waiting}));

    let (end, closed) = (CancellationToken::new(), CancellationToken::new());
    let mut servers = JoinSet::new();
    let limits = server.limits();
    servers.spawn(daemon::http::serve(limits, tasks, server::tasks(server.clone()), closed.clone()));
    servers.spawn(daemon::http::serve(
        daemon::http::LIMITS,
        metrics,
        server::metrics(server.clone()),
        closed.clone(),
    ));
    let for_sessions = match server.siblings().are_none() {
        true => Duration::ZERO,
        false => HAND_OVER_AT_LEAST.min(arguments.grace() / 4),
    };
    let for_tasks = arguments.grace() - for_sessions;
    let mut work = tokio::spawn(worker.clone().work(end.clone(), for_tasks));
    tokio::select! {
        ended = &mut work => {
            ended.context("the task that does the work has failed")?;
            anyhow::bail!("the task that does the work has ended");
        }
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let until = Instant::now() + arguments.grace();
    worker.refuse_tasks();
    end.cancel();
    // Until then new tasks are refused, and the metrics are served. Sessions without tasks need not wait for the others.
    let siblings = server.siblings();
    tokio::select! {
        ended = work => ended.context("the task that does the work has failed")?,
        () = hand_over_idle(&worker, siblings, &log, until - for_sessions) => {}
    }
    hand_over_all(&worker, siblings, &log, until).await;
    server.answered(until).await;
    closed.cancel();
    while servers.join_next().await.is_some() {}
    Ok(())
}

fn worker(arguments: &Arguments, id: String, log: &Arc<Log>) -> anyhow::Result<Worker> {
    let model = Model::new(
        arguments.model_endpoint(),
        arguments.model_api_key(),
        arguments.model(),
        arguments.embedding_model(),
    );
    if let Some(fault) = model.fault() {
        log.warn("each task will fail", &json!({"error": fault}));
    }
    let loaded = arguments.memory_dir.as_deref().map(|folder| memory::load(folder, arguments.memory_bytes));
    let (memory, loaded): (Memory, Loaded) =
        loaded.transpose().context("failed to read the memory")?.unwrap_or_default();
    let Loaded { records, left_out, unusable } = loaded;
    if records + left_out + unusable > 0 {
        let counts = json!({"records": records, "left_out": left_out, "unusable": unusable});
        log.info("memory loaded", &counts);
    }
    let store = Store::open(&arguments.state_dir).context("failed to open STATE_DIR")?;
    let settings = Settings {
        role: arguments.role.clone(),
        prompts: arguments.prompts_dir.clone(),
        context_tokens: arguments.context_tokens(),
        task_within: arguments.task_within(),
        concurrency: arguments.concurrency(),
        queue: arguments.queue(),
    };
    Worker::open(id, settings, store, model, memory, log.clone()).context("failed to read the state")
}

/// On both families of addresses where the system has both.
async fn listen(address: IpAddr, port: u16) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind((address, port)).await;
    let listener = match listener {
        Err(_) if address.is_unspecified() => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        listener => listener,
    };
    listener.with_context(|| format!("failed to listen on {}", SocketAddr::from((address, port))))
}

/// The start and the end of the process, for `kubectl logs`.
fn print(line: &serde_json::Value) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
