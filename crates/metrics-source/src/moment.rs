//! The clocks by which snapshots are dated. Everything that decides gets a `Moment`.

use std::time::{Duration, Instant, SystemTime};

/// One moment, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Since the start of the process; never goes back.
    pub uptime: Duration,
    /// The time of day, which may be corrected at any moment.
    pub clock: SystemTime,
}

/// Counts from the start of the process.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn now(self) -> Moment {
        Moment { uptime: self.0.elapsed(), clock: SystemTime::now() }
    }
}
