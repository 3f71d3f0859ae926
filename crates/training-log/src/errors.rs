//! Collects the errors of a log: the cause that counts, with the line that names it.
//!
//! It keeps one line of each cause, of a bounded length. It keeps no error that the trainer has handled. Else a training
//! that goes on for days would fail for a picture that was not found in its first hour.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{Cause, Entry};

/// In bytes. The message of CUDA's allocator has 500; a termination message has room for a few of these.
const LONGEST_LINE: usize = 1_024;
/// Logged steps after which an error of any rank was handled. A rank may log one step after another rank has failed, and
/// no more: the ranks wait for each other in each step.
const STEPS_OF_A_GANG: u8 = 2;
/// Time after which a trainer has outlived an error that would have ended it at once. An exception ends its process within
/// seconds, and torchrun ends the other processes of its node within a minute. Nodes without rank 0 log no steps.
const OUTLIVED_AFTER: Duration = Duration::from_secs(600);

/// The errors of a log so far that may end the training. Of several lines with the same cause the last one is kept: it is
/// the exception that ended the program, or describes an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// The strongest one first.
    causes: BTreeMap<Cause, Found>,
    /// The last error that names no cause.
    last: Option<Found>,
    /// The highest step that was logged.
    step: i64,
}

/// A line in the form of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    line: String,
    /// Steps that were logged for the first time after it.
    steps: u8,
    at: Instant,
}

impl Errors {
    /// A logged step shows that earlier errors were handled. A bar does not: it is drawn before the accelerators have
    /// done the step.
    pub fn note(&mut self, entry: &Entry<'_>, now: Instant) {
        match entry {
            Entry::Error { cause: Some(cause), line } => {
                if !self.follows_from_lost_peer(*cause, now) {
                    self.causes.insert(*cause, Found::new(line, now));
                }
            }
            Entry::Error { cause: None, line } => self.last = Some(Found::new(line, now)),
            Entry::Step(step) => self.goes_on(step.position.step),
            Entry::Evaluation(_)
            | Entry::Summary(_)
            | Entry::Bar(_)
            | Entry::Saving(_)
            | Entry::LastCheckpoint(_)
            | Entry::Text(_) => {}
        }
    }

    /// The cause of an end of the trainer at this time.
    pub fn cause(&self, now: Instant) -> Option<Cause> {
        self.strongest(now).map(|(cause, _)| *cause)
    }

    /// The line that names the cause; without a cause the last line in the form of an error. At most 1 KiB of it.
    pub fn line(&self, now: Instant) -> Option<&str> {
        let found = self.strongest(now).map(|(_, found)| found);
        found.or(self.last.as_ref()).map(|found| found.line.as_str())
    }

    fn strongest(&self, now: Instant) -> Option<(&Cause, &Found)> {
        let is_outlived = |found: &Found| now.saturating_duration_since(found.at) > OUTLIVED_AFTER;
        self.causes.iter().find(|(cause, found)| !ends_at_once(**cause) || !is_outlived(found))
    }

    /// In the log of one rank or pod, an error after a lost connection follows from it.
    fn follows_from_lost_peer(&self, cause: Cause, now: Instant) -> bool {
        self.cause(now) == Some(Cause::PeerLost) && cause == Cause::UserError
    }

    /// Each rank may log the same step.
    fn goes_on(&mut self, step: i64) {
        if step <= self.step {
            return;
        }
        self.step = step;
        let by_steps = |cause| if ends_at_once(cause) { 1 } else { STEPS_OF_A_GANG };
        self.causes.retain(|cause, found| !found.is_handled(by_steps(*cause)));
        if self.last.as_mut().is_some_and(|found| found.is_handled(STEPS_OF_A_GANG)) {
            self.last = None;
        }
    }
}

impl Found {
    fn new(line: &str, at: Instant) -> Self {
        Self { line: text::beginning(line, LONGEST_LINE), steps: 0, at }
    }

    /// Whether it was, with one more step.
    fn is_handled(&mut self, by_steps: u8) -> bool {
        self.steps = self.steps.saturating_add(1);
        self.steps >= by_steps
    }
}

/// Whether such an error, unless it is handled, ends the trainer before it does anything else.
fn ends_at_once(cause: Cause) -> bool {
    match cause {
        Cause::SourceUnauthorized
        | Cause::SourceNotFound
        | Cause::SourceUnreachable
        | Cause::InvalidArguments => true,
        Cause::CudaOutOfMemory
        | Cause::HostOutOfMemory
        | Cause::OutOfSpace
        | Cause::UserError
        | Cause::PeerLost => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parser;

    fn errors(log: &str, now: Instant) -> Errors {
        let mut errors = Errors::default();
        let mut parser = Parser::default();
        parser.feed(log.as_bytes(), &mut |entry| errors.note(&entry, now));
        parser.finish(&mut |entry| errors.note(&entry, now));
        errors
    }

    fn found(log: &str) -> (Option<Cause>, Option<String>) {
        let now = Instant::now();
        let errors = errors(log, now);
        (errors.cause(now), errors.line(now).map(str::to_owned))
    }

    #[test]
    fn the_strongest_cause_counts_whatever_the_order() {
        let memory = "torch.OutOfMemoryError: CUDA out of memory.";
        let user = "ValueError: x";
        for log in [format!("{memory}\n{user}\n"), format!("{user}\n{memory}\n")] {
            assert_eq!(found(&log), (Some(Cause::CudaOutOfMemory), Some(memory.to_owned())));
        }
        assert_eq!(found("nothing\nof note"), (None, None));
    }

    #[test]
    fn of_a_chain_of_exceptions_the_last_one_is_kept() {
        let log = "KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\nValueError: b\n";
        assert_eq!(found(log), (Some(Cause::UserError), Some("ValueError: b".to_owned())));
    }

    #[test]
    fn a_rank_that_fails_explains_its_lost_connections() {
        let user = "[rank1]: ValueError: bad sample";
        let peer = "[rank0]: RuntimeError: [pair.cc:598] Connection closed by peer [10.0.0.2]:1000";
        assert_eq!(found(&format!("{user}\n{peer}\n")), (Some(Cause::UserError), Some(user.to_owned())));
        let after = "RuntimeError: the process group is gone";
        assert_eq!(found(&format!("{peer}\n{after}\n")), (Some(Cause::PeerLost), Some(peer.to_owned())));
        assert_eq!(Cause::UserError.min(Cause::PeerLost), Cause::UserError, "of several pods");
    }

    #[test]
    fn without_a_cause_the_last_error_is_shown() {
        let log = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n  exitcode  : -9 (pid: 7)\n  \
                   traceback : Signal 9 (SIGKILL) received by PID 7\n====\n";
        assert_eq!(found(log), (None, Some("traceback : Signal 9 (SIGKILL) received by PID 7".to_owned())));
    }

    fn step(number: i64) -> String {
        format!("{{'loss': 0.5, 'global_step/max_steps': '{number}/100'}}\n")
    }

    const NOT_FOUND: &str =
        "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://www.modelscope.cn/x\n";
    const PEER: &str = "[rank0]: RuntimeError: [pair.cc:598] Connection closed by peer [10.0.0.2]:1000\n";

    #[test]
    fn an_error_of_a_source_counts_only_without_a_later_step() {
        let cause = |log: &str| found(log).0;
        assert_eq!(cause(&format!("{}{NOT_FOUND}", step(5))), Some(Cause::SourceNotFound));
        assert_eq!(cause(&format!("{}{NOT_FOUND}{}", step(5), step(5))), Some(Cause::SourceNotFound));
        assert_eq!(cause(&format!("{NOT_FOUND}{}", step(5))), None);
        assert_eq!(cause(&format!("{NOT_FOUND}{}{PEER}", step(5))), Some(Cause::PeerLost));
        let refused = "sft.py: error: argument --x: invalid float value\n";
        assert_eq!(cause(&format!("{refused}{}", step(5))), None);
        let bar = "Train:  10%|█| 9/100 [00:02<00:00, 10.10it/s]\r";
        assert_eq!(cause(&format!("{NOT_FOUND}{bar}")), Some(Cause::SourceNotFound));
    }

    #[test]
    fn an_error_of_a_source_that_the_trainer_has_outlived_does_not_count() {
        let begin = Instant::now();
        let killed = "  traceback : Signal 9 (SIGKILL) received by PID 7\n";
        let errors = errors(&format!("{NOT_FOUND}{PEER}{killed}"), begin);
        let soon = begin + Duration::from_secs(90);
        assert_eq!(errors.cause(soon), Some(Cause::SourceNotFound));
        let late = begin + OUTLIVED_AFTER + Duration::from_secs(1);
        assert_eq!((errors.cause(late), errors.line(late)), (Some(Cause::PeerLost), Some(PEER.trim_end())));
    }

    #[test]
    fn another_error_counts_until_two_later_steps_are_logged() {
        let memory = "[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n";
        for (line, cause) in [(memory, Cause::CudaOutOfMemory), ("ValueError: x\n", Cause::UserError)] {
            let one = format!("{}{line}{}{}", step(5), step(10), step(10));
            assert_eq!(found(&one).0, Some(cause), "each of two ranks logs the step");
            assert_eq!(found(&format!("{one}{}", step(15))), (None, None));
            assert_eq!(found(&format!("{one}{line}{}", step(15))).0, Some(cause), "it is a new one");
        }
        let killed = "  traceback : Signal 9 (SIGKILL) received by PID 7\n";
        assert!(found(&format!("{killed}{}", step(5))).1.is_some());
        assert_eq!(found(&format!("{killed}{}{}", step(5), step(10))).1, None);
    }

    #[test]
    fn an_error_after_a_stronger_one_that_was_handled_counts() {
        let log = format!("torch.OutOfMemoryError: CUDA out of memory.\n{}ValueError: x\n", step(5));
        assert_eq!(found(&log).0, Some(Cause::CudaOutOfMemory));
        assert_eq!(
            found(&format!("{log}{}", step(10))),
            (Some(Cause::UserError), Some("ValueError: x".to_owned()))
        );
    }

    #[test]
    fn lines_are_bounded() {
        let (_, line) = found(&format!("ValueError: {}", "é".repeat(5_000)));
        let line = line.unwrap();
        assert!(line.len() <= LONGEST_LINE && line.len() > LONGEST_LINE - 4, "{}", line.len());
    }
}
