//! With no extras, each decision of a history is the one of HPA v2.

use std::collections::BTreeMap;

use proptest::prelude::*;
use scaling::{
    decide::decide,
    history::History,
    policy::{Bounds, Extras, Kind, Metric, Policy, TargetValue},
    reading::{Fault, Milli, PodSample, Reading},
    target::{Pod, Target},
};

use crate::{
    generated::{as_hpa, as_hpa_pods, at, behavior, pods},
    hpa::{Hpa, MetricValue, Scale},
};

/// A metric of a policy: its kind decides which of HPA's metrics it is; in thousandths.
#[derive(Clone, Debug)]
struct GeneratedMetric {
    kind: Kind,
    target: i64,
}

#[derive(Clone, Debug)]
enum Value {
    Total(i64),
    /// By pod; absent ones have no sample.
    Pods(Vec<Option<i64>>),
    Failed,
}

/// What is observed after some seconds. `replicas`: set by another client.
#[derive(Clone, Debug)]
struct Step {
    seconds: i64,
    replicas: Option<i32>,
    status_off: i32,
    pods: Vec<Pod>,
    values: Vec<Value>,
}

fn policy() -> impl Strategy<Value = (Policy, Vec<GeneratedMetric>)> {
    let metric = (
        prop::sample::select(vec![Kind::Custom, Kind::Latency, Kind::QueueDepth]),
        prop_oneof![1_i64..20_000, 1_i64..1_000_000_000_000],
    );
    let metric = metric.prop_map(|(kind, target)| GeneratedMetric { kind, target });
    let bounds = (0_i32..4, 1_i32..60).prop_map(|(min, more)| Bounds::new(min, min + more).unwrap());
    (bounds, prop::collection::vec(metric, 1..4), behavior()).prop_map(|(bounds, generated, behavior)| {
        let metric = |(generated, index): (&GeneratedMetric, u32)| {
            let target = TargetValue::try_from(Milli::from(generated.target)).unwrap();
            Metric::new(&index.to_string(), generated.kind, target)
        };
        let metrics = generated.iter().zip(0..).map(metric).collect();
        (Policy { bounds, metrics, behavior, fallback: None, extras: Extras::none() }, generated)
    })
}

fn value() -> impl Strategy<Value = Value> {
    let total = prop_oneof![Just(0_i64), 0_i64..100_000, 0_i64..1_000_000_000, 0_i64..=i64::MAX];
    let of_pod = prop::option::weighted(0.8, prop_oneof![0_i64..40_000, 0_i64..1_000_000_000_000]);
    prop_oneof![
        4 => total.prop_map(Value::Total),
        4 => prop::collection::vec(of_pod, 8).prop_map(Value::Pods),
        1 => Just(Value::Failed),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let seconds = prop_oneof![Just(15_i64), 0_i64..40, 0_i64..2000];
    let replicas = prop::option::weighted(0.2, 0_i32..70);
    (seconds, replicas, -2_i32..3, pods(0), prop::collection::vec(value(), 3)).prop_map(
        |(seconds, replicas, status_off, pods, values)| Step { seconds, replicas, status_off, pods, values },
    )
}

/// The same value, as both sides take it.
fn both(metric: &GeneratedMetric, value: &Value, pods: &[Pod], now: i64) -> (Reading, MetricValue) {
    let target = metric.target;
    match value {
        Value::Failed => (Reading::Missing(Fault::Unreachable), MetricValue::Failed),
        Value::Total(usage) => {
            let reading = Reading::Total { value: Milli::from(*usage), at: at(now) };
            let usage = *usage;
            match metric.kind {
                Kind::Latency => (reading, MetricValue::ExternalValue { usage, target }),
                _ => (reading, MetricValue::ExternalAverageValue { usage, target }),
            }
        }
        Value::Pods(values) => {
            let known = pods.iter().zip(values).filter_map(|(pod, value)| Some((pod.uid.clone(), (*value)?)));
            let usage: BTreeMap<String, i64> = known.collect();
            let sample = |(uid, value): (&String, &i64)| PodSample {
                uid: uid.clone(),
                value: Milli::from(*value),
                at: at(now),
            };
            (Reading::Pods(usage.iter().map(sample).collect()), MetricValue::Pods { usage, target })
        }
    }
}

fn same_decisions(policy: &Policy, metrics: &[GeneratedMetric], first: i32, steps: &[Step]) {
    let spec = as_hpa(policy);
    let (mut hpa, mut history) = (Hpa::default(), History::default());
    let (mut replicas, mut now) = (first, 0);
    for step in steps {
        now += step.seconds;
        replicas = step.replicas.unwrap_or(replicas);
        let status_replicas = (replicas + step.status_off).max(0);
        let read = metrics.iter().zip(&step.values);
        let (readings, values): (Vec<Reading>, Vec<MetricValue>) =
            read.map(|(metric, value)| both(metric, value, &step.pods, now)).unzip();
        let target = Target {
            replicas,
            status_replicas,
            pods: step.pods.clone(),
            cold_start: None,
            flows: Vec::new(),
        };
        let decision = decide(policy, &target, &readings, &history, at(now));
        let hpa_pods = as_hpa_pods(&step.pods);
        let scale = Scale { spec_replicas: replicas, status_replicas, pods: &hpa_pods };
        let expected = hpa.reconcile(&spec, &scale, &values, now);
        let conclusion = decision.conclusion.clone();
        assert_eq!(conclusion.to, expected.replicas, "at {now} s: {conclusion:?}");
        if let (Some(able), Some(limited)) = (expected.able, expected.limited) {
            assert_eq!(
                (conclusion.able.as_str(), conclusion.limited.as_str()),
                (able, limited),
                "at {now} s"
            );
        }
        replicas = conclusion.to;
        history = decision.written(policy);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12_000, ..ProptestConfig::default() })]

    #[test]
    fn without_extras_every_decision_of_a_history_is_that_of_hpa(
        (policy, metrics) in policy(),
        first in 0_i32..70,
        steps in prop::collection::vec(step(), 1..10),
    ) {
        same_decisions(&policy, &metrics, first, &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn without_extras_64_decisions_in_a_row_are_those_of_hpa(
        (policy, metrics) in policy(),
        first in 0_i32..70,
        steps in prop::collection::vec(step(), 64),
    ) {
        same_decisions(&policy, &metrics, first, &steps);
    }
}
