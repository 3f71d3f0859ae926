//! The check of the upload's store before the first attempt, so that no GPU trains for a store that takes nothing. Pure.
//!
//! A small Job without GPUs writes, reads and deletes an object. Its success is in the status before the first attempt, so it
//! is proven once. A store that refuses is tried again: keys, buckets and Secrets are mended without a change of this object.

use std::time::Duration;

use api::{
    conditions as types,
    loader::ExitCode,
    reasons,
    trainingjob::{TrainingJobStatus, Upload},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runtime::write::conditions::whole_seconds;
use workload::{
    faults::container::quote,
    time::{after, elapsed, remaining},
    uploads::{UPLOADER, end, last_failure},
    views::{
        job::{Failed, JobView},
        pod::PodView,
    },
};

use super::{ended_fact, has_succeeded_beside_others};
use crate::plan::{
    Child, Deletion, Run, Scene, attempt::stage::PODS_ARE_SEEN_WITHIN, children::upload_job::check_job,
    noted, status::conditions,
};

/// Reasons of pods that wait and, other than those of `STALLS`, may need no person.
const WAITS: [&str; 7] = [
    reasons::DENIED,
    reasons::QUOTA_PENDING,
    reasons::UNSCHEDULABLE,
    reasons::SCHEDULING_GATED,
    reasons::NO_SCHEDULER,
    reasons::VOLUME_NOT_ATTACHED,
    reasons::SANDBOX_FAILED,
];

/// What is said while the check has not succeeded.
struct CheckOutlook {
    reason: &'static str,
    message: String,
    /// Whether a person is needed.
    is_stalled: bool,
}

impl Scene<'_> {
    /// The upload whose store has to be tried before the first attempt. Jobs that have begun go on.
    pub(crate) fn unchecked_upload(&self, attempt: i32, written: &TrainingJobStatus) -> Option<&Upload> {
        let is_due = attempt == 1 && written.attempts == 0 && written.upload_check_time.is_none();
        self.valid.output.upload.as_ref().filter(|_| is_due)
    }

    /// Everything else is ready for the first attempt.
    pub(crate) fn checking(&self, upload: &Upload, mut written: TrainingJobStatus) -> Run {
        let Some(job) = self.observed.upload_check.as_deref() else {
            let mut plan = self.waits_for_check(written, self.in_progress(upload));
            plan.children.push(Child::Job(Box::new(check_job(self.valid, upload, self.defaults))));
            return plan;
        };
        let pods = self.observed.pods_of(job);
        if job.completed.is_some() || has_succeeded_beside_others(&pods) {
            written.upload_check_time = Some(whole_seconds(self.now));
            let plan = self.waits_for_check(written, trying(upload));
            // A container that was injected into its pod would run on.
            let unfinished = Some(job).filter(|job| job.is_active());
            let deletions = unfinished.map(Deletion::job);
            return Run {
                deletions: deletions.into_iter().collect(),
                requeue_after: Some(Duration::ZERO),
                ..plan
            };
        }
        if job.is_being_deleted() {
            // Another one is created when it is gone.
            return self.waits_for_check(written, self.in_progress(upload));
        }
        let beside_others = self.failed_beside_others(&pods);
        match (&job.failed, &beside_others) {
            (Some(failed), _) | (None, Some(Ok(failed))) => {
                self.failed_check(written, upload, (job, failed), &pods)
            }
            (None, Some(Err(_)) | None) => {
                let outlook = self.running_check(upload, job, &pods);
                let mut plan = self.waits_for_check(written, outlook);
                plan.facts = self.volume_facts();
                let wait = beside_others.and_then(Result::err);
                plan.requeue_after = self.volumes_requeue(&pods).into_iter().chain(wait).min();
                plan
            }
        }
    }

    fn running_check(&self, upload: &Upload, job: &JobView, pods: &[&PodView]) -> CheckOutlook {
        let Some(cause) = self.uploader_waits_because(job, pods) else {
            let runs =
                |pod: &&PodView| pod.container(UPLOADER).is_some_and(|one| one.state.running.is_some());
            let is_known = !pods.iter().any(runs);
            return if is_known { self.in_progress(upload) } else { self.known_refusal(upload) };
        };
        let is_stalled = cause.reason == reasons::DENIED || conditions::STALLS.contains(&cause.reason);
        let message = format!("{}: {}", tried(upload), cause.message);
        CheckOutlook { reason: cause.reason, message, is_stalled }
    }

    fn failed_check(
        &self,
        written: TrainingJobStatus,
        upload: &Upload,
        (job, failed): (&JobView, &Failed),
        pods: &[&PodView],
    ) -> Run {
        let last = last_failure(pods);
        let seen = remaining(PODS_ARE_SEEN_WITHIN, self.seen_to_have_ended(job), self.now);
        if let (None, Some(wait)) = (last, seen) {
            let plan = self.waits_for_check(written, self.in_progress(upload));
            return Run { facts: vec![ended_fact(job)], requeue_after: Some(wait), ..plan };
        }
        let since = self.known_stall().map_or(failed.since, |known| known.last_transition_time.0);
        let pause = self.pause_after(elapsed(since, failed.since));
        let wait = remaining(pause, failed.since, self.now);
        let code = last.and_then(|ended| ExitCode::from_code(ended.exit_code));
        let fix = match (last, code) {
            (_, Some(ExitCode::Usage)) => {
                Some("let --transfer-image of the training-controller be of its release".to_owned())
            }
            (Some(ended), _) => self.fix(upload, ended),
            (None, _) => None,
        };
        let message = format!(
            "{}, which ended with {}{}; no GPU is taken; it is tried again at {}, or at once after kubectl -n {} delete job {}",
            tried(upload),
            last.map_or_else(|| quote(&failed.message), end),
            fix.map(|fix| format!("; {fix}")).unwrap_or_default(),
            after(failed.since, pause),
            self.valid.namespace,
            job.name(),
        );
        // A Job whose pod could not start ends at its deadline, which explains nothing.
        let known = self.known_wait().filter(|_| last.is_none());
        let outlook =
            known.unwrap_or(CheckOutlook { reason: reasons::UPLOAD_NOT_POSSIBLE, message, is_stalled: true });
        let mut plan = self.waits_for_check(written, outlook);
        plan.facts = vec![ended_fact(job)];
        plan.requeue_after = wait;
        plan.deletions.extend(wait.is_none().then(|| Deletion::job(job)));
        plan
    }

    /// What was known of the check before stays until its pod runs.
    fn in_progress(&self, upload: &Upload) -> CheckOutlook {
        self.known_wait().unwrap_or_else(|| self.known_refusal(upload))
    }

    /// After a refusal its words stay until another check has ended.
    fn known_refusal(&self, upload: &Upload) -> CheckOutlook {
        match self.known_stall() {
            Some(known) => CheckOutlook {
                reason: reasons::UPLOAD_NOT_POSSIBLE,
                message: known.message.clone(),
                is_stalled: true,
            },
            None => trying(upload),
        }
    }

    /// Why no pod of the check has started.
    fn known_wait(&self) -> Option<CheckOutlook> {
        let running = self.known(types::RUNNING)?;
        let mut waits = conditions::STALLS.into_iter().chain(WAITS);
        let reason = waits.find(|reason| *reason == running.reason)?;
        let is_of_check = running.message.starts_with(&tried(self.valid.output.upload.as_ref()?));
        let is_stalled = reason == reasons::DENIED || conditions::STALLS.contains(&reason);
        is_of_check.then(|| CheckOutlook { reason, message: running.message.clone(), is_stalled })
    }

    fn known_stall(&self) -> Option<&Condition> {
        self.known(types::STALLED).filter(|known| known.reason == reasons::UPLOAD_NOT_POSSIBLE)
    }

    fn waits_for_check(&self, written: TrainingJobStatus, outlook: CheckOutlook) -> Run {
        let CheckOutlook { reason, message, is_stalled } = outlook;
        let assessment = conditions::of_checking(
            self.valid,
            self.observed,
            &self.dependencies,
            (reason, message),
            is_stalled,
        );
        noted(self.observed, written, assessment, self.now)
    }
}

fn trying(upload: &Upload) -> CheckOutlook {
    CheckOutlook { reason: reasons::NOT_RUNNING, message: tried(upload), is_stalled: false }
}

fn tried(upload: &Upload) -> String {
    format!(
        "before GPUs are taken, the store of the upload is tried with a small object below {}",
        upload.uri
    )
}
