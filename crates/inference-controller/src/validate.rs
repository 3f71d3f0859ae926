//! Converts a spec into validated types, with defaults. Pure.
//!
//! An `Invalid` spec becomes a condition and is not retried. The API server refuses most invalid specs; this module checks
//! what CEL rules cannot express, and objects that are older than the rules.

use std::time::Duration;

use api::{
    aiinference::{
        AIInference, AIInferenceSpec, DEFAULT_SURGE_TIMEOUT_SECONDS, Disruption, Engine, Listen, ModelLoader,
        Rollout,
    },
    labels,
    pods::{EnvVar, PodOptions, Resources},
};
use k8s_openapi::{
    apimachinery::pkg::api::resource::Quantity, apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::Resource;
use text::quantity::Bytes;
use workload::{digest::digest, faults::gpu::Gpus};

use crate::{
    engine::{Parallelism, Version, is_version, version},
    names::Track,
};

mod flags;
mod source;

pub(crate) use source::{HubAccess, Origin, Source, Store, Volume};

/// A valid spec.
#[derive(Clone, Debug)]
pub(crate) struct ValidInference {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) owner: OwnerReference,
    pub(crate) generation: i64,
    pub(crate) content: Content,
    pub(crate) track: Track,
    /// Hash of the spec fields that the pod template depends on.
    pub(crate) spec_hash: String,
    pub(crate) source: Source,
    pub(crate) engine: Engine,
    pub(crate) served_model_name: String,
    pub(crate) image: Option<String>,
    pub(crate) args: Vec<String>,
    pub(crate) command: Vec<String>,
    /// `None`: by the image.
    pub(crate) engine_version: Option<Version>,
    pub(crate) parallelism: Parallelism,
    /// `None`: the engine's default.
    pub(crate) drain_seconds: Option<i32>,
    /// `None`: no engine counts as stalled.
    pub(crate) stall_seconds: Option<i32>,
    pub(crate) listen: Listen,
    pub(crate) env: Vec<EnvVar>,
    pub(crate) resources: Resources,
    pub(crate) gpus: Option<Gpus>,
    pub(crate) replicas: i32,
    pub(crate) warmup_timeout_seconds: i32,
    pub(crate) rollout: Rollout,
    pub(crate) disruption: Disruption,
    /// Whether there is a Service that has the address of each ready pod.
    pub(crate) is_headless: bool,
    /// How long a shortage may last before an old pod is deleted first.
    pub(crate) surge_timeout: Duration,
    pub(crate) pods: PodOptions,
    /// Settings of the loader.
    pub(crate) loader: ModelLoader,
    /// Value of the annotation `refresh`, which requests a new rendering.
    pub(crate) refresh: Option<String>,
    /// A flag that an earlier release accepted: existing pods with it are kept, new ones are refused.
    pub(crate) tolerated: Option<Invalid>,
}

impl ValidInference {
    /// A promotion changes the template within one generation.
    pub(crate) fn generation_of_template(&self) -> String {
        match self.content {
            Content::TopLevel => self.generation.to_string(),
            Content::Promoted | Content::Kept => format!("{}-{}", self.generation, self.spec_hash),
        }
    }
}

/// Which version stable should have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Content {
    #[default]
    TopLevel,
    /// That of the candidate.
    Promoted,
    /// That of an earlier candidate, which the spec has no more: its pods keep their template.
    Kept,
}

/// Why a spec is invalid, and what to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Invalid(pub(crate) String);

pub(crate) fn validate(inference: &AIInference) -> Result<ValidInference, Invalid> {
    let spec = &inference.spec;
    let meta = inference.meta();
    let owner = owner(inference)?;
    let tolerated = flags::none_is_owned(spec.engine, &spec.args).err();
    let gpus = gpus(spec)?;
    if gpus.is_none() && spec.image.is_none() && spec.engine != Engine::Triton {
        return Err(Invalid(format!(
            "spec.image is required when spec.gpu.count is 0: the default image of {} needs a GPU",
            spec.engine.as_str()
        )));
    }
    let resources = spec.resources.clone().unwrap_or_default();
    memory_is_valid("spec.resources", &resources)?;
    let loader = spec.model_loader.clone().unwrap_or_default();
    memory_is_valid(
        "spec.modelLoader.resources",
        loader.resources.as_ref().unwrap_or(&Resources::default()),
    )?;
    Ok(ValidInference {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: owner.name.clone(),
        generation: meta.generation.unwrap_or_default(),
        content: Content::TopLevel,
        track: Track::Stable,
        spec_hash: spec_hash(spec)?,
        source: source::source(spec)?,
        engine: spec.engine,
        served_model_name: spec.served_model_name.clone().unwrap_or_else(|| owner.name.clone()),
        owner,
        image: spec.image.clone(),
        args: spec.args.clone(),
        command: spec.command.clone(),
        engine_version: engine_version(spec)?,
        parallelism: parallelism(spec)?,
        drain_seconds: spec.drain_seconds,
        stall_seconds: spec.stall_seconds,
        listen: spec.listen,
        env: spec.env.clone(),
        resources,
        gpus,
        replicas: spec.replicas,
        warmup_timeout_seconds: spec.warmup_timeout_seconds,
        rollout: spec.rollout,
        disruption: spec.disruption,
        is_headless: spec.service.as_ref().is_some_and(|service| service.headless),
        surge_timeout: Duration::from_secs(u64::from(spec.surge_timeout_seconds.unsigned_abs())),
        pods: spec.pods.clone(),
        loader,
        refresh: meta.annotations.as_ref().and_then(|known| known.get(labels::REFRESH).cloned()),
        tolerated,
    })
}

/// Children are deleted with the object; with foreground deletion, before it.
pub(crate) fn owner(inference: &AIInference) -> Result<OwnerReference, Invalid> {
    let owner = inference
        .controller_owner_ref(&())
        .ok_or_else(|| Invalid("the object has no uid; it was not read from an API server".to_owned()))?;
    Ok(OwnerReference { block_owner_deletion: Some(true), ..owner })
}

fn gpus(spec: &AIInferenceSpec) -> Result<Option<Gpus>, Invalid> {
    let gpu = &spec.gpu;
    if gpu.count == 0 {
        return Ok(None);
    }
    let spelled: Vec<&str> =
        gpu.product_label.iter().chain(&gpu.product_labels).map(String::as_str).collect();
    let is_wrong = |text: &str| {
        text.split_once('=').map_or(text.is_empty(), |(key, value)| key.is_empty() || value.is_empty())
    };
    if let Some(text) = spelled.iter().find(|text| is_wrong(text)) {
        return Err(Invalid(format!(
            "spec.gpu: {text:?} is not a GPU product; use for example A100 or nvidia.com/gpu.product=A100"
        )));
    }
    Ok(Some(Gpus::new(gpu.count, &gpu.resource_name, spelled)))
}

fn engine_version(spec: &AIInferenceSpec) -> Result<Option<Version>, Invalid> {
    let parsed = spec.engine_version.as_deref().map(|text| {
        version(text).filter(is_version).ok_or_else(|| {
            Invalid(format!(
                "spec.engineVersion {text:?} is not a version of the engine; use for example 0.17.1"
            ))
        })
    });
    parsed.transpose()
}

fn parallelism(spec: &AIInferenceSpec) -> Result<Parallelism, Invalid> {
    // At least 1, also on the CPU.
    let gpus = spec.gpu.count.max(1);
    let Some(given) = &spec.parallelism else {
        return Ok(Parallelism { tensor: gpus, pipeline: 1, data: 1 });
    };
    let (pipeline, data) = (given.pipeline, given.data);
    let others = i64::from(pipeline) * i64::from(data);
    let rest = if others > 0 { i64::from(gpus) / others } else { 0 };
    let tensor = given.tensor.map_or(rest, i64::from);
    let product = tensor * others;
    let tensor = i32::try_from(tensor).unwrap_or_default();
    if product != i64::from(gpus) || tensor < 1 {
        return Err(Invalid(format!(
            "spec.parallelism: tensor times pipeline times data must be gpu.count: {tensor} × {pipeline} × {data} is not \
             {gpus}"
        )));
    }
    Ok(Parallelism { tensor, pipeline, data })
}

/// Memory must be parseable, because the size of a model volume may be added to it.
fn memory_is_valid(field: &str, resources: &Resources) -> Result<(), Invalid> {
    for (kind, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        if let Some(Quantity(memory)) = amounts.get("memory")
            && Bytes::parse(memory).is_none()
        {
            return Err(Invalid(format!(
                "{field}.{kind}.memory {memory:?} is not a quantity of bytes; use for example 16Gi"
            )));
        }
    }
    Ok(())
}

/// Fields that do not affect pods are set to fixed values first, so that scaling or pausing does not change the hash.
fn spec_hash(spec: &AIInferenceSpec) -> Result<String, Invalid> {
    let mut spec = spec.clone();
    spec.replicas = 0;
    spec.rollout = Rollout::Auto;
    spec.disruption = Disruption::Surge;
    spec.service = None;
    spec.gateway = None;
    spec.route_ref = None;
    spec.canary = None;
    // The default is not serialized, so specs without this field keep their hash.
    spec.surge_timeout_seconds = DEFAULT_SURGE_TIMEOUT_SECONDS;
    spec.node_failure_seconds = 0;
    spec.pods.paused = false;
    // Fields are in the order of the struct and maps are sorted, so equal specs give equal bytes.
    let bytes =
        serde_json::to_vec(&spec).map_err(|error| Invalid(format!("the spec is not JSON: {error}")))?;
    Ok(digest(bytes, 8))
}

#[cfg(test)]
mod tests;
