//! `cargo xtask bench`: figures of speed and memory from release builds, with the machine's load beside them.
//!
//! A bench fails when a figure could not be taken, never because a figure misses its goal: it is no test. What it
//! starts ends with it, and everything it waits for has a deadline.
#![expect(clippy::print_stdout, reason = "what these commands print is what they are for")]

mod figures;
mod inference;
mod machine;
mod runtime;
mod transfer;

use anyhow::Context as _;
use clap::Subcommand;

use crate::steps::{cargo, succeed, target_folder};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// AIInferences on simulated nodes, beside a writer that makes the same children without any logic
    Inference(inference::Args),
    /// The engine of the controllers alone: 10 000 objects of a scripted API server, and 100 000 that come and go
    Runtime(runtime::Args),
    /// Pulling a model from a local S3 server, beside a null downloader and beside rclone
    Transfer(transfer::Args),
}

pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        return again_in_release();
    }
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the async runtime")?;
    match command {
        Command::Inference(args) => inference::run(args, &tokio),
        Command::Runtime(args) => runtime::run(args, &tokio),
        Command::Transfer(args) => transfer::run(args),
    }
}

/// The meter shares the machine with what it measures, so it is a release build itself.
fn again_in_release() -> anyhow::Result<()> {
    succeed(&mut cargo(["build", "--release", "--locked", "--package", "xtask"]))?;
    let mut own = std::process::Command::new(target_folder()?.join("release/xtask"));
    succeed(own.args(std::env::args_os().skip(1)))
}
