//! Which test sets a harness cannot ask, or may not ask without `allowCodeExecution`. The controller refuses them before it starts
//! a server, and the runner before it starts the harness.

use std::fmt;

use super::ExitCode;
use crate::aiinference::evaluation::{Harness, Requests};

/// What is asked, as far as it decides whether it can be asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    pub harness: Harness,
    pub requests: Requests,
    /// Name of the dataset in the harness.
    pub dataset: &'a str,
    /// Whether its files are in the image or in a claim, and not on a hub.
    pub has_files: bool,
    pub allow_code_execution: bool,
}

/// Why it is not asked. The text names the fix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal<'a> {
    /// EvalScope has no text completions.
    NoCompletions,
    /// The benchmark runs what a model wrote.
    RunsCode(&'a str),
    /// Task files of lm-eval name functions, include other files, and have templates without a sandbox.
    TaskFiles(&'a str),
}

impl Refusal<'_> {
    /// How the runner ends.
    pub fn code(self) -> ExitCode {
        match self {
            Refusal::NoCompletions => ExitCode::TestSetUnsupported,
            Refusal::RunsCode(_) | Refusal::TaskFiles(_) => ExitCode::CodeExecutionForbidden,
        }
    }
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoCompletions => {
                f.write_str("evalscope sends chat completions alone: use harness lm-eval, or requests Chat")
            }
            Refusal::RunsCode(dataset) => {
                write!(f, "{dataset} runs code that a model wrote: set allowCodeExecution, or leave it out")
            }
            Refusal::TaskFiles(dataset) => write!(
                f,
                "{dataset} has task files of lm-eval, which can run code: set allowCodeExecution, or use evalscope"
            ),
        }
    }
}

/// Benchmarks of EvalScope 1.10.0 that run what a model wrote, by the begin of their names. lm-eval itself needs a flag
/// for such a task.
const RUN_CODE: [&str; 19] = [
    "bigcodebench",
    "claw_eval",
    "deep_swe",
    "gdpval",
    "humaneval",
    "job_bench",
    "live_code_bench",
    "mbpp",
    "multipl_e",
    "officeqa",
    "omnidoc_bench",
    "scicode",
    "skillsbench",
    "swe_bench",
    "tau",
    "terminal_bench",
    "toolathlon",
    "wide_search",
    "gaia",
];

/// `None`: it may be asked.
pub fn refusal<'a>(question: &Question<'a>) -> Option<Refusal<'a>> {
    let Question { harness, requests, dataset, has_files, allow_code_execution } = *question;
    match (harness, requests) {
        (Harness::EvalScope, Requests::Completions) => Some(Refusal::NoCompletions),
        (Harness::EvalScope, Requests::Chat) => {
            let runs_code = RUN_CODE.iter().any(|name| dataset.starts_with(name));
            (runs_code && !allow_code_execution).then_some(Refusal::RunsCode(dataset))
        }
        (Harness::LmEval, Requests::Chat | Requests::Completions) => {
            (has_files && !allow_code_execution).then_some(Refusal::TaskFiles(dataset))
        }
    }
}
