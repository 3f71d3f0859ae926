//! The numbers of a metric, as a user reads them. Pure.

use scaling::{decide::record::MetricInputs, measurement::Measurement, policy::Kind, reading::Milli};

use crate::validate::word;

/// Name, value and target: `queue_depth is 12 per replica, targetValue 5`.
pub(super) fn summary(metric: &MetricInputs, replicas: i32) -> String {
    let (name, target) = (word(metric.kind), decimal(metric.target.milli()));
    let per_replica = match metric.kind {
        Kind::Latency => "",
        Kind::QueueDepth
        | Kind::GpuUtil
        | Kind::GpuMemory
        | Kind::TokensPerMinute
        | Kind::Custom
        | Kind::TasksAndBusyWorkers
        | Kind::TasksOnly => " per replica",
    };
    match (metric.value_per_replica(replicas), metric.measurement) {
        (Some(value), _) => format!("{name} is {}{per_replica}, targetValue {target}", decimal(value)),
        (None, Measurement::Fallback { replicas, .. }) => {
            format!("{name} has had no value for so long that fallback.replicas {replicas} applies")
        }
        (None, _) => format!("{name} has no value, targetValue {target}"),
    }
}

/// Whole numbers from 10 on, one digit after the point below: a status is not written for more.
pub(super) fn decimal(value: Milli) -> String {
    let tenths = value.count().saturating_add(50) / 100;
    match (tenths / 10, tenths % 10) {
        (whole @ ..10, tenth @ 1..) => format!("{whole}.{tenth}"),
        (whole @ ..10, _) => whole.to_string(),
        (whole, tenth) => (whole + i64::from(tenth >= 5)).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_rounded() {
        for (milli, text) in [(0, "0"), (49, "0"), (50, "0.1"), (9_949, "9.9"), (9_950, "10"), (12_500, "13")]
        {
            assert_eq!(decimal(Milli::from(milli)), text, "{milli}");
        }
        assert_eq!(decimal(Milli::MAX), "9223372036854776", "no overflow");
    }

    #[test]
    fn every_metric_of_a_spec_has_its_own_word() {
        for kind in [
            Kind::QueueDepth,
            Kind::GpuUtil,
            Kind::GpuMemory,
            Kind::Latency,
            Kind::TokensPerMinute,
            Kind::Custom,
        ] {
            let of_spec: api::aiscaler::MetricType =
                serde_json::from_value(word(kind).into()).expect("a metricType");
            assert_eq!(serde_json::to_value(of_spec).unwrap(), word(kind));
        }
    }
}
