//! The dispatcher-controller's process: parses the command line and starts the runtime.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use dispatcher_controller::{Args, IDENTITY, start};

/// musl's allocator takes one global lock.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let Args { runtime, dispatcher } = Args::parse();
    runtime::process::run(&IDENTITY, &runtime, |process| start(process, dispatcher))
}
