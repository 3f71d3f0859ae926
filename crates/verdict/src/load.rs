//! Whether the tracks carry comparable loads: arrivals per Ready pod, in the mean of the last intervals. It judges nothing.

use serde::{Deserialize, Serialize};

use crate::{
    interval::{Sample, Tracks},
    stored::lenient,
};

/// The loads of the last [`LOAD_WINDOW`] intervals. Single intervals of few requests differ by chance.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Loads {
    /// Arrivals per Ready pod and interval, in thousandths: each interval moves it an eighth of the way.
    #[serde(deserialize_with = "lenient")]
    pub per_pod: Tracks<u64>,
    /// Complete intervals.
    #[serde(deserialize_with = "lenient")]
    pub intervals: u32,
    /// So many complete intervals in a row had no arrivals at the stable version.
    #[serde(deserialize_with = "lenient")]
    pub without_stable: u32,
}

/// Two minutes at an interval of 15 s: shorter than a step, and long enough for the mean of few requests.
pub const LOAD_WINDOW: u32 = 8;

/// Latencies are compared while the loads of the tracks differ by at most this factor. Batches, and so latencies, grow
/// with the load.
pub const LOAD_FACTOR: u64 = 2;

/// Loads below count as this one, in thousandths of an arrival per pod and interval. Such requests rarely share a batch.
pub const LEAST_LOAD: u64 = 1_000;

impl Loads {
    #[must_use]
    pub(crate) fn with(self, sample: &Sample) -> Self {
        let intervals = self.intervals.saturating_add(1);
        let window = u128::from(intervals.min(LOAD_WINDOW));
        let moved = |before: u64, arrivals: u64, pods: u32| {
            let now = u128::from(arrivals) * 1_000 / u128::from(pods.max(1));
            let mean = (u128::from(before) * (window - 1) + now) / window;
            u64::try_from(mean).unwrap_or(u64::MAX)
        };
        let Tracks { stable, candidate } = sample.flows;
        let per_pod = Tracks {
            stable: moved(self.per_pod.stable, stable.arrivals, sample.ready_pods.stable),
            candidate: moved(self.per_pod.candidate, candidate.arrivals, sample.ready_pods.candidate),
        };
        let without_stable = if stable.arrivals == 0 { self.without_stable.saturating_add(1) } else { 0 };
        Self { per_pod, intervals, without_stable }
    }

    /// The loads are within [`LOAD_FACTOR`], or the stable version has none in the window. A track without Ready pods is
    /// like no other.
    pub(crate) fn are_comparable(&self, ready_pods: Tracks<u32>) -> bool {
        if self.without_stable >= self.intervals.min(LOAD_WINDOW) {
            return true;
        }
        if ready_pods.stable == 0 || ready_pods.candidate == 0 {
            return false;
        }
        let [stable, candidate] =
            [self.per_pod.stable, self.per_pod.candidate].map(|load| load.max(LEAST_LOAD));
        stable <= candidate.saturating_mul(LOAD_FACTOR) && candidate <= stable.saturating_mul(LOAD_FACTOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interval::Flow;

    fn after(intervals: &[(u64, u64)], ready_pods: Tracks<u32>) -> bool {
        let loads = intervals.iter().fold(Loads::default(), |loads, (stable, candidate)| {
            let flow = |arrivals| Flow { arrivals, ..Flow::default() };
            let flows = Tracks { stable: flow(*stable), candidate: flow(*candidate) };
            loads.with(&Sample { flows, ready_pods, age_seconds: 0 })
        });
        loads.are_comparable(ready_pods)
    }

    fn pods(stable: u32, candidate: u32) -> Tracks<u32> {
        Tracks { stable, candidate }
    }

    #[test]
    fn loads_are_comparable_within_a_factor_of_two_per_pod() {
        assert!(after(&[(40, 20)], pods(4, 1)), "10 and 20");
        assert!(!after(&[(40, 21)], pods(4, 1)));
        // A tenth of the requests at one of five pods has less than half of the load of the others.
        assert!(!after(&[(90, 10)], pods(4, 1)));
    }

    #[test]
    fn a_difference_of_one_interval_is_chance() {
        let mut looks = vec![(10, 10); 20];
        looks.push((4, 10));
        assert!(after(&looks, pods(1, 1)));
        looks.extend([(4, 10); 20]);
        assert!(!after(&looks, pods(1, 1)));
    }

    #[test]
    fn little_load_is_comparable_with_none() {
        assert!(after(&[(8, 0)], pods(4, 1)));
        assert!(!after(&[(9, 0)], pods(4, 1)));
    }

    #[test]
    fn a_stable_version_without_arrivals_is_not_compared() {
        assert!(after(&[(0, 500); 3], pods(1, 1)), "since the step began");
        assert!(after(&[(0, 500)], pods(0, 1)));
        let rest = |quiet: usize| [vec![(9, 90); 3], vec![(0, 500); quiet]].concat();
        assert!(!after(&rest(7), pods(1, 1)));
        assert!(after(&rest(8), pods(1, 1)), "it has left the window");
    }

    #[test]
    fn a_track_without_ready_pods_has_no_load_to_compare() {
        assert!(!after(&[(5, 5)], pods(0, 1)));
        assert!(!after(&[(5, 5)], pods(1, 0)));
    }

    #[test]
    fn large_loads_do_not_overflow() {
        assert!(after(&[(u64::MAX, u64::MAX); 9], pods(1, 1)));
        assert!(after(&[(u64::MAX, u64::MAX); 9], pods(u32::MAX, u32::MAX)));
    }
}
