//! Whether a child may be created for its owner: not for one that is gone.
//!
//! The garbage collector's deletion of a child may reach us before the deletion of its owner, and then the child looks
//! as if it were missing. Each child that is created again in that moment is another pod on a GPU. So:
//!
//! - Nothing is created while the watch of the owners is failing, and nothing for an owner that the cache does not have.
//! - An owner that may have had the child before is read once from the API server. A new owner cannot, so the first
//!   creation of its children costs no request.
//!
//! An owner may have had the child in each of these cases:
//!
//! - A controller has written its status. The status is written after the children.
//! - This process has seen a child of the owner leave.
//! - The owner was in the first list. An earlier process may have created children without writing the status, and this
//!   process did not see them leave. One read is enough: from then on, this process sees it.
//!
//! It decides nothing else about an owner, and sends nothing itself.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use serde::Serialize;

use crate::{
    key::Key,
    watch::{
        cache::{Cache, is_of_kind},
        cached_child::Metadata,
        decode,
        watched::Watched,
    },
};

/// What the cache knows of the owner of a child that is to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerState {
    /// Of another kind than the roots of this controller: nothing is known of it.
    OtherKind,
    /// The watch of its kind is failing: what the cache has may be long out of date.
    WatchFails,
    /// Deleted, or being deleted.
    Gone,
    /// It cannot have had the child before.
    New,
    /// It may have had the child before.
    MayHaveHadChild,
}

/// The root kind of a controller, without its type.
pub(crate) trait Owners: Send + Sync {
    fn state_of(&self, key: &Key, owner: &OwnerReference) -> OwnerState;

    /// Where objects of this kind are read.
    fn path(&self, namespace: Option<&str>) -> String;

    /// To be asked before an owner is read: see `Cache::absorb_read`.
    fn removals(&self) -> u64;

    /// Whether the object that was read is the owner that is meant, and stays. `None`: there was none.
    fn lives(
        &self,
        key: &Key,
        uid: &str,
        read: Option<&str>,
        removals: u64,
    ) -> Result<bool, serde_json::Error>;

    /// A child of this owner has left.
    fn lost_a_child(&self, key: &Key, owner: &OwnerReference);
}

/// All roots of one kind.
pub(crate) struct Roots<K> {
    cache: Cache<K>,
    history: Arc<Mutex<ChildHistory>>,
}

/// The uids of owners that may have had children before, whatever their status says. Only of owners that are in the
/// cache, so it is no larger than that.
#[derive(Default)]
struct ChildHistory {
    /// These have lost a child.
    lost_a_child: HashSet<String>,
    /// These were in the first list, and have not been read since.
    listed: HashSet<String>,
}

impl ChildHistory {
    fn may_have_had_children(&self, uid: &str) -> bool {
        self.lost_a_child.contains(uid) || self.listed.contains(uid)
    }

    fn forget(&mut self, uid: &str) {
        self.lost_a_child.remove(uid);
        self.listed.remove(uid);
    }
}

fn lock(history: &Mutex<ChildHistory>) -> MutexGuard<'_, ChildHistory> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K> Roots<K>
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    pub(crate) fn new(cache: &Cache<K>) -> Self {
        let history = Arc::<Mutex<ChildHistory>>::default();
        let known = Arc::clone(&history);
        cache.subscribe(move |change| {
            let uid = |object: Option<&Arc<K>>| object.and_then(|object| object.meta().uid.clone());
            let (before, after) = (uid(change.old), uid(change.new));
            if before == after {
                return;
            }
            let mut known = lock(&known);
            if let Some(left) = before {
                known.forget(&left);
            }
            if let Some(listed) = after.filter(|_| change.initial) {
                known.listed.insert(listed);
            }
        });
        Self { cache: cache.clone(), history }
    }

    fn has(&self, key: &Key, uid: &str) -> bool {
        self.cache.get(key).is_some_and(|root| root.meta().uid.as_deref() == Some(uid))
    }
}

impl<K> Owners for Roots<K>
where
    K: Watched + Serialize + Send + Sync + 'static,
{
    fn state_of(&self, key: &Key, owner: &OwnerReference) -> OwnerState {
        if !is_of_kind::<K>(owner) {
            return OwnerState::OtherKind;
        }
        if self.cache.watch_fails_since().is_some() {
            return OwnerState::WatchFails;
        }
        match self.cache.get(key).filter(|root| root.meta().uid.as_deref() == Some(&owner.uid)) {
            None => OwnerState::Gone,
            Some(root) if root.meta().deletion_timestamp.is_some() => OwnerState::Gone,
            Some(_) if lock(&self.history).may_have_had_children(&owner.uid) => OwnerState::MayHaveHadChild,
            Some(root) if was_reconciled(&*root) => OwnerState::MayHaveHadChild,
            Some(_) => OwnerState::New,
        }
    }

    fn path(&self, namespace: Option<&str>) -> String {
        K::url_path(&(), namespace)
    }

    fn removals(&self) -> u64 {
        self.cache.removals()
    }

    fn lives(
        &self,
        key: &Key,
        uid: &str,
        read: Option<&str>,
        removals: u64,
    ) -> Result<bool, serde_json::Error> {
        let Some(json) = read else {
            self.cache.forget(key, Some(uid));
            return Ok(false);
        };
        // One that does not fit its type any more is still an owner that lives.
        let identity: Metadata<K> = decode::object(json)?;
        if let Ok(root) = K::from_json(json) {
            self.cache.absorb_read(root, removals);
        }
        let meta = identity.meta();
        let lives = meta.uid.as_deref() == Some(uid) && meta.deletion_timestamp.is_none();
        if lives {
            // The garbage collector has deleted none of its children so far, and will be seen to delete one.
            lock(&self.history).listed.remove(uid);
        }
        Ok(lives)
    }

    fn lost_a_child(&self, key: &Key, owner: &OwnerReference) {
        if !is_of_kind::<K>(owner) {
            return;
        }
        // Looked up under the lock: if the root leaves at the same time, its own subscriber comes after this.
        let mut history = lock(&self.history);
        if self.has(key, &owner.uid) {
            history.lost_a_child.insert(owner.uid.clone());
        }
    }
}

/// A default of the CustomResourceDefinition says `observedGeneration: 0`. Without that field, any status was written by
/// a controller.
fn was_reconciled<K: Serialize>(root: &K) -> bool {
    serde_json::to_value(root).is_ok_and(|root| match root["status"]["observedGeneration"].as_i64() {
        Some(generation) => generation > 0,
        None => !root["status"].is_null(),
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use serde_json::json;

    use super::*;

    fn root(uid: &str) -> Deployment {
        serde_json::from_value(json!({"metadata": {"namespace": "demo", "name": "a", "uid": uid}})).unwrap()
    }

    fn reference(uid: &str) -> OwnerReference {
        OwnerReference {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: "a".into(),
            uid: uid.into(),
            controller: Some(true),
            ..OwnerReference::default()
        }
    }

    #[test]
    fn owners_of_the_first_list_are_remembered_until_they_leave() {
        let cache = Cache::default();
        let roots = Roots::new(&cache);
        cache.replace(vec![Arc::new(root("first"))], "1");
        assert!(lock(&roots.history).may_have_had_children("first"));
        cache.upsert(root("second"));
        assert!(lock(&roots.history).listed.is_empty(), "replaced by one that was not in the list");
    }

    #[test]
    fn only_owners_in_the_cache_are_remembered_to_have_lost_a_child() {
        let cache = Cache::default();
        let (roots, key) = (Roots::new(&cache), Key::new("demo", "a"));
        cache.upsert(root("first"));
        roots.lost_a_child(&key, &reference("gone"));
        roots.lost_a_child(&key, &reference("first"));
        assert_eq!(lock(&roots.history).lost_a_child, HashSet::from(["first".to_owned()]));
        cache.upsert(root("second"));
        assert!(lock(&roots.history).lost_a_child.is_empty(), "replaced by another one of its name");
        roots.lost_a_child(&key, &reference("second"));
        cache.remove(&root("second").metadata);
        assert!(lock(&roots.history).lost_a_child.is_empty());
    }
}
