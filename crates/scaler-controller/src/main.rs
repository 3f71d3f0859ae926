//! The scaler-controller's process: parses the command line and starts the runtime.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use fast_musl as _;
use scaler_controller::{Args, IDENTITY, start};

fn main() -> ExitCode {
    let Args { runtime, scaler } = Args::parse();
    runtime::process::run(&IDENTITY, &runtime, |process| start(process, scaler))
}
