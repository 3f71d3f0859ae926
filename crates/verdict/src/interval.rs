//! What one interval gives: arrivals, ended requests, bad ones and Ready pods of both tracks. It holds no rule but which
//! numbers can be.

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;

/// The same of both versions.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub struct Tracks<T: Default> {
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

/// The requests of one track in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Requests that began: those that ended, and the change of those in flight.
    pub arrivals: u64,
    /// Requests that ended, whenever they began.
    pub ended: Counts,
    /// Requests that run or wait at the end of the interval.
    pub in_flight: u64,
    /// Containers that began anew in the interval.
    pub restarts: u32,
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

/// One complete interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub flows: Tracks<Flow>,
    pub ready_pods: Tracks<u32>,
    /// Seconds from when the candidate's weight rose from 0 until this interval began.
    pub age_seconds: u64,
}

/// Every JSON reader and every `f64` holds integers up to this one exactly: 2^53.
pub const MOST_REQUESTS: u64 = 1 << 53;

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

    /// What was added to an earlier look, whose requests are no more than these. Scrapes are not atomic, so a bad event may
    /// come a look before its request. It counts as a request then.
    pub(crate) fn added_to(self, earlier: Self) -> Self {
        let requests = self.requests.saturating_sub(earlier.requests);
        let bad = self.bad.saturating_sub(earlier.bad);
        Self { requests: requests.max(bad), bad }
    }

    /// These requests, with the bad ones of an earlier look if those are more.
    pub(crate) fn with_most_bad(self, earlier: Self) -> Self {
        Self { bad: self.bad.max(earlier.bad.min(self.requests)), ..self }
    }
}

impl Tracks<Counts> {
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { stable: self.stable.plus(other.stable), candidate: self.candidate.plus(other.candidate) }
    }
}

impl Flow {
    /// The flow of two pods.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let sum = |one: u64, other: u64| one.saturating_add(other).min(MOST_REQUESTS);
        Self {
            arrivals: sum(self.arrivals, other.arrivals),
            ended: self.ended.plus(other.ended),
            in_flight: sum(self.in_flight, other.in_flight),
            restarts: self.restarts.saturating_add(other.restarts),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
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
