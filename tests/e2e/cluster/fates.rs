//! Each fault script leads to its documented pod status (see the table in the crate's README.md).

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tests::{Scene, is_ready, simulated, wait_for, within};

#[tokio::test]
async fn a_pod_without_a_script_becomes_ready() {
    let scene = simulated().await;
    let pods = scene.api::<Pod>();
    create(&pods, pod("calm", json!({}), "s3://models/chat")).await;
    let pod = wait_for(&pods, "calm", "ready", within(), is_ready).await;
    let loader = status_of(&pod, "model-loader").state.unwrap().terminated.unwrap();
    assert_eq!(loader.exit_code, 0);
}

#[tokio::test]
async fn env_makes_the_engine_crash_repeatedly_but_not_the_sidecar() {
    let scene = simulated().await;
    let pods = scene.api::<Pod>();
    let script = json!({ "SIM_CRASH_REASON": "Error", "SIM_CRASH_AFTER": "50ms", "SIM_BACKOFF": "100ms" });
    create(&pods, pod("crash", script, "s3://models/chat")).await;
    let pod = wait_for(&pods, "crash", "restarted twice and waiting", within(), |pod| {
        let engine = status_of(pod, "engine");
        engine.restart_count >= 2 && waiting_reason(&engine).as_deref() == Some("CrashLoopBackOff")
    })
    .await;
    assert!(!is_ready(&pod));
    assert_eq!(status_of(&pod, "engine").last_state.unwrap().terminated.unwrap().exit_code, 1);
    assert_eq!(status_of(&pod, "sidecar").restart_count, 0);
    assert!(status_of(&pod, "sidecar").state.unwrap().running.is_some());
}

#[tokio::test]
async fn an_engine_that_runs_out_of_memory_once_recovers() {
    let scene = simulated().await;
    let pods = scene.api::<Pod>();
    let script = json!({ "SIM_CRASH_REASON": "OOMKilled", "SIM_CRASH_COUNT": "1", "SIM_BACKOFF": "100ms" });
    create(&pods, pod("oom", script, "s3://models/chat")).await;
    let pod = wait_for(&pods, "oom", "ready", within(), is_ready).await;
    let engine = status_of(&pod, "engine");
    let ended = engine.last_state.unwrap().terminated.unwrap();
    assert_eq!((ended.reason.as_deref(), ended.exit_code), (Some("OOMKilled"), 137));
    assert_eq!(engine.restart_count, 1);
}

#[tokio::test]
async fn a_crash_can_come_after_the_pod_was_ready() {
    let scene = simulated().await;
    let pods = scene.api::<Pod>();
    let script =
        json!({ "SIM_CRASH_REASON": "Error", "SIM_CRASH_WHEN": "ready", "SIM_CRASH_AFTER": "300ms" });
    create(&pods, pod("later", script, "s3://models/chat")).await;
    wait_for(&pods, "later", "ready", within(), is_ready).await;
    wait_for(&pods, "later", "crashed", within(), |pod| {
        !is_ready(pod) && waiting_reason(&status_of(pod, "engine")).as_deref() == Some("CrashLoopBackOff")
    })
    .await;
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_waits_until_an_annotation_repairs_it() {
    let scene = simulated().await;
    let pods = scene.api::<Pod>();
    create(&pods, pod("image", json!({ "SIM_IMAGE_PULL": "fail" }), "s3://models/chat")).await;
    wait_for(&pods, "image", "ImagePullBackOff", within(), |pod| {
        waiting_reason(&status_of(pod, "engine")).as_deref() == Some("ImagePullBackOff")
    })
    .await;
    annotate(&pods, "image", "image-pull", "ok").await;
    wait_for(&pods, "image", "ready", within(), is_ready).await;
}

#[tokio::test]
async fn an_engine_that_is_never_ready_runs_until_an_annotation_repairs_it() {
    let scene = simulated().await;
    let pods = scene.api::<Pod>();
    create(&pods, pod("never", json!({ "SIM_NEVER_READY": "true" }), "s3://models/chat")).await;
    wait_for(&pods, "never", "running", within(), |pod| {
        status_of(pod, "engine").state.unwrap().running.is_some() && !is_ready(pod)
    })
    .await;
    annotate(&pods, "never", "never-ready", "false").await;
    wait_for(&pods, "never", "ready", within(), is_ready).await;
    annotate(&pods, "never", "never-ready", "true").await;
    wait_for(&pods, "never", "not ready again", within(), |pod| !is_ready(pod)).await;
}

#[tokio::test]
async fn the_bucket_decides_how_the_loader_fails() {
    let scene = simulated().await;
    let pods = scene.api::<Pod>();
    let fates =
        [("unauthorized", 10), ("notfound", 11), ("unreachable", 12), ("checksum", 13), ("outofspace", 14)];
    for (bucket, _) in fates {
        let script = json!({ "SIM_BACKOFF": "200ms" });
        create(&pods, pod(bucket, script, &format!("s3://sim-{bucket}/chat"))).await;
    }
    for (bucket, exit_code) in fates {
        let pod = wait_for(&pods, bucket, "its loader failed and waits", within(), |pod| {
            waiting_reason(&status_of(pod, "model-loader")).as_deref() == Some("CrashLoopBackOff")
        })
        .await;
        let ended = status_of(&pod, "model-loader").last_state.unwrap().terminated.unwrap();
        assert_eq!(ended.exit_code, exit_code, "{bucket}");
        assert!(ended.message.is_some_and(|message| !message.is_empty()), "{bucket} has no message");
        assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Pending"));
    }
    annotate(&pods, "notfound", "load-exit-code", "0").await;
    wait_for(&pods, "notfound", "ready", within(), is_ready).await;
}

#[tokio::test]
async fn a_pod_that_is_never_restarted_fails_as_a_whole() {
    let scene = simulated().await;
    let pods = scene.api::<Pod>();
    let mut once =
        pod("once", json!({ "SIM_CRASH_REASON": "Error", "SIM_CRASH_EXIT_CODE": "3" }), "s3://models/chat");
    once["spec"]["restartPolicy"] = json!("Never");
    create(&pods, once).await;
    let pod = wait_for(&pods, "once", "failed", within(), |pod| phase(pod) == Some("Failed")).await;
    assert_eq!(status_of(&pod, "engine").state.unwrap().terminated.unwrap().exit_code, 3);
}

#[tokio::test]
async fn a_pod_is_evicted_by_an_annotation() {
    let scene = simulated().await;
    let pods = scene.api::<Pod>();
    create(&pods, pod("evicted", json!({}), "s3://models/chat")).await;
    wait_for(&pods, "evicted", "ready", within(), is_ready).await;
    annotate(&pods, "evicted", "fail-reason", "Evicted").await;
    let pod = wait_for(&pods, "evicted", "failed", within(), |pod| phase(pod) == Some("Failed")).await;
    assert_eq!(pod.status.unwrap().reason.as_deref(), Some("Evicted"));
}

/// A pod like those of the inference-controller, with a sidecar of each type.
fn pod(name: &str, script: Value, source: &str) -> Value {
    let env: Vec<Value> = script
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| json!({ "name": name, "value": value }))
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }],
            "initContainers": [
                { "name": "helper", "image": "example.com/helper", "restartPolicy": "Always" },
                { "name": "model-loader", "image": "example.com/loader", "args": ["pull", source, "/models"] },
            ],
            "containers": [
                { "name": "sidecar", "image": "example.com/sidecar" },
                { "name": "engine", "image": "example.com/engine", "env": env },
            ],
        },
    })
}

async fn create(pods: &Api<Pod>, pod: Value) {
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
}

async fn annotate(pods: &Api<Pod>, name: &str, setting: &str, value: &str) {
    let annotations = json!({ format!("sim.ai.infra.example.com/{setting}"): value });
    let patch = json!({ "metadata": { "annotations": annotations } });
    pods.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// The status of a container; empty while there is none.
fn status_of(pod: &Pod, container: &str) -> ContainerStatus {
    let status = pod.status.clone().unwrap_or_default();
    let mut all = status.container_statuses.into_iter().chain(status.init_container_statuses).flatten();
    let mut found = all.find(|status| status.name == container).unwrap_or_default();
    found.state.get_or_insert_with(ContainerState::default);
    found
}

fn waiting_reason(status: &ContainerStatus) -> Option<String> {
    status.state.as_ref()?.waiting.as_ref()?.reason.clone()
}

#[tokio::test]
async fn a_namespace_can_enforce_pod_security() {
    let scene = Scene::restricted(simulated().await.cluster()).await;
    let refused = scene
        .api::<Pod>()
        .create(
            &PostParams::default(),
            &serde_json::from_value(pod("plain", json!({}), "s3://models/chat")).unwrap(),
        )
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("violates PodSecurity"), "{refused}");
}
