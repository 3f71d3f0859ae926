//! Converts a spec into validated types, with defaults. Pure.
//!
//! An `Invalid` spec becomes a condition and is not retried. The API server refuses most invalid specs; this module checks
//! what CEL rules cannot express, and objects that are older than the rules.

use std::{net::IpAddr, time::Duration};

use api::{
    aiinference::{
        AIInference, AIInferenceSpec, Addressing, DEFAULT_SURGE_TIMEOUT_SECONDS, Disruption, Engine, Listen,
        Medium, ModelLoader, ModelStore, ModelVolume, Rollout,
        source::{Hub, ModelSource},
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
    InferenceArgs,
    engine::{Parallelism, Version, is_version, version},
    names::Track,
};

mod flags;

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

/// The source of the weights.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    /// Copied into each pod.
    Copied {
        uri: String,
        /// The one file that is the model, if the source names it.
        file: Option<String>,
        origin: Origin,
        volume: Volume,
    },
    /// Mounted read-only from a claim.
    Claim { claim: String, path: Option<String> },
}

/// Where a copied model comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    Store(Store),
    Hub(HubAccess),
}

impl Origin {
    /// Secret with certificate authorities.
    pub(crate) fn ca_secret(&self) -> Option<&str> {
        let (Origin::Store(Store { ca_secret, .. }) | Origin::Hub(HubAccess { ca_secret, .. })) = self;
        ca_secret.as_deref()
    }
}

/// Access to a hub.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HubAccess {
    pub(crate) hub: Hub,
    /// `None`: the public hub.
    pub(crate) endpoint: Option<String>,
    /// Secret with a token.
    pub(crate) secret: Option<String>,
    pub(crate) timeout_seconds: i32,
    pub(crate) ca_secret: Option<String>,
    /// Patterns of paths.
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
}

/// Access to an object store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Store {
    pub(crate) endpoint: Option<String>,
    pub(crate) region: String,
    pub(crate) secret: Option<String>,
    pub(crate) timeout_seconds: i32,
    pub(crate) addressing: Addressing,
    /// Secret with certificate authorities.
    pub(crate) ca_secret: Option<String>,
    /// Of the model's SHA256SUMS.
    pub(crate) manifest_digest: Option<String>,
}

/// The volume of a copied model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Volume {
    Disk { limit: Option<Quantity> },
    Memory { size: Bytes },
    Ephemeral { size: Quantity, class: Option<String> },
}

/// Namespace and name of this process's service account, if known.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnAccount(Option<(String, String)>);

impl OwnAccount {
    pub(crate) fn of(args: &InferenceArgs) -> Self {
        Self(args.own_namespace.clone().zip(args.own_service_account.clone()))
    }

    /// Refuses the controller's own account for engines: their pods would get its token, and with it rights in all namespaces.
    pub(crate) fn is_not_used_by(&self, valid: ValidInference) -> Result<ValidInference, Invalid> {
        let account = valid.pods.service_account_name.as_deref();
        match &self.0 {
            Some((namespace, own)) if *namespace == valid.namespace && account == Some(own) => {
                Err(Invalid(format!(
                    "spec.serviceAccountName: {own} is the service account of the controller; use another one"
                )))
            }
            Some(_) | None => Ok(valid),
        }
    }
}

/// Why a spec is invalid, and what to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Invalid(pub(crate) String);

const DEFAULT_REGION: &str = "us-east-1";
const DEFAULT_STORE_SECONDS: i32 = 3_600;

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
        source: source(spec)?,
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

fn source(spec: &AIInferenceSpec) -> Result<Source, Invalid> {
    let source: ModelSource =
        spec.model_source.parse().map_err(|wrong| Invalid(format!("spec.modelSource {wrong}")))?;
    Ok(match source {
        ModelSource::Store { .. } => Source::Copied {
            // As the user wrote it; another spelling of the same location must not restart pods.
            uri: spec.model_source.clone(),
            file: source.gguf_file().filter(|_| spec.engine == Engine::Vllm).map(str::to_owned),
            origin: Origin::Store(store(spec.model_store.as_ref())?),
            volume: volume(spec.model_volume.as_ref())?,
        },
        ModelSource::Hub { hub, id: _, revision: _ } => Source::Copied {
            uri: spec.model_source.clone(),
            file: None,
            origin: Origin::Hub(hub_access(hub, spec)?),
            volume: volume(spec.model_volume.as_ref())?,
        },
        ModelSource::Claim { name, path } => {
            no_manifest(spec, "the files of a claim are not read before the engine reads them")?;
            Source::Claim { claim: name, path: (!path.is_empty()).then_some(path) }
        }
    })
}

fn no_manifest(spec: &AIInferenceSpec, why: &str) -> Result<(), Invalid> {
    if spec.model_store.as_ref().is_some_and(|store| store.manifest_digest.is_some()) {
        return Err(Invalid(format!(
            "spec.modelStore.manifestDigest needs an s3:// source in spec.modelSource: {why}"
        )));
    }
    Ok(())
}

fn hub_access(hub: Hub, spec: &AIInferenceSpec) -> Result<HubAccess, Invalid> {
    no_manifest(spec, "a commit in the source, as owner/name@commit, names the files of a hub")?;
    let store = spec.model_store.clone().unwrap_or_default();
    let loader = spec.model_loader.clone().unwrap_or_default();
    Ok(HubAccess {
        hub,
        endpoint: store.endpoint,
        secret: store.secret_name,
        timeout_seconds: store.timeout_seconds,
        ca_secret: store.ca_secret_name,
        include: loader.include,
        exclude: loader.exclude,
    })
}

fn store(store: Option<&ModelStore>) -> Result<Store, Invalid> {
    let addressing = store.map(|store| store.addressing).unwrap_or_default();
    let endpoint = store.and_then(|store| store.endpoint.clone());
    if let Some(endpoint) = endpoint.as_deref().filter(|endpoint| is_address(endpoint))
        && addressing == Addressing::VirtualHosted
    {
        return Err(Invalid(format!(
            "spec.modelStore.addressing: VirtualHosted needs an endpoint with a host name, and {endpoint} has an \
             address; use Path"
        )));
    }
    Ok(Store {
        endpoint,
        region: store.and_then(|store| store.region.clone()).unwrap_or_else(|| DEFAULT_REGION.to_owned()),
        secret: store.and_then(|store| store.secret_name.clone()),
        timeout_seconds: store.map_or(DEFAULT_STORE_SECONDS, |store| store.timeout_seconds),
        addressing,
        ca_secret: store.and_then(|store| store.ca_secret_name.clone()),
        manifest_digest: store.and_then(|store| store.manifest_digest.clone()),
    })
}

/// Whether the host of a URL is an IP address. The API server accepts no user in it.
fn is_address(url: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.split_once(':').map_or(authority, |(host, _)| host);
    authority.starts_with('[') || host.parse::<IpAddr>().is_ok()
}

fn volume(volume: Option<&ModelVolume>) -> Result<Volume, Invalid> {
    let Some(ModelVolume { medium, size, storage_class_name }) = volume else {
        return Ok(Volume::Disk { limit: None });
    };
    let bytes = size
        .as_ref()
        .map(|size| {
            Bytes::parse(&size.0).ok_or_else(|| {
                Invalid(format!(
                    "spec.modelVolume.size {:?} is not a quantity of bytes; use for example 50Gi",
                    size.0
                ))
            })
        })
        .transpose()?;
    let required = || Invalid(format!("spec.modelVolume.size is required with medium {medium:?}"));
    match medium {
        Medium::Disk => Ok(Volume::Disk { limit: size.clone() }),
        Medium::Memory => Ok(Volume::Memory { size: bytes.ok_or_else(required)? }),
        Medium::Volume => Ok(Volume::Ephemeral {
            size: size.clone().ok_or_else(required)?,
            class: storage_class_name.clone(),
        }),
    }
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
mod tests {
    use api::aiinference::MAX_NODE_FAILURE_SECONDS;
    use serde_json::{Value, json};
    use workload::products::NodeLabel;

    use crate::tests::inference;

    use super::*;

    fn refusal(spec: &str) -> String {
        validate(&inference(spec)).unwrap_err().0
    }

    fn valid(spec: &str) -> ValidInference {
        validate(&inference(spec)).unwrap()
    }

    #[test]
    fn no_engine_uses_the_service_account_of_the_controller() {
        let account =
            |namespace: &str| OwnAccount(Some((namespace.to_owned(), "inference-controller".to_owned())));
        let runs_as = |name: &str| {
            valid(&format!(
                "{{modelSource: s3://m, engine: vllm, gpu: {{count: 1}}, serviceAccountName: {name}}}"
            ))
        };
        let refused = account("demo").is_not_used_by(runs_as("inference-controller")).unwrap_err();
        assert!(
            refused.0.starts_with("spec.serviceAccountName: inference-controller is the service account of"),
            "{refused}"
        );
        assert!(account("demo").is_not_used_by(runs_as("reader")).is_ok());
        assert!(account("demo").is_not_used_by(valid(MINIMAL)).is_ok());
        assert!(
            account("ai-system").is_not_used_by(runs_as("inference-controller")).is_ok(),
            "an account of the same name in another namespace"
        );
        assert!(OwnAccount::default().is_not_used_by(runs_as("inference-controller")).is_ok());
    }

    const MINIMAL: &str = "{modelSource: s3://models/qwen, engine: vllm, gpu: {count: 1}}";

    #[test]
    fn a_minimal_spec_gets_every_default() {
        let valid = valid(MINIMAL);
        assert_eq!(valid.served_model_name, "chat");
        assert_eq!(valid.replicas, 1);
        assert_eq!(valid.warmup_timeout_seconds, 300);
        assert_eq!(
            valid.source,
            Source::Copied {
                uri: "s3://models/qwen".into(),
                file: None,
                origin: Origin::Store(Store {
                    endpoint: None,
                    region: "us-east-1".into(),
                    secret: None,
                    timeout_seconds: 3600,
                    addressing: Addressing::Auto,
                    ca_secret: None,
                    manifest_digest: None,
                }),
                volume: Volume::Disk { limit: None },
            }
        );
    }

    #[test]
    fn a_claim_has_a_name_and_an_optional_path() {
        let source = |text: &str| {
            valid(&format!("{{modelSource: '{text}', engine: triton, gpu: {{count: 0}}}}")).source
        };
        let claim =
            |path: Option<&str>| Source::Claim { claim: "models".into(), path: path.map(str::to_owned) };
        assert_eq!(source("pvc://models"), claim(None));
        assert_eq!(source("pvc://models/"), claim(None));
        assert_eq!(source("pvc://models/a//b/./c/"), claim(Some("a/b/c")));
    }

    #[test]
    fn an_invalid_source_is_refused_with_the_valid_forms() {
        for text in [
            "http://host/x",
            "s3://",
            "pvc:///x",
            "models",
            "pvc://a/../b",
            "s3://a b",
            "s3://m//q",
            "s3://m/./q",
        ] {
            let message = refusal(&format!("{{modelSource: '{text}', engine: triton, gpu: {{count: 0}}}}"));
            assert!(message.contains("s3://bucket/prefix, pvc://claim/path, hf://owner/name"), "{message}");
        }
    }

    #[test]
    fn a_bare_product_is_a_value_of_the_nvidia_label() {
        let products = |gpu: &str| {
            valid(&format!("{{modelSource: s3://m, engine: vllm, gpu: {{count: 1, {gpu}}}}}"))
                .gpus
                .unwrap()
                .products
                .into_iter()
                .map(|NodeLabel { key, values, .. }| format!("{key} in {}", values.join(",")))
                .collect::<Vec<_>>()
        };
        assert_eq!(products("productLabel: A100"), ["nvidia.com/gpu.product in A100"]);
        assert_eq!(products("productLabel: example.com/card=x1"), ["example.com/card in x1"]);
        assert_eq!(
            products("productLabels: [A100, example.com/card=x1, H100]"),
            ["nvidia.com/gpu.product in A100,H100", "example.com/card in x1"]
        );
    }

    #[test]
    fn engines_other_than_triton_need_an_image_for_the_cpu() {
        assert!(
            refusal("{modelSource: s3://m, engine: vllm, gpu: {count: 0}}")
                .contains("spec.image is required")
        );
        assert_eq!(
            valid("{modelSource: s3://m, engine: vllm, gpu: {count: 0}, image: my/vllm:cpu}").gpus,
            None
        );
        assert_eq!(valid("{modelSource: s3://m, engine: triton, gpu: {count: 0}}").gpus, None);
    }

    #[test]
    fn memory_and_ephemeral_volumes_need_a_size() {
        for medium in ["Memory", "Volume"] {
            let message = refusal(&format!(
                "{{modelSource: s3://m, engine: vllm, gpu: {{count: 1}}, modelVolume: {{medium: {medium}}}}}"
            ));
            assert_eq!(message, format!("spec.modelVolume.size is required with medium {medium}"));
        }
    }

    /// Hashes that the first release recorded.
    #[test]
    fn the_hash_of_a_spec_equals_that_of_earlier_releases() {
        for (spec, recorded) in [
            (MINIMAL, "2aa2ebf88887ba06"),
            (
                "{modelSource: s3://m, engine: vllm, gpu: {count: 1}, modelStore: {secretName: s3}}",
                "a59fd550252b7641",
            ),
        ] {
            assert_eq!(valid(spec).spec_hash, recorded, "{spec}");
        }
    }

    #[test]
    fn the_calendar_of_a_vendor_is_no_version_of_an_engine() {
        let with = |version: &str| {
            format!("{{modelSource: s3://m, engine: vllm, gpu: {{count: 1}}, engineVersion: '{version}'}}")
        };
        assert_eq!(valid(&with("v0.10.2")).engine_version, Some((0, 10)));
        assert!(refusal(&with("25.09")).starts_with("spec.engineVersion \"25.09\" is not a version"));
    }

    #[test]
    fn the_gpus_of_a_pod_are_shared_out_completely() {
        let with = |count: i32, more: &str| {
            format!("{{modelSource: s3://m, engine: vllm, gpu: {{count: {count}}}, parallelism: {more}}}")
        };
        let of = |count, more: &str| {
            let Parallelism { tensor, pipeline, data } = valid(&with(count, more)).parallelism;
            (tensor, pipeline, data)
        };
        assert_eq!(of(6, "{tensor: 2, pipeline: 3}"), (2, 3, 1));
        assert_eq!(of(8, "{data: 4}"), (2, 1, 4));
        assert_eq!(valid(MINIMAL).parallelism, Parallelism { tensor: 1, pipeline: 1, data: 1 });
        for (count, more) in [(6, "{tensor: 4}"), (4, "{pipeline: 3}"), (2, "{data: 4}"), (1, "{data: 0}")] {
            let refused = refusal(&with(count, more));
            assert!(refused.starts_with("spec.parallelism: tensor times pipeline times data"), "{refused}");
        }
    }

    #[test]
    fn a_digest_of_the_model_is_refused_where_nothing_would_check_it() {
        let digest = format!("modelStore: {{manifestDigest: 'sha256:{}'}}", "0".repeat(64));
        let with =
            |source: &str| format!("{{modelSource: '{source}', engine: vllm, gpu: {{count: 1}}, {digest}}}");
        let refused = refusal(&with("pvc://models"));
        assert!(refused.starts_with("spec.modelStore.manifestDigest needs an s3:// source"), "{refused}");
        let refused = refusal(&with("hf://a/b"));
        assert!(
            refused.contains("needs an s3:// source") && refused.contains("owner/name@commit"),
            "{refused}"
        );
        valid(&with("s3://models"));
    }

    #[test]
    fn an_address_has_no_virtual_hosts() {
        let at = |endpoint: &str, addressing: &str| {
            format!(
                "{{modelSource: s3://m, engine: vllm, gpu: {{count: 1}}, modelStore: {{endpoint: '{endpoint}', \
                 addressing: {addressing}}}}}"
            )
        };
        for endpoint in ["http://10.0.0.1:9000", "http://[::1]:9000/base", "https://10.0.0.1/base"] {
            let refused = refusal(&at(endpoint, "VirtualHosted"));
            assert!(refused.contains(endpoint) && refused.ends_with("use Path"), "{refused}");
            valid(&at(endpoint, "Path"));
            valid(&at(endpoint, "Auto"));
        }
        valid(&at("https://oss-cn-hangzhou.aliyuncs.com", "VirtualHosted"));
    }

    /// The description of each field documents whether a change restarts pods.
    #[test]
    fn the_hash_changes_with_exactly_the_fields_that_are_documented_to_restart_pods() {
        let plain = json!({"modelSource": "s3://m", "engine": "vllm", "gpu": {"count": 1}});
        let hash = |spec: &Value| valid(&spec.to_string()).spec_hash;
        let changed = |field: &str| match field {
            "modelSource" => json!("s3://other"),
            "engine" => json!("tgi"),
            "gpu" => json!({"count": 2}),
            "replicas" => json!(7),
            "warmupTimeoutSeconds" => json!(301),
            "image" => json!("a/b:c"),
            "command" => json!(["vllm", "serve"]),
            "engineVersion" => json!("0.17.1"),
            "parallelism" => json!({"pipeline": 1, "data": 1}),
            "drainSeconds" => json!(600),
            "stallSeconds" => json!(600),
            "listen" => json!("Dual"),
            "helperResources" => json!({"limits": {"cpu": "1"}}),
            "volumes" => json!([{"name": "a", "mountPath": "/a", "claimName": "c"}]),
            "envFrom" => json!([{"secretName": "a"}]),
            "sharedMemory" => json!("8Gi"),
            "args" => json!(["--x"]),
            "env" => json!([{"name": "A", "value": "b"}]),
            "resources" => json!({"limits": {"cpu": "1"}}),
            "servedModelName" => json!("other"),
            "modelStore" => json!({"region": "eu-west-1"}),
            "modelLoader" => json!({}),
            "modelVolume" => json!({"size": "1Gi"}),
            "service" => json!({"headless": true}),
            "gateway" => json!({
                "name": "public", "hostnames": ["chat.example.com"], "grpc": {"hostnames": ["grpc.example.com"]},
                "inferencePool": {"endpointPicker": {"name": "picker", "port": 9002}},
            }),
            "routeRef" => json!({"name": "web"}),
            "canary" => json!({"image": "other/engine:1"}),
            "rollout" => json!("Replace"),
            "disruption" => json!("Allow"),
            "surgeTimeoutSeconds" => json!(30),
            "nodeFailureSeconds" => json!(5),
            "securityContext" => json!({"runAsUser": 2000}),
            "scheduling" => json!({"schedulerName": "other"}),
            "imagePullSecrets" => json!([{"name": "pull"}]),
            "serviceAccountName" => json!("other"),
            "podLabels" | "podAnnotations" => json!({"a": "b"}),
            "paused" => json!(true),
            unknown => panic!("give spec.{unknown} another value here"),
        };
        let crd = api::crds::crds().into_iter().find(|crd| crd.spec.names.kind == "AIInference").unwrap();
        let schema = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
        let fields = schema.properties.unwrap()["spec"].properties.clone().unwrap();
        assert!(fields.len() > 20, "{}", fields.len());
        for (field, property) in fields {
            let mut spec = plain.clone();
            spec[&field] = changed(&field);
            let restarts = property.description.unwrap().to_lowercase().ends_with("restarts pods.");
            assert_eq!(hash(&spec) != hash(&plain), restarts, "{field}");
        }
    }

    #[test]
    fn a_node_loss_is_kept_longer_than_the_maximum_of_node_failure_seconds() {
        let longest = Duration::from_secs(MAX_NODE_FAILURE_SECONDS.unsigned_abs().into());
        assert!(workload::views::node::FORGOTTEN_AFTER > longest);
    }
}
