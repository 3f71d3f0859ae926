//! What is remembered of a target: by the next status, the next process, and after a pause.

use super::{
    AIScaler, Arc, Observed, Target, Unwritten, World, at, found, observed, planned, queue, queue_at, scaler,
    stored,
};

#[test]
fn a_decision_whose_status_was_not_written_is_in_the_next_one() {
    let scaler = scaler("");
    let first = planned(&observed(&scaler, found(2), queue(20.0)), at(0)).status.unwrap();
    let unwritten = Unwritten { decisions: first.decisions, last_scale_time: first.last_scale_time };
    let after = Observed { unwritten: Some(unwritten), ..observed(&scaler, found(4), queue(20.0)) };
    let status = planned(&after, at(1)).status.unwrap();
    assert_eq!(status.decisions.iter().map(|known| (known.from, known.to)).collect::<Vec<_>>(), [(2, 4)]);
    assert!(status.last_scale_time.is_some());
}

#[test]
fn a_restart_within_the_window_removes_no_replica() {
    let mut seen = observed(&scaler(""), found(8), queue(40.0));
    let busy = planned(&seen, at(0));
    let mut scaler = AIScaler::clone(&seen.scaler);
    scaler.status = busy.status;
    // What a new process knows is the status.
    seen.past = stored(scaler.status.as_ref().unwrap()).resumed(at(60));
    seen.scaler = Arc::new(scaler);
    for seconds in [60, 200, 299] {
        seen.answers = vec![queue_at(1.0, seconds)];
        let plan = planned(&seen, at(seconds));
        assert!(plan.scale.is_none(), "after {seconds} s");
        seen.past = plan.past.unwrap();
    }
    seen.answers = vec![queue_at(1.0, 365)];
    assert!(planned(&seen, at(365)).scale.is_some_and(|write| write.to() < 8));
}

#[test]
fn a_process_that_ends_before_its_status_leaves_no_foreign_write_and_no_stop() {
    let mut world = World::new(", minReplicas: 0", 4);
    world.looks(0, queue_at(20.0, 0));
    for (seconds, load) in [(15, 30.0), (30, 40.0), (45, 50.0), (60, 40.0)] {
        world.looks_and_ends(seconds, queue_at(load, seconds));
    }
    world.looks(75, queue_at(50.0, 75));
    world.looks(90, queue_at(50.0, 90));
    assert_eq!((world.condition("AbleToScale").0.as_str(), world.found().scaled.replicas), ("True", 10));
    for seconds in (105..=375).step_by(15) {
        world.looks(seconds, queue_at(0.0, seconds));
    }
    assert_eq!(world.found().scaled.replicas, 10);
    world.looks_and_ends(390, queue_at(0.0, 390));
    assert_eq!(world.found().scaled.replicas, 0);
    world.looks(405, queue_at(7.0, 405));
    assert_eq!(world.found().scaled.replicas, 2, "it is not taken for maintenance");
}

#[test]
fn zero_that_another_has_set_while_no_process_ran_stays_where_this_controller_may_not_set_it() {
    let mut world = World::new("", 1);
    for seconds in (0..=330).step_by(15) {
        world.looks(seconds, queue_at(0.0, seconds));
    }
    world.set(0);
    world.restarts(345);
    world.looks(360, queue_at(0.0, 360));
    assert_eq!(world.written, []);
    assert_eq!(world.condition("ScalingActive").1, "ScalingDisabled");
}

#[test]
fn a_write_of_the_process_before_counts_for_the_rates_although_no_status_has_it() {
    let mut world = World::new("", 4);
    world.looks(0, queue_at(20.0, 0));
    world.looks_and_ends(15, queue_at(30.0, 15));
    world.looks(17, queue_at(60.0, 17));
    assert_eq!(world.written, [(15, 6), (17, 8)], "twice the 4 of the beginning, not of the 6");
    let mut world = World::new("", 10);
    world.looks(0, queue_at(50.0, 0));
    // A removal that no process has seen gives the rates nothing.
    world.set(2);
    world.restarts(60);
    world.looks(60, queue_at(50.0, 60));
    assert_eq!(world.written, [(60, 6)]);
}

#[test]
fn a_process_that_is_killed_forgets_no_recommendation_that_would_have_kept_replicas() {
    let mut world = World::new("", 8);
    for (seconds, load) in [(0, 10.0), (5, 30.0), (10, 35.0), (15, 10.0)] {
        world.looks(seconds, queue_at(load, seconds));
    }
    let most =
        stored(world.status()).scaling.recommendations.iter().skip(1).map(|known| known.replicas).max();
    assert_eq!(most, Some(7), "written at once, and not with the numbers after 30 s");
}

#[test]
fn another_target_begins_anew_and_loses_no_replica_for_a_window() {
    let mut world = World::new("", 2);
    for seconds in [0, 15, 30] {
        world.looks(seconds, queue_at(5.0 + seconds as f64, seconds));
    }
    assert!(!world.status().decisions.is_empty() && world.status().last_scale_time.is_some());
    // The first recommendations were low, and old enough to be the end of a window.
    for seconds in (400..=800).step_by(50) {
        world.looks(seconds, queue_at(5.0, seconds));
    }
    assert_eq!(world.found().scaled.replicas, 1);
    world.restarts(810);
    let mut other = found(8);
    other.scaled.uid = "another".into();
    world.seen.target = Target::Found(Box::new(other));
    world.written.clear();
    for seconds in [815, 1_000, 1_114] {
        world.looks(seconds, queue_at(5.0, seconds));
    }
    assert_eq!(world.written, []);
    assert_eq!((world.status().decisions.len(), &world.status().last_scale_time), (0, &None));
    world.looks(1_116, queue_at(5.0, 1_116));
    assert_eq!(world.written, [(1_116, 1)]);
}

#[test]
fn after_a_pause_replicas_are_removed_no_sooner_than_a_window_later() {
    let mut world = World::new("", 10);
    world.looks(0, queue_at(50.0, 0));
    world.edits(", paused: true");
    for seconds in (15..615).step_by(15) {
        world.looks(seconds, queue_at(10.0, seconds));
    }
    world.edits("");
    for seconds in (615..1_000).step_by(15) {
        world.looks(seconds, queue_at(10.0, seconds));
    }
    assert_eq!(world.written.first().map(|(seconds, _)| *seconds), Some(915), "{:?}", world.written);
}
