//! The engine's container: image, arguments, environment, probes and amounts.

use std::collections::BTreeMap;

use api::pods::{EnvVar as Variable, EnvVarSource, KeyRef, Resources};
use k8s_openapi::{
    api::core::v1::{
        ConfigMapKeySelector, Container, ContainerPort, EnvVar, EnvVarSource as CoreSource, Lifecycle,
        LifecycleHandler, ResourceRequirements, SecretKeySelector, SleepAction,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use super::{ENGINE, container_security, literal, non_empty, probes, volumes};
use crate::{
    engine::{HOME, Profile},
    plan::resolved::Resolved,
    quantity::Bytes,
    validate::{Source, ValidInference, Volume},
};

pub(super) fn engine(valid: &ValidInference, resolved: &Resolved) -> Container {
    let profile = resolved.profile;
    let shards = valid.gpus.as_ref().map_or(1, |gpus| gpus.count);
    let users: Vec<String> = valid.args.iter().map(|argument| literal(argument)).collect();
    let ports = profile.ports.iter().map(|port| ContainerPort {
        name: Some(port.name.to_owned()),
        container_port: port.number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    });
    Container {
        name: ENGINE.to_owned(),
        image: Some(resolved.image.clone()),
        args: Some(profile.arguments(shards, &literal(&valid.served_model_name), &users)),
        env: Some(environment(profile, &valid.env)),
        ports: Some(ports.collect()),
        startup_probe: Some(probes::startup(profile, valid.warmup_timeout_seconds)),
        readiness_probe: Some(probes::readiness(profile)),
        liveness_probe: Some(probes::liveness(profile)),
        lifecycle: Some(Lifecycle {
            pre_stop: Some(LifecycleHandler {
                sleep: Some(SleepAction { seconds: probes::PRE_STOP_SECONDS }),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        }),
        resources: Some(resources(valid)),
        volume_mounts: Some(volumes::engine_mounts(&valid.source)),
        security_context: Some(container_security(None)),
        ..Container::default()
    }
}

/// Ours first; what the user names wins.
fn environment(profile: &Profile, users: &[Variable]) -> Vec<EnvVar> {
    let ours = [("HOME", HOME), ("USER", "engine")];
    ours.iter()
        .chain(profile.env)
        .filter(|(name, _)| users.iter().all(|variable| variable.name != *name))
        .map(|(name, value)| EnvVar {
            name: (*name).to_owned(),
            value: Some((*value).to_owned()),
            value_from: None,
        })
        .chain(users.iter().map(variable))
        .collect()
}

fn variable(variable: &Variable) -> EnvVar {
    let Variable { name, value, value_from } = variable;
    EnvVar {
        name: name.clone(),
        value: value.as_deref().map(literal),
        value_from: value_from.as_ref().map(|EnvVarSource { secret_key_ref, config_map_key_ref }| {
            CoreSource {
                secret_key_ref: secret_key_ref.as_ref().map(|KeyRef { name, key, optional }| {
                    SecretKeySelector {
                        name: name.clone(),
                        key: key.clone(),
                        optional: optional.then_some(true),
                    }
                }),
                config_map_key_ref: config_map_key_ref.as_ref().map(|KeyRef { name, key, optional }| {
                    ConfigMapKeySelector {
                        name: name.clone(),
                        key: key.clone(),
                        optional: optional.then_some(true),
                    }
                }),
                ..CoreSource::default()
            }
        }),
    }
}

/// What the user asks for, the GPUs, and what a copied model takes of the pod's own memory or disk.
fn resources(valid: &ValidInference) -> ResourceRequirements {
    let Resources { mut requests, mut limits } = valid.resources.clone();
    if let Some(gpus) = &valid.gpus {
        limits.insert(gpus.resource.clone(), Quantity(gpus.count.to_string()));
    }
    match &valid.source {
        Source::Store { volume: Volume::Memory { size }, .. } => add(&mut limits, "memory", *size),
        Source::Store { volume: Volume::Disk { limit: Some(limit) }, .. } => {
            if let Some(size) = Bytes::parse(&limit.0) {
                requests.entry("ephemeral-storage".to_owned()).or_insert_with(|| Quantity("0".to_owned()));
                add(&mut requests, "ephemeral-storage", size);
                add(&mut limits, "ephemeral-storage", size);
            }
        }
        Source::Store { volume: Volume::Disk { limit: None } | Volume::Claim { .. }, .. }
        | Source::Claim { .. } => {}
    }
    ResourceRequirements {
        requests: non_empty(requests.into_iter().collect()).map(BTreeMap::from_iter),
        limits: non_empty(limits.into_iter().collect()).map(BTreeMap::from_iter),
        ..ResourceRequirements::default()
    }
}

/// Raises an amount that is there; what has no limit needs none.
fn add(amounts: &mut BTreeMap<String, Quantity>, name: &str, more: Bytes) {
    if let Some(amount) = amounts.get_mut(name)
        && let Some(bytes) = Bytes::parse(&amount.0)
    {
        *amount = bytes.plus(more).quantity();
    }
}
