//! AIScaler: validation of every field, and defaults.

use api::aiscaler::AIScaler;
use serde_json::{Value, json};

use crate::table::{attempt, case, check};

fn base() -> Value {
    json!({"deploymentName": "web", "metricType": "queue_depth", "targetValue": 5, "maxReplicas": 10})
}

fn counted() -> Value {
    json!({"prometheus": {"query": "q", "completionsQuery": "c"}})
}

fn prometheus() -> Value {
    json!({"prometheus": {"query": "sum(queue)"}})
}

#[tokio::test]
async fn there_is_exactly_one_target() {
    let target = |target: Value| json!({"deploymentName": null, "targetRef": target});
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web"});
    let one = "must have exactly one of deploymentName and targetRef";
    let field = |field: &str, value: &str| {
        let mut set = set.clone();
        set[field] = value.into();
        target(set)
    };
    check::<AIScaler>(
        base(),
        vec![
            case("", one, json!({"deploymentName": null}), target(set.clone())),
            case("", one, json!({"targetRef": set}), json!({"deploymentName": "web-2"})),
            case(
                "deploymentName",
                "must be the name of an object",
                json!({"deploymentName": "Web"}),
                json!({"deploymentName": "web.v2"}),
            ),
            case(
                "deploymentName",
                "may not be more than 253",
                json!({"deploymentName": "d".repeat(254)}),
                json!({"deploymentName": "d".repeat(253)}),
            ),
            case(
                "targetRef.name",
                "Required value",
                target(json!({"apiVersion": "v1", "kind": "A"})),
                target(set.clone()),
            ),
            case(
                "targetRef.apiVersion",
                "must be an API version",
                field("apiVersion", "apps"),
                field("apiVersion", "v1"),
            ),
            case(
                "targetRef.kind",
                "must be a kind",
                field("kind", "statefulset"),
                field("kind", "AIInference"),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn metric_and_bounds_are_validated() {
    let bounds = |min: i32, max: i32| json!({"minReplicas": min, "maxReplicas": max});
    check::<AIScaler>(
        base(),
        vec![
            case(
                "metricType",
                "Unsupported value",
                json!({"metricType": "cpu"}),
                json!({"metricType": "gpu_util"}),
            ),
            case(
                "metricType",
                "Required value",
                json!({"metricType": null}),
                json!({"metricType": "latency"}),
            ),
            case("targetValue", "Required value", json!({"targetValue": null}), json!({"targetValue": 70})),
            case(
                "targetValue",
                "must be a quantity from 1m (0.001) to 1T",
                json!({"targetValue": 0}),
                json!({"targetValue": 1}),
            ),
            case(
                "targetValue",
                "must be a quantity from 1m (0.001) to 1T",
                json!({"targetValue": "900u"}),
                json!({"targetValue": "800m"}),
            ),
            case(
                "targetValue",
                "must be a quantity from 1m (0.001) to 1T",
                json!({"targetValue": "five"}),
                json!({"targetValue": "0.8"}),
            ),
            case(
                "targetValue",
                "must be a quantity from 1m (0.001) to 1T",
                json!({"targetValue": 1_000_000_000_001_i64}),
                json!({"targetValue": 1_000_000_000_000_i64}),
            ),
            case("maxReplicas", "Required value", json!({"maxReplicas": null}), json!({"maxReplicas": 1})),
            case(
                "maxReplicas",
                "greater than or equal to 1",
                json!({"maxReplicas": 0}),
                json!({"maxReplicas": 1}),
            ),
            case(
                "maxReplicas",
                "less than or equal to 1000",
                json!({"maxReplicas": 1001}),
                json!({"maxReplicas": 1000}),
            ),
            case("minReplicas", "must not be above maxReplicas", bounds(5, 4), bounds(4, 4)),
            case("minReplicas", "greater than or equal to 0", bounds(-1, 4), bounds(1, 4)),
            case("minReplicas", "less than or equal to 1000", bounds(1001, 1000), bounds(1000, 1000)),
            case(
                "minReplicas",
                "must be at least 1 without source.prometheus",
                json!({"minReplicas": 0}),
                json!({"minReplicas": 0, "source": prometheus()}),
            ),
            case(
                "minReplicas",
                "must be at least 1 without source.prometheus",
                json!({"minReplicas": 0, "source": {"pods": {"port": 80, "metric": "queue"}}}),
                json!({"minReplicas": 1, "source": {"pods": {"port": 80, "metric": "queue"}}}),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_source_is_one_query_or_one_metric_of_the_pods() {
    let source = |source: Value| json!({"source": source});
    let query = |query: Value| json!({"source": {"prometheus": query}});
    let pods = |pods: Value| json!({"source": {"pods": pods}});
    let one = "must have exactly one of prometheus and pods";
    check::<AIScaler>(
        base(),
        vec![
            case(
                "source",
                "source is required with metricType custom",
                json!({"metricType": "custom"}),
                json!({"metricType": "custom", "source": prometheus()}),
            ),
            case(
                "source.prometheus.completionsQuery",
                "completionsQuery needs metricType queue_depth",
                json!({"metricType": "custom", "source": counted()}),
                json!({"metricType": "queue_depth", "source": counted()}),
            ),
            case("source", one, source(json!({})), source(prometheus())),
            case(
                "source",
                one,
                source(json!({"prometheus": {"query": "q"}, "pods": {"port": 80, "metric": "m"}})),
                pods(json!({"port": 80, "metric": "m"})),
            ),
            case(
                "source.prometheus.query",
                "Required value",
                query(json!({})),
                query(json!({"query": "sum(q)"})),
            ),
            case(
                "source.prometheus.url",
                "must be an http:// or https:// URL",
                query(json!({"query": "q", "url": "prometheus:9090"})),
                query(json!({"query": "q", "url": "http://prometheus:9090"})),
            ),
            case(
                "source.pods.port",
                "less than or equal to 65535",
                pods(json!({"port": 65536, "metric": "m"})),
                pods(json!({"port": 65535, "metric": "m"})),
            ),
            case(
                "source.pods.path",
                "must start with '/'",
                pods(json!({"port": 80, "metric": "m", "path": "metrics"})),
                pods(json!({"port": 80, "metric": "m", "path": "/stats"})),
            ),
            case(
                "source.pods.metric",
                "must be the name of a Prometheus metric",
                pods(json!({"port": 80, "metric": "queue{a=\"b\"}"})),
                pods(json!({"port": 80, "metric": "vllm:num_requests_waiting"})),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn additional_metrics_are_validated_like_the_first() {
    let metrics = |metrics: Value| json!({"additionalMetrics": metrics});
    let metric = |change: Value| {
        let mut metric = json!({"metricType": "latency", "targetValue": 200});
        metric.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!({"additionalMetrics": [metric]})
    };
    let latency = json!({"metricType": "latency", "targetValue": 200});
    check::<AIScaler>(
        base(),
        vec![
            case(
                "additionalMetrics",
                "at most 4 items",
                metrics(vec![latency.clone(); 5].into()),
                metrics(vec![latency.clone(); 4].into()),
            ),
            case(
                "additionalMetrics[0].metricType",
                "Unsupported value",
                metric(json!({"metricType": "cpu"})),
                metric(json!({"metricType": "gpu_memory"})),
            ),
            case(
                "additionalMetrics[0].targetValue",
                "Required value",
                metrics(json!([{"metricType": "latency"}])),
                metrics(json!([latency])),
            ),
            case(
                "additionalMetrics[0].targetValue",
                "must be a quantity from 1m (0.001) to 1T",
                metric(json!({"targetValue": 0})),
                metric(json!({"targetValue": "1m"})),
            ),
            case(
                "additionalMetrics[0].source",
                "source is required with metricType custom",
                metric(json!({"metricType": "custom"})),
                metric(json!({"metricType": "custom", "source": prometheus()})),
            ),
            case(
                "additionalMetrics[0].source.prometheus.completionsQuery",
                "completionsQuery needs metricType queue_depth",
                metric(json!({"metricType": "tokens_per_minute", "source": counted()})),
                metric(json!({"metricType": "queue_depth", "source": counted()})),
            ),
            case(
                "additionalMetrics[0].source",
                "must have exactly one of prometheus and pods",
                metric(json!({"source": {}})),
                metric(json!({"source": {"pods": {"port": 80, "metric": "m"}}})),
            ),
            case(
                "additionalMetrics[0].source.pods.metric",
                "must be the name of a Prometheus metric",
                metric(json!({"source": {"pods": {"port": 80, "metric": "a b"}}})),
                metric(json!({"source": {"pods": {"port": 80, "metric": "a_b"}}})),
            ),
            case(
                "minReplicas",
                "must be at least 1 without source.prometheus",
                json!({"minReplicas": 0, "additionalMetrics": [{"metricType": "custom", "targetValue": 1, "source": prometheus()}]}),
                json!({"minReplicas": 0, "source": prometheus(), "additionalMetrics": [latency]}),
            ),
            case("mode", "Unsupported value", json!({"mode": "Preview"}), json!({"mode": "DryRun"})),
            case("algorithm", "Unsupported value", json!({"algorithm": "HPA"}), json!({"algorithm": "Ratio"})),
        ],
    )
    .await;
}

#[tokio::test]
async fn behavior_and_fallback_stay_within_their_bounds() {
    let up = |rules: Value| json!({"behavior": {"scaleUp": rules}});
    let policy = |policy: Value| json!({"behavior": {"scaleDown": {"policies": [policy]}}});
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    let fallback = |fallback: Value| json!({"fallback": fallback});
    check::<AIScaler>(
        base(),
        vec![
            case(
                "behavior.scaleUp.stabilizationWindowSeconds",
                "less than or equal to 3600",
                up(json!({"stabilizationWindowSeconds": 3601})),
                up(json!({"stabilizationWindowSeconds": 3600})),
            ),
            case(
                "behavior.scaleUp.selectPolicy",
                "Unsupported value",
                up(json!({"selectPolicy": "Any"})),
                up(json!({"selectPolicy": "Disabled"})),
            ),
            case(
                "behavior.scaleUp.policies",
                "at most 8 items",
                up(json!({"policies": vec![pods.clone(); 9]})),
                up(json!({"policies": vec![pods.clone(); 8]})),
            ),
            case(
                "behavior.scaleUp.tolerance",
                "must be a quantity",
                up(json!({"tolerance": "some"})),
                up(json!({"tolerance": "0.05"})),
            ),
            case(
                "behavior.scaleDown.policies[0].type",
                "Unsupported value",
                policy(json!({"type": "Nodes", "value": 1, "periodSeconds": 15})),
                policy(json!({"type": "Percent", "value": 1, "periodSeconds": 15})),
            ),
            case(
                "behavior.scaleDown.policies[0].value",
                "greater than or equal to 1",
                policy(json!({"type": "Pods", "value": 0, "periodSeconds": 15})),
                policy(json!({"type": "Pods", "value": 1, "periodSeconds": 15})),
            ),
            case(
                "behavior.scaleDown.policies[0].periodSeconds",
                "less than or equal to 1800",
                policy(json!({"type": "Pods", "value": 1, "periodSeconds": 1801})),
                policy(json!({"type": "Pods", "value": 1, "periodSeconds": 1800})),
            ),
            case(
                "fallback.afterSeconds",
                "greater than or equal to 30",
                fallback(json!({"afterSeconds": 29, "replicas": 3})),
                fallback(json!({"afterSeconds": 30, "replicas": 3})),
            ),
            case(
                "fallback.afterSeconds",
                "less than or equal to 86400",
                fallback(json!({"afterSeconds": 86401, "replicas": 3})),
                fallback(json!({"afterSeconds": 86400, "replicas": 3})),
            ),
            case(
                "fallback.replicas",
                "Required value",
                fallback(json!({"afterSeconds": 60})),
                fallback(json!({"afterSeconds": 60, "replicas": 0})),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn omitted_fields_get_their_defaults() {
    let scene = tests::api_server().await;
    let change = json!({"behavior": {"scaleUp": {}}, "source": {"pods": {"port": 80, "metric": "m"}}});
    let stored = attempt::<AIScaler>(&scene, &base(), &change).await.unwrap();
    assert_eq!(
        stored.data["spec"],
        json!({
            "deploymentName": "web",
            "metricType": "queue_depth",
            "targetValue": 5,
            "minReplicas": 1,
            "maxReplicas": 10,
            "behavior": {"scaleUp": {"selectPolicy": "Max"}},
            "source": {"pods": {"port": 80, "path": "/metrics", "metric": "m"}},
            "algorithm": "Auto",
            "mode": "Apply",
            "paused": false,
        })
    );
}
