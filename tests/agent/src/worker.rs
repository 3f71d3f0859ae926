//! The worker: one task at a time, in the order of their arrival.

use std::{
    fs::OpenOptions,
    io::Write as _,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    routing::{get, post},
};
use serde::Serialize;
use serde_json::json;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::Notify,
    time::sleep,
};

use crate::{
    WorkerArgs,
    sessions::{Sessions, Task},
};

/// Tokens of each character of a task's text.
const TOKENS_PER_CHARACTER: u64 = 10;

#[derive(Clone)]
struct Worker(Arc<Shared>);

struct Shared {
    held: Mutex<Held>,
    arrived: Notify,
    log: Option<PathBuf>,
    started: f64,
}

struct Held {
    sessions: Sessions,
    /// The task in hand.
    in_hand: Option<Task>,
    tokens: u64,
    is_ending: bool,
    restored: Vec<String>,
    restored_count: u64,
    memories: usize,
}

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    sessions: Sessions,
    in_hand: Option<Task>,
    /// Sessions that were there at the start.
    restored: Vec<String>,
    /// The count at the start.
    restored_count: u64,
    /// Lines of the memory.
    memories: usize,
}

pub(crate) async fn work(args: WorkerArgs) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let sessions = Sessions::read(&args.state).context("failed to read the state")?;
    let memories = args.memory.as_deref().map(|folder| std::fs::read_to_string(folder.join("memory.jsonl")));
    let memories = memories.transpose().context("failed to read the memory")?;
    let held = Held {
        restored: sessions.sessions.keys().cloned().collect(),
        restored_count: sessions.count,
        sessions,
        in_hand: None,
        tokens: 0,
        is_ending: false,
        memories: memories.map_or(0, |text| text.lines().count()),
    };
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let worker =
        Worker(Arc::new(Shared { held: Mutex::new(held), arrived: Notify::new(), log: args.log, started }));
    worker.log("started", &json!({"sessions": worker.held().restored.len()}));
    let tasks = Router::new()
        .route("/tasks", post(take))
        .route("/sessions", get(sessions_of))
        .with_state(worker.clone());
    let metrics = Router::new().route("/metrics", get(metrics)).with_state(worker.clone());
    let listen = async |port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await;
    let tasks = axum::serve(listen(args.port).await.context("failed to listen for tasks")?, tasks);
    tokio::spawn(async move { tasks.await });
    if !args.without_metrics {
        let metrics =
            axum::serve(listen(args.metrics_port).await.context("failed to listen for scrapes")?, metrics);
        tokio::spawn(async move { metrics.await });
    }
    let (state, busy) = (args.state.clone(), worker.clone());
    let failure = async {
        match args.fails_after {
            Some(millis) => sleep(Duration::from_millis(millis)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = terminate.recv() => {}
        never = busy.forever(&state) => never?,
        never = busy.count(&state, args.counts_every) => never?,
        () = failure => anyhow::bail!("the test wants this worker to fail"),
    }
    sleep(Duration::from_millis(args.ends_after)).await;
    // The task in hand was not finished: the next worker with this state resumes it.
    let sessions = {
        let mut held = worker.held();
        held.is_ending = true;
        let mut sessions = held.sessions.clone();
        held.in_hand.iter().for_each(|task| sessions.waiting.push_front(task.clone()));
        sessions
    };
    sessions.write(&args.state).context("failed to write the state")?;
    worker.log("ended", &json!({"sessions": sessions.sessions.len(), "waiting": sessions.waiting.len()}));
    Ok(())
}

impl Worker {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the tasks, and writes the state after each.
    async fn forever(&self, state: &std::path::Path) -> anyhow::Result<()> {
        loop {
            let next = {
                let mut held = self.held();
                held.in_hand = held.sessions.waiting.pop_front();
                held.in_hand.clone()
            };
            let Some(task) = next else {
                self.0.arrived.notified().await;
                continue;
            };
            sleep(Duration::from_millis(task.millis)).await;
            let sessions = {
                let mut held = self.held();
                held.in_hand = None;
                held.tokens += task.text.chars().count() as u64 * TOKENS_PER_CHARACTER;
                held.sessions.done(task.clone());
                held.sessions.clone()
            };
            sessions.write(state).context("failed to write the state")?;
            self.log("done", &json!({"session": task.session}));
        }
    }

    /// Counts in the state, every so many milliseconds.
    async fn count(&self, state: &std::path::Path, every: Option<u64>) -> anyhow::Result<()> {
        let Some(every) = every else { return std::future::pending().await };
        loop {
            sleep(Duration::from_millis(every)).await;
            let sessions = {
                let mut held = self.held();
                held.sessions.count += 1;
                held.sessions.clone()
            };
            sessions.write(state).context("failed to write the state")?;
        }
    }

    /// One JSON object per line, as the contract has it.
    fn log(&self, body: &str, attributes: &serde_json::Value) {
        let Some(path) = &self.0.log else { return };
        let line = json!({"severityText": "INFO", "body": body, "attributes": attributes});
        let file = OpenOptions::new().create(true).append(true).open(path);
        // A test that reads the log finds out.
        let _ = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    }
}

async fn take(State(worker): State<Worker>, Json(task): Json<Task>) -> StatusCode {
    let mut held = worker.held();
    if held.is_ending {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    held.sessions.waiting.push_back(task);
    worker.0.arrived.notify_one();
    StatusCode::ACCEPTED
}

async fn sessions_of(State(worker): State<Worker>) -> Json<Answer> {
    let held = worker.held();
    Json(Answer {
        sessions: held.sessions.clone(),
        in_hand: held.in_hand.clone(),
        restored: held.restored.clone(),
        restored_count: held.restored_count,
        memories: held.memories,
    })
}

async fn metrics(State(worker): State<Worker>) -> String {
    let held = worker.held();
    let (queued, in_flight) = (held.sessions.waiting.len(), usize::from(held.in_hand.is_some()));
    format!(
        "# TYPE agent_queue_depth gauge\nagent_queue_depth {queued}\n\
         # TYPE agent_tasks_in_flight gauge\nagent_tasks_in_flight {in_flight}\n\
         # TYPE agent_tokens_total counter\nagent_tokens_total {}\n\
         # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {}\n",
        held.tokens, worker.0.started
    )
}
