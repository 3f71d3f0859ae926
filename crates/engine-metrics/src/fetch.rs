//! One request to one pod.
//!
//! A pod is not trusted, and many are read at a time. So the time and the bytes of each answer are limited, those of
//! its head too, and the number of bodies that are read at once. Redirects are not followed. Each request has its own
//! connection, which is closed: Triton waits for idle connections when it ends, and then reports a failure.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::pin,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use crate::{
    bodies::Bodies,
    body::{BodyError, LARGEST_HEAD, cause, is_head_too_large, read_body},
};

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<'a> {
    pub address: SocketAddr,
    /// Begins with a slash.
    pub path: &'a str,
}

/// Who reads, and for whom.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    pub user_agent: &'static str,
    /// Of the pod: those of one namespace have a share of the bodies that are read at once.
    pub namespace: &'a str,
    pub bodies: &'a Bodies,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// The cause in the words of the system.
    Connection(String),
    Status(StatusCode),
    HeadTooLarge,
    TooLarge,
    Slow,
}

impl Failure {
    /// For a message that names the pod itself.
    pub fn words(&self, limits: Limits) -> String {
        match self {
            Self::Connection(why) => why.clone(),
            Self::Status(status) => format!("it answered with {}", status.as_u16()),
            Self::HeadTooLarge => format!("the head of its answer is larger than {LARGEST_HEAD} bytes"),
            Self::TooLarge => format!("its answer is larger than {} bytes", limits.bytes),
            Self::Slow => format!("it did not answer within {} s", limits.deadline.as_secs_f64()),
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
/// node too: a pod on the network of its node has that one. A NetworkPolicy still applies. `None`: it is not that of a pod.
pub fn address(ip: IpAddr, port: u16) -> Option<SocketAddr> {
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
    (is_of_pod && port > 0).then(|| SocketAddr::new(ip, port))
}

async fn within<T>(limits: Limits, step: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    timeout(limits.deadline, step).await.unwrap_or(Err(Failure::Slow))
}

/// The text that a pod serves. The wait until its body may be read does not count as lateness of the pod.
pub async fn fetch(page: Page<'_>, limits: Limits, reader: Reader<'_>) -> Result<String, Failure> {
    let broken = |error: &(dyn std::error::Error + 'static)| Failure::Connection(cause(error));
    let request = Request::get(page.path)
        .header(header::HOST, page.address.to_string())
        .header(header::ACCEPT, "text/plain;version=0.0.4")
        .header(header::CONNECTION, "close")
        .header(header::USER_AGENT, reader.user_agent)
        .body(Empty::<Bytes>::new())
        .map_err(|error| broken(&error))?;
    let connected = within(limits, async {
        let stream = TcpStream::connect(page.address).await.map_err(|error| broken(&error))?;
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
        let _permit = reader.bodies.permit(reader.namespace).await;
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
            assert!(address(ip.parse().unwrap(), 8_000).is_some(), "{ip}");
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
        ] {
            assert!(address(ip.parse().unwrap(), 8_000).is_none(), "{ip}");
        }
        assert!(address("10.0.0.1".parse().unwrap(), 0).is_none());
    }
}
