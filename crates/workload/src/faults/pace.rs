//! Limits how many pods on lost nodes a process deletes within ten seconds, over all objects.
//!
//! Replacing all pods at once would overload a cluster that has lost nodes. After a restart of the process the limit starts
//! again. Callers decide which pods are deleted; this module decides only how many.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;

use crate::time::elapsed;

/// Pods that may be deleted now, by uid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    pub pods: BTreeSet<String>,
    /// When a further pod may be allowed.
    pub requeue_after: Option<Duration>,
}

/// The limit of the process; shared by all workers.
#[derive(Debug, Default)]
pub struct Pace(Mutex<Window>);

/// The deletions of the last ten seconds.
#[derive(Debug, Default)]
struct Window {
    granted: Vec<(String, Timestamp)>,
}

const WINDOW: Duration = Duration::from_secs(10);
/// At most this share of all managed pods per window, and at least one pod.
const PERCENT_OF_PODS: usize = 10;

impl Pace {
    /// `of` counts all managed pods; it is called only if `uids` is not empty.
    pub fn allow(&self, uids: &[&str], of: impl FnOnce() -> usize, now: Timestamp) -> Allowance {
        if uids.is_empty() {
            return Allowance::default();
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).allow(uids, of(), now)
    }
}

impl Window {
    fn allow(&mut self, uids: &[&str], of: usize, now: Timestamp) -> Allowance {
        // If the clock was set back, earlier grants are in the future; drop them.
        self.granted.retain(|(_, at)| *at <= now && elapsed(*at, now) < WINDOW);
        let most = (of * PERCENT_OF_PODS / 100).max(1);
        let mut pods = BTreeSet::new();
        let mut requeue_after = None;
        for uid in uids {
            // A failed deletion may be repeated without a second grant.
            let was_granted = self.granted.iter().any(|(granted, _)| granted == uid);
            if !was_granted && self.granted.len() >= most {
                let oldest = self.granted.iter().map(|(_, at)| *at).min();
                requeue_after = oldest.map(|oldest| WINDOW.saturating_sub(elapsed(oldest, now)));
                continue;
            }
            if !was_granted {
                self.granted.push(((*uid).to_owned(), now));
            }
            pods.insert((*uid).to_owned());
        }
        Allowance { pods, requeue_after }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    fn allowance(pods: &[&str], requeue_after: Option<u64>) -> Allowance {
        Allowance {
            pods: pods.iter().map(|&pod| pod.to_owned()).collect(),
            requeue_after: requeue_after.map(Duration::from_secs),
        }
    }

    #[test]
    fn one_pod_is_allowed_at_once_and_the_next_after_the_window() {
        let mut window = Window::default();
        assert_eq!(window.allow(&["a", "b"], 4, at(0)), allowance(&["a"], Some(10)));
        assert_eq!(window.allow(&["b"], 4, at(4)), allowance(&[], Some(6)));
        assert_eq!(window.allow(&["b"], 4, at(10)), allowance(&["b"], None));
    }

    #[test]
    fn a_tenth_of_many_pods_is_allowed_at_once() {
        let mut window = Window::default();
        assert_eq!(window.allow(&["a", "b", "c", "d"], 39, at(0)).pods.len(), 3);
        assert_eq!(window.allow(&["e"], 39, at(1)).pods.len(), 0, "the limit holds over all objects");
    }

    #[test]
    fn a_failed_deletion_is_repeated_without_a_second_grant() {
        let mut window = Window::default();
        assert_eq!(window.allow(&["a"], 4, at(0)), allowance(&["a"], None));
        assert_eq!(window.allow(&["a"], 4, at(1)), allowance(&["a"], None));
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_block_deletions() {
        let mut window = Window::default();
        window.allow(&["a"], 4, at(3_600));
        assert_eq!(window.allow(&["b"], 4, at(0)), allowance(&["b"], None));
    }

    proptest! {
        #[test]
        fn no_window_of_ten_seconds_exceeds_the_limit(
            asks in prop::collection::vec((0_i64..4, 1_usize..6), 1..60),
            of in 1_usize..100,
        ) {
            let (mut window, mut now, mut next) = (Window::default(), 0, 0);
            let mut deleted: Vec<i64> = Vec::new();
            for (later, count) in asks {
                now += later;
                let uids: Vec<String> = (next..next + count).map(|uid| uid.to_string()).collect();
                next += count;
                let asked: Vec<&str> = uids.iter().map(String::as_str).collect();
                let granted = window.allow(&asked, of, at(now)).pods.len();
                deleted.extend(std::iter::repeat_n(now, granted));
                let recent = deleted.iter().filter(|at| now - **at < 10).count();
                prop_assert!(recent <= (of / 10).max(1));
            }
        }
    }
}
