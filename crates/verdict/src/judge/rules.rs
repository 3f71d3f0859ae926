//! What decides one metric: the alarm, the guards and the bound. It sums up nothing over metrics.

use crate::{
    bucket::Bound,
    counters::MISSING_AFTER,
    evidence::{Evidence, Latest},
    hanging::Mark,
    interval::{Counts, Tracks},
    judge::{
        ABSOLUTE_MARGIN, Earlier, Judged, MetricResult, Missing, RELATIVE_MARGIN, Reason, Shares, Step,
        Verdict,
    },
    metric::{Kind, Metric},
    share::{Share, requests_needed, upper_bound},
};

/// The verdict, absent if the metric cannot be judged, with its reason and what is missing.
type Ruling = (Option<Verdict>, Reason, Option<Missing>);

/// Requests in flight per arrival of the candidate may be so many times those of the stable version.
const IN_FLIGHT_FACTOR: u128 = 2;

/// The share of the test without a control: what the limit or earlier steps allow. It is computed when a step begins and does
/// not change. Aborts have none, since callers hang up at their own times.
pub fn fixed_share(
    metric: &Metric,
    bound: Option<Bound>,
    earlier: Earlier,
    min_requests: u32,
) -> Option<Share> {
    match metric.kind {
        Kind::Failure | Kind::Latency => allowed_by(of_bound(earlier, bound), min_requests).max(metric.limit),
        Kind::Abort => None,
    }
}

pub(super) fn result(judged: &Judged, step: &Step, enforced: usize) -> MetricResult {
    let Judged { metric, evidence, bound: _, earlier: _ } = judged;
    let Tracks { stable, candidate } = evidence.totals;
    let e_value_needed = step.alpha.evidence_needed(step.steps, enforced, evidence.tests());
    let allowed = allowed(judged, step);
    let upper_bound = upper_bound(candidate);
    let (verdict, reason, missing) = if evidence.is_alarm(e_value_needed, metric.limit) {
        (Some(Verdict::Fail), Reason::Alarm, None)
    } else if let Some(reason) = hindrance(evidence) {
        (Some(Verdict::Inconclusive), reason, None)
    } else {
        match allowed {
            None => without_control(judged, step),
            Some(allowed) => by_bound(evidence, upper_bound, allowed, step),
        }
    };
    MetricResult {
        name: metric.name.clone(),
        mode: metric.mode,
        verdict,
        reason,
        shares: Shares { stable: Share::of(stable), candidate: Share::of(candidate) },
        e_value: evidence.e_value(),
        e_value_needed,
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
        // Otherwise stable would seem to have had no requests.
        Latest::LoadMismatch if evidence.in_a_row >= MISSING_AFTER && evidence.counted == 0 => {
            Some(Reason::LoadMismatch)
        }
        Latest::WarmingUp if evidence.totals.candidate.requests() == 0 => Some(Reason::WarmingUp),
        Latest::Nothing | Latest::Counted | Latest::WarmingUp | Latest::LoadMismatch | Latest::Incomplete => {
            None
        }
    }
}

/// The highest upper bound that passes.
fn allowed(judged: &Judged, step: &Step) -> Option<Share> {
    let Judged { metric, evidence, bound: _, earlier: _ } = judged;
    let by_control = allowed_by(control(judged), step.min_requests);
    match metric.kind {
        Kind::Failure | Kind::Latency => by_control.max(metric.limit),
        Kind::Abort if evidence.totals.stable.requests() == 0 => None,
        Kind::Abort => by_control.map(|share| metric.limit.map_or(share, |limit| share.max(limit))),
    }
}

/// A stable version with few requests is no control: one bad request of three would allow 42 %. So it needs as many as the
/// candidate needs.
fn allowed_by(stable: Counts, min_requests: u32) -> Option<Share> {
    let is_control = stable.requests() >= u64::from(min_requests.max(1));
    let share = Share::of(stable).filter(|_| is_control)?;
    Some(share.scaled(RELATIVE_MARGIN, ABSOLUTE_MARGIN))
}

/// The counts of the stable version that can be the control of a pass.
fn control(judged: &Judged) -> Counts {
    let Judged { metric, evidence, bound, earlier } = judged;
    match metric.kind {
        Kind::Failure | Kind::Latency => evidence.totals.stable.plus(of_bound(*earlier, *bound)),
        Kind::Abort => evidence.totals.stable,
    }
}

fn of_bound(earlier: Earlier, bound: Option<Bound>) -> Counts {
    if earlier.bound == bound { earlier.counts } else { Counts::default() }
}

/// With a few requests of the stable version, more of them are missing. With none in the step, waiting helps nothing.
fn without_control(judged: &Judged, step: &Step) -> Ruling {
    let Judged { metric, evidence, bound: _, earlier: _ } = judged;
    let stable = evidence.totals.stable.requests();
    match metric.kind {
        Kind::Abort if stable == 0 && evidence.arrivals.stable == 0 => (None, Reason::NoControl, None),
        // Before the first count, stable may have had some.
        Kind::Failure | Kind::Latency
            if stable == 0 && evidence.arrivals.stable == 0 && evidence.counted > 0 =>
        {
            (Some(Verdict::Inconclusive), Reason::NoControl, None)
        }
        Kind::Failure | Kind::Latency | Kind::Abort => {
            let least = u64::from(step.min_requests);
            let stable_requests = least.max(1).saturating_sub(control(judged).requests());
            let requests = least.saturating_sub(evidence.totals.candidate.requests());
            (
                Some(Verdict::Inconclusive),
                Reason::TooFewRequests,
                Some(missing(requests, stable_requests, evidence, step)),
            )
        }
    }
}

fn by_bound(evidence: &Evidence, upper_bound: Option<Share>, allowed: Share, step: &Step) -> Ruling {
    let candidate = evidence.totals.candidate;
    let inconclusive = Some(Verdict::Inconclusive);
    let least = u64::from(step.min_requests);
    if candidate.requests() >= least && upper_bound.is_some_and(|bound| bound <= allowed) {
        return match in_flight_needs(evidence, allowed) {
            None => (Some(Verdict::Pass), Reason::Passing, None),
            Some(requests) => {
                let missing = requests.map(|requests| missing(requests, 0, evidence, step));
                (inconclusive, Reason::InFlight, missing)
            }
        };
    }
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
    (inconclusive, Reason::TooFewRequests, Some(missing(requests, 0, evidence, step)))
}

/// How many more ended requests forgive those in flight; `None` if the ones in flight are few enough, and `Some(None)` if no
/// number helps.
///
/// Requests in flight may hang, and then they are bad. `hanging.rs` says how many ended requests make them few. They are as
/// expected if the stable version has half as many in flight per arrival.
fn in_flight_needs(evidence: &Evidence, allowed: Share) -> Option<Option<u64>> {
    let Tracks { stable, candidate } = evidence.arrivals;
    let expected = u128::from(evidence.in_flight.stable) * u128::from(candidate);
    let most = expected.saturating_mul(IN_FLIGHT_FACTOR);
    let in_flight = evidence.in_flight.candidate;
    if u128::from(in_flight) * u128::from(stable) <= most && stable > 0 {
        return None;
    }
    let now = Mark { ended: evidence.totals.candidate.requests(), in_flight };
    let missing = evidence.marks.missing(now, allowed);
    (missing != Some(0)).then_some(missing)
}

fn missing(requests: u64, stable_requests: u64, evidence: &Evidence, step: &Step) -> Missing {
    let Tracks { stable, candidate } = evidence.totals;
    let seconds = seconds_until(requests, candidate, evidence, step)
        .zip(seconds_until(stable_requests, stable, evidence, step))
        .map(|(candidate, stable)| candidate.max(stable));
    Missing { requests, stable_requests, seconds }
}

/// Until so many more requests are counted, if they go on as in all intervals since the warm-up.
fn seconds_until(requests: u64, counted: Counts, evidence: &Evidence, step: &Step) -> Option<u64> {
    let intervals = u64::from(evidence.counted) + u64::from(evidence.skipped);
    let seconds = u128::from(intervals) * u128::from(step.interval_seconds);
    let counted = u128::from(counted.requests());
    if requests == 0 {
        return Some(0);
    }
    if counted == 0 {
        return None;
    }
    let needed = u128::from(requests).saturating_mul(seconds).div_ceil(counted);
    Some(u64::try_from(needed).unwrap_or(u64::MAX))
}
