//! Whether the evaluation of `canary.evaluationName` lets the candidate have requests. Pure.
//!
//! It has to be Passed, and the model that it has evaluated has to be the one that the candidate's pods have loaded. Only ready
//! pods say which, so they come up first. A pass is recorded in the status as soon as it is seen: it holds for this version,
//! whatever becomes of the evaluation.

use api::{
    aiinference::traffic::{Canary, CanaryStatus, PassedEvaluation},
    reasons,
};

use super::state::Gate;
use crate::{
    objects::evaluation::{EvaluationView, FAILED, PASSED, SUCCEEDED},
    observe::Observed,
};

/// What follows from the evaluation.
#[derive(Clone, Debug, Default)]
pub(super) struct Evaluated {
    pub(super) gate: Gate,
    /// For the status.
    pub(super) passed: Option<PassedEvaluation>,
    /// Reason and message while the gate is not open.
    pub(super) why: Option<(&'static str, String)>,
}

/// Why there is no pass.
struct Missing {
    reason: &'static str,
    message: String,
}

const FIX: &str = "evaluate the model of spec.canary, or remove spec.canary.evaluationName";

/// `before`: of the same version. `ready`: the candidate's ready pods, each with the digest of the model that it has loaded.
pub(super) fn evaluated(
    observed: &Observed,
    canary: Option<&Canary>,
    before: Option<&CanaryStatus>,
    ready: &[(String, Option<String>)],
) -> Evaluated {
    let Some(name) = canary.and_then(|canary| canary.evaluation_name.as_deref()) else {
        return Evaluated::default();
    };
    let namespace = observed.inference.metadata.namespace.as_deref().unwrap_or_default();
    let named = format!("ModelEvaluation {namespace}/{name}");
    let recorded = before.and_then(|before| before.evaluation.as_ref()).filter(|known| known.name == name);
    let seen = pass(observed, name, &named);
    match (recorded, seen) {
        // A new pass takes the place of one for other files, if it is about the files of the pods.
        (Some(recorded), Ok(seen))
            if other_files(recorded, ready).is_some() && other_files(&seen, ready).is_none() =>
        {
            compared(seen, &named, ready)
        }
        (Some(recorded), _) => compared(recorded.clone(), &named, ready),
        (None, Ok(seen)) => compared(seen, &named, ready),
        (None, Err(Missing { reason, message })) => {
            Evaluated { gate: Gate::Closed, passed: None, why: Some((reason, message)) }
        }
    }
}

/// The pass that the evaluation has now.
fn pass(observed: &Observed, name: &str, named: &str) -> Result<PassedEvaluation, Missing> {
    let missing = |reason, message| Err(Missing { reason, message });
    let Some(evaluation) = &observed.evaluation else {
        let message = match observed.has_no_evaluations {
            true => format!(
                "{named} cannot be read: the cluster does not serve ModelEvaluations, or this controller may not list them; \
                 install deploy/crds and the evaluation-controller, and apply the roles of this release"
            ),
            false => format!("{named} does not exist; create it, or remove spec.canary.evaluationName"),
        };
        return missing(reasons::EVALUATION_NOT_FOUND, message);
    };
    match &*evaluation.phase {
        SUCCEEDED => {}
        FAILED => {
            let why = evaluation.message.as_deref().unwrap_or("see its conditions");
            let message =
                format!("{named} has failed: {why}; correct this, delete the evaluation and create it again");
            return missing(reasons::EVALUATION_NOT_PASSED, message);
        }
        _ => {
            let message =
                format!("{named} has no verdict yet; kubectl describe me {name} says what it waits for");
            return missing(reasons::EVALUATION_PENDING, message);
        }
    }
    if evaluation.verdict.as_deref() != Some(PASSED) {
        let said = match (&evaluation.verdict, &evaluation.difference) {
            (Some(verdict), Some(points)) => format!("the verdict {verdict} ({points} points)"),
            (Some(verdict), None) => format!("the verdict {verdict}"),
            (None, _) => "ended without a verdict".to_owned(),
        };
        let message = format!(
            "{named} has {said}; change the version in spec.canary and evaluate that one, or remove \
             spec.canary.evaluationName"
        );
        return missing(reasons::EVALUATION_NOT_PASSED, message);
    }
    let digest = digest(evaluation).map_err(|why| Missing {
        reason: reasons::EVALUATION_FOR_OTHER_MODEL,
        message: format!("{named} {why}"),
    })?;
    let uid = evaluation.metadata.uid.clone().unwrap_or_default();
    Ok(PassedEvaluation { name: name.to_owned(), uid, digest, confirmed: false })
}

/// Of the files that were evaluated.
fn digest(evaluation: &EvaluationView) -> Result<String, String> {
    let candidate = evaluation.candidate.as_ref();
    if candidate.is_some_and(|candidate| candidate.adapters.is_some()) {
        return Err(format!("is about LoRA adapters, whose files are not compared; merge them and {FIX}"));
    }
    let digest = candidate.and_then(|candidate| candidate.digest.clone());
    digest.ok_or_else(|| {
        "has no digest of the files of its candidate: it was an endpoint, or reading its volume took longer than 20 s, or its \
         engine had started again; evaluate it again, or remove spec.canary.evaluationName"
            .to_owned()
    })
}

/// The first ready pod with other files than those that were evaluated, and their digest.
fn other_files<'r>(
    passed: &PassedEvaluation,
    ready: &'r [(String, Option<String>)],
) -> Option<(&'r str, &'r str)> {
    let mut known = ready.iter().filter_map(|(pod, digest)| Some((&**pod, digest.as_deref()?)));
    known.find(|(_, digest)| *digest != passed.digest)
}

fn compared(passed: PassedEvaluation, named: &str, ready: &[(String, Option<String>)]) -> Evaluated {
    let held = |gate, reason, message: String, passed| Evaluated {
        gate,
        passed: Some(passed),
        why: Some((reason, message)),
    };
    if let Some((pod, found)) = other_files(&passed, ready) {
        let gate = if passed.confirmed { Gate::Contradicted } else { Gate::PodsOnly };
        let message = format!(
            "{named} is about {}, and pod {pod} of the candidate has loaded {found}; {FIX}",
            passed.digest
        );
        return held(gate, reasons::EVALUATION_FOR_OTHER_MODEL, message, passed);
    }
    let is_known = !ready.is_empty() && ready.iter().all(|(_, digest)| digest.is_some());
    if is_known || passed.confirmed {
        let passed = PassedEvaluation { confirmed: true, ..passed };
        return Evaluated { gate: Gate::Open, passed: Some(passed), why: None };
    }
    match ready.iter().find(|(_, digest)| digest.is_none()) {
        Some((pod, _)) => {
            let message = format!(
                "{named} has passed, and pod {pod} of the candidate does not say which files it has loaded: reading its volume \
                 took longer than 20 s, or its engine has started again; delete the pod"
            );
            held(Gate::PodsOnly, reasons::EVALUATION_MODEL_UNKNOWN, message, passed)
        }
        None => {
            let message =
                format!("{named} has passed; the pods of the candidate have to be ready with the same files");
            held(Gate::PodsOnly, reasons::EVALUATION_PENDING, message, passed)
        }
    }
}

#[cfg(test)]
mod tests;
