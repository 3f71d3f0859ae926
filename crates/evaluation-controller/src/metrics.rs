//! Metrics: the number of ModelEvaluations by phase, by verdict, and by why answers are not uploaded. Only the leader exports them, so that standbys do not
//! count twice.

use api::{
    aiinference::evaluation::{ModelEvaluation, Phase},
    conditions, reasons,
};
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

/// The number of evaluations whose answers, or whose check of the store before the verdict, need a user.
const NOT_UPLOADED: ObjectCounts<ModelEvaluation, Option<&'static str>> = ObjectCounts {
    name: "modelevaluation_upload_failed",
    help: "ModelEvaluations whose answers cannot be uploaded yet, by the reason of the condition Uploaded",
    label: "reason",
    values: &[
        (Some(reasons::UPLOAD_NOT_POSSIBLE), reasons::UPLOAD_NOT_POSSIBLE),
        (Some(reasons::UPLOAD_FAILED), reasons::UPLOAD_FAILED),
        (Some(reasons::SECRET_NOT_FOUND), reasons::SECRET_NOT_FOUND),
        (Some(reasons::CONFIG_MAP_NOT_FOUND), reasons::CONFIG_MAP_NOT_FOUND),
        (Some(reasons::IMAGE_PULL_FAILED), reasons::IMAGE_PULL_FAILED),
        (Some(reasons::CRASH_LOOP), reasons::CRASH_LOOP),
        (Some(reasons::DENIED), reasons::DENIED),
        (Some(reasons::OWNERSHIP_CONFLICT), reasons::OWNERSHIP_CONFLICT),
        (Some(reasons::INVALID_SPEC), reasons::INVALID_SPEC),
    ],
    value_of: upload_fault,
};

pub(crate) fn export(process: &Process, evaluations: &Cache<ModelEvaluation>) {
    process.count(evaluations, PHASES);
    process.count(evaluations, VERDICTS);
    process.count(evaluations, NOT_UPLOADED);
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

/// The reason of the condition Uploaded, if it is one of those. An upload that was given up needs no user any more.
fn upload_fault(evaluation: &ModelEvaluation) -> Option<&'static str> {
    let mut conditions = evaluation.status.iter().flat_map(|status| &status.conditions);
    let uploaded = conditions.find(|condition| condition.type_ == conditions::UPLOADED)?;
    let mut faults = NOT_UPLOADED.values.iter().filter_map(|(fault, _)| *fault);
    faults.find(|fault| uploaded.reason == *fault)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::{condition, evaluation};

    #[test]
    fn answers_that_could_not_be_uploaded_are_counted_until_they_are() {
        let with = |reason: &str| {
            let mut object = evaluation(&json!({}));
            let conditions = json!({"conditions": [condition("Uploaded", "False", reason)]});
            object.status = Some(serde_json::from_value(conditions).unwrap());
            upload_fault(&object)
        };
        for reason in ["UploadNotPossible", "UploadFailed", "SecretNotFound", "Denied", "InvalidSpec"] {
            assert_eq!(with(reason), Some(reason));
        }
        for reason in ["Waiting", "StoreChecked", "Uploading", "Uploaded", "DeadlineExceeded"] {
            assert_eq!(with(reason), None);
        }
    }
}
