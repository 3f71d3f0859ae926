//! AIDispatcher on real nodes: the agent of `tests/agent` follows the contract of workers, and its sessions survive scaling,
//! rollouts and deletion, with checkpoints in an S3 server and in a volume that all workers share.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    time::Duration,
};

use api::aidispatcher::AIDispatcher;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::DeleteParams};
use local_cluster::NodeClock;
use serde_json::{Value, json};
use tests::{
    AGENT_IMAGE, PRODUCT, Scene, ask_until,
    dispatcher::{change, create, is_ready, until, until_proven, until_ready, until_reason, workers},
    follow, real, real_spec, start_real, wait_until_gone, within,
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
    ask_until("every session at exactly one worker", within(), async || {
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
    let labels = tests::dispatcher::selector(pool);
    let ended = follow(&pods, &labels, |pods| (pods.len() == count).then_some(()));
    tokio::time::timeout(Duration::from_secs(120), ended).await.expect("the others have ended");
}

/// One session on each of four workers, which become one and four again.
async fn sessions_survive(scene: &Scene<'_>, checkpoint: Value) {
    create(scene, "coders", agents(json!({"replicas": 4, "checkpoint": checkpoint}))).await;
    until_ready(scene, "coders").await;
    let mut wanted = BTreeSet::new();
    for (index, worker) in names(&workers(scene, "coders").await).iter().enumerate() {
        let session = format!("session-{index}");
        assert!(give(scene, worker, &session, "hello", 10));
        wanted.insert(session);
    }
    until_sessions(scene, "coders", &wanted).await;
    change(scene, "coders", json!({"replicas": 1})).await;
    until_workers(scene, "coders", 1).await;
    until_ended(scene, "coders", 1).await;
    change(scene, "coders", json!({"replicas": 4})).await;
    until_workers(scene, "coders", 4).await;
    until_sessions(scene, "coders", &wanted).await;
    let restored = sessions(scene, "coders").await;
    assert!(restored.values().all(|(texts, _)| *texts == json!(["hello"])), "{restored:?}");
}

#[tokio::test]
async fn every_session_survives_scaling_with_checkpoints_in_a_bucket() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    sessions_survive(&scene, store.checkpoint("pools")).await;
    until(&scene, "coders", "the time of the last checkpoint", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.last_checkpoint_time.is_some())
    })
    .await;
}

#[tokio::test]
async fn every_session_survives_scaling_with_checkpoints_in_a_volume() {
    let scene = real().await;
    let folder = scene.folder().root().join(format!("states-{}", scene.namespace()));
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
    sessions_survive(&scene, json!({"claimName": "states", "graceSeconds": 20})).await;
}

/// Its last checkpoint is at most one interval old.
#[tokio::test]
async fn the_worker_that_replaces_one_of_a_killed_node_goes_on_with_its_sessions() {
    let cluster = start_real(real_spec(2).with_clock(NodeClock::SHORT)).await;
    let scene = Scene::restricted(&cluster).await;
    with_options(&scene, &["--checkpoint-seconds=4", "--node-failure-seconds=3"]);
    let store = Store::start(&scene).await;
    create(&scene, "coders", agents(json!({"replicas": 1, "checkpoint": store.checkpoint("pools")}))).await;
    until_ready(&scene, "coders").await;
    let worker = workers(&scene, "coders").await.remove(0);
    let name = worker.metadata.name.clone().unwrap();
    assert!(give(&scene, &name, "session-0", "hello", 10));
    until(&scene, "coders", "a checkpoint", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.last_checkpoint_time.is_some())
    })
    .await;
    let node = worker.spec.unwrap().node_name.unwrap();
    cluster.stop_component(&node).await.unwrap();
    let (pods, labels) = (scene.api::<Pod>(), tests::dispatcher::selector("coders"));
    let replaced = follow(&pods, &labels, |pods| {
        let others = pods.values().filter(|pod| pod.metadata.name.as_deref() != Some(&name));
        others.into_iter().find(|pod| is_ready_pod(pod)).map(|_| ())
    });
    tokio::time::timeout(Duration::from_secs(180), replaced).await.expect("another worker is ready");
    until_sessions(&scene, "coders", &["session-0".to_owned()].into()).await;
    cluster.start_component(&node).await.unwrap();
}

fn is_ready_pod(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Starts the controller of a cluster again with further options.
fn with_options(scene: &Scene<'_>, options: &[&str]) {
    let path = "/spec/template/spec/containers/0/args/-";
    let add = |option: &&str| json!({"op": "add", "path": path, "value": option});
    let patch = Value::from_iter(options.iter().map(add)).to_string();
    let deployment = "deployment/dispatcher-controller";
    scene.kubectl(&["--namespace=ai-system", "patch", deployment, "--type=json", "--patch", &patch]);
    scene.kubectl(&["--namespace=ai-system", "rollout", "status", deployment, "--timeout=120s"]);
}

/// Tasks are given to whichever worker takes them, while all workers are replaced.
#[tokio::test]
async fn no_task_is_lost_in_a_rollout() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    let spec = json!({"replicas": 2, "checkpoint": store.checkpoint("pools")});
    create(&scene, "coders", agents(spec)).await;
    until_ready(&scene, "coders").await;
    change(&scene, "coders", json!({"env": [{"name": "REVISION", "value": "2"}]})).await;
    let mut taken = BTreeSet::new();
    let mut is_complete = false;
    for number in 0..60 {
        let session = format!("session-{number:02}");
        for worker in names(&workers(&scene, "coders").await) {
            if give(&scene, &worker, &session, "task", 300) {
                taken.insert(session.clone());
                break;
            }
        }
        let pool = scene.api::<AIDispatcher>().get("coders").await.unwrap();
        is_complete = is_complete || number > 10 && is_ready(&pool);
        if is_complete && number > 20 {
            break;
        }
    }
    until_ready(&scene, "coders").await;
    until_ended(&scene, "coders", 2).await;
    // What no worker of the new revision has restored waits for the next one.
    ask_until("every task at a worker or in a checkpoint", within(), async || {
        let mut found: BTreeSet<String> = sessions(&scene, "coders").await.into_keys().collect();
        found.extend(store.texts("pools").into_iter().flat_map(|text| sessions_in(&text)));
        let lost: Vec<&String> = taken.difference(&found).collect();
        if lost.is_empty() { Ok(()) } else { Err(format!("{lost:?} of {taken:?}")) }
    })
    .await;
    assert!(taken.len() > 10, "{taken:?}");
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

/// Done and waiting ones in the state of an agent; none in another file.
fn sessions_in(text: &[u8]) -> Vec<String> {
    let Ok(state) = serde_json::from_slice::<Value>(text) else { return Vec::new() };
    let done = state["sessions"].as_object().into_iter().flat_map(|sessions| sessions.keys().cloned());
    let waiting = state["waiting"].as_array().into_iter().flatten();
    done.chain(waiting.filter_map(|task| task["session"].as_str().map(str::to_owned))).collect()
}

#[tokio::test]
async fn load_and_tokens_of_real_workers_reach_the_status_and_the_log_has_the_names_of_the_pool() {
    let scene = real().await;
    create(&scene, "coders", agents(json!({"autoscaling": {"maxReplicas": 3}}))).await;
    until_ready(&scene, "coders").await;
    let worker = names(&workers(&scene, "coders").await).remove(0);
    for number in 0..8 {
        assert!(give(&scene, &worker, &format!("s{number}"), "ten chars.", 1_500));
    }
    until(&scene, "coders", "more workers", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.desired_replicas >= 2)
    })
    .await;
    let used = until(&scene, "coders", "800 tokens", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.token_usage == 800)
    })
    .await;
    assert!(used.status.unwrap().token_usage <= 800);
    let log = scene.kubectl(&["logs", &worker, "-c", "monitor"]);
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let done = lines.iter().find(|line| line["body"] == "done").unwrap_or_else(|| panic!("{log}"));
    assert_eq!((&done["service.name"], &done["k8s.pod.name"]), (&json!("coders"), &json!(worker)));
}

#[tokio::test]
async fn every_worker_of_a_pool_that_is_deleted_saves_its_state_first() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    let spec = agents(json!({"replicas": 2, "checkpoint": store.checkpoint("pools")}));
    create(&scene, "coders", spec.clone()).await;
    until_ready(&scene, "coders").await;
    let mut wanted = BTreeSet::new();
    for (index, worker) in names(&workers(&scene, "coders").await).iter().enumerate() {
        assert!(give(&scene, worker, &format!("session-{index}"), "hello", 10));
        wanted.insert(format!("session-{index}"));
    }
    until_sessions(&scene, "coders", &wanted).await;
    let dispatchers = scene.api::<AIDispatcher>();
    dispatchers.delete("coders", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&dispatchers, "coders", within()).await;
    until_ended(&scene, "coders", 0).await;
    // A pool of the same name goes on with them.
    create(&scene, "coders", spec).await;
    until_ready(&scene, "coders").await;
    until_sessions(&scene, "coders", &wanted).await;
}

#[tokio::test]
async fn a_worker_that_serves_no_metrics_works_and_the_condition_names_its_port() {
    let scene = real().await;
    let env = json!([{"name": "AGENT_WITHOUT_METRICS", "value": "true"}]);
    create(&scene, "coders", agents(json!({"env": env, "autoscaling": {"maxReplicas": 3}}))).await;
    until_ready(&scene, "coders").await;
    let held = until(&scene, "coders", "the port is named", |dispatcher| {
        tests::dispatcher::condition(dispatcher, api::conditions::SCALING_ACTIVE)
            .is_some_and(|active| active.status == "False" && active.message.contains("9100"))
    })
    .await;
    assert_eq!(held.status.unwrap().available_replicas, 1);
}
