//! Decides all writes for one AIDispatcher and returns them as one value. Pure: no request, no clock, no randomness.
//!
//! Each child and each policy has its own file.

use std::{collections::BTreeMap, time::Duration};

use api::aidispatcher::AIDispatcherStatus;
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Service, policy::v1::PodDisruptionBudget};
use runtime::{
    reconcile::Decision,
    write::{events::Note, refusal::Refusal},
};
use scaling::{
    decide::{
        proposal::Rule,
        record::{FlowInputs, MetricInputs},
    },
    history::History,
    reading::Milli,
};
use serde::Serialize;
use workload::templates::deployment::RenderedDeployment;

use crate::{
    observe::Observed,
    validate::{Invalid, TOKENS, ValidDispatcher, defaults::Defaults, spec_hash, validate},
};
use replicas::{
    Sizing,
    marks::{Mark, Marking},
    replacement::replacement,
};
use services::Serving;
use status::{Report, conditions, events};

mod deployment;
mod disruption_budget;
mod metadata;
mod omission;
pub(crate) mod outcome;
mod pod;
mod readiness;
pub(crate) mod replicas;
mod revision;
mod rollout;
mod services;
mod status;

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
    /// Those to write. The others stay as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) services: Vec<Service>,
    /// Services that the spec has no more, with uid and version as preconditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) deletions: Vec<Service>,
    pub(crate) status: AIDispatcherStatus,
    pub(crate) events: Vec<Note>,
    /// The load changes the number of workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rescale: Option<Rescale>,
    /// That one more worker starts, so that an idle one gives way, once the Deployment is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replaces: Option<Note>,
    /// What decisions on the number of workers need of the past, once the Deployment is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) past: Option<History>,
    /// Facts that are true now, for `FactTimes`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) facts: Vec<String>,
    /// Facts that are true while the Deployment is as planned, or is being deleted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) facts_if_settled: Vec<String>,
    /// When to reconcile again even if no object changes.
    pub(crate) requeue_after: Option<Duration>,
}

/// What follows a number of workers that changes with the load.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rescale {
    /// Once the Deployment is written.
    pub(crate) event: Note,
    /// The status if the Deployment stays as it is, such as while it is being deleted.
    pub(crate) status_if_unchanged: Box<AIDispatcherStatus>,
}

impl Plan {
    /// The facts that are true now if the Deployment is as planned.
    pub(crate) fn settled_facts(&self) -> Vec<String> {
        [&*self.facts, &*self.facts_if_settled].concat()
    }

    /// The facts that are true if a deadline ends the writes. A new loss is not reported then, and a time limit begins when
    /// the Deployment is as planned.
    pub(crate) fn facts_if_cancelled(&self, known: &BTreeMap<String, Timestamp>) -> Vec<String> {
        let goes_on = self.settled_facts().into_iter().filter(|fact| known.contains_key(fact));
        goes_on.chain(self.facts.iter().filter(|fact| !is_loss(fact)).cloned()).collect()
    }
}

/// What a plan rests on and the cache of AIDispatchers may not know yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The Deployment seems to be newer than the object. Either the watch is late and another process has applied a newer
    /// spec, or the annotation was edited by hand and must be repaired.
    Outdated,
}

/// The plan for an object, or what it has to know first.
pub(crate) fn plan(observed: &Observed, defaults: &Defaults, now: Timestamp) -> Decision<Plan, Doubt> {
    if !observed.is_newest && revision::is_behind(observed) {
        return Decision::Doubt(Doubt::Outdated);
    }
    match validated(observed, defaults) {
        // The annotation `refresh` changes the template without a new generation.
        Ok(valid) if !observed.is_newest && revision::restores_older(&valid, observed) => {
            Decision::Doubt(Doubt::Outdated)
        }
        Ok(valid) => Decision::Plan(of_valid(&valid, observed, defaults, now)),
        Err(invalid) => Decision::Plan(rejected(&invalid, observed, now)),
    }
}

/// A default that running pods were rendered with stays valid although its option is no longer set.
fn validated(observed: &Observed, defaults: &Defaults) -> Result<ValidDispatcher, Invalid> {
    let dispatcher = &observed.dispatcher;
    let valid = validate(dispatcher, defaults).or_else(|invalid| {
        let pinned = revision::or_pinned_defaults(&spec_hash(&dispatcher.spec)?, observed, defaults);
        pinned.and_then(|defaults| validate(dispatcher, &defaults).ok()).ok_or(invalid)
    });
    let valid = valid?;
    let account = valid.pods.service_account_name.as_deref();
    defaults.own_account.is_not_used_by(&valid.namespace, account).map_err(Invalid)?;
    if let Some(image) = revision::replaced_by_agent(&valid, observed) {
        let agent = &valid.image;
        return Err(Invalid(format!(
            "spec.image: the workers run {image}, and neither the spec nor the controller names that image any more; set \
             spec.image to it, or to {agent} for the agent that ships"
        )));
    }
    pod::has_room_for_volumes(valid)
}

/// The plan for a valid spec.
fn of_valid(valid: &ValidDispatcher, observed: &Observed, defaults: &Defaults, now: Timestamp) -> Plan {
    let revision = revision::revision(valid, observed, defaults);
    let sizing = replicas::sizing(valid, observed, now);
    let (sizing, replaces) = replacement(valid, observed, &revision, sizing, defaults, now);
    let (sizing, marking, guarding, serving) = if valid.pods.paused {
        // The pods get no costs for a smaller number.
        let marking = replicas::marks_of_present(observed, now);
        (sizing, marking, disruption_budget::of_deployed(observed, now), Serving::as_it_is(observed))
    } else {
        let sizing = replicas::marked(sizing, observed, now);
        let serving = services::serving(valid, observed, now);
        (sizing, Marking::default(), disruption_budget::guarding(observed, now), serving)
    };
    let mut assessment = conditions::of_valid(valid, observed, &revision, &sizing, now);
    assessment.verdicts.extend([guarding.omitted, serving.omitted].into_iter().flatten());
    let (strategy, rollout_requeue_after) = rollout::rollout(valid, &revision, observed, now);
    let soonest = [
        sizing.requeue_after,
        assessment.requeue_after,
        rollout_requeue_after,
        guarding.requeue_after,
        serving.requeue_after,
        marking.requeue_after,
        observed.token_rate.changes_in,
    ];
    let past = sizing.past(valid);
    let assessment_facts = std::mem::take(&mut assessment.facts);
    let events = events::of_change(observed.dispatcher.status.as_ref(), &assessment);
    let status = status::of_valid(valid, &revision, &sizing, past.as_ref(), observed, assessment, now);
    let report = Report { status, events, facts: assessment_facts, wait: None }.in_time(observed, now);
    let rescale = rescale(valid, &sizing, &report.status, observed);
    let (marks, facts, facts_if_settled, deployment) = if valid.pods.paused {
        (marking.marks, marking.facts, Vec::new(), None)
    } else {
        let deployment = deployment::deployment(valid, &revision, strategy, &sizing, planned_on(observed));
        (sizing.marks, sizing.facts, sizing.facts_if_settled, Some(Box::new(deployment)))
    };
    Plan {
        marks,
        deployment,
        budget: guarding.budget,
        services: serving.services,
        deletions: serving.deletions,
        status: report.status,
        events: report.events,
        rescale,
        replaces,
        past,
        facts: [facts, guarding.facts, serving.facts, report.facts].concat(),
        facts_if_settled,
        requeue_after: soonest.into_iter().chain([report.wait]).flatten().min(),
    }
}

fn planned_on(observed: &Observed) -> Option<String> {
    observed.deployment.as_ref().and_then(|known| known.metadata.resource_version.clone())
}

fn rescale(
    valid: &ValidDispatcher,
    sizing: &Sizing,
    status: &AIDispatcherStatus,
    observed: &Observed,
) -> Option<Rescale> {
    let (from, to) = sizing.scales(valid)?;
    let before = observed.dispatcher.status.as_ref();
    Some(Rescale {
        event: events::of_scale(from, to, &scale_reason(sizing)),
        status_if_unchanged: Box::new(status::without_rescale(status.clone(), before)),
    })
}

/// Of pods, as fields of Kubernetes have it.
fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// The load that caused another number of workers.
fn scale_reason(sizing: &Sizing) -> String {
    let Some(decision) = &sizing.decision else { return String::new() };
    let supply = decision.supply();
    let metric = decision.conclusion.winner.and_then(|winner| decision.record.inputs.metrics.get(winner));
    match metric {
        Some(metric) if metric.name.as_str() == TOKENS => "tokens per minute".to_owned(),
        Some(MetricInputs { flow: Some(FlowInputs { flow, .. }), .. })
            if decision.conclusion.rule == Rule::Arrivals =>
        {
            let units = |value: Milli| value.count() as f64 / 1_000.0;
            let (rate, takes) = (units(flow.rate.max(flow.recent_rate)), units(flow.takes));
            format!(
                "{rate:.1} tasks/s arrive and take {takes:.1} s, and {:.0} wait; busy workers: {}",
                units(flow.waiting),
                supply.busy
            )
        }
        Some(_) => format!("queued tasks; busy workers: {}", supply.busy),
        None => "the bounds of spec.autoscaling".to_owned(),
    }
}

/// The plan for an invalid spec: the Deployment stays unchanged. Marks and budget follow its workers.
fn rejected(invalid: &Invalid, observed: &Observed, now: Timestamp) -> Plan {
    let mut assessment = conditions::of_invalid(invalid, observed, now);
    let guarding = disruption_budget::of_deployed(observed, now);
    let marking = replicas::marks_of_present(observed, now);
    assessment.verdicts.extend([guarding.omitted, services::reported(observed)].into_iter().flatten());
    let events = events::of_change(observed.dispatcher.status.as_ref(), &assessment);
    let soonest = [
        assessment.requeue_after,
        guarding.requeue_after,
        marking.requeue_after,
        observed.token_rate.changes_in,
    ];
    let requeue_after = soonest.into_iter().flatten().min();
    // Without `facts_if_settled`: the time limit of a smaller number must not run while no deletion cost is written.
    let facts = [assessment.facts.clone(), guarding.facts, marking.facts].concat();
    let status = status::of_invalid(observed, assessment, now);
    Plan {
        marks: marking.marks,
        budget: guarding.budget,
        facts,
        ..status_only(status, events, requeue_after)
    }
}

/// The plan after the API server has refused the Deployment of `plan`.
pub(crate) fn refused(
    refusal: &Refusal,
    plan: Plan,
    observed: &Observed,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    match validated(observed, defaults) {
        Ok(valid) => {
            let report = reported(refusal, &valid, observed, defaults, now);
            // The refused plan has noted no facts, so both plans are made on the same ones. A loss is noted by the plan that
            // reports it: its pod may be gone by now.
            let others = plan.facts.into_iter().filter(|fact| !is_loss(fact));
            let facts = others.chain(report.facts.iter().filter(|fact| is_loss(fact)).cloned()).collect();
            Plan { facts, ..report }
        }
        // The template with a default of former options is gone meanwhile.
        Err(invalid) => rejected(&invalid, observed, now),
    }
}

/// Reports the refusal of the Deployment, and retries later. Marks come before the Deployment, and the budget follows what is
/// deployed.
fn reported(
    refusal: &Refusal,
    valid: &ValidDispatcher,
    observed: &Observed,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    let (refusal, wait) = refusal.clone().judged(&*observed.dispatcher, defaults.refusal_retry, now);
    let revision = revision::revision(valid, observed, defaults);
    let sizing = replicas::sizing(valid, observed, now);
    let (sizing, _) = replacement(valid, observed, &revision, sizing, defaults, now);
    let guarding = disruption_budget::of_deployed(observed, now);
    let mut assessment = conditions::of_refused(&refusal, valid, observed, &revision, &sizing, now);
    assessment.verdicts.extend([guarding.omitted, services::reported(observed)].into_iter().flatten());
    let facts = assessment.facts.clone();
    let events = events::of_change(observed.dispatcher.status.as_ref(), &assessment);
    let status = status::of_valid(valid, &revision, &sizing, None, observed, assessment, now);
    let status = status::without_rescale(status, observed.dispatcher.status.as_ref());
    let soonest = [Some(wait), guarding.requeue_after, observed.token_rate.changes_in];
    let requeue_after = soonest.into_iter().flatten().min();
    Plan { budget: guarding.budget, facts, ..status_only(status, events, requeue_after) }
}

pub(crate) fn is_loss(fact: &str) -> bool {
    fact.starts_with(conditions::checkpoint_failed::LOST)
}

/// A plan that writes only status and events.
fn status_only(status: AIDispatcherStatus, events: Vec<Note>, requeue_after: Option<Duration>) -> Plan {
    let (marks, deployment, budget, services, deletions) = Default::default();
    let (rescale, replaces, past, facts, facts_if_settled) = Default::default();
    Plan {
        marks,
        deployment,
        budget,
        services,
        deletions,
        status,
        events,
        rescale,
        replaces,
        past,
        facts,
        facts_if_settled,
        requeue_after,
    }
}

#[cfg(test)]
mod tests;
