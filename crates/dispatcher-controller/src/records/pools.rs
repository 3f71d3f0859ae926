//! Keeps the past values of a pool that decisions need, in memory: recommendations and changes of replicas, tokens of
//! the last minute, and the load that was last observed. The values that a restart needs are in the status.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::aidispatcher::{AIDispatcher, AIDispatcherStatus};
use jiff::Timestamp;
use runtime::watch::cache::Cache;
use scaling::{
    flow::{PodCounts, PodMeter},
    history::History,
};
use workload::time::elapsed;

use crate::{MEASURED_EVERY, load::PoolLoad};

/// Tokens per minute are measured over this time.
const RATE_OVER: Duration = Duration::from_secs(60);
/// A burst in a shorter span is no rate.
const RATE_FROM: Duration = Duration::from_secs(20);
/// Between two samples of the total.
const SAMPLES_APART: Duration = Duration::from_secs(2);

/// By uid of the AIDispatcher.
#[derive(Debug, Default)]
pub(crate) struct Pools(Arc<Mutex<HashMap<String, Pool>>>);

/// The past of one pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    /// `None`: this process has not decided yet.
    pub(crate) history: Option<History>,
    /// By uid of each pod that was read last time: its tokens.
    readings: HashMap<String, u64>,
    /// Sum of the tokens used between two readings of a pod. Tokens used during a gap in the readings belong to no
    /// minute.
    used: i64,
    /// Sums of these, oldest first.
    totals: VecDeque<(Timestamp, i64)>,
    /// When this process first observed it.
    pub(crate) first_observed: Option<Timestamp>,
    pub(crate) last: Option<Observation>,
    /// Of a pool whose workers count the tasks that have ended.
    pub(crate) meter: Option<Arc<PodMeter>>,
    is_shared: bool,
}

/// The tasks of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tasks {
    /// Of the workers that count those that have ended.
    pub(crate) counts: Vec<PodCounts>,
    /// Those that wait for all workers together; `None`: each worker has a queue of its own.
    pub(crate) shared: Option<f64>,
    /// Uids of the pods that are Ready, or report a load.
    pub(crate) expected: BTreeSet<String>,
    /// Uids of all pods that do not end.
    pub(crate) live: BTreeSet<String>,
}

/// The load in the last reconcile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Observation {
    pub(crate) at: Timestamp,
    pub(crate) load: PoolLoad,
}

/// How many tokens a pool uses in a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TokenRate {
    /// `None`: too few readings.
    pub(crate) per_minute: Option<i64>,
    /// When the same counts give another rate: the first one, or a smaller one because nothing more was used. `None`: only
    /// with other counts.
    pub(crate) changes_in: Option<Duration>,
}

impl Pools {
    pub(crate) fn forgetting_deleted(dispatchers: &Cache<AIDispatcher>) -> Self {
        let pools = Self::default();
        let kept = Self(Arc::clone(&pools.0));
        dispatchers.subscribe(move |change| {
            if let Some(uid) = change.gone().and_then(|gone| gone.metadata.uid.as_ref()) {
                kept.lock().remove(uid);
            }
        });
        pools
    }

    pub(crate) fn last(&self, uid: &str) -> Option<Observation> {
        self.lock().get(uid)?.last
    }

    /// Records the observation of a reconcile, and returns what is known, with the tokens of the last minute. `readings`: the
    /// present ones, by uid of the pod.
    pub(crate) fn record<'r>(
        &self,
        uid: &str,
        observation: Observation,
        readings: impl Iterator<Item = (&'r str, u64)>,
        tasks: &Tasks,
    ) -> (Pool, TokenRate) {
        let mut pools = self.lock();
        let pool = pools.entry(uid.to_owned()).or_default();
        let first = pool.first_observed.get_or_insert(observation.at);
        // If the clock was set back, the first observation must not lie in the future.
        *first = (*first).min(observation.at);
        // After a refusal a reconcile observes again. Its time is that of the first observation, so the next one records what is
        // newer.
        if pool.last.is_none_or(|last| last.at != observation.at) {
            pool.last = Some(observation);
            pool.read(readings);
            pool.count(tasks, observation.at);
        }
        let rate = pool.rate(pool.used, observation.at);
        let rate = if pool.readings.is_empty() { TokenRate::default() } else { rate };
        (pool.clone(), rate)
    }

    /// Of a pool that was deleted meanwhile nothing is kept.
    pub(crate) fn remember(&self, uid: &str, history: History) {
        if let Some(pool) = self.lock().get_mut(uid) {
            pool.history = Some(history);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Pool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// The history of the process; else that of the status, which a process before this one has written.
    pub(crate) fn history_or(&self, status: Option<&AIDispatcherStatus>, now: Timestamp) -> History {
        let stored = || {
            let text = status?.scaling_history.as_deref()?;
            // A history that cannot be parsed is ignored; the present replicas are then the first recommendation.
            serde_json::from_str::<History>(text).ok().map(|history| history.resumed(now))
        };
        self.history.clone().or_else(stored).unwrap_or_default()
    }

    /// While counts do not change there is no reconcile, so a reading may be old; one that fails removes the pod from the
    /// readings.
    fn read<'r>(&mut self, readings: impl Iterator<Item = (&'r str, u64)>) {
        let mut read = HashMap::new();
        for (uid, tokens) in readings {
            if let Some(before) = self.readings.get(uid) {
                let used = i64::try_from(tokens.saturating_sub(*before)).unwrap_or(i64::MAX);
                self.used = self.used.saturating_add(used);
            }
            read.insert(uid.to_owned(), tokens);
        }
        self.readings = read;
    }

    fn count(&mut self, tasks: &Tasks, now: Timestamp) {
        if tasks.counts.is_empty() && self.meter.is_none() {
            return;
        }
        // Queues that become one, or the reverse, are no arrivals.
        if std::mem::replace(&mut self.is_shared, tasks.shared.is_some()) != tasks.shared.is_some() {
            self.meter = None;
        }
        let expected = tasks.expected.iter().map(String::as_str).collect();
        let live = tasks.live.iter().map(String::as_str).collect();
        let meter = Arc::make_mut(self.meter.get_or_insert_default());
        meter.observe_pool(&tasks.counts, tasks.shared.unwrap_or_default(), &expected, &live, now);
    }

    fn rate(&mut self, total: i64, now: Timestamp) -> TokenRate {
        // After the clock was set back, the samples start again.
        if self.totals.back().is_some_and(|(at, known)| *at > now || *known > total) {
            self.totals.clear();
        }
        if self.totals.back().is_none_or(|(at, _)| elapsed(*at, now) >= SAMPLES_APART) {
            self.totals.push_back((now, total));
        }
        while self.totals.get(1).is_some_and(|(at, _)| elapsed(*at, now) >= RATE_OVER) {
            self.totals.pop_front();
        }
        let Some((at, known)) = self.totals.front() else { return TokenRate::default() };
        let over = elapsed(*at, now);
        if let Some(rest) = RATE_FROM.checked_sub(over).filter(|rest| !rest.is_zero()) {
            return TokenRate { per_minute: None, changes_in: Some(rest) };
        }
        let used = total.saturating_sub(*known);
        // An older sample means that counts did not change for some time after it: a change is observed within
        // `MEASURED_EVERY`.
        let millis =
            i128::try_from(over.min(RATE_OVER + MEASURED_EVERY).as_millis()).unwrap_or(i128::MAX).max(1);
        let per_minute = i64::try_from(i128::from(used) * 60_000 / millis).unwrap_or(i64::MAX);
        TokenRate { per_minute: Some(per_minute), changes_in: (used > 0).then_some(MEASURED_EVERY) }
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::at;

    use super::*;

    fn measured(per_minute: i64) -> TokenRate {
        TokenRate { per_minute: Some(per_minute), changes_in: Some(MEASURED_EVERY) }
    }

    const ZERO: TokenRate = TokenRate { per_minute: Some(0), changes_in: None };

    fn none_for(seconds: u64) -> TokenRate {
        TokenRate { per_minute: None, changes_in: Some(Duration::from_secs(seconds)) }
    }

    #[test]
    fn tokens_per_minute_are_those_of_the_last_minute() {
        let mut pool = Pool::default();
        assert_eq!(pool.rate(1_000, at(0)), none_for(20), "what was used before is not of this minute");
        assert_eq!(pool.rate(1_100, at(10)), none_for(10));
        assert_eq!(pool.rate(1_300, at(30)), measured(600));
        assert_eq!(pool.rate(1_300, at(60)), measured(300));
        assert_eq!(pool.rate(1_300, at(75)), measured(184), "those of 65 s are known");
        assert_eq!(pool.rate(1_300, at(95)), ZERO);
    }

    #[test]
    fn tokens_after_an_hour_without_any_are_those_of_one_minute() {
        let mut pool = Pool::default();
        let mut rate = |tokens, seconds| {
            pool.read([("a", tokens)].into_iter());
            pool.rate(pool.used, at(seconds))
        };
        assert_eq!(rate(1_000, 0), none_for(20));
        assert_eq!(rate(1_000, 20), ZERO);
        assert_eq!(rate(1_700, 3_600), measured(600), "used in the last 70 s");
    }

    #[test]
    fn tokens_that_were_used_before_the_first_reading_of_a_pod_are_of_no_minute() {
        let mut pool = Pool::default();
        let mut rate = |readings: &[(&str, u64)], seconds| {
            pool.read(readings.iter().copied());
            pool.rate(pool.used, at(seconds)).per_minute
        };
        assert_eq!(rate(&[], 0), None);
        assert_eq!(rate(&[("a", 600_000)], 1), None, "this process has just begun");
        assert_eq!(rate(&[("a", 600_100)], 30), Some(200));
        // The monitor of another pod is reached again.
        assert_eq!(rate(&[("a", 600_100), ("b", 900_000)], 60), Some(100));
    }

    /// After a refusal a reconcile observes twice. What is used meanwhile is not of the minute before.
    #[test]
    fn a_second_observation_at_the_same_time_changes_nothing() {
        let pools = Pools::default();
        let observe = |tokens: u64, seconds: i64| {
            let observation =
                Observation { at: at(seconds), load: PoolLoad { tokens, ..PoolLoad::default() } };
            let (pool, rate) =
                pools.record("coder", observation, [("a", tokens)].into_iter(), &Tasks::default());
            (pool.first_observed, pool.last, rate)
        };
        for (tokens, seconds) in [(1_000, 0), (1_300, 30), (1_300, 60)] {
            assert_eq!(observe(tokens, seconds), observe(tokens + 600, seconds), "{seconds}");
        }
        assert_eq!(observe(1_300, 60).2, measured(300));
        assert_eq!(pools.lock()["coder"].totals.len(), 3);
    }

    #[test]
    fn a_history_that_cannot_be_read_is_empty() {
        let status = |text: &str| AIDispatcherStatus {
            scaling_history: Some(text.to_owned()),
            ..AIDispatcherStatus::default()
        };
        assert_eq!(Pool::default().history_or(Some(&status("{")), at(0)), History::default());
        assert_eq!(Pool::default().history_or(None, at(0)), History::default());
    }
}
