//! The recent values of one metric, and their mean, 95th percentile and maximum over windows of time. Pure.
//!
//! Only values that were measured are in it: a time without a value is left out, and is not zero.

use std::{collections::VecDeque, time::Duration};

/// The windows that are computed, each once for all subscribers.
pub(crate) const LENGTHS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];
const LONGEST: Duration = Duration::from_secs(60);
/// With an interval below 100 ms the longest window is shorter than its length, so that memory stays bounded.
const MOST_VALUES: usize = 600;
/// Of each window.
const PERCENTILE: f64 = 0.95;

/// Values with the time of their measurement, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(VecDeque<(Duration, f64)>);

/// Statistics over one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Statistics {
    pub(crate) mean: f64,
    pub(crate) p95: f64,
    pub(crate) max: f64,
    pub(crate) samples: u32,
}

impl History {
    /// Times are those since a fixed start and do not go back.
    pub(crate) fn add(&mut self, at: Duration, value: f64) {
        while self.0.len() >= MOST_VALUES
            || self.0.front().is_some_and(|(oldest, _)| at.saturating_sub(*oldest) >= LONGEST)
        {
            self.0.pop_front();
        }
        self.0.push_back((at, value));
    }

    /// Statistics of what was measured less than `length` ago; nothing if that is nothing.
    pub(crate) fn over(&self, length: Duration, now: Duration) -> Option<Statistics> {
        let mut values: Vec<f64> = self
            .0
            .iter()
            .rev()
            .take_while(|(at, _)| now.saturating_sub(*at) < length)
            .map(|(_, value)| *value)
            .collect();
        values.sort_unstable_by(f64::total_cmp);
        let count = values.len();
        let rank = (PERCENTILE * count as f64).ceil() as usize;
        Some(Statistics {
            mean: values.iter().sum::<f64>() / count as f64,
            p95: *values.get(rank.checked_sub(1)?)?,
            max: *values.last()?,
            samples: u32::try_from(count).unwrap_or(u32::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_window_has_what_was_measured_within_its_length() {
        let mut history = History::default();
        (1..=100_u64).for_each(|second| history.add(seconds(second), second as f64));
        let ten = history.over(seconds(10), seconds(100)).unwrap();
        assert_eq!(ten, Statistics { mean: 95.5, p95: 100.0, max: 100.0, samples: 10 });
        let sixty = history.over(seconds(60), seconds(100)).unwrap();
        assert_eq!(sixty, Statistics { mean: 70.5, p95: 97.0, max: 100.0, samples: 60 });
    }

    #[test]
    fn a_time_without_values_is_left_out_and_is_not_zero() {
        let mut history = History::default();
        history.add(seconds(1), 8.0);
        history.add(seconds(9), 4.0);
        let window = history.over(seconds(10), seconds(9)).unwrap();
        assert_eq!((window.mean, window.samples), (6.0, 2));
        assert_eq!(history.over(seconds(10), seconds(30)), None);
        assert_eq!(History::default().over(seconds(10), seconds(1)), None);
    }

    #[test]
    fn memory_is_bounded_however_short_the_interval_is() {
        let mut history = History::default();
        (0..10_000_u64).for_each(|at| history.add(Duration::from_millis(at), 1.0));
        assert_eq!(history.0.len(), MOST_VALUES);
    }
}
