//! From a model's name to pods.

use std::{collections::BTreeSet, fs};

use api::{
    aiinference::AIInference,
    aiinference::endpoint::{InferenceEndpoint, Phase},
    conditions,
};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::DeleteParams;
use local_cluster::{ClusterSpec, NodePool};
use serde_json::json;
use tests::{
    Scene, controller, follow, fresh_name,
    inference::endpoint::{change, condition, create, until_condition, until_inference, until_ready},
    simulated, start, tools, wait_for, wait_until_gone, within, workspace,
};

/// The manifest that the kind is for, as it is.
#[tokio::test]
async fn the_given_manifest_becomes_ready_on_three_nodes_and_its_cpu_target_is_answered() {
    let products = vec!["NVIDIA-H100-80GB-HBM3".to_owned()];
    let nodes = NodePool { count: 3, products, ..NodePool::default() };
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), nodes)).await;
    for name in ["inference-controller", "endpoint-controller"] {
        cluster.start_controller(&controller(name)).await.unwrap();
    }
    let scene = Scene::new(&cluster).await;
    let manifest = fs::read_to_string(workspace().join("deploy/samples/inferenceendpoint.yaml")).unwrap();
    scene.apply(&manifest).await.unwrap();
    let name = "qwen-chat-online";
    until_ready(&scene, name).await;
    let endpoint = wait_for(
        &scene.api::<InferenceEndpoint>(),
        name,
        "3 of 3",
        within(),
        |endpoint: &InferenceEndpoint| {
            endpoint.status.as_ref().is_some_and(|status| status.ready.as_deref() == Some("3/3"))
        },
    )
    .await;
    let status = endpoint.status.clone().unwrap();
    assert_eq!((status.phase, status.ready_replicas, status.replicas), (Some(Phase::Ready), 3, 3));
    let resolved = status.resolved.unwrap();
    assert_eq!(resolved.model_source, "ms://qwen/Qwen-7B-Chat");
    assert_eq!(resolved.product_labels, ["nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3"]);
    assert_eq!(resolved.engine, "vllm");
    let url = format!("http://{name}.{}.svc:8000", scene.namespace());
    assert_eq!(status.url.as_deref(), Some(url.as_str()));
    let mut kinds: Vec<&str> = status.children.iter().map(|child| child.kind.as_str()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["AIInference", "HorizontalPodAutoscaler"]);
    let stalled = [conditions::STALLED, conditions::RECONCILING].map(|type_| condition(&endpoint, type_));
    assert_eq!(stalled, [None, None]);
    let scaling =
        until_condition(&scene, name, conditions::SCALING_ACTIVE, ("False", "MetricsAPIMissing")).await;
    assert!(condition(&scaling, conditions::SCALING_ACTIVE).unwrap().message.contains("queue_depth"));
    let hpa = scene.api::<HorizontalPodAutoscaler>().get(name).await.unwrap().spec.unwrap();
    assert_eq!((hpa.min_replicas, hpa.max_replicas), (Some(2), 10));
    assert_eq!(
        (hpa.scale_target_ref.kind.as_str(), hpa.scale_target_ref.name.as_str()),
        ("AIInference", name)
    );

    // With an API of such metrics the target is answered, and it is said that it does not help. The API has no metrics of
    // these pods, so the autoscaler cannot scale.
    scene.kubectl_with_input(&["apply", "--server-side", "-f", "-"], METRICS_API);
    let scaling =
        until_condition(&scene, name, conditions::SCALING_ACTIVE, ("False", "MetricNotLoadSensitive")).await;
    let message = &condition(&scaling, conditions::SCALING_ACTIVE).unwrap().message;
    assert!(message.contains("cpu does not show the load") && message.contains("queue_depth"), "{message}");
    until_ready(&scene, name).await;

    let shown = scene.kubectl(&["get", "ie", name]);
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "MODEL", "ACCELERATOR", "READY", "MIN", "MAX", "PHASE", "AGE"]);
    assert_eq!(lines[1][..7], [name, "qwen/Qwen-7B-Chat", "h100", "3/3", "2", "10", "Ready"]);

    scene.api::<InferenceEndpoint>().delete(name, &DeleteParams::default()).await.unwrap();
    wait_until_gone(&scene.api::<AIInference>(), name, within()).await;
    wait_until_gone(&scene.api::<HorizontalPodAutoscaler>(), name, within()).await;
}

/// As metrics-server has it, served from storage.
const METRICS_API: &str = r#"{
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "pods.metrics.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in for metrics-server"}
    },
    "spec": {
        "group": "metrics.k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "pods", "singular": "pod", "kind": "PodMetrics", "listKind": "PodMetricsList"},
        "versions": [{
            "name": "v1beta1",
            "served": true,
            "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
        }]
    }
}"#;

#[tokio::test]
async fn every_field_reaches_the_aiinference_and_fields_of_others_stay() {
    let scene = simulated().await;
    create(
        &scene,
        "chat",
        json!({
            "model": "s3://models/qwen",
            "gpus": 2,
            "replicas": 2,
            "args": ["--max-model-len=4096"],
            "env": [{"name": "A", "value": "1"}],
            "modelStore": {"endpoint": "https://store.example", "secretName": "store"},
            "resources": {"requests": {"cpu": 4}},
            "scheduling": {"nodeSelector": {"kubernetes.io/os": "linux"}},
        }),
    )
    .await;
    until_ready(&scene, "chat").await;
    let inference = scene.api::<AIInference>().get("chat").await.unwrap();
    let spec = serde_json::to_value(&inference.spec).unwrap();
    assert_eq!(spec["modelSource"], "s3://models/qwen");
    assert_eq!(spec["gpu"], json!({"count": 2, "productLabel": "H100", "resourceName": "nvidia.com/gpu"}));
    assert_eq!((&spec["replicas"], &spec["args"]), (&json!(2), &json!(["--max-model-len=4096"])));
    assert_eq!(spec["env"], json!([{"name": "A", "value": "1"}]));
    assert_eq!(spec["modelStore"]["secretName"], "store");
    assert_eq!(spec["resources"]["requests"]["cpu"], "4");
    assert_eq!(spec["scheduling"]["nodeSelector"], json!({"kubernetes.io/os": "linux"}));

    tests::inference::change(&scene, "chat", json!({"drainSeconds": 5, "args": ["--edited"]})).await;
    until_inference(&scene, "chat", "with its own arguments again", |inference| {
        inference.spec.args == ["--max-model-len=4096"]
    })
    .await;
    change(&scene, "chat", json!({"args": null, "model": "hf://Qwen/Qwen2.5@main"})).await;
    let inference = until_inference(&scene, "chat", "of the new model without arguments", |inference| {
        inference.spec.args.is_empty() && inference.spec.model_source == "hf://Qwen/Qwen2.5@main"
    })
    .await;
    assert_eq!(inference.spec.drain_seconds, Some(5), "the endpoint does not set it");
    until_ready(&scene, "chat").await;
}

/// What an endpoint costs the API server beside its children: two writes of its status at the beginning, and then one for
/// each change of what it shows of its AIInference, at most.
#[tokio::test]
async fn an_endpoint_is_written_twice_and_with_each_change_of_its_aiinference() {
    let scene = simulated().await;
    let endpoints = scene.api::<InferenceEndpoint>();
    let inferences = scene.api::<AIInference>();
    let mut versions = BTreeSet::new();
    let written = follow(&endpoints, "", |all| {
        let endpoint = all.values().next()?;
        versions.extend(endpoint.metadata.resource_version.clone());
        let is_ready = condition(endpoint, conditions::READY).is_some_and(|ready| ready.status == "True");
        is_ready.then_some(())
    });
    let mut shown = Vec::new();
    let changes = follow(&inferences, "", |all| {
        shown.extend(all.values().map(|inference| {
            let status = inference.status.clone().unwrap_or_default();
            (status.phase, status.ready_replicas)
        }));
        shown.dedup();
        None::<()>
    });
    let all = async {
        create(&scene, "chat", json!({"replicas": 2})).await;
        tokio::select! {
            () = written => {}
            () = changes => {}
        }
    };
    tokio::time::timeout(within(), all).await.expect("the endpoint is ready");
    // The first version is what the user has created.
    let writes = versions.len() - 1;
    println!("{writes} writes; the AIInference was {shown:?}");
    assert!(writes <= 2 + shown.len(), "{writes} writes; the AIInference was {shown:?}");
}

#[tokio::test]
async fn an_endpoint_with_0_replicas_is_stopped_and_starts_with_an_autoscaler() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"replicas": 0})).await;
    let stopped = until_condition(&scene, "chat", conditions::READY, ("False", "Stopped")).await;
    assert_eq!(stopped.status.unwrap().phase, Some(Phase::Stopped));
    change(&scene, "chat", json!({"replicas": 3, "autoscaling": tests::inference::endpoint::by_cpu()})).await;
    until_inference(&scene, "chat", "with 3 replicas", |inference| inference.spec.replicas == 3).await;
    until_ready(&scene, "chat").await;
}
