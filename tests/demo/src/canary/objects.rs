//! The objects of the demo: a small model, the service with its versions, and the load on it. Pure.

use std::path::Path;

use serde_json::{Value, json};

use super::record::{STABLE, Settings, Version};

pub(super) const NAMESPACE: &str = "canary";
pub(super) const MODEL: &str = "chat";
pub(super) const LOAD: &str = "load";
/// Behaves like vLLM, and puts load on it; see `tests/engine`.
const ENGINE_IMAGE: &str = "local.test/test-engine:1";
/// The version of vLLM whose flags it knows.
const ENGINE_VERSION: &str = "0.28.0";
/// Of the GPUs of real nodes.
pub(super) const PRODUCT: &str = "T4";
const PATH: &str = "/chat/v1";
/// A machine that is busy answers late.
const ANSWERED_WITHIN: &str = "30";
const REPLICAS: u32 = 2;

/// The folder of this machine as a volume, and the claim of it.
pub(super) fn claim(folder: &Path) -> [Value; 2] {
    let storage = json!({ "storage": "1Gi" });
    [
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": { "name": "models" },
            "spec": {
                "capacity": storage,
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "",
                "claimRef": { "namespace": NAMESPACE, "name": "models" },
                "hostPath": { "path": folder, "type": "Directory" },
            },
        }),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": { "name": "models" },
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "",
                "volumeName": "models",
                "resources": { "requests": storage },
            },
        }),
    ]
}

pub(super) fn inference(gateway: &str) -> Value {
    json!({
        "apiVersion": "ai.infra.example.com/v1alpha1",
        "kind": "AIInference",
        "metadata": { "name": MODEL },
        "spec": {
            "modelSource": "pvc://models",
            "engine": "vllm",
            "image": ENGINE_IMAGE,
            "engineVersion": ENGINE_VERSION,
            "gpu": { "productLabel": PRODUCT, "count": 1 },
            "replicas": REPLICAS,
            "drainSeconds": 30,
            "env": engine(STABLE, ""),
            "gateway": { "name": gateway, "pathPrefixes": [PATH] },
        },
    })
}

/// The change that gives a version its shares.
pub(super) fn canary(version: Version, settings: Settings) -> Value {
    let Settings { interval_seconds, bad_percent, limit_percent, step_percents, .. } = settings;
    let fault = match version {
        Version::Bad => format!("error-share:{bad_percent}"),
        Version::Good => String::new(),
    };
    let steps =
        step_percents.map(|percent| json!({ "weightPercent": percent, "minSeconds": 20, "minRequests": 60 }));
    let metric = json!({ "name": "errorRate", "limitPercent": limit_percent.to_string() });
    json!({
        "spec": {
            "canary": {
                "env": engine(version.revision(), &fault),
                "steps": steps,
                "promotion": "Auto",
                "analysis": { "intervalSeconds": interval_seconds, "metrics": [metric] },
            },
        },
    })
}

fn engine(revision: &str, fault: &str) -> Value {
    json!([
        { "name": "ENGINE_REVISION", "value": revision },
        { "name": "ENGINE_ANSWER_MILLISECONDS", "value": "100" },
        { "name": "ENGINE_FAULT", "value": fault },
    ])
}

/// A pod that asks Envoy, whether it answers or not.
pub(super) fn load(envoy: &str, settings: Settings) -> Value {
    let url = format!("http://{envoy}{PATH}/chat/completions");
    let [rate, seconds] =
        [settings.requests_per_second, settings.load_seconds].map(|number| number.to_string());
    let args =
        ["load", "--url", &url, "--rate", &rate, "--seconds", &seconds, "--timeout-seconds", ANSWERED_WITHIN];
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": LOAD },
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": { "local-cluster/real": "true" },
            "containers": [{ "name": LOAD, "image": ENGINE_IMAGE, "args": args }],
        },
    })
}
