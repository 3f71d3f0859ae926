//! What an evaluation consists of: runs, each of one model on one test set, and then the comparison. Pure.

use api::aiinference::evaluation::Order;

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

/// The runs that follow each other; several lanes go on side by side. All runs of a model are in one lane, so that its server
/// starts once. The comparison comes after all lanes.
pub(crate) fn lanes(valid: &ValidEvaluation) -> Vec<Vec<Work>> {
    let spec = &valid.evaluation.spec;
    let runs = |asked| (0..valid.sets.len()).map(move |set| Work::Ask { asked, set });
    let control = spec.null_control.then_some(Work::Ask { asked: Asked::Control, set: 0 });
    let baseline = runs(Asked::Baseline).chain(control);
    match spec.order {
        Order::Sequential => vec![baseline.chain(runs(Asked::Candidate)).collect()],
        Order::Parallel => vec![baseline.collect(), runs(Asked::Candidate).collect()],
    }
}

/// How many runs there are.
pub(crate) fn count(valid: &ValidEvaluation) -> usize {
    lanes(valid).iter().map(Vec::len).sum()
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
