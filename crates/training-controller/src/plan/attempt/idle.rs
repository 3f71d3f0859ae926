//! Condition NoProgress for idle GPUs, set before the lack of progress ends the attempt. Pure.

use std::time::Duration;

use api::{conditions, reasons};
use jiff::Timestamp;
use runtime::write::conditions::Verdict;
use workload::time::remaining;

use super::stage::Attempt;
use crate::{
    agents::{Utilization, WINDOW},
    observe::Observed,
    validate::ValidJob,
};

/// A GPU that trains is never below it for a minute; one that only shows a mean of 0.4 % does something else.
const BELOW: f64 = 0.01;

/// For `FactTimes`, while it is true.
pub(crate) fn fact(observed: &Observed, attempt: &Attempt<'_>) -> Option<String> {
    match observed.gpus {
        Utilization::Known(ratio) if ratio < BELOW => Some(name(attempt)),
        Utilization::Known(_) | Utilization::Unknown | Utilization::NotWatched => None,
    }
}

fn name(attempt: &Attempt<'_>) -> String {
    format!("GPUs are idle: attempt {}", attempt.number)
}

/// When to look again: values of agents start no reconcile.
pub(crate) fn requeue_after(
    valid: &ValidJob,
    observed: &Observed,
    attempt: &Attempt<'_>,
    now: Timestamp,
) -> Option<Duration> {
    let left = fact(observed, attempt).and_then(|fact| left(valid, observed, &fact, now));
    match observed.gpus {
        Utilization::Known(_) | Utilization::Unknown => Some(left.unwrap_or(WINDOW).min(WINDOW)),
        Utilization::NotWatched => None,
    }
}

/// When the last step was read.
fn stepped(observed: &Observed) -> Option<Timestamp> {
    observed.log.as_ref().filter(|log| log.has_stepped).and_then(|log| log.last_sign)
}

/// Time until the condition is set; `None`: it is due.
fn left(valid: &ValidJob, observed: &Observed, fact: &str, now: Timestamp) -> Option<Duration> {
    let since = observed.facts.get(fact).copied().unwrap_or(now);
    remaining(valid.no_progress / 2, stepped(observed).map_or(since, |stepped| since.max(stepped)), now)
}

/// After half of the time that the log may be silent.
pub(crate) fn verdict(
    valid: &ValidJob,
    observed: &Observed,
    attempt: &Attempt<'_>,
    now: Timestamp,
) -> Option<Verdict> {
    let half = valid.no_progress / 2;
    if left(valid, observed, &fact(observed, attempt)?, now).is_some() {
        return None;
    }
    let next = match stepped(observed) {
        Some(_) => format!(
            "the attempt starts again from its last checkpoint when its log shows no progress for {} s \
             (noProgressSeconds)",
            valid.no_progress.as_secs()
        ),
        None => format!(
            "it has made no step yet: look at its log; without one, and without progress of a download, the attempt starts \
             again after {} s (firstStepSeconds)",
            valid.first_step.as_secs()
        ),
    };
    let message = format!("the GPUs have done less than 1 % for {} s; {next}", half.as_secs());
    Some(Verdict { type_: conditions::NO_PROGRESS, holds: true, reason: reasons::GPU_IDLE, message })
}
