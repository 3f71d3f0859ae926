//! Which changes a user is told of in `kubectl describe`: a new phase, or a new reason for being ready or not. Pure.

use api::{
    aiinference::{AIInferenceStatus, Phase},
    conditions, reasons,
};
use runtime::events::{Note, Severity};

use super::conditions::{Judged, Verdict};

pub(super) fn of_change(before: Option<&AIInferenceStatus>, judged: &Judged) -> Vec<Note> {
    let ready = judged.verdicts.iter().find(|verdict| verdict.type_ == conditions::READY);
    let Some(Verdict { reason, message, .. }) = ready else { return Vec::new() };
    let reason_before = before.and_then(|before| {
        let ready = before.conditions.iter().find(|condition| condition.type_ == conditions::READY);
        ready.map(|ready| ready.reason.as_str())
    });
    let phase_before = before.and_then(|before| before.phase);
    if phase_before == Some(judged.phase) && reason_before == Some(reason) {
        return Vec::new();
    }
    let severity = if is_alarming(judged.phase, reason) { Severity::Warning } else { Severity::Normal };
    vec![Note { severity, reason, message: message.clone() }]
}

/// Whether somebody should look at it: it failed, or it waits for something that may never come.
fn is_alarming(phase: Phase, reason: &str) -> bool {
    match phase {
        Phase::Failed => true,
        Phase::Pending | Phase::Loading | Phase::Ready => {
            [reasons::INSUFFICIENT_GPU, reasons::NO_SUCH_PRODUCT, reasons::UNSCHEDULABLE].contains(&reason)
        }
    }
}
