//! What a measured value, and its absence, does.

use api::aiscaler::MetricReading;

use super::{
    AIScaler, Answer, Arc, Fault, Milli, PodSample, Reading, Target, World, at, condition, found, missing,
    observed, planned, queue_at, scaler,
};

#[test]
fn a_metric_that_is_missing_removes_no_replica_and_the_condition_says_why() {
    let slow = missing(Fault::Slow, "http://prometheus did not answer within 3 s");
    let plan = planned(&observed(&scaler(""), found(6), slow), at(0));
    assert!(plan.scale.is_none());
    let (status, reason, message) = condition(plan.status.as_ref().unwrap(), "ScalingActive");
    assert_eq!((&*status, &*reason), ("False", "MetricMissing"));
    assert_eq!(message, "6 replicas stay without a metric: http://prometheus did not answer within 3 s");
    assert_eq!(plan.events.len(), 1);
}

#[test]
fn while_a_fallback_applies_the_condition_names_it() {
    let slow = || missing(Fault::Slow, "http://prometheus did not answer within 3 s");
    let mut world = World::new(", fallback: {afterSeconds: 30, replicas: 8}", 6);
    world.looks(0, queue_at(30.0, 0));
    world.looks(15, slow());
    let (_, _, message) = world.condition("ScalingActive");
    assert_eq!(message, "6 replicas stay without a metric: http://prometheus did not answer within 3 s");
    world.looks(60, slow());
    assert_eq!(world.written, [(60, 8)]);
    let (status, reason, message) = world.condition("ScalingActive");
    assert_eq!((&*status, &*reason), ("False", "MetricMissing"));
    assert_eq!(
        message,
        "queue_depth has had no value for so long that fallback.replicas 8 applies: http://prometheus did not answer \
         within 3 s"
    );
}

#[test]
fn a_target_asleep_without_a_value_stays_and_the_condition_names_the_way_out() {
    let mut world = World::new(", minReplicas: 0, fallback: {afterSeconds: 30, replicas: 2}", 1);
    for seconds in (0..=300).step_by(15) {
        world.looks(seconds, queue_at(0.0, seconds));
    }
    assert_eq!(world.written, [(300, 0)]);
    let empty = || missing(Fault::Empty, "http://prometheus has no series");
    world.looks(315, empty());
    let (status, reason, message) = world.condition("ScalingActive");
    assert_eq!((&*status, &*reason), ("False", "MetricNeedsPods"));
    for part in [
        "Deployment chat has 0 replicas",
        "additionalMetrics",
        "set minReplicas to 1",
        "prometheus has no series",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(world.condition("Stalled").1, "MetricNeedsPods");
    for seconds in (330..7_200).step_by(15) {
        world.looks(seconds, empty());
    }
    assert_eq!(world.written, [(300, 0)], "no fallback, and so no flapping");
    // A server that does not answer is another matter.
    let slow = || missing(Fault::Slow, "http://prometheus did not answer within 3 s");
    world.looks(7_200, slow());
    assert_eq!(world.condition("ScalingActive").1, "MetricMissing");
    world.looks(7_260, slow());
    assert_eq!(world.written.last(), Some(&(7_260, 2)));
}

#[test]
fn another_metric_wakes_a_target_whose_own_pods_have_none() {
    let spec = ", minReplicas: 0, additionalMetrics: [{metricType: custom, targetValue: 5, source: {prometheus: {query: \
                'sum(a)'}}}]";
    let mut world = World::new(spec, 1);
    for seconds in (0..=300).step_by(15) {
        world.seen.answers = vec![queue_at(0.0, seconds), queue_at(0.0, seconds)];
        world.looks_again(seconds);
    }
    assert_eq!(world.written, [(300, 0)]);
    world.seen.answers = vec![missing(Fault::Empty, "no series"), queue_at(9.0, 315)];
    world.looks_again(315);
    assert_eq!(world.written.last(), Some(&(315, 2)));
}

#[test]
fn a_metric_that_was_not_read_during_a_pause_was_not_missing() {
    let mut world = World::new(", fallback: {afterSeconds: 30, replicas: 8}", 4);
    world.looks(0, queue_at(20.0, 0));
    world.edits(", fallback: {afterSeconds: 30, replicas: 8}, paused: true");
    world.seen.answers.clear();
    for seconds in (15..3_600).step_by(15) {
        world.looks_again(seconds);
    }
    world.edits(", fallback: {afterSeconds: 30, replicas: 8}");
    world.looks_again(3_600);
    assert_eq!(world.written, [], "no sample has arrived yet");
    assert_eq!(world.condition("Ready").1, "Waiting");
    world.looks(3_601, queue_at(30.0, 3_601));
    assert_eq!(world.written, [(3_601, 6)]);
}

#[test]
fn pods_of_others_are_named_beside_the_metric() {
    let mut seen = observed(&scaler(""), found(2), queue_at(20.0, 0));
    let Target::Found(target) = &mut seen.target else { panic!("it is found") };
    target.foreign = Some("Deployment neighbour".into());
    let status = planned(&seen, at(0)).status.unwrap();
    let (holds, reason, message) = condition(&status, "ScalingActive");
    assert_eq!((&*holds, &*reason), ("True", "ForeignPods"));
    assert_eq!(
        message,
        "replicas are computed from metric queue_depth; pods of Deployment neighbour match the selector of Deployment chat \
         as well and do not count; give the pods of Deployment chat a label that no others have, and select by it"
    );
    assert_eq!(condition(&status, "Ready").1, "ForeignPods");
    seen.answers = vec![missing(Fault::Slow, "slow")];
    let (_, reason, message) = condition(&planned(&seen, at(0)).status.unwrap(), "ScalingActive");
    assert_eq!(reason, "MetricMissing");
    assert!(message.contains("Deployment neighbour"), "{message}");
}

#[test]
fn a_fallback_of_one_metric_beside_another_holds_no_replicas() {
    let spec = ", fallback: {afterSeconds: 30, replicas: 1}, additionalMetrics: [{metricType: custom, targetValue: 5, \
                source: {prometheus: {query: 'sum(a)'}}}]";
    let mut world = World::new(spec, 4);
    for seconds in [0, 60, 200, 400] {
        let slow = missing(Fault::Slow, "http://prometheus did not answer within 3 s");
        world.seen.answers = vec![queue_at(10.0, seconds), slow];
        world.looks_again(seconds);
    }
    assert_eq!(world.written.last(), Some(&(400, 2)));
    let (status, _, message) = world.condition("ScalingActive");
    assert_eq!(status, "True");
    assert_eq!(
        message,
        "replicas are computed from metric queue_depth; custom has had no value for so long that fallback.replicas 1 \
         applies: http://prometheus did not answer within 3 s"
    );
    let shown = |metric: &MetricReading| (metric.metric_type.clone(), metric.display.clone());
    assert_eq!(
        world.status().metrics.iter().map(shown).collect::<Vec<_>>(),
        [("queue_depth".to_owned(), "5/5".to_owned()), ("custom".to_owned(), "<unknown>/5".to_owned())]
    );
}

#[test]
fn a_partial_answer_removes_no_replica_and_the_condition_repeats_the_warning() {
    let partial = |depth: f64, seconds: i64| {
        let message = "some data was missing: store a is down".to_owned();
        Answer::new(Reading::partial_total(depth, at(seconds)), message)
    };
    let mut world = World::new("", 6);
    world.looks(0, queue_at(30.0, 0));
    for seconds in (15..=600).step_by(15) {
        world.looks(seconds, partial(15.0, seconds));
    }
    assert_eq!(world.written, []);
    let (status, reason, message) = world.condition("ScalingActive");
    assert_eq!((&*status, &*reason), ("False", "MetricPartial"));
    assert_eq!(
        message,
        "6 replicas stay, because a metric that asks for fewer is incomplete: some data was missing: store a is down"
    );
    world.looks(615, queue_at(15.0, 615));
    assert_eq!(world.written, [], "the window begins when the answers are whole again");
    world.looks(630, partial(50.0, 630));
    assert_eq!(world.written, [(630, 10)]);
    let (status, _, message) = world.condition("ScalingActive");
    assert_eq!(status, "True");
    assert!(message.ends_with("some data was missing: store a is down"), "{message}");
}

#[test]
fn a_first_value_with_a_wrong_unit_is_announced_before_it_is_acted_on() {
    let mut world = World::new("", 2);
    world.looks(0, queue_at(9_000.0, 0));
    assert_eq!(world.written, []);
    let (status, reason, message) = world.condition("AbleToScale");
    assert_eq!((&*status, &*reason), ("True", "ImplausibleValue"));
    assert_eq!(
        message,
        "queue_depth is 4500 per replica, targetValue 5, which asks for 1800 replicas where maxReplicas is 10; if a unit is \
         wrong, correct targetValue or source now: replicas are added one period of the controller (--period) \
         after this value was first seen"
    );
    assert_eq!(world.events.iter().map(|note| note.reason).collect::<Vec<_>>(), ["ImplausibleValue"]);
    world.restarts(10);
    world.looks(14, queue_at(9_000.0, 14));
    assert_eq!(world.written, []);
    world.looks(15, queue_at(9_000.0, 15));
    assert_eq!(world.written, [(15, 6)]);
}

#[test]
fn a_first_value_far_below_its_target_is_announced_before_replicas_are_removed() {
    let mut world = World::new("", 6);
    let mut spec = AIScaler::clone(&world.seen.scaler);
    spec.spec.metric_type = serde_json::from_value("latency".into()).unwrap();
    spec.spec.target_value = serde_json::from_value(900.into()).unwrap();
    world.seen.scaler = Arc::new(spec);
    world.looks(0, queue_at(0.8, 0));
    let (status, reason, message) = world.condition("AbleToScale");
    assert_eq!((&*status, &*reason), ("True", "ImplausibleValue"));
    assert_eq!(
        message,
        "latency is 0.8, targetValue 900, which asks for 1 of 6 replicas; if a unit is wrong, or the query gives an average \
         instead of a total, correct targetValue or source now: replicas are removed after \
         spec.behavior.scaleDown.stabilizationWindowSeconds, 300 s, and a period of the controller at \
         least"
    );
    assert_eq!(world.events.iter().map(|note| note.reason).collect::<Vec<_>>(), ["ImplausibleValue"]);
    for seconds in (15..=300).step_by(15) {
        if seconds == 150 {
            world.restarts(149);
        }
        assert_eq!(world.written, [], "{seconds}");
        assert_eq!(world.condition("AbleToScale").1, "ImplausibleValue", "{seconds}");
        world.looks(seconds, queue_at(0.8, seconds));
    }
    world.looks(465, queue_at(0.8, 465));
    assert!(!world.written.is_empty(), "it was announced for a whole window");
    assert_eq!(world.events.iter().filter(|note| note.reason == "ImplausibleValue").count(), 1);
}

#[test]
fn a_burst_of_a_target_that_is_scaled_already_is_served_at_once() {
    let mut world = World::new("", 2);
    world.looks(0, queue_at(10.0, 0));
    world.looks(15, queue_at(9_000.0, 15));
    assert_eq!(world.written, [(15, 6)]);
}

#[test]
fn a_counter_in_the_place_of_a_gauge_is_named_with_its_fix() {
    let mut world = World::new("", 2);
    let mut spec = AIScaler::clone(&world.seen.scaler);
    spec.spec.source.as_mut().unwrap().prometheus.as_mut().unwrap().query = "sum(requests_total)".into();
    world.seen.scaler = Arc::new(spec);
    world.looks(0, queue_at(20.0, 0));
    world.looks(15, queue_at(20.0, 15));
    let (status, reason, message) = world.condition("ScalingActive");
    assert_eq!((&*status, &*reason), ("True", "MetricOnlyGrows"));
    assert!(message.contains("the counter requests_total as it is"), "{message}");
    assert!(message.contains("rate(requests_total[5m])"), "{message}");
    assert_eq!(world.events.iter().filter(|note| note.reason == "MetricOnlyGrows").count(), 1);
}

#[test]
fn a_metric_that_rose_with_every_sample_while_replicas_were_added_is_suspicious() {
    let mut world = World::new("", 2);
    world.looks(0, queue_at(20.0, 0));
    let grown = |since: i64| Answer { only_grows_since: Some(at(since)), ..queue_at(20.0, 600) };
    world.looks(600, grown(1));
    assert_eq!(world.condition("ScalingActive").1, "ValidMetricFound", "no replica was added since");
    world.looks(601, grown(-5));
    assert_eq!(world.condition("ScalingActive").1, "MetricOnlyGrows");
}

#[test]
fn before_the_first_samples_nothing_is_alarming_and_a_new_process_writes_nothing() {
    let mut world = World::new("", 2);
    world.looks(0, Answer::pending());
    let (status, reason, _) = world.condition("Reconciling");
    assert_eq!((&*status, &*reason), ("True", "Waiting"));
    assert!(world.events.is_empty() && world.written.is_empty());
    world.looks(1, queue_at(20.0, 1));
    assert_eq!(world.written, [(1, 4)]);
    world.restarts(100);
    let before = world.status().clone();
    world.looks(100, Answer::pending());
    assert_eq!(*world.status(), before);
    world.seen.answers.clear();
    world.looks_again(101);
    assert_eq!(*world.status(), before);
    world.set(12);
    world.looks(102, Answer::pending());
    assert_eq!(world.written.last(), Some(&(102, 10)), "bounds need no sample");
}

#[test]
fn a_server_whose_clock_is_a_minute_off_is_not_stale_between_two_samples() {
    for (skew, is_usable) in [(-61, true), (60, true), (-200, false)] {
        let mut world = World::new("", 2);
        world.looks(0, queue_at(20.0, skew));
        world.looks_again(15);
        assert_eq!(world.condition("ScalingActive").0 == "True", is_usable, "{skew} s");
    }
}

#[test]
fn a_kind_that_does_without_zero_replicas_keeps_one_and_the_condition_says_so() {
    let mut world = World::new(", minReplicas: 0", 2);
    for seconds in (0..=600).step_by(15) {
        world.found().keeps_one = true;
        world.looks(seconds, queue_at(0.0, seconds));
    }
    assert_eq!(world.written.last().map(|(_, replicas)| *replicas), Some(1));
    let (status, reason, message) = world.condition("ScalingLimited");
    assert_eq!((&*status, &*reason), ("True", "TooFewReplicas"));
    assert_eq!(message, "0 replicas are recommended, and Deployment chat keeps at least 1");
}

#[test]
fn ten_minutes_of_each_fault_remove_nothing_and_the_next_value_counts_at_once() {
    for fault in [Fault::Empty, Fault::NotANumber, Fault::Refused, Fault::Unreachable, Fault::Slow] {
        let mut world = World::new("", 6);
        world.looks(0, queue_at(30.0, 0));
        for seconds in (15..=600).step_by(15) {
            world.looks(seconds, missing(fault, "the reason"));
            let (status, _, message) = world.condition("ScalingActive");
            assert_eq!(status, "False", "{fault:?}");
            assert!(message.ends_with("the reason"), "{fault:?}: {message}");
        }
        assert_eq!(world.written, [], "{fault:?}");
        world.looks(615, queue_at(45.0, 615));
        assert_eq!(
            (world.written.as_slice(), world.condition("ScalingActive").0.as_str()),
            (&[(615, 9)][..], "True")
        );
    }
}

#[test]
fn pods_whose_agents_are_gone_count_as_busy_when_replicas_are_removed() {
    let idle = |pods: i32, seconds: i64| {
        let sample = |pod: i32| PodSample { uid: format!("p{pod}"), value: Milli::units(5), at: at(seconds) };
        let samples = (0..pods).map(sample).collect();
        Answer::new(
            Reading::Pods(samples),
            "no readings of pods on node n: no metrics agent runs there".to_owned(),
        )
    };
    let mut world = World::new("", 6);
    let mut spec = AIScaler::clone(&world.seen.scaler);
    spec.spec.metric_type = serde_json::from_value("gpu_util".into()).unwrap();
    spec.spec.target_value = serde_json::from_value(50.into()).unwrap();
    world.seen.scaler = Arc::new(spec);
    for seconds in (0..=1200).step_by(15) {
        let replicas = world.found().scaled.replicas;
        world.looks(seconds, idle(replicas / 2, seconds));
    }
    // As in HPA, a pod without a value counts as one that is as busy as the target says: one idle pod of three leaves work
    // for three.
    assert_eq!(world.written.iter().map(|(_, replicas)| *replicas).collect::<Vec<_>>(), [4, 3]);
    let (status, _, message) = world.condition("ScalingActive");
    assert_eq!(status, "True");
    assert!(message.ends_with("no readings of pods on node n: no metrics agent runs there"), "{message}");
}
