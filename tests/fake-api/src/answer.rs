//! How a call is answered: with the truth, or with one of the faults of an API server or of what stands before it.

use std::{convert::Infallible, future::Future, pin::Pin, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Call, store::Store};

#[derive(Clone, Debug)]
pub enum Answer {
    Truth,
    /// The call has its effect at once, and its answer comes when the gate opens.
    Late(Gate),
    /// As `Late`, after this time.
    Slow(Duration),
    /// A whole body.
    Says {
        code: u16,
        body: String,
        retry_after: Option<u32>,
    },
    /// 200, these lines of a watch, and then what `End` says.
    Lines(Vec<String>, End),
    /// The request is read, and then nothing.
    NoHeaders,
    /// Headers with this code, the beginning of a body, and then nothing.
    HalfABody(u16),
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
        Self::Says { code, body: status(code, reason, message).to_string(), retry_after: None }
    }

    /// A Status over many lines, as API servers send it to clients that look like a browser or like curl.
    pub fn pretty(code: u16, reason: &str, message: &str) -> Self {
        let body = serde_json::to_string_pretty(&status(code, reason, message)).unwrap();
        Self::Says { code, body, retry_after: None }
    }

    /// A Status that asks for a pause.
    pub fn busy(code: u16, seconds: u32) -> Self {
        let mut body = status(code, "TooManyRequests", "too many requests, please try again later");
        body["details"] = json!({ "retryAfterSeconds": seconds });
        Self::Says { code, body: body.to_string(), retry_after: Some(seconds) }
    }

    /// What the API server's own priority and fairness says: no Status, only a header.
    pub fn rejected(seconds: u32) -> Self {
        let body = "Too many requests, please try again later.\n".to_owned();
        Self::Says { code: 429, body, retry_after: Some(seconds) }
    }

    /// Not a Status: what stands between us and the API server speaks for itself.
    pub fn text(code: u16, body: &str) -> Self {
        Self::Says { code, body: body.to_owned(), retry_after: None }
    }

    /// The version is too old, as the HTTP status.
    pub fn gone() -> Self {
        Self::status(410, "Expired", "too old resource version: 1 (2)")
    }

    /// The version is too old, as an event of a watch that was opened with 200.
    pub fn gone_in_stream() -> Self {
        Self::Lines(vec![gone_line()], End::Close)
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
    pub(super) fn prepare(
        self,
        store: &Store,
        call: &Call,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        match self {
            Self::Truth => {
                let truth = store.answer(call);
                Box::pin(std::future::ready(truth))
            }
            Self::Late(gate) => {
                let truth = store.answer(call);
                Box::pin(async move {
                    gate.0.cancelled().await;
                    truth
                })
            }
            Self::Slow(time) => {
                let truth = store.answer(call);
                Box::pin(async move {
                    // The fault itself; nothing waits by it.
                    tokio::time::sleep(time).await;
                    truth
                })
            }
            Self::Says { code, body, retry_after } => {
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

pub(super) fn answered(code: u16, body: String) -> Response {
    (StatusCode::from_u16(code).unwrap(), [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

pub(super) fn streamed(lines: impl stream::Stream<Item = String> + Send + 'static) -> Body {
    Body::from_stream(lines.map(|line| Ok::<_, Infallible>(Bytes::from(line))))
}

pub(super) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
}

pub(super) fn gone_line() -> String {
    event_line("ERROR", &status(410, "Expired", "too old resource version: 1 (2)"))
}

/// As the API server writes it: the type first.
pub(super) fn event_line(event: &str, object: &Value) -> String {
    format!(r#"{{"type":"{event}","object":{object}}}"#)
}
