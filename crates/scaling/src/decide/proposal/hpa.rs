//! HPA's arithmetic (`replica_calculator.go`): integers of thousandths, and ratios in double precision, because the
//! results must be the same for the same inputs.

use crate::{
    decide::record::{Inputs, MetricInputs, Tolerances},
    measurement::PodValues,
    policy::Metric,
    reading::Milli,
};

/// `External` metrics: `AverageValue` if values of replicas add up, `Value` if not.
pub(super) fn of_total(value: Milli, metric: &MetricInputs, replicas: i32, inputs: &Inputs) -> i32 {
    let (value, target) = (float(value), float(metric.target.milli()));
    if metric.kind.is_additive() {
        average_value(value, target, inputs)
    } else {
        total_value(value / target, replicas, inputs)
    }
}

/// `GetExternalPerPodMetricReplicas`: no tolerance is within 0 of 0 replicas, so 0 stays 0.
fn average_value(value: f64, target: f64, inputs: &Inputs) -> i32 {
    let ratio = value / (target * f64::from(inputs.status_replicas));
    if is_within(inputs.tolerance, ratio) {
        return inputs.status_replicas;
    }
    ceil(value / target)
}

/// `getUsageRatioReplicaCount`.
fn total_value(ratio: f64, replicas: i32, inputs: &Inputs) -> i32 {
    if replicas == 0 {
        return ceil(ratio);
    }
    if is_within(inputs.tolerance, ratio) {
        return replicas;
    }
    ceil(ratio * f64::from(inputs.supply.ready))
}

/// Whether the proposal of a target with replicas is a multiple of its ready pods.
pub(crate) fn multiplies_ready_pods(value: Milli, metric: &Metric, tolerances: Tolerances) -> bool {
    !metric.kind.is_additive() && !is_within(tolerances, float(value) / float(metric.target.milli()))
}

/// `calcPlainMetricReplicas`. Pods without a sample count as at their target before a scale-down and as 0 before a
/// scale-up; pods that are not ready count as 0 before a scale-up.
pub(super) fn of_pods(values: PodValues, metric: &MetricInputs, replicas: i32, inputs: &Inputs) -> i32 {
    let target = metric.target.milli();
    let ratio = float(values.mean()) / float(target);
    let unready = values.unready.saturating_add(values.unsettled);
    let counts_unready = unready > 0 && ratio > 1.0;
    if !counts_unready && values.missing == 0 {
        if is_within(inputs.tolerance, ratio) {
            return replicas;
        }
        return ceil(ratio * f64::from(values.measured));
    }
    let mut all = values;
    if ratio < 1.0 {
        all.sum = all.sum.plus(target.times(values.missing));
        all.measured = all.measured.saturating_add(values.missing);
    } else if ratio > 1.0 {
        all.measured = all.measured.saturating_add(values.missing);
    }
    if counts_unready {
        all.measured = all.measured.saturating_add(unready);
    }
    let new_ratio = float(all.mean()) / float(target);
    let turns = ratio < 1.0 && new_ratio > 1.0 || ratio > 1.0 && new_ratio < 1.0;
    if is_within(inputs.tolerance, new_ratio) || turns {
        return replicas;
    }
    let proposed = ceil(new_ratio * f64::from(all.measured));
    if new_ratio < 1.0 && proposed > replicas || new_ratio > 1.0 && proposed < replicas {
        return replicas;
    }
    proposed
}

/// `Tolerances.isWithin`. False for 0 of 0.
fn is_within(tolerance: Tolerances, ratio: f64) -> bool {
    1.0 - tolerance.down.ratio() <= ratio && ratio <= 1.0 + tolerance.up.ratio()
}

fn float(value: Milli) -> f64 {
    value.count() as f64
}

/// Ends at the largest integer; 0 if it is not a number.
fn ceil(replicas: f64) -> i32 {
    replicas.ceil() as i32
}
