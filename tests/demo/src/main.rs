//! `cargo xtask demo`: makes a node fail, the load rise, or a new version come, and shows what happens, second by second.
//!
//! A demo asserts nothing, the tests do: it prints and draws what it observed in the API, and fails only if the end that
//! it waits for does not come in time.
#![expect(clippy::print_stdout, reason = "what these commands print is what they are for")]

mod canary;
mod chart;
mod files;
mod node_death;
mod scaling;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

#[derive(Parser)]
#[command(
    name = "cargo xtask demo",
    about = "Shows what happens when a node fails, the load rises or a new version comes, second by second"
)]
enum Command {
    /// A node dies under one of two replicas of an AIInference
    NodeDeath(node_death::Args),
    /// A burst of load meets an AIScaler and a HorizontalPodAutoscaler side by side
    Scaling(scaling::Args),
    /// A bad version of a model and then a good one get a share of its requests (Linux, as root)
    Canary(canary::Args),
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
    local_cluster::install_crypto_provider();
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the async runtime")?;
    match command {
        Command::NodeDeath(args) => tokio.block_on(node_death::run(args)),
        Command::Scaling(args) => tokio.block_on(scaling::run(args)),
        Command::Canary(args) => tokio.block_on(canary::run(args)),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Command::command().debug_assert();
    }
}
