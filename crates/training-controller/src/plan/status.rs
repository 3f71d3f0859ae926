//! The status: how an assessment and what was read of the log become one, and how the end of an attempt is accounted for.
//! Pure.

use std::time::Duration;

use api::{
    conditions as types, launcher, reasons,
    trainingjob::{
        Checkpoint, Failure as Report, FailureCount, Method, Progress, Resolved, TrainingJobStatus,
    },
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::write::conditions::{Verdict, merged, whole_seconds};
use workload::time::elapsed;

use super::attempt::{
    clock::{active_before, active_since},
    failure::Failure,
    retry::{Next, PLACES, Streaks},
};
use crate::{observe::Observed, validate::ValidJob};

pub(crate) mod conditions;
pub(crate) mod events;
pub(crate) mod held_back;
pub(crate) mod reduced;

use conditions::Assessment;

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

/// Stops and starts the clock of `activeDeadlineSeconds`: a job that is suspended, or waits for a quota, is not active.
fn clocked(status: TrainingJobStatus, verdicts: &[Verdict], now: Timestamp) -> TrainingJobStatus {
    if !verdicts.iter().any(|verdict| verdict.type_ == types::RUNNING) {
        // A spec that is not valid says neither.
        return status;
    }
    let waits = verdicts.iter().any(|verdict| match verdict.type_ {
        types::SUSPENDED => verdict.holds,
        types::SCHEDULED => !verdict.holds && verdict.reason == reasons::QUOTA_PENDING,
        _ => false,
    });
    match (active_since(&status), waits) {
        (Some(since), true) => {
            let active = active_before(&status).saturating_add(elapsed(since, now)).as_secs();
            let active_seconds = Some(i64::try_from(active).unwrap_or(i64::MAX));
            TrainingJobStatus { active_since: None, active_seconds, ..status }
        }
        (None, false) if status.start_time.is_some() || status.active_seconds.is_some() => {
            TrainingJobStatus { active_since: Some(whole_seconds(now)), ..status }
        }
        (Some(_), false) | (None, _) => status,
    }
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
    let status = clocked(status, &verdicts, now);
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

/// The failure of an attempt, and what follows.
pub(super) fn failed(
    status: TrainingJobStatus,
    number: i32,
    failure: Failure,
    streaks: Streaks,
    next: &Next,
    now: Timestamp,
) -> TrainingJobStatus {
    let mut status = ended(status, number);
    let Streaks { without_progress, failed_starts, has_advanced: _ } = streaks;
    status.attempts_without_progress = without_progress;
    status.failed_starts = (failed_starts > 0).then_some(failed_starts);
    if status.start_time.is_none() && failed_starts > 0 && !PLACES.contains(&failure.reason) {
        // A place is waited for without a limit. What needs a person ends with the job's time.
        status.active_since.get_or_insert(whole_seconds(now));
    }
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
        output_size: None,
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

/// What the training has left.
pub(super) fn trained(status: &TrainingJobStatus) -> String {
    let steps = status.progress.as_ref().map(|progress| format!(" {} steps", progress.step));
    let checkpoint = status.checkpoint.as_ref().map(|saved| format!("; checkpoint {}", saved.path));
    format!("trained{}{}", steps.unwrap_or_default(), checkpoint.unwrap_or_default())
}
