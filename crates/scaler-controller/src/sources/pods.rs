//! Metrics of pods: one scrape of one pod.
//!
//! A pod is not trusted, and many are scraped at a time. So the time and the bytes of each answer are limited, those of
//! its head too, and the number of bodies that are read at once. Redirects are not followed. Each scrape has its own
//! connection, which is closed: Triton waits for idle connections when it ends, and then reports a failure. [`scrapes`]
//! turns successive scrapes into samples.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use text::exposition::{Exposition, MOST_SERIES};
use tokio::{net::TcpStream, time::timeout};

use super::{
    Fault,
    body::{BodyError, LARGEST_HEAD, USER_AGENT, cause, is_head_too_large, read_body},
    engines::{self, Scrape, Wanted},
    foreign,
};
pub use bodies::Bodies;

mod bodies;
pub mod kept;
pub mod scrapes;

/// One pod of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pod<'a> {
    /// Namespace and name, for messages.
    pub name: &'a str,
    pub address: SocketAddr,
    /// Path of the metrics; begins with a slash.
    pub path: &'a str,
}

/// What the scrapes of the pods of one target share.
#[derive(Debug)]
pub struct Batch<'b> {
    bodies: &'b Bodies,
    namespace: &'b str,
    /// Names are compared once: it takes long, and a user reads one message.
    has_named_similar: AtomicBool,
}

impl<'b> Batch<'b> {
    pub fn new(bodies: &'b Bodies, namespace: &'b str) -> Self {
        Self { bodies, namespace, has_named_similar: AtomicBool::new(false) }
    }

    /// The fault with the names that the pod serves in the place of the one that is missing.
    fn with_similar(&self, fault: Fault, read: &Exposition<'_>) -> Fault {
        const MOST_SIMILAR: usize = 5;
        match fault {
            Fault::NoSuchMetric { pod, metric, similar: _ }
                if !self.has_named_similar.swap(true, Ordering::Relaxed) =>
            {
                let similar = read.similar(&metric, MOST_SIMILAR);
                Fault::NoSuchMetric { pod, metric, similar }
            }
            fault => fault,
        }
    }
}

/// Limits of one scrape.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of each step: the connection, the head of the answer, its body.
    pub deadline: Duration,
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        // An engine answers within milliseconds with 50 to 300 KiB; one that is busy with a long prompt takes longer.
        Self { deadline: Duration::from_secs(1), bytes: 2 << 20 }
    }
}

/// Metadata services of clouds that are not link-local: of Azure, Alibaba, Oracle's older one, and AWS over IPv6.
const METADATA_SERVICES: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// The address of a pod and a port, as its status says, which others than the kubelet may be allowed to write. Loopback,
/// link-local addresses, those of many hosts and the metadata services of clouds are refused. Any other address passes, of a
/// node too: a pod on the network of its node has that one. What a network policy forbids the controller stays forbidden.
pub fn address(pod: &str, ip: &str, port: u16) -> Result<SocketAddr, Fault> {
    let invalid = || Fault::InvalidAddress { pod: pod.to_owned(), address: foreign(ip) };
    let ip: IpAddr = ip.parse().map_err(|_| invalid())?;
    let ip = ip.to_canonical();
    let is_of_pod = !METADATA_SERVICES.contains(&ip)
        && match ip {
            IpAddr::V4(ip) => {
                !(ip.is_loopback()
                    || ip.is_unspecified()
                    || ip.is_link_local()
                    || ip.is_multicast()
                    || ip.is_broadcast())
            }
            IpAddr::V6(ip) => {
                !(ip.is_loopback() || ip.is_unspecified() || ip.is_unicast_link_local() || ip.is_multicast())
            }
        };
    if is_of_pod && port > 0 { Ok(SocketAddr::new(ip, port)) } else { Err(invalid()) }
}

/// Scrapes a pod once and reads each that is wanted, in the same order. The caller passes it to the [`scrapes`], with the
/// time. The wait until its body may be read does not count as lateness of the pod.
pub async fn poll_once(
    pod: Pod<'_>,
    wanted: &[&Wanted],
    limits: Limits,
    batch: &Batch<'_>,
) -> Result<Vec<Scrape>, Fault> {
    // Without a wait from here on, so that no text is kept while others are read.
    let text = scrape(pod, limits, batch).await?;
    let read = text::exposition::parse(&text, |series| wanted.iter().any(|wanted| wanted.needs(series)));
    if read.is_cut {
        return Err(Fault::TooManyMetrics { pod: pod.name.to_owned(), limit: MOST_SERIES });
    }
    if read.is_empty() && read.unreadable > 0 {
        return Err(Fault::WrongContent {
            server: format!("pod {}", pod.name),
            content: "text of another format".to_owned(),
            wanted: "metrics",
        });
    }
    let read_one = |wanted: &&Wanted| {
        let Scrape { value, requests } = engines::read(&read, wanted, pod.name);
        Scrape { value: value.map_err(|fault| batch.with_similar(fault, &read)), requests }
    };
    Ok(wanted.iter().map(read_one).collect())
}

/// The text that a pod serves.
async fn scrape(pod: Pod<'_>, limits: Limits, batch: &Batch<'_>) -> Result<String, Fault> {
    let answer = exchange(pod, limits, batch).await;
    answer.map_err(|failure| failure.fault(format!("pod {}", pod.name), limits))
}

enum Failure {
    Connection(String),
    Status(StatusCode),
    HeadTooLarge,
    TooLarge,
    Slow,
}

impl Failure {
    fn fault(self, server: String, limits: Limits) -> Fault {
        match self {
            Self::Connection(why) => Fault::Unreachable { server, why },
            Self::Status(status) if status.is_redirection() => {
                Fault::Redirected { server, to: "another address".to_owned() }
            }
            Self::Status(status) if status.is_server_error() => {
                Fault::Failed { server, status: status.as_u16(), why: "the pod's own failure".to_owned() }
            }
            Self::Status(status) => Fault::Rejected {
                server,
                status: status.as_u16(),
                why: "correct port and path of source.pods".to_owned(),
            },
            Self::HeadTooLarge => Fault::HeadTooLarge { server, limit: LARGEST_HEAD },
            Self::TooLarge => Fault::TooLarge { server, limit: limits.bytes },
            Self::Slow => Fault::Slow { server, limit: limits.deadline },
        }
    }
}

async fn within<T>(limits: Limits, step: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    timeout(limits.deadline, step).await.unwrap_or(Err(Failure::Slow))
}

async fn exchange(pod: Pod<'_>, limits: Limits, batch: &Batch<'_>) -> Result<String, Failure> {
    let broken = |error: &(dyn std::error::Error + 'static)| Failure::Connection(cause(error));
    let request = Request::get(pod.path)
        .header(header::HOST, pod.address.to_string())
        .header(header::ACCEPT, "text/plain;version=0.0.4")
        .header(header::CONNECTION, "close")
        .header(header::USER_AGENT, USER_AGENT)
        .body(Empty::<Bytes>::new())
        .map_err(|error| broken(&error))?;
    let connected = within(limits, async {
        let stream = TcpStream::connect(pod.address).await.map_err(|error| broken(&error))?;
        let handshake = http1::Builder::new().max_buf_size(LARGEST_HEAD).handshake(TokioIo::new(stream));
        handshake.await.map_err(|error| broken(&error))
    });
    let (mut sender, connection) = connected.await?;
    let mut exchanged = pin!(async {
        let refused = |error: hyper::Error| {
            if is_head_too_large(&error) { Failure::HeadTooLarge } else { broken(&error) }
        };
        let answer = within(limits, async { sender.send_request(request).await.map_err(refused) });
        let answer = answer.await?;
        if answer.status() != StatusCode::OK {
            return Err(Failure::Status(answer.status()));
        }
        // The head is dropped: any number of connections may wait for a permit.
        let body = answer.into_body();
        // Only now: pods that do not answer keep no permit from those that do.
        let _permit = batch.bodies.permit(batch.namespace).await;
        let body = within(limits, async {
            read_body(body, limits.bytes).await.map_err(|error| match error {
                BodyError::TooLarge => Failure::TooLarge,
                BodyError::Broken(why) => Failure::Connection(why),
            })
        });
        body.await
    });
    let bytes = tokio::select! {
        biased;
        answer = &mut exchanged => answer,
        // The server has closed it; what has arrived is read.
        _ = connection => exchanged.await,
    }?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_link_local_addresses_and_metadata_services_are_not_scraped() {
        for ip in ["10.0.0.1", "192.168.1.7", "100.64.0.3", "fd00::7", "2001:db8::1", "::ffff:10.0.0.1"] {
            assert!(address("demo/a", ip, 8_000).is_ok(), "{ip}");
        }
        for ip in [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "168.63.129.16",
            "::ffff:168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "fd00:ec2::254",
            "",
            "localhost",
            "010.0.0.1",
            "10.0.0.1:80",
        ] {
            assert!(matches!(address("demo/a", ip, 8_000), Err(Fault::InvalidAddress { .. })), "{ip}");
        }
        assert!(address("demo/a", "10.0.0.1", 0).is_err());
    }
}
