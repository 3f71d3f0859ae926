//! Waits between attempts, and when there are no more. Pure: callers wait, and read the clock.

use std::time::Duration;

use api::loader::LONGEST_STEP;

use crate::fault::Cause;

const FIRST_STEP: Duration = Duration::from_millis(200);

/// Waits of one request with transient errors: 0.2 s, doubling, until nothing has arrived for too long.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    patience: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, failures: 0 }
    }

    /// Something arrived: begin with short waits again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// How long to wait, or `None` when the patience is over. `spread`, 0 to 1, varies the wait, so that requests that
    /// failed together are not repeated together.
    pub(crate) fn next(&mut self, since_progress: Duration, spread: f64) -> Option<Duration> {
        if since_progress >= self.patience {
            return None;
        }
        let doubled = FIRST_STEP * 2_u32.saturating_pow(self.failures.min(16));
        self.failures += 1;
        let step = doubled.min(LONGEST_STEP).min(self.patience / 4);
        Some(step.mul_f64(0.5 + spread.clamp(0.0, 1.0) / 2.0))
    }
}

/// Waits of the whole transfer for faults that repeating a request does not correct.
///
/// The first time, a fault is reported at once, so that its user sees it. A loader that is started again and meets the
/// fault that was reported waits inside its process: the kubelet's own back-off would reach five minutes.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    patience: Duration,
    reported: Option<u8>,
    waiting_for: Option<Cause>,
    waited: Duration,
    steps: u32,
}

impl Patience {
    /// `reported`: the exit code of the run before, if that failed.
    pub(crate) fn new(patience: Duration, reported: Option<u8>) -> Self {
        Self { patience, reported, waiting_for: None, waited: Duration::ZERO, steps: 0 }
    }

    /// How long to wait before the next attempt, or `None` to end with this fault.
    pub(crate) fn after(&mut self, cause: Cause) -> Option<Duration> {
        let waits = match cause {
            // The next listing has the new objects.
            Cause::Changed => true,
            Cause::NotFound | Cause::Checksum | Cause::OutOfSpace => self.reported == Some(cause.exit_code()),
            // New credentials, and what the other pods have loaded, come with a new container; an unreachable store has been
            // waited for by each request.
            Cause::Unauthorized
            | Cause::OtherModel
            | Cause::Unreachable
            | Cause::Usage
            | Cause::Local
            | Cause::Stopped => false,
        };
        if self.waiting_for != Some(cause) {
            (self.waiting_for, self.waited, self.steps) = (Some(cause), Duration::ZERO, 0);
        }
        if !waits || self.waited >= self.patience {
            return None;
        }
        self.steps += 1;
        let step = (Duration::from_secs(5) * self.steps).min(LONGEST_STEP).min(self.patience / 4);
        let step = step.min(self.patience - self.waited).max(Duration::from_millis(1));
        self.waited += step;
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE_MINUTES: Duration = Duration::from_secs(180);

    #[test]
    fn waits_double_from_a_fifth_of_a_second_to_half_a_minute() {
        let mut backoff = Backoff::new(THREE_MINUTES);
        let steps: Vec<u128> =
            (0..10).map(|_| backoff.next(Duration::ZERO, 1.0).unwrap().as_millis()).collect();
        assert_eq!(steps, [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        backoff.reset();
        assert_eq!(backoff.next(Duration::ZERO, 0.0), Some(Duration::from_millis(100)));
    }

    #[test]
    fn a_request_is_given_up_when_nothing_has_come_for_three_minutes() {
        let mut backoff = Backoff::new(THREE_MINUTES);
        assert!(backoff.next(Duration::from_secs(179), 1.0).is_some());
        assert_eq!(backoff.next(THREE_MINUTES, 1.0), None);
    }

    #[test]
    fn a_fault_is_reported_at_once_and_waited_for_when_it_was_reported_before() {
        for cause in [Cause::NotFound, Cause::Checksum, Cause::OutOfSpace] {
            assert_eq!(Patience::new(THREE_MINUTES, None).after(cause), None, "{cause:?}");
            let other = Some(Cause::Unauthorized.exit_code());
            assert_eq!(Patience::new(THREE_MINUTES, other).after(cause), None, "{cause:?}");

            let mut patience = Patience::new(THREE_MINUTES, Some(cause.exit_code()));
            let steps: Vec<Duration> = std::iter::from_fn(|| patience.after(cause)).collect();
            assert!(steps.iter().all(|step| *step <= LONGEST_STEP), "{cause:?} {steps:?}");
            let waited: Duration = steps.iter().sum();
            assert_eq!(waited, THREE_MINUTES, "{cause:?}");
        }
    }

    #[test]
    fn credentials_are_not_waited_for() {
        let reported = Some(Cause::Unauthorized.exit_code());
        assert_eq!(Patience::new(THREE_MINUTES, reported).after(Cause::Unauthorized), None);
    }

    #[test]
    fn objects_that_change_are_listed_again_a_limited_number_of_times() {
        let mut patience = Patience::new(THREE_MINUTES, None);
        let steps = std::iter::from_fn(|| patience.after(Cause::Changed)).take(1000).count();
        assert!((6..100).contains(&steps), "{steps}");
    }
}
