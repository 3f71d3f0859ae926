//! What the status and events say where something is wrong.

use super::*;

fn with_status(endpoint: &mut Endpoint, status: InferenceEndpointStatus) {
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

/// What its pods say while they load changes all the time.
#[test]
fn messages_of_pods_are_written_once_a_minute_also_while_something_is_refused() {
    let mut endpoint = endpoint(&json!({"autoscaling": by_queue()}));
    let mut seen = observed(endpoint.clone());
    let denied = Refusal::Denied("AIScaler demo/chat: quota".to_owned());
    let loading = |percent: i64| {
        let mut ready = condition("Ready", "False", "Loading");
        ready["message"] = format!("{percent} % are loaded").into();
        json!({"phase": "Loading", "readyReplicas": 0, "conditions": [ready]})
    };
    seen.inference = inference(2, Some("scaler"), &loading(1));
    let first = refused(&denied, &seen, &settings(), at(0));
    with_status(&mut endpoint, first.status.clone());
    seen.endpoint = endpoint.into();
    seen.facts = first.facts.into_iter().flatten().map(|fact| (fact, at(0))).collect();
    seen.inference = inference(2, Some("scaler"), &loading(2));
    let held = refused(&denied, &seen, &settings(), at(1));
    assert_eq!((&held.status, held.events.len()), (&first.status, 0));
    seen.facts = held.facts.into_iter().flatten().map(|fact| (fact, at(1))).collect();
    let written = refused(&denied, &seen, &settings(), at(62));
    assert_ne!(written.status, first.status);
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

/// A controller that went back to an older release than the CRDs drops no field of what serves.
#[test]
fn fields_that_this_release_does_not_know_reach_the_children_or_stop_the_endpoint() {
    let nested = json!({
        "modelStore": {"endpoint": "http://store", "ofTheFuture": 1},
        "autoscaling": {"minReplicas": 2, "maxReplicas": 10, "metricType": "queue_depth", "targetValue": 5,
            "ofTheFuture": {"a": true}},
    });
    let mut seen = observed(endpoint(&nested));
    seen.inference = inference(4, Some("scaler"), &json!({}));
    let plan = planned(&seen);
    assert_eq!(plan.inference.unwrap().rendered.spec["modelStore"]["ofTheFuture"], 1);
    let Some(Wanted::AIScaler(scaler)) = plan.scaler else { panic!("an AIScaler") };
    assert_eq!(scaler.spec["ofTheFuture"]["a"], true);

    let mut seen = observed(endpoint(&json!({"ofTheFuture": {}})));
    seen.inference = inference(2, Some("spec"), &json!({}));
    let plan = planned(&seen);
    assert!(plan.inference.is_none() && plan.scaler.is_none() && plan.superfluous.is_empty());
    assert_eq!(plan.status.phase, Some(Phase::Degraded));
    let accepted = plan.status.conditions.iter().find(|known| known.type_ == conditions::ACCEPTED).unwrap();
    assert!(accepted.message.starts_with("spec.ofTheFuture is not known to this release"), "{accepted:?}");
}

#[test]
fn a_refused_change_of_an_autoscaler_hides_nothing_of_the_pods() {
    let loading = json!({"phase": "Loading", "readyReplicas": 0, "conditions": [
        condition("Ready", "False", "CrashLoop")]});
    let denied = |fields: &Value| {
        let mut seen = observed(endpoint(fields));
        seen.inference = inference(2, Some("scaler"), &loading);
        seen.hpa = hpa(&condition("ScalingActive", "True", "ValidMetricFound"));
        let denied = "the API server denies HorizontalPodAutoscaler demo/chat: a policy";
        refused(&Refusal::Denied(denied.to_owned()), &seen, &settings(), at(0)).status
    };
    for fields in [json!({"autoscaling": by_cpu()}), json!({"replicas": 2})] {
        let status = denied(&fields);
        assert_eq!(said(&status, conditions::READY), is("False", "CrashLoop"), "{fields}");
        assert_eq!(said(&status, conditions::SCALING_ACTIVE), is("False", "Denied"), "{fields}");
        assert_eq!(said(&status, conditions::STALLED), is("True", "Denied"), "{fields}");
    }
}

/// After `kubectl delete --cascade=orphan` the pods serve on, and the endpoint is created again.
#[test]
fn what_a_deleted_endpoint_has_left_can_be_taken_over() {
    let mut seen = observed(endpoint(&json!({"replicas": 2})));
    seen.inference = Sighting::Foreign { owner: crate::observe::NO_OWNER.to_owned() };
    let plan = planned(&seen);
    assert!(plan.inference.is_none());
    let ready = plan.status.conditions.iter().find(|known| known.type_ == conditions::READY).unwrap();
    let patch =
        "kubectl -n demo patch AIInference chat --type merge -p '{\"metadata\":{\"ownerReferences\":[{";
    assert!(ready.message.contains(patch) && ready.message.contains("\"uid\":\"e\""), "{}", ready.message);
    // An autoscaler of the same name may have another target.
    let mut scaled = observed(endpoint(&json!({"autoscaling": by_cpu()})));
    scaled.hpa = Sighting::Foreign { owner: crate::observe::NO_OWNER.to_owned() };
    let plan = planned(&scaled);
    let hpa = plan.status.conditions.iter().find(|known| known.type_ == conditions::READY).unwrap();
    assert!(
        hpa.message.ends_with("rename the endpoint, or delete the HorizontalPodAutoscaler"),
        "{}",
        hpa.message
    );
    seen.inference = Sighting::Foreign { owner: "belongs to Team x".to_owned() };
    let plan = planned(&seen);
    let ready = plan.status.conditions.iter().find(|known| known.type_ == conditions::READY).unwrap();
    assert!(ready.message.contains("rename the endpoint"), "{}", ready.message);
}

/// Pods that load for minutes say something else every few seconds.
#[test]
fn what_pods_say_while_they_load_is_written_once_a_minute() {
    let mut seen = observed(endpoint(&json!({"replicas": 2})));
    let mut known = seen.facts.clone();
    let mut writes = 0;
    for second in 0..180 {
        let mut ready = condition("Ready", "False", "Loading");
        ready["message"] = format!("stage {}", second / 12).into();
        seen.inference = inference(
            2,
            Some("spec"),
            &json!({"phase": "Loading", "readyReplicas": 0, "conditions": [ready]}),
        );
        seen.facts = known.clone();
        let plan = plan(&seen, &settings(), at(second));
        if let Some(facts) = plan.facts {
            known.retain(|fact, _| facts.contains(fact));
            for fact in facts {
                known.entry(fact).or_insert(at(second));
            }
        }
        let mut endpoint = (*seen.endpoint).clone();
        if endpoint.status.as_ref() != Some(&plan.status) {
            writes += 1;
            with_status(&mut endpoint, plan.status);
            seen.endpoint = endpoint.into();
        }
    }
    assert!((1..=4).contains(&writes), "{writes} writes");
}
