//! The route through a Gateway, and two versions that share its requests.

use std::collections::BTreeSet;

use api::{
    aiinference::{AIInference, traffic::CanaryPhase},
    conditions,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod, Service},
    events::v1::Event,
    policy::v1::PodDisruptionBudget,
};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tests::{
    Scene, ask_until,
    gateway::{Gateway, Version, grpc_routes, install_pools, order, pools, routes},
    simulated, wait_for, wait_until_gone, within,
};

use super::{change, condition, create, is_ready, until_ready};

mod conflict;
mod edits;

pub(super) fn gateway() -> Value {
    json!({"name": "public", "namespace": "gateways", "hostnames": ["chat.example.com"]})
}

/// Steps as short as the API server accepts them.
pub(super) fn canary(image: &str) -> Value {
    json!({
        "image": image,
        "steps": [
            {"weightPercent": 10, "minSeconds": 5},
            {"weightPercent": 50, "minSeconds": 5, "approval": true},
        ],
    })
}

pub(super) async fn until_phase(scene: &Scene<'_>, phase: CanaryPhase) -> AIInference {
    let what = format!("{phase:?}");
    wait_for(&scene.api::<AIInference>(), "chat", &what, within(), |inference: &AIInference| {
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        canary.is_some_and(|canary| canary.phase == Some(phase))
    })
    .await
}

async fn until_weight(scene: &Scene<'_>, weight: i32) -> AIInference {
    let what = format!("{weight} %");
    wait_for(&scene.api::<AIInference>(), "chat", &what, within(), |inference: &AIInference| {
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        canary.is_some_and(|canary| canary.weight_percent == weight)
    })
    .await
}

pub(super) fn weights(versions: &[Version]) -> Vec<(i64, Option<i64>)> {
    versions.iter().map(|version| version.weights).collect()
}

/// Uids of stable's pods.
async fn stable_pods(scene: &Scene<'_>) -> Vec<String> {
    let selector = ListParams::default().labels("ai.infra.example.com/track=stable");
    let pods = scene.api::<Pod>().list(&selector).await.unwrap();
    let mut uids: Vec<String> = pods.items.into_iter().filter_map(|pod| pod.metadata.uid).collect();
    uids.sort();
    uids
}

#[tokio::test]
async fn a_gateway_leads_to_the_service_and_no_answer_of_it_is_said() {
    let scene = simulated().await;
    let stand_in = Gateway::start(&scene).await;
    stand_in.answers(Value::Null);
    create(&scene, "chat", json!({"gateway": gateway()})).await;
    let inferences = scene.api::<AIInference>();
    let unanswered = wait_for(&inferences, "chat", "no answer", within(), |inference: &AIInference| {
        condition(inference, conditions::READY).is_some_and(|ready| ready.reason == "RouteNotObserved")
    });
    let status = unanswered.await.status.unwrap();
    assert_eq!((status.ready_replicas, status.route.unwrap().accepted), (1, false));
    stand_in.answers(json!({"Accepted": "False", "ResolvedRefs": "True"}));
    change(&scene, "chat", json!({"gateway": {"requestTimeoutSeconds": 600}})).await;
    wait_for(&inferences, "chat", "refused", within(), |inference: &AIInference| {
        let ready = condition(inference, conditions::TRAFFIC_READY);
        ready.is_some_and(|ready| {
            ready.reason == "RouteRejected" && ready.message == "Gateway public: as the test says (Tested)"
        })
    })
    .await;
    let stored = routes(&scene).get("chat").await.unwrap();
    assert_eq!(stored.data["spec"]["rules"][0]["timeouts"]["request"], json!("600s"));
    stand_in.answers(json!({"Accepted": "True", "ResolvedRefs": "True"}));
    change(&scene, "chat", json!({"gateway": {"requestTimeoutSeconds": 0}})).await;
    let status = until_ready(&scene, "chat").await.status.unwrap();
    let route = status.route.unwrap();
    assert_eq!(
        (&*route.name, route.accepted, route.address.as_deref()),
        ("chat", true, Some("chat.example.com/v1"))
    );
    let stored = routes(&scene).get("chat").await.unwrap();
    let rule = &stored.data["spec"]["rules"][0];
    assert_eq!(
        rule["timeouts"]["request"],
        json!("0s"),
        "a gateway with Envoy ends requests after 15 s otherwise"
    );
    assert_eq!(rule["matches"][0]["path"], json!({"type": "PathPrefix", "value": "/v1"}));
    assert_eq!(weights(&stand_in.versions()).last(), Some(&(100, None)));
    let patch = Patch::Merge(json!({"spec": {"gateway": null}}));
    inferences.patch("chat", &PatchParams::default(), &patch).await.unwrap();
    wait_until_gone(&routes(&scene), "chat", within()).await;
    let without = wait_for(&inferences, "chat", "no route", within(), |inference: &AIInference| {
        condition(inference, conditions::TRAFFIC_READY).is_none() && is_ready(inference)
    });
    assert_eq!(without.await.status.unwrap().route, None);
}

#[tokio::test]
async fn a_candidate_gets_its_shares_becomes_stable_and_is_folded_without_a_restart() {
    let scene = simulated().await;
    let stand_in = Gateway::start(&scene).await;
    create(
        &scene,
        "chat",
        json!({"image": "engine:1", "replicas": 2, "drainSeconds": 5, "gateway": gateway()}),
    )
    .await;
    until_ready(&scene, "chat").await;
    let before = stable_pods(&scene).await;
    change(&scene, "chat", json!({"canary": canary("engine:2")})).await;
    let inference = until_phase(&scene, CanaryPhase::AwaitingApproval).await;
    let status = inference.status.as_ref().unwrap();
    assert_eq!((status.replicas, status.ready_replicas, status.min_stable_replicas), (2, 2, Some(2)));
    let progressing = condition(&inference, conditions::CANARY_PROGRESSING).unwrap();
    assert_eq!(progressing.reason, "AwaitingApproval");
    assert_eq!(
        progressing.message,
        "the candidate has 10 % of the requests; step 2 waits for spec.canary.approvedSteps: 2"
    );
    assert_eq!(stable_pods(&scene).await, before, "stable is not touched");
    let candidate = scene.api::<Deployment>().get("chat-canary").await.unwrap();
    let template = candidate.spec.unwrap().template.spec.unwrap();
    assert_eq!(template.containers[0].image.as_deref(), Some("engine:2"));
    change(&scene, "chat", json!({"canary": {"approvedSteps": 3}})).await;
    let promoted = until_phase(&scene, CanaryPhase::Promoted).await.status.unwrap();
    let revision = promoted.canary.unwrap().revision;
    assert_eq!(promoted.promoted_revision.as_ref(), Some(&revision));
    // Requests of the candidate may run for 30 s.
    wait_until_gone(&scene.api::<Deployment>(), "chat-canary", within()).await;
    wait_until_gone(&scene.api::<Service>(), "chat-canary", within()).await;
    wait_until_gone(&scene.api::<ConfigMap>(), "chat-canary-model", within()).await;
    assert_eq!(
        weights(&stand_in.versions()),
        [(100, None), (100, Some(0)), (90, Some(10)), (50, Some(50)), (100, Some(0)), (100, None)]
    );
    assert_eq!(order::problem(&stand_in.versions()), None);
    let stable = scene.api::<Deployment>().get("chat").await.unwrap();
    assert_eq!(stable.spec.unwrap().template.spec.unwrap().containers[0].image.as_deref(), Some("engine:2"));

    let served = stable_pods(&scene).await;
    let folded = json!({"spec": {"image": "engine:2", "canary": null}});
    let inferences = scene.api::<AIInference>();
    inferences.patch("chat", &PatchParams::default(), &Patch::Merge(folded)).await.unwrap();
    let inference = wait_for(&inferences, "chat", "folded", within(), |inference: &AIInference| {
        let status = inference.status.as_ref().unwrap();
        is_ready(inference) && status.canary.is_none() && status.promoted_revision.is_none()
    })
    .await;
    assert_eq!(inference.status.unwrap().min_stable_replicas, None);
    assert_eq!(stable_pods(&scene).await, served, "no pod restarts");
    assert_eq!(stand_in.versions().len(), 6, "no route is written");
    // Of the ReplicaSets.
    let created: BTreeSet<String> = events_of(&scene, "ReplicaSet")
        .await
        .into_iter()
        .filter(|(reason, _)| reason == "SuccessfulCreate")
        .map(|(_, note)| note)
        .collect();
    assert_eq!(
        created.len(),
        2 + 1 + 2,
        "of stable, of the candidate, of stable with its version: {created:?}"
    );
    let events = events_of(&scene, "AIInference").await;
    let said = |reason: &str| -> BTreeSet<&str> {
        events.iter().filter(|(known, _)| known == reason).map(|(_, note)| &**note).collect()
    };
    let shifts =
        ["0 % -> 10 % of the requests", "10 % -> 50 % of the requests", "50 % -> 0 % of the requests"];
    assert_eq!(said("TrafficShifted"), BTreeSet::from(shifts));
    assert_eq!(said("CanaryStarted"), BTreeSet::from([&*format!("candidate {revision} starts")]));
    assert_eq!(said("CanaryPromoted"), BTreeSet::from([&*format!("stable has version {revision}")]));
}

/// Reasons and words of all events about objects of this kind.
async fn events_of(scene: &Scene<'_>, kind: &str) -> Vec<(String, String)> {
    let all = scene.api::<Event>().list(&ListParams::default()).await.unwrap();
    let is_of_kind =
        |event: &Event| event.regarding.as_ref().and_then(|known| known.kind.as_deref()) == Some(kind);
    let all = all.items.into_iter().filter(is_of_kind);
    all.map(|event| (event.reason.unwrap_or_default(), event.note.unwrap_or_default())).collect()
}

/// As where all GPUs are in use.
#[tokio::test]
async fn a_candidate_that_finds_no_room_is_rolled_back_in_time_and_stable_serves() {
    let scene = simulated().await;
    let stand_in = Gateway::start(&scene).await;
    create(&scene, "chat", json!({"image": "engine:1", "drainSeconds": 5, "gateway": gateway()})).await;
    until_ready(&scene, "chat").await;
    let before = stable_pods(&scene).await;
    let mut large = canary("engine:2");
    large["resources"] = json!({"requests": {"cpu": "100000"}});
    large["analysis"] = json!({"timeoutSeconds": 60});
    change(&scene, "chat", json!({"canary": large})).await;
    let inferences = scene.api::<AIInference>();
    wait_for(&inferences, "chat", "no room", within(), |inference: &AIInference| {
        let progressing = condition(inference, conditions::CANARY_PROGRESSING);
        let min_stable = inference.status.as_ref().and_then(|status| status.min_stable_replicas);
        min_stable == Some(1)
            && progressing.is_some_and(|it| it.status == "False" && it.reason == "Unschedulable")
    })
    .await;
    let status = until_phase(&scene, CanaryPhase::RolledBack).await.status.unwrap();
    let rollback = status.canary.unwrap().last_rollback.unwrap();
    assert_eq!(rollback.reason, "CandidateUnready");
    assert!(
        rollback.message.contains("within 60 s") && rollback.message.contains("cpu"),
        "{}",
        rollback.message
    );
    wait_for(&scene.api::<Deployment>(), "chat-canary", "no pod", within(), |known: &Deployment| {
        known.spec.as_ref().and_then(|spec| spec.replicas) == Some(0)
    })
    .await;
    let inference = inferences.get("chat").await.unwrap();
    assert!(is_ready(&inference), "{inference:?}");
    assert_eq!(status.min_stable_replicas, None);
    assert_eq!(stable_pods(&scene).await, before);
    assert_eq!(weights(&stand_in.versions()), [(100, None)], "the candidate was in no route");
}

#[tokio::test]
async fn an_edit_of_the_route_is_taken_back_and_a_manager_that_goes_on_holds_the_canary() {
    let scene = simulated().await;
    let stand_in = Gateway::start(&scene).await;
    create(&scene, "chat", json!({"image": "engine:1", "drainSeconds": 5, "gateway": gateway()})).await;
    until_ready(&scene, "chat").await;
    let (routes, inferences) = (routes(&scene), scene.api::<AIInference>());
    let theirs = json!(["other.example.com"]);
    let params = PatchParams { field_manager: Some("other-operator".to_owned()), ..PatchParams::default() };
    let edit = Patch::Merge(json!({"spec": {"hostnames": theirs}}));
    let edited = routes.patch("chat", &params, &edit).await.unwrap();
    let restored = wait_for(&routes, "chat", "its host name again", within(), |route: &DynamicObject| {
        route.metadata.generation > edited.metadata.generation && route.data["spec"]["hostnames"] != theirs
    })
    .await;
    assert_eq!(restored.data["spec"]["hostnames"], json!(["chat.example.com"]));

    let message = ask_until("a contest", within(), async || {
        if routes.get("chat").await.unwrap().data["spec"]["hostnames"] != theirs {
            routes.patch("chat", &params, &edit).await.unwrap();
        }
        let inference = inferences.get("chat").await.unwrap();
        let traffic =
            condition(&inference, conditions::TRAFFIC_READY).filter(|it| it.reason == "RouteContested");
        traffic.map(|traffic| traffic.message.clone()).ok_or("there is none")
    })
    .await;
    assert!(message.contains("other-operator") && message.contains("spec.routeRef"), "{message}");
    change(&scene, "chat", json!({"canary": canary("engine:2")})).await;
    wait_for(&inferences, "chat", "the canary is held", within(), |inference: &AIInference| {
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        let progressing = condition(inference, conditions::CANARY_PROGRESSING);
        canary.is_some_and(|canary| canary.ready_replicas == 1 && canary.weight_percent == 0)
            && progressing
                .is_some_and(|it| it.message.starts_with("no step begins while the route is contested"))
    })
    .await;
    let shares = weights(&stand_in.versions());
    assert!(shares.iter().all(|share| [(100, None), (100, Some(0))].contains(share)), "{shares:?}");
}

/// The kind GRPCRoute is installed while the service runs, and its gateway answers late.
#[tokio::test]
async fn calls_get_the_shares_of_requests_and_no_share_rises_before_both_routes_are_accepted() {
    let scene = simulated().await;
    let requests = Gateway::start(&scene).await;
    let mut gateway = gateway();
    gateway["more"] = json!([{"name": "inside"}]);
    gateway["grpc"] = json!({"hostnames": ["grpc.chat.example.com"]});
    let spec = json!({"engine": "triton", "image": "engine:1", "drainSeconds": 5, "gateway": gateway});
    create(&scene, "chat", spec).await;
    let without = until_ready(&scene, "chat").await;
    let message = &condition(&without, conditions::TRAFFIC_READY).unwrap().message;
    assert!(message.contains("gRPC has no route until the cluster serves GRPCRoutes"), "{message}");

    let calls = Gateway::of_calls(&scene).await;
    let of_calls = grpc_routes(&scene);
    let stored =
        wait_for(&of_calls, "chat-grpc", "a route of calls", within(), |_: &DynamicObject| true).await;
    assert_eq!(stored.data["spec"]["hostnames"], json!(["grpc.chat.example.com"]));
    let http = routes(&scene).get("chat").await.unwrap();
    assert_eq!(stored.data["spec"]["parentRefs"], http.data["spec"]["parentRefs"]);
    let backend = json!({"group": "", "kind": "Service", "name": "chat", "port": 8001, "weight": 100});
    let rules = stored.data["spec"]["rules"].as_array().unwrap();
    let methods = rules.iter().flat_map(|rule| rule["matches"].as_array().unwrap());
    let of_service =
        json!({"type": "Exact", "service": "inference.GRPCInferenceService", "method": "ModelInfer"});
    assert_eq!(methods.clone().next(), Some(&json!({"method": of_service})));
    assert!(
        methods.count() > 1 && rules.iter().all(|rule| rule["backendRefs"] == json!([backend])),
        "{rules:?}"
    );
    let inferences = scene.api::<AIInference>();
    wait_for(&inferences, "chat", "both accepted", within(), |inference: &AIInference| {
        let ready = condition(inference, conditions::TRAFFIC_READY);
        ready.is_some_and(|ready| ready.status == "True" && !ready.message.contains("gRPC"))
    })
    .await;

    // The gateway of calls takes its time: nothing gets a share meanwhile.
    calls.answers(Value::Null);
    change(&scene, "chat", json!({"canary": canary("engine:2")})).await;
    wait_for(&of_calls, "chat-grpc", "the candidate", within(), |route: &DynamicObject| {
        route.data["spec"]["rules"][0]["backendRefs"].as_array().is_some_and(|refs| refs.len() == 2)
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!(weights(&requests.versions()), [(100, None), (100, Some(0))]);
    assert_eq!(weights(&calls.versions()), [(100, None), (100, Some(0))]);
    calls.answers(json!({"Accepted": "True", "ResolvedRefs": "True"}));
    let touched = Patch::Merge(json!({"metadata": {"annotations": {"touched": "by-the-test"}}}));
    of_calls.patch("chat-grpc", &PatchParams::default(), &touched).await.unwrap();

    until_phase(&scene, CanaryPhase::AwaitingApproval).await;
    change(&scene, "chat", json!({"canary": {"approvedSteps": 3}})).await;
    until_phase(&scene, CanaryPhase::Promoted).await;
    wait_until_gone(&scene.api::<Service>(), "chat-canary", within()).await;
    let shares = [(100, None), (100, Some(0)), (90, Some(10)), (50, Some(50)), (100, Some(0)), (100, None)];
    for stand_in in [&requests, &calls] {
        assert_eq!(weights(&stand_in.versions()), shares);
        assert_eq!(order::problem(&stand_in.versions()), None);
    }
    change(&scene, "chat", json!({"image": "engine:2", "canary": null, "gateway": {"grpc": null}})).await;
    wait_until_gone(&of_calls, "chat-grpc", within()).await;
    until_ready(&scene, "chat").await;
    assert_eq!(weights(&requests.versions()), shares, "the other route stays as it is");
}

/// The backends of the last rule: kind, name and weight.
pub(super) fn backends(version: &Version) -> Vec<(String, String, i64)> {
    let refs = version.route.data["spec"]["rules"][0]["backendRefs"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    refs.iter()
        .map(|known| {
            (text(&known["kind"]), text(&known["name"]), known["weight"].as_i64().unwrap_or_default())
        })
        .collect()
}

/// The kind InferencePool is installed while the service runs.
#[tokio::test]
async fn a_route_leads_to_a_pool_of_each_version_once_the_kind_is_installed() {
    let scene = simulated().await;
    let stand_in = Gateway::start(&scene).await;
    let mut gateway = gateway();
    gateway["inferencePool"] = json!({"endpointPicker": {"name": "picker", "port": 9002}});
    create(&scene, "chat", json!({"image": "engine:1", "drainSeconds": 5, "gateway": gateway})).await;
    let inferences = scene.api::<AIInference>();
    let without = wait_for(&inferences, "chat", "no pools", within(), |inference: &AIInference| {
        let ready = condition(inference, conditions::READY);
        ready.is_some_and(|ready| ready.reason == "InferencePoolNotInstalled")
    });
    let message = condition(&without.await, conditions::TRAFFIC_READY).unwrap().message.clone();
    assert!(message.ends_with("or remove spec.gateway.inferencePool"), "{message}");
    wait_for(&inferences, "chat", "it serves", within(), |inference: &AIInference| {
        inference.status.as_ref().is_some_and(|status| status.ready_replicas == 1)
    })
    .await;
    let before = stable_pods(&scene).await;
    assert_eq!(backends(stand_in.versions().last().unwrap())[0].0, "Service");

    install_pools(&scene).await;
    until_ready(&scene, "chat").await;
    wait_for(&routes(&scene), "chat", "the pool", within(), |route: &DynamicObject| {
        route.data["spec"]["rules"][0]["backendRefs"][0]["kind"] == "InferencePool"
    })
    .await;
    let pool = pools(&scene).get("chat").await.unwrap();
    assert_eq!(pool.data["spec"]["selector"]["matchLabels"]["ai.infra.example.com/track"], "stable");
    let picker = json!({"group": "", "kind": "Service", "name": "picker", "port": {"number": 9002}, "failureMode": "FailClose"});
    assert_eq!(pool.data["spec"]["endpointPickerRef"], picker);
    assert_eq!(stable_pods(&scene).await, before, "no pod restarts");

    change(&scene, "chat", json!({"canary": canary("engine:2")})).await;
    until_phase(&scene, CanaryPhase::AwaitingApproval).await;
    let shares = |stable, candidate| {
        let of = |name: &str, weight| ("InferencePool".to_owned(), name.to_owned(), weight);
        vec![of("chat", stable), of("chat-canary", candidate)]
    };
    let all: Vec<_> = stand_in.versions().iter().map(backends).collect();
    assert_eq!(all[all.len() - 2..], [shares(100, 0), shares(90, 10)]);
    let pool = pools(&scene).get("chat-canary").await.unwrap();
    assert_eq!(pool.data["spec"]["selector"]["matchLabels"]["ai.infra.example.com/track"], "canary");
    change(&scene, "chat", json!({"canary": {"approvedSteps": 3}})).await;
    until_phase(&scene, CanaryPhase::Promoted).await;
    wait_until_gone(&pools(&scene), "chat-canary", within()).await;
    assert_eq!(order::problem(&stand_in.versions()), None);
    change(&scene, "chat", json!({"image": "engine:2", "canary": null, "gateway": {"inferencePool": null}}))
        .await;
    wait_until_gone(&pools(&scene), "chat", within()).await;
    assert_eq!(
        backends(stand_in.versions().last().unwrap()),
        [("Service".to_owned(), "chat".to_owned(), 100)]
    );
    until_ready(&scene, "chat").await;
}

/// Its controller is removed for good, so nothing accepts that the candidate gets no requests.
#[tokio::test]
async fn a_stopped_object_without_a_gateway_keeps_no_pod_of_its_candidate() {
    let scene = simulated().await;
    let stand_in = Gateway::start(&scene).await;
    // Requests may run for 30 s, the shortest time that there is.
    create(&scene, "chat", json!({"image": "engine:1", "drainSeconds": 5, "gateway": gateway()})).await;
    until_ready(&scene, "chat").await;
    change(&scene, "chat", json!({"canary": canary("engine:2")})).await;
    until_weight(&scene, 10).await;
    stand_in.answers(Value::Null);
    change(&scene, "chat", json!({"replicas": 0})).await;
    let inferences = scene.api::<AIInference>();
    wait_for(&inferences, "chat", "it waits", within(), |inference: &AIInference| {
        condition(inference, conditions::CANARY_PROGRESSING).is_some_and(|known| {
            known.message.ends_with("the pods of the candidate end after 30 s in any case")
        })
    })
    .await;
    let candidate = |deployment: &Deployment| deployment.spec.as_ref().and_then(|spec| spec.replicas);
    let deployments = scene.api::<Deployment>();
    assert_eq!(candidate(&deployments.get("chat-canary").await.unwrap()), Some(1));
    wait_for(&deployments, "chat-canary", "no pods", within(), |known: &Deployment| {
        candidate(known) == Some(0)
    })
    .await;
    assert_eq!(weights(&stand_in.versions()).last(), Some(&(100, Some(0))));
}

/// A route that its owner has written for both versions, beside a rule of something else.
pub(super) fn of_somebody_else() -> DynamicObject {
    let backend = |name: &str, weight: i32| json!({"name": name, "port": 8000, "weight": weight});
    let rule = |name: &str, path: &str, refs: Vec<Value>| {
        json!({
            "name": name,
            "matches": [{"path": {"type": "PathPrefix", "value": path}, "headers": [{"name": "x-team", "value": "a"}]}],
            "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x-from", "value": "web"}]}}],
            "backendRefs": refs,
        })
    };
    let object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": "web", "labels": {"team": "web"}, "annotations": {"note": "ours"}},
        "spec": {
            "parentRefs": [{"name": "public", "namespace": "gateways"}],
            "hostnames": ["www.example.com"],
            "rules": [
                rule("shop", "/shop", vec![backend("shop", 3)]),
                rule("models", "/v1", vec![backend("chat", 1), backend("chat-canary", 0)]),
            ],
        },
    });
    serde_json::from_value(object).unwrap()
}

/// All of a route but two numbers, the status, and what each write changes.
fn without_weights(route: &DynamicObject) -> Value {
    let mut spec = route.data["spec"].clone();
    for backend in spec["rules"][1]["backendRefs"].as_array_mut().unwrap() {
        backend["weight"] = Value::Null;
    }
    json!([spec, route.metadata.labels, route.metadata.annotations, route.metadata.owner_references])
}

#[tokio::test]
async fn a_route_of_somebody_else_gets_the_shares_and_keeps_all_else() {
    let scene = simulated().await;
    let stand_in = Gateway::start(&scene).await;
    let before = routes(&scene).create(&PostParams::default(), &of_somebody_else()).await.unwrap();
    let reference = json!({"name": "web", "rule": "models"});
    create(&scene, "chat", json!({"image": "engine:1", "drainSeconds": 5, "routeRef": reference})).await;
    until_ready(&scene, "chat").await;
    change(&scene, "chat", json!({"canary": canary("engine:2")})).await;
    until_phase(&scene, CanaryPhase::AwaitingApproval).await;
    assert_eq!(weights(&stand_in.versions()), [(1, Some(0)), (90, Some(10))]);

    // An edit of the owner stays, and one of the weights does not.
    let edit = json!([
        {"op": "replace", "path": "/spec/hostnames", "value": ["web.example.com"]},
        {"op": "replace", "path": "/spec/rules/1/backendRefs/1/weight", "value": 70},
    ]);
    let edit = Patch::Json::<()>(serde_json::from_value(edit).unwrap());
    routes(&scene).patch("web", &PatchParams::default(), &edit).await.unwrap();
    wait_for(&routes(&scene), "web", "the weights are restored", within(), |route: &DynamicObject| {
        route.data["spec"]["rules"][1]["backendRefs"][1]["weight"] == json!(10)
    })
    .await;
    // These words mark a value that has changed meanwhile, in contrast to a refusal.
    let outdated = json!([{"op": "test", "path": "/spec/rules/1/backendRefs/1/weight", "value": 70}]);
    let outdated = Patch::Json::<()>(serde_json::from_value(outdated).unwrap());
    let refused = routes(&scene).patch("web", &PatchParams::default(), &outdated).await.unwrap_err();
    let kube::Error::Api(refused) = refused else { panic!("{refused:?}") };
    let words = "the server rejected our request due to an error in our request";
    assert_eq!((refused.code, &*refused.message), (422, words));

    change(&scene, "chat", json!({"canary": {"approvedSteps": 3}})).await;
    until_phase(&scene, CanaryPhase::Promoted).await;
    wait_until_gone(&scene.api::<Deployment>(), "chat-canary", within()).await;
    let after = routes(&scene).get("web").await.unwrap();
    let (mut was, is) = (without_weights(&before), without_weights(&after));
    was[0]["hostnames"] = json!(["web.example.com"]);
    assert_eq!(is, was);
    let last: Vec<_> = weights(&stand_in.versions()).into_iter().rev().take(2).collect();
    assert_eq!(last, [(100, Some(0)), (50, Some(50))]);
    let inference = scene.api::<AIInference>().get("chat").await.unwrap();
    let route = inference.status.unwrap().route.unwrap();
    assert_eq!((&*route.name, route.address), ("web", None));
}

#[tokio::test]
async fn a_candidate_that_cannot_start_gets_no_request_and_its_abort_none_any_more() {
    let scene = simulated().await;
    let stand_in = Gateway::start(&scene).await;
    create(&scene, "chat", json!({"image": "engine:1", "drainSeconds": 5, "gateway": gateway()})).await;
    until_ready(&scene, "chat").await;
    let mut broken = canary("engine:2");
    broken["env"] = json!([{"name": "SIM_CRASH_REASON", "value": "Error"}]);
    change(&scene, "chat", json!({"canary": broken})).await;
    let inferences = scene.api::<AIInference>();
    let inference = wait_for(&inferences, "chat", "a crash", within(), |inference: &AIInference| {
        condition(inference, conditions::CANARY_PROGRESSING).is_some_and(|known| known.status == "False")
    })
    .await;
    assert!(is_ready(&inference), "a failed candidate never makes Ready False: {inference:?}");
    assert_eq!(weights(&stand_in.versions()), [(100, None)]);

    change(&scene, "chat", json!({"canary": {"env": [{"name": "A", "value": "b"}]}})).await;
    until_weight(&scene, 10).await;
    change(&scene, "chat", json!({"canary": {"abort": true}})).await;
    let inference = until_phase(&scene, CanaryPhase::Aborted).await;
    let inference_uid = inference.metadata.uid.clone();
    until_weight(&scene, 0).await;
    assert_eq!(weights(&stand_in.versions()).last(), Some(&(100, Some(0))));
    scene.api::<Deployment>().get("chat-canary").await.expect("its pods stay");
    let patch = Patch::Merge(json!({"spec": {"canary": null}}));
    inferences.patch("chat", &PatchParams::default(), &patch).await.unwrap();
    wait_until_gone(&scene.api::<PodDisruptionBudget>(), "chat-canary", within()).await;
    wait_for(&inferences, "chat", "no canary", within(), |inference: &AIInference| {
        inference.status.as_ref().is_some_and(|status| status.canary.is_none())
    })
    .await;
    assert_eq!(inferences.get("chat").await.unwrap().metadata.uid, inference_uid);
}
