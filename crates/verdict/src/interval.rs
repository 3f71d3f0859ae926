//! What one interval gives: requests, bad ones and load of both tracks. It holds no rule but which numbers can be.

use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, not_negative};

/// The same of both versions.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracks<T> {
    pub stable: T,
    pub candidate: T,
}

/// Requests that ended, and how many of them were bad. Never more bad ones than requests.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(try_from = "Unchecked")]
pub struct Counts {
    requests: u64,
    bad: u64,
}

/// Requests in hand over Ready pods of one track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    thousandths: u64,
    ready_pods: u32,
}

/// One interval of one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// Every pod of both tracks gave its counters.
    Complete(Sample),
    /// At least one pod did not. A pod that answers nothing may be the one that fails, so the rest shows no share.
    Incomplete,
    /// The tracks share no bound that makes a request slow; see [`crate::bucket`].
    BucketMismatch,
}

/// The counts of one complete interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub counts: Tracks<Counts>,
    pub loads: Tracks<Load>,
    /// Seconds from when the candidate's weight rose from 0 until this interval began.
    pub age_seconds: u64,
}

/// Every JSON reader and every `f64` holds integers up to this one exactly: 2^53.
pub const MOST_REQUESTS: u64 = 1 << 53;

/// Requests in hand of a track. No server has so many.
const MOST_IN_HAND: u64 = 1_000_000_000;

/// Latencies are compared while the loads of the tracks differ by at most this factor. Batches, and so latencies, grow
/// with the load.
pub const LOAD_FACTOR: u64 = 2;

/// Loads below count as this one, in thousandths of a request per pod. A request that is alone shares no batch. Without
/// the floor, 0 beside 1 request would be infinitely different, and little traffic would never be compared.
pub const LEAST_LOAD: u64 = 1_000;

impl Counts {
    /// `requests` at most [`MOST_REQUESTS`], `bad` at most `requests`.
    pub fn new(requests: u64, bad: u64) -> Result<Self, Invalid> {
        if bad > requests {
            return Err(Invalid::MoreBadThanRequests { requests, bad });
        }
        if requests > MOST_REQUESTS {
            return Err(Invalid::TooLarge { most: MOST_REQUESTS });
        }
        Ok(Self { requests, bad })
    }

    pub fn requests(self) -> u64 {
        self.requests
    }

    pub fn bad(self) -> u64 {
        self.bad
    }

    /// The sum, which ends at [`MOST_REQUESTS`].
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests).min(MOST_REQUESTS),
            bad: self.bad.saturating_add(other.bad).min(MOST_REQUESTS),
        }
    }

    /// What was added since an earlier look; `None` if a count fell. Scrapes are not atomic, so a bad event may come a look
    /// before its request. It counts as a request then.
    pub(crate) fn since(self, earlier: Self) -> Option<Self> {
        let requests = self.requests.checked_sub(earlier.requests)?;
        let bad = self.bad.checked_sub(earlier.bad)?;
        Some(Self { requests: requests.max(bad), bad })
    }
}

impl Tracks<Counts> {
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { stable: self.stable.plus(other.stable), candidate: self.candidate.plus(other.candidate) }
    }
}

impl Load {
    /// `in_hand`: requests that wait or run in all Ready pods of the track; a mean over the interval, or one look.
    pub fn new(in_hand: f64, ready_pods: u32) -> Result<Self, Invalid> {
        let thousandths = (not_negative(in_hand)? * 1_000.0).round();
        if thousandths > (MOST_IN_HAND * 1_000) as f64 {
            return Err(Invalid::TooLarge { most: MOST_IN_HAND });
        }
        // Within the range of the type, as just checked.
        Ok(Self { thousandths: thousandths as u64, ready_pods })
    }
}

impl Tracks<Load> {
    /// The loads per Ready pod are within [`LOAD_FACTOR`]. A track without Ready pods is like no other.
    pub fn are_comparable(self) -> bool {
        let Self { stable, candidate } = self;
        if stable.ready_pods == 0 || candidate.ready_pods == 0 {
            return false;
        }
        // In thousandths of a request, times the pods of both tracks, so that nothing is divided.
        let stable_load = stable.floored() * u128::from(candidate.ready_pods);
        let candidate_load = candidate.floored() * u128::from(stable.ready_pods);
        let factor = u128::from(LOAD_FACTOR);
        stable_load <= candidate_load * factor && candidate_load <= stable_load * factor
    }
}

impl Load {
    fn floored(self) -> u128 {
        u128::from(self.thousandths).max(u128::from(LEAST_LOAD) * u128::from(self.ready_pods))
    }
}

#[derive(Deserialize)]
struct Unchecked {
    requests: u64,
    bad: u64,
}

impl TryFrom<Unchecked> for Counts {
    type Error = Invalid;

    fn try_from(Unchecked { requests, bad }: Unchecked) -> Result<Self, Invalid> {
        Self::new(requests, bad)
    }
}

#[cfg(test)]
mod tests;
