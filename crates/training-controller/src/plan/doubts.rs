//! What a plan rests on and a watch may not show, because it is late, or because an object lacks the labels that it selects.
//! Pure: `confirm` asks the API server.

use workload::views::pod::PodView;

use super::{
    Child, Retirement, Run,
    attempt::{
        failure::Class,
        stage::{End, Stage},
    },
};
use crate::{
    objects::training_job::{has_begun, has_ended, has_running_attempt},
    observe::{Doubt, Observed},
    validate::ValidJob,
};

/// Before anything is decided of a job that is not being deleted.
pub(super) fn of_observed(observed: &Observed) -> Option<Doubt> {
    let doubts = [
        missing_attempt(observed).map(Doubt::MissingAttempt),
        lacks_evidence(observed).then_some(Doubt::UnseenPods),
    ];
    doubts.into_iter().flatten().find(|doubt| !observed.confirmed.contains(doubt))
}

/// Before an attempt that could not start is given up: it may have started meanwhile.
pub(super) fn of_stage(observed: &Observed, valid: &ValidJob, stage: &Stage<'_>) -> Option<Doubt> {
    let Stage::Ended(_, end) = stage else { return None };
    let End::Failed(failure) = &**end else { return None };
    // Nothing is given up while the job is paused.
    let gives_up = failure.class == Class::CannotStart && !valid.pods.paused;
    Some(Doubt::UnseenPods).filter(|doubt| gives_up && !observed.confirmed.contains(doubt))
}

/// Before the next attempt: all pods of the last one must have ended.
pub(super) fn of_run(observed: &Observed, run: &Run) -> Option<Doubt> {
    let starts_again =
        has_begun(&observed.job) && run.children.iter().any(|child| matches!(child, Child::Job(_)));
    Some(Doubt::RunningPods).filter(|doubt| starts_again && !observed.confirmed.contains(doubt))
}

/// Of a job that is being deleted: a claim that is not seen would stay, and an attempt that is not seen may still write into it.
pub(super) fn of_deleted(observed: &Observed) -> Option<Doubt> {
    let doubt = match &observed.made_claim {
        None => Some(Doubt::MissingClaim),
        Some(_) => missing_attempt(observed).map(Doubt::MissingAttempt),
    };
    doubt.filter(|doubt| !observed.confirmed.contains(doubt))
}

/// Before the output is saved or deleted: all pods that write it must have ended.
pub(super) fn of_retirement(observed: &Observed, retirement: &Retirement) -> Option<Doubt> {
    let takes_output = retirement.snapshot.is_some() || retirement.claim.is_some();
    Some(Doubt::RunningPods).filter(|doubt| takes_output && !observed.confirmed.contains(doubt))
}

/// The number of the last attempt, if the status says that it runs and its Job is not seen. It must not be taken for one that
/// was deleted.
fn missing_attempt(observed: &Observed) -> Option<i32> {
    let runs = has_running_attempt(&observed.job) && !has_ended(&observed.job);
    let number = observed.job.status.as_ref().filter(|_| runs)?.attempts;
    (!observed.attempts.contains_key(&number)).then_some(number)
}

/// Whether the Job of the attempt that runs is over, and no pod that has ended shows how. Without the pod that has failed, a
/// failure would be taken for an interruption.
fn lacks_evidence(observed: &Observed) -> bool {
    let Some(status) = observed.job.status.as_ref().filter(|_| !has_ended(&observed.job)) else {
        return false;
    };
    let Some((number, job)) = observed.attempts.last_key_value() else { return false };
    let is_over = job.is_finished() && *number > status.ended_attempts;
    let has_ended = |pod: &PodView| {
        let mut containers = pod.containers.iter();
        pod.phase == "Failed" || containers.any(|container| container.state.terminated.is_some())
    };
    is_over && !observed.pods_of(job).into_iter().any(has_ended)
}
