//! Children that are created once and never changed afterwards, because their spec is immutable (Jobs) or because they
//! outlive their owner (claims). An upgrade of a controller that renders them differently leaves them alone.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use serde::Serialize;
use tracing::info;

use super::Children;
use crate::{
    apply::{About, ApplyError, Stale, Written, body, is_code, namespace},
    cache::{Key, controller_of},
    owners::OwnerState,
    watched::Watched,
};

impl<S, K> Children<S, K>
where
    S: Watched + Send + Sync + 'static,
    K: Resource<DynamicType = ()> + Serialize,
{
    /// Creates a child; one of this name that is there already stays as it is. It must belong to the same owner.
    pub async fn create(&self, desired: &K) -> Result<Written, ApplyError> {
        let key = Key::of(desired);
        let about = About::of::<K>(&key);
        let Some(owner) = controller_of(desired) else { return Err(about.unowned()) };
        if let Some(seen) = self.cache.get(&key) {
            about.check_owner(seen.meta(), owner)?;
            return Ok(Written::Unchanged);
        }
        match self.create_absent(desired, owner, &about).await {
            Ok(None) => {
                // Not seen by the watch yet, or hidden from it, because its labels were taken off. The plan was made as if
                // it did not exist.
                self.is_absent(&key).await?;
                Err(about.stale(Stale::Found))
            }
            Ok(Some(written)) => Ok(written),
            Err(error) => Err(error),
        }
    }

    /// Creates an object on behalf of a root, without a reference to it, so that it stays when the root is deleted. An
    /// existing object of this name is not changed, also if another client has created it. If it is being deleted, the
    /// result is an error that is retried.
    pub async fn create_for(&self, owner: &OwnerReference, desired: &K) -> Result<Written, ApplyError> {
        let key = Key::of(desired);
        let about = About::of::<K>(&key);
        if let Some(seen) = self.cache.get(&key) {
            return match &seen.meta().deletion_timestamp {
                None => Ok(Written::Unchanged),
                Some(deleted) => Err(ApplyError::Leftover {
                    kind: about.kind,
                    deleted: Some(deleted.0),
                    finalizers: seen.meta().finalizers.clone().unwrap_or_default(),
                    key,
                }),
            };
        }
        let written = self.create_absent(desired, owner, &about).await?;
        // One that is there is seen soon.
        written.ok_or_else(|| about.stale(Stale::Found))
    }

    /// As `create_for`, also for a root that is being deleted: what is to be saved of it.
    pub async fn create_anyway(&self, desired: &K) -> Result<Written, ApplyError> {
        let key = Key::of(desired);
        if self.cache.get(&key).is_some() {
            return Ok(Written::Unchanged);
        }
        let about = About::of::<K>(&key);
        self.send_creation(desired, &about).await?.ok_or_else(|| about.stale(Stale::Found))
    }

    /// Whether the API server has no object of this name, read once: for decisions that must not rest on a cache that may be
    /// late. An object that is found is put into the cache.
    pub async fn is_absent(&self, key: &Key) -> Result<bool, ApplyError> {
        let about = About::of::<K>(key);
        let removals = self.cache.removals();
        let there = self.writer.get::<S>(&about).await?;
        let is_absent = there.is_none();
        if let Some(there) = there {
            self.cache.absorb_read(there, removals);
        }
        Ok(is_absent)
    }

    /// Whether the cache has the newest version of each object with these labels, read once: for decisions that must not rest
    /// on a cache that may be late. What is newer is put into the cache. At most 500 objects are read.
    pub async fn are_newest(&self, namespace: &str, labels: &str) -> Result<bool, ApplyError> {
        let key = Key::new(namespace, labels);
        let about = About::of::<K>(&key);
        let removals = self.cache.removals();
        let mut are_newest = true;
        for there in self.writer.list::<S>(namespace, labels, &about).await? {
            let known = self.cache.get(&Key::of(&there));
            if known.is_none_or(|known| known.meta().resource_version != there.meta().resource_version) {
                are_newest = false;
                self.cache.absorb_read(there, removals);
            }
        }
        Ok(are_newest)
    }

    /// `None`: there is one already.
    async fn create_absent(
        &self,
        desired: &K,
        owner: &OwnerReference,
        about: &About<'_>,
    ) -> Result<Option<Written>, ApplyError> {
        self.may_create_for(owner, about).await?;
        self.send_creation(desired, about).await
    }

    async fn send_creation(&self, desired: &K, about: &About<'_>) -> Result<Option<Written>, ApplyError> {
        // POST, because nothing is merged later: it needs no right to change such objects, and costs the API server less
        // than an apply.
        let body = body(desired, about)?;
        self.writer.may_write(None, about)?;
        let writing = self.cache.writing(about.key, None);
        match self.writer.create::<S>(&body, about).await {
            Ok(created) => {
                self.cache.absorb(created);
                drop(writing);
                info!(kind = about.kind, child = %about.key, "created");
                Ok(Some(Written::Created))
            }
            Err(error) if is_code(&error, 409) => {
                self.writer.conflict(None, about);
                Ok(None)
            }
            Err(error) => Err(about.call("create", error)),
        }
    }
}

impl<S, K> Children<S, K>
where
    K: Resource<DynamicType = ()>,
{
    /// Reads the owner, if it may have had this child before: see `owners`.
    pub(super) async fn may_create_for(
        &self,
        owner: &OwnerReference,
        about: &About<'_>,
    ) -> Result<(), ApplyError> {
        let owners = self.writer.owners();
        let key = Key::new(&about.key.namespace, &owner.name);
        match owners.state_of(&key, owner) {
            OwnerState::New | OwnerState::OtherKind => return Ok(()),
            OwnerState::WatchFails => return Err(about.stale(Stale::OwnerWatchFails)),
            OwnerState::Gone => return Err(about.stale(Stale::OwnerGone)),
            OwnerState::MayHaveHadChild => {}
        }
        const STEP: &str = "read the owner of";
        let removals = owners.removals();
        let read = self.writer.get_json(owners.path(namespace(&key)), &owner.name, STEP, about).await?;
        let lives = owners
            .lives(&key, &owner.uid, read.as_deref(), removals)
            .map_err(|error| about.call(STEP, kube::Error::SerdeError(error)))?;
        if lives { Ok(()) } else { Err(about.stale(Stale::OwnerGone)) }
    }
}
