//! One request as an ordinary HTTP/1.1 client sends it, and the kind of its failure.

use std::{
    collections::VecDeque,
    io,
    str::FromStr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use axum::{
    body::Bytes,
    http::{Request, StatusCode, Uri, header},
};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::{net::TcpStream, time::timeout};
use tokio_util::task::AbortOnDropHandle;

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// `host:port`.
    authority: String,
    path: String,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|error| format!("{error}"))?;
        let (Some("http"), Some(host)) = (uri.scheme_str(), uri.host()) else {
            return Err("it must begin with http:// and a host".to_owned());
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { authority: format!("{host}:{}", uri.port_u16().unwrap_or(80)), path })
    }
}

/// Why a request failed, as the report names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Unresolved,
    Refused,
    Reset,
    Timeout,
    Status(StatusCode),
    /// Anything else that went wrong on the connection.
    Broken,
}

impl Failure {
    pub(crate) fn kind(self) -> String {
        match self {
            Self::Unresolved => "unresolved".to_owned(),
            Self::Refused => "refused".to_owned(),
            Self::Reset => "reset".to_owned(),
            Self::Timeout => "timeout".to_owned(),
            Self::Status(status) => format!("status {}", status.as_u16()),
            Self::Broken => "broken".to_owned(),
        }
    }
}

/// The identity of a test engine, which is in each of its answers; empty for other servers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Answer {
    pub(crate) pod: String,
    pub(crate) revision: String,
    /// A kept connection was found closed, and another was opened.
    #[serde(skip)]
    pub(crate) reconnected: bool,
}

/// What came of an answer that was streamed.
#[derive(Debug, Default)]
pub(crate) struct Streamed {
    /// Of its first event.
    pub(crate) answer: Answer,
    pub(crate) tokens: u64,
    /// Its last event has come, and then the end of the body.
    pub(crate) is_done: bool,
}

impl Streamed {
    fn event(&mut self, event: &str) {
        let Some(data) = event.strip_prefix("data: ") else { return };
        if data == "[DONE]" {
            self.is_done = true;
            return;
        }
        if self.tokens == 0 {
            self.answer = serde_json::from_str(data).unwrap_or_default();
        }
        self.tokens += 1;
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    target: Target,
    body: Bytes,
    patience: Duration,
    /// Connections that wait for another request; `None` if each request has one of its own.
    kept: Option<Mutex<VecDeque<Connection>>>,
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    _driver: AbortOnDropHandle<()>,
}

const LARGEST_ANSWER: usize = 1 << 20;

impl Client {
    pub(crate) fn new(target: Target, body: String, patience: Duration, keep_alive: bool) -> Self {
        Self { target, body: body.into(), patience, kept: keep_alive.then(Mutex::default) }
    }

    pub(crate) async fn send(&self) -> Result<Answer, Failure> {
        timeout(self.patience, self.answered()).await.unwrap_or(Err(Failure::Timeout))
    }

    /// An answer that is streamed, on a connection of its own. Only one that was not begun is a failure.
    pub(crate) async fn stream(&self) -> Result<Streamed, Failure> {
        let mut streamed = Streamed::default();
        match timeout(self.patience, self.streamed(&mut streamed)).await {
            Ok(begun) => begun.map(|()| streamed),
            Err(_) if streamed.tokens > 0 => Ok(Streamed { is_done: false, ..streamed }),
            Err(_) => Err(Failure::Timeout),
        }
    }

    async fn streamed(&self, streamed: &mut Streamed) -> Result<(), Failure> {
        let mut connection = self.connect().await?;
        let answer = connection.sender.send_request(self.request()?).await;
        let answer = answer.map_err(|error| connection_failure(&error))?;
        if !answer.status().is_success() {
            return Err(Failure::Status(answer.status()));
        }
        let (mut body, mut text) = (answer.into_body(), String::new());
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                // Also if everything has come: a body without its end was cut.
                streamed.is_done = false;
                return Ok(());
            };
            text.push_str(&String::from_utf8_lossy(frame.data_ref().map_or(&[][..], |data| data)));
            while let Some((event, rest)) = text.split_once("\n\n") {
                streamed.event(event);
                text = rest.to_owned();
            }
        }
        Ok(())
    }

    fn request(&self) -> Result<Request<Full<Bytes>>, Failure> {
        let mut request = Request::post(&self.target.path)
            .header(header::HOST, &self.target.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if self.kept.is_none() {
            request = request.header(header::CONNECTION, "close");
        }
        request.body(Full::new(self.body.clone())).map_err(|_| Failure::Broken)
    }

    async fn answered(&self) -> Result<Answer, Failure> {
        if let Some(kept) = self.kept() {
            match self.ask(kept).await {
                // Closed by the server while it waited, or as the request was sent: no part of an answer has come.
                Err(Failure::Reset) => {
                    let answer = self.ask(self.connect().await?).await?;
                    return Ok(Answer { reconnected: true, ..answer });
                }
                answered => return answered,
            }
        }
        self.ask(self.connect().await?).await
    }

    /// A kept connection that has not been seen to close.
    fn kept(&self) -> Option<Connection> {
        let mut kept = self.kept.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|connection| connection.sender.is_ready());
        kept.pop_front()
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        let addresses = tokio::net::lookup_host(&self.target.authority).await;
        let addresses: Vec<_> = addresses.map_err(|_| Failure::Unresolved)?.collect();
        let stream = TcpStream::connect(&*addresses).await.map_err(|error| failure(&error))?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| connection_failure(&error))?;
        let driver = tokio::spawn(async move {
            // The request fails with the same error, if there is one.
            let _ = connection.await;
        });
        Ok(Connection { sender, _driver: AbortOnDropHandle::new(driver) })
    }

    async fn ask(&self, mut connection: Connection) -> Result<Answer, Failure> {
        let answer = connection.sender.send_request(self.request()?).await;
        let answer = answer.map_err(|error| connection_failure(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LARGEST_ANSWER).collect().await;
        // An answer that was cut off is never asked for again.
        let body = body.map_err(|_| Failure::Broken)?;
        if let Some(kept) = &self.kept {
            // Ready again a moment later, when the driver has seen the end of the body.
            if connection.sender.ready().await.is_ok() {
                kept.lock().unwrap_or_else(PoisonError::into_inner).push_back(connection);
            }
        }
        if !status.is_success() {
            return Err(Failure::Status(status));
        }
        Ok(serde_json::from_slice(&body.to_bytes()).unwrap_or_default())
    }
}

fn connection_failure(error: &hyper::Error) -> Failure {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause {
        Some(cause) => failure(cause),
        // The server closed without an answer.
        None if error.is_incomplete_message() || error.is_canceled() || error.is_closed() => Failure::Reset,
        None => Failure::Broken,
    }
}

fn failure(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::Refused,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::NotConnected
        | io::ErrorKind::UnexpectedEof => Failure::Reset,
        io::ErrorKind::TimedOut => Failure::Timeout,
        _ => Failure::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_port_and_a_path_also_where_it_names_none() {
        let target = |text: &str| text.parse::<Target>().map(|target| (target.authority, target.path));
        assert_eq!(target("http://llm"), Ok(("llm:80".to_owned(), "/".to_owned())));
        let long = target("http://llm.ns.svc:8000/v1/completions?a=b");
        assert_eq!(long, Ok(("llm.ns.svc:8000".to_owned(), "/v1/completions?a=b".to_owned())));
        assert!(target("https://llm").is_err() && target("llm:80").is_err() && target("/v1").is_err());
    }
}
