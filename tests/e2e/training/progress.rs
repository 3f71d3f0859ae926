//! Progress, the loss curve and checkpoints, read from the logs of simulated trainers through the real API server.

use std::{collections::BTreeMap, time::Duration};

use api::trainingjob::{Phase, TrainingJob, TrainingJobStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt as _,
    api::{DeleteParams, LogParams},
};
use local_cluster::{
    Cluster, ClusterSpec, NodePool,
    api_server::audit::{self, Event},
};
use serde_json::{Value, json};
use tests::{
    Scene, controller, follow, fresh_name, simulated, start, tools,
    training::{CONTROLLER, create, fate, pods, until_phase},
    wait_for, within,
};

/// Steps of a simulated trainer; every fifth one is logged, and the first.
const STEPS: i64 = 60;
/// From the first line to the status, on a busy machine.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);
/// Between two writes of progress.
const PUBLISHED_EVERY: u64 = 10;

/// A job whose training takes this time.
fn training(time: &str) -> Value {
    fate(&[("run-time", time)])
}

fn step(status: &TrainingJobStatus) -> i64 {
    status.progress.as_ref().map_or(0, |progress| progress.step)
}

/// The steps of the loss curve, and whether the loss falls from each to the next.
fn curve(status: &TrainingJobStatus) -> (Vec<i64>, bool) {
    let losses: Vec<f64> = status.loss_curve.iter().map(|point| point.loss.parse().unwrap()).collect();
    let steps = status.loss_curve.iter().map(|point| point.step).collect();
    (steps, losses.is_sorted_by(|one, next| one > next))
}

fn logged_steps() -> Vec<i64> {
    std::iter::once(1).chain((5..=STEPS).step_by(5)).collect()
}

#[tokio::test]
async fn progress_and_loss_reach_the_last_step_and_the_checkpoint_is_that_of_it() {
    let scene = simulated().await;
    create(&scene, "qwen", training("3s")).await;
    let job = until_phase(&scene, "qwen", Phase::Succeeded).await;
    let status = job.status.unwrap();
    let progress = status.progress.as_ref().unwrap();
    assert_eq!((progress.step, progress.total_steps, progress.percent), (STEPS, STEPS, 100));
    assert!(progress.loss.is_some() && progress.eta.is_none(), "{progress:?}");
    assert_eq!(curve(&status), (logged_steps(), true));
    let checkpoint = status.checkpoint.unwrap();
    assert!(checkpoint.step == STEPS && checkpoint.path.ends_with("/checkpoint-60"), "{checkpoint:?}");
}

#[tokio::test]
async fn the_first_step_is_reported_soon_after_its_line() {
    let scene = simulated().await;
    // A step each ten seconds.
    create(&scene, "qwen", training("610s")).await;
    let job = wait_for(&scene.api::<TrainingJob>(), "qwen", "a step", within(), |job: &TrainingJob| {
        job.status.as_ref().is_some_and(|status| step(status) > 0)
    })
    .await;
    let seen = Timestamp::now();
    let status = job.status.unwrap();
    assert_eq!((status.phase, step(&status)), (Some(Phase::Running), 1));
    let progress = status.progress.unwrap();
    let printed = progress.time.as_ref().unwrap().0;
    let took = seen.duration_since(printed).unsigned_abs();
    assert!(took <= REPORTED_WITHIN, "reported {took:?} after it was printed");
    assert_eq!((progress.total_steps, progress.percent, progress.attempt), (STEPS, 1, 1));
    assert_eq!(progress.eta.as_deref(), Some("9m"));
}

#[tokio::test]
async fn an_interrupted_training_keeps_its_curve_and_goes_on_in_another_attempt() {
    let scene = simulated().await;
    create(&scene, "qwen", training("12s")).await;
    let jobs = scene.api::<TrainingJob>();
    let begun = |job: &TrainingJob| job.status.as_ref().is_some_and(|status| step(status) > 0);
    wait_for(&jobs, "qwen", "a step", within(), begun).await;
    let pod = pods(&scene, "qwen").await.remove(0).name_any();
    scene.api::<Pod>().delete(&pod, &DeleteParams::default()).await.unwrap();
    let job = until_phase(&scene, "qwen", Phase::Succeeded).await;
    let status = job.status.unwrap();
    assert_eq!((status.attempts, status.retries, step(&status)), (2, 0, STEPS));
    assert_eq!(status.progress.as_ref().unwrap().attempt, 2);
    assert_eq!(curve(&status), (logged_steps(), true));
}

#[tokio::test]
async fn a_model_that_does_not_fit_is_tried_with_smaller_batches_and_then_explained() {
    let scene = simulated().await;
    let changes = json!({
        "model": "Qwen/Qwen2.5-72B-Instruct", "method": "full", "gpus": 2,
        "extraArgs": ["--per_device_train_batch_size", "4"],
    });
    create(&scene, "qwen", changes).await;
    let job = until_phase(&scene, "qwen", Phase::Failed).await;
    let status = job.status.unwrap();
    assert_eq!((status.attempts, status.retries), (3, 0), "a smaller batch is no retry");
    assert_eq!(status.reason.as_deref(), Some("CudaOutOfMemory"));
    let changes: Vec<&str> = status.mitigations.iter().map(|step| step.change.as_str()).collect();
    assert!(changes[0].starts_with("per_device_train_batch_size 4 -> 2"), "{changes:?}");
    let message = status.message.unwrap();
    assert!(
        message.contains("CUDA out of memory") && message.contains("create the job again with method qlora"),
        "{message}"
    );
}

#[tokio::test]
async fn a_log_is_read_as_from_a_kubelet() {
    let scene = simulated().await;
    create(&scene, "qwen", training("2s")).await;
    until_phase(&scene, "qwen", Phase::Succeeded).await;
    let pod = pods(&scene, "qwen").await.remove(0).name_any();
    let pods = scene.api::<Pod>();
    let params =
        LogParams { container: Some("trainer".to_owned()), timestamps: true, ..LogParams::default() };
    let whole = pods.logs(&pod, &params).await.unwrap();
    assert_eq!(whole, pods.logs(&pod, &params).await.unwrap(), "a log that is read again is the same");
    assert!(whole.contains("'global_step/max_steps': '60/60'"), "{whole}");
    let tail = pods.logs(&pod, &LogParams { tail_lines: Some(2), ..params.clone() }).await.unwrap();
    assert!(tail.lines().count() == 2 && whole.ends_with(&tail), "{tail}");
    let followed = pods.logs(&pod, &LogParams { follow: true, ..params.clone() }).await.unwrap();
    assert_eq!(followed, whole);
    let installer = LogParams { container: Some("launcher-installer".to_owned()), ..LogParams::default() };
    assert_eq!(pods.logs(&pod, &installer).await.unwrap(), "");
}

#[tokio::test]
async fn a_restarted_controller_counts_no_step_twice_and_loses_no_point() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let quick = ["--lease-duration=5", "--lease-renew-deadline=3", "--lease-retry-period=1"];
    cluster.start_controller(&controller(CONTROLLER).with_args(quick)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    create(&scene, "qwen", training("45s")).await;
    let seen = history(&scene, "qwen", async {
        for _ in 0..2 {
            let before = latest(&scene, "qwen").await;
            wait_for(&scene.api::<TrainingJob>(), "qwen", "progress", within(), |job: &TrainingJob| {
                job.status.as_ref().is_some_and(|status| step(status) > before)
            })
            .await;
            cluster.kill_component(CONTROLLER).await.unwrap();
        }
        until_phase(&scene, "qwen", Phase::Succeeded).await;
    })
    .await;
    let writes = status_writes(&cluster, &scene);
    let seconds = writes.duration.as_secs();
    // The start, the first step and the end.
    let most = seconds / PUBLISHED_EVERY + 6;
    assert!(writes.count <= most, "{} writes in {seconds} s: {seen:?}", writes.count);
    let mut reasons: Vec<&str> = seen.iter().filter_map(|status| status.reason.as_deref()).collect();
    reasons.dedup();
    assert!(reasons.ends_with(&["Preparing", "Training", "Succeeded"]), "{reasons:?}");
    assert!(
        seen.iter().map(step).is_sorted(),
        "progress goes back: {:?}",
        seen.iter().map(step).collect::<Vec<_>>()
    );
    let curves: Vec<Vec<i64>> = seen.iter().map(|status| curve(status).0).collect();
    let grows = |(before, after): (&Vec<i64>, &Vec<i64>)| before.iter().all(|step| after.contains(step));
    assert!(curves.iter().zip(&curves[1..]).all(grows), "points were lost: {curves:?}");
    let last = seen.last().unwrap();
    assert_eq!((last.attempts, last.retries, step(last)), (1, 0, STEPS));
    assert_eq!(curve(last), (logged_steps(), true));
}

async fn latest(scene: &Scene<'_>, name: &str) -> i64 {
    let job = scene.api::<TrainingJob>().get(name).await.unwrap();
    job.status.as_ref().map_or(0, step)
}

/// Every status that a job has while `story` is played.
async fn history(scene: &Scene<'_>, name: &str, story: impl Future<Output = ()>) -> Vec<TrainingJobStatus> {
    let mut seen = Vec::new();
    let look = |all: &BTreeMap<String, TrainingJob>| {
        let known = all.values().find(|job| job.name_any() == name);
        seen.extend(known.and_then(|job| job.status.clone()));
        None::<()>
    };
    let jobs = scene.api::<TrainingJob>();
    // The story's waits are large futures.
    let (watched, story) = (Box::pin(follow(&jobs, "", look)), Box::pin(story));
    tokio::select! {
        () = watched => unreachable!("it looks on until the end"),
        () = story => {}
    }
    // The story may have seen it first.
    seen.extend(jobs.get(name).await.unwrap().status);
    seen
}

struct Writes {
    count: u64,
    duration: Duration,
}

/// The writes of status in the namespace, from the first to the last.
fn status_writes(cluster: &Cluster, scene: &Scene<'_>) -> Writes {
    let is_write = |event: &Event| {
        event.resource == "trainingjobs"
            && event.subresource == "status"
            && event.namespace == scene.namespace()
            && event.verb != "get"
    };
    let events = audit::read(&cluster.folder().audit_log()).unwrap();
    let times: Vec<Timestamp> =
        events.iter().filter(|event| is_write(event)).map(|event| event.received.parse().unwrap()).collect();
    let (first, last) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    Writes { count: times.len() as u64, duration: last.duration_since(*first).unsigned_abs() }
}
