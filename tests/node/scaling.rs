//! Two Deployments of engines with the same load: one scaled by what arrives, the other by the rules of a
//! HorizontalPodAutoscaler (`algorithm: Ratio`). Both read the pods of real nodes.
//!
//! A real HorizontalPodAutoscaler would need a server of external metrics. Without it, no namespace of the shared cluster
//! could be deleted any more.

use std::{collections::BTreeMap, time::Duration};

use api::{aiscaler::AIScaler, conditions};
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::json;
use tests::{Scene, real, wait_for, within};
use tokio::time::{Instant, interval};

use crate::pods::{self, container, load_of, pod, report_within};

/// Who scales, which is the name of the Deployment too.
const ARMS: [&str; 2] = [AUTO, RATIO];
const AUTO: &str = "auto";
const RATIO: &str = "ratio";
/// Requests that an engine runs at a time, each for a second, and that a replica should have in hand.
const SLOTS: u32 = 4;
/// Requests per second before the burst, and what comes on top of it in the burst.
const CALM: u32 = 1;
const BURST: u32 = 14;
const BURST_SECONDS: u32 = 45;
/// The burst, the requests that it leaves, and the window of scaleDown.
const MEASURED: Duration = Duration::from_secs(150);
/// An engine loads for so long.
const LOAD_SECONDS: u32 = 10;
const MOST_REPLICAS: i32 = 8;
/// Until an AIScaler knows what arrives; a busy machine takes longer.
const KNOWN_WITHIN: Duration = Duration::from_secs(150);
/// After `MEASURED`, for a busy machine.
const DONE_WITHIN: Duration = Duration::from_secs(60);

#[tokio::test]
async fn engines_are_scaled_by_what_arrives_at_their_pods_about_as_fast_as_by_the_rules_of_an_hpa() {
    let scene = real().await;
    for arm in ARMS {
        engines(&scene, arm).await;
    }
    // Both have a calm load while they begin.
    let calm = u32::try_from(KNOWN_WITHIN.as_secs()).expect("minutes") + BURST_SECONDS;
    for arm in ARMS {
        start_load(&scene, arm, "calm", CALM, calm).await;
    }
    scene.apply(&scaler(AUTO, "Auto")).await.expect("an AIScaler");
    scene.apply(&scaler(RATIO, "Ratio")).await.expect("an AIScaler");
    for (arm, words) in [(AUTO, "by what arrives"), (RATIO, "replicas are computed")] {
        wait_for(&scene.api::<AIScaler>(), arm, words, KNOWN_WITHIN, |scaler: &AIScaler| {
            let mut known = scaler.status.iter().flat_map(|status| &status.conditions);
            known.any(|one| one.type_ == conditions::SCALING_ACTIVE && one.message.contains(words))
        })
        .await;
    }
    for arm in ARMS {
        start_load(&scene, arm, "burst", BURST, BURST_SECONDS).await;
    }
    let replica_seconds = replica_seconds(&scene).await;
    let mut p99 = BTreeMap::new();
    for arm in ARMS {
        let report = report_within(&scene, &format!("{arm}-burst"), DONE_WITHIN).await;
        assert_eq!(report["failed"], 0, "{arm}: {report}");
        p99.insert(arm, report["p99_ms"].as_f64().expect("a number"));
    }
    // For the log.
    println!("p99 in ms: {p99:?}; replica-seconds: {replica_seconds:?}");
    assert!(p99[RATIO] > 1_000.0 * f64::from(LOAD_SECONDS), "the burst was none: {p99:?}");
    // What a single run shows: which look of both comes first after the burst begins is chance.
    assert!(p99[AUTO] <= 1.5 * p99[RATIO], "{p99:?}");
    assert!(replica_seconds[AUTO] <= 1.5 * replica_seconds[RATIO], "{replica_seconds:?}");
}

async fn engines(scene: &Scene<'_>, name: &str) {
    let engine = container(
        "engine",
        &["--model-id=/etc", "--port=8000"],
        json!({
            "ports": [{ "containerPort": 8000, "name": "http" }],
            "env": [
                { "name": "ENGINE_SLOTS", "value": SLOTS.to_string() },
                { "name": "ENGINE_ANSWER_MILLISECONDS", "value": "1000" },
                { "name": "ENGINE_LOAD_SECONDS", "value": LOAD_SECONDS.to_string() },
            ],
            "readinessProbe": { "httpGet": { "path": "/health", "port": 8000 }, "periodSeconds": 1 },
        }),
    );
    let template = pod(name, json!({ "containers": [engine], "terminationGracePeriodSeconds": 60 }));
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": name },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": template.spec },
        },
    });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name },
        "spec": { "selector": { "app": name }, "ports": [{ "port": 80, "targetPort": 8000 }] },
    });
    for object in [deployment, service] {
        scene.apply(&object.to_string()).await.expect("it is admitted");
    }
    wait_for(&scene.api::<Deployment>(), name, "ready", within(), |deployment: &Deployment| {
        deployment.status.as_ref().and_then(|status| status.ready_replicas) == Some(1)
    })
    .await;
}

fn scaler(name: &str, algorithm: &str) -> String {
    let scaler = json!({
        "apiVersion": "ai.infra.example.com/v1",
        "kind": "AIScaler",
        "metadata": { "name": name },
        "spec": {
            "deploymentName": name,
            "metricType": "queue_depth",
            "targetValue": SLOTS,
            "maxReplicas": MOST_REPLICAS,
            "algorithm": algorithm,
            "behavior": { "scaleDown": { "stabilizationWindowSeconds": 60 } },
        },
    });
    scaler.to_string()
}

/// Begins when a request was answered.
async fn start_load(scene: &Scene<'_>, arm: &str, name: &str, rate: u32, seconds: u32) {
    let url = format!("http://{arm}.{}.svc.cluster.local/v1/chat/completions", scene.namespace());
    let load = load_of(&url, rate.into(), seconds.into(), 120, None);
    let spec = json!({ "restartPolicy": "Never", "containers": [load] });
    pods::create(scene, &pod(&format!("{arm}-{name}"), spec)).await;
}

/// From now on, for `MEASURED`.
async fn replica_seconds(scene: &Scene<'_>) -> BTreeMap<&'static str, f64> {
    let deployments = scene.api::<Deployment>();
    let (began, mut last) = (Instant::now(), Instant::now());
    let mut sums = BTreeMap::new();
    let mut looks = interval(Duration::from_millis(500));
    while began.elapsed() < MEASURED {
        looks.tick().await;
        let seconds = last.elapsed().as_secs_f64();
        last = Instant::now();
        for arm in ARMS {
            let deployment = deployments.get(arm).await.expect("the Deployment");
            let replicas = deployment.spec.and_then(|spec| spec.replicas).unwrap_or_default();
            *sums.entry(arm).or_default() += seconds * f64::from(replicas);
        }
    }
    sums
}
