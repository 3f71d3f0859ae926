//! Writes in the name of one controller: status by server-side apply here, children in `children.rs`. Decides nothing about
//! an object.
//!
//! Before a write the desired object is compared with the cached one, so that at rest nothing is sent. Fields that we
//! set are restored, fields that we do not set are left alone. A child of another owner is never adopted. A write that
//! was planned on an older state than the API server's is not sent, or refused by it: that is `Stale`, and the next
//! reconcile decides again.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{
    Client, Resource,
    api::{GetParams, ListParams, Patch, PatchParams, PostParams},
    core::Request,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::{
    controller::ReconcileError,
    key::Key,
    watch::{cache::Cache, watched::Watched},
    write::{
        conflicts::Conflicts,
        events::{Note, Severity},
        owners::{Owners, Roots},
    },
};

/// Writes in the name of one controller, for its root kind.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    field_manager: &'static str,
    hash_annotation: &'static str,
    owners: Arc<dyn Owners>,
    settled: Arc<Settled>,
    conflicts: Conflicts,
}

/// What a write changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// Nothing was sent.
    Unchanged,
    Created,
    Changed,
    /// Nothing was sent yet: another manager has taken back each of the last writes of the same content.
    Contested(Contest),
}

/// Two managers set the same field of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contest {
    pub kind: &'static str,
    pub key: Key,
    /// Who wrote the child last besides this controller; read from the API server when a contest is new.
    pub manager: Option<String>,
    /// When the write will be repeated.
    pub wait: Duration,
    /// True once per contest: the moment to report it.
    pub is_new: bool,
}

impl Contest {
    /// The event of a new contest.
    pub fn note(&self, reason: &'static str) -> Option<Note> {
        self.is_new.then(|| Note { severity: Severity::Warning, reason, message: self.message() })
    }

    /// One line for the user.
    fn message(&self) -> String {
        let Self { kind, key, manager, wait: _, is_new: _ } = self;
        let manager = manager.as_deref().unwrap_or("another manager");
        format!(
            "{manager} keeps changing fields of {kind} {key} that this controller sets; stop it, or let it set other fields"
        )
    }
}

/// In which way a plan was made from an older state than the API server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    #[error("it exists, and was not in the cache when this was planned")]
    Found,
    #[error("it has changed since this was planned")]
    Changed,
    #[error("a write to this version was refused, and the watch has brought no other one yet")]
    Awaited,
    #[error("its owner is gone")]
    OwnerGone,
    #[error("whether its owner still exists is unknown: the watch of that kind is failing")]
    OwnerWatchFails,
}

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Not a failure: the next reconcile decides again.
    #[error("{kind} {key}: {why}")]
    Stale { kind: &'static str, key: Key, why: Stale },
    /// An object of that name belongs to an object of the owner's name that was deleted.
    #[error(
        "{kind} {key} belongs to a deleted object of the same name; the garbage collector is about to take it"
    )]
    Leftover {
        kind: &'static str,
        key: Key,
        /// `None`: its deletion has not begun.
        deleted: Option<Timestamp>,
        /// The first of those that hold it back.
        finalizers: Vec<String>,
    },
    /// An object of that name belongs to another owner.
    #[error("{kind} {key} exists and belongs to {owner}; rename one of the two, or delete it")]
    Foreign { kind: &'static str, key: Key, owner: String },
    #[error("failed to {step} {kind} {key}")]
    Call {
        step: &'static str,
        kind: &'static str,
        key: Key,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("failed to render {kind} {key}")]
    Render {
        kind: &'static str,
        key: Key,
        #[source]
        source: serde_json::Error,
    },
    #[error("{kind} {key} has no controlling owner")]
    Unowned { kind: &'static str, key: Key },
}

impl ReconcileError for ApplyError {
    fn step(&self) -> Cow<'static, str> {
        match self {
            Self::Stale { kind, .. } | Self::Leftover { kind, .. } | Self::Foreign { kind, .. } => {
                format!("apply {kind}")
            }
            Self::Call { step, kind, .. } => format!("{step} {kind}"),
            Self::Render { kind, .. } | Self::Unowned { kind, .. } => format!("render {kind}"),
        }
        .into()
    }

    fn is_stale(&self) -> bool {
        matches!(self, Self::Stale { .. })
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Call { source, .. } => retry_after(source),
            Self::Stale { .. }
            | Self::Leftover { .. }
            | Self::Foreign { .. }
            | Self::Render { .. }
            | Self::Unowned { .. } => None,
        }
    }
}

impl Writer {
    /// `hash_annotation`: where the hash of what was last applied is kept, so that a field that we stop setting is
    /// noticed and taken back. `roots`: the owners of everything that this writer creates.
    pub fn new<K>(
        client: Client,
        field_manager: &'static str,
        hash_annotation: &'static str,
        roots: &Cache<K>,
    ) -> Self
    where
        K: Watched + Serialize + Send + Sync + 'static,
    {
        let owners = Arc::new(Roots::new(roots));
        Self {
            client,
            field_manager,
            hash_annotation,
            owners,
            settled: Arc::default(),
            conflicts: Conflicts::default(),
        }
    }

    /// Writes the status of a root object, if it differs from what the object has: to exactly the version that it was
    /// planned on.
    pub async fn apply_status<K, S>(
        &self,
        cache: &Cache<K>,
        object: &K,
        status: &S,
    ) -> Result<Written, ApplyError>
    where
        K: Watched + Serialize,
        S: Serialize,
    {
        const STEP: &str = "write the status of";
        let key = Key::of(object);
        let about = About::of::<K>(&key);
        let status = serde_json::to_value(status).map_err(|source| about.render(source))?;
        let current = serde_json::to_value(object).map_err(|source| about.render(source))?;
        let version = object.meta().resource_version.as_deref();
        if current.get("status") == Some(&status) || self.settled.has(&key, version, &status) {
            return Ok(Written::Unchanged);
        }
        self.may_write(version, &about)?;
        // The uid keeps the status of a deleted object away from its namesake; the version, an older status from a newer.
        let body = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {
                "name": &*key.name,
                "namespace": &*key.namespace,
                "uid": object.meta().uid,
                "resourceVersion": version,
            },
            "status": status,
        });
        let params = PatchParams::apply(self.field_manager).force();
        let request = Request::new(K::url_path(&(), namespace(&key)))
            .patch_subresource("status", &key.name, &params, &Patch::Apply(&body))
            .map_err(|error| about.call(STEP, kube::Error::BuildRequest(error)))?;
        let writing = cache.writing(&key, version);
        let written: K = match self.read(request, "patch_status").await {
            Ok(written) => written,
            Err(error) if is_conflict(&error) => return Err(self.conflict(version, &about)),
            Err(error) if is_code(&error, 404) => return Err(about.stale(Stale::OwnerGone)),
            Err(error) => return Err(about.call(STEP, error)),
        };
        self.conflicts.forget(about.kind, &key);
        if written.meta().resource_version.as_deref() == version {
            self.settled.note(&key, version, &status);
        }
        cache.absorb(written);
        drop(writing);
        Ok(Written::Changed)
    }

    /// Whether the API server has no newer version of a root, for a controller whose watch may be late. The cache has what
    /// was read.
    pub async fn is_newest<K>(&self, cache: &Cache<K>, object: &K) -> Result<bool, ApplyError>
    where
        K: Watched,
    {
        let key = Key::of(object);
        let about = About::of::<K>(&key);
        let removals = cache.removals();
        let Some(read) = self.get::<K>(&about).await? else {
            cache.forget(&key, object.meta().uid.as_deref());
            return Ok(false);
        };
        let is_newest = read.meta().resource_version == object.meta().resource_version;
        cache.absorb_read(read, removals);
        Ok(is_newest)
    }

    pub(crate) fn owners(&self) -> &Arc<dyn Owners> {
        &self.owners
    }

    /// `Stale` while the API server is known to have a newer version of an object than this one. `None`: to create it.
    pub(crate) fn may_write(&self, version: Option<&str>, about: &About<'_>) -> Result<(), ApplyError> {
        match self.conflicts.holds(about.kind, about.key, version, Instant::now()) {
            true => Err(about.stale(Stale::Awaited)),
            false => Ok(()),
        }
    }

    /// The API server has refused a write to this version; the next one waits for another version.
    pub(crate) fn conflict(&self, version: Option<&str>, about: &About<'_>) -> ApplyError {
        self.conflicts.note(about.kind, about.key, version, Instant::now());
        about.stale(if version.is_some() { Stale::Changed } else { Stale::Found })
    }

    pub(crate) fn field_manager(&self) -> &'static str {
        self.field_manager
    }

    /// What an apply sends, and its hash.
    pub(crate) fn hashed_body<K>(&self, desired: &K, about: &About<'_>) -> Result<(Value, String), ApplyError>
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let mut body = body(desired, about)?;
        let hash = Sha256::digest(body.to_string());
        let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        body["metadata"]["annotations"][self.hash_annotation] = json!(hash);
        Ok((body, hash))
    }

    pub(crate) async fn patch<S>(
        &self,
        body: &Value,
        params: &PatchParams,
        about: &About<'_>,
    ) -> Result<S, kube::Error>
    where
        S: Watched,
    {
        let request = Request::new(S::url_path(&(), namespace(about.key)))
            .patch(&about.key.name, params, &Patch::Apply(body))
            .map_err(kube::Error::BuildRequest)?;
        self.read(request, "patch").await
    }

    /// By POST: fails with 409 if there is one of this name.
    pub(crate) async fn create<S>(&self, body: &Value, about: &About<'_>) -> Result<S, kube::Error>
    where
        S: Watched,
    {
        let params =
            PostParams { field_manager: Some(self.field_manager.to_owned()), ..PostParams::default() };
        let request = Request::new(S::url_path(&(), namespace(about.key)))
            .create(&params, body.to_string().into_bytes())
            .map_err(kube::Error::BuildRequest)?;
        self.read(request, "create").await
    }

    /// The object as the API server has it now; `None`: there is none.
    pub(crate) async fn get<S: Watched>(&self, about: &About<'_>) -> Result<Option<S>, ApplyError> {
        const STEP: &str = "read";
        let path = S::url_path(&(), namespace(about.key));
        let json = self.get_json(path, &about.key.name, STEP, about).await?;
        let object = json.map(|json| S::from_json(&json)).transpose();
        object.map_err(|error| about.call(STEP, kube::Error::SerdeError(error)))
    }

    /// As `get`, of an object that `about` need not be.
    pub(crate) async fn get_json(
        &self,
        path: String,
        name: &str,
        step: &'static str,
        about: &About<'_>,
    ) -> Result<Option<String>, ApplyError> {
        let request = Request::new(path)
            .get(name, &GetParams::default())
            .map_err(|error| about.call(step, kube::Error::BuildRequest(error)))?;
        match self.send(request, "get").await {
            Ok(json) => Ok(Some(json)),
            Err(error) if is_code(&error, 404) => Ok(None),
            Err(error) => Err(about.call(step, error)),
        }
    }

    /// Those that these parameters select.
    pub(crate) async fn list<S: Watched>(
        &self,
        namespace: &str,
        params: ListParams,
        about: &About<'_>,
    ) -> Result<Vec<S>, ApplyError> {
        const STEP: &str = "list";
        let params = params.limit(LONGEST_LIST);
        let request = Request::new(S::url_path(&(), Some(namespace)))
            .list(&params)
            .map_err(|error| about.call(STEP, kube::Error::BuildRequest(error)))?;
        let json = self.send(request, STEP).await.map_err(|error| about.call(STEP, error))?;
        items(&json).map_err(|error| about.call(STEP, kube::Error::SerdeError(error)))
    }

    /// Sends, and reads the object that the answer is.
    pub(crate) async fn read<K>(
        &self,
        request: http::Request<Vec<u8>>,
        operation: &'static str,
    ) -> Result<K, kube::Error>
    where
        K: Watched,
    {
        K::from_json(&self.send(request, operation).await?).map_err(kube::Error::SerdeError)
    }

    pub(crate) async fn send(
        &self,
        mut request: http::Request<Vec<u8>>,
        operation: &'static str,
    ) -> Result<String, kube::Error> {
        request.extensions_mut().insert(operation);
        self.client.request_text(request).await
    }
}

/// Statuses that change nothing although they differ from what is there: another manager has added a condition of its
/// own. Found out by sending them once for each version of the object.
#[derive(Default)]
struct Settled(Mutex<HashMap<Key, (String, u64)>>);

impl Settled {
    /// With more objects than these, some statuses are sent once more.
    const MOST: usize = 1_024;

    fn has(&self, key: &Key, version: Option<&str>, status: &Value) -> bool {
        let settled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        settled.get(key).is_some_and(|(known, hash)| version == Some(known) && *hash == hash_of(status))
    }

    fn note(&self, key: &Key, version: Option<&str>, status: &Value) {
        let Some(version) = version else { return };
        let mut settled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if settled.len() >= Self::MOST {
            settled.clear();
        }
        settled.insert(key.clone(), (version.to_owned(), hash_of(status)));
    }
}

fn hash_of(status: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    status.to_string().hash(&mut hasher);
    hasher.finish()
}

/// What an error says of its object.
pub(crate) struct About<'a> {
    pub(crate) kind: &'static str,
    pub(crate) key: &'a Key,
}

impl<'a> About<'a> {
    pub(crate) fn of<K: Resource<DynamicType = ()>>(key: &'a Key) -> Self {
        let kind = match K::kind(&()) {
            Cow::Borrowed(kind) => kind,
            // A kind that is a type has its name in the program.
            Cow::Owned(_) => "object",
        };
        Self { kind, key }
    }

    /// Ownership is read from the owner references alone: labels are restored like any other field.
    pub(crate) fn check_owner(&self, there: &ObjectMeta, owner: &OwnerReference) -> Result<(), ApplyError> {
        let owners = there.owner_references.as_deref().unwrap_or_default();
        let (kind, key) = (self.kind, self.key.clone());
        match owners.iter().find(|owner| owner.controller == Some(true)) {
            Some(controller) if controller.uid == owner.uid => Ok(()),
            Some(controller) if controller.kind == owner.kind && controller.name == owner.name => {
                Err(ApplyError::Leftover {
                    kind,
                    key,
                    deleted: there.deletion_timestamp.as_ref().map(|deleted| deleted.0),
                    finalizers: there.finalizers.clone().unwrap_or_default(),
                })
            }
            Some(controller) => {
                let owner = format!("{} {}", controller.kind, controller.name);
                Err(ApplyError::Foreign { kind, key, owner })
            }
            None => Err(ApplyError::Foreign { kind, key, owner: "no controller".to_owned() }),
        }
    }

    pub(crate) fn call(&self, step: &'static str, source: kube::Error) -> ApplyError {
        ApplyError::Call { step, kind: self.kind, key: self.key.clone(), source: Box::new(source) }
    }

    pub(crate) fn render(&self, source: serde_json::Error) -> ApplyError {
        ApplyError::Render { kind: self.kind, key: self.key.clone(), source }
    }

    pub(crate) fn stale(&self, why: Stale) -> ApplyError {
        ApplyError::Stale { kind: self.kind, key: self.key.clone(), why }
    }

    pub(crate) fn unowned(&self) -> ApplyError {
        ApplyError::Unowned { kind: self.kind, key: self.key.clone() }
    }
}

/// What is sent of a child.
pub(crate) fn body<K>(desired: &K, about: &About<'_>) -> Result<Value, ApplyError>
where
    K: Resource<DynamicType = ()> + Serialize,
{
    let mut body = serde_json::to_value(desired).map_err(|source| about.render(source))?;
    body["apiVersion"] = json!(K::api_version(&()));
    body["kind"] = json!(K::kind(&()));
    // The status of a child is not this controller's: what was compared stays true while only the status changes.
    if let Some(body) = body.as_object_mut() {
        body.remove("status");
    }
    Ok(body)
}

pub(crate) fn namespace(key: &Key) -> Option<&str> {
    (!key.namespace.is_empty()).then_some(&*key.namespace)
}

/// Of a list that is read for one decision.
const LONGEST_LIST: u32 = 500;

/// The objects of a list.
fn items<S: Watched>(json: &str) -> Result<Vec<S>, serde_json::Error> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(borrow)]
        items: Vec<&'a RawValue>,
    }
    let List { items } = serde_json::from_str(json)?;
    items.into_iter().map(|item| S::from_json(item.get())).collect()
}

pub(crate) fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// The object is not the one that was meant, or not in the version that was meant. The API server calls another uid in
/// an apply an invalid change of the field.
pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 409
        || (status.code == 422 && causes.into_iter().any(|cause| cause.field == "metadata.uid"))
}

fn retry_after(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else { return None };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
}
