//! Jobs that go on from the checkpoints of another one, and jobs that start from its adapters.

use std::sync::Arc;

use api::{
    conditions, reasons,
    trainingjob::{Checkpoint, Phase, TrainingJob, TrainingJobStatus},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::write::conditions::{Verdict, merged};
use serde_json::json;

use super::{World, arguments, message_at};
use crate::{
    observe::ResumeSource,
    tests::{at, job},
};

/// A job that goes on from the job `first`.
const NEXT: &str = "{model: qwen/Qwen-7B, dataset: a/b, method: lora, resumeFrom: {job: first}}";
const FIRST: &str =
    "{model: qwen/Qwen-7B, dataset: a/b, method: lora, outputDir: /out/run-1, output: {mountPath: /out}}";

/// The job `first` in this phase, with a checkpoint of step 500.
fn first(spec: &str, phase: Phase) -> TrainingJob {
    let mut first = job("first", spec);
    let path = format!("{}/checkpoint-500", first.spec.output_dir);
    first.status = Some(TrainingJobStatus {
        phase: Some(phase),
        attempts: 4,
        checkpoint: Some(Checkpoint { path, step: 500, time: None }),
        ..TrainingJobStatus::default()
    });
    first
}

/// A new job, and what `observe` finds of its source.
fn with(spec: &str, source: ResumeSource) -> World {
    let mut world = World::new(spec);
    let claim = json!({"metadata": {"name": source.claim, "namespace": "demo"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    world.claims.insert(source.claim.clone(), Some(Arc::new(serde_json::from_value(claim).unwrap())));
    world.observed.resume = Some(source);
    world.settles();
    world
}

fn after(first: TrainingJob) -> ResumeSource {
    ResumeSource { job: Some(Arc::new(first)), claim: "first-output".to_owned(), ..ResumeSource::default() }
}

/// Of the job that was created last: the option of the launcher, and the claim and the rights of its mount.
fn resumed(world: &World) -> Option<(String, String, Option<bool>)> {
    let job = world.created.last()?;
    let option =
        arguments(job).into_iter().find_map(|word| Some(word.strip_prefix("--resume-from=")?.to_owned()))?;
    let pod = job.spec.clone()?.template.spec?;
    let mounts = pod.containers[0].volume_mounts.clone()?;
    let mount = mounts.into_iter().find(|mount| mount.mount_path == "/opt/resume-from")?;
    let volume = pod.volumes?.into_iter().find(|volume| volume.name == mount.name)?;
    Some((option, volume.persistent_volume_claim?.claim_name, mount.read_only))
}

#[test]
fn a_job_goes_on_from_what_a_failed_one_has_left_and_reads_its_claim_only() {
    let mut world = with(NEXT, after(first(FIRST, Phase::Failed)));
    let expected = ("/opt/resume-from/run-1".to_owned(), "first-output".to_owned(), Some(true));
    assert_eq!(resumed(&world), Some(expected.clone()));
    let recorded = world.status().resume_from.clone().unwrap();
    assert_eq!((recorded.claim_name.as_str(), recorded.path.as_deref()), ("first-output", Some("run-1")));
    assert_eq!(recorded.uid.as_deref(), Some("uid-of-first"));
    // Whatever becomes of the job, the next attempt reads the same.
    world.observed.resume =
        Some(ResumeSource { claim: "first-output".to_owned(), ..ResumeSource::default() });
    world.starts();
    world.is_preempted(None);
    world.settles();
    assert_eq!((world.jobs().len(), resumed(&world)), (2, Some(expected)));
}

#[test]
fn a_source_that_still_runs_is_waited_for() {
    let mut world = with(NEXT, after(first(FIRST, Phase::Running)));
    let waits = |world: &World| {
        assert!(world.created.is_empty(), "two jobs would write");
        assert_eq!(world.condition(conditions::DEPENDENCIES_READY), ("False", reasons::WAITING));
        world.message().to_owned()
    };
    assert!(waits(&world).contains("TrainingJob first has ended"));
    let mut source = after(first(FIRST, Phase::Failed));
    source.pod = Some("first-4-0-x".to_owned());
    world.observed.resume = Some(source.clone());
    world.settles();
    assert!(waits(&world).contains("first-4-0-x"));
    source.writers = vec!["second".to_owned()];
    world.observed.resume = Some(source);
    world.settles();
    assert!(waits(&world).contains("have ended: second"));
    assert!(world.requeue_after.is_some(), "pods of others wake up nothing");
    world.observed.resume = Some(after(first(FIRST, Phase::Failed)));
    world.settles();
    assert_eq!(world.jobs(), ["qwen-1"]);
}

#[test]
fn the_folder_of_a_source_is_known_when_it_is_deleted_while_it_is_waited_for() {
    let mut world = with(NEXT, after(first(FIRST, Phase::Running)));
    assert_eq!(world.condition(conditions::DEPENDENCIES_READY), ("False", reasons::WAITING));
    assert_eq!(world.status().resume_from.as_ref().and_then(|source| source.path.as_deref()), Some("run-1"));
    // Its pods end, and the job is gone.
    let gone = ResumeSource { claim: "first-output".to_owned(), ..ResumeSource::default() };
    world.observed.resume = Some(ResumeSource { pod: Some("first-4-0-x".to_owned()), ..gone.clone() });
    world.settles();
    assert!(world.created.is_empty() && world.message().contains("first-4-0-x"), "{}", world.message());
    world.observed.resume = Some(gone);
    world.settles();
    let expected = ("/opt/resume-from/run-1".to_owned(), "first-output".to_owned(), Some(true));
    assert_eq!(resumed(&world), Some(expected));
    assert_eq!(world.status().resume_from.as_ref().unwrap().uid.as_deref(), Some("uid-of-first"));
}

#[test]
fn a_source_that_is_being_deleted_or_uploaded_is_not_waited_for() {
    let mut deleted = first(FIRST, Phase::Running);
    deleted.metadata.deletion_timestamp = Some(Time(at(0)));
    // Its last checkpoint is not reported any more.
    deleted.status.as_mut().unwrap().checkpoint = None;
    let world = with(NEXT, after(deleted));
    assert_eq!(world.jobs(), ["qwen-1"], "with retention Delete it waits for this one");
    let mut uploads = first(FIRST, Phase::Running);
    let failing = Verdict {
        type_: conditions::UPLOADED,
        holds: false,
        reason: reasons::UPLOAD_FAILED,
        message: String::new(),
    };
    uploads.status.as_mut().unwrap().conditions = merged(vec![failing], &[], Some(1), at(0));
    let mut world = with(NEXT, after(uploads));
    assert_eq!(world.jobs(), ["qwen-1"]);
    // Without its claim the next attempt goes on from a checkpoint of its own.
    world.starts();
    world.steps(505, 1000);
    world.observed.uploaders.insert("first-output".into(), "first-upload-abcde".into());
    world.is_preempted(Some(505));
    world.settles();
    assert_eq!((world.jobs().len(), resumed(&world)), (2, None));
}

#[test]
fn a_source_that_is_uploaded_from_a_volume_of_one_node_is_mounted_afterwards() {
    let mut world = World::new(NEXT);
    let claim = json!({"metadata": {"name": "first-output", "namespace": "demo"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    world.claims.insert("first-output".into(), Some(Arc::new(serde_json::from_value(claim).unwrap())));
    world.observed.resume = Some(after(first(FIRST, Phase::Succeeded)));
    world.observed.uploaders.insert("first-output".into(), "first-upload-abcde".into());
    world.settles();
    assert!(
        world.created.is_empty() && world.message().contains("first-upload-abcde"),
        "{}",
        world.message()
    );
    world.observed.uploaders.clear();
    world.wakes();
    assert_eq!(world.jobs(), ["qwen-1"]);
}

#[test]
fn what_differs_is_refused_before_a_gpu_is_taken() {
    let refusal = |first: TrainingJob, next: &str| {
        let world = with(next, after(first));
        assert!(world.created.is_empty(), "{:?}", world.status());
        assert_eq!(world.condition(conditions::ACCEPTED), ("False", reasons::INVALID_SPEC));
        world.message().to_owned()
    };
    let of = |change: &dyn Fn(&str) -> String| refusal(first(FIRST, Phase::Failed), &change(NEXT));
    for (message, part) in [
        (
            of(&|next| next.replace("Qwen-7B", "Qwen-14B")),
            "its model is qwen/Qwen-7B, and that of this job qwen/Qwen-14B",
        ),
        (of(&|next| next.replace("a/b", "c/d")), "its dataset is a/b, and that of this job c/d"),
        (of(&|next| next.replace("lora,", "qlora,")), "its method is lora, and that of this job qlora"),
        (of(&|next| next.replace("method: lora", "method: lora, gpus: 2")), "its DeepSpeed stage is none"),
    ] {
        assert!(message.contains(part), "{message}");
    }
    let sharded = FIRST.replace("method: lora", "method: lora, gpus: 4");
    let fewer = NEXT.replace("method: lora", "method: lora, gpus: 2");
    let message = refusal(first(&sharded, Phase::Failed), &fewer);
    assert!(message.contains("4 (gpus 4 x nodes 1), and that of this job 2 (gpus 2 x nodes 1)"), "{message}");
    let mut unsaved = first(FIRST, Phase::Failed);
    unsaved.status.as_mut().unwrap().checkpoint = None;
    assert!(refusal(unsaved, NEXT).contains("first has reported no checkpoint"));
}

#[test]
fn the_claim_of_a_deleted_job_is_read_at_its_root_and_named_if_it_is_gone() {
    let gone = || ResumeSource { claim: "first-output".to_owned(), ..ResumeSource::default() };
    let world = with(NEXT, gone());
    assert_eq!(resumed(&world).map(|(option, ..)| option).as_deref(), Some("/opt/resume-from"));
    let mut world = World::new(NEXT);
    world.observed.resume = Some(gone());
    world.settles();
    assert_eq!(world.condition(conditions::DEPENDENCIES_READY), ("False", reasons::DEPENDENCY_NOT_FOUND));
    assert!(world.message().contains("PersistentVolumeClaim demo/first-output"), "{}", world.message());
    let named = NEXT.replace("{job: first}", "{claimName: kept, path: run/checkpoint-7}");
    let source = ResumeSource { claim: "kept".to_owned(), ..ResumeSource::default() };
    let mut world = World::new(&named);
    world.observed.resume = Some(source.clone());
    world.settles();
    assert_eq!(world.condition(conditions::SCHEDULED), ("False", reasons::CLAIM_NOT_FOUND));
    let world = with(&named, source);
    let (option, claim, _) = resumed(&world).unwrap();
    assert_eq!((option.as_str(), claim.as_str()), ("/opt/resume-from/run/checkpoint-7", "kept"));
}

#[test]
fn a_job_does_not_go_on_in_the_folder_of_its_source() {
    let own = NEXT.replace("{job: first}", "{claimName: qwen-output}");
    let source = || ResumeSource { claim: "qwen-output".to_owned(), ..ResumeSource::default() };
    let world = with(&own, source());
    assert!(
        world.created.is_empty() && world.message().contains("an outputDir below it"),
        "{}",
        world.message()
    );
    let beside = own.replace(
        "dataset: a/b",
        "dataset: a/b, outputDir: /output/2, output: {claimName: qwen-output, mountPath: /output}",
    );
    let world = with(&beside, source());
    assert_eq!(resumed(&world).map(|(_, claim, _)| claim).as_deref(), Some("qwen-output"));
}

#[test]
fn a_job_with_a_checkpoint_of_its_own_needs_the_claim_of_its_source_no_more() {
    let mut world = with(NEXT, after(first(FIRST, Phase::Failed)));
    world.starts();
    world.steps(505, 1000);
    world.claims.insert("first-output".to_owned(), None);
    world.is_preempted(Some(505));
    world.settles();
    assert_eq!((world.jobs().len(), resumed(&world)), (2, None));
}

#[test]
fn a_failed_job_says_how_another_one_goes_on() {
    let mut world = World::training("{model: m, dataset: d, method: lora, retryLimit: 0}");
    world.fails(1, &message_at(Some(500)));
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.message().contains("after step 500 with spec.resumeFrom.job qwen"), "{}", world.message());
}

#[test]
fn a_training_starts_from_adapters_at_a_path_of_an_input() {
    let spec = "{model: qwen/Qwen-7B, dataset: a/b, method: lora, adapters: /old/checkpoint-7, \
                inputs: [{claimName: gone-output, mountPath: /old}]}";
    let mut world = World::new(spec);
    let claim = json!({"metadata": {"name": "gone-output", "namespace": "demo"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    world.claims.insert("gone-output".to_owned(), Some(Arc::new(serde_json::from_value(claim).unwrap())));
    world.settles();
    let words = arguments(&world.created[0]);
    assert!(words.contains(&"--fresh-arg=/old/checkpoint-7".to_owned()), "{words:?}");
    assert_eq!(world.status().resolved.as_ref().unwrap().adapters.as_deref(), Some("/old/checkpoint-7"));
}

#[test]
fn adapters_of_another_job_are_those_of_its_last_checkpoint() {
    let mut sft =
        first(&FIRST.replace("/out/run-1", "/out/sft").replace("/out}", "/out/sft}"), Phase::Succeeded);
    sft.status.as_mut().unwrap().checkpoint.as_mut().unwrap().path = "/out/sft/checkpoint-500".to_owned();
    let spec = "{model: qwen/Qwen-7B, dataset: c/d, method: dpo, adapters: /out/sft}";
    let mut world = World::new(spec);
    world.others = vec![Arc::new(sft)];
    world.settles();
    let words = arguments(&world.created[0]);
    assert!(words.contains(&"--fresh-arg=/out/sft/checkpoint-500".to_owned()), "{words:?}");
    assert_eq!(super::flag(&world.created[0], "--ref_adapters").as_deref(), Some("/out/sft/checkpoint-500"));
    assert_eq!(super::flag(&world.created[0], "--model").as_deref(), Some("qwen/Qwen-7B"));
}

#[test]
fn adapters_that_are_none_are_refused_and_a_missing_path_names_the_claims_of_deleted_jobs() {
    let spec = "{model: qwen/Qwen-7B, dataset: c/d, method: lora, adapters: /out/sft}";
    let mut world = World::new(spec);
    world.settles();
    assert_eq!(world.condition(conditions::DEPENDENCIES_READY), ("False", reasons::DEPENDENCY_NOT_FOUND));
    assert!(world.message().contains("the claim that a deleted job has left"), "{}", world.message());
    let mut full =
        first(&FIRST.replace("/out/run-1", "/out/sft").replace("/out}", "/out/sft}"), Phase::Succeeded);
    full.spec.method = api::trainingjob::Method::Full;
    full.status.as_mut().unwrap().checkpoint.as_mut().unwrap().path = "/out/sft/checkpoint-500".to_owned();
    world.others = vec![Arc::new(full)];
    world.settles();
    assert!(
        world.created.is_empty() && world.message().contains("trains a whole model"),
        "{}",
        world.message()
    );
}
