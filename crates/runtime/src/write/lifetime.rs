//! The end of roots: their finalizers, and their deletion. Decides nothing about an object.

use std::{future::Future, pin::Pin, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::Request,
};
use serde::Serialize;
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    causes::with_causes,
    key::Key,
    queue::Waker,
    watch::{cache::Cache, watched::Watched},
    write::apply::{About, ApplyError, Writer, Written, is_code, is_conflict, namespace},
};

/// After a release that failed.
const RELEASE_AGAIN_AFTER: Duration = Duration::from_secs(30);

impl Writer {
    /// A task for `Controller::beside`: removes the finalizer from roots that are being deleted and cannot be decoded, which no
    /// reconcile ever sees. What the finalizer was for is left undone, and logged.
    pub fn releasing_undecodable<K>(
        &self,
        cache: &Cache<K>,
        finalizer: &'static str,
    ) -> impl FnOnce(Waker, CancellationToken) -> Pin<Box<dyn Future<Output = ()> + Send>> + use<K>
    where
        K: Watched + Send + Sync + 'static,
    {
        let (writer, cache) = (self.clone(), cache.clone());
        move |_, stop| {
            Box::pin(async move {
                let mut leavers = cache.unreadable_leavers();
                loop {
                    let all: Vec<ObjectMeta> = leavers.borrow_and_update().values().cloned().collect();
                    let mut has_failed = false;
                    for meta in all {
                        let released = writer.release::<K>(&meta, finalizer).await;
                        match released {
                            Ok(()) => cache.forget_undecodable(&Key::named_in(&meta)),
                            Err(error) => {
                                has_failed = true;
                                warn!(error = with_causes(&error), "failed to release an object");
                            }
                        }
                    }
                    tokio::select! {
                        changed = leavers.changed() => if changed.is_err() { return },
                        () = sleep(RELEASE_AGAIN_AFTER), if has_failed => {}
                        () = stop.cancelled() => return,
                    }
                }
            })
        }
    }

    /// Removes the finalizer from exactly this version of an object of which only the metadata is known.
    async fn release<K: Watched>(&self, meta: &ObjectMeta, finalizer: &str) -> Result<(), ApplyError> {
        const STEP: &str = "release";
        let mut finalizers = meta.finalizers.clone().unwrap_or_default();
        if !finalizers.iter().any(|known| known == finalizer) {
            return Ok(());
        }
        finalizers.retain(|known| known != finalizer);
        let key = Key::named_in(meta);
        let about = About::of::<K>(&key);
        let body = json!({"metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "finalizers": finalizers,
        }});
        let params =
            PatchParams { field_manager: Some(self.field_manager().to_owned()), ..PatchParams::default() };
        let request = Request::new(K::url_path(&(), namespace(&key)))
            .patch(&key.name, &params, &Patch::Merge(&body))
            .map_err(|error| about.call(STEP, kube::Error::BuildRequest(error)))?;
        match self.send(request, "patch").await {
            Ok(_) => {
                warn!(kind = about.kind, object = %key, finalizer, "removed the finalizer of an object that cannot be decoded");
                Ok(())
            }
            // A newer version follows.
            Err(error) if is_conflict(&error) || is_code(&error, 404) => Ok(()),
            Err(error) => Err(about.call(STEP, error)),
        }
    }

    /// Adds the finalizer to exactly this version of a root, or removes it. Other finalizers stay.
    pub async fn set_finalizer<K>(
        &self,
        cache: &Cache<K>,
        object: &K,
        finalizer: &str,
        is_wanted: bool,
    ) -> Result<Written, ApplyError>
    where
        K: Watched + Serialize,
    {
        const STEP: &str = "set the finalizer of";
        let mut finalizers = object.meta().finalizers.clone().unwrap_or_default();
        if finalizers.iter().any(|known| known == finalizer) == is_wanted {
            return Ok(Written::Unchanged);
        }
        finalizers.retain(|known| known != finalizer);
        finalizers.extend(is_wanted.then(|| finalizer.to_owned()));
        let key = Key::of(object);
        let about = About::of::<K>(&key);
        let version = object.meta().resource_version.as_deref();
        self.may_write(version, &about)?;
        // Not by server-side apply: it merges the finalizers of all field managers, and those of other clients must stay.
        let body = json!({"metadata": {
            "uid": object.meta().uid,
            "resourceVersion": version,
            "finalizers": finalizers,
        }});
        let params =
            PatchParams { field_manager: Some(self.field_manager().to_owned()), ..PatchParams::default() };
        let request = Request::new(K::url_path(&(), namespace(&key)))
            .patch(&key.name, &params, &Patch::Merge(&body))
            .map_err(|error| about.call(STEP, kube::Error::BuildRequest(error)))?;
        let writing = cache.writing(&key, version);
        match self.read::<K>(request, "patch").await {
            // The last finalizer of an object that is being deleted: the answer is the object that is gone now.
            Ok(written) if written.meta().deletion_timestamp.is_some() && !is_wanted => {
                if written.meta().finalizers.as_ref().is_none_or(Vec::is_empty) {
                    cache.forget(&key, written.meta().uid.as_deref());
                } else {
                    cache.absorb(written);
                }
            }
            Ok(written) => cache.absorb(written),
            Err(error) if is_conflict(&error) => return Err(self.conflict(version, &about)),
            Err(error) if is_code(&error, 404) => {
                cache.forget(&key, object.meta().uid.as_deref());
                return Ok(Written::Unchanged);
            }
            Err(error) => return Err(about.call(STEP, error)),
        }
        drop(writing);
        Ok(Written::Changed)
    }

    /// Deletes exactly this version of a root; one that is gone already is no error.
    pub async fn delete_root<K>(&self, cache: &Cache<K>, object: &K) -> Result<(), ApplyError>
    where
        K: Watched,
    {
        let (key, meta) = (Key::of(object), object.meta());
        let about = About::of::<K>(&key);
        let version = meta.resource_version.as_deref();
        self.may_write(version, &about)?;
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: meta.uid.clone(),
                resource_version: meta.resource_version.clone(),
            }),
            ..DeleteParams::background()
        };
        let request = Request::new(K::url_path(&(), namespace(&key)))
            .delete(&key.name, &params)
            .map_err(|error| about.call("delete", kube::Error::BuildRequest(error)))?;
        match self.send(request, "delete").await {
            Ok(_) => {
                info!(kind = about.kind, object = %key, "deleted");
                // With a finalizer it stays, and the watch delivers it.
                if meta.finalizers.as_ref().is_none_or(Vec::is_empty) {
                    cache.forget(&key, meta.uid.as_deref());
                }
                Ok(())
            }
            Err(error) if is_code(&error, 404) => {
                cache.forget(&key, meta.uid.as_deref());
                Ok(())
            }
            Err(error) if is_code(&error, 409) => Err(self.conflict(version, &about)),
            Err(error) => Err(about.call("delete", error)),
        }
    }
}
