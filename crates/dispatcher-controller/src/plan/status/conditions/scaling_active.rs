//! The condition ScalingActive: whether the number of workers follows their load. Pure.

use std::time::Duration;

use api::{conditions, monitor::metrics, reasons};
use jiff::Timestamp;
use runtime::write::conditions::Verdict;
use scaling::{
    decide::{conclusion::Active, proposal::Rule},
    policy::Kind,
};
use workload::{faults::container::quote, time::remaining};

use super::{checkpoint_failed::others, fails, holds};
use crate::{
    observe::Observed,
    plan::replicas::{LOAD_EXPECTED_AFTER, Sizing},
    validate::{TOKENS, ValidDispatcher, Workers},
};

/// As of AIScaler; `None` without autoscaling.
pub(super) fn scaling_active(
    valid: &ValidDispatcher,
    observed: &Observed,
    sizing: &Sizing,
    now: Timestamp,
) -> (Option<Verdict>, Option<Duration>) {
    let type_ = conditions::SCALING_ACTIVE;
    if sizing.is_awaiting {
        return (before(observed, type_), None);
    }
    if let (Some(kind), Workers::Scaled(_), false) = (sizing.unwatched, &valid.workers, valid.pods.paused) {
        let message = format!(
            "the watch of {kind} fails, so what is known of the workers may be out of date; their number stays as it is"
        );
        return (Some(fails(type_, reasons::PODS_UNKNOWN, message)), None);
    }
    let Some(decision) = &sizing.decision else { return (None, None) };
    if valid.pods.paused {
        let message = "spec.paused is true; the number of workers stays as it is".to_owned();
        return (Some(fails(type_, reasons::PAUSED, message)), None);
    }
    let (unknown, requeue_after) = unknown_loads(observed, now);
    let message = |words: &str| match &unknown {
        Some(why) => format!("{words}; {why}"),
        None => words.to_owned(),
    };
    let unknown_tokens = unknown_tokens(valid, observed).filter(|_| unknown.is_none());
    let no_removal = "workers may be added, and none is removed, because some values are not known";
    let verdict = match decision.conclusion.active {
        Active::ValidMetricFound => {
            let counts_busy = match &valid.workers {
                Workers::Scaled(policy) => {
                    policy.metrics.iter().any(|metric| metric.kind == Kind::TasksAndBusyWorkers)
                }
                Workers::Fixed(_) => false,
            };
            let words = match (&unknown, counts_busy) {
                (Some(_), true) => {
                    "the number of workers follows the queue, and workers whose load is not known count as busy"
                }
                (Some(_), false) => "the number of workers follows the queues that are known",
                (None, _) if decision.conclusion.rule == Rule::Arrivals => {
                    "the number of workers follows what arrives"
                }
                (None, _) => "the number of workers follows the queue",
            };
            holds(type_, reasons::VALID_METRIC_FOUND, message(words))
        }
        Active::MetricPartial => {
            fails(type_, reasons::METRIC_PARTIAL, unknown_tokens.unwrap_or_else(|| message(no_removal)))
        }
        Active::MetricStale => {
            fails(type_, reasons::METRIC_STALE, message("the number of workers stays as it is"))
        }
        Active::ScalingDisabled => {
            fails(type_, reasons::SCALING_DISABLED, message("the number of workers stays as it is"))
        }
        Active::MetricNotLoadSensitive => {
            fails(type_, reasons::METRIC_NOT_LOAD_SENSITIVE, message("the number of workers stays as it is"))
        }
        Active::MetricMissing(_) => {
            let words = if unknown.is_some() {
                "the number of workers stays as it is"
            } else {
                "the number of workers stays as it is until the first worker reports its load"
            };
            fails(type_, reasons::METRIC_MISSING, unknown_tokens.unwrap_or_else(|| message(words)))
        }
    };
    (Some(verdict), requeue_after)
}

/// Why tokens per minute are not known although queues are.
fn unknown_tokens(valid: &ValidDispatcher, observed: &Observed) -> Option<String> {
    let Workers::Scaled(policy) = &valid.workers else { return None };
    let is_limit = policy.metrics.iter().any(|metric| metric.name.as_str() == TOKENS);
    if !is_limit || observed.token_rate.per_minute.is_some() {
        return None;
    }
    let loads = || observed.loads.values();
    if loads().all(|load| load.queued.is_none()) {
        return None;
    }
    let why = "no worker is removed, because tokens per minute are not known";
    Some(match loads().find_map(|load| load.tokens) {
        Some(_) => format!("{why} yet"),
        None => {
            format!("{why}: workers must serve {} (autoscaling.tokensPerMinutePerWorker)", metrics::TOKENS)
        }
    })
}

/// Ready workers whose load is not known although it should be by now: the first one, and why.
fn unknown_loads(observed: &Observed, now: Timestamp) -> (Option<String>, Option<Duration>) {
    let unknown = observed.pods().filter(|pod| pod.is_ready).filter_map(|pod| {
        let load = observed.load_of(pod)?;
        (load.queued.is_none() || load.in_flight.is_none()).then_some((pod, load))
    });
    let (mut count, mut first, mut soonest) = (0_usize, None, None::<Duration>);
    for (pod, load) in unknown {
        match pod.ready_changed.and_then(|since| remaining(LOAD_EXPECTED_AFTER, since, now)) {
            Some(wait) => soonest = soonest.into_iter().chain([wait]).min(),
            None => {
                count += 1;
                first.get_or_insert((pod.name(), load.fault.as_deref()));
            }
        }
    }
    let message = first.map(|(pod, fault)| {
        let why = fault.unwrap_or("it serves no queue depth or no tasks in flight");
        format!("the load of pod {pod}{} is not known: {}", others(count), quote(why))
    });
    (message, soonest)
}

/// The condition as the last status has it.
fn before(observed: &Observed, type_: &'static str) -> Option<Verdict> {
    let known = observed.condition(type_)?;
    let reason = SCALING_REASONS.into_iter().find(|reason| *reason == known.reason)?;
    Some(Verdict { type_, holds: known.status == "True", reason, message: known.message.clone() })
}

/// Of ScalingActive, except that the object is paused.
const SCALING_REASONS: [&str; 7] = [
    reasons::PODS_UNKNOWN,
    reasons::VALID_METRIC_FOUND,
    reasons::METRIC_PARTIAL,
    reasons::METRIC_STALE,
    reasons::METRIC_MISSING,
    reasons::METRIC_NOT_LOAD_SENSITIVE,
    reasons::SCALING_DISABLED,
];
