//! How long to wait after failures in a row: each wait is twice the one before, up to a limit. Pure but for the jitter;
//! who waits, and what counts as a failure, are elsewhere.

use std::time::Duration;

/// The wait after so many failures in a row; the first one is `first`.
pub(crate) fn doubled(first: Duration, longest: Duration, failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(31);
    first.saturating_mul(1 << doublings).min(longest)
}

/// Drawn from [wait, wait × (1 + jitter)], so that what failed together is not tried again together.
pub(crate) fn spread(wait: Duration, jitter: f64) -> Duration {
    wait.mul_f64(1.0 + jitter * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_however_many_failures_there_are() {
        let wait = |failures| doubled(Duration::from_secs(1), Duration::from_secs(60), failures).as_secs();
        assert_eq!([0, 1, 2, 3, 6, 7, 32, 33, u32::MAX].map(wait), [1, 1, 2, 4, 32, 60, 60, 60, 60]);
    }

    #[test]
    fn a_wait_is_never_shortened_and_lengthened_by_the_jitter_at_most() {
        for _ in 0..1_000 {
            let wait = spread(Duration::from_secs(100), 0.25);
            assert!((100.0..=125.0).contains(&wait.as_secs_f64()), "{wait:?}");
        }
    }
}
