//! Arbitrary policies, targets and values, and what they are as an HPA.

use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use scaling::{
    behavior::{Behavior, Change, Rate, Rules, Select, Tolerance, Window},
    flow::Flow,
    policy::{
        Arithmetic, Arrivals, Backlog, Constancy, CrashLoops, Extras, Fallback, Kind, MissingMetrics,
        PendingPods, Policy, Samples, ZeroReplicas,
    },
    reading::Milli,
    target::{Phase, Pod, PodState, Work},
};

use crate::hpa;

/// A time of every test.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_268_800 + seconds).unwrap()
}

pub(crate) fn rules() -> impl Strategy<Value = Rules> {
    let window = prop_oneof![Just(0_u64), 1_u64..120, 0_u64..=3600];
    let select = prop_oneof![3 => Just(Select::Max), 2 => Just(Select::Min), 1 => Just(Select::Disabled)];
    let change = prop_oneof![(1_u32..20).prop_map(Change::Pods), (1_u32..250).prop_map(Change::Percent)];
    let period = prop_oneof![1_u64..60, 1_u64..=1800];
    let rate =
        (change, period).prop_map(|(change, period)| Rate::new(change, Duration::from_secs(period)).unwrap());
    let tolerance = prop_oneof![
        Just(0.1),
        Just(0.0),
        Just(0.05),
        Just(0.333_333),
        Just(1.0),
        (0_u32..2_000_000).prop_map(|millionths| f64::from(millionths) / 1e6)
    ];
    (window, select, prop::collection::vec(rate, 1..4), tolerance).prop_map(
        |(window, select, rates, tolerance)| Rules {
            window: Window::new(Duration::from_secs(window)).unwrap(),
            select,
            rates,
            tolerance: Tolerance::parse(tolerance).unwrap(),
        },
    )
}

pub(crate) fn behavior() -> impl Strategy<Value = Behavior> {
    prop_oneof![
        1 => Just(Behavior::default()),
        4 => (rules(), rules()).prop_map(|(up, down)| Behavior { up, down }),
    ]
}

pub(crate) fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![
        Kind::QueueDepth,
        Kind::GpuUtil,
        Kind::GpuMemory,
        Kind::Latency,
        Kind::TokensPerMinute,
        Kind::Custom,
        Kind::TasksAndBusyWorkers,
        Kind::TasksOnly,
    ])
}

pub(crate) fn extras() -> impl Strategy<Value = Extras> {
    (any::<[bool; 8]>(), prop::option::of(0_u64..600), 0_u16..3).prop_map(
        |([by_kind, supply, settled, doubling, hold, present, below, counted], judged, warm_buffer)| Extras {
            arithmetic: if by_kind { Arithmetic::ByKind } else { Arithmetic::Hpa },
            pending: if supply { PendingPods::AreSupply } else { PendingPods::AsInHpa },
            samples: if settled { Samples::OfSettledPods } else { Samples::OfRunningPods },
            backlog: if doubling { Backlog::DoublingPerColdStart } else { Backlog::Unlimited },
            crash_loops: if hold { CrashLoops::HoldScaleUp } else { CrashLoops::AsInHpa },
            constancy: judged.map_or(Constancy::Ignored, |seconds| {
                Constancy::Judged(Window::new(Duration::from_secs(seconds)).unwrap())
            }),
            missing: if present { MissingMetrics::RecommendPresent } else { MissingMetrics::AsInHpa },
            zero: if below { ZeroReplicas::BelowMinimum } else { ZeroReplicas::AsInHpa },
            arrivals: if counted { Arrivals::Counted } else { Arrivals::Ignored },
            warm_buffer,
        },
    )
}

pub(crate) fn fallback() -> impl Strategy<Value = Fallback> {
    (30_u64..600, 0_i32..1000)
        .prop_map(|(after, replicas)| Fallback { after: Duration::from_secs(after), replicas })
}

/// What counters might say, and what a record might.
pub(crate) fn flow() -> impl Strategy<Value = Option<Flow>> {
    let milli = || {
        let count = prop_oneof![6 => 0_i64..200_000, 1 => Just(0), 1 => Just(i64::MAX)];
        count.prop_map(Milli::from)
    };
    let flow = (
        [milli(), milli(), milli(), milli(), milli(), milli(), milli(), milli(), milli()],
        any::<[bool; 3]>(),
    );
    prop::option::of(flow.prop_map(
        |(
            [rate, recent_rate, takes, at_a_time, dispersion, waiting, running, tokens, in_hand_lately],
            [is_full, is_rough, is_guessed],
        )| Flow {
            rate,
            recent_rate,
            takes,
            at_a_time,
            dispersion,
            waiting,
            running,
            is_full,
            is_rough,
            tokens,
            in_hand_lately,
            is_guessed,
        },
    ))
}

/// Pods that were created, and last changed, up to half an hour before `now`.
pub(crate) fn pods(now: i64) -> impl Strategy<Value = Vec<Pod>> {
    let work = prop::sample::select(vec![Work::Unknown, Work::Idle, Work::Busy]);
    let pod = (0_usize..12, 0_i64..1800, 0_i64..1800, work).prop_map(move |(state, age, change, work)| {
        let created = now - age.max(change);
        let since = at(now - age.min(change));
        let state = match state {
            0 => PodState::Unscheduled,
            1 => PodState::Starting { since },
            2 => PodState::NotReady { since },
            3 => PodState::CrashLooping { phase: Phase::Running },
            4 => PodState::Ending,
            5 => PodState::CannotStart { phase: Phase::Pending },
            6 => PodState::CrashLooping { phase: Phase::Pending },
            7 => PodState::CannotStart { phase: Phase::Running },
            _ => PodState::Ready { since },
        };
        (at(created), state, work)
    });
    prop::collection::vec(pod, 0..8).prop_map(|pods| {
        let named = pods.into_iter().zip(0..);
        let pod = |((created, state, work), index): (_, u32)| Pod {
            uid: index.to_string(),
            created,
            began: Some(created),
            ordinal: None,
            state,
            work,
        };
        named.map(pod).collect()
    })
}

/// The same as an HPA's `spec`.
pub(crate) fn as_hpa(policy: &Policy) -> hpa::Spec {
    let direction = |rules: &Rules| hpa::Direction {
        window_seconds: i64::try_from(rules.window.duration().as_secs()).unwrap(),
        select: match rules.select {
            Select::Max => "Max",
            Select::Min => "Min",
            Select::Disabled => "Disabled",
        },
        policies: rules.rates.iter().map(|rate| as_policy(*rate)).collect(),
        tolerance: serde_json::to_value(rules.tolerance).unwrap().as_f64().unwrap() / 1e6,
    };
    hpa::Spec {
        min: policy.bounds.min(),
        max: policy.bounds.max(),
        up: direction(&policy.behavior.up),
        down: direction(&policy.behavior.down),
    }
}

fn as_policy(rate: Rate) -> (&'static str, i32, i64) {
    let seconds = i64::try_from(rate.period().as_secs()).unwrap();
    match rate.change() {
        Change::Pods(pods) => ("Pods", i32::try_from(pods).unwrap(), seconds),
        Change::Percent(percent) => ("Percent", i32::try_from(percent).unwrap(), seconds),
    }
}

pub(crate) fn as_hpa_pods(pods: &[Pod]) -> Vec<hpa::HpaPod> {
    let of = |pod: &Pod| {
        let (phase, ready, deleted) = match pod.state {
            PodState::Unscheduled
            | PodState::Starting { .. }
            | PodState::CrashLooping { phase: Phase::Pending }
            | PodState::CannotStart { phase: Phase::Pending } => ("Pending", false, false),
            PodState::NotReady { .. }
            | PodState::CrashLooping { phase: Phase::Running }
            | PodState::CannotStart { phase: Phase::Running } => ("Running", false, false),
            PodState::Ready { .. } => ("Running", true, false),
            PodState::Ending => ("Running", false, true),
        };
        hpa::HpaPod { name: pod.uid.clone(), phase, ready, deleted }
    };
    pods.iter().map(of).collect()
}
