//! The worker's container, with the environment that authors of agents rely on.

use api::{
    monitor::{UPLOAD_SECONDS, variables},
    pods::Resources,
};
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerPort, EnvVar, HTTPGetAction, Probe, ResourceRequirements, VolumeMount,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use workload::templates::{
    options::env_from,
    template::{container_security, env_var, non_empty},
};

use super::{from_field, from_secret, memory_variables, value, volumes};
use crate::{
    names::WORKER,
    plan::services::{TASK_PORT_NAME, peers},
    validate::{ValidDispatcher, role},
};

/// Of a worker that ends.
const SAVED_WITHIN_SECONDS: i64 = 5;
/// Some libraries ask for the name of the user, and the image may have none.
const USER: &str = "agent";
/// In the Secret of `credentials`.
const MODEL_KEY: &str = "api-key";

/// When a probe of a worker counts.
struct Period {
    seconds: i32,
    failures: i32,
    /// The worker has so long to exit once the probe has failed; `None`: that of the pod.
    grace: Option<i64>,
}

/// A worker that is slow once stays in service.
const READINESS: Period = Period { seconds: 5, failures: 3, grace: None };
/// A minute without an answer. What hangs does not write its state, so it is not waited for as long as when the pod ends.
const LIVENESS: Period = Period { seconds: 10, failures: 6, grace: Some(30) };
/// An agent may read gigabytes of memory before it listens.
const STARTUP: Period = Period { seconds: 10, failures: 180, grace: Some(30) };
/// Of the answer to a probe.
const ANSWER_SECONDS: i32 = 5;

/// The metrics port is asked by the monitor, whose own readiness is part of that of the pod.
pub(super) fn worker(valid: &ValidDispatcher, user_mounts: Vec<VolumeMount>) -> Container {
    let probes = valid.probes.as_ref();
    let (readiness, liveness) = (
        probes.and_then(|probes| Some((probes.readiness.as_deref()?, probes.port))),
        probes.and_then(|probes| Some((probes.liveness.as_deref()?, probes.port))),
    );
    Container {
        name: WORKER.to_owned(),
        image: Some(valid.image.clone()),
        env_from: env_from(&valid.pods),
        env: Some(environment(valid)),
        ports: valid.task_port.map(|port| vec![task_port(port)]),
        resources: resources(&valid.resources),
        volume_mounts: non_empty(volumes::of_worker(valid).into_iter().chain(user_mounts).collect()),
        startup_probe: liveness.map(|path| probe(path, &STARTUP)),
        liveness_probe: liveness.map(|path| probe(path, &LIVENESS)),
        readiness_probe: readiness.map(|path| probe(path, &READINESS)),
        security_context: Some(container_security(None)),
        ..Container::default()
    }
}

fn task_port(port: u16) -> ContainerPort {
    ContainerPort {
        name: Some(TASK_PORT_NAME.to_owned()),
        container_port: i32::from(port),
        ..ContainerPort::default()
    }
}

fn probe((path, port): (&str, u16), period: &Period) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(i32::from(port)),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period.seconds),
        timeout_seconds: Some(ANSWER_SECONDS),
        failure_threshold: Some(period.failures),
        termination_grace_period_seconds: period.grace,
        ..Probe::default()
    }
}

fn environment(valid: &ValidDispatcher) -> Vec<EnvVar> {
    let mut environment = vec![value(variables::AGENT_ROLE, role(valid.role))];
    environment.extend(valid.model_ref.as_deref().map(|model| value(variables::MODEL_REF, model)));
    environment.extend(valid.model_endpoint.as_deref().map(|url| value(variables::MODEL_ENDPOINT, url)));
    let secret = valid.model_secret.as_deref();
    environment.extend(secret.map(|secret| from_secret(variables::MODEL_API_KEY, secret, MODEL_KEY, None)));
    environment.extend(memory_variables(valid));
    environment.push(value(variables::STATE_DIR, volumes::STATE_PATH));
    environment.push(value(variables::AGENT_LOG_FILE, volumes::LOG_FILE));
    let tasks = valid.task_port.map(|port| {
        [
            value(variables::AGENT_PORT, &port.to_string()),
            value(variables::AGENT_GRACE_SECONDS, &task_seconds(valid).to_string()),
            value(variables::AGENT_PEERS, &peers(valid, port)),
            from_field(variables::POD_IP, "status.podIP"),
        ]
    });
    environment.extend(tasks.into_iter().flatten());
    // An image may run with a user that has no home, and caches are written there.
    let defaults = [
        value(variables::AGENT_METRICS_PORT, &valid.metrics_port.to_string()),
        value("HOME", volumes::HOME_PATH),
        value("USER", USER),
    ];
    let is_free = |default: &EnvVar| valid.env.iter().all(|variable| variable.name != default.name);
    environment.extend(defaults.into_iter().filter(is_free));
    environment.extend(valid.env.iter().map(env_var));
    environment
}

/// How long tasks may go on when the pod ends, so that the worker has time to save their sessions.
fn task_seconds(valid: &ValidDispatcher) -> i64 {
    let grace = valid.checkpoint.as_ref().map(|checkpoint| i64::from(checkpoint.grace_seconds));
    let grace = grace.unwrap_or(i64::from(UPLOAD_SECONDS));
    i64::max(0, grace - SAVED_WITHIN_SECONDS)
}

fn resources(resources: &Resources) -> Option<ResourceRequirements> {
    let Resources { requests, limits } = resources.clone();
    let set = !requests.is_empty() || !limits.is_empty();
    set.then(|| ResourceRequirements {
        requests: (!requests.is_empty()).then_some(requests),
        limits: (!limits.is_empty()).then_some(limits),
        ..ResourceRequirements::default()
    })
}
