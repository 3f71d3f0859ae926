//! One source as it stands at one moment: whether it lives, and how old what it said is. Pure.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    endpoint::{Endpoint, Origin},
    snapshot::{Event, FaultReason, Reading, Snapshot, State, Subject},
};

/// By the contract, a source is silent after so many of its intervals.
const SILENT_INTERVALS: u32 = 3;
/// A busy machine delays a process by this much.
const SHORTEST_SILENCE: Duration = Duration::from_secs(2);
/// Whatever interval a source claims.
const LONGEST_SILENCE: Duration = Duration::from_secs(300);

/// A source at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    pub endpoint: Endpoint,
    pub health: Health,
    /// `None`: it has never sent one.
    pub latest: Option<Latest>,
}

/// The last snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Latest {
    pub snapshot: Arc<Snapshot>,
    /// Since the snapshot was begun.
    pub age: Duration,
    /// The age from which on its values are stale.
    pub patience: Duration,
    /// Whether the source may speak for what it names.
    pub is_admitted: bool,
}

/// Whether a source delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The last snapshot is younger than three intervals.
    Live,
    /// No attempt has ended yet.
    Pending { lasting: Duration },
    /// There is a stream, and no snapshot on it.
    Silent { lasting: Duration },
    /// There is no stream.
    Unreachable { lasting: Duration, why: Arc<str> },
}

/// A reading at the moment of the view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Fresh {
        value: f64,
        age: Duration,
    },
    /// The last value that was read.
    Stale {
        value: f64,
        age: Duration,
        reason: FaultReason,
    },
    /// The subject does not have this metric.
    Unsupported,
    Missing {
        reason: FaultReason,
    },
}

/// Whether holders of subjects can be trusted at the moment of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribution {
    Fresh,
    /// Of so long ago. A container that has started or ended since is not in it.
    Stale {
        age: Duration,
    },
    /// The source does not know: its kubelet has not answered for long, or ever.
    Missing,
    /// The source does not ask its kubelet.
    Unsupported,
    /// The source says that it is another node, or another pod, than the one that it was found for.
    NotAdmitted,
}

/// What is known of one source besides its snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// When the source became known.
    pub(crate) since: Instant,
    /// When the last snapshot that was not a duplicate arrived.
    pub(crate) received: Option<Instant>,
    /// Why the last stream ended or could not be opened; `None` while there is one.
    pub(crate) failure: Option<Arc<str>>,
    /// How long it may be silent.
    pub(crate) patience: Duration,
}

/// How long a source with this interval may send nothing.
pub(crate) fn patience(interval: Duration, asked: Duration) -> Duration {
    let expected = interval.max(asked);
    expected.saturating_mul(SILENT_INTERVALS).clamp(SHORTEST_SILENCE, LONGEST_SILENCE)
}

pub(crate) fn health(link: &Link, now: Instant) -> Health {
    let Link { since, received, failure, patience } = link;
    let lasting = now.saturating_duration_since(received.unwrap_or(*since));
    match (received, failure) {
        (Some(_), _) if lasting <= *patience => Health::Live,
        (_, Some(why)) => Health::Unreachable { lasting, why: Arc::clone(why) },
        (Some(_), None) => Health::Silent { lasting },
        (None, None) => Health::Pending { lasting },
    }
}

impl View {
    /// The node that the source speaks for; empty if none is known.
    pub fn node(&self) -> &str {
        match &self.endpoint.origin {
            Origin::Node(node) => node,
            Origin::Pod { .. } | Origin::Stated => self.latest.as_ref().map_or("", |it| &it.snapshot.node),
        }
    }

    /// How a reading of the latest snapshot stands.
    pub fn value(&self, reading: &Reading) -> Value {
        let Some(latest) = &self.latest else { return Value::Missing { reason: FaultReason::Unspecified } };
        let age = latest.age.saturating_add(reading.age);
        match (reading.state, reading.value) {
            (State::Unsupported, _) => Value::Unsupported,
            (State::Missing, _) | (_, None) => Value::Missing { reason: reading.reason },
            (State::Fresh, Some(value)) if self.is_fresh() => Value::Fresh { value, age },
            (State::Fresh | State::Stale | State::Unspecified, Some(value)) => {
                Value::Stale { value, age, reason: reading.reason }
            }
        }
    }

    /// Whether holders can be trusted. Empty holders say something only if they can.
    pub fn attribution(&self) -> Attribution {
        let Some(latest) = &self.latest else { return Attribution::Missing };
        if !latest.is_admitted {
            return Attribution::NotAdmitted;
        }
        let attribution = latest.snapshot.attribution;
        let age = latest.age.saturating_add(attribution.age);
        match attribution.state {
            State::Fresh if self.is_fresh() && !latest.snapshot.is_cut => Attribution::Fresh,
            State::Fresh | State::Stale | State::Unspecified => Attribution::Stale { age },
            State::Missing => Attribution::Missing,
            State::Unsupported => Attribution::Unsupported,
        }
    }

    /// What a pod holds, by the latest snapshot. Read [`View::attribution`] first.
    pub fn held_by(&self, namespace: &str, name: &str) -> impl Iterator<Item = &Subject> {
        let subjects = self.latest.iter().flat_map(|latest| &latest.snapshot.subjects);
        subjects.filter(move |subject| subject.holders.iter().any(|holder| holder.is_pod(namespace, name)))
    }

    /// The events of the latest snapshot, oldest first, with how long ago each was.
    pub fn events(&self) -> impl Iterator<Item = (&Event, Duration)> {
        self.latest.iter().flat_map(|latest| {
            latest.snapshot.events.iter().map(|event| (event, latest.age.saturating_add(event.age)))
        })
    }

    /// Whether the latest snapshot is of now. One that was long under way is not, although its source lives.
    fn is_fresh(&self) -> bool {
        self.health == Health::Live && self.latest.as_ref().is_some_and(|it| it.age <= it.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{self, Metric};

    const SECOND: Duration = Duration::from_secs(1);

    fn link(received: Option<Instant>, failure: Option<&str>) -> Link {
        let failure = failure.map(Arc::from);
        Link { since: Instant::now(), received, failure, patience: patience(SECOND, Duration::ZERO) }
    }

    fn view(age: Duration, health: Health) -> View {
        let reading = |metric, state, value| Reading {
            metric,
            state,
            value,
            age: SECOND,
            reason: FaultReason::Timeout,
            windows: Vec::new(),
        };
        let subject = Subject {
            id: "GPU-a".into(),
            kind: snapshot::SubjectKind::Device,
            parent_id: "".into(),
            readings: vec![
                reading(Metric::Utilization, State::Fresh, Some(0.0)),
                reading(Metric::Power, State::Stale, Some(7.0)),
                reading(Metric::EngineActive, State::Unsupported, None),
                reading(Metric::MemoryUsed, State::Missing, None),
            ],
            holders: Vec::new(),
            fault: None,
        };
        let snapshot = Snapshot {
            instance: "i".into(),
            sequence: 1,
            uptime: SECOND,
            interval: SECOND,
            node: "gpu-1".into(),
            pod: None,
            subjects: vec![subject],
            events: Vec::new(),
            faults: Vec::new(),
            attribution: snapshot::Attribution { state: State::Fresh, age: SECOND },
            is_cut: false,
        };
        let endpoint = Endpoint { origin: Origin::Node("gpu-1".into()), address: "10.0.0.7:9401".into() };
        let latest = Latest { snapshot: Arc::new(snapshot), age, patience: SECOND * 3, is_admitted: true };
        View { endpoint, health, latest: Some(latest) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_lives_for_three_intervals_after_its_last_snapshot() {
        let received = Instant::now();
        let at = |seconds: u32, link: &Link| health(link, received + SECOND * seconds);
        let open = link(Some(received), None);
        assert_eq!(at(3, &open), Health::Live);
        assert_eq!(at(4, &open), Health::Silent { lasting: SECOND * 4 });
        let closed = link(Some(received), Some("refused"));
        assert_eq!(at(3, &closed), Health::Live, "a stream that is opened again loses nothing");
        assert_eq!(at(4, &closed), Health::Unreachable { lasting: SECOND * 4, why: "refused".into() });
        assert_eq!(at(4, &link(None, None)), Health::Pending { lasting: SECOND * 4 });
        assert!(matches!(at(0, &link(None, Some("refused"))), Health::Unreachable { .. }));
    }

    #[test]
    fn how_long_a_source_may_be_silent_is_bounded_whatever_it_claims() {
        assert_eq!(patience(SECOND, Duration::ZERO), SECOND * 3);
        assert_eq!(patience(SECOND, SECOND * 10), SECOND * 30);
        assert_eq!(patience(Duration::from_nanos(1), Duration::ZERO), SHORTEST_SILENCE);
        assert_eq!(patience(Duration::MAX, Duration::ZERO), LONGEST_SILENCE);
    }

    #[test]
    fn fresh_stale_unsupported_and_missing_are_told_apart_and_zero_is_fresh() {
        let values = |view: &View| -> Vec<Value> {
            let subject = &view.latest.as_ref().unwrap().snapshot.subjects[0];
            subject.readings.iter().map(|reading| view.value(reading)).collect()
        };
        let reason = FaultReason::Timeout;
        let stale = |value, age| Value::Stale { value, age, reason };
        assert_eq!(
            values(&view(SECOND, Health::Live)),
            [
                Value::Fresh { value: 0.0, age: SECOND * 2 },
                stale(7.0, SECOND * 2),
                Value::Unsupported,
                Value::Missing { reason },
            ]
        );
        // A source that lives and delivers late is as stale as one that is silent.
        for old in [view(SECOND * 4, Health::Live), view(SECOND, Health::Silent { lasting: SECOND * 4 })] {
            assert!(matches!(values(&old)[0], Value::Stale { value: 0.0, .. }), "{old:?}");
        }
    }

    #[test]
    fn attribution_that_is_not_trusted_is_visible() {
        let live = view(SECOND, Health::Live);
        assert_eq!(live.attribution(), Attribution::Fresh);
        let silent = view(SECOND * 9, Health::Silent { lasting: SECOND * 9 });
        assert_eq!(silent.attribution(), Attribution::Stale { age: SECOND * 10 });
        let mut liar = live.clone();
        liar.latest.as_mut().unwrap().is_admitted = false;
        assert_eq!(liar.attribution(), Attribution::NotAdmitted);
        let of_state = |state| {
            let mut view = live.clone();
            let latest = view.latest.as_mut().unwrap();
            let mut snapshot = Snapshot::clone(&latest.snapshot);
            snapshot.attribution.state = state;
            latest.snapshot = Arc::new(snapshot);
            view.attribution()
        };
        assert_eq!(of_state(State::Unsupported), Attribution::Unsupported);
        assert_eq!(of_state(State::Missing), Attribution::Missing);
        assert!(matches!(of_state(State::Unspecified), Attribution::Stale { .. }));
        assert_eq!(View { latest: None, ..live }.attribution(), Attribution::Missing);
    }

    #[test]
    fn a_source_that_was_found_for_another_node_is_not_admitted() {
        let Latest { snapshot, .. } = view(SECOND, Health::Live).latest.unwrap();
        let endpoint = |origin| Endpoint { origin, address: "".into() };
        assert!(endpoint(Origin::Node("gpu-1".into())).admits(&snapshot));
        assert!(!endpoint(Origin::Node("gpu-2".into())).admits(&snapshot));
        assert!(endpoint(Origin::Stated).admits(&snapshot));
    }
}
