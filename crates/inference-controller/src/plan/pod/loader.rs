//! The init container `model-loader`: copies the model into the pod, or checks the model in the claim, and installs the
//! program of the engine's preStop hook. Its exit code is the reason of a missing model.

use std::{collections::BTreeMap, time::Duration};

use api::{
    aiinference::Addressing,
    loader::{TIMEOUT, options},
    pods::{EnvVar as Variable, Resources},
};
use k8s_openapi::{
    api::core::v1::{Container, EnvVar, EnvVarSource, ResourceRequirements, SecretKeySelector},
    apimachinery::pkg::api::resource::Quantity,
};
use text::quantity::{Bytes, is_less};
use workload::templates::template::{container_security, env_var, literal, non_empty, raise};

use super::volumes;
use crate::{
    engine::MODEL_PATH,
    names::LOADER,
    validate::{Source, Store, ValidInference, Volume},
};

/// Enough for models of any size, because the loader streams.
const MEMORY_LIMIT: Bytes = Bytes::mebibytes(512);

pub(super) fn loader(valid: &ValidInference, image: &str) -> Container {
    let engine = option(options::ENGINE, valid.engine.as_str());
    let (mut arguments, environment, memory, mut mounts) = match &valid.source {
        Source::Store { uri, store, volume } => (
            pull(uri, store, volume, engine),
            environment(store),
            match volume {
                // Pages of a memory volume are charged to the container that writes them.
                Volume::Memory { size } => MEMORY_LIMIT.plus(*size),
                Volume::Disk { .. } | Volume::Ephemeral { .. } => MEMORY_LIMIT,
            },
            vec![volumes::model_mount(&valid.source)],
        ),
        Source::Claim { .. } => {
            let path = literal(&volumes::model_path(&valid.source));
            let arguments = vec!["check".to_owned(), path, engine, option(options::ROOT, MODEL_PATH)];
            (arguments, Vec::new(), MEMORY_LIMIT, vec![volumes::read_only_model_mount(&valid.source)])
        }
    };
    arguments.push(option(options::INSTALL, volumes::PROGRAM_PATH));
    mounts.push(volumes::program_mount());
    mounts.extend(volumes::authority_mount(&valid.source));
    Container {
        name: LOADER.to_owned(),
        image: Some(image.to_owned()),
        args: Some(arguments),
        env: non_empty(with_users(environment, &valid.loader.env)),
        resources: Some(resources(valid, memory)),
        volume_mounts: Some(mounts),
        security_context: Some(container_security(Some(true))),
        ..Container::default()
    }
}

/// See `workload::faults::loader::stall_timeout`.
pub(in crate::plan) fn stall_timeout(valid: &ValidInference) -> Duration {
    let own = match &valid.source {
        Source::Store { store, .. } => environment(store),
        Source::Claim { .. } => Vec::new(),
    };
    workload::faults::loader::stall_timeout(&with_users(own, &valid.loader.env))
}

fn option(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

/// The user's variables take precedence.
fn with_users(own: Vec<EnvVar>, users: &[Variable]) -> Vec<EnvVar> {
    let is_free = |own: &EnvVar| users.iter().all(|variable| variable.name != own.name);
    own.into_iter().filter(is_free).chain(users.iter().map(env_var)).collect()
}

fn resources(valid: &ValidInference, memory: Bytes) -> ResourceRequirements {
    let Resources { mut requests, mut limits } = valid.loader.resources.clone().unwrap_or_default();
    match &valid.source {
        // The user's limit does not include the pages of the model.
        Source::Store { volume: Volume::Memory { size }, .. } => raise(&mut limits, "memory", *size),
        Source::Store { volume: Volume::Disk { .. } | Volume::Ephemeral { .. }, .. }
        | Source::Claim { .. } => {}
    }
    // If the user sets only one of request and limit, the default of the other must keep the request within the limit.
    for (name, own) in [("cpu", Quantity("100m".to_owned())), ("memory", Bytes::mebibytes(128).quantity())] {
        let own = limits.get(name).filter(|limit| is_less(&limit.0, &own.0)).cloned().unwrap_or(own);
        requests.entry(name.to_owned()).or_insert(own);
    }
    let own = memory.quantity();
    let own = requests.get("memory").filter(|request| is_less(&own.0, &request.0)).cloned().unwrap_or(own);
    limits.entry("memory".to_owned()).or_insert(own);
    ResourceRequirements {
        requests: Some(BTreeMap::from_iter(requests)),
        limits: Some(BTreeMap::from_iter(limits)),
        ..ResourceRequirements::default()
    }
}

fn pull(uri: &str, store: &Store, volume: &Volume, engine: String) -> Vec<String> {
    let mut arguments = vec!["pull".to_owned(), literal(uri), MODEL_PATH.to_owned(), engine];
    // A volume that is deleted with its pod needs no fsync.
    let (ends_with_pod, limit) = match volume {
        Volume::Disk { limit } => (true, limit.as_ref().and_then(|limit| Bytes::parse(&limit.0))),
        Volume::Memory { size } => (true, Some(*size)),
        Volume::Ephemeral { .. } => (false, None),
    };
    arguments.extend(ends_with_pod.then(|| format!("--{}", options::NO_SYNC)));
    // Beyond the limit the kubelet would evict the pod, and the next pod would start the download again.
    arguments.extend(limit.map(|limit| option(options::SIZE_LIMIT, limit.count())));
    let Store { addressing, ca_secret, manifest_digest, .. } = store;
    // The default of the loader is not written, so that pods that are older than the field keep their template.
    let addressing = Some(*addressing).filter(|addressing| *addressing != Addressing::Auto);
    arguments.extend(addressing.map(|addressing| option(options::ADDRESSING, addressing.as_option())));
    arguments.extend(ca_secret.as_ref().map(|_| option(options::CA_FILE, volumes::AUTHORITY_FILE)));
    arguments.extend(manifest_digest.as_ref().map(|digest| option(options::MANIFEST_DIGEST, digest)));
    arguments
}

fn environment(store: &Store) -> Vec<EnvVar> {
    let Store { endpoint, region, secret, timeout_seconds, addressing: _, ca_secret: _, manifest_digest: _ } =
        store;
    let value = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(literal(value)),
        value_from: None,
    };
    let mut environment =
        vec![value("AWS_REGION", region), value(TIMEOUT.variable, &timeout_seconds.to_string())];
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

#[cfg(test)]
mod tests {
    use crate::{
        tests::{Scene, deployment_of},
        validate::validate,
    };

    use super::*;

    fn resources_with(users: &str) -> [(String, String); 2] {
        let scene = Scene::new(&format!(
            "{{modelSource: s3://models/qwen, engine: vllm, gpu: {{count: 1}}, modelLoader: {{resources: {users}}}}}"
        ));
        let pod = deployment_of(&scene.plan()).spec.unwrap().template.spec.unwrap();
        let loader = pod.init_containers.unwrap().remove(0).resources.unwrap();
        let amount = |amounts: &Option<BTreeMap<String, Quantity>>, name| {
            amounts.as_ref().and_then(|amounts| amounts.get(name)).map_or(String::new(), |one| one.0.clone())
        };
        ["cpu", "memory"].map(|name| (amount(&loader.requests, name), amount(&loader.limits, name)))
    }

    #[test]
    fn no_default_request_exceeds_its_limit() {
        for (users, cpu, memory) in [
            ("{}", ("100m", ""), ("128Mi", "512Mi")),
            ("{limits: {memory: 64Mi, cpu: 50m}}", ("50m", "50m"), ("64Mi", "64Mi")),
            ("{limits: {memory: 1Gi, cpu: 2}}", ("100m", "2"), ("128Mi", "1Gi")),
            ("{requests: {memory: 1Gi, cpu: 2}}", ("2", ""), ("1Gi", "1Gi")),
            ("{requests: {memory: 32Mi}}", ("100m", ""), ("32Mi", "512Mi")),
            ("{requests: {memory: 32Mi}, limits: {memory: 96Mi}}", ("100m", ""), ("32Mi", "96Mi")),
        ] {
            let expected = [cpu, memory].map(|(request, limit)| (request.to_owned(), limit.to_owned()));
            assert_eq!(resources_with(users), expected, "{users}");
        }
    }

    #[test]
    fn the_stall_timeout_follows_the_environment_of_the_loader() {
        let seconds = |store: &str, env: &str| {
            let scene = Scene::new(&format!(
                "{{modelSource: s3://models/qwen, engine: vllm, gpu: {{count: 1}}, modelStore: {store}, \
                 modelLoader: {{env: {env}}}}}"
            ));
            stall_timeout(&validate(&scene.observed().inference).unwrap()).as_secs()
        };
        assert_eq!(seconds("{}", "[]"), 250);
        assert_eq!(seconds("{timeoutSeconds: 100}", "[]"), 110, "three quarters of it, and the last request");
        assert_eq!(seconds("{}", "[{name: TRANSFER_PATIENCE_SECONDS, value: '600'}]"), 670);
        assert_eq!(seconds("{}", "[{name: TRANSFER_TIMEOUT_SECONDS, value: '100'}]"), 110);
        let elsewhere =
            "[{name: TRANSFER_PATIENCE_SECONDS, valueFrom: {configMapKeyRef: {name: a, key: b}}}]";
        assert_eq!(seconds("{}", elsewhere), 2_770, "an unknown value counts as the maximum");
    }
}
