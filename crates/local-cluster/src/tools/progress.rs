//! Shows on standard error what is being built and for how long: in place on a terminal, line by line elsewhere.

use std::{
    io::{IsTerminal as _, Write as _, stderr},
    time::{Duration, Instant},
};

/// Elsewhere than on a terminal: often enough to see that it lives, rarely enough for a log.
const LINE_EVERY: Duration = Duration::from_secs(30);

pub(super) struct Progress {
    total: usize,
    done: usize,
    program: &'static str,
    began: Instant,
    last_line: Instant,
    in_place: bool,
}

impl Progress {
    pub(super) fn new(group: &str, total: usize) -> Self {
        let now = Instant::now();
        let in_place = stderr().is_terminal();
        eprintln!(
            "building the programs of tools/{group}; the first time takes some minutes, later runs reuse them"
        );
        Self { total, done: 0, program: "", began: now, last_line: now, in_place }
    }

    pub(super) fn begin(&mut self, program: &'static str) {
        self.program = program;
        self.began = Instant::now();
        self.last_line = self.began;
        if !self.in_place {
            eprintln!("{}", self.line("building"));
        }
    }

    pub(super) fn tick(&mut self) {
        if self.in_place {
            self.redraw("building");
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            eprintln!("{}", self.line("building"));
        }
    }

    pub(super) fn end(&mut self) {
        self.done += 1;
        if self.in_place {
            self.redraw("built");
            eprintln!();
        } else {
            eprintln!("{}", self.line("built"));
        }
    }

    fn redraw(&self, verb: &str) {
        // `\x1b[K` clears what a longer line left behind.
        eprint!("\r{}\x1b[K", self.line(verb));
        let _ = stderr().flush();
    }

    fn line(&self, verb: &str) -> String {
        let number = if verb == "built" { self.done } else { self.done + 1 };
        let seconds = self.began.elapsed().as_secs();
        format!("  [{number}/{}] {verb} {} {seconds} s", self.total, self.program)
    }
}
