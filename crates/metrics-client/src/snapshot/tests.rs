//! What is kept of a message, and what is refused.

use super::*;

/// What is kept of what an agent sends.
fn decode(message: contract::Snapshot, metrics: &[Metric]) -> Result<Snapshot, Malformed> {
    super::decode(message, metrics, &Limits::default())
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn message() -> contract::Snapshot {
    contract::Snapshot {
        source: Some(contract::Source {
            instance: "i".into(),
            node: "gpu-1".into(),
            ..contract::Source::default()
        }),
        sequence: 1,
        sampled_at: Some(prost_types::Timestamp { seconds: 1_000, nanos: 0 }),
        uptime: seconds(10),
        interval: seconds(1),
        ..contract::Snapshot::default()
    }
}

fn reading(metric: Metric, state: State, value: Option<f64>) -> contract::Reading {
    contract::Reading {
        metric: metric.into(),
        state: state.into(),
        value,
        age: seconds(0),
        ..contract::Reading::default()
    }
}

fn with(readings: Vec<contract::Reading>) -> contract::Snapshot {
    let subject = contract::Subject { id: "GPU-a".into(), readings, ..contract::Subject::default() };
    contract::Snapshot { subjects: vec![subject], ..message() }
}

#[test]
fn a_message_that_lacks_what_the_contract_promises_is_refused() {
    let refused = |change: fn(&mut contract::Snapshot)| {
        let mut message = message();
        change(&mut message);
        decode(message, &[]).unwrap_err()
    };
    assert_eq!(refused(|it| it.source = None), Malformed::NoInstance);
    assert_eq!(refused(|it| it.sequence = 0), Malformed::NoSequence);
    assert_eq!(refused(|it| it.uptime = None), Malformed::NoUptime);
    assert_eq!(refused(|it| it.uptime = seconds(-1)), Malformed::NoUptime);
    assert_eq!(refused(|it| it.interval = seconds(0)), Malformed::NoInterval);
    assert!(decode(message(), &[]).is_ok());
}

#[test]
fn an_interval_is_at_most_an_hour() {
    let longest = contract::Snapshot { interval: seconds(i64::MAX), ..message() };
    assert_eq!(decode(longest, &[]).unwrap().interval, LONGEST_INTERVAL);
}

#[test]
fn zero_is_a_value_and_absent_is_none() {
    let kept = decode(
        with(vec![
            reading(Metric::Utilization, State::Fresh, Some(0.0)),
            reading(Metric::MemoryUsed, State::Fresh, None),
            reading(Metric::MemoryTotal, State::Fresh, Some(f64::NAN)),
            reading(Metric::EngineActive, State::Unsupported, None),
            reading(Metric::Power, State::Unspecified, Some(1.0)),
        ]),
        &[Metric::Utilization, Metric::MemoryUsed, Metric::MemoryTotal, Metric::EngineActive, Metric::Power],
    );
    let subject = kept.unwrap().subjects.remove(0);
    let of = |metric| subject.reading(metric).map(|reading| (reading.state, reading.value)).unwrap();
    assert_eq!(of(Metric::Utilization), (State::Fresh, Some(0.0)));
    assert_eq!(of(Metric::MemoryUsed), (State::Missing, None));
    assert_eq!(of(Metric::MemoryTotal), (State::Missing, None));
    assert_eq!(of(Metric::EngineActive), (State::Unsupported, None));
    assert_eq!(of(Metric::Power), (State::Stale, Some(1.0)));
}

#[test]
fn only_the_wanted_metrics_are_kept_and_each_once() {
    let utilization = reading(Metric::Utilization, State::Fresh, Some(0.5));
    let mut readings = vec![utilization; 1_000];
    readings.insert(0, reading(Metric::Power, State::Fresh, Some(1.0)));
    let kept = decode(with(readings), &[Metric::Utilization]).unwrap();
    assert_eq!(kept.subjects[0].readings.len(), 1);
    assert_eq!(kept.subjects[0].readings[0].metric, Metric::Utilization);
}

#[test]
fn lists_end_at_a_limit_and_the_snapshot_says_so() {
    let mut large = message();
    large.subjects = vec![contract::Subject::default(); Limits::default().subjects + 1];
    let kept = decode(large, &[]).unwrap();
    assert!(kept.is_cut);
    assert_eq!(kept.subjects.len(), Limits::default().subjects);
    let mut large = message();
    large.events =
        (1..=100).map(|sequence| contract::Event { sequence, ..contract::Event::default() }).collect();
    let kept = decode(large, &[]).unwrap();
    assert_eq!(kept.events.first().map(|event| event.sequence), Some(37), "the newest stay");
    assert!(!decode(message(), &[]).unwrap().is_cut);
}

#[test]
fn texts_are_short_and_printable() {
    let mut message = message();
    let long = format!("\u{1b}[31m{}", "x".repeat(5_000));
    message.faults = vec![contract::Fault { message: long, ..contract::Fault::default() }];
    assert_eq!(&*decode(message, &[]).unwrap().faults[0].message, "x".repeat(LONGEST_MESSAGE));
}

#[test]
fn the_age_of_an_event_is_by_the_clock_of_its_source_alone() {
    let event = |at: i64| contract::Event {
        sequence: 1,
        at: Some(prost_types::Timestamp { seconds: at, nanos: 0 }),
        ..contract::Event::default()
    };
    let mut message = message();
    message.events = vec![event(940), event(1_060)];
    let events = decode(message, &[]).unwrap().events;
    assert_eq!(events[0].age, Duration::from_secs(60));
    assert_eq!(events[1].age, Duration::ZERO, "the clock was set back");
}

#[test]
fn without_attribution_holders_say_nothing() {
    assert_eq!(decode(message(), &[]).unwrap().attribution.state, State::Unsupported);
}

#[test]
fn what_a_user_does_not_want_is_not_kept() {
    let holder = contract::Holder { pod: Some(contract::PodRef::default()), ..contract::Holder::default() };
    let subject = contract::Subject { holders: vec![holder], ..contract::Subject::default() };
    let message = contract::Snapshot {
        subjects: vec![subject; 3],
        events: vec![contract::Event::default(); 3],
        ..message()
    };
    let limits = Limits { subjects: 2, holders: 0, events: 0, ..Limits::default() };
    let kept = super::decode(message, &[], &limits).unwrap();
    assert_eq!((kept.subjects.len(), kept.events.len(), kept.is_cut), (2, 0, true));
    assert!(kept.subjects.iter().all(|subject| subject.holders.is_empty()));
}
