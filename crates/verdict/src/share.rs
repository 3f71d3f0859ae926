//! Shares of requests, and how large a share may really be. It knows no tracks and no rules.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    interval::Counts,
    invalid::{Invalid, parts},
};

/// A share of requests in millionths, from 0 to 1. It is shown in percent.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "u32", into = "u32")]
pub struct Share(u32);

/// The quantile of the normal distribution of a one-sided bound of 95 %. The question has one side: only a share that is too
/// large matters.
pub const Z: f64 = 1.644_853_626_951_472_7;

const MILLION: u32 = 1_000_000;

/// The upper bound of the true bad share with 95 % confidence, rounded up; `None` without requests. Score interval of
/// E. B. Wilson, "Probable inference", Journal of the American Statistical Association 22 (1927).
///
/// It is simple and close to its 95 % in general, but not near 0. With no bad request it shows at most 1 % from 268
/// requests on. The exact bound (Clopper and Pearson) does so from 299 on, and the rule of three from 300 on. At 268 requests
/// its confidence is 93.2 %. So 300 requests at least are a good rule.
///
/// The confidence is that of one look. Who looks until the bound is low enough passes more often; `judge.rs` has figures.
pub fn upper_bound(counts: Counts) -> Option<Share> {
    let requests = counts.requests() as f64;
    if counts.requests() == 0 {
        return None;
    }
    let share = counts.bad() as f64 / requests;
    let z2 = Z * Z;
    let spread = (share * (1.0 - share) / requests + z2 / (4.0 * requests * requests)).sqrt();
    let bound = (share + z2 / (2.0 * requests) + Z * spread) / (1.0 + z2 / requests);
    Some(Share::rounded_up(bound))
}

/// With how many requests the bound is as low as `allowed`, if the share stays as it is. `None` if it is `allowed` or more:
/// then more requests do not help. Without requests, as though no request will be bad.
///
/// The bound u of n requests with the share p solves (u − p)² = z² u (1 − u) / n.
pub fn requests_needed(counts: Counts, allowed: Share) -> Option<u64> {
    let share = if counts.requests() == 0 { 0.0 } else { counts.bad() as f64 / counts.requests() as f64 };
    let bound = allowed.value();
    if allowed == Share::ALL {
        return Some(1);
    }
    let distance = bound - share;
    if distance <= 0.0 {
        return None;
    }
    let requests = Z * Z * bound * (1.0 - bound) / (distance * distance);
    // One more than the whole part, so that the rounded bound is surely low enough. The conversion ends at the largest.
    Some((requests.floor() as u64).saturating_add(1))
}

impl Share {
    pub const NONE: Self = Self(0);
    pub const ALL: Self = Self(MILLION);

    /// From 0 to 100.
    pub fn from_percent(percent: f64) -> Result<Self, Invalid> {
        parts(percent, MILLION / 100, 0..=MILLION).map(Self)
    }

    /// From 0 to 1 000 000.
    pub fn from_millionths(millionths: u32) -> Result<Self, Invalid> {
        if millionths > MILLION {
            return Err(Invalid::OutOfRange);
        }
        Ok(Self(millionths))
    }

    /// The bad ones of the requests, rounded to the nearest; `None` without requests.
    pub fn of(counts: Counts) -> Option<Self> {
        if counts.requests() == 0 {
            return None;
        }
        let requests = u128::from(counts.requests());
        let millionths = (u128::from(counts.bad()) * u128::from(MILLION) + requests / 2) / requests;
        Some(Self(u32::try_from(millionths).unwrap_or(MILLION).min(MILLION)))
    }

    pub fn millionths(self) -> u32 {
        self.0
    }

    /// From 0 to 1.
    pub fn value(self) -> f64 {
        f64::from(self.0) / f64::from(MILLION)
    }

    /// `percent` of it plus another share; at most all.
    #[must_use]
    pub(crate) fn scaled(self, percent: u32, plus: Self) -> Self {
        let scaled = u64::from(self.0) * u64::from(percent) / 100 + u64::from(plus.0);
        Self(u32::try_from(scaled).unwrap_or(MILLION).min(MILLION))
    }

    pub(crate) const fn tenths_of_percent(tenths: u32) -> Self {
        Self(tenths * (MILLION / 1_000))
    }

    fn rounded_up(share: f64) -> Self {
        let millionths = (share * f64::from(MILLION)).ceil();
        // The conversion ends at both ends of the type.
        Self((millionths as u32).min(MILLION))
    }
}

impl fmt::Display for Share {
    /// In percent, with as many digits as there are.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_percent = MILLION / 100;
        let digits = format!("{:04}", self.0 % per_percent);
        let digits = digits.trim_end_matches('0');
        let point = if digits.is_empty() { "" } else { "." };
        write!(out, "{}{point}{digits}%", self.0 / per_percent)
    }
}

impl TryFrom<u32> for Share {
    type Error = Invalid;

    fn try_from(millionths: u32) -> Result<Self, Invalid> {
        Self::from_millionths(millionths)
    }
}

impl From<Share> for u32 {
    fn from(share: Share) -> Self {
        share.0
    }
}

#[cfg(test)]
mod tests;
