//! Writes: server-side apply of children and status, deletes with preconditions. Decides nothing about an object.
//!
//! Before a write the desired object is compared with the cached one, so that at rest nothing is sent. Fields that we
//! set are restored, fields that we do not set are left alone. A child of somebody else is never adopted.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Client, Resource,
    api::{DeleteParams, GetParams, Patch, PatchParams, Preconditions},
    core::{Request, Status},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tracing::info;

use crate::{
    cache::{Cache, Key, controller_of},
    decode,
    kept::Covers,
};

mod covers;

pub(crate) use covers::covers;

/// Writes in the name of one controller.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    field_manager: &'static str,
    hash_annotation: &'static str,
}

/// What a write changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Nothing was sent.
    Unchanged,
    Created,
    Changed,
}

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// An object of that name belongs to somebody else.
    #[error("{kind} {key} exists and belongs to {owner}; rename one of the two, or delete it")]
    Foreign { kind: String, key: Key, owner: String },
    #[error("failed to {step} {kind} {key}")]
    Call {
        step: &'static str,
        kind: String,
        key: Key,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("failed to render {kind} {key}")]
    Render {
        kind: String,
        key: Key,
        #[source]
        source: serde_json::Error,
    },
    #[error("{kind} {key} has no controlling owner")]
    Unowned { kind: String, key: Key },
}

impl ApplyError {
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Call { source, .. } => retry_after(source),
            Self::Foreign { .. } | Self::Render { .. } | Self::Unowned { .. } => None,
        }
    }
}

impl Writer {
    /// `hash_annotation`: where the hash of what was last applied is kept, so that a field that we stop setting is
    /// noticed and taken back.
    pub fn new(client: Client, field_manager: &'static str, hash_annotation: &'static str) -> Self {
        Self { client, field_manager, hash_annotation }
    }

    /// Makes a child what it should be. `desired` names its controlling owner; the cache tells what is there, in
    /// whole or as a view (`kept`).
    pub async fn apply<K, S>(&self, cache: &Cache<S>, desired: &K) -> Result<Written, ApplyError>
    where
        K: Resource<DynamicType = ()> + Serialize,
        S: Resource<DynamicType = ()> + Covers + DeserializeOwned,
    {
        let key = Key::of(desired);
        let about = About { kind: K::kind(&()).into_owned(), key: &key };
        let Some(owner) = controller_of(desired).map(|owner| owner.uid.clone()) else {
            return Err(ApplyError::Unowned { kind: about.kind, key });
        };
        let body = self.body(desired, &about)?;
        let Some(seen) = cache.get(&key) else {
            return self.create(cache, body, &owner, &about).await;
        };
        about.check_owner(seen.meta(), &owner)?;
        if seen.meta().deletion_timestamp.is_some() {
            // It cannot be brought back; its end will start the next reconcile.
            return Ok(Written::Unchanged);
        }
        let hash = body["metadata"]["annotations"][self.hash_annotation].as_str().unwrap_or_default();
        if seen.covers(&body, hash).map_err(|source| about.render(source))? {
            return Ok(Written::Unchanged);
        }
        self.force(cache, body, seen.meta(), &about).await?;
        info!(kind = about.kind, child = %key, "changed");
        Ok(Written::Changed)
    }

    /// Writes the status of a root object, if it differs from what the object has.
    pub async fn apply_status<K, S>(
        &self,
        cache: &Cache<K>,
        object: &K,
        status: &S,
    ) -> Result<Written, ApplyError>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
        S: Serialize,
    {
        let key = Key::of(object);
        let about = About { kind: K::kind(&()).into_owned(), key: &key };
        let status = serde_json::to_value(status).map_err(|source| about.render(source))?;
        let current = serde_json::to_value(object).map_err(|source| about.render(source))?;
        if current.get("status") == Some(&status) {
            return Ok(Written::Unchanged);
        }
        // The uid keeps the status of a deleted object away from its namesake.
        let body = json!({
            "apiVersion": K::api_version(&()),
            "kind": about.kind,
            "metadata": {"name": &*key.name, "namespace": &*key.namespace, "uid": object.meta().uid},
            "status": status,
        });
        let params = PatchParams::apply(self.field_manager).force();
        let request = Request::new(K::url_path(&(), namespace(&key)))
            .patch_subresource("status", &key.name, &params, &Patch::Apply(&body))
            .map_err(|error| about.call("write the status of", kube::Error::BuildRequest(error)))?;
        let written =
            self.read(request, "patch_status").await.map_err(|e| about.call("write the status of", e))?;
        cache.absorb(written);
        Ok(Written::Changed)
    }

    /// Deletes exactly this object: another uid or a newer version is left alone, and so is one that is gone already.
    pub async fn delete<K>(&self, object: &K) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = ()>,
    {
        let key = Key::of(object);
        let about = About { kind: K::kind(&()).into_owned(), key: &key };
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: object.meta().uid.clone(),
                resource_version: object.meta().resource_version.clone(),
            }),
            ..DeleteParams::background()
        };
        let request = Request::new(K::url_path(&(), namespace(&key)))
            .delete(&key.name, &params)
            .map_err(|error| about.call("delete", kube::Error::BuildRequest(error)))?;
        match self.send(request, "delete").await {
            Ok(_) => {
                info!(kind = about.kind, child = %key, "deleted");
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(about.call("delete", error)),
        }
    }

    /// The first apply of an absent child neither forces nor merges: what is there already may be somebody else's.
    async fn create<S>(
        &self,
        cache: &Cache<S>,
        mut body: Value,
        owner: &str,
        about: &About<'_>,
    ) -> Result<Written, ApplyError>
    where
        S: Resource<DynamicType = ()> + DeserializeOwned,
    {
        // A version that no object ever has: an apply that would merge into an existing object is a conflict.
        body["metadata"]["resourceVersion"] = json!(NEVER_A_VERSION);
        let params = PatchParams::apply(self.field_manager);
        match self.patch::<S>(&body, &params, about).await {
            Ok(created) => {
                cache.absorb(created);
                info!(kind = about.kind, child = %about.key, "created");
                return Ok(Written::Created);
            }
            Err(kube::Error::Api(status)) if is_conflict(&status) => {}
            Err(error) => return Err(about.call("apply", error)),
        }
        // Ours after all, if the cache has not yet told of our own last write.
        let request = Request::new(S::url_path(&(), namespace(about.key)))
            .get(&about.key.name, &GetParams::default())
            .map_err(|error| about.call("read", kube::Error::BuildRequest(error)))?;
        let there: S = self.read(request, "get").await.map_err(|error| about.call("read", error))?;
        about.check_owner(there.meta(), owner)?;
        self.force(cache, body, there.meta(), about).await?;
        Ok(Written::Changed)
    }

    async fn force<S>(
        &self,
        cache: &Cache<S>,
        mut body: Value,
        seen: &ObjectMeta,
        about: &About<'_>,
    ) -> Result<(), ApplyError>
    where
        S: Resource<DynamicType = ()> + DeserializeOwned,
    {
        if let Some(meta) = body["metadata"].as_object_mut() {
            meta.remove("resourceVersion");
            meta.insert("uid".to_owned(), json!(seen.uid));
        }
        let params = PatchParams::apply(self.field_manager).force();
        let written =
            self.patch::<S>(&body, &params, about).await.map_err(|error| about.call("apply", error))?;
        cache.absorb(written);
        Ok(())
    }

    async fn patch<S>(&self, body: &Value, params: &PatchParams, about: &About<'_>) -> Result<S, kube::Error>
    where
        S: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let request = Request::new(S::url_path(&(), namespace(about.key)))
            .patch(&about.key.name, params, &Patch::Apply(body))
            .map_err(kube::Error::BuildRequest)?;
        self.read(request, "patch").await
    }

    /// Sends, and reads the object that the answer is.
    async fn read<K>(
        &self,
        request: http::Request<Vec<u8>>,
        operation: &'static str,
    ) -> Result<K, kube::Error>
    where
        K: Resource + DeserializeOwned,
    {
        decode::object(&self.send(request, operation).await?).map_err(kube::Error::SerdeError)
    }

    async fn send(
        &self,
        mut request: http::Request<Vec<u8>>,
        operation: &'static str,
    ) -> Result<String, kube::Error> {
        request.extensions_mut().insert(operation);
        self.client.request_text(request).await
    }

    fn body<K>(&self, desired: &K, about: &About<'_>) -> Result<Value, ApplyError>
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let mut body = serde_json::to_value(desired).map_err(|source| about.render(source))?;
        body["apiVersion"] = json!(K::api_version(&()));
        body["kind"] = json!(about.kind);
        let hash = Sha256::digest(body.to_string());
        let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        body["metadata"]["annotations"][self.hash_annotation] = json!(hash);
        Ok(body)
    }
}

/// What an error says of its object.
struct About<'a> {
    kind: String,
    key: &'a Key,
}

impl About<'_> {
    fn check_owner(&self, there: &ObjectMeta, owner: &str) -> Result<(), ApplyError> {
        let owners = there.owner_references.as_deref().unwrap_or_default();
        let belongs_to = match owners.iter().find(|owner| owner.controller == Some(true)) {
            Some(controller) if controller.uid == owner => return Ok(()),
            Some(controller) => format!("{} {}", controller.kind, controller.name),
            None => "nobody".to_owned(),
        };
        Err(ApplyError::Foreign { kind: self.kind.clone(), key: self.key.clone(), owner: belongs_to })
    }

    fn call(&self, step: &'static str, source: kube::Error) -> ApplyError {
        ApplyError::Call { step, kind: self.kind.clone(), key: self.key.clone(), source: Box::new(source) }
    }

    fn render(&self, source: serde_json::Error) -> ApplyError {
        ApplyError::Render { kind: self.kind.clone(), key: self.key.clone(), source }
    }
}

/// etcd's revisions begin at 1, and revision 1 is taken long before the first object is stored.
const NEVER_A_VERSION: &str = "1";

fn namespace(key: &Key) -> Option<&str> {
    (!key.namespace.is_empty()).then_some(&*key.namespace)
}

fn is_conflict(status: &Status) -> bool {
    status.code == 409
}

fn retry_after(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else { return None };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
}
