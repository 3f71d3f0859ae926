//! Pods of the tests: engines and load generators.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::PostParams;
use serde_json::{Value, json};
use tests::{ENGINE_IMAGE, Scene, is_ready, wait_for, within};

/// A pod on a real node that passes Pod Security `restricted`.
pub(crate) fn pod(name: &str, spec: Value) -> Pod {
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "nodeSelector": { "local-cluster/real": "true" },
            "terminationGracePeriodSeconds": 1,
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
        },
    });
    if let (Some(all), Value::Object(changes)) = (object["spec"].as_object_mut(), spec) {
        all.extend(changes);
    }
    serde_json::from_value(object).expect("a pod")
}

/// A container with the image of the test engine.
pub(crate) fn container(name: &str, args: &[&str], more: Value) -> Value {
    let mut container = json!({
        "name": name,
        "image": ENGINE_IMAGE,
        "args": args,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
    });
    if let (Some(all), Value::Object(changes)) = (container.as_object_mut(), more) {
        all.extend(changes);
    }
    container
}

/// An engine that is ready at once.
pub(crate) fn engine(name: &str, port: u16) -> Value {
    // With TGI's command line, because vLLM's needs a model configuration.
    let args = ["--model-id=/etc".to_owned(), format!("--port={port}")];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    container(
        name,
        &args,
        json!({ "readinessProbe": { "httpGet": { "path": "/health", "port": port }, "periodSeconds": 1 } }),
    )
}

/// A load generator for a URL, which prints a report.
pub(crate) fn load(url: &str) -> Value {
    // No test is about the time of an answer, and the machine may be slow.
    load_of(url, 20, 2, 20, None)
}

/// A load generator of so many requests per second, each with so many seconds to be answered. It begins when a request was
/// answered.
pub(crate) fn load_of(url: &str, rate: u64, seconds: u64, timeout_seconds: u64, more: Option<&str>) -> Value {
    let [rate, seconds, timeout] = [rate, seconds, timeout_seconds].map(|number| number.to_string());
    let args = ["load", "--url", url, "--rate", &rate, "--seconds", &seconds, "--timeout-seconds", &timeout];
    let args: Vec<&str> = args.into_iter().chain(["--first-answer-seconds", "30"]).chain(more).collect();
    container("load", &args, json!({}))
}

pub(crate) async fn create(scene: &Scene<'_>, pod: &Pod) {
    scene.api::<Pod>().create(&PostParams::default(), pod).await.expect("the pod is admitted");
}

pub(crate) async fn until_ready(scene: &Scene<'_>, name: &str) -> Pod {
    wait_for(&scene.api::<Pod>(), name, "ready", within(), is_ready).await
}

pub(crate) fn container_status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|status| status.name == name)
}

/// The report of a load generator.
pub(crate) async fn report(scene: &Scene<'_>, name: &str) -> Value {
    report_within(scene, name, within()).await
}

pub(crate) async fn report_within(scene: &Scene<'_>, name: &str, within: Duration) -> Value {
    wait_for(&scene.api::<Pod>(), name, "done", within, |pod: &Pod| {
        pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded")
    })
    .await;
    let logs = scene.kubectl(&["logs", name]);
    let last = logs.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {logs}"))
}
