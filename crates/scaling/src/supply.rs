//! Which pods of a target serve, which will, and which will not.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    target::{PodState, Target, Work},
    time::elapsed,
};

/// Pods of a target by what they supply. Pods that end count nowhere.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Supply {
    /// Running and Ready.
    pub ready: u32,
    /// Not Ready, within the deadline of a cold start.
    pub coming: u32,
    /// Not Ready beyond the deadline after they got their node. Another pod may start on another node.
    pub stalled: u32,
    /// Without a node beyond the deadline, or not created at all. Another pod would wait beside them.
    pub unschedulable: u32,
    pub crash_looping: u32,
    /// Pods whose copies would not start on another node either.
    pub cannot_start: u32,
    /// Of those that do not start, pods of a StatefulSet that it removes later than some that serve.
    #[serde(skip_serializing_if = "is_zero")]
    pub removed_late: u32,
    /// Workers with a task in hand, Ready or not.
    pub busy: u32,
    /// Ready workers that did not report whether they have a task in hand.
    pub unreported: u32,
}

/// `deadline`: from when on a pod that is not Ready is stalled. `raised`: when replicas were last added; until the
/// deadline after that, replicas without a pod are coming too.
pub(crate) fn supply(
    target: &Target,
    deadline: Duration,
    raised: Option<Timestamp>,
    now: Timestamp,
) -> Supply {
    let mut supply = Supply::default();
    let (mut highest_expected, mut lost) = (None, Vec::new());
    let is_late = |since: Timestamp| elapsed(since, now) >= deadline;
    let (mut pods, mut expected) = (0, 0);
    for pod in &target.pods {
        let counter = match pod.state {
            PodState::Ending => continue,
            PodState::Ready { .. } => &mut supply.ready,
            PodState::CrashLooping { .. } => &mut supply.crash_looping,
            PodState::CannotStart { .. } => &mut supply.cannot_start,
            PodState::Unscheduled if is_late(pod.created) => &mut supply.unschedulable,
            // Transitions have the time of a node, which may be behind that of the API server.
            PodState::Starting { since } | PodState::NotReady { since }
                if is_late(since.max(pod.created)) =>
            {
                &mut supply.stalled
            }
            PodState::Unscheduled | PodState::Starting { .. } | PodState::NotReady { .. } => {
                &mut supply.coming
            }
        };
        *counter += 1;
        pods += 1;
        if supply.ready + supply.coming > expected {
            expected += 1;
            highest_expected = highest_expected.max(pod.ordinal);
        } else {
            lost.extend(pod.ordinal);
        }
        match (pod.work, pod.state) {
            (Work::Busy, _) => supply.busy += 1,
            (Work::Unknown, PodState::Ready { .. }) => supply.unreported += 1,
            (Work::Unknown | Work::Idle, _) => (),
        }
    }
    let removed_late = lost.iter().filter(|ordinal| Some(**ordinal) < highest_expected).count();
    supply.removed_late = u32::try_from(removed_late).unwrap_or(u32::MAX);
    let absent = u32::try_from(target.replicas).unwrap_or(0).saturating_sub(pods);
    match raised {
        Some(raised) if !is_late(raised) => supply.coming += absent,
        Some(_) | None => supply.unschedulable += absent,
    }
    supply
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Supply {
    /// Pods that serve or will, at most `replicas`: a rollout has more for a while.
    pub(crate) fn expected(self, replicas: i64) -> i64 {
        (i64::from(self.ready) + i64::from(self.coming)).min(replicas)
    }

    /// Pods that are not expected to start: those that a condition should count.
    pub fn not_starting(self) -> u32 {
        self.stalled.saturating_add(self.unschedulable).saturating_add(self.broken())
    }

    /// Pods whose copies would be no better.
    pub(crate) fn broken(self) -> u32 {
        self.crash_looping.saturating_add(self.cannot_start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Phase, Pod};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    fn seen(states: &[PodState], replicas: i32, raised: Option<i64>) -> Supply {
        let pod = |state: &PodState| Pod {
            uid: String::new(),
            created: at(0),
            began: None,
            ordinal: None,
            state: *state,
            work: Work::Idle,
        };
        let target = Target {
            replicas,
            status_replicas: 0,
            pods: states.iter().map(pod).collect(),
            cold_start: None,
            flows: Vec::new(),
        };
        supply(&target, Duration::from_secs(60), raised.map(at), at(100))
    }

    #[test]
    fn a_pod_is_coming_until_the_deadline_and_stalled_from_then_on() {
        let since = |seconds| PodState::NotReady { since: at(seconds) };
        assert_eq!(seen(&[since(41)], 1, None), Supply { coming: 1, ..Supply::default() });
        assert_eq!(seen(&[since(40)], 1, None), Supply { stalled: 1, ..Supply::default() });
    }

    #[test]
    fn a_node_whose_clock_is_behind_makes_no_pod_late() {
        let since = PodState::NotReady { since: at(-60) };
        let pod = Pod {
            uid: String::new(),
            created: at(50),
            began: None,
            ordinal: None,
            state: since,
            work: Work::Idle,
        };
        let target =
            Target { replicas: 1, status_replicas: 0, pods: vec![pod], cold_start: None, flows: Vec::new() };
        let seen = supply(&target, Duration::from_secs(60), None, at(100));
        assert_eq!(seen, Supply { coming: 1, ..Supply::default() });
    }

    #[test]
    fn pods_that_have_waited_too_long_for_a_node_are_unschedulable() {
        let starting = PodState::Starting { since: at(40) };
        let seen = seen(&[PodState::Unscheduled, starting], 2, None);
        assert_eq!(seen, Supply { unschedulable: 1, stalled: 1, ..Supply::default() });
        assert_eq!(seen.not_starting(), 2);
    }

    #[test]
    fn a_pod_that_waited_for_a_node_has_a_whole_deadline_from_then_on() {
        let starting = PodState::Starting { since: at(41) };
        assert_eq!(seen(&[starting], 1, None), Supply { coming: 1, ..Supply::default() });
    }

    #[test]
    fn replicas_without_a_pod_are_coming_until_the_deadline_after_they_were_added() {
        assert_eq!(seen(&[], 3, Some(41)), Supply { coming: 3, ..Supply::default() });
        assert_eq!(seen(&[], 3, Some(40)), Supply { unschedulable: 3, ..Supply::default() });
        assert_eq!(seen(&[], 3, None), Supply { unschedulable: 3, ..Supply::default() });
    }

    #[test]
    fn a_pod_that_ends_supplies_nothing_and_stands_for_no_replica() {
        assert_eq!(seen(&[PodState::Ending], 1, None), Supply { unschedulable: 1, ..Supply::default() });
    }

    #[test]
    fn a_stateful_set_removes_pods_that_serve_before_those_below_them() {
        let removed_late = |states: &[PodState]| {
            let pod = |(ordinal, state): (usize, &PodState)| Pod {
                uid: String::new(),
                created: at(0),
                began: None,
                ordinal: u32::try_from(ordinal).ok(),
                state: *state,
                work: Work::Idle,
            };
            let pods = states.iter().enumerate().map(pod).collect();
            let target =
                Target { replicas: 4, status_replicas: 4, pods, cold_start: None, flows: Vec::new() };
            supply(&target, Duration::from_secs(60), None, at(100)).removed_late
        };
        let (ready, broken) =
            (PodState::Ready { since: at(10) }, PodState::CrashLooping { phase: Phase::Running });
        assert_eq!(removed_late(&[broken, ready, ready, ready]), 1);
        assert_eq!(removed_late(&[broken, ready, broken, ready]), 2);
        assert_eq!(removed_late(&[ready, ready, broken, broken]), 0);
        assert_eq!(removed_late(&[PodState::Ending, broken]), 0);
    }
}
