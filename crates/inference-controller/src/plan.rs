//! What has to be done for one AIInference, as one value. Pure: no request, no clock, no randomness.
//!
//! Reads as a table of contents; each child and each policy has its own file.

use std::time::Duration;

use api::aiinference::AIInferenceStatus;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Service},
    policy::v1::PodDisruptionBudget,
};
use runtime::{events::Note, refusal::Refusal};
use serde::Serialize;

use workload::{crashes::Log, deployment::RenderedDeployment, pace::Allowance, time::elapsed};

use crate::{
    observe::Observed,
    validate::{Invalid, ValidInference},
};

mod conditions;
mod config_map;
mod defaults;
mod deployment;
mod events;
mod faults;
mod metadata;
mod nodes;
mod pod;
mod pod_disruption_budget;
mod revision;
mod rollout;
mod service;
mod status;

use conditions::Decided;
pub(crate) use defaults::Defaults;
pub(crate) use nodes::{Leaving, due, leaving};
pub(crate) use pod::ENGINE;
pub(crate) use revision::{runs, takes_back};

/// The whole decision.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Plan {
    /// In the order in which they are applied.
    pub(crate) children: Vec<Child>,
    /// What must go, as it was seen.
    pub(crate) deletions: Vec<PodDisruptionBudget>,
    pub(crate) status: AIInferenceStatus,
    pub(crate) events: Vec<Note>,
    /// What the next plan needs to say why an engine crashed.
    pub(crate) logs: Vec<Log>,
    /// What is true now, so that the next plan knows since when.
    #[serde(skip)]
    pub(crate) lasting: Vec<String>,
    /// When to look again even if nothing changes.
    pub(crate) requeue_after: Option<Duration>,
}

/// A child as it should be.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum Child {
    ConfigMap(Box<ConfigMap>),
    Deployment(Box<RenderedDeployment>),
    Service(Box<Service>),
    PodDisruptionBudget(Box<PodDisruptionBudget>),
}

/// A busy garbage collector needs less.
const LEFTOVER_GOES_WITHIN: Duration = Duration::from_secs(30);
/// It may only be slow: a Deployment that is deleted before its pods is there until they have ended.
const LOOK_AGAIN_AFTER_OVERDUE: Duration = Duration::from_secs(10);
/// An idle garbage collector needs less.
const LOOK_AGAIN_AFTER_LEFTOVER: Duration = Duration::from_secs(1);

/// For a spec that can be carried out, after the pods of `allowance` have left their nodes.
pub(crate) fn plan(
    valid: &ValidInference,
    observed: &Observed,
    allowance: &Allowance,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    let revision = revision::revision(valid, observed, defaults);
    let rollout = rollout::rollout(valid, &revision, observed, now);
    let moves = nodes::moves(valid, &revision, observed, now);
    let decided = Decided { revision: &revision, moves: &moves, rollout: &rollout };
    let judged = conditions::of_valid(valid, observed, &decided, now);
    let look_again = nodes::look_again(observed, allowance, now);
    let soonest = [rollout.look_again, look_again, judged.look_again].into_iter().flatten().min();
    let changes = events::of_change(observed.model.status.as_ref(), &judged);
    let mut lasting = rollout.lacks;
    lasting.extend(observed.unattached.iter().filter_map(|(uid, failure)| failure.fact(uid)));
    let status = status::of_valid(valid, &revision, observed, judged, nodes::migrations(observed), now);
    if let Some(warning) =
        rollout.warning.filter(|warning| !valid.pods.paused && !events::was_announced(observed, warning))
    {
        // First the warning, then, in the next reconcile, what it warns of.
        let announced = vec![events::announcement(warning)];
        return Plan { lasting, ..status_only(status, announced, Some(Duration::ZERO)) };
    }
    let measured = status::may_measure(observed, &status, now);
    lasting.extend(measured.map(|_| status::MEASURED.to_owned()));
    let wait = measured.or_else(|| status::may_wait(observed, &status, now));
    let status = match &observed.model.status {
        Some(written) if wait.is_some() => written.clone(),
        Some(_) | None => status,
    };
    let planned_on = observed.deployment.as_ref().and_then(|known| known.metadata.resource_version.clone());
    let (children, deletions) = if valid.pods.paused {
        (Vec::new(), Vec::new())
    } else {
        let superfluous = pod_disruption_budget::superfluous(valid, observed);
        (
            [
                Some(Child::ConfigMap(Box::new(config_map::config_map(valid)))),
                Some(Child::Deployment(Box::new(deployment::deployment(
                    valid,
                    &revision,
                    rollout.strategy,
                    planned_on,
                )))),
                Some(Child::Service(Box::new(service::service(valid, &revision, observed)))),
                pod_disruption_budget::pod_disruption_budget(valid)
                    .map(|budget| Child::PodDisruptionBudget(Box::new(budget))),
            ]
            .into_iter()
            .flatten()
            .collect(),
            superfluous.into_iter().collect(),
        )
    };
    let logs = faults::logs_to_read(revision.pods, observed);
    let requeue_after = soonest.into_iter().chain(wait).min();
    Plan { children, deletions, status, events: changes, logs, lasting, requeue_after }
}

/// For a spec that cannot be carried out: what runs is left running.
pub(crate) fn rejected(
    invalid: &Invalid,
    observed: &Observed,
    allowance: &Allowance,
    now: Timestamp,
) -> Plan {
    let judged = conditions::of_invalid(invalid, observed);
    let events = events::of_change(observed.model.status.as_ref(), &judged);
    let migrations = nodes::migrations(observed);
    let status = AIInferenceStatus { migrations, ..status::of_invalid(observed, judged, now) };
    status_only(status, events, nodes::look_again(observed, allowance, now))
}

/// For children that the API server has just refused: the next try comes later.
pub(crate) fn refused(
    refusal: &Refusal,
    valid: &ValidInference,
    observed: &Observed,
    allowance: &Allowance,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    let overdue = overdue(refusal, observed, now);
    let refusal = overdue.as_ref().unwrap_or(refusal);
    let revision = revision::revision(valid, observed, defaults);
    let rollout = rollout::rollout(valid, &revision, observed, now);
    let moves = nodes::moves(valid, &revision, observed, now);
    let decided = Decided { revision: &revision, moves: &moves, rollout: &rollout };
    let judged = conditions::of_refused(refusal, valid, observed, &decided, now);
    let events = events::of_change(observed.model.status.as_ref(), &judged);
    let status = status::of_valid(valid, &revision, observed, judged, nodes::migrations(observed), now);
    let wait = match refusal {
        Refusal::Leftover { .. } => LOOK_AGAIN_AFTER_LEFTOVER,
        Refusal::OwnershipConflict(_) if overdue.is_some() => LOOK_AGAIN_AFTER_OVERDUE,
        Refusal::OwnershipConflict(_) | Refusal::Invalid(_) | Refusal::Denied(_) => defaults.refusal_retry,
    };
    status_only(status, events, nodes::look_again(observed, allowance, now).into_iter().chain([wait]).min())
}

/// A leftover that does not go, because something holds it back, is a conflict like any other.
fn overdue(refusal: &Refusal, observed: &Observed, now: Timestamp) -> Option<Refusal> {
    let Refusal::Leftover { deleted, message } = refusal else { return None };
    // Before its own deletion has begun, it counts from when its name was wanted.
    let created = observed.model.metadata.creation_timestamp.as_ref().map(|created| created.0);
    let waited = elapsed(deleted.or(created)?, now);
    (waited > LEFTOVER_GOES_WITHIN).then(|| Refusal::OwnershipConflict(message.clone()))
}

/// A plan that changes nothing else.
fn status_only(status: AIInferenceStatus, events: Vec<Note>, requeue_after: Option<Duration>) -> Plan {
    let (children, deletions, logs, lasting) = Default::default();
    Plan { children, deletions, status, events, logs, lasting, requeue_after }
}

#[cfg(test)]
mod tests;
