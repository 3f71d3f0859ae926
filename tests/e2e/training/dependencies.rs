//! Jobs that read the results of others.

use api::{
    conditions, reasons,
    trainingjob::{Phase, TrainingJob},
};
use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::Job;
use kube::{ResourceExt as _, api::DeleteParams};
use serde_json::json;
use tests::{
    simulated,
    training::{create, fate, pods, until_phase, until_reason},
    wait_until_gone, within,
};

/// From the end of the last dependency to the Job of the dependent.
const STARTS_WITHIN: SignedDuration = SignedDuration::from_secs(5);

#[tokio::test]
async fn the_second_step_waits_for_the_first_and_reads_its_result() {
    let scene = simulated().await;
    let first = json!({"method": "qlora", "outputDir": "/mnt/qlora"});
    create(&scene, "qlora", first).await;
    create(&scene, "dpo", json!({"model": "/mnt/qlora", "method": "dpo", "beta": 0.1, "gpus": 2})).await;
    until_reason(&scene, "dpo", conditions::DEPENDENCIES_READY, reasons::WAITING).await;
    assert!(pods(&scene, "dpo").await.is_empty());
    let first = until_phase(&scene, "qlora", Phase::Succeeded).await;
    let second = until_phase(&scene, "dpo", Phase::Succeeded).await;
    let job: Job = scene.api().get("dpo-1").await.unwrap();
    let ended = first.status.as_ref().unwrap().completion_time.as_ref().unwrap().0;
    let waited = job.creation_timestamp().unwrap().0.duration_since(ended);
    assert!(waited <= STARTS_WITHIN, "{waited}");
    let spec = job.spec.unwrap().template.spec.unwrap();
    let args = spec.containers[0].args.as_ref().unwrap();
    assert!(args.contains(&"--fresh-arg=--adapters".to_owned()), "{args:?}");
    let model = args.iter().position(|argument| argument == "--model").unwrap();
    assert_eq!(args[model + 1], "qwen/Qwen-7B", "the base of the adapters");
    let mounts = spec.containers[0].volume_mounts.as_ref().unwrap();
    let result = mounts.iter().find(|mount| mount.mount_path == "/mnt/qlora").unwrap();
    assert_eq!(result.read_only, Some(true));
    assert_eq!(second.status.unwrap().dependencies[0].uid, first.uid().unwrap());
}

/// Kubernetes shortens the names of pods to 63 characters, and then they do not show the rank.
#[tokio::test]
async fn a_job_with_a_name_of_any_length_has_progress_and_a_dependent_that_starts_from_its_checkpoint() {
    let scene = simulated().await;
    let source = |length: usize| format!("{:n<length$}", format!("s{length}"));
    for length in 50..=63 {
        let folder = format!("/mnt/n{length}");
        let first = json!({"outputDir": folder, "env": fate(&[("run-time", "2s")])["env"]});
        create(&scene, &source(length), first).await;
        create(&scene, &format!("reads-{length}"), json!({"model": folder, "method": "dpo"})).await;
    }
    for length in 50..=63 {
        let first = until_phase(&scene, &source(length), Phase::Succeeded).await.status.unwrap();
        let progress = first.progress.as_ref().unwrap_or_else(|| panic!("progress at {length}: {first:?}"));
        assert_eq!((progress.step, progress.percent), (60, 100), "{length}");
        assert!(progress.loss.is_some(), "the log of rank 0 was read at {length}: {progress:?}");
        let checkpoint = format!("/mnt/n{length}/checkpoint-60");
        assert_eq!(first.checkpoint.map(|saved| saved.path), Some(checkpoint.clone()));
        until_phase(&scene, &format!("reads-{length}"), Phase::Succeeded).await;
        let job: Job = scene.api().get(&format!("reads-{length}-1")).await.unwrap();
        let args = job.spec.unwrap().template.spec.unwrap().containers[0].args.clone().unwrap();
        assert!(args.contains(&format!("--fresh-arg={checkpoint}")), "{length}: {args:?}");
    }
}

#[tokio::test]
async fn the_failure_of_a_dependency_ends_the_dependent_without_a_pod() {
    let scene = simulated().await;
    let mut first = fate(&[("crash-reason", "Error")]);
    first["retryLimit"] = json!(0);
    create(&scene, "first", first).await;
    create(&scene, "second", json!({"dependsOn": ["first"]})).await;
    let second = until_phase(&scene, "second", Phase::Failed).await;
    let status = second.status.as_ref().unwrap();
    assert_eq!(status.reason.as_deref(), Some(reasons::DEPENDENCY_FAILED));
    assert!(status.message.as_ref().unwrap().contains("TrainingJob first has failed"), "{status:?}");
    assert!(pods(&scene, "second").await.is_empty() && status.attempts == 0);
}

#[tokio::test]
async fn a_result_outlives_the_job_that_made_it() {
    let scene = simulated().await;
    create(&scene, "first", json!({"outputDir": "/mnt/first"})).await;
    // It waits for a third job when the first one is deleted.
    let reads = json!({"model": "/mnt/first", "dependsOn": ["third"]});
    create(&scene, "second", reads).await;
    until_phase(&scene, "first", Phase::Succeeded).await;
    tests::wait_for(
        &scene.api::<TrainingJob>(),
        "second",
        "it knows the result",
        within(),
        |job: &TrainingJob| {
            let known = job.status.iter().flat_map(|status| &status.dependencies);
            known.into_iter().any(|dependency| dependency.name == "first" && dependency.result.is_some())
        },
    )
    .await;
    let jobs = scene.api::<TrainingJob>();
    jobs.delete("first", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&jobs, "first", within()).await;
    create(&scene, "third", json!({})).await;
    until_phase(&scene, "second", Phase::Succeeded).await;
}

#[tokio::test]
async fn a_successor_waits_for_the_end_of_its_source_and_reads_its_claim() {
    let scene = simulated().await;
    let output = json!({"mountPath": "/mnt/data"});
    let long = json!({"outputDir": "/mnt/data/run-1", "output": output, "env": fate(&[("run-time", "300s")])["env"]});
    create(&scene, "first", long).await;
    until_reason(&scene, "first", conditions::RUNNING, reasons::TRAINING).await;
    create(&scene, "by-job", json!({"resumeFrom": {"job": "first"}})).await;
    create(&scene, "by-claim", json!({"resumeFrom": {"claimName": "first-output", "path": "run-1"}})).await;
    for name in ["by-job", "by-claim"] {
        let waits = until_reason(&scene, name, conditions::DEPENDENCIES_READY, reasons::WAITING).await;
        let message = waits.status.unwrap().message.unwrap();
        assert!(message.contains("first"), "{message}");
        assert!(pods(&scene, name).await.is_empty(), "two jobs would write");
    }
    let jobs = scene.api::<TrainingJob>();
    jobs.delete("first", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&jobs, "first", within()).await;
    // The path in the claim was recorded before the job was gone.
    let folder = "/opt/resume-from/run-1";
    for name in ["by-job", "by-claim"] {
        until_phase(&scene, name, Phase::Succeeded).await;
        let job: Job = scene.api().get(&format!("{name}-1")).await.unwrap();
        let spec = job.spec.unwrap().template.spec.unwrap();
        let args = spec.containers[0].args.as_ref().unwrap();
        assert!(args.contains(&format!("--resume-from={folder}")), "{args:?}");
        let mounts = spec.containers[0].volume_mounts.as_ref().unwrap();
        let mount = mounts.iter().find(|mount| mount.mount_path == "/opt/resume-from").unwrap();
        assert_eq!(mount.read_only, Some(true));
    }
}

#[tokio::test]
async fn a_circle_is_named() {
    let scene = simulated().await;
    create(&scene, "one", json!({"dependsOn": ["two"]})).await;
    create(&scene, "two", json!({"dependsOn": ["one"]})).await;
    let one = until_reason(&scene, "one", conditions::DEPENDENCIES_READY, reasons::CYCLE).await;
    let message = one.status.unwrap().message.unwrap();
    assert!(message.contains("two -> one"), "{message}");
}

#[tokio::test]
async fn a_finished_job_goes_once_no_job_needs_it_any_more() {
    let scene = simulated().await;
    create(&scene, "second", json!({"suspend": true, "dependsOn": ["first"]})).await;
    create(&scene, "first", json!({"ttlSecondsAfterFinished": 1})).await;
    until_phase(&scene, "first", Phase::Succeeded).await;
    let jobs = scene.api::<TrainingJob>();
    jobs.delete("second", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&jobs, "first", within()).await;
}
