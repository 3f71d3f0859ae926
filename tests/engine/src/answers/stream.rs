//! Answers that are streamed: one token after the other, as server-sent events.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::{InFlight, Serving};
use crate::metrics::End;

/// Of an answer whose request does not limit it.
const TOKENS: u64 = 10;
/// What the last event has.
const DONE: &[u8] = b"data: [DONE]\n\n";

pub(super) fn answer(serving: &Arc<Serving>, request: &Value) -> Response {
    if serving.counters(serving.name()).is_none() {
        return serving.refuse(StatusCode::SERVICE_UNAVAILABLE, "the model is not loaded");
    }
    if let Some(why) = serving.refuses.get() {
        return serving.refuse(StatusCode::INTERNAL_SERVER_ERROR, why);
    }
    let tokens = Tokens::begin(serving, request["max_tokens"].as_u64().unwrap_or(TOKENS));
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::new(tokens)).into_response()
}

/// The body. A client that hangs up drops it before its end.
struct Tokens {
    serving: Arc<Serving>,
    _in_flight: InFlight,
    began: Instant,
    next: Interval,
    sent: u64,
    wanted: u64,
    has_ended: bool,
}

impl Tokens {
    fn begin(serving: &Arc<Serving>, wanted: u64) -> Self {
        let (began, token) = (Instant::now(), serving.behaviour.token);
        let mut next = interval_at(began + token, token);
        next.set_missed_tick_behavior(MissedTickBehavior::Delay);
        if let Some(counters) = serving.counters(serving.name()) {
            counters.running.fetch_add(1, Ordering::Relaxed);
        }
        Self {
            serving: Arc::clone(serving),
            _in_flight: InFlight::begin(&serving.in_flight),
            began,
            next,
            sent: 0,
            wanted,
            has_ended: false,
        }
    }

    fn event(&self) -> Bytes {
        let choice = json!({ "index": 0, "text": self.sent.to_string() });
        let event = json!({
            "choices": [choice],
            "pod": self.serving.behaviour.pod,
            "revision": self.serving.behaviour.revision,
        });
        format!("data: {event}\n\n").into()
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        if let Some(counters) = self.serving.counters(self.serving.name()) {
            counters.running.fetch_sub(1, Ordering::Relaxed);
            let end = if self.has_ended { End::Stop } else { End::Abort };
            counters.ended(end, self.began.elapsed());
        }
    }
}

impl hyper::body::Body for Tokens {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if self.sent == self.wanted {
            self.has_ended = true;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(DONE)))));
        }
        ready!(self.next.poll_tick(context));
        self.sent += 1;
        if self.sent == 1
            && let Some(counters) = self.serving.counters(self.serving.name())
        {
            counters.first_token(self.began.elapsed());
        }
        Poll::Ready(Some(Ok(Frame::data(self.event()))))
    }
}
