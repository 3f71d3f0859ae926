//! Events: that an object became ready or ceased to be, a new reason why it is not ready, and announcements of rollouts.
//! Pure.

use api::{
    aiinference::{AIInferenceStatus, Phase},
    conditions, reasons,
};
use runtime::write::{
    conditions::Verdict,
    events::{Note, Severity},
};

use super::conditions::Assessment;
use crate::observe::Observed;

/// Changes between these reasons, and the first of them, are progress, which the status shows; they cause no event.
pub(super) const UNDER_WAY: [&str; 4] =
    [reasons::LOADING, reasons::ROLLING, reasons::SCALING, reasons::MIGRATING];

pub(super) fn of_change(before: Option<&AIInferenceStatus>, assessment: &Assessment) -> Vec<Note> {
    let ready = assessment.verdicts.iter().find(|verdict| verdict.type_ == conditions::READY);
    let Some(Verdict { reason, message, .. }) = ready else { return Vec::new() };
    let reason_before = before.and_then(|before| {
        let ready = before.conditions.iter().find(|condition| condition.type_ == conditions::READY);
        ready.map(|ready| ready.reason.as_str())
    });
    let phase_before = before.and_then(|before| before.phase);
    let is_under_way = |reason: &str| UNDER_WAY.contains(&reason);
    let goes_on =
        is_under_way(reason) && reason_before.is_none_or(is_under_way) && assessment.phase != Phase::Failed;
    let is_same = phase_before == Some(assessment.phase) && reason_before == Some(reason);
    if goes_on || is_same {
        return Vec::new();
    }
    let severity = if is_alarming(assessment.phase, reason) { Severity::Warning } else { Severity::Normal };
    vec![Note { severity, reason, message: message.clone() }]
}

/// The event before a rollout that interrupts the service.
pub(super) fn announcement(message: String) -> Note {
    Note { severity: Severity::Warning, reason: reasons::ROLLING, message }
}

/// Whether the status already has the announcement.
pub(super) fn was_announced(observed: &Observed, message: &str) -> bool {
    let status = observed.inference.status.as_ref();
    let mut known = status.into_iter().flat_map(|status| &status.conditions);
    known
        .any(|condition| condition.type_ == conditions::PROGRESSING && condition.message.starts_with(message))
}

/// Whether the event is a Warning: a failure, or an unschedulable pod.
fn is_alarming(phase: Phase, reason: &str) -> bool {
    match phase {
        Phase::Failed => true,
        Phase::Pending | Phase::Loading | Phase::Ready => {
            let without_node = [
                reasons::INSUFFICIENT_GPU,
                reasons::NO_SUCH_PRODUCT,
                reasons::UNSCHEDULABLE,
                reasons::SCHEDULING_GATED,
                reasons::NO_SCHEDULER,
            ];
            without_node.contains(&reason)
        }
    }
}
