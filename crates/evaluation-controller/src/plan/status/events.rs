//! Events: the verdict, a failure, and what a user has to change. Pure.

use api::{
    aiinference::evaluation::{ModelEvaluationStatus, Phase},
    reasons,
};
use runtime::write::events::{Note, Severity};

/// The order of these is the ordinary course, which the status shows.
const ORDINARY: [&str; 4] = [reasons::WAITING, reasons::EVALUATING, reasons::COMPARING, reasons::PAUSED];

/// `reason`: that of the new status.
pub(in crate::plan) fn of_change(
    before: Option<&ModelEvaluationStatus>,
    after: &ModelEvaluationStatus,
    reason: &'static str,
    is_stalled: bool,
) -> Option<Note> {
    let is_same = before.is_some_and(|before| before.phase == after.phase && before.reason == after.reason);
    if is_same || ORDINARY.contains(&reason) && after.phase != Some(Phase::Failed) {
        return None;
    }
    let is_regression = reason == reasons::REGRESSED;
    let is_alarming = after.phase == Some(Phase::Failed) || is_stalled || is_regression;
    let severity = if is_alarming { Severity::Warning } else { Severity::Normal };
    Some(Note { severity, reason, message: after.message.clone().unwrap_or_default() })
}
