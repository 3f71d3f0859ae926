//! Events: an object became ready or ceased to be, or is not ready for a new reason. The queue changed the number of workers.
//! State was lost or is not saved. A pool has no budget of its own. Pure.

use api::{
    aidispatcher::{AIDispatcherStatus, Phase},
    conditions, reasons,
};
use runtime::write::{
    conditions::Verdict,
    events::{Note, Severity},
};

use super::conditions::Assessment;

/// Changes between these reasons, and the first of them, are progress, which the status shows; they cause no event.
pub(super) const UNDER_WAY: [&str; 3] = [reasons::LOADING, reasons::ROLLING, reasons::SCALING];

pub(in crate::plan) fn of_change(before: Option<&AIDispatcherStatus>, assessment: &Assessment) -> Vec<Note> {
    let condition = |type_: &str| {
        let mut conditions = before.into_iter().flat_map(|before| &before.conditions);
        conditions.find(|condition| condition.type_ == type_)
    };
    let verdict = |type_: &str| assessment.verdicts.iter().find(|verdict| verdict.type_ == type_);
    let failed = verdict(conditions::CHECKPOINT_FAILED).filter(|failed| {
        condition(conditions::CHECKPOINT_FAILED).is_none_or(|known| {
            // Which pod is named changes when one of several is deleted.
            let is_news = failed.reason != reasons::STATE_LOST || assessment.is_newly_lost;
            known.reason != failed.reason || (known.message != failed.message && is_news)
        })
    });
    let checkpoint_failed = failed.map(|Verdict { reason, message, .. }| Note {
        severity: Severity::Warning,
        reason,
        message: message.clone(),
    });
    let ready = verdict(conditions::READY).and_then(|Verdict { holds, reason, message, .. }| {
        let reason_before = condition(conditions::READY).map(|ready| ready.reason.as_str());
        let is_under_way = |reason: &str| UNDER_WAY.contains(&reason);
        let has_failed = assessment.phase == Phase::Failed;
        let failed_before = before.is_some_and(|before| before.current_phase == Some(Phase::Failed));
        let goes_on = is_under_way(reason) && reason_before.is_none_or(is_under_way) && !has_failed;
        let is_same = has_failed == failed_before && reason_before == Some(reason);
        // Workers come and go with the queue: that is in its own events.
        let is_scaled = !has_failed
            && (*holds || is_under_way(reason))
            && [Some(reasons::READY), Some(reasons::SCALING)].contains(&reason_before);
        if goes_on || is_same || is_scaled {
            return None;
        }
        let is_without_node = [reasons::UNSCHEDULABLE, reasons::SCHEDULING_GATED, reasons::NO_SCHEDULER];
        let is_alarming = has_failed || is_without_node.contains(reason);
        let severity = if is_alarming { Severity::Warning } else { Severity::Normal };
        Some(Note { severity, reason, message: message.clone() })
    });
    let omitted = [conditions::DISRUPTION_BUDGET_OMITTED, conditions::SERVICE_OMITTED].into_iter();
    let omitted = omitted.filter_map(|type_| of_omission(before, verdict(type_)?));
    ready.into_iter().chain(checkpoint_failed).chain(omitted).collect()
}

/// That the pool has no budget or Service of its own, if that is new.
pub(in crate::plan) fn of_omission(before: Option<&AIDispatcherStatus>, omitted: &Verdict) -> Option<Note> {
    let mut conditions = before.into_iter().flat_map(|before| &before.conditions);
    let Verdict { type_, holds: _, reason, message } = omitted;
    if conditions.any(|known| known.type_ == *type_ && known.reason == *reason) {
        return None;
    }
    let is_wanted = *reason == reasons::OTHER_BUDGET;
    let severity = if is_wanted { Severity::Normal } else { Severity::Warning };
    Some(Note { severity, reason, message: message.clone() })
}

pub(in crate::plan) fn of_scale(from: i32, to: i32, why: &str) -> Note {
    let message = format!("the number of workers changes from {from} to {to}: {why}");
    Note { severity: Severity::Normal, reason: reasons::SUCCESSFUL_RESCALE, message }
}
