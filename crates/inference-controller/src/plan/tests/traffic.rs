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
fn of_others(weights: (i32, i32)) -> crate::gateway_api::http_route::HttpRoute {
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
    mut route: crate::gateway_api::http_route::HttpRoute,
) -> crate::gateway_api::http_route::HttpRoute {
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

fn crashed(more: &str) -> String {
    format!(
        "{{name: new, node: gpu-1, gpus: 1, {more}containers: [{{name: engine, restartCount: 1, state: {{running: {{}}}}, \
         lastState: {{terminated: {{exitCode: 137, reason: OOMKilled, startedAt: '{}', finishedAt: '{}'}}}}}}]}}",
        at(-25),
        at(-16)
    )
}

#[test]
fn a_candidate_that_crashes_while_it_has_a_share_is_rolled_back_and_others_faults_are_not_its_own() {
    let plan_of = |pod: &str, edit: fn(&mut crate::observe::Observed)| {
        let mut scene = analysing(pod);
        scene.observe(|observed| {
            observed.looking.pods.insert("new".to_owned(), at(-25).as_second());
            edit(observed);
        });
        let at_once = canary_of(&scene.plan_at(-2)).last_rollback;
        scene.observe(|observed| observed.candidate.as_mut().unwrap().gpu_faults.is_reported = true);
        let waits = scene.plan_at(-2);
        assert_eq!(canary_of(&waits).last_rollback, None, "a fault of the GPU may be reported yet");
        assert!(waits.requeue_after.is_some());
        let later = canary_of(&scene.plan()).last_rollback;
        let reason = |rollback: &Option<api::aiinference::traffic::Rollback>| {
            rollback.as_ref().map(|rollback| rollback.reason.clone())
        };
        assert_eq!(reason(&at_once), reason(&later));
        later
    };
    let rollback = plan_of(&crashed("ready: true, "), |_| {}).unwrap();
    assert_eq!(rollback.reason, "CandidateCrashed");
    let message = "the engine of pod new ended with exit code 137 (OOMKilled) while it had a share";
    assert_eq!(rollback.message, message);
    let never_ready: fn(&mut crate::observe::Observed) = |observed| observed.looking.pods.clear();
    let emptied: fn(&mut crate::observe::Observed) = |observed| {
        observed.candidate.as_mut().unwrap().leaving_nodes.insert("gpu-1".to_owned());
    };
    let observes: fn(&mut crate::observe::Observed) = |observed| {
        let inference = std::sync::Arc::make_mut(&mut observed.inference);
        let analysis = inference.spec.canary.as_mut().unwrap().analysis.as_mut().unwrap();
        analysis.mode = api::aiinference::analysis::AnalysisMode::Observe;
    };
    let doubted: fn(&mut crate::observe::Observed) = |observed| {
        observed.candidate.as_mut().unwrap().gpu_faults.is_doubtful = true;
    };
    for edit in [never_ready, emptied, observes, doubted] {
        assert_eq!(plan_of(&crashed("ready: true, "), edit), None);
    }
    // One that ran when the step began was ready then, also after a restart of the controller.
    let early = |since: i64| {
        let ready =
            format!("conditions: [{{type: Ready, status: 'False', lastTransitionTime: '{}'}}], ", at(since));
        crashed(&ready).replace(&at(-25).to_string(), &at(-300).to_string())
    };
    assert!(plan_of(&early(-16), never_ready).is_some());
    assert_eq!(plan_of(&early(-301), never_ready), None, "it loads since before the step");
    let old = crashed("ready: true, ").replace(&at(-16).to_string(), &at(-181).to_string());
    assert_eq!(plan_of(&old.replace(&at(-25).to_string(), &at(-300).to_string()), |_| {}), None, "long ago");
    // An old end of one pod says nothing of a fresh one of another.
    let mut scene = analysing(&old.replace(&at(-25).to_string(), &at(-300).to_string()));
    let fresh = crashed("ready: true, ").replace("name: new", "name: other");
    scene.candidate(&[&old.replace(&at(-25).to_string(), &at(-300).to_string()), &fresh]);
    scene.observe(|observed| {
        observed.looking.pods.insert("new".to_owned(), at(-300).as_second());
        observed.looking.pods.insert("other".to_owned(), at(-25).as_second());
    });
    let rollback = canary_of(&scene.plan()).last_rollback.unwrap();
    assert!(rollback.message.contains("pod other"), "{}", rollback.message);
    let lost = crashed("ready: true, ").replace("OOMKilled", "Unknown");
    assert_eq!(plan_of(&lost, |_| {}), None, "the node was restarted");
}

#[test]
fn the_engines_of_both_versions_are_looked_at_each_interval() {
    let mut scene = analysing(READY);
    assert_eq!(scene.plan().look.map(|look| look.pods.len()), Some(2));
    let look = scene.plan().look.unwrap();
    let pods: Vec<(&str, bool)> = look.pods.iter().map(|pod| (&*pod.name, pod.is_candidate)).collect();
    assert_eq!(pods, [("chat-0", false), ("new", true)]);
    assert_eq!((look.port, look.path, look.step_since), (8_000, "/metrics", at(-30).as_second()));
    scene.observe(|observed| observed.looking.is_asked = true);
    assert_eq!(scene.plan().look, None, "one at a time");
    let seen = crate::looks::Look {
        step_since: at(-30).as_second(),
        at: at(-5).as_second(),
        ended: at(-5).as_second(),
        ready_pods: Default::default(),
        metrics: Default::default(),
        fault: Some("pod new: it did not answer".to_owned()),
    };
    scene.observe(|observed| {
        observed.looking.is_asked = false;
        observed.looking.looks = vec![seen];
    });
    scene.write_status();
    let plan = scene.plan();
    assert_eq!((plan.look, plan.requeue_after), (None, Some(std::time::Duration::from_secs(10))));
    assert!(scene.plan_at(10).look.is_some());
    // The clock of the leader before was ahead.
    scene.observe(|observed| observed.looking.looks[0].at = at(300).as_second());
    assert!(scene.plan_at(10).look.is_some());
    scene.edit_spec(|spec| spec.pods.paused = true);
    assert_eq!(scene.plan_at(10).look, None, "of a paused object nothing is judged");
}

#[test]
fn what_was_found_stays_while_the_object_is_paused() {
    let mut scene = analysing(READY);
    scene.observe(|observed| {
        let looks = (1..=3).map(|number| crate::looks::Look {
            step_since: at(-30).as_second(),
            at: at(-30 + number * 5).as_second(),
            ended: at(-30 + number * 5).as_second(),
            ready_pods: Default::default(),
            metrics: [(api::aiinference::analysis::MetricName::ErrorRate, crate::looks::Found::Incomplete)]
                .into(),
            fault: Some("pod new: it did not answer".to_owned()),
        });
        observed.looking.looks = looks.collect();
    });
    let found = condition(&scene.plan(), "CanaryHealthy");
    assert_eq!((&*found.0, &*found.1), ("False", "MetricsMissing"));
    assert!(found.2.ends_with("every pod: pod new: it did not answer"), "{}", found.2);
    scene.write_status();
    scene.edit_spec(|spec| spec.pods.paused = true);
    assert_eq!(condition(&scene.plan(), "CanaryHealthy"), found);
}

/// What was judged before the share was 0 must not meet what the engines did meanwhile.
#[test]
fn a_candidate_without_a_share_begins_anew() {
    let mut scene = analysing(READY);
    scene.observe(|observed| observed.looking.looks = vec![looked(-10, (0, 0))]);
    scene.write_status();
    assert!(canary_of(&scene.plan()).analysis.is_some());
    scene.edit_spec(|spec| spec.canary.as_mut().unwrap().abort = true);
    assert_eq!(canary_of(&scene.plan()).analysis, None);
}

/// Requests that have ended in both versions, and the bad ones of the candidate.
fn looked(seconds: i64, (ended, bad): (u64, u64)) -> crate::looks::Look {
    use verdict::interval::{Counts, Flow, Tracks};
    let flow =
        |bad| Flow { arrivals: ended, ended: Counts::new(ended, bad).unwrap(), in_flight: 0, restarts: 0 };
    let flows = Tracks { stable: flow(0), candidate: flow(bad) };
    let found = crate::looks::Found::Counted { flows, bound: None };
    crate::looks::Look {
        step_since: at(-30).as_second(),
        at: at(seconds).as_second(),
        ended: at(seconds).as_second(),
        ready_pods: Tracks { stable: 1, candidate: 1 },
        metrics: [(api::aiinference::analysis::MetricName::ErrorRate, found)].into(),
        fault: None,
    }
}

#[test]
fn a_pass_of_before_a_pause_moves_nothing_until_the_engines_are_read_again() {
    let mut scene = analysing(READY);
    scene.edit_spec(|spec| {
        let canary = spec.canary.as_mut().unwrap();
        canary.promotion = api::aiinference::traffic::Promotion::Auto;
        canary.steps[0].min_seconds = 5;
    });
    scene.observe(|observed| {
        let status = std::sync::Arc::make_mut(&mut observed.inference).status.as_mut().unwrap();
        status.canary.as_mut().unwrap().approvals_needed = 2;
        observed.looking.looks = vec![looked(-20, (20_000, 0)), looked(-5, (20_000, 0))];
    });
    let promoted = |plan: &Plan| plan.status.promoted_revision.is_some();
    assert!(promoted(&scene.plan()), "{:?}", canary_of(&scene.plan()));
    let later = scene.plan_at(3_600);
    assert!(!promoted(&later) && later.look.is_some());
    assert_eq!(canary_of(&later).phase, Some(CanaryPhase::Analysing));
}

#[test]
fn an_invalid_candidate_keeps_its_share_and_the_conditions_say_that_nothing_is_judged() {
    let mut scene = analysing(READY);
    scene.write_status();
    scene.edit_spec(|spec| spec.canary.as_mut().unwrap().args = Some(vec!["--".to_owned()]));
    edited(&mut scene);
    let plan = scene.plan();
    let (_, reason, message) = condition(&plan, "CanaryHealthy");
    assert_eq!(reason, "Judging");
    assert!(message.contains("nothing is judged while spec.canary is invalid"), "{message}");
}

/// Its share is 0 at once, and the step has not begun when the crash counts.
#[test]
fn a_crash_of_the_only_pod_counts_in_each_step() {
    let mut scene = analysing(READY);
    scene.edit_spec(|spec| {
        let steps = "[{weightPercent: 10}, {weightPercent: 50}]";
        spec.canary.as_mut().unwrap().steps = serde_saphyr::from_str(steps).unwrap();
    });
    scene.observe(|observed| observed.looking.looks = vec![looked(-20, (10, 0))]);
    scene.write_status();
    scene.observe(|observed| {
        let status = std::sync::Arc::make_mut(&mut observed.inference).status.as_mut().unwrap();
        let canary = status.canary.as_mut().unwrap();
        (canary.step, canary.step_started_at, canary.lost, canary.weight_percent) = (2, None, 1, 0);
        let version = observed.candidate.as_mut().unwrap();
        let ready =
            format!("conditions: [{{type: Ready, status: 'False', lastTransitionTime: '{}'}}], ", at(-16));
        let pod = crashed(&ready).replace(&at(-25).to_string(), &at(-300).to_string());
        version.deployed = Some(vec![std::sync::Arc::new(crate::tests::pod(&pod))]);
        version.gpu_faults.is_reported = true;
    });
    let first = scene.plan_at(-15);
    assert_eq!(canary_of(&first).last_rollback, None);
    assert!(canary_of(&first).analysis.is_some(), "when its share rose is known from the record");
    scene.write_status();
    let rollback = canary_of(&scene.plan()).last_rollback.unwrap();
    assert_eq!(rollback.reason, "CandidateCrashed");
}

fn with_gateway(scene: &mut Scene, more: &str) {
    let gateway = format!("{{name: public, hostnames: [chat.example.com], {more}}}");
    scene.edit_spec(|spec| spec.gateway = Some(serde_saphyr::from_str(&gateway).unwrap()));
}

fn shares(refs: &[crate::gateway_api::http_route::BackendRef]) -> Vec<(&str, &str, i32)> {
    refs.iter().map(|backend| (&*backend.kind, &*backend.name, backend.weight)).collect()
}

fn accepted_calls(
    mut route: crate::gateway_api::grpc_route::GrpcRoute,
) -> crate::gateway_api::grpc_route::GrpcRoute {
    let spec = crate::gateway_api::http_route::RouteSpec {
        parent_refs: route.spec.parent_refs.clone(),
        ..Default::default()
    };
    let answered = accepted(crate::gateway_api::http_route::HttpRoute { spec, ..Default::default() });
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
    assert_eq!(text[0]["spec"]["endpointPickerRef"]["port"]["number"], 9002);
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
    assert_eq!(message, "InferencePool: Gateway public:  (InvalidExtensionRef)");
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
