//! A fault in the middle of a training that has a checkpoint, which keeps the next attempts from their start: no GPU is held
//! between them, nothing is lost, and the training goes on by itself when the fault is gone.

use std::{fs, time::Duration};

use api::{
    conditions, labels, reasons,
    trainingjob::{Phase, TrainingJob},
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tests::{
    PRODUCT, Scene, ask_until, load_images, real, real_spec, start_real,
    training::{self, condition, create},
    wait_for, within,
};

use super::{QUICK_STEPS, SLOW, STEPS, failure, history::History, run, status};
use crate::store::Store;

/// A kubelet may report a fault for two minutes before its attempt ends.
fn patience() -> Duration {
    within() * 3
}

/// Attempts in a row that cannot start: by then the pauses have doubled.
const FAILED_STARTS: i32 = 2;

async fn until(scene: &Scene<'_>, what: &str, holds: impl Fn(&TrainingJob) -> bool) -> TrainingJob {
    wait_for(&scene.api::<TrainingJob>(), "qwen", what, patience(), |job: &TrainingJob| {
        let phase = job.status.as_ref().and_then(|status| status.phase);
        assert_ne!(phase, Some(Phase::Failed), "{:?}", job.status);
        holds(job)
    })
    .await
}

/// The first attempt has a checkpoint, and trains too slowly to end.
async fn trains(scene: &Scene<'_>, changes: Value) -> History {
    create(scene, "qwen", run(SLOW, changes)).await;
    let history = History::of(scene, "qwen").await;
    history.until_step(1, QUICK_STEPS).await;
    until(scene, "a checkpoint", |job| job.status.as_ref().is_some_and(|status| status.checkpoint.is_some()))
        .await;
    history
}

/// As a preemption does.
async fn is_preempted(scene: &Scene<'_>) {
    let pods: Api<Pod> = scene.api();
    for pod in training::pods(scene, "qwen").await {
        let name = pod.metadata.name.unwrap_or_default();
        pods.delete(&name, &DeleteParams::default()).await.expect("it is deleted");
    }
}

/// The job is Stalled for this reason, and between two attempts no pod holds a GPU.
async fn waits_without_gpus(scene: &Scene<'_>, reason: &str) {
    until(scene, &format!("Stalled={reason}"), |job| {
        let stalled = condition(job, conditions::STALLED);
        let is_stalled = stalled.is_some_and(|known| known.status == "True" && known.reason == reason);
        is_stalled && status(job).failed_starts >= Some(FAILED_STARTS)
    })
    .await;
    ask_until("no pod holds a GPU between two attempts", patience(), async || {
        let running = training::pods(scene, "qwen").await.into_iter().filter(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            !matches!(phase, Some("Failed" | "Succeeded"))
        });
        match running.count() {
            0 => Ok(()),
            count => Err(format!("{count} pods")),
        }
    })
    .await;
}

/// After the fault is gone. Nothing counts, and nothing is trained twice.
async fn goes_on(scene: &Scene<'_>, history: &History, reason: &str) {
    let job = until(scene, "success", |job| status(job).phase == Some(Phase::Succeeded)).await;
    let status = status(&job);
    assert_eq!(status.retries, 0, "{status:?}");
    assert!(status.failures.iter().any(|known| known.reason == reason), "{status:?}");
    assert!(condition(&job, conditions::STALLED).is_none(), "{status:?}");
    let last = status.attempts;
    let saved = status.failure.as_ref().and_then(|failure| failure.checkpoint_step).expect("a checkpoint");
    assert!(saved >= 5, "{status:?}");
    assert_eq!(history.first_step(last, 0), Some(saved + 1), "{status:?}");
    assert_eq!(history.checkpoint(STEPS), Some(STEPS));
}

async fn create_secret(scene: &Scene<'_>) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "key", "namespace": scene.namespace()}, "stringData": {"key": "value"},
    });
    let secret: Secret = serde_json::from_value(secret).expect("a Secret");
    scene.api::<Secret>().create(&PostParams::default(), &secret).await.expect("it is created");
}

/// The environment of `run`, and this variable.
fn with_variable(mut spec: Value, variable: Value) -> Value {
    spec["env"].as_array_mut().expect("variables").push(variable);
    spec
}

#[tokio::test]
async fn a_secret_that_is_deleted_costs_nothing() {
    let scene = real().await;
    create_secret(&scene).await;
    let variable = json!({"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "key"}}});
    let environment = with_variable(run(SLOW, json!({})), variable)["env"].clone();
    let history = trains(&scene, json!({ "env": environment })).await;
    scene.api::<Secret>().delete("key", &DeleteParams::default()).await.expect("it is deleted");
    is_preempted(&scene).await;
    waits_without_gpus(&scene, reasons::SECRET_NOT_FOUND).await;
    create_secret(&scene).await;
    goes_on(&scene, &history, reasons::SECRET_NOT_FOUND).await;
}

/// Each pod pulls its image: the cluster has the admission plugin AlwaysPullImages.
#[tokio::test]
async fn a_registry_that_is_away_costs_nothing() {
    let cluster = start_real(real_spec(1)).await;
    let scene = Scene::restricted(&cluster).await;
    let history = trains(&scene, json!({})).await;
    cluster.stop_component("registry").await.expect("the registry stops");
    is_preempted(&scene).await;
    waits_without_gpus(&scene, reasons::IMAGE_PULL_FAILED).await;
    cluster.start_component("registry").await.expect("the registry starts");
    ask_until("it has its images again", within(), async || load_images(&cluster)).await;
    goes_on(&scene, &history, reasons::IMAGE_PULL_FAILED).await;
}

/// The hub has no cache here; with one the training needs no hub, see `sources`.
#[tokio::test]
async fn a_hub_that_is_away_and_a_token_that_has_expired_cost_nothing() {
    for (content, reason) in
        [("away", reasons::SOURCE_UNREACHABLE), ("expired", reasons::SOURCE_UNAUTHORIZED)]
    {
        let scene = real().await;
        let file = "hub-is-away";
        let variable = json!({ "name": "FAKE_SWIFT_HUB_AWAY", "value": format!("/output/{file}") });
        let environment = with_variable(run(SLOW, json!({})), variable)["env"].clone();
        let output = json!({ "size": "1Gi", "cache": "None" });
        let changes = json!({ "hub": "huggingface", "output": output, "env": environment });
        let history = trains(&scene, changes).await;
        fs::write(history.path(file), content).expect("the claim can be written");
        is_preempted(&scene).await;
        waits_without_gpus(&scene, reason).await;
        fs::remove_file(history.path(file)).expect("it is there");
        goes_on(&scene, &history, reason).await;
    }
}

#[tokio::test]
async fn a_volume_that_is_full_is_waited_for_until_its_claim_grows() {
    let scene = real().await;
    create(&scene, "qwen", run("disk-full@10=1048576", json!({}))).await;
    let history = History::of(&scene, "qwen").await;
    let stalled = until(&scene, "Stalled=OutOfSpace", |job| {
        condition(job, conditions::STALLED).is_some_and(|known| known.reason == reasons::OUT_OF_SPACE)
    })
    .await;
    let message = failure(&stalled).message.as_deref().unwrap_or_default();
    assert!(message.contains("enlarge the claim of the output"), "{message}");
    ask_until("its pods have ended", within(), async || {
        let left = training::pods(&scene, "qwen").await.into_iter().filter(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            !matches!(phase, Some("Failed" | "Succeeded"))
        });
        if left.count() == 0 { Ok(()) } else { Err("some run".to_owned()) }
    })
    .await;
    let larger = json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } });
    let claims: Api<PersistentVolumeClaim> = scene.api();
    claims
        .patch("qwen-output", &PatchParams::default(), &Patch::Merge(larger))
        .await
        .expect("its StorageClass lets it grow");
    goes_on(&scene, &history, reasons::OUT_OF_SPACE).await;
}

#[tokio::test]
async fn an_upload_key_that_becomes_wrong_costs_no_training() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    // Simulated nodes would take the Jobs of the upload, too, and upload nothing.
    let scheduling = json!({ "nodeSelector": { labels::NVIDIA_GPU_PRODUCT: PRODUCT } });
    let output = json!({ "size": "1Gi", "upload": store.upload("result") });
    let history = trains(&scene, json!({ "scheduling": scheduling, "output": output })).await;
    store.give_credentials("another-key").await;
    is_preempted(&scene).await;
    let job = until(&scene, "a failed upload", |job| {
        condition(job, conditions::UPLOADED).is_some_and(|known| known.reason == reasons::UPLOAD_FAILED)
    })
    .await;
    assert_eq!(status(&job).phase, Some(Phase::Running));
    let message = condition(&job, conditions::UPLOADED).expect("the condition").message.clone();
    assert!(message.contains("spec.output.upload.secretName"), "{message}");
    let trainers = training::pods(&scene, "qwen").await.into_iter().filter(|pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        !matches!(phase, Some("Failed" | "Succeeded"))
    });
    assert_eq!(trainers.count(), 0, "no GPU is held");
    store.give_right_credentials().await;
    let job = until(&scene, "success", |job| status(job).phase == Some(Phase::Succeeded)).await;
    assert!(condition(&job, conditions::UPLOADED).is_some_and(|known| known.status == "True"));
    assert_eq!((status(&job).attempts, status(&job).retries), (2, 0));
    assert!(store.object("result/adapter_model.safetensors").is_some(), "{:?}", status(&job));
    assert_eq!(
        history.first_step(2, 0),
        status(&job).failure.as_ref().and_then(|known| Some(known.checkpoint_step? + 1))
    );
}
