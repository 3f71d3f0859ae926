//! The worker's container, with the environment that authors of agents rely on.

use api::{monitor::variables, pods::Resources};
use k8s_openapi::api::core::v1::{Container, EnvVar, ResourceRequirements};
use workload::template::{container_security, env_var, non_empty};

use super::{from_secret, memory_variables, value, volumes};
use crate::validate::{ValidDispatcher, role};

/// Name of the main container.
pub(in crate::plan) const WORKER: &str = "worker";
/// Some libraries ask for the name of the user, and the image may have none.
const USER: &str = "agent";
/// In the Secret of `credentials`.
const MODEL_KEY: &str = "api-key";

pub(super) fn worker(valid: &ValidDispatcher) -> Container {
    Container {
        name: WORKER.to_owned(),
        image: Some(valid.image.clone()),
        env: Some(environment(valid)),
        resources: resources(&valid.resources),
        volume_mounts: non_empty(volumes::of_worker(valid)),
        // Its metrics port has no probe: a worker that serves no metrics works, and only its load is not known.
        security_context: Some(container_security(None)),
        ..Container::default()
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

fn resources(resources: &Resources) -> Option<ResourceRequirements> {
    let Resources { requests, limits } = resources.clone();
    let set = !requests.is_empty() || !limits.is_empty();
    set.then(|| ResourceRequirements {
        requests: (!requests.is_empty()).then_some(requests),
        limits: (!limits.is_empty()).then_some(limits),
        ..ResourceRequirements::default()
    })
}
