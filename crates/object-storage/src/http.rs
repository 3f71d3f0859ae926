//! The HTTP client of object_store. It limits each wait and the size of listings, respects `Retry-After`, and converts
//! refusals to errors. It must not follow redirects, and its errors must not contain free text of the store; those of the
//! parsers behind it do, and `answers` replaces them.

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
use http::{
    HeaderMap, Method, StatusCode, Uri,
    header::{DATE, LOCATION, RETRY_AFTER},
};
use http_body::{Body, Frame, SizeHint};
use object_store::{
    ClientConfigKey, ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
        HttpService,
    },
};
use reqwest::{
    Certificate,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout, timeout_at};

use crate::{
    expected::Expected,
    names::{OnlyNames, Skipped},
};

/// Limit for idle connections; at least the number of concurrent requests.
const IDLE_CONNECTIONS: usize = 32;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A refused request. Only values of a fixed format are kept, because the text may contain parts of credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{status} {code}")]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// The code of S3, such as `NoSuchBucket`; empty if there is none.
    pub(crate) code: String,
    /// The region of the bucket, if the store names it.
    pub(crate) region: Option<String>,
    /// Scheme and host of a redirect.
    pub(crate) location: Option<String>,
    /// The time of the store.
    pub(crate) date: Option<String>,
}

/// Extension of an answer: the object is encrypted in a way that its ETag is not its MD5.
#[derive(Clone, Copy, Debug)]
pub struct EtagIsNoDigest;

#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s", .0.as_secs())]
struct NoAnswer(Duration);

#[derive(Debug, thiserror::Error)]
#[error("no byte within {} s", .0.as_secs())]
struct NoByte(Duration);

/// A page has at most 1000 keys of at most 1024 bytes, each of which takes up to 3 bytes or is escaped.
const LONGEST_PAGE: u64 = 8 << 20;
/// Limit for any other answer that is kept in memory: that to an upload, or a page for which fewer keys were requested.
/// Many of them may arrive at once.
const LONGEST_ANSWER: u64 = 1 << 20;
/// Limit for a page of names, of which programs with little memory read several at once. A key of the most bytes takes
/// 3 KiB, and [`OnlyNames`] asks for a hundred.
const LONGEST_NAMES: u64 = 512 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is larger than {}", binary(*limit))]
pub(crate) struct LargeAnswer {
    what: &'static str,
    limit: u64,
}

fn binary(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

#[derive(Debug)]
pub(crate) struct Connector {
    stall: Duration,
    answered: Arc<AtomicBool>,
    authorities: Vec<Certificate>,
}

impl Connector {
    /// `answered` is set by the first successful answer. `authorities` are trusted in addition to those of the system.
    pub(crate) fn new(stall: Duration, answered: Arc<AtomicBool>, authorities: Vec<Certificate>) -> Self {
        Self { stall, answered, authorities }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // object_store adds the default headers of `options` itself, because it signs them.
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let Self { stall, answered, authorities } = self;
        let https_only = allow_http.as_deref() != Some("true");
        let client = Client::new(*stall, Arc::clone(answered), authorities, https_only)
            .map_err(|error| object_store::Error::Generic { store: "S3", source: Box::new(error) })?;
        Ok(HttpClient::new(Bounded(client)))
    }
}

/// Sends requests whose waits are limited, and respects `Retry-After`. It follows no redirect.
#[derive(Debug)]
pub struct Client {
    client: HttpClient,
    stall: Duration,
    answered: Arc<AtomicBool>,
    pause: Pause,
}

impl Client {
    /// `stall`: a request without a byte for so long has failed. `answered` is set by the first successful answer.
    /// `authorities` are trusted in addition to those of the system.
    pub fn new(
        stall: Duration,
        answered: Arc<AtomicBool>,
        authorities: &[Certificate],
        https_only: bool,
    ) -> Result<Self, reqwest::Error> {
        // No time-out for a whole request, because a model may take hours; see `Limited`.
        let client = reqwest::Client::builder()
            .user_agent(concat!("ai-controllers/", env!("CARGO_PKG_VERSION")))
            .https_only(https_only)
            // Otherwise the signature and the session token would be sent to any host that an answer names.
            .redirect(Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .http1_only()
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .dns_resolver(Shuffled)
            .tls_certs_merge(authorities.iter().cloned())
            .build()?;
        Ok(Self { client: HttpClient::new(client), stall, answered, pause: Pause::default() })
    }

    /// The answer, whatever its status. An answer that is no object has at most `longest` bytes; with `None` the caller
    /// counts them.
    pub async fn get(&self, request: HttpRequest, longest: Option<u64>) -> Result<HttpResponse, HttpError> {
        let longest = longest.map(|limit| LargeAnswer { what: "an answer", limit });
        self.send(request, longest).await
    }

    async fn send(
        &self,
        request: HttpRequest,
        longest: Option<LargeAnswer>,
    ) -> Result<HttpResponse, HttpError> {
        self.pause.wait().await;
        let reads = [Method::GET, Method::HEAD].contains(request.method());
        let patience = if reads { self.stall } else { self.stall * UPLOAD_STALLS };
        let Ok(answer) = timeout(patience, self.client.execute(request)).await else {
            return Err(HttpError::new(HttpErrorKind::Timeout, NoAnswer(patience)));
        };
        let answer = answer?.map(|body| HttpResponseBody::new(Limited::new(body, self.stall, longest)));
        if answer.status().is_success() {
            self.answered.store(true, Ordering::Relaxed);
        } else {
            self.pause.extend(answer.headers());
        }
        Ok(answer)
    }

    /// The beginning of the text of a refusal, of which a slow one is cut.
    pub async fn beginning(&self, body: HttpResponseBody) -> Vec<u8> {
        beginning(body, self.stall).await
    }
}

/// Resolves a host to its addresses in random order, which distributes the load over the front ends of a store.
#[derive(Debug)]
struct Shuffled;

impl Resolve for Shuffled {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let mut found: Vec<_> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            fastrand::shuffle(&mut found);
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}

/// The service of object_store: a refusal is an error.
#[derive(Debug)]
struct Bounded(Client);

/// An upload is answered when its body has arrived, which on a slow line takes longer than the first byte of a download.
const UPLOAD_STALLS: u32 = 10;

#[async_trait]
impl HttpService for Bounded {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let names = request.extensions().get::<OnlyNames>().copied();
        let longest = match names {
            Some(_) => Some(LargeAnswer { what: "a page of the listing", limit: LONGEST_NAMES }),
            None => longest_answer(request.method(), request.uri()),
        };
        let mut answer = self.0.send(request, longest).await?;
        if !answer.status().is_success() {
            return Err(HttpError::new(HttpErrorKind::Unknown, refusal(answer, self.0.stall).await));
        }
        if let Some(names) = names {
            return only_names(answer, names).await;
        }
        if hides_digest(answer.headers()) {
            answer.extensions_mut().insert(EtagIsNoDigest);
        }
        if let Some(expected) = Expected::of_headers(answer.status(), answer.headers()) {
            answer.extensions_mut().insert(expected);
        }
        Ok(answer)
    }
}

/// A page without the entries that are no names: object_store refuses a whole page for one key that it cannot parse.
async fn only_names(answer: HttpResponse, names: OnlyNames) -> Result<HttpResponse, HttpError> {
    let (head, body) = answer.into_parts();
    let page = body.bytes().await?;
    let (page, skipped) = names
        .kept(&String::from_utf8_lossy(&page))
        .map_err(|many| HttpError::new(HttpErrorKind::Decode, many))?;
    let mut answer = HttpResponse::from_parts(head, page.into());
    answer.extensions_mut().insert::<Skipped>(skipped);
    Ok(answer)
}

/// The limit for an answer, `None` for the bytes of an object, which the caller counts.
fn longest_answer(method: &Method, uri: &Uri) -> Option<LargeAnswer> {
    let has =
        |name: &str| uri.query().is_some_and(|query| query.split('&').any(|part| part.starts_with(name)));
    match (method == Method::GET, has("list-type="), has("max-keys=")) {
        (true, true, false) => Some(LargeAnswer { what: "a page of the listing", limit: LONGEST_PAGE }),
        (true, false, _) => None,
        (true, true, true) | (false, _, _) => Some(LargeAnswer { what: "an answer", limit: LONGEST_ANSWER }),
    }
}

/// A body that fails when no byte has arrived for too long, or when it is larger than a limit. Its total time is not
/// limited.
#[derive(Debug)]
struct Limited {
    body: HttpResponseBody,
    stall: Duration,
    silence: Pin<Box<Sleep>>,
    /// Bytes that have arrived.
    arrived: u64,
    longest: Option<LargeAnswer>,
}

impl Limited {
    fn new(body: HttpResponseBody, stall: Duration, longest: Option<LargeAnswer>) -> Self {
        Self { body, stall, silence: Box::pin(sleep(stall)), arrived: 0, longest }
    }

    fn count(&mut self, frame: &Frame<Bytes>) -> Result<(), HttpError> {
        self.arrived += frame.data_ref().map_or(0, |data| data.len() as u64);
        match self.longest {
            Some(large) if self.arrived > large.limit => Err(HttpError::new(HttpErrorKind::Decode, large)),
            _ => Ok(()),
        }
    }
}

impl Body for Limited {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let stall = self.stall;
        // The body first, because bytes that arrived between two polls are not late.
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.silence.as_mut().reset(Instant::now() + stall);
            return Poll::Ready(
                frame.map(|frame| frame.and_then(|frame| self.count(&frame).map(|()| frame))),
            );
        }
        ready!(self.silence.as_mut().poll(context));
        Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Timeout, NoByte(stall)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    /// object_store reserves memory for as many bytes as this says, and a store may announce any length.
    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// `within`: for the text, of which a slow one is cut.
async fn refusal(answer: HttpResponse, within: Duration) -> Refusal {
    let (head, body) = answer.into_parts();
    let text = beginning(body, within).await;
    let text = String::from_utf8_lossy(&text);
    let header = |name: &str| head.headers.get(name)?.to_str().ok();
    let region = header("x-amz-bucket-region").or_else(|| element(&text, "Region")).filter(is_region);
    Refusal {
        status: head.status,
        code: element(&text, "Code").filter(is_code).unwrap_or_default().to_owned(),
        region: region.map(str::to_owned),
        location: header(LOCATION.as_str()).and_then(origin),
        date: header(DATE.as_str()).filter(is_date).map(str::to_owned),
    }
}

/// The beginning of a body, enough for the code; the error page of a proxy may have any length.
async fn beginning(body: HttpResponseBody, within: Duration) -> Vec<u8> {
    const ENOUGH: usize = 4096;
    let end = Instant::now() + within;
    let mut read = Vec::new();
    let mut chunks = body.bytes_stream();
    while let Ok(Some(Ok(chunk))) = timeout_at(end, chunks.next()).await {
        read.extend_from_slice(chunk.get(..chunk.len().min(ENOUGH - read.len())).unwrap_or_default());
        if read.len() == ENOUGH {
            break;
        }
    }
    read
}

/// `<Error><Code>NoSuchBucket</Code>...`
fn element<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(content, _)| content)
}

fn is_code(text: &&str) -> bool {
    text.len() <= 64 && text.chars().all(|char| char.is_ascii_alphanumeric())
}

fn is_region(text: &&str) -> bool {
    let is_part = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-';
    (1..=64).contains(&text.len()) && text.chars().all(is_part)
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`
fn is_date(text: &&str) -> bool {
    let is_part = |char: char| char.is_ascii_alphanumeric() || " ,:".contains(char);
    text.len() == 29 && text.ends_with(" GMT") && text.chars().all(is_part)
}

/// Scheme, host and port. The rest of an address may contain a signature.
pub fn origin(location: &str) -> Option<String> {
    let location: Uri = location.parse().ok()?;
    let (scheme, host) = (location.scheme_str()?, location.host()?);
    let port = location.port().map_or(String::new(), |port| format!(":{port}"));
    (host.len() <= 253).then(|| format!("{scheme}://{host}{port}"))
}

fn hides_digest(headers: &HeaderMap) -> bool {
    let encryption = headers.get("x-amz-server-side-encryption").map(http::HeaderValue::as_bytes);
    encryption.is_some_and(|how| how.starts_with(b"aws:"))
        || headers.contains_key("x-amz-server-side-encryption-customer-algorithm")
}

/// The time until which all requests wait, because the store has sent `Retry-After`.
#[derive(Debug, Default)]
struct Pause(Mutex<Option<Instant>>);

impl Pause {
    async fn wait(&self) {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = until {
            sleep_until(until).await;
        }
    }

    fn extend(&self, headers: &HeaderMap) {
        if let Some(seconds) = retry_after(headers) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + seconds);
        }
    }
}

/// The value in seconds. A date is ignored: S3 does not send one, and the back-off of the requests is sufficient.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    /// Limit for a pause, because the store may recover before the end of a longer one.
    const LONGEST: u64 = 30;
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(LONGEST)))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        [(http::HeaderName::from_static(name), http::HeaderValue::from_static(value))].into_iter().collect()
    }

    #[tokio::test]
    async fn only_values_of_a_fixed_format_are_kept_of_a_refusal() {
        let kept = async |text: &'static str, headers: HeaderMap| {
            let mut answer = HttpResponse::new(text.to_owned().into());
            *answer.headers_mut() = headers;
            refusal(answer, Duration::from_secs(60)).await
        };
        let text = "<?xml version=\"1.0\"?><Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region>\
                    <AWSAccessKeyId>AKIA1</AWSAccessKeyId>";
        let refused = kept(text, headers("date", "Sun, 06 Nov 1994 08:49:37 GMT")).await;
        assert_eq!(refused.code, "AuthorizationHeaderMalformed");
        assert_eq!(refused.region.as_deref(), Some("eu-west-1"));
        assert_eq!(refused.date.as_deref(), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
        assert!(!format!("{refused:?}").contains("AKIA1"));
        for text in ["", "<html>Bad Gateway</html>", "<Code>", "<Code>a b</Code>", "<Code>\u{1b}[31m</Code>"]
        {
            let refused = kept(text, headers("date", "<Code>x</Code>")).await;
            assert_eq!((refused.code.as_str(), refused.date), ("", None), "{text}");
        }
        let named = kept("", headers("x-amz-bucket-region", "eu-west-1")).await;
        assert_eq!(named.region.as_deref(), Some("eu-west-1"));
        assert_eq!(kept("<Region>a b</Region>", HeaderMap::new()).await.region, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_whose_text_comes_slowly_is_cut() {
        let bytes = futures::stream::unfold(0_u32, |sent| async move {
            sleep(Duration::from_secs(15)).await;
            Some((Ok::<_, HttpError>(Frame::data(Bytes::from_static(b"<Code>"))), sent + 1))
        });
        let body = HttpResponseBody::new(http_body_util::StreamBody::new(Box::pin(bytes)));
        let began = Instant::now();
        let mut answer = HttpResponse::new(body);
        *answer.status_mut() = StatusCode::FORBIDDEN;
        let refused = refusal(answer, Duration::from_secs(20)).await;
        assert_eq!((refused.status, &*refused.code), (StatusCode::FORBIDDEN, ""));
        assert_eq!(began.elapsed().as_secs(), 20);
    }

    #[test]
    fn no_memory_is_reserved_for_a_length_that_a_store_announces() {
        let announced = http_body_util::Full::new(Bytes::from_static(&[0; 100]));
        let body = HttpResponseBody::new(announced.map_err(|never| match never {}));
        assert_eq!(body.size_hint().lower(), 100);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        assert_eq!(Limited::new(body, Duration::from_secs(1), None).size_hint().lower(), 0);
    }

    #[test]
    fn every_answer_but_an_object_has_a_longest_length() {
        let limit = |method: &Method, uri: &'static str| {
            longest_answer(method, &Uri::from_static(uri)).map(|large| large.limit)
        };
        assert_eq!(limit(&Method::GET, "http://minio/models?list-type=2&prefix=a"), Some(8 << 20));
        assert_eq!(limit(&Method::GET, "http://minio/models?list-type=2&max-keys=1"), Some(1 << 20));
        assert_eq!(limit(&Method::POST, "http://minio/models/a?uploadId=1"), Some(1 << 20));
        assert_eq!(limit(&Method::GET, "http://minio/models/list-type=2"), None);
    }

    #[test]
    fn a_redirect_is_named_by_its_host_alone() {
        assert_eq!(
            origin("https://me:key@b.example:8443/x?signature=1").as_deref(),
            Some("https://b.example:8443")
        );
        assert_eq!(origin("/elsewhere"), None);
    }

    #[test]
    fn a_pause_is_kept_up_to_half_a_minute() {
        for (value, seconds) in
            [("0", Some(0)), ("7", Some(7)), ("3600", Some(30)), ("Wed, 21 Oct 2026", None), ("-1", None)]
        {
            assert_eq!(
                retry_after(&headers("retry-after", value)),
                seconds.map(Duration::from_secs),
                "{value}"
            );
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
    async fn the_next_request_waits_as_long_as_the_store_asks_for() {
        let pause = Pause::default();
        let began = Instant::now();
        pause.wait().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        pause.extend(&headers("retry-after", "7"));
        pause.wait().await;
        assert!(began.elapsed() >= Duration::from_secs(7), "{:?}", began.elapsed());
    }
}
