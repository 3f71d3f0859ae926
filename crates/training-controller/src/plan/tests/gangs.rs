//! Gangs: the ranks of an attempt begin and end one after the other.

use api::{launcher::Message, reasons, trainingjob::Phase};
use runtime::write::{
    events::{Note, Severity},
    refusal::Refusal,
};
use serde_json::json;
use workload::views::node::LossKind;

use super::{GANG, World, because, running};
use crate::{
    plan::{Run, refused::refused_run},
    tests::{at, defaults},
};

#[test]
fn a_rank_that_ends_before_the_others_is_none_that_waits_for_its_start() {
    let mut world = World::training(GANG);
    world.passes(10_000);
    world.rank_ends(1);
    assert_eq!((world.status().ended_attempts, world.failures()), (0, vec![]));
}

#[test]
fn the_rank_that_failed_first_may_be_seen_last() {
    let mut world = World::training(GANG);
    world.passes(100);
    world.trainer_fails(0, 1, &because(reasons::PEER_LOST));
    assert_eq!(world.status().ended_attempts, 0, "the evidence is not complete");
    world.passes(6);
    world.trainer_fails(1, 2, &Message::default());
    assert_eq!(world.outcome(), (Phase::Failed, reasons::INVALID_ARGUMENTS));
    assert_eq!(world.status().failure.as_ref().unwrap().node.as_deref(), Some("node-1"));
}

#[test]
fn a_gang_of_which_one_rank_hangs_is_given_up_after_ten_seconds() {
    let mut world = World::training(GANG);
    world.trainer_fails(0, 2, &Message::default());
    world.passes(9);
    assert_eq!(world.status().ended_attempts, 0);
    world.passes(1);
    assert_eq!(world.outcome(), (Phase::Failed, reasons::INVALID_ARGUMENTS));
}

#[test]
fn the_loss_of_a_node_that_ends_the_connections_of_its_gang_costs_no_retry() {
    let mut world = World::training(GANG);
    // The node of rank 1 is gone. The other rank notices it long before Kubernetes does.
    world.trainer_fails(0, 1, &because(reasons::PEER_LOST));
    world.passes(10);
    world.passes(30);
    world.loses("node-1", LossKind::Unreachable);
    world.passes(30);
    assert_eq!((world.status().retries, world.phase()), (0, Phase::Pending));
}

#[test]
fn a_gang_that_is_half_placed_for_ten_minutes_gives_its_gpus_back() {
    let mut world = World::new(GANG);
    world.settles();
    world.pod(0, &running());
    let why = "0/4 nodes are available";
    let scheduled =
        json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}]);
    world.pod(1, &json!({"phase": "Pending", "node": null, "conditions": scheduled}));
    world.settles();
    assert_eq!(world.condition("Scheduled"), ("False", reasons::UNSCHEDULABLE));
    assert_eq!(world.wakes(), 600);
    assert_eq!((world.failures(), world.status().retries), (vec![(reasons::UNSCHEDULABLE, 1)], 0));
    assert_eq!(world.deleted, ["qwen-1"]);
    world.pods_go();
    assert_eq!(world.jobs(), ["qwen-1"]);
    assert!((10..20).contains(&world.wakes()));
    assert_eq!(world.jobs(), ["qwen-1", "qwen-2"]);
}

#[test]
fn a_gang_of_which_a_pod_cannot_be_created_gives_its_gpus_back() {
    let mut world = World::new(GANG);
    world.settles();
    world.pod(0, &running());
    world.passes(601);
    assert_eq!((world.status().ended_attempts, world.deleted.as_slice()), (1, &["qwen-1".to_owned()][..]));
}

#[test]
fn a_quota_that_refuses_a_part_of_a_gang_is_named() {
    let mut world = World::new(GANG);
    world.settles();
    world.pod(0, &running());
    world.observed.refused_pods = Some("exceeded quota: gpus".into());
    world.settles();
    assert_eq!(world.condition("Scheduled"), ("False", reasons::QUOTA_PENDING));
    assert_eq!(world.message(), "only 1 of 2 pods were created: exceeded quota: gpus");
    world.passes(601);
    let failure = world.status().failure.as_ref().unwrap().message.clone().unwrap();
    assert!(failure.contains("(exceeded quota: gpus)"), "{failure}");
}

#[test]
fn the_loss_of_a_rank_after_all_have_run_is_no_gang_that_is_half_placed() {
    let mut world = World::training(GANG);
    world.passes(86_400);
    world.observed.pods.remove(1);
    world.passes(3);
    assert_eq!(world.status().ended_attempts, 0, "the failure of its Job ends the attempt");
    // FailureTarget, while rank 0 still saves.
    world.job_fails();
    world.passes(5);
    assert_eq!(world.failures(), [(reasons::PREEMPTED, 1)]);
}

#[test]
fn a_pod_that_starts_slowly_is_waited_for_longer_and_costs_no_retry() {
    let mut world = World::new(GANG);
    world.settles();
    world.pod(0, &running());
    let starts = json!({"phase": "Pending", "containerStatuses": [
        {"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}},
    ]});
    world.pod(1, &starts);
    world.passes(601);
    assert_eq!(world.status().ended_attempts, 0);
    world.passes(3_000);
    assert_eq!((world.failures(), world.status().retries), (vec![(reasons::STARTING, 1)], 0));
}

#[test]
fn a_gang_that_is_half_placed_again_and_again_waits_on() {
    let mut world = World::new(GANG);
    world.settles();
    for _ in 0..30 {
        if world.requeue_after.is_some() && world.status().next_attempt_time.is_some() {
            world.wakes();
        }
        world.pod(0, &running());
        world.pod(1, &json!({"phase": "Pending", "node": null}));
        world.passes(600);
        world.pods_go();
    }
    assert_eq!(world.phase(), Phase::Pending, "{}", world.message());
}

#[test]
fn a_job_that_holds_no_gpu_waits_for_one_without_an_end() {
    let mut world = World::new(GANG);
    world.settles();
    for rank in 0..2 {
        world.pod(rank, &json!({"phase": "Pending", "node": null}));
    }
    world.passes(1_000_000);
    assert_eq!((world.phase(), world.status().ended_attempts), (Phase::Pending, 0));
}

#[test]
fn a_gang_that_trains_keeps_its_phase_and_its_events_when_a_child_is_refused() {
    let mut world = World::training(GANG);
    let refusal = Refusal::Denied("a policy protects Services".into());
    let event = Note { severity: Severity::Normal, reason: reasons::RESUMED, message: "it goes on".into() };
    let planned = Run { events: vec![event.clone()], ..world.plan() };
    let plan = refused_run(&refusal, planned, &world.observed, &defaults(), at(0));
    assert_eq!((plan.status.phase, plan.events), (Some(Phase::Running), vec![event]));
    world.job().status = Some(plan.status);
    let again = refused_run(&refusal, world.plan(), &world.observed, &defaults(), at(60));
    assert_eq!(again.events, [], "a refusal that lasts makes no event each time");
}

/// Seconds that the pods of the gang have to end, once its attempt is over.
fn graces(mut world: World) -> Vec<Option<i64>> {
    world.settles();
    world.observed.pods.iter().map(|pod| world.graces.get(pod.uid()).copied()).collect()
}

#[test]
fn ranks_that_can_save_nothing_more_give_their_gpus_back_soon() {
    let mut hangs = World::training(GANG);
    hangs.steps(10, 100);
    hangs.passes(1_800);
    assert_eq!(hangs.failures(), [(reasons::NO_PROGRESS, 1)]);
    assert_eq!(graces(hangs), [Some(30), Some(30)]);
    let mut fails = World::training(GANG);
    fails.trainer_fails(1, 1, &because(reasons::USER_ERROR));
    fails.passes(10);
    assert_eq!(graces(fails)[0], Some(30));
}

#[test]
fn ranks_that_are_preempted_or_suspended_have_their_own_time_to_save() {
    let mut preempted = World::training(GANG);
    preempted.observed.attempts.clear();
    preempted.terminate("qwen-1");
    preempted.settles();
    assert_eq!(preempted.failures(), [(reasons::PREEMPTED, 1)]);
    assert_eq!(graces(preempted), [Some(300), Some(300)]);
    let mut suspended = World::training(GANG);
    suspended.edits(|job| job.spec.suspend = true);
    assert_eq!(graces(suspended), [Some(300), Some(300)]);
    let deadline = "{model: m, dataset: d, method: lora, nodes: 2, activeDeadlineSeconds: 100}";
    let mut late = World::training(deadline);
    late.passes(100);
    assert_eq!(late.outcome(), (Phase::Failed, reasons::DEADLINE_EXCEEDED));
    assert_eq!(graces(late), [Some(300), Some(300)]);
}
