//! The init container that copies the model into the pod. Its exit code says why a model is not there.

use k8s_openapi::{
    api::core::v1::{Container, EnvVar, EnvVarSource, ResourceRequirements, SecretKeySelector},
    apimachinery::pkg::api::resource::Quantity,
};

use super::{LOADER, container_security, literal, volumes};
use crate::{
    engine::MODEL_PATH,
    plan::resolved::Resolved,
    quantity::Bytes,
    validate::{Store, Volume},
};

/// It streams; what it holds at once does not grow with the model.
const MEMORY_LIMIT: Bytes = Bytes::mebibytes(512);

pub(super) fn loader(uri: &str, store: &Store, volume: &Volume, resolved: &Resolved) -> Container {
    let memory = match volume {
        // Pages of a memory volume are charged to whoever writes them.
        Volume::Memory { size } => MEMORY_LIMIT.plus(*size),
        Volume::Disk { .. } | Volume::Claim { .. } => MEMORY_LIMIT,
    };
    let amounts =
        |amounts: [(&str, Quantity); 2]| amounts.map(|(name, amount)| (name.to_owned(), amount)).into();
    Container {
        name: LOADER.to_owned(),
        image: Some(resolved.loader_image.clone()),
        args: Some(arguments(uri, volume)),
        env: Some(environment(store)),
        resources: Some(ResourceRequirements {
            requests: Some(amounts([
                ("cpu", Quantity("100m".to_owned())),
                ("memory", Bytes::mebibytes(128).quantity()),
            ])),
            limits: Some([("memory".to_owned(), memory.quantity())].into()),
            ..ResourceRequirements::default()
        }),
        volume_mounts: Some(vec![volumes::model_mount()]),
        security_context: Some(container_security(Some(true))),
        ..Container::default()
    }
}

fn arguments(uri: &str, volume: &Volume) -> Vec<String> {
    let mut arguments = vec!["pull".to_owned(), literal(uri), MODEL_PATH.to_owned()];
    match volume {
        // It ends with its pod. Nobody waits for the disk to have what the engine reads from memory in a moment.
        Volume::Disk { .. } | Volume::Memory { .. } => arguments.push("--no-sync".to_owned()),
        Volume::Claim { .. } => {}
    }
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
