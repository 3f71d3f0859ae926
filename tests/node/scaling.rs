//! Two Deployments of engines with the same load, one scaled by an AIScaler, the other by a HorizontalPodAutoscaler.

use std::{collections::BTreeMap, time::Duration};

use api::{aiscaler::AIScaler, conditions};
use fake_prometheus::{Answer, Prometheus};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::api::ListParams;
use local_cluster::install;
use serde_json::{Value, json};
use tests::{Scene, real, wait_for, within};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::pods::{self, container, pod, report_within};

/// Who scales, which is the name of the Deployment too.
const ARMS: [&str; 2] = ["aiscaler", "hpa"];
/// What the HPA scales by.
const SERIES: &str = "requests_of_the_engines_of_hpa";
/// Requests that an engine runs at a time, each for a second, and that a replica should have in hand.
const SLOTS: u32 = 4;
/// Requests per second before the burst, and what comes on top of it in the burst.
const CALM: u32 = 1;
const BURST: u32 = 14;
const BURST_SECONDS: u32 = 60;
/// An engine loads for so long.
const LOAD_SECONDS: u32 = 10;
const MOST_REPLICAS: i32 = 8;
/// Until an AIScaler knows what arrives; a busy machine takes longer.
const KNOWN_WITHIN: Duration = Duration::from_secs(150);
/// The burst, what it leaves, and a busy machine.
const DONE_WITHIN: Duration = Duration::from_secs(240);

#[tokio::test]
async fn a_burst_waits_less_with_an_aiscaler_than_with_an_hpa_and_takes_no_more_replicas() {
    let scene = real().await;
    let metrics = Prometheus::start(0.0).expect("a server of metrics");
    install::apply(&scene.client(), "kube-system", &metrics.external_metrics())
        .await
        .expect("it is registered");
    for arm in ARMS {
        engines(&scene, arm).await;
    }
    // Both have a calm load while they begin.
    let calm = KNOWN_WITHIN.as_secs() as u32 + BURST_SECONDS;
    for arm in ARMS {
        start_load(&scene, arm, "calm", CALM, calm).await;
    }
    scene.apply(&scaler()).await.expect("an AIScaler");
    scene.apply(&hpa()).await.expect("an HPA");
    let publish = async {
        let mut looks = interval(Duration::from_secs(1));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            // A pod that has just begun or ended does not answer.
            metrics.set(SERIES, Answer::Value(in_hand(&scene, "hpa").await));
        }
    };
    let measured = async {
        wait_for(
            &scene.api::<AIScaler>(),
            "aiscaler",
            "follows what arrives",
            KNOWN_WITHIN,
            |scaler: &AIScaler| {
                let mut known = scaler.status.iter().flat_map(|status| &status.conditions);
                known.any(|one| {
                    one.type_ == conditions::SCALING_ACTIVE && one.message.contains("by what arrives")
                })
            },
        )
        .await;
        for arm in ARMS {
            start_load(&scene, arm, "burst", BURST, BURST_SECONDS).await;
        }
        replica_seconds(&scene).await
    };
    let replica_seconds = tokio::select! {
        replica_seconds = measured => replica_seconds,
        () = publish => unreachable!("it has no end"),
    };
    let mut p99 = BTreeMap::new();
    for arm in ARMS {
        let report = report_within(&scene, &format!("{arm}-burst"), DONE_WITHIN).await;
        assert_eq!(report["failed"], 0, "{arm}: {report}");
        p99.insert(arm, report["p99_ms"].as_f64().expect("a number"));
    }
    // For the log.
    println!("p99 in ms: {p99:?}; replica-seconds: {replica_seconds:?}");
    assert!(p99["aiscaler"] <= p99["hpa"], "{p99:?}");
    assert!(replica_seconds["aiscaler"] <= 1.05 * replica_seconds["hpa"], "{replica_seconds:?}");
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

/// Both have these numbers.
fn behavior() -> Value {
    json!({ "scaleDown": { "stabilizationWindowSeconds": 60 } })
}

fn scaler() -> String {
    let scaler = json!({
        "apiVersion": "ai.infra.example.com/v1",
        "kind": "AIScaler",
        "metadata": { "name": "aiscaler" },
        "spec": {
            "deploymentName": "aiscaler",
            "metricType": "queue_depth",
            "targetValue": SLOTS,
            "maxReplicas": MOST_REPLICAS,
            "behavior": behavior(),
        },
    });
    scaler.to_string()
}

fn hpa() -> String {
    let target = json!({ "type": "AverageValue", "averageValue": SLOTS.to_string() });
    let hpa = json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": "hpa" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "hpa" },
            "minReplicas": 1,
            "maxReplicas": MOST_REPLICAS,
            "metrics": [{ "type": "External", "external": { "metric": { "name": SERIES }, "target": target } }],
            "behavior": behavior(),
        },
    });
    hpa.to_string()
}

/// Begins when a request was answered.
async fn start_load(scene: &Scene<'_>, arm: &str, name: &str, rate: u32, seconds: u32) {
    let url = format!("http://{arm}.{}.svc.cluster.local/v1/chat/completions", scene.namespace());
    let (rate, seconds) = (rate.to_string(), seconds.to_string());
    let args = [
        "load",
        "--url",
        &url,
        "--rate",
        &rate,
        "--seconds",
        &seconds,
        "--timeout-seconds",
        "120",
        "--first-answer-seconds",
        "30",
    ];
    let spec = json!({ "restartPolicy": "Never", "containers": [container("load", &args, json!({}))] });
    pods::create(scene, &pod(&format!("{arm}-{name}"), spec)).await;
}

/// Requests that wait or run in the engines of a Deployment.
async fn in_hand(scene: &Scene<'_>, app: &str) -> f64 {
    let pods = scene.api::<Pod>().list(&ListParams::default().labels(&format!("app={app}"))).await;
    let names = pods.into_iter().flatten().filter_map(|pod| pod.metadata.name);
    let pages = names.map(async |name| {
        let uri = format!("/api/v1/namespaces/{}/pods/{name}:8000/proxy/metrics", scene.namespace());
        let request = http::Request::get(uri).body(Vec::new()).expect("a request");
        scene.client().request_text(request).await.unwrap_or_default()
    });
    let pages = futures::future::join_all(pages).await;
    let gauges = pages.iter().flat_map(|page| page.lines()).filter_map(|line| line.split_once(' '));
    let gauges = gauges.filter(|(name, _)| ["tgi_batch_current_size", "tgi_queue_size"].contains(name));
    gauges.filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
}

/// From now until both have one replica again.
async fn replica_seconds(scene: &Scene<'_>) -> BTreeMap<&'static str, f64> {
    let deployments = scene.api::<Deployment>();
    let (began, mut last) = (Instant::now(), Instant::now());
    let mut sums: BTreeMap<&str, f64> = ARMS.into_iter().map(|arm| (arm, 0.0)).collect();
    let mut has_scaled: BTreeMap<&str, bool> = BTreeMap::new();
    let mut looks = interval(Duration::from_millis(500));
    loop {
        looks.tick().await;
        let seconds = last.elapsed().as_secs_f64();
        last = Instant::now();
        let mut are_back = true;
        for arm in ARMS {
            let deployment = deployments.get(arm).await.expect("the Deployment");
            let replicas = deployment.spec.and_then(|spec| spec.replicas).unwrap_or_default();
            *sums.entry(arm).or_default() += seconds * f64::from(replicas);
            let scaled = has_scaled.entry(arm).or_default();
            *scaled |= replicas > 1;
            are_back &= *scaled && replicas == 1;
        }
        if are_back {
            return sums;
        }
        assert!(began.elapsed() < DONE_WITHIN, "they do not come back: {has_scaled:?}");
    }
}
