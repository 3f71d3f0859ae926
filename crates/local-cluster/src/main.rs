//! The supervisor process of a local cluster. Started by the library, not by people.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

#[derive(Parser)]
#[command(
    name = "local-cluster",
    about = "Holds the processes of one local cluster; `cargo xtask up` starts it"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the cluster whose state folder is given
    Supervise {
        #[arg(long)]
        dir: PathBuf,
        /// End when standard input closes
        #[arg(long)]
        owner_pipe: bool,
    },
    /// Becomes another program that cannot outlive the supervisor
    Launch {
        /// Pid of the supervisor
        #[arg(long)]
        parent: i32,
        #[arg(last = true, required = true)]
        program: Vec<String>,
    },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Supervise { dir, owner_pipe } => supervise(dir, owner_pipe),
        Command::Launch { parent, program } => {
            let (program, args) = program.split_first().context("no program is given")?;
            Err(local_cluster::supervisor::launch(parent, program.as_ref(), args).into())
        }
    }
}

fn supervise(dir: PathBuf, owner_pipe: bool) -> anyhow::Result<()> {
    // The file is the supervisor's log.
    tracing_subscriber::fmt()
        // The client reports each refused connection of a start as an error; ours are reported by us.
        .with_env_filter(EnvFilter::new("info,kube_client=off"))
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    local_cluster::supervisor::leave_terminal();
    local_cluster::install_crypto_provider();
    let launcher = std::env::current_exe().context("failed to find our own program")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    runtime
        .block_on(local_cluster::supervisor::supervise(dir, launcher, owner_pipe))
        .context("the supervisor failed")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
