//! AIDispatcher on real nodes: the agent of `tests/agent` follows the contract of workers, and its sessions survive scaling,
//! rollouts and deletion, with checkpoints in an S3 server and in a volume that all workers share.

mod load;
mod memory;
mod node_loss;
mod sample;
mod sessions;
mod tokens;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use api::{aidispatcher::AIDispatcher, monitor::UPLOAD_SECONDS};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use tests::{
    AGENT_IMAGE, PRODUCT, Scene, ask_until,
    dispatcher::{
        CONTROLLER, change, condition, create, is_ready, selector, until, until_proven, until_ready,
        until_reason, workers,
    },
    follow, real, wait_until_gone, within,
};

use crate::store::Store;

/// On real nodes, with the agent as the worker.
pub(crate) fn agents(changes: Value) -> Value {
    let mut spec = json!({
        "image": AGENT_IMAGE,
        "scheduling": {
            "nodeSelector": {"nvidia.com/gpu.product": PRODUCT},
            "tolerations": [{"operator": "Exists"}],
        },
    });
    if let (Some(spec), Value::Object(changes)) = (spec.as_object_mut(), changes) {
        spec.extend(changes);
    }
    spec
}

fn names(pods: &[Pod]) -> Vec<String> {
    pods.iter().filter_map(|pod| pod.metadata.name.clone()).collect()
}

/// Gives a task to a worker. `false`: it takes none.
fn give(scene: &Scene<'_>, worker: &str, session: &str, text: &str, millis: u64) -> bool {
    let millis = millis.to_string();
    let args = ["exec", worker, "-c", "worker", "--", "/test-agent", "task", session, text, &millis];
    scene.kubectl_with_input(&args, "").status.success()
}

/// What a worker holds; `None`: it does not answer.
pub(crate) fn held(scene: &Scene<'_>, worker: &str) -> Option<Value> {
    let args = ["exec", worker, "-c", "worker", "--", "/test-agent", "sessions"];
    let output = scene.kubectl_with_input(&args, "");
    output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// Of all workers: each session with its texts, and how many workers have it.
async fn sessions(scene: &Scene<'_>, pool: &str) -> BTreeMap<String, (Value, usize)> {
    let mut sessions = BTreeMap::new();
    for worker in names(&workers(scene, pool).await) {
        let Some(held) = held(scene, &worker) else { continue };
        for (session, texts) in held["sessions"].as_object().expect("sessions") {
            let known = sessions.entry(session.clone()).or_insert_with(|| (texts.clone(), 0));
            known.1 += 1;
        }
    }
    sessions
}

async fn until_sessions(scene: &Scene<'_>, pool: &str, wanted: &BTreeSet<String>) {
    until_sessions_within(scene, pool, wanted, within()).await;
}

async fn until_sessions_within(scene: &Scene<'_>, pool: &str, wanted: &BTreeSet<String>, deadline: Duration) {
    ask_until("every session at exactly one worker", deadline, async || {
        let found = sessions(scene, pool).await;
        let held_once: BTreeSet<String> =
            found.iter().filter(|(_, (_, workers))| *workers == 1).map(|(name, _)| name.clone()).collect();
        if held_once == *wanted { Ok(()) } else { Err(format!("{found:?} instead of {wanted:?}")) }
    })
    .await;
}

async fn until_workers(scene: &Scene<'_>, pool: &str, count: i32) -> AIDispatcher {
    until(scene, pool, &format!("{count} workers"), |dispatcher| {
        is_ready(dispatcher)
            && dispatcher
                .status
                .as_ref()
                .is_some_and(|status| status.replicas == count && status.available_replicas == count)
    })
    .await
}

/// No pod of the pool is left that ends.
async fn until_ended(scene: &Scene<'_>, pool: &str, count: usize) {
    let pods: Api<Pod> = scene.api();
    let labels = selector(pool);
    let ended = follow(&pods, &labels, |pods| (pods.len() == count).then_some(()));
    tokio::time::timeout(Duration::from_secs(120), ended).await.expect("the others have ended");
}

fn volume_of_states(scene: &Scene<'_>) -> PathBuf {
    scene.folder().root().join(format!("states-{}", scene.namespace()))
}

/// Creates a claim of a volume that every node can mount, and returns the storage of checkpoints in it.
async fn states_in_a_volume(scene: &Scene<'_>) -> Value {
    let folder = volume_of_states(scene);
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let (namespace, path) = (scene.namespace(), folder.display());
    let yaml = format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: states-{namespace}}}
spec:
  accessModes: [ReadWriteMany]
  capacity: {{storage: 1Gi}}
  storageClassName: ''
  claimRef: {{name: states, namespace: {namespace}}}
  hostPath: {{path: '{path}', type: Directory}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: states, namespace: {namespace}}}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ''
  volumeName: states-{namespace}
  resources: {{requests: {{storage: 1Gi}}}}
"
    );
    scene.apply(&yaml).await.expect("a volume and its claim");
    json!({"claimName": "states", "graceSeconds": 20})
}

/// Starts the controller of a cluster again with further options. A process without them could still create pods, so it has
/// ended afterwards.
async fn with_options(scene: &Scene<'_>, options: &[&str]) {
    let pods: Api<Pod> = Api::namespaced(scene.client(), "ai-system");
    let mut before = names(&pods.list(&ListParams::default()).await.expect("pods").items);
    before.retain(|pod| pod.starts_with(CONTROLLER));
    let path = "/spec/template/spec/containers/0/args/-";
    let add = |option: &&str| json!({"op": "add", "path": path, "value": option});
    let patch = Value::from_iter(options.iter().map(add)).to_string();
    let deployment = format!("deployment/{CONTROLLER}");
    scene.kubectl(&["--namespace=ai-system", "patch", &deployment, "--type=json", "--patch", &patch]);
    scene.kubectl(&["--namespace=ai-system", "rollout", "status", &deployment, "--timeout=120s"]);
    for pod in before {
        wait_until_gone(&pods, &pod, within()).await;
    }
}

/// Its successor is created at once, and its loader begins seconds before the last state is saved.
#[tokio::test]
async fn a_worker_that_replaces_one_that_ends_waits_for_its_last_state() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    let slow = json!([{"name": "AGENT_ENDS_AFTER", "value": "6000"}]);
    create(&scene, "coders", agents(json!({"env": slow, "checkpoint": store.checkpoint("pools")}))).await;
    until_ready(&scene, "coders").await;
    let worker = workers(&scene, "coders").await.remove(0);
    let (name, uid) = (worker.metadata.name.unwrap(), worker.metadata.uid.unwrap());
    assert!(give(&scene, &name, "session-0", "hello", 10));
    until_sessions(&scene, "coders", &["session-0".to_owned()].into()).await;
    scene.api::<Pod>().delete(&name, &DeleteParams::default()).await.unwrap();
    let heartbeat = format!("pools/{}/coders/workers/{uid}/heartbeat", scene.namespace());
    ask_until("the end is announced", within(), async || {
        let text = store.object(&heartbeat).unwrap_or_default();
        let known: Value = serde_json::from_slice(&text).unwrap_or_default();
        if known["ending"] == true { Ok(()) } else { Err(known) }
    })
    .await;
    until_ended(&scene, "coders", 1).await;
    until_ready(&scene, "coders").await;
    until_sessions(&scene, "coders", &["session-0".to_owned()].into()).await;
}

/// The pod is deleted soon after its monitor has ended; until then its termination message is known.
#[tokio::test]
async fn a_state_that_is_lost_is_reported_with_the_pod() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    let mut checkpoint = store.checkpoint("pools");
    checkpoint["graceSeconds"] = json!(0);
    create(&scene, "coders", agents(json!({"replicas": 2, "checkpoint": checkpoint}))).await;
    until_ready(&scene, "coders").await;
    let before = names(&workers(&scene, "coders").await);
    for (index, worker) in before.iter().enumerate() {
        assert!(give(&scene, worker, &format!("session-{index}"), "hello", 10));
    }
    store.stop().await;
    change(&scene, "coders", json!({"replicas": 1})).await;
    let failed =
        until_reason(&scene, "coders", api::conditions::CHECKPOINT_FAILED, api::reasons::STATE_LOST).await;
    let left = names(&workers(&scene, "coders").await);
    let [left] = left.as_slice() else { panic!("one worker: {left:?}") };
    let ended = before.iter().find(|name| *name != left).expect("the other worker");
    let message = &condition(&failed, api::conditions::CHECKPOINT_FAILED).unwrap().message;
    assert!(message.contains(&format!("the state of pod {ended} was not saved")), "{message}");
}

/// A worker has no readiness probe, so the new ones are ready until they fail.
#[tokio::test]
async fn a_revision_that_fails_after_its_start_costs_no_worker() {
    let scene = real().await;
    create(&scene, "coders", agents(json!({"replicas": 2}))).await;
    until_ready(&scene, "coders").await;
    until_proven(&scene, "coders", 2).await;
    let before: BTreeSet<Option<String>> =
        workers(&scene, "coders").await.into_iter().map(|pod| pod.metadata.uid).collect();
    change(&scene, "coders", json!({"env": [{"name": "AGENT_FAILS_AFTER", "value": "2000"}]})).await;
    let failed = until_reason(&scene, "coders", api::conditions::PROGRESSING, api::reasons::CRASH_LOOP).await;
    assert_eq!(failed.status.unwrap().available_replicas, 2);
    let after: BTreeSet<Option<String>> =
        workers(&scene, "coders").await.into_iter().map(|pod| pod.metadata.uid).collect();
    assert!(before.is_subset(&after), "{before:?} became {after:?}");
}

#[tokio::test]
async fn every_worker_of_a_pool_that_is_deleted_saves_its_state_in_a_bucket_first() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    let checkpoint = store.checkpoint("pools");
    all_save_first(&scene, checkpoint, |key| store.object(&format!("pools/{key}"))).await;
}

#[tokio::test]
async fn every_worker_of_a_pool_that_is_deleted_saves_its_state_in_a_volume_first() {
    let scene = real().await;
    let checkpoint = states_in_a_volume(&scene).await;
    let folder = volume_of_states(&scene);
    all_save_first(&scene, checkpoint, |key| fs::read(folder.join(key)).ok()).await;
}

/// The owner of the pods is gone before them, so the garbage collector deletes them, and may be late. `object`: of the
/// storage of checkpoints, by its key.
async fn all_save_first(scene: &Scene<'_>, checkpoint: Value, object: impl Fn(&str) -> Option<Vec<u8>>) {
    let grace = Duration::from_secs(checkpoint["graceSeconds"].as_u64().unwrap() + u64::from(UPLOAD_SECONDS));
    let spec = agents(json!({"replicas": 2, "checkpoint": checkpoint}));
    create(scene, "coders", spec.clone()).await;
    until_ready(scene, "coders").await;
    let pods = workers(scene, "coders").await;
    let mut wanted = BTreeSet::new();
    for (index, worker) in names(&pods).iter().enumerate() {
        assert!(give(scene, worker, &format!("session-{index}"), "hello", 10));
        // It is in hand when the pool is deleted.
        assert!(give(scene, worker, &format!("session-{index}"), "long", 3_600_000));
        wanted.insert(format!("session-{index}"));
    }
    until_sessions(scene, "coders", &wanted).await;
    let dispatchers = scene.api::<AIDispatcher>();
    dispatchers.delete("coders", &DeleteParams::default()).await.unwrap();
    let (api, labels) = (scene.api::<Pod>(), selector("coders"));
    let all_end = follow(&api, &labels, |pods| {
        pods.values().all(|pod| pod.metadata.deletion_timestamp.is_some()).then(Instant::now)
    });
    let asked = tokio::time::timeout(within(), all_end).await.expect("the pods are asked to end");
    until_ended(scene, "coders", 0).await;
    let ended = asked.elapsed();
    println!("ended after {ended:?}");
    assert!(ended <= grace, "the last worker ended {ended:?} after it was asked, instead of {grace:?}");
    for pod in &pods {
        let uid = pod.metadata.uid.as_deref().unwrap();
        let folder = format!("{}/coders/workers/{uid}", scene.namespace());
        let manifest = |number: u32| object(&format!("{folder}/{number:010}/manifest.json"));
        let newest = (0..1_000).rev().find_map(manifest).expect("a checkpoint");
        let newest: Value = serde_json::from_slice(&newest).unwrap();
        assert_eq!(newest["final"], true, "{newest}");
    }
    wait_until_gone(&dispatchers, "coders", within()).await;
    wait_until_gone(&scene.api::<Deployment>(), "coders-workers", within()).await;
    let sets = ListParams::default().labels(&selector("coders"));
    assert_eq!(scene.api::<ReplicaSet>().list(&sets).await.unwrap().items.len(), 0);
    // A pool of the same name goes on with them.
    create(scene, "coders", spec).await;
    until_ready(scene, "coders").await;
    until_sessions(scene, "coders", &wanted).await;
}

#[tokio::test]
async fn a_revision_that_reports_no_load_costs_no_worker_and_the_condition_names_its_port() {
    let scene = real().await;
    let env = json!([{"name": "AGENT_WITHOUT_METRICS", "value": "true"}]);
    create(&scene, "coders", agents(json!({}))).await;
    until_ready(&scene, "coders").await;
    let before = names(&workers(&scene, "coders").await);
    change(&scene, "coders", json!({"env": env})).await;
    let stopped = until(&scene, "coders", "the port is named", |dispatcher| {
        condition(dispatcher, api::conditions::PROGRESSING).is_some_and(|known| {
            known.reason == api::reasons::NEVER_REPORTED && known.message.contains("9100")
        })
    })
    .await;
    assert_eq!(stopped.status.unwrap().available_replicas, 1);
    let left = names(&workers(&scene, "coders").await);
    assert!(before.iter().all(|worker| left.contains(worker)), "{before:?} {left:?}");
    assert!(held(&scene, &before[0]).is_some(), "the old worker works on");
}
