//! The inference-controller's process: reads the command line and hands over to the runtime.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use inference_controller::{Args, IDENTITY, start};

/// That of musl has one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let Args { runtime, inference } = Args::parse();
    runtime::process::run(&IDENTITY, &runtime, |process| start(process, inference))
}
