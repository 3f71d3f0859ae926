//! Announces the end of the pod while its worker ends: the kubelet sends SIGTERM to the worker while the `preStop` hook
//! of the sidecar (`announce-end`) runs. The hook requests the announcement over a socket.
//!
//! The socket is in a folder that only the containers of the monitor have, so that neither the worker nor another pod can
//! make new workers wait for a state that is still used.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::{
    io::AsyncReadExt as _,
    net::{UnixListener, UnixStream},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

const SOCKET: &str = "ending.sock";
/// The kubelet waits for the hook before it ends the sidecar, within the grace period of the pod.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

fn socket(folder: &Path) -> PathBuf {
    folder.join(SOCKET)
}

/// Replaces the socket of a container before this one.
pub(crate) fn listen(folder: &Path) -> io::Result<UnixListener> {
    let socket = socket(folder);
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    UnixListener::bind(socket)
}

/// Ends each connection once the announcement is made. One after the other: there is one hook.
pub(crate) async fn serve(
    listener: UnixListener,
    announce: impl Fn() -> BoxFuture<'static, ()>,
    stop: CancellationToken,
) {
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        if let Ok((_stream, _)) = accepted {
            announce().await;
        }
    }
}

/// Asks the sidecar of this pod to announce the end, and waits until it has.
pub(crate) async fn announce_end(folder: &Path) -> io::Result<()> {
    let announced = timeout(ANSWER_WITHIN, async {
        let mut stream = UnixStream::connect(socket(folder)).await?;
        stream.read_to_end(&mut Vec::new()).await
    });
    match announced.await {
        Ok(answered) => answered.map(drop),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
