//! Defaults for newly rendered pods, from the release and from the command line. Pure.

use std::time::Duration;

use api::aidispatcher::Role;

use crate::{DispatcherArgs, monitors, prometheus};

/// Defaults for newly rendered pods, and options of the process.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    pub(super) monitor_image: String,
    coder_image: Option<String>,
    reviewer_image: Option<String>,
    planner_image: Option<String>,
    pub(crate) memory_endpoint: Option<String>,
    pub(crate) memory_secret: Option<String>,
    /// Load that is older is not used.
    pub(crate) load_max_age: Duration,
    pub(super) checkpoint_seconds: u32,
    /// After which Kubernetes deletes a pod on a lost node.
    pub(super) lost_node_seconds: i64,
    /// When to retry after a refusal. The deletion of a foreign object or a change of a quota or policy causes no watched event.
    pub(super) refusal_retry: Duration,
}

impl Defaults {
    pub(crate) fn new(args: DispatcherArgs, refusal_retry: Duration) -> Self {
        let DispatcherArgs {
            monitor_image,
            coder_image,
            reviewer_image,
            planner_image,
            memory_endpoint,
            memory_secret_name,
            prometheus_url,
            checkpoint_seconds,
            node_failure_seconds,
            own_service_account: _,
            own_namespace: _,
        } = args;
        Self {
            monitor_image,
            coder_image,
            reviewer_image,
            planner_image,
            memory_endpoint,
            memory_secret: memory_secret_name,
            load_max_age: prometheus_url.map_or(monitors::MAX_AGE, |_| prometheus::MAX_AGE),
            checkpoint_seconds,
            lost_node_seconds: i64::from(node_failure_seconds),
            refusal_retry,
        }
    }

    pub(crate) fn worker_image(&self, role: Role) -> Option<&str> {
        match role {
            Role::Coder => self.coder_image.as_deref(),
            Role::Reviewer => self.reviewer_image.as_deref(),
            Role::Planner => self.planner_image.as_deref(),
        }
    }
}
