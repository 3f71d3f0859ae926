//! What is known of one metric in one step: totals, and two tests that may be asked after each interval. It decides nothing.
//! `e_process.rs` has the arithmetic and the promise of both tests.
//!
//! # Against the stable version
//!
//! The exposure of a track is its arrivals in the interval: nc of the candidate and ns of the stable version. Ended requests
//! are no exposure. Failures end at once and answers after minutes, so a track whose weight just rose has ended few requests
//! and all of its failures. The tolerated ratio is m. A candidate that is m times as bad has this share of the bad events of
//! both tracks: p0 = nc·m / (nc·m + ns). If it is r times worse still, its share is pr = p0·r / (p0·r + 1 − p0). With kc bad
//! events of the candidate and ks others, the factor is (pr/p0)^kc · ((1 − pr)/(1 − p0))^ks. The weights may change, since
//! each interval has its own p0. An event that comes late belongs to earlier arrivals. While the weight of the candidate
//! rises, this only makes the candidate look better. nc is at least kc, which makes the factor smaller.
//!
//! With no arrivals in one of the tracks, p0 is 0 or 1: such an interval does not enter.
//!
//! # Against a fixed share
//!
//! A candidate with almost all requests has little control. The second test takes intervals in which less than a tenth of
//! the arrivals are those of the stable version. It compares with a share a, which is frozen when the step begins. The
//! limit, or earlier steps of the stable version, give it. q is a·r, at most halfway from a to 1. The factor of k bad events
//! in n requests is `(q/a)^k · ((1 − q)/(1 − a))^(n − k)`. Of arrivals and ended requests, n is the larger: that makes the
//! factor smaller. Without limit and earlier counts this test does not exist. It cannot tell a fault of the candidate from a fault
//! of everything, so a database that fails at weight 100 is an alarm.
//!
//! # Guards
//!
//! Bad events come in clusters, since one fault can end a whole batch. Three rules keep the promise for clusters too: the weight
//! of a burst (`burst.rs`), [`MOST_FACTOR`] and [`ALARM_INTERVALS`]. Simulated: a day of equal versions with 12 to 144
//! crashes, each of which fails 20 to 200 requests, at 5, 10 and 50 % of the requests. At most 3 of 100 days have an alarm.
//! A candidate of which every request fails is found within five
//! intervals, and within ten after a good day. The promise ends where crashes are so
//! frequent that most intervals have one.
//!
//! An interval in which a container began anew does not enter the tests, for both tracks: its faults are those of a start
//! or of an end. Its requests are in the totals. The caller must see restarts and lost readiness of the candidate as what
//! they are, since they are no evidence here.
//!
//! Latencies count only while the tracks have comparable arrivals per Ready pod, in the mean of the last [`LOAD_WINDOW`]
//! intervals. Arrivals do not depend on how fast a version answers, so a slow candidate is not excused by its slowness. If the
//! stable version had no arrivals in that window, there is nothing to compare, and the candidate's latencies count.
//!
//! [`LOAD_WINDOW`]: crate::load::LOAD_WINDOW
//! [`MOST_FACTOR`]: crate::e_process::MOST_FACTOR
//! [`ALARM_INTERVALS`]: crate::e_process::ALARM_INTERVALS

use serde::{Deserialize, Serialize};

use crate::{
    burst::Usual,
    e_process::{EProcess, RATIOS},
    hanging::{Mark, Marks},
    interval::{Counts, Flow, Interval, MOST_REQUESTS, Sample, Tracks},
    load::Loads,
    metric::{Kind, Metric, Ratio},
    share::Share,
    stored::lenient,
};

/// What is known of one metric in one step. Integers only, so that a status holds it without loss.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Evidence {
    /// Ended requests of all counted intervals.
    #[serde(deserialize_with = "lenient")]
    pub totals: Tracks<Counts>,
    /// Arrivals of all counted intervals.
    #[serde(deserialize_with = "lenient")]
    pub arrivals: Tracks<u64>,
    /// At the end of the newest complete interval.
    #[serde(deserialize_with = "lenient")]
    pub in_flight: Tracks<u64>,
    /// Ended requests of the candidate in thousandths, of which each interval drops an eighth: the share of the last minutes.
    #[serde(deserialize_with = "lenient")]
    pub recent: Counts,
    /// Intervals that were counted.
    #[serde(deserialize_with = "lenient")]
    pub counted: u32,
    /// Intervals that were not, besides those of the warm-up.
    #[serde(deserialize_with = "lenient")]
    pub skipped: u32,
    /// Requests in flight at earlier looks.
    #[serde(deserialize_with = "lenient")]
    pub marks: Marks,
    /// What is no burst in the next interval.
    #[serde(deserialize_with = "lenient")]
    pub usual: Usual,
    #[serde(deserialize_with = "lenient")]
    pub against_stable: EProcess,
    #[serde(deserialize_with = "lenient")]
    pub against_fixed: EProcess,
    /// The share a of the second test; absent if there is none.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub fixed: Option<Share>,
    #[serde(deserialize_with = "lenient")]
    pub loads: Loads,
    /// What happened to the newest interval.
    #[serde(deserialize_with = "lenient")]
    pub latest: Latest,
    /// So many intervals in a row had it.
    #[serde(deserialize_with = "lenient")]
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

/// A share below counts as this one in the second test, since any event would be infinite evidence against a share of 0.
pub const LEAST_FIXED: Share = Share::tenths_of_percent(1);

/// With a part of the arrivals that is smaller than one in so many, the stable version is little control.
const LITTLE_CONTROL: u64 = 10;

/// One in so many of the recent counts is dropped at each interval.
const RECENT: u64 = 8;

impl Evidence {
    /// Of a new step. `fixed`: of [`crate::judge::fixed_share`].
    pub fn begin(fixed: Option<Share>) -> Self {
        let fixed = fixed.filter(|share| *share < Share::ALL).map(|share| share.max(LEAST_FIXED));
        Self { fixed, ..Self::default() }
    }

    /// With one more interval. Evidence of the same intervals in the same order is the same.
    #[must_use]
    pub fn observe(self, interval: &Interval, metric: &Metric) -> Self {
        match interval {
            Interval::Incomplete => self.without(Latest::Incomplete),
            Interval::BucketMismatch => self.without(Latest::BucketMismatch),
            Interval::Complete(sample) => {
                let Tracks { stable, candidate } = sample.flows;
                let in_flight = Tracks { stable: stable.in_flight, candidate: candidate.in_flight };
                let seen = Self { in_flight, loads: self.loads.with(sample), ..self };
                match refusal(&seen.loads, sample, metric) {
                    Some(refusal) => seen.without(refusal),
                    None => seen.with(sample.flows, metric.tolerated),
                }
            }
        }
    }

    /// How many tests share the alpha of the metric. A test that has ended keeps its part.
    pub fn tests(&self) -> usize {
        1 + usize::from(self.fixed.is_some() || self.against_fixed.intervals > 0)
    }

    /// The larger E of the tests, in thousandths.
    pub fn e_value(&self) -> u64 {
        let fixed = self.fixed.map(|_| self.against_fixed.e_value());
        self.against_stable.e_value().max(fixed.unwrap_or_default())
    }

    /// One of the tests has found that the candidate is worse. `needed`: of [`crate::metric::Alpha::evidence_needed`].
    ///
    /// With a limit, the candidate's share must also be above it, in the step or in the last minutes. This condition only
    /// makes alarms fewer. Without a limit there is none: any difference that is surely real is an alarm, also one that the
    /// margin of a pass would accept.
    pub fn is_alarm(&self, needed: u64, limit: Option<Share>) -> bool {
        let is_above = |counts: Counts| limit.is_none_or(|limit| Share::of(counts) > Some(limit));
        let is_fixed_alarm = self.fixed.is_some() && self.against_fixed.is_alarm(needed);
        let found = self.against_stable.is_alarm(needed) || is_fixed_alarm;
        found && (is_above(self.totals.candidate) || is_above(self.recent))
    }

    fn with(self, flows: Tracks<Flow>, tolerated: Ratio) -> Self {
        let Tracks { stable, candidate } = flows;
        let sum = |before: u64, more: u64| before.saturating_add(more).min(MOST_REQUESTS);
        let arrivals = Tracks {
            stable: sum(self.arrivals.stable, stable.arrivals),
            candidate: sum(self.arrivals.candidate, candidate.arrivals),
        };
        let seen = self.with_tests(flows, tolerated);
        let totals = self.totals.plus(Tracks { stable: stable.ended, candidate: candidate.ended });
        let counted = self.counted.saturating_add(1);
        let now = Mark { ended: totals.candidate.requests(), in_flight: candidate.in_flight };
        Self {
            totals,
            arrivals,
            recent: recent(self.recent, candidate.ended),
            counted,
            marks: self.marks.with(counted, now),
            ..seen.after(Latest::Counted)
        }
    }

    fn with_tests(self, flows: Tracks<Flow>, tolerated: Ratio) -> Self {
        let Tracks { stable, candidate } = flows;
        if stable.restarts > 0 || candidate.restarts > 0 {
            return self;
        }
        let bad = stable.ended.bad().saturating_add(candidate.ended.bad());
        Self {
            usual: self.usual.with(bad),
            against_stable: against_stable(self.against_stable, flows, tolerated, self.usual.weight(bad)),
            against_fixed: against_fixed(self.against_fixed, flows, self.fixed, self.usual),
            ..self
        }
    }

    fn without(self, latest: Latest) -> Self {
        let is_skipped = match latest {
            Latest::LoadMismatch | Latest::BucketMismatch | Latest::Incomplete => true,
            Latest::Nothing | Latest::Counted | Latest::WarmingUp => false,
        };
        Self { skipped: self.skipped.saturating_add(is_skipped.into()), ..self.after(latest) }
    }

    /// Its time counts for the time that is left, and it ends a row of incomplete ones.
    pub(crate) fn pooled(self) -> Self {
        let in_a_row = if self.latest == Latest::Incomplete { 0 } else { self.in_a_row };
        Self { skipped: self.skipped.saturating_add(1), in_a_row, ..self }
    }

    fn after(self, latest: Latest) -> Self {
        let before = if self.latest == latest { self.in_a_row } else { 0 };
        Self { latest, in_a_row: before.saturating_add(1), ..self }
    }
}

/// Why a complete interval is not counted.
fn refusal(loads: &Loads, sample: &Sample, metric: &Metric) -> Option<Latest> {
    if sample.age_seconds < u64::from(metric.warmup_seconds()) {
        return Some(Latest::WarmingUp);
    }
    let compares_loads = match metric.kind {
        Kind::Latency => true,
        Kind::Failure | Kind::Abort => false,
    };
    (compares_loads && !loads.are_comparable(sample.ready_pods)).then_some(Latest::LoadMismatch)
}

fn recent(before: Counts, more: Counts) -> Counts {
    let kept = |count: u64| count - count.div_ceil(RECENT);
    let requests = kept(before.requests()).saturating_add(more.requests().saturating_mul(1_000));
    let bad = kept(before.bad()).saturating_add(more.bad().saturating_mul(1_000));
    let requests = requests.min(MOST_REQUESTS);
    Counts::new(requests, bad.min(requests)).unwrap_or_default()
}

/// `weight`: of each bad event, see `burst.rs`.
///
/// With odds instead of shares, (1 − pr)/(1 − p0) is (nc·m + ns)/(nc·m·r + ns), and pr/p0 is r times that. So p0 that rounds
/// to 1 divides nothing by 0.
fn against_stable(test: EProcess, flows: Tracks<Flow>, tolerated: Ratio, weight: f64) -> EProcess {
    let Tracks { stable, candidate } = flows;
    let arrivals = candidate.arrivals.max(candidate.ended.bad());
    let [of_stable, of_candidate] = [stable.ended.bad(), candidate.ended.bad()];
    let bad = of_stable.saturating_add(of_candidate);
    if stable.arrivals == 0 || arrivals == 0 || bad == 0 {
        return test;
    }
    let exposure = arrivals as f64 * tolerated.value();
    let control = stable.arrivals as f64;
    let factors = RATIOS.map(|ratio| {
        let stable_event = ((exposure + control) / (exposure * ratio + control)).ln();
        let candidate_event = ratio.ln() + stable_event;
        weight * (of_candidate as f64 * candidate_event + of_stable as f64 * stable_event)
    });
    test.with(factors, of_candidate > 0)
}

/// A factor that speaks for the candidate is not scaled up. How many events are bad is the outcome here. A scale that depends
/// on it could raise the expected value above 1.
fn against_fixed(test: EProcess, flows: Tracks<Flow>, fixed: Option<Share>, usual: Usual) -> EProcess {
    let Tracks { stable, candidate } = flows;
    let requests = candidate.arrivals.max(candidate.ended.requests());
    let all = u128::from(stable.arrivals) + u128::from(candidate.arrivals);
    let has_control = u128::from(stable.arrivals) * u128::from(LITTLE_CONTROL) >= all;
    let Some(fixed) =
        fixed.filter(|share| *share < Share::ALL && requests > 0 && (stable.arrivals == 0 || !has_control))
    else {
        return test;
    };
    // A stored share may be any.
    let share = fixed.max(LEAST_FIXED).value();
    let bad = candidate.ended.bad();
    let good = requests.saturating_sub(bad);
    let factors = RATIOS.map(|ratio| {
        let worse = (share * ratio).min((1.0 + share) / 2.0);
        let log = bad as f64 * (worse / share).ln() + good as f64 * ((1.0 - worse) / (1.0 - share)).ln();
        log.min(log * usual.weight(bad))
    });
    test.with(factors, bad > 0)
}

#[cfg(test)]
mod expected;
#[cfg(test)]
mod tests;
