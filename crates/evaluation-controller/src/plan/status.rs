//! The status: how an assessment and what has ended become one. Pure.

use api::{
    aiinference::evaluation::{ModelEvaluationStatus, Phase},
    conditions, reasons,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runtime::write::conditions::{Verdict, merged, whole_seconds};

use super::{conditions::Assessment, upload, verdict::Concluded};
use crate::observe::Observed;

pub(super) mod events;

/// Whether it has succeeded or failed: nothing is made any more.
pub(super) fn has_ended(observed: &Observed) -> bool {
    let phase = observed.evaluation.status.as_ref().and_then(|status| status.phase);
    matches!(phase, Some(Phase::Succeeded | Phase::Failed))
}

/// The status as it is.
pub(super) fn base(observed: &Observed) -> ModelEvaluationStatus {
    observed.evaluation.status.clone().unwrap_or_default()
}

/// As it is, for the newest generation.
pub(super) fn kept(observed: &Observed) -> ModelEvaluationStatus {
    let mut status = base(observed);
    let generation = observed.evaluation.metadata.generation;
    status.observed_generation = generation.unwrap_or_default();
    status.conditions.iter_mut().for_each(|condition| condition.observed_generation = generation);
    status
}

/// Of an evaluation that has ended. A failure stays stalled, and a verdict is stalled only while something cannot be deleted.
pub(super) fn observed(observed: &Observed) -> ModelEvaluationStatus {
    let mut status = kept(observed);
    let of_type = |type_: &str| status.conditions.iter().find(|known| known.type_ == type_).cloned();
    let before = of_type(conditions::STALLED);
    let stalled = of_type(conditions::FAILED).filter(|failed| failed.status == "True").map(|failed| {
        let since = before.map_or(failed.last_transition_time, |before| before.last_transition_time);
        Condition { type_: conditions::STALLED.to_owned(), last_transition_time: since, ..failed }
    });
    status.conditions.retain(|condition| condition.type_ != conditions::STALLED);
    status.conditions.extend(stalled);
    status
}

/// With one more condition, or with another version of it.
pub(super) fn with_verdict(
    mut status: ModelEvaluationStatus,
    verdict: Verdict,
    observed: &Observed,
    now: Timestamp,
) -> ModelEvaluationStatus {
    let generation = observed.evaluation.metadata.generation;
    // The time to live counts from when an upload was given up.
    let reason = verdict.reason;
    let is_given_up = reason == reasons::DEADLINE_EXCEEDED;
    let goes_on = |known: &&Condition| !is_given_up || known.reason == reason;
    let before: Vec<Condition> = conditions_before(observed).iter().filter(goes_on).cloned().collect();
    let said = merged(vec![verdict], &before, generation, now);
    // In its place, so that equal conditions are equal lists.
    for condition in said {
        match status.conditions.iter_mut().find(|known| known.type_ == condition.type_) {
            Some(known) => *known = condition,
            None => status.conditions.push(condition),
        }
    }
    status
}

fn conditions_before(observed: &Observed) -> &[Condition] {
    observed.evaluation.status.as_ref().map_or(&[][..], |status| &status.conditions)
}

/// One of them explains the phase.
const SUMMARIES: [&str; 2] = [conditions::STALLED, conditions::RECONCILING];

/// The conditions whose times go on. `Stalled` and `Reconciling` with another reason begin anew: the time of `Stalled` decides
/// how long a server is held for a refused run.
fn going_on(observed: &Observed, reason: &str) -> Vec<Condition> {
    let before = conditions_before(observed).iter();
    before
        .filter(|known| !SUMMARIES.contains(&known.type_.as_str()) || known.reason == reason)
        .cloned()
        .collect()
}

/// With what the API server has refused, though the runs do not need it.
pub(super) fn with_refusal(
    mut status: ModelEvaluationStatus,
    refused: Verdict,
    observed: &Observed,
    now: Timestamp,
) -> ModelEvaluationStatus {
    status.conditions.retain(|condition| !SUMMARIES.contains(&condition.type_.as_str()));
    let message = format!("{}; {}", refused.message, status.message.unwrap_or_default());
    status.message = Some(shortened(&message));
    status.reason = Some(refused.reason.to_owned());
    let before = going_on(observed, refused.reason);
    let generation = observed.evaluation.metadata.generation;
    status.conditions.extend(merged(vec![refused], &before, generation, now));
    status
}

pub(super) fn assessed(
    written: ModelEvaluationStatus,
    assessment: Assessment,
    observed: &Observed,
    now: Timestamp,
) -> ModelEvaluationStatus {
    let Assessment { phase, reason, message, verdicts } = assessment;
    let generation = observed.evaluation.metadata.generation;
    let before = going_on(observed, reason);
    let mut said = merged(verdicts, &before, generation, now);
    said.extend(uploaded(observed, phase, &said));
    ModelEvaluationStatus {
        phase: Some(phase),
        reason: Some(reason.to_owned()),
        message: Some(shortened(&message)),
        observed_generation: generation.unwrap_or_default(),
        conditions: said,
        ..written
    }
}

/// What is known of the store stays until there is news: that it has taken an object, and while an evaluation is paused also what
/// else was seen.
fn uploaded(observed: &Observed, phase: Phase, said: &[Condition]) -> Option<Condition> {
    let is_said = |type_: &str| said.iter().any(|condition| condition.type_ == type_);
    let known = conditions_before(observed).iter().find(|known| known.type_ == conditions::UPLOADED)?;
    let store = upload::destination(&observed.evaluation)?;
    let status = observed.evaluation.status.as_ref();
    let checked = status.and_then(|status| status.checked_store.as_ref());
    let spec = &observed.evaluation.spec;
    let is_true = match known.reason == reasons::STORE_CHECKED {
        true => checked.is_some_and(|checked| *checked == upload::mark(&store)),
        false => {
            spec.pods.paused && !spec.suspend && known.message.starts_with(&format!("to {}: ", store.uri))
        }
    };
    let stays = is_true && phase != Phase::Failed && !is_said(conditions::UPLOADED);
    let observed_generation = observed.evaluation.metadata.generation;
    stays.then(|| Condition { observed_generation, ..known.clone() })
}

fn shortened(message: &str) -> String {
    text::cut(text::printable(message), LONGEST_MESSAGE)
}

/// As that of a condition.
const LONGEST_MESSAGE: usize = 1_024;
/// Of 16 test sets.
const LONGEST_SUMMARY: usize = 4_096;

/// The clock of `activeDeadlineSeconds` begins with the first child.
pub(super) fn started(status: ModelEvaluationStatus, now: Timestamp) -> ModelEvaluationStatus {
    ModelEvaluationStatus { start_time: status.start_time.or_else(|| Some(whole_seconds(now))), ..status }
}

pub(super) fn failed(status: ModelEvaluationStatus, now: Timestamp) -> ModelEvaluationStatus {
    ModelEvaluationStatus { completion_time: Some(whole_seconds(now)), ..status }
}

pub(super) fn concluded(
    status: ModelEvaluationStatus,
    concluded: &Concluded,
    now: Timestamp,
) -> ModelEvaluationStatus {
    let Concluded { verdict, reason: _, difference, summary, results, null_control } = concluded.clone();
    ModelEvaluationStatus {
        verdict: Some(verdict.to_owned()),
        difference: Some(difference),
        summary: Some(text::cut(summary, LONGEST_SUMMARY)),
        results,
        null_control,
        completion_time: Some(whole_seconds(now)),
        ..status
    }
}
