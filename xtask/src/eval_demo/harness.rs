//! The real harnesses, each with all its packages in a virtual environment, and how the runner is asked to use them.

use std::ffi::OsString;

use api::launcher::evaluator::{EVALSCOPE, LM_EVAL, options};
use clap::ValueEnum;

use crate::python::{self, Environment, Recipe, Venv};

/// The task of lm-eval, and the name of the test set.
pub(super) const TASK: &str = "sums";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Harness {
    Evalscope,
    LmEval,
}

impl Harness {
    /// As the options of the runner name it, which is also the name of its program.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Evalscope => EVALSCOPE,
            Self::LmEval => LM_EVAL,
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Evalscope => "EvalScope",
            Self::LmEval => "lm-eval",
        }
    }

    pub(super) fn release(self) -> &'static str {
        match self {
            Self::Evalscope => python::version(self.requirements(), "evalscope"),
            Self::LmEval => python::version(self.requirements(), "lm_eval"),
        }
    }

    fn requirements(self) -> &'static str {
        match self {
            Self::Evalscope => include_str!("requirements-evalscope.txt"),
            Self::LmEval => include_str!("requirements-lm-eval.txt"),
        }
    }

    /// Installs it, if it is missing.
    pub(super) fn ensure(self) -> anyhow::Result<Environment> {
        let requirements = self.requirements();
        let recipe = Recipe {
            name: &format!("eval-demo-{}", self.as_str()),
            content: self.title(),
            cost: match self {
                Self::Evalscope => "1.4 GB, about 80 seconds",
                Self::LmEval => "0.8 GB, about 40 seconds",
            },
            parts: &[requirements],
        };
        python::ensure(&recipe, |folder| Venv::make(folder)?.install_listed(requirements))
    }

    /// Options of the runner that depend on it.
    pub(super) fn options(self) -> Vec<OsString> {
        let option = |name: &str, value: &str| OsString::from(format!("--{name}={value}"));
        let harness = option(options::HARNESS, self.as_str());
        match self {
            Self::Evalscope => vec![harness, option(options::DATASET, "general_mcq")],
            // Files of tasks can have code.
            Self::LmEval => vec![
                harness,
                option(options::DATASET, TASK),
                OsString::from(format!("--{}", options::ALLOW_CODE_EXECUTION)),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_has_one_exact_version() {
        for (harness, package) in [(Harness::Evalscope, "evalscope"), (Harness::LmEval, "lm_eval")] {
            let packages = python::packages(harness.requirements());
            assert!(packages.contains(&package) && !packages.contains(&"torch"), "{packages:?}");
            assert!(harness.release().starts_with(|first: char| first.is_ascii_digit()));
            assert_eq!(harness.to_possible_value().unwrap().get_name(), harness.as_str());
        }
    }
}
