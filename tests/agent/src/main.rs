//! An agent for tests on real nodes. It follows the contract of an AIDispatcher's workers: it takes tasks over HTTP, holds
//! sessions in memory, serves its load, writes its state after each task and on SIGTERM, and begins with the state that it finds.
//!
//! ```text
//!  test-agent                              is the worker
//!  test-agent task SESSION TEXT MILLIS     gives a task to the worker of this pod
//!  test-agent sessions                     prints the sessions of the worker of this pod
//! ```

#![forbid(unsafe_code)]

mod ask;
mod sessions;
mod worker;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "test-agent", version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    worker: WorkerArgs,
}

/// What the environment of a worker says.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct WorkerArgs {
    /// Port of tasks and sessions
    #[arg(long, env = "AGENT_PORT", default_value_t = 8000, global = true)]
    pub(crate) port: u16,

    /// Port of the metrics
    #[arg(long, env = "AGENT_METRICS_PORT", default_value_t = 9100)]
    pub(crate) metrics_port: u16,

    /// Folder of the state
    #[arg(long, env = "STATE_DIR", default_value = "state")]
    pub(crate) state: PathBuf,

    /// Folder of the memory
    #[arg(long, env = "MEMORY_DIR")]
    pub(crate) memory: Option<PathBuf>,

    /// File of the log
    #[arg(long, env = "AGENT_LOG_FILE")]
    pub(crate) log: Option<PathBuf>,

    /// Fail after so many milliseconds
    #[arg(long, env = "AGENT_FAILS_AFTER")]
    pub(crate) fails_after: Option<u64>,

    /// Milliseconds from SIGTERM until the last state is written
    #[arg(long, env = "AGENT_ENDS_AFTER", default_value_t = 0)]
    pub(crate) ends_after: u64,

    /// Add one to the count of the state, and write the state, every so many milliseconds
    #[arg(long, env = "AGENT_COUNTS_EVERY")]
    pub(crate) counts_every: Option<u64>,

    /// Serve no metrics
    #[arg(long, env = "AGENT_WITHOUT_METRICS")]
    pub(crate) without_metrics: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Gives a task to the worker of this pod
    Task { session: String, text: String, millis: u64 },
    /// Prints the sessions of the worker of this pod
    Sessions,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Arguments { command, worker } = Arguments::parse();
    match command {
        None => worker::work(worker).await,
        Some(Command::Task { session, text, millis }) => {
            let task = sessions::Task { session, text, millis };
            ask::ask(worker.port, "POST", "/tasks", &serde_json::to_string(&task)?).await
        }
        Some(Command::Sessions) => ask::ask(worker.port, "GET", "/sessions", "").await,
    }
}
