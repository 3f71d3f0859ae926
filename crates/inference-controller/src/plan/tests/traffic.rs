//! The route and the candidate of an AIInference, as its plan has them.

use api::aiinference::{
    AIInferenceSpec,
    traffic::{Canary, CanaryPhase, CanaryStatus},
};

use crate::{
    plan::{Plan, children::Child},
    tests::{Scene, at, deployment_of},
    validate::validate,
    versions::candidate,
};

mod analysis;
mod drain;
mod early_end;
mod gate;
mod kinds;
mod start;

const READY: &str = "{name: new, ready: true, node: gpu-1, phase: Running, gpus: 1}";

fn edit(scene: &mut Scene, canary: &str) {
    scene.edit_spec(|spec| {
        spec.gateway = Some(serde_saphyr::from_str("{name: public, hostnames: [chat.example.com]}").unwrap());
        spec.canary = Some(serde_saphyr::from_str(canary).unwrap());
    });
}

/// The candidate as the present spec has it.
fn edited(scene: &mut Scene) {
    scene.observe(|observed| {
        let version = candidate(&observed.inference).unwrap();
        observed.candidate.as_mut().unwrap().inference = std::sync::Arc::new(version);
    });
}

fn image(plan: &Plan) -> String {
    let template = deployment_of(plan).spec.unwrap().template.spec.unwrap();
    template.containers[0].image.clone().unwrap()
}

fn canary_of(plan: &Plan) -> CanaryStatus {
    plan.status.canary.clone().unwrap()
}

fn condition(plan: &Plan, type_: &str) -> (String, String, String) {
    let found = plan.status.conditions.iter().find(|known| known.type_ == type_).unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

/// A service with a candidate that was promoted, and whose children are gone.
fn promoted() -> Scene {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{image: 'engine:2'}");
    let revision = crate::versions::candidate(&scene.observed().inference)
        .map(|version| crate::validate::validate(&version).unwrap().spec_hash);
    scene.observe(|observed| {
        let status = std::sync::Arc::make_mut(&mut observed.inference).status.as_mut().unwrap();
        status.promoted_revision = revision.clone();
        status.canary = Some(CanaryStatus {
            phase: Some(CanaryPhase::Promoted),
            revision: revision.clone().unwrap(),
            stable_revision: revision.clone().unwrap(),
            ..CanaryStatus::default()
        });
    });
    scene.settle(1);
    scene
}

#[test]
fn the_children_of_a_candidate_have_its_version_and_its_track() {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{image: 'engine:2', args: [--seed=1], replicas: 2}");
    scene.candidate(&[]);
    let plan = scene.plan();
    let text = serde_json::to_string(&plan.candidate).unwrap();
    assert!(text.contains("engine:2") && text.contains("--seed=1"), "{text}");
    assert!(!text.contains("\"ai.infra.example.com/track\":\"stable\""), "{text}");
    let names: Vec<&str> = plan
        .candidate
        .iter()
        .filter_map(|child| match child {
            Child::ConfigMap(child) => child.metadata.name.as_deref(),
            Child::Deployment(child) => child.metadata.name.as_deref(),
            Child::Service(child) => child.metadata.name.as_deref(),
            Child::PodDisruptionBudget(child) => child.metadata.name.as_deref(),
        })
        .collect();
    assert_eq!(names, ["chat-canary-model", "chat-canary", "chat-canary", "chat-canary"]);
    assert!(!image(&plan).contains("engine:2"));
}

#[test]
fn an_edit_of_a_promoted_candidate_takes_no_version_back_and_its_removal_does() {
    let mut scene = promoted();
    assert_eq!(image(&scene.plan()), "engine:2");
    edit(&mut scene, "{image: 'engine:3'}");
    let plan = scene.plan();
    assert_eq!(image(&plan), "engine:2", "stable keeps the promoted version");
    assert_eq!(
        plan.status.promoted_revision,
        scene.observed().inference.status.as_ref().unwrap().promoted_revision
    );
    assert_eq!(canary_of(&plan).phase, Some(CanaryPhase::Starting), "the new candidate starts");
    edit(&mut scene, "{image: 'engine:3', args: [--port=1]}");
    assert_eq!(image(&scene.plan()), "engine:2", "a typing error");
    scene.edit_spec(|spec| spec.canary = None);
    assert_ne!(image(&scene.plan()), "engine:2", "the promotion is taken back");
}

/// Nothing that is watched changes when the time of the last step is over.
#[test]
fn what_the_status_alone_decides_is_done_at_once() {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{image: 'engine:2'}");
    scene.candidate(&[READY]);
    let plan = scene.plan();
    assert_eq!(canary_of(&plan).phase, Some(CanaryPhase::Dark));
    assert_eq!(plan.requeue_after, Some(std::time::Duration::ZERO));
    scene.write_status();
    assert_ne!(scene.plan().requeue_after, Some(std::time::Duration::ZERO));
}

#[test]
fn a_candidate_that_is_invalid_changes_nothing_and_is_named() {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{args: [--port=1]}");
    scene.candidate(&[]);
    let plan = scene.plan();
    assert!(plan.candidate.is_empty());
    let (status, reason, message) = condition(&plan, "CanaryProgressing");
    assert_eq!((&*status, &*reason), ("False", "InvalidSpec"));
    assert!(message.contains("--port"), "{message}");
}

#[test]
fn nothing_moves_while_the_object_is_paused_and_no_replica_of_stable_means_none_of_the_candidate() {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{image: 'engine:2', weightPercent: 30}");
    scene.candidate(&[READY]);
    scene.write_status();
    scene.edit_spec(|spec| spec.pods.paused = true);
    let plan = scene.plan();
    assert!(plan.candidate.is_empty() && plan.route.is_none());
    assert_eq!(plan.status.canary, scene.observed().inference.status.as_ref().unwrap().canary);
    scene.edit_spec(|spec| {
        spec.pods.paused = false;
        spec.replicas = 0;
    });
    let text = serde_json::to_string(&scene.plan().candidate).unwrap();
    assert!(text.contains("\"replicas\":0"), "{text}");
}

#[test]
fn a_gateway_that_the_cluster_does_not_know_is_said_and_the_service_is_not_ready() {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{image: 'engine:2'}");
    scene.observe(|observed| observed.has_no_routes = true);
    let plan = scene.plan();
    assert!(plan.route.is_none() && plan.requeue_after.is_some());
    let (status, reason, _) = condition(&plan, "Ready");
    assert_eq!((&*status, &*reason), ("False", "GatewayAPINotInstalled"));
}

/// Endpoints are found by the name of a Service, which may be that of another owner.
#[test]
fn a_service_of_another_owner_gets_no_requests() {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{image: 'engine:2', weightPercent: 30}");
    scene.candidate(&[READY]);
    assert!(scene.plan().route.is_none(), "stable has no Service of its own");
    scene.observe(|observed| observed.service = Some(Default::default()));
    let backends = |scene: &Scene| scene.plan().route.unwrap().spec.rules[0].backend_refs.len();
    assert_eq!(backends(&scene), 1, "no status knows of the candidate");
    scene.write_status();
    assert_eq!(backends(&scene), 2);
    scene.observe(|observed| observed.candidate.as_mut().unwrap().service = None);
    assert_eq!(backends(&scene), 1, "the candidate has none");
}

/// Its other children stay as they are after an abort, for as long as the user looks at its pods.
#[test]
fn the_budget_of_an_aborted_candidate_ends_when_no_other_pod_becomes_ready_in_time() {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{image: 'engine:2', abort: true}");
    scene.candidate(&[]);
    scene.observe(|observed| {
        let version = observed.candidate.as_mut().unwrap();
        version.budget = Some(Default::default());
        version.deployed = Some(vec![std::sync::Arc::new(crate::tests::pod(READY))]);
        version.leaving_nodes.insert("gpu-1".to_owned());
        version.facts.insert("a node with its pod is emptied".to_owned(), crate::tests::at(-10_000));
    });
    let plan = scene.plan();
    assert!(plan.candidate.is_empty(), "its children stay");
    let text = serde_json::to_string(&plan.superfluous_apart).unwrap();
    assert!(text.contains("PodDisruptionBudget"), "{text}");
}

/// Otherwise a drain waits until the spec is corrected.
#[test]
fn the_budget_of_a_candidate_gives_way_also_while_the_spec_is_invalid_or_paused() {
    for spec in [
        |spec: &mut AIInferenceSpec| spec.args = vec!["--".to_owned()],
        |spec: &mut AIInferenceSpec| spec.canary.as_mut().unwrap().args = Some(vec!["--".to_owned()]),
        |spec: &mut AIInferenceSpec| spec.pods.paused = true,
    ] {
        let mut scene = Scene::ready(1);
        edit(&mut scene, "{image: 'engine:2', weightPercent: 30}");
        scene.candidate(&[READY]);
        scene.edit_spec(spec);
        edited(&mut scene);
        let mut emptied_for = |seconds: i64| {
            scene.observe(|observed| {
                observed.is_newest = true;
                let version = observed.candidate.as_mut().unwrap();
                version.budget = Some(Default::default());
                version.leaving_nodes.insert("gpu-1".to_owned());
                version.facts.insert("a node with its pod is emptied".to_owned(), at(-seconds));
            });
            planned(&scene)
        };
        let early = emptied_for(299);
        assert!(early.superfluous.is_empty() && early.superfluous_apart.is_empty());
        assert!(early.requeue_after <= Some(std::time::Duration::from_secs(1)));
        let fact = "candidate: a node with its pod is emptied".to_owned();
        assert!(early.facts.unwrap().contains(&fact), "or its time would begin anew");
        let ended = emptied_for(300);
        assert_eq!(ended.superfluous.len() + ended.superfluous_apart.len(), 1);
    }
}

/// A route without an answer to its last change counts as accepted for a minute. An invalid spec does not lengthen that.
#[test]
fn a_route_without_an_answer_is_said_also_while_the_spec_is_invalid() {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{image: 'engine:2', weightPercent: 30}");
    scene.candidate(&[READY]);
    scene.observe(|observed| observed.service = Some(Default::default()));
    let route = scene.plan().route.unwrap();
    scene.observe(|observed| {
        observed.route = Some(*route);
        let status = std::sync::Arc::make_mut(&mut observed.inference).status.as_mut().unwrap();
        status.conditions.push(serde_saphyr::from_str(
            "{type: TrafficReady, status: 'True', reason: RouteAccepted, message: '', lastTransitionTime: '2026-01-01T00:00:00Z'}",
        ).unwrap());
        observed.is_newest = true;
    });
    scene.edit_spec(|spec| spec.args = vec!["--".to_owned()]);
    let plan = planned(&scene);
    assert_eq!(condition(&plan, "TrafficReady").0, "True");
    assert_eq!(plan.requeue_after, Some(std::time::Duration::from_secs(60)));
    let facts = plan.facts.unwrap();
    scene.observe(|observed| observed.facts = facts.into_iter().map(|fact| (fact, at(-60))).collect());
    assert_eq!(condition(&planned(&scene), "TrafficReady").0, "False");
}

fn planned(scene: &Scene) -> Plan {
    match crate::plan::plan(&scene.observed(), &crate::tests::defaults(&[]), at(0)) {
        runtime::reconcile::Decision::Plan(plan) => plan,
        runtime::reconcile::Decision::Doubt(doubt) => panic!("{doubt:?}"),
    }
}

/// The process before has made the candidate's Deployment and nothing else. Its pods would be made a second time.
#[test]
fn a_candidate_that_a_late_cache_does_not_know_is_confirmed_before_it_is_deleted() {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{image: 'engine:2'}");
    scene.candidate(&[READY]);
    scene.edit_spec(|spec| spec.canary = None);
    scene.observe(|observed| {
        let next = observed.inference.metadata.generation.unwrap() + 1;
        let candidate = observed.candidate.as_mut().unwrap();
        candidate.deployment.as_mut().unwrap().generation = Some(next.to_string().into());
    });
    let decision = |scene: &Scene| crate::plan::plan(&scene.observed(), &crate::tests::defaults(&[]), at(0));
    assert!(matches!(decision(&scene), runtime::reconcile::Decision::Doubt(crate::plan::Doubt::Object)));
    scene.observe(|observed| observed.is_newest = true);
    assert!(!planned(&scene).superfluous_apart.is_empty(), "it is not wanted");
}

#[test]
fn a_step_that_waits_for_gpus_says_so() {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{image: 'engine:2', steps: [{weightPercent: 10, replicas: 2}]}");
    scene.candidate(&[READY, "{name: b, conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable, message: '0/3 nodes'}]}"]);
    scene.observe(|observed| {
        let inference = observed.inference.clone();
        let status = std::sync::Arc::make_mut(&mut observed.inference).status.as_mut().unwrap();
        let revision = validate(&candidate(&inference).unwrap()).unwrap().spec_hash;
        let (phase, step) = (Some(CanaryPhase::Analysing), 1);
        let stable_revision = validate(&inference).unwrap().spec_hash;
        status.canary =
            Some(CanaryStatus { phase, step, revision, stable_revision, ..CanaryStatus::default() });
    });
    let (status, reason, message) = condition(&scene.plan(), "CanaryProgressing");
    assert_eq!((&*status, &*reason), ("False", "Unschedulable"), "{message}");
    assert!(
        message.starts_with("step 1 of 1: the candidate has 0 % of the requests; the candidate: "),
        "{message}"
    );
}

#[test]
fn a_promotion_says_which_fields_to_move() {
    let mut scene = promoted();
    scene.candidate(&[]);
    assert_eq!(
        condition(&scene.plan(), "CanaryProgressing").2,
        "stable has the version of the candidate; in one change, move image from spec.canary to spec and remove spec.canary"
    );
    let image = "{image: 'engine:2', manifestDigest: 'sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}";
    let canary: Canary = serde_saphyr::from_str(image).unwrap();
    scene.edit_spec(|spec| {
        spec.engine_version = Some("0.17".to_owned());
        spec.canary = Some(canary);
    });
    let revision = validate(&candidate(&scene.observed().inference).unwrap()).unwrap().spec_hash;
    scene.observe(|observed| {
        let status = std::sync::Arc::make_mut(&mut observed.inference).status.as_mut().unwrap();
        status.promoted_revision = Some(revision.clone());
        let canary = status.canary.as_mut().unwrap();
        (canary.phase, canary.revision) = (Some(CanaryPhase::Promoted), revision);
    });
    scene.candidate(&[]);
    let message = condition(&scene.plan(), "CanaryProgressing").2;
    let moved = "move manifestDigest (to spec.modelStore), image from spec.canary to spec and remove spec.engineVersion, spec.canary";
    assert!(message.ends_with(moved), "{message}");
}

/// As its message says, the fold leaves the version what it was, also where the digest was all that modelStore had.
#[test]
fn a_new_source_leaves_no_empty_store_behind() {
    let spec = |text: &str| crate::tests::inference(text);
    let before = spec(
        "{modelSource: s3://m/a, engine: vllm, gpu: {count: 1}, modelStore: {manifestDigest: 'sha256:\
         aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}, canary: {modelSource: s3://m/b}}",
    );
    let folded = spec("{modelSource: s3://m/b, engine: vllm, gpu: {count: 1}}");
    let hash = |inference: &api::aiinference::AIInference| validate(inference).unwrap().spec_hash;
    assert_eq!(hash(&candidate(&before).unwrap()), hash(&folded));
}

/// A candidate in its first step, for half a minute.
fn analysing(pod: &str) -> Scene {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{image: 'engine:2', steps: [{weightPercent: 10}], analysis: {}}");
    scene.candidate(&[pod]);
    scene.observe(|observed| observed.service = Some(Default::default()));
    scene.observe(|observed| {
        let inference = observed.inference.clone();
        let status = std::sync::Arc::make_mut(&mut observed.inference).status.as_mut().unwrap();
        let revision = validate(&candidate(&inference).unwrap()).unwrap().spec_hash;
        let stable_revision = validate(&inference).unwrap().spec_hash;
        let step_started_at = Some(runtime::write::conditions::whole_seconds(at(-30)));
        let (phase, step, served) = (Some(CanaryPhase::Analysing), 1, true);
        status.canary = Some(CanaryStatus {
            phase,
            step,
            served,
            revision,
            stable_revision,
            step_started_at,
            ..CanaryStatus::default()
        });
        observed.has_endpoint = Some(true);
    });
    // The route has the share, and the gateways have accepted it.
    let route = scene.plan().route.unwrap();
    scene.observe(|observed| observed.route = Some(accepted(*route)));
    let route = scene.plan().route.unwrap();
    scene.observe(|observed| observed.route = Some(accepted(*route)));
    scene
}

/// The route of `spec.routeRef` with these weights of stable and of the candidate.
fn of_others(weights: (i32, i32)) -> crate::objects::gateway_api::http_route::HttpRoute {
    let backend = |name: &str, weight: i32| serde_json::json!({"group": "", "kind": "Service", "name": name, "port": 8000, "weight": weight});
    let route = serde_json::json!({
        "metadata": {"name": "web", "namespace": "demo", "uid": "of-web", "resourceVersion": "7"},
        "spec": {
            "parentRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "public"}],
            "rules": [{"backendRefs": [backend("chat", weights.0), backend("chat-canary", weights.1)]}],
        },
    });
    accepted(serde_json::from_value(route).unwrap())
}

#[test]
fn a_route_of_somebody_else_gets_two_numbers_and_only_while_there_is_a_canary() {
    let mut scene = Scene::ready(1);
    scene.edit_spec(|spec| spec.route_ref = Some(serde_saphyr::from_str("{name: web}").unwrap()));
    scene.observe(|observed| observed.referred = Some(of_others((0, 7))));
    let plan = scene.plan();
    assert!(plan.route.is_none() && plan.weights.is_none(), "the numbers are the user's");
    assert_eq!(condition(&plan, "Ready").0, "True");
    assert!(plan.status.conditions.iter().all(|known| known.type_ != "TrafficReady"));

    scene.observe(|observed| observed.referred = Some(of_others((1, 0))));
    scene.edit_spec(|spec| {
        spec.canary =
            Some(serde_saphyr::from_str("{image: 'engine:2', steps: [{weightPercent: 10}]}").unwrap());
    });
    scene.candidate(&[]);
    scene.observe(|observed| {
        let version = observed.candidate.as_mut().unwrap();
        (version.deployment, version.service, version.deployed) = (None, None, None);
        observed.has_endpoint = Some(true);
    });
    assert_eq!(canary_of(&scene.plan()).phase, Some(CanaryPhase::Starting), "there is nothing to drain");
    scene.write_status();
    scene.candidate(&[READY]);
    let mut plan = scene.plan();
    for _ in 0..4 {
        if plan.weights.as_ref().is_some_and(|weights| !weights.values.replaced.is_empty()) {
            break;
        }
        scene.write_status();
        plan = scene.plan();
    }
    assert!(plan.route.is_none());
    let numbers: Vec<_> =
        plan.weights.unwrap().values.replaced.into_iter().map(|(_, value)| value.to_string()).collect();
    assert_eq!(numbers, ["90", "10"]);
    assert_eq!(condition(&scene.plan(), "TrafficReady").1, "RouteAccepted");

    // The words of a gateway about another route that takes requests.
    scene.observe(|observed| {
        let said = &mut observed.referred.as_mut().unwrap().status.parents[0].conditions;
        said.push(
            serde_saphyr::from_str(
                "{type: RouteRulesOverlap, status: 'True', observedGeneration: 1, reason: '', \
            message: rule 0 is that of HTTPRoute a/b, lastTransitionTime: '2026-01-01T00:00:00Z'}",
            )
            .unwrap(),
        );
    });
    assert_eq!(
        condition(&scene.plan(), "TrafficReady").2,
        "accepted by Gateway public; RouteRulesOverlap: rule 0 is that of HTTPRoute a/b"
    );
    scene.observe(|observed| {
        observed.referred.as_mut().unwrap().spec.rules[0].backend_refs[1].name = "b".into()
    });
    let plan = scene.plan();
    assert!(plan.weights.is_none());
    let (status, reason, message) = condition(&plan, "TrafficReady");
    assert_eq!((&*status, &*reason), ("False", "BackendNotResolved"));
    assert!(message.contains("the Services chat and chat-canary with port 8000"), "{message}");
    assert_eq!(condition(&plan, "Ready").0, "True", "stable does not need it");
}

fn accepted(
    mut route: crate::objects::gateway_api::http_route::HttpRoute,
) -> crate::objects::gateway_api::http_route::HttpRoute {
    let conditions = serde_json::json!([
        {"type": "Accepted", "status": "True", "observedGeneration": 1, "reason": "", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "ResolvedRefs", "status": "True", "observedGeneration": 1, "reason": "", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]);
    let parents: Vec<serde_json::Value> = route
        .spec
        .parent_refs
        .iter()
        .map(|parent| serde_json::json!({"parentRef": parent, "conditions": conditions}))
        .collect();
    route.metadata.generation = Some(1);
    route.status = serde_json::from_value(serde_json::json!({"parents": parents})).unwrap();
    route
}
