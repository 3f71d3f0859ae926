//! Durations between timestamps of API objects and now.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, Unit};

/// Clock skew can make this negative; treat it as zero.
pub fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// The part of `whole` that has not elapsed yet; `None` if nothing remains.
pub fn remaining(whole: Duration, since: Timestamp, now: Timestamp) -> Option<Duration> {
    whole.checked_sub(elapsed(since, now)).filter(|rest| !rest.is_zero())
}

/// When a wait is over, in whole seconds.
pub fn after(since: Timestamp, wait: Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    let time = since.saturating_add(wait).unwrap_or(Timestamp::MAX);
    time.round(Unit::Second).unwrap_or(time)
}
