//! The Jobs that speak to the store of the answers: which of them is due, and what is said of it. `attempt.rs`: how one of
//! them stands. Pure.
//!
//! One tries the store beside the first runs, so that a wrong key is known after minutes and not after hours. One uploads after
//! the verdict. Neither changes a verdict, holds a GPU or keeps a run waiting. What is uploaded already is not sent again. A Job
//! that has failed is followed by another one, because keys, buckets and Secrets are mended without a change of this object. So is
//! one whose store is not that of the spec any more. A day after the verdict an upload is given up, so that the evaluation can be
//! deleted.

use std::time::Duration;

use api::{
    aiinference::{
        evaluation::{ModelEvaluation, ModelEvaluationStatus, Phase},
        source::ModelSource,
    },
    conditions as types, reasons,
    trainingjob::{Artifact, Upload},
};
use jiff::Timestamp;
use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::apis::meta::v1::Condition};
use runtime::write::{
    conditions::Verdict,
    events::{Note, Severity},
};
use workload::{Cause, digest::digest, time::remaining};

use self::attempt::Attempt;
use super::conditions;
use crate::{
    Settings, names,
    observe::Observed,
    validate::{Invalid, ValidEvaluation, validate},
};

mod attempt;

/// Since the verdict. Answers have megabytes, so the rest is time for a user who mends the store.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(86_400);

/// Length of the digest of a store.
const MARK_BYTES: usize = 8;

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

    /// The message before anything else is known.
    fn beginning(self, uri: &str) -> String {
        match self {
            Stage::Check => format!("to {uri}: the store is tried with a small object"),
            Stage::Push => format!("to {uri}"),
        }
    }
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
        let delete = unwanted(observed, &names::store_check(&valid.name));
        return Some(Outlook { delete, ..only(failing(reason, message)) });
    }
    let attempt = Attempt { stage: Stage::Check, valid, upload, observed, settings, ended: now, now };
    Some(attempt.outlook())
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
            Attempt { stage, valid: &valid, upload, observed, settings, ended, now }.outlook()
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

/// The verdict of a check whose Job is not there, though it was due. What is known of an earlier try stays.
pub(super) fn not_begun(observed: &Observed, verdict: Verdict, job: &str) -> Option<Verdict> {
    let uri = destination(&observed.evaluation)?.uri;
    if verdict.reason != Stage::Check.under_way() || verdict.message != Stage::Check.beginning(&uri) {
        return Some(verdict);
    }
    let message = format!("to {uri}: {job} was not created; it is tried again");
    Some(failing(verdict.reason, message))
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

fn uploaded(message: String) -> Verdict {
    Verdict { type_: types::UPLOADED, holds: true, reason: reasons::UPLOADED, message }
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
