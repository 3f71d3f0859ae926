//! Pods that do not start, or not yet.

use super::{AIScaler, Answer, Arc, Milli, PodSample, Reading, World, at, pod, queue_at, ready_pods};

#[test]
fn pods_that_crash_are_not_multiplied() {
    let crashing = "{phase: Running, containerStatuses: [{state: {waiting: {reason: CrashLoopBackOff}}}]}";
    let mut world = World::new("", 3);
    world.found().pods = Some((0..3).map(|n| pod(&format!("p{n}"), "n", crashing)).collect());
    for seconds in (0..1_200).step_by(15) {
        world.looks(seconds, queue_at(50.0, seconds));
    }
    assert_eq!(world.written, []);
    let (_, reason, message) = world.condition("AbleToScale");
    assert_eq!(reason, "CrashLoop");
    assert!(message.contains("(in a crash loop: 3)"), "{message}");
}

#[test]
fn pods_whose_image_cannot_be_pulled_are_not_multiplied() {
    let mut world = World::new("", 4);
    let waits = |reason: &str| {
        let status =
            format!("{{phase: Pending, containerStatuses: [{{state: {{waiting: {{reason: {reason}}}}}}}]}}");
        (0..2).map(|n| pod(&format!("w{n}"), "n", &status)).collect::<Vec<_>>()
    };
    world.looks(0, queue_at(30.0, 0));
    for (seconds, reason) in (15..1_500).step_by(15).zip(["ErrImagePull", "ImagePullBackOff"].iter().cycle())
    {
        world.found().pods = Some([ready_pods(4), waits(reason)].concat());
        world.looks(seconds, queue_at(30.0, seconds));
    }
    let (_, _, message) = world.condition("AbleToScale");
    assert!(message.contains("pods that do not start: 2 (an image cannot be pulled: 2)"), "{message}");
    world.found().pods = Some([ready_pods(2), waits("ImagePullBackOff")].concat());
    world.looks(1_500, queue_at(50.0, 1_500));
    assert_eq!(world.written, [(0, 6)]);
    let (_, reason, message) = world.condition("AbleToScale");
    assert_eq!(reason, "CannotStart");
    assert!(message.contains("an image cannot be pulled: 2)"), "{message}");
}

#[test]
fn pods_that_wait_for_a_node_are_asked_for_once() {
    let mut world = World::new("", 2);
    world.looks(0, queue_at(30.0, 0));
    assert_eq!(world.written, [(0, 6)]);
    let mut pods = ready_pods(2);
    pods.extend((0..4).map(|n| pod(&format!("w{n}"), "", "{phase: Pending}")));
    for seconds in (15..3_000).step_by(15) {
        world.found().pods = Some(pods.clone());
        world.found().scaled.status_replicas = 6;
        world.looks(seconds, queue_at(30.0, seconds));
    }
    assert_eq!(world.written, [(0, 6)], "a full cluster gets no second wish");
}

#[test]
fn pods_that_got_their_node_late_are_not_asked_for_again() {
    let mut world = World::new("", 2);
    let condition = |type_: &str, time: &str| {
        format!("{{type: {type_}, status: 'True', lastTransitionTime: '2026-01-01T12:{time}Z'}}")
    };
    let served = |time: &str| format!("{{phase: Running, conditions: [{}]}}", condition("Ready", time));
    // Cold starts of 60 s.
    let first = [pod("a", "n", &served("01:00")), pod("b", "n", &served("01:00"))];
    world.found().pods = Some(first.to_vec());
    world.looks(60, queue_at(30.0, 60));
    for seconds in (75..900).step_by(15) {
        let (node, status) = match seconds {
            ..240 => ("", "{phase: Pending}".to_owned()),
            240..300 => {
                ("n", format!("{{phase: Pending, conditions: [{}]}}", condition("PodScheduled", "04:00")))
            }
            _ => ("n", served("05:00")),
        };
        let mut pods = first.to_vec();
        pods.extend((0..4).map(|n| pod(&format!("w{n}"), node, &status)));
        world.found().pods = Some(pods);
        world.looks(seconds, queue_at(30.0, seconds));
    }
    assert_eq!(world.written, [(60, 6)]);
}

#[test]
fn the_conditions_count_pods_that_do_not_start_and_pods_without_a_value() {
    let mut world = World::new("", 4);
    let mut pods = ready_pods(1);
    pods.push(pod("waits", "", "{phase: Pending}"));
    pods.push(pod("hangs", "n", "{phase: Pending}"));
    let crashing = "{phase: Running, containerStatuses: [{state: {waiting: {reason: CrashLoopBackOff}}}]}";
    pods.push(pod("crashes", "n", crashing));
    world.found().pods = Some(pods);
    let value = PodSample { uid: "p0".into(), value: Milli::units(5), at: at(3_000) };
    let message = "3 of 4 pods have no value: pod demo/hangs did not answer within 1 s".to_owned();
    world.looks(3_000, Answer::new(Reading::Pods(vec![value]), message));
    let (status, _, message) = world.condition("AbleToScale");
    assert_eq!(status, "True");
    assert!(
        message.ends_with(
            "; pods that do not start: 3 (without a node or not created: 1, not Ready in time: 1, in a crash loop: 1); \
             see their events and logs, and for pods that were not created those of what creates them"
        ),
        "{message}"
    );
    let (status, _, message) = world.condition("ScalingActive");
    assert_eq!(status, "True");
    assert_eq!(
        message,
        "replicas are computed from metric queue_depth; 3 of 4 pods have no value: pod demo/hangs did not answer within \
         1 s"
    );
}

#[test]
fn surge_pods_of_a_rollout_are_not_counted_twice() {
    for metric in ["queue_depth", "latency", "custom"] {
        let mut world = World::new("", 4);
        let mut scaler = AIScaler::clone(&world.seen.scaler);
        let spec = serde_json::from_value(metric.into()).unwrap();
        scaler.spec.metric_type = spec;
        world.seen.scaler = Arc::new(scaler);
        // Two more than the replicas are Ready while the old ones end.
        world.found().pods = Some(ready_pods(6));
        world.found().scaled.status_replicas = 6;
        let value = if metric == "latency" { 7.5 } else { 30.0 };
        world.looks(0, queue_at(value, 0));
        assert_eq!(world.written, [(0, 6)], "{metric}: half as much again of 4 replicas");
    }
}
