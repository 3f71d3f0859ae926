//! How one metric is judged. The values are checked where they enter; the rules are in `evidence.rs` and `judge.rs`.

use serde::{Deserialize, Serialize};

use crate::{
    invalid::{Invalid, parts},
    share::Share,
};

/// The settings of one metric.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    pub name: String,
    pub kind: Kind,
    pub mode: Mode,
    /// The candidate's bad share over the stable one's that is still no reason for an alarm.
    pub tolerated: Ratio,
    /// A bad share that is accepted whatever the stable version does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Share>,
    /// Intervals that begin earlier after the weight rose from 0 are dropped. Absent: [`Kind::warmup_seconds`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_seconds: Option<u32>,
}

/// What a bad event is, which decides the guards.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// The engine failed: an error, or an endless repetition.
    Failure,
    /// The caller hung up. Callers do so for their own reasons and at their own times, so only stable requests of the
    /// same step can be the control.
    Abort,
    /// The request took longer than a bound. It counts only while the tracks carry comparable loads.
    Latency,
}

/// Whether a metric takes part in the verdict.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    Enforce,
    /// It is shown and decides nothing. So is a stored mode that cannot be read.
    #[default]
    Observe,
}

/// A ratio of two shares in thousandths, from 1 to 10.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "u32", into = "u32")]
pub struct Ratio(u32);

/// The chance of a false alarm in a whole rollout, in millionths, from 0.0001 to 0.1.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "u32", into = "u32")]
pub struct Alpha(u32);

/// Graph capture and a first filling of the prefix cache take about a minute; twice that.
const LATENCY_WARMUP: u32 = 120;

impl Metric {
    pub fn warmup_seconds(&self) -> u32 {
        self.warmup_seconds.unwrap_or(self.kind.warmup_seconds())
    }
}

impl Kind {
    /// An error is never better than none. Latencies of equal versions differ by a quarter when their caches do.
    pub fn tolerated(self) -> Ratio {
        match self {
            Self::Failure | Self::Abort => Ratio::ONE,
            Self::Latency => Ratio(1_250),
        }
    }

    /// A cold version may answer slowly. It may not fail, and its failures are not to be missed.
    pub fn warmup_seconds(self) -> u32 {
        match self {
            Self::Failure | Self::Abort => 0,
            Self::Latency => LATENCY_WARMUP,
        }
    }
}

impl Ratio {
    pub const ONE: Self = Self(1_000);

    pub fn new(ratio: f64) -> Result<Self, Invalid> {
        parts(ratio, 1_000, 1_000..=10_000).map(Self)
    }

    pub fn value(self) -> f64 {
        f64::from(self.0) / 1_000.0
    }
}

impl Alpha {
    /// One false alarm in a hundred rollouts.
    pub const ONE_PERCENT: Self = Self(10_000);

    pub fn new(alpha: f64) -> Result<Self, Invalid> {
        parts(alpha, MILLION, 100..=100_000).map(Self)
    }

    /// The E of an alarm in thousandths: `steps` times `enforced` times `tests` over alpha, rounded up. A 0 counts as 1.
    ///
    /// Each test of each metric in each step can give a false alarm. With alpha for each of `k` tests, up to `k` times alpha of
    /// the rollouts have one. This union bound holds also for tests that depend on each other. So each step gets its part
    /// of alpha, splits it over its enforced metrics, and each of them over its tests
    /// ([`crate::evidence::Evidence::tests`]). At 0.01 an alarm needs an E of 100 with one step, one metric and one test. It
    /// needs 25 600 with sixteen steps, eight metrics and two tests each.
    ///
    /// More parts need more bad events. Simulated, median of 200 runs: with four steps 23 to 40 % more than with one, and with
    /// sixteen steps 46 to 73 % more.
    pub fn evidence_needed(self, steps: u32, enforced: usize, tests: usize) -> u64 {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX).max(1);
        let parts = count(enforced).saturating_mul(count(tests)).saturating_mul(u64::from(steps.max(1)));
        parts.saturating_mul(1_000 * u64::from(MILLION)).div_ceil(u64::from(self.0))
    }
}

const MILLION: u32 = 1_000_000;

impl TryFrom<u32> for Ratio {
    type Error = Invalid;

    fn try_from(thousandths: u32) -> Result<Self, Invalid> {
        Self::new(f64::from(thousandths) / 1_000.0)
    }
}

impl From<Ratio> for u32 {
    fn from(ratio: Ratio) -> Self {
        ratio.0
    }
}

impl TryFrom<u32> for Alpha {
    type Error = Invalid;

    fn try_from(millionths: u32) -> Result<Self, Invalid> {
        Self::new(f64::from(millionths) / f64::from(MILLION))
    }
}

impl From<Alpha> for u32 {
    fn from(alpha: Alpha) -> Self {
        alpha.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_evidence_of_an_alarm_is_one_over_alpha_for_each_enforced_metric() {
        let needed = |alpha: f64, enforced| Alpha::new(alpha).unwrap().evidence_needed(1, enforced, 1);
        assert_eq!(Alpha::ONE_PERCENT.evidence_needed(1, 8, 2), 1_600_000);
        assert_eq!(Alpha::ONE_PERCENT.evidence_needed(16, 8, 2), 25_600_000);
        assert_eq!(needed(0.01, 1), 100_000);
        assert_eq!(needed(0.01, 8), 800_000);
        assert_eq!(needed(0.03, 1), 33_334, "rounded up");
        assert_eq!(needed(0.01, 0), 100_000, "what is only observed is shown beside the evidence of one");
        assert!(needed(0.0001, usize::MAX) > needed(0.0001, 1_000_000), "no overflow");
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        for alpha in [f64::NAN, -0.01, 0.0, 0.00001, 0.2, f64::INFINITY] {
            assert!(Alpha::new(alpha).is_err(), "{alpha}");
        }
        for ratio in [f64::NAN, -1.0, 0.9, 10.1, f64::INFINITY] {
            assert!(Ratio::new(ratio).is_err(), "{ratio}");
        }
        assert!(serde_json::from_str::<Ratio>("999").is_err());
        assert!(serde_json::from_str::<Alpha>("100001").is_err());
    }

    #[test]
    fn only_latencies_warm_up_by_default() {
        let seconds = [Kind::Failure, Kind::Abort, Kind::Latency].map(Kind::warmup_seconds);
        assert_eq!(seconds, [0, 0, 120]);
    }

    #[test]
    fn settings_are_integers_in_json() {
        let json = serde_json::to_string(&(Alpha::ONE_PERCENT, Kind::Latency.tolerated())).unwrap();
        assert_eq!(json, "[10000,1250]");
        assert_eq!(serde_json::from_str::<(Alpha, Ratio)>(&json).unwrap().1.value(), 1.25);
    }
}
