//! TrainingJob on real nodes: the launcher in a container, checkpoints in a claim, and what follows when a trainer, a pod or a
//! node ends. The trainer is the stand-in for ms-swift in `tests/trainer`.

mod cannot_start;
mod history;
mod sources;

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use api::{
    conditions, labels, reasons,
    trainingjob::{Checkpoint, Failure, Phase, TrainingJob, TrainingJobStatus},
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, api::DeleteParams};
use local_cluster::{NodeClock, simulation::nodes};
use serde_json::{Value, json};
use tests::{
    ENGINE_IMAGE, PRODUCT, Scene, TRAINER_IMAGE, follow, real, real_spec, start_real,
    training::{self, condition, create, until_phase, until_reason},
    wait_for, wait_until_gone, within,
};

use crate::store::{Store, with};
use history::History;

/// Steps of a training. There is a checkpoint after each fifth.
const STEPS: i64 = 20;
/// Then the first attempt is so slow that it ends only by what the test does.
const SLOW: &str = "slow@8=4000";
const QUICK_STEPS: i64 = 7;

#[tokio::test]
async fn a_job_reports_its_progress_and_leaves_its_last_checkpoint_in_the_claim() {
    let scene = real().await;
    // The first progress of an attempt is written after five seconds.
    create(&scene, "qwen", run("slow@1=1000", json!({}))).await;
    wait_for(&scene.api::<TrainingJob>(), "qwen", "a first step", within(), |job: &TrainingJob| {
        job.status.as_ref().is_some_and(|status| {
            let has_step = status.progress.as_ref().is_some_and(|progress| progress.step > 0);
            has_step && status.phase == Some(Phase::Running)
        })
    })
    .await;
    let job = wait_for(&scene.api::<TrainingJob>(), "qwen", "Succeeded", within(), |job: &TrainingJob| {
        let phase = status(job).phase;
        assert_ne!(phase, Some(Phase::Pending), "{:?}", job.status);
        phase == Some(Phase::Succeeded)
    })
    .await;
    let status = status(&job);
    assert_eq!((status.attempts, status.retries, status.failure.as_ref()), (1, 0, None));
    let progress = status.progress.as_ref().expect("progress");
    assert_eq!((progress.step, progress.total_steps, progress.percent), (STEPS, STEPS, 100));
    let loss = progress.loss.as_deref().expect("a loss");
    assert!(status.loss_curve.len() > 1, "{:?}", status.loss_curve);
    assert_eq!(place_of(status.checkpoint.as_ref()), ("/output/checkpoint-20", STEPS));
    let shown = scene.kubectl(&["get", "trainingjobs", "qwen"]);
    let words: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().take(4).collect()).collect();
    assert_eq!(words, [["NAME", "PHASE", "PROGRESS", "LOSS"], ["qwen", "Succeeded", "100", loss]]);
    let history = History::of(&scene, "qwen").await;
    assert_eq!(history.checkpoint(STEPS), Some(STEPS));
}

#[tokio::test]
async fn a_preempted_job_loses_at_most_one_step() {
    let scene = real().await;
    create(&scene, "qwen", run(SLOW, json!({}))).await;
    let history = History::of(&scene, "qwen").await;
    history.until_step(1, QUICK_STEPS).await;
    delete_pod(&scene, "qwen").await;
    let job = until_succeeded(&scene, "qwen", 2).await;
    assert_eq!((status(&job).retries, failure(&job).reason.as_str()), (0, reasons::PREEMPTED));
    let saved = failure(&job).checkpoint_step.expect("a checkpoint");
    let last = history.last_step(1, 0).expect("steps of the first attempt");
    assert!(saved >= last - 1, "saved after step {saved}, interrupted after step {last}");
    assert_eq!(history.first_step(2, 0), Some(saved + 1));
}

#[tokio::test]
async fn a_killed_container_is_followed_by_an_attempt_from_the_last_checkpoint() {
    let scene = real().await;
    create(&scene, "qwen", run(SLOW, json!({}))).await;
    let history = History::of(&scene, "qwen").await;
    history.until_step(1, QUICK_STEPS).await;
    kill_launcher(&training::pods(&scene, "qwen").await[0]);
    let job = until_succeeded(&scene, "qwen", 2).await;
    let Failure { exit_code, reason, .. } = failure(&job);
    assert_eq!((status(&job).retries, *exit_code, reason.as_str()), (1, Some(137), reasons::USER_ERROR));
    assert_eq!(history.first_step(2, 0), Some(6));
}

#[tokio::test]
async fn a_job_that_ran_out_of_gpu_memory_succeeds_with_a_smaller_batch() {
    let scene = real().await;
    let mut spec = run("oom@3", json!({}));
    spec["extraArgs"].as_array_mut().expect("arguments").extend(
        ["--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2"].map(|word| json!(word)),
    );
    create(&scene, "qwen", spec).await;
    let job = until_succeeded(&scene, "qwen", 2).await;
    assert_eq!((status(&job).retries, failure(&job).reason.as_str()), (0, reasons::CUDA_OUT_OF_MEMORY));
    let [mitigation] = status(&job).mitigations.as_slice() else { panic!("{:?}", status(&job).mitigations) };
    assert_eq!((mitigation.attempt, mitigation.reason.as_str()), (2, reasons::CUDA_OUT_OF_MEMORY));
    let history = History::of(&scene, "qwen").await;
    let batch = |attempt| {
        let start = history.starts_of(attempt).pop().expect("a start");
        ["--per_device_train_batch_size", "--gradient_accumulation_steps"]
            .map(|flag| start.value(flag).map(str::to_owned))
    };
    let words = |words: [&str; 2]| words.map(|word| Some(word.to_owned()));
    assert_eq!([batch(1), batch(2)], [words(["4", "2"]), words(["2", "4"])]);
}

#[tokio::test]
async fn the_end_of_one_rank_ends_its_gang_which_resumes_from_one_checkpoint() {
    let scene = real().await;
    create(&scene, "qwen", run(&format!("{SLOW},kill-rank@8=1"), json!({ "nodes": 2 }))).await;
    let job = until_succeeded(&scene, "qwen", 2).await;
    let history = History::of(&scene, "qwen").await;
    let starts = history.starts_of(2);
    let resumed: Vec<_> = starts.iter().map(|start| (start.rank, start.resumed())).collect();
    let saved = resumed.first().and_then(|(_, path)| *path).expect("a checkpoint");
    assert_eq!(resumed, [(0, Some(saved)), (1, Some(saved))]);
    assert_eq!(failure(&job).pod.as_deref().map(|pod| pod.starts_with("qwen-1-1-")), Some(true), "{job:?}");
    let begin = starts.iter().map(|start| start.at).fold(f64::INFINITY, f64::min);
    for rank in [0, 1] {
        let last = history.steps_of(1, rank).pop().expect("steps of the first attempt");
        assert!(last.at < begin, "rank {rank} of the first attempt trained during the second one");
    }
}

/// The node is cut off, so that its trainer goes on: only its launcher can end it.
#[tokio::test]
async fn the_trainer_of_a_lost_node_ends_itself_when_the_next_attempt_begins() {
    let cluster = start_real(real_spec(2).with_clock(NodeClock::SHORT)).await;
    let scene = Scene::restricted(&cluster).await;
    create(&scene, "qwen", run(SLOW, json!({ "nodeFailureSeconds": 3, "saveSteps": 1 }))).await;
    let history = History::of(&scene, "qwen").await;
    history.until_step(1, QUICK_STEPS).await;
    let pod = training::pods(&scene, "qwen").await.remove(0);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("a node");
    cluster.cut_off(&node).await.unwrap();
    let job = until_succeeded(&scene, "qwen", 2).await;
    assert_eq!((status(&job).retries, failure(&job).reason.as_str()), (0, reasons::NODE_LOST));
    assert!(processes_of(&pod).is_empty(), "the first attempt still runs");
    let began = history.starts_of(2)[0].at;
    let last = history.steps_of(1, 0).pop().expect("steps of the first attempt");
    assert!(last.at < began, "step {} was done by the first attempt during the second one", last.step);
    assert_eq!(history.first_step(2, 0), Some(last.step + 1));
    cluster.reconnect(&node).await.unwrap();
    wait_for(&scene.cluster_api(), &node, "back", within(), nodes::is_ready).await;
    wait_until_gone(&scene.api::<Pod>(), name_of(&pod), within() * 2).await;
    assert_eq!(history.checkpoint(STEPS), Some(STEPS));
}

#[tokio::test]
async fn a_node_that_restarts_costs_the_steps_since_the_checkpoint_and_no_more() {
    let cluster = start_real(real_spec(1)).await;
    let scene = Scene::restricted(&cluster).await;
    create(&scene, "qwen", run(SLOW, json!({ "saveSteps": 1 }))).await;
    let history = History::of(&scene, "qwen").await;
    history.until_step(1, QUICK_STEPS).await;
    cluster.kill_component("real-0").await.unwrap();
    let job = until_succeeded(&scene, "qwen", 2).await;
    let last = history.last_step(1, 0).expect("steps of the first attempt");
    let resumed = history.first_step(2, 0).expect("steps of the second attempt");
    assert!((last..=last + 1).contains(&resumed), "interrupted after step {last}, resumed with {resumed}");
    assert!(!failure(&job).message.as_deref().unwrap_or_default().is_empty(), "{job:?}");
}

/// The kubelet has lost its runtime. The trainer knows nothing of it.
#[tokio::test]
async fn a_node_that_is_not_ready_for_a_while_costs_no_step() {
    let cluster = start_real(real_spec(1).with_clock(NodeClock::SHORT)).await;
    let scene = Scene::restricted(&cluster).await;
    // NotReady for longer than that.
    create(&scene, "qwen", run(SLOW, json!({ "nodeFailureSeconds": 1 }))).await;
    let history = History::of(&scene, "qwen").await;
    history.until_step(1, QUICK_STEPS).await;
    let pod = training::pods(&scene, "qwen").await.remove(0);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("a node");
    cluster.stop_containerd(&node).await.unwrap();
    let (nodes, before) = (scene.cluster_api::<Node>(), history.last_step(1, 0).expect("steps"));
    let is_not_ready = |node: &Node| !nodes::is_ready(node);
    wait_for(&nodes, &node, "not ready", within() * 2, is_not_ready).await;
    // Three steps of four seconds, while the node is NotReady.
    history.until_step(1, before + 3).await;
    assert!(is_not_ready(&nodes.get(&node).await.unwrap()), "the node was NotReady all the time");
    cluster.start_containerd(&node).await.unwrap();
    wait_for(&nodes, &node, "back", within() * 2, nodes::is_ready).await;
    let job = until_succeeded(&scene, "qwen", 1).await;
    assert_eq!((status(&job).attempts, status(&job).failure.as_ref()), (1, None));
    let steps: Vec<i64> = history.steps_of(1, 0).iter().map(|step| step.step).collect();
    assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_image_without_the_trainer_is_no_reason_for_a_second_attempt() {
    let scene = real().await;
    create(&scene, "qwen", run("", json!({ "image": ENGINE_IMAGE }))).await;
    let job = until_phase(&scene, "qwen", Phase::Failed).await;
    assert_eq!((status(&job).attempts, failure(&job).reason.as_str()), (1, reasons::INVALID_ARGUMENTS));
    let message = failure(&job).message.as_deref().unwrap_or_default();
    assert!(message.contains("no program `swift`"), "{message}");
}

#[tokio::test]
async fn a_wrong_upload_key_is_named_before_gpus_are_taken() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    store.give_credentials("another-key").await;
    create(&scene, "qwen", uploading(&store)).await;
    let job = until_reason(&scene, "qwen", conditions::STALLED, reasons::UPLOAD_NOT_POSSIBLE).await;
    assert_eq!((status(&job).phase, status(&job).attempts), (Some(Phase::Pending), 0));
    let message = status(&job).message.as_deref().unwrap_or_default();
    assert!(message.contains("spec.output.upload.secretName"), "{message}");
    store.give_right_credentials().await;
    let job = until_succeeded(&scene, "qwen", 1).await;
    assert!(condition(&job, conditions::UPLOADED).is_some_and(|uploaded| uploaded.status == "True"));
    let check = format!("result/.model-transfer.check-{}", job.metadata.uid.as_deref().unwrap_or_default());
    assert_eq!(store.object(&check), None, "it is deleted again");
}

/// A run whose result is uploaded. Simulated nodes would take its Jobs, too, and upload nothing.
fn uploading(store: &Store<'_>) -> Value {
    let scheduling = json!({ "nodeSelector": { labels::NVIDIA_GPU_PRODUCT: PRODUCT } });
    let output = json!({ "size": "1Gi", "upload": store.upload("result") });
    run("", json!({ "scheduling": scheduling, "output": output }))
}

#[tokio::test]
async fn a_result_is_uploaded_after_the_store_is_back_and_its_pod_was_deleted() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    create(&scene, "qwen", uploading(&store)).await;
    wait_for(&scene.api::<TrainingJob>(), "qwen", "its store is checked", within(), |job: &TrainingJob| {
        job.status.as_ref().is_some_and(|status| status.upload_check_time.is_some())
    })
    .await;
    store.stop().await;
    let uploads = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let is_upload = !name_of(pod).starts_with("qwen-upload-check-");
        name_of(pod).starts_with("qwen-upload-") && is_upload && phase == Some("Running")
    };
    let (pods, selector) = (scene.api::<Pod>(), training::selector("qwen"));
    let uploader =
        follow(&pods, &selector, |pods| pods.values().find(uploads).map(|pod| name_of(pod).to_owned()));
    let uploader = tokio::time::timeout(within(), uploader).await.expect("a pod that uploads");
    pods.delete(&uploader, &DeleteParams::default()).await.expect("it can be deleted");
    wait_until_gone(&pods, &uploader, within()).await;
    store.start_again().await;
    let job = until_succeeded(&scene, "qwen", 1).await;
    assert!(condition(&job, conditions::UPLOADED).is_some_and(|uploaded| uploaded.status == "True"));
    assert!(store.object("result/adapter_model.safetensors").is_some(), "{:?}", status(&job));
    let uris: Vec<&str> = status(&job).artifacts.iter().map(|artifact| artifact.uri.as_str()).collect();
    assert!(uris.contains(&"s3://models/result/SHA256SUMS"), "{:?}", status(&job));
}

#[tokio::test]
async fn a_trainer_that_hangs_is_ended_soon_after_no_progress_seconds_and_goes_on() {
    let scene = real().await;
    create(&scene, "qwen", run("hang@8", json!({ "noProgressSeconds": 60 }))).await;
    let is_deleted = |pods: &BTreeMap<String, Pod>| {
        pods.values()
            .find_map(|pod| pod.metadata.deletion_grace_period_seconds.filter(|seconds| *seconds <= 30))
    };
    let pods = scene.api::<Pod>();
    let short = tokio::time::timeout(within(), follow(&pods, &training::selector("qwen"), is_deleted)).await;
    assert_eq!(short, Ok(30), "what hangs has nothing to save");
    let job = until_succeeded(&scene, "qwen", 2).await;
    assert_eq!((status(&job).retries, failure(&job).reason.as_str()), (1, reasons::NO_PROGRESS));
    let history = History::of(&scene, "qwen").await;
    assert_eq!(history.first_step(2, 0), Some(6));
}

/// A short training of the stand-in on real nodes, with faults in its first attempt.
fn run(faults: &str, changes: Value) -> Value {
    let spec = json!({
        "image": TRAINER_IMAGE,
        "gpuProductLabel": PRODUCT,
        "saveSteps": 5,
        "extraArgs": ["--max_steps", STEPS.to_string(), "--logging_steps", "1"],
        "output": { "size": "1Gi" },
    });
    with(with(spec, history::environment(faults)), changes)
}

/// Waits until the job has succeeded, which it must not before this attempt has.
async fn until_succeeded(scene: &Scene<'_>, name: &str, attempt: i32) -> TrainingJob {
    // Pauses between attempts, and the fence.
    wait_for(&scene.api::<TrainingJob>(), name, "Succeeded", within() * 2, |job: &TrainingJob| {
        let Some(status) = &job.status else { return false };
        assert_ne!(status.phase, Some(Phase::Failed), "{status:?}");
        let has_succeeded = status.phase == Some(Phase::Succeeded);
        assert!(!has_succeeded || status.ended_attempts == attempt, "{status:?}");
        has_succeeded
    })
    .await
}

/// With the job's own grace period, as a preemption does.
async fn delete_pod(scene: &Scene<'_>, job: &str) {
    let pod = training::pods(scene, job).await.remove(0);
    let pods: Api<Pod> = scene.api();
    pods.delete(name_of(&pod), &DeleteParams::default()).await.expect("it can be deleted");
}

/// Ends all processes of a trainer's container: the launcher is the first one.
fn kill_launcher(pod: &Pod) {
    let is_launcher = |process: &PathBuf| {
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        command.starts_with(b"/opt/training-launcher/")
    };
    let process = processes_of(pod).into_iter().find(is_launcher).expect("the launcher");
    let pid = process.file_name().expect("its pid");
    assert!(Command::new("kill").arg("-KILL").arg(pid).status().expect("kill starts").success());
}

/// Folders of /proc, of the processes in a trainer's container.
fn processes_of(pod: &Pod) -> Vec<PathBuf> {
    let variable = format!("POD_UID={}", pod.metadata.uid.as_deref().expect("a uid"));
    let is_of_pod = |process: &PathBuf| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|set| set == variable.as_bytes())
    };
    let processes = fs::read_dir("/proc").expect("processes").flatten().map(|entry| entry.path());
    processes.filter(is_of_pod).collect()
}

fn status(job: &TrainingJob) -> &TrainingJobStatus {
    job.status.as_ref().expect("a status")
}

fn failure(job: &TrainingJob) -> &Failure {
    status(job).failure.as_ref().unwrap_or_else(|| panic!("no failure: {:?}", job.status))
}

fn place_of(checkpoint: Option<&Checkpoint>) -> (&str, i64) {
    checkpoint.map_or(("", 0), |checkpoint| (&checkpoint.path, checkpoint.step))
}

fn name_of(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}
