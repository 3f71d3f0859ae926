//! One scrape of the worker, which is a process of the same pod.
//!
//! The worker is not trusted: time and bytes are bounded, no redirect is followed, and each scrape has its own connection,
//! so that no worker waits for an idle one when it ends.

use std::{
    error::Error,
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use text::{cut, printable};
use tokio::{net::TcpStream, time::timeout};

use crate::load::Load;

/// A worker answers on loopback, with less than a kilobyte.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(1);
const LARGEST_ANSWER: usize = 1 << 20;
/// Of a message.
const LONGEST_CAUSE: usize = 256;
const USER_AGENT: &str = concat!("monitor/", env!("CARGO_PKG_VERSION"));

/// Why a scrape gave no load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScrapeError {
    /// No process listens on the port.
    Refused {
        port: u16,
    },
    /// The connection is broken.
    Unreachable {
        port: u16,
        why: String,
    },
    Slow {
        port: u16,
    },
    Status {
        port: u16,
        status: u16,
    },
    TooLarge {
        port: u16,
    },
    /// The answer is no text in the format of Prometheus.
    NoMetrics {
        port: u16,
    },
}

impl fmt::Display for ScrapeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let serve = "the worker must serve /metrics on AGENT_METRICS_PORT";
        match self {
            Self::Refused { port } => {
                write!(formatter, "port {port} of the worker refuses connections; {serve}")
            }
            Self::Unreachable { port, why } => {
                write!(formatter, "port {port} of the worker does not answer ({why}); {serve}")
            }
            Self::Slow { port } => {
                write!(
                    formatter,
                    "port {port} of the worker does not answer within {} s",
                    ANSWER_WITHIN.as_secs()
                )
            }
            Self::Status { port, status } => {
                write!(formatter, "port {port} of the worker answers /metrics with status {status}; {serve}")
            }
            Self::TooLarge { port } => {
                write!(
                    formatter,
                    "port {port} of the worker serves more than {LARGEST_ANSWER} bytes of metrics"
                )
            }
            Self::NoMetrics { port } => {
                write!(
                    formatter,
                    "port {port} of the worker serves no metrics in the text format of Prometheus"
                )
            }
        }
    }
}

/// Reads the worker once, within `ANSWER_WITHIN`.
pub(crate) async fn scrape(port: u16) -> Result<Load, ScrapeError> {
    let text = timeout(ANSWER_WITHIN, exchange(port)).await.unwrap_or(Err(ScrapeError::Slow { port }))?;
    Load::of(&text).ok_or(ScrapeError::NoMetrics { port })
}

async fn exchange(port: u16) -> Result<String, ScrapeError> {
    let broken = |error: &(dyn Error + 'static)| ScrapeError::Unreachable { port, why: cause(error) };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let request = Request::get("/metrics")
        .header(header::HOST, address.to_string())
        .header(header::ACCEPT, "text/plain;version=0.0.4")
        .header(header::CONNECTION, "close")
        .header(header::USER_AGENT, USER_AGENT)
        .body(Empty::<Bytes>::new())
        .map_err(|error| broken(&error))?;
    let stream = TcpStream::connect(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => ScrapeError::Refused { port },
        _ => broken(&error),
    })?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
    let mut exchanged = pin!(async {
        let answer = sender.send_request(request).await.map_err(|error| broken(&error))?;
        if answer.status() != StatusCode::OK {
            return Err(ScrapeError::Status { port, status: answer.status().as_u16() });
        }
        let mut body = answer.into_body();
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(|error| broken(&error))?.into_data() {
                if bytes.len() + data.len() > LARGEST_ANSWER {
                    return Err(ScrapeError::TooLarge { port });
                }
                bytes.extend_from_slice(data.chunk());
            }
        }
        String::from_utf8(bytes).map_err(|_| ScrapeError::NoMetrics { port })
    });
    tokio::select! {
        exchanged = exchanged.as_mut() => exchanged,
        // The connection ends with the answer or before it. In the second case the exchange returns the error.
        _ = connection => exchanged.await,
    }
}

/// The last cause of an error, which names what happened: `Connection reset by peer (os error 104)`.
fn cause(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    cut(printable(&last.to_string()), LONGEST_CAUSE)
}
