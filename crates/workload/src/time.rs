//! Times between what the API says and now.

use std::time::Duration;

use jiff::Timestamp;

/// Clock skew can make this negative; treat it as zero.
pub fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// How much of `whole` is left; `None` once it is over.
pub fn left(whole: Duration, since: Timestamp, now: Timestamp) -> Option<Duration> {
    whole.checked_sub(elapsed(since, now)).filter(|left| !left.is_zero())
}
