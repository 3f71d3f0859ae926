//! The numbers of a metric, as a user reads them. Pure.

use scaling::{
    decide::record::{FlowInputs, MetricInputs},
    measurement::Measurement,
    policy::{Kind, TargetValue},
    reading::Milli,
};

use crate::validate::word;

/// Name, value and target: `queue_depth is 12 per replica, targetValue 5`; and what arrives, if that counts.
pub(super) fn summary(metric: &MetricInputs, replicas: i32, ready: u32) -> String {
    let value = value(metric, replicas);
    let arrivals = match (&metric.flow, metric.measurement) {
        (Some(flow), Measurement::Total(_) | Measurement::Pods(_)) => arrivals(*flow, metric, ready),
        (Some(_) | None, _) => None,
    };
    arrivals.map_or(value.clone(), |arrivals| format!("{value}; {arrivals}"))
}

/// The words are always the same: a status is not written for numbers alone.
fn arrivals(inputs: FlowInputs, metric: &MetricInputs, ready: u32) -> Option<String> {
    let MetricInputs { kind, target, .. } = *metric;
    let FlowInputs { flow, .. } = inputs;
    let (rate, takes) = (units(flow.rate), units(flow.takes));
    let needs = inputs.needs(kind, target, ready)?;
    let each = match kind {
        Kind::Latency => format!(
            "{:.0} each, which is what ends within {} ms where {:.0} run at a time",
            flow.in_hand_at_target(kind, target)?,
            exact(target.milli()),
            units(flow.at_a_time),
        ),
        Kind::TokensPerMinute => format!(
            "{:.1} each, which is {} tokens a minute where a request has {:.0}",
            flow.in_hand_at_target(kind, target)?,
            exact(target.milli()),
            units(flow.tokens),
        ),
        Kind::QueueDepth
        | Kind::GpuUtil
        | Kind::GpuMemory
        | Kind::Custom
        | Kind::TasksAndBusyWorkers
        | Kind::TasksOnly => format!("{} each", exact(target.milli())),
    };
    Some(format!(
        "{rate:.1} requests/s arrive and take {takes:.1} s, so {:.0} are in hand; with a margin for chance they need {} \
         replicas at {each}, and {} with what waits or will wait",
        rate * takes,
        needs.arrivals.ceil(),
        needs.replicas().ceil(),
    ))
}

fn units(value: Milli) -> f64 {
    value.count() as f64 / 1_000.0
}

fn value(metric: &MetricInputs, replicas: i32) -> String {
    let (name, target) = (word(metric.kind), exact(metric.target.milli()));
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
        (Some(value), _) => {
            format!("{name} is {}{per_replica}, targetValue {target}", beside(metric.target, value))
        }
        (None, Measurement::Fallback { replicas, .. }) => {
            format!("{name} has had no value for so long that fallback.replicas {replicas} applies")
        }
        (None, _) => format!("{name} has no value, targetValue {target}"),
    }
}

/// A value beside its target. A target below 1 needs more digits.
pub(super) fn beside(target: TargetValue, value: Milli) -> String {
    if target.milli() < Milli::units(1) && value < Milli::units(10) { exact(value) } else { decimal(value) }
}

/// In thousandths, without zeros at the end.
pub(super) fn exact(value: Milli) -> String {
    let (whole, thousandths) = (value.count() / 1_000, value.count() % 1_000);
    format!("{whole}.{thousandths:03}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Whole numbers from 10 on, one digit after the point below: a status is not written for more.
fn decimal(value: Milli) -> String {
    let tenths = value.count().saturating_add(50) / 100;
    match (tenths / 10, tenths % 10) {
        (whole @ ..10, tenth @ 1..) => format!("{whole}.{tenth}"),
        (whole @ ..10, _) => whole.to_string(),
        (whole, tenth) => (whole + i64::from(tenth >= 5)).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use scaling::{flow::Flow, policy::MetricName};

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
    fn a_target_is_shown_whole_and_a_value_beside_it_as_precisely() {
        let target = |milli: i64| TargetValue::try_from(Milli::from(milli)).unwrap();
        for (milli, text) in [(800, "0.8"), (5, "0.005"), (1_250, "1.25"), (5_000, "5"), (100_000, "100")] {
            assert_eq!(exact(target(milli).milli()), text);
        }
        for (milli, value, text) in [
            (800, 333, "0.333"),
            (5, 4, "0.004"),
            (800, 12_345, "12"),
            (5_000, 333, "0.3"),
            (1_000, 1_234, "1.2"),
        ] {
            assert_eq!(beside(target(milli), Milli::from(value)), text, "{milli}");
        }
    }

    #[test]
    fn what_arrives_is_told_in_numbers_that_can_be_checked() {
        let milli = Milli::from;
        let flow = Flow {
            rate: milli(12_100),
            recent_rate: milli(12_100),
            takes: milli(5_000),
            at_a_time: milli(8_000),
            dispersion: milli(1_000),
            waiting: milli(40_000),
            running: milli(61_000),
            is_full: true,
            is_rough: false,
            tokens: milli(300_000),
            in_hand_lately: milli(25_000),
            is_guessed: false,
        };
        let metric = MetricInputs {
            name: MetricName::default(),
            kind: Kind::QueueDepth,
            target: TargetValue::units(5).unwrap(),
            activation: Milli::ZERO,
            settling: 0,
            measurement: Measurement::Total(milli(101_000)),
            flow: Some(FlowInputs { flow, cold_start_seconds: 30 }),
        };
        assert_eq!(
            summary(&metric, 4, 4),
            "queue_depth is 25 per replica, targetValue 5; 12.1 requests/s arrive and take 5.0 s, so 60 are in hand; with a \
             margin for chance they need 14 replicas at 5 each, and 17 with what waits or will wait"
        );
        let of = |kind, target| {
            summary(
                &MetricInputs { kind, target: TargetValue::units(target).unwrap(), ..metric.clone() },
                4,
                4,
            )
        };
        assert_eq!(
            of(Kind::Latency, 10_000).split_once("; ").unwrap().1,
            "12.1 requests/s arrive and take 5.0 s, so 60 are in hand; with a margin for chance they need 9 replicas at 16 \
             each, which is what ends within 10000 ms where 8 run at a time, and 17 with what waits or will wait"
        );
        assert_eq!(
            of(Kind::TokensPerMinute, 18_000).split_once("; ").unwrap().1,
            "12.1 requests/s arrive and take 5.0 s, so 60 are in hand; with a margin for chance they need 14 replicas at \
             5.0 each, which is 18000 tokens a minute where a request has 300, and 17 with what waits or will wait"
        );
        let without = MetricInputs { flow: None, ..metric };
        assert_eq!(summary(&without, 4, 4), "queue_depth is 25 per replica, targetValue 5");
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
