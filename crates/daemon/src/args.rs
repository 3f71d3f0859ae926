//! Options that programs share.

use std::time::Duration;

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Json,
    Text,
}

/// A day is longer than any sensible interval.
const LONGEST_SECONDS: f64 = 86_400.0;

/// Parses a number of seconds above 0, at most a day.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    if seconds > 0.0 && seconds <= LONGEST_SECONDS {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("{text} is not between 0 and {LONGEST_SECONDS} seconds"))
    }
}
