//! The interface between the evaluation-controller and the eval-runner: options, exit codes and the termination message.
//!
//! The runner is the first process of the harness's container. Its exit code says how a run ended, and its termination message
//! has the counts, from which alone the controller makes a verdict.

use serde::{Deserialize, Serialize};

pub mod limits;

/// The name of the program, also in the folder into which `install` copies it.
pub const PROGRAM: &str = "eval-runner";

/// Variable with the API key of the server. An option would be visible to every process of the machine.
pub const API_KEY: &str = "EVAL_API_KEY";

/// Names of the subcommands.
pub mod commands {
    /// Copies the program into a folder.
    pub const INSTALL: &str = "install";
    /// Asks one model the questions of one test set.
    pub const RUN: &str = "run";
    /// Pairs the answers of both models.
    pub const PAIR: &str = "pair";
}

/// Names of options, without dashes.
pub mod options {
    /// Flag: the harness may run programs that a model has written.
    pub const ALLOW_CODE_EXECUTION: &str = "allow-code-execution";
    /// Flag: the harness may load test sets from a hub.
    pub const ALLOW_ONLINE: &str = "allow-online";
    /// Of the control: at most so many questions of the whole set.
    pub const AT_MOST: &str = "at-most";
    /// Requests that are sent at a time.
    pub const CONCURRENCY: &str = "concurrency";
    /// One-sided confidence, such as 0.95.
    pub const CONFIDENCE: &str = "confidence";
    /// The test set of the null control.
    pub const CONTROL: &str = "control";
    /// Name of the dataset in the harness.
    pub const DATASET: &str = "dataset";
    /// File or folder with the questions.
    pub const DATASET_PATH: &str = "dataset-path";
    /// [`super::CHAT`] or [`super::COMPLETIONS`].
    pub const ENDPOINT: &str = "endpoint";
    /// `terminationGracePeriodSeconds` of the pod.
    pub const GRACE_SECONDS: &str = "grace-seconds";
    /// [`super::EVALSCOPE`] or [`super::LM_EVAL`].
    pub const HARNESS: &str = "harness";
    /// What the model is. Answers of another identity are not used.
    pub const IDENTITY: &str = "identity";
    /// Questions of each subset.
    pub const LIMIT: &str = "limit";
    pub const MAX_TOKENS: &str = "max-tokens";
    /// The score to compare, if the harness gives several.
    pub const METRIC: &str = "metric";
    /// Name of the model in the API; without it, the only one there.
    pub const MODEL: &str = "model";
    /// Folder of the evaluation on the volume.
    pub const OUTPUT_DIR: &str = "output-dir";
    pub const SEED: &str = "seed";
    /// How long the server may be silent.
    pub const SERVER_SECONDS: &str = "server-seconds";
    /// [`super::BASELINE`], [`super::CONTROL`] or [`super::CANDIDATE`].
    pub const SIDE: &str = "side";
    /// A subset of the dataset. May be repeated.
    pub const SUBSET: &str = "subset";
    pub const TEMPERATURE: &str = "temperature";
    /// Name of the test set in files. `pair` takes several.
    pub const TEST_SET: &str = "test-set";
    /// Of the OpenAI API, with its `/v1`.
    pub const URL: &str = "url";
    /// Where the harness writes.
    pub const WORK_DIR: &str = "work-dir";
}

/// Values of [`options::HARNESS`].
pub const EVALSCOPE: &str = "evalscope";
pub const LM_EVAL: &str = "lm-eval";

/// Values of [`options::ENDPOINT`].
pub const CHAT: &str = "chat";
pub const COMPLETIONS: &str = "completions";

/// Values of [`options::SIDE`].
pub const BASELINE: &str = "baseline";
pub const CANDIDATE: &str = "candidate";
/// The baseline, asked again.
pub const CONTROL: &str = "control";

/// The most test sets of one [`commands::PAIR`], so that the message has room for their results.
pub const MOST_TEST_SETS: usize = 16;

/// The longest name of a test set: it is the name of a file.
pub const LONGEST_TEST_SET: usize = 63;

/// How a run ended. 0 means that its result is complete. The numbers are a contract between images of different releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// The pod was asked to end.
    Stopped = 80,
    /// The questions are not there.
    DatasetNotFound = 81,
    /// The questions would be loaded from a hub.
    DatasetOnlineForbidden = 82,
    /// The test set would run code.
    CodeExecutionForbidden = 83,
    /// The server does not answer, refuses the key, has no such model, or has gone.
    ServerFailed = 84,
    /// The harness has ended with an error, or without some of the questions.
    HarnessFailed = 85,
    /// The image has no program of the harness.
    HarnessNotFound = 86,
    /// What the harness has written cannot be read, or no answer could be parsed.
    OutputUnreadable = 87,
    /// Too many requests of a side have failed.
    TooManyErrors = 88,
    /// The two sides answered different questions.
    PairingFailed = 89,
    /// The volume is full.
    OutOfSpace = 90,
    /// The volume cannot be read or written.
    VolumeUnusable = 91,
    /// The command line is invalid: a fault of the controller, not of the user.
    Usage = 92,
    /// The harness cannot ask this test set here, with any model.
    TestSetUnsupported = 93,
}

impl ExitCode {
    pub const ALL: [ExitCode; 14] = [
        ExitCode::Stopped,
        ExitCode::DatasetNotFound,
        ExitCode::DatasetOnlineForbidden,
        ExitCode::CodeExecutionForbidden,
        ExitCode::ServerFailed,
        ExitCode::HarnessFailed,
        ExitCode::HarnessNotFound,
        ExitCode::OutputUnreadable,
        ExitCode::TooManyErrors,
        ExitCode::PairingFailed,
        ExitCode::OutOfSpace,
        ExitCode::VolumeUnusable,
        ExitCode::Usage,
        ExitCode::TestSetUnsupported,
    ];

    /// The exit code of a terminated container, if the runner defines it.
    pub fn from_code(code: i32) -> Option<ExitCode> {
        ExitCode::ALL.into_iter().find(|known| known.code() == code)
    }

    /// The number in the state of a container.
    pub fn code(self) -> i32 {
        i32::from(self as u8)
    }

    /// Its name, which is also `reason` of the message.
    pub fn as_reason(self) -> &'static str {
        match self {
            ExitCode::Stopped => "Stopped",
            ExitCode::DatasetNotFound => "DatasetNotFound",
            ExitCode::DatasetOnlineForbidden => "DatasetOnlineForbidden",
            ExitCode::CodeExecutionForbidden => "CodeExecutionForbidden",
            ExitCode::ServerFailed => "ServerFailed",
            ExitCode::HarnessFailed => "HarnessFailed",
            ExitCode::HarnessNotFound => "HarnessNotFound",
            ExitCode::OutputUnreadable => "OutputUnreadable",
            ExitCode::TooManyErrors => "TooManyErrors",
            ExitCode::PairingFailed => "PairingFailed",
            ExitCode::OutOfSpace => "OutOfSpace",
            ExitCode::VolumeUnusable => "VolumeUnusable",
            ExitCode::Usage => "Usage",
            ExitCode::TestSetUnsupported => "TestSetUnsupported",
        }
    }

    /// Whether another try may end otherwise.
    pub fn may_be_repeated(self) -> bool {
        match self {
            ExitCode::Stopped
            | ExitCode::ServerFailed
            | ExitCode::HarnessFailed
            | ExitCode::VolumeUnusable => true,
            ExitCode::DatasetNotFound
            | ExitCode::DatasetOnlineForbidden
            | ExitCode::CodeExecutionForbidden
            | ExitCode::HarnessNotFound
            | ExitCode::OutputUnreadable
            | ExitCode::TooManyErrors
            | ExitCode::PairingFailed
            | ExitCode::OutOfSpace
            | ExitCode::Usage
            | ExitCode::TestSetUnsupported => false,
        }
    }
}

/// The termination message, as JSON of at most [`super::LONGEST_MESSAGE`] bytes. Fields that a release does not know are
/// ignored.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Message {
    /// What [`commands::RUN`] has found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub side: Option<Side>,
    /// What [`commands::PAIR`] has found, in the order of its test sets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<Pair>,
    /// The baseline and its control.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<Pair>,
    /// Name of the exit code of a run that has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What has failed, and how to mend it, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The last lines of the harness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<String>,
}

/// What one model answered to one test set.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Side {
    /// All that were asked, also those whose request failed.
    pub questions: u64,
    /// Questions whose request failed; they count as wrong.
    pub failed: u64,
    /// Answers that the harness could not read; they count as wrong.
    pub unparsed: u64,
    /// Subsets with at least one answer.
    pub subsets: u64,
    /// Right answers; absent if there are scores between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub right: Option<u64>,
    /// Mean of the scores, with six digits.
    pub mean: String,
    /// The score that was read.
    pub metric: String,
    pub harness: String,
    /// Empty if the harness does not say it.
    pub harness_version: String,
    /// Neither the harness nor the files say how many questions there are.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unchecked: bool,
    /// Of the file with the scores, in hexadecimal.
    pub sha256: String,
    /// The result of an earlier run was there, and no question was asked.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reused: bool,
}

/// Both models on one test set: counts, or `graded`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Pair {
    #[serde(skip_serializing_if = "is_zero")]
    pub both_right: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub only_baseline: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub only_candidate: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub both_wrong: u64,
    /// In place of the counts, if there are scores between, or a question was asked several times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graded: Option<Graded>,
}

/// Decimal strings, in units of the score.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Graded {
    /// Answers of each side.
    pub n: u64,
    /// Different questions.
    pub groups: u64,
    pub baseline: String,
    pub candidate: String,
    /// Candidate minus baseline.
    pub difference: String,
    pub low: String,
    pub high: String,
    /// Lower bound of the candidate's mean.
    pub candidate_low: String,
    pub p_value: String,
}

/// A message must be short, and what is absent is 0.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_its_number() {
        for code in ExitCode::ALL {
            assert_eq!(ExitCode::from_code(code.code()), Some(code));
            assert_eq!(format!("{code:?}"), code.as_reason());
        }
        for foreign in [0, 1, 2, 79, 94, 137, 143, -1] {
            assert_eq!(ExitCode::from_code(foreign), None);
        }
    }

    #[test]
    fn a_message_of_another_release_is_read() {
        let text = r#"{"pairs":[{"bothRight":3,"later":1}],"later":{}}"#;
        let message: Message = serde_json::from_str(text).unwrap();
        assert_eq!(message.pairs[0].both_right, 3);
        assert_eq!(serde_json::to_string(&Message::default()).unwrap(), "{}");
    }
}
