//! Labels that are taken off the Job and the pods of an attempt while it trains: the controller finds both by labels.

use api::{
    conditions, labels, reasons,
    trainingjob::{Phase, TrainingJob},
};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tests::{
    simulated,
    training::{change, create, fate, pods, until_phase, until_reason},
    wait_for, wait_until_gone, within,
};

/// By which the controller or its indexes find a Job.
const OF_A_JOB: [&str; 4] = [labels::MANAGED_BY, labels::NAME, labels::INSTANCE, labels::ATTEMPT];
const OF_A_POD: [&str; 3] = [labels::MANAGED_BY, labels::NAME, labels::INSTANCE];
/// Long enough for a label to be taken off while it trains.
const TRAINS: (&str, &str) = ("run-time", "20s");

async fn takes_off<K>(objects: &Api<K>, name: &str, label: &str)
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    let without = Patch::Merge(json!({"metadata": {"labels": {label: null}}}));
    objects.patch(name, &PatchParams::default(), &without).await.expect("it is accepted");
}

#[tokio::test]
async fn a_job_whose_labels_are_taken_off_succeeds() {
    let scene = simulated().await;
    for (number, label) in OF_A_JOB.into_iter().enumerate() {
        let name = format!("qwen-{number}");
        create(&scene, &name, fate(&[TRAINS])).await;
        until_phase(&scene, &name, Phase::Running).await;
        takes_off(&scene.api::<Job>(), &format!("{name}-1"), label).await;
        let job = until_phase(&scene, &name, Phase::Succeeded).await;
        let status = job.status.unwrap();
        assert_eq!((status.attempts, status.failures.len()), (1, 0), "{label}");
    }
}

#[tokio::test]
async fn a_job_whose_pod_loses_its_labels_succeeds() {
    let scene = simulated().await;
    for (number, label) in OF_A_POD.into_iter().enumerate() {
        let name = format!("qwen-{number}");
        create(&scene, &name, fate(&[TRAINS])).await;
        until_phase(&scene, &name, Phase::Running).await;
        let pod = pods(&scene, &name).await.remove(0).name_any();
        takes_off(&scene.api::<Pod>(), &pod, label).await;
        let job = until_phase(&scene, &name, Phase::Succeeded).await;
        let status = job.status.unwrap();
        assert_eq!((status.attempts, status.failures.len()), (1, 0), "{label}");
    }
}

#[tokio::test]
async fn a_job_whose_labels_were_taken_off_can_be_suspended() {
    let scene = simulated().await;
    create(&scene, "qwen", fate(&[("run-time", "24h")])).await;
    until_phase(&scene, "qwen", Phase::Running).await;
    let jobs = scene.api::<Job>();
    takes_off(&jobs, "qwen-1", labels::MANAGED_BY).await;
    wait_for(&jobs, "qwen-1", "its label again", within(), |job: &Job| {
        job.labels().contains_key(labels::MANAGED_BY)
    })
    .await;
    // Its version is not the one that was seen first.
    takes_off(&jobs, "qwen-1", labels::NAME).await;
    change(&scene, "qwen", json!({"suspend": true})).await;
    wait_until_gone(&jobs, "qwen-1", within()).await;
    until_reason(&scene, "qwen", conditions::SUSPENDED, reasons::SUSPENDED).await;
    change(&scene, "qwen", json!({"suspend": false})).await;
    wait_for(&scene.api::<TrainingJob>(), "qwen", "a second attempt", within(), |job: &TrainingJob| {
        job.status.as_ref().is_some_and(|status| status.attempts == 2 && status.phase == Some(Phase::Running))
    })
    .await;
}
