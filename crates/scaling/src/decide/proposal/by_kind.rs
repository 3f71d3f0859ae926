//! Arithmetic by the kind of a metric, in integers. It computes the supply that the demand needs, compares it with the
//! supply that is there or coming, and turns the difference into replicas.
//!
//! A value above its target never removes replicas. One below adds none, unless more arrives than the replicas serve.

use crate::{
    decide::{
        proposal::{Proposal, Rule},
        record::{Inputs, MetricInputs},
    },
    measurement::{Measurement, PodValues},
    policy::{Arithmetic, Arrivals, Backlog, Kind, PendingPods},
    reading::Milli,
};

/// The range of the demand, in thousandths: at least `low`; at most `high`, if pods without a sample are at their
/// target.
#[derive(Clone, Copy)]
struct Demand {
    low: i128,
    high: i128,
}

/// The replicas in question. In pods, all not negative.
#[derive(Clone, Copy)]
struct Present {
    replicas: i64,
    /// Serving or coming.
    expected: i64,
    ready: i64,
    coming: i64,
    /// Of the ready ones, those whose effect the value does not show yet.
    settling: i64,
}

/// What a metric asks for.
enum Need {
    /// As many replicas as there are: the value does not say more.
    Same,
    /// The pods that serve or come, and no others.
    Enough,
    /// So many that serve.
    More(i64),
    Fewer(i64),
}

/// With hundreds of replicas, chance moves what is needed by some of them with each look.
const NEAR: f64 = 0.03;
/// Of 100 %.
const MILLION: i128 = 1_000_000;
/// What HPA's default rate allows per 15 s, here per cold start. With 4, a pool that needs 12 workers goes up to 64 of
/// them on the load of `tests/rules/pool.rs`, with 2 up to 32.
const FASTEST_GROWTH: i64 = 2;
/// As many as HPA's default rate allows a single pod to become within 30 s.
const SMALLEST_STEP: i64 = 8;

pub(super) fn of_total(value: Milli, metric: &MetricInputs, replicas: i32, inputs: &Inputs) -> i32 {
    let present = present(replicas, metric, inputs);
    let value = i128::from(value.count());
    let need = match metric.kind {
        Kind::Latency => by_latency(Demand { low: value, high: value }, metric, present, inputs),
        Kind::TasksAndBusyWorkers => by_tasks(value, inputs.supply.unreported, metric, present, inputs),
        Kind::TasksOnly => difference(pods_for(value, metric), present),
        Kind::QueueDepth | Kind::GpuUtil | Kind::GpuMemory | Kind::TokensPerMinute | Kind::Custom => {
            by_demand(Demand { low: value, high: value }, metric, present, inputs)
        }
    };
    let is_idle = value <= i128::from(metric.activation.count());
    activated(asked(need, present, inputs), is_idle, metric.kind, inputs)
}

pub(super) fn of_pods(values: PodValues, metric: &MetricInputs, replicas: i32, inputs: &Inputs) -> i32 {
    let present = present(replicas, metric, inputs);
    // Ready pods that have no sample, or none of a whole window: they may be as loaded as the others.
    let unknown = values.missing.saturating_add(values.unsettled);
    let low = i128::from(values.sum.count());
    let need = match metric.kind {
        Kind::Latency => by_latency(latency(values, unknown, metric), metric, present, inputs),
        Kind::TasksAndBusyWorkers => {
            by_tasks(low, unknown.max(inputs.supply.unreported), metric, present, inputs)
        }
        Kind::TasksOnly => difference(pods_for(low, metric), present),
        Kind::QueueDepth | Kind::GpuUtil | Kind::GpuMemory | Kind::TokensPerMinute | Kind::Custom => {
            let high = low.saturating_add(i128::from(metric.target.milli().times(unknown).count()));
            by_demand(Demand { low, high }, metric, present, inputs)
        }
    };
    let is_idle = unknown == 0 && low <= i128::from(metric.activation.count());
    activated(asked(need, present, inputs), is_idle, metric.kind, inputs)
}

/// By what arrives, if that is known and counts. It may add replicas while the value is below its target: what arrives now
/// will be in hand when they are Ready. While the value is above its target it removes none. The tolerance is not used: the
/// margin for chance takes its place.
pub(super) fn of_flow(metric: &MetricInputs, replicas: i32, inputs: &Inputs) -> Option<Proposal> {
    let counts =
        inputs.extras.arrivals == Arrivals::Counted && inputs.extras.arithmetic == Arithmetic::ByKind;
    let flow = metric.flow.filter(|_| counts)?;
    match metric.measurement {
        Measurement::Total(_) | Measurement::Pods(_) => {}
        Measurement::PartialTotal(_)
        | Measurement::Invalid(_)
        | Measurement::Fallback { .. }
        | Measurement::NotLoadSensitive => return None,
    }
    let is_pool = metric.kind == Kind::TasksAndBusyWorkers;
    // Of all Ready pods, also of those that are new. The target of a pool is that of what waits.
    let value = if is_pool { flow.flow.waiting } else { flow.flow.waiting.plus(flow.flow.running) };
    let value = i128::from(value.count());
    let target = flow.flow.in_hand_at_target(metric.kind, metric.target)?;
    // None of the workers that are busy, or may be, is removed.
    let busy = if is_pool { inputs.supply.busy.saturating_add(inputs.supply.unreported) } else { 0 };
    let present = present(replicas, metric, inputs);
    let at_target = thousandths(target).saturating_mul(i128::from(present.expected));
    let is_idle = match (metric.kind, metric.measurement) {
        // Their activation is not one of requests.
        (Kind::TokensPerMinute, Measurement::Total(tokens)) => value == 0 && tokens <= metric.activation,
        (Kind::TokensPerMinute, Measurement::Pods(values)) => value == 0 && values.sum <= metric.activation,
        _ => value <= i128::from(metric.activation.count()),
    };
    // Ends at the largest integer; 0 if it is not a number.
    let need = |needed: f64| difference((needed.ceil() as i64).max(busy.into()), present);
    let replicas = |need: Need| activated(asked(need, present, inputs), is_idle, metric.kind, inputs);
    let needs = flow.needs(metric.kind, metric.target, inputs.supply.ready)?;
    let is_near = |wanted: i64| wanted.abs_diff(present.expected) as f64 <= present.expected as f64 * NEAR;
    let is_slow = metric.kind == Kind::Latency
        && match metric.measurement {
            Measurement::Total(latency) => latency > metric.target.milli(),
            Measurement::Pods(values) => values.mean() > metric.target.milli(),
            _ => false,
        };
    let now = match need(needs.replicas()) {
        Need::Fewer(_) if is_slow || exceeds(value, at_target, MILLION) => Need::Same,
        Need::More(wanted) | Need::Fewer(wanted) if is_near(wanted) && flow.flow.waiting == Milli::ZERO => {
            Need::Enough
        }
        need => need,
    };
    let lasting = match need(needs.arrivals) {
        Need::Fewer(_) if is_slow => Need::Same,
        need => need,
    };
    let (now, lasting) = (replicas(now), replicas(lasting));
    Some(Proposal { replicas: now, lasting: lasting.min(now), rule: Rule::Arrivals })
}

fn present(replicas: i32, metric: &MetricInputs, inputs: &Inputs) -> Present {
    let (supply, replicas) = (inputs.supply, i64::from(replicas.max(0)));
    let (expected, coming) = match inputs.extras.pending {
        PendingPods::AsInHpa => (replicas, 0),
        PendingPods::AreSupply => (supply.expected(replicas), i64::from(supply.coming)),
    };
    let settling = i64::from(metric.settling);
    // A rollout has more pods for a while.
    let ready = i64::from(supply.ready).min(replicas);
    Present { replicas, expected, ready, coming, settling }
}

/// The mean of the pods with a sample; before a scale-down those without one are at the target.
fn latency(values: PodValues, unknown: u32, metric: &MetricInputs) -> Demand {
    let low = i128::from(values.mean().count());
    let (measured, unknown) = (i128::from(values.measured), i128::from(unknown));
    let target = i128::from(metric.target.milli().count());
    let high = low.saturating_mul(measured).saturating_add(target.saturating_mul(unknown))
        / measured.saturating_add(unknown).max(1);
    Demand { low, high: high.max(low) }
}

/// Values that add up: demand over target.
fn by_demand(demand: Demand, metric: &MetricInputs, present: Present, inputs: &Inputs) -> Need {
    let (least, most) = (pods_for(demand.low, metric), pods_for(demand.high, metric));
    let at_target = i128::from(metric.target.milli().count()).saturating_mul(i128::from(present.expected));
    let is_above = exceeds(demand.low, at_target, MILLION + i128::from(inputs.tolerance.up.millionths()));
    let is_below =
        is_short_of(demand.high, at_target, MILLION - i128::from(inputs.tolerance.down.millionths()));
    if is_above && least > present.expected {
        match metric.kind {
            // A full GPU does not say by how much: one step, then wait for what it brings.
            Kind::GpuUtil | Kind::GpuMemory if present.coming > 0 => Need::Same,
            Kind::QueueDepth => limited_by_blindness(least, present, inputs),
            Kind::GpuUtil
            | Kind::GpuMemory
            | Kind::Latency
            | Kind::TokensPerMinute
            | Kind::Custom
            | Kind::TasksAndBusyWorkers
            | Kind::TasksOnly => Need::More(least),
        }
    } else if is_below || present.expected == 0 {
        at_most(most, present)
    } else {
        let may_be_above =
            exceeds(demand.high, at_target, MILLION + i128::from(inputs.tolerance.up.millionths()));
        if may_be_above { Need::Same } else { Need::Enough }
    }
}

/// Latency does not add up: ready pods times the ratio, one step per cold start, and the next one when the samples are
/// of the new pods too.
fn by_latency(value: Demand, metric: &MetricInputs, present: Present, inputs: &Inputs) -> Need {
    let target = i128::from(metric.target.milli().count());
    if present.replicas == 0 {
        return difference(pods_for(value.low, metric), present);
    }
    // Without a ready pod the value is of the past.
    if present.ready == 0 {
        return Need::Same;
    }
    let pods = |value: i128| pods_for(value.saturating_mul(i128::from(present.ready)), metric);
    if exceeds(value.low, target, MILLION + i128::from(inputs.tolerance.up.millionths())) {
        let is_in_effect = present.coming == 0 && present.settling == 0;
        if is_in_effect { Need::More(pods(value.low).max(present.expected)) } else { Need::Same }
    } else if is_short_of(value.high, target, MILLION - i128::from(inputs.tolerance.down.millionths()))
        && pods(value.high) < present.expected
    {
        Need::Fewer(pods(value.high))
    } else if exceeds(value.high, target, MILLION + i128::from(inputs.tolerance.up.millionths())) {
        Need::Same
    } else {
        Need::Enough
    }
}

/// Waiting tasks over target, beside the workers that are busy. `unknown`: workers that may be busy.
fn by_tasks(waiting: i128, unknown: u32, metric: &MetricInputs, present: Present, inputs: &Inputs) -> Need {
    let least = i64::from(inputs.supply.busy).saturating_add(pods_for(waiting, metric));
    let most = least.saturating_add(i64::from(unknown));
    if least > present.expected {
        limited_by_blindness(least, present, inputs)
    } else {
        at_most(most, present)
    }
}

/// What waits grows while pods start, and says little of how many are needed afterwards.
fn limited_by_blindness(wanted: i64, present: Present, inputs: &Inputs) -> Need {
    let limit = match inputs.extras.backlog {
        Backlog::DoublingPerColdStart if present.coming > 0 || present.settling > 0 => {
            let settled = (present.ready - present.settling).max(0);
            settled.saturating_mul(FASTEST_GROWTH).max(SMALLEST_STEP).max(present.expected)
        }
        Backlog::DoublingPerColdStart | Backlog::Unlimited => i64::MAX,
    };
    difference(wanted.min(limit), present)
}

fn difference(wanted: i64, present: Present) -> Need {
    if wanted > present.expected { Need::More(wanted) } else { at_most(wanted, present) }
}

/// Without any demand, pods that do not start are not needed either.
fn at_most(wanted: i64, present: Present) -> Need {
    if wanted < present.expected || wanted == 0 {
        Need::Fewer(wanted)
    } else if wanted == present.expected {
        Need::Enough
    } else {
        Need::Same
    }
}

/// Pods that stall on a node are replaced: another node may start what theirs does not. The replacements may stall too,
/// so there are at most as many as pods are Ready, or one while none is, and at most as many as are needed. Pods without
/// a node, pods in a crash loop and pods that cannot start are not replaced.
fn asked(need: Need, present: Present, inputs: &Inputs) -> i64 {
    let stalled = match inputs.extras.pending {
        PendingPods::AsInHpa => 0,
        PendingPods::AreSupply => i64::from(inputs.supply.stalled),
    };
    let most = stalled.min(present.ready.max(1));
    let with_replacements = |wanted: i64| wanted.saturating_add(most.min(wanted));
    // Before the pods that serve, a StatefulSet would remove none of these.
    let removed_late = match inputs.extras.pending {
        PendingPods::AsInHpa => 0,
        PendingPods::AreSupply => i64::from(inputs.supply.removed_late),
    };
    match need {
        Need::Same => present.replicas,
        Need::Enough => present.expected.saturating_add(removed_late).min(present.replicas),
        Need::More(wanted) => with_replacements(wanted).max(present.replicas),
        Need::Fewer(0) => 0,
        Need::Fewer(wanted) => {
            with_replacements(wanted).max(wanted.saturating_add(removed_late)).min(present.replicas)
        }
    }
}

/// A target that may have 0 replicas has none exactly while it is idle.
fn activated(asked: i64, is_idle: bool, kind: Kind, inputs: &Inputs) -> i32 {
    let asked = i32::try_from(asked).unwrap_or(i32::MAX);
    let may_sleep = inputs.bounds.min() == 0 && kind.is_additive();
    match (may_sleep, is_idle) {
        (true, true) => i32::try_from(inputs.supply.busy).unwrap_or(i32::MAX).min(asked),
        (true, false) => asked.max(1),
        (false, _) => asked,
    }
}

/// At least one.
fn thousandths(target: f64) -> i128 {
    (target * 1_000.0).round().max(1.0) as i128
}

/// Rounded up.
fn pods_for(demand: i128, metric: &MetricInputs) -> i64 {
    let target = i128::from(metric.target.milli().count());
    i64::try_from(demand.saturating_add(target - 1) / target).unwrap_or(i64::MAX)
}

/// Whether the value is above `millionths` of the target.
fn exceeds(value: i128, target: i128, millionths: i128) -> bool {
    value.saturating_mul(MILLION) > target.saturating_mul(millionths)
}

/// Whether the value is below `millionths` of the target.
fn is_short_of(value: i128, target: i128, millionths: i128) -> bool {
    value.saturating_mul(MILLION) < target.saturating_mul(millionths)
}
