//! What the trainer's log says: how far the training is, why it fails, and its last lines. Pure; memory is bounded.

use std::{collections::VecDeque, time::Instant};

use training_log::{Cause, Entry, Errors, Parser, Position};

/// Of a longer line, only the beginning is kept.
const LONGEST_LINE: usize = 2_048;
/// Lines of the end of the log. They are cut once more when secrets have been removed.
const TAIL_LINES: usize = 24;
/// ms-swift's callback `early_stop` says so when it ends the training, after it has saved.
const EARLY_STOP: &str = "Training stop because of eval metric is stable";
/// ms-swift prints it just before the first step.
const TRAINING_BEGINS: &str = "The logging file will be saved in";

/// Both streams of the trainer.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// The last position that was logged.
    pub(crate) position: Option<Position>,
    /// The training has begun: there may be something to save.
    pub(crate) has_begun: bool,
    /// A step was done.
    pub(crate) has_step: bool,
    pub(crate) has_stopped_early: bool,
    errors: Errors,
    tail: VecDeque<String>,
}

impl Log {
    /// `resumed`: the step from which the training goes on, which its bar shows before any step is done.
    pub(crate) fn read(&mut self, parser: &mut Parser, chunk: &[u8], resumed: Option<i64>, now: Instant) {
        parser.feed(chunk, &mut |entry| self.note(entry, resumed, now));
    }

    pub(crate) fn finish(&mut self, parser: &mut Parser, resumed: Option<i64>, now: Instant) {
        parser.finish(&mut |entry| self.note(entry, resumed, now));
    }

    /// The cause that counts at the end of the trainer, and the line that names it.
    pub(crate) fn error(&self, now: Instant) -> (Option<Cause>, Option<&str>) {
        (self.errors.cause(now), self.errors.line(now))
    }

    /// The last lines, the oldest first.
    pub(crate) fn tail(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.tail.iter().map(String::as_str)
    }

    fn note(&mut self, entry: Entry<'_>, resumed: Option<i64>, now: Instant) {
        self.errors.note(&entry, now);
        self.position = entry.position().or(self.position);
        match entry {
            Entry::Step(step) => self.has_step |= step.position.step >= 1,
            Entry::Bar(position) => self.has_step |= position.step >= 1 && Some(position.step) != resumed,
            Entry::Saving(_) => self.has_step = true,
            Entry::Evaluation(_) | Entry::Summary(_) | Entry::LastCheckpoint(_) => {}
            Entry::Error { cause: _, line } => self.keep(line),
            Entry::Text(line) => {
                self.has_stopped_early |= line.contains(EARLY_STOP);
                self.has_begun |= line.contains(TRAINING_BEGINS);
                self.keep(line);
            }
        }
    }

    fn keep(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(text::beginning(line, LONGEST_LINE));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const AT: fn(i64) -> Position = |step| Position { step, total: 27 };

    #[test]
    fn the_bar_of_a_resumed_training_is_no_step_until_it_moves() {
        let mut log = Log::default();
        log.note(Entry::Bar(AT(0)), Some(20), Instant::now());
        log.note(Entry::Bar(AT(20)), Some(20), Instant::now());
        assert!(!log.has_step);
        log.note(Entry::Bar(AT(21)), Some(20), Instant::now());
        assert!(log.has_step);
    }

    #[test]
    fn lines_are_bounded_in_length_and_in_number() {
        let mut log = Log::default();
        let long = "é".repeat(LONGEST_LINE);
        for _ in 0..1_000 {
            log.note(Entry::Text(&long), None, Instant::now());
        }
        log.note(Entry::Text("last"), None, Instant::now());
        assert_eq!(log.tail().count(), TAIL_LINES);
        assert_eq!(log.tail().next_back(), Some("last"));
        assert!(log.tail().all(|line| line.len() <= LONGEST_LINE));
    }

    #[test]
    fn an_early_stop_and_the_begin_of_the_training_are_found_in_the_text() {
        let mut log = Log::default();
        log.note(
            Entry::Text("[INFO:swift] The logging file will be saved in: /output/logging.jsonl"),
            None,
            Instant::now(),
        );
        assert!(log.has_begun && !log.has_stopped_early);
        log.note(
            Entry::Text("[INFO:swift] Training stop because of eval metric is stable at step 6"),
            None,
            Instant::now(),
        );
        assert!(log.has_stopped_early);
    }

    #[test]
    fn an_error_before_a_later_step_explains_no_end() {
        let (mut log, now) = (Log::default(), Instant::now());
        let missing = Entry::Error { cause: Some(Cause::SourceNotFound), line: "404" };
        log.note(missing.clone(), None, now);
        assert_eq!(log.error(now), (Some(Cause::SourceNotFound), Some("404")));
        let chunk = b"{'loss': 0.5, 'global_step/max_steps': '5/27'}\n";
        log.read(&mut Parser::default(), chunk, None, now);
        assert_eq!(log.error(now), (None, None));
        log.note(missing, None, now);
        assert_eq!(log.error(now + Duration::from_secs(3_600)), (None, None), "another node logs no steps");
    }
}
