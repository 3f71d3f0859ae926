//! How often an attempt follows, when, and with which settings.

use api::{
    launcher::Message,
    reasons,
    trainingjob::{Mitigation, Phase},
};
use runtime::write::events::Severity;
use serde_json::json;

use super::{GANG, LORA, World, because, flag, message_at};

const BATCH: &str = "--per_device_train_batch_size";
const ACCUMULATION: &str = "--gradient_accumulation_steps";
const DEEPSPEED: &str = "--deepspeed";

/// The lora job with more fields.
fn lora(more: &str) -> String {
    format!("{{model: qwen/Qwen-7B, dataset: a/b, method: lora, {more}}}")
}

fn memory() -> Message {
    because(reasons::CUDA_OUT_OF_MEMORY)
}

/// The attempt fails, and the next one trains.
fn fails_and_trains(world: &mut World, code: i32, message: &Message) {
    world.fails(code, message);
    while world.jobs().len() < usize::try_from(world.status().attempts).unwrap() + 1
        && world.phase() == Phase::Pending
        && world.status().next_attempt_time.is_some()
    {
        world.wakes();
    }
    if world.phase() == Phase::Pending {
        world.starts();
    }
}

#[test]
fn five_preemptions_cost_no_retry() {
    let mut world = World::training(&lora("retryLimit: 2"));
    for step in 1..=5 {
        world.is_preempted(Some(step * 100));
        world.starts();
    }
    assert_eq!((world.phase(), world.status().attempts, world.status().retries), (Phase::Running, 6, 0));
    assert_eq!(world.failures(), [(reasons::PREEMPTED, 5)]);
}

#[test]
fn preemptions_without_a_checkpoint_cost_no_retry_but_are_slowed_down() {
    let mut world = World::training(&lora("retryLimit: 2"));
    let mut waits = Vec::new();
    for _ in 0..5 {
        world.is_preempted(None);
        waits.push(if world.status().next_attempt_time.is_some() { world.wakes() } else { 0 });
        world.starts();
    }
    assert_eq!(waits, [0, 10, 20, 40, 80]);
    assert_eq!((world.phase(), world.status().retries), (Phase::Running, 0));
}

#[test]
fn interruptions_that_never_leave_a_newer_checkpoint_end_the_job() {
    let mut world = World::training(&lora("retryLimit: 2"));
    world.is_preempted(Some(100));
    world.starts();
    for _ in 0..20 {
        world.is_preempted(Some(100));
        assert_eq!(world.phase(), Phase::Pending);
        if world.status().next_attempt_time.is_some() {
            world.wakes();
        }
        world.starts();
    }
    world.is_preempted(Some(100));
    assert_eq!(world.outcome(), (Phase::Failed, reasons::RETRIES_EXHAUSTED));
    assert!(world.message().contains("lower saveSteps"), "{}", world.message());
}

#[test]
fn a_trainer_that_stops_itself_costs_no_retry_but_waits_and_leaves_few_jobs() {
    let mut world = World::training(LORA);
    for attempt in 1..=30 {
        world.trainer_fails(0, 80, &message_at(Some(i64::from(attempt))));
        world.job_fails();
        assert_eq!((world.phase(), world.wakes()), (Phase::Pending, 10), "attempt {attempt}");
        world.starts();
    }
    assert_eq!((world.status().retries, world.attempt()), (0, 31));
    assert!(world.observed.attempts.len() <= 7, "{:?}", world.observed.attempts.keys());
}

#[test]
fn a_newer_checkpoint_forgives_the_interruptions_before_it() {
    let mut world = World::training(LORA);
    for _ in 0..3 {
        world.is_preempted(None);
        if world.status().next_attempt_time.is_some() {
            world.wakes();
        }
        world.starts();
    }
    assert_eq!(world.status().attempts_without_progress, 3);
    world.is_preempted(Some(10));
    assert_eq!((world.status().attempts_without_progress, &world.status().next_attempt_time), (0, &None));
}

#[test]
fn a_checkpoint_that_only_the_log_has_shown_is_progress() {
    let mut world = World::training(LORA);
    world.is_preempted(Some(100));
    world.starts();
    world.steps(150, 1_000);
    world.saves(150);
    world.is_preempted(None);
    assert_eq!(world.status().attempts_without_progress, 0);
    assert_eq!(world.status().checkpoint.as_ref().map(|saved| saved.step), Some(150));
}

#[test]
fn retries_wait_twice_as_long_each_time_until_the_limit() {
    let mut world = World::training(LORA);
    let mut waits = Vec::new();
    for _ in 0..3 {
        world.fails(1, &because(reasons::USER_ERROR));
        assert_eq!(world.condition("Running"), ("False", reasons::RETRYING));
        waits.push(world.wakes());
        world.starts();
    }
    assert_eq!((waits, world.status().retries), (vec![10, 20, 40], 3));
    world.fails(1, &because(reasons::USER_ERROR));
    assert_eq!(world.outcome(), (Phase::Failed, reasons::RETRIES_EXHAUSTED));
    assert_eq!((world.jobs().len(), world.status().retries), (4, 3));
}

#[test]
fn the_last_retry_is_said_while_the_limit_can_still_be_raised() {
    let mut world = World::training(&lora("retryLimit: 1"));
    world.fails(1, &Message::default());
    world.settles();
    assert!(
        world.message().ends_with("all 1 retries are used, raise retryLimit for more"),
        "{}",
        world.message()
    );
}

#[test]
fn no_attempt_starts_before_its_pause_has_ended() {
    let mut world = World::training(LORA);
    world.fails(1, &because(reasons::USER_ERROR));
    world.passes(9);
    assert_eq!(world.jobs(), ["qwen-1"]);
    world.passes(1);
    assert_eq!(world.jobs(), ["qwen-1", "qwen-2"]);
}

#[test]
fn the_longest_pause_is_ten_minutes() {
    let mut world = World::training(&lora("retryLimit: 20"));
    let mut longest = 0;
    for _ in 0..9 {
        world.fails(1, &because(reasons::USER_ERROR));
        longest = world.wakes();
        world.starts();
    }
    assert_eq!(longest, 600);
}

#[test]
fn a_retry_limit_of_0_keeps_the_reason_of_the_only_failure() {
    let mut world = World::training(&lora("retryLimit: 0"));
    world.fails(1, &because(reasons::PEER_LOST));
    assert_eq!(world.outcome(), (Phase::Failed, reasons::PEER_LOST));
    assert_eq!(world.jobs(), ["qwen-1"]);
}

#[test]
fn a_retry_limit_of_0_forbids_no_attempt_after_a_preemption() {
    let mut world = World::training(&lora("retryLimit: 0"));
    world.is_preempted(Some(10));
    assert_eq!(world.jobs(), ["qwen-1", "qwen-2"]);
}

#[test]
fn a_limit_that_is_raised_applies_to_the_next_failure() {
    let mut world = World::training(&lora("retryLimit: 1"));
    world.fails(1, &because(reasons::USER_ERROR));
    world.wakes();
    world.starts();
    world.edits(|job| job.spec.retry_limit = 2);
    world.fails(1, &because(reasons::USER_ERROR));
    assert_eq!((world.phase(), world.status().retries), (Phase::Pending, 2));
}

#[test]
fn invalid_arguments_are_tried_once() {
    let mut world = World::training(LORA);
    world.fails(2, &Message::default());
    world.passes(100_000);
    assert_eq!(world.outcome(), (Phase::Failed, reasons::INVALID_ARGUMENTS));
    assert_eq!((world.jobs(), world.status().retries), (vec!["qwen-1"], 0));
}

#[test]
fn an_output_of_another_job_is_not_accepted() {
    let mut world = World::training(LORA);
    world.fails(82, &Message::default());
    assert_eq!(world.outcome(), (Phase::Failed, reasons::OUTPUT_NOT_EMPTY));
    assert_eq!(world.condition("Accepted"), ("False", reasons::OUTPUT_NOT_EMPTY));
}

#[test]
fn failures_are_counted_by_reason() {
    let mut world = World::training(LORA);
    world.is_preempted(Some(10));
    world.starts();
    fails_and_trains(&mut world, 1, &because(reasons::USER_ERROR));
    world.is_preempted(Some(20));
    world.starts();
    fails_and_trains(&mut world, 247, &Message::default());
    assert_eq!(
        world.failures(),
        [(reasons::PREEMPTED, 2), (reasons::USER_ERROR, 1), (reasons::HOST_OUT_OF_MEMORY, 1)]
    );
    assert_eq!((world.status().attempts, world.status().ended_attempts, world.status().retries), (5, 4, 1));
}

#[test]
fn a_full_gpu_halves_the_batch_and_doubles_the_accumulation() {
    let mut world = World::training(&lora("extraArgs: ['--per_device_train_batch_size=8']"));
    assert_eq!(flag(&world.created[0], BATCH).as_deref(), Some("8"));
    world.fails(1, &memory());
    let next = world.created.last().unwrap();
    assert_eq!((flag(next, BATCH).as_deref(), flag(next, ACCUMULATION).as_deref()), (Some("4"), Some("32")));
    let change = "per_device_train_batch_size 8 -> 4, gradient_accumulation_steps 16 -> 32".to_owned();
    let reason = reasons::CUDA_OUT_OF_MEMORY.to_owned();
    assert_eq!(world.status().mitigations, [Mitigation { attempt: 2, reason, change }]);
    assert_eq!((world.status().retries, &world.status().next_attempt_time), (0, &None));
}

#[test]
fn three_smaller_settings_are_tried() {
    let mut world = World::training(&lora("extraArgs: ['--per_device_train_batch_size=64']"));
    for _ in 0..3 {
        fails_and_trains(&mut world, 1, &memory());
    }
    let batches: Vec<_> = world.created.iter().filter_map(|job| flag(job, BATCH)).collect();
    assert_eq!(batches, ["64", "32", "16", "8"]);
    world.fails(1, &memory());
    assert_eq!(world.outcome(), (Phase::Failed, reasons::CUDA_OUT_OF_MEMORY));
    assert!(world.message().contains("smaller settings were not enough"), "{}", world.message());
    assert_eq!(world.jobs().len(), 4);
}

#[test]
fn after_a_batch_of_1_the_optimizer_and_then_the_parameters_are_distributed() {
    let spec =
        "{model: m, dataset: d, method: lora, gpus: 4, extraArgs: [--per_device_train_batch_size, '2']}";
    let mut world = World::training(spec);
    fails_and_trains(&mut world, 1, &memory());
    fails_and_trains(&mut world, 1, &memory());
    let stages: Vec<_> = world.created.iter().map(|job| flag(job, DEEPSPEED).unwrap_or_default()).collect();
    assert_eq!(stages, ["zero2", "zero2", "zero3"]);
    let changes: Vec<&str> = world.status().mitigations.iter().map(|one| one.change.as_str()).collect();
    assert_eq!(changes[1..], ["deepspeed zero2 -> zero3"]);
    world.fails(1, &memory());
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.message().contains("no smaller settings"), "{}", world.message());
}

#[test]
fn a_qlora_job_on_two_gpus_distributes_its_optimizer_alone() {
    let mut world = World::training("{model: m, dataset: d, method: qlora, gpus: 2}");
    assert_eq!(flag(&world.created[0], DEEPSPEED), None);
    fails_and_trains(&mut world, 1, &memory());
    assert_eq!(flag(&world.created[1], DEEPSPEED).as_deref(), Some("zero2"));
    world.fails(1, &memory());
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn on_one_gpu_a_batch_of_1_cannot_be_made_smaller() {
    let mut world = World::training(LORA);
    world.fails(1, &memory());
    assert_eq!(world.outcome(), (Phase::Failed, reasons::CUDA_OUT_OF_MEMORY));
    assert!(world.message().contains("qlora"), "{}", world.message());
}

#[test]
fn a_run_with_checkpoints_keeps_the_stage_of_deepspeed_and_is_tried_again() {
    let mut world = World::training(&GANG.replace("lora,", "lora, retryLimit: 1,"));
    world.steps(10, 100);
    world.saves(10);
    fails_and_trains(&mut world, 1, &memory());
    assert_eq!(
        (world.phase(), world.status().retries, world.status().mitigations.len()),
        (Phase::Running, 1, 0)
    );
    let stages: Vec<_> = world.created.iter().map(|job| flag(job, DEEPSPEED)).collect();
    assert_eq!(stages[0], stages[1]);
    world.fails(1, &memory());
    assert_eq!(world.outcome(), (Phase::Failed, reasons::CUDA_OUT_OF_MEMORY));
    assert!(world.message().contains("cannot change DeepSpeed's stage"), "{}", world.message());
}

#[test]
fn a_full_gpu_after_a_checkpoint_at_the_default_batch_is_tried_again() {
    let mut world = World::training(LORA);
    world.steps(10, 100);
    world.saves(10);
    fails_and_trains(&mut world, 1, &memory());
    assert_eq!((world.phase(), world.status().retries), (Phase::Running, 1));
}

#[test]
fn a_newer_checkpoint_gives_all_retries_back() {
    let mut world = World::training(&lora("retryLimit: 1"));
    for step in [10, 20, 30, 40] {
        world.steps(step, 100);
        world.saves(step);
        world.fails(1, &because(reasons::PEER_LOST));
        assert_eq!((world.phase(), world.status().retries, world.wakes()), (Phase::Pending, 1, 10), "{step}");
        world.starts();
    }
    // An interruption with a newer checkpoint is progress as well.
    world.is_preempted(Some(50));
    assert_eq!(world.status().retries, 0);
    world.starts();
    fails_and_trains(&mut world, 1, &because(reasons::PEER_LOST));
    assert_eq!(world.status().retries, 1);
    world.fails(1, &because(reasons::PEER_LOST));
    assert_eq!(world.outcome(), (Phase::Failed, reasons::RETRIES_EXHAUSTED));
    let way = "; a new job goes on after step 50 with spec.resumeFrom.job qwen";
    assert!(world.message().contains(way), "{}", world.message());
    assert!(world.message().ends_with("/output/.cache/hub/qwen of claim qwen-output, and may be deleted"));
}

#[test]
fn a_run_with_checkpoints_may_have_a_smaller_batch() {
    let mut world = World::training(&lora("extraArgs: ['--per_device_train_batch_size=8']"));
    world.steps(10, 100);
    world.saves(10);
    world.fails(1, &memory());
    assert_eq!(flag(world.created.last().unwrap(), BATCH).as_deref(), Some("4"));
}

#[test]
fn a_users_own_deepspeed_is_not_changed() {
    let mut world =
        World::training("{model: m, dataset: d, method: lora, gpus: 2, extraArgs: [--deepspeed, zero1]}");
    world.fails(1, &memory());
    assert_eq!(world.outcome(), (Phase::Failed, reasons::CUDA_OUT_OF_MEMORY));
}

#[test]
fn a_retry_limit_of_0_forbids_smaller_settings() {
    let mut world = World::training(&lora("retryLimit: 0, extraArgs: ['--per_device_train_batch_size=8']"));
    world.fails(1, &memory());
    assert_eq!(world.outcome(), (Phase::Failed, reasons::CUDA_OUT_OF_MEMORY));
    assert_eq!(world.status().mitigations, []);
}

#[test]
fn later_failures_keep_the_smaller_settings() {
    let mut world = World::training(&lora("extraArgs: ['--per_device_train_batch_size=8']"));
    fails_and_trains(&mut world, 1, &memory());
    world.is_preempted(None);
    if world.status().next_attempt_time.is_some() {
        world.wakes();
    }
    assert_eq!(flag(world.created.last().unwrap(), BATCH).as_deref(), Some("4"));
    assert_eq!(world.status().mitigations.len(), 1);
}

#[test]
fn what_keeps_a_trainer_from_starting_is_the_reason_at_once() {
    let cases = [
        ("ErrImagePull", "no such tag", reasons::IMAGE_PULL_FAILED, true),
        ("CreateContainerConfigError", "secret \"key\" not found", reasons::SECRET_NOT_FOUND, true),
        ("CreateContainerConfigError", "configmap \"args\" not found", reasons::CONFIG_MAP_NOT_FOUND, true),
        ("RunContainerError", "no such runtime", reasons::CRASH_LOOP, false),
    ];
    for (waiting, message, reason, stalls) in cases {
        let mut world = World::new(&lora(""));
        world.settles();
        let waiting = json!({"reason": waiting, "message": message});
        let container = json!({"name": "trainer", "state": {"waiting": waiting}});
        world.pod(0, &json!({"phase": "Pending", "containerStatuses": [container]}));
        world.settles();
        assert_eq!(world.condition("Running"), ("False", reason));
        let condition = if stalls { "Stalled" } else { "Reconciling" };
        assert_eq!(world.condition(condition), ("True", reason));
        let event = world.events.last().expect("an event");
        assert_eq!((event.reason, event.severity), (reason, Severity::Warning));
    }
}

#[test]
fn a_checkpoint_that_only_the_launcher_has_shown_keeps_the_stage_of_deepspeed() {
    let mut world = World::training("{model: m, dataset: d, method: lora, gpus: 2}");
    let checkpoint = message_at(Some(40)).checkpoint;
    world.fails(1, &Message { checkpoint, ..because(reasons::CUDA_OUT_OF_MEMORY) });
    world.wakes();
    assert_eq!((world.phase(), world.status().mitigations.len()), (Phase::Pending, 0));
    assert_eq!(flag(&world.created[0], DEEPSPEED), flag(&world.created[1], DEEPSPEED));
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
