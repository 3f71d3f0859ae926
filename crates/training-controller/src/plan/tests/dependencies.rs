//! Jobs that wait for others, and what they get of them.

use std::sync::Arc;

use api::{
    conditions, reasons,
    trainingjob::{Checkpoint, Phase, Resolved, TrainingJob, TrainingJobStatus},
};
use k8s_openapi::api::core::v1::PodSpec;
use runtime::write::conditions::{Verdict, merged};
use serde_json::json;

use super::{World, arguments, flag, message_at};
use crate::tests::{at, job};

/// A lora job whose output another one can read.
const SFT: &str = "{model: qwen/Qwen-7B, dataset: a/b, method: lora, outputDir: /outputs/sft}";
/// A DPO job on top of it.
const DPO: &str = "{model: /outputs/sft, dataset: c/d, method: dpo, outputDir: /outputs/dpo}";

/// Another job in this phase, with what a job of that phase has in its status.
fn other(name: &str, spec: &str, phase: Phase) -> TrainingJob {
    let mut other = job(name, spec);
    let path = format!("{}/checkpoint-27", other.spec.output_dir);
    let is_over = phase == Phase::Succeeded;
    other.status = Some(TrainingJobStatus {
        phase: Some(phase),
        message: (phase == Phase::Failed).then(|| "the disk is full".to_owned()),
        checkpoint: is_over.then_some(Checkpoint { path, step: 27, time: None }),
        resolved: Some(Resolved { model: other.spec.model.clone(), ..Resolved::default() }),
        ..TrainingJobStatus::default()
    });
    other
}

fn among(spec: &str, others: Vec<TrainingJob>) -> World {
    let mut world = World::new(spec);
    world.others = others.into_iter().map(Arc::new).collect();
    world.settles();
    world
}

/// DependenciesReady, and its message.
fn readiness(world: &World) -> (&str, &str, String) {
    let (status, reason) = world.condition(conditions::DEPENDENCIES_READY);
    let found = world.status().conditions.iter().find(|known| known.type_ == conditions::DEPENDENCIES_READY);
    (status, reason, found.map(|known| known.message.clone()).unwrap_or_default())
}

fn pod(world: &World) -> PodSpec {
    world.created[0].spec.clone().unwrap().template.spec.unwrap()
}

/// Claim, path and whether it is read-only, of a mount.
fn mount(world: &World, path: &str) -> Option<(String, Option<bool>)> {
    let pod = pod(world);
    let mounts = pod.containers[0].volume_mounts.as_ref().unwrap();
    let mount = mounts.iter().find(|mount| mount.mount_path == path)?;
    let volume = pod.volumes.as_ref().unwrap().iter().find(|volume| volume.name == mount.name)?;
    Some((volume.persistent_volume_claim.as_ref()?.claim_name.clone(), mount.read_only))
}

#[test]
fn a_path_in_the_output_of_another_job_waits_for_it() {
    let mut world = among(DPO, vec![other("sft", SFT, Phase::Running)]);
    assert_eq!(world.jobs(), [""; 0]);
    assert_eq!(world.outcome(), (Phase::Pending, reasons::WAITING));
    assert_eq!(
        readiness(&world),
        ("False", reasons::WAITING, "waits for TrainingJob sft, which is running".into())
    );
    world.others = vec![Arc::new(other("sft", SFT, Phase::Succeeded))];
    world.settles();
    assert_eq!(world.jobs(), ["qwen-1"]);
    assert_eq!(readiness(&world), ("True", reasons::ALL_SUCCEEDED, "sft".into()));
}

#[test]
fn a_job_by_name_is_waited_for_and_gives_nothing() {
    let spec = "{model: m, dataset: d, method: lora, dependsOn: [sft]}";
    let mut world = among(spec, vec![other("sft", SFT, Phase::Pending)]);
    assert_eq!(readiness(&world).2, "waits for TrainingJob sft, which is pending");
    world.others = vec![Arc::new(other("sft", SFT, Phase::Succeeded))];
    world.settles();
    assert_eq!((world.jobs(), mount(&world, "/outputs/sft")), (vec!["qwen-1"], None));
    assert_eq!(flag(&world.created[0], "--model").as_deref(), Some("m"));
}

#[test]
fn dpo_starts_from_the_adapters_and_keeps_them_as_its_reference() {
    let world = among(DPO, vec![other("sft", SFT, Phase::Succeeded)]);
    let arguments = arguments(&world.created[0]);
    assert_eq!(flag(&world.created[0], "--model").as_deref(), Some("qwen/Qwen-7B"));
    assert_eq!(flag(&world.created[0], "--ref_adapters").as_deref(), Some("/outputs/sft/checkpoint-27"));
    let fresh: Vec<&str> = arguments.iter().filter_map(|one| one.strip_prefix("--fresh-arg=")).collect();
    assert_eq!(fresh, ["--adapters", "/outputs/sft/checkpoint-27"], "a run that resumes loads its own");
    assert!(!arguments.contains(&"--adapters".to_owned()));
    assert_eq!(mount(&world, "/outputs/sft"), Some(("sft-output".into(), Some(true))));
    assert_eq!(mount(&world, "/outputs/dpo"), Some(("qwen-output".into(), None)));
    let resolved = world.status().resolved.clone().unwrap();
    assert_eq!(
        (resolved.model.as_str(), resolved.adapters.as_deref()),
        ("qwen/Qwen-7B", Some("/outputs/sft/checkpoint-27"))
    );
}

#[test]
fn lora_on_adapters_goes_on_with_them_and_has_no_reference() {
    let spec = DPO.replace("dpo, outputDir", "lora, outputDir");
    let world = among(&spec, vec![other("sft", SFT, Phase::Succeeded)]);
    assert_eq!(flag(&world.created[0], "--ref_adapters"), None);
    assert!(arguments(&world.created[0]).contains(&"--fresh-arg=/outputs/sft/checkpoint-27".to_owned()));
}

#[test]
fn a_fully_trained_model_is_the_model_itself() {
    let full = SFT.replace("lora", "full");
    for method in ["dpo", "full", "lora"] {
        let spec = DPO.replace("dpo, outputDir", &format!("{method}, outputDir"));
        let world = among(&spec, vec![other("sft", &full, Phase::Succeeded)]);
        assert_eq!(
            flag(&world.created[0], "--model").as_deref(),
            Some("/outputs/sft/checkpoint-27"),
            "{method}"
        );
        assert!(!arguments(&world.created[0]).iter().any(|one| one.contains("adapters")), "{method}");
    }
}

#[test]
fn a_chain_of_adapters_keeps_the_model_of_its_beginning() {
    let mut middle = other("dpo", DPO, Phase::Succeeded);
    let resolved = Resolved { model: "qwen/Qwen-7B".into(), ..Resolved::default() };
    middle.status.as_mut().unwrap().resolved = Some(resolved);
    let spec = "{model: /outputs/dpo, dataset: c/d, method: dpo, outputDir: /outputs/more}";
    let world = among(spec, vec![middle]);
    assert_eq!(flag(&world.created[0], "--model").as_deref(), Some("qwen/Qwen-7B"));
    assert_eq!(flag(&world.created[0], "--ref_adapters").as_deref(), Some("/outputs/dpo/checkpoint-27"));
}

#[test]
fn a_checkpoint_of_the_path_is_meant_as_it_is() {
    let spec = DPO.replace("/outputs/sft,", "/outputs/sft/checkpoint-10,");
    let world = among(&spec, vec![other("sft", SFT, Phase::Succeeded)]);
    assert_eq!(flag(&world.created[0], "--ref_adapters").as_deref(), Some("/outputs/sft/checkpoint-10"));
}

#[test]
fn a_folder_below_the_output_is_a_whole_model() {
    for folder in ["/outputs/sft/merged", "/outputs/sft/checkpoint-10-merged"] {
        let spec = DPO.replace("/outputs/sft,", &format!("{folder},"));
        let world = among(&spec, vec![other("sft", SFT, Phase::Succeeded)]);
        assert_eq!(flag(&world.created[0], "--model").as_deref(), Some(folder));
        assert_eq!(flag(&world.created[0], "--ref_adapters"), None);
    }
}

#[test]
fn a_dataset_may_lie_in_the_output_of_another_job() {
    let spec = "{model: m, dataset: 'a/b, /outputs/sft/data.jsonl#500', method: lora}";
    let world = among(spec, vec![other("sft", SFT, Phase::Succeeded)]);
    assert!(arguments(&world.created[0]).contains(&"/outputs/sft/data.jsonl#500".to_owned()));
    assert_eq!(mount(&world, "/outputs/sft"), Some(("sft-output".into(), Some(true))));
    assert_eq!(flag(&world.created[0], "--model").as_deref(), Some("m"));
}

#[test]
fn the_longest_output_that_contains_the_path_wins() {
    let deeper = SFT.replace("/outputs/sft", "/outputs/sft/second");
    let others = vec![other("sft", SFT, Phase::Failed), other("second", &deeper, Phase::Running)];
    let world = among(&DPO.replace("/outputs/sft,", "/outputs/sft/second/checkpoint-1,"), others);
    assert_eq!(readiness(&world).2, "waits for TrainingJob second, which is running");
}

#[test]
fn two_jobs_with_the_same_output_are_ambiguous() {
    let others = vec![other("a", SFT, Phase::Succeeded), other("b", SFT, Phase::Running)];
    let mut world = among(DPO, others);
    assert_eq!(world.condition(conditions::ACCEPTED), ("False", reasons::AMBIGUOUS_DEPENDENCY));
    assert!(world.message().contains(" a and b "), "{}", world.message());
    assert_eq!(world.jobs(), [""; 0]);
    world.others.pop();
    world.settles();
    assert_eq!(world.jobs(), ["qwen-1"]);
}

#[test]
fn the_job_that_was_chosen_stays_the_choice() {
    let mut world = among(DPO, vec![other("a", SFT, Phase::Running)]);
    world.others.push(Arc::new(other("b", SFT, Phase::Succeeded)));
    world.settles();
    assert_eq!(readiness(&world).2, "waits for TrainingJob a, which is running");
}

#[test]
fn the_default_output_folder_provides_nothing() {
    let default = SFT.replace("/outputs/sft", "/output");
    let world =
        among(&DPO.replace("/outputs/sft,", "/output/a,"), vec![other("sft", &default, Phase::Succeeded)]);
    assert_eq!(readiness(&world).1, reasons::DEPENDENCY_NOT_FOUND);
}

#[test]
fn an_input_provides_its_path() {
    let spec = DPO.replace("method", "inputs: [{claimName: models, mountPath: /outputs/sft}], method");
    let mut world = World::new(&spec);
    world.others = vec![Arc::new(other("sft", SFT, Phase::Failed))];
    let claim =
        serde_saphyr::from_str("{metadata: {name: models}, spec: {accessModes: [ReadWriteOnce]}}").unwrap();
    world.claims.insert("models".into(), Some(Arc::new(claim)));
    world.settles();
    assert_eq!(flag(&world.created[0], "--model").as_deref(), Some("/outputs/sft"));
    assert_eq!(mount(&world, "/outputs/sft"), Some(("models".into(), Some(true))));
}

#[test]
fn a_model_in_the_image_is_no_dependency() {
    let world = among("{model: /models/qwen, modelInImage: true, dataset: d, method: lora}", vec![]);
    assert_eq!((world.jobs(), readiness(&world).0), (vec!["qwen-1"], "absent"));
}

#[test]
fn a_path_that_nothing_provides_is_waited_for_and_explained() {
    let mut world = among(DPO, vec![]);
    assert_eq!(world.outcome(), (Phase::Pending, reasons::DEPENDENCY_NOT_FOUND));
    assert!(world.message().contains("spec.model") && world.message().contains("modelInImage"));
    world.others = vec![Arc::new(other("sft", SFT, Phase::Succeeded))];
    world.settles();
    assert_eq!(world.jobs(), ["qwen-1"]);
}

#[test]
fn a_name_that_does_not_exist_is_named() {
    let world = among("{model: m, dataset: d, method: lora, dependsOn: [missing]}", vec![]);
    assert_eq!(readiness(&world).1, reasons::DEPENDENCY_NOT_FOUND);
    assert!(world.message().contains("TrainingJob missing does not exist"), "{}", world.message());
}

#[test]
fn a_failed_dependency_ends_the_job_without_a_pod() {
    let world = among(DPO, vec![other("sft", SFT, Phase::Failed)]);
    assert_eq!(world.outcome(), (Phase::Failed, reasons::DEPENDENCY_FAILED));
    assert_eq!(world.message(), "TrainingJob sft has failed: the disk is full");
    assert!(world.jobs().is_empty() && world.claims.is_empty() && world.status().completion_time.is_some());
}

#[test]
fn a_failed_dependency_counts_more_than_one_that_is_waited_for() {
    let spec = "{model: m, dataset: d, method: lora, dependsOn: [a, b]}";
    let world = among(spec, vec![other("a", SFT, Phase::Running), other("b", DPO, Phase::Failed)]);
    assert_eq!(world.outcome(), (Phase::Failed, reasons::DEPENDENCY_FAILED));
}

#[test]
fn a_circle_of_jobs_is_shown_and_nothing_starts() {
    let mut world = World::new("{model: m, dataset: d, method: lora, dependsOn: [b]}");
    world.others =
        vec![Arc::new(other("b", "{model: m, dataset: d, method: lora, dependsOn: [qwen]}", Phase::Pending))];
    world.observed.cycle = vec!["qwen".into(), "b".into()];
    world.settles();
    assert_eq!(world.outcome(), (Phase::Pending, reasons::CYCLE));
    assert!(world.message().contains("by way of b -> qwen"), "{}", world.message());
    assert!(world.jobs().is_empty());
}

#[test]
fn a_job_of_the_same_name_that_is_made_anew_is_waited_for_again() {
    let mut world = among(DPO, vec![other("sft", SFT, Phase::Running)]);
    let mut again = other("sft", SFT, Phase::Pending);
    again.metadata.uid = Some("another".into());
    world.others = vec![Arc::new(again)];
    world.settles();
    assert_eq!(world.status().dependencies[0].uid, "another");
    assert!(world.jobs().is_empty());
}

#[test]
fn a_dependency_that_succeeded_may_be_deleted_while_another_is_waited_for() {
    let spec = DPO.replace("method", "dependsOn: [later], method");
    let mut world =
        among(&spec, vec![other("sft", SFT, Phase::Succeeded), other("later", SFT, Phase::Running)]);
    // Both have the same output, which only the path makes ambiguous.
    assert_eq!(world.condition(conditions::ACCEPTED).1, reasons::AMBIGUOUS_DEPENDENCY);
    let later = "{model: m, dataset: d, method: lora, outputDir: /outputs/later}";
    world.others =
        vec![Arc::new(other("sft", SFT, Phase::Succeeded)), Arc::new(other("later", later, Phase::Running))];
    world.settles();
    assert_eq!(readiness(&world).1, reasons::WAITING);
    world.others = vec![Arc::new(other("later", later, Phase::Succeeded))];
    world.settles();
    assert_eq!(flag(&world.created[0], "--ref_adapters").as_deref(), Some("/outputs/sft/checkpoint-27"));
}

#[test]
fn what_becomes_of_a_dependency_after_its_success_does_not_matter() {
    let mut world = among(DPO, vec![other("sft", SFT, Phase::Succeeded)]);
    world.starts();
    world.others = Vec::new();
    world.is_preempted(Some(5));
    world.starts();
    assert_eq!((world.phase(), readiness(&world).0), (Phase::Running, "True"));
    world.others = vec![Arc::new(other("sft", SFT, Phase::Failed))];
    world.is_preempted(Some(6));
    assert_eq!(
        flag(world.created.last().unwrap(), "--ref_adapters").as_deref(),
        Some("/outputs/sft/checkpoint-27")
    );
    world.starts();
    world.succeeds(&message_at(Some(9)));
    assert_eq!(world.phase(), Phase::Succeeded);
}

#[test]
fn the_records_are_written_before_the_first_attempt() {
    let mut world = World::new(DPO);
    world.others = vec![Arc::new(other("sft", SFT, Phase::Succeeded))];
    world.depend();
    let plan = world.plan();
    assert!(plan.children.is_empty());
    assert_eq!(
        plan.status.dependencies[0].result.as_ref().map(|result| result.claim_name.as_str()),
        Some("sft-output")
    );
}

#[test]
fn a_claim_in_common_is_mounted_once_and_can_be_written() {
    let output = "output: {claimName: shared, mountPath: /outputs}";
    let sft = SFT.replace("method", &format!("{output}, method"));
    let spec = DPO.replace("method", &format!("{output}, method"));
    let mut world = World::new(&spec);
    let claim =
        serde_saphyr::from_str("{metadata: {name: shared}, spec: {accessModes: [ReadWriteOnce]}}").unwrap();
    world.claims.insert("shared".into(), Some(Arc::new(claim)));
    world.others = vec![Arc::new(other("sft", &sft, Phase::Succeeded))];
    world.settles();
    assert_eq!(mount(&world, "/outputs"), Some(("shared".into(), None)));
    let volumes = pod(&world).volumes.unwrap();
    assert_eq!(volumes.iter().filter(|volume| volume.persistent_volume_claim.is_some()).count(), 1);
}

#[test]
fn results_that_a_method_cannot_use_are_refused() {
    let ppo = |model: &str, reward: &str| {
        format!("{{model: {model}, rewardModel: {reward}, dataset: d, method: ppo, outputDir: /outputs/new}}")
    };
    let full = DPO.replace("dpo, outputDir", "full, outputDir");
    let same_path =
        "{model: /m/sft, dataset: d, method: dpo, outputDir: /m/sft/new, output: {mountPath: /m/sft}}";
    for (spec, words) in [
        (full, "method full cannot start"),
        (ppo("/outputs/sft", "hub/reward"), "method ppo cannot start"),
        (ppo("hub/model", "/outputs/sft"), "spec.rewardModel is the LoRA adapters"),
        (same_path.replace("/m/sft", "/outputs/sft"), "is where the result of another job is mounted"),
    ] {
        let world = among(&spec, vec![other("sft", SFT, Phase::Succeeded)]);
        assert_eq!(world.outcome(), (Phase::Pending, reasons::INVALID_SPEC), "{spec}");
        assert!(world.message().contains(words) && world.jobs().is_empty(), "{}", world.message());
        assert_eq!(world.condition(conditions::STALLED), ("True", reasons::INVALID_SPEC));
    }
}

#[test]
fn a_version_of_ms_swift_without_reference_adapters_is_refused() {
    let spec = DPO.replace("method", "swiftVersion: v3.5, method");
    let world = among(&spec, vec![other("sft", SFT, Phase::Succeeded)]);
    assert_eq!(world.outcome(), (Phase::Pending, reasons::INVALID_SPEC));
    assert!(world.message().contains("use an image with 3.8"), "{}", world.message());
}

#[test]
fn a_job_waits_for_a_missing_dependency_although_another_one_has_succeeded() {
    let mut world = World::new("{model: m, dataset: d, method: lora, dependsOn: [a, b]}");
    let mut a = job("a", SFT);
    a.status = Some(TrainingJobStatus { phase: Some(Phase::Succeeded), ..TrainingJobStatus::default() });
    world.others = vec![Arc::new(a)];
    world.settles();
    assert_eq!((world.jobs(), world.outcome()), (vec![], (Phase::Pending, reasons::DEPENDENCY_NOT_FOUND)));
}

#[test]
fn a_job_that_waits_for_what_only_a_person_can_change_is_stalled() {
    let mut world = World::new("{model: m, dataset: d, method: lora, dependsOn: [a]}");
    world.settles();
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::DEPENDENCY_NOT_FOUND));
}

#[test]
fn the_default_output_of_another_job_is_no_dependency_and_the_message_says_why() {
    for model in ["/output", "/output/checkpoint-5"] {
        let world = among(
            &format!("{{model: {model}, dataset: c/d, method: dpo, outputDir: /outputs/dpo}}"),
            vec![other("sft", "{model: m, dataset: d, method: lora}", Phase::Succeeded)],
        );
        let (status, reason, message) = readiness(&world);
        assert_eq!((status, reason), ("False", reasons::DEPENDENCY_NOT_FOUND));
        assert!(message.contains("is in the outputDir of every job that sets none"), "{message}");
    }
}

#[test]
fn a_claim_of_one_node_is_mounted_when_the_pod_that_uploads_from_it_has_ended() {
    let mut world = World::new(DPO);
    let claim = json!({"metadata": {"name": "sft-output", "namespace": "demo"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    world.claims.insert("sft-output".into(), Some(Arc::new(serde_json::from_value(claim).unwrap())));
    world.observed.uploaders.insert("sft-output".into(), "sft-upload-abcde".into());
    world.others = vec![Arc::new(other("sft", SFT, Phase::Succeeded))];
    world.settles();
    assert_eq!(world.jobs(), [""; 0], "it holds no GPU");
    assert_eq!(world.condition(conditions::SCHEDULED), ("False", reasons::WAITING));
    assert!(world.message().contains("pod sft-upload-abcde uploads from it"), "{}", world.message());
    assert_eq!(world.condition(conditions::STALLED).0, "absent");
    world.observed.uploaders.clear();
    assert_eq!(world.wakes(), 10, "the pods of others wake up nothing");
    assert_eq!(world.jobs(), ["qwen-1"]);
}

#[test]
fn a_job_begins_while_the_result_that_it_reads_is_not_uploaded() {
    // Until its upload works, and after an upload that was given up.
    for phase in [Phase::Running, Phase::Failed] {
        let mut sft = other("sft", SFT, Phase::Succeeded);
        let status = sft.status.as_mut().unwrap();
        status.phase = Some(phase);
        let failing = Verdict {
            type_: conditions::UPLOADED,
            holds: false,
            reason: reasons::UPLOAD_FAILED,
            message: String::new(),
        };
        status.conditions = merged(vec![failing], &[], Some(1), at(0));
        let mut world = World::new(DPO);
        let claim = json!({"metadata": {"name": "sft-output", "namespace": "demo"}, "spec": {"accessModes": ["ReadWriteMany"]}});
        world.claims.insert("sft-output".into(), Some(Arc::new(serde_json::from_value(claim).unwrap())));
        world.others = vec![Arc::new(sft)];
        world.settles();
        assert_eq!(world.jobs(), ["qwen-1"], "{phase:?}");
        let arguments = arguments(&world.created[0]);
        assert!(arguments.iter().any(|one| one.ends_with("/outputs/sft/checkpoint-27")), "{arguments:?}");
    }
}
