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
    counters::MISSING_AFTER,
    evidence::{Evidence, Latest},
    interval::{Counts, Tracks},
    metric::{Alpha, Kind, Metric, Mode},
    share::{Share, requests_needed, upper_bound},
};

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
    pub alpha: Alpha,
}

/// One metric and what is known of it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Judged {
    pub metric: Metric,
    pub evidence: Evidence,
    /// Counts of the stable version in earlier steps, which join those of this step as the control of a pass. At weight 100
    /// the stable version has no requests, so that there is no other control. Aborts leave them out: clients hang up at
    /// their own times.
    #[serde(default)]
    pub earlier: Counts,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Pass,
    Fail,
    Inconclusive,
}

/// Why. Of several reasons of one verdict, the first in this order is that of the step.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Fail: E is large enough.
    Alarm,
    /// Three intervals in a row were not complete.
    MetricsMissing,
    /// The tracks share no bound that makes a request slow.
    BucketMismatch,
    /// Three intervals in a row had loads that cannot be compared, and requests are missing for it.
    LoadMismatch,
    /// The candidate's share is not below what is allowed. More requests help only if it falls.
    ShareTooHigh,
    /// There is neither a limit nor a stable version with enough requests.
    NoControl,
    /// All intervals so far were dropped.
    WarmingUp,
    /// For [`Step::min_requests`], or for the bound.
    TooFewRequests,
    /// Only time is missing.
    TooEarly,
    /// There is no enforced metric that could be judged.
    NothingJudged,
    Passing,
}

/// The verdict of a step.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Judgement {
    pub verdict: Verdict,
    pub reason: Reason,
    /// What a pass still needs; absent if waiting is not known to help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
    /// In the order of the inputs.
    pub metrics: Vec<MetricResult>,
}

/// What a pass needs at the present share and rate.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Missing {
    /// Of the candidate.
    pub requests: u64,
    /// At the mean rate of the step; absent if it had no requests yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
}

/// The verdict of one metric, with the numbers that decided. Comparing them gives the same verdict.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MetricResult {
    pub name: String,
    pub mode: Mode,
    /// Absent if the metric cannot be judged in this step: aborts without a control.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    pub reason: Reason,
    /// Of this step; absent without requests.
    pub shares: Tracks<Option<Share>>,
    /// E in thousandths; see [`Evidence::evidence`].
    pub evidence: u64,
    /// E of an alarm in thousandths.
    pub evidence_needed: u64,
    /// The upper bound of the candidate's share; absent without requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upper_bound: Option<Share>,
    /// The highest upper bound that passes; absent without limit and control.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Share>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
}

/// Of the stable version's share, in percent: what no caller notices.
pub const RELATIVE_MARGIN: u32 = 125;

/// Added to it: with a share of 0, any bound would be too high.
pub const ABSOLUTE_MARGIN: Share = Share::tenths_of_percent(5);

/// The verdict of a step. Equal inputs have equal verdicts.
pub fn judge(inputs: &Inputs) -> Judgement {
    let Inputs { step, metrics } = inputs;
    let enforced = metrics.iter().filter(|judged| judged.metric.mode == Mode::Enforce).count();
    let needed = step.alpha.evidence_needed(enforced);
    let metrics: Vec<MetricResult> = metrics.iter().map(|judged| result(judged, step, needed)).collect();
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
    let none = Missing { requests: 0, seconds: Some(time) };
    waiting.try_fold(none, |sum, missing| {
        let Missing { requests, seconds } = missing?;
        let seconds = sum.seconds.zip(seconds).map(|(before, seconds)| before.max(seconds));
        Some(Missing { requests: sum.requests.max(requests), seconds })
    })
}

fn enforced(metrics: &[MetricResult], verdict: Verdict) -> impl Iterator<Item = &MetricResult> {
    metrics.iter().filter(move |metric| metric.mode == Mode::Enforce && metric.verdict == Some(verdict))
}

fn result(judged: &Judged, step: &Step, evidence_needed: u64) -> MetricResult {
    let Judged { metric, evidence, earlier: _ } = judged;
    let Tracks { stable, candidate } = evidence.totals;
    let allowed = allowed(judged, step);
    let upper_bound = upper_bound(candidate);
    let (verdict, reason, missing) = if evidence.is_alarm(evidence_needed) {
        (Some(Verdict::Fail), Reason::Alarm, None)
    } else if let Some(reason) = hindrance(evidence) {
        (Some(Verdict::Inconclusive), reason, None)
    } else {
        match (allowed, metric.kind) {
            (None, Kind::Abort) => (None, Reason::NoControl, None),
            (None, Kind::Failure | Kind::Latency) => (Some(Verdict::Inconclusive), Reason::NoControl, None),
            (Some(allowed), _) => by_bound(evidence, upper_bound, allowed, step),
        }
    };
    MetricResult {
        name: metric.name.clone(),
        mode: metric.mode,
        verdict,
        reason,
        shares: Tracks { stable: Share::of(stable), candidate: Share::of(candidate) },
        evidence: evidence.evidence(),
        evidence_needed,
        upper_bound,
        allowed,
        missing,
    }
}

/// Why the newest intervals forbid a pass.
fn hindrance(evidence: &Evidence) -> Option<Reason> {
    match evidence.latest {
        Latest::Incomplete if evidence.in_a_row >= MISSING_AFTER => Some(Reason::MetricsMissing),
        Latest::BucketMismatch => Some(Reason::BucketMismatch),
        Latest::WarmingUp if evidence.totals.candidate.requests() == 0 => Some(Reason::WarmingUp),
        Latest::Nothing | Latest::Counted | Latest::WarmingUp | Latest::LoadMismatch | Latest::Incomplete => {
            None
        }
    }
}

/// The highest upper bound that passes.
///
/// A stable version with few requests is no control: one bad request of three would allow 42 %. So it needs as many as the
/// candidate needs.
fn allowed(judged: &Judged, step: &Step) -> Option<Share> {
    let Judged { metric, evidence, earlier } = judged;
    let stable = match metric.kind {
        Kind::Failure | Kind::Latency => evidence.totals.stable.plus(*earlier),
        Kind::Abort => evidence.totals.stable,
    };
    let is_control = stable.requests() >= u64::from(step.min_requests.max(1));
    let control = Share::of(stable).filter(|_| is_control);
    let by_control = control.map(|share| share.scaled(RELATIVE_MARGIN, ABSOLUTE_MARGIN));
    match metric.kind {
        Kind::Failure | Kind::Latency => by_control.max(metric.limit),
        Kind::Abort => by_control.map(|share| metric.limit.map_or(share, |limit| share.max(limit))),
    }
}

fn by_bound(
    evidence: &Evidence,
    upper_bound: Option<Share>,
    allowed: Share,
    step: &Step,
) -> (Option<Verdict>, Reason, Option<Missing>) {
    let candidate = evidence.totals.candidate;
    let least = u64::from(step.min_requests);
    if candidate.requests() >= least && upper_bound.is_some_and(|bound| bound <= allowed) {
        return (Some(Verdict::Pass), Reason::Passing, None);
    }
    let inconclusive = Some(Verdict::Inconclusive);
    if evidence.latest == Latest::LoadMismatch && evidence.in_a_row >= MISSING_AFTER {
        return (inconclusive, Reason::LoadMismatch, None);
    }
    let needed = match requests_needed(candidate, allowed) {
        Some(needed) => needed.max(least),
        // Of so few requests, the share says little.
        None if candidate.requests() < least => least,
        None => return (inconclusive, Reason::ShareTooHigh, None),
    };
    let requests = needed.saturating_sub(candidate.requests()).max(1);
    let missing = Missing { requests, seconds: seconds_until(requests, evidence, step) };
    (inconclusive, Reason::TooFewRequests, Some(missing))
}

/// Until so many more requests of the candidate are counted, if they go on as in all intervals since the warm-up.
fn seconds_until(requests: u64, evidence: &Evidence, step: &Step) -> Option<u64> {
    let intervals = u64::from(evidence.counted) + u64::from(evidence.skipped);
    let seconds = u128::from(intervals) * u128::from(step.interval_seconds);
    let counted = u128::from(evidence.totals.candidate.requests());
    if counted == 0 {
        return None;
    }
    let needed = (u128::from(requests).saturating_mul(seconds)).div_ceil(counted);
    Some(u64::try_from(needed).unwrap_or(u64::MAX))
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
