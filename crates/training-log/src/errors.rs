//! Collects the errors of a log: the cause that counts, with the line that names it.
//!
//! It must not keep more than two lines, each of a bounded length.

use crate::{Cause, Entry};

/// In bytes. The message of CUDA's allocator has 500; a termination message has room for a few of these.
const LONGEST_LINE: usize = 1_024;

/// The errors of a log so far. Of several lines with the same cause the last one is kept: it is the exception that
/// ended the program, or describes an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    strongest: Option<(Cause, String)>,
    /// The last error that names no cause.
    last: Option<String>,
}

impl Errors {
    /// Entries that are no errors change nothing: a step may follow the error of another rank.
    pub fn note(&mut self, entry: &Entry<'_>) {
        match entry {
            Entry::Error { cause: Some(cause), line } => {
                if self.strongest.as_ref().is_none_or(|(known, _)| is_stronger(*cause, *known)) {
                    self.strongest = Some((*cause, bounded(line)));
                }
            }
            Entry::Error { cause: None, line } => self.last = Some(bounded(line)),
            Entry::Step(_)
            | Entry::Evaluation(_)
            | Entry::Summary(_)
            | Entry::Bar(_)
            | Entry::Saving(_)
            | Entry::LastCheckpoint(_)
            | Entry::Text(_) => {}
        }
    }

    pub fn cause(&self) -> Option<Cause> {
        self.strongest.as_ref().map(|(cause, _)| *cause)
    }

    /// The line that names the cause; without a cause the last line in the form of an error. At most 1 KiB of it.
    pub fn line(&self) -> Option<&str> {
        self.strongest.as_ref().map(|(_, line)| line).or(self.last.as_ref()).map(String::as_str)
    }
}

/// In the log of one rank or pod, an error after a lost connection follows from it.
fn is_stronger(cause: Cause, known: Cause) -> bool {
    let is_consequence = known == Cause::PeerLost && cause == Cause::UserError;
    cause <= known && !is_consequence
}

fn bounded(line: &str) -> String {
    line[..line.floor_char_boundary(LONGEST_LINE)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parser;

    fn errors(log: &str) -> Errors {
        let mut errors = Errors::default();
        let mut parser = Parser::default();
        parser.feed(log.as_bytes(), &mut |entry| errors.note(&entry));
        parser.finish(&mut |entry| errors.note(&entry));
        errors
    }

    fn found(log: &str) -> (Option<Cause>, Option<String>) {
        let errors = errors(log);
        (errors.cause(), errors.line().map(str::to_owned))
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

    #[test]
    fn lines_are_bounded() {
        let (_, line) = found(&format!("ValueError: {}", "é".repeat(5_000)));
        let line = line.unwrap();
        assert!(line.len() <= LONGEST_LINE && line.len() > LONGEST_LINE - 4, "{}", line.len());
    }
}
