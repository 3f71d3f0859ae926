//! Names of the children of an AIDispatcher, and of the containers of its pods.

use workload::name;

/// Value of the label `app.kubernetes.io/name` on every child.
pub(crate) const KIND: &str = "aidispatcher";

/// The init container that loads memory and state.
pub(crate) const LOADER: &str = "memory-loader";
/// The sidecar.
pub(crate) const MONITOR: &str = "monitor";
/// The main container.
pub(crate) const WORKER: &str = "worker";

pub(crate) fn deployment(name: &str) -> String {
    name::with_suffix(name, "-workers")
}

/// Sends tasks to ready workers.
pub(crate) fn service(name: &str) -> String {
    name::service(name)
}

/// The headless Service.
pub(crate) fn workers_service(name: &str) -> String {
    name::with_suffix(&name::service(name), "-workers")
}

pub(crate) fn disruption_budget(name: &str) -> String {
    name::with_suffix(name, "-workers")
}
