//! Whether another attempt follows a failed one, when, and with which settings. Pure.
//!
//! Each class of failures has a budget of its own: interruptions are free as long as checkpoints advance, a full GPU is met
//! with smaller settings up to three times, and what may pass by itself is tried again up to `retryLimit` times.

use std::time::Duration;

use api::{
    reasons,
    trainingjob::{Mitigation, TrainingJobStatus},
};

use super::{
    defaults::Timings,
    failure::{Class, Failure},
    mitigation,
};
use crate::validate::ValidJob;

/// What follows a failed attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
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

/// `without_progress`: attempts in a row, this one included, that have left no newer checkpoint.
pub(super) fn next(
    valid: &ValidJob,
    status: &TrainingJobStatus,
    (number, failure): (i32, &Failure),
    without_progress: i32,
    timings: &Timings,
) -> Next {
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
        Class::NotPlaced => {
            let before = status.failures.iter().find(|count| count.reason == failure.reason);
            again(pause(before.map_or(0, |count| count.count), timings), false)
        }
        Class::OutOfGpuMemory => match smaller(valid, status, (number, failure)) {
            Ok(mitigation) => {
                Next::Again { wait: Duration::ZERO, counts: false, mitigation: Some(mitigation) }
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
    let has_checkpoint = status.checkpoint.is_some() || failure.checkpoint.is_some();
    if change.as_ref().is_some_and(|change| change.shards) && has_checkpoint {
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
