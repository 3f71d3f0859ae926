//! The two containers of the monitor: an init container that loads memory and state, and a sidecar.

use api::monitor::{ADMIN_PORT, ANNOUNCE_END, LOAD_MEMORY, RUN, STREAM_PORT, options, variables};
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerPort, EnvVar, ExecAction, HTTPGetAction, Lifecycle, LifecycleHandler, Probe,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use text::quantity::Bytes;
use workload::templates::{
    options::{HelperAmounts, helper_resources},
    template::{container_security, literal, non_empty},
};

use super::{from_field, from_secret, grace_seconds, memory_variables, value, volumes};
use crate::{
    names::{LOADER, MONITOR},
    validate::{Checkpoint, Storage, ValidDispatcher, defaults::Defaults, role},
};

/// In the Secret of `memoryConfig`.
const MEMORY_KEY: &str = "api-key";
const DEFAULT_REGION: &str = "us-east-1";
/// It reads a memory or a state of gigabytes while the worker waits.
const LOADER_AMOUNTS: HelperAmounts =
    HelperAmounts { cpu: ["10m", "1"], memory: [Bytes::mebibytes(32), Bytes::mebibytes(128)] };
/// It saves a state within the grace period of the pod.
const MONITOR_AMOUNTS: HelperAmounts =
    HelperAmounts { cpu: ["10m", "1"], memory: [Bytes::mebibytes(16), Bytes::mebibytes(64)] };

/// `None`: there is nothing to load.
pub(super) fn loader(valid: &ValidDispatcher, defaults: &Defaults) -> Option<Container> {
    if valid.memory.is_none() && valid.checkpoint.is_none() {
        return None;
    }
    let mut environment = memory_variables(valid);
    let secret = valid.memory.as_ref().and_then(|memory| memory.secret.as_deref());
    environment.extend(secret.map(|secret| from_secret(variables::MEMORY_API_KEY, secret, MEMORY_KEY, None)));
    environment.extend(pod_variables(valid));
    let mut arguments = vec![LOAD_MEMORY.to_owned()];
    if valid.checkpoint.is_some() {
        arguments.push(pool(valid));
    }
    arguments.extend(checkpoint_options(valid, defaults));
    let starts_empty = valid.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.starts_empty);
    arguments.extend(starts_empty.then(|| format!("--{}", options::START_EMPTY)));
    Some(Container {
        name: LOADER.to_owned(),
        image: Some(defaults.monitor_image.clone()),
        args: Some(arguments),
        env: non_empty(environment),
        resources: Some(helper_resources(valid.pods.helper_resources.as_ref(), &LOADER_AMOUNTS)),
        volume_mounts: Some(volumes::of_loader(valid)),
        security_context: Some(container_security(Some(true))),
        ..Container::default()
    })
}

pub(super) fn monitor(valid: &ValidDispatcher, defaults: &Defaults) -> Container {
    let option = |name: &str, value: &str| format!("--{name}={}", literal(value));
    let mut arguments = vec![RUN.to_owned(), pool(valid), option(options::ROLE, role(valid.role))];
    arguments.extend(checkpoint_options(valid, defaults));
    arguments.extend(volumes::keys(valid).map(|_| option(options::KEYS_DIR, volumes::KEYS_PATH)));
    let mut environment = pod_variables(valid);
    environment.push(value(variables::AGENT_METRICS_PORT, &valid.metrics_port.to_string()));
    environment.push(value(variables::AGENT_LOG_FILE, volumes::LOG_FILE));
    let port = |name: &str, port: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(port),
        ..ContainerPort::default()
    };
    Container {
        name: MONITOR.to_owned(),
        image: Some(defaults.monitor_image.clone()),
        args: Some(arguments),
        env: Some(environment),
        ports: Some(vec![port("monitor", STREAM_PORT), port("monitor-metrics", ADMIN_PORT)]),
        // The value that makes an init container a native sidecar.
        restart_policy: Some("Always".to_owned()),
        lifecycle: valid.checkpoint.as_ref().map(|_| announces_the_end()),
        // A failed probe restarts only the sidecar; the worker keeps running.
        liveness_probe: Some(probe("/livez", 10, 6)),
        // The pod is ready once the monitor has read a load of its worker. So a revision of which no worker reports one
        // replaces none, also while no controller runs.
        readiness_probe: Some(probe("/readyz", 2, 3)),
        resources: Some(helper_resources(valid.pods.helper_resources.as_ref(), &MONITOR_AMOUNTS)),
        volume_mounts: Some(volumes::of_monitor(valid)),
        security_context: Some(container_security(Some(true))),
        ..Container::default()
    }
}

/// It fails after so many answers in a row that are missing or wrong.
fn probe(path: &str, period_seconds: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(i32::from(ADMIN_PORT)),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

/// The kubelet runs the hooks of all containers at once, and ends the sidecar after the worker. Without this hook the
/// monitor could not announce the end of the pod in time, and a new worker would not wait for the state of this one.
fn announces_the_end() -> Lifecycle {
    // Its path in the image.
    let command = vec![format!("/{}", api::controllers::MONITOR.name), ANNOUNCE_END.to_owned()];
    Lifecycle {
        pre_stop: Some(LifecycleHandler {
            exec: Some(ExecAction { command: Some(command) }),
            ..LifecycleHandler::default()
        }),
        ..Lifecycle::default()
    }
}

/// The kubelet fills in the namespace, so that equal specs have equal templates in every namespace.
fn pool(valid: &ValidDispatcher) -> String {
    format!("--{}=$({})/{}", options::POOL, variables::POD_NAMESPACE, valid.name)
}

fn checkpoint_options(valid: &ValidDispatcher, defaults: &Defaults) -> Vec<String> {
    let Some(Checkpoint { storage, grace_seconds: _, starts_empty: _ }) = &valid.checkpoint else {
        return Vec::new();
    };
    let storage = match storage {
        Storage::Claim(_) => format!("--{}={}", options::CHECKPOINT_DIR, volumes::CHECKPOINTS_PATH),
        Storage::Store { uri, .. } => format!("--{}={}", options::CHECKPOINT_URI, literal(uri)),
    };
    let authorities = volumes::ca_secret(valid);
    [
        storage,
        format!("--{}={}", options::CHECKPOINT_SECONDS, defaults.checkpoint_seconds),
        format!("--{}={}", options::GRACE_SECONDS, grace_seconds(valid)),
    ]
    .into_iter()
    .chain(authorities.map(|_| format!("--{}={}", options::CA_FILE, volumes::AUTHORITY_FILE)))
    .collect()
}

/// Identity of the pod, folder of the state, and access to the store.
fn pod_variables(valid: &ValidDispatcher) -> Vec<EnvVar> {
    let mut environment = vec![
        from_field(variables::POD_NAME, "metadata.name"),
        from_field(variables::POD_UID, "metadata.uid"),
        from_field(variables::POD_NAMESPACE, "metadata.namespace"),
        value(variables::STATE_DIR, volumes::STATE_PATH),
    ];
    if let Some(Checkpoint {
        storage: Storage::Store { uri: _, endpoint, region, secret, ca_secret: _ },
        ..
    }) = &valid.checkpoint
    {
        environment.push(value("AWS_REGION", region.as_deref().unwrap_or(DEFAULT_REGION)));
        environment.extend(endpoint.as_deref().map(|endpoint| value("AWS_ENDPOINT_URL", endpoint)));
        // If a key is missing, the container does not start and its status names the key. Later values are read from
        // the volume.
        for (key, optional) in volumes::KEYS.into_iter().zip([None, None, Some(true)]) {
            environment.extend(secret.as_deref().map(|secret| from_secret(key, secret, key, optional)));
        }
    }
    environment
}
