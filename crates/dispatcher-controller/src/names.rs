//! Names of the children of an AIDispatcher.

use workload::name;

/// Value of the label `app.kubernetes.io/name` on every child.
pub(crate) const KIND: &str = "aidispatcher";

pub(crate) fn deployment(name: &str) -> String {
    name::with_suffix(name, "-workers")
}

pub(crate) fn disruption_budget(name: &str) -> String {
    name::with_suffix(name, "-workers")
}
