//! The endpoint-controller's process: parses the command line and starts the runtime.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use endpoint_controller::{Args, IDENTITY, start};
use fast_musl as _;

fn main() -> ExitCode {
    let Args { runtime, endpoint } = Args::parse();
    runtime::process::run(&IDENTITY, &runtime, |process| start(process, endpoint))
}
