//! A reading, reduced to the numbers that the arithmetic needs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    policy::{Metric, Samples},
    reading::{Fault, Milli, PodSample, Reading},
    target::{Phase, Pod, PodState},
    time::elapsed,
};

/// What is known of a metric.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Measurement {
    /// One value of the whole target.
    Total(Milli),
    /// One value of the whole target, of which some data was missing: no reason to remove replicas.
    PartialTotal(Milli),
    Pods(PodValues),
    /// No usable value.
    Invalid(Fault),
    /// No usable value for so long that the fallback replaces it.
    Fallback {
        fault: Fault,
        replicas: i32,
    },
    /// The metric does not move with the load.
    NotLoadSensitive,
}

/// Values of pods. HPA v2, `groupPods`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PodValues {
    pub sum: Milli,
    /// Pods in the sum.
    pub measured: u32,
    /// Pods that should have a sample and have none.
    pub missing: u32,
    /// Pods that are not expected to have one: Pending, or not Ready where `Samples` excludes these.
    pub unready: u32,
    /// Ready pods whose sample is not of a whole window of being Ready, where `Samples` excludes these.
    pub unsettled: u32,
}

impl PodValues {
    /// Rounded down, as in HPA.
    pub fn mean(self) -> Milli {
        Milli::from(self.sum.count() / i64::from(self.measured.max(1)))
    }
}

/// What the reading says now; without memory, fallback or judgement.
pub(crate) fn measurement(
    metric: &Metric,
    reading: &Reading,
    pods: &[Pod],
    samples: Samples,
    now: Timestamp,
) -> Measurement {
    match reading {
        Reading::Missing(fault) => Measurement::Invalid(*fault),
        Reading::Total { at, .. } | Reading::PartialTotal { at, .. }
            if elapsed(*at, now) > metric.max_age =>
        {
            Measurement::Invalid(Fault::Stale)
        }
        Reading::Total { value, .. } => Measurement::Total(*value),
        Reading::PartialTotal { value, .. } => Measurement::PartialTotal(*value),
        Reading::Pods(values) => of_pods(metric, values, pods, samples, now),
    }
}

/// Ready pods whose samples are not of a whole window yet.
pub(crate) fn settling(metric: &Metric, pods: &[Pod], now: Timestamp) -> u32 {
    let is_new = |pod: &&Pod| match pod.state {
        PodState::Ready { since } => elapsed(since, now) < metric.window,
        PodState::Unscheduled
        | PodState::Starting { .. }
        | PodState::NotReady { .. }
        | PodState::CrashLooping { .. }
        | PodState::CannotStart { .. }
        | PodState::Ending => false,
    };
    u32::try_from(pods.iter().filter(is_new).count()).unwrap_or(u32::MAX)
}

fn of_pods(
    metric: &Metric,
    samples: &[PodSample],
    pods: &[Pod],
    which: Samples,
    now: Timestamp,
) -> Measurement {
    let is_fresh = |sample: &&PodSample| elapsed(sample.at, now) <= metric.max_age;
    let fresh: BTreeMap<&str, &PodSample> =
        samples.iter().filter(is_fresh).map(|sample| (sample.uid.as_str(), sample)).collect();
    let mut values = PodValues::default();
    for pod in pods {
        let sample = fresh.get(pod.uid.as_str());
        match (pod.state, sample) {
            (PodState::Ending, _) => (),
            (
                PodState::Unscheduled
                | PodState::Starting { .. }
                | PodState::CrashLooping { phase: Phase::Pending }
                | PodState::CannotStart { phase: Phase::Pending },
                _,
            ) => values.unready += 1,
            (PodState::NotReady { .. } | PodState::CrashLooping { .. } | PodState::CannotStart { .. }, _)
                if which == Samples::OfSettledPods =>
            {
                values.unready += 1
            }
            (
                PodState::NotReady { .. }
                | PodState::CrashLooping { .. }
                | PodState::CannotStart { .. }
                | PodState::Ready { .. },
                None,
            ) => values.missing += 1,
            (PodState::Ready { since }, Some(sample))
                if which == Samples::OfSettledPods && elapsed(since, sample.at) < metric.window =>
            {
                values.unsettled += 1;
            }
            (
                PodState::NotReady { .. }
                | PodState::CrashLooping { .. }
                | PodState::CannotStart { .. }
                | PodState::Ready { .. },
                Some(sample),
            ) => {
                values.measured += 1;
                values.sum = values.sum.plus(sample.value);
            }
        }
    }
    if values.measured > 0 {
        return Measurement::Pods(values);
    }
    // No sample counts as 0: HPA v2 refuses to compute without any, too.
    Measurement::Invalid(if samples.is_empty() {
        Fault::Empty
    } else if fresh.is_empty() {
        Fault::Stale
    } else {
        Fault::NoSettledPods
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::{Kind, TargetValue},
        target::Work,
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    fn metric() -> Metric {
        Metric::new("gpu_util", Kind::GpuUtil, TargetValue::units(70).unwrap())
    }

    fn pod(uid: &str, state: PodState) -> Pod {
        Pod { uid: uid.to_owned(), created: at(0), began: None, ordinal: None, state, work: Work::Unknown }
    }

    fn sample(uid: &str, value: i64, time: i64) -> PodSample {
        PodSample { uid: uid.to_owned(), value: Milli::units(value), at: at(time) }
    }

    fn measured(samples: Vec<PodSample>, pods: &[Pod], which: Samples) -> Measurement {
        measurement(&metric(), &Reading::Pods(samples), pods, which, at(100))
    }

    #[test]
    fn a_sample_counts_once_its_pod_has_been_ready_for_a_whole_window() {
        let pods =
            [pod("new", PodState::Ready { since: at(61) }), pod("old", PodState::Ready { since: at(60) })];
        let samples = vec![sample("new", 100, 90), sample("old", 50, 90)];
        let settled = PodValues { sum: Milli::units(50), measured: 1, unsettled: 1, ..PodValues::default() };
        assert_eq!(measured(samples.clone(), &pods, Samples::OfSettledPods), Measurement::Pods(settled));
        let running = PodValues { sum: Milli::units(150), measured: 2, ..PodValues::default() };
        assert_eq!(measured(samples, &pods, Samples::OfRunningPods), Measurement::Pods(running));
    }

    #[test]
    fn no_sample_of_any_pod_is_a_fault_and_not_zero() {
        let pods = [pod("a", PodState::Ready { since: at(99) })];
        let of = |samples| measured(samples, &pods, Samples::OfSettledPods);
        assert_eq!(of(vec![]), Measurement::Invalid(Fault::Empty));
        assert_eq!(of(vec![sample("a", 5, 39)]), Measurement::Invalid(Fault::Stale));
        assert_eq!(of(vec![sample("a", 5, 100)]), Measurement::Invalid(Fault::NoSettledPods));
    }

    #[test]
    fn a_total_older_than_its_limit_is_stale() {
        let total = |time| Reading::Total { value: Milli::units(5), at: at(time) };
        let of = |time| measurement(&metric(), &total(time), &[], Samples::OfRunningPods, at(100));
        assert_eq!(of(40), Measurement::Total(Milli::units(5)));
        assert_eq!(of(39), Measurement::Invalid(Fault::Stale));
        let partial = |time| Reading::PartialTotal { value: Milli::units(5), at: at(time) };
        let of = |time| measurement(&metric(), &partial(time), &[], Samples::OfRunningPods, at(100));
        assert_eq!(of(40), Measurement::PartialTotal(Milli::units(5)));
        assert_eq!(of(39), Measurement::Invalid(Fault::Stale));
    }

    #[test]
    fn pods_that_end_are_in_no_count() {
        let pods = [pod("a", PodState::Ready { since: at(0) }), pod("b", PodState::Ending)];
        let samples = vec![sample("a", 50, 90), sample("b", 90, 90)];
        let expected = PodValues { sum: Milli::units(50), measured: 1, ..PodValues::default() };
        assert_eq!(measured(samples, &pods, Samples::OfRunningPods), Measurement::Pods(expected));
    }
}
