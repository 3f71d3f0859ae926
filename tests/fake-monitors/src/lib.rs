//! Simulates the monitors of workers on simulated nodes, with the real server of monitors.
//!
//! Simulated workers have addresses of the loopback interface (`local-cluster`), and one server listens on the address
//! of each. The caller sets the values; they are published at once and each second.

#![forbid(unsafe_code)]

pub mod queue;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use api::{labels, monitor::STREAM_PORT};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, WatchEvent, WatchParams},
};
use metrics_source::{
    server::{self, Security},
    stream::Hub,
};
use proto::metrics::v1::{
    Attribution, Metric, PodRef, Reading, Snapshot, Source, State, Subject, SubjectKind,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// The values that the monitor of a worker reports. The default is that of an idle worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Tasks that wait.
    pub queued: u64,
    /// Tasks in hand.
    pub in_flight: u64,
    /// Tokens since the start of the pod.
    pub tokens: u64,
}

impl Load {
    pub fn with_tokens(self, tokens: u64) -> Self {
        Self { tokens, ..self }
    }
}

/// A worker, as namespace and name of its pod.
pub type Worker = (String, String);

/// The monitors of all workers of an API. They end with the value.
pub struct Monitors {
    said: Arc<Mutex<Said>>,
    following: JoinHandle<()>,
}

#[derive(Default)]
struct Said {
    of_all: Load,
    of: BTreeMap<Worker, Load>,
    unclaimed: BTreeMap<Worker, u64>,
    served: BTreeMap<Worker, Served>,
}

struct Served {
    hub: Hub,
    source: Source,
    sequence: u64,
    stop: CancellationToken,
}

/// Between two snapshots, as monitors have it.
const INTERVAL: Duration = Duration::from_secs(1);
/// A watch that breaks is opened again after this time.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

impl Monitors {
    /// Starts the monitors of present and future workers. Errors are printed; a test that waits for a load then times
    /// out.
    pub fn of(pods: Api<Pod>) -> Self {
        let said = Arc::<Mutex<Said>>::default();
        let kept = Arc::clone(&said);
        let following = tokio::spawn(async move {
            loop {
                if let Err(error) = follow(&pods, &kept).await {
                    eprintln!("the monitors of simulated workers: {error:#}");
                }
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        });
        Self { said, following }
    }

    /// Sets the load of all present and future workers without a load of their own.
    pub fn all(&self, load: Load) {
        let mut said = lock(&self.said);
        said.of_all = load;
        said.publish();
    }

    pub fn one(&self, worker: &Worker, load: Load) {
        let mut said = lock(&self.said);
        said.of.insert(worker.clone(), load);
        said.publish_of(worker);
    }

    /// Sets the number of saved states that no worker has claimed, as a worker without state reports it.
    pub fn finds_states(&self, worker: &Worker, states: u64) {
        let mut said = lock(&self.said);
        said.unclaimed.insert(worker.clone(), states);
        said.publish_of(worker);
    }

    /// The workers whose monitors are simulated, in the order of their names.
    pub fn workers(&self) -> Vec<Worker> {
        lock(&self.said).served.keys().cloned().collect()
    }
}

impl Drop for Monitors {
    fn drop(&mut self) {
        self.following.abort();
        lock(&self.said).served.values().for_each(|served| served.stop.cancel());
    }
}

fn lock(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Said {
    fn publish(&mut self) {
        let Self { of_all, of, unclaimed, served } = self;
        for (worker, served) in served {
            served.publish(of.get(worker).copied().unwrap_or(*of_all), unclaimed.get(worker).copied());
        }
    }

    fn publish_of(&mut self, worker: &Worker) {
        let Self { of_all, of, unclaimed, served } = self;
        if let Some(served) = served.get_mut(worker) {
            served.publish(of.get(worker).copied().unwrap_or(*of_all), unclaimed.get(worker).copied());
        }
    }

    /// Deletions that came while no watch was open are seen only in the next list.
    fn forget_all_but(&mut self, workers: &BTreeSet<Worker>) {
        let gone: Vec<Worker> =
            self.served.keys().filter(|known| !workers.contains(*known)).cloned().collect();
        gone.iter().for_each(|worker| self.forget(worker));
    }

    fn forget(&mut self, worker: &Worker) {
        self.of.remove(worker);
        self.unclaimed.remove(worker);
        if let Some(served) = self.served.remove(worker) {
            served.stop.cancel();
        }
    }
}

impl Served {
    fn publish(&mut self, load: Load, unclaimed: Option<u64>) {
        self.sequence += 1;
        let reading = |metric: Metric, value: u64| Reading {
            metric: metric.into(),
            state: State::Fresh.into(),
            value: Some(value as f64),
            age: Some(prost_types::Duration::default()),
            ..Reading::default()
        };
        let uptime = INTERVAL * u32::try_from(self.sequence).unwrap_or(u32::MAX);
        self.hub.publish(Snapshot {
            source: Some(self.source.clone()),
            sequence: self.sequence,
            sampled_at: Some(SystemTime::now().into()),
            uptime: prost_types::Duration::try_from(uptime).ok(),
            interval: prost_types::Duration::try_from(INTERVAL).ok(),
            subjects: vec![Subject {
                id: "worker".to_owned(),
                kind: SubjectKind::Worker.into(),
                readings: [
                    reading(Metric::QueueWaiting, load.queued),
                    reading(Metric::QueueRunning, load.in_flight),
                    reading(Metric::Tokens, load.tokens),
                ]
                .into_iter()
                .chain(unclaimed.map(|states| reading(Metric::UnclaimedStates, states)))
                .collect(),
                ..Subject::default()
            }],
            attribution: Some(Attribution { state: State::Unsupported.into(), age: None }),
            ..Snapshot::default()
        });
    }
}

/// Until the watch ends.
async fn follow(pods: &Api<Pod>, said: &Mutex<Said>) -> anyhow::Result<()> {
    let of_workers = format!("{}=aidispatcher", labels::NAME);
    let list = pods.list(&ListParams::default().labels(&of_workers)).await.context("failed to list pods")?;
    let version = list.metadata.resource_version.clone().unwrap_or_default();
    lock(said).forget_all_but(&list.iter().map(worker).collect());
    let mut unserved = BTreeMap::<Worker, Pod>::new();
    for pod in list {
        serve_or_keep(pod, said, &mut unserved).await;
    }
    let params = WatchParams::default().labels(&of_workers);
    let events = pods.watch(&params, &version).await.context("failed to watch pods")?;
    futures::pin_mut!(events);
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                lock(said).publish();
                for pod in std::mem::take(&mut unserved).into_values() {
                    serve_or_keep(pod, said, &mut unserved).await;
                }
            }
            event = events.try_next() => match event.context("the watch of pods broke")? {
                Some(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => {
                    serve_or_keep(pod, said, &mut unserved).await;
                }
                Some(WatchEvent::Deleted(pod)) => {
                    unserved.remove(&worker(&pod));
                    lock(said).forget(&worker(&pod));
                }
                Some(WatchEvent::Bookmark(_)) => {}
                Some(WatchEvent::Error(_)) | None => return Ok(()),
            },
        }
    }
}

fn worker(pod: &Pod) -> Worker {
    (pod.namespace().unwrap_or_default(), pod.name_any())
}

/// The server of a pod that has had the address before may not have ended yet. The other monitors go on meanwhile.
async fn serve_or_keep(pod: Pod, said: &Mutex<Said>, unserved: &mut BTreeMap<Worker, Pod>) {
    if let Err(error) = serve(&pod, said).await {
        eprintln!("the monitors of simulated workers: {error:#}");
        unserved.insert(worker(&pod), pod);
    }
}

async fn serve(pod: &Pod, said: &Mutex<Said>) -> anyhow::Result<()> {
    let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()?.parse::<IpAddr>().ok());
    let Some(address) = address.filter(IpAddr::is_loopback) else { return Ok(()) };
    let worker = worker(pod);
    if lock(said).served.contains_key(&worker) {
        return Ok(());
    }
    let listener = TcpListener::bind(SocketAddr::new(address, STREAM_PORT)).await;
    let listener = listener.with_context(|| format!("failed to answer for {} at {address}", worker.1))?;
    let (hub, stop) = (Hub::default(), CancellationToken::new());
    tokio::spawn(server::serve(listener, Security::Plain, hub.clone(), stop.clone()));
    let uid = pod.uid().unwrap_or_default();
    let source = Source {
        instance: uid.clone(),
        pod: Some(PodRef { namespace: worker.0.clone(), name: worker.1.clone(), uid }),
        ..Source::default()
    };
    let mut said = lock(said);
    said.served.insert(worker, Served { hub, source, sequence: 0, stop });
    said.publish();
    Ok(())
}
