//! A server on loopback that answers each connection with the bytes of a script, and keeps what it was sent.
//!
//! It speaks no HTTP of its own, so that it can break it. Beside it: the metrics of stand-ins.

#![forbid(unsafe_code)]

mod scrapes;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
};

pub use scrapes::answer_scrapes;

/// What a connection is answered with, once its request has come.
#[derive(Clone, Debug)]
pub enum Script {
    /// These bytes; then the connection is closed.
    Bytes(Vec<u8>),
    /// These bytes; then silence on an open connection.
    Stalled(Vec<u8>),
    /// These bytes, then more without end.
    Endless(Vec<u8>),
}

impl Script {
    /// An answer with this status, content type and body.
    pub fn answer(status: &str, content: &str, body: &str) -> Self {
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {content}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        );
        Self::Bytes(format!("{head}{body}").into_bytes())
    }

    pub fn json(body: &str) -> Self {
        Self::answer("200 OK", "application/json", body)
    }

    pub fn metrics(body: &str) -> Self {
        Self::answer("200 OK", "text/plain; version=0.0.4", body)
    }
}

/// Serves until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Server {
    /// Returns when it listens.
    pub async fn start(script: Script) -> Self {
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let kept = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(play(stream, script.clone(), Arc::clone(&kept)));
            }
        });
        Self { address, requests, task }
    }

    /// The requests so far, in lower case but for their bodies.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Errors are those of a client that has enough.
pub async fn play<S>(mut stream: S, script: Script, requests: Arc<Mutex<Vec<String>>>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Some(request) = request(&mut stream).await else { return };
    requests.lock().unwrap().push(request);
    match script {
        Script::Bytes(bytes) => {
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
        }
        Script::Stalled(bytes) => {
            let _ = stream.write_all(&bytes).await;
            std::future::pending().await
        }
        Script::Endless(bytes) => {
            let _ = stream.write_all(&bytes).await;
            while stream.write_all(&[b'a'; 4_096]).await.is_ok() {}
        }
    }
}

/// Head and body of a request.
async fn request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(format!("{head}\r\n\r\n{body}"));
            }
        }
        let mut bytes = [0; 4_096];
        let count = stream.read(&mut bytes).await.ok().filter(|count| *count > 0)?;
        read.extend_from_slice(&bytes[..count]);
    }
}

/// A port of loopback on which nothing listens.
pub async fn closed_port() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap()
}

/// Limit for tests that wait for a deadline.
pub const SOON: Duration = Duration::from_millis(200);

/// What ends at its deadline ends long before this.
pub async fn in_time<T>(ending: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), ending).await.expect("the deadline has passed")
}
