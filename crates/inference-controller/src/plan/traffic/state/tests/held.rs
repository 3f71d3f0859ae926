//! What holds a canary back: a gateway that refuses rules, a route that is contested, pods that do not come up.

use super::*;

#[test]
fn a_gateway_that_refuses_the_rules_of_a_pin_gets_those_without_it() {
    let mut world = World::new(Canary { pin: Pin::Cookie, ..steps() });
    world.go_on(3, 10);
    world.reconcile(ALL);
    world.route.is_accepted = false;
    world.rules_refused = Some("Gateway public: no such filter (UnsupportedValue)".to_owned());
    assert_eq!(world.route.share.weight, 10);
    world.reconcile(ALL);
    assert_eq!(world.route.share.weight, 0);
    let rollback = world.status.as_ref().unwrap().last_rollback.clone().unwrap();
    assert_eq!(rollback.reason, "RouteRejected");
    assert!(
        rollback.message.contains("no such filter") && rollback.message.contains("remove spec.canary.pin")
    );
    world.rules_refused = None;
    world.go_on(10, 60);
    assert_eq!(
        (world.phase(), world.route.share.weight),
        (Some(CanaryPhase::RolledBack), 0),
        "it is not tried again"
    );
}

#[test]
fn a_gateway_that_refuses_copies_or_headers_gets_the_rules_of_stable_alone() {
    for (field, name) in
        [(json!({"mirror": true}), "mirror"), (json!({"match": [{"header": "a", "value": "b"}]}), "match")]
    {
        let mut world = World::new(canary(&field));
        world.go_on(4, 10);
        let share = world.route.share;
        assert!(share.mirrors || share.matches, "{share:?}");
        world.rules_refused = Some("Gateway public: no such filter (UnsupportedValue)".to_owned());
        world.route.is_accepted = false;
        world.reconcile(ALL);
        assert!(!world.route.share.has_requests());
        let rollback = world.status.as_ref().unwrap().last_rollback.clone().unwrap();
        assert_eq!(rollback.reason, "RouteRejected");
        let fix =
            format!("no such filter (UnsupportedValue); remove spec.canary.{name}, and change the version");
        assert!(rollback.message.contains(&fix), "{}", rollback.message);
        world.rules_refused = None;
        world.go_on(10, 60);
        assert_eq!(world.phase(), Some(CanaryPhase::RolledBack), "it is not tried again");
    }
    let mut plain = World::new(steps());
    plain.go_on(3, 10);
    plain.reconcile(ALL);
    plain.rules_refused = Some("Gateway public: not allowed here (NotAllowedByListeners)".to_owned());
    plain.route.is_accepted = false;
    plain.status.as_mut().unwrap().step_started_at = None;
    plain.reconcile(ALL);
    assert_eq!(plain.phase(), Some(CanaryPhase::Analysing), "the candidate has added nothing but a weight");
}

/// With three pods and all requests.
fn promoting(pin: Pin) -> World {
    let mut world = World::new(Canary { pin, ..steps() });
    world.promotes();
    assert_eq!((world.route.share.weight, world.pods.as_ref().unwrap().1), (100, 3));
    world
}

#[test]
fn a_gateway_that_refuses_a_pin_in_a_promotion_gets_the_rules_of_stable_alone() {
    let mut world = promoting(Pin::Cookie);
    world.rules_refused = Some("Gateway public: no such filter (UnsupportedValue)".to_owned());
    world.leaving = 1;
    world.reconcile(ALL);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Promoting), 0));
    assert_eq!(world.pods.as_ref().unwrap().1, 3, "a gateway may still send them requests");
    world.rules_refused = None;
    world.go_on(5, 10);
    assert_eq!(world.route.share.weight, 0, "they are not tried again");
    assert_eq!(world.pods.as_ref().unwrap().1, 1);
}

/// The number of its pods was that of a step.
#[test]
fn a_candidate_whose_steps_are_removed_in_a_promotion_keeps_the_pods_of_its_share() {
    let mut world = promoting(Pin::None);
    world.canary.as_mut().unwrap().steps.clear();
    world.leaving = 2;
    world.reconcile(ALL);
    assert_eq!((world.route.share.weight, world.pods.as_ref().unwrap().1), (100, 3));
    world.is_rolling = true;
    world.reconcile(ALL);
    assert_eq!((world.route.share.weight, world.pods.as_ref().unwrap().1), (100, 3));
}

/// The second pod is that of a hand-over from a node that is emptied.
#[test]
fn a_candidate_without_steps_gets_no_pod_more_in_a_promotion() {
    let mut world = World::new(canary(&json!({"match": [{"header": "a", "value": "b"}]})));
    world.go_on(4, 10);
    world.canary.as_mut().unwrap().approved_steps = 1;
    world.stable_is_complete = false;
    world.go_on(2, 10);
    assert_eq!((world.phase(), world.route.share.matches), (Some(CanaryPhase::Promoting), true));
    world.pods = Some((world.revision(), 2));
    world.leaving = 1;
    assert_eq!(world.next().pods, Wanted::Replicas(1));
}

/// What a gateway has against the rules of stable is no fault of the candidate's.
#[test]
fn copies_and_headers_begin_when_the_rules_without_them_are_accepted() {
    let mut world = World::new(canary(&json!({"mirror": true})));
    world.go_on(1, 10);
    world.come_up();
    for _ in 0..4 {
        world.reconcile(ALL);
        world.route.is_accepted = false;
    }
    assert!(!world.route.share.mirrors);
    world.go_on(3, 10);
    assert!(world.route.share.mirrors);
}

#[test]
fn no_share_rises_while_another_manager_keeps_changing_the_route() {
    let mut world = World::new(steps());
    world.is_contested = true;
    world.go_on(10, 61);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Starting), 0));
    world.is_contested = false;
    world.go_on(4, 10);
    world.canary.as_mut().unwrap().approved_steps = 4;
    world.is_contested = true;
    world.go_on(10, 61);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 10));
    let mut lost = world.clone();
    lost.ready = 0;
    lost.go_on(3, 10);
    lost.ready = 1;
    lost.go_on(3, 10);
    assert_eq!(lost.route.share.weight, 0, "what was lost does not come back meanwhile");
    // Its weight is there, and it has not begun.
    let mut written = world.clone();
    written.status.as_mut().unwrap().step_started_at = None;
    written.reconcile(ALL);
    assert!(written.status.as_ref().unwrap().step_started_at.is_some(), "a share is judged all the same");
    world.finding = Finding::Fails { reason: reasons::ANALYSIS_FAILED, message: String::new() };
    let mut bad = world.clone();
    bad.go_on(1, 1);
    assert_eq!(bad.route.share.weight, 0, "a bad candidate loses its share");
    (world.finding, world.is_contested) = (Finding::NotAsked, false);
    world.go_on(3, 61);
    assert_eq!(world.route.share.weight, 50);
}

#[test]
fn a_wait_for_approval_goes_on_while_the_route_is_contested() {
    let mut world = World::new(steps());
    world.go_on(6, 61);
    assert_eq!(world.phase(), Some(CanaryPhase::AwaitingApproval));
    world.is_contested = true;
    world.go_on(2, 61);
    assert_eq!(world.phase(), Some(CanaryPhase::AwaitingApproval));
}

#[test]
fn a_candidate_that_does_not_become_ready_in_time_is_rolled_back_and_not_tried_again() {
    let mut world = World::new(steps());
    world.is_sound = false;
    world.go_on(3, 60);
    assert_eq!(world.phase(), Some(CanaryPhase::Starting));
    world.is_overdue = true;
    world.go_on(2, 60);
    assert_eq!((world.phase(), world.route.share), (Some(CanaryPhase::RolledBack), Share::default()));
    let rollback = world.status.as_ref().unwrap().last_rollback.clone().unwrap();
    assert_eq!((&*rollback.reason, &*rollback.message), ("CandidateUnready", "no GPU is free"));
    assert_eq!(world.pods, Some(("v2".to_owned(), 0)), "it holds no GPU");
    (world.is_overdue, world.is_sound) = (false, true);
    world.go_on(5, 60);
    assert_eq!(world.phase(), Some(CanaryPhase::RolledBack));
}

/// The route is written before the status. A process that ends in between must not have raised the share of a step that the
/// status does not have.
#[test]
fn a_crash_between_two_steps_takes_no_share_back() {
    for writes in 0..=4 {
        let mut world = World::new(steps());
        world.canary.as_mut().unwrap().approved_steps = 2;
        world.go_on(5, 10);
        assert_eq!(world.route.share.weight, 10);
        let mut before = 10;
        for _ in 0..12 {
            for writes in [writes, ALL] {
                world.reconcile(writes);
                world.accept();
                world.come_up();
                let weight = world.route.share.weight;
                assert!(weight >= before, "from {before} % to {weight} %, after {writes} writes");
                before = weight;
            }
            world.now += 61;
        }
        assert_eq!(before, 100);
    }
}
