//! Days on which much goes wrong at once, or something happens in the middle of something else.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::trainingjob::{Phase, TrainingJob, TrainingJobStatus};
use futures::future::join_all;
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use local_cluster::{ClusterSpec, NodePool};
use serde_json::json;
use tests::{
    Scene, ask_until, controller, follow, fresh_name, simulated, start, tools,
    training::{CONTROLLER, create, fate, selector, spec, until_phase},
    wait_for, wait_until_gone, within,
};

const ENDLESS: (&str, &str) = ("run-time", "24h");
/// Jobs that train while their controller is replaced.
const JOBS: usize = 50;
/// Jobs that have ended.
const FINISHED: usize = 300;
/// From the end of its time to the deletion of a job, on a busy machine.
const DELETED_WITHIN: Duration = Duration::from_secs(10);

/// The uids of all pods of trainers.
async fn pods(scene: &Scene<'_>) -> BTreeSet<String> {
    let pods = scene.api::<Pod>().list(&ListParams::default()).await.expect("the pods");
    pods.iter().filter_map(|pod| pod.uid()).collect()
}

async fn jobs(scene: &Scene<'_>) -> Vec<TrainingJob> {
    scene.api().list(&ListParams::default()).await.expect("the jobs").items
}

#[tokio::test]
async fn another_version_of_the_controller_touches_no_pod_of_jobs_that_train() {
    let pool = NodePool { count: 8, gpus: 8, ..NodePool::default() };
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), pool)).await;
    cluster.start_controller(&controller(CONTROLLER)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let names: Vec<String> = (0..JOBS).map(|number| format!("job-{number}")).collect();
    // A step each second.
    let fate = fate(&[ENDLESS, ("steps", "86400")]);
    join_all(names.iter().map(|name| create(&scene, name, fate.clone()))).await;
    for name in &names {
        wait_for(&scene.api(), name, "a loss", within(), |job: &TrainingJob| {
            job.status.as_ref().is_some_and(|status| !status.loss_curve.is_empty())
        })
        .await;
    }
    let (before, known) = (pods(&scene).await, jobs(&scene).await);
    assert_eq!(before.len(), JOBS);

    // An upgrade has other defaults, and a rollback the first ones again.
    cluster.stop_component(CONTROLLER).await.unwrap();
    let other = ["--trainer-image=registry.example.com/trainer:swift3.9", "--launcher-image=launcher:later"];
    let later = controller(CONTROLLER).replica("later").with_args(other);
    cluster.start_controller(&later).await.unwrap();
    begins_and_ends(&scene, "after-the-upgrade").await;
    cluster.stop_component("later").await.unwrap();
    cluster.start_component(CONTROLLER).await.unwrap();
    begins_and_ends(&scene, "after-the-rollback").await;

    let after = pods(&scene).await;
    assert!(before.is_subset(&after), "{} of {JOBS} pods are left", after.intersection(&before).count());
    let by_name: BTreeMap<String, TrainingJob> =
        jobs(&scene).await.into_iter().map(|job| (job.name_any(), job)).collect();
    for job in &known {
        let (then, now) = (job.status.as_ref().unwrap(), by_name[&job.name_any()].status.as_ref().unwrap());
        assert_eq!((now.phase, now.attempts, &now.resolved), (Some(Phase::Running), 1, &then.resolved));
        let step = |status: &TrainingJobStatus| status.progress.as_ref().map(|progress| progress.step);
        assert!(step(now) >= step(then), "{:?} after {:?}", now.progress, then.progress);
        assert!(now.loss_curve.starts_with(&then.loss_curve), "{now:?} after {then:?}");
        assert!(now.loss_curve.is_sorted_by(|one, next| one.step < next.step), "{now:?}");
    }
}

/// When it has run, the controller leads and has looked at what was there before.
async fn begins_and_ends(scene: &Scene<'_>, name: &str) {
    create(scene, name, json!({})).await;
    until_phase(scene, name, Phase::Succeeded).await;
}

#[tokio::test]
async fn a_job_that_is_deleted_and_made_anew_at_once_begins_when_the_pods_of_the_first_are_gone() {
    let scene = simulated().await;
    create(&scene, "qwen", fate(&[ENDLESS])).await;
    let first = until_phase(&scene, "qwen", Phase::Running).await;
    let mut most = 0;
    let (pods, labels) = (scene.api::<Pod>(), selector("qwen"));
    let run_at_once = follow(&pods, &labels, |all: &BTreeMap<String, Pod>| {
        let phase = |pod: &&Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
        most = most.max(all.values().filter(|pod| phase(pod).as_deref() == Some("Running")).count());
        None::<()>
    });
    let story = async {
        let jobs = scene.api::<TrainingJob>();
        jobs.delete("qwen", &DeleteParams::default()).await.unwrap();
        ask_until("the name is free", within(), async || {
            let again = serde_json::from_value(json!({
                "apiVersion": "aistudio.modelscope.cn/v1alpha1",
                "kind": "TrainingJob",
                "metadata": {"name": "qwen", "namespace": scene.namespace()},
                "spec": spec(json!({})),
            }));
            jobs.create(&PostParams::default(), &again.expect("a TrainingJob")).await
        })
        .await;
        until_phase(&scene, "qwen", Phase::Succeeded).await
    };
    let second = tokio::select! {
        () = run_at_once => unreachable!("it looks on until the end"),
        second = Box::pin(story) => second,
    };
    assert_ne!(first.uid(), second.uid());
    let status = second.status.unwrap();
    assert_eq!((status.attempts, status.retries, status.failures.len()), (1, 0, 0));
    assert_eq!(most, 1, "pods of both ran at once");
}

#[tokio::test]
async fn among_hundreds_of_finished_jobs_one_is_deleted_in_time() {
    let scene = simulated().await;
    let jobs = scene.api::<TrainingJob>();
    let names: Vec<String> = (0..FINISHED).map(|number| format!("finished-{number}")).collect();
    for some in names.chunks(20) {
        join_all(some.iter().map(|name| create(&scene, name, json!({"suspend": true})))).await;
    }
    // As a controller of another release has left them.
    let ended = json!({"status": {"phase": "Succeeded", "completionTime": Timestamp::now().to_string()}});
    for some in names.chunks(20) {
        let (params, patch) = (PatchParams::default(), Patch::Merge(&ended));
        join_all(some.iter().map(|name| jobs.patch_status(name, &params, &patch))).await;
    }
    create(&scene, "short", json!({"ttlSecondsAfterFinished": 3})).await;
    let short = until_phase(&scene, "short", Phase::Succeeded).await;
    let ended = short.status.unwrap().completion_time.unwrap().0;
    wait_until_gone(&jobs, "short", within()).await;
    let late = Timestamp::now().duration_since(ended).unsigned_abs().saturating_sub(Duration::from_secs(3));
    assert!(late <= DELETED_WITHIN, "{late:?} too late");
    wait_for(&jobs, &names[0], "it stays", within(), |job: &TrainingJob| {
        job.metadata.deletion_timestamp.is_none()
    })
    .await;
    assert_eq!(jobs.list(&ListParams::default()).await.unwrap().items.len(), FINISHED);
}
