//! The verdict over all metrics of a step, from settings and evidence alone. It acts on nothing.
//!
//! Fail: one enforced metric has an alarm. Pass: the step is old enough, and every enforced metric passes. Everything else is
//! Inconclusive, with the reason and with what is missing.
//!
//! A metric passes with enough requests of the candidate and an upper bound of its bad share that is allowed. Allowed is the
//! limit of the metric, or what the stable version's share allows if that is more.
//!
//! The bound is asked after each interval, so its 95 % is not that of the whole step. Simulated: one request per second, a
//! limit of 1 %, an hour of looks. A candidate with exactly 1 % passes in 22 % of the steps instead of 5 %, with 1.5 % in
//! 2 %, with 2 % in 0.6 %.

use serde::{Deserialize, Serialize};

use crate::{
    bucket::Bound,
    evidence::Evidence,
    interval::{Counts, Interval},
    metric::{Alpha, Metric, Mode},
    share::Share,
    stored::lenient,
};

mod rules;

pub use rules::fixed_share;

/// Everything that a verdict depends on. A status that holds it can be judged again.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Inputs {
    pub step: Step,
    pub metrics: Vec<Judged>,
}

/// The step of a rollout that is judged.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Since its weight is in force.
    pub seconds: u64,
    pub min_seconds: u32,
    /// Of the candidate; of the stable version to be a control.
    pub min_requests: u32,
    /// From one look to the next, for estimates only.
    pub interval_seconds: u32,
    /// The chance of a false alarm in the whole rollout.
    pub alpha: Alpha,
    /// Of the rollout; each has its part of alpha. 0 counts as 1.
    pub steps: u32,
}

/// One metric and what is known of it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Judged {
    pub metric: Metric,
    #[serde(default, deserialize_with = "lenient")]
    pub evidence: Evidence,
    /// The bound of a latency, with which the evidence was counted.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    #[serde(default, deserialize_with = "lenient")]
    pub earlier: Earlier,
}

/// Counts of the stable version in earlier steps, which join those of this step as the control of a pass. At weight 100 the
/// stable version has no requests, so that there is no other control. Aborts leave them out: callers hang up at their own
/// times. Counts of another bound are left out too.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Earlier {
    #[serde(deserialize_with = "lenient")]
    pub counts: Counts,
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verdict {
    Pass,
    Fail,
    #[default]
    Inconclusive,
}

/// Why. Of several reasons of one verdict, the first in this order is that of the step.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Fail: E is large enough.
    Alarm,
    /// Three intervals in a row were not complete.
    MetricsMissing,
    /// The tracks share no bound that makes a request slow.
    BucketMismatch,
    /// So many requests of the candidate have not ended that the verdict could be another one; see `hanging.rs`.
    InFlight,
    /// Three intervals in a row had loads that cannot be compared, and requests are missing for it.
    LoadMismatch,
    /// The candidate's share is not below what is allowed. More requests help only if it falls.
    ShareTooHigh,
    /// There is neither a limit nor a stable version with requests, now or earlier.
    NoControl,
    /// All intervals so far were dropped.
    WarmingUp,
    /// For [`Step::min_requests`] of one of the tracks, or for the bound.
    TooFewRequests,
    /// Only time is missing.
    TooEarly,
    /// There is no enforced metric that could be judged.
    #[default]
    NothingJudged,
    Passing,
}

/// The verdict of a step.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Judgement {
    #[serde(default, deserialize_with = "lenient")]
    pub verdict: Verdict,
    #[serde(default, deserialize_with = "lenient")]
    pub reason: Reason,
    /// What a pass still needs; absent if waiting is not known to help.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
    /// In the order of the inputs.
    #[serde(default, deserialize_with = "lenient")]
    pub metrics: Vec<MetricResult>,
}

/// What a pass needs at the present share and rate.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Missing {
    /// Of the candidate.
    #[serde(default, deserialize_with = "lenient")]
    pub requests: u64,
    /// Of the stable version, to be a control.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "is_none")]
    pub stable_requests: u64,
    /// At the mean rate of the step; absent if it had no requests yet.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
}

fn is_none(requests: &u64) -> bool {
    *requests == 0
}

/// The verdict of one metric, with the numbers that decided. They do not hold the guards of an alarm and of a pass; the
/// reason names these.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MetricResult {
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    #[serde(default, deserialize_with = "lenient")]
    pub mode: Mode,
    /// Absent if the metric cannot be judged in this step: aborts without a control.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    #[serde(default, deserialize_with = "lenient")]
    pub reason: Reason,
    /// Of this step.
    #[serde(default, deserialize_with = "lenient")]
    pub shares: Shares,
    /// E in thousandths; see [`Evidence::e_value`].
    #[serde(default, deserialize_with = "lenient")]
    pub e_value: u64,
    /// E of an alarm in thousandths.
    #[serde(default, deserialize_with = "lenient")]
    pub e_value_needed: u64,
    /// The upper bound of the candidate's share; absent without requests.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub upper_bound: Option<Share>,
    /// The highest upper bound that passes; absent without limit and control.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Share>,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
}

/// The bad shares of both versions; a version without requests has none.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Shares {
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub stable: Option<Share>,
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Share>,
}

/// Of the stable version's share, in percent: what no caller notices.
pub const RELATIVE_MARGIN: u32 = 125;

/// Added to it: with a share of 0, any bound would be too high.
pub const ABSOLUTE_MARGIN: Share = Share::tenths_of_percent(5);

impl Judged {
    /// Of a new step. `min_requests`: of [`Step::min_requests`].
    pub fn begin(metric: Metric, bound: Option<Bound>, earlier: Earlier, min_requests: u32) -> Self {
        let evidence = Evidence::begin(fixed_share(&metric, bound, earlier, min_requests));
        Self { metric, evidence, bound, earlier }
    }

    /// With one more interval. The bad requests of a complete one were counted with `bound`. Counts of different bounds
    /// cannot be added up, so another bound begins the totals anew. The tests go on, so that alpha is spent once: each
    /// interval has its own bound, and its factor has an expected value of at most 1. The fixed share becomes the limit of the
    /// metric. Without a limit the second test ends.
    #[must_use]
    pub fn observe(self, interval: &Interval, bound: Option<Bound>) -> Self {
        let is_same = match interval {
            Interval::Complete(_) => bound == self.bound,
            Interval::Incomplete | Interval::BucketMismatch => true,
        };
        let kept = if is_same { self } else { self.of_bound(bound) };
        Self { evidence: kept.evidence.observe(interval, &kept.metric), ..kept }
    }

    /// An interval whose requests are counted with those of the next one.
    #[must_use]
    pub fn pooled(self) -> Self {
        Self { evidence: self.evidence.pooled(), ..self }
    }

    fn of_bound(self, bound: Option<Bound>) -> Self {
        let fixed = self.evidence.fixed.and(fixed_share(&self.metric, bound, Earlier::default(), 1));
        let Evidence { usual, against_stable, against_fixed, .. } = self.evidence;
        let evidence = Evidence { usual, against_stable, against_fixed, ..Evidence::begin(fixed) };
        Self { evidence, bound, ..self }
    }
}

/// The verdict of a step. Equal inputs have equal verdicts.
pub fn judge(inputs: &Inputs) -> Judgement {
    let Inputs { step, metrics } = inputs;
    let enforced = metrics.iter().filter(|judged| judged.metric.mode == Mode::Enforce).count();
    let metrics: Vec<MetricResult> =
        metrics.iter().map(|judged| rules::result(judged, step, enforced)).collect();
    let (verdict, reason) = overall(&metrics, step);
    let missing = match verdict {
        Verdict::Pass | Verdict::Fail => None,
        Verdict::Inconclusive => missing(&metrics, step),
    };
    Judgement { verdict, reason, missing, metrics }
}

fn overall(metrics: &[MetricResult], step: &Step) -> (Verdict, Reason) {
    let reason = |of: Verdict| enforced(metrics, of).map(|metric| metric.reason).min();
    if let Some(reason) = reason(Verdict::Fail) {
        return (Verdict::Fail, reason);
    }
    if let Some(reason) = reason(Verdict::Inconclusive) {
        return (Verdict::Inconclusive, reason);
    }
    match reason(Verdict::Pass) {
        None => (Verdict::Inconclusive, Reason::NothingJudged),
        Some(_) if step.seconds < step.min_seconds.into() => (Verdict::Inconclusive, Reason::TooEarly),
        Some(reason) => (Verdict::Pass, reason),
    }
}

/// What the slowest metric needs, and the least time of the step.
fn missing(metrics: &[MetricResult], step: &Step) -> Option<Missing> {
    let time = u64::from(step.min_seconds).saturating_sub(step.seconds);
    let passing = enforced(metrics, Verdict::Pass).count();
    let mut waiting = enforced(metrics, Verdict::Inconclusive).map(|metric| metric.missing).peekable();
    if passing == 0 && waiting.peek().is_none() {
        return None;
    }
    let none = Missing { requests: 0, stable_requests: 0, seconds: Some(time) };
    waiting.try_fold(none, |sum, missing| {
        let Missing { requests, stable_requests, seconds } = missing?;
        let seconds = sum.seconds.zip(seconds).map(|(before, seconds)| before.max(seconds));
        let requests = sum.requests.max(requests);
        Some(Missing { requests, stable_requests: sum.stable_requests.max(stable_requests), seconds })
    })
}

fn enforced(metrics: &[MetricResult], verdict: Verdict) -> impl Iterator<Item = &MetricResult> {
    metrics.iter().filter(move |metric| metric.mode == Mode::Enforce && metric.verdict == Some(verdict))
}

impl Verdict {
    /// The word of statuses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "Pass",
            Self::Fail => "Fail",
            Self::Inconclusive => "Inconclusive",
        }
    }
}

impl Reason {
    /// The word of conditions and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alarm => "Alarm",
            Self::MetricsMissing => "MetricsMissing",
            Self::BucketMismatch => "BucketMismatch",
            Self::InFlight => "InFlight",
            Self::LoadMismatch => "LoadMismatch",
            Self::ShareTooHigh => "ShareTooHigh",
            Self::NoControl => "NoControl",
            Self::WarmingUp => "WarmingUp",
            Self::TooFewRequests => "TooFewRequests",
            Self::TooEarly => "TooEarly",
            Self::NothingJudged => "NothingJudged",
            Self::Passing => "Passing",
        }
    }
}

#[cfg(test)]
mod tests;
