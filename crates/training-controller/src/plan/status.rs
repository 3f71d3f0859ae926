//! The status: how an assessment and what was read of the log become one, and how the end of an attempt is accounted for.
//! Pure.

use std::time::Duration;

use api::{
    launcher,
    trainingjob::{
        Checkpoint, Failure as Report, FailureCount, Method, Progress, Resolved, TrainingJobStatus,
    },
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::conditions::{merged, whole_seconds};

use super::{conditions::Assessment, failure::Failure, retry::Next};
use crate::{observe::Observed, validate::ValidJob};

/// Kinds of failures in the status.
const MOST_FAILURE_COUNTS: usize = 32;

/// The status that is written, with what the log has said since.
pub(super) fn base(observed: &Observed) -> TrainingJobStatus {
    let mut status = observed.job.status.clone().unwrap_or_default();
    if let Some(log) = &observed.log {
        status.progress = log.report.clone().or(status.progress);
        if !log.curve.is_empty() {
            status.loss_curve = log.curve.clone();
        }
        match &log.checkpoint {
            // Whatever an earlier attempt has claimed.
            Some(saved) if log.has_saved => status.checkpoint = Some(saved.clone()),
            Some(saved) => set_checkpoint(&mut status, saved.clone()),
            None => {}
        }
    }
    status
}

/// A newer checkpoint takes the place of an older one, never the other way round.
pub(super) fn set_checkpoint(status: &mut TrainingJobStatus, saved: Checkpoint) {
    let known = status.checkpoint.as_ref().map_or(-1, |known| known.step);
    if saved.step > known {
        status.checkpoint = Some(saved);
    }
}

/// What a launcher has found in the output at the end of its attempt. It replaces what was known: an earlier message may be
/// false, and a checkpoint may be damaged. A trainer can write the message as well, so only the step is taken from it.
pub(super) fn reported(
    valid: &ValidJob,
    status: &TrainingJobStatus,
    saved: &launcher::Checkpoint,
) -> Option<Checkpoint> {
    let total = status.progress.as_ref().map(|progress| progress.total_steps).filter(|total| *total > 0);
    // The loop of PPO counts other steps in its checkpoints than in its log.
    let total = total.filter(|_| valid.method != Method::Ppo);
    let path = format!("{}/{}", valid.output.dir, launcher::checkpoint_name(saved.step));
    let is_plausible = saved.step >= 0 && total.is_none_or(|total| saved.step <= total);
    (saved.path == path && is_plausible).then_some(Checkpoint { path, step: saved.step, time: None })
}

pub(super) fn replace_checkpoint(status: &mut TrainingJobStatus, saved: Checkpoint, now: Timestamp) {
    let is_known = status.checkpoint.as_ref().is_some_and(|known| known.path == saved.path);
    if !is_known {
        status.checkpoint = Some(Checkpoint { time: Some(whole_seconds(now)), ..saved });
    }
}

pub(super) fn assessed(
    status: TrainingJobStatus,
    assessment: Assessment,
    observed: &Observed,
    now: Timestamp,
) -> TrainingJobStatus {
    let Assessment { phase, reason, message, verdicts } = assessment;
    let generation = observed.job.metadata.generation;
    let before = observed.job.status.as_ref().map_or(&[][..], |status| &status.conditions);
    TrainingJobStatus {
        phase: Some(phase),
        reason: (!reason.is_empty()).then(|| reason.to_owned()),
        message: (!message.is_empty()).then_some(message),
        observed_generation: generation.unwrap_or_default(),
        conditions: merged(verdicts, before, generation, now),
        ..status
    }
}

/// The status of a job that has ended; only its TTL can still be changed.
pub(super) fn observed(observed: &Observed) -> TrainingJobStatus {
    let mut status = observed.job.status.clone().unwrap_or_default();
    let generation = observed.job.metadata.generation;
    status.observed_generation = generation.unwrap_or_default();
    for condition in &mut status.conditions {
        condition.observed_generation = generation;
    }
    status
}

/// The attempt of this number has begun.
pub(super) fn begun(status: TrainingJobStatus, number: i32, resolved: Resolved) -> TrainingJobStatus {
    TrainingJobStatus {
        attempts: number.max(status.attempts),
        next_attempt_time: None,
        resolved: Some(resolved),
        ..status
    }
}

/// When all pods of the job ran for the first time.
pub(super) fn started(status: TrainingJobStatus, now: Timestamp) -> TrainingJobStatus {
    TrainingJobStatus { start_time: status.start_time.or_else(|| Some(whole_seconds(now))), ..status }
}

/// The attempt of this number has ended without a failure.
pub(super) fn ended(status: TrainingJobStatus, number: i32) -> TrainingJobStatus {
    TrainingJobStatus { attempts: number.max(status.attempts), ended_attempts: number, ..status }
}

/// Attempts in a row, this one included, without a newer checkpoint.
pub(super) fn without_progress(
    before: &TrainingJobStatus,
    failure: &Failure,
    current: &TrainingJobStatus,
) -> i32 {
    let step = |checkpoint: Option<&Checkpoint>| checkpoint.map_or(0, |saved| saved.step);
    // The launcher has looked at it.
    let reached = step(failure.checkpoint.as_ref().or(current.checkpoint.as_ref()));
    // What the log said of a checkpoint may be in the status already, so the attempt's own progress counts, too.
    let resumed = before.failure.as_ref().and_then(|failure| failure.checkpoint_step).unwrap_or_default();
    if reached > resumed { 0 } else { before.attempts_without_progress.saturating_add(1) }
}

/// The failure of an attempt, and what follows.
pub(super) fn failed(
    status: TrainingJobStatus,
    number: i32,
    failure: Failure,
    without_progress: i32,
    next: &Next,
    now: Timestamp,
) -> TrainingJobStatus {
    let mut status = ended(status, number);
    status.attempts_without_progress = without_progress;
    if let Some(saved) = failure.checkpoint.clone() {
        replace_checkpoint(&mut status, saved, now);
    }
    count(&mut status.failures, failure.reason);
    let Failure { reason, class: _, message, pod, node, exit_code, tail, checkpoint: _ } = failure;
    status.failure = Some(Report {
        attempt: number,
        pod,
        node,
        exit_code,
        reason: reason.to_owned(),
        message: Some(message),
        log_tail: tail,
        checkpoint_step: status.checkpoint.as_ref().map(|saved| saved.step),
    });
    match next {
        Next::Again { wait, counts, mitigation } => {
            status.retries += i32::from(*counts);
            status.mitigations.extend(mitigation.clone());
            status.next_attempt_time = (!wait.is_zero()).then(|| after(now, *wait));
        }
        Next::Never { .. } => {}
    }
    status
}

fn after(now: Timestamp, wait: Duration) -> Time {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    whole_seconds(now.saturating_add(wait).unwrap_or(Timestamp::MAX))
}

fn count(counts: &mut Vec<FailureCount>, reason: &str) {
    if let Some(known) = counts.iter_mut().find(|count| count.reason == reason) {
        known.count = known.count.saturating_add(1);
    } else if counts.len() < MOST_FAILURE_COUNTS {
        counts.push(FailureCount { reason: reason.to_owned(), count: 1 });
    }
}

/// The last step was reached.
pub(super) fn completed(progress: Option<Progress>, step: Option<i64>) -> Option<Progress> {
    let before = progress.unwrap_or_default();
    let step = step.unwrap_or(before.step).max(before.step);
    if step == 0 {
        return None;
    }
    let total_steps = if before.total_steps == 0 { step } else { before.total_steps };
    let percent = if step >= total_steps { 100 } else { before.percent };
    Some(Progress { step, total_steps, percent, eta: None, ..before })
}
