//! Lines in the form of an error: exceptions of Python, refusals of argparse, logs of level E of PyTorch and torchrun,
//! and torchrun's report of its processes.
//!
//! Only the beginning of a line decides: the user's data may contain any of these words. Frames of a traceback are
//! indented and no errors.

use crate::{Cause, hub};

/// Endings of the names of exceptions.
const ENDINGS: [&str; 5] = ["Error", "Exception", "Exit", "Interrupt", "Timeout"];
/// Names of exceptions with other endings.
const NAMES: [&str; 7] = [
    "BrokenProcessPool",
    "CacheNotFound",
    "OfflineModeIsEnabled",
    "OutOfResources",
    "StopIteration",
    "TimeoutExpired",
    "Unsupported",
];
/// They only report that a process was stopped, or that another one failed.
const CONSEQUENCES: [&str; 5] =
    ["ChildFailedError", "KeyboardInterrupt", "ProcessExitedException", "SignalException", "SystemExit"];
/// Workers of a DataLoader that end together with their trainer, or for a reason that is not known.
const CONSEQUENT_MESSAGES: [&str; 2] = ["killed by signal: Terminated", "exited unexpectedly"];

/// Beginnings of argparse's messages. Compilers, too, print `cc1plus: error: …`.
const REFUSALS: [&str; 5] = [
    "argument ",
    "unrecognized arguments: ",
    "the following arguments are required: ",
    "ambiguous option: ",
    "one of the arguments ",
];
/// ms-swift's and transformers' refusals of flags that they do not know.
const UNKNOWN_FLAGS: [&str; 2] =
    ["remaining_argv:", "Some specified arguments are not used by the HfArgumentParser"];

/// Exceptions of torch.distributed.
const DISTRIBUTED: [&str; 4] = ["DistBackendError", "DistError", "DistNetworkError", "DistStoreError"];
/// Words of their messages if a connection ended or was not made in time. More common than those that any message may
/// have.
const DISCONNECTED: [&str; 9] = [
    "Broken pipe",
    "Connection closed",
    "Connection refused",
    "Connection reset",
    "failed to recv",
    "has failed to connect",
    "imed out",
    "imeout",
    "unhandled system error",
];

/// Endings of lines of messages that have several lines, and of messages of other programs.
const FULL: [&str; 4] = [
    "No space left on device",
    "No space left on device (os error 28)",
    "Disk quota exceeded",
    "Disk quota exceeded (os error 122)",
];
/// Beginnings of lines that follow `Last error:` in a message of NCCL, and of other reports of the end of a process.
const REPORTS: [&str; 9] = [
    "Cuda failure",
    "Fatal Python error: ",
    "Net : ",
    "ncclRemoteError: ",
    "ncclSystemError: ",
    "ncclUnhandledCudaError: ",
    "socketProgress",
    "terminate called after throwing an instance of ",
    "ERROR:torch.distributed.",
];

/// Whether the text announces a traceback of an exception that does not end the program.
pub(crate) fn announces_ignored(text: &str) -> bool {
    let text = without_prefixes(text);
    text.starts_with("Exception ignored ") || text == "--- Logging error ---"
}

/// For a line in the form of an error its cause, if it names one.
pub(crate) fn cause_of(line: &str) -> Option<Option<Cause>> {
    let text = without_prefixes(line);
    if text.starts_with([' ', '\t']) {
        return report(text.trim_ascii_start());
    }
    if let Some((class, message)) = exception(text) {
        return Some(cause_of_exception(class, message));
    }
    if let Some(message) = refusal(text) {
        let is_refusal = REFUSALS.iter().any(|start| message.starts_with(start));
        return Some(Some(if is_refusal { Cause::InvalidArguments } else { Cause::UserError }));
    }
    if let Some(message) = logged(text) {
        return Some(Cause::named_in(message));
    }
    if REPORTS.iter().any(|start| text.starts_with(start)) || is_full(text) {
        return Some(Cause::named_in(text));
    }
    hub::cause_of_continuation(text).map(Some)
}

/// A line without `[rank1]: `, `[default1]:` of torchrun's tee, and `(Worker pid=7) ` of Ray.
fn without_prefixes(line: &str) -> &str {
    let mut text = line;
    while let Some(after) = of_rank(text).or_else(|| of_actor(text)) {
        text = after;
    }
    text
}

fn of_rank(text: &str) -> Option<&str> {
    let text = text.strip_prefix("[rank").or_else(|| text.strip_prefix("[default"))?;
    let (rank, after) = text.split_once("]:")?;
    rank.bytes().all(|byte| byte.is_ascii_digit()).then(|| after.strip_prefix(' ').unwrap_or(after))
}

fn of_actor(text: &str) -> Option<&str> {
    let (actor, after) = text.strip_prefix('(')?.split_once(") ")?;
    actor.contains("pid=").then_some(after)
}

/// The qualified class of an exception, and its message, which may be empty.
fn exception(text: &str) -> Option<(&str, &str)> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    let end = text.bytes().position(|byte| !is_part(byte)).unwrap_or(text.len());
    let (class, rest) = text.split_at(end);
    let message = match rest.strip_prefix(':') {
        Some(message) if message.is_empty() || message.starts_with(' ') => message.trim_ascii_start(),
        None if rest.is_empty() => "",
        Some(_) | None => return None,
    };
    let (module, name) = class.rsplit_once('.').map_or((None, class), |(module, name)| (Some(module), name));
    // `binascii.Error` is a class, and `Error: …` is any text.
    let has_ending =
        ENDINGS.iter().any(|ending| name.ends_with(ending) && (module.is_some() || name != *ending))
            || name == "Exception";
    let is_name = name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_');
    (is_name && (has_ending || NAMES.contains(&name))).then_some((class, message))
}

fn cause_of_exception(class: &str, message: &str) -> Option<Cause> {
    let (module, name) = class.rsplit_once('.').unwrap_or(("", class));
    if CONSEQUENCES.contains(&name) || CONSEQUENT_MESSAGES.iter().any(|words| message.contains(words)) {
        return None;
    }
    if name == "OutOfMemoryError" {
        return Some(Cause::CudaOutOfMemory);
    }
    // Also numpy's _ArrayMemoryError and ArrowMemoryError.
    if name.ends_with("MemoryError") {
        return Some(Cause::HostOutOfMemory);
    }
    if UNKNOWN_FLAGS.iter().any(|start| message.starts_with(start)) {
        return Some(Cause::InvalidArguments);
    }
    let is_disconnected = || DISCONNECTED.iter().any(|words| message.contains(words));
    // gloo, and c10d, which says no more than `Connection reset by peer`.
    let is_c10d = name == "RuntimeError" && ["Connection reset by peer", "Broken pipe"].contains(&message);
    let is_distributed =
        DISTRIBUTED.contains(&name) || module.starts_with("torch.distributed.elastic.rendezvous");
    let is_peer = is_c10d || is_distributed && is_disconnected();
    let named = Cause::named_in(message).or_else(|| hub::cause_of(class, message));
    Some(named.or(is_peer.then_some(Cause::PeerLost)).unwrap_or(Cause::UserError))
}

/// `sft.py: error: …`
fn refusal(text: &str) -> Option<&str> {
    let (program, message) = text.split_once(": error: ")?;
    let is_program = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
    (!program.is_empty() && program.len() <= 64 && program.chars().all(is_program)).then_some(message)
}

/// A log of level E: `E1120 20:25:05.590000 29364 torch/…/api.py:874] …` of torchrun, `[E1202 11:06:56.32 File.cpp:683]
/// …` of c10d, and the older forms `[E File.cpp:916] …` and `[2026-11-20 …] torch.distributed.…: [ERROR] …`.
fn logged(text: &str) -> Option<&str> {
    let of_level = text.strip_prefix('[').unwrap_or(text).strip_prefix('E');
    if let Some(after) = of_level.filter(|after| after.starts_with(|c: char| c.is_ascii_digit() || c == ' '))
    {
        let (place, message) = after.split_once("] ")?;
        return place.contains(':').then_some(message);
    }
    let after = text.strip_prefix('[').filter(|after| after.starts_with(|c: char| c.is_ascii_digit()))?;
    let (_, after) = after.split_once("] torch.distributed.")?;
    after.split_once(": [ERROR] ").map(|(_, message)| message)
}

/// Indented lines: torchrun's report of a process, and the message of an exception of C++.
fn report(text: &str) -> Option<Option<Cause>> {
    let after = text
        .strip_prefix("exitcode")
        .or_else(|| text.strip_prefix("traceback"))
        .map(|after| after.trim_ascii_start().strip_prefix(": "));
    let is_report = match after {
        Some(value) => value.is_some_and(|value| {
            value.starts_with("Signal ") || value.starts_with(|c: char| c == '-' || c.is_ascii_digit())
        }),
        None => text.starts_with("what():  "),
    };
    is_report.then(|| Cause::named_in(text))
}

/// `cp: cannot write x: No space left on device`
fn is_full(text: &str) -> bool {
    let before = FULL.iter().find_map(|words| text.strip_suffix(words));
    before.is_some_and(|before| before.is_empty() || before.ends_with(": ") || before.ends_with("] "))
}
