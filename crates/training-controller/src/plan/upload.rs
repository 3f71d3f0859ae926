//! The upload of the result, when the GPUs of the training have been given back: how its Job stands, and what follows. Pure.
//!
//! It is retried alone, until it works: the training is never repeated for it. What is uploaded already is not sent again. A
//! Job that has failed is followed by another one, because keys, buckets and Secrets are mended without a change of this
//! object.

use std::time::Duration;

use api::{
    conditions as types,
    loader::ExitCode,
    reasons,
    trainingjob::{Artifact, TrainingJob, TrainingJobStatus, Upload},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runtime::write::{
    conditions::{Verdict, whole_seconds},
    events::{Note, Severity},
};
use workload::{
    Cause,
    faults::{container::quote, pace::Allowance, refused_pods, stranded::StrandedPods, unplaced::unplaced},
    time::{after, elapsed, remaining},
    uploads::{UPLOADER, artifacts, end, fix, has_succeeded, last_failure, report, summary},
    views::{
        job::{Failed, JobView},
        pod::{PodView, Terminated},
    },
};

use super::{
    Child, Deletion, Run, Scene,
    attempt::stage::{PODS_ARE_SEEN_WITHIN, SIDECARS_END_WITHIN},
    children::upload_job::{FIELDS, upload_job},
    noted, nothing,
    status::{self, conditions},
};
use crate::{
    names,
    objects::{
        pod::has_stopped,
        training_job::{condition, needs_finalizer},
    },
    observe::Observed,
};

mod check;

/// Pauses between two Jobs, as multiples of the first pause between two attempts. Each pause is as long as all tries before it
/// took, so that no count of them is needed.
const FIRST_PAUSE: u32 = 6;
const LONGEST_PAUSE: u32 = 60;
/// Beyond it a mended store would be found too late.
const LONGEST: Duration = Duration::from_secs(600);
/// Reasons that need a change by a user; other causes may pass without one.
const STALLS_AN_UPLOAD: [&str; 4] =
    [reasons::SECRET_NOT_FOUND, reasons::CONFIG_MAP_NOT_FOUND, reasons::DENIED, reasons::IMAGE_PULL_FAILED];

/// How the upload stands.
#[derive(Debug)]
enum State {
    /// The Job has to be created.
    Missing,
    /// A Job runs, or its end is not known completely, or the next one follows later.
    UnderWay(Outlook),
    /// The Job has failed, or cannot start, and gives way to the next one.
    Due(Outlook),
    Done(Verdict, Vec<Artifact>),
}

/// What is said of an upload that has not ended.
#[derive(Debug)]
struct Outlook {
    verdict: Verdict,
    /// The reason of Stalled; `None`: it goes on by itself.
    stall: Option<&'static str>,
    requeue_after: Option<Duration>,
    /// Since when it has been true is noted.
    fact: Option<String>,
}

impl Scene<'_> {
    /// The training has succeeded; its GPUs are given back, and only the upload is retried.
    pub(super) fn uploading(&self) -> Run {
        let mut written = status::base(self.observed);
        let Some(upload) = &self.valid.output.upload else { return nothing(written) };
        let job = self.observed.upload.as_deref();
        let pods = job.map(|job| self.observed.pods_of(job)).unwrap_or_default();
        let (valid, observed, dependencies) = (self.valid, self.observed, &self.dependencies);
        // Of the attempt that has proven the result: they hold GPUs, and perhaps the volume.
        let unfinished = self.unfinished_jobs();
        match self.state(upload, &pods) {
            State::Missing => {
                let job = upload_job(valid, upload, self.folder(&written), self.defaults);
                let mut plan = self.under_way(written, self.begins(upload, None));
                plan.deletions = unfinished;
                plan.children.push(Child::Job(Box::new(job)));
                plan
            }
            State::UnderWay(outlook) => {
                let mut plan = self.under_way(written, outlook);
                plan.deletions = [unfinished, self.lost_uploaders(&pods)].concat();
                plan
            }
            State::Due(outlook) => {
                let mut plan = self.under_way(written, outlook);
                let gives_way = observed.upload.as_ref().map(|job| Deletion::job(job));
                plan.deletions = unfinished.into_iter().chain(gives_way).collect();
                plan
            }
            State::Done(uploaded, artifacts) => {
                written.artifacts = artifacts;
                written.completion_time = Some(whole_seconds(self.now));
                let text = format!("{}; uploaded {}", status::trained(&written), uploaded.message);
                let assessment = conditions::of_success(valid, observed, dependencies, Some(uploaded), text);
                noted(observed, written, assessment, self.now)
            }
        }
    }

    /// The Job of an upload that is done, while a container that was injected into its pod runs on.
    pub(super) fn finished_upload(&self) -> Option<Deletion> {
        let is_done = self.known(types::UPLOADED).is_some_and(|known| known.status == "True");
        let job = self.observed.upload.as_deref().filter(|_| is_done)?;
        let runs_on = job.is_active();
        runs_on.then(|| Deletion::job(job))
    }

    /// What is uploaded.
    fn folder<'s>(&'s self, status: &'s TrainingJobStatus) -> &'s str {
        status.checkpoint.as_ref().map_or(&*self.valid.output.dir, |saved| &*saved.path)
    }

    /// Nothing else is known. After a failure its words stay until the next Job has ended.
    fn begins(&self, upload: &Upload, requeue_after: Option<Duration>) -> Outlook {
        let failed = self.known(types::UPLOADED).filter(|known| known.reason == reasons::UPLOAD_FAILED);
        let verdict = failed.map_or_else(|| beginning(upload), |known| failing(known.message.clone()));
        let stalled = self.known(types::STALLED).filter(|_| failed.is_some());
        let mut causes = ExitCode::ALL.map(ExitCode::reason).into_iter().chain([reasons::UPLOAD_FAILED]);
        let stall = stalled.and_then(|known| causes.find(|cause| *cause == known.reason));
        Outlook { verdict, stall, requeue_after, fact: None }
    }

    fn known(&self, type_: &str) -> Option<&Condition> {
        condition(self.observed.job.status.as_ref(), type_)
    }

    fn under_way(&self, written: TrainingJobStatus, outlook: Outlook) -> Run {
        let Outlook { verdict, stall, requeue_after, fact } = outlook;
        let message = verdict.message.clone();
        let mut assessment = conditions::of_uploading(self.valid, self.observed, &self.dependencies, verdict);
        if let Some(reason) = stall {
            assessment.replace(conditions::stalled(reason, message.clone()));
        }
        let mut plan = noted(self.observed, written, assessment, self.now);
        if plan.events.is_empty() {
            plan.events.extend(stall.and_then(|reason| stall_note(self.observed, reason, message)));
        }
        plan.requeue_after = requeue_after;
        plan.facts.extend(fact);
        plan
    }

    fn state(&self, upload: &Upload, pods: &[&PodView]) -> State {
        let Some(job) = self.observed.upload.as_deref() else { return State::Missing };
        if job.completed.is_some() || has_succeeded_beside_others(pods) {
            return self.completed(upload, job, pods);
        }
        if job.is_being_deleted() {
            // Another one is created when it is gone.
            return State::UnderWay(self.begins(upload, None));
        }
        match (&job.failed, self.failed_beside_others(pods)) {
            (Some(failed), _) => self.failed_upload(upload, job, failed, pods),
            (None, Some(Ok(failed))) => self.failed_upload(upload, job, &failed, pods),
            (None, Some(Err(wait))) => self.running_upload(upload, job, pods, Some(wait)),
            (None, None) => self.running_upload(upload, job, pods, None),
        }
    }

    fn completed(&self, upload: &Upload, job: &JobView, pods: &[&PodView]) -> State {
        let report = pods.iter().find_map(|pod| report(pod));
        if report.is_none()
            && let Some(wait) = remaining(PODS_ARE_SEEN_WITHIN, self.seen_to_have_ended(job), self.now)
        {
            return State::UnderWay(Outlook {
                fact: Some(ended_fact(job)),
                ..self.begins(upload, Some(wait))
            });
        }
        let message = summary(upload, report.as_ref());
        let report = report.unwrap_or_default();
        let verdict = Verdict { type_: types::UPLOADED, holds: true, reason: reasons::UPLOADED, message };
        State::Done(verdict, artifacts(upload, &report))
    }

    /// The failure of a Job that does not see it, because a container that was injected into the pod runs on; `Err`: when it
    /// counts as one.
    pub(super) fn failed_beside_others(&self, pods: &[&PodView]) -> Option<Result<Failed, Duration>> {
        let running: Vec<&PodView> = pods.iter().copied().filter(|pod| !has_stopped(pod)).collect();
        let since = last_failure(&running)?.finished_at?;
        let failed = Failed { since, reason: String::new(), message: String::new() };
        Some(remaining(SIDECARS_END_WITHIN, since, self.now).map_or(Ok(failed), Err))
    }

    fn running_upload(
        &self,
        upload: &Upload,
        job: &JobView,
        pods: &[&PodView],
        wait: Option<Duration>,
    ) -> State {
        let stranded = self.stranded_uploaders(pods);
        let stranded_until = stranded.requeue_after(&Allowance::default());
        let mut requeue_after =
            stranded_until.into_iter().chain(self.volumes_requeue(pods)).chain(wait).min();
        let lost = stranded.outlook_message();
        let waits = if lost.is_none() { self.uploader_waits_because(job, pods) } else { None };
        let stall =
            waits.as_ref().map(|cause| cause.reason).filter(|reason| STALLS_AN_UPLOAD.contains(reason));
        // The image is an option of this controller, and may be another one since.
        let fact = (stall == Some(reasons::IMAGE_PULL_FAILED)).then(|| no_image_fact(job));
        let mut is_due = false;
        if let Some(fact) = &fact {
            let since = self.observed.facts.get(fact).copied().unwrap_or(self.now);
            let wait = remaining(LONGEST, since, self.now);
            is_due = wait.is_none();
            requeue_after = requeue_after.into_iter().chain(wait).min();
        }
        let last = || last_failure(pods).map(|ended| format!("the last try ended with {}", end(ended)));
        let outlook = match lost.or(waits.map(|cause| cause.message)).or_else(last) {
            Some(because) => {
                let verdict = uploading(format!("to {}: {because}", upload.uri));
                Outlook { verdict, stall, requeue_after, fact }
            }
            None => self.begins(upload, requeue_after),
        };
        if is_due { State::Due(outlook) } else { State::UnderWay(outlook) }
    }

    /// By the clock of this process: that of the API server may be ahead of it or behind.
    pub(super) fn seen_to_have_ended(&self, job: &JobView) -> Timestamp {
        self.observed.facts.get(&ended_fact(job)).copied().unwrap_or(self.now)
    }

    /// Between a Job that has failed and the next one, after tries for so long.
    pub(super) fn pause_after(&self, tried: Duration) -> Duration {
        let unit = self.defaults.timings.first_pause;
        let longest = unit.saturating_mul(LONGEST_PAUSE).min(LONGEST);
        tried.max(unit.saturating_mul(FIRST_PAUSE)).min(longest)
    }

    /// Why no uploader runs, as for the pods of an attempt.
    pub(super) fn uploader_waits_because(&self, job: &JobView, pods: &[&PodView]) -> Option<Cause> {
        let Observed { refused_pods, .. } = self.observed;
        if job.is_suspended {
            let why = match job.suspended_message.as_str() {
                "" => String::new(),
                message => format!(" ({})", quote(message)),
            };
            let message = format!("Job {} is suspended{why}", job.name());
            return Some(Cause { reason: reasons::QUOTA_PENDING, message });
        }
        if let Some(why) = refused_pods.as_ref().filter(|_| pods.is_empty()) {
            let fix = refused_pods::fix(why, &conditions::HELPERS);
            let message = format!("no pod was created: {why}{fix}");
            return Some(Cause { reason: conditions::why_no_pod_is_created(why), message });
        }
        let mut waiting = pods.iter().filter(|pod| !pod.is_over());
        waiting.find_map(|pod| {
            let unplaced = unplaced(None, pod, None, self.now).cause.map(|Cause { reason, message }| Cause {
                reason,
                message: format!("pod {} has no node: {message}", pod.name()),
            });
            unplaced.or_else(|| conditions::waits_because(pod, self.observed, self.now))
        })
    }

    /// Pods on lost nodes. Their Job makes no other pod before they are gone, and no kubelet reports their end.
    fn lost_uploaders(&self, pods: &[&PodView]) -> Vec<Deletion> {
        let due = self.stranded_uploaders(pods).due();
        pods.iter().filter(|pod| due.contains(&pod.uid())).map(|pod| Deletion::now(pod)).collect()
    }

    fn stranded_uploaders<'p>(&self, pods: &[&'p PodView]) -> StrandedPods<'p> {
        let left = pods.iter().copied().filter(|pod| !has_stopped(pod));
        StrandedPods::of(left, &self.observed.nodes, &self.valid.terms(UPLOADER), self.now)
    }

    fn failed_upload(&self, upload: &Upload, job: &JobView, failed: &Failed, pods: &[&PodView]) -> State {
        let last = last_failure(pods);
        let fact = Some(ended_fact(job));
        if last.is_none()
            && let Some(wait) = remaining(PODS_ARE_SEEN_WITHIN, self.seen_to_have_ended(job), self.now)
        {
            return State::UnderWay(Outlook { fact, ..self.begins(upload, Some(wait)) });
        }
        let why = last.map_or_else(|| quote(&failed.message), end);
        let since = training_ended(self.observed).unwrap_or(failed.since);
        // Nothing but another release makes such a command line valid.
        let is_permanent = last.is_some_and(|ended| ended.exit_code == ExitCode::Usage.code());
        let tried = if is_permanent { Duration::MAX } else { elapsed(since, failed.since) };
        let pause = self.pause_after(tried);
        let fix = last.and_then(|ended| self.fix(upload, ended)).map(|fix| format!("; {fix}"));
        let (namespace, output) = (&self.valid.namespace, &self.valid.output);
        let written = status::base(self.observed);
        let message = format!(
            "to {}: the last try ended with {why}{}; it is tried again at {}, or at once after kubectl -n {namespace} delete \
             job {}; the result is in {} of claim {namespace}/{}, mounted at {}",
            upload.uri,
            fix.unwrap_or_default(),
            after(failed.since, pause),
            names::upload(&self.valid.name),
            self.folder(&written),
            output.claim.name(),
            output.mount_path,
        );
        let code = last.and_then(|ended| ExitCode::from_code(ended.exit_code));
        let stall = Some(code.map_or(reasons::UPLOAD_FAILED, ExitCode::reason));
        let wait = remaining(pause, failed.since, self.now);
        let outlook = Outlook { verdict: failing(message), stall, requeue_after: wait, fact };
        if wait.is_some() { State::UnderWay(outlook) } else { State::Due(outlook) }
    }

    /// What has to be changed, and where.
    pub(super) fn fix(&self, upload: &Upload, ended: &Terminated) -> Option<String> {
        let account = self.valid.pods.service_account_name.as_deref();
        fix(upload, ended, &self.valid.namespace, account, FIELDS)
    }
}

/// The first verdict, when the training has just succeeded.
pub(super) fn beginning(upload: &Upload) -> Verdict {
    uploading(format!("to {}", upload.uri))
}

/// The verdict while the spec cannot be read: without the condition the training would begin again.
pub(super) fn unchanged(observed: &Observed) -> Option<Verdict> {
    let known = condition(observed.job.status.as_ref(), types::UPLOADED)?;
    Some(uploading(known.message.clone()))
}

/// Whether the result of a job that has ended was never uploaded, and would be deleted with the job.
pub(super) fn is_owed(status: &TrainingJobStatus, job: &TrainingJob) -> bool {
    let uploaded = condition(Some(status), types::UPLOADED);
    needs_finalizer(job) && uploaded.is_some_and(|known| known.status != "True")
}

/// The verdict when the API server refuses what was planned.
pub(super) fn refused(planned: &TrainingJobStatus, why: &str) -> Verdict {
    uploading(format!("{}: {why}", planned.message.as_deref().unwrap_or_default()))
}

fn uploading(message: String) -> Verdict {
    Verdict { type_: types::UPLOADED, holds: false, reason: reasons::UPLOADING, message }
}

fn failing(message: String) -> Verdict {
    Verdict { type_: types::UPLOADED, holds: false, reason: reasons::UPLOAD_FAILED, message }
}

/// The event when the store begins to need a change by a user.
fn stall_note(observed: &Observed, reason: &'static str, message: String) -> Option<Note> {
    let before = condition(observed.job.status.as_ref(), types::STALLED);
    let is_known = before.is_some_and(|known| known.reason == reason);
    (!is_known).then_some(Note { severity: Severity::Warning, reason, message })
}

/// The condition Uploaded is False from then on.
fn training_ended(observed: &Observed) -> Option<Timestamp> {
    Some(condition(observed.job.status.as_ref(), types::UPLOADED)?.last_transition_time.0)
}

/// For `FactTimes`, while a Job has ended and its pods may not be seen yet.
pub(super) fn ended_fact(job: &JobView) -> String {
    format!("ended: Job {}", job.metadata.uid.as_deref().unwrap_or_default())
}

/// For `FactTimes`, while an uploader's image cannot be pulled.
fn no_image_fact(job: &JobView) -> String {
    format!("no image: Job {}", job.metadata.uid.as_deref().unwrap_or_default())
}

/// The Job of such a pod does not complete.
pub(super) fn has_succeeded_beside_others(pods: &[&PodView]) -> bool {
    let running: Vec<&PodView> = pods.iter().copied().filter(|pod| !has_stopped(pod)).collect();
    has_succeeded(&running)
}
