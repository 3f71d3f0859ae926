//! The decision on the replicas of one target: everything observed in, one value out.

pub mod conclusion;
pub mod proposal;
pub mod record;

use std::time::Duration;

use jiff::Timestamp;

use crate::{
    behavior::Window,
    cold_start::ColdStart,
    constancy::Band,
    decide::{
        conclusion::{Active, Conclusion, conclude},
        proposal::hpa,
        record::{FlowInputs, Inputs, MetricInputs, Recommended, Record, Tolerances},
    },
    flow::Flow,
    history::{History, MetricPast},
    measurement::{Measurement, measurement, settling},
    policy::{Arithmetic, Arrivals, Constancy, Fallback, Metric, MissingMetrics, Policy},
    rate::allowed,
    reading::{Fault, Milli, Reading},
    supply::{Supply, supply},
    target::Target,
    time::elapsed,
};

/// What to do, why, and what to remember.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub outcome: Outcome,
    /// Replicas, proposals by metric, and the reasons for the conditions.
    pub conclusion: Conclusion,
    /// For `status.decisions` if replicas change; its inputs show each metric.
    pub record: Record,
    /// For the next decision if no replicas are written; after a write, that of [`Decision::written`].
    pub history: History,
    /// `None` before the first cold start.
    pub cold_start: Option<ColdStart>,
}

/// What to do with the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Scale {
        from: i32,
        to: i32,
    },
    /// The replicas are as wanted.
    Keep,
    /// The replicas stay because nothing could be decided.
    Hold(Active),
}

/// When to decide again although nothing new is observed: windows and deadlines end by themselves. HPA's default
/// period.
pub const PERIOD: Duration = Duration::from_secs(15);
/// Of a target that has never started a pod in sight of this crate. Its minimum of cold starts, as in `cold_start`.
const UNKNOWN_COLD_START: Duration = Duration::from_secs(30);

/// `readings`: one per metric of the policy, in its order; a metric without one is missing.
pub fn decide(
    policy: &Policy,
    target: &Target,
    readings: &[Reading],
    history: &History,
    now: Timestamp,
) -> Decision {
    let from = target.replicas.max(0);
    let behavior = &policy.behavior;
    let mut next = history.recalled(behavior, now);
    next.begin(from, policy.extras.missing, behavior, now);
    next.cold_starts.learn(&target.pods, now);
    let cold_start = next.cold_starts.percentiles(target.cold_start);
    let supply = supply(target, ColdStart::deadline(cold_start), next.raised, now);
    let (mut metrics, pasts) = measured(policy, target, readings, supply, &next, now);
    if policy.extras.arrivals == Arrivals::Counted {
        let cold_start = cold_start.map_or(UNKNOWN_COLD_START, |known| known.p50).as_secs();
        let cold_start_seconds = u32::try_from(cold_start).unwrap_or(u32::MAX);
        for (metric, flow) in metrics.iter_mut().zip(&target.flows) {
            let is_usable = |flow: &Flow| flow.in_hand_at_target(metric.kind, metric.target).is_some();
            let flow = flow.filter(|flow| metric.kind.counts_arrivals() && is_usable(flow));
            metric.flow = flow.map(|flow| FlowInputs { flow, cold_start_seconds });
        }
    }
    next.metrics = pasts;
    let mut allowed = allowed(from, &next.scale_events, behavior, policy.extras.arithmetic, now);
    if is_of_before_the_last_removal(policy, readings, &next) {
        allowed.lowest = from;
    }
    let inputs = Inputs {
        bounds: policy.bounds,
        tolerance: Tolerances { up: behavior.up.tolerance, down: behavior.down.tolerance },
        extras: policy.extras,
        status_replicas: target.status_replicas.max(0),
        supply,
        metrics,
        recommended: Recommended {
            lowest: next.lowest(behavior.up.window, now),
            highest: next.highest(behavior.down.window, now),
        },
        allowed,
    };
    let conclusion = conclude(from, &inputs);
    if let Some(recommended) = conclusion.lasting.or_else(|| held(&conclusion, from, policy)) {
        match conclusion.raw.filter(|raw| *raw > recommended) {
            // What lasts for a whole window of a scale-up is no burst.
            Some(raw) if behavior.up.window > Window::NONE => next.recommend(raw, behavior, now),
            Some(raw) => {
                next.recommend(recommended, behavior, now);
                next.recommend_for_a_burst(raw, behavior, now);
            }
            None => next.recommend(recommended, behavior, now),
        }
    }
    let to = conclusion.to;
    let outcome = match (to == from, conclusion.active) {
        (false, _) => Outcome::Scale { from, to },
        (true, Active::ValidMetricFound) => Outcome::Keep,
        (true, held) => Outcome::Hold(held),
    };
    let reason = conclusion.reason().to_owned();
    let record = Record { time: now, from, to, raw: conclusion.raw.unwrap_or(to), inputs, reason };
    Decision { outcome, conclusion, record, cold_start, history: next }
}

impl Decision {
    /// The history once the replicas of this decision were written.
    pub fn written(self, policy: &Policy) -> History {
        let Record { time, from, to, .. } = self.record;
        self.history.scaled(from, to, &policy.behavior, time)
    }

    pub fn supply(&self) -> Supply {
        self.record.inputs.supply
    }
}

/// Whether a value is of the pods that were there before replicas were removed. Compared with the pods that are left, it
/// asks to remove as large a share again, and the load of the removed pods has not moved yet. A total that adds up is no
/// value of pods.
fn is_of_before_the_last_removal(policy: &Policy, readings: &[Reading], history: &History) -> bool {
    let removals = history.scale_events.iter().filter(|event| event.change < 0);
    let Some(removed) = removals.map(|event| event.time).max() else { return false };
    let is_of_before = |(metric, reading): (&Metric, &Reading)| {
        let is_of_pods = !metric.kind.is_additive() || matches!(reading, Reading::Pods(_));
        let is_newer = |newest| newest > removed && elapsed(removed, newest) >= metric.window;
        is_of_pods && reading.newest().is_some_and(|newest| !is_newer(newest))
    };
    policy.extras.arithmetic == Arithmetic::ByKind && policy.metrics.iter().zip(readings).any(is_of_before)
}

/// What a decision recommends that could not decide.
fn held(conclusion: &Conclusion, from: i32, policy: &Policy) -> Option<i32> {
    let is_held = match conclusion.active {
        Active::MetricMissing(_)
        | Active::MetricStale
        | Active::MetricPartial
        | Active::MetricNotLoadSensitive => true,
        Active::ValidMetricFound | Active::ScalingDisabled => false,
    };
    match policy.extras.missing {
        MissingMetrics::AsInHpa => None,
        MissingMetrics::RecommendPresent => is_held.then_some(from),
    }
}

/// Each metric as the arithmetic needs it, and what is remembered of it.
fn measured(
    policy: &Policy,
    target: &Target,
    readings: &[Reading],
    supply: Supply,
    history: &History,
    now: Timestamp,
) -> (Vec<MetricInputs>, Vec<MetricPast>) {
    let missing = Reading::Missing(Fault::Empty);
    let mut inputs = Vec::new();
    let mut pasts = Vec::new();
    let mut varied = Vec::new();
    for (index, metric) in policy.metrics.iter().enumerate() {
        let reading = readings.get(index).unwrap_or(&missing);
        let measurement = measurement(metric, reading, &target.pods, policy.extras.samples, now);
        let measurement = match measurement {
            Measurement::Total(value) if lacks_pods(policy, metric, value, target) => {
                Measurement::Invalid(Fault::NoSettledPods)
            }
            measured => measured,
        };
        let mut input = MetricInputs {
            name: metric.name.clone(),
            kind: metric.kind,
            target: metric.target,
            activation: metric.activation,
            settling: settling(metric, &target.pods, now),
            measurement,
            flow: None,
        };
        let before = history.metric(&metric.name);
        let value = input.value_per_replica(i32::try_from(supply.ready).unwrap_or(i32::MAX));
        let (mut past, has_varied) = remembered(metric, value, before, supply.ready, now);
        if is_asleep(target, input.measurement) {
            past.measured = now;
        }
        input.measurement = with_fallback(input.measurement, &past, policy.fallback, now);
        inputs.push(input);
        pasts.push(past);
        varied.push(has_varied);
    }
    judge(policy, &mut inputs, &mut pasts, &varied, now);
    (inputs, pasts)
}

/// Whether HPA could not compute with this value: `getReadyPodsCount` fails without any pod, and the replicas are held.
fn lacks_pods(policy: &Policy, metric: &Metric, value: Milli, target: &Target) -> bool {
    let tolerances = Tolerances { up: policy.behavior.up.tolerance, down: policy.behavior.down.tolerance };
    policy.extras.arithmetic == Arithmetic::Hpa
        && target.replicas > 0
        && target.pods.is_empty()
        && hpa::multiplies_ready_pods(value, metric, tolerances)
}

/// The past of a metric with its present value, and whether the metric varied.
fn remembered(
    metric: &Metric,
    value: Option<Milli>,
    before: Option<&MetricPast>,
    ready: u32,
    now: Timestamp,
) -> (MetricPast, bool) {
    let known = before.and_then(|past| past.band);
    let Some(value) = value else {
        let measured = before.map_or(now, |past| past.measured);
        return (MetricPast { name: metric.name.clone(), measured, band: known }, false);
    };
    let extended = known.and_then(|band| band.extended(value, ready, metric.target, now));
    let band = extended.unwrap_or_else(|| Band::new(value, ready));
    let has_varied = known.is_some() && extended.is_none();
    (MetricPast { name: metric.name.clone(), measured: now, band: Some(band) }, has_varied)
}

/// A target without replicas has no pod that could have a value, and a query of its own pods finds no series. That is no
/// fault, so the fallback is not due: it would start pods that report no load, be undone, and follow once more.
fn is_asleep(target: &Target, measurement: Measurement) -> bool {
    target.replicas <= 0 && matches!(measurement, Measurement::Invalid(Fault::NoSettledPods | Fault::Empty))
}

fn with_fallback(
    measurement: Measurement,
    past: &MetricPast,
    fallback: Option<Fallback>,
    now: Timestamp,
) -> Measurement {
    let (Measurement::Invalid(fault), Some(Fallback { after, replicas })) = (measurement, fallback) else {
        return measurement;
    };
    if elapsed(past.measured, now) < after {
        return measurement;
    }
    Measurement::Fallback { fault, replicas: replicas.max(0) }
}

/// Takes metrics out that do not move with the load. A metric that varied shows the others that the load has changed.
fn judge(
    policy: &Policy,
    inputs: &mut [MetricInputs],
    pasts: &mut [MetricPast],
    varied: &[bool],
    now: Timestamp,
) {
    let Constancy::Judged(window) = policy.extras.constancy else {
        return;
    };
    let has_load_changed = varied.contains(&true);
    for ((input, past), has_varied) in inputs.iter_mut().zip(pasts).zip(varied) {
        let Some(band) = &mut past.band else { continue };
        if has_load_changed && !has_varied {
            band.note_load(now);
        }
        let is_measured = matches!(input.measurement, Measurement::Total(_) | Measurement::Pods(_));
        if is_measured && band.is_constant(input.kind, input.target, window, now) {
            input.measurement = Measurement::NotLoadSensitive;
        }
    }
}

#[cfg(test)]
mod tests;
