//! How long pods of a target take from when they get their node until they are Ready, and from when on a pod that is not
//! Ready counts as stalled. The wait for a node is that of the cluster: a full one would let pods seem slow for hours.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    target::{Pod, PodState},
    time::elapsed,
};

/// The last 32 cold starts of a target.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct ColdStarts {
    seconds: Vec<u32>,
    /// Hashes of the uids of young pods that were counted: a pod that becomes Ready again had no second cold start.
    counted_pods: Vec<u32>,
}

/// Percentiles of the last cold starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdStart {
    pub p50: Duration,
    pub p90: Duration,
}

/// As many as fit two rollouts of a large target; older ones were of other images and nodes.
const MOST: usize = 32;
/// Pods that are counted within `YOUNG`; of more pods, some are not counted.
const MOST_COUNTED: usize = 64;
/// Older pods are never counted, so they need no entry. The longest cold starts of engines are below 20 minutes.
const YOUNG: Duration = Duration::from_hours(1);
/// The deadline while no cold start is known: `progressDeadlineSeconds` of a Deployment, which is the same question.
const UNKNOWN: Duration = Duration::from_mins(10);
/// Twice a cold start is at least this, HPA's `--horizontal-pod-autoscaler-initial-readiness-delay`: less would be
/// within the jitter of the scheduler and of image pulls.
const SHORTEST: Duration = Duration::from_secs(30);
/// Pods are created and become Ready by the clocks of other machines.
const CLOCK_SKEW: Duration = Duration::from_mins(1);

impl ColdStart {
    /// A pod that has not been Ready for so long is stalled. It is twice the 90th percentile, at least 30 s, and a minute
    /// more for clocks that differ. While no cold start is known, it is 10 minutes.
    pub(crate) fn deadline(known: Option<Self>) -> Duration {
        known.map_or(UNKNOWN, |known| known.p90.saturating_mul(2).max(SHORTEST).saturating_add(CLOCK_SKEW))
    }
}

impl ColdStarts {
    /// Counts pods that have become Ready. A process that sees a target for the first time learns from its young pods.
    pub(crate) fn learn(&mut self, pods: &[Pod], now: Timestamp) {
        let young = |pod: &&Pod| elapsed(pod.created, now) < YOUNG;
        let present: BTreeSet<u32> = pods.iter().filter(young).map(|pod| hash(&pod.uid)).collect();
        self.counted_pods.retain(|pod| present.contains(pod));
        self.counted_pods.truncate(MOST_COUNTED);
        for pod in pods.iter().filter(young) {
            let since = match pod.state {
                PodState::Ready { since } => Some(since),
                // It would include the time until the fault was repaired.
                PodState::CrashLooping { .. } | PodState::CannotStart { .. } => None,
                PodState::Unscheduled
                | PodState::Starting { .. }
                | PodState::NotReady { .. }
                | PodState::Ending => continue,
            };
            let hash = hash(&pod.uid);
            if self.counted_pods.len() < MOST_COUNTED && !self.counted_pods.contains(&hash) {
                self.counted_pods.push(hash);
                // By clocks that differ a pod may be Ready before it began, or in the future, which says nothing.
                if let (Some(began), Some(since)) = (pod.began, since)
                    && since > began
                    && elapsed(now, since) <= CLOCK_SKEW
                {
                    let took = elapsed(began, since).as_secs();
                    self.seconds.push(u32::try_from(took).unwrap_or(u32::MAX));
                }
            }
        }
        let surplus = self.seconds.len().saturating_sub(MOST);
        self.seconds.drain(..surplus);
    }

    /// Of those that were seen; before the first one, `stated` by another. `None` without either.
    pub(crate) fn percentiles(&self, stated: Option<Duration>) -> Option<ColdStart> {
        if self.seconds.is_empty() {
            return stated.map(|took| ColdStart { p50: took, p90: took });
        }
        let mut sorted = self.seconds.clone();
        sorted.sort_unstable();
        let nearest_rank = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100);
            Some(Duration::from_secs(u64::from(*sorted.get(rank.checked_sub(1)?)?)))
        };
        Some(ColdStart { p50: nearest_rank(50)?, p90: nearest_rank(90)? })
    }
}

/// FNV-1a. Two pods of one hash cost one sample.
fn hash(uid: &str) -> u32 {
    uid.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Phase, Work};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    fn pod(uid: &str, created: i64, ready: i64) -> Pod {
        Pod {
            uid: uid.to_owned(),
            created: at(created),
            began: Some(at(created)),
            ordinal: None,
            state: PodState::Ready { since: at(ready) },
            work: Work::Unknown,
        }
    }

    fn learned(pods: &[Pod]) -> ColdStarts {
        let mut cold_starts = ColdStarts::default();
        cold_starts.learn(pods, at(1_000));
        cold_starts
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let pods: Vec<Pod> = (1..=10).map(|seconds| pod(&seconds.to_string(), 0, seconds)).collect();
        let known = learned(&pods).percentiles(None).unwrap();
        assert_eq!((known.p50.as_secs(), known.p90.as_secs()), (5, 9));
    }

    #[test]
    fn a_pod_that_becomes_ready_again_is_counted_once() {
        let mut cold_starts = learned(&[pod("a", 900, 940)]);
        cold_starts.learn(&[pod("a", 900, 1_500)], at(1_500));
        assert_eq!(cold_starts.seconds, [40]);
    }

    #[test]
    fn an_old_pod_is_not_counted_because_it_may_have_been_ready_before() {
        let mut cold_starts = ColdStarts::default();
        cold_starts.learn(&[pod("a", 0, 3_599)], at(3_600));
        assert_eq!(cold_starts.percentiles(None), None);
    }

    #[test]
    fn the_deadline_is_long_while_nothing_is_known_and_never_shorter_than_90_seconds() {
        let deadline = |pods: &[Pod], stated: Option<u64>| {
            ColdStart::deadline(learned(pods).percentiles(stated.map(Duration::from_secs))).as_secs()
        };
        assert_eq!(deadline(&[], None), 600);
        assert_eq!(deadline(&[pod("a", 0, 2)], None), 90);
        assert_eq!(deadline(&[pod("a", 0, 100)], None), 260);
        assert_eq!(deadline(&[], Some(200)), 460, "as another measured it");
        assert_eq!(deadline(&[pod("a", 0, 100)], Some(200)), 260, "what was seen counts more");
        assert_eq!(
            ColdStart::deadline(ColdStarts::default().percentiles(Some(Duration::MAX))),
            Duration::MAX
        );
    }

    #[test]
    fn a_pod_that_was_ready_before_its_creation_teaches_nothing() {
        let mut cold_starts = learned(&[pod("a", 900, 890), pod("b", 900, 900)]);
        assert_eq!(cold_starts.percentiles(None), None);
        cold_starts.learn(&[pod("a", 900, 1_500)], at(1_500));
        assert_eq!(cold_starts.percentiles(None), None, "it was Ready before");
    }

    #[test]
    fn neither_the_wait_for_a_node_nor_the_repair_of_a_fault_is_a_cold_start() {
        let waited = Pod { began: Some(at(860)), ..pod("a", 0, 900) };
        assert_eq!(learned(&[waited]).seconds, [40]);
        let restarted = Pod { began: None, ..pod("a", 0, 900) };
        assert_eq!(learned(&[restarted]).seconds, [0; 0]);
        let phase = Phase::Running;
        for state in [PodState::CrashLooping { phase }, PodState::CannotStart { phase }] {
            let mut cold_starts = learned(&[Pod { state, ..pod("a", 0, 900) }]);
            cold_starts.learn(&[pod("a", 0, 900)], at(1_000));
            assert_eq!(cold_starts.seconds, [0; 0], "{state:?}");
        }
        assert_eq!(learned(&[pod("a", 900, 1_100)]).seconds, [0; 0], "by a clock that is ahead");
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut cold_starts = ColdStarts::default();
        for round in 0..10 {
            let pods: Vec<Pod> = (0..50).map(|pod_| pod(&format!("{round}/{pod_}"), 0, 9)).collect();
            cold_starts.learn(&pods, at(10));
            assert!(cold_starts.seconds.len() <= MOST && cold_starts.counted_pods.len() <= MOST_COUNTED);
        }
        cold_starts.learn(&[], at(10));
        assert!(cold_starts.counted_pods.is_empty());
    }
}
