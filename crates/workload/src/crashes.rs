//! Why engines crashed, in their own words: which log is read, what of it is the cause, and what is known already.
//!
//! The cause is rarely in the last line: vLLM ends with "see root cause above", a hundred lines after it. What is known is
//! kept in memory only; after a restart of the process the logs are read again.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// A log to read: the container's last run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Log {
    pub uid: String,
    pub pod: String,
    pub container: String,
    pub restarts: i32,
    /// It runs or waits again, so the log that matters is that of the run before.
    pub previous: bool,
}

/// Causes by uid of the pod.
#[derive(Debug, Default)]
pub struct Crashes(Mutex<HashMap<String, Known>>);

#[derive(Clone, Debug)]
struct Known {
    restarts: i32,
    cause: Option<String>,
}

/// What was read of one pod: nothing, a log without a cause, or a cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crash {
    /// At which restart count the log was read.
    pub read_at: Option<i32>,
    pub cause: Option<String>,
}

/// Pods that crash at one time; beyond that some logs are read again.
const MOST: usize = 1_024;
/// A condition should be read at a glance.
const LONGEST_CAUSE: usize = 240;

/// Words by which a line names the cause, the most telling first.
const TELLING: [&str; 12] = [
    "SafetensorError",
    "CUDA out of memory",
    "OutOfMemoryError",
    "less than desired GPU memory utilization",
    "Invalid repository ID or local directory specified",
    "does not appear to have a file named",
    "failed to load model",
    "failed to load",
    "unrecognized arguments",
    "error: argument",
    "unexpected argument",
    "ModuleNotFoundError",
];
/// Lines that only say that something else went wrong.
const HOLLOW: [&str; 3] =
    ["See root cause above", "Engine core initialization failed", "Traceback (most recent call last)"];
/// Beginnings of values that must not be repeated; a word that has one is replaced.
const SECRETS: [&str; 9] =
    ["hf_", "sk-", "AKIA", "ASIA", "Bearer", "token=", "api-key=", "api_key=", "password="];

impl Crashes {
    pub fn of(&self, uid: &str) -> Crash {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(uid).map_or_else(Crash::default, |known| Crash {
            read_at: Some(known.restarts),
            cause: known.cause.clone(),
        })
    }

    /// `text`: what was read, if it could be.
    pub fn note(&self, log: &Log, text: Option<&str>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.clear();
        }
        let cause = text.and_then(cause_in);
        known.insert(log.uid.clone(), Known { restarts: log.restarts, cause });
    }
}

impl Crash {
    /// Once for each pod that crashes; again, after another crash, if no cause was found.
    pub fn needs_reading(&self, restarts: i32) -> bool {
        self.cause.is_none() && self.read_at != Some(restarts)
    }
}

/// The line that names the cause, without secrets and without what loggers put before it.
fn cause_in(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().map(str::trim_end).filter(|line| !line.trim().is_empty()).collect();
    let is_hollow = |line: &str| HOLLOW.iter().any(|hollow| line.contains(hollow));
    let telling = TELLING.iter().find_map(|word| {
        lines.iter().rev().find(|line| line.contains(word) && !is_hollow(line)).map(|line| from(line, word))
    });
    let cause = telling.or_else(|| last_of_first_traceback(&lines))?;
    let words: Vec<&str> = cause.split_whitespace().map(redacted).collect();
    let text = words.join(" ");
    let end = text.floor_char_boundary(LONGEST_CAUSE);
    Some(text.get(..end).unwrap_or(&text).to_owned()).filter(|text| !text.is_empty())
}

/// From the beginning of the word that is telling, with the name of the error that it belongs to.
fn from<'a>(line: &'a str, word: &str) -> &'a str {
    let at = line.find(word).unwrap_or_default();
    let start = line.get(..at).and_then(|before| before.rfind(' ')).map_or(0, |space| space + 1);
    line.get(start..).unwrap_or(line)
}

/// `ValueError: …`: the first line after a traceback that is not indented.
fn last_of_first_traceback<'a>(lines: &[&'a str]) -> Option<&'a str> {
    let begin = lines.iter().position(|line| line.contains("Traceback (most recent call last)"))?;
    let prefix = lines[begin].find("Traceback").unwrap_or_default();
    let after = lines.iter().skip(begin + 1).filter_map(|line| line.get(prefix..));
    after.into_iter().find(|line| !line.starts_with([' ', '^']) && !line.is_empty())
}

fn redacted(word: &str) -> &str {
    if SECRETS.iter().any(|secret| word.contains(secret)) { "(redacted)" } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vllm(cause: &str) -> String {
        let mut lines = vec!["INFO 11-22 starting".to_owned()];
        lines.push("(EngineCore pid=7) Traceback (most recent call last):".to_owned());
        lines.push("(EngineCore pid=7)   File \"core.py\", line 1, in run".to_owned());
        lines.push(format!("(EngineCore pid=7) {cause}"));
        lines.extend((0..100).map(|line| format!("(APIServer pid=1)   File \"api.py\", line {line}")));
        lines.push("RuntimeError: Engine core initialization failed. See root cause above.".to_owned());
        lines.join("\n")
    }

    #[test]
    fn the_cause_is_found_a_hundred_lines_before_the_end() {
        let log =
            vllm("safetensors_rust.SafetensorError: Error while deserializing header: header too large");
        let cause = "safetensors_rust.SafetensorError: Error while deserializing header: header too large";
        assert_eq!(cause_in(&log).as_deref(), Some(cause));
    }

    #[test]
    fn an_error_without_a_pattern_is_the_last_line_of_the_first_traceback() {
        assert_eq!(
            cause_in(&vllm("ValueError: no such thing")).as_deref(),
            Some("ValueError: no such thing")
        );
        assert_eq!(cause_in("nothing\nof note"), None);
    }

    #[test]
    fn what_the_engines_were_seen_to_write_is_understood() {
        for (line, expected) in [
            (
                "E1122 model_repository_manager.cc:1 failed to load 'vision' version 1: Invalid argument: no backend",
                "failed to load 'vision' version 1: Invalid argument: no backend",
            ),
            (
                "ValueError: Invalid repository ID or local directory specified: '/models'.",
                "Invalid repository ID or local directory specified: '/models'.",
            ),
            ("vllm: error: unrecognized arguments: --headless", "unrecognized arguments: --headless"),
        ] {
            assert_eq!(cause_in(line).as_deref(), Some(expected));
        }
    }

    #[test]
    fn secrets_are_not_repeated_and_the_text_is_bounded() {
        let cause = cause_in("SafetensorError: token=abc hf_secret x").unwrap();
        assert_eq!(cause, "SafetensorError: (redacted) (redacted) x");
        assert!(cause_in(&format!("SafetensorError {}", "é".repeat(500))).unwrap().len() <= LONGEST_CAUSE);
    }

    #[test]
    fn a_log_is_read_once_unless_it_had_no_cause() {
        let crashes = Crashes::default();
        let log = |restarts| Log {
            uid: "a".into(),
            pod: "chat-0".into(),
            container: "engine".into(),
            restarts,
            previous: true,
        };
        assert!(crashes.of("a").needs_reading(2));
        crashes.note(&log(2), None);
        assert!(!crashes.of("a").needs_reading(2) && crashes.of("a").needs_reading(3));
        crashes.note(&log(3), Some("SafetensorError: x"));
        assert!(!crashes.of("a").needs_reading(4));
        assert_eq!(crashes.of("a").cause.as_deref(), Some("SafetensorError: x"));
    }
}
