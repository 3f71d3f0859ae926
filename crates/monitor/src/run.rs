//! The main loop of the sidecar: a scrape each second until SIGTERM, then the last checkpoint and the termination
//! message.

use std::{
    future::pending,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use api::monitor::Message;
use daemon::listener;
use futures::future::BoxFuture;
use metrics_source::{
    admin,
    moment::Clock,
    server::{self, Security},
    stream::Hub,
};
use proto::metrics::v1::{Metric, PodRef, Reading, Source, State};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    checkpoint::{
        save::{End, Final, Saved, Saver},
        state::StateFolder,
    },
    cli::{Pool, Run},
    ending,
    ledger::{Ledger, LedgerFile},
    logs::{self, Log},
    pages,
    snapshots::{INTERVAL, Known},
    worker, write_message,
};

/// Between two scrapes of a worker that ends: what it uses after the last one is not counted.
const LAST_INTERVAL: Duration = Duration::from_millis(100);
/// Limit for clients to read the last bytes of their streams.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);
/// Limit for the container runtime to read the last lines of the log, from when the state is saved. Meanwhile the pod keeps
/// its GPU.
const LOG_READ_WITHIN: Duration = Duration::from_secs(10);
/// What the kubelet and this process need after the last checkpoint.
const KILLED_BEFORE: Duration = Duration::from_secs(3);

/// Runs until SIGTERM, which a sidecar gets when its worker has ended.
pub(crate) async fn run(options: Run) -> anyhow::Result<()> {
    let clock = Clock::start();
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let folder = &options.checkpoints.folder;
    let file = LedgerFile::in_folder(folder);
    let ledger = file.read();
    let (hub, stop) = (Hub::default(), CancellationToken::new());
    let stream = listen(options.listen).await?;
    let pages = listen(options.admin_address).await?;
    let (grpc, admin) = (stream.local_addr()?, pages.local_addr()?);
    let mut tasks = JoinSet::new();
    let registry = pages::registry(hub.clone(), &options.pool, &options.role, &options.pod_name);
    let end = Arc::<End>::default();
    let mut saving = Saving::begin(&options, Arc::clone(&end))?;
    let is_worker_ready = Arc::<AtomicBool>::default();
    let is_ready: admin::Readiness = {
        let is_worker_ready = Arc::clone(&is_worker_ready);
        Arc::new(move || is_worker_ready.load(Ordering::Relaxed))
    };
    tasks.spawn(admin::serve(pages, hub.clone(), clock, registry, is_ready, stop.clone()));
    if let Some(saving) = &saving {
        let listener = ending::listen(folder);
        let listener = listener.with_context(|| format!("failed to listen in {}", folder.display()))?;
        let announce = Arc::clone(&saving.announce);
        tasks.spawn(ending::serve(listener, move || announce(), stop.clone()));
    }
    info!(%grpc, %admin, "listening");
    tasks.spawn({
        let (hub, stop) = (hub.clone(), stop.clone());
        async move {
            if let Err(error) = server::serve(stream, Security::Plain, hub, stop).await {
                warn!(error = format!("{error:#}"), "the gRPC server has ended");
            }
        }
    });
    let mut scraper = Scraper {
        source: source(&options),
        port: options.worker_port,
        clock,
        hub,
        known: Known::default(),
        ledger,
        file,
        saved: saving.as_ref().map(|saving| saving.status.clone()),
        missing: Vec::new(),
        is_worker_ready,
    };
    let (mut log, worker_ended) = (JoinSet::new(), CancellationToken::new());
    if let Some(file) = &options.log_file {
        let Pool { namespace, name } = &options.pool;
        let fields = logs::fields(namespace, name, &options.role, &options.pod_name, &options.pod_uid);
        log.spawn(logs::pass_on(Log::of(file, folder, fields), worker_ended.clone()));
    }
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut last_ticks = interval(LAST_INTERVAL);
    last_ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        let last_tick = async {
            end.until_requested().await;
            last_ticks.tick().await
        };
        tokio::select! {
            _ = terminate.recv() => break,
            _ = ticks.tick() => scraper.scrape().await,
            _ = last_tick => scraper.scrape().await,
            () = Saving::has_stopped(&mut saving) => anyhow::bail!("the task that saves the state has ended"),
        }
    }
    let terminated = Instant::now();
    // Kubernetes ends a sidecar after its worker. If the worker still answers, only the monitor is restarted, after a
    // failed liveness probe.
    let worker_runs = !scraper.known.has_ended(&worker::scrape(options.worker_port).await);
    worker_ended.cancel();
    let tokens = scraper.ledger.total();
    if let Some(saving) = saving {
        let begun = end.requested().unwrap_or(terminated);
        let status = saving.status.clone();
        let unsaved = Message {
            tokens,
            error: Some("the monitor was ended before it had saved the state of the worker".to_owned()),
            ..Message::default()
        };
        // The message that remains if this process is killed before the state is saved.
        write_message(&options.termination_log, &serde_json::to_vec(&unsaved)?);
        saving.finish(begun, worker_runs).await?;
        scraper.saved = Some(status);
    }
    let Saved { last, error, restored, damage: _, unclaimed: _, waiting: _ } =
        scraper.saved.as_ref().map(|saved| saved.borrow().clone()).unwrap_or_default();
    let message = Message { tokens, checkpoint: last, error, restored };
    write_message(&options.termination_log, &serde_json::to_vec(&message)?);
    stop.cancel();
    if timeout(DRAIN_WITHIN, all(tasks)).await.is_err() {
        warn!("a client did not read to the end");
    }
    if timeout(LOG_READ_WITHIN, all(log)).await.is_err() {
        warn!("the last lines of the worker's log were not read in time");
    }
    info!(tokens = message.tokens, "stopped");
    Ok(())
}

async fn all(mut tasks: JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    listener::listen(address).await.with_context(|| {
        format!("failed to listen on {address}, which no container of the pod may use except the monitor")
    })
}

type Announce = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The task that saves the state of the worker.
struct Saving {
    status: watch::Receiver<Saved>,
    ended: mpsc::Sender<Final>,
    grace: Duration,
    task: JoinHandle<()>,
    /// Announces the end of the pod.
    announce: Announce,
}

impl Saving {
    /// `None`: no state is saved.
    fn begin(options: &Run, end: Arc<End>) -> anyhow::Result<Option<Self>> {
        let settings = options.checkpoints.settings(&options.pool, &options.pod_uid, &options.pod_name);
        let Some((settings, state)) = settings else { return Ok(None) };
        let grace = settings.grace;
        let saver = Saver::new(settings, StateFolder(state), &options.checkpoints.folder, end);
        let saver = saver.map_err(|fault| anyhow::anyhow!("{fault}"))?;
        let (status, announce) = (saver.status(), saver.announcer());
        let announce: Announce = Arc::new(announce);
        let (ended, last) = mpsc::channel(1);
        let task = tokio::spawn(saver.run(last));
        Ok(Some(Self { status, ended, grace, task, announce }))
    }

    /// Returns only after a panic of the task: without heartbeats, other workers would restore the state.
    async fn has_stopped(saving: &mut Option<Self>) {
        match saving {
            Some(saving) => drop((&mut saving.task).await),
            None => pending().await,
        }
    }

    /// Saves the last state, until the pod is killed. `begun`: when it was asked to end. Fails after a panic of the task.
    async fn finish(self, begun: Instant, worker_runs: bool) -> anyhow::Result<()> {
        let until = begun + self.grace.saturating_sub(KILLED_BEFORE);
        let (done, is_done) = oneshot::channel();
        self.ended.send(Final { until, worker_runs, done }).await.context("the last state was not saved")?;
        is_done.await.context("the last state was not saved")
    }
}

/// Never fresh: a worker with a fresh value has no state, and may be replaced.
fn waiting(saved: &Saved) -> Option<Reading> {
    let (states, at) = saved.waiting?;
    Some(Reading {
        metric: Metric::UnclaimedStates.into(),
        unit: Metric::UnclaimedStates.unit().into(),
        state: State::Stale.into(),
        value: Some(states as f64),
        age: at.elapsed().try_into().ok(),
        ..Reading::default()
    })
}

fn source(options: &Run) -> Source {
    Source {
        instance: format!("{:032x}", fastrand::u128(..)),
        node: String::new(),
        pod: Some(PodRef {
            namespace: options.pool.namespace.clone(),
            name: options.pod_name.clone(),
            uid: options.pod_uid.clone(),
        }),
        software: concat!("monitor/", env!("CARGO_PKG_VERSION")).to_owned(),
        backend: String::new(),
    }
}

/// The worker as it is scraped.
struct Scraper {
    source: Source,
    port: u16,
    clock: Clock,
    hub: Hub,
    known: Known,
    ledger: Ledger,
    file: LedgerFile,
    /// `None`: no state is saved.
    saved: Option<watch::Receiver<Saved>>,
    /// The metrics of the contract that the worker does not serve, as they are in the log.
    missing: Vec<&'static str>,
    /// Read by `/readyz`, which is the readiness probe of the pod.
    is_worker_ready: Arc<AtomicBool>,
}

impl Scraper {
    /// Reads the worker once, counts and publishes.
    async fn scrape(&mut self) {
        let scraped = worker::scrape(self.port).await;
        let had_fault = self.known.fault().is_some();
        if let Some(fault) = self.known.take(scraped, self.clock.now()) {
            warn!("{fault}");
        } else if had_fault && self.known.fault().is_none() {
            info!("the worker answers");
        }
        self.is_worker_ready.store(self.known.is_ready(self.clock.now()), Ordering::Relaxed);
        self.name_what_is_missing();
        let counted = self.known.fresh().and_then(|load| load.tokens);
        if counted.is_some_and(|counted| self.ledger.count(counted))
            && let Err(error) = self.keep_tokens().await
        {
            // The total is kept in memory, and is lost only if this container ends before the next write.
            warn!(%error, "failed to keep the tokens");
        }
        let saved = self.saved.as_ref().map(|saved| saved.borrow().clone()).unwrap_or_default();
        let mut snapshot = self.known.snapshot(&self.source, self.ledger.counted(), &saved, self.clock.now());
        snapshot.subjects.iter_mut().for_each(|subject| subject.readings.extend(waiting(&saved)));
        self.hub.publish(snapshot);
    }

    async fn keep_tokens(&self) -> io::Result<()> {
        let (file, ledger) = (self.file.clone(), self.ledger.clone());
        // It waits for the disk.
        spawn_blocking(move || file.write(&ledger)).await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    fn name_what_is_missing(&mut self) {
        let Some(load) = self.known.fresh() else { return };
        let missing: Vec<&str> = load.missing().collect();
        if missing != self.missing {
            if !missing.is_empty() {
                warn!(metrics = missing.join(", "), "the worker does not serve required metrics");
            }
            self.missing = missing;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_wait_beside_a_state_are_no_fresh_value() {
        assert_eq!(waiting(&Saved::default()), None);
        let saved = Saved { waiting: Some((2, Instant::now())), ..Saved::default() };
        let reading = waiting(&saved).unwrap();
        assert_eq!((reading.metric(), reading.state()), (Metric::UnclaimedStates, State::Stale));
        assert_eq!((reading.value, reading.age.unwrap().seconds), (Some(2.0), 0));
    }
}
