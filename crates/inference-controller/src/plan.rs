//! What has to be done for one AIInference, as one value. Pure: no request, no clock, no randomness.
//!
//! Reads as a table of contents; each child and each policy has its own file.

use std::time::Duration;

use api::aiinference::AIInferenceStatus;
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod, Service},
    policy::v1::PodDisruptionBudget,
};
use runtime::events::Note;
use serde::Serialize;

use crate::{
    observe::Observed,
    pace::Allowance,
    plan::resolved::resolve,
    validate::{Invalid, ValidInference},
};

mod claim;
mod conditions;
mod config_map;
mod deployment;
mod events;
mod faults;
mod gpus;
mod metadata;
mod nodes;
mod pod;
mod pod_disruption_budget;
mod resolved;
mod rollout;
mod service;
mod status;

pub(crate) use nodes::due;
pub(crate) use pod::ENGINE;
pub(crate) use resolved::Defaults;

/// The whole decision.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Plan {
    /// In the order in which they are applied.
    pub(crate) children: Vec<Child>,
    pub(crate) deletions: Vec<Deletion>,
    pub(crate) status: AIInferenceStatus,
    pub(crate) events: Vec<Note>,
    /// When to look again even if nothing changes.
    pub(crate) requeue_after: Option<Duration>,
}

/// A child as it should be.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum Child {
    ConfigMap(Box<ConfigMap>),
    Deployment(Box<Deployment>),
    Service(Box<Service>),
    PodDisruptionBudget(Box<PodDisruptionBudget>),
}

/// A child of ours that must go, as it was seen.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum Deletion {
    PodDisruptionBudget(Box<PodDisruptionBudget>),
    /// Of a lost node; nothing but what identifies it.
    Pod(Box<Pod>),
}

/// A child that the API server did not take from us. But for the first kind waiting does not mend it; somebody has to
/// change something.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Refusal {
    /// The object that had our name before has left it; the garbage collector is about to take it.
    Leftover,
    /// An object of that name belongs to somebody else.
    OwnershipConflict(String),
    /// The API server calls it invalid.
    InvalidSpec(String),
}

/// A foreign object may be renamed or deleted without any event that we would see.
const LOOK_AGAIN_AFTER_REFUSAL: Duration = Duration::from_secs(60);
/// An idle garbage collector needs less.
const LOOK_AGAIN_AFTER_LEFTOVER: Duration = Duration::from_secs(1);

/// For a spec that can be carried out. `allowance`: which of the pods that are `due` may leave their nodes now.
pub(crate) fn plan(
    valid: &ValidInference,
    observed: &Observed,
    allowance: &Allowance,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    let resolved = resolve(valid, observed.deployment.as_ref(), defaults);
    let rollout = rollout::rollout(valid, observed, now);
    let moves = nodes::moves(valid, observed, allowance, now);
    let judged = conditions::of_valid(valid, observed, &moves, now);
    let soonest = [rollout.look_again, moves.look_again, judged.look_again].into_iter().flatten().min();
    let changes = events::of_change(observed.model.status.as_ref(), &judged);
    let status = status::of_valid(valid, &resolved, observed, judged, moves.migrations, now);
    let lingers = status::lingers(observed, &status, now);
    let status = match &observed.model.status {
        Some(written) if lingers.is_some() => written.clone(),
        Some(_) | None => status,
    };
    let (children, deletions) = if valid.pods.paused {
        (Vec::new(), Vec::new())
    } else {
        let superfluous = pod_disruption_budget::superfluous(valid, observed)
            .map(|budget| Deletion::PodDisruptionBudget(Box::new(budget)));
        (
            [
                Some(Child::ConfigMap(Box::new(config_map::config_map(valid)))),
                Some(Child::Deployment(Box::new(deployment::deployment(valid, &resolved, rollout.strategy)))),
                Some(Child::Service(Box::new(service::service(valid, &resolved)))),
                pod_disruption_budget::pod_disruption_budget(valid)
                    .map(|budget| Child::PodDisruptionBudget(Box::new(budget))),
            ]
            .into_iter()
            .flatten()
            .collect(),
            superfluous.into_iter().chain(moves.deletions).collect(),
        )
    };
    let events = moves.events.into_iter().chain(changes).collect();
    Plan { children, deletions, status, events, requeue_after: soonest.into_iter().chain(lingers).min() }
}

/// For a spec that cannot be carried out: what runs is left running.
pub(crate) fn rejected(invalid: &Invalid, observed: &Observed, now: Timestamp) -> Plan {
    let judged = conditions::of_invalid(invalid, observed);
    let events = events::of_change(observed.model.status.as_ref(), &judged);
    told(status::of_invalid(observed, judged, now), events, None)
}

/// For children that the API server has just refused: nothing more is tried for a while.
pub(crate) fn refused(
    refusal: &Refusal,
    valid: &ValidInference,
    observed: &Observed,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    let resolved = resolve(valid, observed.deployment.as_ref(), defaults);
    // Pods leave a lost node when the children are accepted again.
    let moves = nodes::moves(valid, observed, &Allowance::default(), now);
    let judged = conditions::of_refused(refusal, valid, observed, &moves, now);
    let events = events::of_change(observed.model.status.as_ref(), &judged);
    let status = status::of_valid(valid, &resolved, observed, judged, moves.migrations, now);
    let wait = match refusal {
        Refusal::Leftover => LOOK_AGAIN_AFTER_LEFTOVER,
        Refusal::OwnershipConflict(_) | Refusal::InvalidSpec(_) => LOOK_AGAIN_AFTER_REFUSAL,
    };
    told(status, events, Some(wait))
}

/// A plan that only says something.
fn told(status: AIInferenceStatus, events: Vec<Note>, requeue_after: Option<Duration>) -> Plan {
    Plan { children: Vec::new(), deletions: Vec::new(), status, events, requeue_after }
}

#[cfg(test)]
mod tests;
