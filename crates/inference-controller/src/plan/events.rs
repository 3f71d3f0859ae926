//! Events: a new phase, a new reason of Ready, and announcements of rollouts. Pure.

use api::{
    aiinference::{AIInferenceStatus, Phase},
    conditions, reasons,
};
use runtime::{
    conditions::Verdict,
    events::{Note, Severity},
};

use super::conditions::Assessment;
use crate::observe::Observed;

/// Changes between these reasons are progress, which the status shows; they cause no event.
const UNDER_WAY: [&str; 4] = [reasons::LOADING, reasons::ROLLING, reasons::SCALING, reasons::MIGRATING];

pub(super) fn of_change(before: Option<&AIInferenceStatus>, assessment: &Assessment) -> Vec<Note> {
    let ready = assessment.verdicts.iter().find(|verdict| verdict.type_ == conditions::READY);
    let Some(Verdict { reason, message, .. }) = ready else { return Vec::new() };
    let reason_before = before.and_then(|before| {
        let ready = before.conditions.iter().find(|condition| condition.type_ == conditions::READY);
        ready.map(|ready| ready.reason.as_str())
    });
    let phase_before = before.and_then(|before| before.phase);
    let is_under_way = |reason: Option<&str>| reason.is_some_and(|reason| UNDER_WAY.contains(&reason));
    let same = reason_before == Some(reason) || (is_under_way(reason_before) && is_under_way(Some(reason)));
    if phase_before == Some(assessment.phase) && same {
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
    let status = observed.model.status.as_ref();
    let mut known = status.into_iter().flat_map(|status| &status.conditions);
    known
        .any(|condition| condition.type_ == conditions::PROGRESSING && condition.message.starts_with(message))
}

/// Whether the event is a Warning: a failure, or an unschedulable pod.
fn is_alarming(phase: Phase, reason: &str) -> bool {
    match phase {
        Phase::Failed => true,
        Phase::Pending | Phase::Loading | Phase::Ready => {
            [reasons::INSUFFICIENT_GPU, reasons::NO_SUCH_PRODUCT, reasons::UNSCHEDULABLE].contains(&reason)
        }
    }
}
