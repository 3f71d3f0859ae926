//! Converts a spec into validated types, with defaults. Pure.
//!
//! An `Invalid` spec becomes a condition and is not retried. The API server refuses most invalid specs. This module
//! checks what CEL rules cannot express, what depends on options of this process, and objects older than the rules.

use api::{
    aidispatcher::{AIDispatcher, AIDispatcherSpec, Autoscaling, QueueRule, Role, WhenUnavailable},
    labels,
    monitor::{ADMIN_PORT, STREAM_PORT, variables},
    pods::{EnvVar, PodOptions, Resources},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use scaling::{
    behavior::Behavior,
    policy::{Arithmetic, Bounds, Extras, Kind, Metric, Policy, TargetValue},
};
use std::time::Duration;
use workload::digest::digest;

use defaults::Defaults;

pub(crate) mod defaults;

/// A valid spec.
#[derive(Clone, Debug)]
pub(crate) struct ValidDispatcher {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) owner: OwnerReference,
    pub(crate) generation: i64,
    /// Hash of the spec fields that the pod template depends on.
    pub(crate) spec_hash: String,
    pub(crate) role: Role,
    pub(crate) model_ref: Option<String>,
    pub(crate) model_endpoint: Option<String>,
    /// Secret with the key of the model's server.
    pub(crate) model_secret: Option<String>,
    pub(crate) image: String,
    /// The image is the agent that ships, because nothing names another one.
    pub(crate) is_agent: bool,
    pub(crate) env: Vec<EnvVar>,
    pub(crate) resources: Resources,
    pub(crate) memory: Option<Memory>,
    pub(crate) checkpoint: Option<Checkpoint>,
    pub(crate) metrics_port: u16,
    pub(crate) probes: Option<Probes>,
    /// Port on which workers take tasks; `None`: the pool has no Services.
    pub(crate) task_port: Option<u16>,
    pub(crate) workers: Workers,
    pub(crate) pods: PodOptions,
    /// Value of the annotation `refresh`, which requests a new rendering.
    pub(crate) refresh: Option<String>,
}

/// How many workers are wanted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Workers {
    Fixed(i32),
    Scaled(Box<Policy>),
}

/// A vector collection.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Memory {
    pub(crate) collection: String,
    pub(crate) dim: i32,
    pub(crate) endpoint: String,
    pub(crate) secret: Option<String>,
}

/// What the kubelet asks a worker beside its metrics port.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Probes {
    pub(crate) readiness: Option<String>,
    pub(crate) liveness: Option<String>,
    pub(crate) port: u16,
}

/// Storage of the state of workers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Checkpoint {
    pub(crate) storage: Storage,
    pub(crate) grace_seconds: i32,
    /// A worker starts without a state while the storage cannot be used.
    pub(crate) starts_empty: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Storage {
    Claim(String),
    Store {
        uri: String,
        endpoint: Option<String>,
        region: Option<String>,
        secret: Option<String>,
        ca_secret: Option<String>,
    },
}

/// Why a spec is invalid, and what to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Invalid(pub(crate) String);

const DEFAULT_METRICS_PORT: u16 = 9100;
/// The names of the metrics, in conditions and in the stored history.
pub(crate) const QUEUE: &str = "queue";
pub(crate) const TOKENS: &str = "tokens";

pub(crate) fn validate(dispatcher: &AIDispatcher, defaults: &Defaults) -> Result<ValidDispatcher, Invalid> {
    let spec = &dispatcher.spec;
    let meta = dispatcher.meta();
    let owner = owner(dispatcher)?;
    if let Some(variable) = spec.env.iter().find(|variable| variables::RESERVED.contains(&&*variable.name)) {
        return Err(Invalid(format!(
            "spec.env: {} is reserved for the contract with workers; remove it",
            variable.name
        )));
    }
    let of_service =
        [variables::AGENT_GRACE_SECONDS, variables::AGENT_PEERS, variables::AGENT_PORT, variables::POD_IP];
    let of_service = |variable: &&EnvVar| of_service.contains(&&*variable.name);
    if let Some(variable) = spec.env.iter().filter(|_| spec.service.is_some()).find(of_service) {
        return Err(Invalid(format!(
            "spec.env: {} is set by spec.service; remove it, and set the port in spec.service.port",
            variable.name
        )));
    }
    let image = spec.image.as_deref().or_else(|| defaults.worker_image(spec.role));
    let (metrics_port, task_port) = (metrics_port(spec)?, task_port(spec)?);
    // Another image may serve both on one port.
    if image.is_none() && task_port == Some(metrics_port) {
        return Err(Invalid(format!(
            "spec.service.port: the agent that ships serves its metrics on {metrics_port}; use another port"
        )));
    }
    Ok(ValidDispatcher {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: owner.name.clone(),
        generation: meta.generation.unwrap_or_default(),
        spec_hash: spec_hash(spec)?,
        role: spec.role,
        model_ref: spec.model_ref.clone(),
        model_endpoint: spec.model_endpoint.clone(),
        model_secret: spec.credentials.as_ref().map(|credentials| credentials.secret_name.clone()),
        image: image.unwrap_or(&defaults.agent_image).to_owned(),
        is_agent: image.is_none(),
        env: spec.env.clone(),
        resources: spec.resources.clone().unwrap_or_default(),
        memory: memory(spec, defaults)?,
        checkpoint: checkpoint(spec)?,
        probes: probes(spec)?,
        metrics_port,
        task_port,
        workers: workers(spec, defaults.load_max_age)?,
        pods: spec.pods.clone(),
        refresh: meta.annotations.as_ref().and_then(|known| known.get(labels::REFRESH).cloned()),
        owner,
    })
}

/// Children are deleted with the object; with foreground deletion, before it.
pub(crate) fn owner(dispatcher: &AIDispatcher) -> Result<OwnerReference, Invalid> {
    let owner = dispatcher
        .controller_owner_ref(&())
        .ok_or_else(|| Invalid("the object has no uid; it was not read from an API server".to_owned()))?;
    Ok(OwnerReference { block_owner_deletion: Some(true), ..owner })
}

pub(crate) fn role(role: Role) -> &'static str {
    match role {
        Role::Coder => "coder",
        Role::Reviewer => "reviewer",
        Role::Planner => "planner",
    }
}

fn memory(spec: &AIDispatcherSpec, defaults: &Defaults) -> Result<Option<Memory>, Invalid> {
    let Some(memory) = &spec.memory_config else { return Ok(None) };
    // The API server accepts both or neither.
    let (Some(collection), Some(dim)) = (memory.collection.clone(), memory.dim) else { return Ok(None) };
    let secret = match memory.endpoint {
        Some(_) => memory.secret_name.clone(),
        None => memory.secret_name.clone().or_else(|| defaults.memory_secret.clone()),
    };
    let endpoint = memory.endpoint.clone().or_else(|| defaults.memory_endpoint.clone()).ok_or_else(|| {
        Invalid(
            "spec.memoryConfig.endpoint is required: the controller has no default vector store (option \
             --memory-endpoint)"
                .to_owned(),
        )
    })?;
    Ok(Some(Memory { collection, dim, endpoint, secret }))
}

fn checkpoint(spec: &AIDispatcherSpec) -> Result<Option<Checkpoint>, Invalid> {
    let Some(checkpoint) = &spec.checkpoint else { return Ok(None) };
    if checkpoint.ca_secret_name.is_some() && checkpoint.uri.is_none() {
        return Err(Invalid("spec.checkpoint.caSecretName must not be set without uri".to_owned()));
    }
    if checkpoint.region.is_some() && checkpoint.uri.is_none() {
        return Err(Invalid("spec.checkpoint.region must not be set without uri".to_owned()));
    }
    let storage = match (&checkpoint.claim_name, &checkpoint.uri) {
        (Some(claim), None) => Storage::Claim(claim.clone()),
        (None, Some(uri)) => Storage::Store {
            uri: uri.clone(),
            endpoint: checkpoint.endpoint.clone(),
            region: checkpoint.region.clone(),
            secret: checkpoint.secret_name.clone(),
            ca_secret: checkpoint.ca_secret_name.clone(),
        },
        (Some(_), Some(_)) | (None, None) => {
            return Err(Invalid("spec.checkpoint must have exactly one of claimName and uri".to_owned()));
        }
    };
    let starts_empty = match checkpoint.when_unavailable {
        WhenUnavailable::Wait => false,
        WhenUnavailable::StartEmpty => true,
    };
    Ok(Some(Checkpoint { storage, grace_seconds: checkpoint.grace_seconds, starts_empty }))
}

/// The user's variable is the port that the image serves.
fn metrics_port(spec: &AIDispatcherSpec) -> Result<u16, Invalid> {
    let Some(variable) = spec.env.iter().find(|variable| variable.name == variables::AGENT_METRICS_PORT)
    else {
        return Ok(DEFAULT_METRICS_PORT);
    };
    let port = variable.value.as_deref().and_then(|value| value.parse().ok()).filter(|port| *port > 0);
    let port = port.filter(|port| ![ADMIN_PORT, STREAM_PORT].contains(port));
    port.ok_or_else(|| {
        Invalid(format!(
            "spec.env: {} must have a value, a port other than {ADMIN_PORT} and {STREAM_PORT}, which the monitor uses",
            variables::AGENT_METRICS_PORT
        ))
    })
}

fn task_port(spec: &AIDispatcherSpec) -> Result<Option<u16>, Invalid> {
    let Some(service) = &spec.service else { return Ok(None) };
    let port = u16::try_from(service.port).ok().filter(|port| ![0, ADMIN_PORT, STREAM_PORT].contains(port));
    port.map(Some).ok_or_else(|| {
        Invalid(format!(
            "spec.service.port must be a port from 1 to 65535 other than {ADMIN_PORT} and {STREAM_PORT}, which the \
             monitor uses"
        ))
    })
}

fn probes(spec: &AIDispatcherSpec) -> Result<Option<Probes>, Invalid> {
    let Some(probes) = &spec.probes else { return Ok(None) };
    let port = probes.port.map_or_else(|| metrics_port(spec).map(i32::from), Ok)?;
    let port = u16::try_from(port)
        .map_err(|_| Invalid("spec.probes.port must be a port from 1 to 65535".to_owned()))?;
    let (readiness, liveness) = (probes.readiness_path.clone(), probes.liveness_path.clone());
    Ok(Some(Probes { readiness, liveness, port }))
}

fn workers(spec: &AIDispatcherSpec, max_age: Duration) -> Result<Workers, Invalid> {
    let Some(autoscaling) = &spec.autoscaling else { return Ok(Workers::Fixed(spec.replicas)) };
    let wrong = |field: &str, why: &dyn std::fmt::Display| Invalid(format!("spec.autoscaling{field}: {why}"));
    let Autoscaling {
        min_replicas,
        max_replicas,
        tasks_per_worker,
        tokens_per_minute_per_worker,
        queue: _,
        rule,
        behavior,
    } = autoscaling;
    let metric = |name, kind, target: i64| {
        let target = TargetValue::units(target).map_err(|why| wrong("", &why))?;
        Ok(Metric { window: Duration::ZERO, max_age, ..Metric::new(name, kind, target) })
    };
    let (kind, extras, default) = match rule {
        QueueRule::QueueAndBusyWorkers => (Kind::TasksAndBusyWorkers, Extras::all(), Behavior::default()),
        QueueRule::QueueOnly => {
            let extras = Extras { arithmetic: Arithmetic::ByKind, ..Extras::none() };
            (Kind::TasksOnly, extras, Behavior::immediate())
        }
    };
    let mut metrics = vec![metric(QUEUE, kind, i64::from(*tasks_per_worker))?];
    if let Some(tokens) = tokens_per_minute_per_worker {
        metrics.push(metric(TOKENS, Kind::TokensPerMinute, *tokens)?);
    }
    let behavior = match behavior {
        Some(behavior) => scaling::spec::behavior(Some(behavior)).map_err(|why| wrong(".behavior", &why))?,
        None => default,
    };
    let bounds = Bounds::new(*min_replicas, *max_replicas).map_err(|why| wrong("", &why))?;
    Ok(Workers::Scaled(Box::new(Policy { bounds, metrics, behavior, fallback: None, extras })))
}

/// Fields that do not affect pods are set to fixed values first, so that scaling or pausing does not change the hash.
pub(crate) fn spec_hash(spec: &AIDispatcherSpec) -> Result<String, Invalid> {
    let mut spec = spec.clone();
    spec.replicas = 0;
    spec.autoscaling = None;
    spec.pods.paused = false;
    // Fields are in the order of the struct and maps are sorted, so equal specs give equal bytes.
    let bytes =
        serde_json::to_vec(&spec).map_err(|error| Invalid(format!("the spec is not JSON: {error}")))?;
    Ok(digest(bytes, 8))
}

#[cfg(test)]
mod tests {
    use crate::tests::{defaults, dispatcher};

    use super::*;

    fn valid(spec: &str) -> ValidDispatcher {
        validate(&dispatcher(spec), &defaults(&["--coder-image=agent:1"])).unwrap()
    }

    fn refusal(spec: &str, flags: &[&str]) -> String {
        validate(&dispatcher(spec), &defaults(flags)).unwrap_err().0
    }

    #[test]
    fn a_pool_with_services_has_one_port_for_tasks() {
        assert_eq!(valid("{role: coder, service: {}}").task_port, Some(8080));
        assert_eq!(valid("{role: coder}").task_port, None);
        assert_eq!(valid("{role: coder, env: [{name: AGENT_PORT, value: '8000'}]}").task_port, None);
        let both = "{role: coder, service: {}, env: [{name: AGENT_PORT, value: '8000'}]}";
        assert!(refusal(both, &["--coder-image=a:1"]).contains("AGENT_PORT is set by spec.service"));
        for port in ["9410", "9411", "0", "70000"] {
            let spec = format!("{{role: coder, service: {{port: {port}}}}}");
            assert!(refusal(&spec, &["--coder-image=a:1"]).contains("spec.service.port"), "{port}");
        }
    }

    #[test]
    fn defaults_come_from_the_options_of_the_controller() {
        let image = |spec: &str| {
            let flags = ["--coder-image=a:1", "--agent-image=agent:2"];
            let valid = validate(&dispatcher(spec), &defaults(&flags)).unwrap();
            (valid.image, valid.is_agent)
        };
        assert_eq!(image("{role: coder}"), ("a:1".to_owned(), false));
        assert_eq!(image("{role: reviewer}"), ("agent:2".to_owned(), true));
        assert_eq!(image("{role: reviewer, image: 'own:3'}"), ("own:3".to_owned(), false));
        let one_port = "{role: reviewer, service: {port: 9100}}";
        assert!(refusal(one_port, &[]).contains("serves its metrics on 9100"));
        assert!(validate(&dispatcher(one_port), &defaults(&["--reviewer-image=a:1"])).is_ok());
        let memory = "{role: coder, memoryConfig: {collection: code, dim: 3}}";
        assert!(refusal(memory, &["--coder-image=a:1"]).contains("--memory-endpoint"));
        let flags = ["--coder-image=a:1", "--memory-endpoint=http://chroma:8000", "--memory-secret-name=key"];
        let memory = |spec: &str| validate(&dispatcher(spec), &defaults(&flags)).unwrap().memory.unwrap();
        let default = memory("{role: coder, memoryConfig: {collection: code, dim: 3}}");
        assert_eq!((&*default.endpoint, default.secret.as_deref()), ("http://chroma:8000", Some("key")));
        let own = memory("{role: coder, memoryConfig: {collection: code, dim: 3, endpoint: 'http://q'}}");
        assert_eq!((&*own.endpoint, own.secret), ("http://q", None), "a key is not sent to another store");
    }

    #[test]
    fn a_region_is_that_of_a_bucket() {
        let spec = "{role: coder, checkpoint: {claimName: states, region: eu-west-1}}";
        assert!(refusal(spec, &["--coder-image=a:1"]).contains("spec.checkpoint.region"));
    }

    #[test]
    fn variables_of_the_contract_are_not_taken_over() {
        for name in variables::RESERVED {
            let spec = format!("{{role: coder, image: 'a:1', env: [{{name: {name}, value: x}}]}}");
            assert!(refusal(&spec, &[]).contains(name));
        }
        let port = |value: &str| {
            format!("{{role: coder, image: 'a:1', env: [{{name: AGENT_METRICS_PORT, value: '{value}'}}]}}")
        };
        assert_eq!(valid(&port("8080")).metrics_port, 8080);
        assert_eq!(valid("{role: coder}").metrics_port, 9100);
        for wrong in ["0", "70000", "x", "9410", "9411"] {
            assert!(refusal(&port(wrong), &[]).contains("AGENT_METRICS_PORT"), "{wrong}");
        }
    }

    #[test]
    fn only_fields_of_the_pods_change_the_hash() {
        let hash = |spec: &str| valid(spec).spec_hash;
        let plain = hash("{role: coder}");
        for same in ["replicas: 7", "autoscaling: {maxReplicas: 3}", "paused: true"] {
            assert_eq!(hash(&format!("{{role: coder, {same}}}")), plain, "{same}");
        }
        for other in ["modelRef: m", "image: 'a:2'", "checkpoint: {claimName: c}"] {
            assert_ne!(hash(&format!("{{role: coder, {other}}}")), plain, "{other}");
        }
    }

    #[test]
    fn autoscaling_has_the_two_rules() {
        let policy = |spec: &str| match valid(spec).workers {
            Workers::Scaled(policy) => *policy,
            Workers::Fixed(_) => panic!("it is scaled"),
        };
        let smart = policy("{role: coder, autoscaling: {tokensPerMinutePerWorker: 60}}");
        assert_eq!((smart.bounds.min(), smart.bounds.max()), (1, 100));
        assert_eq!(policy("{role: coder, autoscaling: {}}").behavior, Behavior::default());
        assert_eq!(
            smart.metrics.iter().map(|metric| metric.kind).collect::<Vec<_>>(),
            [Kind::TasksAndBusyWorkers, Kind::TokensPerMinute]
        );
        assert_eq!(smart.metrics[0].target, TargetValue::units(5).unwrap());
        let literal = policy("{role: coder, autoscaling: {rule: QueueOnly}}");
        assert_eq!((literal.metrics[0].kind, literal.behavior), (Kind::TasksOnly, Behavior::immediate()));
    }
}
