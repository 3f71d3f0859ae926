//! The ports that are open, and how each of them is closed.

use std::{
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
};

use anyhow::Context as _;
use axum::Router;
use hyper::server::conn::{http1, http2};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// What becomes of connections when their port is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Idle ones are closed, others after their answer.
    AfterAnswers,
    /// Each is served until its client closes it.
    ByClients,
    /// Of gRPC, which is HTTP/2: no new calls are taken.
    AfterCalls,
}

pub(crate) struct Ports {
    servers: JoinSet<()>,
    close: watch::Sender<bool>,
}

impl Ports {
    pub(crate) fn new() -> Self {
        Self { servers: JoinSet::new(), close: watch::channel(false).0 }
    }

    pub(crate) async fn open(&mut self, port: u16, router: Router, closing: Closing) -> anyhow::Result<()> {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("failed to open port {port}"))?;
        // Port 0 is one that the system chose.
        let address = listener.local_addr().context("failed to look at a port")?;
        eprintln!("open: port {}", address.port());
        self.servers.spawn(serve(listener, router, closing, self.close.subscribe()));
        Ok(())
    }

    /// Refuses new connections, and returns when the last one has ended.
    pub(crate) async fn close(&mut self) {
        self.close.send_replace(true);
        while self.servers.join_next().await.is_some() {}
    }
}

async fn serve(listener: TcpListener, router: Router, closing: Closing, mut close: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = closed(&mut close) => break,
            // Ended connections are forgotten.
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                // A client that is gone already, or a moment without file descriptors.
                let Ok((stream, _)) = accepted else { continue };
                connections.spawn(connection(stream, router.clone(), closing, close.clone()));
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(stream: TcpStream, router: Router, closing: Closing, mut close: watch::Receiver<bool>) {
    let service = TowerToHyperService::new(router);
    if closing == Closing::AfterCalls {
        let connection =
            http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
        let mut served = pin!(connection);
        tokio::select! {
            _ = served.as_mut() => return,
            () = closed(&mut close) => served.as_mut().graceful_shutdown(),
        }
        let _ = served.await;
        return;
    }
    let mut served = pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    if closing == Closing::AfterAnswers {
        tokio::select! {
            _ = served.as_mut() => return,
            () = closed(&mut close) => served.as_mut().graceful_shutdown(),
        }
    }
    // What a client did wrong is no fault here.
    let _ = served.await;
}

async fn closed(close: &mut watch::Receiver<bool>) {
    // An error means that the ports are gone, which closes them as well.
    let _ = close.wait_for(|close| *close).await;
}
