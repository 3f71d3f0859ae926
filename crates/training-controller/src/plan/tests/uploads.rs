//! The upload of the result, after the training.

use std::sync::Arc;

use api::{conditions, loader::ExitCode, reasons, trainingjob::Phase};
use k8s_openapi::api::{batch::v1::Job, core::v1::PodSpec};
use runtime::write::refusal::Refusal;
use serde_json::{Value, json};
use workload::views::{job::Failed, node::LossKind, pod::PodView};

use super::{World, message_at, pod};
use crate::{
    plan::{refused::refused_run, rejected},
    tests::{at, defaults},
    validate::Invalid,
};

const SPEC: &str = "{model: m, dataset: d, method: lora, output: {upload: {uri: 's3://models/qwen/'}}}";

/// The training has succeeded.
fn trained() -> World {
    trained_with(SPEC)
}

fn trained_with(spec: &str) -> World {
    let mut world = World::training(spec);
    world.succeeds(&message_at(Some(100)));
    assert_eq!(world.jobs(), ["qwen-upload-check", "qwen-1", "qwen-upload"]);
    world
}

/// Pod `number` of the Job of this uid has ended.
fn ends(world: &mut World, uid: &str, number: usize, code: i32, message: &str) {
    let end = json!({"exitCode": code, "message": message, "finishedAt": at(world.seconds)});
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let status: Value =
        json!({"phase": phase, "containerStatuses": [{"name": "uploader", "state": {"terminated": end}}]});
    world.observed.pods.push(Arc::new(pod("qwen-upload", uid, number, &status)));
}

fn uid(world: &World) -> String {
    world.observed.upload.as_ref().unwrap().metadata.uid.clone().unwrap()
}

fn completes(world: &mut World) {
    let now = at(world.seconds);
    Arc::make_mut(world.observed.upload.as_mut().unwrap()).completed = Some(now);
    world.settles();
}

/// The Job that uploads has failed, after a pod of it with this exit code and message.
fn job_fails(world: &mut World, code: ExitCode, message: &str) {
    let own = uid(world);
    let number = world.observed.pods.len();
    ends(world, &own, number, code.code(), message);
    let (since, reason) = (at(world.seconds), "PodFailurePolicy".to_owned());
    let failed = Failed { since, reason, message: String::new() };
    Arc::make_mut(world.observed.upload.as_mut().unwrap()).failed = Some(failed);
    world.settles();
}

/// A pod of the Job that uploads has this status.
fn uploader(world: &mut World, status: &Value) {
    let own = uid(world);
    world.observed.pods.retain(|pod| !pod.name().starts_with("qwen-upload"));
    world.observed.pods.push(Arc::new(pod("qwen-upload", &own, 0, status)));
    world.settles();
}

fn waiting(reason: &str, message: &str) -> Value {
    let waiting = json!({"reason": reason, "message": message});
    json!({"phase": "Pending", "containerStatuses": [{"name": "uploader", "state": {"waiting": waiting}}]})
}

fn spec_of(job: &Job) -> PodSpec {
    job.spec.clone().unwrap().template.spec.unwrap()
}

/// Messages of the condition and of the status.
fn messages(world: &World) -> [String; 2] {
    let known = world.status().conditions.iter().find(|known| known.type_ == conditions::UPLOADED);
    [known.unwrap().message.clone(), world.message().to_owned()]
}

#[track_caller]
fn says(world: &World, part: &str) {
    for message in messages(world) {
        assert!(message.contains(part), "{message}");
    }
}

const REPORT: &str = r#"{"bytes":7,"count":2,"manifestDigest":"abc","manifestBytes":140,
    "files":[{"path":"a.bin","bytes":4,"sha256":"de"}]}"#;

#[test]
fn a_result_is_uploaded_when_its_job_has_reported_it() {
    let mut world = trained();
    assert_eq!(world.outcome(), (Phase::Running, reasons::UPLOADING));
    let own = uid(&world);
    ends(&mut world, &own, 0, 0, REPORT);
    completes(&mut world);
    assert_eq!(world.phase(), Phase::Succeeded);
    assert!(world.message().contains("2 files, 7 bytes, to s3://models/qwen/"), "{}", world.message());
    let artifacts = &world.status().artifacts;
    let shown: Vec<(&str, i64, &str)> =
        artifacts.iter().map(|one| (one.uri.as_str(), one.bytes, one.sha256.as_str())).collect();
    assert_eq!(shown, [("s3://models/qwen/SHA256SUMS", 140, "abc"), ("s3://models/qwen/a.bin", 4, "de")]);
}

#[test]
fn a_report_may_be_seen_after_the_end_of_its_job() {
    let mut world = trained();
    completes(&mut world);
    assert_eq!(world.condition(conditions::UPLOADED), ("False", reasons::UPLOADING));
    let own = uid(&world);
    ends(&mut world, &own, 0, 0, REPORT);
    world.settles();
    assert_eq!((world.phase(), world.status().artifacts.len()), (Phase::Succeeded, 2));
}

#[test]
fn a_report_that_is_lost_is_told() {
    let mut world = trained();
    completes(&mut world);
    assert_eq!(world.wakes(), 5);
    assert_eq!((world.phase(), world.status().artifacts.len()), (Phase::Succeeded, 0));
    assert!(world.message().contains("SHA256SUMS there names the files"), "{}", world.message());
}

#[test]
fn the_report_of_an_earlier_job_of_the_same_name_is_none() {
    let mut world = trained();
    ends(&mut world, "another", 0, 0, REPORT);
    completes(&mut world);
    assert_eq!(world.condition(conditions::UPLOADED), ("False", reasons::UPLOADING));
}

#[test]
fn an_upload_that_is_tried_again_names_its_last_failure() {
    let mut world = trained();
    let own = uid(&world);
    for (number, seconds, text) in [(1, 20, "SourceUnreachable: no answer"), (0, 10, "LocalFault: x")] {
        world.seconds = seconds;
        ends(&mut world, &own, number, 1, text);
    }
    world.settles();
    assert_eq!(world.outcome(), (Phase::Running, reasons::UPLOADING));
    says(&world, "SourceUnreachable: no answer");
    assert_eq!(world.condition(conditions::STALLED), ("absent", ""), "its Job goes on");
}

const DENIED: &str = "SourceUnauthorized: s3://models refused the credentials (InvalidAccessKeyId)";

#[test]
fn a_refused_key_is_tried_again_with_growing_pauses_until_it_is_corrected() {
    let mut world = trained_with(&SPEC.replace("qwen/'", "qwen/', secretName: s3"));
    world.passes(20);
    job_fails(&mut world, ExitCode::SourceUnauthorized, DENIED);
    assert_eq!(world.outcome(), (Phase::Running, reasons::UPLOAD_FAILED));
    assert_eq!(world.condition(conditions::UPLOADED), ("False", reasons::UPLOAD_FAILED));
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::SOURCE_UNAUTHORIZED));
    says(&world, DENIED);
    says(&world, "put keys that may write there into Secret demo/s3 (spec.output.upload.secretName)");
    says(&world, &format!("it is tried again at {}", at(80)));
    says(&world, "kubectl -n demo delete job qwen-upload");
    says(&world, "the result is in /output/checkpoint-100 of claim demo/qwen-output, mounted at /output");
    let pause = |world: &mut World| {
        let pause = world.wakes();
        assert_eq!(world.condition(conditions::STALLED), ("True", reasons::SOURCE_UNAUTHORIZED));
        says(world, DENIED);
        world.passes(20);
        job_fails(world, ExitCode::SourceUnauthorized, DENIED);
        pause
    };
    let pauses: Vec<i64> = (0..7).map(|_| pause(&mut world)).collect();
    assert_eq!(pauses, [60, 100, 220, 460, 600, 600, 600]);
    assert_eq!(world.jobs().len(), 10, "one at a time");
    let failed = world.notes().iter().filter(|reason| **reason == reasons::UPLOAD_FAILED).count();
    assert_eq!(failed, 1, "the fault is the same: {:?}", world.notes());

    world.wakes();
    let own = uid(&world);
    ends(&mut world, &own, 99, 0, REPORT);
    completes(&mut world);
    assert_eq!(world.phase(), Phase::Succeeded);
    assert_eq!(world.condition(conditions::STALLED), ("absent", ""));
    assert_eq!(world.status().attempts, 1, "the training is not repeated");
}

#[test]
fn another_cause_is_noted_once() {
    let mut world = trained();
    job_fails(&mut world, ExitCode::SourceUnauthorized, DENIED);
    world.wakes();
    job_fails(&mut world, ExitCode::SourceNotFound, "SourceNotFound: no such bucket");
    assert_eq!(world.notes().last(), Some(&reasons::SOURCE_NOT_FOUND));
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::SOURCE_NOT_FOUND));
}

#[test]
fn the_pauses_do_not_begin_anew_with_another_process() {
    let mut world = trained();
    world.passes(300);
    job_fails(&mut world, ExitCode::SourceNotFound, "SourceNotFound: no such bucket");
    says(&world, "create bucket models of spec.output.upload.uri at AWS S3");
    world.writes_left = Some(0);
    world.passes(1);
    assert_eq!(world.wakes(), 299);
    assert_eq!(world.jobs(), ["qwen-upload-check", "qwen-1", "qwen-upload", "qwen-upload"]);
}

#[test]
fn an_upload_is_tried_until_it_works() {
    let mut world = trained();
    for _ in 0..10 {
        world.passes(86_400);
        job_fails(&mut world, ExitCode::SourceUnauthorized, DENIED);
        assert_eq!(world.outcome(), (Phase::Running, reasons::UPLOAD_FAILED));
        assert_eq!(world.wakes(), 600);
    }
    let own = uid(&world);
    ends(&mut world, &own, 99, 0, REPORT);
    completes(&mut world);
    assert_eq!(world.condition(conditions::UPLOADED), ("True", reasons::UPLOADED));
    assert_eq!(world.phase(), Phase::Succeeded);
}

#[test]
fn an_upload_that_runs_is_not_ended_after_a_day() {
    let mut world = trained();
    uploader(&mut world, &json!({"phase": "Running"}));
    world.passes(3 * 86_400);
    assert_eq!((world.outcome(), world.deleted.len()), ((Phase::Running, reasons::UPLOADING), 0));
}

#[test]
fn a_folder_that_cannot_be_uploaded_is_rarely_tried_again() {
    let mut world = trained();
    job_fails(&mut world, ExitCode::Usage, "Usage: /output/checkpoint-100 has no file to upload");
    says(&world, "has no file to upload");
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::CRASH_LOOP));
    assert_eq!(world.wakes(), 600);
    assert_eq!(world.outcome(), (Phase::Running, reasons::UPLOAD_FAILED));
}

/// The clock of the API server is behind that of this process, or ahead of it.
#[test]
fn a_report_is_waited_for_by_the_clock_of_this_process() {
    for skew in [-60, -6, 6] {
        let mut world = trained();
        world.passes(100);
        let ended = at(world.seconds + skew);
        Arc::make_mut(world.observed.upload.as_mut().unwrap()).completed = Some(ended);
        world.settles();
        assert_eq!(world.phase(), Phase::Running, "{skew}");
        assert_eq!(world.requeue_after, Some(std::time::Duration::from_secs(5)), "{skew}");
        world.passes(4);
        let own = uid(&world);
        ends(&mut world, &own, 0, 0, REPORT);
        world.settles();
        assert_eq!((world.phase(), world.status().artifacts.len()), (Phase::Succeeded, 2), "{skew}");
    }
}

/// The Job that tries the store has failed, after a pod of it with this exit code and message.
fn check_fails(world: &mut World, code: ExitCode, message: &str) {
    let own = world.observed.upload_check.as_ref().unwrap().metadata.uid.clone().unwrap();
    let number = world.observed.pods.len();
    let end = json!({"exitCode": code.code(), "message": message, "finishedAt": at(world.seconds)});
    let status =
        json!({"phase": "Failed", "containerStatuses": [{"name": "uploader", "state": {"terminated": end}}]});
    world.observed.pods.push(Arc::new(pod("qwen-upload-check", &own, number, &status)));
    let failed =
        Failed { since: at(world.seconds), reason: "PodFailurePolicy".into(), message: String::new() };
    Arc::make_mut(world.observed.upload_check.as_mut().unwrap()).failed = Some(failed);
    world.settles();
}

#[test]
fn a_wrong_upload_key_is_named_before_gpus_are_taken() {
    let mut world = World::new(&SPEC.replace("qwen/'", "qwen/', secretName: s3"));
    world.settles();
    assert_eq!(world.outcome(), (Phase::Pending, reasons::NOT_RUNNING));
    assert_eq!(world.condition(conditions::RECONCILING).0, "True");
    check_fails(&mut world, ExitCode::SourceUnauthorized, DENIED);
    assert_eq!(world.outcome(), (Phase::Pending, reasons::UPLOAD_NOT_POSSIBLE));
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::UPLOAD_NOT_POSSIBLE));
    for part in [DENIED, "Secret demo/s3 (spec.output.upload.secretName)", "no GPU is taken"] {
        assert!(world.message().contains(part), "{}", world.message());
    }
    let pause = |world: &mut World| {
        let pause = world.wakes();
        assert_eq!(world.condition(conditions::STALLED), ("True", reasons::UPLOAD_NOT_POSSIBLE));
        check_fails(world, ExitCode::SourceUnauthorized, DENIED);
        pause
    };
    let pauses: Vec<i64> = (0..7).map(|_| pause(&mut world)).collect();
    assert_eq!(pauses, [60, 60, 120, 240, 480, 600, 600]);
    assert!(world.jobs().iter().all(|job| *job == "qwen-upload-check"), "{:?}", world.jobs());
    assert_eq!(world.notes(), [reasons::UPLOAD_NOT_POSSIBLE], "the fault is the same");
    // The Secret was corrected.
    world.wakes();
    world.store_takes_objects();
    assert_eq!(world.jobs().last(), Some(&"qwen-1"));
    assert_eq!(world.condition(conditions::STALLED), ("absent", ""));
}

#[test]
fn a_store_is_tried_once_also_if_the_controller_ends_between_two_writes() {
    for writes in 0..6 {
        let mut world = World::new(SPEC);
        world.writes_left = Some(writes);
        world.settles();
        world.store_takes_objects();
        world.writes_left = Some(writes);
        world.settles();
        assert_eq!(world.jobs(), ["qwen-upload-check", "qwen-1"], "{writes}");
        assert!(world.status().upload_check_time.is_some());
    }
}

#[test]
fn a_later_attempt_tries_no_store() {
    let mut world = World::training(SPEC);
    world.is_preempted(Some(5));
    assert_eq!(world.jobs(), ["qwen-upload-check", "qwen-1", "qwen-2"]);
}

/// Such as one whose store needed no test.
#[test]
fn a_job_that_has_begun_tries_no_store() {
    let mut world = World::training(SPEC);
    world.job().status.as_mut().unwrap().upload_check_time = None;
    world.observed.upload_check = None;
    world.is_preempted(Some(5));
    assert_eq!(world.jobs().last(), Some(&"qwen-2"));
}

#[test]
fn a_check_whose_pod_cannot_start_says_why_and_gives_way_to_another() {
    let mut world = World::new(SPEC);
    world.settles();
    let own = world.observed.upload_check.as_ref().unwrap().metadata.uid.clone().unwrap();
    let status = waiting("ImagePullBackOff", "no such image");
    world.observed.pods.push(Arc::new(pod("qwen-upload-check", &own, 0, &status)));
    world.settles();
    assert_eq!(world.outcome(), (Phase::Pending, reasons::IMAGE_PULL_FAILED));
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::IMAGE_PULL_FAILED));
    assert!(world.message().contains("no such image"), "{}", world.message());
    // The deadline of the Job; its pod is gone.
    world.passes(600);
    world.observed.pods.clear();
    let failed =
        Failed { since: at(600), reason: "DeadlineExceeded".into(), message: "was active too long".into() };
    Arc::make_mut(world.observed.upload_check.as_mut().unwrap()).failed = Some(failed);
    world.settles();
    world.wakes();
    world.wakes();
    assert_eq!(world.jobs(), ["qwen-upload-check", "qwen-upload-check"]);
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::IMAGE_PULL_FAILED));
    assert!(world.message().contains("no such image"), "{}", world.message());
}

#[test]
fn a_job_that_waits_for_another_one_tries_its_store_when_that_has_ended() {
    let mut world = World::new(&SPEC.replace("method", "dependsOn: [sft], method"));
    world.settles();
    assert_eq!(world.jobs(), [""; 0]);
}

#[test]
fn a_check_writes_below_the_prefix_with_the_uid_and_needs_no_volume_and_no_gpu() {
    let world = World::new(&SPEC.replace("qwen/'", "qwen/', caSecretName: ca, addressing: Path"));
    let plan = world.plan();
    let [crate::plan::Child::Job(job)] = &*plan.children else { panic!("{:?}", plan.children) };
    let pod = spec_of(job);
    let arguments = pod.containers[0].args.clone().unwrap();
    let expected = ["check-store", "s3://models/qwen/", "--name=uid-of-qwen", "--addressing=path"];
    assert_eq!(arguments[..4], expected);
    assert_eq!(arguments[4], "--ca-file=/store-authority/ca.crt");
    let volumes = pod.volumes.unwrap();
    assert!(volumes.len() == 1 && volumes[0].secret.is_some(), "{volumes:?}");
    let environment = pod.containers[0].env.as_ref().unwrap();
    let fields = environment.iter().find(|one| one.name == "TRANSFER_FIELDS").unwrap();
    assert_eq!(fields.value.as_deref(), Some("spec.output.upload"));
    assert_eq!(pod.security_context.unwrap().run_as_non_root, Some(true));
}

#[test]
fn an_upload_trusts_the_authority_of_its_secret_and_names_the_bucket_as_the_user_says() {
    let mut world =
        World::training(&SPEC.replace("qwen/'", "qwen/', caSecretName: ca, addressing: VirtualHosted"));
    world.succeeds(&message_at(Some(100)));
    let pod = spec_of(world.created.last().unwrap());
    let arguments = pod.containers[0].args.as_ref().unwrap();
    assert_eq!(arguments[3..], ["--addressing=virtual-hosted", "--ca-file=/store-authority/ca.crt"]);
    let mounts = pod.containers[0].volume_mounts.as_ref().unwrap();
    assert_eq!(
        mounts.iter().map(|one| &*one.mount_path).collect::<Vec<_>>(),
        ["/output", "/store-authority"]
    );
    let secret = pod.volumes.unwrap().remove(1).secret.unwrap();
    assert_eq!(
        (secret.secret_name.as_deref(), secret.items.unwrap()[0].key.as_str()),
        (Some("ca"), "ca.crt")
    );
}

#[test]
fn the_cause_may_be_seen_after_the_end_of_its_job() {
    let mut world = trained();
    let failed = Failed { since: at(0), reason: String::new(), message: "backoff limit".into() };
    Arc::make_mut(world.observed.upload.as_mut().unwrap()).failed = Some(failed);
    world.settles();
    assert_eq!(world.condition(conditions::STALLED), ("absent", ""));
    assert_eq!(world.wakes(), 5);
    says(&world, "the last try ended with backoff limit");
}

#[test]
fn a_pod_that_cannot_start_says_why() {
    let mut world = trained();
    uploader(&mut world, &waiting("CreateContainerConfigError", "secret \"s3-kyes\" not found"));
    says(&world, "Secret demo/s3-kyes does not exist");
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::SECRET_NOT_FOUND));
    assert_eq!(world.notes().last(), Some(&reasons::SECRET_NOT_FOUND));
    uploader(&mut world, &waiting("ImagePullBackOff", "no such image"));
    says(&world, "no such image");
    assert_eq!(
        world.condition(conditions::STALLED),
        ("True", reasons::IMAGE_PULL_FAILED),
        "as that of an attempt"
    );
    let scheduled = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 node(s) had volume node affinity conflict.",
    });
    uploader(&mut world, &json!({"phase": "Pending", "node": null, "conditions": [scheduled]}));
    says(&world, "pod qwen-upload-0-abcde has no node: 0/3 nodes are available: 3 node(s) had volume");
    uploader(&mut world, &json!({"phase": "Running"}));
    assert_eq!(messages(&world), ["to s3://models/qwen/", "to s3://models/qwen/"]);
}

#[test]
fn a_job_without_pods_says_why() {
    let mut world = trained();
    world.observed.refused_pods = Some("pods \"x\" is forbidden: exceeded quota: team".into());
    world.settles();
    says(&world, "no pod was created: pods \"x\" is forbidden: exceeded quota: team");
    assert_eq!(world.condition(conditions::STALLED), ("absent", ""));
    world.observed.refused_pods = Some("denied by policy".into());
    world.settles();
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::DENIED));
    world.observed.refused_pods = None;
    Arc::make_mut(world.observed.upload.as_mut().unwrap()).is_suspended = true;
    world.settles();
    says(&world, "Job qwen-upload is suspended");
}

#[test]
fn a_pod_on_a_lost_node_is_deleted_by_force() {
    let mut world = trained();
    let running = json!({"name": "uploader", "ready": true, "state": {"running": {}}});
    uploader(&mut world, &json!({"phase": "Running", "containerStatuses": [running]}));
    world.loses("node-0", LossKind::NotReady);
    assert_eq!(world.requeue_after, None, "its kubelet still reports it");
    world.loses("node-0", LossKind::Unreachable);
    says(&world, "node node-0 is unreachable; pod qwen-upload-0-abcde is replaced unless the node recovers");
    world.job().spec.pods.paused = true;
    world.passes(30);
    assert_eq!(world.deleted, [""; 0]);
    world.job().spec.pods.paused = false;
    world.loses("node-0", LossKind::Unreachable);
    assert_eq!((world.wakes(), world.deleted.as_slice()), (30, &["qwen-upload-0-abcde".to_owned()][..]));
    assert_eq!(world.jobs(), ["qwen-upload-check", "qwen-1", "qwen-upload"], "its Job makes the next pod");
}

#[test]
fn an_upload_job_that_is_refused_repeats_no_training() {
    let mut world = trained();
    world.observed.upload = None;
    let planned = world.plan();
    assert_eq!(planned.children.len(), 1);
    let refusal = Refusal::Denied("the API server denies Job demo/qwen-upload: quota".into());
    let plan = refused_run(&refusal, planned, &world.observed, &defaults(), at(world.seconds));
    world.apply(plan);
    assert_eq!(world.outcome(), (Phase::Running, reasons::UPLOADING));
    says(&world, "to s3://models/qwen/: the API server denies Job demo/qwen-upload: quota");
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::DENIED));
    world.observed.upload = None;
    world.settles();
    assert_eq!(world.status().attempts, 1);
}

#[test]
fn a_spec_that_becomes_invalid_repeats_no_training() {
    let mut world = trained();
    let invalid = Invalid("spec.model: a later release refuses it".into());
    let plan = rejected(&invalid, &world.observed, at(0));
    world.apply(plan);
    assert_eq!(world.condition(conditions::ACCEPTED), ("False", reasons::INVALID_SPEC));
    world.settles();
    assert_eq!((world.outcome(), world.status().attempts), ((Phase::Running, reasons::UPLOADING), 1));
}

#[test]
fn the_pod_may_run_where_the_trainer_ran_and_needs_no_gpu() {
    let spec = "{model: m, dataset: d, method: lora, gpuProductLabel: A100, podAnnotations: {a: b},
        scheduling: {nodeSelector: {zone: a}, priorityClassName: high, schedulerName: s, runtimeClassName: nvidia,
        tolerations: [{key: team, operator: Equal, value: x}]}, output: {upload: {uri: 's3://models'}}}";
    let mut world = World::training(spec);
    world.succeeds(&message_at(Some(100)));
    let job = world.created.last().unwrap();
    let metadata = job.spec.as_ref().unwrap().template.metadata.as_ref().unwrap();
    assert_eq!(metadata.annotations.as_ref().unwrap()["a"], "b");
    let pod = spec_of(job);
    assert_eq!(pod.node_selector.unwrap()["zone"], "a");
    assert_eq!(
        (pod.priority_class_name.as_deref(), pod.scheduler_name.as_deref()),
        (Some("high"), Some("s"))
    );
    let tolerations = pod.tolerations.unwrap();
    let tolerated: Vec<&str> = tolerations.iter().filter_map(|one| one.key.as_deref()).collect();
    assert_eq!(tolerated, ["nvidia.com/gpu", "team"]);
    assert_eq!((pod.affinity, pod.runtime_class_name), (None, None));
    let limits = pod.containers[0].resources.as_ref().unwrap().limits.as_ref().unwrap();
    assert_eq!(limits.keys().collect::<Vec<_>>(), ["cpu", "memory"], "a quota on limits refuses one without");
}

#[test]
fn an_upload_job_that_was_deleted_is_made_again() {
    let mut world = trained();
    world.observed.upload = None;
    world.settles();
    assert_eq!(world.jobs(), ["qwen-upload-check", "qwen-1", "qwen-upload", "qwen-upload"]);
}

/// A pod of this Job whose uploader has ended with 0, and whose other container, which a mesh has injected, runs on.
fn with_sidecar(job: &str, uid: &str, message: &str) -> Arc<PodView> {
    let end = json!({"exitCode": 0, "message": message, "finishedAt": at(0)});
    let containers = json!([
        {"name": "uploader", "state": {"terminated": end}},
        {"name": "istio-proxy", "ready": true, "state": {"running": {}}},
    ]);
    Arc::new(pod(job, uid, 0, &json!({"phase": "Running", "containerStatuses": containers})))
}

#[test]
fn a_sidecar_that_runs_on_keeps_no_training_from_its_start() {
    let mut world = World::new(SPEC);
    world.settles();
    let own = world.observed.upload_check.as_ref().unwrap().metadata.uid.clone().unwrap();
    world.observed.pods.push(with_sidecar("qwen-upload-check", &own, ""));
    world.settles();
    assert!(world.status().upload_check_time.is_some());
    assert_eq!(
        (world.jobs(), &*world.deleted),
        (vec!["qwen-upload-check", "qwen-1"], &["qwen-upload-check".to_owned()][..])
    );
}

#[test]
fn a_sidecar_that_runs_on_keeps_no_upload_from_its_end() {
    let mut world = trained();
    let own = uid(&world);
    world.observed.pods.push(with_sidecar("qwen-upload", &own, REPORT));
    world.settles();
    assert_eq!((world.phase(), world.condition(conditions::UPLOADED).0), (Phase::Succeeded, "True"));
    assert_eq!(world.status().artifacts.len(), 2);
    assert_eq!(world.deleted, ["qwen-upload"], "the sidecar ends with its Job");
}

/// The deletion may be refused, or the process may end, after the upload has begun.
#[test]
fn what_an_attempt_that_has_proven_its_result_still_holds_is_given_back_while_the_upload_runs() {
    let mut world = World::training(SPEC);
    world.rank_ends(0);
    let attempt = world.observed.attempts[&1].clone();
    world.passes(60);
    assert_eq!(world.deleted, ["qwen-1"]);
    assert!(world.observed.upload.is_some());
    world.observed.attempts.insert(1, attempt);
    world.settles();
    assert_eq!(world.deleted, ["qwen-1", "qwen-1"]);
}

#[test]
fn an_upload_whose_image_cannot_be_pulled_needs_a_person_and_gives_way_to_one_with_another_image() {
    let mut world = trained();
    uploader(&mut world, &waiting("ImagePullBackOff", "no such image"));
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::IMAGE_PULL_FAILED));
    world.passes(599);
    assert_eq!(world.deleted, [""; 0]);
    world.passes(1);
    assert_eq!(world.deleted, ["qwen-upload"]);
    assert_eq!(world.jobs().last(), Some(&"qwen-upload"));
    assert_eq!(world.jobs().len(), 4);
}

/// The Job does not see the failure: the pod runs on.
#[test]
fn a_refusal_beside_a_sidecar_is_named_and_tried_again() {
    let refused = |job: &str, uid: &str, seconds: i64| {
        let end = json!({"exitCode": ExitCode::SourceUnauthorized.code(), "message": "403", "finishedAt": at(seconds)});
        let containers = json!([
            {"name": "uploader", "state": {"terminated": end}},
            {"name": "istio-proxy", "ready": true, "state": {"running": {}}},
        ]);
        Arc::new(pod(job, uid, 0, &json!({"phase": "Running", "containerStatuses": containers})))
    };
    let mut world = trained();
    let own = uid(&world);
    world.observed.pods.push(refused("qwen-upload", &own, world.seconds));
    world.settles();
    assert_eq!(world.wakes(), 60);
    says(&world, "the last try ended with 403");
    assert_eq!(world.condition(conditions::UPLOADED), ("False", reasons::UPLOAD_FAILED));
    assert_eq!(
        (world.deleted.last().unwrap().as_str(), *world.jobs().last().unwrap()),
        ("qwen-upload", "qwen-upload")
    );

    let mut world = World::new(SPEC);
    world.settles();
    let own = world.observed.upload_check.as_ref().unwrap().metadata.uid.clone().unwrap();
    world.observed.pods.push(refused("qwen-upload-check", &own, 0));
    world.settles();
    assert_eq!(world.wakes(), 60);
    assert_eq!(world.condition(conditions::STALLED), ("True", reasons::UPLOAD_NOT_POSSIBLE));
    assert!(world.message().contains("403"), "{}", world.message());
}
