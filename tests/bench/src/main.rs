//! Figures of speed and memory from release builds, with the machine's load beside them: `cargo xtask bench`.
//!
//! A bench fails when a figure could not be taken, never because a figure misses its goal: it is no test. What it
//! starts ends with it, and everything it waits for has a deadline.
#![expect(clippy::print_stdout, reason = "what these commands print is what they are for")]

mod agent;
mod dispatcher;
mod figures;
mod inference;
mod machine;
mod monitor;
mod plane;
mod programs;
mod runtime;
mod scaler;
mod source;
mod training;
mod transfer;

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask bench", about = "Figures of speed and memory, from release builds")]
enum Command {
    /// The metrics-agent on a node with 8 GPUs (an ABI fake of NVIDIA's library), 110 pods and 2 subscribers
    Agent(agent::Args),
    /// AIDispatchers on simulated nodes, beside a writer that makes the same Deployments without any logic
    Dispatcher(dispatcher::Args),
    /// AIInferences on simulated nodes, beside a writer that makes the same children without any logic
    Inference(inference::Args),
    /// The monitor beside a worker, as its image holds it: size, memory and CPU time
    Monitor(monitor::Args),
    /// The engine of the controllers alone: 10 000 objects of a scripted API server, and 100 000 that come and go
    Runtime(runtime::Args),
    /// AIScalers at rest and after steps of their load, beside as many HorizontalPodAutoscalers
    Scaler(scaler::Args),
    /// TrainingJobs on simulated nodes, beside a writer that makes the same Jobs without any logic
    Training(training::Args),
    /// Pulling a model from a local S3 server, beside a null downloader and beside rclone
    Transfer(transfer::Args),
}

fn main() -> ExitCode {
    match run(&Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> anyhow::Result<()> {
    // The meter shares the machine with what it measures.
    ensure!(!cfg!(debug_assertions), "this is a debug build: use `cargo xtask bench`");
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the async runtime")?;
    match command {
        Command::Agent(args) => agent::run(args, &tokio),
        Command::Dispatcher(args) => dispatcher::run(args, &tokio),
        Command::Inference(args) => inference::run(args, &tokio),
        Command::Monitor(args) => monitor::run(args, &tokio),
        Command::Runtime(args) => runtime::run(args, &tokio),
        Command::Scaler(args) => scaler::run(args, &tokio),
        Command::Training(args) => training::run(args, &tokio),
        Command::Transfer(args) => transfer::run(args),
    }
}
