//! The reason and the class of a failure, by what is seen of the pods.

use api::{launcher::Message, reasons};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use training_log::Cause;
use workload::views::pod::PodView;

use super::{LORA, World, because, disruption, ended, message_at, pod, running};
use crate::{
    plan::attempt::failure::{
        Class::{self, CannotStart, Interruption, OutOfGpuMemory, Permanent, Stop, Transient},
        Failure, failure_reasons, of_pods,
    },
    progress::LogState,
    tests::at,
};

/// A pod that has failed.
fn failed(rank: usize, status: &Value) -> PodView {
    pod("qwen-1", "u", rank, status)
}

fn failure(pods: &[PodView]) -> Failure {
    of_pods(pods.iter(), None).expect("a failure")
}

fn verdict(status: &Value) -> (&'static str, Class) {
    let failure = failure(&[failed(0, status)]);
    (failure.reason, failure.class)
}

/// A status, with more of it.
fn with(mut status: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        status[key] = value.clone();
    }
    status
}

fn exit(code: i32, message: &Message) -> Value {
    ended(code, "Error", message, 0)
}

/// By a kubelet that is short of something.
fn evicted(message: &str) -> Value {
    json!({"reason": "Evicted", "message": message})
}

fn disrupted(status: Value) -> Value {
    with(status, json!({"conditions": [disruption()]}))
}

#[test]
fn every_end_has_its_reason_and_its_class() {
    let nothing = Message::default();
    let by_signal = |signal| Message { signal: Some(signal), ..Message::default() };
    let child = |code| Message { exit_code: Some(code), ..Message::default() };
    let torchrun = "traceback : Signal 9 (SIGKILL) received by PID 13";
    let without_container = |reason: &str| json!({"phase": "Failed", "reason": reason, "message": "why"});
    for (of, status, expected) in [
        ("a preemption", disrupted(exit(137, &nothing)), (reasons::PREEMPTED, Interruption)),
        (
            "a preemption that asked for a checkpoint",
            disrupted(exit(80, &nothing)),
            (reasons::PREEMPTED, Interruption),
        ),
        (
            "an eviction",
            with(disrupted(exit(137, &nothing)), json!({"reason": "Evicted"})),
            (reasons::PREEMPTED, Interruption),
        ),
        (
            "an eviction for memory",
            with(
                disrupted(exit(137, &nothing)),
                evicted("The node was low on resource: memory. Threshold quantity: 100Mi"),
            ),
            (reasons::HOST_OUT_OF_MEMORY, Transient),
        ),
        (
            "an eviction for the disk of the node",
            with(exit(80, &nothing), evicted("The node was low on resource: ephemeral-storage.")),
            (reasons::OUT_OF_SPACE, Transient),
        ),
        (
            "an eviction for a volume of the pod",
            with(
                exit(137, &nothing),
                evicted("Usage of EmptyDir volume \"home\" exceeds the limit \"1Gi\"."),
            ),
            (reasons::OUT_OF_SPACE, Transient),
        ),
        (
            "a kubelet's limit of memory",
            ended(137, "OOMKilled", &nothing, 0),
            (reasons::HOST_OUT_OF_MEMORY, Transient),
        ),
        ("a killed child", exit(247, &nothing), (reasons::HOST_OUT_OF_MEMORY, Transient)),
        (
            "a child that the launcher saw killed",
            exit(1, &by_signal(9)),
            (reasons::HOST_OUT_OF_MEMORY, Transient),
        ),
        (
            "a rank that torchrun saw killed",
            exit(1, &Message { error: Some(torchrun.to_owned()), ..child(1) }),
            (reasons::HOST_OUT_OF_MEMORY, Transient),
        ),
        (
            "a rank that torchrun has killed after an exception",
            exit(1, &Message { error: Some(torchrun.to_owned()), ..because(reasons::USER_ERROR) }),
            (reasons::USER_ERROR, Transient),
        ),
        ("a killed child of swift", exit(1, &child(247)), (reasons::HOST_OUT_OF_MEMORY, Transient)),
        ("a kill without a word", exit(137, &nothing), (reasons::USER_ERROR, Transient)),
        (
            "a full GPU",
            exit(1, &because(reasons::CUDA_OUT_OF_MEMORY)),
            (reasons::CUDA_OUT_OF_MEMORY, OutOfGpuMemory),
        ),
        (
            "a full GPU whose other processes were killed",
            exit(1, &Message { signal: Some(9), ..because(reasons::CUDA_OUT_OF_MEMORY) }),
            (reasons::CUDA_OUT_OF_MEMORY, OutOfGpuMemory),
        ),
        (
            "full shared memory",
            exit(1, &because(reasons::HOST_OUT_OF_MEMORY)),
            (reasons::HOST_OUT_OF_MEMORY, Transient),
        ),
        (
            "a full disk in the log",
            exit(1, &because(reasons::OUT_OF_SPACE)),
            (reasons::OUT_OF_SPACE, CannotStart),
        ),
        ("argparse", exit(2, &nothing), (reasons::INVALID_ARGUMENTS, Permanent)),
        (
            "remaining_argv",
            exit(1, &because(reasons::INVALID_ARGUMENTS)),
            (reasons::INVALID_ARGUMENTS, Permanent),
        ),
        (
            "no such model",
            exit(1, &because(reasons::SOURCE_NOT_FOUND)),
            (reasons::SOURCE_NOT_FOUND, Permanent),
        ),
        (
            "no access",
            exit(1, &because(reasons::SOURCE_UNAUTHORIZED)),
            (reasons::SOURCE_UNAUTHORIZED, Permanent),
        ),
        (
            "no hub",
            exit(1, &because(reasons::SOURCE_UNREACHABLE)),
            (reasons::SOURCE_UNREACHABLE, CannotStart),
        ),
        ("an exception", exit(1, &because(reasons::USER_ERROR)), (reasons::USER_ERROR, Transient)),
        ("a cause of a later release", exit(1, &because("Novel")), (reasons::USER_ERROR, Transient)),
        ("an exit code alone", exit(3, &nothing), (reasons::USER_ERROR, Transient)),
        ("80", exit(80, &nothing), (reasons::PREEMPTED, Stop)),
        ("81", exit(81, &nothing), (reasons::NODE_LOST, Stop)),
        ("82", exit(82, &nothing), (reasons::OUTPUT_NOT_EMPTY, Permanent)),
        ("83", exit(83, &nothing), (reasons::STOPPED_EARLY, Transient)),
        ("84", exit(84, &nothing), (reasons::OUT_OF_SPACE, CannotStart)),
        ("85", exit(85, &nothing), (reasons::OUTPUT_UNUSABLE, CannotStart)),
        ("86", exit(86, &nothing), (reasons::USER_ERROR, Transient)),
        ("87", exit(87, &nothing), (reasons::INVALID_ARGUMENTS, Permanent)),
        (
            "a node that was restarted",
            ended(137, "ContainerStatusUnknown", &nothing, 0),
            (reasons::NODE_LOST, Interruption),
        ),
        (
            "a node that was restarted, of containerd",
            ended(255, "Unknown", &nothing, 0),
            (reasons::NODE_LOST, Interruption),
        ),
        (
            "a kubelet that has no GPU for it",
            without_container("UnexpectedAdmissionError"),
            (reasons::POD_REFUSED, CannotStart),
        ),
        ("a kubelet whose node is full", without_container("OutOfcpu"), (reasons::POD_REFUSED, CannotStart)),
        ("a node that shuts down", without_container("Terminated"), (reasons::PREEMPTED, Interruption)),
        (
            "a runtime whose driver does not answer",
            ended(128, "StartError", &nothing, 0),
            (reasons::POD_REFUSED, CannotStart),
        ),
        ("a kubelet that is short of disk", without_container("Evicted"), (reasons::PREEMPTED, Interruption)),
        ("a launcher that cannot be installed", installer_failed("disk"), (reasons::CRASH_LOOP, CannotStart)),
    ] {
        assert_eq!(verdict(&status), expected, "{of}");
    }
}

/// The init container has failed, and the trainer never started.
fn installer_failed(text: &str) -> Value {
    let end = json!({"terminated": {"exitCode": 1, "message": text}});
    json!({
        "phase": "Failed",
        "initContainerStatuses": [{"name": "launcher-installer", "state": end}],
        "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}],
    })
}

#[test]
fn a_pod_that_was_deleted_is_no_failure_of_the_trainer() {
    let deleted = |code| {
        let mut pod = failed(0, &exit(code, &Message::default()));
        pod.metadata.deletion_timestamp = Some(Time(at(0)));
        let failure = failure(&[pod]);
        (failure.reason, failure.class)
    };
    assert_eq!(deleted(143), (reasons::PREEMPTED, Interruption));
    assert_eq!(deleted(137), (reasons::PREEMPTED, Interruption));
    assert_eq!(deleted(2), (reasons::INVALID_ARGUMENTS, Permanent), "it had failed before");
}

#[test]
fn a_pod_that_was_deleted_before_its_trainer_started_is_no_failure_either() {
    let mut pod = failed(0, &installer_failed("signal"));
    pod.metadata.deletion_timestamp = Some(Time(at(0)));
    let found = failure(&[pod]);
    assert_eq!((found.reason, found.class), (reasons::PREEMPTED, Interruption));
}

#[test]
fn an_exit_code_of_0_is_no_failure_whatever_its_reason_is() {
    let mut status = ended(0, "OOMKilled", &Message::default(), 0);
    status["phase"] = "Succeeded".into();
    assert_eq!(of_pods([failed(0, &status)].iter(), None), None);
    assert_eq!(of_pods([failed(0, &running())].iter(), None), None);
}

#[test]
fn what_follows_from_the_end_of_another_rank_explains_nothing() {
    let memory = failed(1, &ended(1, "Error", &because(reasons::CUDA_OUT_OF_MEMORY), 9));
    for (of, consequence) in [
        ("a lost connection", ended(1, "Error", &because(reasons::PEER_LOST), 2)),
        ("a stop by Kubernetes", ended(80, "Error", &Message::default(), 1)),
    ] {
        let found = failure(&[failed(0, &consequence), memory.clone()]);
        assert_eq!(
            (found.reason, found.pod.as_deref()),
            (reasons::CUDA_OUT_OF_MEMORY, Some(memory.name())),
            "{of}"
        );
    }
}

#[test]
fn a_rank_that_was_preempted_explains_the_connections_that_it_loses() {
    let preempted = failed(1, &disrupted(ended(80, "Error", &Message::default(), 9)));
    let found = failure(&[failed(0, &ended(1, "Error", &because(reasons::PEER_LOST), 2)), preempted]);
    assert_eq!((found.reason, found.class), (reasons::PREEMPTED, Interruption));
}

#[test]
fn of_two_ranks_that_fail_by_themselves_the_first_one_counts() {
    let pods = [
        failed(0, &ended(1, "Error", &because(reasons::USER_ERROR), 5)),
        failed(1, &ended(2, "Error", &Message::default(), 3)),
    ];
    let found = failure(&pods);
    assert_eq!(
        (found.reason, found.node.as_deref(), found.exit_code),
        (reasons::INVALID_ARGUMENTS, Some("node-1"), Some(2))
    );
}

#[test]
fn the_message_names_the_pod_its_node_and_the_line_of_the_log() {
    let message = Message {
        error: Some("ValueError: \u{1b}[31mno column 'text'".into()),
        ..because(reasons::USER_ERROR)
    };
    let found = failure(&[failed(0, &exit(1, &message))]);
    assert_eq!(
        found.message,
        "pod qwen-1-0-abcde on node node-0 ended with exit code 1: ValueError: no column 'text'"
    );
}

#[test]
fn the_exit_code_is_that_of_the_trainer_if_the_launcher_knows_it() {
    let child = Message { exit_code: Some(5), ..Message::default() };
    assert_eq!(failure(&[failed(0, &exit(1, &child))]).exit_code, Some(5));
    assert_eq!(failure(&[failed(0, &exit(1, &Message::default()))]).exit_code, Some(1));
}

#[test]
fn a_message_that_is_no_json_is_that_of_no_launcher() {
    let mut status = exit(1, &Message::default());
    status["containerStatuses"][0]["state"]["terminated"]["message"] = "Killed\n{".into();
    assert_eq!(verdict(&status), (reasons::USER_ERROR, Transient));
}

#[test]
fn no_token_of_a_log_is_shown() {
    const TOKEN: &str = "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH";
    let message = Message {
        error: Some(format!("HTTPError: 401 for Authorization: Bearer {TOKEN}")),
        tail: Some(format!("HF_TOKEN={TOKEN}\nlogin with {TOKEN} failed\n--hub_token {TOKEN}")),
        ..because(reasons::SOURCE_UNAUTHORIZED)
    };
    let evicted = with(disrupted(exit(137, &message)), json!({"message": format!("disk of {TOKEN}")}));
    for status in [exit(1, &message), evicted, installer_failed(&format!("no {TOKEN}"))] {
        let found = failure(&[failed(0, &status)]);
        let shown = format!("{} {:?}", found.message, found.tail);
        assert!(!shown.contains("abcdefghij"), "{shown}");
    }
}

#[test]
fn the_tail_is_the_end_of_the_log_and_at_most_1_kib() {
    let lines: Vec<String> = (0..400).map(|line| format!("line é {line}")).collect();
    let message = Message { tail: Some(lines.join("\n")), ..because(reasons::USER_ERROR) };
    let tail = failure(&[failed(0, &exit(1, &message))]).tail.unwrap();
    assert!(tail.len() <= 1_024 && tail.ends_with("line é 398\nline é 399"), "{tail}");
}

#[test]
fn without_a_word_of_the_launcher_or_the_log_there_is_no_tail() {
    let pods = [failed(0, &exit(1, &Message::default()))];
    assert_eq!(of_pods(pods.iter(), Some(&LogState::default())).unwrap().tail, None);
}

#[test]
fn a_launcher_that_was_told_to_stop_shows_an_interruption_only_of_a_pod_that_is_deleted() {
    let mut pod = failed(0, &exit(80, &Message::default()));
    assert_eq!(failure(std::slice::from_ref(&pod)).class, Stop);
    pod.metadata.deletion_timestamp = Some(Time(at(0)));
    assert_eq!(failure(&[pod]).class, Interruption);
}

#[test]
fn the_checkpoint_of_the_launcher_is_kept() {
    let found = failure(&[failed(0, &exit(1, &message_at(Some(40))))]);
    assert_eq!(
        found.checkpoint.map(|saved| (saved.path, saved.step)),
        Some(("/output/checkpoint-40".into(), 40))
    );
}

#[test]
fn the_reasons_of_metrics_are_all_different_and_have_every_cause() {
    let mut reasons: Vec<&str> = failure_reasons().collect();
    let count = reasons.len();
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(reasons.len(), count);
    assert!(Cause::ALL.iter().all(|cause| reasons.contains(&cause.reason())));
}

#[test]
fn a_forged_checkpoint_is_none_and_a_real_one_takes_its_place() {
    let reported = |path: &str, step: i64| {
        let mut world = World::training(LORA);
        world.steps(40, 100);
        world.saves(40);
        let checkpoint = api::launcher::Checkpoint { path: path.to_owned(), step };
        world.fails(1, &Message { checkpoint: Some(checkpoint), ..Message::default() });
        world
    };
    let step = |world: &World| world.status().checkpoint.as_ref().map(|saved| saved.step);
    let long = format!("/output/{}/checkpoint-50", "a".repeat(3_000));
    for (path, forged) in [
        ("/inputs/secret", 50),
        ("/output/../inputs/checkpoint-50", 50),
        ("/output/checkpoint-50", 60),
        ("/output/checkpoint-500", 500),
        ("/output/checkpoint--1", -1),
        (&long, 50),
    ] {
        assert_eq!(step(&reported(path, forged)), Some(40), "{path}");
    }
    // A forged checkpoint of a plausible step counts until the next attempt reports its own.
    let mut world = reported("/output/checkpoint-99", 99);
    assert_eq!(step(&world), Some(99));
    world.passes(60);
    world.starts();
    world.steps(46, 100);
    world.log().has_saved = true;
    world.saves(45);
    assert_eq!(step(&world), Some(45), "what the log says of a later attempt");
    world.is_preempted(Some(46));
    assert_eq!(step(&world), Some(46));
    world.starts();
    world.is_preempted(Some(44));
    assert_eq!(step(&world), Some(44), "the launcher has looked: the newer one is damaged");
}
