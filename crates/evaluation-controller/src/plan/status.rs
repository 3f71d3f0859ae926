//! The status: how an assessment and what has ended become one. Pure.

use api::aiinference::evaluation::{ModelEvaluationStatus, Phase};
use jiff::Timestamp;
use runtime::write::conditions::{merged, whole_seconds};

use super::{conditions::Assessment, verdict::Concluded};
use crate::observe::Observed;

/// Whether it has succeeded or failed: nothing is made any more.
pub(super) fn has_ended(observed: &Observed) -> bool {
    let phase = observed.evaluation.status.as_ref().and_then(|status| status.phase);
    matches!(phase, Some(Phase::Succeeded | Phase::Failed))
}

/// The status as it is.
pub(super) fn base(observed: &Observed) -> ModelEvaluationStatus {
    observed.evaluation.status.clone().unwrap_or_default()
}

/// Of an evaluation that has ended: only the generation changes.
pub(super) fn observed(observed: &Observed) -> ModelEvaluationStatus {
    let mut status = base(observed);
    let generation = observed.evaluation.metadata.generation;
    status.observed_generation = generation.unwrap_or_default();
    status.conditions.iter_mut().for_each(|condition| condition.observed_generation = generation);
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
    let before = observed.evaluation.status.as_ref().map_or(&[][..], |status| &status.conditions);
    ModelEvaluationStatus {
        phase: Some(phase),
        reason: Some(reason.to_owned()),
        message: Some(text::cut(text::printable(&message), LONGEST_MESSAGE)),
        observed_generation: generation.unwrap_or_default(),
        conditions: merged(verdicts, before, generation, now),
        ..written
    }
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
