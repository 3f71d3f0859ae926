//! The evaluation-controller's process: parses the command line and starts the runtime.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use evaluation_controller::{Args, IDENTITY, start};
use fast_musl as _;

fn main() -> ExitCode {
    let Args { runtime, evaluation } = Args::parse();
    runtime::process::run(&IDENTITY, &runtime, |process| start(process, evaluation))
}
