//! The sources of one subscriber: one task and one stream per endpoint, the latest snapshot of each, and callbacks for
//! changes.
//!
//! ```text
//!  set(endpoints) ─▶ run: one task each ─▶ open ─▶ next, next, … ─▶ record ─▶ subscribers
//!                                ▲                       │ silent, ended, malformed
//!                                └──────── back-off ◀────┘
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prost::Message as _;
use proto::metrics::v1::SubscribeRequest;
use tokio::{
    sync::{Semaphore, watch},
    task::{self, AbortHandle, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    backoff::Backoff,
    connection::{self, Failure},
    continuity::{Continuity, Step},
    endpoint::{Endpoint, Origin},
    limits::Limits,
    snapshot::{self, Event, Metric, Snapshot},
    tls::{self, Credentials, Security},
    view::{Health, Latest, Link, View, health, patience},
};

/// Endpoints that wait for a place. Some megabytes; those beyond them are read only once they are inserted again.
const MOST_WAITING: usize = 20_000;
/// Connections that are being made at once: a handshake takes a millisecond of a core.
const OPENED_AT_ONCE: usize = 64;
/// Between two checks for sources that have become silent.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Instances of removed endpoints that are kept, so that none of their events is reported again if the endpoint is
/// inserted again.
const MOST_DEPARTED: usize = 256;

/// What a user wants of all sources.
#[derive(Clone, Debug)]
pub struct Settings {
    /// For the logs of sources.
    pub subscriber: &'static str,
    /// Least time between two snapshots of a source. Zero: every snapshot. Close to the interval of a source it would leave
    /// out every second one, because no interval is kept to the microsecond.
    pub min_interval: Duration,
    /// Readings of other metrics are dropped on arrival.
    pub metrics: &'static [Metric],
    pub security: Security,
    pub timings: Timings,
    pub limits: Limits,
}

#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// A source sends what it has at once, and has its first measurement soon after its start.
    pub first_snapshot: Duration,
    pub first_backoff: Duration,
    pub longest_backoff: Duration,
    /// A stream that has delivered for so long resets the back-off.
    pub steady_after: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            first_snapshot: Duration::from_secs(10),
            first_backoff: Duration::from_millis(500),
            longest_backoff: Duration::from_secs(30),
            steady_after: Duration::from_secs(30),
        }
    }
}

/// A change that a consumer may react to. The current values are in the views.
#[derive(Debug)]
pub struct Change<'c> {
    pub endpoint: &'c Endpoint,
    /// The node of the source; empty if it is not known.
    pub node: &'c str,
    pub news: News<'c>,
}

#[derive(Debug)]
pub enum News<'c> {
    /// `events`: those that have not been reported before, oldest first.
    Snapshot { events: &'c [Event] },
    /// The source is no longer live, or cannot be reached.
    Health(&'c Health),
    /// The endpoint was removed.
    Gone,
}

/// Names of healths, in the order of the page.
const HEALTHS: [&str; 4] = ["live", "pending", "silent", "unreachable"];

fn name(health: &Health) -> &'static str {
    let [live, pending, silent, unreachable] = HEALTHS;
    match health {
        Health::Live => live,
        Health::Pending { .. } => pending,
        Health::Silent { .. } => silent,
        Health::Unreachable { .. } => unreachable,
    }
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub snapshots: u64,
    /// Snapshots that did not arrive, by their sequence numbers.
    pub lost: u64,
    pub duplicates: u64,
    pub restarts: u64,
    /// Streams that ended or could not be opened.
    pub failures: u64,
}

#[derive(Default)]
struct Counters {
    snapshots: AtomicU64,
    lost: AtomicU64,
    duplicates: AtomicU64,
    restarts: AtomicU64,
    failures: AtomicU64,
}

/// See the module. A clone is the same set of sources.
#[derive(Clone)]
pub struct Sources(Arc<Shared>);

type Subscriber = Box<dyn Fn(&Change<'_>) + Send + Sync>;

struct Shared {
    settings: Settings,
    wanted: watch::Sender<BTreeSet<Endpoint>>,
    /// Inserted beyond the limit. Held while the set changes.
    waiting: Mutex<BTreeSet<Endpoint>>,
    records: RwLock<BTreeMap<Endpoint, Record>>,
    departed: Mutex<VecDeque<(Arc<str>, u64)>>,
    subscribers: RwLock<Vec<Subscriber>>,
    counters: Counters,
    credentials: watch::Sender<Credentials>,
    opening: Semaphore,
    epoch: Instant,
}

/// What is kept of one source.
struct Record {
    link: Link,
    continuity: Continuity,
    latest: Option<Kept>,
    /// The last reported health: whether the source was live.
    was_live: Option<bool>,
}

struct Kept {
    snapshot: Arc<Snapshot>,
    /// By the local clock.
    begun: Instant,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").field("wanted", &self.0.wanted.borrow().len()).finish_non_exhaustive()
    }
}

impl Sources {
    pub fn new(settings: Settings) -> Self {
        let credentials = watch::Sender::new(tls::before_the_first_read(&settings.security));
        Self(Arc::new(Shared {
            settings,
            wanted: watch::Sender::default(),
            waiting: Mutex::default(),
            records: RwLock::default(),
            departed: Mutex::default(),
            subscribers: RwLock::default(),
            counters: Counters::default(),
            credentials,
            opening: Semaphore::new(OPENED_AT_ONCE),
            epoch: Instant::now(),
        }))
    }

    /// The complete set. Streams of endpoints that stay are not touched; what is known of those that go is dropped at
    /// once.
    pub fn set(&self, endpoints: impl IntoIterator<Item = Endpoint>) {
        let limit = self.0.settings.limits.sources;
        let mut wanted: BTreeSet<Endpoint> = endpoints.into_iter().collect();
        let count = wanted.len();
        while wanted.len() > limit {
            wanted.pop_last();
        }
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.clear();
        let known = self.0.wanted.borrow().clone();
        if known == wanted {
            return;
        }
        if count > limit {
            warn!(count, limit, "too many sources; those beyond the limit are not read");
        }
        known.difference(&wanted).for_each(|gone| self.0.forget(gone));
        wanted.difference(&known).for_each(|added| self.0.add(added));
        self.0.wanted.send_replace(wanted);
    }

    /// One more. Beyond the limit it waits until another one is removed.
    pub fn insert(&self, endpoint: Endpoint) {
        let limit = self.0.settings.limits.sources;
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (is_known, count) = {
            let wanted = self.0.wanted.borrow();
            (wanted.contains(&endpoint), wanted.len())
        };
        if is_known {
            return;
        }
        if count < limit {
            self.0.add(&endpoint);
            self.0.wanted.send_modify(|wanted| {
                wanted.insert(endpoint);
            });
            return;
        }
        if waiting.is_empty() {
            warn!(limit, "too many sources; further ones are read once others are gone");
        }
        if waiting.len() < MOST_WAITING {
            waiting.insert(endpoint);
        }
    }

    /// What is known of the endpoint is dropped at once, and the first that waits takes its place.
    pub fn remove(&self, endpoint: &Endpoint) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.remove(endpoint);
        if !self.0.wanted.borrow().contains(endpoint) {
            return;
        }
        self.0.forget(endpoint);
        let next = waiting.pop_first();
        next.iter().for_each(|next| self.0.add(next));
        self.0.wanted.send_modify(|wanted| {
            wanted.remove(endpoint);
            wanted.extend(next);
        });
    }

    /// Whether there are as many endpoints as are read at once.
    pub fn is_full(&self) -> bool {
        self.len() >= self.0.settings.limits.sources
    }

    /// How many endpoints are wanted.
    pub fn len(&self) -> usize {
        self.0.wanted.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.wanted.borrow().is_empty()
    }

    /// Called synchronously with every change, so it must be quick.
    pub fn subscribe(&self, subscriber: impl Fn(&Change<'_>) + Send + Sync + 'static) {
        self.0.subscribers.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(subscriber));
    }

    /// Every source as it is now, in the order of their endpoints.
    pub fn views(&self) -> Vec<View> {
        let now = Instant::now();
        self.0.records().iter().map(|(endpoint, record)| record.view(endpoint, now)).collect()
    }

    /// The source of a node: one that was discovered for it or, if there is none, a stated one whose snapshots name the
    /// node. Of several, a live one is preferred, then the one with the newest snapshot.
    pub fn of_node(&self, node: &str) -> Option<View> {
        let now = Instant::now();
        let records = self.0.records();
        let origin = Origin::Node(node.into());
        let from = Endpoint { origin: origin.clone(), address: "".into() };
        let found = records.range(from..).take_while(|(endpoint, _)| endpoint.origin == origin);
        let from = Endpoint { origin: Origin::Stated, address: "".into() };
        let stated = records.range(from..).take_while(|(endpoint, _)| endpoint.origin == Origin::Stated);
        let stated =
            stated.filter(|(_, record)| record.latest.as_ref().is_some_and(|it| *it.snapshot.node == *node));
        let order = |view: &View| {
            let age = view.latest.as_ref().map_or(Duration::MAX, |latest| latest.age);
            (view.health != Health::Live, age)
        };
        let view = |(endpoint, record): (&Endpoint, &Record)| record.view(endpoint, now);
        // A stated source must not replace a discovered one, also if that is silent.
        found.map(view).min_by_key(order).or_else(|| stated.map(view).min_by_key(order))
    }

    /// The source at this endpoint.
    pub fn at(&self, endpoint: &Endpoint) -> Option<View> {
        let now = Instant::now();
        self.0.records().get(endpoint).map(|record| record.view(endpoint, now))
    }

    /// How many sources deliver and how many do not, by the name of their health.
    pub(crate) fn counts_by_health(&self) -> [(&'static str, usize); 4] {
        let now = Instant::now();
        let mut counts = HEALTHS.map(|name| (name, 0));
        for record in self.0.records().values() {
            let name = name(&health(&record.link, now));
            counts.iter_mut().filter(|(known, _)| *known == name).for_each(|(_, count)| *count += 1);
        }
        counts
    }

    pub fn counts(&self) -> Counts {
        let Counters { snapshots, lost, duplicates, restarts, failures } = &self.0.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            snapshots: of(snapshots),
            lost: of(lost),
            duplicates: of(duplicates),
            restarts: of(restarts),
            failures: of(failures),
        }
    }

    /// Keeps a stream to each endpoint until `stop`. To be run once.
    pub async fn run(&self, stop: CancellationToken) {
        let mut running = Running::default();
        let mut wanted = self.0.wanted.subscribe();
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let files = match &self.0.settings.security {
            Security::Plain => None,
            Security::Mutual(files) => Some(files.clone()),
        };
        let mut reloading = std::pin::pin!(reload(files, &self.0.credentials));
        running.become_wanted(&self.0, &wanted.borrow_and_update().clone());
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                never = &mut reloading => match never {},
                // The sender lives as long as `self`.
                Ok(()) = wanted.changed() => {
                    let wanted = wanted.borrow_and_update().clone();
                    running.become_wanted(&self.0, &wanted);
                }
                Some(ended) = running.tasks.join_next_with_id() => running.ended(&self.0, ended),
                _ = ticks.tick() => self.0.look(Instant::now()),
            }
        }
        running.tasks.shutdown().await;
    }
}

async fn reload(
    files: Option<tls::Files>,
    credentials: &watch::Sender<Credentials>,
) -> std::convert::Infallible {
    if let Some(files) = files {
        tls::follow(files, credentials).await;
    }
    std::future::pending().await
}

/// The tasks.
#[derive(Default)]
struct Running {
    tasks: JoinSet<()>,
    of: HashMap<Endpoint, AbortHandle>,
}

impl Running {
    fn become_wanted(&mut self, shared: &Arc<Shared>, wanted: &BTreeSet<Endpoint>) {
        let gone: Vec<Endpoint> = self.of.keys().filter(|known| !wanted.contains(*known)).cloned().collect();
        for endpoint in gone {
            if let Some(task) = self.of.remove(&endpoint) {
                task.abort();
            }
        }
        for endpoint in wanted {
            if !self.of.contains_key(endpoint) {
                self.start(shared, endpoint, Duration::ZERO);
            }
        }
    }

    fn start(&mut self, shared: &Arc<Shared>, endpoint: &Endpoint, wait: Duration) {
        let follow = follow(Arc::clone(shared), endpoint.clone(), wait);
        self.of.insert(endpoint.clone(), self.tasks.spawn(follow));
    }

    /// An aborted task is no longer in the map. Any other has panicked, and is started again after the longest
    /// back-off, because the message that caused the panic is likely to be sent again.
    fn ended(&mut self, shared: &Arc<Shared>, ended: Result<(task::Id, ()), task::JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(dead) => dead.id(),
        };
        let endpoint = self.of.iter().find(|(_, task)| task.id() == id).map(|(endpoint, _)| endpoint.clone());
        if let Some(endpoint) = endpoint {
            error!(source = %endpoint, "the task of a source ended; it is started again");
            self.start(shared, &endpoint, shared.settings.timings.longest_backoff);
        }
    }
}

/// Opens the stream again and again, after a wait.
async fn follow(shared: Arc<Shared>, endpoint: Endpoint, wait: Duration) {
    sleep(wait).await;
    let timings = shared.settings.timings;
    let mut backoff = Backoff::new(timings.first_backoff, timings.longest_backoff);
    loop {
        let (failure, delivered) = Box::pin(stream(&shared, &endpoint)).await;
        if delivered >= timings.steady_after {
            backoff.reset();
        }
        shared.failed(&endpoint, &failure);
        sleep(backoff.next()).await;
    }
}

/// Of a message besides its bytes, in bytes: many small ones take time as well.
const COST_OF_MESSAGE: usize = 4 << 10;

/// Before the next message of this source is read: a source that sends without a pause must not take the thread from the
/// others. A snapshot of 8 GPUs has some 10 KiB, and the next one may follow after 1 ms.
fn rest_after(bytes: usize) -> Duration {
    const BYTES_PER_SECOND: u64 = 8 << 20;
    // What is less than a tick of the timer is none.
    Duration::from_millis(bytes as u64 * 1_000 / BYTES_PER_SECOND)
}

/// One stream from its opening to its end, and for how long it delivered.
async fn stream(shared: &Shared, endpoint: &Endpoint) -> (Failure, Duration) {
    let Settings { subscriber, min_interval, metrics, security: _, timings, limits } = &shared.settings;
    let request = SubscribeRequest {
        subscriber: (*subscriber).to_owned(),
        // Far below the largest duration of the contract.
        min_interval: prost_types::Duration::try_from(*min_interval).ok(),
    };
    let opened = shared.while_opening(async {
        let credentials = shared.credentials.borrow().clone();
        connection::open(&endpoint.address, credentials, request, *limits).await
    });
    let mut stream = match opened.await {
        Ok(stream) => stream,
        Err(failure) => return (failure, Duration::ZERO),
    };
    shared.opened(endpoint);
    let mut first = None;
    let mut deadline = timings.first_snapshot;
    let mut received = Instant::now();
    let mut unpaid = 0;
    let failure = loop {
        let rest = rest_after(unpaid);
        if !rest.is_zero() {
            sleep(rest).await;
            unpaid = 0;
        }
        // Duplicates do not extend the deadline.
        let left = deadline.saturating_sub(received.elapsed());
        match stream.next(left).await {
            Ok(message) => {
                unpaid += message.encoded_len() + COST_OF_MESSAGE;
                match snapshot::decode(message, metrics, limits) {
                    Ok(snapshot) => {
                        let now = Instant::now();
                        let patience = patience(snapshot.interval, *min_interval);
                        if shared.received(endpoint, snapshot, now) {
                            first.get_or_insert(now);
                            received = now;
                            deadline = patience;
                        }
                    }
                    Err(malformed) => break Failure::Malformed(malformed),
                }
            }
            Err(Failure::Silent(_)) => break Failure::Silent(deadline),
            Err(failure) => break failure,
        }
    };
    (failure, first.map_or(Duration::ZERO, |first| first.elapsed()))
}

impl Shared {
    async fn while_opening<T>(&self, open: impl Future<Output = T>) -> T {
        // It is never closed.
        let _place = self.opening.acquire().await;
        open.await
    }

    fn add(&self, endpoint: &Endpoint) {
        let link = Link {
            since: Instant::now(),
            received: None,
            failure: None,
            patience: self.settings.timings.first_snapshot,
        };
        let new = || Record { link, continuity: Continuity::default(), latest: None, was_live: None };
        self.records_mut().entry(endpoint.clone()).or_insert_with(new);
    }

    fn forget(&self, endpoint: &Endpoint) {
        let Some(record) = self.records_mut().remove(endpoint) else { return };
        if let Some(reported) = record.continuity.events_reported() {
            let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
            if departed.len() == MOST_DEPARTED {
                departed.pop_front();
            }
            departed.push_back(reported);
        }
        let view = record.view(endpoint, Instant::now());
        self.notify(&Change { endpoint, node: view.node(), news: News::Gone });
    }

    fn opened(&self, endpoint: &Endpoint) {
        if let Some(record) = self.records_mut().get_mut(endpoint) {
            record.link.failure = None;
        }
    }

    fn failed(&self, endpoint: &Endpoint, failure: &Failure) {
        self.counters.failures.fetch_add(1, Ordering::Relaxed);
        if let Some(record) = self.records_mut().get_mut(endpoint) {
            record.link.failure = Some(failure.to_string().into());
        }
    }

    /// Whether the snapshot is a new one.
    fn received(&self, endpoint: &Endpoint, snapshot: Snapshot, now: Instant) -> bool {
        let snapshot = Arc::new(snapshot);
        let count = |counter: &AtomicU64, by| counter.fetch_add(by, Ordering::Relaxed);
        let first_event = {
            let mut records = self.records_mut();
            let Some(record) = records.get_mut(endpoint) else { return false };
            let Record { link, continuity, latest, was_live } = record;
            if latest.is_none()
                && let Some(event) = self.departed_event(&snapshot.instance)
            {
                *continuity = Continuity::resumed(Arc::clone(&snapshot.instance), event);
            }
            match continuity.follow(&snapshot, self.settings.min_interval) {
                Step::Duplicate => {
                    count(&self.counters.duplicates, 1);
                    return false;
                }
                Step::Gap { lost } => {
                    count(&self.counters.lost, lost);
                }
                Step::Restart => {
                    count(&self.counters.restarts, 1);
                }
                Step::First | Step::Next => {}
            }
            count(&self.counters.snapshots, 1);
            let begun = continuity.begun(snapshot.uptime, now, self.epoch);
            *latest = Some(Kept { snapshot: Arc::clone(&snapshot), begun });
            link.received = Some(now);
            link.patience = patience(snapshot.interval, self.settings.min_interval);
            if *was_live == Some(false) {
                info!(source = %endpoint, "the source is back");
            }
            *was_live = Some(true);
            continuity.report_events(&snapshot)
        };
        let events = snapshot.events.get(first_event..).unwrap_or_default();
        let node = match &endpoint.origin {
            Origin::Node(node) => node,
            Origin::Pod { .. } | Origin::Stated => &*snapshot.node,
        };
        self.notify(&Change { endpoint, node, news: News::Snapshot { events } });
        true
    }

    fn departed_event(&self, instance: &Arc<str>) -> Option<u64> {
        let departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        departed.iter().rev().find(|(known, _)| known == instance).map(|(_, event)| *event)
    }

    /// Reports the sources that are no longer live.
    fn look(&self, now: Instant) {
        let mut changed = Vec::new();
        for (endpoint, record) in self.records_mut().iter_mut() {
            let health = health(&record.link, now);
            let is_live = match &health {
                Health::Pending { .. } => continue,
                Health::Live => true,
                Health::Silent { .. } | Health::Unreachable { .. } => false,
            };
            if !is_live && record.was_live != Some(false) {
                record.was_live = Some(false);
                changed.push((endpoint.clone(), record.view(endpoint, now)));
            }
        }
        for (endpoint, view) in changed {
            match &view.health {
                Health::Unreachable { why, .. } => {
                    warn!(source = %endpoint, %why, "the source cannot be reached");
                }
                Health::Silent { .. } | Health::Live | Health::Pending { .. } => {
                    warn!(source = %endpoint, "the source is silent");
                }
            }
            self.notify(&Change { endpoint: &endpoint, node: view.node(), news: News::Health(&view.health) });
        }
    }

    fn notify(&self, change: &Change<'_>) {
        let subscribers = self.subscribers.read().unwrap_or_else(PoisonError::into_inner);
        subscribers.iter().for_each(|subscriber| subscriber(change));
    }

    fn records(&self) -> RwLockReadGuard<'_, BTreeMap<Endpoint, Record>> {
        self.records.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn records_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<Endpoint, Record>> {
        self.records.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn view(&self, endpoint: &Endpoint, now: Instant) -> View {
        let latest = self.latest.as_ref().map(|Kept { snapshot, begun }| Latest {
            snapshot: Arc::clone(snapshot),
            age: now.saturating_duration_since(*begun),
            patience: self.link.patience,
            is_admitted: endpoint.admits(snapshot),
        });
        View { endpoint: endpoint.clone(), health: health(&self.link, now), latest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_grows_with_the_bytes() {
        assert_eq!(rest_after(4 << 10), Duration::ZERO);
        assert_eq!(rest_after(10 << 10), Duration::from_millis(1));
        assert_eq!(rest_after(4 << 20), Duration::from_millis(500));
    }
}
