//! How jobs are stopped, deleted and forgotten.

use std::collections::BTreeMap;

use api::{
    conditions, reasons,
    trainingjob::{Phase, TrainingJob},
};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod, ResourceQuota},
};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use tests::{
    follow, simulated,
    training::{change, condition, create, fate, pods, selector, until_phase, until_reason},
    wait_for, wait_until_gone, within,
};

const ENDLESS: (&str, &str) = ("run-time", "24h");

#[tokio::test]
async fn a_suspended_job_has_no_pods_and_goes_on_without_a_retry() {
    let scene = simulated().await;
    create(&scene, "qwen", fate(&[ENDLESS])).await;
    until_phase(&scene, "qwen", Phase::Running).await;
    change(&scene, "qwen", json!({"suspend": true})).await;
    let none = |all: &BTreeMap<String, Pod>| all.is_empty().then_some(());
    tokio::time::timeout(within(), follow(&scene.api::<Pod>(), &selector("qwen"), none)).await.unwrap();
    let job = until_reason(&scene, "qwen", conditions::SUSPENDED, reasons::SUSPENDED).await;
    assert_eq!(job.status.unwrap().phase, Some(Phase::Pending));
    change(&scene, "qwen", json!({"suspend": false})).await;
    let job = until_phase(&scene, "qwen", Phase::Running).await;
    let status = job.status.as_ref().unwrap();
    assert_eq!((status.attempts, status.retries, status.failures.len()), (2, 0, 0));
    assert!(condition(&job, conditions::SUSPENDED).is_some_and(|known| known.status == "False"));
}

#[tokio::test]
async fn a_pod_that_is_deleted_costs_no_retry() {
    let scene = simulated().await;
    create(&scene, "qwen", fate(&[ENDLESS])).await;
    until_phase(&scene, "qwen", Phase::Running).await;
    let pod = pods(&scene, "qwen").await.remove(0).name_any();
    scene.api::<Pod>().delete(&pod, &DeleteParams::default()).await.unwrap();
    let job = wait_for(&scene.api::<TrainingJob>(), "qwen", "runs again", within(), |job: &TrainingJob| {
        let status = job.status.as_ref();
        status.is_some_and(|status| status.attempts == 2 && status.phase == Some(Phase::Running))
    })
    .await;
    let status = job.status.unwrap();
    assert_eq!(status.retries, 0);
    assert_eq!(status.failures[0].reason, reasons::PREEMPTED);
}

#[tokio::test]
async fn a_job_whose_time_is_over_is_deleted_with_its_children_and_leaves_its_result() {
    let scene = simulated().await;
    create(&scene, "qwen", json!({"ttlSecondsAfterFinished": 1})).await;
    wait_until_gone(&scene.api::<TrainingJob>(), "qwen", within()).await;
    wait_until_gone(&scene.api::<Job>(), "qwen-1", within()).await;
    scene.api::<PersistentVolumeClaim>().get("qwen-output").await.unwrap();
}

#[tokio::test]
async fn a_job_of_the_same_name_waits_for_the_pods_of_the_deleted_one() {
    let scene = simulated().await;
    create(&scene, "qwen", fate(&[ENDLESS, ("delete-delay", "3s")])).await;
    until_phase(&scene, "qwen", Phase::Running).await;
    let jobs = scene.api::<TrainingJob>();
    // A pod has ended with its phase; the object stays until its finalizers are removed.
    let runs = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        !matches!(phase, Some("Failed" | "Succeeded"))
    };
    let most = |all: &BTreeMap<String, Pod>| {
        assert!(all.values().filter(runs).count() <= 1, "two pods write into one output");
        None::<()>
    };
    let of_qwen = selector("qwen");
    let pods = scene.api::<Pod>();
    let watched = follow(&pods, &of_qwen, most);
    let story = async {
        jobs.delete("qwen", &DeleteParams::default()).await.unwrap();
        wait_until_gone(&jobs, "qwen", within()).await;
        let second = create(&scene, "qwen", fate(&[ENDLESS])).await;
        let second = second.uid();
        wait_for(&jobs, "qwen", "the second one runs", within(), |job: &TrainingJob| {
            job.uid() == second
                && job.status.as_ref().is_some_and(|status| status.phase == Some(Phase::Running))
        })
        .await;
    };
    tokio::select! {
        _ = watched => unreachable!("it looks on until the end"),
        () = story => {}
    }
}

#[tokio::test]
async fn the_output_is_deleted_with_its_job_where_the_user_says_so() {
    let scene = simulated().await;
    create(&scene, "qwen", json!({"output": {"retention": "Delete"}})).await;
    until_phase(&scene, "qwen", Phase::Succeeded).await;
    scene.api::<TrainingJob>().delete("qwen", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&scene.api::<TrainingJob>(), "qwen", within()).await;
    wait_until_gone(&scene.api::<PersistentVolumeClaim>(), "qwen-output", within()).await;
}

#[tokio::test]
async fn an_object_that_the_controller_cannot_read_any_more_can_still_be_deleted() {
    let scene = simulated().await;
    create(&scene, "qwen", json!({"output": {"retention": "Delete"}})).await;
    until_phase(&scene, "qwen", Phase::Succeeded).await;
    let jobs = scene.api::<TrainingJob>();
    let labels: serde_json::Map<_, _> = (0..600).map(|index| (format!("l{index}"), json!("x"))).collect();
    let many = Patch::Merge(json!({"metadata": {"labels": labels}}));
    jobs.patch("qwen", &PatchParams::default(), &many).await.unwrap();
    jobs.delete("qwen", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&jobs, "qwen", within()).await;
    scene.api::<PersistentVolumeClaim>().get("qwen-output").await.expect("in doubt nothing is deleted");
}

#[tokio::test]
async fn a_full_quota_is_named_and_the_job_starts_when_there_is_room() {
    let scene = simulated().await;
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    scene.apply(&quota.to_string()).await.unwrap();
    wait_for(&scene.api::<ResourceQuota>(), "none", "counted", within(), |quota: &ResourceQuota| {
        quota.status.as_ref().is_some_and(|status| status.used.is_some())
    })
    .await;
    create(&scene, "qwen", json!({})).await;
    let job = until_reason(&scene, "qwen", conditions::SCHEDULED, reasons::QUOTA_PENDING).await;
    let message = &condition(&job, conditions::SCHEDULED).unwrap().message;
    assert!(message.contains("exceeded quota: none"), "{message}");
    scene.api::<ResourceQuota>().delete("none", &DeleteParams::default()).await.unwrap();
    until_phase(&scene, "qwen", Phase::Succeeded).await;
}

#[tokio::test]
async fn kueue_alone_admits_the_attempt_of_a_job_with_a_queue() {
    let scene = simulated().await;
    create(&scene, "qwen", json!({"queueName": "team-a"})).await;
    until_reason(&scene, "qwen", conditions::SCHEDULED, reasons::QUOTA_PENDING).await;
    let jobs = scene.api::<Job>();
    let job = jobs.get("qwen-1").await.unwrap();
    assert_eq!(job.labels()["kueue.x-k8s.io/queue-name"], "team-a");
    assert_eq!(job.spec.unwrap().suspend, Some(true));
    let admitted = Patch::Merge(json!({"spec": {"suspend": false}}));
    jobs.patch("qwen-1", &PatchParams::default(), &admitted).await.unwrap();
    until_phase(&scene, "qwen", Phase::Succeeded).await;
}
