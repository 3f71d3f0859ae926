//! Names of a ModelEvaluation's children.

use workload::name;

/// Value of the label `app.kubernetes.io/name` on every child.
pub(crate) const KIND: &str = "modelevaluation";

/// One of the two models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Baseline,
    Candidate,
}

impl Side {
    pub(crate) const ALL: [Side; 2] = [Side::Baseline, Side::Candidate];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Side::Baseline => "baseline",
            Side::Candidate => "candidate",
        }
    }

    pub(crate) fn other(self) -> Side {
        match self {
            Side::Baseline => Side::Candidate,
            Side::Candidate => Side::Baseline,
        }
    }

    /// The field of the spec that names the model.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Side::Baseline => "spec.baselineModel",
            Side::Candidate => "spec.candidateModel",
        }
    }
}

/// The temporary AIInference of a side. Its own children have longer names.
pub(crate) fn server(name: &str, side: Side) -> String {
    name::with_suffix(name, &format!("-{}", side.as_str()))
}

/// The claim of the answers.
pub(crate) fn claim(name: &str) -> String {
    name::with_suffix(name, "-evaluation")
}

/// The Job that uploads the answers. A TrainingJob of this name has the Job `<name>-upload`.
pub(crate) fn upload(name: &str) -> String {
    job(name, "-answers")
}

/// The Job that tries the store of the answers.
pub(crate) fn store_check(name: &str) -> String {
    job(name, "-answers-check")
}

/// A Job, by what follows its name.
pub(crate) fn job(name: &str, suffix: &str) -> String {
    name::with_suffix_within(name, suffix, LONGEST_JOB)
}

/// Names of pods have a random suffix.
const LONGEST_JOB: usize = 57;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_differ() {
        let long = "a".repeat(63);
        for name in ["7b.qwen", "qwen", &long] {
            assert!(job(name, "-candidate-15").len() <= LONGEST_JOB);
            assert!(server(name, Side::Candidate).len() <= 63 && claim(name).len() <= 63);
            assert_ne!(server(name, Side::Baseline), server(name, Side::Candidate));
        }
    }
}
