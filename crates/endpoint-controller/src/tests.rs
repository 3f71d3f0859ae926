//! Objects for the unit tests of this crate.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};
use workload::products::Products;

use crate::{
    Settings,
    child::{HpaView, InferenceView, ScalerView},
    endpoint::Endpoint,
    observe::{MetricsApi, Observed, Sighting},
};

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_268_800 + seconds).unwrap()
}

/// With the fields of the spec that the text adds.
pub(crate) fn endpoint(fields: &Value) -> Endpoint {
    let mut spec = json!({"model": "a/b", "accelerator": "h100"});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "aistudio.modelscope.cn/v1alpha1",
        "kind": "InferenceEndpoint",
        "metadata": {"name": "chat", "namespace": "demo", "uid": "e", "generation": 2},
        "spec": spec,
        "status": {"phase": "Pending", "observedGeneration": 0},
    }))
    .unwrap()
}

pub(crate) fn by_queue() -> Value {
    json!({"minReplicas": 2, "maxReplicas": 10, "metricType": "queue_depth", "targetValue": 5})
}

pub(crate) fn by_cpu() -> Value {
    json!({"minReplicas": 2, "maxReplicas": 10, "metrics": [{"type": "Resource", "resource":
        {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}]})
}

/// Nothing of it exists yet.
pub(crate) fn observed(endpoint: Endpoint) -> Observed {
    Observed {
        endpoint: Arc::new(endpoint),
        is_newest: false,
        inference: Sighting::Absent,
        hpa: Sighting::Absent,
        scaler: Sighting::Absent,
        rival: None,
        nodes: None,
        metrics_api: MetricsApi::Available,
        serves_inferences: true,
        serves_scalers: true,
        facts: BTreeMap::new(),
    }
}

/// Rendered from generation 2 and ready, unless `status` says something else.
pub(crate) fn inference(replicas: i32, setter: Option<&str>, status: &Value) -> Sighting<InferenceView> {
    let mut whole = json!({
        "phase": "Ready", "readyReplicas": replicas, "observedGeneration": 7,
        "conditions": [condition("Ready", "True", "Ready")],
    });
    whole.as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
    let mut annotations = json!({"ai.infra.example.com/generation": "2"});
    if let Some(setter) = setter {
        annotations["ai.infra.example.com/replicas"] = setter.into();
    }
    own(json!({
        "metadata": {"name": "chat", "uid": "i", "resourceVersion": "12", "generation": 7, "annotations": annotations},
        "spec": {"replicas": replicas},
        "status": whole,
    }))
}

pub(crate) fn condition(type_: &str, status: &str, reason: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": format!("{reason}."),
           "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

pub(crate) fn hpa(active: &Value) -> Sighting<HpaView> {
    own(json!({"metadata": {"name": "chat", "uid": "h"}, "status": {"conditions": [active]}}))
}

pub(crate) fn scaler(active: &Value) -> Sighting<ScalerView> {
    own(json!({"metadata": {"name": "chat", "uid": "s"}, "status": {"conditions": [active]}}))
}

fn own<V: serde::de::DeserializeOwned>(object: Value) -> Sighting<V> {
    Sighting::Own(Box::new(serde_json::from_value(object).unwrap()))
}

pub(crate) fn settings() -> Settings {
    Settings { library: None, products: Products::default(), refusal_retry: Duration::from_secs(60) }
}
