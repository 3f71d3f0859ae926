//! Durations between timestamps of API objects and now.

use std::time::Duration;

use jiff::Timestamp;

/// Clock skew can make this negative; treat it as zero.
pub fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// The part of `whole` that has not elapsed yet; `None` if nothing remains.
pub fn remaining(whole: Duration, since: Timestamp, now: Timestamp) -> Option<Duration> {
    whole.checked_sub(elapsed(since, now)).filter(|rest| !rest.is_zero())
}
