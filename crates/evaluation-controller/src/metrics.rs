//! Metrics: the number of ModelEvaluations by phase and by verdict. Only the leader exports them, so that standbys do not
//! count twice.

use api::aiinference::evaluation::{ModelEvaluation, Phase};
use comparison::Verdict;
use runtime::{
    process::Process,
    watch::{cache::Cache, object_counts::ObjectCounts},
};

const PHASES: ObjectCounts<ModelEvaluation, Phase> = ObjectCounts {
    name: "modelevaluation_phase",
    help: "ModelEvaluations by phase",
    label: "phase",
    values: &[
        (Phase::Pending, "pending"),
        (Phase::Preparing, "preparing"),
        (Phase::Running, "running"),
        (Phase::Comparing, "comparing"),
        (Phase::Succeeded, "succeeded"),
        (Phase::Failed, "failed"),
    ],
    value_of: phase_of,
};

/// `None`: there is no verdict yet, or there will be none.
const VERDICTS: ObjectCounts<ModelEvaluation, Option<Verdict>> = ObjectCounts {
    name: "modelevaluation_verdict",
    help: "ModelEvaluations by verdict; none before the end and after a failure",
    label: "verdict",
    values: &[
        (None, "none"),
        (Some(Verdict::Passed), "passed"),
        (Some(Verdict::Regressed), "regressed"),
        (Some(Verdict::Inconclusive), "inconclusive"),
    ],
    value_of: verdict_of,
};

pub(crate) fn export(process: &Process, evaluations: &Cache<ModelEvaluation>) {
    process.count(evaluations, PHASES);
    process.count(evaluations, VERDICTS);
}

/// An object without a status is pending.
fn phase_of(evaluation: &ModelEvaluation) -> Phase {
    evaluation.status.as_ref().and_then(|status| status.phase).unwrap_or(Phase::Pending)
}

fn verdict_of(evaluation: &ModelEvaluation) -> Option<Verdict> {
    let written = evaluation.status.as_ref()?.verdict.as_deref()?;
    let verdicts = [Verdict::Passed, Verdict::Regressed, Verdict::Inconclusive];
    verdicts.into_iter().find(|verdict| verdict.as_str() == written)
}
