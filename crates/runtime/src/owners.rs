//! Whether a child may be created for its owner: not for one that is gone.
//!
//! The garbage collector's deletion of a child may reach us before the deletion of its owner, and then the child looks
//! as if it were missing. Each child that is created again in that moment is another pod on a GPU. So:
//!
//! - Nothing is created while the watch of the owners is failing, and nothing for an owner that the cache does not have.
//! - An owner that may have had the child before is read once from the API server. It may have, if a controller has
//!   written its status (that comes after the children, so this outlives a restart), or if this process has seen a child
//!   of it leave. A new owner has neither: the first creation of its children costs no request.
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
    cache::{Cache, Key, is_of_kind},
    decode,
    kept::Metadata,
    watched::Watched,
};

/// What the cache knows of the owner of a child that is to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Of another kind than the roots of this controller: nothing is known of it.
    Unwatched,
    /// The watch of its kind is failing: what the cache has may be long out of date.
    Unseen,
    /// Deleted, or on its way out.
    Gone,
    /// It cannot have had the child before.
    New,
    /// It may have had the child before.
    Known,
}

/// The root kind of a controller, without its type.
pub(crate) trait Owners: Send + Sync {
    fn standing(&self, key: &Key, owner: &OwnerReference) -> Standing;

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
    lost_children: Arc<LostChildren>,
}

/// The uids of owners that have lost a child. Only of owners that are in the cache, so it is no larger than that.
#[derive(Default)]
struct LostChildren(Mutex<HashSet<String>>);

impl LostChildren {
    fn uids(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Roots<K>
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    pub(crate) fn new(cache: &Cache<K>) -> Self {
        let lost_children = Arc::<LostChildren>::default();
        let known = Arc::clone(&lost_children);
        cache.subscribe(move |change| {
            let uid = |object: Option<&Arc<K>>| object.and_then(|object| object.meta().uid.clone());
            if let Some(left) = uid(change.old).filter(|old| uid(change.new).as_ref() != Some(old)) {
                known.uids().remove(&left);
            }
        });
        Self { cache: cache.clone(), lost_children }
    }

    fn has(&self, key: &Key, uid: &str) -> bool {
        self.cache.get(key).is_some_and(|root| root.meta().uid.as_deref() == Some(uid))
    }
}

impl<K> Owners for Roots<K>
where
    K: Watched + Serialize + Send + Sync + 'static,
{
    fn standing(&self, key: &Key, owner: &OwnerReference) -> Standing {
        if !is_of_kind::<K>(owner) {
            return Standing::Unwatched;
        }
        if self.cache.blind_since().is_some() {
            return Standing::Unseen;
        }
        match self.cache.get(key).filter(|root| root.meta().uid.as_deref() == Some(&owner.uid)) {
            None => Standing::Gone,
            Some(root) if root.meta().deletion_timestamp.is_some() => Standing::Gone,
            Some(root) if was_reconciled(&*root) || self.lost_children.uids().contains(&owner.uid) => {
                Standing::Known
            }
            Some(_) => Standing::New,
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
        Ok(meta.uid.as_deref() == Some(uid) && meta.deletion_timestamp.is_none())
    }

    fn lost_a_child(&self, key: &Key, owner: &OwnerReference) {
        if !is_of_kind::<K>(owner) {
            return;
        }
        // Looked up under the lock: if the root leaves at the same time, its own subscriber comes after this.
        let mut uids = self.lost_children.uids();
        if self.has(key, &owner.uid) {
            uids.insert(owner.uid.clone());
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
    fn only_owners_in_the_cache_are_remembered_to_have_lost_a_child() {
        let cache = Cache::default();
        let (roots, key) = (Roots::new(&cache), Key::new("demo", "a"));
        cache.upsert(root("first"));
        roots.lost_a_child(&key, &reference("gone"));
        roots.lost_a_child(&key, &reference("first"));
        assert_eq!(*roots.lost_children.uids(), HashSet::from(["first".to_owned()]));
        cache.upsert(root("second"));
        assert!(roots.lost_children.uids().is_empty(), "replaced by another one of its name");
        roots.lost_a_child(&key, &reference("second"));
        cache.remove(&root("second").metadata);
        assert!(roots.lost_children.uids().is_empty());
    }
}
