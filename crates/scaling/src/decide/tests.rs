//! Decisions over time, from observations.

use super::*;
use crate::{
    behavior::{Behavior, Change, Rate, Select},
    decide::{
        conclusion::{Able, recompute},
        proposal::Rule,
    },
    flow::Flow,
    policy::{Bounds, Extras, Kind, MissingMetrics, TargetValue},
    reading::PodSample,
    target::{Pod, PodState, Work},
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_268_800 + seconds).unwrap()
}

fn policy(kind: Kind, target: i64) -> Policy {
    Policy {
        bounds: Bounds::new(1, 20).unwrap(),
        metrics: vec![Metric::new("first", kind, TargetValue::units(target).unwrap())],
        behavior: Behavior::default(),
        fallback: None,
        extras: Extras::all(),
    }
}

/// Pods that have been Ready for an hour, and pods that were created at `created` and start.
fn target(ready: u32, starting: u32, created: i64) -> Target {
    let pod = |index: u32| Pod {
        uid: index.to_string(),
        created: if index < ready { at(-3_700) } else { at(created) },
        began: Some(if index < ready { at(-3_700) } else { at(created) }),
        ordinal: None,
        state: if index < ready {
            PodState::Ready { since: at(-3_600) }
        } else {
            PodState::Starting { since: at(created) }
        },
        work: Work::Unknown,
    };
    let replicas = i32::try_from(ready + starting).unwrap();
    Target {
        replicas,
        status_replicas: replicas,
        pods: (0..ready + starting).map(pod).collect(),
        cold_start: None,
        flows: Vec::new(),
    }
}

fn total(value: f64, seconds: i64) -> Vec<Reading> {
    vec![Reading::total(value, at(seconds))]
}

#[test]
fn a_metric_that_is_missing_holds_the_replicas_and_names_the_fault() {
    let policy = policy(Kind::QueueDepth, 5);
    let faults = [
        (total(f64::NAN, 0), Active::MetricMissing(Fault::NotANumber)),
        (total(f64::INFINITY, 0), Active::MetricMissing(Fault::Infinite)),
        (total(0.0, -61), Active::MetricStale),
        (vec![], Active::MetricMissing(Fault::Empty)),
        (vec![Reading::Missing(Fault::Slow)], Active::MetricMissing(Fault::Slow)),
    ];
    for (readings, active) in faults {
        let decision = decide(&policy, &target(4, 0, 0), &readings, &History::default(), at(0));
        assert_eq!(decision.outcome, Outcome::Hold(active));
        assert_eq!(decision.record.to, 4);
    }
}

#[test]
fn a_first_decision_removes_nothing_before_the_window_is_over() {
    let policy = policy(Kind::QueueDepth, 5);
    let mut history = History::default();
    for seconds in (0..=300).step_by(15) {
        let decision = decide(&policy, &target(4, 0, 0), &total(0.0, seconds), &history, at(seconds));
        let expected = if seconds < 300 { Outcome::Keep } else { Outcome::Scale { from: 4, to: 1 } };
        assert_eq!(decision.outcome, expected, "after {seconds} s");
        history = decision.history;
    }
}

#[test]
fn a_restart_in_the_middle_of_a_window_changes_no_decision() {
    let policy = policy(Kind::QueueDepth, 5);
    let (mut kept, mut restarted) = (History::default(), History::default());
    for seconds in (0..900).step_by(15) {
        let value = if seconds % 200 < 100 { 10.0 } else { 35.0 };
        let readings = total(value, seconds);
        let first = decide(&policy, &target(4, 0, 0), &readings, &kept, at(seconds));
        let second = decide(&policy, &target(4, 0, 0), &readings, &restarted, at(seconds));
        assert_eq!(first, second);
        kept = first.written(&policy);
        restarted = serde_json::from_str(&serde_json::to_string(&second.written(&policy)).unwrap()).unwrap();
    }
}

#[test]
fn a_change_that_was_written_uses_up_the_rate() {
    let policy = policy(Kind::QueueDepth, 5);
    let first = decide(&policy, &target(4, 0, 0), &total(100.0, 0), &History::default(), at(0));
    assert_eq!(first.outcome, Outcome::Scale { from: 4, to: 8 });
    let next =
        |history: &History| decide(&policy, &target(8, 0, 0), &total(100.0, 5), history, at(5)).record.to;
    assert_eq!(next(&first.history), 16, "it was not written");
    assert_eq!(next(&first.written(&policy)), 8);
}

#[test]
fn one_sample_removes_replicas_once() {
    let mut policy = policy(Kind::Latency, 1_000);
    policy.behavior.down.window = crate::behavior::Window::NONE;
    let slow = |seconds: i64| total(500.0, seconds);
    let first = decide(&policy, &target(10, 0, 0), &slow(0), &History::default(), at(0));
    assert_eq!(first.outcome, Outcome::Scale { from: 10, to: 5 });
    let mut history = first.written(&policy);
    let window = i64::try_from(policy.metrics[0].window.as_secs()).unwrap();
    for (now, sampled) in [(1, 0), (2, 1), (window - 1, window - 1)] {
        let again = decide(&policy, &target(5, 0, 0), &slow(sampled), &history, at(now));
        assert_eq!(again.outcome, Outcome::Keep, "the sample of {sampled} is of 10 pods");
        assert_eq!(recompute(&again.record), again.record.to);
        history = again.history;
    }
    let later = decide(&policy, &target(5, 0, 0), &slow(window), &history, at(window));
    assert_eq!(later.outcome, Outcome::Scale { from: 5, to: 3 });
    policy.extras = Extras::none();
    let as_hpa = decide(&policy, &target(5, 0, 0), &slow(0), &history, at(1));
    assert!(matches!(as_hpa.outcome, Outcome::Scale { .. }), "HPA has no such rule");
}

#[test]
fn pods_that_are_left_show_their_own_load_before_more_are_removed() {
    let mut policy = policy(Kind::QueueDepth, 5);
    policy.behavior.down.window = crate::behavior::Window::NONE;
    let of_pods = |count: u32, seconds: i64| {
        let sample =
            |index: u32| PodSample { uid: index.to_string(), value: Milli::units(2), at: at(seconds) };
        vec![Reading::Pods((0..count).map(sample).collect())]
    };
    let first = decide(&policy, &target(10, 0, 0), &of_pods(10, 0), &History::default(), at(0));
    assert_eq!(first.outcome, Outcome::Scale { from: 10, to: 4 });
    let history = first.written(&policy);
    let window = i64::try_from(policy.metrics[0].window.as_secs()).unwrap();
    let next =
        |seconds| decide(&policy, &target(4, 0, 0), &of_pods(4, seconds), &history, at(seconds)).outcome;
    assert_eq!([next(1), next(window - 1)], [Outcome::Keep; 2]);
    assert_eq!(next(window), Outcome::Scale { from: 4, to: 2 });
    // A total is none of pods.
    let of_total = decide(&policy, &target(4, 0, 0), &total(8.0, 1), &history, at(1)).outcome;
    assert_eq!(of_total, Outcome::Scale { from: 4, to: 2 });
}

#[test]
fn a_fallback_replaces_a_metric_that_has_been_missing_for_its_time() {
    let mut policy = policy(Kind::QueueDepth, 5);
    policy.fallback = Some(Fallback { after: Duration::from_secs(120), replicas: 6 });
    let missing = [Reading::Missing(Fault::Unreachable)];
    let measured = decide(&policy, &target(4, 0, 0), &total(20.0, 0), &History::default(), at(0)).history;
    let early = decide(&policy, &target(4, 0, 0), &missing, &measured, at(119));
    assert_eq!(early.outcome, Outcome::Hold(Active::MetricMissing(Fault::Unreachable)));
    let late = decide(&policy, &target(4, 0, 0), &missing, &early.history, at(120));
    assert_eq!(late.outcome, Outcome::Scale { from: 4, to: 6 });
    assert_eq!(late.record.reason, "MetricMissing");
}

#[test]
fn a_target_asleep_is_not_woken_by_the_fallback_of_a_metric_that_only_pods_have() {
    let mut policy = policy(Kind::GpuUtil, 70);
    policy.bounds = Bounds::new(0, 20).unwrap();
    policy.fallback = Some(Fallback { after: Duration::from_secs(120), replicas: 6 });
    let decided = |fault, replicas, history: &History, seconds| {
        decide(&policy, &target(replicas, 0, 0), &[Reading::Missing(fault)], history, at(seconds))
    };
    let mut history = History::default();
    for seconds in (0..=600).step_by(15) {
        let asleep = decided(Fault::NoSettledPods, 0, &history, seconds);
        assert_eq!(asleep.record.to, 0, "after {seconds} s");
        history = asleep.history;
    }
    // Its first pod has the whole time to become Ready.
    assert_eq!(decided(Fault::NoSettledPods, 1, &history, 719).record.to, 1);
    assert_eq!(decided(Fault::NoSettledPods, 1, &history, 720).record.to, 5);
    assert_eq!(decided(Fault::Unreachable, 0, &history, 720).record.to, 4, "that is a fault");
}

#[test]
fn a_target_asleep_whose_query_has_no_series_does_not_flap_with_its_fallback() {
    let mut policy = policy(Kind::Custom, 5);
    policy.bounds = Bounds::new(0, 20).unwrap();
    policy.behavior.down.window = policy.behavior.up.window;
    policy.fallback = Some(Fallback { after: Duration::from_secs(120), replicas: 2 });
    let (mut replicas, mut history, mut changes) = (1_u32, History::default(), Vec::new());
    for seconds in (0..7_200).step_by(15) {
        // Of its own pods, which have no load: without one there is no series.
        let reading = match replicas {
            0 => Reading::Missing(Fault::Empty),
            _ => Reading::total(0.0, at(seconds)),
        };
        let decision = decide(&policy, &target(replicas, 0, 0), &[reading], &history, at(seconds));
        history = match decision.outcome {
            Outcome::Scale { to, .. } => {
                changes.push((seconds, to));
                replicas = u32::try_from(to).unwrap();
                decision.written(&policy)
            }
            Outcome::Keep | Outcome::Hold(_) => decision.history,
        };
    }
    assert_eq!(changes, [(0, 0)]);
}

#[test]
fn a_metric_that_was_never_there_gets_its_fallback_after_the_time_since_the_first_decision() {
    let mut policy = policy(Kind::QueueDepth, 5);
    policy.fallback = Some(Fallback { after: Duration::from_secs(120), replicas: 6 });
    let first = decide(&policy, &target(4, 0, 0), &[], &History::default(), at(0));
    assert_eq!(decide(&policy, &target(4, 0, 0), &[], &first.history, at(119)).record.to, 4);
    assert_eq!(decide(&policy, &target(4, 0, 0), &[], &first.history, at(120)).record.to, 6);
}

#[test]
fn a_target_without_replicas_whose_rates_are_percentages_gets_its_first_one() {
    let woken = |extras, select| {
        let mut policy = policy(Kind::QueueDepth, 5);
        policy.bounds = Bounds::new(0, 20).unwrap();
        policy.extras = extras;
        policy.behavior.up.rates = vec![Rate::new(Change::Percent(100), Duration::from_secs(15)).unwrap()];
        policy.behavior.up.select = select;
        decide(&policy, &target(0, 0, 0), &total(50.0, 0), &History::default(), at(0)).record.to
    };
    assert_eq!((woken(Extras::all(), Select::Max), woken(Extras::all(), Select::Min)), (1, 1));
    assert_eq!(woken(Extras::all(), Select::Disabled), 0);
    assert_eq!(woken(Extras::none(), Select::Max), 0, "as in HPA");
}

#[test]
fn pods_that_start_are_supply_until_a_minute_after_twice_the_usual_cold_start() {
    let policy = policy(Kind::GpuUtil, 30);
    let mut history = History::default();
    let learned = |index: u32| Pod {
        uid: format!("learned-{index}"),
        created: at(-200),
        began: Some(at(-200)),
        ordinal: None,
        state: PodState::Ready { since: at(-100) },
        work: Work::Unknown,
    };
    history.cold_starts.learn(&(0..4).map(learned).collect::<Vec<_>>(), at(0));
    let decided =
        |seconds| decide(&policy, &target(3, 2, 0), &total(300.0, seconds), &history, at(seconds)).record;
    assert_eq!(decided(259).to, 5);
    assert_eq!(decided(259).inputs.supply.coming, 2);
    assert_eq!(decided(260).to, 10);
    assert_eq!(decided(260).inputs.supply.stalled, 2);
}

#[test]
fn an_api_server_whose_clock_is_a_minute_behind_makes_no_pod_late() {
    let policy = policy(Kind::QueueDepth, 5);
    let mut history = History::default();
    let learned = Pod {
        uid: "learned".to_owned(),
        created: at(-200),
        began: Some(at(-200)),
        ordinal: None,
        state: PodState::Ready { since: at(-180) },
        work: Work::Unknown,
    };
    history.cold_starts.learn(&[learned], at(0));
    let decision = decide(&policy, &target(3, 3, -60), &total(30.0, 0), &history, at(0));
    assert_eq!((decision.supply().coming, decision.outcome), (3, Outcome::Keep));
}

/// The scenario of the autoscalers that multiply pods that load: 2, 4, 8, 16.
#[test]
fn a_constant_overload_leads_to_one_step_per_cold_start() {
    let policy = policy(Kind::Latency, 500);
    let mut history = History::default();
    let (mut ready, mut starting, mut writes) = (2, 0, Vec::new());
    for seconds in (0..180).step_by(15) {
        let target = target(ready, starting, 0);
        let decision = decide(&policy, &target, &total(1_000.0, seconds), &history, at(seconds));
        if let Outcome::Scale { to, .. } = decision.outcome {
            writes.push((seconds, to));
            starting = u32::try_from(to).unwrap() - ready;
        }
        history = decision.written(&policy);
    }
    assert_eq!(writes, [(0, 4)]);
    (ready, starting) = (4, 0);
    let next = decide(&policy, &target(ready, starting, 0), &total(1_000.0, 180), &history, at(180));
    assert_eq!(next.outcome, Outcome::Scale { from: 4, to: 8 });
}

#[test]
fn gpu_memory_that_stays_the_same_after_pods_were_added_stops_scaling_until_it_varies() {
    let mut policy = policy(Kind::GpuMemory, 60);
    policy.bounds = Bounds::new(1, 1_000).unwrap();
    let mut history = History::default();
    let mut replicas: u32 = 2;
    let mut decided = |value: f64, seconds: i64, replicas: u32| {
        let readings = total(value * f64::from(replicas), seconds);
        let decision = decide(&policy, &target(replicas, 0, 0), &readings, &history, at(seconds));
        history = decision.clone().written(&policy);
        decision
    };
    for seconds in (0..600).step_by(60) {
        replicas = u32::try_from(decided(90.0, seconds, replicas).record.to).unwrap();
    }
    let constant = decided(90.0, 600, replicas);
    assert_eq!(constant.outcome, Outcome::Hold(Active::MetricNotLoadSensitive));
    let varied = decided(80.0, 660, replicas);
    assert_eq!(varied.conclusion.active, Active::ValidMetricFound);
}

#[test]
fn pods_that_do_not_start_are_counted_for_a_condition() {
    let decision = decide(
        &policy(Kind::QueueDepth, 5),
        &target(3, 2, -601),
        &total(15.0, 0),
        &History::default(),
        at(0),
    );
    assert_eq!(decision.supply().not_starting(), 2);
}

#[test]
fn a_scale_down_waits_for_pods_that_start() {
    let mut policy = policy(Kind::QueueDepth, 5);
    policy.behavior = Behavior::immediate();
    let decision = decide(&policy, &target(3, 2, 0), &total(15.0, 0), &History::default(), at(0));
    assert_eq!((decision.outcome, decision.conclusion.able), (Outcome::Keep, Able::WaitingForPods));
}

#[test]
fn samples_of_a_pod_that_has_just_become_ready_are_not_used() {
    let policy = policy(Kind::GpuUtil, 50);
    let mut target = target(2, 0, 0);
    target.pods[1].state = PodState::Ready { since: at(80) };
    let sample =
        |uid: &str, value| PodSample { uid: uid.to_owned(), value: Milli::units(value), at: at(100) };
    let readings = [Reading::Pods(vec![sample("0", 50), sample("1", 100)])];
    assert_eq!(decide(&policy, &target, &readings, &History::default(), at(100)).record.to, 2);
    assert_eq!(decide(&policy, &target, &readings, &History::default(), at(109)).record.to, 2);
    let later = [Reading::Pods(vec![
        PodSample { at: at(110), ..sample("0", 50) },
        PodSample { at: at(110), ..sample("1", 100) },
    ])];
    assert_eq!(decide(&policy, &target, &later, &History::default(), at(110)).record.to, 3);
}

#[test]
fn a_record_with_16_metrics_fits_into_a_status_and_gives_the_same_replicas() {
    let mut policy = policy(Kind::TasksAndBusyWorkers, i64::MAX / 1_000);
    let metric = policy.metrics[0].clone();
    policy.metrics =
        (0..16).map(|index| Metric { name: format!("metric-{index}").into(), ..metric.clone() }).collect();
    let readings = vec![Reading::Total { value: Milli::MAX, at: at(0) }; 16];
    let record = decide(&policy, &target(3, 2, 0), &readings, &History::default(), at(0)).record;
    assert!(serde_json::to_string(&record.inputs).unwrap().len() <= 4_096);
    assert_eq!(recompute(&record), record.to);
}

#[test]
fn after_a_metric_was_missing_for_long_a_scale_down_waits_for_a_whole_window() {
    let mut policy = policy(Kind::QueueDepth, 5);
    let after_an_outage = |policy: &Policy| {
        let before = decide(policy, &target(4, 0, 0), &total(20.0, 0), &History::default(), at(0)).history;
        let missing = decide(policy, &target(4, 0, 0), &[], &before, at(900)).history;
        decide(policy, &target(4, 0, 0), &total(0.0, 915), &missing, at(915)).record.to
    };
    assert_eq!(after_an_outage(&policy), 4);
    policy.extras.missing = MissingMetrics::AsInHpa;
    assert_eq!(after_an_outage(&policy), 1);
}

#[test]
fn after_a_pause_of_deciding_a_scale_down_waits_for_a_whole_window() {
    let mut policy = policy(Kind::QueueDepth, 5);
    let first_removal = |policy: &Policy| {
        let mut history =
            decide(policy, &target(10, 0, 0), &total(50.0, 0), &History::default(), at(0)).history;
        (615..2_000).step_by(15).find(|seconds| {
            let decision = decide(policy, &target(10, 0, 0), &total(10.0, *seconds), &history, at(*seconds));
            history = decision.history;
            decision.outcome != Outcome::Keep
        })
    };
    assert_eq!(first_removal(&policy), Some(915));
    policy.extras.missing = MissingMetrics::AsInHpa;
    assert_eq!(first_removal(&policy), Some(615));
}

#[test]
fn a_target_at_rest_has_a_history_that_differs_only_in_time() {
    let policy = policy(Kind::QueueDepth, 5);
    let decided = |history: &History, value: f64, seconds| {
        decide(&policy, &target(4, 0, 0), &total(value, seconds), history, at(seconds)).history
    };
    let first = decided(&History::default(), 20.0, 0);
    assert!(decided(&first, 19.0, 15).differs_only_in_time(&first));
    assert!(!decided(&first, 5.0, 15).differs_only_in_time(&first));
}

#[test]
fn what_leaves_the_history_by_its_age_alone_is_no_news() {
    let policy = policy(Kind::QueueDepth, 5);
    let decided = |history: &History, value: f64, seconds| {
        decide(&policy, &target(4, 0, 0), &total(value, seconds), history, at(seconds)).history
    };
    let scaled = decided(&History::default(), 20.0, 0).scaled(3, 4, &policy.behavior, at(0));
    let written = decided(&scaled, 15.0, 15);
    assert_eq!((written.recommendations.len(), written.scale_events.len()), (2, 1));
    let later = (30..=600).step_by(15).fold(written.clone(), |known, seconds| decided(&known, 15.0, seconds));
    assert_eq!((later.recommendations.len(), later.scale_events.len()), (1, 0));
    assert!(later.differs_only_in_time(&written));

    assert!(!decided(&scaled, 20.0, 15).scaled(4, 5, &policy.behavior, at(15)).differs_only_in_time(&scaled));
    assert!(!decided(&later, 10.0, 615).differs_only_in_time(&written));
}

#[test]
fn a_process_that_resumes_an_old_history_waits_as_if_it_had_been_written_just_now() {
    let mut policy = policy(Kind::QueueDepth, 5);
    policy.extras.missing = MissingMetrics::AsInHpa;
    let written = decide(&policy, &target(4, 0, 0), &total(20.0, 0), &History::default(), at(0)).history;
    let decided = |history: &History| {
        decide(&policy, &target(4, 0, 0), &total(0.0, 3_600), history, at(3_600)).record.to
    };
    assert_eq!(decided(&written), 1);
    assert_eq!(decided(&written.resumed(at(3_590))), 4);
}

/// Requests that take 5 s each; a replica works on 8 of them at a time.
fn flow(rate: i64, waiting: i64, in_hand: i64) -> Option<Flow> {
    Some(Flow {
        rate: Milli::units(rate),
        recent_rate: Milli::units(rate),
        takes: Milli::units(5),
        at_a_time: Milli::units(8),
        dispersion: Milli::units(1),
        waiting: Milli::units(waiting),
        running: Milli::units(in_hand - waiting),
        is_full: true,
        tokens: Milli::units(300),
        ..Flow::default()
    })
}

#[test]
fn what_arrives_asks_for_replicas_before_a_queue_does() {
    let policy = policy(Kind::QueueDepth, 5);
    let with = |flow| Target { flows: vec![flow], ..target(4, 0, 0) };
    let decided = |target: &Target| decide(&policy, target, &total(20.0, 0), &History::default(), at(0));
    assert_eq!(decided(&with(None)).record.raw, 4, "20 in hand, 5 per replica");
    let by_arrivals = decided(&with(flow(12, 0, 20)));
    assert_eq!(
        by_arrivals.record.raw, 15,
        "60 will be in hand, and 4 replicas do not finish as many as arrive"
    );
    assert_eq!(recompute(&by_arrivals.record), by_arrivals.record.to);
    let ignored =
        Policy { extras: Extras { arrivals: Arrivals::Ignored, ..Extras::all() }, ..policy.clone() };
    let decision = decide(&ignored, &with(flow(12, 0, 20)), &total(20.0, 0), &History::default(), at(0));
    assert_eq!((decision.record.raw, decision.record.inputs.metrics[0].flow), (4, None));
    let other =
        Policy { metrics: vec![Metric { kind: Kind::Custom, ..policy.metrics[0].clone() }], ..policy };
    let decision = decide(&other, &with(flow(12, 0, 20)), &total(20.0, 0), &History::default(), at(0));
    assert_eq!(decision.record.raw, 4, "no other metric counts requests");
}

#[test]
fn a_latency_and_a_rate_of_tokens_follow_the_same_arrivals() {
    let with = |flow| Target { flows: vec![flow], ..target(4, 0, 0) };
    let raw = |kind, per_replica: i64, value: f64, flow: Option<Flow>| {
        decide(&policy(kind, per_replica), &with(flow), &total(value, 0), &History::default(), at(0))
            .record
            .raw
    };
    // 60 will be in hand. A replica that works on 8 for 5 s ends 16 within 10 s.
    let burst = flow(12, 40, 72);
    let waits = Flow { in_hand_lately: Milli::units(18), ..burst.unwrap() };
    let by_queue = raw(Kind::QueueDepth, 16, 72.0, Some(waits));
    assert_eq!(
        by_queue, 17,
        "60 run and 208 will wait when pods are Ready, drained within 15 s: (60 + 69) / 8"
    );
    assert_eq!(raw(Kind::Latency, 10_000, 60_000.0, Some(waits)), by_queue, "the queue explains the latency");
    let calm = |in_hand| flow(2, 0, in_hand).unwrap();
    assert_eq!(raw(Kind::Latency, 10_000, 20_000.0, Some(calm(10))), 8, "none waits: replicas are slow");
    assert_eq!(raw(Kind::Latency, 10_000, 1_000.0, Some(calm(10))), 2, "two arrive per second");
    assert_eq!(raw(Kind::Latency, 10_000, 9_500.0, Some(calm(10))), 4, "fewer would be slower");
    let unknown = Flow { is_full: false, ..waits };
    assert_eq!(
        raw(Kind::Latency, 10_000, 20_000.0, Some(unknown)),
        raw(Kind::Latency, 10_000, 20_000.0, None),
        "how many a replica works on at a time is not known"
    );
    // 300 tokens each: 57600 a minute are 192 requests, of which 16 are in hand.
    assert_eq!(raw(Kind::TokensPerMinute, 57_600, 100_000.0, Some(waits)), by_queue);
    let uncounted = Flow { tokens: Milli::ZERO, ..waits };
    assert_eq!(raw(Kind::TokensPerMinute, 57_600, 100_000.0, Some(uncounted)), 2, "the total");
    let idle = flow(0, 0, 0).unwrap();
    assert_eq!(raw(Kind::TokensPerMinute, 57_600, 0.0, Some(idle)), 0, "before the bounds");
    // One pod has a queue, and the others serve well: half of the replicas would make the latency worse.
    let hot = Flow { in_hand_lately: Milli::units(17), ..flow(5, 2, 27).unwrap() };
    let eight = Target { flows: vec![Some(hot)], ..target(8, 0, 0) };
    let slow =
        decide(&policy(Kind::Latency, 10_000), &eight, &total(12_000.0, 0), &History::default(), at(0));
    assert_eq!(slow.record.raw, 8, "a latency above its target removes none");
}

#[test]
fn a_queue_that_ends_within_the_target_explains_no_latency_above_it() {
    let policy = policy(Kind::Latency, 10_000);
    let raw = |in_hand_each: i64| {
        // Two wait for one hot pod, and the mean of 8 each takes 5 s; the percentile is 20 s.
        let flow = Flow { in_hand_lately: Milli::units(in_hand_each), ..flow(5, 2, 32).unwrap() };
        let target = Target { flows: vec![Some(flow)], ..target(4, 0, 0) };
        decide(&policy, &target, &total(20_000.0, 0), &History::default(), at(0)).record.raw
    };
    assert_eq!([raw(8), raw(16)], [8, 8], "16 each end within 10 s, and are slow all the same");
    assert_eq!(raw(17), 4, "the queue was the reason, and what arrives needs no more");
}

#[test]
fn no_replicas_are_removed_while_more_is_in_hand_than_their_target() {
    let policy = policy(Kind::QueueDepth, 5);
    let raw = |in_hand| {
        let calm = Target { flows: vec![flow(1, 0, in_hand)], ..target(4, 0, 0) };
        decide(&policy, &calm, &total(0.0, 0), &History::default(), at(0)).record.raw
    };
    assert_eq!((raw(21), raw(20)), (4, 2));
    // A number that binary fractions do not have.
    let exact = TargetValue::try_from(Milli::from(1_001)).unwrap();
    let policy = Policy {
        metrics: vec![Metric::new("first", Kind::QueueDepth, exact)],
        ..self::policy(Kind::QueueDepth, 1)
    };
    let running = Milli::from(4_004);
    let calm = Target { flows: vec![Some(Flow { running, ..flow(0, 0, 0).unwrap() })], ..target(4, 0, 0) };
    assert_eq!(decide(&policy, &calm, &total(0.0, 0), &History::default(), at(0)).record.raw, 0);
}

#[test]
fn replicas_for_a_queue_are_kept_for_half_a_window_and_those_for_arrivals_for_a_whole_one() {
    let policy = policy(Kind::QueueDepth, 5);
    let mut history = History::default();
    let mut replicas = 1;
    let mut at_each = Vec::new();
    for seconds in (0..=600).step_by(15) {
        let (rate, waiting) = if seconds < 60 { (4, 200) } else { (1, 0) };
        let target = Target { flows: vec![flow(rate, waiting, waiting)], ..target(replicas, 0, 0) };
        let decision = decide(&policy, &target, &total(0.0, seconds), &history, at(seconds));
        replicas = u32::try_from(decision.record.to).unwrap();
        at_each.push((seconds, replicas));
        history = decision.written(&policy);
    }
    let of = |time: i64| at_each.iter().find(|(seconds, _)| *seconds == time).unwrap().1;
    let (burst, arrivals) = (of(60), of(300));
    assert!(burst > arrivals && arrivals > of(600), "{at_each:?}");
    assert_eq!((of(150), of(330)), (burst, arrivals), "{at_each:?}");
    assert!(of(210) < burst && of(360) < arrivals, "{at_each:?}");
}

#[test]
fn what_is_unsure_removes_nothing_that_the_value_asks_for() {
    let policy = policy(Kind::QueueDepth, 5);
    let raw = |flow: Flow, reading: Reading| {
        let target = Target { flows: vec![Some(flow)], ..target(4, 0, 0) };
        decide(&policy, &target, &[reading], &History::default(), at(0)).record.raw
    };
    let of_pods = |count: usize| {
        let sample = |pod: usize| PodSample { uid: pod.to_string(), value: Milli::units(5), at: at(0) };
        Reading::Pods((0..count).map(sample).collect())
    };
    let calm = flow(1, 0, 5).unwrap();
    assert_eq!(raw(calm, of_pods(4)), 2);
    assert_eq!(raw(Flow { is_rough: true, ..calm }, of_pods(4)), 4, "the rate is of a moment");
    assert_eq!(raw(calm, of_pods(3)), 2, "one pod has ended no request, and has counted them");
    let burst = flow(12, 0, 20).unwrap();
    assert_eq!(raw(Flow { is_rough: true, ..burst }, of_pods(4)), raw(burst, of_pods(4)), "it may add");
}

#[test]
fn with_a_window_of_scale_ups_a_queue_that_lasts_for_it_adds_replicas() {
    let mut policy = policy(Kind::QueueDepth, 5);
    policy.behavior.up.window = Window::new(Duration::from_secs(60)).unwrap();
    let mut history = History::default();
    let mut replicas = 4;
    for seconds in (0..=90).step_by(15) {
        let target = Target { flows: vec![flow(2, 300, 320)], ..target(replicas, 0, 0) };
        let decision = decide(&policy, &target, &total(320.0, seconds), &history, at(seconds));
        replicas = u32::try_from(decision.record.to).unwrap();
        history = decision.written(&policy);
        assert_eq!(replicas > 4, seconds >= 60, "{seconds}: {replicas}");
    }
}

#[test]
fn of_hundreds_of_replicas_chance_moves_none_while_nothing_waits() {
    let policy = Policy { bounds: Bounds::new(1, 1_000).unwrap(), ..policy(Kind::QueueDepth, 5) };
    let decided = |rate: i64, waiting: i64| {
        let target = Target { flows: vec![flow(rate, waiting, 400 + waiting)], ..target(100, 0, 0) };
        decide(&policy, &target, &total(400.0, 0), &History::default(), at(0))
    };
    // 97 a second need 102 replicas, 90 need 95 and 105 need 110.
    let near = decided(97, 0);
    assert_eq!((near.record.raw, near.conclusion.lasting), (100, Some(100)));
    assert_eq!(decided(90, 0).record.raw, 95);
    assert_eq!(decided(105, 0).record.raw, 110);
    assert!(decided(97, 10).record.raw > 100, "what waits cannot be chance");
}

#[test]
fn the_rule_that_made_the_largest_proposal_is_named() {
    let rule = |kind, flow: Option<Flow>, value: f64| {
        let target = Target { flows: vec![flow], ..target(4, 0, 0) };
        decide(&policy(kind, 10_000), &target, &total(value, 0), &History::default(), at(0)).conclusion.rule
    };
    let calm = flow(2, 0, 10);
    assert_eq!(rule(Kind::Latency, calm, 20_000.0), Rule::ValueBeyondArrivals);
    assert_eq!(rule(Kind::Latency, calm, 1_000.0), Rule::Arrivals);
    assert_eq!(rule(Kind::Latency, None, 20_000.0), Rule::Value);
    assert_eq!(rule(Kind::GpuUtil, calm, 20_000.0), Rule::Value);
}
