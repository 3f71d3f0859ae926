//! Decides everything that is written for one evaluation. Pure: no request, no clock, no randomness.
//!
//! `progress` finds which runs have ended. What follows is the next run of each lane, the comparison, or the end. Servers are
//! deleted by a plan that finds the runs that needed them in the status.

use std::time::Duration;

use api::aiinference::{
    AIInference,
    evaluation::{ModelEvaluationStatus, Phase},
};
use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::Job, core::v1::PersistentVolumeClaim};
use runtime::write::events::Note;
use workload::{Cause, templates::rendered::Rendered, time::remaining};

use self::{
    conditions::{Assessment, Outlook},
    progress::{Progress, State},
    refused::{CheckJob, Refused},
    sides::Sides,
    status::events,
    step::Step,
    upload::{Outlook as Uploading, Stage, Standing},
    work::Work,
};
use crate::{
    Settings,
    names::Side,
    observe::Observed,
    validate::{Invalid, ValidEvaluation, validate},
};

mod claim;
mod conditions;
mod job;
mod metadata;
mod obstacle;
mod progress;
pub(crate) mod refused;
mod server;
mod sides;
mod status;
mod step;
#[cfg(test)]
mod tests;
mod upload;
mod verdict;
pub(crate) mod work;

/// All writes for one evaluation, in this order. A plan that finds ended runs creates nothing: the status has them first.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) deletions: Vec<Deletion>,
    pub(crate) children: Vec<Child>,
    /// The Job that tries the store of the answers. It is created after the children, so that it keeps no run waiting.
    pub(crate) check: Option<Box<Job>>,
    pub(crate) status: ModelEvaluationStatus,
    pub(crate) events: Vec<Note>,
    /// Facts that are true now, for `FactTimes`.
    pub(crate) facts: Vec<String>,
    /// Whether the evaluation itself is deleted, because its time is over.
    pub(crate) is_expired: bool,
    pub(crate) requeue_after: Option<Duration>,
}

/// A child to create.
#[derive(Clone, Debug)]
pub(crate) enum Child {
    Claim(Box<PersistentVolumeClaim>),
    Server(Side, Box<Rendered<AIInference>>),
    /// `None`: the comparison, or the upload.
    Job(Option<Side>, Box<Job>),
}

/// An object to delete, by its name, uid and version.
#[derive(Clone, Debug)]
pub(crate) enum Deletion {
    Server(Box<Rendered<AIInference>>),
    Job(Box<Job>),
}

impl Child {
    /// The side that it is for; `None`: for both.
    pub(crate) fn side(&self) -> Option<Side> {
        match self {
            Child::Claim(_) => None,
            Child::Server(side, _) => Some(*side),
            Child::Job(side, _) => *side,
        }
    }

    /// Whether it can be created after children of these sides were refused: one side does not wait for the other one.
    pub(crate) fn is_tried_after(&self, refused: &[Option<Side>]) -> bool {
        !refused.contains(&None) && !refused.contains(&self.side())
    }

    /// The name of the Job of a run.
    fn run(&self) -> Option<&str> {
        match self {
            Child::Job(Some(_), job) => job.metadata.name.as_deref(),
            Child::Claim(_) | Child::Server(..) | Child::Job(None, _) => None,
        }
    }

    /// Whether an object of its name is there.
    fn is_there(&self, observed: &Observed) -> bool {
        match self {
            Child::Claim(claim) => {
                let name = claim.metadata.name.as_ref();
                name.is_some_and(|name| observed.claims.get(name).is_some_and(Option::is_some))
            }
            Child::Server(side, _) => observed.server(*side).own().is_some(),
            Child::Job(_, job) => {
                job.metadata.name.as_ref().is_some_and(|name| observed.jobs.contains_key(name))
            }
        }
    }
}

/// What every part of a plan reads.
pub(crate) struct Scene<'a> {
    pub(crate) valid: &'a ValidEvaluation,
    pub(crate) observed: &'a Observed,
    pub(crate) settings: &'a Settings,
    /// What the two models are, as far as it is known.
    pub(crate) sides: Sides,
    /// What the API server has refused of the plan before.
    pub(crate) refused: Option<&'a Refused>,
    pub(crate) now: Timestamp,
}

pub(crate) fn plan(observed: &Observed, settings: &Settings, now: Timestamp) -> Plan {
    with_facts(planned(None, observed, settings, now), observed)
}

/// With what is true now and whose time or number decides something, though no object has it.
fn with_facts(plan: Plan, observed: &Observed) -> Plan {
    let unstarted = obstacle::facts(observed);
    // Those of the past are of no use to an evaluation that has ended.
    let failed = if status::has_ended(observed) { Vec::new() } else { progress::failed_tries(observed) };
    let facts = unstarted.into_iter().chain(failed).chain(plan.facts).collect();
    Plan { facts, ..plan }
}

fn planned(refused: Option<&Refused>, observed: &Observed, settings: &Settings, now: Timestamp) -> Plan {
    if status::has_ended(observed) {
        return ended(observed, settings, now);
    }
    let valid = match validate(&observed.evaluation, settings) {
        Ok(valid) => valid,
        Err(invalid) => return rejected(&invalid, observed, now),
    };
    if let Some(message) = job::volume_conflict(&valid) {
        return rejected(&Invalid::of_spec(message), observed, now);
    }
    let sides = sides::resolved(&valid, observed, settings);
    let scene = Scene { valid: &valid, observed, settings, sides, refused, now };
    let plan = scene.plan();
    match valid.evaluation.spec.pods.paused {
        true => scene.paused(plan),
        false => Plan { facts: obstacle::facts_of_runs(&scene, &plan.children), ..plan },
    }
}

/// Servers hold GPUs, so none stays for a spec that cannot be evaluated. Finished runs stay in the status.
fn rejected(invalid: &Invalid, observed: &Observed, now: Timestamp) -> Plan {
    let assessment = conditions::of_invalid(invalid);
    let plan = reported(observed, status::base(observed), assessment, now);
    if observed.evaluation.spec.pods.paused {
        return plan;
    }
    Plan { deletions: everything_unfinished(observed), ..plan }
}

/// Only the upload is made, what else still runs is deleted, and the time to live is counted. With `paused`, everything stays as it is.
fn ended(observed: &Observed, settings: &Settings, now: Timestamp) -> Plan {
    if observed.evaluation.spec.pods.paused {
        return nothing(status::kept(observed));
    }
    let mut plan = nothing(status::observed(observed));
    plan.deletions = everything_unfinished(observed);
    let uploaded = match upload::standing(observed, settings, now) {
        Standing::Over(uploaded) => uploaded,
        Standing::UnderWay(outlook) => return uploading(plan, *outlook, observed, now),
    };
    let ttl = observed.evaluation.spec.ttl_seconds_after_finished;
    let ended = plan.status.completion_time.as_ref().map(|time| time.0);
    // The claim goes with the evaluation.
    let ended = ended.map(|ended| uploaded.map_or(ended, |uploaded| uploaded.max(ended)));
    if let (Some(ended), Ok(ttl)) = (ended, u64::try_from(ttl)) {
        plan.requeue_after = remaining(Duration::from_secs(ttl), ended, now);
        plan.is_expired = plan.requeue_after.is_none();
    }
    plan
}

/// The upload goes on beside the deletions of all else.
fn uploading(mut plan: Plan, outlook: Uploading, observed: &Observed, now: Timestamp) -> Plan {
    let Uploading { verdict, artifacts, checked_store: _, create, delete, requeue_after } = outlook;
    let name = upload::job_name(&observed.evaluation);
    plan.deletions.retain(|deletion| match deletion {
        Deletion::Job(job) => job.metadata.name.as_ref() != Some(&name),
        Deletion::Server(_) => true,
    });
    plan.deletions.extend(delete.map(|job| Deletion::Job(Box::new(job))));
    plan.children.extend(create.map(|job| Child::Job(None, Box::new(job))));
    plan.events.extend(upload::note(observed, &verdict));
    plan.status = status::with_verdict(plan.status, verdict, observed, now);
    plan.status.artifacts = artifacts;
    Plan { requeue_after, ..plan }
}

fn everything_unfinished(observed: &Observed) -> Vec<Deletion> {
    let servers = Side::ALL.into_iter().filter_map(|side| superfluous(observed, side));
    let unfinished = observed.jobs.values().filter(|job| job.is_active());
    let jobs = unfinished.map(|job| Deletion::Job(Box::new(job.identity())));
    jobs.chain(servers).collect()
}

/// The temporary server of a side, unless it goes already.
fn superfluous(observed: &Observed, side: Side) -> Option<Deletion> {
    let server = observed.server(side).own().filter(|server| !server.is_being_deleted())?;
    Some(Deletion::Server(Box::new(server.identity())))
}

fn reported(
    observed: &Observed,
    written: ModelEvaluationStatus,
    assessment: Assessment,
    now: Timestamp,
) -> Plan {
    let reason = assessment.reason;
    let is_stalled = assessment.is_stalled();
    let status = status::assessed(written, assessment, observed, now);
    let event = events::of_change(observed.evaluation.status.as_ref(), &status, reason, is_stalled);
    Plan { events: event.into_iter().collect(), ..nothing(status) }
}

fn nothing(status: ModelEvaluationStatus) -> Plan {
    let (children, deletions, events, facts) = Default::default();
    Plan { children, check: None, deletions, status, events, facts, is_expired: false, requeue_after: None }
}

impl Scene<'_> {
    fn plan(&self) -> Plan {
        let progress = progress::progress(self);
        let runs = progress.runs.clone();
        let (done, is_news) = (runs.len(), runs.len() > self.observed.status_runs().len());
        let written = ModelEvaluationStatus { runs, ..self.written(status::base(self.observed)) };
        if self.valid.evaluation.spec.suspend {
            let written = ModelEvaluationStatus { start_time: None, ..written };
            let assessment = conditions::of_outlooks(self, &[Outlook::Suspended], done);
            let plan = reported(self.observed, written, assessment, self.now);
            // A run that has ended is in the status before its Job is deleted.
            return match is_news {
                true => Plan { requeue_after: Some(Duration::ZERO), ..plan },
                false => Plan { deletions: everything_unfinished(self.observed), ..plan },
            };
        }
        let mut plan = match self.overdue(&progress.states) {
            Some(cause) => self.fails(written, &cause),
            None => self.by_states(written, &progress),
        };
        if is_news {
            // The status has the runs before anything is created, which may be refused, and before the server is deleted.
            plan.children.clear();
            plan.check = None;
            plan.requeue_after = Some(Duration::ZERO);
        }
        plan
    }

    fn by_states(&self, written: ModelEvaluationStatus, progress: &Progress) -> Plan {
        if let [State::Compared(message)] = &progress.states[..] {
            return match verdict::concluded(self.valid, &progress.runs, message) {
                Ok(concluded) => {
                    let written = status::concluded(written, &concluded, self.now);
                    let upload = upload::beginning(self.observed);
                    let assessment = conditions::of_success(&written, &concluded, upload, self.observed);
                    self.last(written, assessment)
                }
                Err(cause) => self.fails(written, &cause),
            };
        }
        let steps: Result<Vec<Step>, Cause> =
            progress.states.iter().map(|state| step::of(self, state)).collect();
        match steps {
            Ok(steps) => self.goes_on(written, steps, progress.runs.len()),
            Err(cause) => self.fails(written, &cause),
        }
    }

    /// The steps of all lanes.
    fn goes_on(&self, mut written: ModelEvaluationStatus, steps: Vec<Step>, done: usize) -> Plan {
        if let Some(cause) = refused::held_in_vain(self) {
            return self.fails(written, &cause);
        }
        // A lane with a refusal explains the phase.
        let (stopped, others): (Vec<Step>, Vec<Step>) =
            steps.into_iter().map(|step| refused::seen(self, step)).partition(|step| step.is_refused);
        let steps: Vec<Step> = stopped.into_iter().chain(others).collect();
        if steps.iter().any(|step| step.is_started) {
            written = status::started(written, self.now);
        }
        for (side, server) in steps.iter().filter_map(|step| step.serving.as_ref()) {
            written = with_model(written, *side, server);
        }
        let (mut outlooks, mut children) = (Vec::new(), Vec::new());
        let (mut deletions, mut waits) = (self.idle(), Vec::new());
        if steps.iter().any(|step| step.needs_claim) && claim::is_missing(self.valid, self.observed) {
            children.extend(claim::claim(self.valid).map(|claim| Child::Claim(Box::new(claim))));
        }
        for step in steps {
            outlooks.push(step.outlook);
            children.extend(step.children);
            deletions.extend(step.repeated.map(|job| Deletion::Job(Box::new(job))));
            deletions.extend(step.given_back.and_then(|side| superfluous(self.observed, side)));
            waits.extend(step.wait);
        }
        let assessment = conditions::of_outlooks(self, &outlooks, done);
        let plan = reported(self.observed, written, assessment, self.now);
        let requeue_after = waits.into_iter().chain(self.deadline(&plan.status)).min();
        self.with_check(Plan { children, deletions, requeue_after, ..plan })
    }

    /// The store of the answers is tried beside the runs.
    fn with_check(&self, mut plan: Plan) -> Plan {
        let checking = upload::checking(self.valid, self.observed, self.settings, self.now);
        // A paused evaluation gets no Job that could be promised.
        let checking = checking.filter(|_| !self.valid.evaluation.spec.pods.paused);
        let Some(Uploading { verdict, artifacts: _, checked_store, create, delete, requeue_after }) =
            checking
        else {
            return plan;
        };
        let verdict = match self.refused.filter(|_| create.is_some()).map(|refused| &refused.check) {
            None | Some(CheckJob::NotLacking) => Some(verdict),
            Some(CheckJob::Refused(cause)) => upload::refused(self.observed, cause.clone(), Stage::Check),
            Some(CheckJob::NotCreated { job }) => upload::not_begun(self.observed, verdict, job),
        };
        let Some(verdict) = verdict else { return plan };
        plan.check = create.map(Box::new);
        plan.status.checked_store = checked_store.or(plan.status.checked_store);
        plan.deletions.extend(delete.map(|job| Deletion::Job(Box::new(job))));
        plan.events.extend(upload::note(self.observed, &verdict));
        plan.status = status::with_verdict(plan.status, verdict, self.observed, self.now);
        Plan { requeue_after: plan.requeue_after.into_iter().chain(requeue_after).min(), ..plan }
    }

    /// Temporary servers that no open run needs, and Jobs of finished runs whose pods go on. In such a pod an injected container
    /// keeps the claim on its node.
    fn idle(&self) -> Vec<Deletion> {
        let known = self.observed.status_runs();
        let lanes = work::lanes(self.valid);
        let done = lanes.iter().flatten().filter(|work| progress::is_known(self, known, **work));
        let jobs = done.filter_map(|work| self.observed.jobs.get(&self.job_name(*work)));
        let jobs = jobs.filter(|job| job.is_active());
        let jobs = jobs.map(|job| Deletion::Job(Box::new(job.identity())));
        let needed = self.needed();
        let idle = Side::ALL.into_iter().filter(|side| !needed.contains(side));
        jobs.chain(idle.filter_map(|side| superfluous(self.observed, side))).collect()
    }

    /// The sides of the next runs that the status does not have.
    fn needed(&self) -> Vec<Side> {
        let known = self.observed.status_runs();
        let next =
            |lane: &Vec<Work>| lane.iter().find(|work| !progress::is_known(self, known, **work))?.side();
        work::lanes(self.valid).iter().filter_map(next).collect()
    }

    fn fails(&self, written: ModelEvaluationStatus, cause: &Cause) -> Plan {
        let written = status::failed(written, self.now);
        let assessment = conditions::of_failure(cause, &written, self.valid, self.observed);
        self.last(written, assessment)
    }

    /// The next plan finds the end in the status, and deletes the servers.
    fn last(&self, written: ModelEvaluationStatus, assessment: Assessment) -> Plan {
        let plan = reported(self.observed, written, assessment, self.now);
        Plan { requeue_after: Some(Duration::ZERO), ..plan }
    }

    /// Everything stays as it is; the status says how it is, and no end is decided.
    fn paused(&self, plan: Plan) -> Plan {
        let is_end = matches!(plan.status.phase, Some(Phase::Succeeded | Phase::Failed));
        if is_end {
            let done = self.observed.status_runs().len();
            let assessment = conditions::of_outlooks(self, &[Outlook::Paused], done);
            return reported(self.observed, status::base(self.observed), assessment, self.now);
        }
        let status = ModelEvaluationStatus {
            start_time: self.observed.evaluation.status.as_ref().and_then(|status| status.start_time.clone()),
            ..plan.status
        };
        Plan { events: plan.events, ..nothing(status) }
    }

    /// With what is known of the models and the images.
    fn written(&self, status: ModelEvaluationStatus) -> ModelEvaluationStatus {
        let names: Vec<&str> = self.valid.sets.iter().map(|set| set.name.as_str()).collect();
        ModelEvaluationStatus {
            resolved: Some(sides::record(self)),
            test_sets: Some(names.join(", ")),
            ..status
        }
    }

    /// `written`: the status that is planned, which may have the start for the first time.
    fn deadline(&self, written: &ModelEvaluationStatus) -> Option<Duration> {
        let (since, whole) = self.clock(written)?;
        remaining(whole, since, self.now)
    }

    /// Why there is no time left; a comparison or a failure that is there already counts.
    fn overdue(&self, states: &[State]) -> Option<Cause> {
        let (since, whole) = self.clock(self.observed.evaluation.status.as_ref()?)?;
        if states.iter().any(|state| matches!(state, State::Compared(_) | State::Failed(_)))
            || remaining(whole, since, self.now).is_some()
        {
            return None;
        }
        let message = format!(
            "{} s since the start have passed (spec.activeDeadlineSeconds); create the evaluation again with more, or with fewer \
             questions",
            whole.as_secs()
        );
        Some(Cause { reason: api::reasons::DEADLINE_EXCEEDED, message })
    }

    fn clock(&self, status: &ModelEvaluationStatus) -> Option<(Timestamp, Duration)> {
        let since = status.start_time.as_ref()?.0;
        let seconds = u64::try_from(self.valid.evaluation.spec.active_deadline_seconds?).ok()?;
        Some((since, Duration::from_secs(seconds)))
    }

    /// The name of the Job of a work.
    pub(crate) fn job_name(&self, work: Work) -> String {
        work.job_name(&self.valid.name)
    }
}

/// With the files of the model that a server has loaded.
fn with_model(
    mut status: ModelEvaluationStatus,
    side: Side,
    server: &server::Serving,
) -> ModelEvaluationStatus {
    if let Some(resolved) = status.resolved.as_mut() {
        sides::note_model(resolved, side, server);
    }
    status
}
