//! The engines of simulated pods: one server answers at the addresses of all of them, with the counters of vLLM.
//!
//! Nothing runs in simulated pods. What their engines would count follows from the queue of their Deployment. Each Ready
//! replica runs as much as the others. What waits does so in the oldest replicas, until another one has a free slot.

use std::{
    collections::BTreeMap,
    io, iter,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use scripted_server::answer_scrapes;
use tokio::{net::TcpListener, task::JoinSet};

use super::course::{AT_ONCE, Moment, REQUEST_SECONDS};

/// What one engine reports, by the address of its pod.
type Counted = BTreeMap<IpAddr, Counts>;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counts {
    running: f64,
    waiting: f64,
    finished: f64,
}

/// It ends with its owner.
pub(crate) struct Engines {
    counted: Arc<Mutex<Counted>>,
    port: u16,
    _server: JoinSet<io::Error>,
}

impl Engines {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        // The network of this process has the addresses of all pods.
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))
            .await
            .context("failed to listen for scrapes of engines")?;
        let port = listener.local_addr()?.port();
        let counted = Arc::<Mutex<Counted>>::default();
        let mut server = JoinSet::new();
        let shown = Arc::clone(&counted);
        server.spawn(answer_scrapes(listener, move |address| {
            let counted = shown.lock().unwrap_or_else(PoisonError::into_inner);
            page(counted.get(&address).copied().unwrap_or_default())
        }));
        Ok(Self { counted, port, _server: server })
    }

    /// Of the metrics.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// So many seconds have passed since the last call. `ready`: the pods, in the order in which they became Ready.
    pub(crate) fn advance(&self, seconds: f64, moment: Moment, ready: &[IpAddr]) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        *counted = counts(&counted, seconds, moment, ready);
    }
}

/// Where requests wait.
const OLDEST: usize = 2;

/// The requests of this moment, in whole numbers. Of a pod that is gone, nothing is left.
fn counts(counted: &Counted, seconds: f64, moment: Moment, ready: &[IpAddr]) -> Counted {
    let pods = ready.len().max(1) as f64;
    let runs = moment.requests.min(AT_ONCE * pods);
    let running = shares(runs, ready.len());
    let waiting = shares(moment.requests - runs, ready.len().min(OLDEST));
    let waiting = waiting.chain(iter::repeat(0.0));
    let of_pod = |((address, running), waiting): ((&IpAddr, f64), f64)| {
        let before = counted.get(address).copied().unwrap_or_default();
        let finished = before.finished + runs / pods / REQUEST_SECONDS * seconds;
        (*address, Counts { running, waiting, finished })
    };
    ready.iter().zip(running).zip(waiting).map(of_pod).collect()
}

/// So many whole requests, as evenly as they can be shared. The sum is exact.
fn shares(requests: f64, pods: usize) -> impl Iterator<Item = f64> {
    let (requests, pods) = (requests.round(), pods as f64);
    let until = move |place: usize| (requests * place as f64 / pods).floor();
    (0..pods as usize).map(move |place| until(place + 1) - until(place))
}

fn page(Counts { running, waiting, finished }: Counts) -> String {
    let labels = r#"engine="0",model_name="model""#;
    format!(
        "vllm:num_requests_running{{{labels}}} {running}\n\
         vllm:num_requests_waiting{{{labels}}} {waiting}\n\
         vllm:e2e_request_latency_seconds_count{{{labels}}} {}\n",
        finished.floor()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_share_what_runs_and_the_oldest_have_what_waits() {
        let pods = [1, 2, 3].map(|last| IpAddr::from([10, 100, 0, last]));
        let moment = Moment { second: 0.0, requests: 22.0, desired: 3, ready: 3 };
        let counted = counts(&Counted::default(), 10.0, moment, &pods);
        let of = |counted: &Counted| pods.map(|pod| counted.get(&pod).map(|of| (of.running, of.waiting)));
        assert_eq!(of(&counted), [Some((5.0, 3.0)), Some((5.0, 4.0)), Some((5.0, 0.0))]);
        assert_eq!(counted[&pods[2]].finished, 10.0);
        // Four requests run in the two pods that are left, and each takes five seconds.
        let counted = counts(&counted, 5.0, Moment { requests: 4.0, ..moment }, &pods[..2]);
        assert_eq!(of(&counted), [Some((2.0, 0.0)), Some((2.0, 0.0)), None]);
        assert_eq!(counted[&pods[0]].finished, 12.0);
        let page = page(counted[&pods[0]]);
        assert!(page.contains("latency_seconds_count{engine=\"0\",model_name=\"model\"} 12\n"), "{page}");
    }
}
