//! Decides everything that is written for one endpoint. Pure: no request, no clock, no randomness.

use std::time::Duration;

use api::{
    aiinference::AIInference,
    aiinference::endpoint::{InferenceEndpointStatus, Resolved},
};
use jiff::Timestamp;
use runtime::{
    reconcile::Decision,
    write::{events::Note, refusal::Refusal},
};
use serde_json::json;
use workload::templates::rendered::Rendered;

use self::{
    conditions::Assessment,
    replicas::{Course, course},
    scaler::{Superfluous, Wanted},
    status::Delayed,
};
use crate::{
    Settings,
    child::InferenceView,
    observe::{NO_OWNER, Observed, Sighting},
    validate::{Invalid, Scaler, ValidEndpoint, validate},
};

mod accelerator;
mod conditions;
mod events;
mod inference;
mod replicas;
pub(crate) mod scaler;
mod status;
#[cfg(test)]
mod tests;

/// What a plan rests on and a cache may not know yet. Each write carries the version or the uid of the child that it is about.
pub(crate) enum Doubt {
    /// The AIInference has a later generation of the endpoint.
    Outdated,
}

/// Everything that is written for one endpoint, in this order.
pub(crate) struct Plan {
    /// The replicas that a second manager holds, before the AIInference is written without them.
    pub(crate) handover: Option<Handover>,
    pub(crate) inference: Option<InferenceWrite>,
    pub(crate) superfluous: Vec<Superfluous>,
    pub(crate) scaler: Option<Wanted>,
    pub(crate) status: InferenceEndpointStatus,
    pub(crate) events: Vec<Note>,
    /// What is remembered of this plan. `None`: what is remembered stays.
    pub(crate) facts: Option<Vec<String>>,
    pub(crate) requeue_after: Option<Duration>,
}

/// Replicas that stay while their writer changes.
pub(crate) struct Handover {
    pub(crate) inference: Box<InferenceView>,
    pub(crate) replicas: i32,
}

/// The AIInference, and on what it was planned.
pub(crate) struct InferenceWrite {
    pub(crate) rendered: Rendered<AIInference>,
    /// It has a value that was read from this version of it.
    pub(crate) planned_on: Option<String>,
}

/// A plan, or that the endpoint may have changed since it was seen.
pub(crate) fn decide(observed: &Observed, settings: &Settings, now: Timestamp) -> Decision<Plan, Doubt> {
    let rendered_from = observed.inference.own().and_then(|inference| inference.rendered_from);
    let is_outdated = rendered_from > observed.endpoint.metadata.generation && !observed.is_newest;
    if is_outdated { Decision::Doubt(Doubt::Outdated) } else { Decision::Plan(plan(observed, settings, now)) }
}

pub(crate) fn plan(observed: &Observed, settings: &Settings, now: Timestamp) -> Plan {
    let valid = match validate(&observed.endpoint, settings.library.as_ref()) {
        Ok(valid) => valid,
        Err(invalid) => return rejected(&invalid, observed, now),
    };
    if let Some(conflict) = taken_name(&valid, observed) {
        return reported(&conflict, &valid, observed, settings, now);
    }
    let course = course(&valid, observed, now);
    let resolved = resolved(&valid, observed, settings);
    let assessment = assessed(&valid, observed, settings, now);
    let events = events::of_change(observed.endpoint.status.as_ref(), &assessment);
    let planned = status::of_valid(observed, &assessment, resolved.clone(), now);
    let Delayed { status, wait, fact } = status::delayed(observed, assessment.comes_up, planned, now);
    let lag = conditions::lag(&valid, observed, now);
    let may_return = replicas::rival_may_return(&valid, observed, now);
    let facts = fact.into_iter().chain(facts(&valid, observed)).collect();
    let superfluous = scaler::superfluous(&valid, observed);
    let inference = observed.inference.own();
    // One that is being deleted is not written, and its end starts the next reconcile.
    let is_written = observed.serves_inferences
        && inference.is_none_or(|inference| inference.metadata.deletion_timestamp.is_none());
    let goes_on = is_written && (course.goes_on || !superfluous.is_empty());
    // An event says what the status says, so it waits for it.
    let events = if wait.is_some() { Vec::new() } else { events };
    Plan {
        handover: handover(observed, &course),
        inference: observed.serves_inferences.then(|| InferenceWrite {
            rendered: inference::inference(&valid, &resolved.model_source, &course),
            planned_on: guard(observed, &course),
        }),
        superfluous,
        scaler: scaler::wanted(&valid, observed, &course)
            .filter(|wanted| observed.serves_scalers || !matches!(wanted, Wanted::AIScaler(_))),
        status,
        events,
        facts: Some(facts),
        requeue_after: wait
            .into_iter()
            .chain(lag)
            .chain(may_return)
            .chain(goes_on.then_some(Duration::ZERO))
            .min(),
    }
}

/// The plan after the API server has refused a child: reports it, and tries again later.
pub(crate) fn refused(refusal: &Refusal, observed: &Observed, settings: &Settings, now: Timestamp) -> Plan {
    match validate(&observed.endpoint, settings.library.as_ref()) {
        Ok(valid) => reported(refusal, &valid, observed, settings, now),
        Err(invalid) => rejected(&invalid, observed, now),
    }
}

/// What serves keeps serving.
fn rejected(invalid: &Invalid, observed: &Observed, now: Timestamp) -> Plan {
    let assessment = conditions::of_invalid(invalid, observed);
    let events = events::of_change(observed.endpoint.status.as_ref(), &assessment);
    status_only(status::of_invalid(observed, &assessment, now), events, None)
}

fn reported(
    refusal: &Refusal,
    valid: &ValidEndpoint,
    observed: &Observed,
    settings: &Settings,
    now: Timestamp,
) -> Plan {
    let (refusal, wait) = refusal.clone().judged(&*observed.endpoint, settings.refusal_retry, now);
    let assessment = assessed(valid, observed, settings, now);
    let assessment = conditions::of_refused(&refusal, assessment, valid, observed);
    let events = events::of_change(observed.endpoint.status.as_ref(), &assessment);
    let planned = status::of_valid(observed, &assessment, resolved(valid, observed, settings), now);
    let Delayed { status, wait: delay, fact } = status::delayed(observed, assessment.comes_up, planned, now);
    let events = if delay.is_some() { Vec::new() } else { events };
    let wait = conditions::lag(valid, observed, now).into_iter().chain(delay).chain([wait]).min();
    let facts = fact.into_iter().chain(facts(valid, observed)).collect();
    Plan { facts: Some(facts), ..status_only(status, events, wait) }
}

fn assessed(valid: &ValidEndpoint, observed: &Observed, settings: &Settings, now: Timestamp) -> Assessment {
    conditions::of_valid(valid, observed, accelerator::statement(valid, observed, &settings.products), now)
}

fn status_only(status: InferenceEndpointStatus, events: Vec<Note>, requeue_after: Option<Duration>) -> Plan {
    let (handover, inference, superfluous, scaler) = Default::default();
    Plan { handover, inference, superfluous, scaler, status, events, facts: None, requeue_after }
}

/// Whose times decide something.
fn facts(valid: &ValidEndpoint, observed: &Observed) -> impl Iterator<Item = String> {
    let lags = conditions::lags(valid, observed).then(|| conditions::LAGS.to_owned());
    lags.into_iter().chain(replicas::rival_is_gone(valid, observed))
}

/// The kind whose pods serve on after its owner is gone.
const INFERENCE: &str = "AIInference";

/// A child's name belongs to another object. Then no child is written, also not those whose names are free.
fn taken_name(valid: &ValidEndpoint, observed: &Observed) -> Option<Refusal> {
    let (name, namespace) = (&valid.name, &valid.namespace);
    let taken = |kind: &str, owner: &Option<String>| {
        owner.as_ref().map(|owner| {
            let found = format!("{kind} {namespace}/{name} exists and {owner}");
            Refusal::OwnershipConflict(match is_orphan(owner) && kind == INFERENCE {
                true => format!(
                    "{found}; rename the endpoint, or let it take the {kind} over, where the fields of the endpoint replace its \
                     own: kubectl -n {namespace} patch {kind} {name} --type \
                     merge -p '{}'",
                    json!({"metadata": {"ownerReferences": [valid.owner]}})
                ),
                false => format!("{found}; rename the endpoint, or delete the {kind}"),
            })
        })
    };
    let scaler = valid.autoscaling.as_ref().map(|autoscaling| autoscaling.scaler);
    taken(INFERENCE, &foreign(&observed.inference)).or_else(|| match scaler {
        Some(Scaler::HorizontalPodAutoscaler) => taken("HorizontalPodAutoscaler", &foreign(&observed.hpa)),
        Some(Scaler::AIScaler) => taken("AIScaler", &foreign(&observed.scaler)),
        None => None,
    })
}

/// As after `kubectl delete --cascade=orphan`.
fn is_orphan(owner: &str) -> bool {
    owner == NO_OWNER
}

fn foreign<V>(seen: &Sighting<V>) -> Option<String> {
    match seen {
        Sighting::Foreign { owner } => Some(owner.clone()),
        Sighting::Own(_) | Sighting::Absent => None,
    }
}

/// Another library or another kind of node changes nothing that runs.
fn resolved(valid: &ValidEndpoint, observed: &Observed, settings: &Settings) -> Resolved {
    let status = observed.endpoint.status.as_ref();
    let known = status.and_then(|status| status.resolved.as_ref());
    if let Some(known) = known.filter(|known| known.generation == valid.generation) {
        return known.clone();
    }
    Resolved {
        generation: valid.generation,
        model: valid.endpoint.spec.model.clone(),
        model_source: valid.model.to_string(),
        product_labels: accelerator::labels(valid, observed, &settings.products),
        engine: valid.endpoint.spec.engine.as_str().to_owned(),
    }
}

fn handover(observed: &Observed, course: &Course) -> Option<Handover> {
    let (replicas, inference) = course.handover.zip(observed.inference.own())?;
    Some(Handover { inference: Box::new(inference.clone()), replicas })
}

fn guard(observed: &Observed, course: &Course) -> Option<String> {
    let inference = observed.inference.own().filter(|_| course.is_guarded)?;
    inference.metadata.resource_version.clone()
}
