//! A scripted load for a pool of workers: 2, then 12, then 2 tasks per second over 40 minutes. A worker needs a second per
//! task. Tests of controllers include this file, too.

use scaling::decide::PERIOD;

const END: i64 = 40 * 60;

pub(crate) struct Worker {
    pub(crate) uid: u32,
    pub(crate) created: i64,
}

/// What a decision knows.
pub(crate) struct Step<'w> {
    pub(crate) now: i64,
    /// Oldest first. The oldest ones are the busy ones.
    pub(crate) workers: &'w [Worker],
    pub(crate) busy: usize,
    pub(crate) waiting: i64,
    /// Since the beginning.
    pub(crate) finished: i64,
}

/// What a run looked like.
#[derive(Debug)]
pub(crate) struct Run {
    /// Changes of the direction.
    pub(crate) turns: usize,
    pub(crate) peak: i32,
    pub(crate) replica_minutes: i64,
    /// Tasks waiting at the end.
    pub(crate) waiting: i64,
    /// Seconds that tasks have waited, all together.
    pub(crate) waited: i64,
}

fn arrivals(second: i64) -> i64 {
    if (600..1800).contains(&second) { 12 } else { 2 }
}

/// `decide`: the number of workers from now on.
pub(crate) fn run(cold_start: i64, mut decide: impl FnMut(&Step<'_>) -> i32) -> Run {
    let mut workers: Vec<Worker> = (0..3).map(|uid| Worker { uid, created: -600 }).collect();
    let (mut next_uid, mut waiting, mut finished, mut waited) = (3, 0_i64, 0, 0);
    let mut changes: Vec<i32> = Vec::new();
    let (mut peak, mut replica_seconds) = (0, 0);
    for now in 0..END {
        let is_ready = |worker: &Worker| now - worker.created >= cold_start;
        workers.sort_by_key(|worker| worker.created);
        let ready = workers.iter().filter(|worker| is_ready(worker)).count();
        waiting += arrivals(now);
        let busy = waiting.min(i64::try_from(ready).unwrap());
        waiting -= busy;
        waited += waiting;
        finished += busy;
        replica_seconds += i64::try_from(workers.len()).unwrap();
        if now % i64::try_from(PERIOD.as_secs()).unwrap() != 0 {
            continue;
        }
        let busy = usize::try_from(busy).unwrap();
        let from = i32::try_from(workers.len()).unwrap();
        let to = decide(&Step { now, workers: &workers, busy, waiting, finished });
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
    Run { turns, peak, replica_minutes: replica_seconds / 60, waiting, waited }
}
