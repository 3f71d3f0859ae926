//! Records which ReplicaSets belong, or have belonged, to which AIDispatcher. A ReplicaSet can be deleted, or its
//! Deployment can lose its owner, while its pods still run or end. The tokens and final messages of these pods still
//! belong to the AIDispatcher.
//!
//! The record is filled from the caches, also on a standby. A ReplicaSet is removed with its AIDispatcher, or as the
//! oldest of too many. It is not stored: after a restart it contains only what the caches contain.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api::aidispatcher::AIDispatcher;
use k8s_openapi::{
    api::apps::v1::{Deployment, ReplicaSet},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Resource, ResourceExt as _};
use runtime::{
    key::Key,
    watch::cache::{Cache, controller_of, is_of_kind},
};
use workload::{
    templates::deployment::{DeploymentView, ReplicaSetView},
    views::pod::PodView,
};

use crate::{Child, names};

/// Of one AIDispatcher; the oldest is dropped. A Deployment keeps ten by default.
const MOST_KEPT: usize = 256;

/// A ReplicaSet as the owner reference of a pod can name it. Owner references do not cross namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Revision {
    pub(crate) namespace: Arc<str>,
    pub(crate) uid: Arc<str>,
}

/// Whether a ReplicaSet was added to the record or removed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    Begins,
    Ends,
}

type Subscriber = Box<dyn Fn(&Revision, Membership) + Send + Sync>;

/// Kept for the lifetime of the process.
#[derive(Default)]
pub(crate) struct Revisions {
    known: Mutex<Known>,
    subscribers: Mutex<Vec<Subscriber>>,
}

#[derive(Default)]
struct Known {
    /// Uid of the AIDispatcher → its ReplicaSets, oldest first.
    of: HashMap<String, VecDeque<Revision>>,
    /// The AIDispatcher of each.
    owners: HashMap<Revision, String>,
}

impl Revision {
    pub(crate) fn new(namespace: &str, uid: &str) -> Self {
        Self { namespace: namespace.into(), uid: uid.into() }
    }

    /// The ReplicaSet that controls a pod.
    pub(crate) fn of(pod: &PodView) -> Option<Self> {
        let owner = controller_of(pod).filter(|owner| is_of_kind::<ReplicaSet>(owner))?;
        Some(Self::new(pod.metadata.namespace.as_deref().unwrap_or_default(), &owner.uid))
    }
}

impl Revisions {
    pub(crate) fn tracked(
        dispatchers: &Cache<AIDispatcher>,
        deployments: &Cache<Child<DeploymentView>>,
        replica_sets: &Cache<ReplicaSetView>,
    ) -> Arc<Self> {
        let revisions = Arc::<Self>::default();
        // The cache of owners may be later than that of their children, so changes of all three kinds are handled.
        let find = {
            let (revisions, dispatchers, deployments) =
                (Arc::clone(&revisions), dispatchers.clone(), deployments.clone());
            move |replica_set: &ReplicaSetView| revisions.find(replica_set, &dispatchers, &deployments)
        };
        let find = Arc::new(find);
        let found = Arc::clone(&find);
        replica_sets.subscribe(move |change| {
            change.new.into_iter().for_each(|replica_set| found(replica_set));
        });
        let (found, sets) = (Arc::clone(&find), replica_sets.clone());
        let of_deployment = Arc::new(move |deployment: &Child<DeploymentView>| {
            let namespace = deployment.namespace().unwrap_or_default();
            let owned =
                sets.owned_by::<Deployment>(&namespace, deployment.meta().uid.as_deref().unwrap_or_default());
            owned.iter().for_each(|replica_set| found(replica_set));
        });
        let found = Arc::clone(&of_deployment);
        deployments.subscribe(move |change| {
            change.new.into_iter().for_each(|deployment| found(deployment));
        });
        let (known, deployments) = (Arc::clone(&revisions), deployments.clone());
        dispatchers.subscribe(move |change| {
            let uid =
                |dispatcher: Option<&Arc<AIDispatcher>>| dispatcher.and_then(|it| it.metadata.uid.clone());
            let (old, new) = (uid(change.old), uid(change.new));
            if old == new {
                return;
            }
            old.iter().for_each(|deleted| known.forget(deleted));
            if new.is_some() {
                let key = Key::new(&change.key.namespace, &names::deployment(&change.key.name));
                deployments.get(&key).iter().for_each(|deployment| of_deployment(deployment));
            }
        });
        revisions
    }

    /// Calls `subscriber` with each ReplicaSet that is added or removed.
    pub(crate) fn subscribe(&self, subscriber: impl Fn(&Revision, Membership) + Send + Sync + 'static) {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(subscriber));
    }

    /// Whether it belongs, or has belonged, to an AIDispatcher.
    pub(crate) fn have(&self, revision: &Revision) -> bool {
        self.lock().owners.contains_key(revision)
    }

    /// Those of the AIDispatcher of this uid.
    pub(crate) fn of(&self, dispatcher: &str) -> BTreeSet<Revision> {
        self.lock().of.get(dispatcher).into_iter().flatten().cloned().collect()
    }

    fn find(
        &self,
        replica_set: &ReplicaSetView,
        dispatchers: &Cache<AIDispatcher>,
        deployments: &Cache<Child<DeploymentView>>,
    ) {
        let namespace = replica_set.metadata.namespace.as_deref().unwrap_or_default();
        let Some(uid) = replica_set.metadata.uid.as_deref() else { return };
        let owner = controller_of(replica_set).filter(|owner| is_of_kind::<Deployment>(owner));
        let Some(deployment) = owner.and_then(|owner| owned_in(deployments, namespace, owner)) else {
            return;
        };
        let owner = controller_of(&*deployment).filter(|owner| is_of_kind::<AIDispatcher>(owner));
        let Some(owner) = owner.filter(|owner| deployment.name_any() == names::deployment(&owner.name))
        else {
            return;
        };
        let revision = Revision::new(namespace, uid);
        let dropped = {
            let mut known = self.lock();
            // The owner is read under the lock, so that a concurrent deletion removes the entry after it is added.
            if known.owners.contains_key(&revision) || owned_in(dispatchers, namespace, owner).is_none() {
                return;
            }
            known.owners.insert(revision.clone(), owner.uid.clone());
            let of = known.of.entry(owner.uid.clone()).or_default();
            of.push_back(revision.clone());
            let dropped = if of.len() > MOST_KEPT { of.pop_front() } else { None };
            dropped.iter().for_each(|dropped| drop(known.owners.remove(dropped)));
            dropped
        };
        self.notify(&revision, Membership::Begins);
        dropped.iter().for_each(|dropped| self.notify(dropped, Membership::Ends));
    }

    fn forget(&self, dispatcher: &str) {
        let forgotten = {
            let mut known = self.lock();
            let forgotten = known.of.remove(dispatcher).unwrap_or_default();
            forgotten.iter().for_each(|revision| drop(known.owners.remove(revision)));
            forgotten
        };
        forgotten.iter().for_each(|revision| self.notify(revision, Membership::Ends));
    }

    fn notify(&self, revision: &Revision, membership: Membership) {
        let subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.iter().for_each(|subscriber| subscriber(revision, membership));
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The object that a reference names, if it exists with this uid.
fn owned_in<K: Resource>(owners: &Cache<K>, namespace: &str, owner: &OwnerReference) -> Option<Arc<K>> {
    let found = owners.get(&Key::new(namespace, &owner.name))?;
    (found.meta().uid.as_deref() == Some(&*owner.uid)).then_some(found)
}

#[cfg(test)]
pub(crate) mod tests {
    use runtime::watch::watched::Watched as _;
    use serde_json::json;

    use crate::tests::{dispatcher, pod};

    use super::*;

    /// The caches of demo/coder.
    #[derive(Default)]
    pub(crate) struct Caches {
        pub(crate) dispatchers: Cache<AIDispatcher>,
        pub(crate) deployments: Cache<Child<DeploymentView>>,
        pub(crate) replica_sets: Cache<ReplicaSetView>,
    }

    impl Caches {
        /// With one ReplicaSet of this uid.
        pub(crate) fn of_coder(uid: &str) -> Self {
            let caches = Self::default();
            caches.put_dispatcher();
            caches.put_deployment("demo");
            caches.put_replica_set("demo", uid);
            caches
        }

        pub(crate) fn tracked(&self) -> Arc<Revisions> {
            Revisions::tracked(&self.dispatchers, &self.deployments, &self.replica_sets)
        }

        pub(crate) fn put_dispatcher(&self) {
            self.dispatchers.upsert(dispatcher("{role: coder}"));
        }

        /// In this namespace, as a child of demo/coder.
        pub(crate) fn put_deployment(&self, namespace: &str) {
            let owner = json!({"apiVersion": AIDispatcher::api_version(&()), "kind": "AIDispatcher",
                "name": "coder", "uid": "uid-of-coder", "controller": true});
            self.put_deployment_of(namespace, json!([owner]));
        }

        pub(crate) fn put_deployment_of(&self, namespace: &str, owners: serde_json::Value) {
            let metadata = json!({"name": "coder-workers", "namespace": namespace, "uid": "deployment",
                "ownerReferences": owners});
            let deployment = json!({"metadata": metadata, "spec": {"template": {}}}).to_string();
            self.deployments.upsert(Child::from_json(&deployment).unwrap());
        }

        pub(crate) fn put_replica_set(&self, namespace: &str, uid: &str) {
            let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "coder-workers",
                "uid": "deployment", "controller": true});
            let metadata =
                json!({"name": uid, "namespace": namespace, "uid": uid, "ownerReferences": [owner]});
            self.replica_sets.upsert(serde_json::from_value(json!({"metadata": metadata})).unwrap());
        }

        pub(crate) fn remove_replica_set(&self, uid: &str) {
            let found = self.replica_sets.get(&Key::new("demo", uid)).unwrap();
            self.replica_sets.remove(found.meta());
        }

        pub(crate) fn remove_dispatcher(&self) {
            self.dispatchers.remove(dispatcher("{role: coder}").meta());
        }
    }

    fn is_known(revisions: &Revisions) -> bool {
        let set = Revision::of(&pod("{replicaSet: set}")).unwrap();
        assert_eq!(revisions.have(&set), revisions.of("uid-of-coder").contains(&set));
        revisions.have(&set)
    }

    #[test]
    fn a_replica_set_becomes_known_in_whichever_order_its_owners_arrive() {
        let puts: [fn(&Caches); 3] = [
            Caches::put_dispatcher,
            |caches| caches.put_deployment("demo"),
            |caches| caches.put_replica_set("demo", "set"),
        ];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let caches = Caches::default();
            let revisions = caches.tracked();
            for index in order {
                assert!(!is_known(&revisions), "{order:?}");
                puts[index](&caches);
            }
            assert!(is_known(&revisions), "{order:?}");
        }
    }

    #[test]
    fn a_replica_set_stays_known_until_the_aidispatcher_is_gone() {
        let caches = Caches::of_coder("set");
        let revisions = caches.tracked();
        caches.put_deployment_of("demo", json!([]));
        assert!(is_known(&revisions));
        caches.remove_replica_set("set");
        assert!(is_known(&revisions));
        caches.remove_dispatcher();
        assert!(!is_known(&revisions));
        assert!(revisions.lock().of.is_empty() && revisions.lock().owners.is_empty());
    }

    #[test]
    fn owners_of_another_namespace_do_not_count() {
        let caches = Caches::default();
        let revisions = caches.tracked();
        caches.put_dispatcher();
        caches.put_deployment("another");
        caches.put_replica_set("another", "set");
        caches.put_replica_set("demo", "set");
        assert!(revisions.lock().owners.is_empty());
    }

    #[test]
    fn no_more_than_a_bounded_number_is_kept() {
        let caches = Caches::default();
        let revisions = caches.tracked();
        caches.put_dispatcher();
        caches.put_deployment("demo");
        for index in 0..=MOST_KEPT {
            caches.put_replica_set("demo", &format!("set-{index}"));
        }
        assert_eq!(
            (revisions.of("uid-of-coder").len(), revisions.lock().owners.len()),
            (MOST_KEPT, MOST_KEPT)
        );
        assert!(!revisions.have(&Revision::new("demo", "set-0")));
    }
}
