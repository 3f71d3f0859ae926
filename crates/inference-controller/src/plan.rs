//! Decides all writes for one AIInference and returns them as one value. Pure: no request, no clock, no randomness.
//!
//! Each child and each policy has its own file.

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

mod cold_start;
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
pub(crate) use nodes::{PodDeletion, due, pod_deletions};
pub(crate) use pod::ENGINE;
pub(crate) use revision::{has_pods, restores_older};

/// All writes for one AIInference.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Plan {
    /// In the order in which they are applied.
    pub(crate) children: Vec<Child>,
    /// Budgets to delete, with uid and version as preconditions.
    pub(crate) budget_deletions: Vec<PodDisruptionBudget>,
    pub(crate) status: AIInferenceStatus,
    pub(crate) events: Vec<Note>,
    /// Logs to read, for the causes of crashes.
    pub(crate) logs: Vec<Log>,
    /// Facts that are true now, for `FactTimes`.
    #[serde(skip)]
    pub(crate) facts: Vec<String>,
    /// When to reconcile again even if no object changes.
    pub(crate) requeue_after: Option<Duration>,
}

/// The desired state of a child.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum Child {
    ConfigMap(Box<ConfigMap>),
    Deployment(Box<RenderedDeployment>),
    Service(Box<Service>),
    PodDisruptionBudget(Box<PodDisruptionBudget>),
}

/// A garbage collector deletes a child within this time, also while it waits up to 30 s for the caches of a kind that was
/// installed, after up to 30 s until it finds that.
const LEFTOVER_GOES_WITHIN: Duration = Duration::from_secs(90);
/// With foreground deletion, a Deployment exists until its pods have ended.
const OVERDUE_RETRY: Duration = Duration::from_secs(10);
/// An idle garbage collector deletes a child within this time.
const LEFTOVER_RETRY: Duration = Duration::from_secs(1);

/// The plan for a valid spec, after the deletions that `allowance` covers.
pub(crate) fn plan(
    valid: &ValidInference,
    observed: &Observed,
    allowance: &Allowance,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    let revision = revision::revision(valid, observed, defaults);
    let rollout = rollout::rollout(valid, &revision, observed, now);
    let migration = nodes::migration_state(valid, &revision, observed, now);
    let decided = Decided { revision: &revision, migration: &migration, rollout: &rollout };
    let assessment = conditions::of_valid(valid, observed, &decided, now);
    let requeue_after = nodes::requeue_after(observed, allowance, now);
    let soonest =
        [rollout.requeue_after, requeue_after, assessment.requeue_after].into_iter().flatten().min();
    let changes = events::of_change(observed.inference.status.as_ref(), &assessment);
    let mut facts = rollout.shortages;
    facts.extend(observed.unattached.iter().filter_map(|(uid, failure)| failure.fact(uid)));
    let status = status::of_valid(valid, &revision, observed, assessment, nodes::migrations(observed), now);
    if let Some(warning) =
        rollout.warning.filter(|warning| !valid.pods.paused && !events::was_announced(observed, warning))
    {
        // Writes only the warning; the next reconcile applies the change.
        let announced = vec![events::announcement(warning)];
        return Plan { facts, ..status_only(status, announced, Some(Duration::ZERO)) };
    }
    let unwritten = status::unwritten_numbers(observed, &status, now)
        .or_else(|| status::unwritten_first(observed, &status, now));
    let wait = unwritten
        .as_ref()
        .and_then(|unwritten| unwritten.wait)
        .or_else(|| status::delay_of_counts(observed, &status, now));
    facts.extend(unwritten.map(|unwritten| unwritten.fact));
    let status = match &observed.inference.status {
        Some(written) if wait.is_some() => written.clone(),
        Some(_) | None => status,
    };
    let planned_on = observed.deployment.as_ref().and_then(|known| known.metadata.resource_version.clone());
    let (children, budget_deletions) = if valid.pods.paused {
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
    Plan { children, budget_deletions, status, events: changes, logs, facts, requeue_after }
}

/// The plan for an invalid spec: children stay unchanged.
pub(crate) fn rejected(
    invalid: &Invalid,
    observed: &Observed,
    allowance: &Allowance,
    now: Timestamp,
) -> Plan {
    let assessment = conditions::of_invalid(invalid, observed);
    let events = events::of_change(observed.inference.status.as_ref(), &assessment);
    let migrations = nodes::migrations(observed);
    let status = AIInferenceStatus { migrations, ..status::of_invalid(observed, assessment, now) };
    status_only(status, events, nodes::requeue_after(observed, allowance, now))
}

/// The plan after the API server has refused a child: report it, and retry later.
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
    let migration = nodes::migration_state(valid, &revision, observed, now);
    let decided = Decided { revision: &revision, migration: &migration, rollout: &rollout };
    let assessment = conditions::of_refused(refusal, valid, observed, &decided, now);
    let events = events::of_change(observed.inference.status.as_ref(), &assessment);
    let status = status::of_valid(valid, &revision, observed, assessment, nodes::migrations(observed), now);
    let wait = match refusal {
        Refusal::Leftover { .. } => LEFTOVER_RETRY,
        Refusal::OwnershipConflict(_) if overdue.is_some() => OVERDUE_RETRY,
        Refusal::OwnershipConflict(_) | Refusal::Invalid(_) | Refusal::Denied(_) => defaults.refusal_retry,
    };
    status_only(
        status,
        events,
        nodes::requeue_after(observed, allowance, now).into_iter().chain([wait]).min(),
    )
}

/// A leftover child that is not deleted in time counts as an ownership conflict.
fn overdue(refusal: &Refusal, observed: &Observed, now: Timestamp) -> Option<Refusal> {
    let Refusal::Leftover { deleted, message } = refusal else { return None };
    // Without a deletion timestamp the time counts from the creation of the AIInference.
    let created = observed.inference.metadata.creation_timestamp.as_ref().map(|created| created.0);
    let waited = elapsed(deleted.or(created)?, now);
    (waited > LEFTOVER_GOES_WITHIN).then(|| Refusal::OwnershipConflict(message.clone()))
}

/// A plan that writes only status and events.
fn status_only(status: AIInferenceStatus, events: Vec<Note>, requeue_after: Option<Duration>) -> Plan {
    let (children, budget_deletions, logs, facts) = Default::default();
    Plan { children, budget_deletions, status, events, logs, facts, requeue_after }
}

#[cfg(test)]
mod tests;
