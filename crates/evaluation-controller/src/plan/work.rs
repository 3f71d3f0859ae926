//! What an evaluation consists of: runs, each of one model on one test set, and then the comparison. Pure.

use crate::{
    names::{self, Side},
    validate::ValidEvaluation,
};

/// One Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Ask {
        asked: Asked,
        /// Index of the test set.
        set: usize,
    },
    /// Pairs the answers of all runs.
    Pair,
}

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Baseline,
    /// The baseline once more: how much do its own answers differ?
    Control,
    Candidate,
}

impl Asked {
    /// As the runner and the status know it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Asked::Baseline => "baseline",
            Asked::Control => "control",
            Asked::Candidate => "candidate",
        }
    }

    pub(crate) fn side(self) -> Side {
        match self {
            Asked::Baseline | Asked::Control => Side::Baseline,
            Asked::Candidate => Side::Candidate,
        }
    }
}

impl Work {
    /// The model that it needs.
    pub(crate) fn side(self) -> Option<Side> {
        match self {
            Work::Ask { asked, .. } => Some(asked.side()),
            Work::Pair => None,
        }
    }

    /// Its Job, of an evaluation of this name.
    pub(crate) fn job_name(self, evaluation: &str) -> String {
        let suffix = match self {
            Work::Ask { asked, set } => format!("-{}-{set}", asked.as_str()),
            Work::Pair => "-pair".to_owned(),
        };
        names::job(evaluation, &suffix)
    }
}

/// In this order: all runs of the baseline come before those of the candidate, so that each server starts once.
pub(crate) fn all(valid: &ValidEvaluation) -> Vec<Work> {
    let runs = |asked| (0..valid.sets.len()).map(move |set| Work::Ask { asked, set });
    let control = valid.evaluation.spec.null_control.then_some(Work::Ask { asked: Asked::Control, set: 0 });
    runs(Asked::Baseline).chain(control).chain(runs(Asked::Candidate)).chain([Work::Pair]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_has_a_name_of_its_own() {
        let works = [
            Work::Pair,
            Work::Ask { asked: Asked::Baseline, set: 1 },
            Work::Ask { asked: Asked::Control, set: 0 },
            Work::Ask { asked: Asked::Candidate, set: 2 },
        ];
        let names = works.map(|work| work.job_name("qwen"));
        assert_eq!(names, ["qwen-pair", "qwen-baseline-1", "qwen-control-0", "qwen-candidate-2"]);
    }
}
