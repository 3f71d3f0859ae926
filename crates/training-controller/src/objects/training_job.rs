//! A TrainingJob as it says itself: how far it is, and what its deletion needs. Pure.

use api::{
    conditions, labels,
    trainingjob::{Phase, Retention, TrainingJob, TrainingJobStatus},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

pub(crate) fn condition<'s>(status: Option<&'s TrainingJobStatus>, type_: &str) -> Option<&'s Condition> {
    status?.conditions.iter().find(|known| known.type_ == type_)
}

/// Whether it has succeeded or failed: nothing is made any more.
pub(crate) fn has_ended(job: &TrainingJob) -> bool {
    let phase = job.status.as_ref().and_then(|status| status.phase);
    matches!(phase, Some(Phase::Succeeded | Phase::Failed))
}

/// Whether the status says that an attempt runs.
pub(crate) fn has_running_attempt(job: &TrainingJob) -> bool {
    job.status.as_ref().is_some_and(|status| status.attempts > status.ended_attempts)
}

/// Whether an attempt has begun.
pub(crate) fn has_begun(job: &TrainingJob) -> bool {
    job.status.as_ref().is_some_and(|status| status.attempts > 0)
}

/// Whether the training has succeeded and its result is, or was, to be uploaded.
pub(crate) fn is_uploading(status: Option<&TrainingJobStatus>) -> bool {
    condition(status, conditions::UPLOADED).is_some()
}

/// Whether no attempt of a job follows, nor goes on but for the grace period of its pods.
pub(crate) fn has_trained(job: &TrainingJob) -> bool {
    has_ended(job) || is_uploading(job.status.as_ref()) || is_being_deleted(job)
}

pub(crate) fn is_being_deleted(job: &TrainingJob) -> bool {
    job.metadata.deletion_timestamp.is_some()
}

/// Whether there is something to do when it is deleted.
pub(crate) fn needs_finalizer(job: &TrainingJob) -> bool {
    let output = job.spec.output.as_ref();
    output.is_some_and(|output| output.retention != Retention::Retain && output.claim_name.is_none())
}

pub(crate) fn has_finalizer(job: &TrainingJob) -> bool {
    job.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == labels::OUTPUT_FINALIZER)
}

pub(crate) fn needs_snapshot(job: &TrainingJob) -> bool {
    job.spec.output.as_ref().is_some_and(|output| output.retention == Retention::Snapshot)
}
