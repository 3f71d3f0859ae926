//! Decides everything that is written for one evaluation. Pure: no request, no clock, no randomness.
//!
//! `progress` finds which runs have ended. What follows is the next run, the comparison, or the end. Servers are deleted by a
//! plan that finds the runs that needed them in the status.

use std::time::Duration;

use api::aiinference::evaluation::{ModelEvaluationStatus, Phase};
use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::Job, core::v1::PersistentVolumeClaim};
use runtime::write::{events::Note, refusal::Refusal};
use workload::{Cause, time::remaining};

use self::{
    conditions::{Assessment, Outlook},
    progress::{Obstacle, Progress, State},
    server::Readiness,
    sides::Sides,
    work::Work,
};
use crate::{
    Settings,
    names::Side,
    objects::inference::Rendered,
    observe::Observed,
    validate::{Invalid, ValidEvaluation, validate},
};

mod claim;
mod conditions;
mod events;
mod job;
mod metadata;
mod progress;
mod server;
mod sides;
mod status;
#[cfg(test)]
mod tests;
mod verdict;
pub(crate) mod work;

/// All writes for one evaluation, in this order.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) deletions: Vec<Deletion>,
    pub(crate) children: Vec<Child>,
    pub(crate) status: ModelEvaluationStatus,
    pub(crate) events: Vec<Note>,
    /// Whether the evaluation itself is deleted, because its time is over.
    pub(crate) is_expired: bool,
    pub(crate) requeue_after: Option<Duration>,
}

/// A child to create.
#[derive(Clone, Debug)]
pub(crate) enum Child {
    Claim(Box<PersistentVolumeClaim>),
    Server(Box<Rendered>),
    Job(Box<Job>),
}

/// An object to delete, by its name, uid and version.
#[derive(Clone, Debug)]
pub(crate) enum Deletion {
    Server(Box<Rendered>),
    Job(Box<Job>),
}

/// What every part of a plan reads.
pub(crate) struct Scene<'a> {
    pub(crate) valid: &'a ValidEvaluation,
    pub(crate) observed: &'a Observed,
    pub(crate) settings: &'a Settings,
    /// What the two models are, as far as it is known.
    pub(crate) sides: Sides,
    pub(crate) now: Timestamp,
}

pub(crate) fn plan(observed: &Observed, settings: &Settings, now: Timestamp) -> Plan {
    if status::has_ended(observed) {
        return ended(observed, now);
    }
    let valid = match validate(&observed.evaluation, settings) {
        Ok(valid) => valid,
        Err(invalid) => return rejected(&invalid, observed, now),
    };
    if let Some(message) = job::volume_conflict(&valid) {
        return rejected(&Invalid::of_spec(message), observed, now);
    }
    let sides = sides::resolved(&valid, observed, settings);
    let scene = Scene { valid: &valid, observed, settings, sides, now };
    let plan = scene.plan();
    if valid.evaluation.spec.pods.paused { scene.paused(plan) } else { plan }
}

/// The plan after the API server has refused a child: reports it, and tries again later.
pub(crate) fn refused(refusal: &Refusal, observed: &Observed, settings: &Settings, now: Timestamp) -> Plan {
    if status::has_ended(observed) {
        let status = observed.evaluation.status.clone().unwrap_or_default();
        return Plan { requeue_after: Some(settings.refusal_retry), ..nothing(status) };
    }
    let (refusal, wait) = refusal.clone().judged(&*observed.evaluation, settings.refusal_retry, now);
    let assessment = conditions::of_refused(&refusal, observed);
    if let Some(cause) = held_in_vain(&assessment, observed, settings, now)
        && let Ok(valid) = validate(&observed.evaluation, settings)
    {
        let written = status::failed(status::base(observed), now);
        let assessment = conditions::of_failure(&cause, &written, &valid, observed);
        return Plan { requeue_after: Some(Duration::ZERO), ..reported(observed, written, assessment, now) };
    }
    Plan { requeue_after: Some(wait), ..reported(observed, status::base(observed), assessment, now) }
}

/// The refusal, if a temporary server has held its GPUs in vain for as long as it may.
fn held_in_vain(
    assessment: &Assessment,
    observed: &Observed,
    settings: &Settings,
    now: Timestamp,
) -> Option<Cause> {
    Side::ALL.into_iter().find_map(|side| observed.server(side).own())?;
    let said = observed.evaluation.status.iter().flat_map(|status| &status.conditions);
    let mut stalled = said.filter(|known| {
        known.type_ == api::conditions::STALLED
            && known.status == "True"
            && known.reason == assessment.reason
            && assessment.is_stalled()
    });
    let since = stalled.next()?.last_transition_time.0;
    let is_over = remaining(settings.server_fault, since, now).is_none();
    is_over.then(|| Cause { reason: assessment.reason, message: assessment.message.clone() })
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

/// Nothing is made, what still runs is deleted, and the time to live is counted.
fn ended(observed: &Observed, now: Timestamp) -> Plan {
    let status = status::observed(observed);
    let ttl = observed.evaluation.spec.ttl_seconds_after_finished;
    let ended = status.completion_time.as_ref().map(|time| time.0);
    let mut plan = nothing(status);
    if observed.evaluation.spec.pods.paused {
        return plan;
    }
    plan.deletions = everything_unfinished(observed);
    if let (Some(ended), Ok(ttl)) = (ended, u64::try_from(ttl)) {
        plan.requeue_after = remaining(Duration::from_secs(ttl), ended, now);
        plan.is_expired = plan.requeue_after.is_none();
    }
    plan
}

fn everything_unfinished(observed: &Observed) -> Vec<Deletion> {
    let servers = Side::ALL.into_iter().filter_map(|side| superfluous(observed, side));
    let unfinished = observed.jobs.values().filter(|job| job.end.is_none() && !job.is_being_deleted());
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
    let (children, deletions, events) = Default::default();
    Plan { children, deletions, status, events, is_expired: false, requeue_after: None }
}

impl Scene<'_> {
    fn plan(&self) -> Plan {
        if self.valid.evaluation.spec.suspend {
            let runs = progress::progress(self).runs;
            let (done, is_news) = (runs.len(), runs.len() > self.observed.status_runs().len());
            let written =
                ModelEvaluationStatus { runs, start_time: None, ..self.written(status::base(self.observed)) };
            let assessment = conditions::of_outlook(self, Outlook::Suspended, done);
            let plan = reported(self.observed, written, assessment, self.now);
            // A run that has ended is in the status before its Job is deleted.
            return match is_news {
                true => Plan { requeue_after: Some(Duration::ZERO), ..plan },
                false => Plan { deletions: everything_unfinished(self.observed), ..plan },
            };
        }
        let progress = progress::progress(self);
        let written = ModelEvaluationStatus {
            runs: progress.runs.clone(),
            ..self.written(status::base(self.observed))
        };
        let is_news = written.runs.len() > self.observed.status_runs().len();
        let mut plan = match self.overdue(&progress.state) {
            Some(cause) => self.fails(written, &cause),
            None => self.by_state(written, &progress),
        };
        if is_news {
            // Another plan deletes the server, when the status has the runs.
            plan.requeue_after = Some(Duration::ZERO);
        }
        plan
    }

    fn by_state(&self, written: ModelEvaluationStatus, progress: &Progress) -> Plan {
        let done = progress.runs.len();
        match &progress.state {
            State::Failed(cause) => self.fails(written, cause),
            State::Compared(message) => match verdict::concluded(self.valid, &progress.runs, message) {
                Ok(concluded) => {
                    let written = status::concluded(written, &concluded, self.now);
                    let assessment = conditions::of_success(&written, &concluded, self.observed);
                    self.last(written, assessment)
                }
                Err(cause) => self.fails(written, &cause),
            },
            State::Awaited { work, wait } => {
                let plan = self.under_way(written, *work, done);
                Plan { requeue_after: plan.requeue_after.into_iter().chain([*wait]).min(), ..plan }
            }
            State::Repeated { work, job } => {
                let mut plan = self.under_way(written, *work, done);
                plan.deletions.push(Deletion::Job(Box::new(job.identity())));
                plan
            }
            State::Active(work) => self.under_way(written, *work, done),
            State::Next(work) => self.next(written, *work, done),
        }
    }

    /// A Job of this work exists.
    fn under_way(&self, written: ModelEvaluationStatus, work: Work, done: usize) -> Plan {
        let obstacle = progress::obstacle(self, work);
        let holds_gpus = work.side().is_some_and(|side| self.observed.server(side).own().is_some());
        let left = obstacle.as_ref().filter(|_| holds_gpus);
        let left = left.map(|obstacle| remaining(self.settings.server_fault, obstacle.since, self.now));
        if let (Some(None), Some(Obstacle { cause, .. })) = (left, &obstacle) {
            return self.fails(written, cause);
        }
        let outlook = match (obstacle, work) {
            (Some(Obstacle { cause, .. }), _) => Outlook::Held(cause),
            (None, Work::Ask { .. }) => Outlook::Running(work),
            (None, Work::Pair) => Outlook::Comparing,
        };
        let assessment = conditions::of_outlook(self, outlook, done);
        let plan = reported(self.observed, self.started(written), assessment, self.now);
        let children = work.side().and_then(|side| self.server(side)).into_iter().collect();
        let requeue_after = self.deadline(&plan.status).into_iter().chain(left.flatten()).min();
        Plan { children, deletions: self.idle(), requeue_after, ..plan }
    }

    /// The temporary server, as it should be. One that was deleted by hand is created again.
    fn server(&self, side: Side) -> Option<Child> {
        let rendered = server::wanted(self, side).ok().flatten();
        rendered.map(|rendered| Child::Server(Box::new(rendered)))
    }

    /// The Job of this work has to be created, after what it needs.
    fn next(&self, written: ModelEvaluationStatus, work: Work, done: usize) -> Plan {
        let report = |written, outlook| {
            let assessment = conditions::of_outlook(self, outlook, done);
            let plan = reported(self.observed, written, assessment, self.now);
            let requeue_after = self.deadline(&plan.status);
            Plan { deletions: self.idle(), requeue_after, ..plan }
        };
        // Neither side begins before both models are there.
        for side in Side::ALL {
            if let Err(cause) = self.sides.of(side) {
                return report(written, Outlook::Waiting(cause.clone()));
            }
        }
        if let Some(cause) = claim::fault(self.valid, self.observed) {
            return report(written, Outlook::Waiting(cause));
        }
        if let Some(cause) = progress::earlier_runner(self) {
            return report(written, Outlook::Waiting(cause));
        }
        let claim = claim::claim(self.valid).filter(|_| claim::is_missing(self.valid, self.observed));
        let claim = claim.map(|claim| Child::Claim(Box::new(claim)));
        let Some(side) = work.side() else {
            let job = Child::Job(Box::new(job::pairing(self)));
            let plan = report(self.started(written), Outlook::Comparing);
            return Plan { children: claim.into_iter().chain([job]).collect(), ..plan };
        };
        match server::readiness(self, side) {
            Readiness::Ready(server) => {
                let written = self.with_model(self.started(written), side, &server);
                if let Some(cause) = self.changed(side, &server) {
                    return self.fails(written, &cause);
                }
                let job = Child::Job(Box::new(job::asking(self, work, &server)));
                let plan = report(written, Outlook::Running(work));
                Plan { children: claim.into_iter().chain(self.server(side)).chain([job]).collect(), ..plan }
            }
            Readiness::Waits { cause, wait } => {
                let plan = report(self.started(written), Outlook::Preparing(cause));
                let children = claim.into_iter().chain(self.server(side)).collect();
                Plan { children, requeue_after: plan.requeue_after.into_iter().chain(wait).min(), ..plan }
            }
            Readiness::Unavailable(cause) => report(written, Outlook::Waiting(cause)),
            Readiness::Failed(cause) => self.fails(written, &cause),
        }
    }

    /// Temporary servers that no open run needs, and Jobs of finished runs whose pods go on. In such a pod an injected container
    /// keeps the claim on its node.
    fn idle(&self) -> Vec<Deletion> {
        let known = self.observed.status_runs();
        let works = work::all(self.valid).into_iter().filter(|work| progress::is_known(self, known, *work));
        let jobs = works.filter_map(|work| self.observed.jobs.get(&self.job_name(work)));
        let jobs = jobs.filter(|job| job.end.is_none() && !job.is_being_deleted());
        let jobs = jobs.map(|job| Deletion::Job(Box::new(job.identity())));
        let mut open =
            work::all(self.valid).into_iter().filter(|work| !progress::is_known(self, known, *work));
        let needed = open.next().and_then(Work::side);
        let idle = Side::ALL.into_iter().filter(|side| Some(*side) != needed);
        jobs.chain(idle.filter_map(|side| superfluous(self.observed, side))).collect()
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
            let assessment = conditions::of_outlook(self, Outlook::Paused, done);
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

    fn started(&self, status: ModelEvaluationStatus) -> ModelEvaluationStatus {
        status::started(status, self.now)
    }

    /// With the files of the model that a server has loaded.
    fn with_model(
        &self,
        mut status: ModelEvaluationStatus,
        side: Side,
        server: &server::Serving,
    ) -> ModelEvaluationStatus {
        if let Some(resolved) = status.resolved.as_mut() {
            sides::note_model(resolved, side, server);
        }
        status
    }

    /// Why the answers of this server would be those of another model.
    fn changed(&self, side: Side, server: &server::Serving) -> Option<Cause> {
        let known = self.sides.of(side).ok()?.digest.as_ref()?;
        let found = server.digest.as_ref()?;
        (known != found).then(|| Cause {
            reason: api::reasons::MODEL_CHANGED,
            message: format!(
                "{} serves {found}, and the first runs were answered by {known}; create the evaluation again, and do not \
                 change a model while it is evaluated",
                server.name
            ),
        })
    }

    /// `written`: the status that is planned, which may have the start for the first time.
    fn deadline(&self, written: &ModelEvaluationStatus) -> Option<Duration> {
        let (since, whole) = self.clock(written)?;
        remaining(whole, since, self.now)
    }

    /// Why there is no time left; a comparison that is there already counts.
    fn overdue(&self, state: &State) -> Option<Cause> {
        let (since, whole) = self.clock(self.observed.evaluation.status.as_ref()?)?;
        if matches!(state, State::Compared(_) | State::Failed(_))
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
