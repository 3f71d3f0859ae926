//! Pods that were deleted lately: what their monitors left is often gone before the next reconcile can read it.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use runtime::cache::{Cache, controller_of};
use workload::{pod::PodView, time::elapsed};

use crate::tokens::message_of;

/// A reconcile follows at once; this also bridges the writes that fail.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// Of all objects of the process; the oldest is dropped.
const MOST_KEPT: usize = 2_000;

/// Pods whose monitors left a message, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Departed(Mutex<VecDeque<Left>>);

#[derive(Debug)]
struct Left {
    pod: Arc<PodView>,
    /// The first reconcile of any object after the pod was deleted.
    seen: Option<Timestamp>,
}

impl Departed {
    pub(crate) fn tracked(pods: &Cache<PodView>) -> Arc<Self> {
        let departed = Arc::<Self>::default();
        let kept = Arc::clone(&departed);
        pods.subscribe(move |change| {
            let deleted = change.old.filter(|old| change.new.is_none_or(|new| new.uid() != old.uid()));
            if let Some(pod) = deleted.filter(|pod| message_of(pod).is_some()) {
                kept.keep(Arc::clone(pod));
            }
        });
        departed
    }

    fn keep(&self, pod: Arc<PodView>) {
        let mut kept = self.lock();
        if kept.len() >= MOST_KEPT {
            kept.pop_front();
        }
        kept.push_back(Left { pod, seen: None });
    }

    /// Those of these ReplicaSets.
    pub(crate) fn of(&self, replica_sets: &BTreeSet<&str>, now: Timestamp) -> Vec<Arc<PodView>> {
        let mut kept = self.lock();
        kept.retain_mut(|left| {
            // A process that did not lead until now has pods of long ago.
            let ended = left.pod.metadata.deletion_timestamp.as_ref().map(|ended| ended.0);
            let is_old = ended.is_some_and(|ended| elapsed(ended, now) >= KEPT_FOR);
            !is_old && elapsed(*left.seen.get_or_insert(now), now) < KEPT_FOR
        });
        let is_theirs =
            |pod: &PodView| controller_of(pod).is_some_and(|owner| replica_sets.contains(&*owner.uid));
        kept.iter().map(|left| &left.pod).filter(|pod| is_theirs(pod)).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Left>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use kube::Resource as _;

    use crate::tests::{at, pod};

    use super::*;

    const LEFT: &str = "{replicaSet: set, init: [{name: monitor, state: {terminated: {exitCode: 0, message: \
                        '{\"tokens\": 7, \"checkpoint\": 1767268000}'}}}]}";

    #[test]
    fn a_pod_that_was_deleted_with_a_message_is_known_to_its_replica_set_for_a_while() {
        let pods = Cache::default();
        let departed = Departed::tracked(&pods);
        let sets = BTreeSet::from(["set"]);
        for text in ["{name: coder-1, replicaSet: set}", LEFT] {
            let view = pod(text);
            let meta = view.meta().clone();
            pods.upsert(view);
            assert!(departed.of(&sets, at(0)).is_empty(), "it is still there");
            pods.remove(&meta);
        }
        let known = departed.of(&sets, at(0));
        assert_eq!(known.iter().map(|pod| pod.name().to_owned()).collect::<Vec<_>>(), ["coder-0"]);
        assert!(departed.of(&BTreeSet::from(["another"]), at(0)).is_empty());
        assert!(departed.of(&sets, at(0) + KEPT_FOR).is_empty());
    }

    #[test]
    fn no_more_than_a_bounded_number_is_kept() {
        let departed = Departed::default();
        for _ in 0..MOST_KEPT + 5 {
            departed.keep(Arc::new(pod(LEFT)));
        }
        assert_eq!(departed.lock().len(), MOST_KEPT);
    }
}
