//! A real Prometheus as the source: what the controller makes of a query is accepted there and reads one namespace.

use api::{aiscaler::AIScaler, conditions};
use fake_prometheus::{Answer, Prometheus as Engine};
use k8s_openapi::api::apps::v1::Deployment;
use local_cluster::{ClusterSpec, NodePool};
use serde_json::json;
use tests::{
    Scene, controller, fresh_name,
    monitoring::prometheus::{Prometheus, Scrape},
    scaler::{
        CONTROLLER, change, create, message, spec, until_active, until_condition, until_inactive,
        until_replicas,
    },
    start, tools, wait_for, within,
};

use super::deploy;

const WAITING: &str = "vllm:num_requests_waiting";
const REQUESTS: &str = "requests_total";

/// Serves its load as an engine does.
fn engine(waiting: f64) -> Engine {
    let engine = Engine::start(0.0).unwrap();
    engine.set(WAITING, Answer::Value(waiting));
    engine.set(REQUESTS, Answer::Value(waiting));
    engine
}

/// What the discovery of pods would add.
fn scrape(engine: &Engine, namespace: &str) -> Scrape {
    Scrape::new(namespace, [engine.address()]).with_label("namespace", namespace)
}

#[tokio::test]
async fn replicas_follow_what_a_prometheus_scrapes_in_one_namespace() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let scene = Scene::new(&cluster).await;
    let (engine, other, foreign) = (engine(12.0), engine(3.0), engine(1_000.0));
    let two = Scrape::new("engines", [engine.address(), other.address()]);
    let two = two.with_label("namespace", scene.namespace());
    let mut prometheus = Prometheus::start([two, scrape(&foreign, "another")]).await;
    prometheus.until_scraped().await;
    let mut process = controller(CONTROLLER);
    process.args = vec![
        format!("--prometheus-url={}", prometheus.url()),
        "--period=1".into(),
        "--sample-period=0.5".into(),
    ];
    cluster.start_controller(&process).await.unwrap();

    deploy(&scene, "chat", 1).await;
    let sum = format!("sum({WAITING}) + sum({WAITING}) * 0");
    create(&scene, "chat", spec("chat", &sum), json!({})).await;
    until_replicas(&scene, "chat", 3).await;
    engine.set(WAITING, Answer::Value(22.0));
    until_replicas(&scene, "chat", 5).await;
    until_active(&scene, "chat").await;

    for (query, reason, words) in [
        (WAITING, "MetricMissing", "2 series"),
        ("sum(nothing_serves_this)", "MetricMissing", "no series"),
        ("histogram_quantile(2, sum(nothing_serves_this)) +", "InvalidSpec", "query"),
    ] {
        change(&scene, "chat", json!({"source": {"prometheus": {"query": query}}})).await;
        let scaler = until_inactive(&scene, "chat", reason).await;
        let text = message(&scaler, conditions::SCALING_ACTIVE);
        assert!(text.contains(words), "{query}: {text}");
        assert_eq!(replicas(&scene).await, Some(5), "{query}");
    }
    let counter = json!({"source": {"prometheus": {"query": format!("sum({REQUESTS})")}}});
    change(&scene, "chat", counter).await;
    let grows =
        until_condition(&scene, "chat", conditions::SCALING_ACTIVE, ("True", "MetricOnlyGrows")).await;
    let text = message(&grows, conditions::SCALING_ACTIVE);
    assert!(text.contains("rate(requests_total[5m])"), "{text}");

    // A server that has lost its history has no rate before its second scrape.
    let sum = format!("{sum} + 0 * sum(rate({REQUESTS}[10s]))");
    engine.set(WAITING, Answer::Value(22.0));
    change(&scene, "chat", json!({"source": {"prometheus": {"query": sum}}})).await;
    until_active(&scene, "chat").await;
    until_replicas(&scene, "chat", 5).await;
    prometheus.scrape_instead([]).await;
    prometheus.loses_its_history().await;
    wait_for(&scene.api::<AIScaler>(), "chat", "that the server has no series", within(), |scaler| {
        message(scaler, conditions::SCALING_ACTIVE).contains("has no series")
    })
    .await;
    assert_eq!(replicas(&scene).await, Some(5));
    engine.set(WAITING, Answer::Value(7.0));
    prometheus.scrape_instead([scrape(&engine, scene.namespace())]).await;
    until_replicas(&scene, "chat", 2).await;
}

async fn replicas(scene: &Scene<'_>) -> Option<i32> {
    scene.api::<Deployment>().get("chat").await.unwrap().spec.unwrap().replicas
}
