//! Uploads on simulated nodes, where the store is whatever the fate of the pods says.

use api::{
    conditions, reasons,
    trainingjob::{Phase, TrainingJob},
};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod},
};
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use tests::{
    simulated,
    training::{condition, create, fate, until_phase, until_reason},
    wait_for, wait_until_gone, within,
};

#[tokio::test]
async fn a_store_that_refuses_is_named_before_gpus_are_taken() {
    let scene = simulated().await;
    let fails = json!({"sim.ai.infra.example.com/crash-reason": "Error"});
    let upload = json!({"upload": {"uri": "s3://models/qwen"}});
    create(&scene, "qwen", json!({"podAnnotations": fails, "output": upload})).await;
    let job = until_reason(&scene, "qwen", conditions::STALLED, reasons::UPLOAD_NOT_POSSIBLE).await;
    let status = job.status.as_ref().unwrap();
    assert_eq!((status.phase, status.attempts), (Some(Phase::Pending), 0));
    let pods = scene.api::<Pod>().list(&ListParams::default()).await.unwrap();
    let of_trainers = pods.iter().filter(|pod| pod.metadata.name.as_ref().unwrap().starts_with("qwen-1"));
    assert_eq!(of_trainers.count(), 0);
}

#[tokio::test]
async fn the_store_is_tried_once_before_the_first_attempt() {
    let scene = simulated().await;
    create(&scene, "qwen", json!({"output": {"upload": {"uri": "s3://models/qwen"}}})).await;
    let job = until_phase(&scene, "qwen", Phase::Succeeded).await;
    assert!(job.status.as_ref().unwrap().upload_check_time.is_some());
    assert!(condition(&job, conditions::UPLOADED).is_some_and(|uploaded| uploaded.status == "True"));
    scene.api::<Job>().get("qwen-upload-check").await.unwrap();
}

#[tokio::test]
async fn a_job_begins_while_the_result_that_it_reads_is_not_uploaded_and_that_result_is_kept() {
    let scene = simulated().await;
    let mut sft = fate(&[("run-time", "10s")]);
    sft["outputDir"] = json!("/outputs/sft");
    let upload = json!({"uri": "s3://models/qwen"});
    sft["output"] = json!({"retention": "Delete", "accessMode": "ReadWriteMany", "upload": upload});
    create(&scene, "sft", sft).await;
    until_phase(&scene, "sft", Phase::Running).await;
    // From now on no pod is made, also none that uploads.
    let none = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    scene.apply(&none.to_string()).await.unwrap();
    until_reason(&scene, "sft", conditions::UPLOADED, reasons::UPLOADING).await;
    create(&scene, "dpo", json!({"model": "/outputs/sft", "method": "dpo", "outputDir": "/outputs/dpo"}))
        .await;
    wait_for(&scene.api::<Job>(), "dpo-1", "an attempt", within(), |_: &Job| true).await;
    let jobs = scene.api::<TrainingJob>();
    let sft = jobs.get("sft").await.unwrap();
    assert!(condition(&sft, conditions::UPLOADED).is_some_and(|uploaded| uploaded.status == "False"));

    jobs.delete("dpo", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&jobs, "dpo", within()).await;
    jobs.delete("sft", &DeleteParams::default()).await.unwrap();
    wait_for(&jobs, "sft", "it says what it waits for", within(), |job: &TrainingJob| {
        let message = job.status.as_ref().and_then(|status| status.message.as_deref());
        message.is_some_and(|message| message.contains("waits for the upload of its result"))
    })
    .await;
    scene.api::<Job>().delete("sft-upload", &DeleteParams::background()).await.unwrap();
    wait_until_gone(&jobs, "sft", within()).await;
    let claim = scene.api::<PersistentVolumeClaim>().get("sft-output").await.expect("the only copy");
    assert!(claim.metadata.deletion_timestamp.is_none());
}
