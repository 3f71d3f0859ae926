//! A queue that grows and shrinks by itself, and how the workers of a pool share it. Pure.

use std::{f64::consts::TAU, time::Duration};

use crate::Load;

/// From an empty queue to a full one and back.
pub const PERIOD: Duration = Duration::from_secs(240);
/// Tasks of a pool when its queue is full: more than the workers of the sample.
const FULL: f64 = 20.0;

/// The tasks that a pool has at this time, those in hand included.
pub fn tasks(since_start: Duration) -> u64 {
    let turn = since_start.as_secs_f64() / PERIOD.as_secs_f64();
    (FULL * (1.0 - (turn * TAU).cos()) / 2.0).round() as u64
}

/// The load of each of so many workers: one task in hand as long as there are any, the others wait in equal shares.
pub fn loads(tasks: u64, workers: usize) -> impl Iterator<Item = Load> {
    let workers = workers as u64;
    let waiting = tasks.saturating_sub(workers);
    (0..workers).map(move |worker| Load {
        queued: waiting / workers + u64::from(worker < waiting % workers),
        in_flight: u64::from(worker < tasks),
        tokens: 0,
    })
}

#[cfg(test)]
mod tests {
    use api::aidispatcher::AIDispatcher;
    use jiff::Timestamp;
    use scaling::{
        decide::decide,
        history::History,
        policy::{Bounds, Extras, Kind, Metric, Policy, TargetValue},
        reading::{Milli, PodSample, Reading},
        target::{Pod, PodState, Target, Work},
    };

    use super::*;

    #[test]
    fn the_queue_rises_and_falls_and_begins_again() {
        let at = |quarter: u32| tasks(PERIOD * quarter / 4);
        assert_eq!([at(0), at(1), at(2), at(3), at(4)], [0, 10, 20, 10, 0]);
        let half = PERIOD.as_secs() / 2;
        let each_second: Vec<u64> = (0..=2 * half).map(|second| tasks(Duration::from_secs(second))).collect();
        let (rise, fall) = each_second.split_at(half as usize);
        assert!(rise.is_sorted() && fall.iter().rev().is_sorted(), "{each_second:?}");
    }

    #[test]
    fn the_workers_share_all_tasks() {
        for (tasks, workers) in [(0, 3), (2, 3), (3, 3), (13, 3), (20, 1), (5, 0)] {
            let loads: Vec<Load> = loads(tasks, workers).collect();
            assert_eq!(loads.len(), workers);
            let shared: u64 = loads.iter().map(|load| load.queued + load.in_flight).sum();
            assert!(workers == 0 || shared == tasks, "{tasks} tasks of {workers}: {loads:?}");
            assert!(loads.iter().all(|load| load.in_flight == 1 || load.queued == 0), "{loads:?}");
        }
    }

    /// What `cargo xtask up` shows: within one period the sample has its most workers, and then one again.
    #[test]
    fn the_sample_pool_grows_and_shrinks_with_the_queue() {
        let policy = policy_of_the_sample();
        let (mut workers, mut history) = (1, History::default());
        let mut seen = Vec::new();
        // The second turn begins like every later one.
        for second in 0..2 * PERIOD.as_secs() {
            let now = Timestamp::from_second(1_767_268_800 + second as i64).unwrap();
            let loads: Vec<Load> = loads(tasks(Duration::from_secs(second)), workers as usize).collect();
            let (target, reading) = observed(&loads, now);
            let decision = decide(&policy, &target, &[reading], &history, now);
            let next = decision.record.to;
            history = if next == workers { decision.history } else { decision.written(&policy) };
            workers = next;
            seen.push(workers);
        }
        let second_turn = &seen[PERIOD.as_secs() as usize..];
        assert_eq!((second_turn.iter().min(), second_turn.iter().max()), (Some(&1), Some(&10)), "{seen:?}");
        assert!(second_turn.last() <= Some(&3), "{seen:?}");
    }

    fn policy_of_the_sample() -> Policy {
        let sample = include_str!("../../../deploy/samples/aidispatcher.yaml");
        let sample: AIDispatcher = serde_saphyr::from_str(sample).unwrap();
        let autoscaling = sample.spec.autoscaling.unwrap();
        let target = TargetValue::units(i64::from(autoscaling.tasks_per_worker)).unwrap();
        Policy {
            bounds: Bounds::new(autoscaling.min_replicas, autoscaling.max_replicas).unwrap(),
            metrics: vec![Metric {
                window: Duration::ZERO,
                ..Metric::new("queue", Kind::TasksAndBusyWorkers, target)
            }],
            behavior: scaling::spec::behavior(autoscaling.behavior.as_ref()).unwrap(),
            fallback: None,
            extras: Extras::all(),
        }
    }

    /// Workers that have been ready for long, and their queues.
    fn observed(loads: &[Load], now: Timestamp) -> (Target, Reading) {
        let long_ago = Timestamp::from_second(1_767_200_000).unwrap();
        let uid = |index: usize| format!("worker-{index}");
        let pods = loads.iter().enumerate().map(|(index, load)| Pod {
            uid: uid(index),
            created: long_ago,
            began: Some(long_ago),
            ordinal: None,
            state: PodState::Ready { since: long_ago },
            work: if load.in_flight > 0 { Work::Busy } else { Work::Idle },
        });
        let samples = loads.iter().enumerate().map(|(index, load)| PodSample {
            uid: uid(index),
            value: Milli::units(load.queued as i64),
            at: now,
        });
        let replicas = i32::try_from(loads.len()).unwrap();
        let pods = pods.collect();
        let target =
            Target { replicas, status_replicas: replicas, pods, cold_start: None, flows: Vec::new() };
        (target, Reading::Pods(samples.collect()))
    }
}
