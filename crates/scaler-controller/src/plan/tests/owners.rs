//! Others who write the replicas: autoscalers, tools and people.

use super::{
    AIScaler, Arc, Contender, World, at, condition, found, observed, planned, queue, queue_at, recompute,
    records, scaler,
};

#[test]
fn a_target_that_another_autoscaler_scales_is_left_alone() {
    let mut seen = observed(&scaler(""), found(2), queue(40.0));
    seen.contender = Some(Contender::HorizontalPodAutoscaler("chat-hpa".into()));
    let plan = planned(&seen, at(0));
    assert!(plan.scale.is_none());
    let (status, reason, message) = condition(plan.status.as_ref().unwrap(), "ScalingActive");
    assert_eq!((&*status, &*reason), ("False", "TargetManagedByOther"));
    assert!(
        message.starts_with("HorizontalPodAutoscaler chat-hpa scales Deployment chat as well"),
        "{message}"
    );
    seen.unwatched = Some("HorizontalPodAutoscalers");
    let (_, _, message) = condition(planned(&seen, at(0)).status.as_ref().unwrap(), "ScalingActive");
    assert!(
        message.ends_with("; the watch of HorizontalPodAutoscalers fails, so it may be gone"),
        "{message}"
    );
}

#[test]
fn a_dry_run_beside_another_autoscaler_records_one_entry_and_writes_no_replicas() {
    let mut seen = observed(&scaler(", mode: DryRun"), found(2), queue(20.0));
    seen.contender = Some(Contender::HorizontalPodAutoscaler("chat-hpa".into()));
    let first = planned(&seen, at(0));
    assert!(first.scale.is_none());
    let status = first.status.unwrap();
    assert_eq!(status.decisions.len(), 1);
    let mut scaler = AIScaler::clone(&seen.scaler);
    scaler.status = Some(status);
    seen.scaler = Arc::new(scaler);
    assert!(planned(&seen, at(15)).status.is_none(), "the same wish is written once");
}

#[test]
fn zero_replicas_by_hand_stay() {
    let plan = planned(&observed(&scaler(""), found(0), queue(40.0)), at(0));
    assert!(plan.scale.is_none());
    assert_eq!(condition(plan.status.as_ref().unwrap(), "ScalingActive").1, "ScalingDisabled");
}

#[test]
fn the_third_foreign_write_within_five_minutes_stops_the_writes_and_a_restart_goes_on_with_that() {
    let mut world = World::new("", 4);
    for (seconds, by_another) in [(0, 4), (60, 2), (120, 2), (180, 2)] {
        world.set(by_another);
        world.looks(seconds, queue_at(20.0, seconds));
    }
    assert_eq!(world.written, [(60, 4), (120, 4)]);
    let (status, reason, message) = world.condition("AbleToScale");
    assert_eq!((&*status, &*reason), ("False", "ReplicasContested"));
    assert_eq!(
        message,
        "others have set the replicas of Deployment chat 3 times within 300 s, last to 2; this controller sets none until \
         2026-01-01T12:08:00Z; stop what sets them, such as kubectl scale or a tool that applies spec.replicas, or \
         delete this AIScaler"
    );
    let contested = |world: &World| world.events.iter().filter(|e| e.reason == "ReplicasContested").count();
    assert_eq!((contested(&world), world.condition("Ready").1.as_str()), (1, "ReplicasContested"));
    for (seconds, load) in [(240, 20.0), (260, 10.0), (280, 20.0), (479, 20.0)] {
        world.restarts(seconds);
        world.looks(seconds, queue_at(load, seconds));
    }
    assert_eq!(
        (world.written.len(), contested(&world)),
        (2, 1),
        "nothing is written, and nothing said twice"
    );
    world.looks(480, queue_at(20.0, 480));
    assert_eq!(world.written.last(), Some(&(480, 4)));
}

#[test]
fn a_tool_that_sets_replicas_now_and_then_is_named_each_time_and_in_the_condition() {
    let mut world = World::new("", 4);
    world.looks(0, queue_at(20.0, 0));
    for turn in 1..=5 {
        world.set(2);
        world.looks(turn * 400, queue_at(20.0, turn * 400));
        let set_back = world.events.iter().filter(|note| note.reason == "ReplicasSetBack").count();
        assert_eq!(set_back, usize::try_from(turn).unwrap());
        world.looks(turn * 400 + 15, queue_at(20.0, turn * 400 + 15));
    }
    assert_eq!(world.written.len(), 5);
    let note = world.events.iter().find(|note| note.reason == "ReplicasSetBack").unwrap();
    assert_eq!(
        note.message,
        "Deployment chat: something else has set 2 replicas, and this controller sets 4 again; remove spec.replicas from what applies it, or \
         delete this AIScaler"
    );
    let (status, reason, message) = world.condition("AbleToScale");
    assert_eq!((&*status, &*reason), ("True", "ReplicasContested"));
    assert!(message.contains("Deployment chat at least 5 times within an hour"), "{message}");
    assert_eq!(world.condition("Ready").0, "True");
    assert_eq!(world.events.iter().filter(|note| note.reason == "ReplicasContested").count(), 1);
    world.looks(4_100, queue_at(20.0, 4_100));
    assert_eq!(world.condition("AbleToScale").1, "ReadyForNewScale");
}

#[test]
fn replicas_above_the_maximum_are_not_written_during_a_contest_either() {
    let mut world = World::new("", 4);
    for seconds in [0, 10, 20, 30, 40] {
        world.looks(seconds, queue_at(20.0, seconds));
        world.set(50);
    }
    assert_eq!(world.written, [(10, 10), (20, 10)]);
}

#[test]
fn zero_by_hand_stays_whatever_the_minimum_and_through_restarts_and_pauses() {
    const SPECS: [&str; 2] = ["", ", minReplicas: 0"];
    for spec in SPECS {
        let mut world = World::new(spec, 3);
        world.looks(0, queue_at(15.0, 0));
        world.set(0);
        world.looks(15, queue_at(15.0, 15));
        world.restarts(30);
        for seconds in [30, 600, 4_000] {
            world.looks(seconds, queue_at(40.0, seconds));
        }
        assert!(world.written.is_empty(), "{spec}");
        let (status, reason, _) = world.condition("ScalingActive");
        assert_eq!((&*status, &*reason), ("False", "ScalingDisabled"), "{spec}");
        world.set(1);
        world.looks(4_015, queue_at(40.0, 4_015));
        assert_eq!(world.written.len(), 1, "{spec}: another number gives the target back");
    }
}

#[test]
fn zero_that_was_set_while_paused_stays_and_that_of_another_autoscaler_does_not() {
    let mut world = World::new(", minReplicas: 0", 3);
    world.looks(0, queue_at(15.0, 0));
    world.edits(", minReplicas: 0, paused: true");
    world.looks(15, queue_at(15.0, 15));
    world.set(0);
    world.looks(30, queue_at(15.0, 30));
    world.edits(", minReplicas: 0");
    world.looks(45, queue_at(40.0, 45));
    assert!(world.written.is_empty());
    assert_eq!(world.condition("ScalingActive").1, "ScalingDisabled");

    let mut world = World::new(", minReplicas: 0", 3);
    world.seen.contender = Some(Contender::ScaledObject { name: "so".into(), through: None });
    world.looks(0, queue_at(15.0, 0));
    world.set(0);
    world.looks(15, queue_at(15.0, 15));
    world.seen.contender = None;
    world.looks(30, queue_at(40.0, 30));
    assert_eq!(world.written.len(), 1, "an idle target that was taken over");
}

#[test]
fn an_idle_target_that_this_controller_scaled_to_zero_is_scaled_up_again_also_after_a_restart() {
    let mut world = World::new(", minReplicas: 0", 2);
    for seconds in (0..=330).step_by(15) {
        world.looks(seconds, queue_at(0.0, seconds));
    }
    assert_eq!(world.written.last().map(|(_, to)| *to), Some(0));
    world.restarts(400);
    world.looks(400, queue_at(7.0, 400));
    assert_eq!(world.written.last(), Some(&(400, 2)));
}

#[test]
fn a_minimum_that_is_raised_ends_the_zero_of_this_controller_and_not_that_of_another() {
    const IDLE: &str = ", minReplicas: 0";
    let idle = || {
        let mut world = World::new(IDLE, 2);
        for seconds in (0..=330).step_by(15) {
            world.looks(seconds, queue_at(0.0, seconds));
        }
        assert_eq!(world.found().scaled.replicas, 0);
        world
    };
    for restarts in [false, true] {
        let mut world = idle();
        if restarts {
            world.restarts(345);
        }
        world.edits(", minReplicas: 1");
        world.looks(360, queue_at(40.0, 360));
        assert_eq!(world.written.last(), Some(&(360, 1)));
        let record = records(world.status()).pop().unwrap();
        assert_eq!((recompute(&record), record.reason.as_str()), (1, "TooFewReplicas"));
        world.looks(375, queue_at(40.0, 375));
        assert!(world.found().scaled.replicas > 1);
    }
    let mut stopped = idle();
    stopped.set(2);
    stopped.looks(345, queue_at(10.0, 345));
    stopped.set(0);
    stopped.looks(360, queue_at(10.0, 360));
    stopped.edits(", minReplicas: 1");
    stopped.written.clear();
    stopped.looks(375, queue_at(40.0, 375));
    assert_eq!(
        (stopped.written.len(), stopped.condition("ScalingActive").1.as_str()),
        (0, "ScalingDisabled")
    );
}
