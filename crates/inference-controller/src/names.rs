//! Names of an AIInference's children, and of the containers of its pods.

use workload::name;

/// Value of the label `app.kubernetes.io/name` on every child.
pub(crate) const KIND: &str = "aiinference";

/// The init container that copies or checks the model.
pub(crate) const LOADER: &str = "model-loader";
/// The main container.
pub(crate) const ENGINE: &str = "engine";

/// Every object name is a valid name of a Deployment.
pub(crate) fn deployment(name: &str) -> String {
    name.to_owned()
}

pub(crate) fn pod_disruption_budget(name: &str) -> String {
    name.to_owned()
}

/// Its only key.
pub(crate) const DIGESTS: &str = "digests";

/// The ConfigMap with what pods of each revision have loaded.
pub(crate) fn digests(name: &str) -> String {
    name::with_suffix(name, "-model-digests")
}

pub(crate) fn config_map(name: &str) -> String {
    name::with_suffix(name, "-model")
}

pub(crate) fn service(name: &str) -> String {
    name::service(name)
}

pub(crate) fn headless_service(name: &str) -> String {
    name::with_suffix(&name::service(name), "-pods")
}
