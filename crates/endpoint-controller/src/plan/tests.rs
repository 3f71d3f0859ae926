//! What is planned for an endpoint in each state.

use api::{
    aiinference::endpoint::{InferenceEndpointStatus, Phase},
    conditions, labels,
};
use runtime::key::Key;
use serde_json::{Value, json};

use super::*;
use crate::{
    child::Active,
    endpoint::Endpoint,
    observe::MetricsApi,
    rivals::{Rival, RivalKind},
    tests::{at, by_cpu, by_queue, condition, endpoint, hpa, inference, observed, scaler, settings},
};

mod reports;

fn planned(observed: &Observed) -> Plan {
    plan(observed, &settings(), at(0))
}

/// The replicas that are applied, who sets them, and the replicas that are held first.
fn replicas(plan: &Plan) -> (Value, String, Option<i32>) {
    let rendered = &plan.inference.as_ref().unwrap().rendered;
    let annotations = rendered.metadata.annotations.clone().unwrap();
    let handover = plan.handover.as_ref().map(|handover| handover.replicas);
    (rendered.spec["replicas"].clone(), annotations[labels::REPLICAS].clone(), handover)
}

fn of_spec(replicas: i32) -> (Value, String, Option<i32>) {
    (json!(replicas), "spec".to_owned(), None)
}

fn of_scaler(handover: Option<i32>) -> (Value, String, Option<i32>) {
    (Value::Null, "scaler".to_owned(), handover)
}

fn said(status: &InferenceEndpointStatus, type_: &str) -> Option<(String, String)> {
    let found = status.conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((found.status.clone(), found.reason.clone()))
}

fn is(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

#[test]
fn the_first_number_is_within_the_bounds_and_no_autoscaler_exists_before_the_hand_over() {
    let new = observed(endpoint(&json!({"replicas": 3})));
    assert_eq!(replicas(&planned(&new)), of_spec(3));
    for (given, first) in [(1, 2), (3, 3), (99, 10)] {
        let new = observed(endpoint(&json!({"replicas": given, "autoscaling": by_cpu()})));
        let plan = planned(&new);
        assert_eq!(replicas(&plan), of_spec(first));
        assert!(plan.scaler.is_none() && plan.requeue_after == Some(Duration::ZERO));
    }
}

#[test]
fn the_replicas_are_held_at_the_live_value_before_they_are_no_longer_applied() {
    let mut seen = observed(endpoint(&json!({"replicas": 3, "autoscaling": by_queue()})));
    // Also without the annotation.
    for setter in [Some("spec"), None, Some("nonsense")] {
        seen.inference = inference(5, setter, &json!({}));
        let plan = planned(&seen);
        assert_eq!(replicas(&plan), of_scaler(Some(5)));
        assert!(matches!(plan.scaler, Some(Wanted::AIScaler(_))));
    }
    seen.inference = inference(7, Some("scaler"), &json!({}));
    assert_eq!(replicas(&planned(&seen)), of_scaler(None), "whatever the spec says");
    // An autoscaler would leave 0 replicas as they are.
    seen.inference = inference(0, Some("spec"), &json!({}));
    assert_eq!(replicas(&planned(&seen)), of_spec(3));
}

#[test]
fn the_replicas_are_taken_back_at_the_live_value_when_the_autoscaler_is_gone() {
    let mut seen = observed(endpoint(&json!({"replicas": 3})));
    seen.inference = inference(7, Some("scaler"), &json!({}));
    seen.hpa = hpa(&condition("ScalingActive", "True", "ValidMetricFound"));
    let plan = planned(&seen);
    assert_eq!(replicas(&plan), of_scaler(None));
    assert!(matches!(plan.superfluous.as_slice(), [Superfluous::HorizontalPodAutoscaler(_)]));
    seen.hpa = Sighting::Absent;
    let plan = planned(&seen);
    assert_eq!(replicas(&plan), of_spec(7));
    assert_eq!(plan.inference.as_ref().unwrap().planned_on.as_deref(), Some("12"), "of this very version");
    seen.inference = inference(7, Some("spec"), &json!({}));
    assert_eq!(replicas(&planned(&seen)), of_spec(3), "then the spec counts");
}

#[test]
fn the_other_autoscaler_is_made_when_the_old_one_is_gone() {
    let mut seen = observed(endpoint(&json!({"autoscaling": by_queue()})));
    seen.inference = inference(4, Some("scaler"), &json!({}));
    seen.hpa = hpa(&condition("ScalingActive", "True", "ValidMetricFound"));
    let plan = planned(&seen);
    assert!(plan.scaler.is_none() && plan.superfluous.len() == 1);
    if let Sighting::Own(hpa) = &mut seen.hpa {
        hpa.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
    }
    let plan = planned(&seen);
    assert!(plan.scaler.is_none() && plan.superfluous.is_empty(), "its end is awaited");
    seen.hpa = Sighting::Absent;
    assert!(matches!(planned(&seen).scaler, Some(Wanted::AIScaler(_))));
}

/// Nothing can be written for it, so no reconcile at once would find anything else.
#[test]
fn nothing_goes_on_at_once_while_no_inference_can_be_written() {
    let mut seen = observed(endpoint(&json!({"autoscaling": by_cpu()})));
    assert_eq!(planned(&seen).requeue_after, Some(Duration::ZERO));
    seen.serves_inferences = false;
    assert_eq!(planned(&seen).requeue_after, None);
    let mut seen = observed(endpoint(&json!({"replicas": 3})));
    seen.inference = inference(7, Some("scaler"), &json!({}));
    assert_eq!(planned(&seen).requeue_after, Some(Duration::ZERO));
    if let Sighting::Own(inference) = &mut seen.inference {
        inference.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
    }
    assert_ne!(planned(&seen).requeue_after, Some(Duration::ZERO));
}

#[test]
fn an_autoscaler_that_works_stays_until_the_other_one_can_exist() {
    let mut seen = observed(endpoint(&json!({"autoscaling": by_queue()})));
    seen.inference = inference(4, Some("scaler"), &json!({}));
    seen.hpa = hpa(&condition("ScalingActive", "True", "ValidMetricFound"));
    seen.serves_scalers = false;
    let plan = planned(&seen);
    assert!(plan.superfluous.is_empty() && plan.scaler.is_none());
    seen.serves_scalers = true;
    assert_eq!(planned(&seen).superfluous.len(), 1);
}

#[test]
fn a_taken_name_is_a_conflict_and_nothing_is_written() {
    let mut seen = observed(endpoint(&json!({"autoscaling": by_cpu()})));
    seen.hpa = Sighting::Foreign { owner: "has no owner".to_owned() };
    let plan = planned(&seen);
    assert!(plan.inference.is_none() && plan.scaler.is_none() && plan.superfluous.is_empty());
    assert_eq!(said(&plan.status, conditions::READY), is("False", "OwnershipConflict"));
    assert_eq!(said(&plan.status, conditions::STALLED), is("True", "OwnershipConflict"));
    assert_eq!(plan.status.phase, Some(Phase::Failed));
    // An autoscaler of the other kind is no conflict.
    let mut seen = observed(endpoint(&json!({})));
    seen.scaler = Sighting::Foreign { owner: "has no owner".to_owned() };
    let plan = planned(&seen);
    assert!(plan.inference.is_some() && plan.superfluous.is_empty());
}

/// Neither a library that an administrator sets later nor another number of pods moves what serves.
#[test]
fn a_model_keeps_its_location_until_the_spec_names_another() {
    let with_library = Settings {
        library: Some(crate::validate::Library::parse("s3://models/{id}").unwrap()),
        ..settings()
    };
    for (model, meant) in [("a/b", "ms://a/b"), ("a/b@v1", "ms://a/b@v1")] {
        let mut known = endpoint(&json!({"model": model, "replicas": 2}));
        let seen = observed(known.clone());
        let first = super::resolved(&validate(&seen.endpoint, None).unwrap(), &seen, &settings());
        assert_eq!((first.model.as_str(), first.model_source.as_str()), (model, meant));
        known.status.get_or_insert_default().resolved = Some(first);
        for generation in [2, 3] {
            known.metadata.generation = Some(generation);
            let plan = plan(&observed(known.clone()), &with_library, at(0));
            assert_eq!(plan.inference.unwrap().rendered.spec["modelSource"], meant);
        }
        known.spec.model = "a/c".to_owned();
        known.metadata.generation = Some(4);
        let plan = plan(&observed(known), &with_library, at(0));
        assert_eq!(plan.inference.unwrap().rendered.spec["modelSource"], "s3://models/a/c");
    }
}

/// They have the types of the AIInference, which judges them.
#[test]
fn a_gateway_and_a_canary_reach_the_aiinference_as_they_are() {
    let gateway = json!({"name": "public", "hostnames": ["chat.example.com"], "pathPrefixes": ["/v1"]});
    let canary = json!({
        "modelSource": "ms://a/c", "replicas": 2, "evaluationName": "against-b", "approvedSteps": 1,
        "steps": [{"weightPercent": 5, "minSeconds": 60}, {"weightPercent": 50, "approval": true}],
        "analysis": {"metrics": [{"name": "ttft", "thresholdMillis": 900}]},
    });
    let reference = json!({"name": "web", "rule": "models"});
    let rendered = |fields: Value| {
        let plan = planned(&observed(endpoint(&fields)));
        plan.inference.unwrap().rendered.spec
    };
    let spec = rendered(json!({"gateway": gateway, "canary": canary}));
    assert_eq!((&spec["gateway"], &spec["canary"]), (&gateway, &canary));
    assert_eq!(rendered(json!({"routeRef": reference}))["routeRef"], reference);
    // Another model is a rollout of stable, and the candidate stays what the user wrote.
    let renamed = rendered(json!({"model": "a/d", "gateway": gateway, "canary": canary}));
    assert_eq!((&renamed["modelSource"], &renamed["canary"]), (&json!("ms://a/d"), &canary));
    assert_eq!(renamed["gpu"], spec["gpu"]);
}

fn rival(kind: RivalKind) -> Option<Rival> {
    Some(Rival { kind, key: Key::new("demo", "theirs"), owner: None, active: None })
}

/// The two would set the replicas in turn, and pods would come and go.
#[test]
fn the_replicas_are_left_to_an_autoscaler_of_another() {
    let mut seen = observed(endpoint(&json!({"replicas": 3})));
    seen.rival = rival(RivalKind::AIScaler);
    assert_eq!(replicas(&planned(&seen)), of_spec(3));
    seen.inference = inference(3, Some("spec"), &json!({}));
    assert_eq!(replicas(&planned(&seen)), of_scaler(Some(3)));
    seen.inference = inference(7, Some("scaler"), &json!({}));
    let plan = planned(&seen);
    assert_eq!(replicas(&plan), of_scaler(None));
    assert!(plan.scaler.is_none());
    assert_eq!(said(&plan.status, conditions::SCALING_ACTIVE), is("True", "TargetManagedByOther"));
    assert_eq!(said(&plan.status, conditions::READY), is("True", "Ready"));
    let mut endpoint = (*seen.endpoint).clone();
    endpoint.status = Some(plan.status);
    seen.endpoint = endpoint.clone().into();

    // It may be made again: pods that serve stay, and none is missing.
    seen.rival = None;
    let gone = planned(&seen);
    assert_eq!(replicas(&gone), of_scaler(None));
    assert_eq!(gone.requeue_after, Some(Duration::from_secs(60)), "the message is a detail");
    seen.facts = gone.facts.unwrap().into_iter().map(|fact| (fact, at(-299))).collect();
    assert_eq!(replicas(&planned(&seen)), of_scaler(None));
    seen.facts.values_mut().for_each(|since| *since = at(-300));
    let plan = planned(&seen);
    assert_eq!(replicas(&plan), of_spec(7), "taken back at the live value");
    assert_eq!(said(&plan.status, conditions::SCALING_ACTIVE), None);
    let facts = std::mem::take(&mut seen.facts);
    for scaled_to in [0, 2] {
        seen.inference = inference(scaled_to, Some("scaler"), &json!({}));
        assert_eq!(
            replicas(&planned(&seen)),
            of_spec(scaled_to),
            "at the live value, and then that of the spec"
        );
    }
    (seen.inference, seen.facts) = (inference(7, Some("scaler"), &json!({})), facts);
    // A change of the spec is meant for now.
    seen.facts.values_mut().for_each(|since| *since = at(-10));
    endpoint.metadata.generation = Some(3);
    seen.endpoint = endpoint.into();
    assert_eq!(replicas(&planned(&seen)), of_spec(7));
    // One of before is not, also where the status is not about it yet.
    seen.facts.clear();
    assert_eq!(replicas(&planned(&seen)), of_scaler(None));
}

#[test]
fn an_autoscaler_of_another_that_cannot_scale_is_named() {
    let mut seen = observed(endpoint(&json!({"replicas": 3})));
    seen.inference = inference(3, Some("scaler"), &json!({}));
    let active =
        Active { holds: false, reason: "FailedGetPodsMetric".to_owned(), message: "no metric".to_owned() };
    seen.rival =
        rival(RivalKind::HorizontalPodAutoscaler).map(|rival| Rival { active: Some(active), ..rival });
    let status = planned(&seen).status;
    assert_eq!(said(&status, conditions::SCALING_ACTIVE), is("False", "TargetManagedByOther"));
    assert_eq!(said(&status, conditions::READY), is("True", "Ready"));
}

#[test]
fn zero_replicas_stop_an_endpoint_that_another_scales() {
    let mut seen = observed(endpoint(&json!({"replicas": 0})));
    seen.rival = rival(RivalKind::HorizontalPodAutoscaler);
    seen.inference = inference(4, Some("scaler"), &json!({}));
    assert_eq!(replicas(&planned(&seen)), of_spec(4));
    seen.inference = inference(4, Some("spec"), &json!({}));
    let plan = planned(&seen);
    assert_eq!(replicas(&plan), of_spec(0));
    // KEDA and an AIScaler can start pods again.
    assert_eq!(said(&plan.status, conditions::SCALING_ACTIVE), is("False", "ScalingDisabled"));
    // Begun again by the spec, because no autoscaler leaves 0.
    let mut seen = observed(endpoint(&json!({"replicas": 2})));
    seen.rival = rival(RivalKind::HorizontalPodAutoscaler);
    seen.inference = inference(0, Some("spec"), &json!({}));
    assert_eq!(replicas(&planned(&seen)), of_spec(2));
}

#[test]
fn no_second_autoscaler_is_made_for_one_target() {
    let mut seen = observed(endpoint(&json!({"autoscaling": by_cpu()})));
    seen.inference = inference(3, Some("scaler"), &json!({}));
    seen.rival = rival(RivalKind::HorizontalPodAutoscaler);
    let plan = planned(&seen);
    assert!(plan.scaler.is_none() && plan.superfluous.is_empty());
    assert_eq!(said(&plan.status, conditions::SCALING_ACTIVE), is("False", "TargetManagedByOther"));
    assert_eq!(plan.events.len(), 2, "ready, and this");
    // The endpoint's own is not deleted for it, and an AIScaler leaves such a target alone.
    seen.hpa = hpa(&condition("ScalingActive", "True", "ValidMetricFound"));
    assert!(planned(&seen).scaler.is_some());
    seen.hpa = Sighting::Absent;
    seen.rival = rival(RivalKind::AIScaler);
    assert!(planned(&seen).scaler.is_some());
}

/// The autoscaler has changed the replicas, and the inference-controller has not reported yet.
#[test]
fn a_change_of_the_number_alone_takes_no_readiness_away() {
    let mut seen = observed(endpoint(&json!({"autoscaling": by_queue()})));
    seen.inference = inference(3, Some("scaler"), &json!({}));
    let ready = planned(&seen).status;
    let mut endpoint = (*seen.endpoint).clone();
    endpoint.status = Some(ready);
    seen.endpoint = endpoint.clone().into();
    let mut lags = inference(4, Some("scaler"), &json!({"readyReplicas": 3}));
    if let Sighting::Own(inference) = &mut lags {
        inference.metadata.generation = Some(8);
    }
    seen.inference = lags;
    let lags = planned(&seen);
    assert_eq!(said(&lags.status, conditions::READY), is("True", "Ready"));
    seen.facts = lags.facts.unwrap().into_iter().map(|fact| (fact, at(-60))).collect();
    let late = planned(&seen);
    assert_eq!(said(&late.status, conditions::READY), is("False", "Waiting"), "no report for a minute");
    let lags = super::conditions::LAGS.to_owned();
    assert!(late.facts.unwrap().contains(&lags), "or another minute would begin");
    seen.facts.clear();
    // Of another generation of the endpoint nothing was said before.
    endpoint.metadata.generation = Some(3);
    let assessed =
        |seen: &Observed| assessed(&validate(&seen.endpoint, None).unwrap(), seen, &settings(), at(0));
    let is_ready = |seen: &Observed| {
        let verdicts = assessed(seen).verdicts;
        verdicts.iter().any(|statement| statement.type_ == conditions::READY && statement.holds)
    };
    assert!(is_ready(&seen));
    seen.endpoint = endpoint.into();
    if let Sighting::Own(inference) = &mut seen.inference {
        inference.rendered_from = Some(3);
    }
    assert!(!is_ready(&seen));
}

#[test]
fn what_serves_is_ready_without_the_autoscaler_that_was_refused() {
    let mut seen = observed(endpoint(&json!({"autoscaling": by_queue()})));
    seen.inference = inference(3, Some("scaler"), &json!({}));
    let denied = Refusal::Denied("AIScaler demo/chat: quota".to_owned());
    let plan = refused(&denied, &seen, &settings(), at(0));
    assert_eq!(plan.status.phase, Some(Phase::Ready));
    assert_eq!(said(&plan.status, conditions::READY), is("True", "Ready"));
    assert_eq!(said(&plan.status, conditions::SCALING_ACTIVE), is("False", "Denied"));
    assert_eq!(said(&plan.status, conditions::STALLED), is("True", "Denied"));
    let reasons = plan.events.iter().map(|note| note.reason).collect::<Vec<_>>();
    assert_eq!(reasons, ["Denied", "Ready"]);
    // With another generation, and as pods of the one before serve.
    if let Sighting::Own(inference) = &mut seen.inference {
        inference.rendered_from = Some(1);
    }
    let plan = refused(&denied, &seen, &settings(), at(0));
    assert_eq!(
        (plan.status.phase, said(&plan.status, conditions::READY)),
        (Some(Phase::Degraded), is("False", "Denied"))
    );
    // Nothing else would say that the AIInference was refused.
    let mut seen = observed(endpoint(&json!({})));
    seen.inference = inference(3, Some("spec"), &json!({}));
    let plan = refused(&denied, &seen, &settings(), at(0));
    assert_eq!(said(&plan.status, conditions::READY), is("True", "Ready"));
    assert!(plan.events.iter().any(|note| note.reason == "Denied"));
    seen.inference = Sighting::Absent;
    let plan = refused(&denied, &seen, &settings(), at(0));
    assert_eq!(said(&plan.status, conditions::READY), is("False", "Denied"));
    assert_eq!(plan.status.phase, Some(Phase::Failed));
}

#[test]
fn a_cpu_target_on_gpus_is_answered_and_named() {
    let mut seen = observed(endpoint(&json!({"autoscaling": by_cpu()})));
    seen.inference = inference(3, Some("scaler"), &json!({}));
    let scaling = |seen: &Observed| {
        let status = planned(seen).status;
        let known = status.conditions.iter().find(|known| known.type_ == conditions::SCALING_ACTIVE);
        let known = known.unwrap();
        assert!(known.message.contains("queue_depth"), "{known:?}");
        assert_eq!(said(&status, conditions::READY), is("True", "Ready"));
        (known.status.clone(), known.reason.clone())
    };
    let missing = ("False".to_owned(), "MetricsAPIMissing".to_owned());
    let insensitive = ("True".to_owned(), "MetricNotLoadSensitive".to_owned());
    let fails = ("False".to_owned(), "MetricNotLoadSensitive".to_owned());
    assert_eq!(scaling(&seen), fails, "it has decided nothing yet");
    seen.hpa = hpa(&condition("ScalingActive", "True", "ValidMetricFound"));
    assert_eq!(scaling(&seen), insensitive);
    seen.hpa = hpa(&condition("ScalingActive", "False", "FailedGetResourceMetric"));
    assert_eq!(scaling(&seen), fails);
    for api in [MetricsApi::Missing, MetricsApi::Unavailable] {
        seen.metrics_api = api;
        assert_eq!(scaling(&seen), missing);
    }
    // A controller of one namespace does not see which APIs there are.
    seen.metrics_api = MetricsApi::Unknown;
    seen.hpa = Sighting::Absent;
    assert_eq!(scaling(&seen), fails);
    let mut words = condition("ScalingActive", "False", "FailedGetResourceMetric");
    words["message"] =
        "unable to fetch metrics from resource metrics API: the server could not find the requested \
                        resource (get pods.metrics.k8s.io)"
            .into();
    seen.hpa = hpa(&words);
    assert_eq!(scaling(&seen), missing);
}

#[test]
fn what_the_children_say_is_copied() {
    let mut seen = observed(endpoint(&json!({"autoscaling": by_queue()})));
    let failed = json!({"phase": "Failed", "conditions": [
        condition("Ready", "False", "OfANewerRelease"), condition("Stalled", "True", "OfANewerRelease")]});
    seen.inference = inference(3, Some("scaler"), &failed);
    seen.scaler = scaler(&condition("ScalingActive", "False", "MetricMissing"));
    let status = planned(&seen).status;
    assert_eq!(status.phase, Some(Phase::Degraded), "three pods serve");
    for type_ in [conditions::INFERENCE_READY, conditions::READY] {
        assert_eq!(said(&status, type_), is("False", "OfANewerRelease"));
    }
    assert_eq!(said(&status, conditions::STALLED), is("True", "OfANewerRelease"));
    assert_eq!(said(&status, conditions::SCALING_ACTIVE), is("False", "MetricMissing"));
    // A candidate that was rolled back while stable serves.
    let rolled_back = json!({"conditions": [
        condition("Ready", "True", "Ready"), condition("Stalled", "True", "CanaryRolledBack")]});
    seen.inference = inference(3, Some("scaler"), &rolled_back);
    let status = planned(&seen).status;
    assert_eq!(said(&status, conditions::READY), is("True", "Ready"));
    assert_eq!(said(&status, conditions::STALLED), is("True", "CanaryRolledBack"));
}

#[test]
fn a_status_of_an_older_generation_says_nothing_of_this_one() {
    let mut endpoint = endpoint(&json!({}));
    endpoint.metadata.generation = Some(3);
    let mut seen = observed(endpoint);
    seen.inference = inference(1, Some("spec"), &json!({}));
    // Nothing is wrong, so it may wait.
    assert_eq!(planned(&seen).status.observed_generation, 0);
    let assessed = assessed(&validate(&seen.endpoint, None).unwrap(), &seen, &settings(), at(0));
    let ready = assessed.verdicts.iter().find(|statement| statement.type_ == conditions::READY).unwrap();
    assert!(!ready.holds && ready.reason == "Waiting");
}

#[test]
fn an_endpoint_that_comes_up_has_one_status_on_the_way() {
    let mut seen = observed(endpoint(&json!({"replicas": 3})));
    let loading = |ready: i32, reason: &str| {
        json!({"phase": "Loading", "readyReplicas": ready, "conditions": [
            condition("Ready", "False", reason), condition("Reconciling", "True", reason)]})
    };
    seen.inference = inference(3, Some("spec"), &loading(0, "Loading"));
    let first = planned(&seen);
    assert_eq!(first.status.observed_generation, 0, "nothing is written at once");
    assert_eq!(first.requeue_after, Some(Duration::from_secs(5)));
    seen.facts = first.facts.unwrap().into_iter().map(|fact| (fact, at(-5))).collect();
    let written = planned(&seen).status;
    assert_eq!((written.phase, written.ready.as_deref()), (Some(Phase::Progressing), Some("0/3")));
    let mut endpoint = (*seen.endpoint).clone();
    endpoint.status = Some(written.clone());
    seen.endpoint = endpoint.into();
    seen.inference = inference(3, Some("spec"), &loading(2, "Scaling"));
    let later = planned(&seen);
    assert_eq!(later.status, written, "counts and reasons on the way wait");
    assert_eq!(later.requeue_after, Some(Duration::from_secs(10)));
    seen.inference = inference(3, Some("spec"), &json!({}));
    let ready = planned(&seen);
    assert_eq!(ready.status.phase, Some(Phase::Ready));
    assert_eq!(ready.events.len(), 1);
    let mut endpoint = (*seen.endpoint).clone();
    endpoint.status = Some(ready.status.clone());
    seen.endpoint = endpoint.into();
    let rest = planned(&seen);
    assert_eq!((rest.status, rest.events.len(), rest.requeue_after), (ready.status, 0, None));
}

#[test]
fn a_spec_that_is_wrong_leaves_what_runs() {
    let mut seen = observed(endpoint(&json!({"model": "a/b@v1"})));
    seen.inference = inference(2, Some("spec"), &json!({}));
    let settings = Settings {
        library: Some(crate::validate::Library::parse("s3://models/{id}").unwrap()),
        ..settings()
    };
    let plan = plan(&seen, &settings, at(0));
    assert!(plan.inference.is_none() && plan.superfluous.is_empty());
    assert_eq!(said(&plan.status, conditions::ACCEPTED), is("False", "InvalidSpec"));
    assert_eq!((plan.status.phase, plan.status.ready.as_deref()), (Some(Phase::Degraded), Some("2/2")));
    assert_eq!(said(&plan.status, conditions::INFERENCE_READY), is("True", "Ready"));
    seen.inference = Sighting::Absent;
    assert_eq!(super::plan(&seen, &settings, at(0)).status.phase, Some(Phase::Failed));
}
