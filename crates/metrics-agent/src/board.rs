//! Everything that is known of the machine at one moment, and the snapshot of it. Pure: answers and times come in, a
//! snapshot and what is worth a line in the log come out.
//!
//! What was read stays, with its age, until it is read again; what was never read has no value. A device that is lost stays
//! with its fault; a partition that is gone from a successful read goes.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime},
};

use metrics_source::moment::Moment;
use proto::metrics::v1::{
    self as contract, Event, EventKind, FaultReason, Holder, Metric, Reading, Snapshot, State, Subject,
    SubjectKind, Window,
};

use crate::{
    device::{Fault, Happening, Identity, Outcome, Sample},
    pods::{Holdings, Knowledge},
    windows::{History, LENGTHS},
};

/// The contract promises both.
const EVENTS_KEPT: usize = 64;
const EVENTS_KEPT_FOR: Duration = Duration::from_secs(600);

/// See the module.
pub(crate) struct Board {
    source: contract::Source,
    interval: Duration,
    sequence: u64,
    events_seen: u64,
    devices: Vec<DeviceState>,
    events: VecDeque<(Duration, Event)>,
    faults: BTreeMap<Part, (Fault, SystemTime)>,
}

/// What of the agent can be at fault apart from a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Library and driver.
    Source,
    /// The events of the driver.
    Events,
    /// Which pods hold what.
    Pods,
}

/// Something that is worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Lost { device: String, fault: Fault },
    Back { device: String },
    Faulty { part: Part, fault: Fault },
    Mended { part: Part },
    Happened { device: String, kind: EventKind, code: Option<u64>, holders: Vec<String> },
}

struct DeviceState {
    /// The device first, then its partitions. Never empty.
    subjects: Vec<SubjectState>,
    fault: Option<(Fault, SystemTime)>,
    last_error_code: u64,
}

struct SubjectState {
    identity: Arc<Identity>,
    tracks: BTreeMap<Metric, Track>,
    throttle_reasons: Vec<i32>,
    processes: Vec<contract::Process>,
}

/// One metric of one subject.
#[derive(Default)]
struct Track {
    /// With the time of its measurement.
    last: Option<(Duration, f64)>,
    /// Why the last read gave no value; nothing if it did.
    reason: Option<FaultReason>,
    history: History,
}

impl Board {
    pub(crate) fn new(source: contract::Source, interval: Duration) -> Self {
        Self {
            source,
            interval,
            sequence: 0,
            events_seen: 0,
            devices: Vec::new(),
            events: VecDeque::new(),
            faults: BTreeMap::new(),
        }
    }

    /// The source was opened, and has these devices.
    pub(crate) fn opened(&mut self, backend: String, devices: Vec<Identity>) {
        self.source.backend = backend;
        let state = |identity: Identity| DeviceState {
            subjects: vec![SubjectState::new(Arc::new(identity))],
            fault: None,
            last_error_code: 0,
        };
        self.devices = devices.into_iter().map(state).collect();
    }

    /// A part is at fault, or is not any more.
    pub(crate) fn part(&mut self, part: Part, fault: Option<Fault>, now: Moment) -> Option<Change> {
        let Some(fault) = fault else {
            return self.faults.remove(&part).map(|_| Change::Mended { part });
        };
        let known = self.faults.get(&part);
        let is_news = known.is_none_or(|(known, _)| known.reason != fault.reason);
        let since = known.filter(|_| !is_news).map_or(now.clock, |(_, since)| *since);
        self.faults.insert(part, (fault.clone(), since));
        is_news.then_some(Change::Faulty { part, fault })
    }

    /// The device at this position was read, or could not be.
    pub(crate) fn answered(
        &mut self,
        device: usize,
        answer: Result<Vec<Sample>, Fault>,
        holdings: &Holdings,
        now: Moment,
    ) -> Option<Change> {
        let state = self.devices.get_mut(device)?;
        let before = state.fault.as_ref().map(|(fault, _)| fault.reason);
        match answer {
            Ok(samples) => {
                state.read(samples, now.uptime);
                state.fault = None;
                let id = state.id();
                before?;
                self.push(EventKind::DeviceBack, &id, None, false, holdings, now);
                Some(Change::Back { device: id })
            }
            Err(fault) => {
                state.not_read(fault.reason);
                if before == Some(fault.reason) {
                    return None;
                }
                let since = state.fault.as_ref().map_or(now.clock, |(_, since)| *since);
                state.fault = Some((fault.clone(), since));
                let id = state.id();
                if before.is_none() {
                    let is_fatal = fault.reason == FaultReason::DeviceLost;
                    self.push(EventKind::DeviceLost, &id, None, is_fatal, holdings, now);
                }
                Some(Change::Lost { device: id, fault })
            }
        }
    }

    /// The driver reported something.
    pub(crate) fn happened(&mut self, happening: Happening, holdings: &Holdings, now: Moment) -> Change {
        let Happening { device, kind, code, is_fatal } = happening;
        if kind == EventKind::DeviceError
            && let Some(state) = self.devices.iter_mut().find(|state| state.id() == device)
        {
            state.last_error_code = code.unwrap_or(0);
        }
        let holders = self.push(kind, &device, code, is_fatal, holdings, now);
        Change::Happened { device, kind, code, holders }
    }

    /// Returns who held the device and its partitions.
    fn push(
        &mut self,
        kind: EventKind,
        device: &str,
        code: Option<u64>,
        is_fatal: bool,
        holdings: &Holdings,
        now: Moment,
    ) -> Vec<String> {
        let mut holders: Vec<Holder> = Vec::new();
        let state = self.devices.iter().find(|state| state.id() == device);
        for holder in
            state.into_iter().flat_map(|state| &state.subjects).flat_map(|it| holdings.holders(&it.identity))
        {
            if !holders.contains(&holder) {
                holders.push(holder);
            }
        }
        let names = holders.iter().filter_map(|holder| holder.pod.as_ref());
        let names = names.map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
        self.events_seen += 1;
        let event = Event {
            sequence: self.events_seen,
            at: Some(now.clock.into()),
            kind: kind.into(),
            subject_id: device.to_owned(),
            code,
            holders,
            fatal: is_fatal,
        };
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back((now.uptime, event));
        names
    }

    /// All of it, with the next sequence number.
    pub(crate) fn snapshot(&mut self, holdings: &Holdings, now: Moment) -> Snapshot {
        while self.events.front().is_some_and(|(at, _)| now.uptime.saturating_sub(*at) > EVENTS_KEPT_FOR) {
            self.events.pop_front();
        }
        self.sequence += 1;
        let subjects = self.devices.iter().flat_map(|state| {
            state.subjects.iter().map(|subject| subject.shown(state, holdings, now.uptime))
        });
        Snapshot {
            source: Some(self.source.clone()),
            sequence: self.sequence,
            sampled_at: Some(now.clock.into()),
            uptime: Some(duration(now.uptime)),
            interval: Some(duration(self.interval)),
            subjects: subjects.collect(),
            events: self.events.iter().map(|(_, event)| event.clone()).collect(),
            faults: self.faults.values().map(|(fault, since)| shown_fault(fault, *since)).collect(),
            attribution: Some(attribution(holdings, now.uptime)),
        }
    }
}

impl DeviceState {
    fn id(&self) -> String {
        self.subjects.first().map(|subject| subject.identity.id.clone()).unwrap_or_default()
    }

    fn read(&mut self, samples: Vec<Sample>, now: Duration) {
        let mut before = std::mem::take(&mut self.subjects);
        for Sample { identity, readings, throttle_reasons, processes } in samples {
            let known = before.iter().position(|subject| subject.identity.id == identity.id);
            let mut subject =
                known.map_or_else(|| SubjectState::new(Arc::clone(&identity)), |at| before.swap_remove(at));
            subject.identity = identity;
            for (metric, outcome) in readings {
                subject.tracks.entry(metric).or_default().read(metric, outcome, now);
            }
            subject.throttle_reasons = throttle_reasons.into_iter().map(i32::from).collect();
            subject.processes = processes;
            self.subjects.push(subject);
        }
    }

    fn not_read(&mut self, reason: FaultReason) {
        for subject in &mut self.subjects {
            subject.throttle_reasons.clear();
            for track in subject.tracks.values_mut() {
                // What the device does not have does not become stale.
                if track.reason != Some(FaultReason::Unsupported) {
                    track.reason = Some(reason);
                }
            }
        }
    }
}

impl SubjectState {
    fn new(identity: Arc<Identity>) -> Self {
        Self { identity, tracks: BTreeMap::new(), throttle_reasons: Vec::new(), processes: Vec::new() }
    }

    fn shown(&self, device: &DeviceState, holdings: &Holdings, now: Duration) -> Subject {
        let identity = &self.identity;
        let mut readings: Vec<Reading> =
            self.tracks.iter().map(|(metric, track)| track.shown(*metric, now)).collect();
        if identity.kind == SubjectKind::Device {
            let code = Track { last: Some((now, device.last_error_code as f64)), ..Track::default() };
            readings.push(code.shown(Metric::LastErrorCode, now));
        }
        Subject {
            id: identity.id.clone(),
            kind: identity.kind.into(),
            parent_id: identity.parent_id.clone(),
            vendor: identity.vendor.clone(),
            model: identity.model.clone(),
            index: identity.index,
            profile: identity.profile.clone(),
            readings,
            holders: holdings.holders(identity),
            processes: self.processes.clone(),
            fault: device.fault.as_ref().map(|(fault, since)| shown_fault(fault, *since)),
            throttle_reasons: self.throttle_reasons.clone(),
            partition: identity.instance,
        }
    }
}

impl Track {
    fn read(&mut self, metric: Metric, outcome: Outcome, now: Duration) {
        match outcome {
            Outcome::Value(value) => {
                self.last = Some((now, value));
                self.reason = None;
                if metric.has_windows() {
                    self.history.add(now, value);
                }
            }
            Outcome::Unsupported => self.reason = Some(FaultReason::Unsupported),
            Outcome::Failed(reason) => self.reason = Some(reason),
        }
    }

    fn shown(&self, metric: Metric, now: Duration) -> Reading {
        let state = match (self.last, self.reason) {
            (Some(_), None) => State::Fresh,
            (_, Some(FaultReason::Unsupported)) => State::Unsupported,
            (Some(_), Some(_)) => State::Stale,
            (None, _) => State::Missing,
        };
        let last = self.last.filter(|_| state != State::Unsupported);
        let window = |length: Duration| {
            let statistics = self.history.over(length, now)?;
            Some(Window {
                length: Some(duration(length)),
                mean: statistics.mean,
                p95: statistics.p95,
                max: statistics.max,
                samples: statistics.samples,
            })
        };
        Reading {
            metric: metric.into(),
            unit: metric.unit().into(),
            state: state.into(),
            value: last.map(|(_, value)| value),
            age: last.map(|(at, _)| duration(now.saturating_sub(at))),
            reason: self.reason.unwrap_or_default().into(),
            windows: LENGTHS.into_iter().filter_map(window).collect(),
        }
    }
}

fn attribution(holdings: &Holdings, now: Duration) -> contract::Attribution {
    let (state, since) = match holdings.knowledge(now) {
        Knowledge::NotAsked => (State::Unsupported, None),
        Knowledge::Fresh { since } => (State::Fresh, Some(since)),
        Knowledge::Stale { since } => (State::Stale, Some(since)),
        Knowledge::Missing => (State::Missing, None),
    };
    let age = since.map(|since| duration(now.saturating_sub(since)));
    contract::Attribution { state: state.into(), age }
}

fn shown_fault(fault: &Fault, since: SystemTime) -> contract::Fault {
    contract::Fault { reason: fault.reason.into(), message: fault.message.clone(), since: Some(since.into()) }
}

/// Times of the agent are far below what the contract can say.
fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap_or_default()
}

#[cfg(test)]
mod tests;
