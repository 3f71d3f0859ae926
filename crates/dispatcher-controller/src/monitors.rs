//! Receives the current load, tokens and checkpoint times of workers from the monitors in their pods. It decides
//! nothing.
//!
//! Each monitor has one stream, to the pod address from the API server. A load that is not fresh counts as missing,
//! never as zero. Token counts and checkpoint times stay valid.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::monitor::STREAM_PORT;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ReplicaSet;
use metrics_client::{
    args::Security,
    endpoint::{Endpoint, Origin},
    limits::Limits,
    snapshot::{FaultReason, Metric, Reading},
    sources::{News, Settings, Sources, Timings},
    view::{Health, Latest, Value, View},
};
use runtime::{key::Key, polling::Trigger, process::Process, queue::Waker, watch::cache::Cache};
use tokio_util::sync::CancellationToken;
use workload::views::pod::PodView;

use crate::{
    NAME,
    load::{WorkerLoad, has_tasks},
    names::MONITOR,
    records::{
        revisions::{Membership, Revision, Revisions},
        tokens::TokenNotes,
    },
    relations::keys_by_instance,
};

/// Half the interval of a monitor, so that each of its snapshots is sent.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
const METRICS: &[Metric] = &[
    Metric::QueueWaiting,
    Metric::QueueRunning,
    Metric::Tokens,
    Metric::CheckpointTime,
    Metric::UnclaimedStates,
    Metric::TasksFinished,
];

/// A monitor sends one subject with six readings and up to two faults, which is far below 4 KiB. Any pod can have the
/// labels of a worker, so the memory for its messages is limited.
const LIMITS: Limits =
    Limits { sources: 5_000, message_bytes: 64 << 10, elements: 64, subjects: 4, holders: 0, events: 0 };

/// The fault of a monitor that has found damaged states; other faults are about the saving of its own.
const DAMAGE: FaultReason = FaultReason::BadInput;

/// Monitors report each second. A load that is older than this is not used.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(10);

/// The streams.
pub(crate) struct Monitors {
    sources: Sources,
    trigger: Trigger,
}

/// The values whose change causes a poll of the AIDispatcher.
type Signature = (Option<u64>, Option<u64>, Option<u64>, Option<u64>, bool, bool);

impl Monitors {
    /// Follows the addresses of pods of AIDispatchers. Nothing is connected to before [`Monitors::running`] runs.
    pub(crate) fn new(
        process: &Process,
        pods: &Cache<PodView>,
        revisions: &Arc<Revisions>,
        tokens: Arc<TokenNotes>,
    ) -> Self {
        let sources = Sources::new(Settings {
            subscriber: NAME,
            min_interval: MIN_INTERVAL,
            metrics: METRICS,
            // Pods of users have no certificates of this controller. Its NetworkPolicy limits which pods it connects
            // to.
            security: Security::Plain,
            timings: Timings { longest_backoff: Duration::from_secs(10), ..Timings::default() },
            limits: LIMITS,
        });
        follow(&sources, pods, revisions);
        let collector = metrics_client::metrics::collector(&sources, process.leadership());
        process.metrics().with_registry(|registry| registry.register_collector(collector));
        let trigger = Trigger::default();
        notify_on_change(&sources, pods, tokens, trigger.clone());
        Self { sources, trigger }
    }

    /// Polls the AIDispatchers of whose workers something is new.
    pub(crate) fn trigger(&self) -> &Trigger {
        &self.trigger
    }

    /// Keeps the streams until `stop`.
    pub(crate) fn running(
        &self,
    ) -> impl FnOnce(Waker, CancellationToken) -> BoxFuture<'static, ()> + Send + use<> {
        let sources = self.sources.clone();
        move |_, stop| Box::pin(async move { sources.run(stop).await })
    }

    pub(crate) fn load_of(&self, pod: &PodView, now: Timestamp) -> WorkerLoad {
        let Some(endpoint) = endpoint_of(pod) else { return WorkerLoad::default() };
        match self.sources.at(&endpoint) {
            Some(view) => load(&view, now),
            None => WorkerLoad { fault: unread(&self.sources), ..WorkerLoad::default() },
        }
    }
}

/// A pod has a stream while its monitor runs, also while it ends: its last tokens are counted. Other pods with the same
/// labels have none.
fn follow(sources: &Sources, pods: &Cache<PodView>, revisions: &Arc<Revisions>) {
    let (followed, known) = (sources.clone(), Arc::clone(revisions));
    pods.subscribe(move |change| {
        let is_known = |pod: &&Arc<PodView>| Revision::of(pod).is_some_and(|revision| known.have(&revision));
        let before = change.old.and_then(|pod| endpoint_of(pod));
        let now = change.new.filter(is_known).and_then(|pod| endpoint_of(pod));
        before.iter().filter(|before| now.as_ref() != Some(before)).for_each(|gone| followed.remove(gone));
        now.into_iter().for_each(|new| followed.insert(new));
    });
    // A pod can be in its cache before its ReplicaSet is.
    let (followed, pods) = (sources.clone(), pods.clone());
    revisions.subscribe(move |revision, membership| {
        let pods = pods.owned_by::<ReplicaSet>(&revision.namespace, &revision.uid);
        let endpoints = pods.iter().filter_map(|pod| endpoint_of(pod));
        match membership {
            Membership::Begins => endpoints.for_each(|endpoint| followed.insert(endpoint)),
            Membership::Ends => endpoints.for_each(|endpoint| followed.remove(&endpoint)),
        }
    });
}

/// Why the monitor of a pod is no source.
fn unread(sources: &Sources) -> Option<String> {
    let limit = LIMITS.sources;
    sources.is_full().then(|| format!("its monitor is not read: this controller reads {limit} at once"))
}

fn endpoint_of(pod: &PodView) -> Option<Endpoint> {
    pod.init_container(MONITOR)?.state.running.as_ref()?;
    let address = std::net::SocketAddr::new(pod.ip?, STREAM_PORT);
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default().into();
    let origin = Origin::Pod { namespace, name: pod.name().into() };
    Some(Endpoint { origin, address: address.to_string().into() })
}

/// Notes tokens at once and polls the AIDispatcher of a worker of which something is new.
fn notify_on_change(sources: &Sources, pods: &Cache<PodView>, tokens: Arc<TokenNotes>, trigger: Trigger) {
    let (known, pods) = (sources.clone(), pods.clone());
    let last: Mutex<HashMap<Endpoint, Signature>> = Mutex::default();
    sources.subscribe(move |change| {
        let Origin::Pod { namespace, name } = &change.endpoint.origin else { return };
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        match &change.news {
            News::Gone => {
                last.remove(change.endpoint);
            }
            News::Snapshot { .. } | News::Health(_) => {
                let Some(view) = known.at(change.endpoint) else { return };
                let signature = signature(&view);
                if last.get(change.endpoint) == Some(&signature) {
                    return;
                }
                last.insert(change.endpoint.clone(), signature);
                let Some(pod) = pods.get(&Key::new(namespace, name)) else { return };
                signature.2.into_iter().for_each(|used| tokens.note(&pod, used));
                keys_by_instance(&*pod).iter().for_each(|key| trigger.poll(key));
            }
        }
    });
}

fn signature(view: &View) -> Signature {
    let fresh = |metric| fresh(view, metric).map(|(value, _)| value);
    (
        fresh(Metric::QueueWaiting),
        fresh(Metric::QueueRunning),
        latest(view, Metric::Tokens),
        latest(view, Metric::UnclaimedStates),
        view.health == Health::Live,
        checkpoint_faults(view).0.is_some(),
    )
}

fn load(view: &View, now: Timestamp) -> WorkerLoad {
    let queued = fresh(view, Metric::QueueWaiting);
    let in_flight = fresh(view, Metric::QueueRunning).map(|(value, _)| value);
    let (unsaved, damaged) = checkpoint_faults(view);
    let at = |age: Duration| now.checked_sub(age).unwrap_or(now);
    WorkerLoad {
        queued: queued.map(|(value, age)| (value, at(age))),
        in_flight,
        finished: fresh(view, Metric::TasksFinished).map(|(value, _)| value),
        has_tasks: has_tasks(queued.map(|(value, _)| value), in_flight),
        works: in_flight.map(|tasks| tasks > 0),
        last_tasks: last(view, Metric::QueueRunning).map(|(tasks, age)| (tasks, at(age))),
        is_quiet: in_flight.is_none() && queued.is_some_and(|(tasks, _)| tasks == 0),
        tokens: latest(view, Metric::Tokens),
        counts_tokens: fresh(view, Metric::Tokens).is_some(),
        fault: queued.is_none().then(|| fault(view)).flatten(),
        saved: latest(view, Metric::CheckpointTime),
        unsaved,
        damaged,
        unclaimed: fresh(view, Metric::UnclaimedStates).map(|(states, _)| states),
        waiting: latest(view, Metric::UnclaimedStates),
    }
}

/// Messages of the monitor's own faults, which are about checkpoints: that the state is not saved now, and that saved states
/// are damaged.
fn checkpoint_faults(view: &View) -> (Option<String>, Option<String>) {
    let Some(latest) = admitted(view).filter(|_| view.health == Health::Live) else { return (None, None) };
    let message = |is_damage: bool| {
        let mut faults = latest.snapshot.faults.iter();
        let fault = faults.find(|fault| (fault.reason == DAMAGE) == is_damage)?;
        Some(fault.message.to_string())
    };
    (message(false), message(true))
}

/// Message of the monitor, or why there is no stream.
fn fault(view: &View) -> Option<String> {
    match &view.health {
        Health::Live => {
            let mut subjects = admitted(view)?.snapshot.subjects.iter();
            subjects.find_map(|subject| subject.fault.as_ref()).map(|fault| fault.message.to_string())
        }
        Health::Pending { .. } => None,
        Health::Silent { .. } => Some("its monitor is silent".to_owned()),
        Health::Unreachable { why, .. } => Some(format!("its monitor cannot be reached: {why}")),
    }
}

/// The last message, unless it names another pod.
fn admitted(view: &View) -> Option<&Latest> {
    view.latest.as_ref().filter(|latest| latest.is_admitted)
}

fn reading(view: &View, metric: Metric) -> Option<&Reading> {
    let mut readings = admitted(view)?.snapshot.subjects.iter().flat_map(|subject| &subject.readings);
    readings.find(|reading| reading.metric == metric)
}

fn fresh(view: &View, metric: Metric) -> Option<(u64, Duration)> {
    match view.value(reading(view, metric)?) {
        Value::Fresh { value, age } => Some((whole(value)?, age)),
        Value::Stale { .. } | Value::Unsupported | Value::Missing { .. } => None,
    }
}

/// Valid also when stale.
fn latest(view: &View, metric: Metric) -> Option<u64> {
    last(view, metric).map(|(value, _)| value)
}

/// The last value that was read, and its age.
fn last(view: &View, metric: Metric) -> Option<(u64, Duration)> {
    match view.value(reading(view, metric)?) {
        Value::Fresh { value, age } | Value::Stale { value, age, .. } => Some((whole(value)?, age)),
        Value::Unsupported | Value::Missing { .. } => None,
    }
}

/// The conversion ends at the largest value.
fn whole(value: f64) -> Option<u64> {
    (value >= 0.0).then(|| value.round() as u64)
}

#[cfg(test)]
mod tests {
    use metrics_client::snapshot::{Attribution, Fault, Snapshot, State, Subject, SubjectKind};

    use crate::{
        records::revisions::tests::Caches,
        tests::{at, pod},
    };

    use super::*;

    fn reading(metric: Metric, state: State, value: f64) -> Reading {
        Reading {
            metric,
            state,
            value: Some(value),
            age: Duration::from_secs(1),
            reason: FaultReason::Unspecified,
            windows: Vec::new(),
        }
    }

    fn view(readings: Vec<Reading>, health: Health) -> View {
        let fault = Fault { reason: FaultReason::Timeout, message: "port 9100 does not answer".into() };
        let subject = Subject {
            id: "coder-0".into(),
            kind: SubjectKind::Worker,
            parent_id: "".into(),
            readings,
            holders: Vec::new(),
            fault: Some(fault),
        };
        let snapshot = Snapshot {
            instance: "one".into(),
            sequence: 1,
            uptime: Duration::ZERO,
            interval: Duration::from_secs(1),
            node: "".into(),
            pod: None,
            subjects: vec![subject],
            events: Vec::new(),
            faults: Vec::new(),
            attribution: Attribution { state: State::Unsupported, age: Duration::ZERO },
            is_cut: false,
        };
        let latest = Latest {
            snapshot: Arc::new(snapshot),
            age: Duration::from_secs(1),
            patience: Duration::from_secs(3),
            is_admitted: true,
        };
        let origin = Origin::Pod { namespace: "demo".into(), name: "coder-0".into() };
        View { endpoint: Endpoint { origin, address: "10.0.0.7:9411".into() }, health, latest: Some(latest) }
    }

    #[test]
    fn the_stream_of_a_pod_begins_with_its_monitor() {
        let address = |parts: &str| endpoint_of(&pod(parts)).map(|endpoint| endpoint.address.to_string());
        let running = "init: [{name: monitor, state: {running: {}}}]";
        assert_eq!(address(&format!("{{ip: 10.0.0.7, {running}}}")).as_deref(), Some("10.0.0.7:9411"));
        assert_eq!(address(&format!("{{{running}}}")), None);
        assert_eq!(
            address("{ip: 10.0.0.7, init: [{name: monitor, state: {terminated: {exitCode: 0}}}]}"),
            None
        );
    }

    #[test]
    fn a_worker_is_quiet_if_it_reports_an_empty_queue_alone() {
        let is_quiet = |readings: Vec<Reading>| load(&view(readings, Health::Live), at(0)).is_quiet;
        let queued = |state: State, value: f64| reading(Metric::QueueWaiting, state, value);
        assert!(is_quiet(vec![queued(State::Fresh, 0.0)]));
        assert!(!is_quiet(vec![queued(State::Fresh, 1.0)]));
        assert!(!is_quiet(vec![queued(State::Stale, 0.0)]));
        assert!(!is_quiet(vec![queued(State::Fresh, 0.0), reading(Metric::QueueRunning, State::Fresh, 0.0)]));
        assert!(!is_quiet(Vec::new()));
    }

    /// None of them is connected to.
    fn sources(limits: Limits) -> Sources {
        Sources::new(Settings {
            subscriber: "test",
            min_interval: MIN_INTERVAL,
            metrics: METRICS,
            security: Security::Plain,
            timings: Timings::default(),
            limits,
        })
    }

    const RUNNING: &str = "ip: 10.0.0.7, init: [{name: monitor, state: {running: {}}}]";

    #[test]
    fn only_pods_of_an_aidispatcher_have_a_stream_in_whichever_order_they_become_known() {
        for is_pod_first in [true, false] {
            let (sources, pods, caches) = (sources(LIMITS), Cache::default(), Caches::of_coder("another"));
            follow(&sources, &pods, &caches.tracked());
            let worker = pod(&format!("{{replicaSet: set, {RUNNING}}}"));
            if is_pod_first {
                pods.upsert(worker);
                assert!(sources.is_empty());
                caches.put_replica_set("demo", "set");
            } else {
                caches.put_replica_set("demo", "set");
                pods.upsert(worker);
            }
            pods.upsert(pod(&format!("{{name: unowned, {RUNNING}}}")));
            pods.upsert(pod(&format!("{{name: foreign, replicaSet: foreign, {RUNNING}}}")));
            assert_eq!(sources.len(), 1);
            caches.remove_replica_set("set");
            assert_eq!(sources.len(), 1, "its last tokens are counted");
            caches.remove_dispatcher();
            assert!(sources.is_empty());
        }
    }

    #[test]
    fn a_pod_whose_monitor_has_ended_has_no_stream() {
        let (sources, pods, caches) = (sources(LIMITS), Cache::default(), Caches::of_coder("set"));
        follow(&sources, &pods, &caches.tracked());
        pods.upsert(pod(&format!("{{replicaSet: set, {RUNNING}}}")));
        assert_eq!(sources.len(), 1);
        let mut ended = pod("{replicaSet: set, ip: 10.0.0.7}");
        ended.metadata.resource_version = Some("2".into());
        pods.upsert(ended);
        assert!(sources.is_empty());
    }

    #[test]
    fn a_monitor_that_is_not_read_is_a_fault_that_names_the_limit() {
        assert_eq!(unread(&sources(LIMITS)), None);
        let full = unread(&sources(Limits { sources: 0, ..LIMITS }));
        assert_eq!(full.as_deref(), Some("its monitor is not read: this controller reads 5000 at once"));
    }

    #[test]
    fn a_value_that_is_not_fresh_is_missing_and_tokens_stay() {
        let readings = vec![
            reading(Metric::QueueWaiting, State::Stale, 3.0),
            reading(Metric::QueueRunning, State::Fresh, 2.0),
            reading(Metric::Tokens, State::Stale, 70.0),
        ];
        let found = load(&view(readings, Health::Live), at(10));
        assert_eq!((found.queued, found.in_flight, found.tokens), (None, Some(2), Some(70)));
        assert_eq!(found.fault.as_deref(), Some("port 9100 does not answer"));
    }

    #[test]
    fn faults_are_told_apart_and_those_of_a_message_that_names_another_pod_are_not_used() {
        let mut view = view(vec![reading(Metric::QueueRunning, State::Fresh, 2.0)], Health::Live);
        let latest = view.latest.as_mut().unwrap();
        let fault = Fault { reason: FaultReason::Timeout, message: "the bucket of another tenant".into() };
        Arc::make_mut(&mut latest.snapshot).faults.push(fault);
        assert!(load(&view, at(0)).unsaved.is_some());
        assert_eq!(load(&view, at(0)).damaged, None);
        let latest = view.latest.as_mut().unwrap();
        Arc::make_mut(&mut latest.snapshot).faults[0].reason = DAMAGE;
        assert!(load(&view, at(0)).unsaved.is_none() && load(&view, at(0)).damaged.is_some());
        view.latest.as_mut().unwrap().is_admitted = false;
        assert_eq!(load(&view, at(0)), WorkerLoad::default());
    }

    #[test]
    fn the_time_of_a_value_is_that_of_its_sample() {
        let readings = vec![reading(Metric::QueueWaiting, State::Fresh, 3.0)];
        let found = load(&view(readings, Health::Live), at(10));
        assert_eq!((found.queued, found.fault), (Some((3, at(8))), None));
    }
}
