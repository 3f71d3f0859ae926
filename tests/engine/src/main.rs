//! `test-engine`: a small program that a node takes for an inference engine, and the load that such an engine gets.
//!
//! Called as AIInference calls vLLM, Triton or TGI, it behaves like that engine: it reads the model, warms up, is asked
//! by probes, answers, and drains; or fails as `ENGINE_FAULT` selects. It must never be kinder than the real
//! engines: what works only with it is no promise. `test-engine load` sends requests at fixed times and counts.

#![forbid(unsafe_code)]

mod answers;
mod behaviour;
mod invocation;
mod life;
mod load;
mod metrics;
mod model;
mod ports;
mod repository;
mod vllm;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;

use behaviour::Behaviour;
use invocation::Invocation;

const USAGE: &str =
    "test-engine: called with the arguments of vLLM, Triton or TGI it behaves like that engine;
`test-engine load --help` and `test-engine streams --help` describe how to put load on one";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let tokio = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(tokio) => tokio,
        Err(error) => return failed(&error.into()),
    };
    let ended = match arguments.first().map(String::as_str) {
        Some("--help" | "--version") => {
            eprintln!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        // It ends when it is killed.
        Some("worker") => tokio.block_on(std::future::pending()),
        Some("load") => tokio.block_on(load::run(&load::Args::parse_from(&arguments))),
        Some("streams") => tokio.block_on(load::streams::run(&load::streams::Args::parse_from(&arguments))),
        _ => tokio.block_on(serve(&arguments)),
    };
    // A model that is still being read must not delay the end.
    tokio.shutdown_background();
    ended.unwrap_or_else(|error| failed(&error))
}

async fn serve(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let invocation = Invocation::parse(arguments).context("failed to recognise the engine")?;
    let behaviour = Behaviour::parse(|name| std::env::var(name).ok())?;
    life::live(invocation, behaviour).await
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}
