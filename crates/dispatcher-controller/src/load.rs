//! The load of one worker and of a pool, as values. Pure. An unknown load is never zero.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;

/// The last values of one worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WorkerLoad {
    /// Tasks that wait for it, and when that was read.
    pub(crate) queued: Option<(u64, Timestamp)>,
    /// Tasks that it works on.
    pub(crate) in_flight: Option<u64>,
    /// Tasks that have ended since it started, if it counts them.
    pub(crate) finished: Option<u64>,
    /// Tokens that all workers of its pod have used.
    pub(crate) tokens: Option<u64>,
    /// Whether `tokens` is fresh.
    pub(crate) counts_tokens: bool,
    /// Whether it has tasks in the fresh values of its monitor, also where others are used for scaling. `None`: unknown.
    pub(crate) has_tasks: Option<bool>,
    /// Whether it works on a task, as `has_tasks`: its queue may be that of all workers.
    pub(crate) works: Option<bool>,
    /// How many tasks it worked on when that was last read, and when.
    pub(crate) last_tasks: Option<(u64, Timestamp)>,
    /// Its fresh queue is empty, and it does not report whether it works.
    pub(crate) is_quiet: bool,
    /// Why there are no fresh values.
    pub(crate) fault: Option<String>,
    /// When its state was last saved, in seconds since 1970.
    pub(crate) saved: Option<u64>,
    /// Why its state is not saved now.
    pub(crate) unsaved: Option<String>,
    /// Which saved states it has found damaged.
    pub(crate) damaged: Option<String>,
    /// Saved states that no worker has claimed. `None`: this worker has a state of its own, or its monitor made no
    /// survey.
    pub(crate) unclaimed: Option<u64>,
    /// The same, and also of a worker that has started empty and has a state of its own since. It may be old.
    pub(crate) waiting: Option<u64>,
}

impl WorkerLoad {
    /// Whether the worker serves any metric that the contract requires.
    pub(crate) fn is_reported(&self) -> bool {
        self.queued.is_some() || self.in_flight.is_some() || self.tokens.is_some()
    }
}

/// A queue of its own makes a worker busy soon.
pub(crate) fn has_tasks(queued: Option<u64>, in_flight: Option<u64>) -> Option<bool> {
    let some = |tasks: Option<u64>| tasks.is_some_and(|tasks| tasks > 0);
    if some(queued) || some(in_flight) { Some(true) } else { in_flight.map(|_| false) }
}

/// What is measured of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PoolLoad {
    pub(crate) queued: u64,
    pub(crate) busy: u32,
    /// Workers whose load is not known.
    pub(crate) unknown: u32,
    pub(crate) tokens: u64,
    /// Sum of hashes of the workers with a fault of checkpoints, and of the fault.
    pub(crate) unsaved: u64,
    /// When any of them was last saved.
    pub(crate) saved: u64,
    /// Workers without state that have found a saved one.
    pub(crate) replaceable: u32,
    /// Sum of the saved states that each worker has found.
    pub(crate) waiting: u64,
}

impl PoolLoad {
    /// The sum over the workers, each with the uid of its pod.
    pub(crate) fn of<'l>(loads: impl Iterator<Item = (&'l str, &'l WorkerLoad)>) -> Self {
        let mut sum = Self::default();
        for (uid, load) in loads {
            sum.queued = sum.queued.saturating_add(load.queued.map_or(0, |(queued, _)| queued));
            sum.busy += u32::from(load.in_flight.is_some_and(|tasks| tasks > 0));
            sum.unknown += u32::from(load.queued.is_none() || load.in_flight.is_none());
            sum.tokens = sum.tokens.saturating_add(load.tokens.unwrap_or_default());
            if load.unsaved.is_some() || load.damaged.is_some() {
                let mut hash = DefaultHasher::new();
                (uid, &load.unsaved, &load.damaged).hash(&mut hash);
                sum.unsaved = sum.unsaved.wrapping_add(hash.finish());
            }
            sum.replaceable += u32::from(load.unclaimed.is_some_and(|states| states > 0));
            sum.waiting = sum.waiting.saturating_add(load.waiting.unwrap_or_default());
            sum.saved = sum.saved.max(load.saved.unwrap_or_default());
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::at;

    use super::*;

    #[test]
    fn a_load_that_is_not_known_is_counted_as_such() {
        let known = WorkerLoad {
            queued: Some((3, at(0))),
            in_flight: Some(1),
            tokens: Some(7),
            ..WorkerLoad::default()
        };
        let loads = [known.clone(), WorkerLoad { in_flight: Some(0), ..known }, WorkerLoad::default()];
        assert_eq!(
            PoolLoad::of(loads.iter().map(|load| ("a", load))),
            PoolLoad { queued: 6, busy: 1, unknown: 1, tokens: 14, ..PoolLoad::default() }
        );
    }

    #[test]
    fn another_cause_or_worker_whose_state_is_not_saved_is_another_load() {
        let unsaved = |uid: &str, why: &str| {
            let load = WorkerLoad { unsaved: Some(why.to_owned()), ..WorkerLoad::default() };
            PoolLoad::of([(uid, &load)].into_iter())
        };
        assert_eq!(unsaved("a", "no bucket"), unsaved("a", "no bucket"));
        assert_ne!(unsaved("a", "no bucket"), unsaved("a", "access denied"));
        assert_ne!(unsaved("a", "no bucket"), unsaved("b", "no bucket"));
    }
}
