//! The init container `model-loader`: copies the model into the pod, or checks the model in the claim, and installs the
//! program of the engine's preStop hook. Its exit code is the reason of a missing model.

use std::time::Duration;

use api::{
    aiinference::Addressing,
    labels,
    loader::{self, TIMEOUT, options},
    pods::EnvVar as Variable,
};
use k8s_openapi::api::core::v1::{
    ConfigMapKeySelector, Container, EnvVar, EnvVarSource, ObjectFieldSelector, ResourceRequirements,
    SecretKeySelector,
};
use text::quantity::Bytes;
use workload::templates::{
    options::{HelperAmounts, helper_resources},
    template::{container_security, env_var, literal, non_empty, raise},
};

use super::volumes;
use crate::{
    engine::MODEL_PATH,
    names::{self, LOADER},
    validate::{HubAccess, Origin, Source, Store, ValidInference, Volume},
};

/// In the Secret of `modelStore.secretName`, for a hub.
const TOKEN_KEY: &str = "token";

/// Enough for models of any size, because the loader streams.
const MEMORY_LIMIT: Bytes = Bytes::mebibytes(512);

pub(super) fn loader(valid: &ValidInference, image: &str) -> Container {
    let engine = option(options::ENGINE, valid.engine.as_str());
    let (mut arguments, mut environment, memory, mut mounts) = match &valid.source {
        Source::Copied { uri, file: _, origin, volume } => (
            pull(uri, origin, volume, engine),
            environment(origin),
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
    environment.extend(siblings(&valid.name));
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
        Source::Copied { origin, .. } => environment(origin),
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
    let users = valid.loader.resources.as_ref().or(valid.pods.helper_resources.as_ref());
    let mut users = users.cloned().unwrap_or_default();
    match &valid.source {
        // The user's limit does not include the pages of the model.
        Source::Copied { volume: Volume::Memory { size }, .. } => raise(&mut users.limits, "memory", *size),
        Source::Copied { volume: Volume::Disk { .. } | Volume::Ephemeral { .. }, .. }
        | Source::Claim { .. } => {}
    }
    // It copies and hashes as fast as network and disk can, and for minutes.
    let own = HelperAmounts { cpu: ["100m", "2"], memory: [Bytes::mebibytes(128), memory] };
    helper_resources(Some(&users), &own)
}

fn pull(uri: &str, origin: &Origin, volume: &Volume, engine: String) -> Vec<String> {
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
    if let Origin::Store(Store { addressing, .. }) = origin {
        // The default of the loader is not written, so that pods that are older than the field keep their template.
        let addressing = Some(*addressing).filter(|addressing| *addressing != Addressing::Auto);
        arguments.extend(addressing.map(|addressing| option(options::ADDRESSING, addressing.as_option())));
    }
    arguments.extend(origin.ca_secret().map(|_| option(options::CA_FILE, volumes::AUTHORITY_FILE)));
    match origin {
        Origin::Store(Store { manifest_digest, .. }) => {
            arguments.extend(manifest_digest.as_ref().map(|digest| option(options::MANIFEST_DIGEST, digest)));
        }
        Origin::Hub(HubAccess { include, exclude, .. }) => {
            arguments.extend(include.iter().map(|glob| option(options::INCLUDE, literal(glob))));
            arguments.extend(exclude.iter().map(|glob| option(options::EXCLUDE, literal(glob))));
        }
    }
    arguments
}

fn environment(origin: &Origin) -> Vec<EnvVar> {
    match origin {
        Origin::Store(store) => environment_of_store(store),
        Origin::Hub(access) => environment_of_hub(access),
    }
}

fn environment_of_hub(access: &HubAccess) -> Vec<EnvVar> {
    let HubAccess { hub: _, endpoint, secret, timeout_seconds, ca_secret: _, include: _, exclude: _ } =
        access;
    let mut environment = vec![value(TIMEOUT.variable, &timeout_seconds.to_string())];
    environment.extend(endpoint.as_deref().map(|endpoint| value(loader::HUB_ENDPOINT, endpoint)));
    environment.extend(
        secret.as_deref().map(|secret| EnvVar {
            name: loader::HUB_TOKEN.to_owned(),
            ..from_secret(secret, TOKEN_KEY, None)
        }),
    );
    environment
}

fn value(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(literal(value)), value_from: None }
}

fn environment_of_store(store: &Store) -> Vec<EnvVar> {
    let Store { endpoint, region, secret, timeout_seconds, addressing: _, ca_secret: _, manifest_digest: _ } =
        store;
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

/// What the other pods of the revision have loaded.
fn siblings(name: &str) -> [EnvVar; 2] {
    let digests = EnvVarSource {
        config_map_key_ref: Some(ConfigMapKeySelector {
            name: names::digests(name),
            key: names::DIGESTS.to_owned(),
            optional: Some(true),
        }),
        ..EnvVarSource::default()
    };
    let revision = EnvVarSource {
        field_ref: Some(ObjectFieldSelector {
            api_version: None,
            field_path: format!("metadata.labels['{}']", labels::POD_TEMPLATE_HASH),
        }),
        ..EnvVarSource::default()
    };
    [(loader::DIGESTS, digests), (loader::REVISION, revision)].map(|(name, from)| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(from),
    })
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
    use serde_json::json;

    use crate::{
        tests::{Scene, deployment_of},
        validate::validate,
    };

    use super::*;

    fn resources_with(more: &str) -> serde_json::Value {
        let scene = Scene::new(&format!(
            "{{modelSource: s3://models/qwen, engine: vllm, gpu: {{count: 1}}, {more}}}"
        ));
        let pod = deployment_of(&scene.plan()).spec.unwrap().template.spec.unwrap();
        serde_json::to_value(pod.init_containers.unwrap().remove(0).resources.unwrap()).unwrap()
    }

    #[test]
    fn the_resources_of_the_loader_are_its_own_or_those_of_all_helpers() {
        let own = json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "2", "memory": "512Mi"}});
        assert_eq!(resources_with("replicas: 1"), own, "a quota on limits needs both");
        let helpers = "helperResources: {requests: {memory: 64Mi}, limits: {cpu: 3}}";
        let expected =
            json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "3", "memory": "512Mi"}});
        assert_eq!(resources_with(helpers), expected);
        let both = format!("{helpers}, modelLoader: {{resources: {{limits: {{cpu: 8}}}}}}");
        assert_eq!(resources_with(&both)["limits"]["cpu"], "8");
        assert_eq!(resources_with(&both)["requests"]["memory"], "128Mi");
        let in_memory =
            "modelVolume: {medium: Memory, size: 1Gi}, helperResources: {limits: {memory: 256Mi}}";
        assert_eq!(resources_with(in_memory)["limits"]["memory"], "1280Mi", "the model is added");
    }

    fn loader_with(source: &str, more: &str, flags: &[&str]) -> Container {
        let scene =
            Scene::new(&format!("{{modelSource: '{source}', engine: vllm, gpu: {{count: 1}}{more}}}"));
        let plan = scene.plan_with(&crate::tests::defaults(flags), crate::tests::at(0));
        let pod = deployment_of(&plan).spec.unwrap().template.spec.unwrap();
        pod.init_containers.unwrap().remove(0)
    }

    fn variable(loader: &Container, name: &str) -> Option<EnvVar> {
        loader.env.as_ref().unwrap().iter().find(|variable| variable.name == name).cloned()
    }

    #[test]
    fn a_model_of_a_hub_is_pulled_by_its_name_and_needs_no_store() {
        let loader = loader_with("hf://qwen/Qwen-7B@v1", "", &[]);
        let arguments = loader.args.clone().unwrap();
        assert_eq!(arguments[..3], ["pull", "hf://qwen/Qwen-7B@v1", MODEL_PATH]);
        for name in ["AWS_REGION", "AWS_ACCESS_KEY_ID", loader::HUB_TOKEN, loader::HUB_ENDPOINT] {
            assert_eq!(variable(&loader, name), None, "{name}");
        }
        let more = ", modelLoader: {include: ['*.json', 'a $(HOME)'], exclude: ['original/']}";
        let arguments = loader_with("ms://qwen/Qwen-7B", more, &[]).args.unwrap();
        for wanted in ["--include=*.json", "--include=a $$(HOME)", "--exclude=original/"] {
            assert!(arguments.iter().any(|argument| argument == wanted), "{wanted}: {arguments:?}");
        }
    }

    #[test]
    fn the_token_of_a_hub_is_a_reference_and_never_an_argument() {
        let loader =
            loader_with("hf://qwen/Qwen-7B", ", modelStore: {secretName: hf, caSecretName: ca}", &[]);
        let token = variable(&loader, loader::HUB_TOKEN).unwrap();
        assert_eq!(token.value, None);
        let key = token.value_from.unwrap().secret_key_ref.unwrap();
        assert_eq!((key.name.as_str(), key.key.as_str(), key.optional), ("hf", "token", None));
        let arguments = loader.args.unwrap().join(" ");
        assert!(
            !arguments.contains("token") && arguments.contains("--ca-file=/etc/model-store/ca.crt"),
            "{arguments}"
        );
        assert!(
            variable(&loader_with("s3://m", ", modelStore: {secretName: s3}", &[]), loader::HUB_TOKEN)
                .is_none()
        );
    }

    #[test]
    fn the_endpoint_of_a_hub_is_that_of_the_object_or_of_the_controller() {
        let flags = ["--hf-endpoint=https://hf.mirror", "--ms-endpoint=https://ms.mirror"];
        let endpoint = |source: &str, more: &str, flags: &[&str]| {
            variable(&loader_with(source, more, flags), loader::HUB_ENDPOINT).and_then(|found| found.value)
        };
        assert_eq!(endpoint("hf://a/b", "", &flags).as_deref(), Some("https://hf.mirror"));
        assert_eq!(endpoint("ms://a/b", "", &flags).as_deref(), Some("https://ms.mirror"));
        let own = ", modelStore: {endpoint: 'https://own.mirror'}";
        assert_eq!(endpoint("hf://a/b", own, &flags).as_deref(), Some("https://own.mirror"));
        assert_eq!(endpoint("hf://a/b", "", &[]), None, "the public hub");
        assert_eq!(endpoint("s3://a/b", "", &flags), None);
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
