//! Kubernetes' own cases of its replica calculator (`pkg/controller/podautoscaler/replica_calculator_test.go`), by the names
//! of their tests there: as numbers, with the replicas that Kubernetes expects. Cases of errors of its metrics APIs, and of
//! requests of containers, have no counterpart here. Nor has `MissingMetricsUnreadyScaleDown`: a pod without a CPU metric
//! counts as 100 % of its request there, not as its target.

use scaling::{
    behavior::Behavior,
    decide::decide,
    history::History,
    policy::{Bounds, Extras, Kind, Metric, Policy, Samples, TargetValue},
    reading::{Milli, PodSample, Reading},
    target::{Phase, Pod, PodState, Target, Work},
};

use crate::generated::at;

/// Of a pod.
#[derive(Clone, Copy)]
enum Is {
    Ready,
    Unready,
    /// Ready for less than a window of the metric: Kubernetes' pods that are "hot".
    New,
    Pending,
    /// Failed, or being deleted.
    Ending,
}

/// Values in thousandths. Of pods: in their order; those beyond the values have none.
enum Values {
    /// `Pods`.
    OfPods(&'static [i64]),
    /// `Resource`: as `Pods`, but pods that are not Ready, or new, count as in the first minutes of a CPU metric.
    OfCpu(&'static [i64]),
    /// `Object` and `External` with a target of the type `Value`.
    Value(i64),
    /// `Object` and `External` with a target of the type `AverageValue`.
    AverageValue(i64),
}

struct Case {
    name: &'static str,
    replicas: i32,
    pods: &'static [Is],
    values: Values,
    target: i64,
    expected: i32,
}

use Is::{Ending, New, Pending, Ready, Unready};
use Values::{AverageValue, OfCpu, OfPods, Value};

const THREE: &[Is] = &[Ready; 3];
const FIVE: &[Is] = &[Ready; 5];

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case { name: "ScaleUp", replicas: 3, pods: THREE, values: OfCpu(&[300, 500, 700]), target: 300, expected: 5 },
    Case { name: "ScaleUpUnreadyLessScale", replicas: 3, pods: &[Unready, Ready, Ready], values: OfCpu(&[300, 500, 700]), target: 300, expected: 4 },
    Case { name: "ScaleUpHotCpuLessScale", replicas: 3, pods: &[New, Ready, Ready], values: OfCpu(&[300, 500, 700]), target: 300, expected: 4 },
    Case { name: "ScaleUpUnreadyNoScale", replicas: 3, pods: &[Ready, Unready, Unready], values: OfCpu(&[400, 500, 700]), target: 300, expected: 3 },
    Case { name: "ScaleHotCpuNoScale", replicas: 3, pods: &[Ready, New, New], values: OfCpu(&[400, 500, 700]), target: 300, expected: 3 },
    Case { name: "ScaleUpIgnoresFailedPods", replicas: 2, pods: &[Ready, Ready, Ending, Ending], values: OfCpu(&[500, 700]), target: 300, expected: 4 },
    Case { name: "ScaleUpCM", replicas: 3, pods: THREE, values: OfPods(&[20_000, 10_000, 30_000]), target: 15_000, expected: 4 },
    Case { name: "ScaleUpCMUnreadyHotCpuNoLessScale", replicas: 3, pods: &[Ready, Ready, Unready], values: OfPods(&[50_000, 10_000, 30_000]), target: 15_000, expected: 6 },
    Case { name: "ScaleUpCMUnreadyHotCpuScaleWouldScaleDown", replicas: 3, pods: &[Unready, Ready, Unready], values: OfPods(&[50_000, 15_000, 30_000]), target: 15_000, expected: 7 },
    Case { name: "ScaleUpCMObject", replicas: 3, pods: THREE, values: Value(20_000), target: 15_000, expected: 4 },
    Case { name: "ScaleUpCMPerPodObject", replicas: 3, pods: THREE, values: AverageValue(20_000), target: 5_000, expected: 4 },
    Case { name: "ScaleUpCMObjectIgnoresUnreadyPods", replicas: 3, pods: &[Unready, Ready, Unready], values: Value(50_000), target: 10_000, expected: 5 },
    Case { name: "ScaleUpCMExternal", replicas: 1, pods: &[Ready], values: OfPods(&[8_600]), target: 4_400, expected: 2 },
    Case { name: "ScaleUpCMExternalIgnoresUnreadyPods", replicas: 3, pods: &[Unready, Ready, Unready], values: Value(8_600), target: 4_400, expected: 2 },
    Case { name: "ScaleUpPerPodCMExternal", replicas: 3, pods: THREE, values: AverageValue(8_600), target: 2_150, expected: 4 },
    Case { name: "ScaleDown", replicas: 5, pods: FIVE, values: OfCpu(&[100, 300, 500, 250, 250]), target: 500, expected: 3 },
    Case { name: "ScaleDownCM", replicas: 5, pods: FIVE, values: OfPods(&[12_000; 5]), target: 20_000, expected: 3 },
    Case { name: "ScaleDownPerPodCMObject", replicas: 5, pods: FIVE, values: AverageValue(6_000), target: 2_000, expected: 3 },
    Case { name: "ScaleDownCMObject", replicas: 5, pods: FIVE, values: Value(12_000), target: 20_000, expected: 3 },
    Case { name: "ScaleDownCMExternal", replicas: 5, pods: FIVE, values: Value(8_600), target: 14_334, expected: 3 },
    Case { name: "ScaleDownPerPodCMExternal", replicas: 5, pods: FIVE, values: AverageValue(8_600), target: 2_867, expected: 3 },
    Case { name: "ScaleDownIncludeUnreadyPods", replicas: 5, pods: &[Ready, Ready, Ready, Unready, Unready], values: OfCpu(&[100, 300, 500, 250, 250]), target: 500, expected: 2 },
    Case { name: "ScaleDownExcludeUnscheduledPods", replicas: 5, pods: &[Ready, Pending, Pending, Pending, Pending], values: OfCpu(&[100]), target: 500, expected: 1 },
    Case { name: "ScaleDownIgnoreHotCpuPods", replicas: 5, pods: &[Ready, Ready, Ready, New, New], values: OfCpu(&[100, 300, 500, 250, 250]), target: 500, expected: 2 },
    Case { name: "ScaleDownIgnoresDeletionPods", replicas: 5, pods: &[Ready, Ready, Ready, Ready, Ready, Ending, Ending], values: OfCpu(&[100, 300, 500, 250, 250]), target: 500, expected: 3 },
    Case { name: "ToleranceCM", replicas: 3, pods: THREE, values: OfPods(&[20_000, 21_000, 21_000]), target: 20_000, expected: 3 },
    Case { name: "ToleranceCMObject", replicas: 3, pods: THREE, values: Value(20_666), target: 20_000, expected: 3 },
    Case { name: "TolerancePerPodCMObject", replicas: 4, pods: &[Ready; 4], values: AverageValue(20_166), target: 5_000, expected: 4 },
    Case { name: "ToleranceCMExternal", replicas: 3, pods: THREE, values: Value(8_600), target: 8_888, expected: 3 },
    Case { name: "TolerancePerPodCMExternal", replicas: 3, pods: THREE, values: AverageValue(8_600), target: 2_900, expected: 3 },
    Case { name: "MissingMetrics", replicas: 4, pods: &[Ready; 4], values: OfCpu(&[400, 95]), target: 1_000, expected: 3 },
    Case { name: "MissingMetricsNoChangeEq", replicas: 2, pods: &[Ready; 2], values: OfCpu(&[1_000]), target: 1_000, expected: 2 },
    Case { name: "MissingMetricsNoChangeGt", replicas: 2, pods: &[Ready; 2], values: OfCpu(&[1_900]), target: 1_000, expected: 2 },
    Case { name: "MissingMetricsNoChangeLt", replicas: 2, pods: &[Ready; 2], values: OfCpu(&[600]), target: 1_000, expected: 2 },
    Case { name: "MissingMetricsUnreadyChange", replicas: 3, pods: &[Unready, Ready, Ready], values: OfCpu(&[100, 450]), target: 500, expected: 3 },
    Case { name: "MissingMetricsHotCpuNoChange", replicas: 3, pods: &[New, Ready, Ready], values: OfCpu(&[100, 450]), target: 500, expected: 3 },
    Case { name: "MissingMetricsUnreadyScaleUp", replicas: 3, pods: &[Unready, Ready, Ready], values: OfCpu(&[100, 2_000]), target: 500, expected: 4 },
    Case { name: "DuringRollingUpdateWithMaxSurge", replicas: 2, pods: THREE, values: OfCpu(&[100, 100]), target: 500, expected: 2 },
];

const NOW: i64 = 10_000;

fn pod((index, is): (usize, &Is)) -> Pod {
    let long_ago = at(0);
    let state = match is {
        Ready => PodState::Ready { since: long_ago },
        Unready => PodState::NotReady { since: long_ago },
        New => PodState::Ready { since: at(NOW - 1) },
        Pending => PodState::CannotStart { phase: Phase::Pending },
        Ending => PodState::Ending,
    };
    Pod { uid: index.to_string(), created: long_ago, began: None, ordinal: None, state, work: Work::Unknown }
}

fn of_pods(values: &[i64]) -> Reading {
    let sample = |(index, value): (usize, &i64)| PodSample {
        uid: index.to_string(),
        value: Milli::from(*value),
        at: at(NOW),
    };
    Reading::Pods(values.iter().enumerate().map(sample).collect())
}

#[test]
fn the_replicas_of_kubernetes_own_cases_are_those_that_it_expects() {
    for Case { name, replicas, pods, values, target, expected } in CASES {
        let total = |value| Reading::Total { value: Milli::from(value), at: at(NOW) };
        let (kind, reading, samples) = match values {
            OfPods(values) => (Kind::Custom, of_pods(values), Samples::OfRunningPods),
            OfCpu(values) => (Kind::Custom, of_pods(values), Samples::OfSettledPods),
            Value(value) => (Kind::Latency, total(*value), Samples::OfRunningPods),
            AverageValue(value) => (Kind::QueueDepth, total(*value), Samples::OfRunningPods),
        };
        let policy = Policy {
            bounds: Bounds::new(1, 1_000).unwrap(),
            metrics: vec![Metric::new(name, kind, TargetValue::try_from(Milli::from(*target)).unwrap())],
            behavior: Behavior::default(),
            fallback: None,
            extras: Extras { samples, ..Extras::none() },
        };
        let target = Target {
            replicas: *replicas,
            status_replicas: *replicas,
            pods: pods.iter().enumerate().map(pod).collect(),
            cold_start: None,
            flows: Vec::new(),
        };
        let decision = decide(&policy, &target, &[reading], &History::default(), at(NOW));
        assert_eq!(decision.conclusion.raw, Some(*expected), "{name}");
    }
}
