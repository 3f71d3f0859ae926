//! The init container that copies the model into the pod, or checks that the claim holds one. Its exit code says why a
//! model is not there.

use std::collections::BTreeMap;

use api::pods::{EnvVar as Variable, Resources};
use k8s_openapi::{
    api::core::v1::{Container, EnvVar, EnvVarSource, ResourceRequirements, SecretKeySelector},
    apimachinery::pkg::api::resource::Quantity,
};
use quantity::Bytes;
use workload::template::{container_security, env_var, literal, non_empty, raise};

use super::{LOADER, volumes};
use crate::{
    engine::MODEL_PATH,
    validate::{Source, Store, ValidInference, Volume},
};

/// It streams; what it holds at once does not grow with the model.
const MEMORY_LIMIT: Bytes = Bytes::mebibytes(512);

pub(super) fn loader(valid: &ValidInference, image: &str) -> Container {
    let engine = format!("--engine={}", valid.engine.as_str());
    let (arguments, environment, memory, mount) = match &valid.source {
        Source::Store { uri, store, volume } => (
            pull(uri, volume, engine),
            environment(store),
            match volume {
                // Pages of a memory volume are charged to the container that writes them.
                Volume::Memory { size } => MEMORY_LIMIT.plus(*size),
                Volume::Disk { .. } | Volume::Claim { .. } => MEMORY_LIMIT,
            },
            volumes::model_mount(&valid.source),
        ),
        Source::Claim { .. } => {
            let path = literal(&volumes::model_path(&valid.source));
            {
                let arguments = vec!["check".to_owned(), path, engine, format!("--root={MODEL_PATH}")];
                (arguments, Vec::new(), MEMORY_LIMIT, volumes::read_only_model_mount(&valid.source))
            }
        }
    };
    Container {
        name: LOADER.to_owned(),
        image: Some(image.to_owned()),
        args: Some(arguments),
        env: non_empty(with_users(environment, &valid.loader.env)),
        resources: Some(resources(valid, memory)),
        volume_mounts: Some(vec![mount]),
        security_context: Some(container_security(Some(true))),
        ..Container::default()
    }
}

/// What the user names wins.
fn with_users(own: Vec<EnvVar>, users: &[Variable]) -> Vec<EnvVar> {
    let is_free = |own: &EnvVar| users.iter().all(|variable| variable.name != own.name);
    own.into_iter().filter(is_free).chain(users.iter().map(env_var)).collect()
}

fn resources(valid: &ValidInference, memory: Bytes) -> ResourceRequirements {
    let Resources { requests, limits } = valid.loader.resources.clone().unwrap_or_default();
    let mut limits: BTreeMap<_, _> = limits;
    match &valid.source {
        // Also what the user allows the loader is beside the pages of the model.
        Source::Store { volume: Volume::Memory { size }, .. } => raise(&mut limits, "memory", *size),
        Source::Store { volume: Volume::Disk { .. } | Volume::Claim { .. }, .. } | Source::Claim { .. } => {}
    }
    let default = |amounts: BTreeMap<String, Quantity>, own: Vec<(&str, Quantity)>| {
        let own = own.into_iter().map(|(name, amount)| (name.to_owned(), amount));
        own.chain(amounts).collect::<BTreeMap<_, _>>()
    };
    let own = vec![("cpu", Quantity("100m".to_owned())), ("memory", Bytes::mebibytes(128).quantity())];
    ResourceRequirements {
        requests: Some(default(requests, own)),
        limits: Some(default(limits, vec![("memory", memory.quantity())])),
        ..ResourceRequirements::default()
    }
}

fn pull(uri: &str, volume: &Volume, engine: String) -> Vec<String> {
    let mut arguments = vec!["pull".to_owned(), literal(uri), MODEL_PATH.to_owned(), engine];
    // A volume that ends with its pod need not reach the disk: the engine reads it from memory in a moment.
    let (ends_with_pod, limit) = match volume {
        Volume::Disk { limit } => (true, limit.as_ref().and_then(|limit| Bytes::parse(&limit.0))),
        Volume::Memory { size } => (true, Some(*size)),
        Volume::Claim { .. } => (false, None),
    };
    arguments.extend(ends_with_pod.then(|| "--no-sync".to_owned()));
    // Beyond its limit the kubelet evicts the pod, and the next one would begin anew.
    arguments.extend(limit.map(|limit| format!("--size-limit={}", limit.count())));
    arguments
}

fn environment(store: &Store) -> Vec<EnvVar> {
    let Store { endpoint, region, secret, timeout_seconds } = store;
    let value = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(literal(value)),
        value_from: None,
    };
    let mut environment =
        vec![value("AWS_REGION", region), value("TRANSFER_TIMEOUT_SECONDS", &timeout_seconds.to_string())];
    environment.extend(endpoint.as_deref().map(|endpoint| value("AWS_ENDPOINT_URL", endpoint)));
    if let Some(secret) = secret {
        environment.extend([
            from_secret(secret, "AWS_ACCESS_KEY_ID", None),
            from_secret(secret, "AWS_SECRET_ACCESS_KEY", None),
            from_secret(secret, "AWS_SESSION_TOKEN", Some(true)),
        ]);
    }
    environment
}

fn from_secret(secret: &str, key: &str, optional: Option<bool>) -> EnvVar {
    EnvVar {
        name: key.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.to_owned(),
                key: key.to_owned(),
                optional,
            }),
            ..EnvVarSource::default()
        }),
    }
}
