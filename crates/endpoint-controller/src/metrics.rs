//! Metrics: the number of InferenceEndpoints by phase. Only the leader exports it, so that standbys do not count twice.

use api::aiinference::endpoint::Phase;
use runtime::{
    process::Process,
    watch::{cache::Cache, object_counts::ObjectCounts},
};

use crate::endpoint::Endpoint;

const PHASES: ObjectCounts<Endpoint, Phase> = ObjectCounts {
    name: "inferenceendpoint_phase",
    help: "InferenceEndpoints by phase",
    label: "phase",
    values: &[
        (Phase::Pending, "pending"),
        (Phase::Progressing, "progressing"),
        (Phase::Ready, "ready"),
        (Phase::Degraded, "degraded"),
        (Phase::Failed, "failed"),
        (Phase::Stopped, "stopped"),
    ],
    value_of: phase_of,
};

pub(crate) fn export(process: &Process, endpoints: &Cache<Endpoint>) {
    process.count(endpoints, PHASES);
}

/// An object without a status is pending.
fn phase_of(endpoint: &Endpoint) -> Phase {
    endpoint.status.as_ref().and_then(|status| status.phase).unwrap_or(Phase::Pending)
}
