//! Defaults for newly rendered pods, from the release and from the command line. Pure.

use std::time::Duration;

use api::{aidispatcher::Role, monitor::variables};
use serde_json::Value;
use workload::own_account::OwnAccount;

use crate::{DispatcherArgs, monitors, names::LOADER, prometheus};

/// Defaults for newly rendered pods, and options of the process.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    pub(crate) monitor_image: String,
    pub(crate) agent_image: String,
    coder_image: Option<String>,
    reviewer_image: Option<String>,
    planner_image: Option<String>,
    pub(crate) memory_endpoint: Option<String>,
    pub(crate) memory_secret: Option<String>,
    /// Load that is older is not used.
    pub(crate) load_max_age: Duration,
    pub(crate) checkpoint_seconds: u32,
    /// After which Kubernetes deletes a pod on a lost node.
    pub(crate) lost_node_seconds: i64,
    /// When to retry after a refusal. The deletion of a foreign object or a change of a quota or policy causes no watched event.
    pub(crate) refusal_retry: Duration,
    /// That of this process, which no worker may use.
    pub(crate) own_account: OwnAccount,
}

impl Defaults {
    pub(crate) fn new(args: DispatcherArgs, refusal_retry: Duration) -> Self {
        let DispatcherArgs {
            monitor_image,
            agent_image,
            coder_image,
            reviewer_image,
            planner_image,
            memory_endpoint,
            memory_secret_name,
            prometheus_url,
            checkpoint_seconds,
            node_failure_seconds,
            own_service_account,
            own_namespace,
        } = args;
        Self {
            monitor_image,
            agent_image,
            coder_image,
            reviewer_image,
            planner_image,
            memory_endpoint,
            memory_secret: memory_secret_name,
            load_max_age: prometheus_url.map_or(monitors::MAX_AGE, |_| prometheus::MAX_AGE),
            checkpoint_seconds,
            lost_node_seconds: i64::from(node_failure_seconds),
            refusal_retry,
            own_account: OwnAccount::new(own_namespace, own_service_account),
        }
    }

    /// With the vector store of the pinned template where this process has none: pods that run keep it when the option is no
    /// longer set, as after a rollback.
    pub(crate) fn or_pinned(&self, template: &Value) -> Self {
        let mut defaults = self.clone();
        if defaults.memory_endpoint.is_none() {
            let mut helpers = template["spec"]["initContainers"].as_array().into_iter().flatten();
            let loader = helpers.find(|container| container["name"] == LOADER);
            let value = |name: &str| {
                let mut variables = loader?["env"].as_array()?.iter();
                variables.find(|variable| variable["name"] == name)
            };
            let endpoint = value(variables::MEMORY_ENDPOINT);
            defaults.memory_endpoint =
                endpoint.and_then(|variable| Some(variable["value"].as_str()?.to_owned()));
            let secret = value(variables::MEMORY_API_KEY)
                .and_then(|variable| variable.pointer("/valueFrom/secretKeyRef/name")?.as_str());
            defaults.memory_secret = secret.map(str::to_owned);
        }
        defaults
    }

    /// That of the option of the role.
    pub(crate) fn worker_image(&self, role: Role) -> Option<&str> {
        match role {
            Role::Coder => self.coder_image.as_deref(),
            Role::Reviewer => self.reviewer_image.as_deref(),
            Role::Planner => self.planner_image.as_deref(),
        }
    }
}
