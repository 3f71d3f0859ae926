//! Rollouts under load: requests through the Service at a constant rate.

use api::reasons;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tests::{
    ENGINE_IMAGE, ENGINE_VERSION, PRODUCT, Scene,
    inference::{change, create, until_not_ready, until_ready},
    real, wait_for, within,
};

use crate::{
    claims::model_in_a_claim,
    pods::{self, container_status, load_of, pod},
    store::pod_of,
};

/// Requests per second of each of the two load generators.
const RATE: u64 = 50;
const SECONDS: u64 = 60;
/// The maximum number of kept connections.
const MOST_RECONNECTED: u64 = 30;
/// Failed requests per replica on kept connections: between SIGTERM and the end of its last response, about 20 ms, vLLM
/// answers new requests with 500, and clients with kept connections must retry. A load generator that is late sends all
/// overdue requests at once, so `most_refused` adds those.
const MOST_REFUSED_OF_A_REPLICA: u64 = 5;

#[tokio::test]
async fn surge_fails_only_requests_on_kept_connections_to_a_draining_engine() {
    let scene = real().await;
    rolled_out_under_load(&scene, 1, "Surge").await;
}

#[tokio::test]
async fn replace_of_two_replicas_fails_only_requests_on_kept_connections_to_a_draining_engine() {
    let scene = real().await;
    rolled_out_under_load(&scene, 2, "Replace").await;
}

#[tokio::test]
async fn a_revision_that_never_works_gets_no_request() {
    let scene = real().await;
    let inference = serving(&scene, json!({ "replicas": 1, "rollout": "Surge" })).await;
    let loads = start_loads(&scene, 40).await;
    change(&scene, "chat", json!({ "env": engine(2, "fail") })).await;
    until_not_ready(&scene, "chat", "CrashLoop").await;
    for report in reports(&scene, loads).await {
        assert_eq!(
            (&report["failed"], &report["by_revision"]),
            (&json!(0), &json!({ "1": 40 * RATE })),
            "{report}"
        );
    }
    // After the revert the first revision is ready again.
    change(&scene, "chat", serde_json::to_value(&inference.spec).expect("the spec as it was")).await;
    until_ready(&scene, "chat").await;
}

/// The load lasts longer than the surge timeout.
#[tokio::test]
async fn an_image_that_cannot_be_pulled_costs_the_only_replica_no_request() {
    let scene = real().await;
    serving(&scene, json!({ "replicas": 1, "surgeTimeoutSeconds": 30 })).await;
    let before = pod_of(&scene, "chat").await;
    let loads = start_loads(&scene, 45).await;
    change(&scene, "chat", json!({ "image": "local.test/absent:1" })).await;
    until_not_ready(&scene, "chat", reasons::IMAGE_PULL_FAILED).await;
    for report in reports(&scene, loads).await {
        let answers = json!({ before.metadata.name.as_deref().expect("a name"): 45 * RATE });
        assert_eq!((&report["failed"], &report["by_pod"]), (&json!(0), &answers), "{report}");
    }
    change(&scene, "chat", json!({ "image": ENGINE_IMAGE })).await;
    until_ready(&scene, "chat").await;
    assert_eq!(pod_of(&scene, "chat").await.metadata.uid, before.metadata.uid);
}

async fn rolled_out_under_load(scene: &Scene<'_>, replicas: u64, rollout: &str) {
    serving(scene, json!({ "replicas": replicas, "rollout": rollout })).await;
    let loads = start_loads(scene, SECONDS).await;
    change(scene, "chat", json!({ "env": engine(2, "") })).await;
    until_ready(scene, "chat").await;
    for (report, draining) in reports(scene, loads).await.into_iter().zip([0, replicas]) {
        assert_eq!(report["sent"], json!(RATE * SECONDS), "{report}");
        let refused = report["failures"]["status 500"].as_u64().unwrap_or_default();
        assert_eq!(report["failed"], json!(refused), "{report}");
        assert!(refused <= draining * most_refused(&report), "{report}");
        let answers = |revision: &str| report["by_revision"][revision].as_u64();
        assert!(answers("1") > Some(0) && answers("2") > Some(0), "both revisions answered: {report}");
        // Kept connections are closed when the engine ends.
        assert!(report["reconnected"].as_u64() <= Some(MOST_RECONNECTED), "{report}");
        // For the log.
        println!("{report}");
    }
}

/// Requests that a draining replica may refuse on kept connections, with this lateness of the load generator.
fn most_refused(report: &Value) -> u64 {
    let late = report["latest_start_ms"].as_f64().expect("the lateness of the load");
    let overdue = late / 1000.0 * RATE as f64;
    MOST_REFUSED_OF_A_REPLICA + overdue.ceil() as u64
}

async fn serving(scene: &Scene<'_>, spec: Value) -> api::aiinference::AIInference {
    let mut all = json!({
        "modelSource": model_in_a_claim(scene).await,
        "image": ENGINE_IMAGE,
        "engineVersion": ENGINE_VERSION,
        "gpu": { "productLabel": PRODUCT, "count": 1 },
        "env": engine(1, ""),
    });
    if let (Some(all), Value::Object(spec)) = (all.as_object_mut(), spec) {
        all.extend(spec);
    }
    create(scene, "chat", all).await;
    until_ready(scene, "chat").await
}

fn engine(revision: u32, fault: &str) -> Value {
    json!([
        { "name": "ENGINE_REVISION", "value": revision.to_string() },
        { "name": "ENGINE_FAULT", "value": fault },
    ])
}

/// Starts one load generator with a connection per request and one with kept connections, and waits until both run.
async fn start_loads(scene: &Scene<'_>, seconds: u64) -> [&'static str; 2] {
    let url = format!("http://chat.{}.svc.cluster.local:8000/v1/completions", scene.namespace());
    // Only failed requests matter; the machine may be slow.
    for (name, more) in [("anew", None), ("kept", Some("--keep-alive"))] {
        let load = load_of(&url, RATE, seconds, 20, more);
        let spec = json!({ "restartPolicy": "Never", "containers": [load] });
        pods::create(scene, &pod(name, spec)).await;
        wait_for(&scene.api::<Pod>(), name, "running", within(), |pod: &Pod| {
            container_status(pod, "load").and_then(|status| status.state.as_ref()?.running.as_ref()).is_some()
        })
        .await;
    }
    ["anew", "kept"]
}

async fn reports(scene: &Scene<'_>, loads: [&str; 2]) -> Vec<Value> {
    let mut reports = Vec::new();
    for load in loads {
        reports.push(pods::report_within(scene, load, within() * 3).await);
    }
    reports
}
