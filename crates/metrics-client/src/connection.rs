//! One stream to one source: connection, TLS, subscription. Each step has a deadline, and each failure says what failed.
//! It decides neither when to connect nor what a snapshot means.

use std::{
    error::Error,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use proto::metrics::v1::{Snapshot, SubscribeRequest};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;
use tonic::{Code, Request, Status, Streaming, client::Grpc, transport};
use tower::service_fn;

use crate::{
    limits::Limits,
    tls::Credentials,
    wire::{Refusal, SubscribeCodec},
};

/// Of TCP and TLS: three packets each way.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// From the subscription to its head.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of a head; no metadata of a source is longer.
const HEAD_BYTES: u32 = 16 * 1024;
/// What a source may send ahead: some snapshots of a usual node. With small messages, what HTTP/2 has at least.
const LARGEST_WINDOW: usize = 256 * 1024;
const SMALLEST_WINDOW: usize = 64 * 1024;
const LONGEST_MESSAGE: usize = 256;
const SUBSCRIBE: &str = "/metrics.v1.Metrics/Subscribe";

/// Why there is no stream, or none any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Credentials(Arc<str>),
    #[error("{0} is no address")]
    Address(String),
    #[error("{0}")]
    Connect(String),
    #[error("no connection within {} s", .0.as_secs())]
    ConnectSlow(Duration),
    #[error("it has no certificate that can be trusted: {0}")]
    Untrusted(String),
    #[error("it refuses the certificate of this client: {0}")]
    Refused(String),
    #[error("it does not speak TLS")]
    NoTls,
    #[error("no answer to the subscription within {} s", .0.as_secs())]
    AnswerSlow(Duration),
    #[error("it has as many subscribers as it allows")]
    Full,
    #[error("it does not serve metrics.v1.Metrics: another program, or another release")]
    NotServed,
    #[error("a snapshot is larger than {0} bytes")]
    TooLarge(usize),
    #[error("a snapshot has more than {0} subjects, readings, windows, holders and events")]
    TooManyElements(usize),
    #[error("it sent a message that is no snapshot")]
    NoSnapshot,
    #[error("it ended the stream: {0}")]
    Ended(String),
    #[error("it closed the connection")]
    Closed,
    #[error("{0}")]
    Malformed(#[from] crate::snapshot::Malformed),
    #[error("no snapshot for {} s", .0.as_secs())]
    Silent(Duration),
}

/// Snapshots of one source.
pub(crate) struct Subscription {
    messages: Streaming<Result<Snapshot, Refusal>>,
    broken: Broken,
    limits: Limits,
}

/// What broke the connection. HTTP/2 keeps at most the text of it, and often the text of a later error.
type Broken = Arc<Mutex<Option<Failure>>>;

/// A stream, as soon as the source has accepted the subscription.
pub(crate) async fn open(
    address: &str,
    credentials: Credentials,
    request: SubscribeRequest,
    limits: Limits,
) -> Result<Subscription, Failure> {
    let transport = match timeout(CONNECT_WITHIN, connect(address, credentials)).await {
        Ok(connected) => connected?,
        Err(_) => return Err(Failure::ConnectSlow(CONNECT_WITHIN)),
    };
    match timeout(ANSWER_WITHIN, Box::pin(subscribe(address, transport, request, limits))).await {
        Ok(subscribed) => subscribed,
        Err(_) => Err(Failure::AnswerSlow(ANSWER_WITHIN)),
    }
}

async fn connect(address: &str, credentials: Credentials) -> Result<Box<dyn Transport>, Failure> {
    let tls = match credentials {
        Credentials::Unusable(why) => return Err(Failure::Credentials(why)),
        Credentials::Plain => None,
        Credentials::Mutual { config, server_name } => Some((TlsConnector::from(config), server_name)),
    };
    let stream = TcpStream::connect(address).await.map_err(|error| Failure::Connect(last_cause(&error)))?;
    // A request is one small packet.
    let _ = stream.set_nodelay(true);
    let Some((connector, server_name)) = tls else { return Ok(Box::new(stream)) };
    let stream = connector.connect(server_name, stream).await.map_err(|error| handshake_failure(&error))?;
    Ok(Box::new(stream))
}

async fn subscribe(
    address: &str,
    io: Box<dyn Transport>,
    request: SubscribeRequest,
    limits: Limits,
) -> Result<Subscription, Failure> {
    let window = limits.message_bytes.clamp(SMALLEST_WINDOW, LARGEST_WINDOW) as u32;
    // The scheme is that of the connector, which has done its work.
    let endpoint = transport::Endpoint::from_shared(format!("http://{address}"))
        .map_err(|_| Failure::Address(address.to_owned()))?
        .http2_max_header_list_size(HEAD_BYTES)
        .initial_stream_window_size(window)
        .initial_connection_window_size(window);
    let broken = Broken::default();
    let once = Mutex::new(Some(Recorded { io, broken: Arc::clone(&broken) }));
    let connector = service_fn(move |_| {
        let io = once.lock().ok().and_then(|mut once| once.take());
        // The end of the connection is the end of the stream: when it is opened again is decided elsewhere.
        let io = io.map(TokioIo::new).ok_or(io::Error::from(io::ErrorKind::NotConnected));
        async move { io }
    });
    let channel = endpoint.connect_with_connector(connector).await.map_err(|error| ended(&error, &broken))?;
    // Not the generated client, whose codec allocates whatever a message declares.
    let mut client = Grpc::new(channel).max_decoding_message_size(limits.message_bytes);
    client.ready().await.map_err(|error| ended(&error, &broken))?;
    let path = PathAndQuery::from_static(SUBSCRIBE);
    let codec = SubscribeCodec::new(limits.elements);
    let answer = client.server_streaming(Request::new(request), path, codec);
    let messages = answer.await.map_err(|status| failure(&status, &broken, &limits))?.into_inner();
    Ok(Subscription { messages, broken, limits })
}

impl Subscription {
    /// The next message; a stream that ends has failed.
    pub(crate) async fn next(&mut self, within: Duration) -> Result<Snapshot, Failure> {
        match timeout(within, self.messages.message()).await {
            Ok(Ok(Some(Ok(message)))) => Ok(message),
            Ok(Ok(Some(Err(Refusal::TooManyElements)))) => {
                Err(Failure::TooManyElements(self.limits.elements))
            }
            Ok(Ok(Some(Err(Refusal::NoMessage)))) => Err(Failure::NoSnapshot),
            Ok(Ok(None)) => Err(Failure::Ended("without an error".to_owned())),
            Ok(Err(status)) => Err(failure(&status, &self.broken, &self.limits)),
            Err(_) => Err(Failure::Silent(within)),
        }
    }
}

trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// Keeps the first error of a connection.
struct Recorded {
    io: Box<dyn Transport>,
    broken: Broken,
}

impl Recorded {
    fn record(&self, failure: impl FnOnce() -> Failure) {
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        broken.get_or_insert_with(failure);
    }

    fn recorded<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &polled {
            self.record(|| connection_failure(error));
        }
        polled
    }
}

impl AsyncRead for Recorded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.remaining();
        let polled = Pin::new(&mut self.io).poll_read(context, buffer);
        if matches!(polled, Poll::Ready(Ok(()))) && room > 0 && buffer.remaining() == room {
            self.record(|| Failure::Closed);
        }
        self.recorded(polled)
    }
}

impl AsyncWrite for Recorded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(context, bytes);
        self.recorded(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(context);
        self.recorded(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_shutdown(context);
        self.recorded(polled)
    }
}

fn failure(status: &Status, broken: &Broken, limits: &Limits) -> Failure {
    match status.code() {
        Code::ResourceExhausted => Failure::Full,
        Code::Unimplemented => Failure::NotServed,
        Code::OutOfRange => Failure::TooLarge(limits.message_bytes),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => ended(status, broken),
    }
}

/// A status without a cause is the word of the source; any other error is of the connection.
fn ended(error: &(dyn Error + 'static), broken: &Broken) -> Failure {
    let recorded = || broken.lock().unwrap_or_else(PoisonError::into_inner).take();
    let recorded = error.source().and_then(|_| recorded());
    recorded.unwrap_or_else(|| Failure::Ended(last_cause(error)))
}

/// With TLS 1.3 a source refuses the certificate of a client only after the client has finished its handshake.
fn connection_failure(error: &io::Error) -> Failure {
    match tls_error(error) {
        Some(rustls::Error::AlertReceived(alert)) => Failure::Refused(format!("{alert:?}")),
        Some(_) | None => Failure::Ended(last_cause(error)),
    }
}

fn handshake_failure(error: &io::Error) -> Failure {
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(why)) => Failure::Untrusted(foreign(&why.to_string())),
        Some(rustls::Error::AlertReceived(alert)) => Failure::Refused(format!("{alert:?}")),
        Some(rustls::Error::InvalidMessage(_)) => Failure::NoTls,
        Some(other) => Failure::Connect(foreign(&other.to_string())),
        None => Failure::Connect(last_cause(error)),
    }
}

fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    fn cause<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
        // An `io::Error` is not the source of what it wraps.
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    }
    std::iter::successors(Some(error), |error| cause(*error))
}

fn tls_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// It names what happened: `Connection refused (os error 111)`. Of a status, its message.
fn last_cause(error: &(dyn Error + 'static)) -> String {
    let last = causes(error).last().unwrap_or(error);
    match last.downcast_ref::<Status>() {
        Some(status) => foreign(&format!("{}: {}", status.code(), status.message())),
        None => foreign(&last.to_string()),
    }
}

fn foreign(text: &str) -> String {
    text::cut(text::printable(text.trim()), LONGEST_MESSAGE)
}
