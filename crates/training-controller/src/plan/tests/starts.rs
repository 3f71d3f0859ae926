//! Attempts that cannot start: no GPU is held meanwhile, nothing is lost, and the job goes on by itself.

use api::{
    conditions, reasons,
    trainingjob::{AvoidedNode, Phase, TrainingJobStatus},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::{GANG, LORA, World, because, ended, message_at, running};
use crate::tests::at;

/// A pod whose trainer waits for this reason.
fn waiting(reason: &str, message: &str) -> Value {
    let waiting = json!({"reason": reason, "message": message});
    json!({
        "phase": "Pending",
        "containerStatuses": [{"name": "trainer", "state": {"waiting": waiting}}],
    })
}

/// A pod that its kubelet has refused.
fn refused(reason: &str) -> Value {
    json!({"phase": "Failed", "reason": reason, "message": "Pod was rejected"})
}

/// It has trained up to a checkpoint of step 100 and was preempted.
fn interrupted(spec: &str) -> World {
    let mut world = World::training(spec);
    world.steps(100, 1_000);
    world.saves(100);
    world.is_preempted(Some(100));
    assert_eq!(world.jobs().len(), 2);
    world
}

/// What happens to each attempt of the next two hours; the seconds for which pods held GPUs.
fn two_hours(world: &mut World, mut happens: impl FnMut(&mut World)) -> i64 {
    let (until, mut held) = (world.seconds + 7_200, 0);
    while world.seconds < until {
        let begun = world.seconds;
        happens(world);
        held += world.seconds - begun;
        world.pods_go();
        assert_eq!(world.phase(), Phase::Pending, "{}", world.message());
        if world.status().next_attempt_time.is_some() {
            world.wakes();
        }
    }
    held
}

fn image_fails(world: &mut World) {
    world.pod(0, &waiting("ImagePullBackOff", "no such tag"));
    world.settles();
    assert_eq!(world.condition("Running"), ("False", reasons::IMAGE_PULL_FAILED));
    world.passes(120);
    assert_eq!(world.status().attempts, world.status().ended_attempts, "its GPUs are given back");
}

#[test]
fn an_image_that_cannot_be_pulled_for_two_hours_after_a_checkpoint_holds_no_gpu_and_loses_nothing() {
    let mut world = interrupted("{model: m, dataset: d, method: lora, retryLimit: 1}");
    let held = two_hours(&mut world, image_fails);
    assert!(held <= 7_200 / 3, "{held} s with GPUs");
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::IMAGE_PULL_FAILED));
    assert_eq!(world.phase(), Phase::Pending);
    world.starts();
    assert_eq!((world.phase(), world.status().retries), (Phase::Running, 0));
    assert_eq!(world.condition(conditions::STALLED).0, "absent");
    assert_eq!(world.status().checkpoint.as_ref().map(|saved| saved.step), Some(100));
}

#[test]
fn a_job_that_could_not_start_is_stalled_until_it_runs() {
    let mut world = World::new(LORA);
    world.settles();
    image_fails(&mut world);
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::IMAGE_PULL_FAILED), "in its pause");
    world.pods_go();
    world.wakes();
    assert_eq!(world.jobs(), ["qwen-1", "qwen-2"]);
    assert_eq!(
        world.condition(conditions::STALLED),
        ("True", reasons::IMAGE_PULL_FAILED),
        "in the next attempt"
    );
    assert_eq!(world.condition(conditions::RECONCILING).0, "absent");
}

#[test]
fn an_image_that_is_pulled_slowly_is_no_fault() {
    let mut world = World::new(LORA);
    world.settles();
    world.pod(0, &waiting("ContainerCreating", ""));
    world.passes(3_000);
    assert_eq!(world.status().ended_attempts, 0);
}

#[test]
fn a_fault_that_passes_in_time_ends_nothing() {
    let mut world = World::new(LORA);
    world.settles();
    world.pod(0, &waiting("ErrImagePull", "timeout"));
    world.passes(100);
    world.pod(0, &waiting("ContainerCreating", ""));
    world.passes(60);
    world.pod(0, &waiting("ErrImagePull", "timeout"));
    world.passes(119);
    assert_eq!(world.status().ended_attempts, 0);
    world.starts();
    assert_eq!(world.phase(), Phase::Running);
}

#[test]
fn pauses_grow_from_ten_seconds_to_ten_minutes_and_differ_between_jobs() {
    let pauses = |uid: &str| {
        let mut world = World::new(LORA);
        world.job().metadata.uid = Some(uid.into());
        world.settles();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            world.pod(0, &refused("OutOfcpu"));
            world.job_fails();
            pauses.push(world.wakes());
        }
        pauses
    };
    let (one, other) = (pauses("one"), pauses("other"));
    for (at, least) in [(0, 10), (1, 20), (2, 40), (3, 80), (4, 160), (5, 300), (8, 300)] {
        for pause in [one[at], other[at]] {
            assert!((least..=(2 * least).min(600)).contains(&pause), "{at}: {pause}");
        }
    }
    let apart = one.iter().zip(&other).filter(|(one, other)| one.abs_diff(**other) >= 2).count();
    assert!(apart >= 7, "{one:?} {other:?}");
    assert_eq!(one, pauses("one"), "no randomness");
}

#[test]
fn a_wait_for_a_place_is_no_interruption_without_progress() {
    let mut world = World::new(GANG);
    world.settles();
    for _ in 0..20 {
        world.pod(0, &running());
        world.pod(1, &json!({"phase": "Pending", "node": null}));
        world.passes(600);
        world.pods_go();
        world.wakes();
    }
    assert_eq!(world.failures(), [(reasons::UNSCHEDULABLE, 20)]);
    world.starts();
    gang_is_preempted(&mut world);
    assert_eq!(
        (world.phase(), &world.status().next_attempt_time),
        (Phase::Pending, &None),
        "{}",
        world.message()
    );
    assert_eq!((world.jobs().len(), world.status().failed_starts), (22, None));
}

/// Rank 0 is preempted, and the other one ends with it.
fn gang_is_preempted(world: &mut World) {
    world.pod(1, &ended(80, "Error", &super::Message::default(), world.seconds));
    world.is_preempted(None);
}

#[test]
fn a_hub_that_is_away_after_a_checkpoint_ends_no_job() {
    for reason in [reasons::SOURCE_UNREACHABLE, reasons::SOURCE_UNAUTHORIZED, reasons::SOURCE_NOT_FOUND] {
        let mut world = interrupted("{model: m, dataset: d, method: lora, retryLimit: 0}");
        let held = two_hours(&mut world, |world| {
            world.starts();
            world.seconds += 60;
            world.fails(1, &because(reason));
        });
        assert!(held <= 7_200 / 5, "{held} s with GPUs");
        assert_eq!(world.phase(), Phase::Pending);
        assert_eq!(world.condition(conditions::STALLED), ("True", reason));
        world.starts();
        assert_eq!((world.phase(), world.status().retries), (Phase::Running, 0));
    }
}

#[test]
fn a_model_or_a_token_that_is_wrong_from_the_start_ends_the_job_at_once() {
    for reason in [reasons::SOURCE_UNAUTHORIZED, reasons::SOURCE_NOT_FOUND] {
        let mut world = World::training(LORA);
        world.fails(1, &because(reason));
        assert_eq!(world.outcome(), (Phase::Failed, reason));
        assert!(world.message().contains("create the job again"), "{}", world.message());
        assert!(!world.message().contains("resumeFrom"), "{}", world.message());
    }
    let mut world = World::training(LORA);
    world.fails(1, &because(reasons::SOURCE_UNREACHABLE));
    assert_eq!((world.outcome(), world.status().retries), ((Phase::Pending, reasons::SOURCE_UNREACHABLE), 0));
}

/// The claim of the output asks for this size.
fn has_size(world: &mut World, size: &str) {
    let claim = json!({
        "metadata": {"name": "qwen-output", "namespace": "demo"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
        "status": {"phase": "Bound"},
    });
    world
        .claims
        .insert("qwen-output".into(), Some(serde_json::from_value(claim).map(std::sync::Arc::new).unwrap()));
    world.settles();
}

#[test]
fn a_full_volume_is_waited_for_without_gpus_until_its_claim_grows() {
    let mut world = World::training(LORA);
    has_size(&mut world, "50Gi");
    world.steps(100, 1_000);
    world.saves(100);
    for _ in 0..12 {
        world.fails(84, &message_at(Some(100)));
        assert_eq!(world.outcome(), (Phase::Pending, reasons::OUT_OF_SPACE), "{}", world.message());
        assert_eq!(world.condition(conditions::STALLED), ("True", reasons::OUT_OF_SPACE));
        world.wakes();
        world.starts();
    }
    world.fails(84, &message_at(Some(100)));
    let (attempts, retries) = (world.jobs().len(), world.status().retries);
    world.passes(1);
    assert_eq!((world.jobs().len(), retries), (attempts, 0), "it waits");
    has_size(&mut world, "100Gi");
    assert_eq!(world.jobs().len(), attempts + 1, "it goes on at once");
    world.fails(84, &message_at(Some(100)));
    world.passes(1);
    assert_eq!(world.jobs().len(), attempts + 1, "the larger volume is full, too");
}

/// The launcher deletes what was half written, so each attempt starts, and trains until the same step.
#[test]
fn a_volume_that_is_full_after_a_step_is_tried_again_when_its_claim_grows_or_after_an_hour() {
    let mut world = World::training(LORA);
    has_size(&mut world, "50Gi");
    world.steps(100, 1_000);
    world.saves(100);
    for _ in 0..2 {
        world.steps(150, 1_000);
        world.fails(1, &because(reasons::OUT_OF_SPACE));
        assert_eq!(world.condition(conditions::STALLED), ("True", reasons::OUT_OF_SPACE));
        let message = world.status().failure.as_ref().unwrap().message.clone().unwrap();
        assert!(message.contains("/output/.cache/hub/qwen of the claim"), "{message}");
        assert_eq!((world.wakes(), world.status().retries), (3_600, 0));
        world.starts();
    }
    world.steps(150, 1_000);
    world.fails(1, &because(reasons::OUT_OF_SPACE));
    let attempts = world.jobs().len();
    has_size(&mut world, "100Gi");
    assert_eq!(world.jobs().len(), attempts + 1);
}

#[test]
fn a_hub_that_is_away_in_the_middle_of_a_training_counts() {
    let mut world = World::training(LORA);
    world.steps(100, 1_000);
    world.fails(1, &because(reasons::SOURCE_UNREACHABLE));
    assert_eq!(world.status().retries, 1);
}

#[test]
fn a_storage_that_is_away_before_the_first_step_of_an_attempt_costs_no_retry() {
    let mut world = World::training("{model: m, dataset: d, method: lora, retryLimit: 1}");
    world.steps(100, 1_000);
    world.saves(100);
    // It is lost while the job trains, and away for the next attempts.
    world.fails(85, &message_at(Some(100)));
    assert_eq!((world.outcome(), world.status().retries), ((Phase::Pending, reasons::RETRYING), 1));
    assert_eq!(world.condition(conditions::STALLED).0, "absent");
    world.wakes();
    for _ in 0..8 {
        world.starts();
        world.fails(85, &because(reasons::USER_ERROR));
        assert_eq!(world.outcome(), (Phase::Pending, reasons::OUTPUT_UNUSABLE), "{}", world.message());
        assert_eq!(world.condition(conditions::STALLED), ("True", reasons::OUTPUT_UNUSABLE));
        assert!(world.wakes() <= 600);
    }
    world.starts();
    assert_eq!((world.phase(), world.status().retries), (Phase::Running, 1));
    assert_eq!(world.condition(conditions::STALLED).0, "absent");
}

#[test]
fn the_deadline_ends_a_job_that_never_starts() {
    let mut world = World::new("{model: m, dataset: d, method: lora, activeDeadlineSeconds: 1000}");
    world.settles();
    while world.phase() == Phase::Pending && world.seconds < 10_000 {
        world.pod(0, &waiting("ErrImagePull", "no such tag"));
        world.settles();
        world.passes(120);
        world.pods_go();
        if world.phase() == Phase::Pending && world.requeue_after.is_some() {
            world.wakes();
        }
    }
    assert_eq!(world.outcome(), (Phase::Failed, reasons::DEADLINE_EXCEEDED));
    // Its time begins when the first attempt has ended.
    assert!((1_120..=1_240).contains(&world.seconds), "{}", world.seconds);
}

/// Names of the nodes that the last attempt does not use.
fn avoided(world: &World) -> Vec<String> {
    let template = &world.created.last().unwrap().spec.as_ref().unwrap().template;
    let affinity = template.spec.as_ref().unwrap().affinity.clone().unwrap_or_default();
    let selector =
        affinity.node_affinity.unwrap_or_default().required_during_scheduling_ignored_during_execution;
    let fields =
        selector.unwrap_or_default().node_selector_terms.into_iter().flat_map(|term| term.match_fields);
    fields.flatten().flat_map(|rule| rule.values.unwrap_or_default()).collect()
}

#[test]
fn a_node_whose_kubelet_refuses_two_pods_in_a_row_is_avoided_for_an_hour() {
    let mut world = World::training("{model: m, dataset: d, method: lora, gpuProductLabel: A100}");
    world.is_preempted(Some(10));
    // A device plugin that restarts, or a scheduler that knows the node's pods too late, causes one refusal.
    world.pod(0, &refused("UnexpectedAdmissionError"));
    world.job_fails();
    world.wakes();
    assert_eq!(avoided(&world), [""; 0]);
    let now = world.seconds;
    world.pod(0, &refused("OutOfcpu"));
    world.job_fails();
    let message = world.status().failure.as_ref().unwrap().message.clone().unwrap();
    assert!(message.contains("node node-0 is avoided for an hour"), "{message}");
    world.wakes();
    assert_eq!((avoided(&world), world.status().retries), (vec!["node-0".to_owned()], 0));
    let node = &world.status().avoided_nodes[0];
    assert_eq!(
        (node.node.as_str(), node.reason.as_str(), &node.time),
        ("node-0", reasons::POD_REFUSED, &Some(Time(at(now))))
    );
    let affinity =
        world.created.last().unwrap().spec.as_ref().unwrap().template.spec.as_ref().unwrap().affinity.clone();
    let text = serde_json::to_string(&affinity).unwrap();
    assert!(text.contains("A100") && text.contains("metadata.name"), "one term has both rules: {text}");
    world.passes(3_600);
    world.starts();
    world.is_preempted(Some(20));
    assert_eq!((avoided(&world), world.status().avoided_nodes.len()), (vec![], 0));
}

#[test]
fn a_node_whose_gpu_failed_under_a_trainer_is_avoided() {
    let mut world = World::training(LORA);
    world.observed.gpu_faults.insert("node-0".into(), "XID 79 of GPU-a".into());
    world.settles();
    let known = world.status().avoided_nodes.clone();
    assert_eq!(
        (known[0].reason.as_str(), known[0].message.as_deref()),
        (reasons::GPU_FAULT, Some("XID 79 of GPU-a"))
    );
    world.passes(300);
    assert_eq!(world.status().avoided_nodes, known, "what is known is not written again");
    // The agent does not repeat it any more when the trainer ends.
    world.observed.gpu_faults.clear();
    world.fails(1, &because(reasons::USER_ERROR));
    world.wakes();
    assert_eq!(avoided(&world), ["node-0"]);
}

/// A node that is bought may take minutes, and some that buy nodes ignore a pod that may not use a certain one.
#[test]
fn a_job_that_finds_no_other_node_prefers_others_and_takes_the_one_it_avoids() {
    let mut world = World::training(LORA);
    for _ in 0..2 {
        world.pod(0, &refused("UnexpectedAdmissionError"));
        world.job_fails();
        world.wakes();
    }
    assert_eq!(avoided(&world), ["node-0"]);
    let unplaced = |world: &mut World| {
        let unschedulable = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]);
        world.pod(0, &json!({"phase": "Pending", "node": null, "conditions": unschedulable}));
        world.settles();
    };
    unplaced(&mut world);
    assert!(world.message().contains("node node-0 is avoided for an hour"), "{}", world.message());
    let begun = world.seconds;
    world.wakes();
    assert_eq!(
        world.seconds - begun,
        i64::try_from(crate::tests::defaults().timings.placement.as_secs()).unwrap()
    );
    assert!(
        world.status().failure.as_ref().unwrap().message.as_ref().unwrap().contains("if there is no other")
    );
    world.pods_go();
    world.wakes();
    assert_eq!((world.jobs().len(), avoided(&world)), (4, vec![]));
    let preferred = |world: &World| {
        let pod = world.created.last().unwrap().spec.as_ref().unwrap().template.spec.clone().unwrap();
        let nodes = pod.affinity.and_then(|affinity| affinity.node_affinity);
        nodes.and_then(|nodes| nodes.preferred_during_scheduling_ignored_during_execution)
    };
    let text = serde_json::to_string(&preferred(&world)).unwrap();
    assert!(text.contains("node-0") && text.contains("100"), "{text}");
    unplaced(&mut world);
    world.passes(1_000);
    assert_eq!(world.jobs().len(), 4, "it waits, as any pod does");
    // The node refuses again: it is avoided again.
    world.pod(0, &refused("UnexpectedAdmissionError"));
    world.job_fails();
    world.wakes();
    assert_eq!((preferred(&world), avoided(&world).len()), (None, 1));
}

#[test]
fn at_most_sixteen_nodes_are_avoided() {
    let mut world = World::training(LORA);
    for node in 0..40 {
        world.seconds += 1;
        world.observed.gpu_faults = [(format!("gpu-{node}"), "XID 79".to_owned())].into();
        world.settles();
    }
    let nodes: Vec<&str> = world.status().avoided_nodes.iter().map(|known| known.node.as_str()).collect();
    assert_eq!((nodes.len(), nodes[0], nodes[15]), (16, "gpu-24", "gpu-39"));
    let status =
        TrainingJobStatus { avoided_nodes: vec![AvoidedNode::default()], ..TrainingJobStatus::default() };
    assert!(crate::plan::attempt::avoid::avoided(&status, at(0)).is_empty(), "one without a time is none");
}

#[test]
fn the_pods_have_the_grace_period_of_their_job() {
    let world = World::training("{model: m, dataset: d, method: lora, graceSeconds: 1800}");
    let pod = world.created[0].spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    assert_eq!(pod.termination_grace_period_seconds, Some(1_800));
    assert!(super::arguments(&world.created[0]).contains(&"--grace-seconds=1800".to_owned()));
}

#[test]
fn a_runtime_that_cannot_start_the_trainer_costs_no_retry() {
    let mut world = World::new("{model: m, dataset: d, method: lora, retryLimit: 0}");
    world.settles();
    world.pod(0, &ended(128, "StartError", &super::Message::default(), 0));
    world.job_fails();
    assert_eq!((world.phase(), world.failures()), (Phase::Pending, vec![(reasons::POD_REFUSED, 1)]));
    world.wakes();
    world.pod(0, &ended(128, "StartError", &super::Message::default(), world.seconds));
    world.job_fails();
    world.wakes();
    assert_eq!(avoided(&world), ["node-0"]);
}
