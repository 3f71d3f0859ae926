//! The phase and the conditions of a ModelEvaluation, each with a reason and a message. Pure.
//!
//! Transition times are set in `status`.

use api::{
    aiinference::evaluation::{ModelEvaluationStatus, Phase},
    conditions, reasons,
};
use runtime::write::{conditions::Verdict, refusal::Refusal};
use workload::Cause;

use super::{
    Scene, progress,
    verdict::Concluded,
    work::{self, Work},
};
use crate::{observe::Observed, validate::Invalid, validate::ValidEvaluation};

/// Phase and conditions without transition times.
#[derive(Debug)]
pub(super) struct Assessment {
    pub(super) phase: Phase,
    /// The reason and the message of the condition that explains the phase.
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) verdicts: Vec<Verdict>,
}

/// What is with an evaluation that has not ended.
pub(super) enum Outlook {
    Suspended,
    Paused,
    /// A model, a claim or a node is awaited.
    Waiting(Cause),
    /// A temporary server starts.
    Preparing(Cause),
    Running(Work),
    /// The pod of a run, or of the comparison, does not start.
    Held(Cause),
    Comparing,
}

/// Reasons that need a change by a user.
const STALLS: [&str; 14] = [
    reasons::AMBIGUOUS_DEPENDENCY,
    reasons::DEPENDENCY_NOT_FOUND,
    reasons::DEPENDENCY_FAILED,
    reasons::UNSUPPORTED_ARTIFACT,
    reasons::CLAIM_NOT_FOUND,
    reasons::CLAIM_NOT_SHAREABLE,
    reasons::OWNERSHIP_CONFLICT,
    reasons::SECRET_NOT_FOUND,
    reasons::CONFIG_MAP_NOT_FOUND,
    reasons::IMAGE_PULL_FAILED,
    reasons::CRASH_LOOP,
    reasons::SERVER_FAILED,
    reasons::DENIED,
    reasons::INVALID_SPEC,
];

impl Assessment {
    pub(super) fn is_stalled(&self) -> bool {
        self.verdicts.iter().any(|verdict| verdict.type_ == conditions::STALLED)
    }
}

fn holds(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict { type_, holds: true, reason, message: message.into() }
}

fn fails(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict { type_, holds: false, reason, message: message.into() }
}

fn accepted(observed: &Observed) -> Verdict {
    let is_paused = observed.evaluation.spec.pods.paused;
    let note =
        if is_paused { "spec.paused is true: nothing is created or deleted" } else { "the spec is valid" };
    holds(conditions::ACCEPTED, reasons::VALID, note)
}

/// `done`: the runs that have ended.
pub(super) fn of_outlook(scene: &Scene<'_>, outlook: Outlook, done: usize) -> Assessment {
    let runs = work::all(scene.valid).len().saturating_sub(1);
    let progress = format!("{done} of {runs} runs have ended");
    let (phase, reason, message, server) = match outlook {
        Outlook::Suspended => {
            let message = format!("spec.suspend is true: what runs is deleted; {progress}");
            (Phase::Pending, reasons::SUSPENDED, message, Some(false))
        }
        Outlook::Paused => {
            (Phase::Running, reasons::PAUSED, "spec.paused is true: nothing is decided".to_owned(), None)
        }
        Outlook::Waiting(Cause { reason, message }) => (Phase::Pending, reason, message, Some(false)),
        Outlook::Preparing(Cause { reason, message }) => (Phase::Preparing, reason, message, Some(false)),
        Outlook::Running(work) => {
            let message = format!("{}; {progress}", progress::named(scene, work));
            (Phase::Running, reasons::EVALUATING, message, Some(true))
        }
        Outlook::Held(Cause { reason, message }) => (Phase::Running, reason, message, Some(true)),
        Outlook::Comparing => {
            let message = "the answers of both models are paired".to_owned();
            (Phase::Comparing, reasons::COMPARING, message, None)
        }
    };
    let is_done = done >= runs;
    let evaluated = match is_done {
        true => holds(conditions::EVALUATED, reasons::EVALUATED, progress),
        false if server == Some(true) => fails(conditions::EVALUATED, reason, message.clone()),
        false => fails(conditions::EVALUATED, reasons::WAITING, progress),
    };
    let comparing = if is_done { reasons::COMPARING } else { reasons::WAITING };
    let mut verdicts = vec![accepted(scene.observed)];
    verdicts.extend(server.filter(|_| !is_done).map(|serves| match serves {
        true => holds(conditions::SERVERS_READY, reasons::SERVING, "the model of this run is served"),
        false => fails(conditions::SERVERS_READY, reason, message.clone()),
    }));
    verdicts.push(evaluated);
    verdicts.push(fails(conditions::COMPARED, comparing, ""));
    if STALLS.contains(&reason) {
        verdicts.push(holds(conditions::STALLED, reason, message.clone()));
    } else if reason != reasons::SUSPENDED {
        verdicts.push(holds(conditions::RECONCILING, reason, message.clone()));
    }
    Assessment { phase, reason, message, verdicts }
}

pub(super) fn of_invalid(invalid: &Invalid) -> Assessment {
    let Invalid { reason, message } = invalid.clone();
    let verdicts = vec![
        fails(conditions::ACCEPTED, reason, message.clone()),
        holds(conditions::STALLED, reason, message.clone()),
    ];
    Assessment { phase: Phase::Pending, reason, message, verdicts }
}

/// A child was refused.
pub(super) fn of_refused(refusal: &Refusal, observed: &Observed) -> Assessment {
    let (reason, message) = match refusal {
        // The garbage collector is about to delete the child of the deleted owner; no fault.
        Refusal::Leftover { deleted: _, message } => (reasons::WAITING, message),
        Refusal::OwnershipConflict(message) => (reasons::OWNERSHIP_CONFLICT, message),
        Refusal::Denied(message) => (reasons::DENIED, message),
        Refusal::Invalid(message) => (reasons::INVALID_SPEC, message),
    };
    let before = observed.evaluation.status.as_ref().and_then(|status| status.phase);
    let summary = if STALLS.contains(&reason) { conditions::STALLED } else { conditions::RECONCILING };
    let verdicts = vec![
        accepted(observed),
        fails(conditions::SERVERS_READY, reason, message.clone()),
        holds(summary, reason, message.clone()),
    ];
    Assessment { phase: before.unwrap_or(Phase::Pending), reason, message: message.clone(), verdicts }
}

/// Whatever the verdict: a regression is a success of the evaluation.
pub(super) fn of_success(
    written: &ModelEvaluationStatus,
    concluded: &Concluded,
    observed: &Observed,
) -> Assessment {
    let message = written.summary.clone().unwrap_or_default();
    let runs = format!("{} runs have ended", written.runs.len());
    let verdicts = vec![
        accepted(observed),
        holds(conditions::EVALUATED, reasons::EVALUATED, runs),
        holds(conditions::COMPARED, concluded.reason, message.clone()),
        holds(conditions::COMPLETE, reasons::SUCCEEDED, format!("{}: {message}", concluded.verdict)),
    ];
    Assessment { phase: Phase::Succeeded, reason: concluded.reason, message, verdicts }
}

pub(super) fn of_failure(
    cause: &Cause,
    written: &ModelEvaluationStatus,
    valid: &ValidEvaluation,
    observed: &Observed,
) -> Assessment {
    let Cause { reason, message } = cause;
    let runs = work::all(valid).len().saturating_sub(1);
    let progress = format!("{} of {runs} runs have ended", written.runs.len());
    let evaluated = if written.runs.len() >= runs {
        holds(conditions::EVALUATED, reasons::EVALUATED, progress)
    } else {
        fails(conditions::EVALUATED, reason, message.clone())
    };
    let verdicts = vec![
        accepted(observed),
        evaluated,
        fails(conditions::COMPARED, reason, message.clone()),
        holds(conditions::FAILED, reason, message.clone()),
    ];
    Assessment { phase: Phase::Failed, reason, message: message.clone(), verdicts }
}
