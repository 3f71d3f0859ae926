//! The Jobs that speak to the store of the answers: how they stand, and what follows. Pure.
//!
//! One tries the store beside the first runs, so that a wrong key is known after minutes and not after hours. One uploads after
//! the verdict. Neither changes a verdict, holds a GPU or keeps a run waiting. What is uploaded already is not sent again. A Job
//! that has failed is followed by another one, because keys, buckets and Secrets are mended without a change of this object. So is
//! one whose store is not that of the spec any more. A day after the verdict an upload is given up, so that the evaluation can be
//! deleted.

use std::{sync::Arc, time::Duration};

use api::{
    aiinference::{
        evaluation::{ModelEvaluation, ModelEvaluationStatus, Phase},
        source::ModelSource,
    },
    conditions as types, labels,
    loader::{ExitCode, Uploaded},
    reasons,
    trainingjob::{Artifact, Upload},
};
use jiff::Timestamp;
use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::apis::meta::v1::Condition};
use runtime::write::{
    conditions::Verdict,
    events::{Note, Severity},
};
use workload::{
    Cause,
    digest::digest,
    faults::container::quote,
    time::{after, remaining},
    uploads::{UPLOADER, artifacts, end, fix, has_succeeded, last_failure, report, summary},
    views::{
        job::{Failed, JobView},
        pod::{PodView, Terminated},
    },
};

use super::{
    claim, conditions,
    job::{self, FIELDS},
    obstacle::{self, Start},
    progress::{self, PODS_ARE_SEEN_WITHIN},
};
use crate::{
    Settings, names,
    observe::Observed,
    validate::{Invalid, ValidEvaluation, validate},
};

/// Since the verdict. Answers have megabytes, so the rest is time for a user who mends the store.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(86_400);

/// Between a Job that has failed, which takes up to half an hour, and the next one. An image that cannot be pulled may be another
/// one since.
const AGAIN_AFTER: Duration = Duration::from_secs(600);

/// Of containers that were injected into a pod whose uploader has ended.
const OTHERS_END_WITHIN: Duration = Duration::from_secs(60);

/// Reasons of pods that cannot start.
const START_FAULTS: [&str; 3] =
    [reasons::IMAGE_PULL_FAILED, reasons::SECRET_NOT_FOUND, reasons::CONFIG_MAP_NOT_FOUND];

/// Length of the digest of a store.
const MARK_BYTES: usize = 8;

/// Before the words of a try.
const TRY_ENDED: &str = "the last try ended with ";

/// Before the time of the next try.
const AGAIN: &str = "; it is tried again at ";

/// Of an evaluation that has ended: what is with its upload.
pub(super) enum Standing {
    /// It has none, or it ended at this time and is in the status.
    Over(Option<Timestamp>),
    UnderWay(Box<Outlook>),
}

/// What is said and done of a Job whose end is not in the status.
pub(super) struct Outlook {
    pub(super) verdict: Verdict,
    pub(super) artifacts: Vec<Artifact>,
    /// The mark of a store that has taken an object.
    pub(super) checked_store: Option<String>,
    pub(super) create: Option<Job>,
    pub(super) delete: Option<Job>,
    pub(super) requeue_after: Option<Duration>,
}

/// What the Job is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Before the verdict: a small object is written, read and deleted.
    Check,
    /// After it: the answers.
    Push,
}

impl Stage {
    /// The reason while nothing has failed for good.
    fn under_way(self) -> &'static str {
        match self {
            Stage::Check => reasons::WAITING,
            Stage::Push => reasons::UPLOADING,
        }
    }
}

/// Where the answers of an evaluation go.
struct Scene<'a> {
    stage: Stage,
    valid: &'a ValidEvaluation,
    /// To the folder of this evaluation.
    upload: Upload,
    observed: &'a Observed,
    settings: &'a Settings,
    /// When there was a verdict; before it, now.
    ended: Timestamp,
    now: Timestamp,
}

/// The name of the Job, which is not deleted with the others at the end.
pub(super) fn job_name(evaluation: &ModelEvaluation) -> String {
    names::upload(evaluation.metadata.name.as_deref().unwrap_or_default())
}

/// The first verdict, together with that of the comparison.
pub(super) fn beginning(observed: &Observed) -> Option<Verdict> {
    Some(uploading(format!("to {}", destination(&observed.evaluation)?.uri)))
}

/// Before the verdict: how the check of the store stands. It is made until it succeeds, and anew for another store. `None`:
/// nothing is uploaded.
pub(super) fn checking(
    valid: &ValidEvaluation,
    observed: &Observed,
    settings: &Settings,
    now: Timestamp,
) -> Option<Outlook> {
    let upload = destination(&observed.evaluation)?;
    if let Err(Invalid { reason, message }) = can_be_parsed(&upload) {
        let delete = unwanted(observed, &check_name(&observed.evaluation));
        return Some(Outlook { delete, ..only(failing(reason, message)) });
    }
    let scene = Scene { stage: Stage::Check, valid, upload, observed, settings, ended: now, now };
    Some(scene.outlook())
}

/// The name of the Job that tries the store.
pub(super) fn check_name(evaluation: &ModelEvaluation) -> String {
    names::store_check(evaluation.metadata.name.as_deref().unwrap_or_default())
}

pub(super) fn standing(observed: &Observed, settings: &Settings, now: Timestamp) -> Standing {
    let status = observed.evaluation.status.as_ref();
    let ended = status
        .filter(|status| status.phase == Some(Phase::Succeeded))
        .and_then(|status| Some(status.completion_time.as_ref()?.0));
    let Some((ended, upload)) = ended.zip(destination(&observed.evaluation)) else {
        return Standing::Over(None);
    };
    match known(observed) {
        Some(known) if known.status == "True" => {
            return Standing::Over(Some(known.last_transition_time.0));
        }
        Some(known) if known.reason == reasons::DEADLINE_EXCEEDED => {
            return Standing::Over(Some(known.last_transition_time.0));
        }
        Some(_) | None => {}
    }
    let parsed = can_be_parsed(&upload);
    // That of another address sends nothing more.
    let delete = parsed.is_err().then(|| unwanted(observed, &job_name(&observed.evaluation))).flatten();
    let valid = validate(&observed.evaluation, settings);
    Standing::UnderWay(Box::new(match parsed.and(valid) {
        Ok(valid) => {
            let stage = Stage::Push;
            Scene { stage, valid: &valid, upload, observed, settings, ended, now }.outlook()
        }
        Err(Invalid { reason, message }) => match remaining(GIVEN_UP_AFTER, ended, now) {
            Some(left) => Outlook { delete, requeue_after: Some(left), ..only(failing(reason, message)) },
            None => finally(failing(reasons::DEADLINE_EXCEEDED, given_up(&upload, &message))),
        },
    }))
}

/// The verdict when the API server refuses the Job.
pub(super) fn refused(observed: &Observed, cause: Cause, stage: Stage) -> Option<Verdict> {
    let uri = destination(&observed.evaluation)?.uri;
    let Cause { reason, message } = cause;
    let reason = if conditions::needs_a_user(reason) { reason } else { stage.under_way() };
    Some(failing(reason, format!("to {uri}: {message}")))
}

/// The event of another reason than the known one; the ordinary course is no event.
pub(super) fn note(observed: &Observed, verdict: &Verdict) -> Option<Note> {
    let is_known = known(observed).is_some_and(|known| known.reason == verdict.reason);
    if is_known || [reasons::UPLOADING, reasons::WAITING, reasons::STORE_CHECKED].contains(&verdict.reason) {
        return None;
    }
    let severity = if verdict.holds { Severity::Normal } else { Severity::Warning };
    Some(Note { severity, reason: verdict.reason, message: verdict.message.clone() })
}

/// The folder of this evaluation below the prefix of its user, whose other evaluations may have the same prefix.
pub(super) fn destination(evaluation: &ModelEvaluation) -> Option<Upload> {
    let upload = evaluation.spec.output.as_ref()?.upload()?;
    let uid = evaluation.metadata.uid.as_deref().unwrap_or_default();
    Some(Upload { uri: format!("{}/{uid}", upload.uri.trim_end_matches('/')), ..upload })
}

/// As the uploader parses it. The API server refuses most of what it cannot read.
fn can_be_parsed(upload: &Upload) -> Result<(), Invalid> {
    let is_valid = upload.uri.parse::<ModelSource>().is_ok();
    let message = "it has an empty segment, one of dots or '..', a character that no path has, or more than 1024 characters with the \
                   uid of the evaluation; correct it, for example s3://bucket/prefix";
    if is_valid { Ok(()) } else { Err(Invalid::of_field("spec.output.uri", message)) }
}

/// The Job of this name, unless it is being deleted already.
fn unwanted(observed: &Observed, name: &str) -> Option<Job> {
    observed.jobs.get(name).filter(|job| !job.is_being_deleted()).map(|job| job.identity())
}

/// Which store it is.
pub(super) fn mark(upload: &Upload) -> String {
    // Strings only; serialization cannot fail.
    digest(serde_json::to_string(upload).unwrap_or_default(), MARK_BYTES)
}

fn known(observed: &Observed) -> Option<&Condition> {
    let status: &ModelEvaluationStatus = observed.evaluation.status.as_ref()?;
    status.conditions.iter().find(|known| known.type_ == types::UPLOADED)
}

fn uploading(message: String) -> Verdict {
    failing(reasons::UPLOADING, message)
}

fn failing(reason: &'static str, message: String) -> Verdict {
    Verdict { type_: types::UPLOADED, holds: false, reason, message }
}

fn given_up(upload: &Upload, why: &str) -> String {
    format!("to {}: given up a day after the verdict: {why}", upload.uri)
}

fn only(verdict: Verdict) -> Outlook {
    let (artifacts, checked_store, create, delete, requeue_after) = Default::default();
    Outlook { verdict, artifacts, checked_store, create, delete, requeue_after }
}

/// The next plan finds the end in the status. It deletes what runs on, and counts the time to live.
fn finally(verdict: Verdict) -> Outlook {
    Outlook { requeue_after: Some(Duration::ZERO), ..only(verdict) }
}

impl Scene<'_> {
    fn outlook(&self) -> Outlook {
        let name = match self.stage {
            Stage::Check => names::store_check(&self.valid.name),
            Stage::Push => names::upload(&self.valid.name),
        };
        let job = self.observed.jobs.get(&name).map(Arc::as_ref);
        if self.stage == Stage::Check && self.is_checked() {
            // A container that was injected into its pod would run on, and a Job that has ended counts for a quota.
            let left = job.filter(|job| !job.is_being_deleted());
            return Outlook { delete: left.map(JobView::identity), ..self.checked() };
        }
        let own = job.filter(|job| !self.is_for_another(job));
        let pods = own.map(|job| self.observed.pods_of(job)).unwrap_or_default();
        if let Some(done) = own.and_then(|job| self.done(job, &pods)) {
            return done;
        }
        let left = remaining(GIVEN_UP_AFTER, self.ended, self.now).or_else(|| self.chance(job));
        let Some(left) = left else {
            let why = self.why(&pods, own.and_then(|job| job.failed.as_ref()));
            let words = format!("{why}; {}", self.kept());
            return finally(failing(reasons::DEADLINE_EXCEEDED, given_up(&self.upload, &words)));
        };
        let outlook = match job {
            Some(other) if self.is_for_another(other) => {
                let delete = (!other.is_being_deleted()).then(|| other.identity());
                // One without a mark is of an earlier release.
                let said = match other.asked_server.is_some() {
                    true => only(self.under_way(&self.beginning())),
                    false => self.goes_on(),
                };
                Outlook { delete, ..said }
            }
            None => Outlook { create: Some(self.job()), ..self.goes_on() },
            // Another one is created when it is gone.
            Some(job) if job.is_being_deleted() => self.goes_on(),
            Some(job) => match failure(job, &pods) {
                Some(failed) if let Some(wait) = self.grace(job, &failed) => {
                    let running = self.running(job, &pods);
                    Outlook {
                        requeue_after: running.requeue_after.into_iter().chain([wait]).min(),
                        ..running
                    }
                }
                Some(failed) => self.failed(job, &failed, &pods),
                None => self.running(job, &pods),
            },
        };
        Outlook { requeue_after: outlook.requeue_after.into_iter().chain([left]).min(), ..outlook }
    }

    /// Whether the Job speaks to another store than that of the spec.
    fn is_for_another(&self, job: &JobView) -> bool {
        job.asked_server.as_ref() != Some(&mark(&self.upload))
    }

    fn job(&self) -> Job {
        let (valid, upload) = (self.valid, &self.upload);
        let mut job = match self.stage {
            Stage::Check => job::checking(valid, upload, self.settings),
            Stage::Push => job::uploading(valid, upload, self.settings),
        };
        job.metadata.annotations = Some([(labels::ASKED_SERVER.to_owned(), mark(&self.upload))].into());
        job
    }

    fn is_checked(&self) -> bool {
        let status = self.observed.evaluation.status.as_ref();
        let checked = status.and_then(|status| status.checked_store.as_ref());
        checked.is_some_and(|checked| *checked == mark(&self.upload))
    }

    fn checked(&self) -> Outlook {
        let message =
            format!("to {}: the store has taken an object; the answers follow the verdict", self.upload.uri);
        let checked_store = Some(mark(&self.upload));
        Outlook { checked_store, ..only(failing(reasons::STORE_CHECKED, message)) }
    }

    fn beginning(&self) -> String {
        let uri = &self.upload.uri;
        match self.stage {
            Stage::Check => format!("to {uri}: the store is tried with a small object"),
            Stage::Push => format!("to {uri}"),
        }
    }

    /// Nothing has failed for good.
    fn under_way(&self, message: &str) -> Verdict {
        failing(self.stage.under_way(), message.to_owned())
    }

    fn failure_reason(&self) -> &'static str {
        match self.stage {
            Stage::Check => reasons::UPLOAD_NOT_POSSIBLE,
            Stage::Push => reasons::UPLOAD_FAILED,
        }
    }

    /// After the day, for an upload to this store that has not been tried yet, as after a long pause.
    fn chance(&self, job: Option<&JobView>) -> Option<Duration> {
        let known = known(self.observed).filter(|known| known.reason != reasons::UPLOADING);
        let is_tried = known.is_some_and(|known| self.is_of_store(known));
        match job {
            Some(other) if self.is_for_another(other) => match &other.metadata.deletion_timestamp {
                Some(deleted) => remaining(AGAIN_AFTER, deleted.0, self.now),
                None => Some(AGAIN_AFTER),
            },
            _ if is_tried => None,
            None => Some(AGAIN_AFTER),
            Some(job) => remaining(AGAIN_AFTER, job.metadata.creation_timestamp.as_ref()?.0, self.now),
        }
    }

    /// While a container that was injected may still end by itself, and the Job with it.
    fn grace(&self, job: &JobView, failed: &Failed) -> Option<Duration> {
        remaining(OTHERS_END_WITHIN, failed.since, self.now).filter(|_| job.failed.is_none())
    }

    /// Nothing else is known. The words of a failure stay until the next Job has ended, those about a start until it has started.
    fn goes_on(&self) -> Outlook {
        let stays = |said: &Verdict| self.is_of_a_try(said) || START_FAULTS.contains(&said.reason);
        only(self.said().filter(stays).unwrap_or_else(|| self.under_way(&self.beginning())))
    }

    /// What the status says of this store.
    fn said(&self) -> Option<Verdict> {
        let known = known(self.observed).filter(|known| self.is_of_store(known))?;
        let reasons = [self.failure_reason(), self.stage.under_way()].into_iter().chain(START_FAULTS);
        let reason = reasons.into_iter().find(|reason| known.reason == *reason)?;
        Some(failing(reason, known.message.clone()))
    }

    fn is_of_store(&self, known: &Condition) -> bool {
        known.message.starts_with(&format!("to {}: ", self.upload.uri))
    }

    /// Whether these are words about a try that has ended.
    fn is_of_a_try(&self, said: &Verdict) -> bool {
        said.reason == self.failure_reason() || said.message.contains(TRY_ENDED)
    }

    /// The end of an upload that has worked, as soon as its pod says so. A container that was injected into it may run on.
    fn done(&self, job: &JobView, pods: &[&PodView]) -> Option<Outlook> {
        if job.completed.is_none() && !has_succeeded(pods) {
            return None;
        }
        if self.stage == Stage::Check {
            return Some(Outlook { requeue_after: Some(Duration::ZERO), ..self.checked() });
        }
        let report: Option<Uploaded> = pods.iter().find_map(|pod| report(pod));
        if report.is_none()
            && let Some(completed) = job.completed
            && let Some(wait) = remaining(PODS_ARE_SEEN_WITHIN, completed, self.now)
        {
            return Some(Outlook { requeue_after: Some(wait), ..self.goes_on() });
        }
        let message = summary(&self.upload, report.as_ref());
        let verdict = Verdict { type_: types::UPLOADED, holds: true, reason: reasons::UPLOADED, message };
        let artifacts = artifacts(&self.upload, &report.unwrap_or_default());
        Some(Outlook { artifacts, ..finally(verdict) })
    }

    fn running(&self, job: &JobView, pods: &[&PodView]) -> Outlook {
        // No kubelet reports the end of such a pod, and its Job makes no other one before.
        match progress::lost(pods, self.now) {
            Some(None) => return Outlook { delete: Some(job.identity()), ..self.goes_on() },
            Some(wait) => return Outlook { requeue_after: wait, ..self.goes_on() },
            None => {}
        }
        let Start { obstacle, wait } = obstacle::of_job(self.observed, job, self.now);
        if let Some(found) = obstacle {
            let Cause { reason, mut message } = found.cause;
            if let Some(secret) = self.upload.ca_secret_name.as_ref().filter(|_| reason == reasons::WAITING) {
                let namespace = &self.valid.namespace;
                message.push_str(&format!(
                    "; or Secret {namespace}/{secret} ({FIELDS}.caSecretName), or its key ca.crt, is missing"
                ));
            }
            let is_due = reason == reasons::IMAGE_PULL_FAILED
                && remaining(AGAIN_AFTER, found.since, self.now).is_none();
            let again = remaining(AGAIN_AFTER, found.since, self.now);
            let message = format!("to {}: {message}", self.upload.uri);
            let verdict = match conditions::needs_a_user(reason) {
                true => failing(reason, message),
                false => self.under_way(&message),
            };
            let delete = is_due.then(|| job.identity());
            return Outlook { delete, requeue_after: wait.into_iter().chain(again).min(), ..only(verdict) };
        }
        let Some(last) = last_failure(pods) else {
            let has_started = pods.iter().any(|pod| pod.has_started_containers());
            let outlook = match self.said().is_some_and(|said| self.is_of_a_try(&said)) || !has_started {
                true => self.goes_on(),
                false => only(self.under_way(&self.beginning())),
            };
            return Outlook { requeue_after: wait, ..outlook };
        };
        let words = format!("to {}: {}", self.upload.uri, self.last_words(last));
        // What has failed before fails until it works.
        let verdict = match self.said().is_some_and(|said| said.reason == self.failure_reason()) {
            true => failing(self.failure_reason(), words),
            false => self.under_way(&words),
        };
        Outlook { requeue_after: wait, ..only(verdict) }
    }

    fn failed(&self, job: &JobView, failed: &Failed, pods: &[&PodView]) -> Outlook {
        if last_failure(pods).is_none()
            && let Some(wait) = remaining(PODS_ARE_SEEN_WITHIN, failed.since, self.now)
        {
            // It may explain the end.
            let known = self.said().unwrap_or_else(|| self.under_way(&self.beginning()));
            return Outlook { requeue_after: Some(wait), ..only(known) };
        }
        let wait = remaining(AGAIN_AFTER, failed.since, self.now);
        let message = format!(
            "to {}: {}{AGAIN}{}, or at once after kubectl -n {} delete job {}; {}",
            self.upload.uri,
            self.why(pods, Some(failed)),
            after(failed.since, AGAIN_AFTER),
            self.valid.namespace,
            job.name(),
            self.kept(),
        );
        // A check whose pod could not start ends at its deadline, which explains nothing.
        let is_unknown = self.stage == Stage::Check && last_failure(pods).is_none();
        let says_why = |said: &Verdict| said.message != self.beginning() && !self.is_of_a_try(said);
        let known = self.said().filter(|said| is_unknown && says_why(said));
        let verdict = known.unwrap_or_else(|| failing(self.failure_reason(), message));
        let delete = wait.is_none().then(|| job.identity());
        Outlook { delete, requeue_after: wait, ..only(verdict) }
    }

    /// Of the last try, or why there was none. Pods of a Job that has ended may be deleted at any time.
    fn why(&self, pods: &[&PodView], failed: Option<&Failed>) -> String {
        if let Some(last) = last_failure(pods) {
            return self.last_words(last);
        }
        let known = known(self.observed);
        let is_of_a_try =
            |known: &Condition| known.reason == self.failure_reason() || known.message.contains(TRY_ENDED);
        let said = known.filter(|known| failed.is_none() || is_of_a_try(known));
        let words = said.and_then(|known| known.message.strip_prefix(&format!("to {}: ", self.upload.uri)));
        match (words.and_then(|words| words.split(AGAIN).next()), failed) {
            (Some(words), _) => words.to_owned(),
            (None, Some(failed)) => format!("{TRY_ENDED}{}", quote(&failed.message)),
            (None, None) => "no try has ended".to_owned(),
        }
    }

    fn last_words(&self, last: &Terminated) -> String {
        let account = self.valid.evaluation.spec.pods.service_account_name.as_deref();
        let fix = match ExitCode::from_code(last.exit_code) {
            // Its own words say what else was wrong.
            Some(ExitCode::Usage) if last.message.is_empty() => {
                Some("let --transfer-image of the evaluation-controller be of its release".to_owned())
            }
            _ => fix(&self.upload, last, &self.valid.namespace, account, FIELDS),
        };
        let fix = fix.map(|fix| format!("; {fix}")).unwrap_or_default();
        format!("{TRY_ENDED}{}{fix}", end(last))
    }

    fn kept(&self) -> String {
        if self.stage == Stage::Check {
            return "the evaluation goes on".to_owned();
        }
        let (uid, namespace) = (&self.valid.owner.uid, &self.valid.namespace);
        format!("the answers are in folder {uid} of claim {namespace}/{}", claim::name(self.valid))
    }
}

/// The end of a Job. One whose pod has an injected container that runs on does not see that its uploader has failed.
fn failure(job: &JobView, pods: &[&PodView]) -> Option<Failed> {
    let beside_others = || {
        let running = pods.iter().filter(|pod| !pod.is_over());
        let ended = running.filter_map(|pod| pod.container(UPLOADER)?.state.terminated.as_ref());
        let failed = ended.filter(|ended| ended.exit_code != 0);
        let since = failed.filter_map(|ended| ended.finished_at).max()?;
        Some(Failed { since, reason: String::new(), message: String::new() })
    };
    job.failed.clone().or_else(beside_others)
}
