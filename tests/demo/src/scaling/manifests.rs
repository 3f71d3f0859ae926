//! The objects of the demo of scaling: twins, except for who scales them.

use serde_json::{Value, json};

use super::record::{Autoscaler, Settings};

pub(crate) fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

/// The queue that the HorizontalPodAutoscaler reads.
pub(crate) const QUEUE: &str = "requests_of_hpa";

/// Pods that load a model and warm up for so long, and have metrics on this port.
pub(crate) fn deployment(
    of: Autoscaler,
    replicas: u32,
    (loads_seconds, warms_up_seconds): (u32, u32),
    metrics_port: u16,
) -> Value {
    let labels = json!({ "app": of.name() });
    let fate = json!([
        { "name": "SIM_LOAD_TIME", "value": format!("{loads_seconds}s") },
        { "name": "SIM_READY_DELAY", "value": format!("{warms_up_seconds}s") },
    ]);
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": of.name() },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }],
                    "initContainers": [{ "name": "model-loader", "image": "loader:1" }],
                    "containers": [{
                        "name": "engine",
                        "image": "engine:1",
                        "env": fate,
                        "ports": [{ "name": "metrics", "containerPort": metrics_port }],
                    }],
                },
            },
        },
    })
}

/// The autoscaler of the Deployment of the same name.
pub(crate) fn autoscaler(of: Autoscaler, settings: &Settings) -> Value {
    // The period is the default of both, and no setting of an object.
    let Settings { target_value, min_replicas, max_replicas, period_seconds: _, down_window_seconds } =
        settings;
    let behavior = json!({ "scaleDown": { "stabilizationWindowSeconds": down_window_seconds } });
    let metadata = json!({ "name": of.name() });
    match of {
        Autoscaler::Hpa => json!({
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": metadata,
            "spec": {
                "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": of.name() },
                "minReplicas": min_replicas,
                "maxReplicas": max_replicas,
                "metrics": [{ "type": "External", "external": {
                    "metric": { "name": QUEUE },
                    "target": { "type": "AverageValue", "averageValue": target_value.to_string() },
                }}],
                "behavior": behavior,
            },
        }),
        Autoscaler::AiScaler => json!({
            "apiVersion": "ai.infra.example.com/v1",
            "kind": "AIScaler",
            "metadata": metadata,
            "spec": {
                "deploymentName": of.name(),
                "metricType": "queue_depth",
                "targetValue": target_value,
                "minReplicas": min_replicas,
                "maxReplicas": max_replicas,
                "behavior": behavior,
            },
        }),
    }
}
