//! The bound that makes a request slow. Counts above a bound are known only where a histogram has a bucket that ends there.
//! Two versions of an engine may have different buckets. It must not guess between bounds.

use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, not_negative};

/// The end of a bucket in microseconds. `+Inf` is none.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
pub struct Bound(u64);

/// One bucket of a Prometheus histogram, summed up over pods.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// In seconds; `+Inf` in the last one.
    pub le: f64,
    /// Requests up to `le`, with those of all buckets before.
    pub count: u64,
}

/// Why no bound makes a request slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("the stable version has no bucket that ends there")]
    NotInStable,
    #[error("the candidate has no bucket that ends there")]
    NotInCandidate,
    /// Its p95 is in the bucket without an end.
    #[error("the 95th percentile of the stable version is above its last bucket")]
    BeyondLast,
    #[error("the stable version has no requests yet")]
    NoRequests,
}

/// A year, far longer than any request.
const MOST_SECONDS: f64 = 31_536_000.0;

const MICROSECONDS: f64 = 1e6;

/// The bound of a metric. It is the given one, or the end of the bucket that has the p95 of the stable version. Both tracks
/// must have it. The caller keeps the answer for the whole step, so that counts stay comparable.
pub fn bound(given: Option<Bound>, stable: &[Bucket], candidate: &[Bound]) -> Result<Bound, Mismatch> {
    let bound = match given {
        Some(given) if !bounds(stable.iter().map(|bucket| bucket.le)).contains(&given) => {
            return Err(Mismatch::NotInStable);
        }
        Some(given) => given,
        None => p95(stable)?,
    };
    if candidate.contains(&bound) { Ok(bound) } else { Err(Mismatch::NotInCandidate) }
}

/// The bounds of a histogram. `+Inf` and what cannot be a bound are left out.
pub fn bounds(seconds: impl IntoIterator<Item = f64>) -> Vec<Bound> {
    seconds.into_iter().filter_map(|le| Bound::from_seconds(le).ok()).collect()
}

fn p95(stable: &[Bucket]) -> Result<Bound, Mismatch> {
    let all = stable.iter().map(|bucket| bucket.count).max().unwrap_or_default();
    if all == 0 {
        return Err(Mismatch::NoRequests);
    }
    let has_p95 = |bucket: &&Bucket| u128::from(bucket.count) * 100 >= u128::from(all) * 95;
    let ends = stable.iter().filter(has_p95).filter_map(|bucket| Bound::from_seconds(bucket.le).ok());
    ends.min().ok_or(Mismatch::BeyondLast)
}

impl Bound {
    /// From a microsecond to a year, rounded to microseconds.
    pub fn from_seconds(seconds: f64) -> Result<Self, Invalid> {
        let microseconds = (not_negative(seconds)? * MICROSECONDS).round();
        if !(1.0..=MOST_SECONDS * MICROSECONDS).contains(&microseconds) {
            return Err(Invalid::OutOfRange);
        }
        // Within the range of the type, as just checked.
        Ok(Self(microseconds as u64))
    }

    pub fn from_millis(millis: u32) -> Result<Self, Invalid> {
        Self::from_seconds(f64::from(millis) / 1_000.0)
    }

    pub fn microseconds(self) -> u64 {
        self.0
    }

    /// In milliseconds, for a person: `500`, `12.5`.
    pub fn millis(self) -> String {
        let (whole, part) = (self.0 / 1_000, self.0 % 1_000);
        if part == 0 {
            whole.to_string()
        } else {
            format!("{whole}.{part:03}").trim_end_matches('0').to_owned()
        }
    }
}

#[cfg(test)]
mod tests;
