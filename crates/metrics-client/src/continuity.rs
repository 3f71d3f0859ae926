//! The order of the snapshots of one source, and how long they were under way. Pure.
//!
//! How long a snapshot was under way cannot be read off two clocks of which one may be wrong by a minute. It follows from
//! the uptime of the source: receipt minus uptime is the same for all snapshots of an instance that arrive at once, and
//! larger by the delay for one that waited, in a buffer or behind a process that was held up.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::snapshot::Snapshot;

/// Two clocks that count seconds of different lengths drift apart, by some 10 ms in this time.
const DRIFT_IS_SMALL_WITHIN: Duration = Duration::from_secs(300);

/// What has been seen of one source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Continuity {
    last: Option<Last>,
    transit: Option<Transit>,
}

#[derive(Clone, Debug)]
struct Last {
    instance: Arc<str>,
    sequence: u64,
    uptime: Duration,
    /// The newest event that was reported.
    event: u64,
}

/// How a snapshot follows the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    First,
    Next,
    /// So many snapshots in between did not arrive.
    Gap {
        lost: u64,
    },
    /// The source has started anew.
    Restart,
    /// It was seen before.
    Duplicate,
}

impl Continuity {
    /// Of a source that was known under another endpoint, up to this event of this instance.
    pub(crate) fn resumed(instance: Arc<str>, event: u64) -> Self {
        let last = Last { instance, sequence: 0, uptime: Duration::ZERO, event };
        Self { last: Some(last), transit: None }
    }

    /// Instance, and the newest event that was reported.
    pub(crate) fn events_reported(&self) -> Option<(Arc<str>, u64)> {
        self.last.as_ref().map(|last| (Arc::clone(&last.instance), last.event))
    }

    /// `asked`: the least time between two snapshots that was asked for. What the source leaves out for it is not lost.
    pub(crate) fn follow(&mut self, snapshot: &Snapshot, asked: Duration) -> Step {
        let step = match &self.last {
            None => Step::First,
            Some(last) if last.instance != snapshot.instance => Step::Restart,
            Some(last) if last.sequence == 0 => Step::First,
            Some(last) if snapshot.sequence <= last.sequence => Step::Duplicate,
            Some(last) => {
                let lost = snapshot.sequence - last.sequence - 1;
                let took = snapshot.uptime.saturating_sub(last.uptime);
                let expected = asked.saturating_add(snapshot.interval.saturating_mul(2));
                let is_as_asked = !asked.is_zero() && took <= expected;
                if lost == 0 || is_as_asked { Step::Next } else { Step::Gap { lost } }
            }
        };
        if step != Step::Duplicate {
            let known = self.last.as_ref().filter(|last| last.instance == snapshot.instance);
            self.last = Some(Last {
                instance: Arc::clone(&snapshot.instance),
                sequence: snapshot.sequence,
                uptime: snapshot.uptime,
                event: known.map_or(0, |last| last.event),
            });
        }
        if step == Step::Restart {
            self.transit = None;
        }
        step
    }

    /// Where the events begin that have not been reported yet. From now on they have.
    pub(crate) fn report_events(&mut self, snapshot: &Snapshot) -> usize {
        let Some(last) = &mut self.last else { return snapshot.events.len() };
        let reported = last.event;
        last.event = snapshot.events.iter().map(|event| event.sequence).fold(reported, u64::max);
        snapshot.events.partition_point(|event| event.sequence <= reported)
    }

    /// When a snapshot that was received at this time was begun, by the local clock: never later than its receipt.
    pub(crate) fn begun(&mut self, uptime: Duration, received: Instant, epoch: Instant) -> Instant {
        let transit = self.transit.get_or_insert_with(|| Transit::new(received));
        received.checked_sub(transit.delay(uptime, received, epoch)).unwrap_or(epoch)
    }
}

/// The smallest difference of receipt and uptime of the last minutes, in nanoseconds.
#[derive(Clone, Debug)]
struct Transit {
    /// Of a whole period before `since`, and since then.
    before: Option<i128>,
    current: Option<i128>,
    since: Instant,
}

impl Transit {
    fn new(now: Instant) -> Self {
        Self { before: None, current: None, since: now }
    }

    fn delay(&mut self, uptime: Duration, received: Instant, epoch: Instant) -> Duration {
        if received.saturating_duration_since(self.since) >= DRIFT_IS_SMALL_WITHIN {
            self.before = self.current.take();
            self.since = received;
        }
        let nanos = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
        let offset = nanos(received.saturating_duration_since(epoch)) - nanos(uptime);
        let current = self.current.map_or(offset, |least| least.min(offset));
        self.current = Some(current);
        let least = self.before.map_or(current, |before| before.min(current));
        Duration::from_nanos(u64::try_from(offset - least).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Attribution, Event, EventKind, State};

    const SECOND: Duration = Duration::from_secs(1);

    fn snapshot(instance: &str, sequence: u64, uptime: u64) -> Snapshot {
        Snapshot {
            instance: instance.into(),
            sequence,
            uptime: Duration::from_secs(uptime),
            interval: SECOND,
            node: "".into(),
            pod: None,
            subjects: Vec::new(),
            events: Vec::new(),
            faults: Vec::new(),
            attribution: Attribution { state: State::Fresh, age: Duration::ZERO },
            is_cut: false,
        }
    }

    fn with_events(sequence: u64, events: std::ops::RangeInclusive<u64>) -> Snapshot {
        let event = |sequence| Event {
            sequence,
            age: Duration::ZERO,
            at: None,
            kind: EventKind::DeviceError,
            subject_id: "".into(),
            code: None,
            holders: Vec::new(),
            is_fatal: true,
        };
        Snapshot { events: events.map(event).collect(), ..snapshot("a", sequence, sequence) }
    }

    #[test]
    fn a_gap_a_duplicate_and_a_restart_are_told_apart() {
        let mut seen = Continuity::default();
        let mut follow =
            |instance, sequence| seen.follow(&snapshot(instance, sequence, sequence), Duration::ZERO);
        assert_eq!(follow("a", 5), Step::First);
        assert_eq!(follow("a", 6), Step::Next);
        assert_eq!(follow("a", 9), Step::Gap { lost: 2 });
        assert_eq!(follow("a", 9), Step::Duplicate);
        assert_eq!(follow("a", 7), Step::Duplicate);
        assert_eq!(follow("a", 10), Step::Next);
        assert_eq!(follow("b", 1), Step::Restart);
        assert_eq!(follow("b", 2), Step::Next);
    }

    #[test]
    fn what_was_asked_to_be_left_out_is_not_lost() {
        let mut seen = Continuity::default();
        let mut follow = |sequence| seen.follow(&snapshot("a", sequence, sequence), SECOND * 5);
        assert_eq!(follow(1), Step::First);
        assert_eq!(follow(6), Step::Next);
        assert_eq!(follow(20), Step::Gap { lost: 13 });
    }

    #[test]
    fn the_longest_interval_is_no_failure() {
        let mut seen = Continuity::default();
        let snapshot = |sequence| Snapshot { interval: Duration::MAX, ..snapshot("a", sequence, sequence) };
        assert_eq!(seen.follow(&snapshot(1), SECOND), Step::First);
        assert_eq!(seen.follow(&snapshot(5), SECOND), Step::Next);
    }

    #[test]
    fn an_event_is_reported_once_also_if_the_endpoint_is_another_one() {
        let mut seen = Continuity::default();
        let mut report = |snapshot: Snapshot| {
            seen.follow(&snapshot, Duration::ZERO);
            snapshot.events.len() - seen.report_events(&snapshot)
        };
        assert_eq!(report(with_events(1, 1..=2)), 2);
        assert_eq!(report(with_events(2, 1..=2)), 0);
        assert_eq!(report(with_events(5, 2..=4)), 2);
        let (instance, event) = seen.events_reported().unwrap();
        let mut resumed = Continuity::resumed(instance, event);
        let next = with_events(6, 3..=5);
        assert_eq!(resumed.follow(&next, Duration::ZERO), Step::First);
        assert_eq!(next.events.len() - resumed.report_events(&next), 1);
        // Another instance counts from 1 again.
        let other = Snapshot { instance: "b".into(), ..with_events(1, 1..=1) };
        assert_eq!(resumed.follow(&other, Duration::ZERO), Step::Restart);
        assert_eq!(resumed.report_events(&other), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_that_waited_is_as_old_as_it_is() {
        let epoch = Instant::now();
        let mut seen = Continuity::default();
        // The source has been up for 1000 s, whatever its clock says.
        let mut age = |uptime: u64, received: u64| {
            let received = epoch + SECOND * u32::try_from(received).unwrap();
            received - seen.begun(Duration::from_secs(uptime), received, epoch)
        };
        assert_eq!(age(1_000, 10), Duration::ZERO);
        assert_eq!(age(1_001, 11), Duration::ZERO);
        // Eight snapshots arrive together after a stall.
        assert_eq!(age(1_002, 20), SECOND * 8);
        assert_eq!(age(1_010, 20), Duration::ZERO);
        assert_eq!(age(1_015, 25), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn clocks_of_different_speed_do_not_make_a_source_old() {
        let epoch = Instant::now();
        let mut seen = Continuity::default();
        let mut worst = Duration::ZERO;
        for minute in 0..10_000_u32 {
            let received = epoch + SECOND * 60 * minute;
            // Slower by 100 ppm.
            let uptime = (SECOND * 60 * minute).mul_f64(0.9999);
            worst = worst.max(received - seen.begun(uptime, received, epoch));
        }
        assert!(worst < Duration::from_millis(200), "{worst:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_begins_a_new_measure_of_the_way() {
        let epoch = Instant::now();
        let mut seen = Continuity::default();
        seen.follow(&snapshot("a", 1, 1_000), Duration::ZERO);
        seen.begun(SECOND * 1_000, epoch + SECOND, epoch);
        seen.follow(&snapshot("b", 1, 1), Duration::ZERO);
        let received = epoch + SECOND * 5;
        assert_eq!(seen.begun(SECOND, received, epoch), received);
    }
}
