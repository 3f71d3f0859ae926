//! The one server of this crate: plain HTTP on loopback, each request read as a [`Call`]. What is answered is up to its
//! user.

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
    /// It listens when this returns: a refused connection would be another fault than the one that a test scripts.
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
            // It ends with an error only if the listener breaks. Tests and benches notice that by their deadlines.
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
