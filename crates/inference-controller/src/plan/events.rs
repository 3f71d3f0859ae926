//! Which changes show in `kubectl describe`: a new phase, a new reason for being ready or not, and what is about to
//! happen. Pure.

use api::{
    aiinference::{AIInferenceStatus, Phase},
    conditions, reasons,
};
use runtime::{
    conditions::Verdict,
    events::{Note, Severity},
};

use super::conditions::Judged;
use crate::observe::Observed;

/// How far it has come is in the status; an event for each step of many replicas would hide what matters.
const UNDER_WAY: [&str; 4] = [reasons::LOADING, reasons::ROLLING, reasons::SCALING, reasons::MIGRATING];

pub(super) fn of_change(before: Option<&AIInferenceStatus>, judged: &Judged) -> Vec<Note> {
    let ready = judged.verdicts.iter().find(|verdict| verdict.type_ == conditions::READY);
    let Some(Verdict { reason, message, .. }) = ready else { return Vec::new() };
    let reason_before = before.and_then(|before| {
        let ready = before.conditions.iter().find(|condition| condition.type_ == conditions::READY);
        ready.map(|ready| ready.reason.as_str())
    });
    let phase_before = before.and_then(|before| before.phase);
    let is_under_way = |reason: Option<&str>| reason.is_some_and(|reason| UNDER_WAY.contains(&reason));
    let same = reason_before == Some(reason) || (is_under_way(reason_before) && is_under_way(Some(reason)));
    if phase_before == Some(judged.phase) && same {
        return Vec::new();
    }
    let severity = if is_alarming(judged.phase, reason) { Severity::Warning } else { Severity::Normal };
    vec![Note { severity, reason, message: message.clone() }]
}

/// What is about to be done.
pub(super) fn announcement(message: String) -> Note {
    Note { severity: Severity::Warning, reason: reasons::ROLLING, message }
}

/// Whether the status says already what is about to be done.
pub(super) fn was_announced(observed: &Observed, message: &str) -> bool {
    let status = observed.model.status.as_ref();
    let mut known = status.into_iter().flat_map(|status| &status.conditions);
    known
        .any(|condition| condition.type_ == conditions::PROGRESSING && condition.message.starts_with(message))
}

/// Whether it deserves a look: it failed, or it waits for something that may never come.
fn is_alarming(phase: Phase, reason: &str) -> bool {
    match phase {
        Phase::Failed => true,
        Phase::Pending | Phase::Loading | Phase::Ready => {
            [reasons::INSUFFICIENT_GPU, reasons::NO_SUCH_PRODUCT, reasons::UNSCHEDULABLE].contains(&reason)
        }
    }
}
