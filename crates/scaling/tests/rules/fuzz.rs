//! Promises that hold for any policy, any samples and any history.

use jiff::Timestamp;
use proptest::prelude::*;
use scaling::{
    decide::{
        Decision, Outcome,
        conclusion::{Active, recompute},
        decide,
        record::Record,
    },
    flow::Flow,
    history::{History, MOST, Recommendation, ScaleEvent},
    policy::{Arithmetic, Bounds, Kind, Metric, Policy, TargetValue},
    reading::{Fault, PodSample, Reading},
    target::{Pod, Target},
};

use crate::{
    generated::{as_hpa, at, behavior, extras, fallback, flow, kind, pods},
    hpa::Hpa,
};

/// What is observed after some seconds, which may be negative: clocks are set back.
#[derive(Clone, Debug)]
struct Step {
    seconds: i64,
    /// Set by another client.
    replicas: Option<i32>,
    pods: Vec<Pod>,
    flows: Vec<Option<Flow>>,
    readings: Vec<Reading>,
}

fn policy() -> impl Strategy<Value = Policy> {
    let bounds = (0_i32..4, 1_i32..1000).prop_map(|(min, more)| Bounds::new(min, min + more).unwrap());
    let target = prop_oneof![1_i64..100, 1_i64..1_000_000_000_000];
    let metrics = prop::collection::vec((kind(), target), 0..6);
    (bounds, metrics, behavior(), prop::option::of(fallback()), extras()).prop_map(
        |(bounds, metrics, behavior, fallback, extras)| {
            let metric = |((kind, target), index): ((Kind, i64), u32)| {
                Metric::new(&index.to_string(), kind, TargetValue::units(target).unwrap())
            };
            let metrics = metrics.into_iter().zip(0..).map(metric).collect();
            Policy { bounds, metrics, behavior, fallback, extras }
        },
    )
}

/// Any float: NaN, infinite, negative, huge.
fn sample() -> impl Strategy<Value = f64> {
    prop_oneof![3 => 0.0_f64..200.0, 1 => any::<f64>(), 1 => Just(f64::NAN), 1 => Just(f64::MAX)]
}

fn reading(now: i64) -> impl Strategy<Value = Reading> {
    let time = move |age: i64| at(now - age);
    let of_pod = move |(uid, value, age): (u32, f64, i64)| {
        let value = scaling::reading::Milli::parse(value).ok()?;
        Some(PodSample { uid: uid.to_string(), value, at: time(age) })
    };
    prop_oneof![
        4 => (sample(), -10_i64..100).prop_map(move |(value, age)| Reading::total(value, time(age))),
        1 => (sample(), -10_i64..100).prop_map(move |(value, age)| Reading::partial_total(value, time(age))),
        4 => prop::collection::vec((0_u32..9, sample(), -10_i64..100), 0..9)
            .prop_map(move |samples| Reading::Pods(samples.into_iter().filter_map(of_pod).collect())),
        1 => Just(Reading::Missing(Fault::Slow)),
    ]
}

fn step(seconds: impl Strategy<Value = i64>) -> impl Strategy<Value = Step> {
    (seconds, prop::option::weighted(0.1, 0_i32..2000)).prop_flat_map(|(seconds, replicas)| {
        (pods(0), prop::collection::vec(flow(), 0..7), prop::collection::vec(reading(0), 0..7))
            .prop_map(move |(pods, flows, readings)| Step { seconds, replicas, pods, flows, readings })
    })
}

/// Observations are generated around second 0 and moved to `now`.
fn observed(step: &Step, replicas: i32, now: i64) -> (Target, Vec<Reading>) {
    use scaling::target::PodState;
    let moved = |time: Timestamp| Timestamp::from_second(time.as_second() + now).unwrap();
    let mut target = Target {
        replicas,
        status_replicas: replicas,
        pods: step.pods.clone(),
        cold_start: None,
        flows: step.flows.clone(),
    };
    for pod in &mut target.pods {
        pod.created = moved(pod.created);
        pod.state = match pod.state {
            PodState::Starting { since } => PodState::Starting { since: moved(since) },
            PodState::NotReady { since } => PodState::NotReady { since: moved(since) },
            PodState::Ready { since } => PodState::Ready { since: moved(since) },
            state => state,
        };
    }
    let mut readings = step.readings.clone();
    for reading in &mut readings {
        match reading {
            Reading::Total { at, .. } | Reading::PartialTotal { at, .. } => *at = moved(*at),
            Reading::Pods(samples) => samples.iter_mut().for_each(|sample| sample.at = moved(sample.at)),
            Reading::Missing(_) => (),
        }
    }
    (target, readings)
}

/// What holds for each single decision.
fn keeps_its_promises(policy: &Policy, decision: &Decision) {
    let Record { from, to, .. } = decision.record;
    let bounds = policy.bounds;
    let is_by_hand = decision.conclusion.active == Active::ScalingDisabled && from == 0 && to == 0;
    assert!(is_by_hand || (bounds.min()..=bounds.max()).contains(&to), "{to}");
    let is_within = (bounds.min()..=bounds.max()).contains(&from);
    if let (Outcome::Hold(_), true) = (decision.outcome, is_within) {
        assert_eq!(to, from);
    }
    let history = &decision.history;
    assert!(history.recommendations.len() <= MOST && history.scale_events.len() <= MOST);
    assert!(history.metrics.len() <= policy.metrics.len());
    let text = serde_json::to_string(&decision.record).unwrap();
    let read: Record = serde_json::from_str(&text).unwrap();
    assert_eq!(read, decision.record);
    assert_eq!(recompute(&read), to);
    assert!(serde_json::to_string(&read.inputs).unwrap().len() <= 4096);
    let text = serde_json::to_string(history).unwrap();
    assert_eq!(serde_json::from_str::<History>(&text).unwrap(), *history);
    assert!(text.len() < 16_384, "{}", text.len());
}

/// A history as a damaged or forged status might hold it.
fn damaged() -> impl Strategy<Value = History> {
    let time = prop_oneof![(-5_000_i64..5_000).prop_map(at), Just(Timestamp::MAX), Just(Timestamp::MIN),];
    let recommendation =
        (time.clone(), any::<i32>()).prop_map(|(time, replicas)| Recommendation { time, replicas });
    let event = (prop::option::of(time.clone()), time.clone(), any::<i32>())
        .prop_map(|(since, time, change)| ScaleEvent { since, time, change });
    (
        prop::collection::vec(recommendation, 0..200),
        prop::collection::vec(event, 0..200),
        prop::option::of(time),
    )
        .prop_map(|(recommendations, scale_events, raised)| History {
            recommendations,
            scale_events,
            raised,
            ..History::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn any_samples_and_any_history_lead_to_replicas_within_the_bounds(
        policy in policy(),
        damaged in damaged(),
        first in 0_i32..2000,
        steps in prop::collection::vec(step(-100_i64..400), 1..8),
    ) {
        let (mut history, mut replicas, mut now) = (damaged, first, 0);
        for step in &steps {
            now += step.seconds;
            replicas = step.replicas.unwrap_or(replicas);
            let (target, readings) = observed(step, replicas, now);
            let decision = decide(&policy, &target, &readings, &history, at(now));
            keeps_its_promises(&policy, &decision);
            replicas = decision.record.to;
            history = decision.written(&policy);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn no_period_of_a_history_has_more_change_than_the_behavior_allows(
        policy in policy(),
        first in 1_i32..1000,
        steps in prop::collection::vec(step(0_i64..20), 1..100),
    ) {
        let spec = as_hpa(&policy);
        let (mut history, mut replicas, mut now) = (History::default(), first, 0);
        let mut written = Hpa::default();
        for step in &steps {
            now += step.seconds;
            let (target, readings) = observed(step, replicas, now);
            let decision = decide(&policy, &target, &readings, &history, at(now));
            let to = decision.record.to;
            let is_within = (spec.min..=spec.max).contains(&replicas);
            if is_within && to > replicas {
                // Unlike in HPA, a percentage of none allows one.
                let first = match policy.extras.arithmetic {
                    Arithmetic::ByKind if spec.up.select != "Disabled" => replicas.max(1),
                    _ => replicas,
                };
                prop_assert!(to <= written.up_limit(&spec.up, replicas, now).max(first));
                written.ups.push((now, to - replicas));
            } else if is_within && to < replicas {
                prop_assert!(to >= written.down_limit(&spec.down, replicas, now).min(replicas));
                written.downs.push((now, replicas - to));
            } else if to > replicas {
                written.ups.push((now, to - replicas));
            } else if to < replicas {
                written.downs.push((now, replicas - to));
            }
            replicas = to;
            history = decision.written(&policy);
        }
    }

    #[test]
    fn a_metric_that_is_missing_never_lowers_replicas(
        mut policy in policy(),
        first in 0_i32..1000,
        steps in prop::collection::vec(step(0_i64..400), 1..8),
        gone in any::<prop::sample::Index>(),
    ) {
        prop_assume!(!policy.metrics.is_empty());
        policy.fallback = None;
        let gone = gone.index(policy.metrics.len());
        let (mut history, mut replicas, mut now) = (History::default(), first, 0);
        for step in &steps {
            now += step.seconds;
            let (target, mut readings) = observed(step, replicas, now);
            readings.resize(policy.metrics.len(), Reading::Missing(Fault::Empty));
            readings[gone] = Reading::Missing(Fault::NotANumber);
            let decision = decide(&policy, &target, &readings, &history, at(now));
            prop_assert!(decision.record.to >= replicas.min(policy.bounds.max()));
            replicas = decision.record.to;
            history = decision.written(&policy);
        }
    }
}
