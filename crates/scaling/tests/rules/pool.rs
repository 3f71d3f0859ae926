//! A pool of workers on the scripted load of `trace`.

use jiff::Timestamp;
use scaling::{
    behavior::Behavior,
    decide::decide,
    flow::{Meter, Totals},
    history::History,
    policy::{Arithmetic, Arrivals, Backlog, Bounds, Extras, Kind, Metric, Policy, TargetValue},
    reading::{Milli, Reading},
    target::{Pod, PodState, Target, Work},
};

use crate::{
    generated::at,
    trace::{self, Run, Step, Worker},
};

const COLD_START: i64 = 30;

fn run(policy: &Policy, cold_start: i64) -> Run {
    let (mut history, mut meter) = (History::default(), Meter::default());
    trace::run(cold_start, |Step { now, workers, busy, waiting, finished }| {
        let ready = workers.iter().filter(|worker| worker.created + cold_start <= *now).count();
        let totals = Totals {
            arrived: (finished + waiting) as f64,
            finished: *finished as f64,
            waiting: *waiting as f64,
            running: *busy as f64,
            replicas: u32::try_from(ready).unwrap(),
            full: (*waiting > 0).then_some(1.0),
            tokens: 0.0,
        };
        let now = at(*now);
        meter.observe(totals, now);
        let flows = vec![meter.flow(policy.behavior.down.window); policy.metrics.len()];
        let target = Target { flows, ..target(workers, *busy, cold_start, now) };
        let reading = Reading::Total { value: Milli::units(*waiting), at: now };
        let decision = decide(policy, &target, &vec![reading; policy.metrics.len()], &history, now);
        let to = decision.record.to;
        history = decision.written(policy);
        to
    })
}

fn target(workers: &[Worker], busy: usize, cold_start: i64, now: Timestamp) -> Target {
    let pod = |(worker, index): (&Worker, usize)| {
        let ready = at(worker.created + cold_start);
        Pod {
            uid: worker.uid.to_string(),
            created: at(worker.created),
            began: Some(at(worker.created)),
            ordinal: None,
            state: if ready <= now {
                PodState::Ready { since: ready }
            } else {
                PodState::Starting { since: at(worker.created) }
            },
            work: if index < busy { Work::Busy } else { Work::Idle },
        }
    };
    let replicas = i32::try_from(workers.len()).unwrap();
    Target {
        replicas,
        status_replicas: replicas,
        pods: workers.iter().zip(0..).map(pod).collect(),
        cold_start: None,
        flows: Vec::new(),
    }
}

fn policy(kind: Kind, behavior: Behavior, extras: Extras) -> Policy {
    Policy {
        bounds: Bounds::new(1, 100).unwrap(),
        metrics: vec![Metric::new("tasks", kind, TargetValue::units(5).unwrap())],
        behavior,
        fallback: None,
        extras,
    }
}

/// Of workers that do not count the tasks that have ended.
fn by_queue() -> Extras {
    Extras { arrivals: Arrivals::Ignored, ..Extras::all() }
}

#[test]
fn counting_busy_workers_changes_the_direction_at_most_twice_in_40_minutes() {
    let run = run(&policy(Kind::TasksAndBusyWorkers, Behavior::default(), by_queue()), COLD_START);
    assert!(run.turns <= 2, "{run:?}");
    assert!(run.peak >= 12 && run.peak <= 40, "{run:?}");
    assert!(run.waiting < 5, "{run:?}");
}

/// `ceil(tasks / 5)`, and nothing else.
fn literal() -> Extras {
    Extras { arithmetic: Arithmetic::ByKind, ..Extras::none() }
}

#[test]
fn the_queue_alone_changes_the_direction_at_least_twenty_times() {
    let run = run(&policy(Kind::TasksOnly, Behavior::immediate(), literal()), COLD_START);
    assert!(run.turns >= 20, "{run:?}");
}

#[test]
fn counting_busy_workers_needs_fewer_replica_minutes_than_the_queue_alone_with_the_same_windows() {
    let busy = run(&policy(Kind::TasksAndBusyWorkers, Behavior::default(), by_queue()), COLD_START);
    let queue = run(&policy(Kind::TasksOnly, Behavior::default(), literal()), COLD_START);
    assert!(busy.replica_minutes < queue.replica_minutes, "{busy:?} {queue:?}");
}

#[test]
fn the_limit_of_a_backlog_saves_replicas_during_long_cold_starts() {
    let run_with = |backlog| {
        let extras = Extras { backlog, ..by_queue() };
        run(&policy(Kind::TasksAndBusyWorkers, Behavior::default(), extras), 180)
    };
    let (limited, unlimited) = (run_with(Backlog::DoublingPerColdStart), run_with(Backlog::Unlimited));
    assert!(limited.replica_minutes * 4 < unlimited.replica_minutes * 3, "{limited:?} {unlimited:?}");
    assert_eq!((limited.waiting, unlimited.waiting), (0, 0));
}

#[test]
fn what_arrives_lets_tasks_wait_less_with_no_more_replica_minutes() {
    for cold_start in [30, 60, 120, 180, 420] {
        let of = |extras| run(&policy(Kind::TasksAndBusyWorkers, Behavior::default(), extras), cold_start);
        let by_arrivals = of(Extras::all());
        let by_queue = of(by_queue());
        assert!(by_arrivals.turns <= 2, "{cold_start}: {by_arrivals:?}");
        assert!(by_arrivals.waited * 2 < by_queue.waited, "{cold_start}: {by_arrivals:?} {by_queue:?}");
        let (minutes, by_queue) = (by_arrivals.replica_minutes, by_queue.replica_minutes);
        assert!(minutes <= by_queue, "{cold_start}: {minutes} {by_queue}");
    }
}
