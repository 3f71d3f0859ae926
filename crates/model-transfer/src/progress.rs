//! What people see while bytes move: a bar on a terminal, a line every ten seconds elsewhere. To standard error.

use std::{
    convert::Infallible,
    io::{IsTerminal as _, stderr},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::space::Size;

/// Often enough to see that it lives, rarely enough for a log.
const LINE_EVERY: Duration = Duration::from_secs(10);
const BAR_EVERY: Duration = Duration::from_millis(200);

/// Our own lines only: the libraries below log addresses and headers.
pub(crate) fn install_log() {
    let is_terminal = stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("off,model_transfer=info"))
        .with_target(false)
        .with_ansi(is_terminal)
        .with_writer(stderr)
        .init();
}

/// Counters that the transfer moves and the display reads.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    total: AtomicU64,
    /// Of the total; falls when bytes turn out to be wrong.
    there: AtomicU64,
    moved: AtomicU64,
}

impl Progress {
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

    /// Runs the work and shows how it goes; `verb` as in "pulled 1.0 GiB".
    pub(crate) async fn shown<T>(&self, verb: &str, work: impl Future<Output = T>) -> T {
        let display =
            async { if stderr().is_terminal() { self.bar(verb).await } else { self.lines(verb).await } };
        tokio::select! {
            biased;
            done = work => done,
            never = display => match never {},
        }
    }

    async fn lines(&self, verb: &str) -> Infallible {
        let mut ticks = interval(LINE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        let (mut before, mut at) = (self.bytes_moved(), Instant::now());
        loop {
            ticks.tick().await;
            let (moved, now) = (self.bytes_moved(), Instant::now());
            let (there, total) = self.counts();
            info!("{verb} {}", line(there, total, moved - before, now - at));
            (before, at) = (moved, now);
        }
    }

    async fn bar(&self, verb: &str) -> Infallible {
        let bar = ProgressBar::new(0);
        let template = "{msg} [{wide_bar}] {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left";
        // A template that does not parse would be seen by whoever changes it; the default one does.
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

fn line(there: u64, total: u64, moved: u64, within: Duration) -> String {
    let percent = (u128::from(there) * 100).checked_div(u128::from(total)).unwrap_or(100);
    let milliseconds = within.as_millis().max(1);
    let rate = u64::try_from(u128::from(moved) * 1000 / milliseconds).unwrap_or(u64::MAX);
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
    fn a_line_tells_bytes_rate_and_what_is_left() {
        let gib = 1 << 30;
        assert_eq!(
            line(gib, 4 * gib, gib / 2, Duration::from_secs(10)),
            "1.0 GiB of 4.0 GiB (25 %), 51.2 MiB/s, 1m00s left"
        );
        assert_eq!(line(5, 10, 0, LINE_EVERY), "5 B of 10 B (50 %), 0 B/s, standing still");
        assert_eq!(line(0, 0, 1, Duration::ZERO), "0 B of 0 B (100 %), 1000 B/s, 0s left");
    }

    #[test]
    fn times_are_read_by_people() {
        assert_eq!([7, 113, 7500].map(clock), ["7s", "1m53s", "2h05m"]);
    }
}
