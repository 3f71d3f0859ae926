//! Whether a worker counts as ready. Pure.
//!
//! A pod is ready once its monitor has read a load for five seconds. One that was started again has to stay ready for a while.

use std::time::Duration;

use jiff::Timestamp;
use workload::{time::remaining, views::pod::PodView};

use crate::names::WORKER;

/// What is wrong with an image or its configuration ends an agent while it starts. The Deployment's `minReadySeconds`, so
/// that no older worker ends for one that does not stay.
pub(super) const PROVEN_AFTER_SECONDS: i32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    /// It was started again, and counts as ready if it still runs after this time.
    Unproven(Duration),
    NotReady,
}

pub(super) fn readiness(pod: &PodView, now: Timestamp) -> Readiness {
    if !pod.is_ready {
        return Readiness::NotReady;
    }
    let has_restarted = pod.container(WORKER).is_some_and(|worker| worker.restart_count > 0);
    let proven_after = Duration::from_secs(PROVEN_AFTER_SECONDS.unsigned_abs().into());
    let since = pod.ready_changed.filter(|_| has_restarted);
    match since.and_then(|since| remaining(proven_after, since, now)) {
        Some(wait) => Readiness::Unproven(wait),
        None => Readiness::Ready,
    }
}

pub(super) fn is_ready(pod: &PodView, now: Timestamp) -> bool {
    readiness(pod, now) == Readiness::Ready
}

#[cfg(test)]
mod tests {
    use crate::tests::{at, pod};

    use super::*;

    #[test]
    fn a_worker_that_was_started_again_is_ready_after_it_has_run_for_a_while() {
        let restarted = |count: i32, seconds: i64| {
            let parts = format!(
                "{{conditions: [{{type: Ready, status: 'True', lastTransitionTime: '{}'}}], containers: [{{name: \
                 worker, restartCount: {count}, state: {{running: {{}}}}}}]}}",
                at(-seconds)
            );
            readiness(&pod(&parts), at(0))
        };
        assert_eq!(restarted(0, 1), Readiness::Ready);
        assert_eq!(restarted(1, 1), Readiness::Unproven(Duration::from_secs(9)));
        assert_eq!(restarted(1, 10), Readiness::Ready);
        assert_eq!(readiness(&pod("{}"), at(0)), Readiness::NotReady);
    }
}
