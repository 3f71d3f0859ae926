//! `pause`: the first process of every pod on a real node of the local cluster. It holds the pod's namespaces, buries
//! orphans where the pod shares its processes, and ends at SIGTERM. It does nothing else.

#![forbid(unsafe_code)]

use std::io;

use rustix::process::{WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    if std::env::args().len() > 1 {
        eprintln!("pause {}: waits for SIGTERM or SIGINT", env!("CARGO_PKG_VERSION"));
        return Ok(());
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut child = signal(SignalKind::child())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            // One signal may stand for many children.
            _ = child.recv() => while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {},
        }
    }
}
