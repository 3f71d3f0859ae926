//! Differences of timestamps, as durations.

use std::time::Duration;

use jiff::Timestamp;

/// How long ago `at` was. Clock skew can make this negative; it is treated as zero.
pub(crate) fn elapsed(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_in_the_future_was_no_time_ago() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        assert_eq!(elapsed(at(10), at(12)), Duration::from_secs(2));
        assert_eq!(elapsed(at(12), at(10)), Duration::ZERO);
        assert_eq!(elapsed(Timestamp::MAX, Timestamp::MIN), Duration::ZERO);
    }
}
