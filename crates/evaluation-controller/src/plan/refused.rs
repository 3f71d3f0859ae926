//! The plan after the API server has refused something: it reports what, and tries it again later. Pure.

use api::{aiinference::evaluation::Phase, conditions::STALLED};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runtime::write::{
    events::{Note, Severity},
    refusal::Refusal,
};
use workload::{Cause, time::remaining};

use super::{
    Plan, Scene, conditions, nothing, obstacle, planned,
    status::{self, events},
    step::Step,
    upload::{self, Stage},
    with_facts,
};
use crate::{Settings, names::Side, observe::Observed};

/// What became of the Job that tries the store.
pub(super) enum CheckJob {
    /// It is there, or was not due.
    NotLacking,
    Refused(Cause),
    /// What was reported is about something else.
    NotCreated {
        /// Kind, namespace and name.
        job: String,
    },
}

/// What the API server has refused of a plan.
pub(crate) struct Refused {
    pub(super) cause: Cause,
    /// What is said of the Job that tries the store. The runs go on without it.
    pub(super) check: CheckJob,
    /// The sides of the children that are not there; `None`: one for both.
    lacking: Vec<Option<Side>>,
}

impl Refused {
    /// Whether this side has not got what it needs.
    pub(super) fn stops(&self, side: Side) -> bool {
        self.lacking.contains(&None) || self.lacking.contains(&Some(side))
    }
}

/// `plan`: of which something was refused. What was created of it is in `observed`.
pub(crate) fn refused(
    refusal: &Refusal,
    plan: &Plan,
    observed: &Observed,
    settings: &Settings,
    now: Timestamp,
) -> Plan {
    with_facts(after(refusal, plan, observed, settings, now), observed)
}

fn after(refusal: &Refusal, plan: &Plan, observed: &Observed, settings: &Settings, now: Timestamp) -> Plan {
    if status::has_ended(observed) {
        return match lacking(plan, observed).is_empty() {
            true => undeleted(refusal, observed, settings, now),
            false => not_uploaded(refusal, plan, observed, settings, now),
        };
    }
    let (refusal, wait) = refusal.clone().judged(&*observed.evaluation, settings.refusal_retry, now);
    let lacking = lacking(plan, observed);
    let cause = conditions::cause_of(&refusal);
    let check = match lacking_check(plan, observed) {
        None => CheckJob::NotLacking,
        // Only its words say what it is about.
        Some(job) if lacking.is_empty() && refusal.message().contains(&job) => {
            CheckJob::Refused(cause.clone())
        }
        Some(job) => CheckJob::NotCreated { job },
    };
    let is_of_check = matches!(check, CheckJob::Refused(_));
    let refused = Refused { cause, check, lacking };
    let plan = planned(Some(&refused), observed, settings, now);
    let is_end = matches!(plan.status.phase, Some(Phase::Succeeded | Phase::Failed));
    let plan = match refused.lacking.is_empty() && !is_of_check && !is_end {
        true => beside(plan, &refused.cause, observed, now),
        false => plan,
    };
    let requeue_after = plan.requeue_after.into_iter().chain([wait]).min();
    Plan { deletions: Vec::new(), children: Vec::new(), check: None, requeue_after, ..plan }
}

/// A deletion was refused, or a change of a server: the runs go on.
fn beside(plan: Plan, cause: &Cause, observed: &Observed, now: Timestamp) -> Plan {
    let verdict = conditions::of_refused(cause);
    let is_stalled = verdict.type_ == STALLED;
    let status = status::with_refusal(plan.status, verdict, observed, now);
    let event = events::of_change(observed.evaluation.status.as_ref(), &status, cause.reason, is_stalled);
    // Of the store, which may have refused at the same time.
    let of_store = plan.events.into_iter().filter(|note| note.message.starts_with("to s3://"));
    Plan { status, events: event.into_iter().chain(of_store).collect(), ..plan }
}

/// The sides of the children of a plan that are not there.
fn lacking(plan: &Plan, observed: &Observed) -> Vec<Option<Side>> {
    let lacking = plan.children.iter().filter(|child| !child.is_there(observed));
    lacking.map(|child| child.side()).collect()
}

/// The Job of a plan that tries the store, if it is not there.
fn lacking_check(plan: &Plan, observed: &Observed) -> Option<String> {
    let name = plan.check.as_ref()?.metadata.name.as_deref()?;
    let namespace = observed.evaluation.metadata.namespace.as_deref().unwrap_or_default();
    (!observed.jobs.contains_key(name)).then(|| format!("Job {namespace}/{name}"))
}

/// What an ended evaluation has left may hold GPUs, so its user reads why it cannot be deleted. The verdict stays, and the upload
/// goes on.
fn undeleted(refusal: &Refusal, observed: &Observed, settings: &Settings, now: Timestamp) -> Plan {
    let Plan { status, mut events, requeue_after, .. } = planned(None, observed, settings, now);
    let stalled = conditions::of_undeleted(refusal);
    let (reason, message) = (stalled.reason, stalled.message.clone());
    let status = status::with_verdict(status, stalled, observed, now);
    // A failure is stalled for its own reason, which may be the same.
    let is_known = known_stall(observed)
        .is_some_and(|known| known.reason == reason && known.message.starts_with(conditions::UNDELETED));
    events.extend((!is_known).then_some(Note { severity: Severity::Warning, reason, message }));
    let requeue_after = requeue_after.into_iter().chain([settings.refusal_retry]).min();
    Plan { events, requeue_after, ..nothing(status) }
}

/// The Job of the upload is not there.
fn not_uploaded(
    refusal: &Refusal,
    plan: &Plan,
    observed: &Observed,
    settings: &Settings,
    now: Timestamp,
) -> Plan {
    let (refusal, wait) = refusal.clone().judged(&*observed.evaluation, settings.refusal_retry, now);
    let Plan { mut status, requeue_after, .. } = planned(None, observed, settings, now);
    let refused = upload::refused(observed, conditions::cause_of(&refusal), Stage::Push);
    let event = refused.as_ref().and_then(|verdict| upload::note(observed, verdict));
    if let Some(verdict) = refused {
        status = status::with_verdict(status, verdict, observed, now);
    }
    // Nothing new is known of the deletions.
    let stalled = known_stall(observed).filter(|_| !plan.deletions.is_empty());
    status.conditions.extend(stalled.cloned());
    let requeue_after = requeue_after.into_iter().chain([wait]).min();
    Plan { events: event.into_iter().collect(), requeue_after, ..nothing(status) }
}

fn known_stall(observed: &Observed) -> Option<&Condition> {
    let known = observed.evaluation.status.iter().flat_map(|status| &status.conditions);
    known.into_iter().find(|known| known.type_ == STALLED)
}

/// A step as the refusal leaves it: what it has not got has not begun.
pub(super) fn seen(scene: &Scene<'_>, step: Step) -> Step {
    let Some(Refused { cause, lacking, check: _ }) = scene.refused else { return step };
    let lacks_claim = step.needs_claim && lacking.contains(&None);
    if !lacks_claim && !step.children.iter().any(|child| lacking.contains(&child.side())) {
        return step;
    }
    let outlook = step.outlook.held_by(cause.clone());
    Step { outlook, is_refused: true, is_started: false, serving: None, ..step }
}

/// The refusal, if a temporary server has held its GPUs in vain for as long as it may. The run that needs the server is refused.
/// One that only waits for the end of the other run does not count.
pub(super) fn held_in_vain(scene: &Scene<'_>) -> Option<Cause> {
    let refused = scene.refused?;
    let said = scene.observed.evaluation.status.iter().flat_map(|status| &status.conditions);
    let mut stalled = said.filter(|known| {
        known.type_ == STALLED && known.status == "True" && known.reason == refused.cause.reason
    });
    let stalled = stalled.next()?.last_transition_time.0;
    let is_over = |side: &Side| {
        let server = scene.observed.server(*side).own().filter(|_| refused.stops(*side))?;
        let ready = server.condition(api::conditions::READY).map(|ready| ready.last_transition_time.0);
        // It may have been stalled for the same reason before, by a refused deletion.
        let without = obstacle::has_no_job_since(scene, *side)?;
        let since = ready.into_iter().chain([stalled, without]).max()?;
        let since = obstacle::counts_from(scene, *side, since)?;
        remaining(scene.settings.server_fault, since, scene.now).is_none().then_some(())
    };
    scene.needed().iter().find_map(is_over).map(|()| refused.cause.clone())
}
