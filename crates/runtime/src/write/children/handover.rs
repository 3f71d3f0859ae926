//! Gives fields of a child to another writer without a gap.
//!
//! A field that its only manager stops applying is removed, or gets its default. So a second manager holds it at its value
//! first, and the controller stops applying it after that.

use kube::{
    Resource,
    api::{Patch, PatchParams},
    core::Request,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tracing::info;

use super::Children;
use crate::{
    key::Key,
    watch::{cached_child::CachedChild, watched::Watched},
    write::apply::{About, ApplyError, Stale, is_code, is_conflict, namespace},
};

impl<V, R, K> Children<CachedChild<V, R>, K>
where
    V: Resource<DynamicType = ()> + DeserializeOwned + Clone + PartialEq + Send + Sync + 'static,
    R: Resource<DynamicType = ()> + 'static,
    K: Resource<DynamicType = ()> + Serialize,
{
    /// Applies these fields of the spec of exactly this version of a child, in the name of `manager`. The values are those
    /// that the child has, so nothing of it changes but who manages them.
    pub async fn hold(&self, child: &V, spec: &Value, manager: &'static str) -> Result<(), ApplyError> {
        const STEP: &str = "hand over fields of";
        let meta = child.meta();
        let key = Key::named_in(meta);
        let about = About::of::<K>(&key);
        let version = meta.resource_version.as_deref();
        self.writer.may_write(version, &about)?;
        let body = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {
                "name": &*key.name,
                "namespace": &*key.namespace,
                "uid": meta.uid,
                "resourceVersion": version,
            },
            "spec": spec,
        });
        let params = PatchParams::apply(manager).force();
        let request = Request::new(K::url_path(&(), namespace(&key)))
            .patch(&key.name, &params, &Patch::Apply(&body))
            .map_err(|error| about.call(STEP, kube::Error::BuildRequest(error)))?;
        let writing = self.cache.writing(&key, version);
        match self.writer.send(request, "patch").await {
            Ok(answer) => {
                let held = CachedChild::from_json(&answer).map_err(|source| about.render(source))?;
                self.cache.absorb(held);
                drop(writing);
                info!(kind = about.kind, child = %key, manager, "fields handed over");
                Ok(())
            }
            Err(error) if is_code(&error, 404) => {
                self.cache.forget(&key, meta.uid.as_deref());
                Err(about.stale(Stale::Changed))
            }
            Err(error) if is_conflict(&error) => Err(self.writer.conflict(version, &about)),
            Err(error) => Err(about.call(STEP, error)),
        }
    }
}
