//! Attempts, one after the other: when one begins, how its end is seen, and that each end is accounted for once.

use std::{sync::Arc, time::Duration};

use api::{
    conditions,
    launcher::Message,
    reasons,
    trainingjob::{Phase, TrainingJobStatus},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::write::refusal::Refusal;
use serde_json::json;
use workload::views::node::LossKind;

use super::{GANG, LORA, World, because, disruption, ended, message_at, pod, running};
use crate::{
    agents::Utilization,
    observe::Doubt,
    plan::{refused::refused_run, rejected},
    progress::Access,
    tests::{REFUSAL_RETRY, at, defaults},
    validate::{Invalid, validate},
};

#[test]
fn a_new_job_gets_its_claim_and_its_first_attempt() {
    let mut world = World::new(LORA);
    world.settles();
    assert_eq!((world.jobs(), world.claims.contains_key("qwen-output")), (vec!["qwen-1"], true));
    assert_eq!(
        (world.phase(), world.status().attempts, world.status().ended_attempts),
        (Phase::Pending, 1, 0)
    );
    assert_eq!(world.condition(conditions::ACCEPTED), ("True", reasons::VALID));
}

#[test]
fn rank_zero_is_found_at_every_length_of_a_name() {
    for (length, spec) in (40..=63).flat_map(|length| [(length, LORA), (length, GANG)]) {
        let mut world = World::named(&"n".repeat(length), spec);
        world.settles();
        // Any order: the pod of another rank may be listed first.
        for rank in (0..world.nodes()).rev() {
            world.pod(rank, &running());
        }
        world.settles();
        let rank_zero = world.observed.pods.iter().find(|pod| pod.completion_index == Some(0)).unwrap();
        assert_eq!(world.followed.as_deref(), Some(rank_zero.uid()), "{length}");
        world.steps(5, 27);
        world.succeeds(&message_at(Some(27)));
        let saved = world.status().checkpoint.as_ref().map(|saved| saved.path.as_str());
        assert_eq!((world.phase(), saved), (Phase::Succeeded, Some("/output/checkpoint-27")), "{length}");
    }
}

#[test]
fn a_job_prepares_and_then_trains() {
    let mut world = World::training(LORA);
    assert_eq!(world.outcome(), (Phase::Running, reasons::PREPARING));
    assert_eq!(world.condition(conditions::SCHEDULED), ("True", reasons::SCHEDULED));
    assert_eq!(world.status().start_time, Some(Time(at(0))));
    world.passes(30);
    world.steps(5, 100);
    assert_eq!(world.outcome(), (Phase::Running, reasons::TRAINING));
    let progress = world.status().progress.clone().unwrap();
    assert_eq!((progress.step, progress.total_steps, progress.percent), (5, 100, 5));
    assert_eq!(world.status().start_time, Some(Time(at(0))), "it began once");
}

#[test]
fn checkpoints_of_the_log_are_those_in_the_output_of_the_job() {
    let world = World::training("{model: m, dataset: d, method: lora, outputDir: /outputs/sft}");
    assert_eq!(world.plan().follow.unwrap().output_dir, "/outputs/sft");
}

#[test]
fn a_job_that_completes_has_succeeded() {
    let mut world = World::training(LORA);
    world.steps(95, 100);
    world.passes(60);
    world.succeeds(&message_at(Some(100)));
    assert_eq!(world.outcome(), (Phase::Succeeded, reasons::SUCCEEDED));
    let status = world.status();
    assert_eq!(status.completion_time, Some(Time(at(60))));
    assert_eq!(status.checkpoint.as_ref().map(|saved| saved.path.as_str()), Some("/output/checkpoint-100"));
    let progress = status.progress.as_ref().unwrap();
    assert_eq!((progress.step, progress.percent, &progress.eta), (100, 100, &None));
    assert_eq!((status.attempts, status.ended_attempts, status.failures.len()), (1, 1, 0));
}

#[test]
fn the_last_lines_of_a_log_are_waited_for_and_not_for_long() {
    let mut world = World::training(LORA);
    world.steps(95, 100);
    world.pod(0, &ended(0, "Completed", &message_at(Some(100)), 0));
    world.view().completed = Some(at(0));
    world.settles();
    assert_eq!(world.outcome(), (Phase::Running, reasons::TRAINING), "as before its end");
    assert_eq!(world.wakes(), 5);
    assert_eq!(world.phase(), Phase::Succeeded);
}

#[test]
fn a_trainer_that_stops_early_has_succeeded_and_its_message_says_so() {
    let mut world = World::training(LORA);
    world.steps(40, 100);
    world.succeeds(&Message { stopped_early: true, ..message_at(Some(40)) });
    assert_eq!(world.phase(), Phase::Succeeded);
    assert!(world.message().contains("stopped early by the trainer"), "{}", world.message());
    assert_eq!(world.status().progress.as_ref().map(|progress| progress.percent), Some(40));
}

#[test]
fn an_attempt_starts_only_when_every_pod_of_the_last_one_has_ended() {
    let mut world = World::training(GANG);
    let mut status = ended(80, "Error", &message_at(Some(7)), 0);
    status["conditions"] = json!([disruption()]);
    world.pod(0, &status);
    world.settles();
    world.passes(10);
    assert_eq!(world.status().ended_attempts, 1);
    world.job_fails();
    assert_eq!((world.jobs(), world.condition("Running")), (vec!["qwen-1"], ("False", reasons::RETRYING)));
    assert!(world.message().contains("qwen-1-1-abcde"), "{}", world.message());
    world.pod(1, &ended_pod());
    world.settles();
    assert_eq!(world.jobs(), ["qwen-1", "qwen-2"]);
}

fn ended_pod() -> serde_json::Value {
    ended(80, "Error", &Message::default(), 0)
}

#[test]
fn an_attempt_starts_only_when_the_last_ones_job_makes_no_pods_any_more() {
    let mut world = World::training(LORA);
    let mut status = ended_pod();
    status["conditions"] = json!([disruption()]);
    world.pod(0, &status);
    world.settles();
    assert_eq!((world.status().ended_attempts, world.jobs().len()), (1, 1));
    assert_eq!(world.deleted, [""; 0], "it ends by itself, and its log stays readable");
    world.job_fails();
    assert_eq!(world.jobs(), ["qwen-1", "qwen-2"]);
}

#[test]
fn pods_of_an_earlier_job_of_the_same_name_are_waited_for() {
    let mut world = World::new(LORA);
    world.observed.pods.push(Arc::new(pod("qwen-3", "uid-of-an-earlier-job", 0, &running())));
    world.settles();
    assert_eq!(world.jobs(), [""; 0]);
    assert!(world.status().conditions.iter().any(|known| known.message.contains("qwen-3-0-abcde")));
    world.pods_go();
    assert_eq!(world.jobs(), ["qwen-1"]);
}

/// A preemption, a failure, a full GPU, and success.
fn story(writes: Option<usize>) -> World {
    let spec = "{model: m, dataset: d, method: lora, extraArgs: ['--per_device_train_batch_size=8']}";
    let mut world = World::new(spec);
    world.writes_left = writes;
    world.settles();
    world.starts();
    world.is_preempted(Some(10));
    world.starts();
    world.fails(1, &because(reasons::USER_ERROR));
    world.passes(10);
    world.starts();
    world.fails(1, &because(reasons::CUDA_OUT_OF_MEMORY));
    world.starts();
    world.succeeds(&message_at(Some(100)));
    world
}

/// What must be the same whenever the process is restarted.
fn accounts(status: &TrainingJobStatus) -> (Option<Phase>, [i32; 4], String, usize) {
    let counts = [status.attempts, status.ended_attempts, status.retries, status.attempts_without_progress];
    (status.phase, counts, format!("{:?}", status.failures), status.mitigations.len())
}

#[test]
fn a_process_that_ends_between_any_two_writes_repeats_and_forgets_nothing() {
    let whole = story(None);
    assert_eq!((whole.phase(), whole.jobs().len()), (Phase::Succeeded, 4));
    let mut writes = 0;
    loop {
        let world = story(Some(writes));
        assert_eq!(world.jobs(), whole.jobs(), "after {writes} writes");
        assert_eq!(accounts(world.status()), accounts(whole.status()), "after {writes} writes");
        if world.writes_left.is_some() {
            break;
        }
        writes += 1;
    }
    assert!(writes > 15, "{writes}");
}

#[test]
fn a_status_that_was_never_written_makes_no_second_job() {
    let mut world = World::new(LORA);
    world.settles();
    world.job().status = None;
    world.settles();
    assert_eq!((world.jobs(), world.status().attempts), (vec!["qwen-1"], 1));
}

#[test]
fn a_job_that_was_deleted_by_hand_is_an_interruption() {
    let mut world = World::training(LORA);
    world.observed.attempts.clear();
    world.terminate("qwen-1");
    world.settles();
    assert_eq!(world.failures(), [(reasons::PREEMPTED, 1)]);
    assert_eq!((world.jobs(), world.status().retries), (vec!["qwen-1"], 0), "its pod still runs");
    world.pods_go();
    assert_eq!(world.jobs(), ["qwen-1", "qwen-2"]);
    assert!(
        world.status().failure.as_ref().unwrap().message.as_ref().unwrap().contains("Job qwen-1 was deleted")
    );
}

#[test]
fn a_job_that_is_being_deleted_is_an_interruption() {
    let mut world = World::training(LORA);
    let now = Some(Time(at(0)));
    world.view().metadata.deletion_timestamp = now;
    world.settles();
    assert_eq!((world.failures(), world.deleted.len()), (vec![(reasons::PREEMPTED, 1)], 0));
}

#[test]
fn a_job_may_be_seen_to_have_failed_before_its_pod() {
    let mut world = World::training(LORA);
    world.job_fails();
    assert_eq!((world.status().ended_attempts, world.requeue_after.map(|wait| wait.as_secs())), (0, Some(5)));
    world.passes(2);
    world.trainer_fails(0, 2, &Message::default());
    assert_eq!(world.outcome(), (Phase::Failed, reasons::INVALID_ARGUMENTS));
}

#[test]
fn a_pod_may_be_seen_to_have_failed_before_its_job() {
    let mut world = World::training(LORA);
    world.trainer_fails(0, 2, &Message::default());
    assert_eq!(world.outcome(), (Phase::Failed, reasons::INVALID_ARGUMENTS));
    world.job_fails();
    assert_eq!((world.jobs(), world.failures()), (vec!["qwen-1"], vec![(reasons::INVALID_ARGUMENTS, 1)]));
}

#[test]
fn a_job_that_failed_and_has_no_pod_was_interrupted() {
    let mut world = World::training(LORA);
    world.observed.pods.clear();
    world.job_fails();
    world.passes(4);
    assert_eq!(world.status().ended_attempts, 0);
    world.passes(1);
    assert_eq!((world.failures(), world.jobs().len()), (vec![(reasons::PREEMPTED, 1)], 2));
}

#[test]
fn where_the_api_server_has_no_newer_pods_nothing_is_waited_for() {
    let mut world = World::training(LORA);
    world.observed.pods.clear();
    world.observed.confirmed.insert(Doubt::UnseenPods);
    world.job_fails();
    assert_eq!(world.failures(), [(reasons::PREEMPTED, 1)]);
}

#[test]
fn a_node_that_is_unreachable_for_node_failure_seconds_ends_the_attempt_without_a_retry() {
    let mut world = World::training(GANG);
    world.loses("node-1", LossKind::Unreachable);
    assert_eq!(world.phase(), Phase::Running);
    assert_eq!(world.wakes(), 30);
    assert_eq!((world.failures(), world.status().retries), (vec![(reasons::NODE_LOST, 1)], 0));
    assert_eq!(world.jobs(), ["qwen-1"], "the pod on the other node still runs");
    world.pods_go();
    assert_eq!(world.jobs(), ["qwen-1", "qwen-2"]);
}

#[test]
fn only_pods_that_are_being_deleted_on_lost_nodes_are_deleted_by_force() {
    let mut world = World::training(GANG);
    world.observed.pods.push(Arc::new(pod("qwen-9", "uid-of-an-earlier-job", 1, &running())));
    world.loses("node-1", LossKind::Unreachable);
    world.passes(30);
    // Both pods of the attempt are being deleted now, and that of the earlier job is not.
    world.settles();
    assert_eq!(world.deleted, ["qwen-1", "qwen-1-1-abcde"]);
    world.pods_go();
    assert_eq!(world.jobs(), ["qwen-1", "qwen-2"]);
}

#[test]
fn a_kubelet_that_is_not_ready_for_long_ends_no_trainer_that_runs() {
    let mut world = World::training(GANG);
    world.steps(5, 100);
    world.loses("node-1", LossKind::NotReady);
    world.passes(900);
    assert_eq!(world.outcome(), (Phase::Running, reasons::TRAINING));
    assert_eq!((world.jobs(), world.status().ended_attempts), (vec!["qwen-1"], 0));
}

#[test]
fn a_log_without_a_sign_for_no_progress_seconds_restarts_the_gang() {
    let mut world = World::training("{model: m, dataset: d, method: lora, noProgressSeconds: 600}");
    world.steps(5, 100);
    world.passes(599);
    assert_eq!(world.phase(), Phase::Running);
    world.passes(1);
    assert_eq!((world.failures(), world.status().retries), (vec![(reasons::NO_PROGRESS, 1)], 1));
    assert_eq!(world.deleted, ["qwen-1"]);
    world.pods_go();
    world.wakes();
    assert_eq!(world.jobs(), ["qwen-1", "qwen-2"]);
}

#[test]
fn lines_that_are_far_apart_are_waited_for() {
    let spec = |more: &str| format!("{{model: m, dataset: d, method: lora, noProgressSeconds: 600{more}}}");
    // 20 s for each step: a line each 100 s, or each 2000 s.
    for (more, seconds) in [("", 600), (", extraArgs: [--logging_steps, '100']", 6_000)] {
        let mut world = World::training(&spec(more));
        world.steps(1, 100);
        let log = world.observed.log.as_mut().unwrap();
        log.report.as_mut().unwrap().seconds_per_step = Some("20.0".into());
        world.passes(seconds - 1);
        assert_eq!(world.phase(), Phase::Running, "{more}");
        world.passes(1);
        assert_eq!(world.failures(), [(reasons::NO_PROGRESS, 1)], "{more}");
    }
    let mut world = World::training(&spec(", extraArgs: [--logging_strategy, epoch]"));
    world.steps(1, 100);
    world.passes(100_000);
    assert_eq!(world.phase(), Phase::Running, "the time of the next line is unknown");
}

#[test]
fn a_log_that_cannot_be_read_is_no_reason_to_end_anything() {
    for access in [Access::Forbidden, Access::Unknown, Access::Unreadable("no route to host".into())] {
        let mut world = World::training(LORA);
        world.steps(5, 100);
        world.observed.log.as_mut().unwrap().access = access;
        world.passes(100_000);
        assert_eq!(world.outcome(), (Phase::Running, reasons::TRAINING));
    }
}

#[test]
fn a_preparation_that_advances_is_no_lack_of_progress_and_one_that_hangs_is() {
    let mut world = World::training("{model: m, dataset: d, method: lora, firstStepSeconds: 600}");
    for _ in 0..100 {
        // A download has advanced.
        world.log();
        world.passes(599);
        assert_eq!(world.outcome(), (Phase::Running, reasons::PREPARING));
    }
    world.passes(1);
    assert_eq!((world.failures(), world.status().retries), (vec![(reasons::NO_PROGRESS, 1)], 1));
    assert!(world.status().failure.as_ref().unwrap().message.as_ref().unwrap().contains("firstStepSeconds"));
}

#[test]
fn a_first_line_that_comes_late_by_the_arguments_is_waited_for() {
    for (extra, limit) in [("--logging_steps=50", Some(36_000)), ("--logging_strategy=epoch", None)] {
        let mut world =
            World::training(&format!("{{model: m, dataset: d, method: lora, extraArgs: ['{extra}']}}"));
        world.log();
        world.settles();
        world.passes(limit.unwrap_or(10_000_000) - 1);
        assert_eq!(world.phase(), Phase::Running, "{extra}");
        world.passes(1);
        assert_eq!(world.failures().len(), usize::from(limit.is_some()), "{extra}");
    }
}

#[test]
fn a_log_that_cannot_be_read_ends_no_preparation() {
    for access in [Access::Forbidden, Access::Unknown, Access::Unreadable("no route to host".into())] {
        let mut world = World::training(LORA);
        world.log().access = access;
        world.passes(100_000);
        assert_eq!(world.outcome(), (Phase::Running, reasons::PREPARING));
    }
}

#[test]
fn a_gang_whose_log_shows_steps_outlives_the_silence_of_a_kubelet() {
    let mut world = World::training(GANG);
    world.steps(5, 100);
    world.loses("node-1", LossKind::Unreachable);
    for step in 6..20 {
        world.seconds += 20;
        world.steps(step, 100);
        assert_eq!(world.phase(), Phase::Running, "step {step}");
    }
    world.passes(29);
    assert_eq!(world.status().ended_attempts, 0);
    world.passes(1);
    assert_eq!((world.failures(), world.status().retries), (vec![(reasons::NODE_LOST, 1)], 0));
    let mut deleted = World::training(GANG);
    deleted.steps(5, 100);
    deleted.loses("node-1", LossKind::Deleted);
    deleted.seconds += 29;
    deleted.steps(6, 100);
    deleted.passes(1);
    assert_eq!(deleted.failures(), [(reasons::NODE_LOST, 1)], "no trainer is on a node that was deleted");
}

/// Rank 0 has exited with 0 and proven its result; a container that was injected runs on.
fn proven(world: &mut World) {
    let mut status = ended(0, "Completed", &message_at(Some(100)), world.seconds);
    status["phase"] = "Running".into();
    status["containerStatuses"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "istio-proxy", "ready": true, "state": {"running": {}}}));
    world.pod(0, &status);
    world.settles();
}

#[test]
fn a_sidecar_that_runs_on_keeps_no_result_back() {
    let mut world = World::training(LORA);
    world.steps(95, 100);
    proven(&mut world);
    world.passes(59);
    assert_eq!(world.phase(), Phase::Running);
    world.passes(1);
    assert_eq!(world.outcome(), (Phase::Succeeded, reasons::SUCCEEDED));
    assert_eq!(world.status().checkpoint.as_ref().map(|saved| saved.step), Some(100));
    assert_eq!(world.deleted, ["qwen-1"], "its pods are ended");
}

#[test]
fn a_rank_that_does_not_end_keeps_no_result_back() {
    let mut world = World::training(GANG);
    proven(&mut world);
    world.passes(299);
    assert_eq!(world.phase(), Phase::Running);
    world.passes(1);
    assert_eq!(world.phase(), Phase::Succeeded);
}

#[test]
fn an_exit_with_0_that_proves_nothing_is_no_success() {
    let mut world = World::training(LORA);
    let mut status = ended(0, "Completed", &Message::default(), 0);
    status["phase"] = "Running".into();
    world.pod(0, &status);
    world.passes(10_000);
    assert_eq!(world.phase(), Phase::Running);
}

#[test]
fn a_rank_that_succeeded_and_turns_failed_after_a_restart_of_its_kubelet_has_succeeded() {
    // The status of the container stays, or is lost.
    for is_lost in [false, true] {
        let mut world = World::training(LORA);
        world.steps(100, 100);
        world.rank_ends(0);
        let mut status = ended(0, "Completed", &message_at(Some(100)), 0);
        status["phase"] = "Failed".into();
        status["reason"] = "UnexpectedAdmissionError".into();
        if is_lost {
            status.as_object_mut().unwrap().remove("containerStatuses");
        }
        world.pod(0, &status);
        world.job_fails();
        world.passes(10);
        assert_eq!((world.phase(), world.failures()), (Phase::Succeeded, vec![]), "{is_lost}");
    }
}

#[test]
fn a_right_that_is_missing_is_said_with_the_progress() {
    let mut world = World::training(LORA);
    world.observed.log.as_mut().unwrap().access = Access::Forbidden;
    world.settles();
    assert!(world.message().contains("pods/log"), "{}", world.message());
}

#[test]
fn pods_that_the_api_server_refuses_are_explained() {
    for (why, reason) in [
        ("pods \"qwen-1-0\" is forbidden: exceeded quota: gpus", reasons::QUOTA_PENDING),
        ("admission webhook denied the request", reasons::DENIED),
    ] {
        let mut world = World::new(LORA);
        world.settles();
        world.observed.refused_pods = Some(why.into());
        world.settles();
        assert_eq!((world.phase(), world.condition("Scheduled")), (Phase::Pending, ("False", reason)));
        assert!(world.message().contains(why), "{}", world.message());
    }
}

#[test]
fn an_attempt_in_a_queue_waits_for_its_quota() {
    let mut world = World::new("{model: m, dataset: d, method: lora, queueName: team}");
    world.job().metadata.labels = Some([("kueue.x-k8s.io/priority-class".into(), "high".into())].into());
    world.settles();
    let job = &world.created[0];
    assert_eq!(job.spec.as_ref().unwrap().suspend, Some(true));
    let labels = job.metadata.labels.as_ref().unwrap();
    assert_eq!(labels["kueue.x-k8s.io/queue-name"], "team");
    assert_eq!(labels["kueue.x-k8s.io/priority-class"], "high");
    assert_eq!(world.condition("Scheduled"), ("False", reasons::QUOTA_PENDING));
    assert!(world.message().contains("queue team"), "{}", world.message());
    world.view().is_suspended = false;
    world.starts();
    assert_eq!(world.phase(), Phase::Running);
}

#[test]
fn a_job_without_a_queue_is_never_created_suspended() {
    let mut world = World::new(LORA);
    world.settles();
    assert_eq!(world.created[0].spec.as_ref().unwrap().suspend, None);
}

#[test]
fn a_claim_of_the_user_that_does_not_exist_is_named_and_waited_for() {
    let mut world = World::new("{model: m, dataset: d, method: lora, output: {claimName: mine}}");
    world.settles();
    assert_eq!((world.jobs(), world.condition("Scheduled")), (vec![], ("False", reasons::CLAIM_NOT_FOUND)));
    assert!(world.message().contains("demo/mine"), "{}", world.message());
    let claim =
        serde_saphyr::from_str("{metadata: {name: mine}, spec: {accessModes: [ReadWriteOnce]}}").unwrap();
    world.claims.insert("mine".into(), Some(Arc::new(claim)));
    world.wakes();
    assert_eq!(world.jobs(), ["qwen-1"]);
}

#[test]
fn a_claim_for_one_node_is_refused_for_a_gang() {
    let mut world = World::new("{model: m, dataset: d, method: lora, nodes: 2, output: {claimName: mine}}");
    let claim =
        serde_saphyr::from_str("{metadata: {name: mine}, spec: {accessModes: [ReadWriteOnce]}}").unwrap();
    world.claims.insert("mine".into(), Some(Arc::new(claim)));
    world.settles();
    assert_eq!(
        (world.jobs(), world.condition("Scheduled")),
        (vec![], ("False", reasons::CLAIM_NOT_SHAREABLE))
    );
}

#[test]
fn a_job_that_the_api_server_refuses_was_not_begun() {
    let mut world = World::new(LORA);
    let planned = world.plan();
    let refusal = Refusal::Denied("quota".into());
    let plan = refused_run(&refusal, planned, &world.observed, &defaults(), at(0));
    assert_eq!((plan.status.attempts, plan.requeue_after), (0, Some(REFUSAL_RETRY)));
    assert!(plan.children.is_empty());
    world.apply(plan);
    assert_eq!(world.outcome(), (Phase::Pending, reasons::DENIED));
    assert_eq!(world.condition("Stalled"), ("True", reasons::DENIED));
    world.settles();
    assert_eq!((world.jobs(), world.condition("Stalled").0), (vec!["qwen-1"], "absent"));
}

#[test]
fn what_a_later_release_refuses_is_still_accounted_for_and_not_begun_again() {
    let spec = "{model: m, dataset: d, method: lora, extraArgs: [--output_dir, /x]}";
    let mut fresh = World::new(LORA);
    fresh.job().spec = serde_saphyr::from_str(spec).unwrap();
    assert!(validate(&fresh.observed.job).is_err());
    for succeeds in [true, false] {
        let mut world = World::training(LORA);
        world.job().spec = serde_saphyr::from_str(spec).unwrap();
        world.settles();
        assert_eq!(world.phase(), Phase::Running);
        if succeeds {
            world.succeeds(&message_at(Some(27)));
            assert_eq!(world.phase(), Phase::Succeeded);
        } else {
            world.is_preempted(Some(7));
            assert_eq!((world.outcome(), world.jobs().len()), ((Phase::Pending, reasons::INVALID_SPEC), 1));
        }
    }
}

#[test]
fn a_clock_that_is_set_back_delays_the_next_attempt_for_no_longer_than_its_pause() {
    let mut world = World::training(LORA);
    world.fails(1, &Message::default());
    world.seconds -= 100_000;
    world.settles();
    assert_eq!(world.jobs(), ["qwen-1", "qwen-2"]);
}

#[test]
fn a_job_that_completes_is_no_success_before_the_message_of_its_launcher_is_seen() {
    let mut world = World::training(LORA);
    world.steps(27, 27);
    world.saves(20);
    let running = world.observed.pods.clone();
    world.succeeds_unseen();
    assert_eq!((world.phase(), running.len()), (Phase::Running, 1));
    world.passes(4);
    world.succeeds(&message_at(Some(27)));
    assert_eq!(world.phase(), Phase::Succeeded);
    assert_eq!(world.status().checkpoint.as_ref().unwrap().step, 27);
    let mut world = World::training(LORA);
    world.succeeds_unseen();
    world.passes(5);
    assert_eq!(world.phase(), Phase::Succeeded, "it is not waited for without an end");
}

#[test]
fn of_two_reports_of_the_last_checkpoint_that_of_the_launcher_counts() {
    let mut world = World::training(LORA);
    world.saves(999_999);
    world.succeeds(&message_at(Some(27)));
    assert_eq!(world.status().checkpoint.as_ref().unwrap().step, 27);
}

#[test]
fn a_pod_that_does_not_end_in_time_was_on_a_dead_node_also_for_a_controller_that_sees_no_nodes() {
    let mut world = World::training(GANG);
    let ends = at(world.seconds + 30);
    Arc::make_mut(&mut world.observed.pods[1]).metadata.deletion_timestamp = Some(Time(ends));
    world.passes(149);
    assert_eq!(world.status().ended_attempts, 0);
    world.passes(1);
    assert_eq!((world.failures(), world.status().retries), (vec![(reasons::NODE_LOST, 1)], 0));
}

#[test]
fn a_spec_that_became_invalid_leaves_what_runs_alone() {
    let mut world = World::training(LORA);
    let plan = rejected(&Invalid("spec.x: no".into()), &world.observed, at(0));
    assert!(plan.children.is_empty() && plan.deletions.is_empty());
    world.apply(plan);
    assert_eq!(world.outcome(), (Phase::Running, reasons::INVALID_SPEC));
    assert_eq!(world.message(), "spec.x: no");
}

#[test]
fn a_trainer_that_has_ended_keeps_the_phase_until_its_job_has_completed() {
    let mut world = World::training(LORA);
    world.steps(100, 100);
    world.rank_ends(0);
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
fn a_job_is_reconciling_until_it_runs() {
    let mut world = World::new(LORA);
    world.settles();
    assert_eq!(world.condition(conditions::RECONCILING).0, "True");
    world.starts();
    assert_eq!(world.condition(conditions::RECONCILING).0, "absent");
    world.succeeds(&message_at(Some(100)));
    assert_eq!(world.condition(conditions::RECONCILING).0, "absent");
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
fn gpus_that_are_idle_for_half_of_no_progress_seconds_are_told_before_the_attempt_ends() {
    let mut world = World::training(LORA);
    world.steps(10, 100);
    world.observed.gpus = Utilization::Known(0.0);
    world.settles();
    assert_eq!(world.requeue_after, Some(Duration::from_secs(60)));
    world.passes(899);
    assert_eq!(world.condition(conditions::NO_PROGRESS).0, "absent");
    world.passes(1);
    assert_eq!(world.condition(conditions::NO_PROGRESS), ("True", reasons::GPU_IDLE));
    assert_eq!((world.phase(), world.status().ended_attempts), (Phase::Running, 0));
    world.steps(11, 100);
    assert_eq!(world.condition(conditions::NO_PROGRESS).0, "absent");
    world.passes(1_800);
    assert_eq!(world.failures(), [(reasons::NO_PROGRESS, 1)]);
}

#[test]
fn gpus_of_which_nothing_is_known_are_not_idle() {
    let mut world = World::training(LORA);
    for gpus in [Utilization::Unknown, Utilization::NotWatched, Utilization::Known(0.02)] {
        world.observed.gpus = gpus;
        world.passes(2_000);
        assert_eq!(world.condition(conditions::NO_PROGRESS).0, "absent", "{gpus:?}");
    }
}

#[test]
fn gpus_that_wait_for_the_first_step_are_told_and_nothing_is_ended() {
    let mut world = World::training(LORA);
    world.observed.gpus = Utilization::Known(0.0);
    world.settles();
    world.passes(900);
    assert_eq!(world.condition(conditions::NO_PROGRESS), ("True", reasons::GPU_IDLE));
    world.passes(10_000);
    assert_eq!((world.phase(), world.status().ended_attempts), (Phase::Running, 0));
}
