//! Time: the one place of the agent that reads clocks. Everything that decides gets a `Moment`.

use std::time::{Duration, Instant, SystemTime};

/// One moment, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Since the start of the process; never goes back.
    pub(crate) uptime: Duration,
    /// The time of day, which may be corrected at any moment.
    pub(crate) clock: SystemTime,
}

/// Counts from the start of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Moment {
        Moment { uptime: self.0.elapsed(), clock: SystemTime::now() }
    }
}
