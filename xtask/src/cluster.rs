//! `cargo xtask up | down | status | kubeconfig`: a Kubernetes with the controllers on this machine.
//!
//! What a cluster is and how it is started is in `local-cluster`; here is what a person sees of it.
#![expect(clippy::print_stdout, reason = "what these commands print is what they are for")]

mod agents;
mod gateway;
mod status;
mod table;
mod up;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::Context as _;
use api::controllers::CONTROLLERS;
use clap::Subcommand;

use crate::dev_cluster::{NAME, running};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Starts a Kubernetes with simulated GPU nodes, the controllers and the samples, and returns when all is Ready; or
    /// installs the controllers into a cluster that exists
    Up(up::UpArgs),
    /// Stops what `up` started and removes everything, also after a crash
    Down,
    /// Shows each process of the running cluster, and where its logs are
    Status,
    /// Prints the path of the running cluster's kubeconfig
    Kubeconfig,
}

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    local_cluster::install_crypto_provider();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    match command {
        Command::Up(args) => up::run(&args, &runtime),
        Command::Down => runtime.block_on(down()),
        Command::Status => runtime.block_on(status::run()),
        Command::Kubeconfig => kubeconfig(),
    }
}

async fn down() -> anyhow::Result<()> {
    let existing = local_cluster::running(NAME)?.and_then(|cluster| cluster.spec().existing.clone());
    let there = local_cluster::remove(NAME).await?;
    local_cluster::sweep()?;
    match existing {
        Some(kubeconfig) => {
            println!("stopped the controllers; the cluster of {} is as it was", kubeconfig.display());
            println!("to remove from it what `up` installed, and every object of these kinds:");
            println!(
                "  kubectl get tj -A    # with retention Delete or Snapshot: delete them while `up --kubeconfig` runs"
            );
            for controller in CONTROLLERS {
                println!("  kubectl delete -k deploy/{}/base --ignore-not-found", controller.name);
            }
            println!("  kubectl delete -k deploy/namespace && kubectl delete -f deploy/crds");
        }
        None => println!("{}", if there { "stopped and removed" } else { "nothing was running" }),
    }
    Ok(())
}

fn kubeconfig() -> anyhow::Result<()> {
    println!("{}", running()?.folder().kubeconfig().display());
    Ok(())
}

/// The listener that finds a free port ends with this function.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
