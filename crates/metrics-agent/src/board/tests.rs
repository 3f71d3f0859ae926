//! Tests of what a snapshot says of answers, faults and events.

use std::time::UNIX_EPOCH;

use super::*;

fn at(seconds: u64) -> Moment {
    let uptime = Duration::from_secs(seconds);
    Moment { uptime, clock: UNIX_EPOCH + uptime }
}

fn identity(id: &str, kind: SubjectKind) -> Identity {
    Identity {
        id: id.to_owned(),
        kind,
        parent_id: String::new(),
        vendor: String::new(),
        model: String::new(),
        index: 0,
        minor: None,
        instance: None,
        profile: String::new(),
    }
}

fn sample(id: &str, kind: SubjectKind, readings: &[(Metric, Outcome)]) -> Sample {
    Sample {
        identity: Arc::new(identity(id, kind)),
        readings: readings.to_vec(),
        throttle_reasons: Vec::new(),
        processes: Vec::new(),
    }
}

fn device(readings: &[(Metric, Outcome)]) -> Result<Vec<Sample>, Fault> {
    Ok(vec![sample("gpu", SubjectKind::Device, readings)])
}

fn board() -> Board {
    let mut board = Board::new(contract::Source::default(), Duration::from_secs(1));
    board.opened(String::new(), vec![identity("gpu", SubjectKind::Device)]);
    board
}

/// State, value and age in seconds.
fn shown(board: &mut Board, metric: Metric, now: Moment) -> (State, Option<f64>, Option<i64>) {
    let snapshot = board.snapshot(&Holdings::default(), now);
    let mut readings = snapshot.subjects[0].readings.iter();
    let reading = readings.find(|reading| reading.metric() == metric).unwrap();
    (reading.state(), reading.value, reading.age.map(|age| age.seconds))
}

#[test]
fn fresh_stale_missing_unsupported_and_zero_are_five_different_things() {
    let unheld = Holdings::default();
    let mut board = board();
    board.answered(
        0,
        device(&[
            (Metric::Utilization, Outcome::Value(0.0)),
            (Metric::Power, Outcome::Unsupported),
            (Metric::Energy, Outcome::Failed(FaultReason::DriverError)),
        ]),
        &unheld,
        at(1),
    );
    assert_eq!(shown(&mut board, Metric::Utilization, at(1)), (State::Fresh, Some(0.0), Some(0)));
    assert_eq!(shown(&mut board, Metric::Power, at(1)), (State::Unsupported, None, None));
    assert_eq!(shown(&mut board, Metric::Energy, at(1)), (State::Missing, None, None));
    board.answered(0, Err(Fault::new(FaultReason::Timeout, "late")), &unheld, at(4));
    assert_eq!(shown(&mut board, Metric::Utilization, at(4)), (State::Stale, Some(0.0), Some(3)));
    assert_eq!(shown(&mut board, Metric::Power, at(4)), (State::Unsupported, None, None));
    assert_eq!(shown(&mut board, Metric::Energy, at(4)), (State::Missing, None, None));
}

#[test]
fn only_the_first_of_equal_faults_is_worth_a_line_and_one_loss_is_one_event() {
    let unheld = Holdings::default();
    let mut board = board();
    let fault = |reason| Err(Fault::new(reason, "x"));
    let mut changes = Vec::new();
    for (second, answer) in [
        fault(FaultReason::Timeout),
        fault(FaultReason::Timeout),
        fault(FaultReason::DeviceLost),
        device(&[]),
        device(&[]),
    ]
    .into_iter()
    .enumerate()
    {
        changes.push(board.answered(0, answer, &unheld, at(second as u64)).is_some());
    }
    assert_eq!(changes, [true, false, true, true, false]);
    let events = board.snapshot(&unheld, at(9)).events;
    let kinds: Vec<(u64, EventKind)> = events.iter().map(|event| (event.sequence, event.kind())).collect();
    assert_eq!(kinds, [(1, EventKind::DeviceLost), (2, EventKind::DeviceBack)]);
}

#[test]
fn a_fault_keeps_the_time_when_it_began() {
    let unheld = Holdings::default();
    let mut board = board();
    for second in [3, 5, 8] {
        board.answered(0, Err(Fault::new(FaultReason::Timeout, "late")), &unheld, at(second));
        board.part(Part::Pods, Some(Fault::new(FaultReason::NoKubelet, "gone")), at(second));
    }
    let snapshot = board.snapshot(&unheld, at(9));
    let since = |fault: &contract::Fault| fault.since.unwrap().seconds;
    assert_eq!((since(snapshot.subjects[0].fault.as_ref().unwrap()), since(&snapshot.faults[0])), (3, 3));
    assert_eq!(board.part(Part::Pods, None, at(10)), Some(Change::Mended { part: Part::Pods }));
    assert!(board.snapshot(&unheld, at(10)).faults.is_empty());
}

#[test]
fn events_are_in_many_snapshots_and_then_forgotten_and_their_numbers_go_on() {
    let unheld = Holdings::default();
    let mut board = board();
    let xid = || Happening {
        device: "gpu".to_owned(),
        kind: EventKind::DeviceError,
        code: Some(79),
        is_fatal: true,
    };
    for _ in 0..EVENTS_KEPT + 6 {
        board.happened(xid(), &unheld, at(1));
    }
    let events = board.snapshot(&unheld, at(2)).events;
    assert_eq!((events.len(), events[0].sequence, events[63].sequence), (EVENTS_KEPT, 7, 70));
    assert_eq!(board.snapshot(&unheld, at(601)).events.len(), EVENTS_KEPT);
    assert!(board.snapshot(&unheld, at(602)).events.is_empty());
    board.happened(xid(), &unheld, at(700));
    assert_eq!(board.snapshot(&unheld, at(700)).events[0].sequence, 71);
}

#[test]
fn a_partition_that_is_replaced_takes_its_past_with_it() {
    let unheld = Holdings::default();
    let mut board = board();
    let with = |id: &str| {
        let value = [(Metric::MemoryUsed, Outcome::Value(1.0))];
        Ok(vec![sample("gpu", SubjectKind::Device, &[]), sample(id, SubjectKind::Partition, &value)])
    };
    let windows = |board: &mut Board, now| {
        let snapshot = board.snapshot(&Holdings::default(), now);
        let partition = &snapshot.subjects[1];
        (partition.id.clone(), partition.readings[0].windows[0].samples)
    };
    board.answered(0, with("MIG-a"), &unheld, at(1));
    board.answered(0, with("MIG-a"), &unheld, at(2));
    assert_eq!(windows(&mut board, at(2)), ("MIG-a".to_owned(), 2));
    board.answered(0, with("MIG-b"), &unheld, at(3));
    assert_eq!(windows(&mut board, at(3)), ("MIG-b".to_owned(), 1));
}
