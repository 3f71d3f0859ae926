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
    /// The pod of a run does not start, or that of the comparison fails or does not start.
    Held {
        work: Work,
        cause: Cause,
    },
    Comparing,
}

/// Reasons that need a change by a user. The last two are of a comparison that is repeated: each other run ends with them.
const STALLS: [&str; 16] = [
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
    reasons::HARNESS_FAILED,
    reasons::VOLUME_UNUSABLE,
];

pub(super) fn needs_a_user(reason: &str) -> bool {
    STALLS.contains(&reason)
}

impl Outlook {
    /// What it is if something that has to be created is refused.
    pub(super) fn held_by(self, cause: Cause) -> Outlook {
        match self {
            Outlook::Running(work) | Outlook::Held { work, .. } => Outlook::Held { work, cause },
            Outlook::Comparing => Outlook::Held { work: Work::Pair, cause },
            Outlook::Waiting(_) | Outlook::Preparing(_) => Outlook::Preparing(cause),
            Outlook::Suspended | Outlook::Paused => self,
        }
    }
}

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

/// What an outlook means.
struct Said {
    phase: Phase,
    reason: &'static str,
    message: String,
    /// Whether the model of the run is served; `None`: it does not matter.
    serves: Option<bool>,
}

fn said(scene: &Scene<'_>, outlook: &Outlook) -> Said {
    let (phase, reason, message, serves) = match outlook {
        Outlook::Suspended => {
            let message = "spec.suspend is true: what runs is deleted".to_owned();
            (Phase::Pending, reasons::SUSPENDED, message, Some(false))
        }
        Outlook::Paused => {
            (Phase::Running, reasons::PAUSED, "spec.paused is true: nothing is decided".to_owned(), None)
        }
        Outlook::Waiting(Cause { reason, message }) => {
            (Phase::Pending, *reason, message.clone(), Some(false))
        }
        Outlook::Preparing(Cause { reason, message }) => {
            (Phase::Preparing, *reason, message.clone(), Some(false))
        }
        Outlook::Running(work) => {
            (Phase::Running, reasons::EVALUATING, progress::named(scene, *work), Some(true))
        }
        Outlook::Held { work: Work::Ask { .. }, cause: Cause { reason, message } } => {
            (Phase::Running, *reason, message.clone(), Some(true))
        }
        Outlook::Held { work: Work::Pair, cause: Cause { reason, message } } => {
            (Phase::Comparing, *reason, message.clone(), None)
        }
        Outlook::Comparing => {
            let message = "the answers of both models are paired".to_owned();
            (Phase::Comparing, reasons::COMPARING, message, None)
        }
    };
    Said { phase, reason, message, serves }
}

/// `outlooks`: of the lanes that go on side by side, at least one. `done`: the runs that have ended.
pub(super) fn of_outlooks(scene: &Scene<'_>, outlooks: &[Outlook], done: usize) -> Assessment {
    let runs = work::count(scene.valid);
    let progress = format!("{done} of {runs} runs have ended");
    let is_counted =
        outlooks.iter().any(|outlook| matches!(outlook, Outlook::Running(_) | Outlook::Suspended));
    let lanes: Vec<Said> = outlooks.iter().map(|outlook| said(scene, outlook)).collect();
    let runs_now = lanes.iter().find(|lane| lane.phase == Phase::Running);
    // A lane that needs a user explains the phase, else one that runs.
    let explains = lanes.iter().find(|lane| needs_a_user(lane.reason)).or(runs_now).or(lanes.first());
    let reason = explains.map_or(reasons::WAITING, |lane| lane.reason);
    let phase = runs_now.or(explains).map_or(Phase::Pending, |lane| lane.phase);
    let words = lanes.iter().map(|lane| lane.message.as_str());
    let message = words.chain(is_counted.then_some(progress.as_str())).collect::<Vec<_>>().join("; ");
    let unserved = lanes.iter().find(|lane| lane.serves == Some(false));
    let is_served = lanes.iter().any(|lane| lane.serves == Some(true));
    let is_done = done >= runs;
    let evaluated = match is_done {
        true => holds(conditions::EVALUATED, reasons::EVALUATED, progress),
        false if is_served => fails(conditions::EVALUATED, reason, message.clone()),
        false => fails(conditions::EVALUATED, reasons::WAITING, progress),
    };
    let compared = match (is_done, phase) {
        (true, Phase::Comparing) if reason != reasons::COMPARING => {
            fails(conditions::COMPARED, reason, message.clone())
        }
        (true, _) => fails(conditions::COMPARED, reasons::COMPARING, ""),
        (false, _) => fails(conditions::COMPARED, reasons::WAITING, ""),
    };
    let served = match unserved {
        Some(lane) => Some(fails(conditions::SERVERS_READY, lane.reason, lane.message.clone())),
        None if is_served => {
            let models =
                if lanes.len() > 1 { "the models of these runs are" } else { "the model of this run is" };
            Some(holds(conditions::SERVERS_READY, reasons::SERVING, format!("{models} served")))
        }
        None => None,
    };
    let mut verdicts = vec![accepted(scene.observed)];
    verdicts.extend(served.filter(|_| !is_done));
    verdicts.extend([evaluated, compared]);
    if needs_a_user(reason) {
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

/// Why something does not exist, or is still there.
pub(super) fn cause_of(refusal: &Refusal) -> Cause {
    let reason = match refusal {
        // The garbage collector is about to delete the child of the deleted owner; no fault.
        Refusal::Leftover { .. } => reasons::WAITING,
        Refusal::OwnershipConflict(_) => reasons::OWNERSHIP_CONFLICT,
        Refusal::Denied(_) => reasons::DENIED,
        Refusal::Invalid(_) => reasons::INVALID_SPEC,
    };
    Cause { reason, message: refusal.message().to_owned() }
}

/// Begin of the message of [`of_undeleted`].
pub(super) const UNDELETED: &str = "the evaluation has ended, and what is left of it cannot be deleted: ";

/// Something of an evaluation that has ended cannot be deleted, and may hold GPUs.
pub(super) fn of_undeleted(refusal: &Refusal) -> Verdict {
    let Cause { reason, message } = cause_of(refusal);
    holds(conditions::STALLED, reason, format!("{UNDELETED}{message}"))
}

/// A refusal that stops no run.
pub(super) fn of_refused(cause: &Cause) -> Verdict {
    let Cause { reason, message } = cause;
    let summary = if needs_a_user(reason) { conditions::STALLED } else { conditions::RECONCILING };
    holds(summary, reason, message.clone())
}

/// `upload`: what is said of it. Whatever the verdict: a regression is a success of the evaluation.
pub(super) fn of_success(
    written: &ModelEvaluationStatus,
    concluded: &Concluded,
    upload: Option<Verdict>,
    observed: &Observed,
) -> Assessment {
    let message = written.summary.clone().unwrap_or_default();
    let runs = format!("{} runs have ended", written.runs.len());
    let mut verdicts = vec![
        accepted(observed),
        holds(conditions::EVALUATED, reasons::EVALUATED, runs),
        holds(conditions::COMPARED, concluded.reason, message.clone()),
        holds(conditions::COMPLETE, reasons::SUCCEEDED, format!("{}: {message}", concluded.verdict)),
    ];
    verdicts.extend(upload);
    Assessment { phase: Phase::Succeeded, reason: concluded.reason, message, verdicts }
}

pub(super) fn of_failure(
    cause: &Cause,
    written: &ModelEvaluationStatus,
    valid: &ValidEvaluation,
    observed: &Observed,
) -> Assessment {
    let Cause { reason, message } = cause;
    let runs = work::count(valid);
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
        // Without it, kstatus takes the evaluation for complete.
        holds(conditions::STALLED, reason, message.clone()),
    ];
    Assessment { phase: Phase::Failed, reason, message: message.clone(), verdicts }
}
