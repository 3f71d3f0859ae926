//! Children that are created once; afterwards only labels that were taken off are put back, because their spec is immutable
//! (Jobs) or they outlive their owner (claims). An upgrade of a controller that renders them differently leaves them alone.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{
    Resource,
    api::{ListParams, Patch, PatchParams},
    core::Request,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;
use tracing::info;

use super::Children;
use crate::{
    key::Key,
    watch::{cache::controller_of, watched::Watched},
    write::{
        apply::{About, ApplyError, Stale, Written, body, is_code, namespace},
        owners::OwnerState,
    },
};

/// The step of an error that says that a child is there and does not get its labels back.
pub const PUT_BACK_LABELS: &str = "put back the labels of";

/// In the place of the hash of a child whose labels are put back.
const LABELS: &str = "labels";

/// What decides whether an object is a child, and whether its watch delivers it.
#[derive(Deserialize)]
struct There {
    metadata: ObjectMeta,
}

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
                let labels = desired.meta().labels.clone().unwrap_or_default();
                self.find(&key, owner, &labels).await?;
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

    /// Asks the API server once whether it has an object of this name: for decisions that must not rest on a cache that may be
    /// late. An object of another owner is an error. One that is found is put into the cache, unless it lacks one of these
    /// labels: then a watch that selects by them does not deliver it. It gets them back, and comes with the watch.
    pub async fn find(
        &self,
        key: &Key,
        owner: &OwnerReference,
        labels: &BTreeMap<String, String>,
    ) -> Result<bool, ApplyError> {
        const STEP: &str = "read";
        let about = About::of::<K>(key);
        let removals = self.cache.removals();
        let path = K::url_path(&(), namespace(key));
        let Some(json) = self.writer.get_json(path, &key.name, STEP, &about).await? else { return Ok(false) };
        let unreadable = |error| about.call(STEP, kube::Error::SerdeError(error));
        let There { metadata } = serde_json::from_str(&json).map_err(unreadable)?;
        about.check_owner(&metadata, owner)?;
        let has = |(label, value): (&String, &String)| {
            metadata.labels.as_ref().and_then(|labels| labels.get(label)) == Some(value)
        };
        if labels.iter().all(has) {
            let there =
                S::from_json(&json).map_err(|error| about.call(STEP, kube::Error::SerdeError(error)))?;
            self.cache.absorb_read(there, removals);
        } else if metadata.deletion_timestamp.is_none() {
            self.put_labels_back(&metadata, labels, &about).await?;
        }
        Ok(true)
    }

    async fn put_labels_back(
        &self,
        there: &ObjectMeta,
        labels: &BTreeMap<String, String>,
        about: &About<'_>,
    ) -> Result<(), ApplyError> {
        let now = Instant::now();
        if self.contests.wait(about.key, LABELS, now).is_some() {
            // Another program takes them off again and again.
            return Ok(());
        }
        let body = json!({"metadata": {"uid": there.uid, "labels": labels}});
        let field_manager = Some(self.writer.field_manager().to_owned());
        let params = PatchParams { field_manager, ..PatchParams::default() };
        let request = Request::new(K::url_path(&(), namespace(about.key)))
            .patch(&about.key.name, &params, &Patch::Merge(&body))
            .map_err(|error| about.call(PUT_BACK_LABELS, kube::Error::BuildRequest(error)))?;
        match self.writer.send(request, "patch").await {
            Ok(_) => {
                self.contests.forced(about.key, LABELS, now, self.cache.len());
                info!(kind = about.kind, child = %about.key, "labels put back");
                Ok(())
            }
            // Another uid, or none any more.
            Err(error) if is_code(&error, 404) || is_code(&error, 409) => Err(about.stale(Stale::Changed)),
            Err(error) => Err(about.call(PUT_BACK_LABELS, error)),
        }
    }

    /// Whether the API server has no object of this name, whatever its labels, for a process that may only list. One that is
    /// found is put into the cache, whose watch must not select by labels.
    pub async fn is_not_listed(&self, key: &Key) -> Result<bool, ApplyError> {
        let about = About::of::<K>(key);
        let removals = self.cache.removals();
        let params = ListParams::default().fields(&format!("metadata.name={}", key.name));
        let found = self.writer.list::<S>(&key.namespace, params, &about).await?;
        let is_absent = found.is_empty();
        found.into_iter().for_each(|there| self.cache.absorb_read(there, removals));
        Ok(is_absent)
    }

    /// Objects with these labels as the API server has them, at most 500. They are not put into the cache: its watch may
    /// select by other labels, and would never say what becomes of them.
    pub async fn read(&self, namespace: &str, labels: &str) -> Result<Vec<S>, ApplyError> {
        let key = Key::new(namespace, labels);
        self.writer.list::<S>(namespace, ListParams::default().labels(labels), &About::of::<K>(&key)).await
    }

    /// Whether the cache has the newest version of each object with these labels, read once: for decisions that must not rest
    /// on a cache that may be late. What is newer is put into the cache. At most 500 objects are read.
    pub async fn are_newest(&self, namespace: &str, labels: &str) -> Result<bool, ApplyError> {
        let removals = self.cache.removals();
        let mut are_newest = true;
        for there in self.read(namespace, labels).await? {
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
