//! Events: the failure of an attempt, and changes of the reason that explains the phase. Pure.

use api::{
    reasons,
    trainingjob::{Phase, TrainingJobStatus},
};
use runtime::write::events::{Note, Severity};

use super::conditions::STALLS;
use crate::plan::attempt::failure::Failure;

/// Reasons whose events are warnings, in addition to `STALLS`.
const ALARMING: [&str; 12] = [
    reasons::CRASH_LOOP,
    reasons::VOLUME_NOT_ATTACHED,
    reasons::SANDBOX_FAILED,
    reasons::QUOTA_PENDING,
    reasons::INSUFFICIENT_GPU,
    reasons::NO_SUCH_PRODUCT,
    reasons::UNSCHEDULABLE,
    reasons::SCHEDULING_GATED,
    reasons::NO_SCHEDULER,
    reasons::DENIED,
    reasons::UPLOAD_FAILED,
    reasons::UPLOAD_NOT_POSSIBLE,
];
/// The order of these is the ordinary course of a job, which the status shows.
const ORDINARY: [&str; 4] = [reasons::STARTING, reasons::PREPARING, reasons::NOT_RUNNING, reasons::RETRYING];

/// The attempt of this number has failed.
pub(crate) fn of_failure(number: i32, failure: &Failure) -> Note {
    let message = format!("attempt {number} failed: {}", failure.message);
    Note { severity: Severity::Warning, reason: failure.reason, message }
}

/// `reason`: that of the new status.
pub(crate) fn of_change(
    before: Option<&TrainingJobStatus>,
    after: &TrainingJobStatus,
    reason: &'static str,
) -> Option<Note> {
    let is_same = before.is_some_and(|before| before.phase == after.phase && before.reason == after.reason);
    if reason.is_empty() || is_same || ORDINARY.contains(&reason) {
        return None;
    }
    let needs_a_change = ALARMING.contains(&reason) || STALLS.contains(&reason);
    let is_alarming = after.phase == Some(Phase::Failed) || needs_a_change;
    let severity = if is_alarming { Severity::Warning } else { Severity::Normal };
    Some(Note { severity, reason, message: after.message.clone().unwrap_or_default() })
}
