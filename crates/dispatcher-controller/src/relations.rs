//! Which AIDispatchers are reconciled after a change of another object, and how soon. It reads no cache.

use api::aidispatcher::AIDispatcher;
use kube::Resource;
use runtime::{key::Key, queue::Reason};
use workload::{
    templates::deployment::ReplicaSetView,
    views::pod::{OfInstance, PodView},
};

use crate::names;

pub(crate) mod budgets;

/// The key of the claim in `spec.checkpoint`, if it names one.
pub(crate) fn claim_key(dispatcher: &AIDispatcher) -> Option<Key> {
    let namespace = dispatcher.metadata.namespace.as_deref().unwrap_or_default();
    let claim = dispatcher.spec.checkpoint.as_ref()?.claim_name.as_deref()?;
    Some(Key::new(namespace, claim))
}

/// The AIDispatcher whose labels a pod or a ReplicaSet has.
pub(crate) fn keys_by_instance(object: &impl OfInstance) -> Vec<Key> {
    let found = object.belongs_to(names::KIND);
    found.map(|(namespace, name)| Key::new(namespace, name)).into_iter().collect()
}

/// A change of a pod that starts without a fault is not urgent: its next changes follow within seconds, and the status
/// reports few of them.
pub(crate) fn reason_of_pod(old: Option<&PodView>, new: Option<&PodView>) -> Reason {
    let comes_up = old.is_none_or(PodView::is_coming_up) && new.is_some_and(PodView::is_coming_up);
    if comes_up { Reason::Detail } else { Reason::Event }
}

/// A new ReplicaSet is followed by its pods.
pub(crate) fn reason_of_replica_set(old: Option<&ReplicaSetView>, _new: Option<&ReplicaSetView>) -> Reason {
    if old.is_none() { Reason::Detail } else { Reason::Event }
}

/// A key without a name stands for the namespace.
pub(crate) fn namespace_of<K: Resource>(object: &K) -> Key {
    Key::new(object.meta().namespace.as_deref().unwrap_or_default(), "")
}

#[cfg(test)]
mod tests {
    use crate::tests::dispatcher;

    use super::*;

    #[test]
    fn a_claim_enqueues_the_objects_that_save_to_it() {
        let key = |spec: &str| claim_key(&dispatcher(spec)).map(|key| key.to_string());
        assert_eq!(key("{role: coder, checkpoint: {claimName: states}}").as_deref(), Some("demo/states"));
        assert_eq!(key("{role: coder, checkpoint: {uri: s3://states}}"), None);
        assert_eq!(key("{role: coder}"), None);
    }
}
