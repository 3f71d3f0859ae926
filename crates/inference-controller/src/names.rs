//! Names of an AIInference's children, and of the containers of its pods.

use api::labels;
use workload::name;

/// Value of the label `app.kubernetes.io/name` on every child.
pub(crate) const KIND: &str = "aiinference";

/// The init container that copies or checks the model.
pub(crate) const LOADER: &str = "model-loader";
/// The main container.
pub(crate) const ENGINE: &str = "engine";

/// The version that children belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Track {
    #[default]
    Stable,
    /// The candidate.
    Canary,
}

impl Track {
    /// Value of the label `track`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Track::Stable => labels::TRACK_STABLE,
            Track::Canary => labels::TRACK_CANARY,
        }
    }

    fn of(self, name: &str) -> String {
        match self {
            Track::Stable => name.to_owned(),
            Track::Canary => name::with_suffix(name, "-canary"),
        }
    }
}

/// Every object name is a valid name of a Deployment.
pub(crate) fn deployment(name: &str, track: Track) -> String {
    track.of(name)
}

pub(crate) fn pod_disruption_budget(name: &str, track: Track) -> String {
    track.of(name)
}

pub(crate) fn route(name: &str) -> String {
    name.to_owned()
}

/// Not that of the HTTPRoute: Contour keeps what it says of a route by its name alone, whatever its kind.
pub(crate) fn grpc_route(name: &str) -> String {
    name::with_suffix(name, "-grpc")
}

/// Also the name in routes, so that a version has one there.
pub(crate) fn pool(name: &str, track: Track) -> String {
    service(name, track)
}

/// Its only key.
pub(crate) const DIGESTS: &str = "digests";

/// The ConfigMap with what pods of each revision have loaded.
pub(crate) fn digests(name: &str) -> String {
    name::with_suffix(name, "-model-digests")
}

pub(crate) fn config_map(name: &str, track: Track) -> String {
    name::with_suffix(&track.of(name), "-model")
}

pub(crate) fn service(name: &str, track: Track) -> String {
    track.of(&name::service(name))
}

pub(crate) fn headless_service(name: &str) -> String {
    name::with_suffix(&name::service(name), "-pods")
}
