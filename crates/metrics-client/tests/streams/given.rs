//! A client with quick timings, what it has reported, and waits.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use metrics_client::{
    args::Security,
    endpoint::{Endpoint, Origin},
    limits::Limits,
    snapshot::Metric,
    sources::{Counts, News, Settings, Sources, Timings},
    view::{Health, View},
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::source::{NODE, Source};

/// Far longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A client that runs until it is dropped.
pub(crate) struct Client {
    pub(crate) sources: Sources,
    /// `snapshot`, `unreachable`, `silent`, `gone` and `event N`, in their order.
    pub(crate) news: Arc<Mutex<Vec<String>>>,
    _stop: DropGuard,
}

impl Client {
    pub(crate) fn start() -> Self {
        Self::start_with(Security::Plain, Duration::ZERO)
    }

    pub(crate) fn start_with(security: Security, min_interval: Duration) -> Self {
        Self::start_within(Limits::default(), security, min_interval)
    }

    pub(crate) fn start_within(limits: Limits, security: Security, min_interval: Duration) -> Self {
        let sources = Sources::new(Settings {
            subscriber: "test",
            min_interval,
            metrics: &[Metric::Utilization],
            security,
            limits,
            timings: Timings {
                first_snapshot: Duration::from_secs(2),
                first_backoff: Duration::from_millis(20),
                longest_backoff: Duration::from_millis(200),
                steady_after: Duration::from_secs(1),
            },
        });
        let news = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&news);
        sources.subscribe(move |change| {
            let mut kept = kept.lock().unwrap();
            match &change.news {
                News::Snapshot { events } => {
                    kept.push("snapshot".to_owned());
                    kept.extend(events.iter().map(|event| format!("event {}", event.sequence)));
                }
                News::Health(Health::Unreachable { .. }) => kept.push("unreachable".to_owned()),
                News::Health(_) => kept.push("silent".to_owned()),
                News::Gone => kept.push("gone".to_owned()),
            }
        });
        let stop = CancellationToken::new();
        let running = sources.clone();
        let until = stop.clone();
        tokio::spawn(async move { running.run(until).await });
        Self { sources, news, _stop: stop.drop_guard() }
    }

    pub(crate) fn follows(&self, source: &Source) {
        self.sources.set([of_node(source, NODE)]);
    }

    /// The view once it is as wanted. It is polled: the clock changes a view as well, and reports nothing.
    pub(crate) async fn until(&self, wanted: impl Fn(&View) -> bool) -> View {
        let reached = timeout(PATIENCE, async {
            loop {
                if let Some(view) = self.sources.views().into_iter().find(&wanted) {
                    return view;
                }
                sleep(Duration::from_millis(5)).await;
            }
        });
        reached.await.unwrap_or_else(|_| panic!("never: {:#?}", self.sources.views()))
    }

    /// Once a snapshot with this number is the latest one.
    pub(crate) async fn has(&self, sequence: u64) -> View {
        self.until(|view| view.latest.as_ref().is_some_and(|it| it.snapshot.sequence == sequence)).await
    }

    /// The counters once they are as wanted; nothing reports that one has grown.
    pub(crate) async fn counts(&self, wanted: impl Fn(&Counts) -> bool) -> Counts {
        let reached = timeout(PATIENCE, async {
            while !wanted(&self.sources.counts()) {
                sleep(Duration::from_millis(5)).await;
            }
        });
        reached.await.unwrap_or_else(|_| panic!("never: {:?}", self.sources.counts()));
        self.sources.counts()
    }

    /// Why the source is not reached.
    pub(crate) async fn is_unreachable(&self) -> String {
        match self.until(|view| matches!(view.health, Health::Unreachable { .. })).await.health {
            Health::Unreachable { why, .. } => why.to_string(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn reported(&self, what: &str) -> usize {
        self.news.lock().unwrap().iter().filter(|news| *news == what).count()
    }
}

pub(crate) fn of_node(source: &Source, node: &str) -> Endpoint {
    Endpoint { origin: Origin::Node(node.into()), address: source.address.to_string().into() }
}

/// Once a source has been subscribed to so often.
pub(crate) async fn subscribed(source: &Source, times: usize) {
    let mut subscriptions = source.subscriptions.subscribe();
    let reached = timeout(PATIENCE, subscriptions.wait_for(|seen| *seen >= times)).await;
    assert!(reached.is_ok(), "{} of {times} subscriptions", source.subscribed());
}
