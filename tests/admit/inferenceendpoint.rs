//! InferenceEndpoint: validation of every field, and defaults.

use api::aiinference::endpoint::InferenceEndpoint;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

use crate::table::{attempt, case, check};

fn base() -> Value {
    json!({"model": "qwen/Qwen-7B-Chat", "accelerator": "h100"})
}

fn by_queue() -> Value {
    json!({"minReplicas": 2, "maxReplicas": 10, "metricType": "queue_depth", "targetValue": 5})
}

/// With this change.
fn autoscaling(base: Value, change: Value) -> Value {
    let mut all = base;
    let fields = all.as_object_mut().unwrap();
    fields.extend(change.as_object().unwrap().clone());
    fields.retain(|_, value| !value.is_null());
    json!({"autoscaling": all})
}

fn by_metrics(metric: Value) -> Value {
    json!({"autoscaling": {"minReplicas": 2, "maxReplicas": 10, "metrics": [metric]}})
}

fn cpu(target: Value) -> Value {
    by_metrics(json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}))
}

#[tokio::test]
async fn a_model_is_a_name_or_a_place() {
    let model = |text: &str| json!({"model": text});
    let wrong = "must be owner/name";
    let longest = format!("a/{}", "b".repeat(510));
    check::<InferenceEndpoint>(
        base(),
        vec![
            case("model", wrong, model("qwen"), model("ms://qwen/Qwen@master")),
            case("model", wrong, model("a/b/c"), model("hf://a/b@refs/pr/1")),
            case("model", wrong, model("http://host/a"), model("s3://models/a/b")),
            case("model", wrong, model("-a/b"), model("pvc://claim/a")),
            case("model", "must not contain", model("s3://models/../x"), model("a.b/c_d-e")),
            case("model", "empty or '.' segment", model("s3://models//x"), model("s3://models")),
            case("model", "may not be more than 512", model(&format!("{longest}c")), model(&longest)),
            case("model", "Required value", json!({"model": null}), json!({})),
        ],
    )
    .await;
}

#[tokio::test]
async fn an_accelerator_has_gpus_and_a_cpu_has_none() {
    let on = |accelerator: &str, gpus: i32| json!({"accelerator": accelerator, "gpus": gpus});
    let image = |accelerator: &str, image: &str| json!({"accelerator": accelerator, "image": image});
    let triton = |gpus: i32| json!({"accelerator": "cpu", "engine": "triton", "gpus": gpus});
    check::<InferenceEndpoint>(
        base(),
        vec![
            case("accelerator", "must be a GPU product", on("h 100", 1), on("NVIDIA-H100-PCIe", 8)),
            case("accelerator", "must be a GPU product", on("=x", 1), on("gpu.example/type=x", 16)),
            case("accelerator", "Required value", json!({"accelerator": null}), json!({})),
            case("gpus", "must be 0 or absent with accelerator cpu", triton(1), triton(0)),
            case("gpus", "must be at least 1", on("h100", 0), on("h100", 1)),
            case("gpus", "less than or equal to 16", on("h100", 17), on("h100", 16)),
            case(
                "image",
                "must be set with accelerator cpu, or engine must be triton",
                json!({"accelerator": "cpu"}),
                json!({"accelerator": "cpu", "engine": "triton"}),
            ),
            case("image", "must be an image reference", image("cpu", ""), image("cpu", "vllm-cpu:v1")),
        ],
    )
    .await;
}

#[tokio::test]
async fn an_autoscaler_has_bounds_and_one_kind_of_metric() {
    let queue = |change: Value| autoscaling(by_queue(), change);
    let source = json!({"prometheus": {"query": "sum(q)"}});
    let counted = json!({"prometheus": {"query": "q", "completionsQuery": "c"}});
    let metrics = json!([{"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 70}}}]);
    let one = "must have exactly one of metrics";
    check::<InferenceEndpoint>(
        base(),
        vec![
            case(
                "replicas",
                "must not be 0 with autoscaling",
                json!({"replicas": 0, "autoscaling": by_queue()}),
                json!({"replicas": 1, "autoscaling": by_queue()}),
            ),
            case(
                "autoscaling.minReplicas",
                "must not be above maxReplicas",
                queue(json!({"minReplicas": 11})),
                queue(json!({"minReplicas": 10})),
            ),
            case(
                "autoscaling.minReplicas",
                "greater than or equal to 1",
                queue(json!({"minReplicas": 0})),
                queue(json!({"minReplicas": 1})),
            ),
            case("autoscaling", one, queue(json!({"metrics": metrics})), queue(json!({}))),
            case(
                "autoscaling",
                one,
                queue(json!({"metricType": null, "targetValue": null})),
                queue(json!({"metricType": null, "targetValue": null, "metrics": metrics})),
            ),
            case(
                "autoscaling.targetValue",
                "must be set together with metricType",
                queue(json!({"targetValue": null})),
                queue(json!({"targetValue": "800m"})),
            ),
            case(
                "autoscaling.source",
                "required with metricType custom",
                queue(json!({"metricType": "custom"})),
                queue(json!({"metricType": "custom", "source": source})),
            ),
            case(
                "autoscaling.source",
                "completionsQuery needs metricType queue_depth",
                queue(json!({"metricType": "latency", "source": counted})),
                queue(json!({"source": counted})),
            ),
            case(
                "autoscaling.source",
                "needs metricType",
                queue(json!({"metricType": null, "targetValue": null, "metrics": metrics, "source": source})),
                queue(json!({"source": source})),
            ),
            case(
                "autoscaling.behavior",
                "needs metricType",
                queue(json!({"metricType": null, "targetValue": null, "metrics": metrics, "behavior": {}})),
                queue(json!({"behavior": {}})),
            ),
            case(
                "autoscaling.fallback",
                "needs metricType",
                queue(json!({"metricType": null, "targetValue": null, "metrics": metrics,
                             "fallback": {"afterSeconds": 60, "replicas": 3}})),
                queue(json!({"fallback": {"afterSeconds": 60, "replicas": 3}})),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_metric_has_the_shape_of_autoscaling_v2() {
    let utilization = json!({"type": "Utilization", "averageUtilization": 70});
    let value = json!({"type": "AverageValue", "averageValue": "500m"});
    let of_container = |name: &str| json!({"name": "cpu", "container": name, "target": utilization});
    let container = |name: &str| {
        by_metrics(json!({"type": "ContainerResource", "containerResource": of_container(name)}))
    };
    check::<InferenceEndpoint>(
        base(),
        vec![
            case(
                "autoscaling.metrics[0].resource",
                "must be set with type Resource",
                by_metrics(json!({"type": "Resource", "containerResource": of_container("engine")})),
                cpu(utilization.clone()),
            ),
            case(
                "autoscaling.metrics[0].containerResource",
                "must be set with type ContainerResource",
                by_metrics(json!({"type": "ContainerResource"})),
                container("engine"),
            ),
            case(
                "autoscaling.metrics[0].containerResource.container",
                "must consist of",
                container("Engine"),
                container("engine"),
            ),
            case(
                "autoscaling.metrics[0].type",
                "Unsupported value",
                by_metrics(json!({"type": "Pods"})),
                cpu(value.clone()),
            ),
            case(
                "autoscaling.metrics[0].resource.target.averageUtilization",
                "must be set with type Utilization",
                cpu(json!({"type": "Utilization", "averageValue": "1"})),
                cpu(utilization.clone()),
            ),
            case(
                "autoscaling.metrics[0].resource.target.averageValue",
                "must be set with type AverageValue",
                cpu(json!({"type": "AverageValue", "averageUtilization": 70})),
                cpu(value),
            ),
        ],
    )
    .await;
}

/// The rules of the AIInference hold where the user writes.
#[tokio::test]
async fn fields_of_an_aiinference_have_its_rules() {
    let gateway = json!({"name": "public", "hostnames": ["chat.example.com"]});
    check::<InferenceEndpoint>(
        base(),
        vec![
            case(
                "args",
                "must not set a flag that the controller sets",
                json!({"args": ["--port=1"]}),
                json!({"args": ["--max-model-len=1"]}),
            ),
            case(
                "routeRef",
                "must not be set together with gateway",
                json!({"gateway": gateway, "routeRef": {"name": "r"}}),
                json!({"gateway": gateway}),
            ),
            case(
                "gateway",
                "or routeRef is required by canary.weightPercent",
                json!({"canary": {"image": "e:2", "weightPercent": 10}}),
                json!({"canary": {"image": "e:2", "weightPercent": 10}, "gateway": gateway}),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn an_endpoint_without_more_is_one_pod_with_vllm() {
    let scene = tests::api_server().await;
    let stored = attempt::<InferenceEndpoint>(&scene, &base(), &json!({})).await.unwrap();
    let expected =
        json!({"model": "qwen/Qwen-7B-Chat", "accelerator": "h100", "replicas": 1, "engine": "vllm"});
    assert_eq!(stored.data["spec"], expected);
}

/// As of an AIInference, whose name is the same.
#[tokio::test]
async fn the_name_leaves_room_for_the_candidates_service() {
    let scene = tests::api_server().await;
    let objects: Api<InferenceEndpoint> = Api::namespaced(scene.client(), scene.namespace());
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let named = |length: usize| -> InferenceEndpoint {
        let mut spec = base();
        spec["routeRef"] = json!({"name": "web"});
        serde_json::from_value(json!({
            "apiVersion": "aistudio.modelscope.cn/v1alpha1",
            "kind": "InferenceEndpoint",
            "metadata": {"name": "n".repeat(length)},
            "spec": spec,
        }))
        .unwrap()
    };
    let refused = objects.create(&dry_run, &named(57)).await.unwrap_err().to_string();
    assert!(refused.contains("spec.routeRef") && refused.contains("more than 56 characters"), "{refused}");
    objects.create(&dry_run, &named(56)).await.unwrap();
}
