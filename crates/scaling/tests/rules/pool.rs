//! A pool of workers on a scripted load: 2, then 12, then 2 tasks per second over 40 minutes. A worker needs a second
//! per task and 30 s to start.

use jiff::Timestamp;
use scaling::{
    behavior::Behavior,
    decide::{PERIOD, decide},
    history::History,
    policy::{Arithmetic, Backlog, Bounds, Extras, Kind, Metric, Policy, TargetValue},
    reading::{Milli, Reading},
    target::{Pod, PodState, Target, Work},
};

use crate::generated::at;

const COLD_START: i64 = 30;
const END: i64 = 40 * 60;

struct Worker {
    uid: u32,
    created: i64,
}

/// What a run looked like.
#[derive(Debug)]
struct Run {
    turns: usize,
    peak: i32,
    replica_minutes: i64,
    /// Tasks waiting at the end.
    waiting: i64,
}

fn arrivals(second: i64) -> i64 {
    if (600..1800).contains(&second) { 12 } else { 2 }
}

fn run(policy: &Policy, cold_start: i64) -> Run {
    let mut workers: Vec<Worker> = (0..3).map(|uid| Worker { uid, created: -600 }).collect();
    let (mut next_uid, mut waiting) = (3, 0_i64);
    let mut history = History::default();
    let mut changes: Vec<i32> = Vec::new();
    let (mut peak, mut replica_seconds) = (0, 0);
    for now in 0..END {
        let is_ready = |worker: &Worker| now - worker.created >= cold_start;
        workers.sort_by_key(|worker| worker.created);
        let ready = workers.iter().filter(|worker| is_ready(worker)).count();
        waiting += arrivals(now);
        let busy = waiting.min(i64::try_from(ready).unwrap());
        waiting -= busy;
        replica_seconds += i64::try_from(workers.len()).unwrap();
        if now % i64::try_from(PERIOD.as_secs()).unwrap() != 0 {
            continue;
        }
        let busy = usize::try_from(busy).unwrap();
        let target = target(&workers, busy, cold_start, at(now));
        let readings =
            vec![Reading::Total { value: Milli::units(waiting), at: at(now) }; policy.metrics.len()];
        let decision = decide(policy, &target, &readings, &history, at(now));
        let (from, to) = (decision.record.from, decision.record.to);
        history = decision.written(policy);
        if to != from {
            changes.push(to - from);
        }
        // New and idle ones go first.
        workers.truncate(usize::try_from(to).unwrap());
        while workers.len() < usize::try_from(to).unwrap() {
            workers.push(Worker { uid: next_uid, created: now });
            next_uid += 1;
        }
        peak = peak.max(to);
    }
    let turns = changes.windows(2).filter(|pair| pair[0].signum() != pair[1].signum()).count();
    Run { turns, peak, replica_minutes: replica_seconds / 60, waiting }
}

/// The oldest workers are the busy ones.
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

#[test]
fn counting_busy_workers_changes_the_direction_at_most_twice_in_40_minutes() {
    let run = run(&policy(Kind::TasksAndBusyWorkers, Behavior::default(), Extras::all()), COLD_START);
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
    let busy = run(&policy(Kind::TasksAndBusyWorkers, Behavior::default(), Extras::all()), COLD_START);
    let queue = run(&policy(Kind::TasksOnly, Behavior::default(), literal()), COLD_START);
    assert!(busy.replica_minutes < queue.replica_minutes, "{busy:?} {queue:?}");
}

#[test]
fn the_limit_of_a_backlog_saves_replicas_during_long_cold_starts() {
    let run_with = |backlog| {
        let extras = Extras { backlog, ..Extras::all() };
        run(&policy(Kind::TasksAndBusyWorkers, Behavior::default(), extras), 180)
    };
    let (limited, unlimited) = (run_with(Backlog::DoublingPerColdStart), run_with(Backlog::Unlimited));
    assert!(limited.replica_minutes * 4 < unlimited.replica_minutes * 3, "{limited:?} {unlimited:?}");
    assert_eq!((limited.waiting, unlimited.waiting), (0, 0));
}
