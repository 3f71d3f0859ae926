//! AIInferences: those that run, and the temporary ones.

use api::{
    aiinference::{AIInference, AIInferenceStatus},
    conditions,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Resource;
use serde::Deserialize;
use serde_json::{Value, json};
use workload::{digest::digest, templates::rendered::Rendered};

/// An AIInference, of whichever owner.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = AIInference)]
#[serde(from = "Parts")]
pub(crate) struct InferenceView {
    pub(crate) metadata: ObjectMeta,
    /// The name of the model in its API.
    pub(crate) served_model_name: Option<String>,
    /// Digest of the fields that decide how it answers.
    pub(crate) version: String,
    pub(crate) status: AIInferenceStatus,
}

#[derive(Deserialize)]
struct Parts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: SpecParts,
    #[serde(default)]
    status: AIInferenceStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SpecParts {
    served_model_name: Option<String>,
    model_source: Value,
    model_store: Value,
    engine: Value,
    engine_version: Value,
    image: Value,
    args: Value,
    env: Value,
    volumes: Value,
}

impl SpecParts {
    fn version(&self) -> String {
        const BYTES: usize = 8;
        let Self {
            served_model_name,
            model_source,
            model_store,
            engine,
            engine_version,
            image,
            args,
            env,
            volumes,
        } = self;
        let decides = json!([
            served_model_name,
            model_source,
            model_store,
            engine,
            engine_version,
            image,
            args,
            env,
            volumes
        ]);
        digest(decides.to_string(), BYTES)
    }
}

impl From<Parts> for InferenceView {
    fn from(Parts { metadata, spec, status }: Parts) -> Self {
        // Only what is read here, so that other changes of a status start no reconcile.
        let AIInferenceStatus { phase, url, model, observed_generation, mut conditions, .. } = status;
        conditions.retain(|condition| READ.contains(&condition.type_.as_str()));
        let status = AIInferenceStatus {
            phase,
            url,
            model,
            observed_generation,
            conditions,
            ..AIInferenceStatus::default()
        };
        let version = spec.version();
        let served_model_name = spec.served_model_name;
        Self { metadata: narrow(metadata), served_model_name, version, status }
    }
}

/// The conditions that decisions read.
const READ: [&str; 2] = [conditions::READY, conditions::STALLED];

/// Identity, version, controlling owner and whether it is being deleted.
fn narrow(metadata: ObjectMeta) -> ObjectMeta {
    let owners = metadata.owner_references.unwrap_or_default();
    ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        generation: metadata.generation,
        finalizers: metadata.finalizers,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        owner_references: owners
            .into_iter()
            .find(|owner| owner.controller == Some(true))
            .map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

impl InferenceView {
    pub(crate) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn condition(&self, type_: &str) -> Option<&Condition> {
        // Words about an older spec say nothing about this one.
        let is_current = self.metadata.generation.is_none()
            || self.metadata.generation == Some(self.status.observed_generation);
        let mut known = self.status.conditions.iter().filter(|_| is_current);
        known.find(|condition| condition.type_ == type_)
    }

    /// Whether it answers.
    pub(crate) fn is_ready(&self) -> bool {
        !self.is_being_deleted()
            && self.condition(conditions::READY).is_some_and(|ready| ready.status == "True")
    }

    pub(crate) fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Its name, uid and version, as preconditions of its deletion.
    pub(crate) fn identity(&self) -> Rendered<AIInference> {
        let ObjectMeta { name, namespace, uid, resource_version, owner_references, .. } =
            self.metadata.clone();
        let metadata =
            ObjectMeta { name, namespace, uid, resource_version, owner_references, ..ObjectMeta::default() };
        Rendered::new(metadata, Value::Null)
    }
}
