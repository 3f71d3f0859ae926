//! The one way to the API server: kube's client with a deadline on every call and a guard on every write.
//!
//! The deadline covers headers and body. TLS, authentication and addresses are kube's. Its retries are left out, because
//! they would repeat creates for minutes unseen by the caller, and the work queue retries a failed call; so are its spans
//! and log lines of each call. Not for exec, attach or log streams.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, header, response::Parts};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, combinators::UnsyncBoxBody};
use hyper_util::{
    client::legacy::{Client as Connections, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _},
};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service, ServiceBuilder};

use crate::{clock::Clock, metrics::Metrics};

#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    pub connect: Duration,
    pub read: Duration,
    pub write: Duration,
    pub list: Duration,
    /// Until the headers of a WATCH; its body may take as long as it likes.
    pub watch_start: Duration,
    /// Until a connection without calls is closed. Each has buffers of some 60 KiB, and a burst leaves one for each worker.
    pub unused: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            read: Duration::from_secs(10),
            write: Duration::from_secs(15),
            list: Duration::from_secs(30),
            watch_start: Duration::from_secs(10),
            // The writes of one reconcile follow each other within milliseconds.
            unused: Duration::from_secs(5),
        }
    }
}

/// What one call may answer: an object is no larger than 3 MiB, and a page of a list is asked for again with fewer objects.
const LARGEST_ANSWER: usize = 8 << 20;
/// A log comes from a node, which may be in the wrong hands and need not keep to what it was asked for.
pub(crate) const LARGEST_LOG: usize = 256 << 10;

/// A call that was not answered in time, or with too much, or not sent.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("{operation} was not answered within {} s", .limit.as_secs_f32())]
    TimedOut { operation: &'static str, limit: Duration },
    #[error("{operation} was answered with more than {limit} bytes")]
    TooLarge { operation: &'static str, limit: usize },
    #[error("{operation} was not sent: this replica does not lead")]
    NotLeading { operation: &'static str },
}

/// Which replicas may write: all, or only the leader until its lease may have been lost.
#[derive(Clone, Debug)]
pub enum WriteGuard {
    Always,
    WhileLeading(LeaderGuard),
}

/// Until when this replica is sure to lead. The elector moves it, the client asks it.
#[derive(Clone, Debug, Default)]
pub struct LeaderGuard(Arc<Mutex<Option<Instant>>>);

impl LeaderGuard {
    pub(crate) fn lead_until(&self, until: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    pub(crate) fn stop_leading(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub fn may_write(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| Instant::now() < until)
    }
}

/// A client whose every call ends, in time. The clock learns the time of each answer.
pub fn build(
    config: &Config,
    deadlines: Deadlines,
    guard: WriteGuard,
    metrics: Arc<Metrics>,
    clock: Clock,
) -> Result<Client, kube::Error> {
    if let Some(proxy_url) = &config.proxy_url {
        return Err(kube::Error::ProxyProtocolDisabled {
            proxy_url: Box::new(proxy_url.clone()),
            protocol_feature: "kube/http-proxy",
        });
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(deadlines.connect));
    let connections = Connections::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(deadlines.unused)
        .build(config.rustls_https_connector_with_connector(tcp)?);
    let service = ServiceBuilder::new()
        .layer(Guarded { deadlines, guard, metrics, clock })
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// A whole body, or the stream of a watch.
type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

#[derive(Clone)]
struct Guarded {
    deadlines: Deadlines,
    guard: WriteGuard,
    metrics: Arc<Metrics>,
    clock: Clock,
}

impl<S> Layer<S> for Guarded {
    type Service = GuardedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        GuardedService { inner, layer: self.clone() }
    }
}

struct GuardedService<S> {
    inner: S,
    layer: Guarded,
}

impl<S> fmt::Debug for GuardedService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GuardedService")
    }
}

impl<S, B> Service<Request<Body>> for GuardedService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<AnswerBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let operation = Operation::of(&request, &self.layer.deadlines);
        if operation.is_write
            && let WriteGuard::WhileLeading(guard) = &self.layer.guard
            && !guard.may_write()
        {
            return Box::pin(std::future::ready(Err(
                CallError::NotLeading { operation: operation.name }.into()
            )));
        }
        let (metrics, clock) = (Arc::clone(&self.layer.metrics), self.layer.clock.clone());
        let method = request.method().clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let limit = operation.limit;
            let answered = tokio::time::timeout(limit, complete(answer, &operation)).await;
            let answered = answered
                .unwrap_or_else(|_| Err(CallError::TimedOut { operation: operation.name, limit }.into()));
            let head = answered.as_ref().ok().map(Response::headers);
            if let Some(date) = head.and_then(|head| head.get(header::DATE)?.to_str().ok()) {
                clock.answered(date);
            }
            metrics.request_ended(&method, answered.as_ref().ok().map(|response| response.status()));
            answered
        })
    }
}

/// The headers, and the body too unless it is that of a watch that has begun.
async fn complete<B, E>(
    answer: impl Future<Output = Result<Response<B>, E>>,
    operation: &Operation,
) -> Result<Response<AnswerBody>, BoxError>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    E: Into<BoxError>,
{
    let (head, body) = answer.await.map_err(Into::into)?.into_parts();
    if operation.is_watch && head.status.is_success() {
        return Ok(Response::from_parts(head, body.map_err(Into::into).boxed_unsync()));
    }
    let (operation, limit) = (operation.name, operation.largest);
    // It is read as it comes, and no further than that.
    let collected = Limited::new(body, limit).collect().await;
    let mut bytes = collected
        .map_err(|error| match error.is::<LengthLimitError>() {
            true => CallError::TooLarge { operation, limit }.into(),
            false => error,
        })?
        .to_bytes();
    if head.status.is_client_error() || head.status.is_server_error() {
        bytes = as_status(&head, &bytes);
    }
    Ok(Response::from_parts(head, Full::new(bytes).map_err(|never| match never {}).boxed_unsync()))
}

/// A failure as a Status with the code and the pause of the HTTP answer. kube takes both from the body alone, where they
/// are missing if a proxy has answered, or the API server's own flow control, which speaks plain text.
fn as_status(head: &Parts, body: &[u8]) -> Bytes {
    let read: Option<Value> = serde_json::from_slice(body).ok();
    let mut status = read.filter(|read| read["kind"] == "Status").unwrap_or_else(|| {
        let message = String::from_utf8_lossy(body);
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message.trim()})
    });
    if status["code"].as_u64().is_none_or(|code| code == 0) {
        status["code"] = json!(head.status.as_u16());
    }
    let pause =
        head.headers.get(header::RETRY_AFTER).and_then(|pause| pause.to_str().ok()?.parse::<u32>().ok());
    if let Some(seconds) = pause {
        let mut details = match status["details"].take() {
            Value::Object(details) => details,
            _ => Map::new(),
        };
        details.entry("retryAfterSeconds").or_insert_with(|| json!(seconds));
        status["details"] = details.into();
    }
    status.to_string().into()
}

struct Operation {
    name: &'static str,
    limit: Duration,
    /// Bytes of the answer.
    largest: usize,
    is_watch: bool,
    is_write: bool,
}

impl Operation {
    /// kube names the operation in an extension of the request; an unnamed one is derived from its method.
    fn of(request: &Request<Body>, deadlines: &Deadlines) -> Self {
        let named = request.extensions().get::<&'static str>().copied();
        let is_write = request.method() != Method::GET;
        let name = named.unwrap_or(if is_write { "write" } else { "read" });
        let is_watch = name.starts_with("watch");
        let limit = match name {
            _ if is_write => deadlines.write,
            _ if is_watch => deadlines.watch_start,
            "list" | "list_metadata" => deadlines.list,
            _ => deadlines.read,
        };
        let largest = if name == "get_log" { LARGEST_LOG } else { LARGEST_ANSWER };
        Self { name, limit, largest, is_watch, is_write }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn layer(guard: WriteGuard) -> Guarded {
        let metrics = Arc::new(Metrics::new("test"));
        Guarded { deadlines: Deadlines::default(), guard, metrics, clock: Clock::default() }
    }

    fn request(method: Method, name: &'static str) -> Request<Body> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        request.extensions_mut().insert(name);
        request
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_cut_at_the_deadline() {
        let hanging = tower::service_fn(|_: Request<Body>| async {
            let never = futures::stream::pending::<Result<http_body::Frame<Bytes>, Infallible>>();
            Ok::<_, Infallible>(Response::new(http_body_util::StreamBody::new(never)))
        });
        let started = Instant::now();
        let mut service = layer(WriteGuard::Always).layer(hanging);
        let error = service.call(request(Method::GET, "get")).await.unwrap_err();
        assert_eq!(started.elapsed(), Duration::from_secs(10));
        assert!(error.to_string().contains("get was not answered within 10 s"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_has_begun_is_not_cut() {
        let quiet = tower::service_fn(|_: Request<Body>| async {
            let never = futures::stream::pending::<Result<http_body::Frame<Bytes>, Infallible>>();
            Ok::<_, Infallible>(Response::new(http_body_util::StreamBody::new(never)))
        });
        let mut service = layer(WriteGuard::Always).layer(quiet);
        let response = service.call(request(Method::GET, "watch")).await.unwrap();
        let body = tokio::time::timeout(Duration::from_secs(3_600), response.into_body().collect());
        assert!(body.await.is_err(), "still open after an hour");
    }

    #[tokio::test]
    async fn only_the_leader_writes_and_everybody_reads() {
        let answering = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"{}"))))
        });
        let guard = LeaderGuard::default();
        let mut service = layer(WriteGuard::WhileLeading(guard.clone())).layer(answering);
        assert!(service.call(request(Method::GET, "get")).await.is_ok());
        let refused = service.call(request(Method::PATCH, "patch")).await.unwrap_err();
        assert!(refused.to_string().contains("does not lead"), "{refused}");
        guard.lead_until(Instant::now() + Duration::from_secs(10));
        assert!(service.call(request(Method::PATCH, "patch")).await.is_ok());
        guard.stop_leading();
        assert!(service.call(request(Method::PATCH, "patch")).await.is_err());
    }
}
