//! The training-controller's process: parses the command line and starts the runtime.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use fast_musl as _;
use training_controller::{Args, IDENTITY, start};

fn main() -> ExitCode {
    let Args { runtime, training, agents } = Args::parse();
    runtime::process::run(&IDENTITY, &runtime, |process| start(process, training, &agents))
}
