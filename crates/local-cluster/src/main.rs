//! The supervisor process of a local cluster. Started by the library, not by people.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use local_cluster::real;
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
        /// The network namespace to enter first
        #[arg(long)]
        network: Option<PathBuf>,
        #[arg(last = true, required = true)]
        program: Vec<String>,
    },
    /// Holds the network of a cluster with real nodes
    Hub {
        #[arg(long)]
        dir: PathBuf,
    },
    /// Makes a volume for each claim of the cluster
    Storage {
        #[arg(long)]
        dir: PathBuf,
    },
    /// Serves the logs of the pods of simulated nodes
    PodLogs {
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        listen: SocketAddr,
    },
    /// Passes connections on from an address of this machine into another network
    Relay {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        network: PathBuf,
        #[arg(long)]
        to: SocketAddr,
    },
    /// Becomes a real node, in a network that is new and empty
    Node {
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        index: u32,
    },
    /// Runs what a node runs, as the first process in its namespaces
    NodeInit {
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        index: u32,
    },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Supervise { dir, owner_pipe } => supervise(dir, owner_pipe),
        Command::Launch { parent, network, program } => {
            let (program, args) = program.split_first().context("no program is given")?;
            let network = network.as_deref();
            Err(local_cluster::supervisor::launch(parent, network, program.as_ref(), args).into())
        }
        Command::Hub { dir } => match real::hold_network(&dir)? {},
        Command::Storage { dir } => provision(dir),
        Command::PodLogs { dir, listen } => serve_logs(dir, listen),
        Command::Relay { listen, network, to } => match real::relay(listen, &network, to)? {},
        Command::Node { dir, index } => Err(real::become_node(&dir, index).into()),
        Command::NodeInit { dir, index } => match real::run_node(&dir, index)? {},
    }
}

fn supervise(dir: PathBuf, owner_pipe: bool) -> anyhow::Result<()> {
    local_cluster::supervisor::leave_terminal();
    let launcher = std::env::current_exe().context("failed to find the running program")?;
    on_one_thread(local_cluster::supervisor::supervise(dir, launcher, owner_pipe))?
        .context("the supervisor failed")
}

fn provision(dir: PathBuf) -> anyhow::Result<()> {
    match on_one_thread(local_cluster::control_plane::storage::provision(dir))?
        .context("the volumes failed")? {}
}

fn serve_logs(dir: PathBuf, listen: SocketAddr) -> anyhow::Result<()> {
    match on_one_thread(local_cluster::simulation::pod_logs::serve(dir, listen))?
        .context("the logs failed")? {}
}

/// Runs a part that is asynchronous; the file of its errors is its log.
fn on_one_thread<T>(part: impl Future<Output = T>) -> anyhow::Result<T> {
    tracing_subscriber::fmt()
        // The client reports each refused connection of a start as an error; the supervisor reports those that matter.
        .with_env_filter(EnvFilter::new("info,kube_client=off"))
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    local_cluster::install_crypto_provider();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    Ok(runtime.block_on(part))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
