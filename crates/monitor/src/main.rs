//! `monitor` runs in each pod of a worker as a native sidecar.
//!
//! It streams the load and the tokens, saves the state and passes the log on. With `memoryConfig.collection` or
//! `checkpoint` it also runs as an init container, which loads the memory and restores a state.
//!
//! ```text
//!  vector store ──▶ memory ──▶ MEMORY_DIR, before the worker starts
//!  bucket, volume ▶ checkpoint::restore ─▶ STATE_DIR, before the worker starts
//!               ◀── checkpoint::save ◀─── STATE_DIR, periodically and at the end
//!
//!  worker ─ /metrics ─▶ worker ─▶ load ─┬─▶ ledger (a file of the pod) ─┐
//!                       each second     └───────────────────────────────┴▶ snapshot ─▶ gRPC, /metrics
//! ```
//!
//! It does not scale, start or end workers, and sends no request to an API server. Kubernetes ends a sidecar after the
//! worker has ended; what the monitor has counted is its termination message.
//!
//! **Invariant:** a missing value is never zero, so a worker that does not answer has no values. Tokens are counted
//! once through restarts of worker and monitor. At most one worker restores a state, and a state without its manifest
//! does not exist.
//!
//! Files:
//!
//! - `cli.rs`: the command line.
//! - `run.rs`: the main loop of the sidecar.
//! - `worker.rs`: one scrape of the worker.
//! - `load.rs`: parses the load of a scrape.
//! - `ledger.rs`: counts tokens in a file of the pod.
//! - `snapshots.rs`: converts scrapes into snapshots of the metrics contract.
//! - `pages.rs`: the page `/metrics`.
//! - `logs.rs`: copies the log of the worker.
//! - `ending.rs`: announces the end of the pod.
//! - `memory.rs`: loads a vector collection.
//! - `memory/store.rs`: asks Chroma or Qdrant.
//! - `memory/records.rs`: reads their answers.
//! - `memory/folder.rs`: writes records so that an interrupted load goes on.
//! - `retry.rs`: repeats requests that failed with a transient fault.
//! - `fault.rs`: why a load, a restore or a save failed.
//!
//! Files of checkpoints:
//!
//! - `checkpoint.rs`: the layout of saved states.
//! - `checkpoint/save.rs`: saves the state of the worker.
//! - `checkpoint/restore.rs`: restores a state.
//! - `checkpoint/choice.rs`: chooses the state to restore.
//! - `checkpoint/survey.rs`: what the storage has of the workers of a pool.
//! - `checkpoint/claims.rs`: claims states.
//! - `checkpoint/state.rs`: the folder of a worker's state.
//! - `checkpoint/storage.rs`: the bucket or the folder, with their files in `checkpoint/storage`.
//! - `checkpoint/storage/texts.rs`: reads texts of a storage within bounds.
//! - `checkpoint/bounded.rs`: parses texts of a storage within bounds.

#![forbid(unsafe_code)]

mod checkpoint;
mod cli;
mod ending;
mod fault;
mod ledger;
mod load;
mod logs;
mod memory;
mod pages;
mod retry;
mod run;
mod snapshots;
mod worker;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Parser as _;
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};
use tracing::{error, warn};

use checkpoint::{
    claims::OwnClaims,
    restore::{begin_empty, end_refusal, is_refused_for, restore},
    state::StateFolder,
};
use cli::{Arguments, Command, LoadMemory};

/// Of a load that SIGTERM has interrupted, as a shell has it: with 0 the next container would be started.
const TERMINATED: u8 = 128 + 15;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt().json().flatten_event(true).with_writer(std::io::stderr).init();
    // Fails only if it is there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // One thread is enough for a scrape and a snapshot each second, and each further thread takes memory.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let ended = match arguments.command {
            Command::LoadMemory(options) => Ok(load_memory(&runtime, &options)),
            Command::Run(options) => runtime.block_on(run::run(options)).map(|()| ExitCode::SUCCESS),
            Command::AnnounceEnd { folder } => {
                let announced = runtime.block_on(ending::announce_end(&folder));
                announced.context("failed to announce the end of the pod").map(|()| ExitCode::SUCCESS)
            }
        };
        // A thread that waits for a hanging volume must not delay the exit.
        runtime.shutdown_background();
        ended
    });
    match ended {
        Ok(code) => code,
        Err(error) => {
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn load_memory(runtime: &Runtime, options: &LoadMemory) -> ExitCode {
    let claims = OwnClaims::default();
    let loaded = runtime.block_on(async {
        let terminate = signal(SignalKind::terminate());
        let mut terminate = terminate.map_err(|error| {
            fault::Fault::new(api::monitor::ExitCode::Usage, format!("failed to listen for SIGTERM: {error}"))
        })?;
        tokio::select! {
            loaded = load(options, &claims) => {
                if loaded.is_err() {
                    // The next attempt may come after minutes, or never.
                    claims.give_up().await;
                }
                loaded.map(|()| ExitCode::SUCCESS)
            }
            // The pod is deleted. A claim that stays would keep its state from other workers.
            _ = terminate.recv() => {
                claims.give_up().await;
                Ok(ExitCode::from(TERMINATED))
            }
        }
    });
    match loaded {
        Ok(code) => code,
        Err(fault) => {
            error!("{fault}");
            write_message(&options.termination_log, fault.to_string().as_bytes());
            u8::try_from(fault.code.code()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

async fn load(options: &LoadMemory, claims: &OwnClaims) -> Result<(), fault::Fault> {
    if let Some(wanted) = options.wanted() {
        memory::load(&wanted).await?;
    }
    // The memory is loaded first, because that may take long, and the claim of a state expires if it is not renewed.
    if let Some((settings, state)) = options.settings() {
        let folder = &options.checkpoints.folder;
        let restored =
            restore(&settings, &StateFolder(state.clone()), folder, options.patience(), claims).await;
        if let Err(fault) = restored {
            // A storage that does not answer was tried again for the time of the option.
            let was_retried = fault.is_transient();
            let fault = fault::Fault { code: fault.code.of_checkpoints(), ..fault };
            let is_unusable = fault.code.is_of_unusable_storage() && !fault.is_lasting;
            if !is_unusable {
                end_refusal(folder);
            }
            let may = options.start_empty
                && is_unusable
                && (was_retried || is_refused_for(options.patience(), folder)?);
            if !may || !begin_empty(&settings, &StateFolder(state), folder, claims)? {
                return Err(fault);
            }
            warn!("the worker starts without a state: {fault}");
            write_message(&options.termination_log, fault.to_string().as_bytes());
        }
    }
    Ok(())
}

/// Kubernetes creates the file in each container. Outside a container it does not exist, and no message is written.
pub(crate) fn write_message(path: &Path, message: &[u8]) {
    let file = OpenOptions::new().write(true).truncate(true).open(path);
    if let Err(error) = file.and_then(|mut file| file.write_all(message)) {
        warn!(%error, path = %path.display(), "failed to write the termination message");
    }
}

/// Replaces a file that only this process writes. After a power failure of the node the file has either the old or the
/// new content.
pub(crate) fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(text)?;
    file.sync_data()?;
    fs::rename(&new, path)
}
