//! `metrics-agent` runs on each node with accelerators and streams what each of them does, and for which pod.
//!
//! ```text
//!  NVML or a recorded file ─▶ one thread per device ─▶ sampler ─▶ board: readings, windows, events, faults
//!  kubelet's pod-resources ─▶ holdings ───────────────────┘         │ a snapshot each second
//!                                                                   ▼
//!                          subscribers ◀─ gRPC (mTLS) ◀─ ring of snapshots ─▶ /metrics
//! ```
//!
//! It measures and reports. It changes nothing on the node, decides nothing, and speaks to no API server. A device that
//! does not answer delays no other: its readings are stale and say so. Memory does not grow with time, subscribers or pods.
//! It runs on nodes without accelerators too, and says that there are none.

mod agent;
mod args;
mod board;
mod device;
mod exposition;
mod pods;
mod sampler;
mod windows;

use std::process::ExitCode;

use clap::Parser as _;
use tracing::error;
use tracing_subscriber::{Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use args::{Args, LogFormat};

fn main() -> ExitCode {
    let args = Args::parse();
    let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let logs = match args.log_format {
        LogFormat::Json => logs.json().flatten_event(true).boxed(),
        LogFormat::Text => logs.boxed(),
    };
    tracing_subscriber::registry().with(logs.with_filter(args.log_level.clone())).init();
    // One thread serves all clients: a snapshot a second is little, and each thread more is memory.
    let ended = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            let ended = runtime.block_on(agent::run(args));
            // A read of a certificate on a volume that hangs is not waited for.
            runtime.shutdown_background();
            ended
        });
    ended.unwrap_or_else(|error| {
        error!("{error:#}");
        ExitCode::FAILURE
    })
}
