//! Events: that an endpoint became ready, and a new reason of its own that a person should read. Pure.
//!
//! What the AIInference and the AIScaler have to say is in their own events.

use std::borrow::Cow;

use api::{aiinference::endpoint::InferenceEndpointStatus, conditions, reasons};
use runtime::write::events::{Note, Severity};

use super::conditions::{Assessment, Statement};

pub(super) fn of_change(before: Option<&InferenceEndpointStatus>, assessment: &Assessment) -> Vec<Note> {
    let known = before.map(|before| before.conditions.as_slice()).unwrap_or_default();
    let is_new = |statement: &Statement| {
        let mut same = known.iter().filter(|known| known.type_ == statement.type_);
        // It is the same advice, whether the autoscaler works or not.
        let is_advice = statement.reason == reasons::METRIC_NOT_LOAD_SENSITIVE;
        !same.any(|known| {
            known.reason == *statement.reason && (is_advice || (known.status == "True") == statement.holds)
        })
    };
    let verdicts = &assessment.verdicts;
    let is_repeated = |statement: &Statement| {
        statement.type_ == conditions::STALLED
            && verdicts.iter().any(|other| {
                !other.holds && other.type_ != conditions::ACCEPTED && other.reason == statement.reason
            })
    };
    let new = verdicts.iter().filter(|statement| is_new(statement) && !is_repeated(statement));
    new.filter_map(note).collect()
}

fn note(statement: &Statement) -> Option<Note> {
    let Statement { type_, holds, reason, message } = statement;
    let message = message.clone();
    if *type_ == conditions::READY && *holds {
        return Some(Note { severity: Severity::Normal, reason: reasons::READY, message });
    }
    let Cow::Borrowed(reason) = reason else { return None };
    // Ready, or Stalled, repeats the reason of this one.
    let is_repeated = *type_ == conditions::RECONCILING || (*type_ == conditions::ACCEPTED && !holds);
    let needs_person =
        !holds || *type_ == conditions::STALLED || *reason == reasons::METRIC_NOT_LOAD_SENSITIVE;
    (needs_person && !is_repeated && *reason != reasons::WAITING).then_some(Note {
        severity: Severity::Warning,
        reason,
        message,
    })
}
