//! The command line and the environment. No other file reads the environment.

use std::{env, ffi::OsString, path::PathBuf, time::Duration};

use api::{
    aiinference::evaluation,
    launcher::evaluator::{API_KEY, PROGRAM, options},
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use comparison::Confidence;

/// Where a kubelet reads the termination message.
pub(crate) const TERMINATION_LOG: &str = "/dev/termination-log";

/// First process of a container that evaluates a model
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Copies this program into DIR, from which the container of the harness runs it
    Install {
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Asks one side the questions of one test set, and writes the scores
    ///
    /// EVAL_API_KEY is the API key of the server; it may be absent.
    Run(Box<Run>),
    /// Pairs the scores of the baseline and of the candidate
    Pair(Pair),
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Folder of the evaluation, which both sides share
    #[arg(long = options::OUTPUT_DIR, value_name = "DIR")]
    pub(crate) output_dir: PathBuf,
    /// Whose answers these are
    #[arg(long = options::SIDE)]
    pub(crate) side: Side,
    /// Name of the test set, which is the name of its file
    #[arg(long = options::TEST_SET, value_name = "NAME", value_parser = file_name)]
    pub(crate) test_set: String,
    /// What the side is: a file of scores with another identity is replaced
    #[arg(long = options::IDENTITY, value_name = "TEXT")]
    pub(crate) identity: String,
    /// The program that asks the questions
    #[arg(long = options::HARNESS)]
    pub(crate) harness: Harness,
    /// Benchmark or task, by the name that the harness has for it
    #[arg(long = options::DATASET, value_name = "NAME", value_parser = dataset)]
    pub(crate) dataset: String,
    /// File or folder of the questions
    #[arg(long = options::DATASET_PATH, value_name = "PATH")]
    pub(crate) dataset_path: Option<PathBuf>,
    /// Subset of the data set; may be repeated
    #[arg(long = options::SUBSET, value_name = "NAME")]
    pub(crate) subsets: Vec<String>,
    /// Questions of each subset
    #[arg(long = options::LIMIT, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Questions of all subsets; needs the scores of the baseline
    #[arg(long = options::AT_MOST, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) at_most: Option<u64>,
    /// The score to compare, if the harness gives several
    #[arg(long = options::METRIC, value_name = "NAME")]
    pub(crate) metric: Option<String>,
    /// The OpenAI API, with /v1
    #[arg(long = options::URL)]
    pub(crate) url: String,
    /// Name of the model at the server; by default the only one there
    #[arg(long = options::MODEL, value_name = "NAME")]
    pub(crate) model: Option<String>,
    #[arg(long = options::SEED, default_value_t = 42)]
    pub(crate) seed: u32,
    /// From 0 to 2
    #[arg(long = options::TEMPERATURE, default_value = "0", value_parser = temperature)]
    pub(crate) temperature: String,
    /// Longest answer; by default that of the harness
    #[arg(long = options::MAX_TOKENS, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: Option<u32>,
    /// Requests that are sent at a time
    #[arg(long = options::CONCURRENCY, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) concurrency: u32,
    /// Kind of requests
    #[arg(long = options::ENDPOINT, default_value = "chat")]
    pub(crate) endpoint: Endpoint,
    /// The harness may load data sets from hubs
    #[arg(long = options::ALLOW_ONLINE)]
    pub(crate) allow_online: bool,
    /// Benchmarks may run code that a model wrote, and task files may have code of their own
    #[arg(long = options::ALLOW_CODE_EXECUTION)]
    pub(crate) allow_code_execution: bool,
    /// How long the server may be without an answer
    #[arg(long = options::SERVER_SECONDS, default_value = "600", value_parser = seconds)]
    pub(crate) server_within: Duration,
    /// terminationGracePeriodSeconds of the pod
    #[arg(long = options::GRACE_SECONDS, default_value = "30", value_parser = seconds)]
    pub(crate) grace: Duration,
    /// Where the harness writes; it is emptied first [default: below the folder of the evaluation]
    #[arg(long, value_name = "DIR")]
    pub(crate) work_dir: Option<PathBuf>,
    #[arg(long, hide = true, default_value = TERMINATION_LOG)]
    pub(crate) termination_log: PathBuf,
    /// For tests: divides every internal waiting time
    #[arg(long, hide = true, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) time_divisor: u32,
    /// The program of the harness, and arguments before its own [default: evalscope or lm-eval]
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Pair {
    /// Folder of the evaluation, which both sides share
    #[arg(long = options::OUTPUT_DIR, value_name = "DIR")]
    pub(crate) output_dir: PathBuf,
    /// Name of a test set; may be repeated
    #[arg(long = options::TEST_SET, value_name = "NAME", value_parser = file_name, required = true)]
    pub(crate) test_sets: Vec<String>,
    /// The test set whose control is paired with its baseline
    #[arg(long = options::CONTROL, value_name = "NAME", value_parser = file_name)]
    pub(crate) control: Option<String>,
    #[arg(long = options::SEED, default_value_t = 42)]
    pub(crate) seed: u32,
    /// One-sided confidence of the bounds of graded scores
    #[arg(long = options::CONFIDENCE, default_value = "0.95", value_parser = Confidence::parse)]
    pub(crate) confidence: Confidence,
    #[arg(long, hide = true, default_value = TERMINATION_LOG)]
    pub(crate) termination_log: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    Baseline,
    Candidate,
    /// The baseline, asked again
    Control,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Harness {
    Evalscope,
    LmEval,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Endpoint {
    Chat,
    /// Text completions, for models without a chat template
    Completions,
}

impl Side {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Candidate => "candidate",
            Self::Control => "control",
        }
    }
}

impl Harness {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Evalscope => "evalscope",
            Self::LmEval => "lm-eval",
        }
    }

    pub(crate) fn of_spec(self) -> evaluation::Harness {
        match self {
            Self::Evalscope => evaluation::Harness::EvalScope,
            Self::LmEval => evaluation::Harness::LmEval,
        }
    }
}

impl Endpoint {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
        }
    }

    pub(crate) fn of_spec(self) -> evaluation::Requests {
        match self {
            Self::Chat => evaluation::Requests::Chat,
            Self::Completions => evaluation::Requests::Completions,
        }
    }
}

/// The API key of the server. It has no `Debug`, so that it is in no message by accident.
#[derive(Clone)]
pub(crate) struct Key(Option<String>);

impl Key {
    pub(crate) fn of_environment() -> Self {
        Self(env::var(API_KEY).ok().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty()))
    }

    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// For the environment of a harness and the header of a request.
    pub(crate) fn reveal(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// The text without the key.
    pub(crate) fn removed(&self, text: &str) -> String {
        self.0.as_deref().map_or_else(|| text.to_owned(), |key| text.replace(key, "(redacted)"))
    }
}

/// What may be the name of a file of scores.
fn file_name(text: &str) -> Result<String, String> {
    let is_first = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let is_rest = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    if is_first && text.len() <= 63 && text.bytes().all(is_rest) {
        return Ok(text.to_owned());
    }
    Err("must have 1 to 63 of a-z, 0-9, '-', '_' and '.', and begin with a letter or a digit".to_owned())
}

/// Part of the name of a folder of the harness, and never an option of it.
fn dataset(text: &str) -> Result<String, String> {
    let is_rest = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        && text.len() <= 128
        && text.bytes().all(is_rest)
    {
        return Ok(text.to_owned());
    }
    Err("must have 1 to 128 letters, digits, '-', '_' and '.', and begin with a letter or a digit".to_owned())
}

/// A decimal number stays text, so that the harness reads what the user wrote.
fn temperature(text: &str) -> Result<String, String> {
    let is_decimal = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    match text.parse::<f64>() {
        Ok(number) if is_decimal && (0.0..=2.0).contains(&number) => Ok(text.to_owned()),
        Ok(_) | Err(_) => Err("must be a decimal number from 0 to 2".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<u32>().ok().filter(|seconds| *seconds > 0);
    seconds
        .map(|seconds| Duration::from_secs(u64::from(seconds)))
        .ok_or_else(|| "must be a number of seconds".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        for (side, harness) in [(Side::Baseline, Harness::Evalscope), (Side::Control, Harness::LmEval)] {
            let name = side.to_possible_value().unwrap();
            assert_eq!(name.get_name(), side.as_str());
            assert_eq!(harness.to_possible_value().unwrap().get_name(), harness.as_str());
        }
    }

    /// A test of the controller compares the file with what it renders.
    #[test]
    fn the_arguments_that_the_controller_renders_are_read() {
        let file = include_str!("../tests/fixtures/arguments.json");
        let lists: Vec<Vec<String>> = serde_json::from_str(file).unwrap();
        let read = |words: Vec<String>| {
            // As Kubernetes reads them.
            let words = words.into_iter().map(|word| word.replace("$$", "$"));
            Arguments::try_parse_from([PROGRAM.to_owned()].into_iter().chain(words))
        };
        let commands: Vec<Command> = lists.into_iter().map(|words| read(words).unwrap().command).collect();
        let [
            Command::Install { folder },
            Command::Run(first),
            Command::Run(control),
            Command::Pair(pair),
            Command::Run(all),
            Command::Run(online),
        ] = &commands[..]
        else {
            panic!("{commands:?}")
        };
        assert_eq!(folder.to_str(), Some("/opt/eval-runner"));
        assert_eq!(
            (first.side, first.harness, &*first.dataset),
            (Side::Baseline, Harness::Evalscope, "cmmlu")
        );
        assert_eq!((control.side, control.at_most), (Side::Control, Some(200)));
        assert_eq!(
            (&pair.test_sets[..], pair.control.as_deref()),
            (&["cmmlu".to_owned()][..], Some("cmmlu"))
        );
        assert_eq!(all.subsets, ["a $(HOME)", "c"]);
        assert_eq!((all.limit, all.max_tokens), (Some(5), Some(64)));
        assert_eq!((all.seed, all.concurrency, &*all.temperature), (9, 3, "0.7"));
        assert!(all.allow_code_execution && !all.allow_online && all.metric.is_some());
        assert_eq!((online.harness, online.endpoint), (Harness::LmEval, Endpoint::Completions));
        assert!(online.allow_online && online.dataset_path.is_none());
    }

    #[test]
    fn names_are_neither_paths_nor_options() {
        for name in ["", "..", ".x", "-x", "a/b", "A", "a b", &"a".repeat(64)] {
            assert!(file_name(name).is_err(), "{name}");
        }
        for name in ["", "--x", "a/b", "..", "a b", "a\nb"] {
            assert!(dataset(name).is_err(), "{name}");
        }
        assert!(file_name("mmlu-zh_1.0").is_ok() && dataset("general_mcq").is_ok());
        for text in ["-1", "2.1", "1e0", "nan", "", "0,5"] {
            assert!(temperature(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_key_is_removed_from_texts() {
        let key = Key(Some("s3cret".to_owned()));
        assert_eq!(key.removed("a s3cret b"), "a (redacted) b");
        assert_eq!(Key::none().removed("a"), "a");
    }
}
