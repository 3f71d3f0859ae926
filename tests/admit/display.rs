//! kubectl: columns, explain, categories, wait, scale.

use api::{
    aidispatcher::AIDispatcher,
    aiinference::{AIInference, endpoint::InferenceEndpoint, evaluation::ModelEvaluation},
    aiscaler::AIScaler,
    crds::crds,
    trainingjob::TrainingJob,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::{
    Resource,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tests::Scene;

use crate::table::{api, create};

#[tokio::test]
async fn aiinference_shows_its_columns() {
    let scene = tests::api_server().await;
    let spec = json!({"modelSource": "s3://models/qwen", "engine": "vllm", "replicas": 2,
                      "gpu": {"productLabel": "A100", "count": 1}});
    let status = json!({"phase": "Loading", "readyReplicas": 1, "url": "http://chat.demo.svc:8000",
                        "conditions": [condition("Ready", "False", "WarmupTimeout")]});
    shown::<AIInference>(
        &scene,
        spec,
        status,
        &[
            ("PHASE", "Loading"),
            ("READY", "1"),
            ("REPLICAS", "2"),
            ("ENGINE", "vllm"),
            ("GPU", "A100"),
            ("AGE", ""),
        ],
        &[("MODEL", "s3://models/qwen"), ("URL", "http://chat.demo.svc:8000"), ("REASON", "WarmupTimeout")],
    )
    .await;
}

#[tokio::test]
async fn an_aiinference_with_several_products_shows_them() {
    let scene = tests::api_server().await;
    let spec = json!({"modelSource": "s3://models/qwen", "engine": "vllm",
                      "gpu": {"productLabels": ["A100", "H100"], "count": 1}});
    create::<AIInference>(&scene, "several", spec).await;
    write_status::<AIInference>(&scene, "several", json!({"gpu": "A100 or H100"})).await;
    let shown = scene.kubectl(&["get", "aii", "several", "--no-headers"]);
    assert!(shown.contains(" A100 or H100 "), "{shown}");

    // Without status.gpu, as in a new object, the column shows spec.gpu.productLabel.
    let spec = json!({"modelSource": "s3://models/qwen", "engine": "vllm",
                      "gpu": {"productLabel": "L40S", "count": 1}});
    create::<AIInference>(&scene, "one", spec).await;
    let shown = scene.kubectl(&["get", "aii", "one", "--no-headers"]);
    assert!(shown.contains(" L40S "), "{shown}");
}

#[tokio::test]
async fn trainingjob_shows_its_columns() {
    let scene = tests::api_server().await;
    let spec = json!({"model": "qwen/Qwen-7B", "dataset": "a", "method": "qlora", "gpus": 2});
    let status = json!({"phase": "Running", "reason": "Training", "retries": 1,
                        "progress": {"percent": 42, "loss": "1.234", "eta": "1h32m"},
                        "checkpoint": {"path": "/output/checkpoint-100", "step": 100}});
    shown::<TrainingJob>(
        &scene,
        spec,
        status,
        &[
            ("PHASE", "Running"),
            ("PROGRESS", "42"),
            ("LOSS", "1.234"),
            ("ETA", "1h32m"),
            ("RETRIES", "1"),
            ("AGE", ""),
        ],
        &[
            ("METHOD", "qlora"),
            ("MODEL", "qwen/Qwen-7B"),
            ("GPUS", "2"),
            ("DEVICE", "nvidia"),
            ("REASON", "Training"),
            ("CHECKPOINT", "/output/checkpoint-100"),
        ],
    )
    .await;
}

#[tokio::test]
async fn aidispatcher_shows_its_columns() {
    let scene = tests::api_server().await;
    let spec = json!({"role": "planner", "modelRef": "gpt-4", "replicas": 2});
    let status = json!({"desiredReplicas": 5, "currentPhase": "Processing", "activeWorkers": 3, "queueDepth": 12,
                        "tokenUsage": 90000});
    shown::<AIDispatcher>(
        &scene,
        spec,
        status,
        &[("ROLE", "planner"), ("REPLICAS", "5"), ("PHASE", "Processing"), ("AGE", "")],
        &[("ACTIVE", "3"), ("QUEUE", "12"), ("TOKENS", "90000"), ("MODEL", "gpt-4")],
    )
    .await;
}

#[tokio::test]
async fn aiscaler_shows_its_columns_for_both_kinds_of_target() {
    let status = json!({
        "currentReplicas": 3,
        "metric": {"value": "12", "target": "5", "display": "12/5"},
        "conditions": [condition("Ready", "False", "MetricMissing")],
    });
    let reference = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web"});
    for (field, target) in [("deploymentName", json!("web")), ("targetRef", reference)] {
        let scene = tests::api_server().await;
        let spec = json!({field: target, "metricType": "queue_depth", "targetValue": 5, "minReplicas": 2, "maxReplicas": 10});
        shown::<AIScaler>(
            &scene,
            spec,
            status.clone(),
            &[
                ("TARGET", "web"),
                ("METRIC", "queue_depth"),
                ("VALUE", "12/5"),
                ("MIN", "2"),
                ("MAX", "10"),
                ("REPLICAS", "3"),
                ("AGE", ""),
            ],
            &[("REASON", "MetricMissing")],
        )
        .await;
    }
}

#[tokio::test]
async fn inferenceendpoint_shows_its_columns() {
    let scene = tests::api_server().await;
    let autoscaling =
        json!({"minReplicas": 2, "maxReplicas": 10, "metricType": "queue_depth", "targetValue": 5});
    shown::<InferenceEndpoint>(
        &scene,
        json!({"model": "qwen/Qwen-7B-Chat", "accelerator": "h100", "autoscaling": autoscaling}),
        json!({
            "phase": "Progressing",
            "ready": "2/3",
            "url": "http://a.b.svc:8000",
            "conditions": [condition("Ready", "False", "Loading")],
        }),
        &[
            ("MODEL", "qwen/Qwen-7B-Chat"),
            ("ACCELERATOR", "h100"),
            ("READY", "2/3"),
            ("MIN", "2"),
            ("MAX", "10"),
            ("PHASE", "Progressing"),
            ("AGE", ""),
        ],
        &[("URL", "http://a.b.svc:8000"), ("REASON", "Loading")],
    )
    .await;
}

#[tokio::test]
async fn modelevaluation_shows_its_columns() {
    let scene = tests::api_server().await;
    shown::<ModelEvaluation>(
        &scene,
        json!({"baselineModel": "qwen/Qwen-7B", "candidateModel": "/checkpoints/a", "testSet": "mmlu-zh"}),
        json!({
            "phase": "Succeeded",
            "verdict": "Passed",
            "difference": "-0.35",
            "summary": "mmlu-zh",
            "reason": "Passed",
        }),
        &[
            ("BASELINE", "qwen/Qwen-7B"),
            ("CANDIDATE", "/checkpoints/a"),
            ("TESTSET", "mmlu-zh"),
            ("VERDICT", "Passed"),
            ("DIFFERENCE", "-0.35"),
            ("PHASE", "Succeeded"),
            ("AGE", ""),
        ],
        &[("SUMMARY", "mmlu-zh"), ("REASON", "Passed")],
    )
    .await;
}

#[tokio::test]
async fn the_category_lists_every_kind_and_each_kind_has_a_short_name() {
    let scene = tests::api_server().await;
    create::<AIInference>(
        &scene,
        "a",
        json!({"modelSource": "s3://m", "engine": "vllm", "gpu": {"count": 1}}),
    )
    .await;
    create::<TrainingJob>(&scene, "b", json!({"model": "m", "dataset": "d", "method": "lora"})).await;
    create::<AIDispatcher>(&scene, "c", json!({"role": "coder"})).await;
    let spec = json!({"deploymentName": "web", "metricType": "latency", "targetValue": 1, "maxReplicas": 2});
    create::<AIScaler>(&scene, "d", spec).await;
    create::<InferenceEndpoint>(&scene, "e", json!({"model": "a/b", "accelerator": "h100"})).await;
    let spec = json!({"baselineModel": "a/b", "candidateModel": "a/c", "testSet": "cmmlu"});
    create::<ModelEvaluation>(&scene, "f", spec).await;

    let mut listed: Vec<_> = scene.kubectl(&["get", "ai", "-o", "name"]).lines().map(str::to_owned).collect();
    listed.sort();
    let expected = [
        "aidispatcher.southwest.ai/c",
        "aiinference.ai.infra.example.com/a",
        "aiscaler.ai.infra.example.com/d",
        "inferenceendpoint.aistudio.modelscope.cn/e",
        "modelevaluation.aistudio.modelscope.cn/f",
        "trainingjob.aistudio.modelscope.cn/b",
    ];
    assert_eq!(listed, expected);
    for (short, name) in
        ["aii", "tj", "ad", "ais", "ie", "me"].into_iter().zip(["a", "b", "c", "d", "e", "f"])
    {
        scene.kubectl(&["get", short, name]);
    }
}

#[tokio::test]
async fn kubectl_explains_every_field() {
    let scene = tests::api_server().await;
    for crd in crds() {
        let root = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
        let mut paths = vec![crd.spec.names.plural.clone()];
        collect_objects(&crd.spec.names.plural, &root, &mut paths);
        for path in paths {
            let text = scene.kubectl(&["explain", &path]);
            assert!(!text.contains("<no description>") && !text.contains("<empty>"), "{path}:\n{text}");
        }
    }
}

#[tokio::test]
async fn kubectl_waits_for_a_condition() {
    let scene = tests::api_server().await;
    create::<AIDispatcher>(&scene, "pool", json!({"role": "coder"})).await;
    // kubectl ignores conditions of an earlier generation.
    let status = json!({"observedGeneration": 1, "conditions": [condition("Ready", "True", "Ready")]});
    write_status::<AIDispatcher>(&scene, "pool", status).await;
    scene.kubectl(&["wait", "--for=condition=Ready", "ad/pool", "--timeout=20s"]);
}

#[tokio::test]
async fn kinds_with_replicas_can_be_scaled_within_their_bounds() {
    let scene = tests::api_server().await;
    create::<AIInference>(
        &scene,
        "chat",
        json!({"modelSource": "s3://m", "engine": "vllm", "gpu": {"count": 1}}),
    )
    .await;
    create::<AIDispatcher>(&scene, "chat", json!({"role": "coder"})).await;
    let status = json!({"replicas": 2, "selector": "app.kubernetes.io/instance=chat"});
    write_status::<AIInference>(&scene, "chat", status.clone()).await;
    write_status::<AIDispatcher>(&scene, "chat", status).await;

    for (kind, plural) in [("aii", "aiinferences"), ("ad", "aidispatchers")] {
        scene.kubectl(&["scale", kind, "chat", "--replicas=3"]);
        let objects = if kind == "aii" {
            api::<AIInference>(scene.client(), scene.namespace())
        } else {
            api::<AIDispatcher>(scene.client(), scene.namespace())
        };
        let scale = objects.get_scale("chat").await.unwrap();
        let (spec, status) = (scale.spec.unwrap(), scale.status.unwrap());
        assert_eq!((spec.replicas, status.replicas), (Some(3), 2), "{plural}");
        assert_eq!(status.selector.as_deref(), Some("app.kubernetes.io/instance=chat"), "{plural}");

        let refused = scene.kubectl_with_input(&["scale", kind, "chat", "--replicas=1001"], "");
        let message = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && message.contains("spec.replicas"), "{plural}: {message}");
    }
}

#[tokio::test]
async fn a_status_accepts_values_that_this_release_does_not_know() {
    let scene = tests::api_server().await;
    create::<AIDispatcher>(&scene, "pool", json!({"role": "coder"})).await;
    let status = json!({"currentPhase": "Draining", "state": "Overloaded",
                        "conditions": [condition("BrandNew", "Unknown", "AnyReason")]});
    write_status::<AIDispatcher>(&scene, "pool", status).await;
    assert!(scene.kubectl(&["get", "ad", "pool"]).contains("Draining"));
}

/// Compares the output of `kubectl get`, normal and wide, with columns and cells; empty cells are ignored.
async fn shown<K: Resource<DynamicType = ()>>(
    scene: &Scene<'_>,
    spec: Value,
    status: Value,
    normal: &[(&str, &str)],
    wide: &[(&str, &str)],
) {
    create::<K>(scene, "shown", spec).await;
    write_status::<K>(scene, "shown", status).await;
    let plural = K::plural(&()).into_owned();
    for (args, columns) in [
        (vec!["get", &plural], normal.to_vec()),
        (vec!["get", &plural, "-o", "wide"], [normal, wide].concat()),
    ] {
        let text = scene.kubectl(&args);
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let (header, row) = (lines.next().unwrap(), lines.next().unwrap());
        let names: Vec<_> = std::iter::once("NAME").chain(columns.iter().map(|(name, _)| *name)).collect();
        assert_eq!(header, names, "{text}");
        let cells = std::iter::once(("NAME", "shown")).chain(columns);
        for ((name, expected), cell) in cells.zip(row) {
            assert!(
                expected.is_empty() || cell == expected,
                "{name} is {cell} instead of {expected}:\n{text}"
            );
        }
    }
}

async fn write_status<K: Resource<DynamicType = ()>>(scene: &Scene<'_>, name: &str, status: Value) {
    let patch = Patch::Merge(json!({"status": status}));
    let written =
        api::<K>(scene.client(), scene.namespace()).patch_status(name, &PatchParams::default(), &patch).await;
    if let Err(error) = written {
        panic!("the status of {} {name} was refused: {error}", K::kind(&()));
    }
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"})
}

/// The paths of all fields with subfields.
fn collect_objects(path: &str, schema: &JSONSchemaProps, paths: &mut Vec<String>) {
    for (field, property) in schema.properties.iter().flatten() {
        let items = match &property.items {
            Some(JSONSchemaPropsOrArray::Schema(items)) => items,
            Some(JSONSchemaPropsOrArray::Schemas(_)) | None => property,
        };
        let path = format!("{path}.{field}");
        if items.properties.is_some() {
            collect_objects(&path, items, paths);
            paths.push(path);
        }
    }
}
