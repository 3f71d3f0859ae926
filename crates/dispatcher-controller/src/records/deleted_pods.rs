//! Keeps recently deleted pods for a short time, because the message of their monitors often disappears from the cache
//! before the next reconcile.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use runtime::watch::cache::Cache;
use workload::{time::elapsed, views::pod::PodView};

use super::{revisions::Revision, tokens::message_of};

/// A reconcile follows at once. The longer time covers failed writes of the status.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// Of all objects of the process; the oldest is dropped.
const MOST_KEPT: usize = 2_000;

/// Pods whose monitors left a message, oldest first.
#[derive(Debug, Default)]
pub(crate) struct DeletedPods(Mutex<VecDeque<DeletedPod>>);

#[derive(Debug)]
struct DeletedPod {
    pod: Arc<PodView>,
    /// The first reconcile of any object after the pod was deleted.
    seen: Option<Timestamp>,
}

impl DeletedPods {
    pub(crate) fn tracked(pods: &Cache<PodView>) -> Arc<Self> {
        let deleted_pods = Arc::<Self>::default();
        let kept = Arc::clone(&deleted_pods);
        pods.subscribe(move |change| {
            if let Some(pod) = change.gone().filter(|pod| message_of(pod).is_some()) {
                kept.keep(Arc::clone(pod));
            }
        });
        deleted_pods
    }

    fn keep(&self, pod: Arc<PodView>) {
        let mut kept = self.lock();
        if kept.len() >= MOST_KEPT {
            kept.pop_front();
        }
        kept.push_back(DeletedPod { pod, seen: None });
    }

    /// Those of these ReplicaSets.
    pub(crate) fn of(&self, revisions: &BTreeSet<Revision>, now: Timestamp) -> Vec<Arc<PodView>> {
        let mut kept = self.lock();
        kept.retain_mut(|deleted| {
            // A process that has just become the leader may still have pods that were deleted long before.
            let ended = deleted.pod.metadata.deletion_timestamp.as_ref().map(|ended| ended.0);
            let is_old = ended.is_some_and(|ended| elapsed(ended, now) >= KEPT_FOR);
            !is_old && elapsed(*deleted.seen.get_or_insert(now), now) < KEPT_FOR
        });
        let is_theirs = |pod: &PodView| Revision::of(pod).is_some_and(|of| revisions.contains(&of));
        kept.iter().map(|deleted| &deleted.pod).filter(|pod| is_theirs(pod)).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<DeletedPod>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use kube::Resource as _;

    use crate::tests::{at, pod};

    use super::*;

    const WITH_A_MESSAGE: &str = "{replicaSet: set, init: [{name: monitor, state: {terminated: {exitCode: 0, message: \
                        '{\"tokens\": 7, \"checkpoint\": 1767268000}'}}}]}";

    #[test]
    fn a_pod_that_was_deleted_with_a_message_is_known_to_its_replica_set_for_a_while() {
        let pods = Cache::default();
        let deleted_pods = DeletedPods::tracked(&pods);
        let set = BTreeSet::from([Revision::new("demo", "set")]);
        for text in ["{name: coder-1, replicaSet: set}", WITH_A_MESSAGE] {
            let view = pod(text);
            let meta = view.meta().clone();
            pods.upsert(view);
            assert!(deleted_pods.of(&set, at(0)).is_empty(), "it is still there");
            pods.remove(&meta);
        }
        let known = deleted_pods.of(&set, at(0));
        assert_eq!(known.iter().map(|pod| pod.name().to_owned()).collect::<Vec<_>>(), ["coder-0"]);
        for another in [Revision::new("demo", "another"), Revision::new("another", "set")] {
            assert!(deleted_pods.of(&BTreeSet::from([another]), at(0)).is_empty());
        }
        assert!(deleted_pods.of(&set, at(0) + KEPT_FOR).is_empty());
    }

    #[test]
    fn no_more_than_a_bounded_number_is_kept() {
        let deleted_pods = DeletedPods::default();
        for _ in 0..MOST_KEPT + 5 {
            deleted_pods.keep(Arc::new(pod(WITH_A_MESSAGE)));
        }
        assert_eq!(deleted_pods.lock().len(), MOST_KEPT);
    }
}
