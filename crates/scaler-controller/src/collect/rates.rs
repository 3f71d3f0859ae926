//! What was scraped of the pods of each target, for the rates of their counters. Objects that read the same metric of the
//! same target share it: its pods are scraped once for all of them, and their points are kept once. It decides nothing
//! about a value.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use scaling::flow::PodMeter;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};

use super::{PODS_DEADLINE, WINDOW};
use crate::{
    sources::{
        answer::Answer,
        engines::Wanted,
        pods::{
            kept::{Kept, Limits},
            scrapes::Scrapes,
        },
    },
    validate::ScrapePort,
};

/// By what is asked; and who asks what, by uid of the object and number of the metric.
#[derive(Debug)]
pub(crate) struct Rates {
    kept: Kept,
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    shared: HashMap<Arc<Asked>, Shared>,
    askers: HashMap<String, HashMap<usize, Arc<Asked>>>,
}

/// One metric of the pods of one target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Asked {
    pub(crate) namespace: String,
    /// See `Reference::identity`.
    pub(crate) target: String,
    pub(crate) port: ScrapePort,
    pub(crate) path: String,
    pub(crate) wanted: Wanted,
}

/// Held by the one that scrapes; the others wait for what it finds.
pub(crate) type Shared = Arc<AsyncMutex<SharedReading>>;

#[derive(Debug)]
pub(crate) struct SharedReading {
    pub(crate) scrapes: Scrapes,
    pub(crate) meter: PodMeter,
    /// Whether a pod has counted its requests in the last scrape; true before it.
    pub(crate) is_counted: bool,
    /// When the pods were last scraped, and what came of it.
    pub(crate) last: Option<(Timestamp, Answer)>,
}

impl SharedReading {
    /// The last answer of pods that count nothing: they are looked at once in a sample period, however often others are.
    /// `period`: between two looks.
    pub(crate) fn of_uncounted(
        &self,
        sample_period: Duration,
        period: Duration,
        now: Timestamp,
    ) -> Option<Answer> {
        let (at, answer) = self.last.as_ref().filter(|_| !self.is_counted)?;
        let is_early = now.duration_since(*at).unsigned_abs() + period / 2 < sample_period;
        is_early.then(|| answer.clone())
    }
}

/// A quarter of what the controller may use: some 15 000 pods with the histograms of an engine, 3 000 with the largest ones.
const KEPT: Limits = Limits { all: 64 << 20, of_one_namespace: 16 << 20 };
/// A value is used by another object for so long, or for half the time between two readings if that is less.
const SHARED_FOR: Duration = Duration::from_secs(10);

impl Default for Rates {
    fn default() -> Self {
        Self { kept: Kept::new(KEPT), all: Mutex::default() }
    }
}

impl Rates {
    /// What is known of the metric. What this object has asked before under this number is dropped, unless another one asks
    /// it: its difference to this one would be a rate of nothing.
    pub(crate) fn of(&self, uid: &str, index: usize, asked: Asked) -> Shared {
        let mut all = self.lock();
        let known = all.askers.get(uid).and_then(|asked| asked.get(&index)).cloned();
        if known.as_deref() != Some(&asked) {
            let asked = Arc::new(asked.clone());
            all.askers.entry(uid.to_owned()).or_default().insert(index, asked);
            known.iter().for_each(|before| all.drop_unless_asked(before));
        }
        let new = || {
            let scrapes = Scrapes::within(WINDOW, self.kept.share(&asked.namespace));
            Arc::new(AsyncMutex::new(SharedReading {
                scrapes,
                meter: PodMeter::default(),
                is_counted: true,
                last: None,
            }))
        };
        match all.shared.get(&asked) {
            Some(shared) => Arc::clone(shared),
            None => {
                let shared = new();
                all.shared.insert(Arc::new(asked), Arc::clone(&shared));
                shared
            }
        }
    }

    /// Drops what this object has asked under other numbers, unless another one asks it.
    pub(crate) fn keep_only(&self, uid: &str, is_asked: impl Fn(usize) -> bool) {
        let mut all = self.lock();
        let Some(asked) = all.askers.get_mut(uid) else { return };
        let dropped: Vec<_> = asked.extract_if(|index, _| !is_asked(*index)).collect();
        if asked.is_empty() {
            all.askers.remove(uid);
        }
        dropped.iter().for_each(|(_, before)| all.drop_unless_asked(before));
    }

    pub(crate) fn forget(&self, gone: &str) {
        let mut all = self.lock();
        for asked in all.askers.remove(gone).into_iter().flatten() {
            all.drop_unless_asked(&asked.1);
        }
    }

    /// Of how many metrics anything is kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().shared.len()
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.kept.bytes()
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    fn drop_unless_asked(&mut self, asked: &Asked) {
        let is_asked = self.askers.values().flat_map(HashMap::values).any(|known| **known == *asked);
        if !is_asked {
            self.shared.remove(asked);
        }
    }
}

/// Waits for the one that scrapes. What it has found is used at once, also if that took long. `period`: between two readings.
pub(crate) async fn read_shared(
    shared: &Shared,
    period: Duration,
    now: Timestamp,
) -> (AsyncMutexGuard<'_, SharedReading>, Option<Answer>) {
    let (reading, waited) = match shared.try_lock() {
        Ok(reading) => (reading, Duration::ZERO),
        Err(_) => (shared.lock().await, PODS_DEADLINE),
    };
    let fresh = SHARED_FOR.min(period / 2) + waited;
    let last = reading.last.as_ref().filter(|(at, _)| now.duration_since(*at).unsigned_abs() < fresh);
    let answer = last.map(|(_, answer)| answer.clone());
    (reading, answer)
}

#[cfg(test)]
mod tests {
    use text::exposition::parse;

    use engine_metrics::histogram::Buckets;

    use super::*;
    use crate::sources::{
        Fault,
        engines::{InFlight, Load, MillisecondsPerUnit, Scraped},
    };

    const PODS: usize = 200;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    fn asked(namespace: &str, path: &str) -> Asked {
        Asked {
            namespace: namespace.into(),
            target: "Deployment.apps/chat".into(),
            port: ScrapePort::OfEngine,
            path: path.into(),
            wanted: Wanted::OfEngine(None, Load::Latency),
        }
    }

    /// As many buckets as are read.
    fn largest(seconds: i64) -> Scraped {
        let bounds = (0..127).map(|bound| bound.to_string()).chain(["+Inf".to_owned()]);
        let lines = bounds.map(|bound| format!("x_bucket{{le=\"{bound}\"}} {seconds}\n"));
        let text: String = lines.collect();
        let buckets = Buckets::of(parse(&text, |_| true).series.iter()).unwrap();
        Scraped::Times(buckets, MillisecondsPerUnit(1_000.0), InFlight::None)
    }

    async fn scraped(shared: &Shared) -> usize {
        scraped_of(shared, PODS).await
    }

    /// Five scrapes of each pod of the target, and how many of the last ones were refused for want of room.
    async fn scraped_of(shared: &Shared, pods: usize) -> usize {
        let mut reading = shared.lock().await;
        let mut refused = 0;
        for seconds in [0, 8, 16, 24, 32] {
            let scraped = largest(seconds);
            let of_pod = |pod: usize| format!("pod-{pod}");
            let mut record =
                |pod| reading.scrapes.record(&of_pod(pod), "demo/a", "latency", scraped.clone(), at(seconds));
            let read = (0..pods).map(&mut record);
            refused = read.filter(|read| matches!(read, Err(Fault::TooMuchKept { .. }))).count();
        }
        refused
    }

    #[tokio::test]
    async fn what_is_kept_of_one_target_does_not_grow_with_the_objects_that_read_it() {
        let rates = Rates::default();
        let uid = |number: usize| format!("uid-{number}");
        assert_eq!(scraped(&rates.of(&uid(0), 0, asked("demo", "/metrics"))).await, 0);
        let of_one = rates.bytes();
        // Eight points and a reading of each pod, and what is beside their buckets.
        assert!((PODS * 128 * 16 * 9..PODS * 128 * 16 * 10).contains(&of_one), "{of_one}");
        for number in 1..50 {
            assert_eq!(scraped(&rates.of(&uid(number), 0, asked("demo", "/metrics"))).await, 0);
        }
        assert_eq!((rates.bytes(), rates.len()), (of_one, 1));
        (1..50).for_each(|number| rates.forget(&uid(number)));
        assert_eq!(rates.bytes(), of_one, "one still asks");
        rates.forget(&uid(0));
        assert_eq!((rates.bytes(), rates.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_namespace_that_keeps_too_much_is_refused_more_and_leaves_room_for_others() {
        let rates = Rates::default();
        let mut refused = 0;
        for number in 0..50 {
            refused += scraped(&rates.of("greedy", number, asked("greedy", &format!("/{number}")))).await;
            assert!(rates.bytes() <= KEPT.of_one_namespace);
        }
        assert!(refused > 0);
        assert_eq!(scraped(&rates.of("modest", 0, asked("modest", "/metrics"))).await, 0);
        let mut refused = 0;
        for number in 0..40 {
            let of_namespace = asked(&format!("n-{}", number / 8), &format!("/{number}"));
            refused += scraped(&rates.of("many", number, of_namespace)).await;
            assert!(rates.bytes() <= KEPT.all);
        }
        assert!(refused > 0);
        let further = rates.of("further", 0, asked("further", "/metrics"));
        assert_eq!(scraped_of(&further, 20).await, 0, "after five namespaces that take what they can");
    }

    #[tokio::test]
    async fn what_one_object_has_read_is_used_by_the_others_for_half_a_period() {
        let (rates, period) = (Rates::default(), Duration::from_secs(15));
        let (one, other) = (rates.of("one", 0, asked("a", "/")), rates.of("other", 3, asked("a", "/")));
        let (mut first, answer) = read_shared(&one, period, at(0)).await;
        assert_eq!(answer, None);
        let waits = read_shared(&other, period, at(14));
        let finds = async {
            tokio::task::yield_now().await;
            first.last = Some((at(0), Answer::pending()));
            drop(first);
        };
        let ((_, answer), ()) = futures::future::join(waits, finds).await;
        assert_eq!(answer, Some(Answer::pending()), "what it has waited for");
        assert_eq!(read_shared(&other, period, at(7)).await.1, Some(Answer::pending()));
        assert_eq!(read_shared(&other, period, at(8)).await.1, None);
    }

    #[tokio::test]
    async fn pods_that_count_nothing_are_looked_at_once_in_a_sample_period() {
        let shared = Rates::default().of("one", 0, asked("a", "/"));
        let mut reading = shared.lock().await;
        let is_due = |reading: &SharedReading, seconds| {
            let (sample_period, period) = (Duration::from_secs(15), Duration::from_secs(5));
            reading.of_uncounted(sample_period, period, at(seconds)).is_none()
        };
        assert!(is_due(&reading, 0), "nothing is known");
        (reading.last, reading.is_counted) = (Some((at(0), Answer::pending())), false);
        assert_eq!([5, 10, 14, 15].map(|seconds| is_due(&reading, seconds)), [false, false, true, true]);
        reading.is_counted = true;
        assert!(is_due(&reading, 5));
    }

    #[test]
    fn another_question_drops_what_was_kept_for_the_one_before() {
        let rates = Rates::default();
        let first = rates.of("one", 0, asked("a", "/"));
        assert!(Arc::ptr_eq(&first, &rates.of("one", 0, asked("a", "/"))));
        rates.of("one", 0, asked("a", "/other"));
        assert_eq!(rates.len(), 1);
        assert!(!Arc::ptr_eq(&first, &rates.of("one", 0, asked("a", "/"))));
    }

    #[test]
    fn what_is_no_longer_asked_is_dropped_unless_another_object_asks_it() {
        let rates = Rates::default();
        for (uid, index, path) in [("one", 0, "/a"), ("one", 1, "/b"), ("one", 2, "/c"), ("other", 0, "/c")] {
            rates.of(uid, index, asked("a", path));
        }
        rates.keep_only("one", |index| index == 1);
        assert_eq!(rates.len(), 2, "that of the other object stays");
        rates.keep_only("one", |_| false);
        rates.keep_only("another", |_| false);
        assert_eq!(rates.len(), 1);
        rates.forget("other");
        assert_eq!(rates.len(), 0);
    }
}
