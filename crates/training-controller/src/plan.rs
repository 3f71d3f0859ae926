//! Decides all writes for one TrainingJob and returns them as one value. Pure: no request, no clock, no randomness.
//!
//! `stage` finds where the job is in its life; here each stage has its plan. Each child and each policy has its own file.

use std::time::Duration;

use api::{
    conditions as types, reasons,
    trainingjob::{Phase, Resolved, TrainingJobStatus},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod, Service},
};
use runtime::{
    conditions::{Verdict, merged, whole_seconds},
    events::Note,
    refusal::Refusal,
};
use serde::Serialize;
use workload::{
    pod::PodView,
    stranded::{StrandedPods, Terms},
    time::{elapsed, remaining},
};

use crate::{
    names,
    observe::{Observed, job_of},
    progress::Target,
    swift::{self, Version},
    validate::{Invalid, ValidJob},
};

mod attempt_job;
mod claim;
mod conditions;
mod defaults;
mod dependencies;
mod events;
mod failure;
mod held_back;
mod idle;
mod metadata;
mod mitigation;
mod pod;
mod reduced;
mod retention;
mod retry;
mod service;
mod stage;
mod status;
mod upload;
mod upload_job;

use attempt_job::Inputs;
use conditions::Assessment;
pub(crate) use defaults::Defaults;
use dependencies::Dependencies;
use failure::Failure;
pub(crate) use failure::failure_reasons;
pub(crate) use held_back::{DETAIL_HELD_BACK, held_back};
pub(crate) use reduced::{reduced, wait_after_reduction};
pub(crate) use retention::{
    Retirement, has_finalizer, needs_finalizer, needs_snapshot, retire, without_snapshot,
};
use retry::Next;
use stage::{Attempt, End, Stage};

/// All writes for one TrainingJob.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Plan {
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
    /// Of a pod that its kubelet cannot report of.
    fn now(pod: &PodView) -> Self {
        Self::Pod { pod: Box::new(pod.identity()), grace: Duration::ZERO }
    }
}

/// For the pods that are left of an attempt that has failed.
const FAILED_GRACE: Duration = Duration::from_secs(30);
/// Ended attempts whose Jobs stay, because their pods have the logs.
const KEPT_JOBS: i32 = 5;
/// Time between two looks at claims that keep an attempt from starting.
const CLAIM_RETRY: Duration = Duration::from_secs(10);
/// A garbage collector deletes a child of a deleted object within this time.
const LEFTOVER_RETRY: Duration = Duration::from_secs(1);

/// What every part of a plan reads.
struct Scene<'a> {
    valid: &'a ValidJob,
    observed: &'a Observed,
    defaults: &'a Defaults,
    dependencies: Dependencies,
    now: Timestamp,
}

/// The plan for a valid spec.
pub(crate) fn plan(valid: &ValidJob, observed: &Observed, defaults: &Defaults, now: Timestamp) -> Plan {
    let dependencies = dependencies::dependencies(observed);
    let stage = stage::stage(valid, observed, &defaults.timings, now);
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
pub(crate) fn rejected(invalid: &Invalid, observed: &Observed, now: Timestamp) -> Plan {
    if crate::observe::has_ended(&observed.job) {
        let status = observed.job.status.clone().unwrap_or_default();
        return nothing(status);
    }
    let mut assessment = conditions::of_invalid(invalid, observed);
    assessment.verdicts.extend(upload::unchanged(observed));
    noted(observed, status::base(observed), assessment, now)
}

/// The plan after the API server has refused a child: report it, and retry later.
pub(crate) fn refused(
    refusal: &Refusal,
    planned: Plan,
    observed: &Observed,
    defaults: &Defaults,
    now: Timestamp,
) -> Plan {
    let wait = match refusal {
        Refusal::Leftover { .. } => LEFTOVER_RETRY,
        Refusal::OwnershipConflict(_) | Refusal::Invalid(_) | Refusal::Denied(_) => defaults.refusal_retry,
    };
    let job = &observed.job;
    let runs = job.status.as_ref().is_some_and(|status| status.attempts > status.ended_attempts);
    if crate::observe::has_ended(job) {
        return Plan { requeue_after: Some(wait), ..nothing(status::observed(observed)) };
    }
    let is_uploading = stage::is_uploading(job.status.as_ref());
    if runs || is_uploading {
        // What runs goes on, and is reported beside the refusal.
        let mut status = planned.status;
        if let Some((reason, message)) = conditions::refusal_of(refusal) {
            let before = job.status.as_ref().map_or(&[][..], |status| &status.conditions);
            let mut verdicts = Vec::new();
            if is_uploading {
                let uploaded = upload::refused(&status, &message);
                status.message = Some(uploaded.message.clone());
                verdicts.push(uploaded);
            }
            verdicts.push(conditions::stalled(reason, message));
            status.conditions.retain(|known| verdicts.iter().all(|verdict| verdict.type_ != known.type_));
            status.conditions.extend(merged(verdicts, before, job.metadata.generation, now));
        }
        return Plan {
            follow: planned.follow,
            facts: planned.facts,
            requeue_after: Some(wait),
            ..nothing(status)
        };
    }
    // Nothing of what was planned has happened.
    let written = status::base(observed);
    let verdicts = verdicts_of(&planned.status);
    let assessment =
        Assessment { phase: Phase::Pending, reason: reasons::NOT_RUNNING, message: String::new(), verdicts };
    let assessment = conditions::with_refusal(assessment, refusal);
    Plan { requeue_after: Some(wait), ..noted(observed, written, assessment, now) }
}

/// Conditions of the planned status that do not depend on the children.
fn verdicts_of(status: &TrainingJobStatus) -> Vec<Verdict> {
    let kept = [types::ACCEPTED, types::DEPENDENCIES_READY, types::SUSPENDED];
    let verdict = |type_: &'static str| {
        let known = status.conditions.iter().find(|known| known.type_ == type_)?;
        let reason = [reasons::VALID, reasons::ALL_SUCCEEDED, reasons::RESUMED, reasons::SUSPENDED]
            .into_iter()
            .find(|reason| *reason == known.reason)?;
        Some(Verdict { type_, holds: known.status == "True", reason, message: known.message.clone() })
    };
    kept.into_iter().filter_map(verdict).collect()
}

/// A plan that writes a status and the event of its change.
fn noted(observed: &Observed, written: TrainingJobStatus, assessment: Assessment, now: Timestamp) -> Plan {
    let reason = assessment.reason;
    let status = status::assessed(written, assessment, observed, now);
    let event = events::of_change(observed.job.status.as_ref(), &status, reason);
    Plan { events: event.into_iter().collect(), ..nothing(status) }
}

fn nothing(status: TrainingJobStatus) -> Plan {
    Plan {
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

/// What the training has left.
fn trained(status: &TrainingJobStatus) -> String {
    let steps = status.progress.as_ref().map(|progress| format!(" {} steps", progress.step));
    let checkpoint = status.checkpoint.as_ref().map(|saved| format!("; checkpoint {}", saved.path));
    format!("trained{}{}", steps.unwrap_or_default(), checkpoint.unwrap_or_default())
}

impl Scene<'_> {
    /// The job has ended: nothing is made, what still runs is ended, and its time is counted.
    fn terminal(&self) -> Plan {
        let status = status::observed(self.observed);
        let deletions = self.unfinished_jobs();
        let mut plan = Plan { deletions, ..nothing(status) };
        let left: Vec<&PodView> =
            self.observed.pods.iter().map(AsRef::as_ref).filter(|pod| !stage::has_stopped(pod)).collect();
        plan.deletions.extend(self.lost_pods(&left));
        plan.deletions.extend(self.failed_pods(&left));
        plan.requeue_after = self.lost_pods_requeue(&left);
        let ttl = self.observed.job.spec.ttl_seconds_after_finished;
        let ended = plan.status.completion_time.as_ref().map(|time| time.0);
        if let (Some(ended), Ok(ttl)) = (ended, u64::try_from(ttl))
            && self.observed.dependents == 0
        {
            match remaining(Duration::from_secs(ttl), ended, self.now) {
                Some(wait) => plan.requeue_after = plan.requeue_after.into_iter().chain([wait]).min(),
                None => plan.is_expired = true,
            }
        }
        plan
    }

    /// Everything stays as it is; only the status says how it is.
    fn paused(&self, stage: Stage<'_>) -> Plan {
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

    fn active(&self, attempt: &Attempt<'_>) -> Plan {
        let mut written = status::base(self.observed);
        // The controller may have been killed after it created the Job and before it wrote the status.
        written = status::begun(written.clone(), attempt.number, self.resolved(&written));
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
        plan.facts.extend(self.volume_facts());
        plan.facts.extend(idle::fact(self.observed, attempt));
        let idle = idle::requeue_after(self.valid, self.observed, attempt, self.now);
        let volumes = self.volumes_requeue(&attempt.pods);
        plan.requeue_after = attempt.requeue_after.into_iter().chain(idle).chain(volumes).min();
        plan
    }

    /// The log of rank 0, once there is one.
    fn log(&self, attempt: &Attempt<'_>) -> Option<Target> {
        let pod = conditions::rank_zero(self.valid, attempt)?;
        let state = &pod.container(pod::TRAINER)?.state;
        (state.running.is_some() || state.terminated.is_some()).then(|| Target {
            pod: pod.name().to_owned(),
            pod_uid: pod.uid().to_owned(),
            container: pod::TRAINER,
            attempt: attempt.number,
            output_dir: self.valid.output.dir.clone(),
        })
    }

    /// When a volume that is not there has been waited for long enough to be told.
    fn volumes_requeue(&self, pods: &[&PodView]) -> Option<Duration> {
        let failing = pods.iter().filter_map(|pod| Some((pod, self.observed.unattached.get(pod.uid())?)));
        failing.filter_map(|(pod, failure)| failure.finding(pod, self.now).requeue_after).min()
    }

    fn volume_facts(&self) -> Vec<String> {
        self.observed.unattached.iter().filter_map(|(uid, failure)| failure.fact(uid)).collect()
    }

    /// The end of an attempt is written before anything is made or deleted because of it.
    fn ended(&self, attempt: &Attempt<'_>, end: End) -> Plan {
        let written = status::base(self.observed);
        let plan = match end {
            End::Succeeded => self.succeeded(attempt, written),
            End::Suspended => {
                let written = status::ended(written, attempt.number);
                let stage = Stage::Clearing { pods: attempt.pods.clone() };
                let assessment =
                    conditions::of_waiting(self.valid, self.observed, &self.dependencies, &stage, None);
                noted(self.observed, written, assessment, self.now)
            }
            End::DeadlineExceeded(failure) => {
                let next = Next::Never { reason: failure.reason, message: failure.message.clone() };
                self.failed(attempt, failure, written, next)
            }
            End::Failed(failure) => {
                let before = self.observed.job.status.clone().unwrap_or_default();
                let without = status::without_progress(&before, &failure, &written);
                let ended = (attempt.number, &failure);
                let next = retry::next(self.valid, &written, ended, without, &self.defaults.timings);
                self.failed(attempt, failure, written, next)
            }
        };
        Plan { requeue_after: Some(Duration::ZERO), ..plan }
    }

    fn failed(
        &self,
        attempt: &Attempt<'_>,
        failure: Failure,
        written: TrainingJobStatus,
        next: Next,
    ) -> Plan {
        let note = events::of_failure(attempt.number, &failure);
        let before = self.observed.job.status.clone().unwrap_or_default();
        let without = status::without_progress(&before, &failure, &written);
        let has_run = failure.exit_code.is_some();
        let mut written = status::failed(written, attempt.number, failure, without, &next, self.now);
        if has_run {
            written = status::started(written, self.now);
        }
        let assessment = match next {
            Next::Never { reason, message } => {
                written.completion_time = Some(whole_seconds(self.now));
                conditions::of_failure(self.valid, self.observed, &self.dependencies, None, (reason, message))
            }
            Next::Again { .. } => {
                let at = written.next_attempt_time.as_ref().map(|time| time.0);
                let stage = match at {
                    Some(at) => Stage::Later { at },
                    None => Stage::Clearing { pods: Vec::new() },
                };
                conditions::of_waiting(self.valid, self.observed, &self.dependencies, &stage, None)
            }
        };
        let mut plan = noted(self.observed, written, assessment, self.now);
        plan.events.insert(0, note);
        plan
    }

    fn succeeded(&self, attempt: &Attempt<'_>, written: TrainingJobStatus) -> Plan {
        let message =
            conditions::rank_zero(self.valid, attempt).and_then(failure::message_of).unwrap_or_default();
        let mut written = status::ended(written, attempt.number);
        written = status::started(written, self.now);
        if let Some(saved) = message.checkpoint {
            let time = Some(whole_seconds(self.now));
            // The launcher has looked at it, and the log may say anything.
            written.checkpoint =
                Some(api::trainingjob::Checkpoint { path: saved.path, step: saved.step, time });
        }
        written.progress = status::completed(written.progress, message.step);
        if let Some(upload) = &self.valid.output.upload {
            let uploaded = upload::beginning(upload);
            let assessment =
                conditions::of_uploading(self.valid, self.observed, &self.dependencies, uploaded);
            return noted(self.observed, written, assessment, self.now);
        }
        written.completion_time = Some(whole_seconds(self.now));
        let early = if message.stopped_early { ", stopped early by the trainer" } else { "" };
        let text = format!("{}{early}", trained(&written));
        let assessment = conditions::of_success(self.valid, self.observed, &self.dependencies, None, text);
        noted(self.observed, written, assessment, self.now)
    }

    fn due(&self, number: i32) -> Plan {
        let stage = Stage::Due { attempt: number };
        let records = match &self.dependencies {
            Dependencies::None => Vec::new(),
            Dependencies::Ready(records) => records.clone(),
            Dependencies::NotReady { reason, message, records } if *reason == reasons::DEPENDENCY_FAILED => {
                let mut written = status::base(self.observed);
                written.dependencies = records.clone();
                written.completion_time = Some(whole_seconds(self.now));
                let why = (reasons::DEPENDENCY_FAILED, message.clone());
                let assessment =
                    conditions::of_failure(self.valid, self.observed, &self.dependencies, None, why);
                return noted(self.observed, written, assessment, self.now);
            }
            Dependencies::NotReady { .. } | Dependencies::Ambiguous(_) => return self.waiting(&stage),
        };
        if let Err(invalid) = dependencies::fit(self.valid, &records) {
            let assessment = conditions::of_invalid(&invalid, self.observed);
            return noted(self.observed, status::base(self.observed), assessment, self.now);
        }
        let mut written = status::base(self.observed);
        let has_records = written.dependencies == records;
        written.dependencies = records.clone();
        if !has_records {
            // Before the attempt: from now on the other jobs may be deleted.
            let obstacle = conditions::obstacle(self.valid, self.observed);
            let assessment =
                conditions::of_waiting(self.valid, self.observed, &self.dependencies, &stage, obstacle);
            let plan = noted(self.observed, written, assessment, self.now);
            return Plan { requeue_after: Some(Duration::ZERO), ..plan };
        }
        if conditions::obstacle(self.valid, self.observed).is_some() {
            return Plan { requeue_after: Some(CLAIM_RETRY), ..self.waiting(&stage) };
        }
        self.begin(number, written)
    }

    fn begin(&self, number: i32, written: TrainingJobStatus) -> Plan {
        if let Some(invalid) = &self.valid.refused {
            let assessment = conditions::of_invalid(invalid, self.observed);
            return noted(self.observed, written, assessment, self.now);
        }
        let resolved = self.resolved(&written);
        let version = self.version(&resolved);
        if let Some(why) = swift::unsupported(version, self.valid.method, resolved.adapters.is_some()) {
            let invalid = Invalid(format!("spec.method: {why}"));
            let assessment = conditions::of_invalid(&invalid, self.observed);
            return noted(self.observed, written, assessment, self.now);
        }
        let records = &written.dependencies;
        let results = dependencies::results(records);
        let reward_model = self.valid.reward_model.as_ref();
        let inputs = Inputs {
            model: dependencies::source(&self.valid.model, records),
            reward_model: reward_model.map(|text| dependencies::source(text, records).model),
            image: &resolved.image,
            version,
            results: &results,
            mitigations: written.mitigations.len(),
        };
        let job = attempt_job::attempt_job(self.valid, number, &inputs, self.defaults);
        let written = status::begun(written, number, resolved);
        let attempt = Attempt { number, job: None, pods: Vec::new(), is_ending: false, requeue_after: None };
        let assessment =
            conditions::of_active(self.valid, self.observed, &self.dependencies, &attempt, self.now);
        let mut plan = noted(self.observed, written, assessment, self.now);
        let claim = claim::claim(self.valid).map(|claim| Child::Claim(Box::new(claim)));
        let service = service::service(self.valid).map(|service| Child::Service(Box::new(service)));
        plan.children.extend(claim.into_iter().chain(service).chain([Child::Job(Box::new(job))]));
        plan.deletions = self.old_jobs(number);
        plan
    }

    /// Jobs of attempts that ended long ago, with their pods. Interruptions are not counted, so there may be any number.
    fn old_jobs(&self, next: i32) -> Vec<Deletion> {
        let is_old = |number: i32| number < next.saturating_sub(KEPT_JOBS);
        let old = self.observed.attempts.iter().filter(|(number, _)| is_old(**number));
        let old = old.filter(|(_, job)| job.is_finished() && !job.is_being_deleted());
        old.map(|(_, job)| Deletion::Job(Box::new(job.identity()))).collect()
    }

    /// An upgrade of the controller changes neither the image nor the flags of a job that has begun.
    fn resolved(&self, written: &TrainingJobStatus) -> Resolved {
        if let Some(resolved) = written.resolved.as_ref().filter(|resolved| !resolved.image.is_empty()) {
            return resolved.clone();
        }
        let default = || self.defaults.trainer_image(self.valid.device).to_owned();
        let image = self.valid.image.clone().unwrap_or_else(default);
        let version = self.valid.version.unwrap_or_else(|| Version::of_image(&image));
        let model = dependencies::source(&self.valid.model, &written.dependencies);
        Resolved { image, swift_version: version.to_string(), model: model.model, adapters: model.adapters }
    }

    fn version(&self, resolved: &Resolved) -> Version {
        let known = Version::parse(&resolved.swift_version).or(self.valid.version);
        known.unwrap_or_else(|| Version::of_image(&resolved.image))
    }

    /// No attempt runs. What is left of the last one is ended.
    fn waiting(&self, stage: &Stage<'_>) -> Plan {
        let mut written = status::base(self.observed);
        if let Dependencies::NotReady { records, .. } = &self.dependencies {
            written.dependencies = records.clone();
        }
        let obstacle = match stage {
            Stage::Due { .. } => conditions::obstacle(self.valid, self.observed),
            _ => None,
        };
        let assessment =
            conditions::of_waiting(self.valid, self.observed, &self.dependencies, stage, obstacle);
        let mut plan = noted(self.observed, written, assessment, self.now);
        match stage {
            Stage::Clearing { pods } => {
                plan.deletions = self.unfinished_jobs();
                plan.deletions.extend(self.lost_pods(pods));
                plan.deletions.extend(self.failed_pods(pods));
                plan.requeue_after = self.lost_pods_requeue(pods);
            }
            Stage::Later { at } => {
                let left = stage::deadline(self.valid, self.observed.job.status.as_ref(), self.now);
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

    /// Jobs of attempts that have ended and still have pods, or would make some. One of which a pod has failed ends by itself,
    /// and the log of that pod stays readable.
    fn unfinished_jobs(&self) -> Vec<Deletion> {
        let ends_itself = |job: &str| {
            let mut pods = self.observed.pods.iter().filter(|pod| job_of(pod) == Some(job));
            pods.any(|pod| pod.phase == "Failed")
        };
        let jobs = self.observed.attempts.values();
        let ended =
            jobs.filter(|job| !job.is_finished() && !job.is_being_deleted() && !ends_itself(job.name()));
        ended.map(|job| Deletion::Job(Box::new(job.identity()))).collect()
    }

    /// Pods that are being deleted and whose nodes are lost: no kubelet reports their end.
    fn lost_pods(&self, pods: &[&PodView]) -> Vec<Deletion> {
        let stranded = self.stranded(pods);
        let due = stranded.due();
        let lost =
            pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some() && due.contains(&pod.uid()));
        lost.map(|pod| Deletion::now(pod)).collect()
    }

    /// Pods of an attempt that has failed: without all ranks, or in a trainer that hangs, there is nothing more to save, and
    /// their GPUs are needed. One that was preempted saves within its own grace period.
    fn failed_pods(&self, pods: &[&PodView]) -> Vec<Deletion> {
        let status = self.observed.job.status.as_ref();
        let failure = status.and_then(|status| {
            status.failure.as_ref().filter(|failure| failure.attempt == status.ended_attempts)
        });
        let Some(failure) = failure.filter(|failure| failure.reason != reasons::PREEMPTED) else {
            return Vec::new();
        };
        let job = names::attempt(&self.valid.name, failure.attempt);
        let is_of_it = |pod: &&&PodView| job_of(pod) == Some(&job);
        let is_slow = |pod: &&&PodView| {
            let grace = pod.metadata.deletion_grace_period_seconds;
            grace.is_none_or(|seconds| u64::try_from(seconds).unwrap_or_default() > FAILED_GRACE.as_secs())
        };
        let slow = pods.iter().filter(is_of_it).filter(is_slow);
        slow.map(|pod| Deletion::Pod { pod: Box::new(pod.identity()), grace: FAILED_GRACE }).collect()
    }

    fn lost_pods_requeue(&self, pods: &[&PodView]) -> Option<Duration> {
        self.stranded(pods).requeue_after(&workload::pace::Allowance::default())
    }

    fn stranded<'p>(&self, pods: &[&'p PodView]) -> StrandedPods<'p> {
        let terms = Terms {
            timeout: self.valid.node_failure,
            is_paused: self.valid.pods.paused,
            container: pod::TRAINER,
        };
        StrandedPods::of(pods.iter().copied(), &self.observed.nodes, &terms, self.now)
    }
}

#[cfg(test)]
mod tests;
