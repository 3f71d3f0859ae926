//! What a source of metrics answered: values with the times of their sources, or why there is none.
//!
//! No number that is not finite and not negative passes here, and an absent value is never 0.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A value in thousandths of its unit, never negative; sums end at the largest one. HPA computes in the same unit.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(from = "i64")]
pub struct Milli(i64);

/// What was read for one metric of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// One value for the whole target. `at`: the time of the sample, not of the request.
    Total { value: Milli, at: Timestamp },
    /// As `Total`, of a source that says that some of its data was missing: the value may be too low.
    PartialTotal { value: Milli, at: Timestamp },
    /// One value per pod, of the pods that have one.
    Pods(Vec<PodSample>),
    /// No value.
    Missing(Fault),
}

impl Reading {
    /// The time of its newest sample.
    pub fn newest(&self) -> Option<Timestamp> {
        match self {
            Self::Total { at, .. } | Self::PartialTotal { at, .. } => Some(*at),
            Self::Pods(samples) => samples.iter().map(|sample| sample.at).max(),
            Self::Missing(_) => None,
        }
    }
}

/// A value of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSample {
    pub uid: String,
    pub value: Milli,
    /// The time of the sample, not of the request.
    pub at: Timestamp,
}

/// Why a metric has no value that can be used.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// The source answered without a sample.
    Empty,
    NotANumber,
    Infinite,
    Negative,
    /// The answer could not be decoded.
    Malformed,
    /// No connection.
    Unreachable,
    /// An error instead of an answer: not authorized, a query that is wrong, a fault of the server.
    Refused,
    /// No answer within the deadline.
    Slow,
    /// No pod has been Ready for a whole window of the metric.
    NoSettledPods,
    /// All samples are too old.
    Stale,
}

impl Milli {
    pub const ZERO: Self = Self(0);
    pub const MAX: Self = Self(i64::MAX);

    /// From whole units; negative ones become 0.
    pub const fn units(value: i64) -> Self {
        let count = value.saturating_mul(1_000);
        Self(if count < 0 { 0 } else { count })
    }

    /// Rounded to thousandths.
    pub fn parse(value: f64) -> Result<Self, Fault> {
        if value.is_nan() {
            return Err(Fault::NotANumber);
        }
        if value.is_infinite() {
            return Err(Fault::Infinite);
        }
        if value < 0.0 {
            return Err(Fault::Negative);
        }
        // The conversion ends at the largest value.
        Ok(Self((value * 1_000.0).round() as i64))
    }

    /// In thousandths.
    pub fn count(self) -> i64 {
        self.0
    }

    /// A share of it, in thousandths of the unit, rounded down.
    pub(crate) fn percent(self, percent: i64) -> i64 {
        (self.0 / 100).saturating_mul(percent) + self.0 % 100 * percent / 100
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    #[must_use]
    pub fn times(self, count: u32) -> Self {
        Self(self.0.saturating_mul(i64::from(count)))
    }
}

impl From<i64> for Milli {
    /// Negative counts become 0.
    fn from(count: i64) -> Self {
        Self(count.max(0))
    }
}

impl Reading {
    /// The total of the target, if it is a number that can be used.
    pub fn total(value: f64, at: Timestamp) -> Self {
        match Milli::parse(value) {
            Ok(value) => Self::Total { value, at },
            Err(fault) => Self::Missing(fault),
        }
    }

    /// What was read of some of the data of the target.
    pub fn partial_total(value: f64, at: Timestamp) -> Self {
        match Milli::parse(value) {
            Ok(value) => Self::PartialTotal { value, at },
            Err(fault) => Self::Missing(fault),
        }
    }
}

impl Fault {
    /// The word that conditions, events and metrics use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::NotANumber => "NotANumber",
            Self::Infinite => "Infinite",
            Self::Negative => "Negative",
            Self::Malformed => "Malformed",
            Self::Unreachable => "Unreachable",
            Self::Refused => "Refused",
            Self::Slow => "Slow",
            Self::NoSettledPods => "NoSettledPods",
            Self::Stale => "Stale",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finite_numbers_that_are_not_negative_are_values() {
        assert_eq!(Milli::parse(f64::NAN), Err(Fault::NotANumber));
        assert_eq!(Milli::parse(f64::NEG_INFINITY), Err(Fault::Infinite));
        assert_eq!(Milli::parse(-0.001), Err(Fault::Negative));
        assert_eq!(Milli::parse(-0.0), Ok(Milli::ZERO));
        assert_eq!(Milli::parse(0.07), Ok(Milli(70)));
        assert_eq!(Milli::parse(f64::MAX), Ok(Milli::MAX));
    }

    #[test]
    fn sums_end_at_the_largest_value() {
        assert_eq!(Milli::MAX.plus(Milli(1)), Milli::MAX);
        assert_eq!(Milli::MAX.times(2), Milli::MAX);
        assert_eq!(Milli::units(i64::MAX), Milli::MAX);
    }
}
