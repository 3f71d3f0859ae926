//! Converts scrapes of the worker into snapshots of the metrics contract. Pure.

use std::time::Duration;

use metrics_source::moment::Moment;
use proto::metrics::v1::{
    Attribution, Fault as ContractFault, FaultReason, Metric, Reading, Snapshot, Source, State, Subject,
    SubjectKind,
};

use crate::{checkpoint::save::Saved, load::Load, worker::ScrapeError};

/// Between two scrapes.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// Marks the fault about damaged states of other workers. All other faults of the source are about saving.
pub(crate) const DAMAGE: FaultReason = FaultReason::BadInput;

/// A worker that ends right after its start never becomes ready. Afterwards the Deployment's `minReadySeconds` count.
const REPORTS_FOR: Duration = Duration::from_secs(5);
/// A worker that is busy may not answer for a while. One that has given no load for so long hangs, or serves something else.
const REPORTS_WITHIN: Duration = Duration::from_secs(120);

/// The results of the scrapes so far.
#[derive(Debug, Default)]
pub(crate) struct Known {
    sequence: u64,
    /// The last load that was read, and when.
    last: Option<(Load, Duration)>,
    /// Why there is none since then, and since when.
    fault: Option<(ScrapeError, Moment)>,
    /// Since when the worker has reported its load, without a refused connection in between.
    reports_since: Option<Duration>,
    /// When it has last reported its load.
    reported: Option<Duration>,
    /// A process has listened on the port of the worker.
    has_listened: bool,
    /// The worker has had a task.
    has_worked: bool,
}

impl Known {
    /// Takes in one scrape. Returns the fault if it is another one than before.
    pub(crate) fn take(&mut self, scraped: Result<Load, ScrapeError>, now: Moment) -> Option<&ScrapeError> {
        self.has_listened |= !matches!(scraped, Err(ScrapeError::Refused { .. }));
        match &scraped {
            Ok(load) if load.is_reported() => {
                self.reports_since.get_or_insert(now.uptime);
                self.reported = Some(now.uptime);
            }
            Err(ScrapeError::Refused { .. }) => self.reports_since = None,
            // A worker that is slow once may be busy, and a pod that is not ready is removed first.
            Ok(_)
            | Err(
                ScrapeError::Unreachable { .. }
                | ScrapeError::Slow { .. }
                | ScrapeError::Status { .. }
                | ScrapeError::TooLarge { .. }
                | ScrapeError::NoMetrics { .. },
            ) => {}
        }
        match scraped {
            Ok(load) => {
                self.has_worked |= [load.queued, load.in_flight].into_iter().flatten().any(|tasks| tasks > 0);
                self.last = Some((load, now.uptime));
                self.fault = None;
                None
            }
            Err(fault) => {
                let is_new = self.fault.as_ref().is_none_or(|(known, _)| *known != fault);
                let since = self.fault.take().map_or(now, |(_, since)| since);
                let (fault, _) = self.fault.insert((fault, since));
                is_new.then_some(fault)
            }
        }
    }

    /// Whether a scrape shows that the worker has ended. A worker that hangs or gives an invalid answer still runs.
    /// `false` also for a worker that has never listened, because its end cannot be detected.
    pub(crate) fn has_ended(&self, scraped: &Result<Load, ScrapeError>) -> bool {
        self.has_listened && matches!(scraped, Err(ScrapeError::Refused { .. }))
    }

    /// Whether the worker has reported a load lately, and has listened on its port for a while since the first one.
    pub(crate) fn is_ready(&self, now: Moment) -> bool {
        let ago = |at: Option<Duration>| at.map(|at| now.uptime.saturating_sub(at));
        ago(self.reports_since).is_some_and(|ago| ago >= REPORTS_FOR)
            && ago(self.reported).is_some_and(|ago| ago < REPORTS_WITHIN)
    }

    pub(crate) fn fault(&self) -> Option<&ScrapeError> {
        self.fault.as_ref().map(|(fault, _)| fault)
    }

    /// The load of the last scrape, if that gave one.
    pub(crate) fn fresh(&self) -> Option<&Load> {
        self.last.as_ref().filter(|_| self.fault.is_none()).map(|(load, _)| load)
    }

    /// `tokens`: the total of the ledger, once anything was counted. `saved`: whether the worker's state is saved.
    pub(crate) fn snapshot(
        &mut self,
        source: &Source,
        tokens: Option<u64>,
        saved: &Saved,
        now: Moment,
    ) -> Snapshot {
        self.sequence += 1;
        let pod = source.pod.clone().unwrap_or_default();
        Snapshot {
            source: Some(source.clone()),
            sequence: self.sequence,
            sampled_at: Some(now.clock.into()),
            uptime: duration(now.uptime),
            interval: duration(INTERVAL),
            subjects: vec![Subject {
                id: pod.name,
                kind: SubjectKind::Worker.into(),
                readings: self.readings(tokens, saved, now),
                fault: self.fault.as_ref().map(|(fault, since)| ContractFault {
                    reason: reason(fault).into(),
                    message: fault.to_string(),
                    since: Some(since.clock.into()),
                }),
                ..Subject::default()
            }],
            faults: faults(saved),
            // A worker reports its own load, so nothing is attributed by the kubelet.
            attribution: Some(Attribution { state: State::Unsupported.into(), age: None }),
            ..Snapshot::default()
        }
    }

    fn readings(&self, tokens: Option<u64>, saved: &Saved, now: Moment) -> Vec<Reading> {
        let last = self.last.as_ref().map(|(load, _)| load);
        let in_flight = last.and_then(|load| load.in_flight);
        let of_worker = [
            (Metric::QueueWaiting, last.and_then(|load| load.queued)),
            (Metric::QueueRunning, in_flight),
            (Metric::Busy, in_flight.map(|tasks| tasks.min(1))),
        ];
        let age = self.last.as_ref().map(|(_, at)| now.uptime.saturating_sub(*at));
        let state = if self.fault.is_some() { State::Stale } else { State::Fresh };
        let reason = self.fault().map_or(FaultReason::Unspecified, reason);
        let of_worker = of_worker.map(|(metric, value)| match value {
            Some(value) => Reading { age: age.and_then(duration), ..reading(metric, state, reason, value) },
            None => Reading { value: None, ..reading(metric, State::Missing, reason, 0) },
        });
        // A worker that has had a task may hold a state that it writes only when it ends.
        let is_unused = !self.has_worked && tokens.is_none_or(|used| used == 0);
        let tokens = match tokens {
            // The total of the ledger stays valid when the worker does not answer or has ended.
            Some(tokens) => Reading {
                age: duration(Duration::ZERO),
                ..reading(Metric::Tokens, State::Fresh, FaultReason::Unspecified, tokens)
            },
            None => Reading { value: None, ..reading(Metric::Tokens, State::Missing, reason, 0) },
        };
        let checkpoint = saved.last.and_then(|last| u64::try_from(last).ok());
        let checkpoint = checkpoint.map(|last| Reading {
            age: duration(Duration::ZERO),
            ..reading(Metric::CheckpointTime, State::Fresh, FaultReason::Unspecified, last)
        });
        let unclaimed = saved.unclaimed.filter(|_| is_unused).map(|states| Reading {
            age: duration(Duration::ZERO),
            ..reading(Metric::UnclaimedStates, State::Fresh, FaultReason::Unspecified, states)
        });
        // Workers may count them.
        let finished = last.and_then(|load| load.finished).map(|finished| Reading {
            age: age.and_then(duration),
            ..reading(Metric::TasksFinished, state, reason, finished)
        });
        let more = finished.into_iter().chain(checkpoint).chain(unclaimed);
        of_worker.into_iter().chain([tokens]).chain(more).collect()
    }
}

/// That of saving first.
fn faults(saved: &Saved) -> Vec<ContractFault> {
    [(FaultReason::Unreachable, &saved.error), (DAMAGE, &saved.damage)]
        .into_iter()
        .filter_map(|(reason, message)| {
            Some(ContractFault { reason: reason.into(), message: message.clone()?, since: None })
        })
        .collect()
}

fn reading(metric: Metric, state: State, reason: FaultReason, value: u64) -> Reading {
    Reading {
        metric: metric.into(),
        unit: metric.unit().into(),
        state: state.into(),
        reason: reason.into(),
        value: Some(value as f64),
        ..Reading::default()
    }
}

fn reason(fault: &ScrapeError) -> FaultReason {
    match fault {
        ScrapeError::Refused { .. } | ScrapeError::Unreachable { .. } => FaultReason::Unreachable,
        ScrapeError::Slow { .. } => FaultReason::Timeout,
        ScrapeError::Status { .. } | ScrapeError::TooLarge { .. } | ScrapeError::NoMetrics { .. } => {
            FaultReason::BadInput
        }
    }
}

/// `None` for more than 292 billion years.
fn duration(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proto::metrics::v1::PodRef;

    use super::*;
    use crate::ledger::Counted;

    fn at(seconds: u64) -> Moment {
        let uptime = Duration::from_secs(seconds);
        Moment { uptime, clock: SystemTime::UNIX_EPOCH + uptime }
    }

    fn source() -> Source {
        let pod = PodRef { namespace: "demo".into(), name: "coder-1".into(), uid: "u".into() };
        Source { pod: Some(pod), ..Source::default() }
    }

    fn load(queued: u64, in_flight: u64) -> Load {
        let tokens = Some(Counted { tokens: 7, started: None });
        Load { queued: Some(queued), in_flight: Some(in_flight), tokens, finished: None }
    }

    fn shown(snapshot: &Snapshot) -> Vec<(Metric, State, Option<f64>)> {
        let [subject] = snapshot.subjects.as_slice() else { panic!("{snapshot:?}") };
        subject.readings.iter().map(|reading| (reading.metric(), reading.state(), reading.value)).collect()
    }

    #[test]
    fn a_worker_that_answers_has_four_values() {
        let mut known = Known::default();
        assert_eq!(known.take(Ok(load(3, 2)), at(5)), None);
        let snapshot = known.snapshot(&source(), Some(9), &Saved::default(), at(5));
        assert_eq!(
            shown(&snapshot),
            [
                (Metric::QueueWaiting, State::Fresh, Some(3.0)),
                (Metric::QueueRunning, State::Fresh, Some(2.0)),
                (Metric::Busy, State::Fresh, Some(1.0)),
                (Metric::Tokens, State::Fresh, Some(9.0)),
            ]
        );
        assert_eq!((snapshot.sequence, snapshot.subjects[0].id.as_str()), (1, "coder-1"));
        assert_eq!(known.snapshot(&source(), Some(9), &Saved::default(), at(6)).sequence, 2);
    }

    #[test]
    fn tasks_that_have_ended_are_shown_if_the_worker_counts_them() {
        let mut known = Known::default();
        let shown_of = |known: &mut Known, seconds: u64| {
            let snapshot = known.snapshot(&source(), Some(9), &Saved::default(), at(seconds));
            shown(&snapshot).into_iter().find(|(metric, ..)| *metric == Metric::TasksFinished)
        };
        known.take(Ok(load(3, 2)), at(5));
        assert_eq!(shown_of(&mut known, 5), None);
        known.take(Ok(Load { finished: Some(4), ..load(3, 2) }), at(6));
        assert_eq!(shown_of(&mut known, 6), Some((Metric::TasksFinished, State::Fresh, Some(4.0))));
    }

    /// It may hold a state that it writes only when it ends.
    #[test]
    fn a_worker_that_has_had_a_task_reports_no_unclaimed_states() {
        let saved = Saved { unclaimed: Some(1), ..Saved::default() };
        let reports = |known: &mut Known, tokens: Option<u64>| {
            let snapshot = known.snapshot(&source(), tokens, &saved, at(5));
            shown(&snapshot).iter().any(|(metric, ..)| *metric == Metric::UnclaimedStates)
        };
        let mut known = Known::default();
        known.take(Ok(load(0, 0)), at(5));
        assert!(reports(&mut known, None) && reports(&mut known, Some(0)));
        assert!(!reports(&mut known, Some(7)));
        known.take(Ok(load(0, 1)), at(6));
        known.take(Ok(load(0, 0)), at(7));
        assert!(!reports(&mut known, None));
    }

    #[test]
    fn damaged_states_of_others_are_a_fault_of_their_own_after_that_of_saving() {
        let (error, damage) = (Some("away".to_owned()), Some("differs".to_owned()));
        let of = |saved: Saved| {
            let faults = Known::default().snapshot(&source(), None, &saved, at(1)).faults;
            faults.iter().map(|fault| (fault.reason(), fault.message.clone())).collect::<Vec<_>>()
        };
        let (away, differs) =
            ((FaultReason::Unreachable, "away".to_owned()), (FaultReason::BadInput, "differs".to_owned()));
        let both = Saved { error, damage: damage.clone(), ..Saved::default() };
        assert_eq!(of(both), [away, differs.clone()]);
        assert_eq!(of(Saved { damage, ..Saved::default() }), [differs]);
    }

    #[test]
    fn a_worker_that_never_answered_has_no_value_and_says_why() {
        let mut known = Known::default();
        let fault = ScrapeError::Slow { port: 9100 };
        assert_eq!(known.take(Err(fault.clone()), at(5)), Some(&fault));
        assert_eq!(known.take(Err(fault.clone()), at(6)), None, "it is reported once");
        let snapshot = known.snapshot(&source(), None, &Saved::default(), at(6));
        assert!(shown(&snapshot).iter().all(|(_, state, value)| (*state, *value) == (State::Missing, None)));
        let fault = snapshot.subjects[0].fault.as_ref().unwrap();
        assert_eq!((fault.reason(), fault.since.unwrap().seconds), (FaultReason::Timeout, 5));
        assert!(fault.message.contains("9100"));
    }

    #[test]
    fn the_values_of_a_worker_that_answers_no_more_are_stale_and_its_tokens_are_not() {
        let mut known = Known::default();
        known.take(Ok(load(3, 0)), at(5));
        known.take(Err(ScrapeError::Slow { port: 1 }), at(8));
        let snapshot = known.snapshot(&source(), Some(7), &Saved::default(), at(8));
        let first = &snapshot.subjects[0].readings[0];
        assert_eq!((first.state(), first.value, first.age.unwrap().seconds), (State::Stale, Some(3.0), 3));
        assert_eq!(shown(&snapshot)[3], (Metric::Tokens, State::Fresh, Some(7.0)));
        assert_eq!(known.fresh(), None);
        known.take(Ok(load(4, 0)), at(9));
        assert_eq!((known.fault(), known.fresh().unwrap().queued), (None, Some(4)));
    }

    #[test]
    fn a_worker_is_ready_once_it_has_reported_a_load_for_a_while() {
        let refused = || Err(ScrapeError::Refused { port: 1 });
        let mut known = Known::default();
        known.take(refused(), at(0));
        known.take(Ok(Load::default()), at(1));
        assert!(!known.is_ready(at(60)), "a page without the metrics of a worker is no load");
        known.take(Ok(load(0, 0)), at(61));
        assert!(!known.is_ready(at(64)));
        known.take(refused(), at(64));
        known.take(Ok(load(0, 0)), at(66));
        assert!(!known.is_ready(at(70)), "it has ended three seconds after its start");
        assert!(known.is_ready(at(71)));
        known.take(Err(ScrapeError::Slow { port: 1 }), at(72));
        assert!(known.is_ready(at(120)), "it may be busy");
        known.take(refused(), at(121));
        assert!(!known.is_ready(at(121)));
    }

    #[test]
    fn a_worker_that_has_reported_no_load_for_two_minutes_is_not_ready() {
        for hanging in [
            Err(ScrapeError::Slow { port: 1 }),
            Err(ScrapeError::Status { port: 1, status: 500 }),
            Err(ScrapeError::NoMetrics { port: 1 }),
            Ok(Load::default()),
        ] {
            let mut known = Known::default();
            known.take(Ok(load(0, 1)), at(0));
            for second in 1..=119 {
                known.take(hanging.clone(), at(second));
            }
            assert!(known.is_ready(at(119)), "{hanging:?}");
            assert!(!known.is_ready(at(120)), "{hanging:?}");
            known.take(Ok(load(0, 1)), at(121));
            assert!(known.is_ready(at(121)), "{hanging:?}");
        }
    }

    #[test]
    fn a_worker_has_ended_if_its_port_refuses_and_did_not_before() {
        let refused = || Err(ScrapeError::Refused { port: 1 });
        let mut known = Known::default();
        assert!(!known.has_ended(&refused()));
        known.take(refused(), at(1));
        assert!(!known.has_ended(&refused()), "it may never listen");
        known.take(Err(ScrapeError::Status { port: 1, status: 500 }), at(2));
        assert!(known.has_ended(&refused()));
        let why = String::new();
        for other in [
            Ok(load(1, 1)),
            Err(ScrapeError::Slow { port: 1 }),
            Err(ScrapeError::Unreachable { port: 1, why }),
        ] {
            assert!(!known.has_ended(&other), "{other:?}");
        }
    }
}
