//! Faults of the code that these tests have found.

use std::sync::Arc;

use api::{
    conditions,
    launcher::Message,
    reasons,
    trainingjob::{Phase, TrainingJobStatus},
};
use runtime::refusal::Refusal;
use serde_json::json;
use workload::node::LossKind;

use super::{GANG, LORA, World, because, ended, flag, message_at, pod, running};
use crate::{
    plan::refused,
    tests::{at, defaults, job},
};

/// The trainer of this rank has ended well, and its Job has not completed.
fn rank_ends(world: &mut World, rank: usize) {
    let mut status = ended(0, "Completed", &message_at(Some(100)), world.seconds);
    status["phase"] = "Succeeded".into();
    world.pod(rank, &status);
    world.settles();
}

#[test]
fn a_rank_that_ends_before_the_others_is_none_that_waits_for_its_start() {
    let mut world = World::training(GANG);
    world.passes(10_000);
    rank_ends(&mut world, 1);
    assert_eq!((world.status().ended_attempts, world.failures()), (0, vec![]));
}

#[test]
fn a_trainer_that_has_ended_keeps_the_phase_until_its_job_has_completed() {
    let mut world = World::training(LORA);
    world.steps(100, 100);
    rank_ends(&mut world, 0);
    assert_eq!(world.phase(), Phase::Running);
}

#[test]
fn a_failed_pod_of_an_earlier_job_of_the_same_name_says_nothing_of_this_one() {
    let mut world = World::new(LORA);
    let status = ended(2, "Error", &Message::default(), 0);
    world.observed.pods.push(Arc::new(pod("qwen-1", "uid-of-an-earlier-job", 0, &status)));
    world.settles();
    assert_eq!((world.jobs(), world.phase()), (vec!["qwen-1"], Phase::Pending));
}

#[test]
fn a_job_waits_for_a_missing_dependency_although_another_one_has_succeeded() {
    let mut world = World::new("{model: m, dataset: d, method: lora, dependsOn: [a, b]}");
    let mut a = job("a", LORA);
    a.status = Some(TrainingJobStatus { phase: Some(Phase::Succeeded), ..TrainingJobStatus::default() });
    world.others = vec![Arc::new(a)];
    world.settles();
    assert_eq!((world.jobs(), world.outcome()), (vec![], (Phase::Pending, reasons::DEPENDENCY_NOT_FOUND)));
}

#[test]
fn a_job_that_has_ended_stays_so_when_the_deletion_of_a_child_is_refused() {
    let mut world = World::training("{model: m, dataset: d, method: lora, activeDeadlineSeconds: 100}");
    world.seconds = 100;
    // The end is written, and nothing is deleted yet.
    let plan = world.plan();
    world.apply(plan);
    assert_eq!(world.phase(), Phase::Failed);
    let refusal = Refusal::Denied("a policy protects Jobs".into());
    let plan = refused(&refusal, world.plan(), &world.observed, &defaults(), at(100));
    world.apply(plan);
    assert_eq!(world.outcome(), (Phase::Failed, reasons::DEADLINE_EXCEEDED));
}

#[test]
fn a_gang_that_trains_keeps_its_phase_when_a_child_is_refused() {
    let world = World::training(GANG);
    let refusal = Refusal::Denied("a policy protects Services".into());
    let plan = refused(&refusal, world.plan(), &world.observed, &defaults(), at(0));
    assert_eq!(plan.status.phase, Some(Phase::Running));
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
fn a_gang_of_which_a_pod_cannot_be_created_gives_its_gpus_back() {
    let mut world = World::new(GANG);
    world.settles();
    world.pod(0, &running());
    world.passes(601);
    assert_eq!((world.status().ended_attempts, world.deleted.as_slice()), (1, &["qwen-1".to_owned()][..]));
}

#[test]
fn a_checkpoint_that_only_the_launcher_has_shown_keeps_the_stage_of_deepspeed() {
    let mut world = World::training("{model: m, dataset: d, method: lora, gpus: 2}");
    let checkpoint = message_at(Some(40)).checkpoint;
    world.fails(1, &Message { checkpoint, ..because(reasons::CUDA_OUT_OF_MEMORY) });
    assert_eq!(world.outcome(), (Phase::Failed, reasons::CUDA_OUT_OF_MEMORY));
}

#[test]
fn a_process_that_ends_after_the_creation_of_the_job_forgets_neither_its_image_nor_its_model() {
    let mut world = World::new(LORA);
    // The claim and the Job.
    world.writes_left = Some(2);
    world.settles();
    assert_eq!((world.jobs(), world.status().attempts), (vec!["qwen-1"], 1));
    let resolved = world.status().resolved.clone().unwrap_or_default();
    assert_eq!((resolved.image.as_str(), resolved.model.as_str()), ("trainer:swift4.4.3", "qwen/Qwen-7B"));
}

#[test]
fn a_mitigation_names_the_attempt_that_has_it_although_no_status_had_the_last_one() {
    let mut world =
        World::new("{model: m, dataset: d, method: lora, extraArgs: ['--per_device_train_batch_size=8']}");
    world.settles();
    // The process ended before the status, and the next one sees the failure first.
    world.job().status = None;
    world.fails(1, &because(reasons::CUDA_OUT_OF_MEMORY));
    assert_eq!(flag(&world.created[1], "--per_device_train_batch_size").as_deref(), Some("4"));
    assert_eq!(world.status().mitigations[0].attempt, 2);
}

#[test]
fn the_deadline_ends_a_job_that_waits_for_its_next_attempt() {
    let spec = "{model: m, dataset: d, method: lora, retryLimit: 20, activeDeadlineSeconds: 100}";
    let mut world = World::training(spec);
    world.passes(95);
    world.fails(1, &because(reasons::USER_ERROR));
    assert_eq!(world.wakes(), 5);
    assert_eq!(world.outcome(), (Phase::Failed, reasons::DEADLINE_EXCEEDED));
}

#[test]
fn a_paused_job_says_so() {
    let mut world = World::training(LORA);
    world.edits(|job| job.spec.pods.paused = true);
    let texts = world.status().conditions.iter().map(|known| known.message.as_str());
    assert!(
        texts.chain([world.message()]).any(|text| text.contains("paused")),
        "{:?}",
        world.status().conditions
    );
}

#[test]
fn a_job_that_failed_before_it_was_seen_to_run_has_a_start_time() {
    let mut world = World::new(LORA);
    world.settles();
    world.passes(20);
    world.fails(2, &Message::default());
    assert!(world.status().start_time.is_some());
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
fn a_job_is_reconciling_until_it_has_ended() {
    let mut world = World::training(LORA);
    assert_eq!(world.condition(conditions::RECONCILING).0, "True");
    world.succeeds(&message_at(Some(100)));
    assert_eq!(world.condition(conditions::RECONCILING).0, "absent");
}

#[test]
fn a_job_that_waits_for_what_only_a_person_can_change_is_stalled() {
    let mut world = World::new("{model: m, dataset: d, method: lora, dependsOn: [a]}");
    world.settles();
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::DEPENDENCY_NOT_FOUND));
}
