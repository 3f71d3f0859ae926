//! Events: the failure of an attempt, and changes of the reason that explains the phase. Pure.

use api::{
    reasons,
    trainingjob::{Phase, TrainingJobStatus},
};
use runtime::events::{Note, Severity};

use super::failure::Failure;

/// Reasons whose message says what somebody has to do.
const ALARMING: [&str; 14] = [
    reasons::QUOTA_PENDING,
    reasons::INVALID_SPEC,
    reasons::AMBIGUOUS_DEPENDENCY,
    reasons::DEPENDENCY_NOT_FOUND,
    reasons::CYCLE,
    reasons::INSUFFICIENT_GPU,
    reasons::NO_SUCH_PRODUCT,
    reasons::UNSCHEDULABLE,
    reasons::CLAIM_NOT_FOUND,
    reasons::CLAIM_NOT_SHAREABLE,
    reasons::CLAIM_DIFFERS,
    reasons::OWNERSHIP_CONFLICT,
    reasons::DENIED,
    reasons::UPLOAD_FAILED,
];
/// The order of these is the ordinary course of a job, which the status shows.
const ORDINARY: [&str; 5] =
    [reasons::STARTING, reasons::PREPARING, reasons::NOT_RUNNING, reasons::RETRYING, reasons::UNSCHEDULABLE];

/// The attempt of this number has failed.
pub(super) fn of_failure(number: i32, failure: &Failure) -> Note {
    let message = format!("attempt {number} failed: {}", failure.message);
    Note { severity: Severity::Warning, reason: failure.reason, message }
}

/// `reason`: that of the new status.
pub(super) fn of_change(
    before: Option<&TrainingJobStatus>,
    after: &TrainingJobStatus,
    reason: &'static str,
) -> Option<Note> {
    let is_same = before.is_some_and(|before| before.phase == after.phase && before.reason == after.reason);
    let is_waiting_for_node = reason == reasons::UNSCHEDULABLE
        && after.message.as_deref().is_some_and(|message| message.contains("pods have a node"));
    let is_ordinary = ORDINARY.contains(&reason) && (reason != reasons::UNSCHEDULABLE || is_waiting_for_node);
    if reason.is_empty() || is_same || is_ordinary {
        return None;
    }
    let is_alarming = after.phase == Some(Phase::Failed) || ALARMING.contains(&reason);
    let severity = if is_alarming { Severity::Warning } else { Severity::Normal };
    Some(Note { severity, reason, message: after.message.clone().unwrap_or_default() })
}
