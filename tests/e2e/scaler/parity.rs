//! The rules of the HorizontalPodAutoscaler, beside the real one.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use fake_prometheus::{Answer, Prometheus};
use futures::TryStreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{ListParams, WatchEvent, WatchParams};
use local_cluster::{ClusterSpec, NodePool, api_server::install};
use serde_json::json;
use tests::{
    Scene, controller, fresh_name,
    scaler::{CONTROLLER, create},
    start, tools,
};
use tokio::time::{MissedTickBehavior, interval};

use super::deploy;

/// Of both, instead of 15 s: 80 periods are 20 minutes.
const PERIOD: Duration = Duration::from_secs(1);
const PERIODS: usize = 80;
/// Periods by which the twins may be apart. Ours looks every 1.0 to 1.1 s, and theirs every second plus the time of its own
/// reconcile: a busy machine can cost each of them a look, and a window that one of them misses narrowly lasts one look
/// longer. The strict claim is that the courses are equal.
const MOST_PERIODS_APART: u32 = 5;
/// Two minutes of them.
const WINDOW: u64 = 8;
const TARGET: f64 = 5.0;
/// Requests, each for ten periods: bursts, a slow fall, and steps within the tolerance.
const LOADS: [f64; 8] = [5.0, 33.0, 34.5, 60.0, 12.0, 12.9, 41.0, 7.0];

/// Twins under one load: both have the same replicas one after the other, and at about the same time.
#[tokio::test]
async fn twins_of_both_have_the_same_replicas_within_a_few_periods() {
    let load = Prometheus::start(TARGET).unwrap();
    load.set("load_of_twins", Answer::Value(LOADS[0]));
    let pool = NodePool::default();
    let spec = ClusterSpec::simulated(fresh_name(), tools(), pool).with_hpa_period(PERIOD);
    let cluster = start(spec).await;
    install::apply(&cluster.client().await.unwrap(), "kube-system", &load.external_metrics()).await.unwrap();
    let mut process = controller(CONTROLLER);
    process.args = vec![
        format!("--prometheus-url={}", load.url()),
        format!("--period={}", PERIOD.as_secs()),
        format!("--sample-period={}", PERIOD.as_secs()),
        "--hpa-rules-only".to_owned(),
    ];
    cluster.start_controller(&process).await.unwrap();
    let scene = Scene::new(&cluster).await;
    for name in ["theirs", "ours"] {
        deploy(&scene, name, 1).await;
    }
    let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": WINDOW}});
    let hpa = json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "theirs"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "theirs"},
            "minReplicas": 1,
            "maxReplicas": 10,
            "metrics": [{"type": "External", "external": {
                "metric": {"name": "load_of_twins"},
                "target": {"type": "AverageValue", "averageValue": TARGET.to_string()},
            }}],
            "behavior": behavior,
        },
    });
    scene.apply(&hpa.to_string()).await.unwrap();
    let ours = json!({
        "deploymentName": "ours",
        "metricType": "custom",
        "targetValue": TARGET as i64,
        "maxReplicas": 10,
        "source": {"prometheus": {"query": "load_of_twins"}},
        "behavior": behavior,
    });
    create(&scene, "ours", ours, json!({})).await;

    let courses = followed(&scene, &load).await;
    let (theirs, ours) = (&courses["theirs"], &courses["ours"]);
    println!("theirs: {theirs:?}\nours:   {ours:?}");
    let of = |course: &[(Duration, i32)]| course.iter().map(|(_, replicas)| *replicas).collect::<Vec<_>>();
    assert_eq!(of(ours), of(theirs), "theirs: {theirs:?}; ours: {ours:?}");
    assert!(ours.len() > LOADS.len() / 2, "the load moves nothing: {ours:?}");
    let apart: Vec<Duration> =
        theirs.iter().zip(ours).map(|(theirs, ours)| theirs.0.abs_diff(ours.0)).collect();
    assert!(apart.iter().all(|apart| *apart <= MOST_PERIODS_APART * PERIOD), "{theirs:?} and {ours:?}");
    // A window of another length would move each step that it delays.
    let late = apart.iter().filter(|apart| **apart > 2 * PERIOD).count();
    assert!(late <= 1, "{theirs:?} and {ours:?}");
}

/// Plays the load, and returns when each Deployment got which replicas.
async fn followed(scene: &Scene<'_>, load: &Prometheus) -> BTreeMap<String, Vec<(Duration, i32)>> {
    let deployments = scene.api::<Deployment>();
    let list = deployments.list(&ListParams::default()).await.unwrap();
    let version = list.metadata.resource_version.unwrap();
    // What is there before the load moves: a write of status alone is no change of the replicas.
    let at_first = |deployment: Deployment| {
        (
            deployment.metadata.name.unwrap(),
            vec![(Duration::ZERO, deployment.spec.unwrap().replicas.unwrap())],
        )
    };
    let mut known: BTreeMap<String, Vec<(Duration, i32)>> = list.items.into_iter().map(at_first).collect();
    let began = Instant::now();
    let follow = async {
        let params = WatchParams::default().timeout(290);
        let events = deployments.watch(&params, &version).await.unwrap();
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.try_next().await.unwrap() {
            let WatchEvent::Modified(deployment) = event else { continue };
            let replicas = deployment.spec.unwrap().replicas.unwrap();
            let course = known.get_mut(&deployment.metadata.name.unwrap()).unwrap();
            if course.last().is_none_or(|(_, last)| *last != replicas) {
                course.push((began.elapsed(), replicas));
            }
        }
    };
    let play = async {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for period in 0..PERIODS {
            ticks.tick().await;
            load.set("load_of_twins", Answer::Value(LOADS[period * LOADS.len() / PERIODS]));
        }
        // Both see the last load for a window.
        for _ in 0..2 * WINDOW {
            ticks.tick().await;
        }
    };
    tokio::select! {
        () = follow => panic!("the watch ended"),
        () = play => {}
    }
    known
}
