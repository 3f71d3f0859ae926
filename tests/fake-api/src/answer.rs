//! How a call is answered: from the store, or with one of the faults of an API server or of a proxy before it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::response::IntoResponse;
use futures::{StreamExt, stream};
use http::{StatusCode, header};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    call::Call,
    server::Answering,
    store::Store,
    wire::{answered, expired_line, status, streamed},
};

#[derive(Clone, Debug)]
pub enum Answer {
    /// What is stored.
    Stored,
    /// The call has its effect at once, and its answer comes when the gate opens.
    Late(Gate),
    /// As `Late`, after this time.
    Slow(Duration),
    /// A whole body.
    Body { code: u16, body: String, retry_after: Option<u32> },
    /// 200, these lines of a watch, and then what `End` says.
    Lines(Vec<String>, End),
    /// The request is read, and nothing is ever sent.
    NoHeaders,
    /// Headers with this code, the beginning of a body, and nothing after it.
    HalfABody(u16),
    /// 200, and a body without an end; counts the bytes of it that were taken.
    Endless(Arc<AtomicU64>),
}

#[derive(Clone, Copy, Debug)]
pub enum End {
    Close,
    Silence,
}

/// Holds an answer back until it is opened.
#[derive(Clone, Debug, Default)]
pub struct Gate(CancellationToken);

impl Gate {
    pub fn open(&self) {
        self.0.cancel();
    }
}

impl Answer {
    /// A Status in one line.
    pub fn status(code: u16, reason: &str, message: &str) -> Self {
        Self::Body { code, body: status(code, reason, message).to_string(), retry_after: None }
    }

    /// A Status over many lines, as API servers send it to clients that look like a browser or like curl.
    pub fn pretty(code: u16, reason: &str, message: &str) -> Self {
        let body = serde_json::to_string_pretty(&status(code, reason, message)).unwrap();
        Self::Body { code, body, retry_after: None }
    }

    /// A Status that asks for a pause.
    pub fn busy(code: u16, seconds: u32) -> Self {
        let mut body = status(code, "TooManyRequests", "too many requests, please try again later");
        body["details"] = json!({ "retryAfterSeconds": seconds });
        Self::Body { code, body: body.to_string(), retry_after: Some(seconds) }
    }

    /// As the API server's own priority and fairness rejects: no Status, only a header.
    pub fn rejected(seconds: u32) -> Self {
        let body = "Too many requests, please try again later.\n".to_owned();
        Self::Body { code: 429, body, retry_after: Some(seconds) }
    }

    /// Not a Status: the answer of a proxy between the client and the API server.
    pub fn text(code: u16, body: &str) -> Self {
        Self::Body { code, body: body.to_owned(), retry_after: None }
    }

    /// The version is too old, as the HTTP status.
    pub fn gone() -> Self {
        Self::status(410, "Expired", "too old resource version: 1 (2)")
    }

    /// The version is too old, as an event of a watch that was opened with 200.
    pub fn gone_in_stream() -> Self {
        Self::Lines(vec![expired_line()], End::Close)
    }

    /// 200, and the connection ends.
    pub fn closed_at_once() -> Self {
        Self::Lines(Vec::new(), End::Close)
    }

    /// 200, and not a byte after it.
    pub fn silence() -> Self {
        Self::Lines(Vec::new(), End::Silence)
    }

    /// The effect now, the response as a future.
    pub(crate) fn prepare(self, store: &Store, call: &Call) -> Answering {
        match self {
            Self::Stored => {
                let stored = store.answer(call);
                Box::pin(std::future::ready(stored))
            }
            Self::Late(gate) => {
                let stored = store.answer(call);
                Box::pin(async move {
                    gate.0.cancelled().await;
                    stored
                })
            }
            Self::Slow(time) => {
                let stored = store.answer(call);
                Box::pin(async move {
                    // The delay is the fault that is scripted; no test waits by it.
                    tokio::time::sleep(time).await;
                    stored
                })
            }
            Self::Body { code, body, retry_after } => {
                let mut response = answered(code, body);
                if let Some(seconds) = retry_after {
                    response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
                }
                Box::pin(std::future::ready(response))
            }
            Self::Lines(lines, end) => {
                let lines = stream::iter(lines).map(|line| line + "\n");
                let body = match end {
                    End::Close => streamed(lines),
                    End::Silence => streamed(lines.chain(stream::pending())),
                };
                Box::pin(std::future::ready(body.into_response()))
            }
            Self::Endless(taken) => {
                let chunk = format!("{}\n", "x".repeat(16 << 10));
                let body = streamed(stream::repeat_with(move || {
                    taken.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                    chunk.clone()
                }));
                Box::pin(std::future::ready(body.into_response()))
            }
            Self::NoHeaders => Box::pin(std::future::pending()),
            Self::HalfABody(code) => {
                let half = stream::iter([r#"{"kind":"#.to_owned()]).chain(stream::pending());
                let mut response = streamed(half).into_response();
                *response.status_mut() = StatusCode::from_u16(code).unwrap();
                Box::pin(std::future::ready(response))
            }
        }
    }
}
