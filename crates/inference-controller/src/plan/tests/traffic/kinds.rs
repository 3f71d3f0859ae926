//! The routes and pools beside the HTTPRoute.

use super::*;
use crate::objects::gateway_api::{
    grpc_route::{GrpcRoute, GrpcRule},
    http_route::{BackendRef, HttpRoute, RouteSpec},
};

fn with_gateway(scene: &mut Scene, more: &str) {
    let gateway = format!("{{name: public, hostnames: [chat.example.com], {more}}}");
    scene.edit_spec(|spec| spec.gateway = Some(serde_saphyr::from_str(&gateway).unwrap()));
}

fn shares(refs: &[BackendRef]) -> Vec<(&str, &str, i32)> {
    refs.iter().map(|backend| (&*backend.kind, &*backend.name, backend.weight)).collect()
}

fn accepted_calls(mut route: GrpcRoute) -> GrpcRoute {
    let spec = RouteSpec { parent_refs: route.spec.parent_refs.clone(), ..Default::default() };
    let answered = accepted(HttpRoute { spec, ..Default::default() });
    (route.metadata.generation, route.status) = (answered.metadata.generation, answered.status);
    route
}

#[test]
fn a_grpc_route_gets_the_shares_of_the_http_route_and_the_step_begins_again_until_it_has_them() {
    let mut scene = analysing(READY);
    with_gateway(&mut scene, "grpc: {hostnames: [grpc.example.com]}");
    let of_calls = |plan: &Plan| *plan.grpc_route.clone().unwrap();
    let plan = scene.plan();
    let calls = of_calls(&plan);
    assert_eq!(
        calls.metadata.name.as_deref(),
        Some("chat-grpc"),
        "Contour answers for one route of each name"
    );
    let backends: Vec<&str> = calls.spec.rules[0].backend_refs.iter().map(|known| &*known.name).collect();
    assert_eq!(backends, ["chat", "chat-canary"]);
    assert_eq!(calls.spec.hostnames, ["grpc.example.com"]);
    assert_eq!(calls.spec.parent_refs, plan.route.as_ref().unwrap().spec.parent_refs);
    let weights = |plan: &Plan| {
        let http = plan.route.as_ref().unwrap().spec.rules[0].backend_refs.clone();
        (http[1].weight, shares(&of_calls(plan).spec.rules[0].backend_refs)[1].2)
    };
    assert_eq!(weights(&plan), (10, 0), "its gateways learn the Service first");
    assert_eq!(condition(&plan, "TrafficReady").1, "RouteNotObserved");
    scene.observe(|observed| observed.grpc_route = Some(calls.clone()));
    assert_eq!(weights(&scene.plan()), (10, 0), "until they have accepted it");
    scene.observe(|observed| observed.grpc_route = Some(accepted_calls(calls)));
    let plan = scene.plan();
    assert_eq!(weights(&plan), (10, 10));
    scene.observe(|observed| observed.grpc_route = Some(accepted_calls(of_calls(&plan))));
    assert_eq!(condition(&scene.plan(), "TrafficReady").1, "RouteAccepted");
    scene.edit_spec(|spec| spec.canary.as_mut().unwrap().abort = true);
    assert_eq!(weights(&scene.plan()), (0, 0), "both at once");
    scene.edit_spec(|spec| spec.gateway.as_mut().unwrap().grpc = None);
    let text = serde_json::to_string(&scene.plan().superfluous_apart).unwrap();
    assert!(text.contains("GrpcRoute") && !text.contains("\"Route\""), "{text}");
}

/// Gateways need not support a match without a method, and version 1.2 of the Gateway API allows 8 matches in a rule.
#[test]
fn each_match_of_a_grpc_route_names_one_method() {
    let mut scene = analysing(READY);
    with_gateway(&mut scene, "grpc: {}");
    // A match begins once the gateways have accepted the rules without it.
    let plan = scene.plan();
    scene.observe(|observed| {
        observed.route = plan.route.map(|route| accepted(*route));
        observed.grpc_route = plan.grpc_route.map(|route| accepted_calls(*route));
    });
    let matched = "{header: x-version, value: new}";
    scene.edit_spec(|spec| {
        spec.canary.as_mut().unwrap().matches = vec![serde_saphyr::from_str(matched).unwrap()]
    });
    let rules = scene.plan().grpc_route.unwrap().spec.rules;
    let (of_header, shared): (Vec<_>, Vec<_>) =
        rules.iter().partition(|rule| rule.matches.iter().all(|known| !known.headers.is_empty()));
    let methods = |rules: &[&GrpcRule]| -> Vec<String> {
        rules.iter().flat_map(|rule| &rule.matches).map(|known| known.method.method.clone()).collect()
    };
    assert_eq!(methods(&of_header), methods(&shared));
    assert!(methods(&shared).contains(&"ModelInfer".to_owned()), "{shared:?}");
    assert!(!methods(&shared).iter().any(String::is_empty), "{shared:?}");
    assert!(rules.len() <= 16 && rules.iter().all(|rule| (1..=8).contains(&rule.matches.len())), "{rules:?}");
}

#[test]
fn what_the_gateways_say_about_the_grpc_route_is_in_the_condition() {
    let mut scene = analysing(READY);
    with_gateway(&mut scene, "grpc: {}");
    let mut calls = accepted_calls(*scene.plan().grpc_route.unwrap());
    let refused = &mut calls.status.parents[0].conditions[0];
    (refused.status, refused.reason) = ("False".to_owned(), "HostnameConflict".to_owned());
    scene.observe(|observed| observed.grpc_route = Some(calls));
    let (status, reason, message) = condition(&scene.plan(), "TrafficReady");
    assert_eq!((&*status, &*reason), ("False", "RouteRejected"));
    assert_eq!(message, "GRPCRoute: Gateway public:  (HostnameConflict)");
    assert!(!scene.plan().status.route.unwrap().accepted);
}

#[test]
fn without_the_kind_of_grpc_routes_the_other_route_does_its_work() {
    let mut scene = analysing(READY);
    with_gateway(&mut scene, "grpc: {}");
    // While a kind is being removed, the API server refuses new objects of it.
    let refused = ("Denied", "refused".to_owned());
    scene.observe(|observed| observed.apart.extend([(crate::plan::traffic::report::GRPC_ROUTE, refused)]));
    assert_eq!(condition(&scene.plan(), "TrafficReady").1, "Denied");
    scene.observe(|observed| observed.has_no_grpc_routes = true);
    let plan = scene.plan();
    assert!(plan.grpc_route.is_none() && plan.requeue_after.is_some());
    let (status, _, message) = condition(&plan, "TrafficReady");
    assert_eq!(status, "True");
    assert!(
        message.ends_with(
            "gRPC has no route until the cluster serves GRPCRoutes (gateway.networking.k8s.io/v1)"
        )
    );
    assert!(canary_of(&plan).step_started_at.is_some(), "the step goes on");
}

/// The kind was removed with its objects, and comes back.
#[test]
fn without_the_kind_of_routes_the_candidate_keeps_its_pods_and_gets_its_share_later() {
    let mut scene = analysing(READY);
    let pods = |plan: &Plan| (deployment_of(plan).spec, serde_json::to_value(&plan.candidate).unwrap());
    scene.write_status();
    let before = scene.plan();
    assert_eq!(canary_of(&before).weight_percent, 10);
    scene.observe(|observed| {
        (observed.route, observed.has_no_routes, observed.has_endpoint) = (None, true, None);
    });
    let plan = scene.plan();
    assert!(plan.route.is_none() && plan.requeue_after.is_some() && plan.superfluous_apart.is_empty());
    assert_eq!(pods(&plan), pods(&before));
    let (status, reason, message) = condition(&plan, "TrafficReady");
    assert_eq!((&*status, &*reason), ("False", "GatewayAPINotInstalled"));
    assert!(message.ends_with("install the Gateway API, or remove spec.gateway"), "{message}");
    let canary = canary_of(&plan);
    assert_eq!((canary.weight_percent, canary.step_started_at, canary.lost), (0, None, 0));
    scene.write_status();

    scene.observe(|observed| (observed.has_no_routes, observed.has_endpoint) = (false, Some(true)));
    let weights = |plan: &Plan| {
        let refs = &plan.route.as_ref().unwrap().spec.rules[0].backend_refs;
        refs.iter().map(|backend| backend.weight).collect::<Vec<_>>()
    };
    let plan = scene.plan();
    assert_eq!(weights(&plan), [100, 0], "its gateways learn the Service first");
    scene.observe(|observed| observed.route = Some(accepted(*plan.route.clone().unwrap())));
    assert_eq!(weights(&scene.plan()), [90, 10]);
}

const POOL: &str = "inferencePool: {endpointPicker: {name: picker, port: 9002}}";

#[test]
fn without_the_kind_of_pools_the_route_leads_to_the_services_and_the_condition_says_so() {
    let mut scene = analysing(READY);
    let template = |plan: &Plan| deployment_of(plan).spec.unwrap().template;
    let before = template(&scene.plan());
    with_gateway(&mut scene, POOL);
    scene.observe(|observed| observed.has_no_pools = true);
    let plan = scene.plan();
    assert!(plan.pools.is_empty() && plan.requeue_after.is_some());
    let refs = plan.route.as_ref().unwrap().spec.rules[0].backend_refs.clone();
    assert_eq!(shares(&refs), [("Service", "chat", 90), ("Service", "chat-canary", 10)]);
    let (status, reason, message) = condition(&plan, "TrafficReady");
    assert_eq!((&*status, &*reason), ("False", "InferencePoolNotInstalled"));
    assert!(message.ends_with("or remove spec.gateway.inferencePool"), "{message}");
    assert_eq!(template(&plan), before, "pods are not touched");
}

/// The pools as they are stored.
fn store_pools(scene: &mut Scene) {
    let pools = scene.plan().pools;
    scene.observe(|observed| {
        observed.pool = pools.first().cloned();
        observed.candidate.as_mut().unwrap().pool = pools.get(1).cloned();
    });
}

#[test]
fn each_version_has_a_pool_of_its_pods_and_the_route_leads_to_both_once_they_exist() {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{image: 'engine:2', steps: [{weightPercent: 10}]}");
    with_gateway(&mut scene, POOL);
    scene.candidate(&[READY]);
    scene.observe(|observed| observed.service = Some(Default::default()));
    scene.write_status();
    let plan = scene.plan();
    let refs = |plan: &Plan| plan.route.as_ref().unwrap().spec.rules[0].backend_refs.clone();
    assert_eq!(shares(&refs(&plan)), [("Service", "chat", 100)], "no gateway finds a pool that is missing");
    let text = serde_json::to_value(&plan.pools).unwrap();
    let label =
        |index: usize| text[index]["spec"]["selector"]["matchLabels"]["ai.infra.example.com/track"].clone();
    assert_eq!((text.as_array().unwrap().len(), label(0), label(1)), (2, "stable".into(), "canary".into()));
    let pickers = |scene: &Scene| {
        let pools = serde_json::to_value(&scene.plan().pools).unwrap();
        [0, 1].map(|index| pools[index]["spec"]["endpointPickerRef"]["name"].as_str().unwrap().to_owned())
    };
    assert_eq!(text[0]["spec"]["endpointPickerRef"]["port"]["number"], 9002);
    assert_eq!(pickers(&scene), ["picker", "picker"]);
    scene.edit_spec(|spec| {
        let pools = spec.gateway.as_mut().unwrap().inference_pool.as_mut().unwrap();
        let picker = api::aiinference::traffic::EndpointPicker { name: "second".to_owned(), port: 9002 };
        pools.candidate_endpoint_picker = Some(picker);
    });
    assert_eq!(pickers(&scene), ["picker", "second"], "a picker may serve a single pool");
    store_pools(&mut scene);
    let plan = scene.plan();
    let pools = [("InferencePool", "chat", 100), ("InferencePool", "chat-canary", 0)];
    assert_eq!(shares(&refs(&plan)), pools);
    let route = serde_json::to_string(&plan.route).unwrap();
    assert!(!route.contains("port"), "the API server refuses none, and a gateway would not use it: {route}");

    // What a gateway has against a pool holds the canary.
    scene.observe(|observed| observed.route = Some(accepted(*plan.route.clone().unwrap())));
    assert_eq!(condition(&scene.plan(), "TrafficReady").1, "RouteAccepted");
    let answered = accepted(*plan.route.unwrap()).status;
    scene.observe(|observed| {
        let pool = observed.pool.as_mut().unwrap();
        pool.status = answered;
        let refs = &mut pool.status.parents[0].conditions[1];
        (refs.status, refs.reason) = ("False".to_owned(), "InvalidExtensionRef".to_owned());
    });
    let plan = scene.plan();
    let (_, reason, message) = condition(&plan, "TrafficReady");
    assert_eq!(reason, "BackendNotResolved");
    assert_eq!(message, "InferencePool chat: Gateway public:  (InvalidExtensionRef)");
    assert_eq!(shares(&refs(&plan)), pools);
}

/// Each reference begins with a weight of 0.
#[test]
fn a_route_does_not_change_to_pools_while_the_candidate_has_a_share() {
    let mut scene = analysing(READY);
    with_gateway(&mut scene, POOL);
    let kinds = |scene: &Scene| {
        let rule = scene.plan().route.unwrap().spec.rules.remove(0);
        shares(&rule.backend_refs)
            .iter()
            .map(|(kind, _, weight)| (kind.to_string(), *weight))
            .collect::<Vec<_>>()
    };
    let of = |kind: &str, weights: [i32; 2]| weights.map(|weight| (kind.to_owned(), weight)).to_vec();
    assert_eq!(kinds(&scene), of("Service", [90, 10]), "a missing pool takes no share away");
    store_pools(&mut scene);
    assert_eq!(kinds(&scene), of("Service", [90, 10]));
    scene.edit_spec(|spec| spec.canary.as_mut().unwrap().abort = true);
    assert_eq!(kinds(&scene), of("Service", [100, 0]));
    let route = scene.plan().route.unwrap();
    scene.observe(|observed| observed.route = Some(*route));
    assert_eq!(kinds(&scene), of("InferencePool", [100, 0]));
}

#[test]
fn pools_are_deleted_after_the_gateways_have_accepted_a_route_without_them() {
    let mut scene = analysing(READY);
    with_gateway(&mut scene, POOL);
    store_pools(&mut scene);
    scene.edit_spec(|spec| spec.canary.as_mut().unwrap().abort = true);
    for _ in 0..2 {
        let route = scene.plan().route.unwrap();
        scene.observe(|observed| observed.route = Some(accepted(*route)));
    }
    with_gateway(&mut scene, "");
    let deletes = |scene: &Scene| {
        let text = serde_json::to_string(&scene.plan().superfluous_apart).unwrap();
        text.matches("InferencePool").count()
    };
    assert_eq!(deletes(&scene), 0, "the route names them");
    let route = scene.plan().route.unwrap();
    assert!(route.spec.rules[0].backend_refs.iter().all(|backend| backend.kind == "Service"));
    scene.observe(|observed| observed.route = Some((*route).clone()));
    assert_eq!(deletes(&scene), 0, "a gateway may still use them");
    scene.observe(|observed| observed.route = Some(accepted(*route)));
    assert_eq!(deletes(&scene), 2);
}

/// It may still send by the rules of before.
#[test]
fn calls_end_only_when_each_gateway_has_refused_or_accepted_their_route() {
    let mut scene = analysing(READY);
    let gateway = "{name: public, hostnames: [a.example.com], more: [{name: inside}], grpc: {}}";
    scene.edit_spec(|spec| spec.gateway = Some(serde_saphyr::from_str(gateway).unwrap()));
    scene.edit_spec(|spec| spec.canary = None);
    let mut route = accepted(*scene.plan().route.unwrap());
    let inside = |said: &crate::objects::gateway_api::http_route::RouteParent| {
        let mut said = said.clone();
        said.parent_ref.name = "inside".to_owned();
        said
    };
    let mut calls = accepted_calls(*scene.plan().grpc_route.unwrap());
    for parents in [&mut route.status.parents, &mut calls.status.parents] {
        let first = parents[0].clone();
        *parents = vec![first.clone(), inside(&first)];
    }
    for said in &mut calls.status.parents {
        said.conditions[0].status = "False".to_owned();
    }
    let ends = |scene: &mut Scene, calls: &GrpcRoute| {
        scene.observe(|observed| {
            (observed.route, observed.grpc_route) = (Some(route.clone()), Some(calls.clone()));
        });
        canary_of(&scene.plan()).draining_since.is_some()
    };
    assert!(ends(&mut scene, &calls), "no gateway serves it");
    calls.status.parents.pop();
    assert!(!ends(&mut scene, &calls), "one has not answered");
}

#[test]
fn a_grpc_route_without_an_answer_is_named() {
    let mut scene = analysing(READY);
    with_gateway(&mut scene, "grpc: {}");
    let route = accepted(*scene.plan().route.unwrap());
    scene.observe(|observed| observed.route = Some(route.clone()));
    let (_, reason, message) = condition(&scene.plan(), "TrafficReady");
    assert_eq!(reason, "RouteNotObserved");
    assert!(
        message.contains("for the GRPCRoute") && message.ends_with("remove spec.gateway.grpc"),
        "{message}"
    );
}
