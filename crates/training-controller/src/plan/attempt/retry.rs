//! Whether another attempt follows a failed one, when, and with which settings. Pure.
//!
//! Each class of failures has a budget of its own:
//!
//! - What cannot start, or finds its volume full, waits without GPUs and without a limit.
//! - Interruptions are free as long as checkpoints advance.
//! - A full GPU is met with smaller settings up to three times.
//! - What may pass by itself is tried again, up to `retryLimit` times since the last newer checkpoint.

use std::time::Duration;

use api::{
    reasons,
    trainingjob::{Checkpoint, Mitigation, TrainingJobStatus},
};
use workload::digest::digest;

use super::failure::{Class, Failure};
use crate::{
    plan::{children::mitigation, defaults::Timings},
    validate::ValidJob,
};

/// Ended attempts in a row, the last one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streaks {
    /// Those that have started, and left no newer checkpoint.
    pub(crate) without_progress: i32,
    /// Those that could not start; 0: the last one has.
    pub(crate) failed_starts: i32,
    /// Whether the last one has left a newer checkpoint than the failed one before it.
    pub(crate) has_advanced: bool,
}

/// Reasons of attempts that waited for a place.
pub(crate) const PLACES: [&str; 4] =
    [reasons::UNSCHEDULABLE, reasons::STARTING, reasons::VOLUME_NOT_ATTACHED, reasons::SANDBOX_FAILED];

pub(crate) fn streaks(before: &TrainingJobStatus, failure: &Failure, current: &TrainingJobStatus) -> Streaks {
    let step = |checkpoint: Option<&Checkpoint>| checkpoint.map_or(0, |saved| saved.step);
    // The launcher has looked at it.
    let reached = step(failure.checkpoint.as_ref().or(current.checkpoint.as_ref()));
    // What the log said of a checkpoint may be in the status already, so the attempt's own progress counts, too.
    let resumed = before.failure.as_ref().and_then(|failure| failure.checkpoint_step).unwrap_or_default();
    let has_advanced = reached > resumed;
    // Both wait without GPUs, and say what they wait for.
    let could_start = !matches!(failure.class, Class::CannotStart | Class::OutOfSpace);
    let counted = before.attempts_without_progress;
    let starts = if has_advanced { 0 } else { before.failed_starts.unwrap_or_default() };
    Streaks {
        without_progress: match (has_advanced, could_start) {
            (true, _) => 0,
            (false, true) => counted.saturating_add(1),
            (false, false) => counted,
        },
        failed_starts: if could_start { 0 } else { starts.saturating_add(1) },
        has_advanced,
    }
}

/// What follows a failed attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Next {
    Again {
        wait: Duration,
        /// Whether the failure counts against `retryLimit`.
        counts: bool,
        mitigation: Option<Mitigation>,
    },
    /// The job has failed.
    Never { reason: &'static str, message: String },
}

/// Smaller settings after a full GPU.
const MOST_MITIGATIONS: usize = 3;
/// Interruptions in a row that leave no newer checkpoint. Something is wrong with the nodes, or `saveSteps` is too large.
const MOST_WITHOUT_PROGRESS: i32 = 20;
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// After an attempt that has trained until a volume was full. A larger claim ends the pause.
const PAUSE_OF_FULL_VOLUMES: Duration = Duration::from_secs(3_600);

/// `streaks`: of attempts, this one included. `status.retries`: those before it that count.
pub(crate) fn next(
    valid: &ValidJob,
    status: &TrainingJobStatus,
    (number, failure): (i32, &Failure),
    streaks: Streaks,
    timings: &Timings,
) -> Next {
    let Streaks { without_progress, failed_starts, has_advanced: _ } = streaks;
    let again = |wait, counts| Next::Again { wait, counts, mitigation: None };
    match failure.class {
        Class::Interruption | Class::Stop if without_progress > MOST_WITHOUT_PROGRESS => Next::Never {
            reason: reasons::RETRIES_EXHAUSTED,
            message: format!(
                "{without_progress} attempts in a row were interrupted before a newer checkpoint; create the job again with a \
                 lower saveSteps; the last one: {}",
                failure.message
            ),
        },
        // The first interruption costs no time; what keeps happening is slowed down.
        Class::Interruption if without_progress <= 1 => again(Duration::ZERO, false),
        Class::Interruption | Class::Stop => again(pause(without_progress - 2, timings), false),
        Class::CannotStart => again(pause_of_starts(&valid.owner.uid, failed_starts, timings), false),
        Class::OutOfSpace => again(PAUSE_OF_FULL_VOLUMES, false),
        Class::OutOfGpuMemory => match smaller(valid, status, (number, failure)) {
            Ok(mitigation) => {
                Next::Again { wait: Duration::ZERO, counts: false, mitigation: Some(mitigation) }
            }
            // What has trained fits, most of the time: a longest sample, or another process on the GPU.
            Err(_) if has_checkpoint(status, failure) && status.retries < valid.retry_limit => {
                again(pause(status.retries, timings), true)
            }
            Err(message) => Next::Never { reason: failure.reason, message },
        },
        Class::Transient if status.retries < valid.retry_limit => again(pause(status.retries, timings), true),
        Class::Transient if valid.retry_limit == 0 => {
            Next::Never { reason: failure.reason, message: failure.message.clone() }
        }
        Class::Transient => Next::Never {
            reason: reasons::RETRIES_EXHAUSTED,
            message: format!(
                "{} retries were not enough; the last failure: {}",
                valid.retry_limit, failure.message
            ),
        },
        Class::Permanent => Next::Never { reason: failure.reason, message: failure.message.clone() },
    }
}

fn pause(doublings: i32, timings: &Timings) -> Duration {
    let doublings = u32::try_from(doublings.clamp(0, 16)).unwrap_or_default();
    timings.first_pause.saturating_mul(1 << doublings).min(LONGEST_PAUSE)
}

/// Twice as long after each attempt in a row that could not start, and different for each job. Two gangs may begin together
/// and fit only one after the other: they must not begin together again. From 10 s to 600 s with the default of `first_pause`.
fn pause_of_starts(uid: &str, failed_starts: i32, timings: &Timings) -> Duration {
    let longest = pause(failed_starts, timings);
    let shortest = (longest / 2).max(timings.first_pause).min(longest);
    shortest + (longest - shortest).mul_f64(share(&format!("{uid}/{failed_starts}")))
}

/// From 0 to less than 1, always the same for the same text.
fn share(of: &str) -> f64 {
    let digits = u32::from_str_radix(&digest(of, 4), 16).unwrap_or_default();
    f64::from(digits) / (f64::from(u32::MAX) + 1.0)
}

fn has_checkpoint(status: &TrainingJobStatus, failure: &Failure) -> bool {
    status.checkpoint.is_some() || failure.checkpoint.is_some()
}

/// The next smaller settings, or why there are none.
fn smaller(
    valid: &ValidJob,
    status: &TrainingJobStatus,
    (number, failure): (i32, &Failure),
) -> Result<Mitigation, String> {
    let message = |why: &str| {
        Err(format!(
            "{}; {why}; create the job again with method qlora, more GPUs or a smaller max_length in extraArgs",
            failure.message
        ))
    };
    let steps = status.mitigations.len();
    if valid.retry_limit == 0 {
        return message("retryLimit is 0, so no smaller settings were tried");
    }
    if steps >= MOST_MITIGATIONS {
        return message("smaller settings were not enough");
    }
    let change = mitigation::next_change(valid, steps);
    if change.as_ref().is_some_and(|change| change.shards) && has_checkpoint(status, failure) {
        // DeepSpeed reads only what it has written itself, in the same way.
        return message("a run with checkpoints cannot change DeepSpeed's stage");
    }
    match change.map(|change| change.text) {
        Some(change) => {
            Ok(Mitigation { attempt: number.saturating_add(1), reason: failure.reason.to_owned(), change })
        }
        None => message("there are no smaller settings to try"),
    }
}
