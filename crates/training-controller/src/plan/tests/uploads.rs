//! The upload of the result, after the training.

use std::sync::Arc;

use api::{conditions, reasons, trainingjob::Phase};
use serde_json::{Value, json};

use super::{World, message_at, pod};
use crate::{job_view::Failed, tests::at};

const SPEC: &str = "{model: m, dataset: d, method: lora, output: {upload: {uri: 's3://models/qwen/'}}}";

/// The training has succeeded.
fn trained() -> World {
    let mut world = World::training(SPEC);
    world.succeeds(&message_at(Some(100)));
    assert_eq!(world.jobs(), ["qwen-1", "qwen-upload"]);
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

const REPORT: &str =
    r#"{"bytes":7,"count":2,"manifestDigest":"abc","files":[{"path":"a.bin","bytes":4,"sha256":"de"}]}"#;

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
    let shown: Vec<(&str, &str)> =
        artifacts.iter().map(|artifact| (artifact.uri.as_str(), artifact.sha256.as_str())).collect();
    assert_eq!(shown, [("s3://models/qwen/SHA256SUMS", "abc"), ("s3://models/qwen/a.bin", "de")]);
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
fn an_upload_that_fails_names_its_last_cause_and_the_claim_keeps_the_result() {
    let mut world = trained();
    let own = uid(&world);
    for (number, seconds, text) in [(1, 20, "SourceUnauthorized: no access"), (0, 10, "SourceUnreachable: x")]
    {
        world.seconds = seconds;
        ends(&mut world, &own, number, 1, text);
    }
    world.settles();
    assert_eq!(world.phase(), Phase::Running);
    assert!(world.message().contains("SourceUnauthorized: no access"), "{}", world.message());
    let failed = Failed { reason: "BackoffLimitExceeded".into(), message: String::new() };
    Arc::make_mut(world.observed.upload.as_mut().unwrap()).failed = Some(failed);
    world.settles();
    assert_eq!(world.outcome(), (Phase::Failed, reasons::UPLOAD_FAILED));
    for part in ["SourceUnauthorized: no access", "it stays in the claim"] {
        assert!(world.message().contains(part), "{}", world.message());
    }
    assert_eq!(world.status().checkpoint.as_ref().map(|saved| saved.step), Some(100));
}

#[test]
fn an_upload_job_that_was_deleted_is_made_again() {
    let mut world = trained();
    world.observed.upload = None;
    world.settles();
    assert_eq!(world.jobs(), ["qwen-1", "qwen-upload", "qwen-upload"]);
}
