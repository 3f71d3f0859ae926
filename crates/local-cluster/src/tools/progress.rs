//! Shows on standard error what is being built and for how long: in place on a terminal, line by line elsewhere.

use std::{
    io::{IsTerminal as _, Write as _, stderr},
    time::{Duration, Instant},
};

/// Elsewhere than on a terminal: often enough to see that it lives, rarely enough for a log.
const LINE_EVERY: Duration = Duration::from_secs(30);

pub(super) struct Progress {
    group: String,
    began: Instant,
    last_line: Instant,
    in_place: bool,
}

impl Progress {
    /// `programs`: their names.
    pub(super) fn new(group: &str, programs: &str) -> Self {
        let now = Instant::now();
        eprintln!("builds {programs} from tools/{group}; this takes minutes once, and later runs reuse them");
        Self { group: group.to_owned(), began: now, last_line: now, in_place: stderr().is_terminal() }
    }

    pub(super) fn tick(&mut self) {
        if self.in_place {
            // `\x1b[K` clears what a longer line left behind.
            eprint!("\r{}\x1b[K", self.line("building"));
            let _ = stderr().flush();
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            eprintln!("{}", self.line("building"));
        }
    }

    pub(super) fn end(&self) {
        let begin = if self.in_place { "\r\x1b[K" } else { "" };
        eprintln!("{begin}{}", self.line("built"));
    }

    fn line(&self, verb: &str) -> String {
        format!("  {verb} tools/{}: {} s", self.group, self.began.elapsed().as_secs())
    }
}
