//! Starts the agent.

use std::process::ExitCode;

fn main() -> ExitCode {
    metrics_agent::run()
}
