//! Model sources: models are copied or mounted unchanged, and faults of the source are reported and recovered from.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    time::Instant,
};

use api::{
    aiinference::{AIInference, Phase},
    conditions, reasons,
};
use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, Secret};
use kube::api::{DeleteParams, LogParams};
use serde_json::{Value, json};
use tests::{
    Scene, follow,
    inference::{self, change, condition, create, until_not_ready_within, until_ready},
    real, wait_for, within,
};

use crate::{
    claims,
    store::{
        BUCKET, MIB, Model, Read, SECRET, Store, noise, on_real_nodes, pod_of, pods_of, read_by, sha256, with,
    },
};

#[tokio::test]
async fn a_model_of_a_store_is_read_unchanged_and_read_only() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    let model = Model::new([
        ("config.json", b"{}".into()),
        ("weights/model-1.bin", noise(1, 100 * MIB)),
        ("weights/model-2.bin", noise(2, 3 * MIB + 1)),
        ("tokenizer/deeply/nested/empty folders are none/vocab.txt", "täst\n".into()),
    ]);
    store.put_model("qwen", &model);
    let began = Instant::now();
    create(&scene, "chat", store.spec("qwen")).await;
    until_ready(&scene, "chat").await;
    let pod = pod_of(&scene, "chat").await;
    let (took, log) = (began.elapsed().as_secs_f64(), loader_log(&scene, &pod));
    eprintln!(
        "ready {took:.1} s after it was created; the loader: {}",
        log.lines().last().unwrap_or_default()
    );
    assert_eq!(read_by(&scene, &pod), Read { digests: model.digests(), writable: false });
}

#[tokio::test]
async fn a_model_of_a_claim_is_read_unchanged_and_read_only() {
    let scene = real().await;
    let model = Model::new([
        ("config.json", b"{}".into()),
        ("weights/config.json", b"{}".into()),
        ("weights/model.bin", noise(1, MIB)),
    ]);
    let folder = claims::folder(&scene);
    model.write_to(&folder);
    // Every user may write, as the user in the container is another one.
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).expect("a folder that every user may write");
    claims::claim(&scene, &folder).await;
    create(&scene, "chat", on_real_nodes("pvc://models")).await;
    create(&scene, "part", on_real_nodes("pvc://models/weights")).await;
    until_ready(&scene, "chat").await;
    let read = read_by(&scene, &pod_of(&scene, "chat").await);
    assert_eq!(read, Read { digests: model.digests(), writable: false });

    until_ready(&scene, "part").await;
    let digests = model.digests();
    let below = |name: &str| (name.to_owned(), digests[&format!("weights/{name}")].clone());
    let part = Read { digests: ["config.json", "model.bin"].map(below).into(), writable: false };
    assert_eq!(read_by(&scene, &pod_of(&scene, "part").await), part);
}

/// A kubelet would create a missing `subPath`.
#[tokio::test]
async fn a_folder_that_a_claim_does_not_have_is_reported_and_not_created() {
    let scene = real().await;
    let folder = claims::folder(&scene);
    let model = Model::small();
    for name in ["llama", "qwen"] {
        model.write_to(&folder.join(name));
    }
    claims::claim(&scene, &folder).await;
    create(&scene, "chat", on_real_nodes("pvc://models/typo")).await;
    let words = "/models/typo: no such folder; found: llama, qwen";
    until_reported(&scene, "chat", reasons::SOURCE_NOT_FOUND, words).await;
    change(&scene, "chat", json!({ "modelSource": "pvc://models/qwen" })).await;
    until_ready(&scene, "chat").await;
    let mut names: Vec<_> = fs::read_dir(&folder)
        .expect("the volume")
        .map(|entry| entry.expect("a folder").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["llama", "qwen"], "the volume is unchanged");
}

/// Triton is ready with an empty repository.
#[tokio::test]
async fn a_repository_without_a_model_is_never_ready() {
    let scene = real().await;
    let folder = claims::folder(&scene);
    fs::create_dir_all(&folder).expect("an empty folder");
    claims::claim(&scene, &folder).await;
    create(&scene, "vision", with(on_real_nodes("pvc://models"), json!({ "engine": "triton" }))).await;
    let api = scene.api::<AIInference>();
    let is_ready = follow(&api, "", |all| {
        let ready = all.values().filter_map(|inference| condition(inference, conditions::READY));
        ready.into_iter().any(|ready| ready.status == "True").then_some(())
    });
    let failing = async {
        until_reported(&scene, "vision", reasons::SOURCE_NOT_FOUND, "/models holds no model").await;
        // The next run of the loader has the same result.
        until_loader_says(&scene, "vision", 1, "holds no model").await;
    };
    tokio::select! {
        biased;
        () = is_ready => panic!("ready without a model"),
        () = failing => {}
    }
}

#[tokio::test]
async fn wrong_credentials_are_reported_and_corrected_in_the_secret() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    store.put_model("qwen", &Model::small());
    store.give_credentials("another-key").await;
    create(&scene, "chat", store.spec("qwen")).await;
    let report = until_reported(&scene, "chat", reasons::SOURCE_UNAUTHORIZED, "correct the Secret").await;
    Box::pin(report.heals(store.give_right_credentials())).await;
}

#[tokio::test]
async fn a_missing_secret_is_reported_and_waited_for() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    store.put_model("qwen", &Model::small());
    scene.api::<Secret>().delete(SECRET, &DeleteParams::default()).await.expect("the Secret is deleted");
    create(&scene, "chat", store.spec("qwen")).await;
    let missing = format!("Secret {}/{SECRET} does not exist", scene.namespace());
    let report = until_reported(&scene, "chat", reasons::SECRET_NOT_FOUND, &missing).await;
    Box::pin(report.heals(store.give_right_credentials())).await;
}

#[tokio::test]
async fn a_missing_bucket_is_reported_and_waited_for() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    let spec = with(store.spec(""), json!({ "modelSource": "s3://later/qwen" }));
    create(&scene, "chat", spec).await;
    let report = until_reported(&scene, "chat", reasons::SOURCE_NOT_FOUND, "there is no such bucket").await;
    let mend = async {
        store.put_model("qwen", &Model::small());
        store.rename_bucket(BUCKET, "later");
    };
    report.heals_within_a_run(mend).await;
}

#[tokio::test]
async fn an_empty_prefix_is_reported_and_waited_for() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    create(&scene, "chat", store.spec("qwen")).await;
    let report =
        until_reported(&scene, "chat", reasons::SOURCE_NOT_FOUND, "s3://models/qwen has no object").await;
    report.heals_within_a_run(async { store.put_model("qwen", &Model::small()) }).await;
}

#[tokio::test]
async fn a_corrupt_object_is_reported_and_fetched_again_when_it_has_changed() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    let model = Model::small();
    store.put_model("qwen", &model);
    let path = "weights/model.bin";
    let mut corrupt = model.file(path).to_vec();
    corrupt[MIB / 2] ^= 1;
    store.put(&format!("qwen/{path}"), &corrupt);
    create(&scene, "chat", store.spec("qwen")).await;
    let report = until_reported(&scene, "chat", reasons::CHECKSUM_MISMATCH, path).await;
    report.heals_within_a_run(async { store.put(&format!("qwen/{path}"), model.file(path)) }).await;
    let read = read_by(&scene, &pod_of(&scene, "chat").await);
    assert_eq!(read.digests, model.digests());
}

/// Two replicas must not answer differently.
#[tokio::test]
async fn a_new_replica_does_not_load_another_model_than_the_one_that_serves() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    store.put("qwen/config.json", b"{}");
    store.put("qwen/model.bin", &noise(98, MIB));
    create(&scene, "chat", store.spec("qwen")).await;
    let first = until_ready(&scene, "chat").await.status.and_then(|status| status.model).expect("a model");
    let serving = pod_of(&scene, "chat").await;
    let changed = noise(99, MIB);
    store.put("qwen/model.bin", &changed);
    change(&scene, "chat", json!({ "replicas": 2 })).await;
    let inference = until_not_ready_within(&scene, "chat", reasons::MODEL_CHANGED, within()).await;
    let ready = condition(&inference, conditions::READY).expect("a condition");
    assert!(ready.message.contains(&first.digest), "{}", ready.message);
    let available = condition(&inference, conditions::AVAILABLE).expect("a condition");
    assert_eq!(available.status, "True", "the first one serves");
    let uids = pods_of(&scene, "chat").await.into_iter().map(|pod| pod.metadata.uid);
    assert!(uids.collect::<Vec<_>>().contains(&serving.metadata.uid));

    scene.kubectl(&["annotate", "aii", "chat", &format!("{}=1", api::labels::REFRESH)]);
    let model = wait_for(
        &scene.api::<AIInference>(),
        "chat",
        "all replicas with the present model",
        within(),
        |seen| {
            let status = seen.status.as_ref().filter(|status| status.updated_ready_replicas == 2);
            status.and_then(|status| status.model.as_ref()).is_some_and(|model| model.digest != first.digest)
        },
    )
    .await;
    assert!(
        condition(&model, conditions::MODEL_LOADED).is_some_and(|loaded| loaded.reason == reasons::LOADED)
    );
    for pod in pods_of(&scene, "chat").await {
        let read = read_by(&scene, &pod);
        assert_eq!(read.digests["model.bin"], sha256(&changed));
    }
}

#[tokio::test]
async fn a_volume_that_is_too_small_is_reported_until_its_size_is_raised() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    store.put("qwen/config.json", b"{}");
    store.put_zeros("qwen/model.bin", 80 * MIB);
    create(&scene, "chat", with(store.spec("qwen"), in_memory("64Mi"))).await;
    until_reported(&scene, "chat", reasons::OUT_OF_SPACE, "raise spec.modelVolume.size").await;
    change(&scene, "chat", in_memory("96Mi")).await;
    until_ready(&scene, "chat").await;
}

#[tokio::test]
async fn a_model_that_shrinks_fits_into_the_volume_that_was_too_small() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    store.put("qwen/config.json", b"{}");
    store.put_zeros("qwen/model.bin", 80 * MIB);
    create(&scene, "chat", with(store.spec("qwen"), in_memory("64Mi"))).await;
    let report = until_reported(&scene, "chat", reasons::OUT_OF_SPACE, "raise spec.modelVolume.size").await;
    report.heals_within_a_run(async { store.put_zeros("qwen/model.bin", 48 * MIB) }).await;
}

#[tokio::test]
async fn an_unreachable_store_is_waited_for_then_reported_and_heals() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    store.put_model("qwen", &Model::small());
    store.stop().await;
    let mut spec = store.spec("qwen");
    // The loader's patience is three quarters of the timeout.
    spec["modelStore"]["timeoutSeconds"] = json!(60);
    create(&scene, "chat", spec).await;
    let report = until_reported(&scene, "chat", reasons::SOURCE_UNREACHABLE, "has not answered for").await;
    report.heals(store.start_again()).await;
}

#[tokio::test]
async fn a_store_that_comes_back_in_time_costs_no_restart() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    store.put_model("qwen", &Model::small());
    store.stop().await;
    create(&scene, "chat", store.spec("qwen")).await;
    until_loader_says(&scene, "chat", 0, "trying again in").await;
    store.start_again().await;
    until_ready(&scene, "chat").await;
    let pod = pod_of(&scene, "chat").await;
    assert_eq!(loader_status(&pod).map(|loader| loader.restart_count), Some(0));
}

/// Memory volumes are charged to the loader; this model is larger than the loader's own limit.
#[tokio::test]
async fn a_loader_may_take_as_much_memory_as_the_volume_has() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    store.put("qwen/config.json", b"{}");
    store.put_zeros("qwen/model.bin", 600 * MIB);
    create(&scene, "chat", with(store.spec("qwen"), in_memory("640Mi"))).await;
    until_ready(&scene, "chat").await;
    let pod = pod_of(&scene, "chat").await;
    assert_eq!(loader_status(&pod).map(|loader| loader.restart_count), Some(0));
}

fn in_memory(size: &str) -> Value {
    json!({ "modelVolume": { "medium": "Memory", "size": size } })
}

/// An AIInference whose status reports a missing model.
struct Report<'a> {
    scene: &'a Scene<'static>,
    name: &'a str,
    pod: Pod,
}

/// Waits until the status has the reason, and the message contains `words`.
async fn until_reported<'a>(
    scene: &'a Scene<'static>,
    name: &'a str,
    reason: &str,
    words: &str,
) -> Report<'a> {
    // A loader with an unreachable store retries for long.
    let inference = until_not_ready_within(scene, name, reason, within() * 3 / 2).await;
    assert_eq!(inference.status.as_ref().and_then(|status| status.phase), Some(Phase::Failed));
    let loaded = condition(&inference, conditions::MODEL_LOADED).expect("a condition");
    assert_eq!((loaded.status.as_str(), loaded.reason.as_str()), ("False", reason));
    assert!(loaded.message.contains(words), "{}", loaded.message);
    Report { scene, name, pod: pod_of(scene, name).await }
}

impl Report<'_> {
    /// Repairs the cause and waits until the same pod is ready.
    async fn heals(self, mend: impl Future<Output = ()>) -> Pod {
        mend.await;
        let inference = until_ready(self.scene, self.name).await;
        let loaded = condition(&inference, conditions::MODEL_LOADED).expect("a condition");
        assert_eq!(loaded.status, "True");
        let pod = pod_of(self.scene, self.name).await;
        assert_eq!(pod.metadata.uid, self.pod.metadata.uid);
        pod
    }

    /// Repairs the cause while the second run of the loader retries, to avoid the kubelet's back-off.
    async fn heals_within_a_run(self, mend: impl Future<Output = ()>) {
        until_loader_says(self.scene, self.name, 1, "looking again in").await;
        let pod = self.heals(mend).await;
        assert_eq!(loader_status(&pod).map(|loader| loader.restart_count), Some(1));
    }
}

/// Follows the log of a loader with `restarts` restarts until a line contains `words`.
async fn until_loader_says(scene: &Scene<'_>, inference: &str, restarts: i32, words: &str) {
    let (pods, labels) = (scene.api::<Pod>(), inference::pods_of(inference));
    let running = follow(&pods, &labels, |all| {
        all.values().find(|pod| is_loading(pod, restarts)).and_then(|pod| pod.metadata.name.clone())
    });
    let found = async {
        let pod = running.await;
        let log = LogParams { container: Some(LOADER.to_owned()), follow: true, ..LogParams::default() };
        let mut lines = pods.log_stream(&pod, &log).await.expect("a log").lines();
        let mut log = String::new();
        while let Some(line) = lines.try_next().await.expect("a log that can be read") {
            if line.contains(words) {
                return;
            }
            log.push_str(&line);
        }
        panic!("the loader ended, without the line {words:?}: {log}");
    };
    tokio::time::timeout(within(), found).await.expect("a log line of the loader");
}

fn is_loading(pod: &Pod, restarts: i32) -> bool {
    loader_status(pod).is_some_and(|loader| {
        let runs = loader.state.as_ref().is_some_and(|state| state.running.is_some());
        runs && loader.restart_count == restarts
    })
}

fn loader_status(pod: &Pod) -> Option<&ContainerStatus> {
    let statuses = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == LOADER)
}

fn loader_log(scene: &Scene<'_>, pod: &Pod) -> String {
    scene.kubectl(&["logs", pod.metadata.name.as_deref().expect("a name"), "-c", LOADER])
}

const LOADER: &str = "model-loader";
