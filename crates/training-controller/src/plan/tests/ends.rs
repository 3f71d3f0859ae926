//! Ends by the user or by the clock: suspend, pause, the deadline and the TTL.

use std::sync::Arc;

use api::{conditions, launcher::Message, reasons, trainingjob::Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::write::refusal::Refusal;

use super::{GANG, LORA, World, because, message_at};
use crate::{
    plan::{refused::refused_run, rejected},
    tests::{at, defaults},
    validate::Invalid,
};

const WEEK: i64 = 604_800;

fn succeeded(spec: &str) -> World {
    let mut world = World::training(spec);
    world.succeeds(&message_at(Some(100)));
    world
}

#[test]
fn a_suspended_job_has_no_pods_and_resumes_without_a_retry() {
    let mut world = World::training(LORA);
    world.steps(50, 100);
    world.saves(50);
    world.edits(|job| job.spec.suspend = true);
    assert_eq!((world.deleted.as_slice(), world.status().ended_attempts), (&["qwen-1".to_owned()][..], 1));
    world.pods_go();
    assert_eq!(world.outcome(), (Phase::Pending, reasons::SUSPENDED));
    assert_eq!(world.condition(conditions::SUSPENDED), ("True", reasons::SUSPENDED));
    world.passes(1_000_000);
    assert_eq!(world.jobs(), ["qwen-1"]);
    world.edits(|job| job.spec.suspend = false);
    world.starts();
    assert_eq!((world.jobs(), world.phase()), (vec!["qwen-1", "qwen-2"], Phase::Running));
    assert_eq!(world.condition(conditions::SUSPENDED), ("False", reasons::RESUMED));
    assert_eq!((world.status().retries, world.failures()), (0, vec![]));
    assert_eq!(world.status().checkpoint.as_ref().map(|saved| saved.step), Some(50));
}

#[test]
fn a_job_that_is_created_suspended_makes_nothing() {
    let mut world = World::new("{model: m, dataset: d, method: lora, suspend: true}");
    world.settles();
    assert_eq!((world.jobs(), world.claims.len()), (vec![], 0));
    assert_eq!(world.outcome(), (Phase::Pending, reasons::SUSPENDED));
}

#[test]
fn a_job_that_is_suspended_twenty_times_has_no_retry() {
    let mut world = World::training(LORA);
    for _ in 0..20 {
        world.edits(|job| job.spec.suspend = true);
        world.pods_go();
        world.edits(|job| job.spec.suspend = false);
        world.starts();
    }
    assert_eq!((world.status().attempts, world.status().retries, world.phase()), (21, 0, Phase::Running));
}

#[test]
fn an_attempt_that_succeeded_is_not_suspended() {
    let mut world = World::training(LORA);
    world.job().spec.suspend = true;
    world.succeeds(&message_at(Some(100)));
    assert_eq!(world.phase(), Phase::Succeeded);
}

#[test]
fn a_paused_job_is_left_as_it_is() {
    let mut world = World::training(LORA);
    world.edits(|job| job.spec.pods.paused = true);
    world.fails(1, &because(reasons::USER_ERROR));
    world.passes(100);
    assert_eq!((world.jobs(), world.status().ended_attempts, world.deleted.len()), (vec!["qwen-1"], 0, 0));
    world.edits(|job| job.spec.pods.paused = false);
    assert_eq!(world.status().ended_attempts, 1);
    world.wakes();
    assert_eq!((world.jobs(), world.status().retries), (vec!["qwen-1", "qwen-2"], 1));
}

#[test]
fn a_paused_job_is_not_deleted_when_its_time_is_over() {
    let mut world = succeeded(LORA);
    world.edits(|job| job.spec.pods.paused = true);
    world.passes(2 * WEEK);
    assert!(!world.is_expired);
    world.edits(|job| job.spec.pods.paused = false);
    assert!(world.is_expired);
}

#[test]
fn a_paused_job_still_shows_its_progress() {
    let mut world = World::training(LORA);
    world.edits(|job| job.spec.pods.paused = true);
    world.steps(10, 100);
    assert_eq!(world.status().progress.as_ref().map(|progress| progress.step), Some(10));
}

#[test]
fn a_job_that_takes_longer_than_its_deadline_has_failed() {
    let mut world = World::new("{model: m, dataset: d, method: lora, activeDeadlineSeconds: 100}");
    world.settles();
    world.passes(500);
    world.starts();
    assert_eq!(world.phase(), Phase::Running, "the time in queues does not count");
    assert_eq!(world.wakes(), 100);
    assert_eq!(world.outcome(), (Phase::Failed, reasons::DEADLINE_EXCEEDED));
    assert_eq!(world.deleted, ["qwen-1"]);
    assert_eq!(world.status().completion_time, Some(Time(at(600))));
    world.pods_go();
    world.passes(1_000);
    assert_eq!(world.jobs(), ["qwen-1"]);
}

#[test]
fn the_deadline_counts_from_the_first_start_over_all_attempts() {
    let mut world = World::training("{model: m, dataset: d, method: lora, activeDeadlineSeconds: 100}");
    world.passes(60);
    world.is_preempted(Some(5));
    world.starts();
    world.passes(39);
    assert_eq!(world.phase(), Phase::Running);
    world.passes(1);
    assert_eq!(world.outcome(), (Phase::Failed, reasons::DEADLINE_EXCEEDED));
}

#[test]
fn the_time_for_which_a_job_is_suspended_does_not_count_against_its_deadline() {
    let mut world = World::training("{model: m, dataset: d, method: lora, activeDeadlineSeconds: 100}");
    world.passes(60);
    world.edits(|job| job.spec.suspend = true);
    world.pods_go();
    world.passes(100_000);
    world.edits(|job| job.spec.suspend = false);
    world.starts();
    assert_eq!((world.phase(), world.jobs().len()), (Phase::Running, 2));
    assert_eq!(world.status().start_time, Some(Time(at(0))), "it began once");
    world.passes(39);
    assert_eq!(world.phase(), Phase::Running);
    assert_eq!(world.wakes(), 1);
    assert_eq!(world.outcome(), (Phase::Failed, reasons::DEADLINE_EXCEEDED));
}

#[test]
fn a_job_that_another_release_suspended_has_an_attempt_when_it_is_resumed() {
    let mut world = World::training("{model: m, dataset: d, method: lora, activeDeadlineSeconds: 100}");
    world.edits(|job| job.spec.suspend = true);
    world.pods_go();
    let status = world.job().status.as_mut().unwrap();
    (status.active_since, status.active_seconds) = (None, None);
    world.passes(100_000);
    world.edits(|job| job.spec.suspend = false);
    world.starts();
    assert_eq!(world.phase(), Phase::Running);
}

#[test]
fn the_time_in_a_queue_does_not_count_against_the_deadline_of_any_attempt() {
    let spec = "{model: m, dataset: d, method: lora, queueName: team, activeDeadlineSeconds: 100}";
    let mut world = World::new(spec);
    world.settles();
    world.passes(500);
    world.view().is_suspended = false;
    world.starts();
    world.passes(60);
    world.is_preempted(Some(5));
    world.passes(100_000);
    assert_eq!(world.condition(conditions::SCHEDULED), ("False", reasons::QUOTA_PENDING));
    world.view().is_suspended = false;
    world.starts();
    world.passes(39);
    assert_eq!(world.phase(), Phase::Running);
    world.passes(1);
    assert_eq!(world.outcome(), (Phase::Failed, reasons::DEADLINE_EXCEEDED));
}

#[test]
fn a_deadline_that_is_raised_in_time_keeps_the_job() {
    let mut world = World::training("{model: m, dataset: d, method: lora, activeDeadlineSeconds: 100}");
    world.passes(99);
    world.edits(|job| job.spec.active_deadline_seconds = Some(200));
    world.passes(50);
    assert_eq!(world.phase(), Phase::Running);
}

#[test]
fn a_job_that_succeeded_at_its_deadline_has_succeeded() {
    let mut world = World::training("{model: m, dataset: d, method: lora, activeDeadlineSeconds: 100}");
    world.seconds = 100;
    world.succeeds(&message_at(Some(100)));
    assert_eq!(world.phase(), Phase::Succeeded);
}

#[test]
fn after_the_end_a_trainer_that_hangs_gets_no_longer_than_30_seconds() {
    let mut world =
        World::training("{model: m, dataset: d, method: lora, noProgressSeconds: 600, retryLimit: 0}");
    world.steps(5, 100);
    world.passes(600);
    assert_eq!(world.outcome(), (Phase::Failed, reasons::NO_PROGRESS));
    world.settles();
    assert_eq!(world.graces.values().collect::<Vec<_>>(), [&30]);
}

#[test]
fn after_the_end_what_still_runs_is_deleted_and_nothing_is_made() {
    let mut world = World::training(GANG);
    world.trainer_fails(0, 2, &Message::default());
    world.passes(10);
    assert_eq!(world.phase(), Phase::Failed);
    world.observed.pods.clear();
    world.settles();
    assert_eq!(world.deleted, ["qwen-1"]);
    let children = world.plan().children.len();
    assert_eq!((children, world.jobs()), (0, vec!["qwen-1"]));
}

#[test]
fn the_children_of_a_job_that_has_ended_are_never_made_again() {
    let mut world = succeeded(LORA);
    world.observed.attempts.clear();
    world.claims.clear();
    world.pods_go();
    assert_eq!((world.phase(), world.jobs(), world.claims.len()), (Phase::Succeeded, vec!["qwen-1"], 0));
}

#[test]
fn a_job_is_deleted_at_the_very_second_of_its_ttl() {
    let mut world = World::training("{model: m, dataset: d, method: lora, ttlSecondsAfterFinished: 5}");
    world.passes(70);
    world.succeeds(&message_at(Some(100)));
    assert_eq!(world.requeue_after.map(|wait| wait.as_secs()), Some(5));
    world.passes(4);
    assert!(!world.is_expired);
    assert_eq!(world.wakes(), 1);
    assert!(world.is_expired);
}

#[test]
fn a_failed_job_is_deleted_a_week_later() {
    let mut world = World::training(LORA);
    world.fails(2, &Message::default());
    assert_eq!(world.wakes(), WEEK);
    assert!(world.is_expired);
}

#[test]
fn a_job_whose_time_was_over_before_the_process_started_is_deleted_at_once() {
    let mut world = succeeded(LORA);
    world.seconds += 10 * WEEK;
    world.settles();
    assert!(world.is_expired);
}

#[test]
fn a_ttl_of_minus_one_keeps_a_job_for_ever() {
    let mut world = succeeded("{model: m, dataset: d, method: lora, ttlSecondsAfterFinished: -1}");
    assert_eq!(world.requeue_after, None);
    world.passes(100 * WEEK);
    assert!(!world.is_expired);
}

#[test]
fn a_ttl_that_is_changed_after_the_end_applies() {
    let mut world = succeeded(LORA);
    world.edits(|job| job.spec.ttl_seconds_after_finished = 60);
    assert_eq!(world.status().observed_generation, 2);
    assert_eq!(world.wakes(), 60);
    assert!(world.is_expired);
}

#[test]
fn the_ttl_waits_for_jobs_that_still_need_the_result() {
    let mut world = succeeded("{model: m, dataset: d, method: lora, ttlSecondsAfterFinished: 5}");
    world.observed.dependents = 1;
    world.passes(1_000);
    assert!(!world.is_expired);
    world.observed.dependents = 0;
    world.settles();
    assert!(world.is_expired);
}

#[test]
fn the_ttl_begins_when_the_result_has_been_uploaded() {
    let upload = "output: {upload: {uri: 's3://models/qwen'}}, ttlSecondsAfterFinished: 5";
    let mut world = succeeded(&format!("{{model: m, dataset: d, method: lora, {upload}}}"));
    assert_eq!(world.outcome(), (Phase::Running, reasons::UPLOADING));
    world.passes(1_000);
    assert!(!world.is_expired && world.status().completion_time.is_none());
    let mut job = world.observed.upload.as_deref().expect("a Job that uploads").clone();
    job.completed = Some(at(1_000));
    world.observed.upload = Some(Arc::new(job));
    world.passes(10);
    assert_eq!(world.wakes(), 5, "its report may be seen later");
    assert_eq!(world.outcome(), (Phase::Succeeded, reasons::SUCCEEDED));
    assert_eq!(world.jobs(), ["qwen-upload-check", "qwen-1", "qwen-upload"]);
    assert_eq!(world.condition(conditions::UPLOADED), ("True", reasons::UPLOADED));
    assert_eq!(world.wakes(), 5);
    assert!(world.is_expired);
}

#[test]
fn a_spec_that_became_invalid_after_the_end_changes_nothing() {
    let mut world = succeeded(LORA);
    let before = world.status().clone();
    let plan = rejected(&Invalid("no".into()), &world.observed, at(9));
    assert_eq!(plan.status, before);
    world.apply(plan);
    assert_eq!(world.phase(), Phase::Succeeded);
}

#[test]
fn a_refusal_of_a_leftover_is_no_fault() {
    let world = World::new(LORA);
    let refusal = Refusal::Leftover { deleted: None, message: "still there".into() };
    let plan = refused_run(&refusal, world.plan(), &world.observed, &crate::tests::defaults(), at(0));
    assert!(plan.events.is_empty() && plan.status.conditions.iter().all(|known| known.type_ != "Stalled"));
    assert_eq!(plan.requeue_after.map(|wait| wait.as_secs()), Some(1));
}

#[test]
fn a_leftover_that_does_not_go_is_a_conflict() {
    let mut world = World::new(LORA);
    let refusal = Refusal::Leftover { deleted: Some(at(-91)), message: "held back by its finalizers".into() };
    let plan = refused_run(&refusal, world.plan(), &world.observed, &defaults(), at(0));
    assert_eq!(plan.requeue_after.map(|wait| wait.as_secs()), Some(10));
    world.apply(plan);
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::OWNERSHIP_CONFLICT));
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
    let plan = refused_run(&refusal, world.plan(), &world.observed, &defaults(), at(100));
    world.apply(plan);
    assert_eq!(world.outcome(), (Phase::Failed, reasons::DEADLINE_EXCEEDED));
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
