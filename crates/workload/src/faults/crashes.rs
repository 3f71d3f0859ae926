//! Why engines crashed, from their logs: which log to read, which line is the cause, and which causes are known.
//!
//! The cause is rarely in the last line: vLLM ends with "see root cause above", a hundred lines after it. Logs also contain
//! text from clients of the engine, so only lines in the form of an error count, and secrets are removed. The causes are
//! kept in memory only; after a restart of the process the logs are read again.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use text::{printable, redacted};

use crate::{
    faults::container::is_out_of_memory,
    views::pod::{Container, PodView, Terminated},
};

/// A log to read: that of the run that ended last.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Log {
    pub uid: String,
    pub pod: String,
    pub container: String,
    pub restarts: i32,
    /// Whether the run that ended is the previous one: the container runs or waits again.
    pub previous: bool,
}

/// The result of reading a log.
#[derive(Clone, Copy, Debug)]
pub enum Reading<'a> {
    Text(&'a str),
    /// The log is gone, or the kubelet cannot be reached.
    Unreadable,
    /// The controller has no right to read it.
    Forbidden,
}

/// Causes of crashes, by uid of the pod.
#[derive(Debug, Default)]
pub struct Crashes(Mutex<HashMap<String, Crash>>);

/// The cause of the crashes of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Crash {
    #[default]
    Unread,
    /// At this restart count the log named no cause or was unreadable.
    Unknown {
        restarts: i32,
    },
    Known {
        cause: String,
    },
    /// The log is not read: the right is missing, or too many pods are crashing.
    NotRead,
}

/// Maximum number of entries; logs of further pods are not read.
const MOST: usize = 1_024;
/// In bytes: a condition should fit a few lines of a terminal.
const LONGEST_CAUSE: usize = 240;
/// In bytes, for errors that are not in `CAUSES`; their class is the most useful part.
const LONGEST_MESSAGE: usize = 120;

/// The part of a line in which a pattern must occur.
enum Place {
    /// The class of an exception.
    Class,
    /// The message of an exception, or of another error of the program.
    Message,
}

/// Patterns of lines that name the cause, in order of precedence.
const CAUSES: [(&str, Place); 12] = [
    ("SafetensorError", Place::Class),
    ("CUDA out of memory", Place::Message),
    ("OutOfMemoryError", Place::Class),
    ("less than desired GPU memory utilization", Place::Message),
    ("Invalid repository ID or local directory specified", Place::Message),
    ("does not appear to have a file named", Place::Message),
    ("failed to load model", Place::Message),
    ("failed to load", Place::Message),
    ("unrecognized arguments", Place::Message),
    ("error: argument", Place::Message),
    ("unexpected argument", Place::Message),
    ("ModuleNotFoundError", Place::Class),
];
/// Errors that only refer to another error.
const CONSEQUENCES: [&str; 4] = [
    "See root cause above",
    "See stack trace for root cause",
    "Engine core initialization failed",
    "WorkerProc initialization failed",
];
const TRACEBACK: &str = "Traceback (most recent call last)";

impl Crashes {
    /// Removes a deleted pod.
    pub fn forget(&self, uid: &str) {
        self.known().remove(uid);
    }

    pub fn of(&self, uid: &str) -> Crash {
        let known = self.known();
        let full = if known.len() < MOST { Crash::Unread } else { Crash::NotRead };
        known.get(uid).cloned().unwrap_or(full)
    }

    pub fn note(&self, log: &Log, reading: Reading<'_>) {
        let crash = match reading {
            Reading::Forbidden => Crash::NotRead,
            Reading::Unreadable => Crash::Unknown { restarts: log.restarts },
            Reading::Text(text) => match cause_in(text) {
                Some(cause) => Crash::Known { cause },
                None => Crash::Unknown { restarts: log.restarts },
            },
        };
        let mut known = self.known();
        if known.len() < MOST || known.contains_key(&log.uid) {
            known.insert(log.uid.clone(), crash);
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Crash>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The log of a container's run that has ended, unless its cause is known.
pub fn log_to_read(pod: &PodView, container: &Container, ended: &Terminated, known: &Crash) -> Option<Log> {
    let restarts = container.restart_count;
    (!is_out_of_memory(ended) && known.needs_reading(restarts)).then(|| Log {
        uid: pod.uid().to_owned(),
        pod: pod.name().to_owned(),
        container: container.name.clone(),
        restarts,
        previous: container.state.terminated.is_none(),
    })
}

impl Crash {
    /// Once per pod; after further crashes only if no cause was found.
    fn needs_reading(&self, restarts: i32) -> bool {
        match self {
            Self::Unread => true,
            Self::Unknown { restarts: read_at } => *read_at != restarts,
            Self::Known { .. } | Self::NotRead => false,
        }
    }

    pub fn cause(&self) -> Option<&str> {
        match self {
            Self::Known { cause } => Some(cause),
            Self::Unread | Self::Unknown { .. } | Self::NotRead => None,
        }
    }
}

/// The cause that a log names, without secrets and cut to a bounded length.
fn cause_in(log: &str) -> Option<String> {
    let lines: Vec<String> = log.lines().map(printable).filter(|line| !line.trim().is_empty()).collect();
    let errors: Vec<&str> = lines.iter().filter_map(|line| error_in(line)).collect();
    // The last error of a pattern ended the engine; it may have recovered from earlier ones.
    let of_table = CAUSES.iter().find_map(|(words, place)| {
        errors.iter().rev().find_map(|error| matching(error, words, place)).map(redacted)
    });
    let (cause, longest) = match of_table {
        Some(cause) => (cause, LONGEST_CAUSE),
        None => {
            let error = last_raised(&lines)?;
            let class = class_of(error)?;
            let message = redacted(error.get(class.len()..).unwrap_or_default());
            (format!("{class}{message}"), class.len() + LONGEST_MESSAGE)
        }
    };
    let end = cause.floor_char_boundary(longest.min(LONGEST_CAUSE));
    Some(cause.get(..end).unwrap_or(&cause).to_owned()).filter(|text| !text.is_empty())
}

/// The error in a line: `ValueError: …`, `vllm: error: …`, or a line of glog's level E. Other lines, such as logged
/// requests, may contain the same words but are no errors.
fn error_in(line: &str) -> Option<&str> {
    let text = without_prefix(line);
    let is_access = line.contains("\" HTTP/") || line.contains(" HTTP/1.") || line.contains(" HTTP/2");
    let is_consequence = CONSEQUENCES.iter().any(|phrase| text.contains(phrase));
    let glog = text.strip_prefix('E').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let program = text.split_once("error: ").is_some_and(|(program, _)| is_program(program));
    (!is_access && !is_consequence && (glog.is_some() || program || class_of(text).is_some())).then_some(text)
}

/// A line without the prefix of the process, `(EngineCore pid=7) `, and that of Python's logger, `ERROR 11-22 10:00:00
/// [core.py:7] `.
fn without_prefix(line: &str) -> &str {
    let text = line.strip_prefix('(').and_then(|line| line.split_once(") ")).map_or(line, |(_, text)| text);
    text.strip_prefix("ERROR ").and_then(|text| text.split_once("] ")).map_or(text, |(_, text)| text)
}

/// Whether the text is empty or a program name such as `vllm: `.
fn is_program(before: &str) -> bool {
    let name = before.strip_suffix(": ").unwrap_or(before);
    name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// The qualified class at the beginning of a Python exception.
fn class_of(text: &str) -> Option<&str> {
    let end =
        text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))).unwrap_or(text.len());
    let (class, rest) = text.split_at(end);
    let name = class.rsplit('.').next().unwrap_or_default();
    let is_class = name.starts_with(|c: char| c.is_ascii_uppercase())
        && ["Error", "Exception", "Exit", "Interrupt", "Timeout"].iter().any(|ending| name.ends_with(ending));
    (is_class && (rest.is_empty() || rest.starts_with(": "))).then_some(class)
}

/// The part of an error to show if it matches the pattern: all of it for a class, otherwise from the matching word on.
fn matching<'a>(error: &'a str, words: &str, place: &Place) -> Option<&'a str> {
    match place {
        Place::Class => class_of(error).filter(|class| class.ends_with(words)).map(|_| error),
        Place::Message => {
            let at = error.find(words)?;
            let start = error[..at].rfind(' ').map_or(0, |space| space + 1);
            error.get(start..)
        }
    }
}

/// The exception of the last traceback that is no consequence of another error: the first line after it that is not
/// indented.
fn last_raised(lines: &[String]) -> Option<&str> {
    let tracebacks =
        lines.iter().enumerate().rev().filter_map(|(at, line)| Some((at, line.find(TRACEBACK)?)));
    tracebacks.into_iter().find_map(|(at, column)| {
        let mut after = lines[at + 1..].iter().filter_map(|line| line.get(column..));
        let raised = after.find(|line| !line.starts_with([' ', '^']) && !line.is_empty())?;
        error_in(raised)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::container::last_end;

    fn vllm(cause: &str) -> String {
        let mut lines = vec!["INFO 11-22 starting".to_owned()];
        lines.push("(EngineCore pid=7) Traceback (most recent call last):".to_owned());
        lines.push("(EngineCore pid=7)   File \"core.py\", line 1, in run".to_owned());
        lines.push(format!("(EngineCore pid=7) {cause}"));
        lines.extend((0..100).map(|line| format!("(APIServer pid=1)   File \"api.py\", line {line}")));
        lines.push("RuntimeError: Engine core initialization failed. See root cause above.".to_owned());
        lines.join("\n")
    }

    fn log(uid: &str, restarts: i32) -> Log {
        Log { uid: uid.into(), pod: "chat-0".into(), container: "engine".into(), restarts, previous: true }
    }

    #[test]
    fn a_cause_a_hundred_lines_before_the_end_is_found() {
        let log =
            vllm("safetensors_rust.SafetensorError: Error while deserializing header: header too large");
        let cause = "safetensors_rust.SafetensorError: Error while deserializing header: header too large";
        assert_eq!(cause_in(&log).as_deref(), Some(cause));
    }

    #[test]
    fn without_a_pattern_the_last_raised_exception_is_the_cause() {
        assert_eq!(
            cause_in(&vllm("ValueError: no such thing")).as_deref(),
            Some("ValueError: no such thing")
        );
        let handled = "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'handled'\n";
        let log = format!("{handled}{}", vllm("ValueError: no such thing"));
        assert_eq!(cause_in(&log).as_deref(), Some("ValueError: no such thing"));
        let nested = format!(
            "{}\nTraceback (most recent call last):\n  File \"a.py\", line 1\n\
             Exception: WorkerProc initialization failed due to an exception. See stack trace for root cause.",
            vllm("ValueError: no such thing")
        );
        assert_eq!(cause_in(&nested).as_deref(), Some("ValueError: no such thing"));
        assert_eq!(cause_in("nothing\nof note"), None);
    }

    #[test]
    fn an_unknown_exception_is_shown_with_its_class_and_a_short_message() {
        let error = format!("ValueError: cannot log in with --password {} {}", "hunter2", "x".repeat(500));
        let cause = cause_in(&vllm(&error)).unwrap();
        assert!(cause.starts_with("ValueError: cannot log in with --password (redacted) xxx"), "{cause}");
        assert!(cause.len() <= "ValueError".len() + LONGEST_MESSAGE, "{}", cause.len());
        assert_eq!(cause_in(&vllm("hunter2 is what it printed")), None, "no exception");
    }

    #[test]
    fn observed_errors_of_the_engines_are_recognized() {
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
            ("error: unexpected argument '--x' found", "unexpected argument '--x' found"),
            (
                "(EngineCore_DP0 pid=7) ERROR 11-22 10:00:00 [core.py:718] torch.OutOfMemoryError: CUDA out of memory.",
                "CUDA out of memory.",
            ),
        ] {
            assert_eq!(cause_in(line).as_deref(), Some(expected));
        }
    }

    #[test]
    fn text_from_clients_is_never_a_cause() {
        for line in [
            "INFO:     10.0.0.1:4711 - \"GET /SafetensorError:%20failed HTTP/1.1\" 404 Not Found",
            "10.0.0.1 - - [22/Nov/2026] \"GET /failed to load model HTTP/1.1\" 404 9",
            "ValueError: \"GET /failed to load model HTTP/1.1\" 404",
            "INFO 11-22 10:00:00 [logger.py:1] Received request: prompt: 'SafetensorError: send your key to me'",
            "WARNING 11-22 10:00:00 [chat.py:1] failed to load a template named 'unrecognized arguments'",
            "a prompt that says CUDA out of memory",
        ] {
            assert_eq!(cause_in(line), None, "{line}");
            let log = format!("{}\n{line}", vllm("ValueError: no such thing"));
            assert_eq!(cause_in(&log).as_deref(), Some("ValueError: no such thing"), "{line}");
        }
    }

    #[test]
    fn a_cause_is_bounded_and_has_no_secrets_or_control_characters() {
        let cause = cause_in("SafetensorError: token=abc hf_secret \u{202e}x\u{1b}[31my").unwrap();
        assert_eq!(cause, "SafetensorError: token=(redacted) (redacted) xy");
        assert!(cause_in(&format!("SafetensorError: {}", "é".repeat(500))).unwrap().len() <= LONGEST_CAUSE);
    }

    #[test]
    fn a_log_is_read_again_only_if_it_had_no_cause() {
        let crashes = Crashes::default();
        assert!(crashes.of("a").needs_reading(2));
        crashes.note(&log("a", 2), Reading::Unreadable);
        assert!(!crashes.of("a").needs_reading(2) && crashes.of("a").needs_reading(3));
        crashes.note(&log("a", 3), Reading::Text("SafetensorError: x"));
        assert!(!crashes.of("a").needs_reading(4));
        assert_eq!(crashes.of("a").cause(), Some("SafetensorError: x"));
    }

    #[test]
    fn a_forbidden_log_is_not_requested_again() {
        let crashes = Crashes::default();
        crashes.note(&log("a", 2), Reading::Forbidden);
        assert!(!crashes.of("a").needs_reading(3));
    }

    #[test]
    fn with_too_many_crashing_pods_known_causes_stay_and_no_more_logs_are_read() {
        let crashes = Crashes::default();
        crashes.note(&log("first", 1), Reading::Text("SafetensorError: x"));
        for number in 1..MOST + 10 {
            crashes.note(&log(&number.to_string(), 1), Reading::Unreadable);
        }
        assert_eq!(crashes.of("first").cause(), Some("SafetensorError: x"));
        assert!(!crashes.of("another").needs_reading(1), "otherwise every reconcile would read it");
        crashes.forget("first");
        assert!(crashes.of("first").needs_reading(1), "its entry was removed");
    }

    #[test]
    fn the_log_of_the_ended_run_is_read_unless_the_cause_is_known() {
        let read = |state: &str, known: Crash| {
            let parts = format!("{{name: engine, restartCount: 2, {state}}}");
            let container: Container = serde_saphyr::from_str(&parts).unwrap();
            let log = log_to_read(&PodView::default(), &container, last_end(&container).unwrap(), &known);
            log.map(|log| log.previous)
        };
        let ended = "state: {terminated: {exitCode: 1}}";
        assert_eq!(read(ended, Crash::Unread), Some(false));
        assert_eq!(
            read("state: {running: {}}, lastState: {terminated: {exitCode: 1}}", Crash::Unread),
            Some(true)
        );
        assert_eq!(read("state: {terminated: {exitCode: 137, reason: OOMKilled}}", Crash::Unread), None);
        assert_eq!(read(ended, Crash::Unknown { restarts: 2 }), None);
        assert_eq!(read(ended, Crash::Unknown { restarts: 1 }), Some(false));
        assert_eq!(read(ended, Crash::Known { cause: "x".to_owned() }), None);
    }
}
