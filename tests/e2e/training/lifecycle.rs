//! From the first write to the end: create, succeed, fail, retry.

use api::{conditions, reasons, trainingjob::Phase};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Service},
};
use kube::ResourceExt as _;
use serde_json::json;
use tests::{
    simulated,
    training::{condition, create, fate, pods, until_phase},
};

#[tokio::test]
async fn a_job_runs_to_its_end_in_one_attempt() {
    let scene = simulated().await;
    let created = create(&scene, "qwen", json!({"gpus": 2})).await;
    let job = until_phase(&scene, "qwen", Phase::Succeeded).await;
    let status = job.status.as_ref().unwrap();
    assert_eq!((status.attempts, status.ended_attempts, status.retries), (1, 1, 0));
    assert!(status.start_time.is_some() && status.completion_time >= status.start_time);
    assert!(condition(&job, conditions::COMPLETE).is_some_and(|complete| complete.status == "True"));
    let attempt: Job = scene.api().get("qwen-1").await.unwrap();
    assert_eq!(attempt.owner_references()[0].uid, created.uid().unwrap());
    let claim: PersistentVolumeClaim = scene.api().get("qwen-output").await.unwrap();
    assert!(claim.owner_references().is_empty(), "the result outlives the job");
    assert!(scene.api::<Service>().get_opt("qwen-gang").await.unwrap().is_none());
    let [pod] = pods(&scene, "qwen").await.try_into().unwrap();
    let limits = pod.spec.unwrap().containers[0].resources.clone().unwrap().limits.unwrap();
    assert_eq!(limits["nvidia.com/gpu"].0, "2");
}

#[tokio::test]
async fn a_failure_that_may_pass_is_tried_again_up_to_the_limit() {
    let scene = simulated().await;
    let mut spec = fate(&[("crash-reason", "Error")]);
    spec["retryLimit"] = json!(1);
    create(&scene, "qwen", spec).await;
    let job = until_phase(&scene, "qwen", Phase::Failed).await;
    let status = job.status.as_ref().unwrap();
    assert_eq!((status.attempts, status.retries), (2, 1));
    assert_eq!(status.reason.as_deref(), Some(reasons::RETRIES_EXHAUSTED));
    let failure = status.failure.as_ref().unwrap();
    assert_eq!((failure.attempt, failure.exit_code, &*failure.reason), (2, Some(1), reasons::USER_ERROR));
}
