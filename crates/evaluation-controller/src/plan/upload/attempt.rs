//! One Job for the store: how it stands, what is said of it, and what follows. Pure.

use std::{sync::Arc, time::Duration};

use api::{
    labels,
    loader::{ExitCode, Uploaded},
    reasons,
    trainingjob::Upload,
};
use jiff::Timestamp;
use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::apis::meta::v1::Condition};
use runtime::write::conditions::Verdict;
use workload::{
    Cause,
    faults::container::quote,
    time::{after, remaining},
    uploads::{UPLOADER, artifacts, end, fix, has_succeeded, last_failure, report, summary},
    views::{
        job::{Failed, JobView},
        pod::{PodView, Terminated},
    },
};

use super::{GIVEN_UP_AFTER, Outlook, Stage, failing, finally, given_up, known, mark, only, uploaded};
use crate::{
    Settings, names,
    observe::Observed,
    plan::{
        claim, conditions,
        job::{self, FIELDS},
        obstacle::{self, Start},
        progress::{self, OTHERS_END_WITHIN, ended_beside_others, pods_are_awaited, unseen_failure},
    },
    validate::ValidEvaluation,
};

/// Between a Job that has failed, which takes up to half an hour, and the next one. An image that cannot be pulled may be another
/// one since.
const AGAIN_AFTER: Duration = Duration::from_secs(600);

/// Reasons of pods that cannot start.
const START_FAULTS: [&str; 3] =
    [reasons::IMAGE_PULL_FAILED, reasons::SECRET_NOT_FOUND, reasons::CONFIG_MAP_NOT_FOUND];

/// Before the words of a try.
const TRY_ENDED: &str = "the last try ended with ";

/// Before the time of the next try.
const AGAIN: &str = "; it is tried again at ";

/// The Job for a store, and what it rests on.
pub(super) struct Attempt<'a> {
    pub(super) stage: Stage,
    pub(super) valid: &'a ValidEvaluation,
    /// To the folder of this evaluation.
    pub(super) upload: Upload,
    pub(super) observed: &'a Observed,
    pub(super) settings: &'a Settings,
    /// When there was a verdict; before it, now.
    pub(super) ended: Timestamp,
    pub(super) now: Timestamp,
}

impl Attempt<'_> {
    pub(super) fn outlook(&self) -> Outlook {
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
            Some(job) => match self.failure(job, &pods) {
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
        self.stage.beginning(&self.upload.uri)
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
        let message = match known.message.find(TRY_ENDED) {
            // Not what kept another try from its start.
            Some(at) => format!("to {}: {}", self.upload.uri, &known.message[at..]),
            None => known.message.clone(),
        };
        Some(failing(reason, message))
    }

    fn is_of_store(&self, known: &Condition) -> bool {
        known.message.starts_with(&format!("to {}: ", self.upload.uri))
    }

    /// The words are about a try. What has failed before fails until it works.
    fn tried(&self, words: &str) -> Verdict {
        let message = format!("to {}: {words}", self.upload.uri);
        match self.said().is_some_and(|said| said.reason == self.failure_reason()) {
            true => failing(self.failure_reason(), message),
            false => self.under_way(&message),
        }
    }

    /// How the last try ended, also one of an earlier Job.
    fn last_try(&self, pods: &[&PodView]) -> Option<String> {
        let known = || {
            let said = self.said()?;
            let words = &said.message[said.message.find(TRY_ENDED)?..];
            Some(words.split(AGAIN).next()?.to_owned())
        };
        last_failure(pods).map(|last| self.last_words(last)).or_else(known)
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
            && let Some(wait) = pods_are_awaited(self.observed, None, completed, self.now)
        {
            return Some(Outlook { requeue_after: Some(wait), ..self.goes_on() });
        }
        let message = summary(&self.upload, report.as_ref());
        let verdict = uploaded(message);
        let artifacts = artifacts(&self.upload, &report.unwrap_or_default());
        Some(Outlook { artifacts, ..finally(verdict) })
    }

    /// The end of a Job. One whose pod has an injected container that runs on does not see that its uploader has failed.
    fn failure(&self, job: &JobView, pods: &[&PodView]) -> Option<Failed> {
        let beside_others = || {
            let ended = ended_beside_others(pods, UPLOADER).filter(|(_, ended)| ended.exit_code != 0);
            // Another pod may have followed.
            let ended = ended.filter(|_| !self.observed.pods_are_stale);
            ended.map(|(since, _)| unseen_failure(since))
        };
        job.failed.clone().or_else(beside_others)
    }

    fn running(&self, job: &JobView, pods: &[&PodView]) -> Outlook {
        // No kubelet reports the end of such a pod, and its Job makes no other one before.
        match progress::lost(pods, self.now).filter(|_| !self.observed.pods_are_stale) {
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
            let verdict = match conditions::needs_a_user(reason) {
                true => failing(reason, format!("to {}: {message}", self.upload.uri)),
                false => self.tried(&match self.last_try(pods) {
                    Some(last) => format!("{message}; {last}"),
                    None => message,
                }),
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
        let verdict = self.tried(&self.last_words(last));
        Outlook { requeue_after: wait, ..only(verdict) }
    }

    fn failed(&self, job: &JobView, failed: &Failed, pods: &[&PodView]) -> Outlook {
        if let Some(wait) = pods_are_awaited(self.observed, last_failure(pods), failed.since, self.now) {
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
        if let Some(failed) = failed {
            let of_job = || format!("{TRY_ENDED}{}", quote(&failed.message));
            return self.last_try(pods).unwrap_or_else(of_job);
        }
        let known = || {
            let words = known(self.observed)?.message.strip_prefix(&format!("to {}: ", self.upload.uri))?;
            Some(words.split(AGAIN).next()?.to_owned())
        };
        let last = last_failure(pods).map(|last| self.last_words(last));
        last.or_else(known).unwrap_or_else(|| "no try has ended".to_owned())
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
