//! Metrics of pods: one scrape of one pod. [`scrapes`] turns successive scrapes into samples.

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
};

pub use engine_metrics::{bodies::Bodies, fetch::Limits};
use engine_metrics::{
    body::LARGEST_HEAD,
    fetch::{self, Failure, Page, Reader, fetch},
    foreign,
};
use prometheus_api::Fault as ServerFault;
use text::exposition::{Exposition, MOST_SERIES};

use super::{
    Fault, USER_AGENT,
    engines::{self, Scrape, Wanted},
};

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

/// The address of a pod, as its status says.
pub fn address(pod: &str, ip: &str, port: u16) -> Result<SocketAddr, Fault> {
    let known = ip.parse().ok().and_then(|ip: IpAddr| fetch::address(ip, port));
    known.ok_or_else(|| Fault::InvalidAddress { pod: pod.to_owned(), address: foreign(ip) })
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
        return Err(Fault::Server(ServerFault::WrongContent {
            server: format!("pod {}", pod.name),
            content: "text of another format".to_owned(),
            wanted: "metrics",
        }));
    }
    let read_one = |wanted: &&Wanted| {
        let Scrape { value, requests } = engines::read(&read, wanted, pod.name);
        Scrape { value: value.map_err(|fault| batch.with_similar(fault, &read)), requests }
    };
    Ok(wanted.iter().map(read_one).collect())
}

/// The text that a pod serves.
async fn scrape(pod: Pod<'_>, limits: Limits, batch: &Batch<'_>) -> Result<String, Fault> {
    let page = Page { address: pod.address, path: pod.path };
    let reader = Reader { user_agent: USER_AGENT, namespace: batch.namespace, bodies: batch.bodies };
    let answer = fetch(page, limits, reader).await;
    answer.map_err(|failure| Fault::Server(fault(failure, format!("pod {}", pod.name), limits)))
}

fn fault(failure: Failure, server: String, limits: Limits) -> ServerFault {
    match failure {
        Failure::Connection(why) => ServerFault::Unreachable { server, why },
        Failure::Status(status) if status.is_redirection() => {
            ServerFault::Redirected { server, to: "another address".to_owned() }
        }
        Failure::Status(status) if status.is_server_error() => {
            ServerFault::Failed { server, status: status.as_u16(), why: "the pod's own failure".to_owned() }
        }
        Failure::Status(status) => ServerFault::Rejected {
            server,
            status: status.as_u16(),
            why: "correct port and path of source.pods".to_owned(),
        },
        Failure::HeadTooLarge => ServerFault::HeadTooLarge { server, limit: LARGEST_HEAD },
        Failure::TooLarge => ServerFault::TooLarge { server, limit: limits.bytes },
        Failure::Slow => ServerFault::Slow { server, limit: limits.deadline },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_none_of_a_pod_is_refused() {
        assert!(address("demo/a", "10.0.0.1", 8_000).is_ok());
        for ip in ["", "localhost", "010.0.0.1", "10.0.0.1:80", "127.0.0.1", "169.254.169.254"] {
            assert!(matches!(address("demo/a", ip, 8_000), Err(Fault::InvalidAddress { .. })), "{ip}");
        }
    }
}
