use api::{
    aiinference::{
        analysis::OnInconclusive,
        traffic::{Canary, CanaryPhase, Pin},
    },
    reasons,
};
use serde_json::json;

use super::*;
use crate::{plan::traffic::routes::Routes, tests::at};

mod held;
mod random;
mod world;

use self::world::*;

#[test]
fn a_candidate_gets_its_steps_one_after_the_other_and_then_stable_has_its_version() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 10));
    world.go_on(10, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::AwaitingApproval), 10));
    world.canary.as_mut().unwrap().approved_steps = 2;
    world.go_on(4, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 50));
    assert_eq!(world.pods, Some(("v2".to_owned(), 2)));
    world.go_on(20, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::AwaitingApproval), 100));
    world.canary.as_mut().unwrap().approved_steps = 4;
    world.stable_is_complete = false;
    world.go_on(3, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Promoting), 100));
    assert_eq!(world.promoted.as_deref(), Some("v2"));
    world.stable_is_complete = true;
    world.go_on(3, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Promoted), 0));
    assert!(world.pods.is_some(), "its requests end first");
    world.go_on(10, 10);
    assert_eq!((world.pods.clone(), world.route.share), (None, Share::default()));
    let route = world.route;
    world.canary = None;
    world.stable = 2;
    world.go_on(2, 10);
    assert_eq!((world.status.clone(), world.promoted.clone(), world.route), (None, None, route), "folded");
}

#[test]
fn a_candidate_that_loses_its_last_pod_gets_no_requests_and_the_third_time_none_any_more() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    for lost in 1..=3 {
        world.ready = 0;
        world.is_sound = false;
        world.reconcile(ALL);
        assert_eq!((world.route.share.weight, world.status.as_ref().unwrap().lost), (0, lost));
        world.is_sound = true;
        world.go_on(3, 10);
        assert_eq!(world.route.share.weight, if lost < 3 { 10 } else { 0 });
    }
    world.go_on(10, 10);
    assert_eq!(
        (world.phase(), world.pods.clone()),
        (Some(CanaryPhase::RolledBack), Some(("v2".to_owned(), 0)))
    );
    let rollback = world.status.as_ref().unwrap().last_rollback.clone().unwrap();
    assert_eq!((&*rollback.revision, &*rollback.reason), ("v2", "CandidateUnready"));
    world.content = 3;
    world.go_on(6, 10);
    assert_eq!(
        (world.phase(), world.route.share.weight),
        (Some(CanaryPhase::Analysing), 10),
        "another version"
    );
}

#[test]
fn a_candidate_has_neither_pods_nor_requests_before_its_evaluation_has_passed() {
    let mut world = World::new(steps());
    world.gate = Gate::Closed;
    world.go_on(10, 60);
    assert_eq!((world.phase(), world.pods.clone()), (Some(CanaryPhase::AwaitingEvaluation), None));
    assert_eq!(world.route.share, Share::default());
    let before = world.status.clone();
    world.go_on(3, 600);
    assert_eq!(world.status, before, "nothing is written at rest");
    // The verdict is there. Which model was evaluated is compared when the pods are ready.
    world.gate = Gate::PodsOnly;
    world.go_on(10, 60);
    assert_eq!(
        (world.phase(), world.pods.clone()),
        (Some(CanaryPhase::AwaitingEvaluation), Some(("v2".to_owned(), 1)))
    );
    assert_eq!((world.route.share.weight, world.route.share.matches), (0, false));
    world.gate = Gate::Open;
    world.go_on(3, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 10));
    world.content = 3;
    world.gate = Gate::Closed;
    world.go_on(20, 60);
    assert_eq!(
        (world.phase(), world.pods.clone()),
        (Some(CanaryPhase::AwaitingEvaluation), None),
        "another version"
    );
}

#[test]
fn an_evaluation_that_is_named_later_holds_back_the_next_step_and_takes_nothing() {
    let mut world = World::new(steps());
    world.canary.as_mut().unwrap().approved_steps = 4;
    world.go_on(5, 10);
    world.gate = Gate::Closed;
    world.go_on(30, 60);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::AwaitingEvaluation), 10));
    world.gate = Gate::Open;
    world.go_on(8, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 50));
    world.canary.as_mut().unwrap().abort = true;
    world.gate = Gate::Closed;
    world.go_on(8, 10);
    assert_eq!((world.phase(), world.pods.is_some()), (Some(CanaryPhase::Aborted), true));
    world.pods = None;
    world.go_on(2, 10);
    assert_eq!(world.pods, None, "an abort creates none");
}

#[test]
fn files_that_were_not_evaluated_lose_the_share_and_nothing_else() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    assert_eq!(world.route.share.weight, 10);
    world.gate = Gate::Contradicted;
    world.stable_serves = false;
    world.go_on(3, 10);
    assert_eq!(world.route.share.weight, 10, "no pod of stable can answer");
    world.stable_serves = true;
    world.go_on(3, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::AwaitingEvaluation), 0));
    assert_eq!(world.pods, Some(("v2".to_owned(), 1)), "its pods say what they have loaded");
    world.gate = Gate::Open;
    world.go_on(3, 10);
    assert_eq!(
        (world.phase(), world.route.share.weight),
        (Some(CanaryPhase::Analysing), 10),
        "from the first step"
    );
}

/// The gateways have not accepted that it gets no requests, so they may send some when the object is started again.
#[test]
fn pods_of_a_version_that_was_edited_and_aborted_do_not_become_the_next_one() {
    let mut world = World::new(steps());
    world.refers(true);
    world.reconcile(ALL);
    world.come_up();
    world.reconcile(ALL);
    world.reconcile(1);
    assert_eq!(world.route.share.weight, 10);
    (world.is_stopped, world.content) = (true, 4);
    world.canary.as_mut().unwrap().abort = true;
    world.reconcile(0);
    world.now += DRAIN;
    world.reconcile(ALL);
    assert_eq!(world.pods, None);
    world.is_stopped = false;
    world.canary.as_mut().unwrap().abort = false;
    world.reconcile(ALL);
    assert_eq!(world.pods, Some(("v4".to_owned(), 1)));
}

#[test]
fn a_share_that_was_lost_comes_back_when_the_evaluation_has_passed() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    world.gate = Gate::Closed;
    world.go_on(1, 10);
    assert_eq!(
        (world.phase(), world.route.share.weight),
        (Some(CanaryPhase::Analysing), 10),
        "it keeps the share"
    );
    world.ready = 0;
    world.go_on(4, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::AwaitingEvaluation), 0));
    world.gate = Gate::Open;
    world.go_on(3, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 10));
}

/// The rule of its route does not fit for a while, so its weight cannot be taken back.
#[test]
fn a_loss_counts_once_however_long_its_weight_stays() {
    let mut world = World::new(steps());
    world.refers(true);
    world.go_on(5, 10);
    assert_eq!(world.route.share.weight, 10);
    (world.is_unfit, world.is_sound, world.ready) = (true, false, 0);
    for _ in 0..4 {
        world.reconcile(4);
        assert_eq!((world.route.share.weight, world.status.as_ref().unwrap().lost), (10, 1));
    }
    world.is_sound = true;
    world.go_on(2, 10);
    world.ready = 0;
    world.reconcile(4);
    assert_eq!(world.status.as_ref().unwrap().lost, 2, "the next one");
}

#[test]
fn no_step_begins_while_it_is_unknown_whose_fault_a_failure_is() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    let since = |world: &World| world.status.as_ref().unwrap().step_started_at.clone();
    let began = since(&world);
    world.finding = Finding::Suspected;
    world.go_on(10, 10);
    assert_eq!(
        (since(&world), world.route.share.weight),
        (began, 10),
        "it goes on, and not to the next step"
    );
    world.ready = 0;
    world.go_on(5, 1);
    assert_eq!((since(&world), world.route.share.weight), (None, 10), "it is back, and does not begin");
    world.finding = Finding::Passes;
    world.go_on(1, 1);
    assert!(since(&world).is_some());
}

#[test]
fn an_abort_takes_all_requests_at_once_and_keeps_the_pods() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    world.canary.as_mut().unwrap().abort = true;
    world.reconcile(ALL);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Aborted), 0));
    world.go_on(20, 60);
    assert_eq!(world.pods, Some(("v2".to_owned(), 1)));
    world.canary = None;
    world.go_on(20, 60);
    assert_eq!((world.pods.clone(), world.status.clone()), (None, None));
}

#[test]
fn an_abort_while_stable_gets_the_version_takes_it_back() {
    let mut world = World::new(steps());
    world.canary.as_mut().unwrap().approved_steps = 4;
    world.go_on(14, 10);
    world.stable_is_complete = false;
    world.go_on(20, 10);
    assert_eq!((world.phase(), world.promoted.as_deref()), (Some(CanaryPhase::Promoting), Some("v2")));
    world.canary.as_mut().unwrap().abort = true;
    world.reconcile(ALL);
    assert_eq!(
        (world.phase(), world.promoted.clone(), world.route.share.weight),
        (Some(CanaryPhase::Aborted), None, 0)
    );
    assert_eq!(world.pods, Some(("v2".to_owned(), 3)), "its pods stay");
}

/// Promoting, with all requests at the candidate: stable's only pod is replaced.
fn promoting_without_stable() -> World {
    let mut world = World::new(steps());
    world.canary.as_mut().unwrap().approved_steps = 4;
    world.go_on(14, 10);
    (world.stable_is_complete, world.stable_serves) = (false, false);
    world.go_on(20, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Promoting), 100));
    world
}

#[test]
fn a_candidate_keeps_its_requests_while_no_pod_of_stable_can_answer_them() {
    let edits: [fn(&mut World); 2] = [|world| world.canary = None, |world| world.content = 9];
    for edit in edits {
        let mut world = promoting_without_stable();
        edit(&mut world);
        world.go_on(5, 10);
        assert_eq!(world.route.share.weight, 100);
        world.stable_serves = true;
        world.go_on(1, 10);
        assert_eq!(world.route.share.weight, 0);
    }
}

#[test]
fn a_candidate_that_is_ready_again_gets_its_share_of_a_promotion_back() {
    let mut world = promoting_without_stable();
    world.ready = 0;
    world.reconcile(ALL);
    assert_eq!(world.route.share.weight, 0);
    world.go_on(3, 10);
    assert_eq!(world.route.share.weight, 100);
}

#[test]
fn fewer_steps_make_no_approval_of_a_step_one_of_the_promotion() {
    for shorter in
        [json!({"weightPercent": 10}), json!({}), json!({"steps": [{"weightPercent": 10, "minSeconds": 60}]})]
    {
        let mut world = World::new(steps());
        world.canary.as_mut().unwrap().approved_steps = 2;
        world.go_on(5, 10);
        world.canary = Some(Canary { approved_steps: 2, ..canary(&shorter) });
        world.go_on(30, 61);
        assert_eq!(world.promoted, None, "{shorter}");
        world.canary.as_mut().unwrap().approved_steps = 3;
        world.go_on(30, 61);
        assert_eq!(world.phase(), Some(CanaryPhase::Promoted), "{shorter}");
    }
}

#[test]
fn approvals_of_the_version_before_approve_nothing() {
    let mut world = World::new(steps());
    world.canary.as_mut().unwrap().approved_steps = 4;
    world.go_on(60, 61);
    assert_eq!(world.phase(), Some(CanaryPhase::Promoted), "approved when it was created");
    world.content = 3;
    world.go_on(30, 61);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::AwaitingApproval), 10));
    world.canary.as_mut().unwrap().approved_steps = 2;
    world.go_on(30, 61);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::AwaitingApproval), 100));
}

#[test]
fn without_a_gateway_a_candidate_is_dark_and_ends_with_the_field() {
    let mut world = World::new(canary(&json!({})));
    world.gateway = false;
    world.go_on(3, 10);
    assert_eq!(world.phase(), Some(CanaryPhase::Dark));
    world.canary = None;
    world.go_on(2, 10);
    assert_eq!((world.pods.clone(), world.status.clone()), (None, None));
}

#[test]
fn a_fixed_share_stays_until_it_is_changed_or_approved() {
    let mut world =
        World::new(canary(&json!({"weightPercent": 30, "match": [{"header": "x-beta", "value": "1"}]})));
    world.go_on(5, 10);
    let share = Share { weight: 30, matches: true, is_known: true, ..Share::default() };
    assert_eq!((world.phase(), world.route.share), (Some(CanaryPhase::Analysing), share));
    world.go_on(50, 600);
    assert_eq!((world.phase(), world.route.share), (Some(CanaryPhase::Analysing), share));
    world.canary.as_mut().unwrap().weight_percent = 0;
    world.go_on(3, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Dark), 0));
    world.canary.as_mut().unwrap().approved_steps = 1;
    world.go_on(30, 10);
    assert_eq!((world.phase(), world.pods.clone()), (Some(CanaryPhase::Promoted), None));
}

/// Its pods may be ready before the first status is written. It has had no requests that have to end.
#[test]
fn a_candidate_that_is_as_new_as_its_object_does_not_begin_with_a_drain() {
    let mut world = World::new(steps());
    for _ in 0..5 {
        world.reconcile(3);
        world.accept();
        world.come_up();
    }
    assert!(!world.route.share.is_known, "no status knows of it");
    world.go_on(3, 1);
    assert_eq!(world.phase(), Some(CanaryPhase::Analysing));
}

#[test]
fn copies_begin_when_the_gateway_knows_the_candidate_and_end_before_its_pods() {
    let mut world = World::new(canary(&json!({"mirror": true})));
    world.go_on(6, 10);
    let mirrored = Share { mirrors: true, is_known: true, ..Share::default() };
    assert_eq!((world.phase(), world.route.share), (Some(CanaryPhase::Dark), mirrored));
    world.stable_serves = false;
    world.canary.as_mut().unwrap().abort = true;
    world.go_on(2, 10);
    assert_eq!(world.route.share, mirrored.without_requests(), "no client waits for its answers");
    assert_eq!(world.phase(), Some(CanaryPhase::Aborted));
}

/// The annotation `refresh` replaces its pods, one by one or all at once.
#[test]
fn pods_that_are_replaced_are_not_lost_and_the_step_begins_again() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    let began = world.status.as_ref().unwrap().step_started_at.clone();
    for _ in 0..4 {
        (world.is_rolling, world.is_sound, world.ready) = (true, false, 0);
        world.go_on(2, 1);
        assert_eq!((world.route.share.weight, world.status.as_ref().unwrap().lost), (0, 0));
        world.is_sound = true;
        world.go_on(3, 1);
        assert_eq!(
            world.status.as_ref().unwrap().step_started_at,
            None,
            "it is compared only when all have been"
        );
        world.is_rolling = false;
        world.go_on(3, 1);
    }
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 10));
    assert!(world.status.as_ref().unwrap().step_started_at > began);
}

fn open(then: OnInconclusive) -> Finding {
    let timeout = Duration::from_secs(600);
    Finding::Open { is_over: false, timeout, then, message: "few requests".to_owned() }
}

fn over(then: OnInconclusive) -> Finding {
    let timeout = Duration::from_secs(600);
    Finding::Open { is_over: true, timeout, then, message: "few requests".to_owned() }
}

#[test]
fn a_candidate_that_fails_loses_its_requests_and_then_its_pods() {
    let mut world = World::new(steps());
    world.finding = open(OnInconclusive::Hold);
    world.go_on(5, 10);
    world.finding = Finding::Fails { reason: reasons::ANALYSIS_FAILED, message: "20 % fail".to_owned() };
    world.reconcile(ALL);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::RollingBack), 0));
    // Its step is over, so nothing is judged any more.
    world.finding = Finding::NotAsked;
    world.go_on(20, 10);
    assert_eq!(world.phase(), Some(CanaryPhase::RolledBack));
    let rollback = world.status.as_ref().unwrap().last_rollback.clone().unwrap();
    assert_eq!((&*rollback.reason, &*rollback.message), ("AnalysisFailed", "20 % fail"));
    assert_eq!(world.pods.as_ref().unwrap().1, 0);
}

#[test]
fn no_step_and_no_promotion_goes_on_without_a_verdict() {
    let mut world = World::new(steps());
    world.canary.as_mut().unwrap().approved_steps = 4;
    world.finding = open(OnInconclusive::Hold);
    world.go_on(30, 10);
    assert_eq!(
        (world.phase(), world.route.share.weight),
        (Some(CanaryPhase::Analysing), 10),
        "approval is no verdict"
    );
    world.finding = over(OnInconclusive::Hold);
    world.go_on(2, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Held), 10));
    world.finding = Finding::Passes;
    world.go_on(2, 1);
    world.finding = open(OnInconclusive::Hold);
    world.go_on(30, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 50));
    world.finding = Finding::Passes;
    world.go_on(60, 61);
    assert_eq!(world.phase(), Some(CanaryPhase::Promoted));
}

#[test]
fn a_step_without_a_verdict_ends_as_the_user_says() {
    for (then, phase) in [
        (OnInconclusive::Rollback, CanaryPhase::RolledBack),
        (OnInconclusive::Promote, CanaryPhase::AwaitingApproval),
    ] {
        let mut world = World::new(steps());
        world.finding = open(then);
        world.go_on(30, 10);
        assert_eq!(world.phase(), Some(CanaryPhase::Analysing));
        world.finding = over(then);
        world.go_on(60, 10);
        assert_eq!(world.phase(), Some(phase), "{then:?}");
    }
}

/// An approval may take hours.
#[test]
fn a_step_that_has_passed_waits_for_its_approval_whatever_is_found_meanwhile() {
    let mut world = World::new(steps());
    world.finding = Finding::Passes;
    world.go_on(20, 10);
    assert_eq!(world.phase(), Some(CanaryPhase::AwaitingApproval));
    for finding in [open(OnInconclusive::Hold), over(OnInconclusive::Hold), over(OnInconclusive::Rollback)] {
        world.finding = finding;
        world.go_on(3, 600);
        assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::AwaitingApproval), 10));
    }
    world.canary.as_mut().unwrap().approved_steps = 2;
    world.finding = open(OnInconclusive::Hold);
    world.go_on(3, 10);
    assert_eq!(
        (world.phase(), world.route.share.weight),
        (Some(CanaryPhase::Analysing), 10),
        "it has to pass still"
    );
    world.finding = Finding::Passes;
    world.go_on(5, 10);
    assert_eq!(world.route.share.weight, 50);
}

#[test]
fn a_canary_that_is_set_again_while_its_requests_end_begins_with_the_first_step() {
    let mut world = World::new(steps());
    world.canary.as_mut().unwrap().approved_steps = 2;
    world.go_on(20, 10);
    assert!(world.route.share.weight >= 50);
    let canary = world.canary.take();
    world.go_on(3, 1);
    assert_eq!(world.route.share.weight, 0);
    world.canary = canary;
    world.go_on(3, 1);
    assert_eq!(world.route.share.weight, 10);
}

/// Servers scrape less often than the controller asks, so that some looks count nothing.
#[test]
fn a_step_that_passes_soon_keeps_its_pods_and_moves_when_all_is_counted() {
    let mut world = World::new(steps());
    let canary = world.canary.as_mut().unwrap();
    (canary.approved_steps, canary.steps[0].replicas, canary.steps[1].replicas) = (2, Some(3), Some(1));
    world.finding = Finding::PassesSoon;
    world.go_on(30, 10);
    let of = |world: &World| {
        (world.status.as_ref().unwrap().step, world.route.share.weight, world.pods.as_ref().unwrap().1)
    };
    assert_eq!((world.phase(), of(&world)), (Some(CanaryPhase::Analysing), (1, 10, 3)));
    world.finding = Finding::Passes;
    world.go_on(4, 10);
    assert_eq!(of(&world), (2, 50, 1));
}

/// Full GPUs may keep the pods of the next step waiting for hours.
#[test]
fn the_step_goes_on_and_is_judged_until_the_pods_of_the_next_one_are_ready() {
    let mut world = World::new(steps());
    world.canary.as_mut().unwrap().approved_steps = 2;
    world.finding = Finding::Passes;
    world.go_on(5, 10);
    world.is_sound = false;
    world.go_on(30, 10);
    let status = world.status.clone().unwrap();
    assert_eq!((status.step, world.route.share.weight, world.pods.as_ref().unwrap().1), (1, 10, 2));
    assert!(status.step_started_at.is_some());
    world.finding = open(OnInconclusive::Hold);
    world.go_on(3, 10);
    assert_eq!(world.pods.as_ref().unwrap().1, 2, "no pod that loads is taken away again");
    world.finding = Finding::Passes;
    world.is_sound = true;
    world.go_on(5, 10);
    assert_eq!((world.status.as_ref().unwrap().step, world.route.share.weight), (2, 50));
}

/// A fixed share is judged for as long as it lasts, and ends by a fail alone.
#[test]
fn a_fixed_share_with_an_analysis_is_promoted_only_with_a_pass() {
    let mut world = World::new(canary(&json!({"weightPercent": 30})));
    world.finding = over(OnInconclusive::Rollback);
    world.go_on(100, 60);
    assert_eq!(
        (world.phase(), world.route.share.weight),
        (Some(CanaryPhase::Analysing), 30),
        "its promotion is not approved"
    );
    world.canary.as_mut().unwrap().approved_steps = 1;
    world.finding = Finding::Passes;
    world.go_on(30, 10);
    assert_eq!(world.phase(), Some(CanaryPhase::Promoted));
}

#[test]
fn another_stable_version_begins_with_the_first_step_again() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    world.stable = 9;
    world.stable_is_complete = false;
    world.go_on(3, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Starting), 0));
    world.stable_is_complete = true;
    world.go_on(4, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 10));
}

/// A restored backup has the object without its status.
#[test]
fn a_lost_status_begins_with_no_requests() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    world.status = None;
    world.reconcile(ALL);
    assert_eq!(world.route.share.weight, 0);
}

/// After a restart the engines of before have not been read.
#[test]
fn a_candidate_that_has_ended_early_does_not_begin_to_end_again() {
    let mut world = World::new(steps());
    world.go_on(10, 10);
    assert!(world.has_served);
    world.finding = Finding::Fails { reason: "AnalysisFailed", message: String::new() };
    world.go_on(2, 1);
    world.engines_say(true);
    world.go_on(2, 1);
    assert_eq!(world.phase(), Some(CanaryPhase::RolledBack));
    world.engines_say(false);
    world.go_on(2, 1);
    assert_eq!(world.phase(), Some(CanaryPhase::RolledBack));
}

/// The controller ends after it has given the requests back, and before it writes that.
#[test]
fn the_end_of_requests_is_not_counted_from_before_they_came_back() {
    let mut world = World::new(steps());
    world.go_on(3, 1);
    world.canary = None;
    world.reconcile(ALL);
    world.canary = Some(steps());
    for _ in 0..3 {
        world.reconcile(1);
    }
    world.now += DRAIN;
    world.canary = None;
    world.gateway = false;
    (world.route, world.quiet_since) = (Route::default(), Some(world.now));
    world.reconcile(ALL);
}

/// The gateways may still send by the rule of before.
#[test]
fn the_candidate_keeps_its_pods_when_the_rule_of_its_user_does_not_fit_any_more() {
    let mut world = World::new(steps());
    world.refers(true);
    world.go_on(4, 1);
    assert_eq!((world.ready, world.shared().weight), (1, 10));
    (world.pods, world.ready) = (Some((world.revision(), 2)), 2);
    world.stable = 102;
    world.reconcile(1);
    world.is_unfit = true;
    world.reconcile(ALL);
    assert_eq!(world.pods, Some((world.revision(), 2)));
}

/// Its gateway was removed for good, and so accepts nothing.
#[test]
fn the_candidate_of_a_stopped_object_waits_for_its_gateways_as_long_as_requests_may_run() {
    let edits: [fn(&mut World); 5] = [
        |_| {},
        |world| world.canary = None,
        |world| world.content = 9,
        |world| world.finding = Finding::Fails { reason: reasons::ANALYSIS_FAILED, message: String::new() },
        |world| world.refers(true),
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        let mut world = World::new(steps());
        world.go_on(5, 10);
        assert_eq!((world.ready, world.shared().weight), (1, 10));
        edit(&mut world);
        world.reconcile(ALL);
        world.is_stopped = true;
        world.reconcile(ALL);
        world.reconcile(ALL);
        world.now += DRAIN - 1;
        world.reconcile(ALL);
        assert!(world.pods.as_ref().is_some_and(|(_, count)| *count == 1), "{number}: too early");
        assert_eq!(world.shared().weight, 0);
        world.now += 1;
        world.reconcile(ALL);
        let left = world.pods.clone().map_or(0, |(_, count)| count);
        assert_eq!(left, 0, "{number}");
    }
}

#[test]
fn a_candidate_whose_object_is_started_again_waits_for_its_gateways_anew() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    world.is_stopped = true;
    world.reconcile(ALL);
    world.now += DRAIN - 1;
    world.is_stopped = false;
    world.reconcile(ALL);
    world.is_stopped = true;
    world.reconcile(ALL);
    world.now += DRAIN - 1;
    world.reconcile(ALL);
    assert_eq!(world.pods, Some((world.revision(), 1)));
}

/// The Gateway has a typing error, or its class is not served.
#[test]
fn a_candidate_without_requests_needs_no_answer_of_a_gateway_to_shrink() {
    let mut world = World::new(steps());
    world.reconcile(ALL);
    world.come_up();
    world.reconcile(ALL);
    assert!(world.shared().is_known && !world.is_accepted());
    world.pods = Some((world.revision(), 3));
    world.reconcile(ALL);
    assert_eq!(world.pods, Some((world.revision(), 1)));
    world.is_stopped = true;
    world.reconcile(ALL);
    assert_eq!(world.pods, Some((world.revision(), 0)));
}
