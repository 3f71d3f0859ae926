//! Why engines crashed, by their logs: which log is read, what of it is the cause, and what is known already.
//!
//! The cause is rarely in the last line: vLLM ends with "see root cause above", a hundred lines after it. Logs hold what
//! clients of the engine sent, too, so only a line that states an error is believed, and nothing that looks like a secret is
//! repeated. What is known is kept in memory only; after a restart of the process the logs are read again.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use text::printable;

use crate::{
    container::{is_out_of_memory, keeps_ending},
    pod::{Container, PodView},
    redaction::redacted,
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

/// What came of reading a log.
#[derive(Clone, Copy, Debug)]
pub enum Reading<'a> {
    Text(&'a str),
    /// It is gone, or its node does not answer as it should.
    Unreadable,
    /// There is no right to read it.
    Forbidden,
}

/// What is known of crashes, by uid of the pod.
#[derive(Debug, Default)]
pub struct Crashes(Mutex<HashMap<String, Crash>>);

/// What is known of the crashes of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Crash {
    #[default]
    Unread,
    /// Its log was read, or could not be, at this restart count, and names no cause.
    Silent {
        restarts: i32,
    },
    Known {
        cause: String,
    },
    /// Its log is not asked for (again): there is no right to, or too many pods crash at one time.
    Closed,
}

/// Pods that crash at one time; of more than these no log is read.
const MOST: usize = 1_024;
/// A condition should be read at a glance.
const LONGEST_CAUSE: usize = 240;
/// Of an error that is not in the table: its class says most.
const LONGEST_MESSAGE: usize = 120;

/// Where in a line a cause may stand.
enum Place {
    /// It is the class of the exception.
    Class,
    /// It is in the message of an exception, or of an error of the program itself.
    Message,
}

/// Words by which a line names the cause, in order of precedence.
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
/// Errors that only say that something else went wrong.
const CONSEQUENCES: [&str; 4] = [
    "See root cause above",
    "See stack trace for root cause",
    "Engine core initialization failed",
    "WorkerProc initialization failed",
];
const TRACEBACK: &str = "Traceback (most recent call last)";

impl Crashes {
    /// The pod is gone.
    pub fn forget(&self, uid: &str) {
        self.known().remove(uid);
    }

    pub fn of(&self, uid: &str) -> Crash {
        let known = self.known();
        let full = if known.len() < MOST { Crash::Unread } else { Crash::Closed };
        known.get(uid).cloned().unwrap_or(full)
    }

    pub fn note(&self, log: &Log, reading: Reading<'_>) {
        let crash = match reading {
            Reading::Forbidden => Crash::Closed,
            Reading::Unreadable => Crash::Silent { restarts: log.restarts },
            Reading::Text(text) => match cause_in(text) {
                Some(cause) => Crash::Known { cause },
                None => Crash::Silent { restarts: log.restarts },
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

/// The log of a container that keeps ending, unless what is known of it is enough.
pub fn log_to_read(pod: &PodView, container: &Container, known: &Crash) -> Option<Log> {
    keeps_ending(container).filter(|ended| !is_out_of_memory(ended))?;
    let restarts = container.restart_count;
    known.needs_reading(restarts).then(|| Log {
        uid: pod.uid().to_owned(),
        pod: pod.name().to_owned(),
        container: container.name.clone(),
        restarts,
        previous: container.state.terminated.is_none(),
    })
}

impl Crash {
    /// Once for each pod that crashes; again, after another crash, if no cause was found.
    pub fn needs_reading(&self, restarts: i32) -> bool {
        match self {
            Self::Unread => true,
            Self::Silent { restarts: read_at } => *read_at != restarts,
            Self::Known { .. } | Self::Closed => false,
        }
    }

    pub fn cause(&self) -> Option<&str> {
        match self {
            Self::Known { cause } => Some(cause),
            Self::Unread | Self::Silent { .. } | Self::Closed => None,
        }
    }
}

/// The cause that the log names, as it may be repeated.
pub fn cause_in(log: &str) -> Option<String> {
    let lines: Vec<String> = log.lines().map(printable).filter(|line| !line.trim().is_empty()).collect();
    let errors: Vec<&str> = lines.iter().filter_map(|line| stated_in(line)).collect();
    // The last one of a kind is the one that ended the engine: it may have got over others of that kind.
    let of_table = CAUSES.iter().find_map(|(words, place)| {
        errors.iter().rev().find_map(|error| stated_by(error, words, place)).map(redacted)
    });
    let (cause, longest) = match of_table {
        Some(cause) => (cause, LONGEST_CAUSE),
        None => {
            let error = last_raised(&lines)?;
            let class = class_of(error)?;
            let said = redacted(error.get(class.len()..).unwrap_or_default());
            (format!("{class}{said}"), class.len() + LONGEST_MESSAGE)
        }
    };
    let end = cause.floor_char_boundary(longest.min(LONGEST_CAUSE));
    Some(cause.get(..end).unwrap_or(&cause).to_owned()).filter(|text| !text.is_empty())
}

/// The error that a line states: `ValueError: …`, `vllm: error: …`, or a line of glog's level E. Anything else, requests
/// of clients above all, may hold the same words and is no error.
fn stated_in(line: &str) -> Option<&str> {
    let said = without_prefix(line);
    let is_access = line.contains("\" HTTP/") || line.contains(" HTTP/1.") || line.contains(" HTTP/2");
    let is_consequence = CONSEQUENCES.iter().any(|hollow| said.contains(hollow));
    let glog = said.strip_prefix('E').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let program = said.split_once("error: ").is_some_and(|(program, _)| is_program(program));
    (!is_access && !is_consequence && (glog.is_some() || program || class_of(said).is_some())).then_some(said)
}

/// A line without the process that wrote it, `(EngineCore pid=7) `, and without what Python's loggers put before an error,
/// `ERROR 11-22 10:00:00 [core.py:7] `.
fn without_prefix(line: &str) -> &str {
    let said = line.strip_prefix('(').and_then(|line| line.split_once(") ")).map_or(line, |(_, said)| said);
    said.strip_prefix("ERROR ").and_then(|said| said.split_once("] ")).map_or(said, |(_, said)| said)
}

/// `vllm: ` or nothing.
fn is_program(before: &str) -> bool {
    let name = before.strip_suffix(": ").unwrap_or(before);
    name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// The class that a Python exception begins with, with its modules.
fn class_of(said: &str) -> Option<&str> {
    let end =
        said.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))).unwrap_or(said.len());
    let (class, rest) = said.split_at(end);
    let name = class.rsplit('.').next().unwrap_or_default();
    let is_class = name.starts_with(|c: char| c.is_ascii_uppercase())
        && ["Error", "Exception", "Exit", "Interrupt", "Timeout"].iter().any(|ending| name.ends_with(ending));
    (is_class && (rest.is_empty() || rest.starts_with(": "))).then_some(class)
}

/// What is repeated of an error that has these words in their place: from the beginning of the first of these words.
fn stated_by<'a>(error: &'a str, words: &str, place: &Place) -> Option<&'a str> {
    match place {
        Place::Class => class_of(error).filter(|class| class.ends_with(words)).map(|_| error),
        Place::Message => {
            let at = error.find(words)?;
            let start = error[..at].rfind(' ').map_or(0, |space| space + 1);
            error.get(start..)
        }
    }
}

/// `ValueError: …`: the first line after a traceback that is not indented; of the last traceback that says more than that
/// another one went wrong.
fn last_raised(lines: &[String]) -> Option<&str> {
    let tracebacks =
        lines.iter().enumerate().rev().filter_map(|(at, line)| Some((at, line.find(TRACEBACK)?)));
    tracebacks.into_iter().find_map(|(at, column)| {
        let mut after = lines[at + 1..].iter().filter_map(|line| line.get(column..));
        let raised = after.find(|line| !line.starts_with([' ', '^']) && !line.is_empty())?;
        stated_in(raised)
    })
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

    fn log(uid: &str, restarts: i32) -> Log {
        Log { uid: uid.into(), pod: "chat-0".into(), container: "engine".into(), restarts, previous: true }
    }

    #[test]
    fn the_cause_is_found_a_hundred_lines_before_the_end() {
        let log =
            vllm("safetensors_rust.SafetensorError: Error while deserializing header: header too large");
        let cause = "safetensors_rust.SafetensorError: Error while deserializing header: header too large";
        assert_eq!(cause_in(&log).as_deref(), Some(cause));
    }

    #[test]
    fn an_error_without_a_pattern_is_the_last_one_that_was_raised_and_says_why() {
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
    fn of_an_unknown_error_the_class_and_a_short_message_are_repeated() {
        let said = format!("ValueError: cannot log in with --password {} {}", "hunter2", "x".repeat(500));
        let cause = cause_in(&vllm(&said)).unwrap();
        assert!(cause.starts_with("ValueError: cannot log in with --password (redacted) xxx"), "{cause}");
        assert!(cause.len() <= "ValueError".len() + LONGEST_MESSAGE, "{}", cause.len());
        assert_eq!(cause_in(&vllm("hunter2 is what it printed")), None, "no exception");
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
    fn what_clients_of_the_engine_send_is_never_a_cause() {
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
    fn secrets_and_what_acts_on_a_terminal_are_not_repeated_and_the_text_is_bounded() {
        let cause = cause_in("SafetensorError: token=abc hf_secret \u{202e}x\u{1b}[31my").unwrap();
        assert_eq!(cause, "SafetensorError: token=(redacted) (redacted) xy");
        assert!(cause_in(&format!("SafetensorError: {}", "é".repeat(500))).unwrap().len() <= LONGEST_CAUSE);
    }

    #[test]
    fn a_log_is_read_once_unless_it_had_no_cause() {
        let crashes = Crashes::default();
        assert!(crashes.of("a").needs_reading(2));
        crashes.note(&log("a", 2), Reading::Unreadable);
        assert!(!crashes.of("a").needs_reading(2) && crashes.of("a").needs_reading(3));
        crashes.note(&log("a", 3), Reading::Text("SafetensorError: x"));
        assert!(!crashes.of("a").needs_reading(4));
        assert_eq!(crashes.of("a").cause(), Some("SafetensorError: x"));
    }

    #[test]
    fn a_log_that_may_not_be_read_is_not_asked_for_again() {
        let crashes = Crashes::default();
        crashes.note(&log("a", 2), Reading::Forbidden);
        assert!(!crashes.of("a").needs_reading(3));
    }

    #[test]
    fn with_too_many_crashing_pods_what_is_known_stays_and_no_more_is_read() {
        let crashes = Crashes::default();
        crashes.note(&log("first", 1), Reading::Text("SafetensorError: x"));
        for number in 1..MOST + 10 {
            crashes.note(&log(&number.to_string(), 1), Reading::Unreadable);
        }
        assert_eq!(crashes.of("first").cause(), Some("SafetensorError: x"));
        assert!(!crashes.of("another").needs_reading(1), "it would be read in every reconcile");
        crashes.forget("first");
        assert!(crashes.of("first").needs_reading(1), "it is forgotten, and there is room for one more");
    }

    #[test]
    fn the_log_of_the_run_that_ended_is_read_unless_the_cause_is_known() {
        let read = |state: &str, known: Crash| {
            let parts = format!("{{name: engine, restartCount: 2, {state}}}");
            let log = log_to_read(&PodView::default(), &serde_saphyr::from_str(&parts).unwrap(), &known);
            log.map(|log| log.previous)
        };
        let ended = "state: {terminated: {exitCode: 1}}";
        assert_eq!(read(ended, Crash::Unread), Some(false));
        assert_eq!(
            read("state: {running: {}}, lastState: {terminated: {exitCode: 1}}", Crash::Unread),
            Some(true)
        );
        assert_eq!(read("state: {terminated: {exitCode: 137, reason: OOMKilled}}", Crash::Unread), None);
        assert_eq!(read(ended, Crash::Silent { restarts: 2 }), None);
        assert_eq!(read(ended, Crash::Silent { restarts: 1 }), Some(false));
        assert_eq!(read(ended, Crash::Known { cause: "x".to_owned() }), None);
    }
}
