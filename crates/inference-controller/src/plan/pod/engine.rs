//! The engine's container: image, arguments, environment, probes and resources.

use std::collections::BTreeMap;

use api::{
    aiinference::Listen,
    pods::{EnvVar as Variable, Resources},
};
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerPort, EnvVar, ExecAction, Lifecycle, LifecycleHandler, ResourceRequirements,
        VolumeMount,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use text::quantity::Bytes;
use workload::{
    digest::digest,
    templates::{
        options::env_from,
        template::{container_security, env_var, literal, non_empty, raise},
    },
};

use super::{drain_seconds, probes, volumes};
use crate::{
    engine::{HOME, Invocation, Profile, version_of},
    names::ENGINE,
    validate::{Source, ValidInference, Volume},
};

pub(super) fn engine(
    valid: &ValidInference,
    profile: &Profile,
    image: &str,
    user_mounts: Vec<VolumeMount>,
) -> Container {
    let users: Vec<String> = valid.args.iter().map(|argument| literal(argument)).collect();
    let arguments = profile.arguments(&Invocation {
        model_path: &literal(&volumes::model_path(&valid.source)),
        served_model_name: &literal(&valid.served_model_name),
        version: valid.engine_version.or_else(|| version_of(image)),
        parallelism: valid.parallelism,
        drain_seconds: drain_seconds(valid, profile),
        is_ipv6: valid.listen != Listen::IPv4,
        command: &valid.command,
        closed_key: &closed_key(valid),
        users: &users,
    });
    let ports = profile.ports.iter().map(|port| ContainerPort {
        name: Some(port.name.to_owned()),
        container_port: port.number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    });
    Container {
        name: ENGINE.to_owned(),
        image: Some(image.to_owned()),
        command: non_empty(valid.command.iter().map(|word| literal(word)).collect()),
        args: Some(arguments),
        env_from: env_from(&valid.pods),
        env: Some(environment(profile, &valid.env)),
        ports: Some(ports.collect()),
        startup_probe: Some(probes::startup(profile, valid.warmup_timeout_seconds)),
        readiness_probe: Some(probes::readiness(profile)),
        liveness_probe: Some(probes::liveness(profile, valid.stall_seconds)),
        lifecycle: Some(Lifecycle {
            pre_stop: Some(LifecycleHandler {
                exec: Some(ExecAction { command: Some(pre_stop(profile)) }),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        }),
        resources: Some(resources(valid)),
        volume_mounts: Some(volumes::engine_mounts(&valid.source).into_iter().chain(user_mounts).collect()),
        // Engines write into folders of their image.
        security_context: Some(container_security(None)),
        ..Container::default()
    }
}

/// The preStop hook kills an engine that does not listen yet, because engines ignore SIGTERM while they load. For an engine
/// that serves, it waits until traffic has moved to other pods.
fn pre_stop(profile: &Profile) -> Vec<String> {
    let ports = profile.ports.iter().map(|port| format!("--port={}", port.number));
    let wait = format!("--wait-seconds={}", probes::PRE_STOP_SECONDS);
    let hook = [format!("{}/model-transfer", volumes::PROGRAM_PATH), "pre-stop".to_owned()];
    hook.into_iter().chain(ports).chain([wait]).collect()
}

/// The key of Triton's restricted APIs, equal for all pods of the object. It keeps out clients that have only network
/// access; anyone who may read the AIInference, its children or its events can compute it.
fn closed_key(valid: &ValidInference) -> String {
    digest(format!("closed {}", valid.owner.uid), 16)
}

/// Defaults and the user's variables; the user's take precedence.
fn environment(profile: &Profile, users: &[Variable]) -> Vec<EnvVar> {
    let common = [("HOME", HOME), ("USER", "engine")];
    common
        .iter()
        .chain(profile.env)
        .filter(|(name, _)| users.iter().all(|variable| variable.name != *name))
        .map(|(name, value)| EnvVar {
            name: (*name).to_owned(),
            value: Some((*value).to_owned()),
            value_from: None,
        })
        .chain(users.iter().map(env_var))
        .collect()
}

/// The user's resources, the GPUs, and the memory or disk that a copy of the model uses.
fn resources(valid: &ValidInference) -> ResourceRequirements {
    let Resources { mut requests, mut limits } = valid.resources.clone();
    if let Some(gpus) = &valid.gpus {
        limits.insert(gpus.resource.clone(), Quantity(gpus.count.to_string()));
    }
    match &valid.source {
        Source::Copied { volume: Volume::Memory { size }, .. } => raise(&mut limits, "memory", *size),
        Source::Copied { volume: Volume::Disk { limit: Some(limit) }, .. } => {
            if let Some(size) = Bytes::parse(&limit.0) {
                requests.entry("ephemeral-storage".to_owned()).or_insert_with(|| Quantity("0".to_owned()));
                raise(&mut requests, "ephemeral-storage", size);
                raise(&mut limits, "ephemeral-storage", size);
            }
        }
        Source::Copied { volume: Volume::Disk { limit: None } | Volume::Ephemeral { .. }, .. }
        | Source::Claim { .. } => {}
    }
    ResourceRequirements {
        requests: non_empty(requests.into_iter().collect()).map(BTreeMap::from_iter),
        limits: non_empty(limits.into_iter().collect()).map(BTreeMap::from_iter),
        ..ResourceRequirements::default()
    }
}
