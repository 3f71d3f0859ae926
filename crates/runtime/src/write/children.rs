//! The objects of one kind below a root: what the cache knows of them, and the writes to them.
//!
//! Cache and writer are one handle, so that an object cannot be compared with the cache of another kind. It decides
//! nothing about an object.

use std::{collections::BTreeMap, marker::PhantomData, ops::Deref, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{
    Resource,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::Request,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use crate::{
    key::Key,
    watch::{
        cache::{Cache, controller_of},
        cached_child::CachedChild,
        covers::covers,
        watched::Watched,
    },
    write::{
        apply::{About, ApplyError, Contest, Stale, Writer, Written, is_code, is_conflict, namespace},
        contests::Contests,
    },
};

mod creation;
mod handover;
mod replacement;

pub use creation::PUT_BACK_LABELS;
pub use replacement::Values;

/// What is seen of a kind, `S`, and what is written of it, `K`. Dereferences to the cache, for everything that only reads.
pub struct Children<S, K> {
    cache: Cache<S>,
    writer: Writer,
    contests: Arc<Contests>,
    written: PhantomData<fn(&K)>,
}

impl<S, K> Clone for Children<S, K> {
    fn clone(&self) -> Self {
        Self {
            cache: self.cache.clone(),
            writer: self.writer.clone(),
            contests: Arc::clone(&self.contests),
            written: PhantomData,
        }
    }
}

impl<S, K> Deref for Children<S, K> {
    type Target = Cache<S>;

    fn deref(&self) -> &Cache<S> {
        &self.cache
    }
}

/// The first apply of a child carries a version that no object ever has. So an apply that would merge into an existing
/// object is a conflict. etcd's revisions begin at 1, and revision 1 is taken long before the first object is stored.
const NEVER_A_VERSION: &str = "1";

impl Writer {
    /// The handle for the objects of one kind below the roots, from the cache that has them.
    pub fn of<S, K>(&self, cache: Cache<S>) -> Children<S, K>
    where
        S: Resource<DynamicType = ()> + Send + Sync + 'static,
        K: Resource<DynamicType = ()>,
    {
        debug_assert_eq!(S::kind(&()), K::kind(&()), "one kind, as it is seen and as it is written");
        let owners = Arc::clone(self.owners());
        cache.subscribe(move |change| {
            let Some(child) = change.gone() else { return };
            if let Some(owner) = controller_of(&**child) {
                owners.lost_a_child(&Key::new(&change.key.namespace, &owner.name), owner);
            }
        });
        Children { cache, writer: self.clone(), contests: Arc::default(), written: PhantomData }
    }
}

impl<V, R, K> Children<CachedChild<V, R>, K>
where
    V: Resource<DynamicType = ()> + DeserializeOwned + Clone + PartialEq + Send + Sync + 'static,
    R: Resource<DynamicType = ()> + 'static,
    K: Resource<DynamicType = ()> + Serialize,
{
    /// Makes a child what it should be. `desired` names its controlling owner, which must be a root of this controller.
    ///
    /// A handle takes objects of its own kind:
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Service;
    /// use runtime::{watch::cached_child::{CachedChild, Metadata}, write::children::Children};
    ///
    /// async fn right<R>(services: &Children<CachedChild<Metadata<Service>, R>, Service>, service: &Service)
    /// where
    ///     R: kube::Resource<DynamicType = ()> + 'static,
    /// {
    ///     let _ = services.apply(service).await;
    /// }
    /// ```
    ///
    /// and no others:
    ///
    /// ```compile_fail,E0308
    /// use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
    /// use runtime::{watch::cached_child::{CachedChild, Metadata}, write::children::Children};
    ///
    /// async fn wrong<R>(services: &Children<CachedChild<Metadata<Service>, R>, Service>, deployment: &Deployment)
    /// where
    ///     R: kube::Resource<DynamicType = ()> + 'static,
    /// {
    ///     let _ = services.apply(deployment).await;
    /// }
    /// ```
    pub async fn apply(&self, desired: &K) -> Result<Written, ApplyError> {
        self.write(desired, PlannedOn::AnyVersion).await
    }

    /// As `apply`, if this version of the child (`None`: no child) is still the newest, in the cache and in the API
    /// server. For a child whose content depends on what it was before: what another process wrote meanwhile must be
    /// planned with, not overwritten.
    pub async fn apply_to_version(
        &self,
        desired: &K,
        planned_on: Option<&str>,
    ) -> Result<Written, ApplyError> {
        self.write(desired, PlannedOn::Version(planned_on)).await
    }

    /// As `delete`. If the child has changed meanwhile, the newest version is put into the cache, and the error is `Stale`.
    /// Without it, the next plan would be made with the same old version while the watch fails. An object of that name that is no
    /// child of this owner any more stays, without an error.
    pub async fn delete_child(&self, child: &K) -> Result<(), ApplyError> {
        let stale = match self.delete(child).await {
            Err(stale @ ApplyError::Stale { .. }) => stale,
            done => return done,
        };
        let (key, meta) = (Key::of(child), child.meta());
        let about = About::of::<K>(&key);
        let removals = self.cache.removals();
        let there = self.writer.get::<CachedChild<V, R>>(&about).await?;
        let Some(there) = there.filter(|there| there.meta().uid == meta.uid) else {
            self.cache.forget(&key, meta.uid.as_deref());
            return Ok(());
        };
        let is_still_owned =
            controller_of(&there).map(|owner| &owner.uid) == controller_of(child).map(|owner| &owner.uid);
        self.cache.absorb_read(there, removals);
        if is_still_owned { Err(stale) } else { Ok(()) }
    }

    /// Whether an apply of this would wait, because another manager has taken it back again and again.
    pub fn is_held_back(&self, desired: &K) -> Result<bool, ApplyError> {
        let key = Key::of(desired);
        let (_, hash) = self.writer.hashed_body(desired, &About::of::<K>(&key))?;
        Ok(self.contests.wait(&key, &hash, Instant::now()).is_some())
    }

    async fn write(&self, desired: &K, base: PlannedOn<'_>) -> Result<Written, ApplyError> {
        let key = Key::of(desired);
        let about = About::of::<K>(&key);
        let Some(owner) = controller_of(desired) else { return Err(about.unowned()) };
        let (body, hash) = self.writer.hashed_body(desired, &about)?;
        let Some(seen) = self.cache.get(&key) else {
            return match base {
                PlannedOn::AnyVersion | PlannedOn::Version(None) => {
                    self.create_compared(body, &hash, owner, &about).await
                }
                PlannedOn::Version(Some(_)) => Err(about.stale(Stale::Changed)),
            };
        };
        // Before versions are compared: a plan knows no child of another owner, and would never be planned on it.
        about.check_owner(seen.meta(), owner)?;
        if seen.meta().deletion_timestamp.is_some() {
            // It cannot be brought back; its end will start the next reconcile.
            return Ok(Written::Unchanged);
        }
        let covered = match seen.covers(&body, &hash).map_err(|source| about.render(source))? {
            Some(covered) => covered,
            None => self.covers_as_read(&seen, &body, &hash, &about).await?,
        };
        if covered {
            // Whatever has changed since it was planned on, such as its status.
            return Ok(Written::Unchanged);
        }
        if let PlannedOn::Version(planned_on) = base
            && seen.meta().resource_version.as_deref() != planned_on
        {
            return Err(about.stale(Stale::Changed));
        }
        let now = Instant::now();
        if let Some(wait) = self.contests.wait(&key, &hash, now) {
            return self.contested(&key, &hash, wait, &about).await.map(Written::Contested);
        }
        self.force((body, &hash), seen.meta(), base, owner, &about).await?;
        self.contests.forced(&key, &hash, now, self.cache.len());
        info!(kind = about.kind, child = %key, "changed");
        Ok(Written::Changed)
    }

    /// For a child that is too large to be kept. Once for each of its versions, unless it is to be written.
    async fn covers_as_read(
        &self,
        seen: &CachedChild<V, R>,
        body: &Value,
        hash: &str,
        about: &About<'_>,
    ) -> Result<bool, ApplyError> {
        let path = K::url_path(&(), namespace(about.key));
        let json = self.writer.get_json(path, &about.key.name, "read", about).await?;
        let Some(json) = json else { return Err(about.stale(Stale::Changed)) };
        let there: Value = serde_json::from_str(&json)
            .map_err(|error| about.call("read", kube::Error::SerdeError(error)))?;
        let (is, was) = (&there["metadata"], seen.meta());
        if is["uid"].as_str() != was.uid.as_deref()
            || is["resourceVersion"].as_str() != was.resource_version.as_deref()
        {
            return Err(about.stale(Stale::Changed));
        }
        let covered = covers(&there, body);
        if covered {
            seen.was_covered(hash);
        }
        Ok(covered)
    }

    /// The first apply of an absent child neither forces nor merges: what is there already may belong to another owner.
    async fn create_compared(
        &self,
        mut body: Value,
        hash: &str,
        owner: &OwnerReference,
        about: &About<'_>,
    ) -> Result<Written, ApplyError> {
        self.may_create_for(owner, about).await?;
        body["metadata"]["resourceVersion"] = json!(NEVER_A_VERSION);
        let params = PatchParams::apply(self.writer.field_manager());
        let writing = self.cache.writing(about.key, None);
        let created = self.writer.patch::<CachedChild<V, R>>(&body, &params, about).await;
        match created {
            Ok(created) => {
                self.cache.absorb(compared(created, body, hash));
                drop(writing);
                info!(kind = about.kind, child = %about.key, "created");
                return Ok(Written::Created);
            }
            Err(error) if is_code(&error, 409) => {}
            Err(error) => return Err(about.call("apply", error)),
        }
        // Not seen by our watch yet, or hidden from it, because its labels were taken off. The plan was made as if it did
        // not exist, so it must not be written.
        self.read_again(None, owner, about, Stale::Found).await
    }

    /// Puts the child into the cache as the API server has it, because no watch delivers a child whose labels were taken
    /// off. The next plan is made with it. `seen`: what the cache has.
    async fn read_again<T>(
        &self,
        seen: Option<&ObjectMeta>,
        owner: &OwnerReference,
        about: &About<'_>,
        why: Stale,
    ) -> Result<T, ApplyError> {
        let removals = self.cache.removals();
        let Some(there) = self.writer.get::<CachedChild<V, R>>(about).await? else {
            if let Some(seen) = seen {
                self.cache.forget(about.key, seen.uid.as_deref());
            }
            return Err(about.stale(Stale::Changed));
        };
        about.check_owner(there.meta(), owner)?;
        self.cache.absorb_read(there, removals);
        Err(about.stale(why))
    }

    async fn force(
        &self,
        (mut body, hash): (Value, &str),
        seen: &ObjectMeta,
        base: PlannedOn<'_>,
        owner: &OwnerReference,
        about: &About<'_>,
    ) -> Result<(), ApplyError> {
        body["metadata"]["uid"] = json!(seen.uid);
        if let PlannedOn::Version(Some(version)) = base {
            self.writer.may_write(Some(version), about)?;
            body["metadata"]["resourceVersion"] = json!(version);
        }
        let params = PatchParams::apply(self.writer.field_manager()).force();
        match self.writer.patch::<CachedChild<V, R>>(&body, &params, about).await {
            Ok(written) => {
                self.cache.absorb(compared(written, body, hash));
                Ok(())
            }
            Err(error) if is_conflict(&error) => match base {
                // Another uid, or none any more. Outside of the cache's selector no watch would ever say so.
                PlannedOn::AnyVersion => {
                    self.cache.forget(about.key, seen.uid.as_deref());
                    Err(about.stale(Stale::Changed))
                }
                PlannedOn::Version(version) => {
                    // In case that the API server has no other version either.
                    self.writer.conflict(version, about);
                    self.read_again(Some(seen), owner, about, Stale::Changed).await
                }
            },
            Err(error) => Err(about.call("apply", error)),
        }
    }
}

impl<S, K> Children<S, K>
where
    S: Watched + Send + Sync + 'static,
    K: Resource<DynamicType = ()>,
{
    /// The first time that a write is held back, the API server is asked who keeps changing the child.
    /// `place`: what is contested about.
    async fn contested(
        &self,
        place: &Key,
        hash: &str,
        wait: Duration,
        about: &About<'_>,
    ) -> Result<Contest, ApplyError> {
        let is_new = self.contests.is_new(place, hash);
        let manager = if is_new { self.other_manager(about).await? } else { None };
        self.contests.reported(place, hash);
        Ok(Contest { kind: about.kind, key: about.key.clone(), manager, wait, is_new })
    }

    async fn other_manager(&self, about: &About<'_>) -> Result<Option<String>, ApplyError> {
        let path = K::url_path(&(), namespace(about.key));
        let json = self.writer.get_json(path, &about.key.name, "read", about).await?;
        let Some(json) = json else { return Err(about.stale(Stale::Changed)) };
        let read: Managed = serde_json::from_str(&json)
            .map_err(|error| about.call("read", kube::Error::SerdeError(error)))?;
        let others = read
            .metadata
            .managed_fields
            .into_iter()
            .filter(|entry| entry.subresource.is_empty() && entry.manager != self.writer.field_manager());
        Ok(others.max_by(|one, other| one.time.cmp(&other.time)).map(|entry| entry.manager))
    }

    /// Sets annotations of exactly this version of this object; `None` takes one off. It need not be a child: pods of a child belong to it.
    /// One that has changed is `Stale`; one that is gone is no error. The cache has the annotations at once, which says
    /// nothing about the caches of other programs.
    pub async fn annotate(
        &self,
        object: &K,
        annotations: &BTreeMap<&str, Option<String>>,
    ) -> Result<(), ApplyError> {
        const STEP: &str = "annotate";
        let meta = object.meta();
        let key = Key::named_in(meta);
        let about = About::of::<K>(&key);
        let body = json!({"metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "annotations": annotations,
        }});
        let field_manager = Some(self.writer.field_manager().to_owned());
        let params = PatchParams { field_manager, ..PatchParams::default() };
        let request = Request::new(K::url_path(&(), namespace(&key)))
            .patch(&key.name, &params, &Patch::Merge(&body))
            .map_err(|error| about.call(STEP, kube::Error::BuildRequest(error)))?;
        let version = meta.resource_version.as_deref();
        self.writer.may_write(version, &about)?;
        let writing = self.cache.writing(&key, version);
        match self.writer.send(request, "patch").await {
            Ok(answer) => {
                // One that cannot be read comes again with the watch.
                S::from_json(&answer).into_iter().for_each(|written| self.cache.absorb(written));
            }
            Err(error) if is_code(&error, 404) => self.cache.forget(&key, meta.uid.as_deref()),
            Err(error) if is_conflict(&error) => return Err(self.writer.conflict(version, &about)),
            Err(error) => return Err(about.call(STEP, error)),
        }
        drop(writing);
        Ok(())
    }

    /// Deletes exactly this version of this object; one that is gone already is no error.
    pub async fn delete(&self, object: &K) -> Result<(), ApplyError> {
        let meta = object.meta();
        let (uid, resource_version) = (meta.uid.clone(), meta.resource_version.clone());
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid, resource_version }),
            ..DeleteParams::background()
        };
        self.delete_with(meta, &params).await
    }

    /// Deletes this object, in whichever version, with this grace period. The API server also shortens that of an object
    /// that is being deleted; a kubelet that has begun to end the containers does not follow. Without any, a pod goes
    /// although its processes may still run: for a node that no kubelet will report of.
    pub async fn delete_within(&self, object: &K, grace: Duration) -> Result<(), ApplyError> {
        let meta = object.meta();
        let params = DeleteParams {
            grace_period_seconds: Some(u32::try_from(grace.as_secs()).unwrap_or(u32::MAX)),
            preconditions: Some(Preconditions { uid: meta.uid.clone(), resource_version: None }),
            ..DeleteParams::background()
        };
        self.delete_with(meta, &params).await
    }

    async fn delete_with(&self, meta: &ObjectMeta, params: &DeleteParams) -> Result<(), ApplyError> {
        let key = Key::named_in(meta);
        let about = About::of::<K>(&key);
        let decided_on = params.preconditions.as_ref().and_then(|known| known.resource_version.as_deref());
        if decided_on.is_some() {
            self.writer.may_write(decided_on, &about)?;
        }
        let request = Request::new(K::url_path(&(), namespace(&key)))
            .delete(&key.name, params)
            .map_err(|error| about.call("delete", kube::Error::BuildRequest(error)))?;
        match self.writer.send(request, "delete").await {
            Ok(answer) => {
                info!(kind = about.kind, child = %key, "deleted");
                self.absorb_deletion(&key, meta, &answer);
                Ok(())
            }
            Err(error) if is_code(&error, 404) => {
                self.cache.forget(&key, meta.uid.as_deref());
                Ok(())
            }
            Err(error) if is_code(&error, 409) => match decided_on {
                Some(_) => Err(self.writer.conflict(decided_on, &about)),
                None => {
                    // Another uid: this object is gone.
                    self.cache.forget(&key, meta.uid.as_deref());
                    Err(about.stale(Stale::Changed))
                }
            },
            Err(error) => Err(about.call("delete", error)),
        }
    }

    /// An object that has to end first is answered as it is now; of one that is gone, there is only a Status.
    fn absorb_deletion(&self, key: &Key, meta: &ObjectMeta, answer: &str) {
        match S::from_json(answer) {
            Ok(ending) if ending.meta().uid == meta.uid && ending.meta().deletion_timestamp.is_some() => {
                self.cache.absorb(ending);
            }
            Ok(_) | Err(_) => self.cache.forget(key, meta.uid.as_deref()),
        }
    }
}

/// The answer to an apply, compared with what was sent: what comes back as it was sent needs no second look.
fn compared<V, R>(answer: CachedChild<V, R>, mut sent: Value, hash: &str) -> CachedChild<V, R> {
    if let Some(metadata) = sent["metadata"].as_object_mut() {
        // That of the state before.
        metadata.remove("resourceVersion");
    }
    // One that cannot be compared now is compared by the next apply, which reports why.
    let _ = answer.covers(&sent, hash);
    answer
}

/// What a write was planned on.
#[derive(Clone, Copy, Debug)]
enum PlannedOn<'a> {
    /// Nothing of the child that is there matters.
    AnyVersion,
    /// This version of it, or that there is none.
    Version(Option<&'a str>),
}

/// Who has set which fields, as far as it is read here.
#[derive(Deserialize)]
struct Managed {
    metadata: ManagedMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManagedMetadata {
    #[serde(default)]
    managed_fields: Vec<ManagedFields>,
}

#[derive(Deserialize)]
struct ManagedFields {
    #[serde(default)]
    manager: String,
    #[serde(default)]
    subresource: String,
    /// RFC 3339 in UTC, to the second: later is greater.
    #[serde(default)]
    time: String,
}
