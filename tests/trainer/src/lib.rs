//! Behaves like the command line of ms-swift 4.6 (`swift sft`, `swift rlhf`), without a model.
//!
//! As the real program it is several processes: `swift`, which prints the command and waits; with `NPROC_PER_NODE` or
//! `NNODES` a torchrun with one session for each rank; and the trainers. Output, exit codes, signals and the files of
//! checkpoints are those that were measured with the real program; losses are made up. Flags that the real program
//! does not know are refused with its text.
//!
//! Environment:
//! * `FAKE_SWIFT_STEP_MS`: duration of a step, 100 unless set.
//! * `FAKE_SWIFT_SAVE_MS`: duration of the writing of a checkpoint, 0 unless set.
//! * `FAKE_SWIFT_START_MS`: time before the training begins, 0 unless set.
//! * `FAKE_SWIFT_STOP_FILE`: the stop file, `/tmp/stop` unless set.
//! * `FAKE_SWIFT_PIDS`: a folder in which each process leaves a file with its id as the name.
//! * `FAKE_SWIFT_ARGUMENTS`: a file to which each trainer appends its arguments, one line of JSON.
//! * `FAKE_SWIFT_STEPS`: a file to which each trainer appends each step that it has done, one line of JSON.
//! * `FAKE_SWIFT_RENDEZVOUS`: a folder of the output in which the nodes of a gang wait for each other.
//! * `FAKE_SWIFT_HUB_AWAY`: a file; while it exists, no hub can be reached or, if it says `expired`, the hub refuses the token.
//!   Without this variable nothing is loaded; with it, models and data sets are loaded into the caches of the hubs.
//! * `FAKE_SWIFT_FAULTS`: faults, as below, separated by commas. A dataset `fault:<fault>` has the same effect.
//! * `FAKE_SWIFT_FAULTS_ONCE`: a folder that outlasts the run. Faults happen only in the first run of each rank, which leaves a
//!   file there.
//!
//! Faults are `name@step`, or `name@step=value`:
//! * `oom`, `host-oom` (the trainer is killed), `exit` (value: exit code), `exit0` (without error and without a
//!   checkpoint);
//! * `slow` (value: the duration of each step from this one on, in milliseconds), `hang` (for ever, deaf to the stop
//!   file), `deaf` (from this step on it trains, and ignores SIGTERM and the stop file);
//! * `kill-rank` (value: the rank that is killed), `early-stop` (ms-swift's callback), `early-stopping`
//!   (transformers');
//! * `half` (killed in the middle of the checkpoint of this step), `disk-full` (value: bytes until the volume is full;
//!   without a value it really fills it);
//! * `noise` (value: bytes for each stream), `no-newline` (ends with an unfinished line and exit code 1);
//! * `orphan` (a process in a session of its own, deaf to SIGTERM, that keeps the streams open), `secret` (prints the
//!   environment's `HF_TOKEN` in an error).
//!
//! It must not be used outside of tests, and needs nothing but its own file.

#![forbid(unsafe_code)]

mod arguments;
mod checkpoint;
mod faults;
mod hub;
mod lines;
mod swift;
mod torchrun;
mod trainer;

use std::{
    env, fs,
    io::Write as _,
    path::PathBuf,
    process::{self, Command, ExitCode},
    time::Duration,
};

/// What this process is. The first one has none, and is `swift`.
const ROLE: &str = "FAKE_SWIFT_ROLE";
const TORCHRUN: &str = "torchrun";
const TRAINER: &str = "trainer";
const SLEEPER: &str = "sleeper";

/// The whole program.
pub fn main() -> ExitCode {
    leave_pid();
    let arguments: Vec<String> = env::args().skip(1).collect();
    let code = match env::var(ROLE).as_deref() {
        Ok(TORCHRUN) => torchrun::run(&arguments),
        Ok(TRAINER) => trainer::run(&arguments),
        Ok(SLEEPER) => faults::sleep_for_long(),
        Ok(_) | Err(_) => swift::run(&arguments),
    };
    // As Python's sys.exit does: -9 becomes 247.
    ExitCode::from((code & 0xff) as u8)
}

/// This program in another role. The variables of the parent stay.
fn role(role: &str, arguments: &[String]) -> Command {
    let program = env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
    let mut command = Command::new(program);
    command.args(arguments).env(ROLE, role);
    command
}

fn leave_pid() {
    if let Some(folder) = env::var_os("FAKE_SWIFT_PIDS") {
        let _ = fs::write(PathBuf::from(folder).join(process::id().to_string()), "");
    }
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

fn milliseconds(variable: &str, default: u64) -> Duration {
    Duration::from_millis(number(variable).unwrap_or(default))
}

/// Standard output, at once: Python flushes each line that ms-swift prints. It raises an error if the output is closed.
fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    if stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_err() {
        print_error("BrokenPipeError: [Errno 32] Broken pipe\n");
        process::exit(1);
    }
}

fn print_error(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Python's exit code of a process: negative if a signal has ended it.
fn return_code(status: process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().or_else(|| status.signal().map(|signal| -signal)).unwrap_or(1)
}
