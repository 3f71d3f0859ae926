//! The HTTP server of this crate, on loopback. It parses each request as a [`Call`] and passes it to a handler.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
};

use axum::{Router, extract::Request, response::Response};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{call::Call, wire};

pub(crate) type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

/// Serves until it is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// Returns when the server listens, so that no connection is refused.
    pub(crate) async fn start(
        answer: impl Fn(Call) -> Answering + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let answer = Arc::new(answer);
        let router = Router::new().fallback(async move |request: Request| {
            let (head, body) = request.into_parts();
            match axum::body::to_bytes(body, usize::MAX).await {
                Ok(body) => answer(Call::read(&head, &body)).await,
                Err(error) => wire::failure(400, "BadRequest", &error.to_string()),
            }
        });
        let task = tokio::spawn(async move {
            // An error of the listener is found by the deadlines of the tests.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, task })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}
