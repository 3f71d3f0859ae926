//! Validation of gateway, canary and analysis.

use api::aiinference::AIInference;
use serde_json::{Value, json};

use super::base;
use crate::table::{attempt, case, check};

#[tokio::test]
async fn a_route_is_told_from_others_by_host_or_path() {
    let gateway = |parts: Value| {
        let mut gateway = json!({"name": "public", "hostnames": ["chat.example.com"]});
        gateway.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
        json!({"gateway": gateway})
    };
    let grpc = |engine: &str, parts: Value| {
        let mut spec = gateway(parts);
        spec["engine"] = json!(engine);
        spec
    };
    let hidden = "needs hostnames, or pathPrefixes other than /v1 and /v2";
    let path = "must be different paths with /v1 or /v2";
    check::<AIInference>(
        base(),
        vec![
            case(
                "gateway.name",
                "Required value",
                json!({"gateway": {"hostnames": ["a"]}}),
                gateway(json!({})),
            ),
            case(
                "gateway.hostnames",
                hidden,
                gateway(json!({"hostnames": []})),
                gateway(json!({"hostnames": [], "pathPrefixes": ["/chat/v1"]})),
            ),
            case(
                "gateway.hostnames",
                hidden,
                gateway(json!({"hostnames": [], "pathPrefixes": ["/chat/v1", "/v1"]})),
                gateway(json!({"pathPrefixes": ["/v1"]})),
            ),
            case(
                "gateway.hostnames",
                "must be host names in lower case",
                gateway(json!({"hostnames": ["Chat.example.com:80"]})),
                gateway(json!({"hostnames": ["*.example.com"]})),
            ),
            case(
                "gateway.pathPrefixes",
                path,
                gateway(json!({"pathPrefixes": ["/../v1"]})),
                gateway(json!({"pathPrefixes": ["/a.b/v1"]})),
            ),
            case(
                "gateway.pathPrefixes",
                path,
                gateway(json!({"pathPrefixes": ["/a/v1", "/a/v1"]})),
                gateway(json!({"pathPrefixes": ["/a/v1", "/v1/models"]})),
            ),
            case(
                "gateway.pathPrefixes",
                path,
                gateway(json!({"pathPrefixes": ["//"]})),
                gateway(json!({"pathPrefixes": ["/v1"]})),
            ),
            case(
                "gateway.pathPrefixes",
                path,
                gateway(json!({"pathPrefixes": ["/v1/"]})),
                gateway(json!({"pathPrefixes": ["/a/v1"]})),
            ),
            case(
                "gateway.grpc.hostnames",
                "must be host names in lower case",
                grpc("triton", json!({"grpc": {"hostnames": ["grpc.example.com:80"]}})),
                grpc("triton", json!({"grpc": {"hostnames": ["grpc.example.com"]}})),
            ),
            case(
                "gateway.grpc",
                "needs hostnames, because calls have no path",
                grpc("triton", json!({"hostnames": [], "pathPrefixes": ["/a/v2"], "grpc": {}})),
                grpc(
                    "triton",
                    json!({"hostnames": [], "pathPrefixes": ["/a/v2"], "grpc": {"hostnames": ["a"]}}),
                ),
            ),
            case(
                "gateway",
                "must have grpc only with engine triton",
                grpc("vllm", json!({"grpc": {}})),
                grpc("triton", json!({"grpc": {}})),
            ),
            case(
                "gateway.inferencePool.endpointPicker.port",
                "Required value",
                gateway(json!({"inferencePool": {"endpointPicker": {"name": "picker"}}})),
                gateway(json!({"inferencePool": {"endpointPicker": {"name": "picker", "port": 9002}}})),
            ),
            case(
                "gateway.inferencePool.endpointPicker.port",
                "less than or equal to 65535",
                gateway(json!({"inferencePool": {"endpointPicker": {"name": "picker", "port": 65_536}}})),
                gateway(json!({"inferencePool": {"endpointPicker": {"name": "picker", "port": 65_535}}})),
            ),
            case(
                "gateway.requestTimeoutSeconds",
                "less than or equal to 86400",
                gateway(json!({"requestTimeoutSeconds": 86_401})),
                gateway(json!({"requestTimeoutSeconds": 600})),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_canary_differs_from_stable_and_its_steps_rise() {
    let canary = |parts: Value| {
        let mut canary = json!({"image": "engine:2"});
        canary.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
        json!({"gateway": {"name": "public", "hostnames": ["chat.example.com"]}, "canary": canary})
    };
    let steps = |weights: &[i32]| -> Value {
        weights.iter().map(|weight| json!({"weightPercent": weight})).collect::<Vec<_>>().into()
    };
    check::<AIInference>(
        base(),
        vec![
            case("canary", "must differ from the top level", canary(json!({"image": null})), canary(json!({"args": []}))),
            case(
                "gateway",
                "or routeRef is required by canary.weightPercent and canary.steps",
                json!({"canary": {"image": "engine:2", "weightPercent": 10}}),
                json!({"canary": {"image": "engine:2"}}),
            ),
            case(
                "gateway",
                "or routeRef is required by canary.weightPercent and canary.steps",
                json!({"canary": {"image": "engine:2", "steps": steps(&[10])}}),
                json!({"canary": {"image": "engine:2", "steps": steps(&[10])}, "routeRef": {"name": "web"}}),
            ),
            case(
                "gateway",
                "is required by canary.match, canary.mirror and canary.pin, which routeRef cannot have",
                json!({
                    "canary": {"image": "engine:2", "match": [{"header": "x-beta", "value": "1"}]},
                    "routeRef": {"name": "web"},
                }),
                canary(json!({"match": [{"header": "x-beta", "value": "1"}]})),
            ),
            case(
                "routeRef",
                "must not be set together with gateway",
                json!({"gateway": {"name": "public", "hostnames": ["a"]}, "routeRef": {"name": "web"}}),
                json!({"routeRef": {"name": "web", "rule": "models"}}),
            ),
            case("routeRef.name", "must be", json!({"routeRef": {"name": "We b"}}), json!({"routeRef": {"name": "we.b"}})),
            case(
                "canary.weightPercent",
                "must not be set together with steps",
                canary(json!({"weightPercent": 10, "steps": steps(&[20])})),
                canary(json!({"steps": steps(&[20])})),
            ),
            case(
                "gateway",
                "is required by canary.match, canary.mirror and canary.pin, which routeRef cannot have",
                json!({"canary": {"image": "engine:2", "mirror": true}, "routeRef": {"name": "web"}}),
                canary(json!({"mirror": true})),
            ),
            case(
                "canary.mirror",
                "must not be set together with",
                canary(json!({"mirror": true, "weightPercent": 10})),
                canary(json!({"mirror": false, "weightPercent": 10})),
            ),
            case(
                "canary",
                "must not have evaluationName with engine triton",
                json!({"engine": "triton", "canary": {"image": "engine:2", "evaluationName": "nightly"}}),
                json!({"canary": {"image": "engine:2", "evaluationName": "nightly"}}),
            ),
            case(
                "gateway",
                "is required by canary.match, canary.mirror and canary.pin, which routeRef cannot have",
                json!({"canary": {"image": "engine:2", "pin": "Cookie"}, "routeRef": {"name": "web"}}),
                canary(json!({"pin": "Cookie", "weightPercent": 10})),
            ),
            case("canary.pin", "supported values", canary(json!({"pin": "Header"})), canary(json!({"pin": "None"}))),
            case(
                "canary.evaluationName",
                "must be",
                canary(json!({"evaluationName": "Nightly run"})),
                canary(json!({"evaluationName": "nightly.run"})),
            ),
            case(
                "canary.promotion",
                "must not be Auto without steps",
                canary(json!({"promotion": "Auto", "weightPercent": 10})),
                canary(json!({"promotion": "Auto", "steps": steps(&[20])})),
            ),
            case(
                "canary.steps",
                "must have rising values",
                canary(json!({"steps": steps(&[20, 10])})),
                canary(json!({"steps": steps(&[10, 20, 100])})),
            ),
            case(
                "canary.steps",
                "must have rising values",
                canary(json!({"steps": steps(&[10, 10])})),
                canary(json!({"steps": steps(&[1])})),
            ),
            case(
                "canary.steps[0].weightPercent",
                "greater than or equal to 1",
                canary(json!({"steps": steps(&[0])})),
                canary(json!({"steps": steps(&[1, 100])})),
            ),
            case(
                "canary",
                "pathPrefixes times (match + 1) must be at most 16",
                json!({
                    "gateway": {"name": "public", "hostnames": ["a"], "pathPrefixes": ["/a/v1", "/b/v1", "/c/v1", "/d/v1"]},
                    "canary": {"image": "e:2", "match": vec![json!({"header": "x-beta", "value": "1"}); 4]},
                }),
                canary(json!({"match": [{"header": "x-beta", "value": "1"}]})),
            ),
            case(
                "canary.match[0].header",
                "must be the name of a header",
                canary(json!({"match": [{"header": "x beta", "value": "1"}]})),
                canary(json!({"match": [{"header": "X-Beta", "value": "a b"}]})),
            ),
        ],
    )
    .await;
    let scene = tests::api_server().await;
    let analysis = json!({"steps": steps(&[10]), "analysis": {}});
    let stored = attempt::<AIInference>(&scene, &base(), &canary(analysis)).await.unwrap();
    assert_eq!(
        stored.data["spec"]["canary"],
        json!({
            "image": "engine:2", "replicas": 1, "weightPercent": 0, "match": [], "mirror": false, "pin": "None", "promotion": "Manual",
            "approvedSteps": 0, "abort": false,
            "steps": [{"weightPercent": 10, "minSeconds": 300, "minRequests": 300, "approval": false}],
            "analysis": {
                "mode": "Enforce", "metrics": [{"name": "errorRate"}], "alpha": "0.01", "intervalSeconds": 15,
                "timeoutSeconds": 3600, "onInconclusive": "Hold",
            },
        })
    );
}

#[tokio::test]
async fn an_analysis_has_metrics_that_the_engine_counts_and_numbers_in_quotes() {
    let analysis = |parts: Value| {
        let canary = json!({"image": "engine:2", "steps": [{"weightPercent": 10}], "analysis": parts});
        json!({"gateway": {"name": "public", "hostnames": ["chat.example.com"]}, "canary": canary})
    };
    let metric = |parts: Value| analysis(json!({"metrics": [parts]}));
    let of_engine = |engine: &str, name: &str| {
        let mut spec = metric(json!({"name": name}));
        spec["engine"] = json!(engine);
        spec
    };
    let bad = r#"b{service="$name"} or vector(0)"#;
    let queries = json!({"requestsQuery": r#"a{service="$name"}"#, "badRequestsQuery": bad});
    let at = |url: &str| {
        let mut queries = queries.clone();
        queries["url"] = json!(url);
        queries
    };
    let of_custom = |engine: &str| {
        let mut spec = analysis(json!({"metrics": [{"name": "custom"}], "prometheus": queries}));
        spec["engine"] = json!(engine);
        spec
    };
    check::<AIInference>(
        base(),
        vec![
            case(
                "canary.analysis.metrics[0].limitPercent",
                "must be a number in quotes",
                metric(json!({"name": "errorRate", "limitPercent": "1%"})),
                metric(json!({"name": "errorRate", "limitPercent": "0.5"})),
            ),
            case(
                "canary.analysis.metrics[0].maxRatio",
                "must be a number in quotes",
                metric(json!({"name": "errorRate", "maxRatio": "0.5"})),
                metric(json!({"name": "errorRate", "maxRatio": "1.5"})),
            ),
            case(
                "canary.analysis.metrics[0].thresholdMillis",
                "must be set only with ttft, tpot and e2e",
                metric(json!({"name": "errorRate", "thresholdMillis": 500})),
                metric(json!({"name": "ttft", "thresholdMillis": 500})),
            ),
            case(
                "canary.analysis.alpha",
                "must be a number in quotes",
                analysis(json!({"alpha": "0.5"})),
                analysis(json!({"alpha": "0.05"})),
            ),
            case(
                "canary.analysis.metrics[1]",
                "Duplicate value",
                analysis(json!({"metrics": [{"name": "e2e"}, {"name": "e2e"}]})),
                analysis(json!({"metrics": [{"name": "e2e"}, {"name": "ttft"}]})),
            ),
            case(
                "canary.analysis.prometheus",
                "must be set with the metric custom, and only with it",
                metric(json!({"name": "custom"})),
                analysis(json!({"metrics": [{"name": "custom"}], "prometheus": queries})),
            ),
            case(
                "canary.analysis.prometheus",
                "must be set with the metric custom, and only with it",
                analysis(json!({"prometheus": queries})),
                of_custom("triton"),
            ),
            case(
                "canary.analysis.prometheus.url",
                "must be an http:// or https:// URL",
                analysis(json!({"metrics": [{"name": "custom"}], "prometheus": at("prometheus:9090")})),
                analysis(
                    json!({"metrics": [{"name": "custom"}], "prometheus": at("http://prometheus:9090")}),
                ),
            ),
            case(
                "canary",
                "that the engine does not count",
                of_engine("tgi", "ttft"),
                of_engine("tgi", "tpot"),
            ),
            case(
                "canary",
                "that the engine does not count",
                of_engine("triton", "e2e"),
                of_engine("triton", "errorRate"),
            ),
        ],
    )
    .await;
}
