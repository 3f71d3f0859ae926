//! Decides all writes for one AIDispatcher and returns them as one value. Pure: no request, no clock, no randomness.
//!
//! Each child and each policy has its own file.

use std::time::Duration;

use api::aidispatcher::{AIDispatcher, AIDispatcherStatus};
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use runtime::{events::Note, refusal::Refusal};
use scaling::history::History;
use serde::Serialize;
use workload::{deployment::RenderedDeployment, time::elapsed};

use crate::{
    observe::Observed,
    validate::{Invalid, ValidDispatcher},
};
use marks::Marking;

mod conditions;
mod defaults;
mod deployment;
mod disruption_budget;
mod events;
mod faults;
mod marks;
mod metadata;
mod pod;
mod readiness;
mod replacement;
mod replicas;
mod revision;
mod rollout;
mod status;

pub(crate) use defaults::Defaults;
pub(crate) use marks::Mark;
pub(crate) use pod::MONITOR;
pub(crate) use replicas::TOO_MANY;
pub(crate) use revision::{or_pinned_defaults, restores_older};

/// All writes for one AIDispatcher.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Plan {
    /// Deletion costs of pods, before the number of workers falls, and what keeps node autoscalers from busy ones.
    pub(crate) marks: Vec<Mark>,
    /// `None`: it stays as it is.
    pub(crate) deployment: Option<Box<RenderedDeployment>>,
    /// `None`: it stays as it is.
    pub(crate) budget: Option<Box<PodDisruptionBudget>>,
    pub(crate) status: AIDispatcherStatus,
    pub(crate) events: Vec<Note>,
    /// That the load has changed the number of workers, once the Deployment is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rescaled: Option<Note>,
    /// That one more worker starts, so that an idle one gives way, once the Deployment is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replaces: Option<Note>,
    /// What decisions on the number of workers need of the past, once the Deployment is written.
    #[serde(skip)]
    pub(crate) past: Option<History>,
    /// Facts that are true now, for `FactTimes`.
    #[serde(skip)]
    pub(crate) facts: Vec<String>,
    /// When to reconcile again even if no object changes.
    pub(crate) requeue_after: Option<Duration>,
}

impl Plan {
    /// Removes the change of the number from the event, the history and the status, if it was not written to the
    /// Deployment, such as while that is being deleted.
    pub(crate) fn forget_rescale(&mut self, before: Option<&AIDispatcherStatus>) {
        if self.rescaled.take().is_some() {
            self.past = None;
            self.status = status::without_rescale(std::mem::take(&mut self.status), before);
        }
    }

    /// Reports that the budget was refused. The pool goes on without it.
    pub(crate) fn report_refused_budget(
        &mut self,
        refusal: &Refusal,
        dispatcher: &AIDispatcher,
        now: Timestamp,
    ) {
        let wait = disruption_budget::TRIED_AGAIN_AFTER;
        self.requeue_after = Some(self.requeue_after.map_or(wait, |planned| planned.min(wait)));
        let Some(omitted) = disruption_budget::refused(refusal) else { return };
        let before = dispatcher.status.as_ref();
        self.events.extend(events::of_budget(before, &omitted));
        self.status = status::with_verdict(std::mem::take(&mut self.status), omitted, dispatcher, now);
    }
}

/// A garbage collector deletes a child within this time, also while it waits up to 30 s for the caches of a kind that was
/// installed, after up to 30 s until it finds that.
const LEFTOVER_GOES_WITHIN: Duration = Duration::from_secs(90);
/// With foreground deletion, a Deployment exists until its pods have ended.
const OVERDUE_RETRY: Duration = Duration::from_secs(10);
/// An idle garbage collector deletes a child within this time.
const LEFTOVER_RETRY: Duration = Duration::from_secs(1);

/// The plan for a valid spec.
pub(crate) fn plan(
    valid: &ValidDispatcher,
    observed: &Observed,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    let revision = revision::revision(valid, observed, defaults);
    let sizing = replicas::sizing(valid, observed, now);
    let (sizing, replaces) = replacement::replacement(valid, observed, &revision, sizing, defaults, now);
    let (sizing, marking, guarding) = if valid.pods.paused {
        // The pods get no costs for a smaller number.
        (sizing, marks::of_present(observed, now), disruption_budget::of_deployed(observed, now))
    } else {
        let sizing = marks::marked(sizing, observed, now);
        (sizing, Marking::default(), disruption_budget::guarding(observed, now))
    };
    let mut assessment = conditions::of_valid(valid, observed, &revision, &sizing, now);
    assessment.verdicts.extend(guarding.omitted);
    let assessment_facts = assessment.facts.clone();
    let (strategy, rollout_requeue_after) = rollout::rollout(valid, &revision, observed, now);
    let soonest = [
        sizing.requeue_after,
        assessment.requeue_after,
        rollout_requeue_after,
        guarding.requeue_after,
        marking.requeue_after,
        observed.token_rate.changes_in,
    ];
    let soonest = soonest.into_iter().flatten().min();
    let mut events = events::of_change(observed.dispatcher.status.as_ref(), &assessment);
    let why = scale_reason(&sizing);
    let rescaled = sizing.scales(valid).map(|(from, to)| events::of_scale(from, to, &why));
    let past = sizing.past(valid);
    let status = status::of_valid(valid, &revision, &sizing, past.as_ref(), observed, assessment, now);
    let unwritten = status::unwritten_numbers(observed, &status, now)
        .or_else(|| status::unwritten_first(observed, &status, now));
    let wait = unwritten
        .as_ref()
        .and_then(|unwritten| unwritten.wait)
        .or_else(|| status::delay_of_counts(observed, &status, now));
    let mut facts = if valid.pods.paused { marking.facts } else { sizing.facts.clone() };
    facts.extend(guarding.facts);
    facts.extend(assessment_facts);
    facts.extend(unwritten.map(|unwritten| unwritten.fact));
    let status = match &observed.dispatcher.status {
        Some(written) if wait.is_some() => {
            // Events compare with the stored status, and come with the one that is written.
            events.clear();
            // What is newly lost is so until it is reported.
            facts.retain(|fact| !fact.starts_with(conditions::LOST) || observed.facts.contains_key(fact));
            written.clone()
        }
        Some(_) | None => status,
    };
    let planned_on = observed.deployment.as_ref().and_then(|known| known.metadata.resource_version.clone());
    let (marks, deployment) = if valid.pods.paused {
        (marking.marks, None)
    } else {
        let deployment = deployment::deployment(valid, &revision, strategy, &sizing, planned_on);
        (sizing.marks, Some(Box::new(deployment)))
    };
    let budget = guarding.budget;
    let requeue_after = soonest.into_iter().chain(wait).min();
    Plan { marks, deployment, budget, status, events, rescaled, replaces, past, facts, requeue_after }
}

/// The load that caused another number of workers.
fn scale_reason(sizing: &replicas::Sizing) -> String {
    let Some(decision) = &sizing.decision else { return String::new() };
    let supply = decision.supply();
    let metric = decision.conclusion.winner.and_then(|winner| decision.record.inputs.metrics.get(winner));
    match metric {
        Some(metric) if metric.name.as_str() == crate::validate::TOKENS => "tokens per minute".to_owned(),
        Some(_) => format!("queued tasks; busy workers: {}", supply.busy),
        None => "the bounds of spec.autoscaling".to_owned(),
    }
}

/// The plan for an invalid spec: the Deployment stays unchanged. Marks and budget follow its workers.
pub(crate) fn rejected(invalid: &Invalid, observed: &Observed, now: Timestamp) -> Plan {
    let mut assessment = conditions::of_invalid(invalid, observed, now);
    let guarding = disruption_budget::of_deployed(observed, now);
    let marking = marks::of_present(observed, now);
    assessment.verdicts.extend(guarding.omitted);
    let events = events::of_change(observed.dispatcher.status.as_ref(), &assessment);
    let soonest = [
        assessment.requeue_after,
        guarding.requeue_after,
        marking.requeue_after,
        observed.token_rate.changes_in,
    ];
    let requeue_after = soonest.into_iter().flatten().min();
    let facts = [assessment.facts.clone(), guarding.facts, marking.facts].concat();
    let status = status::of_invalid(observed, assessment, now);
    Plan {
        marks: marking.marks,
        budget: guarding.budget,
        facts,
        ..status_only(status, events, requeue_after)
    }
}

/// The plan after the API server has refused the Deployment: report it, and retry later. Marks come before the Deployment, and
/// the budget follows what is deployed.
pub(crate) fn refused(
    refusal: &Refusal,
    valid: &ValidDispatcher,
    observed: &Observed,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    let overdue = overdue(refusal, observed, now);
    let refusal = overdue.as_ref().unwrap_or(refusal);
    let revision = revision::revision(valid, observed, defaults);
    let sizing = replicas::sizing(valid, observed, now);
    let (sizing, _) = replacement::replacement(valid, observed, &revision, sizing, defaults, now);
    let guarding = disruption_budget::of_deployed(observed, now);
    let mut assessment = conditions::of_refused(refusal, valid, observed, &revision, &sizing, now);
    assessment.verdicts.extend(guarding.omitted);
    let events = events::of_change(observed.dispatcher.status.as_ref(), &assessment);
    let status = status::of_valid(valid, &revision, &sizing, None, observed, assessment, now);
    let status = status::without_rescale(status, observed.dispatcher.status.as_ref());
    let wait = match refusal {
        Refusal::Leftover { .. } => LEFTOVER_RETRY,
        Refusal::OwnershipConflict(_) if overdue.is_some() => OVERDUE_RETRY,
        Refusal::OwnershipConflict(_) | Refusal::Invalid(_) | Refusal::Denied(_) => defaults.refusal_retry,
    };
    let soonest = [Some(wait), guarding.requeue_after, observed.token_rate.changes_in];
    let requeue_after = soonest.into_iter().flatten().min();
    Plan { budget: guarding.budget, ..status_only(status, events, requeue_after) }
}

/// A leftover child that is not deleted in time counts as an ownership conflict.
fn overdue(refusal: &Refusal, observed: &Observed, now: Timestamp) -> Option<Refusal> {
    let Refusal::Leftover { deleted, message } = refusal else { return None };
    // Without a deletion timestamp the time counts from the creation of the AIDispatcher.
    let created = observed.dispatcher.metadata.creation_timestamp.as_ref().map(|created| created.0);
    let waited = elapsed(deleted.or(created)?, now);
    (waited > LEFTOVER_GOES_WITHIN).then(|| Refusal::OwnershipConflict(message.clone()))
}

/// A plan that writes only status and events.
fn status_only(status: AIDispatcherStatus, events: Vec<Note>, requeue_after: Option<Duration>) -> Plan {
    let (marks, deployment, budget, rescaled, replaces, past, facts) = Default::default();
    Plan { marks, deployment, budget, status, events, rescaled, replaces, past, facts, requeue_after }
}

#[cfg(test)]
mod tests;
