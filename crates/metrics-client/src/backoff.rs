//! How long to wait before a stream is opened again. Pure but for the jitter.

use std::time::Duration;

/// A wait is drawn from [wait, wait × 1.5], so that sources that were lost together are not connected to together.
const JITTER: f64 = 0.5;

/// Doubles with each failure in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The wait after one more failure.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.first.saturating_mul(1 << self.failures.min(16)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        wait.mul_f64(1.0 + JITTER * fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_begin_again_after_a_reset() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8));
        let mut expect = |least: u64| {
            let wait = backoff.next().as_secs_f64();
            assert!((least as f64..=least as f64 * 1.5).contains(&wait), "{wait} for {least}");
        };
        [1, 2, 4, 8, 8].into_iter().for_each(&mut expect);
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(1_500));
    }
}
