//! What is known of one metric in one step: totals, and a test that may be asked after each interval. It decides nothing.
//!
//! # The test
//!
//! An interval has nc requests of the candidate and ns of the stable version. The tolerated ratio is m. A candidate that is m
//! times as bad has this share of the bad events of both tracks: p0 = nc·m / (nc·m + ns). If it is r times worse still, its
//! share is pr = p0·r / (p0·r + 1 − p0). With kc bad events of the candidate and ks others, the likelihood ratio is
//! (pr/p0)^kc · ((1 − pr)/(1 − p0))^ks. L is the product of it over the intervals. E is the mean of L over [`RATIOS`].
//!
//! While the candidate is at most m times as bad, each L is a supermartingale that begins at 1, and so is E. So the
//! chance that E ever reaches 1/alpha is at most alpha, however often it is looked at. This is Ville's inequality (J. Ville,
//! "Étude critique de la notion de collectif", 1939). The weights may change, since each interval has its own p0.
//!
//! # Guards
//!
//! Bad events come in clusters, since one fault can end a whole batch. A cluster is about one event and looks like many.
//! Three rules lessen this. At most [`MOST_BAD`] events of an interval enter. An interval multiplies L at most by
//! [`MOST_FACTOR`]. An alarm needs [`ALARM_INTERVALS`] intervals. With all of them, L stays a supermartingale for independent
//! events.
//!
//! They do not keep the promise for clusters. Simulated: equal versions, 300 faults, one fault of ten ends 32 requests, alpha
//! 0.01. There are false alarms in 3 % of the runs with a tenth of the requests at the candidate, and in 39 % with half of
//! them. Without the factor it would be 50 % and 66 %. So the caller must not leave crashes to this test. Restarts of
//! containers and lost readiness are to be seen as what they are.
//!
//! # No control
//!
//! With no requests in one of the tracks, p0 is 0 or 1: whatever happens, it had to happen there. All factors are 1, so such
//! an interval gives no evidence. Its counts enter the totals, which hold without a control. At weight 100 there can be no
//! alarm for this reason.

use serde::{Deserialize, Serialize};

use crate::{
    interval::{Counts, Interval, Sample, Tracks},
    metric::{Kind, Metric, Ratio},
};

/// What is known of one metric in one step. Integers only, so that a status holds it without loss. A new step begins with
/// [`Evidence::default`].
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// Of all counted intervals.
    pub totals: Tracks<Counts>,
    /// Intervals that were counted.
    pub counted: u32,
    /// Intervals that were not, besides those of the warm-up.
    pub skipped: u32,
    /// Counted intervals in which both tracks had requests and the candidate bad ones.
    pub alarming: u32,
    /// The natural logarithm of L for each of [`RATIOS`], in millionths, rounded down. Rounded down, L never gains by it.
    /// Thousandths would lose up to 0.001 in each interval with bad events. That is more than an alarm needs in a day.
    pub log_ratios: [i64; 5],
    /// What happened to the newest interval.
    pub latest: Latest,
    /// So many intervals in a row had it.
    pub in_a_row: u32,
}

/// What happened to an interval.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub enum Latest {
    /// There was none yet.
    #[default]
    Nothing,
    Counted,
    WarmingUp,
    LoadMismatch,
    BucketMismatch,
    Incomplete,
}

/// How much worse the candidate may be than what is tolerated. One ratio alone is slow for all others; five from a bit to
/// very much worse cost at most a factor of five in E.
pub const RATIOS: [f64; 5] = [1.5, 2.0, 3.0, 5.0, 10.0];

/// So many bad events of an interval enter. Of more, both tracks are scaled by one factor: the ratio stays, the evidence
/// shrinks. A batch has a few dozen requests, which one crash ends.
pub const MOST_BAD: u64 = 20;

/// An interval multiplies each L at most by this. Then one interval never gives an alarm, and two can: E of 400, which is
/// enough at alpha 0.01 for up to four metrics.
pub const MOST_FACTOR: f64 = 20.0;

/// An alarm needs bad events of the candidate in so many intervals: one fault of a moment is no fault of a version.
pub const ALARM_INTERVALS: u32 = 2;

/// L is known to [`i64`] with this many parts of a natural logarithm.
const PARTS: f64 = 1e6;

/// E is shown up to 10^9, in thousandths.
const MOST_EVIDENCE: u64 = 1_000_000_000_000;

impl Evidence {
    /// With one more interval. Evidence of the same intervals in the same order is the same.
    #[must_use]
    pub fn observe(self, interval: &Interval, metric: &Metric) -> Self {
        match interval {
            Interval::Incomplete => self.without(Latest::Incomplete),
            Interval::BucketMismatch => self.without(Latest::BucketMismatch),
            Interval::Complete(sample) => match refusal(sample, metric) {
                Some(refusal) => self.without(refusal),
                None => self.with(sample.counts, metric.tolerated),
            },
        }
    }

    /// E in thousandths, rounded down; at most 10^12.
    pub fn evidence(&self) -> u64 {
        let logs = self.log_ratios.map(|log| log as f64 / PARTS);
        let largest = logs.into_iter().fold(f64::NEG_INFINITY, f64::max);
        // Of the largest, so that no power is infinite.
        let sum: f64 = logs.iter().map(|log| (log - largest).exp()).sum();
        let log = largest + (sum / RATIOS.len() as f64).ln();
        // The conversion ends at the largest.
        ((log.exp() * 1_000.0).floor() as u64).min(MOST_EVIDENCE)
    }

    /// `needed`: of [`crate::metric::Alpha::evidence_needed`].
    pub fn is_alarm(&self, needed: u64) -> bool {
        self.alarming >= ALARM_INTERVALS && self.evidence() >= needed
    }

    fn with(self, counts: Tracks<Counts>, tolerated: Ratio) -> Self {
        let Tracks { stable, candidate } = counts;
        let has_control = stable.requests() > 0 && candidate.requests() > 0;
        let mut log_ratios = self.log_ratios;
        if has_control && stable.bad() + candidate.bad() > 0 {
            for (log, ratio) in log_ratios.iter_mut().zip(RATIOS) {
                *log = log.saturating_add(log_factor(counts, tolerated.value(), ratio));
            }
        }
        let is_alarming = has_control && candidate.bad() > 0;
        Self {
            totals: self.totals.plus(counts),
            counted: self.counted.saturating_add(1),
            alarming: self.alarming.saturating_add(is_alarming.into()),
            log_ratios,
            ..self.after(Latest::Counted)
        }
    }

    fn without(self, latest: Latest) -> Self {
        let is_skipped = match latest {
            Latest::LoadMismatch | Latest::BucketMismatch | Latest::Incomplete => true,
            Latest::Nothing | Latest::Counted | Latest::WarmingUp => false,
        };
        Self { skipped: self.skipped.saturating_add(is_skipped.into()), ..self.after(latest) }
    }

    fn after(self, latest: Latest) -> Self {
        let before = if self.latest == latest { self.in_a_row } else { 0 };
        Self { latest, in_a_row: before.saturating_add(1), ..self }
    }
}

/// Why a complete interval is not counted.
fn refusal(sample: &Sample, metric: &Metric) -> Option<Latest> {
    if sample.age_seconds < u64::from(metric.warmup_seconds) {
        return Some(Latest::WarmingUp);
    }
    let compares_loads = match metric.kind {
        Kind::Latency => true,
        Kind::Failure | Kind::Abort => false,
    };
    (compares_loads && !sample.loads.are_comparable()).then_some(Latest::LoadMismatch)
}

/// The logarithm of an interval's factor of L, in millionths. Both tracks have requests.
///
/// With odds instead of shares, (1 − pr)/(1 − p0) is (nc·m + ns)/(nc·m·r + ns), and pr/p0 is r times that. So p0 that rounds
/// to 1 divides nothing by 0.
fn log_factor(counts: Tracks<Counts>, tolerated: f64, ratio: f64) -> i64 {
    let Tracks { stable, candidate } = counts;
    let exposure = candidate.requests() as f64 * tolerated;
    let control = stable.requests() as f64;
    let stable_event = ((exposure + control) / (exposure * ratio + control)).ln();
    let candidate_event = ratio.ln() + stable_event;
    let log = candidate.bad() as f64 * candidate_event + stable.bad() as f64 * stable_event;
    let bad = candidate.bad() + stable.bad();
    let scale = if bad > MOST_BAD { MOST_BAD as f64 / bad as f64 } else { 1.0 };
    // Of 20 events at most, so that it is far within the range of the type.
    ((log * scale).min(MOST_FACTOR.ln()) * PARTS).floor() as i64
}

#[cfg(test)]
mod tests;
