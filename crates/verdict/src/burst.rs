//! How much the bad requests of one interval weigh in a test. It knows no tracks.
//!
//! One fault can fail a whole batch, so that hundreds of bad requests are one event. An interval with far more bad requests
//! than the last ones is a burst. A burst weighs as one event, however many requests it has. A burst that goes on is no
//! cluster: after three intervals its bad requests are usual, and weigh as what they are.
//!
//! The weight depends on the earlier intervals and on the number of bad requests of both tracks together. It does not depend
//! on which track has them. A power from 0 to 1 of a factor keeps an expected value of at most 1 (Jensen), so E stays an
//! e-process for independent events. With a tolerated ratio of 2 and shares above 10 %, the factor of a burst can have an
//! expected value of up to 1.005. A cluster of s requests in a burst of k has the weight s/k, which is at most one event,
//! and so its expected factor is at most 1 too.

use serde::{Deserialize, Serialize};

/// Bad requests of both tracks in each of the last three intervals that were compared.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(transparent)]
pub struct Usual([u64; 3]);

/// So many bad requests of an interval enter at most. Of more, the logarithm of the factor is scaled down.
pub const MOST_BAD: u64 = 20;

/// So many bad requests are never a burst: at a bad request per interval, chance gives four in one of fifty intervals.
pub const NEVER_BURST: u64 = 3;

/// So many times the least of the last intervals is no burst. Chance rarely doubles a number of requests.
const BURST_FACTOR: u64 = 2;

impl Usual {
    #[must_use]
    pub(crate) fn with(self, bad: u64) -> Self {
        let [_, second, third] = self.0;
        Self([second, third, bad])
    }

    /// From 0 to 1: what each of so many bad requests weighs.
    pub(crate) fn weight(self, bad: u64) -> f64 {
        let least = self.0.into_iter().min().unwrap_or_default();
        let is_burst = bad > least.saturating_mul(BURST_FACTOR).saturating_add(NEVER_BURST);
        let most = if is_burst { 1 } else { MOST_BAD };
        if bad > most { most as f64 / bad as f64 } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_bad_requests_weigh_as_what_they_are() {
        for bad in 0..=3 {
            assert_eq!(Usual::default().weight(bad), 1.0);
        }
    }

    #[test]
    fn a_burst_weighs_as_one_event_until_it_is_usual() {
        let mut usual = Usual::default();
        for _ in 0..3 {
            assert_eq!(usual.weight(10) * 10.0, 1.0);
            usual = usual.with(10);
        }
        assert_eq!([10, 20, 23, 40].map(|bad| usual.weight(bad)), [1.0, 1.0, 20.0 / 23.0, 1.0 / 40.0]);
        assert_eq!(usual.with(0).weight(10), 0.1, "one quiet interval ends it");
    }

    #[test]
    fn the_largest_numbers_have_a_weight() {
        let most = Usual([u64::MAX; 3]);
        assert!(most.weight(u64::MAX) > 0.0 && Usual::default().weight(u64::MAX) > 0.0);
    }
}
