//! Between object_store and its HTTP client: bounds each wait, turns every refusal into an error of ours that carries no
//! text of the store, and obeys `Retry-After`.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, Method, StatusCode, header::RETRY_AFTER};
use http_body::{Body, Frame, SizeHint};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
        HttpService, ReqwestConnector,
    },
};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};

/// The answer was no. Of its text only the code is kept: the rest may repeat parts of credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} {code}")]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    /// As S3 names it, `NoSuchBucket`; empty where none is told.
    pub(super) code: String,
}

/// On an answer: the store encrypts the object in a way that makes its ETag something else than its MD5.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EtagIsNoDigest;

#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s", .0.as_secs())]
struct NoAnswer(Duration);

#[derive(Debug, thiserror::Error)]
#[error("no byte within {} s", .0.as_secs())]
struct NoByte(Duration);

#[derive(Debug)]
pub(super) struct Connector {
    stall: Duration,
    answered: Arc<AtomicBool>,
}

impl Connector {
    /// `answered` is set by the first good answer.
    pub(super) fn new(stall: Duration, answered: Arc<AtomicBool>) -> Self {
        Self { stall, answered }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        let (stall, answered) = (self.stall, Arc::clone(&self.answered));
        Ok(HttpClient::new(Watched { client, stall, answered, hold: Hold::default() }))
    }
}

#[derive(Debug)]
struct Watched {
    client: HttpClient,
    stall: Duration,
    answered: Arc<AtomicBool>,
    hold: Hold,
}

/// An upload is answered when its body has arrived, which on a slow line takes longer than the first byte of a download.
const UPLOAD_STALLS: u32 = 10;

#[async_trait]
impl HttpService for Watched {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.hold.wait().await;
        let reads = [Method::GET, Method::HEAD].contains(request.method());
        let patience = if reads { self.stall } else { self.stall * UPLOAD_STALLS };
        let Ok(answer) = timeout(patience, self.client.execute(request)).await else {
            return Err(HttpError::new(HttpErrorKind::Timeout, NoAnswer(patience)));
        };
        let mut answer = answer?.map(|body| HttpResponseBody::new(Impatient::new(body, self.stall)));
        if !answer.status().is_success() {
            self.hold.obey(answer.headers());
            return Err(HttpError::new(HttpErrorKind::Unknown, refusal(answer).await));
        }
        self.answered.store(true, Ordering::Relaxed);
        if hides_digest(answer.headers()) {
            answer.extensions_mut().insert(EtagIsNoDigest);
        }
        Ok(answer)
    }
}

/// A body that fails when no byte has come for too long; how long it takes in all does not matter.
#[derive(Debug)]
struct Impatient {
    body: HttpResponseBody,
    stall: Duration,
    silence: Pin<Box<Sleep>>,
}

impl Impatient {
    fn new(body: HttpResponseBody, stall: Duration) -> Self {
        Self { body, stall, silence: Box::pin(sleep(stall)) }
    }
}

impl Body for Impatient {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let stall = self.stall;
        // First the body: bytes that came while nobody looked are not late.
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.silence.as_mut().reset(Instant::now() + stall);
            return Poll::Ready(frame);
        }
        ready!(self.silence.as_mut().poll(context));
        Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Timeout, NoByte(stall)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

async fn refusal(answer: HttpResponse) -> Refusal {
    let (head, body) = answer.into_parts();
    let text = beginning(body).await;
    Refusal { status: head.status, code: code(&String::from_utf8_lossy(&text)) }
}

/// Enough for the code; a page of a proxy may be of any length.
async fn beginning(body: HttpResponseBody) -> Vec<u8> {
    const ENOUGH: usize = 4096;
    let mut read = Vec::new();
    let mut chunks = body.bytes_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        read.extend_from_slice(chunk.get(..chunk.len().min(ENOUGH - read.len())).unwrap_or_default());
        if read.len() == ENOUGH {
            break;
        }
    }
    read
}

/// `<Error><Code>NoSuchBucket</Code>...`
fn code(text: &str) -> String {
    let code =
        text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code);
    let is_code = |code: &&str| code.len() <= 64 && code.chars().all(|char| char.is_ascii_alphanumeric());
    code.filter(is_code).unwrap_or_default().to_owned()
}

fn hides_digest(headers: &HeaderMap) -> bool {
    let encryption = headers.get("x-amz-server-side-encryption").map(http::HeaderValue::as_bytes);
    encryption.is_some_and(|how| how.starts_with(b"aws:"))
        || headers.contains_key("x-amz-server-side-encryption-customer-algorithm")
}

/// A store that asks for a pause gets it from all requests.
#[derive(Debug, Default)]
struct Hold(Mutex<Option<Instant>>);

impl Hold {
    async fn wait(&self) {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = until {
            sleep_until(until).await;
        }
    }

    fn obey(&self, headers: &HeaderMap) {
        if let Some(pause) = pause(headers) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + pause);
        }
    }
}

/// In seconds; a date, which S3 does not send, is left to our own back-off.
fn pause(headers: &HeaderMap) -> Option<Duration> {
    /// Longer than that we look for ourselves.
    const LONGEST: u64 = 30;
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(LONGEST)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        [(http::HeaderName::from_static(name), http::HeaderValue::from_static(value))].into_iter().collect()
    }

    #[test]
    fn only_the_code_of_a_refusal_is_kept() {
        let text = "<?xml version=\"1.0\"?><Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>AKIA1</AWSAccessKeyId>";
        assert_eq!(code(text), "InvalidAccessKeyId");
        for text in ["", "<html>Bad Gateway</html>", "<Code>", "<Code>a b</Code>", "<Code>\u{1b}[31m</Code>"]
        {
            assert_eq!(code(text), "", "{text}");
        }
    }

    #[test]
    fn a_pause_is_obeyed_up_to_half_a_minute() {
        for (value, seconds) in
            [("0", Some(0)), ("7", Some(7)), ("3600", Some(30)), ("Wed, 21 Oct 2026", None), ("-1", None)]
        {
            assert_eq!(pause(&headers("retry-after", value)), seconds.map(Duration::from_secs), "{value}");
        }
    }

    #[test]
    fn encryption_by_a_key_service_hides_the_digest() {
        assert!(hides_digest(&headers("x-amz-server-side-encryption", "aws:kms")));
        assert!(hides_digest(&headers("x-amz-server-side-encryption", "aws:kms:dsse")));
        assert!(hides_digest(&headers("x-amz-server-side-encryption-customer-algorithm", "AES256")));
        assert!(!hides_digest(&headers("x-amz-server-side-encryption", "AES256")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_asks_for_a_pause_gets_it_from_the_next_request() {
        let hold = Hold::default();
        let began = Instant::now();
        hold.wait().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        hold.obey(&headers("retry-after", "7"));
        hold.wait().await;
        assert!(began.elapsed() >= Duration::from_secs(7), "{:?}", began.elapsed());
    }
}
