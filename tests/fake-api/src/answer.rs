//! Answers to calls: from the store, or a fault of an API server or a proxy.

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
    /// The answer of the store.
    Stored,
    /// The call takes effect at once; its answer is sent when the gate opens.
    Late(Gate),
    /// As `Late`, after this time.
    Slow(Duration),
    /// A complete body.
    Body { code: u16, body: String, retry_after: Option<u32> },
    /// 200, these lines of a watch, and then `End`.
    Lines(Vec<String>, End),
    /// The request is read, but no answer is sent.
    NoHeaders,
    /// Headers with this code and the beginning of a body.
    HalfABody(u16),
    /// 200 and an endless body; counts the bytes that the client has read.
    Endless(Arc<AtomicU64>),
}

#[derive(Clone, Copy, Debug)]
pub enum End {
    Close,
    Silence,
}

/// Delays an answer until it is opened.
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

    /// A Status in several lines, as API servers send it to browsers and curl.
    pub fn pretty(code: u16, reason: &str, message: &str) -> Self {
        let body = serde_json::to_string_pretty(&status(code, reason, message)).unwrap();
        Self::Body { code, body, retry_after: None }
    }

    /// A Status with Retry-After.
    pub fn busy(code: u16, seconds: u32) -> Self {
        let mut body = status(code, "TooManyRequests", "too many requests, please try again later");
        body["details"] = json!({ "retryAfterSeconds": seconds });
        Self::Body { code, body: body.to_string(), retry_after: Some(seconds) }
    }

    /// The rejection of API Priority and Fairness: no Status, only the header.
    pub fn rejected(seconds: u32) -> Self {
        let body = "Too many requests, please try again later.\n".to_owned();
        Self::Body { code: 429, body, retry_after: Some(seconds) }
    }

    /// Plain text, as from a proxy between client and API server.
    pub fn text(code: u16, body: &str) -> Self {
        Self::Body { code, body: body.to_owned(), retry_after: None }
    }

    /// An expired version, as the HTTP status.
    pub fn gone() -> Self {
        Self::status(410, "Expired", "too old resource version: 1 (2)")
    }

    /// An expired version, as an event of a watch with status 200.
    pub fn gone_in_stream() -> Self {
        Self::Lines(vec![expired_line()], End::Close)
    }

    /// 200 and a closed connection.
    pub fn closed_at_once() -> Self {
        Self::Lines(Vec::new(), End::Close)
    }

    /// 200 without any bytes of a body.
    pub fn silence() -> Self {
        Self::Lines(Vec::new(), End::Silence)
    }

    /// Applies the effect and returns the response as a future.
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
                    // The delay is the scripted fault; tests do not rely on it.
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
