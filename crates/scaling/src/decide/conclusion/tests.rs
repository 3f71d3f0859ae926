//! Conclusions from recorded numbers.

use super::*;
use crate::{
    behavior::Tolerance,
    decide::record::{MetricInputs, Recommended, Tolerances},
    measurement::PodValues,
    policy::{Arithmetic, Bounds, Extras, Kind, MetricName, TargetValue},
    rate::Allowed,
    reading::Milli,
    supply::Supply,
};

/// Bounds 1 to 100, no window, no rate, everything of this crate on.
fn inputs(supply: Supply, metrics: Vec<MetricInputs>) -> Inputs {
    Inputs {
        bounds: Bounds::new(1, 100).unwrap(),
        tolerance: Tolerances { up: Tolerance::default(), down: Tolerance::default() },
        extras: Extras::all(),
        status_replicas: 0,
        supply,
        metrics,
        recommended: Recommended::default(),
        allowed: Allowed { lowest: 0, highest: 1_000 },
    }
}

fn metric(kind: Kind, target: i64, measurement: Measurement) -> MetricInputs {
    MetricInputs {
        name: MetricName::default(),
        kind,
        target: TargetValue::units(target).unwrap(),
        activation: Milli::ZERO,
        settling: 0,
        measurement,
        flow: None,
    }
}

fn total(kind: Kind, target: i64, value: i64) -> MetricInputs {
    metric(kind, target, Measurement::Total(Milli::units(value)))
}

fn of_pods(kind: Kind, target: i64, sum: i64, measured: u32, missing: u32) -> MetricInputs {
    let values = PodValues { sum: Milli::units(sum), measured, missing, ..PodValues::default() };
    metric(kind, target, Measurement::Pods(values))
}

fn ready(ready: u32) -> Supply {
    Supply { ready, ..Supply::default() }
}

fn to(replicas: i32, supply: Supply, metric: MetricInputs) -> i32 {
    conclude(replicas, &inputs(supply, vec![metric])).to
}

#[test]
fn zero_by_hand_stays_while_the_minimum_is_above_zero() {
    let zero = conclude(0, &inputs(ready(0), vec![total(Kind::QueueDepth, 5, 500)]));
    assert_eq!((zero.to, zero.active), (0, Active::ScalingDisabled));
}

#[test]
fn an_incomplete_total_may_add_replicas_and_remove_none() {
    let partial = |value| metric(Kind::QueueDepth, 5, Measurement::PartialTotal(Milli::units(value)));
    let at_four = |metrics| conclude(4, &inputs(ready(4), metrics));
    let held = at_four(vec![partial(5)]);
    assert_eq!((held.to, held.raw, held.active), (4, None, Active::MetricPartial));
    let added = at_four(vec![partial(40)]);
    assert_eq!((added.to, added.active), (8, Active::ValidMetricFound));
    let beside = at_four(vec![total(Kind::QueueDepth, 5, 5), partial(5)]);
    assert_eq!((beside.to, beside.active), (4, Active::MetricPartial));
}

#[test]
fn zero_of_a_scale_down_ends_with_a_minimum_that_was_raised() {
    let mut inputs = inputs(ready(0), vec![total(Kind::QueueDepth, 5, 500)]);
    inputs.bounds = Bounds::new(2, 100).unwrap();
    let of_older_versions = serde_json::to_value(&inputs).unwrap();
    assert_eq!(of_older_versions["extras"].get("zero"), None);
    assert_eq!(serde_json::from_value::<Inputs>(of_older_versions).unwrap(), inputs);
    inputs.extras.zero = ZeroReplicas::BelowMinimum;
    let read: Inputs = serde_json::from_str(&serde_json::to_string(&inputs).unwrap()).unwrap();
    let raised = conclude(0, &read);
    assert_eq!((raised.to, raised.limited), (2, Limited::TooFewReplicas));
}

#[test]
fn bounds_apply_at_once_and_without_a_metric() {
    let mut inputs = inputs(ready(200), vec![metric(Kind::Custom, 5, Measurement::Invalid(Fault::Slow))]);
    inputs.allowed = Allowed { lowest: 200, highest: 200 };
    let above = conclude(200, &inputs);
    assert_eq!((above.to, above.limited, above.raw), (100, Limited::TooManyReplicas, None));
    inputs.bounds = Bounds::new(300, 400).unwrap();
    let below = conclude(200, &inputs);
    assert_eq!((below.to, below.limited), (300, Limited::TooFewReplicas));
}

#[test]
fn the_largest_proposal_wins() {
    let metrics = vec![
        total(Kind::QueueDepth, 5, 20),
        total(Kind::TokensPerMinute, 1_000, 6_500),
        total(Kind::Custom, 5, 35),
    ];
    let conclusion = conclude(4, &inputs(ready(4), metrics));
    assert_eq!((conclusion.to, conclusion.winner), (7, Some(1)));
    assert_eq!(conclusion.proposals, [Some(4), Some(7), Some(7)]);
}

#[test]
fn with_a_metric_missing_the_others_add_replicas_and_remove_none() {
    let missing = || metric(Kind::Custom, 5, Measurement::Invalid(Fault::Unreachable));
    let more = conclude(4, &inputs(ready(4), vec![missing(), total(Kind::QueueDepth, 5, 40)]));
    assert_eq!((more.to, more.active), (8, Active::ValidMetricFound));
    let fewer = conclude(4, &inputs(ready(4), vec![missing(), total(Kind::QueueDepth, 5, 0)]));
    assert_eq!((fewer.to, fewer.active), (4, Active::MetricMissing(Fault::Unreachable)));
}

#[test]
fn a_metric_that_is_not_load_sensitive_decides_in_no_direction_and_blocks_none() {
    let constant = || metric(Kind::GpuMemory, 70, Measurement::NotLoadSensitive);
    let alone = conclude(4, &inputs(ready(4), vec![constant()]));
    assert_eq!((alone.to, alone.active), (4, Active::MetricNotLoadSensitive));
    let beside = conclude(4, &inputs(ready(4), vec![constant(), total(Kind::QueueDepth, 5, 5)]));
    assert_eq!((beside.to, beside.active), (1, Active::ValidMetricFound));
}

#[test]
fn a_fallback_is_a_proposal_like_the_others() {
    let fallback = |replicas| metric(Kind::Custom, 5, Measurement::Fallback { fault: Fault::Slow, replicas });
    let alone = conclude(4, &inputs(ready(4), vec![fallback(2)]));
    assert_eq!((alone.to, alone.active), (2, Active::MetricMissing(Fault::Slow)));
    let beside = conclude(4, &inputs(ready(4), vec![fallback(2), total(Kind::QueueDepth, 5, 45)]));
    assert_eq!(beside.to, 9, "another metric asks for more");
    assert_eq!(to(4, ready(4), fallback(900)), 100, "within the bounds");
}

#[test]
fn a_fallback_lifts_a_target_from_zero() {
    let fallback = metric(Kind::Custom, 5, Measurement::Fallback { fault: Fault::Slow, replicas: 2 });
    let mut inputs = inputs(ready(0), vec![fallback]);
    inputs.bounds = Bounds::new(0, 10).unwrap();
    assert_eq!(conclude(0, &inputs).to, 2);
}

#[test]
fn a_target_that_may_sleep_does_so_up_to_its_activation_and_has_one_replica_above() {
    let mut idle = total(Kind::QueueDepth, 5, 3);
    idle.activation = Milli::units(3);
    let mut inputs = inputs(ready(1), vec![idle]);
    inputs.bounds = Bounds::new(0, 10).unwrap();
    assert_eq!(conclude(1, &inputs).to, 0);
    assert_eq!(conclude(0, &inputs).to, 0);
    inputs.metrics = vec![total(Kind::QueueDepth, 5, 1)];
    assert_eq!(conclude(0, &inputs).to, 1);
    assert_eq!(conclude(1, &inputs).to, 1);
}

#[test]
fn pods_that_are_coming_count_as_supply() {
    let supply = Supply { ready: 3, coming: 2, ..Supply::default() };
    assert_eq!(to(5, supply, total(Kind::QueueDepth, 5, 25)), 5);
    assert_eq!(to(5, supply, total(Kind::TokensPerMinute, 5, 40)), 8);
}

#[test]
fn nothing_is_removed_while_pods_come_that_the_demand_may_need() {
    let supply = Supply { ready: 3, coming: 2, ..Supply::default() };
    let waits = conclude(5, &inputs(supply, vec![total(Kind::QueueDepth, 5, 15)]));
    assert_eq!((waits.to, waits.able), (5, Able::WaitingForPods));
    assert_eq!(to(5, supply, total(Kind::QueueDepth, 5, 10)), 2, "fewer than are Ready are needed");
}

#[test]
fn what_is_needed_must_be_below_the_ready_pods_for_the_whole_window() {
    let supply = Supply { ready: 3, coming: 2, ..Supply::default() };
    let mut inputs = inputs(supply, vec![total(Kind::QueueDepth, 5, 5)]);
    inputs.recommended.highest = Some(3);
    assert_eq!(conclude(5, &inputs).to, 5);
    inputs.recommended.highest = Some(2);
    assert_eq!(conclude(5, &inputs).to, 2);
}

#[test]
fn stalled_pods_block_neither_direction_and_are_replaced_while_a_node_may_be_the_cause() {
    let stalled = Supply { ready: 3, stalled: 2, ..Supply::default() };
    assert_eq!(to(5, stalled, total(Kind::QueueDepth, 5, 25)), 7);
    assert_eq!(to(5, stalled, total(Kind::QueueDepth, 5, 5)), 2);
    let unschedulable = Supply { ready: 3, unschedulable: 2, ..Supply::default() };
    assert_eq!(to(5, unschedulable, total(Kind::QueueDepth, 5, 25)), 5);
    assert_eq!(to(5, unschedulable, total(Kind::QueueDepth, 5, 30)), 6);
    assert_eq!(to(5, unschedulable, total(Kind::QueueDepth, 5, 5)), 1);
}

#[test]
fn pods_that_do_not_start_are_not_kept_where_those_that_serve_are_enough() {
    for lost in [
        Supply { crash_looping: 6, ..ready(4) },
        Supply { cannot_start: 6, ..ready(4) },
        Supply { unschedulable: 6, ..ready(4) },
        Supply { stalled: 6, ..ready(4) },
    ] {
        for demand in [16, 20, 22] {
            assert_eq!(to(10, lost, total(Kind::QueueDepth, 5, demand)), 4, "{demand}: {lost:?}");
        }
        assert_eq!(to(10, lost, of_pods(Kind::GpuUtil, 50, 200, 4, 0)), 4, "{lost:?}");
        assert_eq!(to(10, lost, total(Kind::Latency, 500, 500)), 4, "{lost:?}");
        // With one more at its target it would be above.
        assert_eq!(to(10, lost, of_pods(Kind::GpuUtil, 50, 190, 3, 1)), 10, "{lost:?}");
    }
    let none = Supply { stalled: 3, ..Supply::default() };
    assert_eq!(to(3, none, of_pods(Kind::GpuUtil, 50, 0, 0, 3)), 3, "nothing is known");
}

#[test]
fn a_stateful_set_keeps_what_it_would_remove_after_pods_that_serve() {
    let lowest_broken = Supply { crash_looping: 1, removed_late: 1, ..ready(3) };
    assert_eq!(to(4, lowest_broken, total(Kind::QueueDepth, 5, 10)), 3, "two of them serve");
    assert_eq!(to(4, lowest_broken, total(Kind::QueueDepth, 5, 15)), 4);
    assert_eq!(to(4, Supply { removed_late: 0, ..lowest_broken }, total(Kind::QueueDepth, 5, 10)), 2);
    assert_eq!(to(4, lowest_broken, total(Kind::QueueDepth, 5, 0)), 1, "nothing is needed");
}

#[test]
fn bounds_that_decide_alone_claim_no_metric() {
    let missing = || vec![metric(Kind::QueueDepth, 5, Measurement::Invalid(Fault::Empty))];
    let (mut over, mut under) = (inputs(ready(8), missing()), inputs(ready(8), missing()));
    over.bounds = Bounds::new(1, 5).unwrap();
    under.bounds = Bounds::new(9, 10).unwrap();
    for (inputs, to) in [(over, 5), (under, 9)] {
        let conclusion = conclude(8, &inputs);
        assert_eq!((conclusion.to, conclusion.active), (to, Active::MetricMissing(Fault::Empty)));
    }
}

#[test]
fn replacements_of_stalled_pods_are_at_most_as_many_as_are_ready_and_as_are_needed() {
    let none = Supply { stalled: 50, ..Supply::default() };
    assert_eq!(to(50, none, total(Kind::QueueDepth, 5, 300)), 61, "one of them shows whether it helps");
    let few = Supply { ready: 4, stalled: 50, ..Supply::default() };
    assert_eq!(to(54, few, total(Kind::QueueDepth, 5, 300)), 64);
    let many = Supply { ready: 1, stalled: 20, ..Supply::default() };
    assert_eq!(to(21, many, total(Kind::QueueDepth, 5, 10)), 21);
}

#[test]
fn without_demand_pods_that_do_not_start_are_not_kept() {
    let stalled = Supply { unschedulable: 5, ..Supply::default() };
    assert_eq!(to(5, stalled, total(Kind::QueueDepth, 5, 0)), 1);
}

#[test]
fn what_crashes_is_not_multiplied_and_a_single_broken_pod_holds_nothing() {
    let rollout = Supply { ready: 2, crash_looping: 2, ..Supply::default() };
    let holds = conclude(4, &inputs(rollout, vec![total(Kind::QueueDepth, 5, 100)]));
    assert_eq!((holds.to, holds.able), (4, Able::CrashLoop));
    let one = Supply { ready: 9, crash_looping: 1, ..Supply::default() };
    assert_eq!(to(10, one, total(Kind::QueueDepth, 5, 100)), 20);
    assert_eq!(to(4, rollout, total(Kind::QueueDepth, 5, 5)), 1, "the other direction is free");
}

#[test]
fn what_cannot_start_on_any_node_is_neither_replaced_nor_multiplied() {
    let rollout = Supply { ready: 2, crash_looping: 1, cannot_start: 1, ..Supply::default() };
    let holds = conclude(4, &inputs(rollout, vec![total(Kind::QueueDepth, 5, 100)]));
    assert_eq!((holds.to, holds.able), (4, Able::CannotStart));
    let some = Supply { ready: 4, cannot_start: 2, ..Supply::default() };
    assert_eq!(to(6, some, total(Kind::QueueDepth, 5, 30)), 6);
}

#[test]
fn utilization_takes_one_step_while_pods_are_coming() {
    let full = || of_pods(Kind::GpuUtil, 30, 300, 3, 0);
    assert_eq!(to(3, ready(3), full()), 10);
    let coming = Supply { ready: 3, coming: 2, ..Supply::default() };
    assert_eq!(to(5, coming, full()), 5);
    let stalled = Supply { ready: 3, unschedulable: 2, ..Supply::default() };
    assert_eq!(to(5, stalled, full()), 10, "stalled pods do not hold it");
}

#[test]
fn latency_is_the_ready_pods_times_the_ratio_and_takes_one_step_per_cold_start() {
    let slow = || total(Kind::Latency, 500, 750);
    assert_eq!(to(4, ready(4), slow()), 6);
    let coming = Supply { ready: 4, coming: 2, ..Supply::default() };
    assert_eq!(to(6, coming, slow()), 6);
    let mut settling = slow();
    settling.settling = 1;
    assert_eq!(to(6, ready(6), settling), 6, "the samples are from before the step");
    assert_eq!(to(6, ready(6), slow()), 9);
    assert_eq!(to(6, ready(6), total(Kind::Latency, 500, 250)), 3);
}

#[test]
fn pods_without_a_latency_are_at_their_target_before_a_scale_down_and_count_for_no_scale_up() {
    let of = |value: i64, measured: u32, missing: u32| {
        of_pods(Kind::Latency, 500, value * i64::from(measured), measured, missing)
    };
    assert_eq!(to(4, ready(4), of(100, 4, 0)), 1);
    assert_eq!(to(4, ready(4), of(100, 2, 2)), 3, "300 ms of 4 pods");
    assert_eq!(to(4, ready(4), of(100, 1, 9)), 4);
    assert_eq!(to(4, ready(4), of(750, 2, 2)), 6);
    assert_eq!(to(4, ready(4), of(0, 4, 0)), 1, "an idle target, down to the minimum");
}

#[test]
fn surge_pods_of_a_rollout_are_no_replicas() {
    assert_eq!(to(4, ready(6), total(Kind::Latency, 500, 750)), 6);
    assert_eq!(to(4, ready(6), total(Kind::QueueDepth, 5, 30)), 6);
}

#[test]
fn latency_above_its_target_never_removes_replicas() {
    let stalled = Supply { ready: 3, unschedulable: 3, ..Supply::default() };
    assert_eq!(to(6, stalled, total(Kind::Latency, 500, 600)), 6);
}

#[test]
fn without_a_ready_pod_a_latency_is_of_the_past() {
    assert_eq!(to(4, Supply { stalled: 4, ..Supply::default() }, total(Kind::Latency, 500, 9_000)), 4);
}

#[test]
fn pods_without_a_sample_are_idle_before_a_scale_up_and_at_their_target_before_a_scale_down() {
    let measured = |sum| of_pods(Kind::GpuUtil, 50, sum, 2, 2);
    assert_eq!(to(4, ready(4), measured(240)), 5);
    assert_eq!(to(4, ready(4), measured(150)), 4, "3 without them, 5 with them");
    assert_eq!(to(4, ready(4), measured(20)), 3);
}

#[test]
fn a_queue_that_grows_during_a_cold_start_is_followed_up_to_twice_the_settled_pods() {
    let coming = Supply { ready: 6, coming: 3, ..Supply::default() };
    assert_eq!(to(9, coming, total(Kind::QueueDepth, 5, 450)), 12);
    let mut settling = total(Kind::QueueDepth, 5, 450);
    settling.settling = 2;
    assert_eq!(to(7, ready(7), settling), 10, "two are Ready, and their effect is not visible yet");
    assert_eq!(to(3, ready(3), total(Kind::QueueDepth, 5, 450)), 90, "nothing is coming yet");
    let first = Supply { coming: 1, ..Supply::default() };
    assert_eq!(to(1, first, total(Kind::QueueDepth, 5, 450)), 8);
    let more = Supply { ready: 1, coming: 19, ..Supply::default() };
    assert_eq!(to(20, more, total(Kind::QueueDepth, 5, 450)), 20, "it removes none");
}

#[test]
fn busy_workers_are_needed_beside_those_for_the_waiting_tasks() {
    let busy = Supply { ready: 10, busy: 8, ..Supply::default() };
    assert_eq!(to(10, busy, total(Kind::TasksAndBusyWorkers, 5, 12)), 11);
    assert_eq!(to(10, busy, total(Kind::TasksAndBusyWorkers, 5, 0)), 8);
    assert_eq!(to(10, busy, total(Kind::TasksOnly, 5, 12)), 3);
}

#[test]
fn a_worker_that_reported_nothing_is_idle_before_a_scale_up_and_busy_before_a_scale_down() {
    let unreported = Supply { ready: 10, busy: 6, unreported: 4, ..Supply::default() };
    assert_eq!(to(10, unreported, total(Kind::TasksAndBusyWorkers, 5, 0)), 10);
    assert_eq!(to(10, unreported, total(Kind::TasksAndBusyWorkers, 5, 25)), 11);
}

#[test]
fn tokens_per_minute_are_a_second_limit_of_a_pool() {
    let busy = Supply { ready: 10, busy: 10, ..Supply::default() };
    let metrics = vec![total(Kind::TasksAndBusyWorkers, 5, 5), total(Kind::TokensPerMinute, 1_000, 14_500)];
    assert_eq!(conclude(10, &inputs(busy, metrics)).to, 15);
}

#[test]
fn a_warm_buffer_is_added_to_the_demand_unless_there_is_none() {
    let mut inputs = inputs(ready(4), vec![total(Kind::QueueDepth, 5, 40)]);
    inputs.extras.warm_buffer = 2;
    assert_eq!(conclude(4, &inputs).to, 10);
    inputs.bounds = Bounds::new(0, 100).unwrap();
    inputs.metrics = vec![total(Kind::QueueDepth, 5, 0)];
    assert_eq!(conclude(4, &inputs).to, 0);
}

#[test]
fn the_reason_names_what_limited_the_result() {
    let mut inputs = inputs(ready(4), vec![total(Kind::QueueDepth, 5, 40)]);
    assert_eq!(conclude(4, &inputs).reason(), "DesiredWithinRange");
    inputs.allowed.highest = 6;
    assert_eq!(conclude(4, &inputs).reason(), "ScaleUpLimit");
    inputs.recommended.lowest = Some(5);
    assert_eq!(conclude(4, &inputs).reason(), "ScaleUpStabilized");
    inputs.metrics = vec![metric(Kind::QueueDepth, 5, Measurement::Invalid(Fault::Stale))];
    assert_eq!(conclude(4, &inputs).reason(), "MetricStale");
}

#[test]
fn with_hpa_arithmetic_a_total_of_values_that_do_not_add_up_is_taken_times_the_ready_pods() {
    let mut inputs = inputs(ready(3), vec![total(Kind::Latency, 100, 200)]);
    inputs.extras.arithmetic = Arithmetic::Hpa;
    assert_eq!(conclude(4, &inputs).to, 6);
}
