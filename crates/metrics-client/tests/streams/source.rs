//! A source that a test plays: it says what the test sends, on a port that it keeps when it is stopped and started again.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt as _, stream};
use proto::metrics::v1::{
    Attribution, Holder, Metric, PodRef, Reading, Snapshot, State, Subject, SubscribeRequest, Window,
    metrics_server::{Metrics, MetricsServer},
};
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::{broadcast, watch},
};
use tonic::{
    Request, Response, Status,
    transport::{Server, ServerTlsConfig, server::TcpIncoming},
};

use crate::given::PATIENCE;

/// What a real source keeps for slow subscribers.
const RING: usize = 16;

/// A source that ends, with its connections, when it is dropped.
pub(crate) struct Source {
    pub(crate) address: SocketAddr,
    pub(crate) subscriptions: watch::Sender<usize>,
    ring: broadcast::Sender<Snapshot>,
    latest: Arc<Mutex<Option<Snapshot>>>,
    refusal: Arc<Mutex<Option<Status>>>,
    /// Its own, because connections must end with it as they end with a process.
    runtime: Option<Runtime>,
}

struct Service {
    ring: broadcast::Sender<Snapshot>,
    latest: Arc<Mutex<Option<Snapshot>>>,
    refusal: Arc<Mutex<Option<Status>>>,
    subscriptions: watch::Sender<usize>,
}

#[tonic::async_trait]
impl Metrics for Service {
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<Snapshot, Status>> + Send>>;

    async fn subscribe(
        &self,
        _: Request<SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let (ring, latest) = {
            // Nothing is sent meanwhile: what comes through the ring is later than the latest.
            let latest = self.latest.lock().unwrap();
            (self.ring.subscribe(), latest.clone())
        };
        // A test that saw the count may send at once.
        self.subscriptions.send_modify(|times| *times += 1);
        if let Some(refusal) = self.refusal.lock().unwrap().clone() {
            return Err(refusal);
        }
        let later = stream::unfold(ring, |mut ring| async {
            loop {
                match ring.recv().await {
                    Ok(snapshot) => return Some((Ok(snapshot), ring)),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        });
        Ok(Response::new(Box::pin(stream::iter(latest).map(Ok).chain(later))))
    }
}

impl Source {
    pub(crate) fn start() -> Self {
        Self::listen("127.0.0.1:0".parse().unwrap(), None)
    }

    pub(crate) fn start_with(tls: ServerTlsConfig) -> Self {
        Self::listen("127.0.0.1:0".parse().unwrap(), Some(tls))
    }

    /// On the port of one that has ended.
    pub(crate) fn start_at(address: SocketAddr) -> Self {
        Self::listen(address, None)
    }

    fn listen(address: SocketAddr, tls: Option<ServerTlsConfig>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (ring, _) = broadcast::channel(RING);
        let (latest, refusal) = <(Arc<_>, Arc<_>)>::default();
        let subscriptions = watch::Sender::new(0);
        let service = Service {
            ring: ring.clone(),
            latest: Arc::clone(&latest),
            refusal: Arc::clone(&refusal),
            subscriptions: subscriptions.clone(),
        };
        let entered = runtime.enter();
        let until = Instant::now() + PATIENCE;
        let listener = loop {
            // The server before may not have ended yet. The operating system does not report when a port is free.
            match std::net::TcpListener::bind(address) {
                Ok(listener) => break listener,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        drop(entered);
        let address = listener.local_addr().unwrap();
        let mut server = Server::builder();
        if let Some(tls) = tls {
            server = server.tls_config(tls).unwrap();
        }
        let service = MetricsServer::new(service).max_encoding_message_size(usize::MAX);
        runtime.spawn(async move {
            server.add_service(service).serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        Self { address, subscriptions, ring, latest, refusal, runtime: Some(runtime) }
    }

    /// To every subscriber, and first of all to those that come later.
    pub(crate) fn send(&self, snapshot: Snapshot) {
        let mut latest = self.latest.lock().unwrap();
        *latest = Some(snapshot.clone());
        // Fails only without subscribers.
        let _ = self.ring.send(snapshot);
    }

    pub(crate) fn refuses(&self, refusal: Option<Status>) {
        *self.refusal.lock().unwrap() = refusal;
    }

    pub(crate) fn subscribed(&self) -> usize {
        *self.subscriptions.borrow()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub(crate) const NODE: &str = "gpu-1";

fn seconds(seconds: f64) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(Duration::from_secs_f64(seconds)).ok()
}

/// One GPU that demo/llm-0 holds, with a utilization; an interval of 1 s.
pub(crate) fn snapshot(instance: &str, sequence: u64) -> Snapshot {
    let window = Window { length: seconds(10.0), mean: 0.5, p95: 0.5, max: 0.5, samples: 10 };
    let reading = Reading {
        metric: Metric::Utilization.into(),
        state: State::Fresh.into(),
        value: Some(0.5),
        age: seconds(0.1),
        windows: vec![window],
        ..Reading::default()
    };
    let pod = PodRef { namespace: "demo".into(), name: "llm-0".into(), uid: String::new() };
    let holder =
        Holder { pod: Some(pod), container: "engine".into(), resource: "nvidia.com/gpu".into(), shares: 1 };
    let subject = Subject {
        id: "GPU-a".into(),
        kind: proto::metrics::v1::SubjectKind::Device.into(),
        readings: vec![reading],
        holders: vec![holder],
        ..Subject::default()
    };
    Snapshot {
        source: Some(proto::metrics::v1::Source {
            instance: instance.into(),
            node: NODE.into(),
            ..proto::metrics::v1::Source::default()
        }),
        sequence,
        sampled_at: Some(prost_types::Timestamp { seconds: 1_767_268_800, nanos: 0 }),
        uptime: seconds(sequence as f64),
        interval: seconds(1.0),
        subjects: vec![subject],
        attribution: Some(Attribution { state: State::Fresh.into(), age: seconds(1.0) }),
        ..Snapshot::default()
    }
}
