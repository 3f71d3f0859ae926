//! Decides all writes for one TrainingJob and returns them as one value. Pure: no request, no clock, no randomness.
//!
//! What a plan rests on and a watch may not show is a doubt, which comes before any write. `stage` finds where the job is in its
//! life, and each stage has its plan. Each child and each policy has its own file.

use std::time::Duration;

use api::trainingjob::{DependencyResult, Phase, TrainingJob, TrainingJobStatus};
use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod, Service},
};
use runtime::{reconcile::Decision, write::events::Note};
use serde::Serialize;
use workload::{
    faults::unplaced::unplaced,
    own_account::OwnAccount,
    time::{elapsed, remaining},
    views::{job::JobView, pod::PodView},
};

use crate::{
    objects::{
        pod::{TRAINER, has_stopped},
        training_job::{has_ended, has_finalizer, is_being_deleted, needs_finalizer},
    },
    observe::{Doubt, Observed},
    progress::Target,
    validate::{Invalid, ValidJob, validate},
};

mod attempt;
mod begin;
mod children;
mod clearing;
mod defaults;
mod dependencies;
mod doubts;
mod end;
mod loss;
mod refused;
mod resume;
mod retention;
mod status;
mod upload;

pub(crate) use attempt::failure::failure_reasons;
use attempt::{
    avoid, clock, idle,
    stage::{self, Attempt, Stage},
};
pub(crate) use children::metadata::labels_of_attempt;
use children::{claim, service};
pub(crate) use defaults::Defaults;
use dependencies::Dependencies;
pub(crate) use refused::refused;
pub(crate) use retention::Retirement;
use retention::retire;
use status::{
    conditions::{self, Assessment},
    events,
    held_back::held_back,
};
pub(crate) use status::{
    held_back::DETAIL_HELD_BACK,
    reduced::{reduced, wait_after_reduction},
};

/// All writes for one TrainingJob.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Plan {
    /// Before anything else: what is written for the job must not be forgotten at its deletion.
    SetFinalizer {
        /// What is planned otherwise. It is sent by the next plan, and reported if the finalizer is refused.
        #[serde(skip)]
        run: Box<Run>,
    },
    Run(Box<Run>),
    /// It is being deleted, and its output not kept as it is.
    Retire(Box<Retirement>),
}

/// The writes for a job that is not being deleted.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Run {
    /// In the order in which they are created.
    pub(crate) children: Vec<Child>,
    pub(crate) deletions: Vec<Deletion>,
    pub(crate) status: TrainingJobStatus,
    pub(crate) events: Vec<Note>,
    /// The log to follow; `None`: none.
    pub(crate) follow: Option<Target>,
    /// Facts that are true now, for `FactTimes`.
    #[serde(skip)]
    pub(crate) facts: Vec<String>,
    /// Whether the TrainingJob itself is deleted, because its time is over.
    pub(crate) is_expired: bool,
    /// When to reconcile again even if no object changes.
    pub(crate) requeue_after: Option<Duration>,
}

/// A child to create.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum Child {
    Claim(Box<PersistentVolumeClaim>),
    Service(Box<Service>),
    Job(Box<Job>),
}

/// An object to delete, by its name, uid and version.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum Deletion {
    Job(Box<Job>),
    /// With a shorter grace period than that of its spec.
    Pod {
        pod: Box<Pod>,
        grace: Duration,
    },
}

impl Deletion {
    fn job(job: &JobView) -> Self {
        Self::Job(Box::new(job.identity()))
    }

    /// Of a pod that its kubelet cannot report of.
    fn now(pod: &PodView) -> Self {
        Self::Pod { pod: Box::new(pod.identity()), grace: Duration::ZERO }
    }
}

/// What every part of a plan reads.
struct Scene<'a> {
    valid: &'a ValidJob,
    observed: &'a Observed,
    defaults: &'a Defaults,
    dependencies: Dependencies,
    now: Timestamp,
}

/// What is read of other jobs, as far as the status has it.
fn known_results(job: &TrainingJob) -> Vec<DependencyResult> {
    let records = job.status.iter().flat_map(|status| &status.dependencies);
    records.filter_map(|record| record.result.clone()).collect()
}

/// What is written, or what the API server has to be asked before. `own`: the account of this process.
pub(crate) fn plan(
    observed: &Observed,
    own: &OwnAccount,
    defaults: &Defaults,
    now: Timestamp,
) -> Decision<Plan, Doubt> {
    if is_being_deleted(&observed.job) {
        return retired(observed, now);
    }
    if let Some(doubt) = doubts::of_observed(observed) {
        return Decision::Doubt(doubt);
    }
    let valid = validate(&observed.job)
        .and_then(|valid| {
            let account = valid.pods.service_account_name.as_deref();
            own.is_not_used_by(&valid.namespace, account).map_err(Invalid).map(|()| valid)
        })
        .and_then(|valid| children::pod::has_room_for_volumes(valid, &known_results(&observed.job)))
        .map(|valid| defaults.resolved(valid));
    let run = match &valid {
        Ok(valid) => {
            let stage = stage::stage(valid, observed, &defaults.timings, now);
            if let Some(doubt) = doubts::of_stage(observed, valid, &stage) {
                return Decision::Doubt(doubt);
            }
            held_back(run(valid, observed, stage, defaults, now), observed, now)
        }
        Err(invalid) => rejected(invalid, observed, now),
    };
    match doubts::of_run(observed, &run) {
        Some(doubt) => Decision::Doubt(doubt),
        None => Decision::Plan(after_the_finalizer(run, &observed.job)),
    }
}

/// The plan for a job that is being deleted.
fn retired(observed: &Observed, now: Timestamp) -> Decision<Plan, Doubt> {
    if let Some(doubt) = doubts::of_deleted(observed) {
        return Decision::Doubt(doubt);
    }
    let retirement = retire(observed, now);
    match doubts::of_retirement(observed, &retirement) {
        Some(doubt) => Decision::Doubt(doubt),
        None => Decision::Plan(Plan::Retire(Box::new(retirement))),
    }
}

/// The finalizer alone, if it is missing: the next plan has the rest.
fn after_the_finalizer(run: Run, job: &TrainingJob) -> Plan {
    if needs_finalizer(job) && !run.is_expired && !has_finalizer(job) {
        return Plan::SetFinalizer { run: Box::new(run) };
    }
    Plan::Run(Box::new(run))
}

/// The plan for a valid spec.
fn run(valid: &ValidJob, observed: &Observed, stage: Stage<'_>, defaults: &Defaults, now: Timestamp) -> Run {
    let dependencies = resume::awaited(dependencies::dependencies(observed), valid, observed);
    let scene = Scene { valid, observed, defaults, dependencies, now };
    if valid.pods.paused {
        return scene.paused(stage);
    }
    match stage {
        Stage::Terminal => scene.terminal(),
        Stage::Active(attempt) => scene.active(&attempt),
        Stage::Ended(attempt, end) => scene.ended(&attempt, *end),
        Stage::Uploading => scene.uploading(),
        Stage::Due { attempt } => scene.due(attempt),
        stage @ (Stage::Clearing { .. } | Stage::Suspended | Stage::Later { .. }) => scene.waiting(&stage),
    }
}

/// The plan for an invalid spec: what runs is left alone.
pub(crate) fn rejected(invalid: &Invalid, observed: &Observed, now: Timestamp) -> Run {
    if has_ended(&observed.job) {
        let status = observed.job.status.clone().unwrap_or_default();
        return nothing(status);
    }
    let mut assessment = conditions::of_invalid(invalid, observed);
    assessment.verdicts.extend(upload::unchanged(observed));
    noted(observed, status::base(observed), assessment, now)
}

/// A plan that writes a status and the event of its change.
fn noted(observed: &Observed, written: TrainingJobStatus, assessment: Assessment, now: Timestamp) -> Run {
    let reason = assessment.reason;
    let status = status::assessed(written, assessment, observed, now);
    let event = events::of_change(observed.job.status.as_ref(), &status, reason);
    let loss = loss::note(observed.job.status.as_ref(), &status);
    Run { events: event.into_iter().chain(loss).collect(), ..nothing(status) }
}

fn nothing(status: TrainingJobStatus) -> Run {
    Run {
        children: Vec::new(),
        deletions: Vec::new(),
        status,
        events: Vec::new(),
        follow: None,
        facts: Vec::new(),
        is_expired: false,
        requeue_after: None,
    }
}

impl Scene<'_> {
    /// The job has ended: nothing is made, what still runs is ended, and its time is counted.
    fn terminal(&self) -> Run {
        let status = status::observed(self.observed);
        let mut plan = nothing(status);
        let left: Vec<&PodView> =
            self.observed.pods.iter().map(AsRef::as_ref).filter(|pod| !has_stopped(pod)).collect();
        plan.deletions = self.what_is_left(&left);
        plan.deletions.extend(self.finished_upload());
        plan.requeue_after = self.lost_pods_requeue(&left);
        let ttl = self.observed.job.spec.ttl_seconds_after_finished;
        let ended = plan.status.completion_time.as_ref().map(|time| time.0);
        if let (Some(ended), Ok(ttl)) = (ended, u64::try_from(ttl))
            && self.observed.dependents == 0
            && !upload::is_owed(&plan.status, &self.observed.job)
        {
            match remaining(Duration::from_secs(ttl), ended, self.now) {
                Some(wait) => plan.requeue_after = plan.requeue_after.into_iter().chain([wait]).min(),
                None => plan.is_expired = true,
            }
        }
        plan
    }

    /// Everything stays as it is; only the status says how it is.
    fn paused(&self, stage: Stage<'_>) -> Run {
        let mut plan = match stage {
            Stage::Terminal => self.terminal(),
            Stage::Uploading => self.uploading(),
            Stage::Active(attempt) | Stage::Ended(attempt, _) => self.active(&attempt),
            stage => self.waiting(&stage),
        };
        plan.children.clear();
        plan.deletions.clear();
        plan.is_expired = false;
        plan
    }

    fn active(&self, attempt: &Attempt<'_>) -> Run {
        let mut written = status::base(self.observed);
        // The controller may have been killed after it created the Job and before it wrote the status.
        written = status::begun(written.clone(), attempt.number, self.resolved(&written));
        avoid::add(&mut written.avoided_nodes, avoid::with_gpu_faults(self.observed, self.now), self.now);
        let mut plan = if attempt.is_ending {
            // The last conditions stay until the cause of the end is known.
            nothing(written)
        } else {
            let mut assessment =
                conditions::of_active(self.valid, self.observed, &self.dependencies, attempt, self.now);
            if assessment.phase == Phase::Running {
                written = status::started(written, self.now);
                assessment.verdicts.extend(idle::verdict(self.valid, self.observed, attempt, self.now));
            }
            noted(self.observed, written, assessment, self.now)
        };
        // The claim may have been deleted since it was made, and no pod has written to it yet.
        let is_unused = !attempt.is_ending && attempt.pods.iter().all(|pod| pod.node.is_none());
        let claim =
            claim::claim(self.valid).filter(|_| is_unused && claim::is_missing(self.valid, self.observed));
        plan.children.extend(claim.map(|claim| Child::Claim(Box::new(claim))));
        plan.children.extend(service::service(self.valid).map(|service| Child::Service(Box::new(service))));
        plan.follow = self.log(attempt);
        plan.facts.extend(attempt.is_ending.then(|| stage::end_fact(attempt.number)));
        plan.facts.extend(stage::proven_fact(self.observed, attempt));
        plan.facts.extend(stage::start_fault_fact(attempt));
        plan.facts.extend(self.volume_facts());
        plan.facts.extend(idle::fact(self.observed, attempt));
        let idle = idle::requeue_after(self.valid, self.observed, attempt, self.now);
        let volumes = self.volumes_requeue(&attempt.pods);
        let unplaced = self.unplaced_requeue(&attempt.pods);
        plan.requeue_after =
            attempt.requeue_after.into_iter().chain(idle).chain(volumes).chain(unplaced).min();
        plan
    }

    /// The log of rank 0, once there is one.
    fn log(&self, attempt: &Attempt<'_>) -> Option<Target> {
        let pod = attempt.rank_zero()?;
        let state = &pod.container(TRAINER)?.state;
        (state.running.is_some() || state.terminated.is_some()).then(|| Target {
            pod: pod.name().to_owned(),
            pod_uid: pod.uid().to_owned(),
            container: TRAINER,
            attempt: attempt.number,
            output_dir: self.valid.output.dir.clone(),
        })
    }

    /// When a pod that no scheduler has looked at is reported.
    fn unplaced_requeue(&self, pods: &[&PodView]) -> Option<Duration> {
        let capacities = self.observed.capacities.as_deref();
        let demand = status::conditions::demand(self.valid);
        pods.iter().filter_map(|pod| unplaced(demand, pod, capacities, self.now).requeue_after).min()
    }

    /// When the failure of a volume has lasted long enough to be reported.
    fn volumes_requeue(&self, pods: &[&PodView]) -> Option<Duration> {
        let failing = pods.iter().filter_map(|pod| Some((pod, self.observed.unattached.get(pod.uid())?)));
        failing.filter_map(|(pod, failure)| failure.finding(pod, self.now).requeue_after).min()
    }

    fn volume_facts(&self) -> Vec<String> {
        self.observed.unattached.iter().filter_map(|(uid, failure)| failure.fact(uid)).collect()
    }

    /// No attempt runs. What is left of the last one is ended.
    fn waiting(&self, stage: &Stage<'_>) -> Run {
        let mut written = status::base(self.observed);
        if let Dependencies::NotReady { records, .. } = &self.dependencies {
            written.dependencies = records.clone();
        }
        written.resume_from = resume::seen(self.valid, self.observed);
        let obstacle = match stage {
            Stage::Due { .. } => conditions::obstacle(self.valid, self.observed),
            _ => None,
        };
        let assessment =
            conditions::of_waiting(self.valid, self.observed, &self.dependencies, stage, obstacle);
        let mut plan = noted(self.observed, written, assessment, self.now);
        match stage {
            Stage::Clearing { pods } => {
                plan.deletions = self.what_is_left(pods);
                plan.requeue_after = self.lost_pods_requeue(pods);
            }
            Stage::Later { at } => {
                let left = clock::deadline(self.valid, self.observed.job.status.as_ref(), self.now);
                plan.requeue_after = left.into_iter().chain([elapsed(self.now, *at)]).min();
            }
            Stage::Terminal
            | Stage::Active(_)
            | Stage::Ended(..)
            | Stage::Uploading
            | Stage::Suspended
            | Stage::Due { .. } => {}
        }
        plan
    }
}

#[cfg(test)]
mod tests;
