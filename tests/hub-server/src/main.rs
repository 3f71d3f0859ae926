//! Serves models in folders as a hub does, for pods on real nodes.

#![forbid(unsafe_code)]

use std::{net::SocketAddr, path::PathBuf, thread};

use anyhow::Context as _;
use clap::Parser;
use hub_server::{HubServer, models_in};

/// Serves models in folders as Hugging Face and ModelScope do.
#[derive(Parser)]
#[command(name = "hub-server", version)]
struct Args {
    /// Where the APIs are
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Where the large files are
    #[arg(long, value_name = "ADDRESS:PORT")]
    network: SocketAddr,
    /// Folder with the models, read once: owner/name/0 is the first commit of one, and a file owner/name/token makes it private
    #[arg(long, value_name = "FOLDER")]
    models: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let Args { listen, network, models } = Args::parse();
    let read =
        models_in(&models).with_context(|| format!("failed to read the models of {}", models.display()))?;
    let server = HubServer::start_at(listen, network, read)
        .with_context(|| format!("failed to listen on {listen} and {network}"))?;
    loop {
        thread::park();
        // It serves until the process is ended.
        let _ = &server;
    }
}
