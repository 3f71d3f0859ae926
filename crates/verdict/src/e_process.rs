//! The arithmetic of a sequential test: an e-process in integers. It knows no tracks and no requests.
//!
//! A test martingale L begins at 1. Each interval multiplies it by a factor whose expected value is at most 1 while the null
//! hypothesis holds. A single L is blind after a long quiet time: it has fallen so far that no later fault raises it again.
//! So a part of the mass 1 begins anew at each interval. Interval t, from 0, starts with the mass g_t:
//!
//! - g_0 = 1/2, and g_t = 1 / (2 t (t + 1)). All of them sum up to 1.
//! - S ← (S + g_t) · factor, for each of [`RATIOS`].
//! - E = the mean of S over the ratios + the mass that has not begun, which is 1 / (2 n) after n intervals.
//!
//! E is a mixture of test martingales, so it is an e-process that begins at 1. The chance that E ever reaches 1/alpha is at
//! most alpha, however often it is looked at (Ville's inequality; J. Ville, "Étude critique de la notion de collectif", 1939).
//! Every rounding is down, and a smaller E has no more alarms.

use serde::{Deserialize, Serialize};

use crate::stored::lenient;

/// The state of one test in one step.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct EProcess {
    /// The natural logarithm of S for each of [`RATIOS`], in millionths, rounded down. It means nothing before the first
    /// interval, when S is 0.
    #[serde(deserialize_with = "lenient")]
    pub log_sums: [i64; 5],
    /// Intervals that entered.
    #[serde(deserialize_with = "lenient")]
    pub intervals: u32,
    /// Of these, intervals with bad events of the candidate.
    #[serde(deserialize_with = "lenient")]
    pub alarming: u32,
}

/// How much worse the candidate may be than what is tolerated. One ratio alone is slow for all others; five from a bit to
/// very much worse cost at most a factor of five in E.
pub const RATIOS: [f64; 5] = [1.5, 2.0, 3.0, 5.0, 10.0];

/// An interval multiplies each S at most by this. So one interval gives an E of 10.5 at most, which is no alarm at alpha 0.01.
/// Two intervals give up to 205, and three up to 4101. So one metric with two tests can have an alarm after two intervals.
pub const MOST_FACTOR: f64 = 20.0;

/// An alarm needs bad events of the candidate in so many intervals: one fault of a moment is no fault of a version.
pub const ALARM_INTERVALS: u32 = 2;

/// The parts of a natural logarithm. Thousandths would lose up to 0.001 in each interval. That is more than an alarm needs
/// in a day.
const PARTS: f64 = 1e6;

/// E is shown up to 10^9, in thousandths.
const MOST_E_VALUE: u64 = 1_000_000_000_000;

impl EProcess {
    /// With the factors of one more interval, as natural logarithms.
    #[must_use]
    pub(crate) fn with(self, log_factors: [f64; 5], has_bad: bool) -> Self {
        let start = start_mass(self.intervals).ln();
        let sum = |log_sum: i64| match self.intervals {
            0 => start,
            _ => log_of_sum(log_sum as f64 / PARTS, start),
        };
        let mut log_sums = self.log_sums;
        for (log_sum, log_factor) in log_sums.iter_mut().zip(log_factors) {
            // The conversion ends at both ends of the type.
            *log_sum = ((sum(*log_sum) + log_factor.min(MOST_FACTOR.ln())) * PARTS).floor() as i64;
        }
        Self {
            log_sums,
            intervals: self.intervals.saturating_add(1),
            alarming: self.alarming.saturating_add(has_bad.into()),
        }
    }

    /// E in thousandths, rounded down; at most 10^12.
    pub fn e_value(&self) -> u64 {
        if self.intervals == 0 {
            return 1_000;
        }
        let sums = self.log_sums.map(|log| (log as f64 / PARTS).exp());
        let mean = sums.iter().sum::<f64>() / RATIOS.len() as f64;
        let not_begun = 0.5 / f64::from(self.intervals);
        // The conversion ends at the largest.
        (((mean + not_begun) * 1_000.0).floor() as u64).min(MOST_E_VALUE)
    }

    /// `needed`: of [`crate::metric::Alpha::evidence_needed`].
    pub fn is_alarm(&self, needed: u64) -> bool {
        self.alarming >= ALARM_INTERVALS && self.e_value() >= needed
    }
}

fn start_mass(interval: u32) -> f64 {
    match interval {
        0 => 0.5,
        _ => 0.5 / (f64::from(interval) * (f64::from(interval) + 1.0)),
    }
}

/// ln(e^a + e^b), with the power of a difference only, so that none is infinite.
fn log_of_sum(a: f64, b: f64) -> f64 {
    a.max(b) + (-(a - b).abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests;
