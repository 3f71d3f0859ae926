//! Progress of a transfer: on standard error a bar (terminal) or lines, on standard output JSON lines unless it is a
//! terminal.

use std::{
    convert::Infallible,
    future::pending,
    io::{IsTerminal as _, Write as _, stderr, stdout},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::info;
use tracing_subscriber::EnvFilter;

use directory::space::Size;

const BAR_EVERY: Duration = Duration::from_millis(200);

/// Lines of this program only, because libraries log addresses and headers.
pub(crate) fn install_log() {
    let is_terminal = stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("off,model_transfer=info"))
        .with_target(false)
        .with_ansi(is_terminal)
        .with_writer(stderr)
        .init();
}

/// Counters that the transfer updates and the display reads.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Interval between two lines.
    every: Duration,
    total: AtomicU64,
    /// Bytes of the total that are in the folder; decreases when bytes turn out to be wrong.
    there: AtomicU64,
    moved: AtomicU64,
}

/// A line for programs.
#[derive(Debug, serde::Serialize)]
struct Report {
    /// Bytes of the total that are in the folder, including those of earlier runs.
    copied_bytes: u64,
    total_bytes: u64,
    /// Rate since the previous line.
    bytes_per_second: u64,
}

impl Progress {
    pub(crate) fn new(every: Duration) -> Self {
        Self { every, total: AtomicU64::new(0), there: AtomicU64::new(0), moved: AtomicU64::new(0) }
    }

    pub(crate) fn begin(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.there.store(0, Ordering::Relaxed);
    }

    /// Bytes that need not be moved.
    pub(crate) fn found(&self, bytes: u64) {
        self.there.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        self.there.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn lost(&self, bytes: u64) {
        self.there.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes_moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Runs the work and displays its progress; `verb` as in "pulled 1.0 GiB".
    pub(crate) async fn shown<T>(&self, verb: &str, work: impl Future<Output = T>) -> T {
        let display = async { if stderr().is_terminal() { self.bar(verb).await } else { pending().await } };
        tokio::select! {
            biased;
            done = work => done,
            never = self.lines(verb) => match never {},
            never = display => match never {},
        }
    }

    async fn lines(&self, verb: &str) -> Infallible {
        let (for_people, for_programs) = (!stderr().is_terminal(), !stdout().is_terminal());
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut before, mut at) = (self.bytes_moved(), Instant::now());
        let mut is_first = true;
        loop {
            ticks.tick().await;
            let (moved, now) = (self.bytes_moved(), Instant::now());
            let (there, total) = self.counts();
            let rate = rate(moved - before, now - at);
            if for_programs {
                report(&Report { copied_bytes: there, total_bytes: total, bytes_per_second: rate });
            }
            if for_people && !is_first {
                info!("{verb} {}", line(there, total, rate));
            }
            (before, at, is_first) = (moved, now, false);
        }
    }

    async fn bar(&self, verb: &str) -> Infallible {
        let bar = ProgressBar::new(0);
        let template = "{msg} [{wide_bar}] {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left";
        // A constant template that parses.
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.set_message(verb.to_owned());
        let mut ticks = interval(BAR_EVERY);
        loop {
            ticks.tick().await;
            let (there, total) = self.counts();
            bar.set_length(total);
            bar.set_position(there);
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.there.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}

/// A closed standard output is ignored, because the transfer does not depend on it.
fn report(report: &Report) {
    if let Ok(line) = serde_json::to_string(report) {
        let _ = writeln!(stdout(), "{line}");
    }
}

/// Bytes per second.
fn rate(moved: u64, within: Duration) -> u64 {
    let milliseconds = within.as_millis().max(1);
    u64::try_from(u128::from(moved) * 1000 / milliseconds).unwrap_or(u64::MAX)
}

fn line(there: u64, total: u64, rate: u64) -> String {
    let percent = (u128::from(there) * 100).checked_div(u128::from(total)).unwrap_or(100);
    let left = match total.saturating_sub(there).checked_div(rate) {
        Some(seconds) => format!("{} left", clock(seconds)),
        None => "standing still".to_owned(),
    };
    format!("{} of {} ({percent} %), {}/s, {left}", Size(there), Size(total), Size(rate))
}

/// `2h05m`, `1m53s` or `7s`.
pub(crate) fn clock(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_bytes_rate_and_what_is_left() {
        let gib = 1 << 30;
        assert_eq!(
            line(gib, 4 * gib, rate(gib / 2, Duration::from_secs(10))),
            "1.0 GiB of 4.0 GiB (25 %), 51.2 MiB/s, 1m00s left"
        );
        assert_eq!(line(5, 10, 0), "5 B of 10 B (50 %), 0 B/s, standing still");
        assert_eq!(line(0, 0, rate(1, Duration::ZERO)), "0 B of 0 B (100 %), 1000 B/s, 0s left");
    }

    #[test]
    fn a_line_for_programs_has_three_numbers() {
        let report = Report { copied_bytes: 1, total_bytes: 2, bytes_per_second: 3 };
        let line = serde_json::to_string(&report).unwrap();
        assert_eq!(line, r#"{"copied_bytes":1,"total_bytes":2,"bytes_per_second":3}"#);
    }

    #[test]
    fn times_are_read_by_people() {
        assert_eq!([7, 113, 7500].map(clock), ["7s", "1m53s", "2h05m"]);
    }
}
