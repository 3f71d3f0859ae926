//! A snapshot as it is kept: only what users ask for, within limits, and with every doubt made visible. Pure.
//!
//! A source is not trusted: numbers that are not finite are no values, texts are cut and printable, lists end at a limit,
//! and a snapshot that lacks what the contract promises is refused.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use proto::metrics::v1 as contract;
pub use proto::metrics::v1::{EventKind, FaultReason, Metric, State, SubjectKind};

use crate::limits::Limits;

/// The contract has two.
const MOST_WINDOWS: usize = 4;
const MOST_FAULTS: usize = 16;
/// The longest name of Kubernetes.
const LONGEST_NAME: usize = 253;
const LONGEST_MESSAGE: usize = 256;
/// A source with a longer one is silent anyway before its next snapshot.
const LONGEST_INTERVAL: Duration = Duration::from_secs(3_600);

/// What a source knew at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// New with each start of the source.
    pub instance: Arc<str>,
    /// Grows by 1 with each snapshot of an instance.
    pub sequence: u64,
    /// Since the start of the instance.
    pub uptime: Duration,
    pub interval: Duration,
    /// As the source says; [`crate::endpoint::Origin`] says who is believed.
    pub node: Box<str>,
    pub pod: Option<PodName>,
    pub subjects: Vec<Subject>,
    /// Of the last ten minutes, oldest first.
    pub events: Vec<Event>,
    pub faults: Vec<Fault>,
    pub attribution: Attribution,
    /// Whether it had more than is kept: then an absence in it says nothing.
    pub is_cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    pub namespace: Box<str>,
    pub name: Box<str>,
}

/// An accelerator, a partition of one, or a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    pub id: Box<str>,
    pub kind: SubjectKind,
    /// Of a partition, the id of its device; else empty.
    pub parent_id: Box<str>,
    pub readings: Vec<Reading>,
    pub holders: Vec<Holder>,
    /// Why it cannot be measured at all.
    pub fault: Option<Fault>,
}

/// One metric of one subject, as the source said it. How it stands at another moment is in [`crate::view`].
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    pub metric: Metric,
    pub state: State,
    /// Finite.
    pub value: Option<f64>,
    /// When the snapshot was begun.
    pub age: Duration,
    pub reason: FaultReason,
    pub windows: Vec<Window>,
}

/// Statistics over the recent past. All numbers are finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    pub length: Duration,
    pub mean: f64,
    pub p95: f64,
    pub max: f64,
    pub samples: u32,
}

/// A container that holds a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub pod: PodName,
    /// Empty where the source does not know it.
    pub uid: Box<str>,
    pub container: Box<str>,
    pub resource: Box<str>,
    pub shares: u32,
}

/// Something that happened once.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Unique within an instance.
    pub sequence: u64,
    /// How long before the snapshot was begun. Both times are of the clock of the source.
    pub age: Duration,
    /// By the clock of the source, to be compared only with other times of its machine.
    pub at: Option<SystemTime>,
    pub kind: EventKind,
    pub subject_id: Box<str>,
    /// The code of the vendor: NVIDIA's XID.
    pub code: Option<u64>,
    /// Who held the subject then.
    pub holders: Vec<Holder>,
    /// Whether the source assumes that work on the subject is lost.
    pub is_fatal: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub reason: FaultReason,
    pub message: Box<str>,
}

/// Whether the source knows which containers hold which subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribution {
    pub state: State,
    /// How long before the snapshot was begun the kubelet was asked.
    pub age: Duration,
}

/// Why a message of a source is no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("it sent a snapshot without an instance")]
    NoInstance,
    #[error("it sent a snapshot without a number")]
    NoSequence,
    #[error("it sent a snapshot without a time")]
    NoUptime,
    #[error("it sent a snapshot without an interval")]
    NoInterval,
}

impl Subject {
    pub fn reading(&self, metric: Metric) -> Option<&Reading> {
        self.readings.iter().find(|reading| reading.metric == metric)
    }
}

impl Reading {
    pub fn window(&self, length: Duration) -> Option<&Window> {
        self.windows.iter().find(|window| window.length == length)
    }
}

impl Holder {
    pub fn is_pod(&self, namespace: &str, name: &str) -> bool {
        *self.pod.namespace == *namespace && *self.pod.name == *name
    }
}

/// What is kept of a message: readings of `metrics` alone, and no more than `limits` allow.
pub(crate) fn decode(
    message: contract::Snapshot,
    metrics: &[Metric],
    limits: &Limits,
) -> Result<Snapshot, Malformed> {
    let contract::Snapshot {
        source,
        sequence,
        sampled_at,
        uptime,
        interval,
        subjects,
        events,
        faults,
        attribution,
    } = message;
    let source = source.unwrap_or_default();
    if source.instance.is_empty() {
        return Err(Malformed::NoInstance);
    }
    if sequence == 0 {
        return Err(Malformed::NoSequence);
    }
    let uptime = duration(uptime).ok_or(Malformed::NoUptime)?;
    let interval = duration(interval).filter(|it| !it.is_zero()).ok_or(Malformed::NoInterval)?;
    let interval = interval.min(LONGEST_INTERVAL);
    let mut is_cut = false;
    let mut within = |count: usize, most: usize| is_cut |= count > most;
    within(subjects.len(), limits.subjects);
    within(events.len(), limits.events);
    subjects.iter().for_each(|subject| within(subject.holders.len(), limits.holders));
    let first_event = events.len().saturating_sub(limits.events);
    Ok(Snapshot {
        instance: name(&source.instance).into(),
        sequence,
        uptime,
        interval,
        node: name(&source.node),
        pod: source.pod.as_ref().map(pod_name),
        subjects: subjects
            .into_iter()
            .take(limits.subjects)
            .map(|subject| kept(subject, metrics, interval, limits))
            .collect(),
        events: events
            .into_iter()
            .skip(first_event)
            .map(|event| happened(event, sampled_at, limits))
            .collect(),
        faults: faults.into_iter().take(MOST_FAULTS).map(fault).collect(),
        attribution: attribution.map_or(
            Attribution { state: State::Unsupported, age: Duration::ZERO },
            |attribution| Attribution {
                state: attribution.state(),
                age: duration(attribution.age).unwrap_or_default(),
            },
        ),
        is_cut,
    })
}

fn kept(subject: contract::Subject, metrics: &[Metric], interval: Duration, limits: &Limits) -> Subject {
    let kind = subject.kind();
    let readings = subject.readings.into_iter().filter(|reading| {
        let metric = reading.metric();
        metric != Metric::Unspecified && metrics.contains(&metric)
    });
    Subject {
        id: name(&subject.id),
        kind,
        parent_id: name(&subject.parent_id),
        // A source that repeats a metric gains nothing: the first one counts.
        readings: readings.take(metrics.len()).map(|reading| measured(reading, interval)).collect(),
        holders: holders(subject.holders, limits),
        fault: subject.fault.map(fault),
    }
}

fn measured(reading: contract::Reading, interval: Duration) -> Reading {
    let value = reading.value.filter(|value| value.is_finite());
    let state = match reading.state() {
        State::Fresh | State::Stale | State::Unspecified if value.is_none() => State::Missing,
        // The contract asks for it.
        State::Unspecified => State::Stale,
        state @ (State::Fresh | State::Stale | State::Unsupported | State::Missing) => state,
    };
    Reading {
        metric: reading.metric(),
        state,
        value,
        // A fresh value is at most so old.
        age: duration(reading.age).unwrap_or(interval),
        reason: reading.reason(),
        windows: reading.windows.into_iter().take(MOST_WINDOWS).filter_map(window).collect(),
    }
}

fn window(window: contract::Window) -> Option<Window> {
    let contract::Window { length, mean, p95, max, samples } = window;
    let is_finite = [mean, p95, max].iter().all(|number| number.is_finite());
    Some(Window { length: duration(length)?, mean, p95, max, samples }).filter(|_| is_finite)
}

fn holders(holders: Vec<contract::Holder>, limits: &Limits) -> Vec<Holder> {
    let holder = |holder: contract::Holder| {
        let pod = holder.pod?;
        Some(Holder {
            uid: name(&pod.uid),
            pod: pod_name(&pod),
            container: name(&holder.container),
            resource: name(&holder.resource),
            shares: holder.shares,
        })
    };
    holders.into_iter().take(limits.holders).filter_map(holder).collect()
}

fn happened(event: contract::Event, sampled_at: Option<prost_types::Timestamp>, limits: &Limits) -> Event {
    let age = || {
        let (at, sampled_at) = (time(event.at?)?, time(sampled_at?)?);
        // The clock of the source may have been set back in between.
        Some(Duration::try_from_secs_f64(sampled_at - at).unwrap_or_default())
    };
    Event {
        sequence: event.sequence,
        age: age().unwrap_or_default(),
        at: event.at.and_then(|at| SystemTime::try_from(at).ok()),
        kind: event.kind(),
        subject_id: name(&event.subject_id),
        code: event.code,
        is_fatal: event.fatal,
        holders: holders(event.holders, limits),
    }
}

fn fault(fault: contract::Fault) -> Fault {
    let message = text::cut(text::printable(fault.message.trim()), LONGEST_MESSAGE);
    Fault { reason: fault.reason(), message: message.into() }
}

fn pod_name(pod: &contract::PodRef) -> PodName {
    PodName { namespace: name(&pod.namespace), name: name(&pod.name) }
}

fn name(name: &str) -> Box<str> {
    text::cut(text::printable(name), LONGEST_NAME).into()
}

/// `None`: absent or negative.
fn duration(duration: Option<prost_types::Duration>) -> Option<Duration> {
    Duration::try_from(duration?).ok()
}

/// Seconds since an epoch that both times of a difference share.
fn time(time: prost_types::Timestamp) -> Option<f64> {
    let seconds = time.seconds as f64 + f64::from(time.nanos) / 1e9;
    seconds.is_finite().then_some(seconds)
}

#[cfg(test)]
mod tests;
