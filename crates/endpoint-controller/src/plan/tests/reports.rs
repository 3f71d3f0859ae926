//! What the status and events say where something is wrong.

use super::*;

fn with_status(endpoint: &mut InferenceEndpoint, status: InferenceEndpointStatus) {
    endpoint.status = Some(status);
}

/// Missing GPUs are no failure of an AIInference, and nothing of them is a passing detail.
#[test]
fn pods_that_wait_for_nodes_are_told_from_pods_that_start() {
    let mut seen = observed(endpoint(&json!({"replicas": 3})));
    let short = |ready: i32, reason: &str| {
        json!({"phase": "Loading", "readyReplicas": ready, "conditions": [
            condition("Scheduled", "False", reason), condition("Ready", "False", reason)]})
    };
    for (ready, phase) in [(0, Phase::Pending), (2, Phase::Degraded)] {
        seen.inference = inference(3, Some("spec"), &short(ready, "InsufficientGPU"));
        let status = assessed_now(&seen);
        assert_eq!((status.phase, status.comes_up), (phase, false));
    }
    let starting = json!({"phase": "Loading", "readyReplicas": 0, "conditions": [
        condition("Scheduled", "True", "Scheduled"), condition("Ready", "False", "Loading")]});
    seen.inference = inference(3, Some("spec"), &starting);
    let status = assessed_now(&seen);
    assert_eq!((status.phase, status.comes_up), (Phase::Progressing, true));
}

fn assessed_now(seen: &Observed) -> Assessment {
    assessed(&validate(&seen.endpoint, None).unwrap(), seen, &settings(), at(0))
}

/// The table of products of this controller may lack one that the inference-controller knows.
#[test]
fn a_product_without_nodes_is_no_reason_of_pods_that_have_nodes() {
    let mut seen = observed(endpoint(&json!({"accelerator": "NVIDIA-X"})));
    seen.nodes = Some(Vec::new());
    let failing = |scheduled: &str| {
        json!({"phase": "Failed", "readyReplicas": 0, "conditions": [
            condition("Scheduled", scheduled, "Scheduled"), condition("Ready", "False", "CrashLoop")]})
    };
    for (scheduled, reason) in [("True", "CrashLoop"), ("False", "NoSuchProduct")] {
        seen.inference = inference(1, Some("spec"), &failing(scheduled));
        assert_eq!(said(&planned(&seen).status, conditions::READY), is("False", reason));
    }
}

#[test]
fn what_comes_up_is_not_failed_without_the_autoscaler_that_was_refused() {
    let mut seen = observed(endpoint(&json!({"autoscaling": by_queue()})));
    let loading = json!({"phase": "Loading", "readyReplicas": 0, "conditions": [
        condition("Ready", "False", "ImagePullBackOff")]});
    seen.inference = inference(2, Some("scaler"), &loading);
    let denied = Refusal::Denied("AIScaler demo/chat: quota".to_owned());
    let status = refused(&denied, &seen, &settings(), at(0)).status;
    assert_eq!(status.phase, Some(Phase::Progressing));
    assert_eq!(said(&status, conditions::READY), is("False", "ImagePullBackOff"));
    assert_eq!(said(&status, conditions::SCALING_ACTIVE), is("False", "Denied"));
}

#[test]
fn an_autoscaler_that_does_not_end_is_named_with_its_finalizers() {
    for fields in [json!({"replicas": 9}), json!({"autoscaling": by_queue()})] {
        let mut seen = observed(endpoint(&fields));
        seen.inference = inference(3, Some("scaler"), &json!({}));
        let mut old = hpa(&condition("ScalingActive", "True", "ValidMetricFound"));
        if let Sighting::Own(hpa) = &mut old {
            hpa.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(-60)));
            hpa.metadata.finalizers = Some(vec!["example.com/audit".to_owned()]);
        }
        seen.hpa = old;
        let status = planned(&seen).status;
        assert_eq!(said(&status, conditions::SCALING_ACTIVE), is("False", "Waiting"));
        let found = status.conditions.iter().find(|known| known.type_ == conditions::SCALING_ACTIVE);
        assert!(found.unwrap().message.contains("HorizontalPodAutoscaler demo/chat is being deleted"));
        assert!(found.unwrap().message.contains("(example.com/audit)"));
    }
}

/// It had left the target to another one, and was deleted with it.
#[test]
fn replicas_are_those_of_the_spec_at_once_after_an_autoscaler_of_the_endpoint() {
    let mut endpoint = endpoint(&json!({"replicas": 3}));
    let status: InferenceEndpointStatus = serde_json::from_value(json!({
        "children": [
            {"kind": "AIInference", "name": "chat", "uid": "i"}, {"kind": "AIScaler", "name": "chat", "uid": "s"}],
        "conditions": [condition("ScalingActive", "False", "TargetManagedByOther")],
    }))
    .unwrap();
    with_status(&mut endpoint, status.clone());
    let mut seen = observed(endpoint.clone());
    seen.inference = inference(8, Some("scaler"), &json!({}));
    assert_eq!(replicas(&planned(&seen)), of_spec(8), "taken back, and then that of the spec");
    with_status(&mut endpoint, InferenceEndpointStatus { children: Vec::new(), ..status });
    seen.endpoint = endpoint.into();
    assert_eq!(replicas(&planned(&seen)), of_scaler(None), "one of another may come back");
}

/// A HorizontalPodAutoscaler loses its metrics at each rollout.
#[test]
fn advice_is_an_event_once() {
    let mut endpoint = endpoint(&json!({"autoscaling": by_cpu()}));
    let mut seen = observed(endpoint.clone());
    seen.inference = inference(3, Some("scaler"), &json!({}));
    let mut events = Vec::new();
    for status in ["True", "False", "True"] {
        seen.hpa = hpa(&condition("ScalingActive", status, "FailedGetResourceMetric"));
        let plan = planned(&seen);
        events.extend(plan.events.iter().map(|note| note.reason));
        with_status(&mut endpoint, plan.status);
        seen.endpoint = endpoint.clone().into();
    }
    assert_eq!(events, ["MetricNotLoadSensitive", "Ready"]);
}

/// After a failover, the watch of endpoints may be late and the others not.
#[test]
fn an_endpoint_that_is_older_than_its_inference_is_looked_up_first() {
    let mut seen = observed(endpoint(&json!({"replicas": 3})));
    seen.inference = inference(8, Some("scaler"), &json!({}));
    let doubts =
        |seen: &Observed| matches!(decide(seen, &settings(), at(0)), Decision::Doubt(Doubt::Outdated));
    assert!(!doubts(&seen));
    if let Sighting::Own(inference) = &mut seen.inference {
        inference.rendered_from = Some(3);
    }
    assert!(doubts(&seen));
    // An annotation that was edited by hand holds nothing up.
    seen.is_newest = true;
    assert!(!doubts(&seen));
}
