//! `metrics-agent` runs on each node with accelerators and streams what each of them does, and for which pod.
//!
//! ```text
//!  NVML or a recorded file ─▶ one thread per device ─▶ sampler ─▶ board: readings, windows, events, faults
//!  kubelet's pod-resources ─▶ holdings ───────────────────┘         │ a snapshot each second
//!                                                                   ▼
//!                          subscribers ◀─ gRPC (mTLS) ◀─ ring of snapshots ─▶ /metrics
//! ```
//!
//! The agent measures and reports. It changes nothing on the node, decides nothing, and sends no request to an API
//! server. It runs on nodes without accelerators too, and reports that there are none.
//!
//! **Invariant:** no request of a client waits for a driver. A device that hangs makes its own readings stale and
//! nothing else. Memory does not grow with time, pods or slow subscribers. Only `device`, `args.rs` and `agent.rs` know
//! NVIDIA's library. Only `device/nvml/instance.rs` is unsafe. Other names of vendors are only those of resources in
//! `pods/ids.rs` and of dcgm-exporter's metrics in `exposition.rs`.
//!
//! Files:
//!
//! - `agent.rs`: the life of the agent.
//! - `args.rs`: the command line.
//! - `device.rs`: the seam between the agent and a driver.
//! - `device/nvml.rs`: NVIDIA's library as a source; `device/nvml` has its parts.
//! - `device/recorded.rs`: a recorded file as a source.
//! - `sampler.rs`: owns the threads that call devices, and the board.
//! - `board.rs`: the only copy of what is known.
//! - `windows.rs`: mean, 95th percentile and maximum over windows of time.
//! - `pods.rs`: asks the kubelet which containers hold what.
//! - `pods/ids.rs`: how device plugins and DRA drivers name devices.
//! - `exposition.rs`: the page `/metrics`.
//!
//! Results of tests about devices rest on `tests/fake-nvml`, an ABI fake of NVIDIA's library.

mod agent;
mod args;
mod board;
mod device;
mod exposition;
mod pods;
mod sampler;
mod windows;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use tracing::error;
use tracing_subscriber::{Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use args::Args;
use daemon::args::LogFormat;

/// The command line.
pub fn command() -> clap::Command {
    Args::command()
}

/// The program, from its command line to its end.
pub fn run() -> ExitCode {
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
