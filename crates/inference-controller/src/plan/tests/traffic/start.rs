//! A candidate whose pods do not become ready.

use workload::faults::crashes::Crash;

use super::*;

const UNPLACED: &str = "{name: new, conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable, \
                        message: '0/3 nodes are available: 3 Insufficient nvidia.com/gpu.'}]}";
const GATED: &str = "{name: new, gates: [kueue.x-k8s.io/admission], conditions: [{type: PodScheduled, status: 'False', \
                     reason: SchedulingGated}]}";
const LOADS: &str = "{name: new, node: gpu-1, phase: Pending, gpus: 1}";

/// A candidate before its first step, with this pod.
fn starting(mode: &str, pod: &str) -> Scene {
    let mut scene = Scene::ready(1);
    let analysis = format!("{{mode: {mode}, timeoutSeconds: 60}}");
    edit(&mut scene, &format!("{{image: 'engine:2', steps: [{{weightPercent: 10}}], analysis: {analysis}}}"));
    scene.candidate(&[pod]);
    scene.write_status();
    scene.observe(|observed| observed.facts.clear());
    scene
}

/// The facts of a plan at this time, as the next one has them.
fn noted(scene: &mut Scene, seconds: i64) {
    let Some(facts) = scene.plan_at(seconds).facts else { return };
    scene.observe(|observed| {
        let known = std::mem::take(&mut observed.facts);
        let since = |fact: &String| known.get(fact).copied().unwrap_or(at(seconds));
        observed.facts = facts.iter().map(|fact| (fact.clone(), since(fact))).collect();
    });
}

fn phase_at(scene: &Scene, seconds: i64) -> Option<CanaryPhase> {
    canary_of(&scene.plan_at(seconds)).phase
}

/// Its GPUs, and the replicas of stable that it holds, are of use to others.
#[test]
fn a_candidate_that_finds_no_gpu_or_is_gated_is_rolled_back_after_the_time_of_a_verdict() {
    for (pod, words) in [(UNPLACED, "nvidia.com/gpu"), (GATED, "kueue.x-k8s.io/admission")] {
        let mut scene = starting("Enforce", pod);
        let (status, _, message) = condition(&scene.plan(), "CanaryProgressing");
        assert_eq!(status, "False", "{message}");
        assert!(message.contains(words), "{message}");
        noted(&mut scene, 0);
        assert_eq!(phase_at(&scene, 59), Some(CanaryPhase::Starting));
        assert_eq!(
            scene.plan_at(59).requeue_after,
            Some(std::time::Duration::from_secs(1)),
            "nothing else wakes it"
        );
        let plan = scene.plan_at(60);
        let rollback = canary_of(&plan).last_rollback.unwrap();
        assert_eq!(rollback.reason, "CandidateUnready");
        let begins = "its pods have not become ready within 60 s (spec.canary.analysis.timeoutSeconds): ";
        assert!(
            rollback.message.starts_with(begins) && rollback.message.contains(words),
            "{}",
            rollback.message
        );
        assert_eq!(plan.status.min_stable_replicas, None, "stable may be scaled down again");
        assert_eq!(condition(&plan, "CanaryHealthy").1, "CandidateUnready");
        let event = plan.events.iter().find(|event| event.reason == "CanaryRolledBack").unwrap();
        assert_eq!(event.message, rollback.message);
    }
}

#[test]
fn a_candidate_that_only_is_observed_or_loads_its_model_is_not_rolled_back_for_its_time() {
    let mut observing = starting("Observe", UNPLACED);
    noted(&mut observing, 0);
    assert_eq!(phase_at(&observing, 600), Some(CanaryPhase::Starting));
    let mut loading = starting("Enforce", LOADS);
    noted(&mut loading, 0);
    noted(&mut loading, 600);
    assert_eq!(phase_at(&loading, 1200), Some(CanaryPhase::Starting), "a load has its own limits");
    // A node came late. What follows it has its time.
    let mut late = starting("Enforce", UNPLACED);
    noted(&mut late, 0);
    late.candidate(&[LOADS]);
    noted(&mut late, 50);
    late.candidate(&[UNPLACED]);
    noted(&mut late, 100);
    assert_eq!(phase_at(&late, 159), Some(CanaryPhase::Starting), "the load does not count");
    assert_eq!(canary_of(&late.plan_at(160)).last_rollback.unwrap().reason, "CandidateUnready");
}

/// The engine of a pod that is not ready.
fn engine(parts: &str) -> String {
    format!("{{name: new, node: gpu-1, phase: Running, gpus: 1, containers: [{{name: engine, {parts}}}]}}")
}

/// A container that has ended so often, and runs again. The kubelet has ended its last run at this time, after half an hour.
fn ended(times: i32, seconds: i64) -> String {
    let (started, finished) = (at(seconds - 1_800), at(seconds));
    format!(
        "restartCount: {times}, state: {{running: {{startedAt: '{finished}'}}}}, lastState: {{terminated: {{exitCode: 137, \
         startedAt: '{started}', finishedAt: '{finished}'}}}}"
    )
}

/// It never answers, so the kubelet ends it each time it has loaded for half an hour. Nothing else is to be seen of it.
#[test]
fn an_engine_that_never_warms_up_is_rolled_back_with_its_first_end_after_the_time() {
    let first = |state: &str| engine(&format!("started: false, state: {{{state}}}"));
    let warming_up = first(&format!("running: {{startedAt: '{}'}}", at(-1_800)));
    let mut scene = starting("Enforce", &warming_up);
    noted(&mut scene, 0);
    scene.candidate(&[&first("terminated: {exitCode: 137}")]);
    noted(&mut scene, 10);
    scene.candidate(&[&engine(&ended(1, 10))]);
    noted(&mut scene, 11);
    scene.observe(|observed| {
        observed.candidate.as_mut().unwrap().crashes.insert("new".to_owned(), Crash::Unread);
    });
    assert_eq!(scene.plan_at(12).logs.first().map(|log| log.restarts), Some(1), "its log goes with its pod");
    assert_eq!(phase_at(&scene, 70), Some(CanaryPhase::Starting), "it may become ready");
    scene.candidate(&[&engine(&ended(2, 59))]);
    assert_eq!(phase_at(&scene, 70), Some(CanaryPhase::Starting), "an end before the time is over");
    scene.candidate(&[&engine(&ended(2, 75))]);
    let rollback = canary_of(&scene.plan_at(80)).last_rollback.unwrap();
    assert_eq!(rollback.reason, "CandidateUnready");
    assert!(rollback.message.contains("engine of pod new ended with code 137"), "{}", rollback.message);
    let message_of = |scene: &Scene| canary_of(&scene.plan_at(80)).last_rollback.unwrap().message;
    scene.observe(|observed| {
        let known = Crash::Known { cause: "ValueError: too long".to_owned() };
        observed.candidate.as_mut().unwrap().crashes.insert("new".to_owned(), known);
    });
    assert!(message_of(&scene).contains("ValueError: too long"), "{}", message_of(&scene));
    scene.candidate(&[&engine(&ended(2, 75).replace("exitCode: 137", "exitCode: 137, reason: OOMKilled"))]);
    assert!(
        message_of(&scene).ends_with("raise spec.canary.resources.limits.memory"),
        "{}",
        message_of(&scene)
    );
}

/// What was noted of it is lost with the memory of the controller.
#[test]
fn the_time_of_an_engine_that_never_warms_up_begins_anew_after_a_restart_of_the_controller() {
    let mut scene = starting("Enforce", &engine(&ended(3, -600)));
    noted(&mut scene, 0);
    assert_eq!(phase_at(&scene, 600), Some(CanaryPhase::Starting), "it may become ready");
    scene.candidate(&[&engine(&ended(4, 600))]);
    assert_eq!(canary_of(&scene.plan_at(600)).last_rollback.unwrap().reason, "CandidateUnready");
}

/// What has ended well or is ready again keeps no pod back.
#[test]
fn a_container_that_is_ready_does_not_make_the_time_of_a_start_go_on() {
    const END: &str = "terminated: {exitCode: 0, finishedAt: '2026-01-01T12:00:10Z'}";
    let init = format!("{{name: model-loader, ready: true, restartCount: 1, state: {{{END}}}}}");
    let mesh = format!("{{name: mesh, ready: true, {}}}", ended(2, 10));
    let loads = format!(
        "{{name: new, node: gpu-1, phase: Running, gpus: 1, init: [{init}], containers: [{mesh}, {{name: engine, state: \
         {{running: {{startedAt: '{}'}}}}}}]}}",
        at(10)
    );
    let mut scene = starting("Enforce", UNPLACED);
    noted(&mut scene, 0);
    scene.candidate(&[&loads]);
    noted(&mut scene, 50);
    scene.candidate(&[UNPLACED]);
    noted(&mut scene, 100);
    assert_eq!(phase_at(&scene, 159), Some(CanaryPhase::Starting), "the load does not count");
    // An engine that ends by itself has not become ready either.
    let mut scene = starting("Enforce", UNPLACED);
    noted(&mut scene, 0);
    scene.candidate(&[&engine(&format!("restartCount: 1, state: {{{END}}}"))]);
    noted(&mut scene, 50);
    scene.candidate(&[UNPLACED]);
    assert_eq!(canary_of(&scene.plan_at(60)).last_rollback.unwrap().reason, "CandidateUnready");
}

/// The first step says how many pods it needs.
#[test]
fn a_candidate_of_which_one_pod_alone_finds_a_place_is_rolled_back_in_time() {
    let mut scene = starting("Enforce", UNPLACED);
    scene.edit_spec(|spec| spec.canary.as_mut().unwrap().steps[0].replicas = Some(2));
    let other = UNPLACED.replace("name: new", "name: other");
    scene.candidate(&[READY, &other]);
    noted(&mut scene, 0);
    assert_eq!(canary_of(&scene.plan_at(60)).last_rollback.unwrap().reason, "CandidateUnready");
}

#[test]
fn a_candidate_that_serves_or_may_run_unseen_is_not_rolled_back_for_its_time() {
    let mut scene = starting("Enforce", UNPLACED);
    noted(&mut scene, 0);
    let mut unseen = starting("Enforce", UNPLACED);
    noted(&mut unseen, 0);
    unseen.observe(|observed| observed.candidate.as_mut().unwrap().watch_fails = true);
    let plan = unseen.plan_at(60);
    assert_eq!(canary_of(&plan).phase, Some(CanaryPhase::Starting));
    assert_eq!(plan.requeue_after, Some(std::time::Duration::from_secs(10)));
    // By a header, while a second pod has lost its node.
    let status = |scene: &mut Scene, edit: fn(&mut CanaryStatus)| {
        scene.observe(|observed| {
            let status = std::sync::Arc::make_mut(&mut observed.inference).status.as_mut().unwrap();
            edit(status.canary.as_mut().unwrap());
        });
    };
    let mut serving = starting("Enforce", READY);
    serving.edit_spec(|spec| {
        let canary = spec.canary.as_mut().unwrap();
        canary.matches = vec![serde_saphyr::from_str("{header: x-beta, value: '1'}").unwrap()];
        canary.steps[0].replicas = Some(2);
    });
    serving.candidate(&[READY, &UNPLACED.replace("name: new", "name: other")]);
    serving.observe(|observed| observed.service = Some(Default::default()));
    let route = serving.plan().route.unwrap();
    serving.observe(|observed| {
        let mut route = accepted(*route);
        let mut rule = route.spec.rules[0].clone();
        rule.backend_refs[0].name = "chat-canary".to_owned();
        rule.backend_refs[0].weight = 100;
        rule.matches[0].headers = vec![
            serde_json::from_value(serde_json::json!({"type": "Exact", "name": "x-beta", "value": "1"}))
                .unwrap(),
        ];
        route.spec.rules.insert(0, rule);
        observed.route = Some(route);
    });
    noted(&mut serving, 0);
    assert_eq!(canary_of(&serving.plan_at(60)).last_rollback, None);
    // Stable gets another version, and may have the GPU until then.
    status(&mut scene, |canary| canary.stable_revision = "before".to_owned());
    noted(&mut scene, 100);
    assert!(!scene.plan_at(100).facts.unwrap().iter().any(|fact| fact.contains("cannot become ready")));
}

/// Without a pod there is nothing that waits.
#[test]
fn a_candidate_whose_children_are_refused_is_rolled_back_in_time() {
    let mut scene = starting("Enforce", UNPLACED);
    scene.candidate(&[]);
    scene.observe(|observed| {
        observed.apart.insert(
            crate::plan::traffic::report::CANDIDATE,
            ("Denied", "a policy denies chat-canary".to_owned()),
        );
    });
    noted(&mut scene, 0);
    let rollback = canary_of(&scene.plan_at(60)).last_rollback.unwrap();
    assert!(rollback.message.ends_with(": a policy denies chat-canary"), "{}", rollback.message);
}

fn contested(scene: &mut Scene) {
    scene.observe(|observed| {
        let complaint = ("FieldConflict", "other-operator keeps changing it".to_owned());
        observed.apart.insert(crate::plan::traffic::report::CANDIDATE, complaint);
    });
}

#[test]
fn another_manager_that_changes_a_child_keeps_no_pod_that_loads() {
    let mut scene = starting("Enforce", LOADS);
    contested(&mut scene);
    for has_service in [true, false] {
        scene.observe(|observed| {
            observed.candidate.as_mut().unwrap().service = has_service.then(Default::default);
        });
        noted(&mut scene, 0);
        assert_eq!(phase_at(&scene, 60), Some(CanaryPhase::Starting), "{has_service}");
    }
    scene.observe(|observed| {
        observed.apart.get_mut(crate::plan::traffic::report::CANDIDATE).unwrap().0 = "Denied";
    });
    noted(&mut scene, 0);
    assert_eq!(canary_of(&scene.plan_at(60)).last_rollback.unwrap().reason, "CandidateUnready");
}

/// An autoscaler of another project sets the replicas to 0. This controller writes them again, and a pod loads until then.
#[test]
fn a_candidate_whose_pods_another_manager_takes_away_each_time_is_rolled_back_in_time() {
    let mut scene = starting("Enforce", LOADS);
    contested(&mut scene);
    scene.candidate(&[]);
    noted(&mut scene, 0);
    scene.candidate(&[LOADS]);
    noted(&mut scene, 30);
    assert_eq!(phase_at(&scene, 60), Some(CanaryPhase::Starting), "it may become ready");
    scene.candidate(&[]);
    let rollback = canary_of(&scene.plan_at(60)).last_rollback.unwrap();
    assert!(rollback.message.ends_with("other-operator keeps changing it"), "{}", rollback.message);
}

/// A complaint stays for a while, and may be about another child.
#[test]
fn a_rollback_names_what_keeps_the_pods_and_not_a_conflict_about_another_child() {
    let mut scene = starting("Enforce", LOADS);
    contested(&mut scene);
    scene.candidate(&[]);
    scene.observe(|observed| {
        let deployment = observed.candidate.as_mut().unwrap().deployment.as_mut().unwrap();
        let failure = "{type: ReplicaFailure, status: 'True', message: 'exceeded quota: gpus'}";
        deployment.creation_failure = Some(serde_saphyr::from_str(failure).unwrap());
    });
    noted(&mut scene, 0);
    let rollback = canary_of(&scene.plan_at(60)).last_rollback.unwrap();
    assert!(rollback.message.contains("exceeded quota: gpus"), "{}", rollback.message);
}

/// What was said about the route of before must not hold the canary.
#[test]
fn only_a_contest_about_a_route_that_is_wanted_holds_the_canary() {
    let contested = |what: &'static str, gateway: bool| {
        let mut scene = starting("Observe", READY);
        if !gateway {
            scene.edit_spec(|spec| {
                (spec.gateway, spec.route_ref) = (None, Some(serde_saphyr::from_str("{name: web}").unwrap()));
            });
        }
        scene.observe(|observed| {
            observed.apart.insert(what, ("RouteContested", "other-operator keeps changing it".to_owned()));
        });
        condition(&scene.plan(), "CanaryProgressing")
            .2
            .starts_with("no step begins while the route is contested")
    };
    use crate::plan::traffic::report::{ROUTE, WEIGHTS};
    assert!(contested(ROUTE, true) && contested(WEIGHTS, false));
    assert!(!contested(ROUTE, false) && !contested(WEIGHTS, true));
}

/// Nothing moves while an object is paused, so that time is not the candidate's.
#[test]
fn the_time_of_a_start_begins_anew_after_a_pause() {
    let mut scene = starting("Enforce", UNPLACED);
    noted(&mut scene, 0);
    scene.edit_spec(|spec| spec.pods.paused = true);
    noted(&mut scene, 30);
    scene.edit_spec(|spec| spec.pods.paused = false);
    noted(&mut scene, 90);
    assert_eq!(phase_at(&scene, 149), Some(CanaryPhase::Starting));
    assert_eq!(canary_of(&scene.plan_at(150)).last_rollback.unwrap().reason, "CandidateUnready");
}

/// The cache of pods may be older than the list of endpoints.
#[test]
fn no_share_rises_before_the_api_server_has_shown_an_endpoint() {
    let mut scene = analysing(READY);
    scene.observe(|observed| {
        let backends = &mut observed.route.as_mut().unwrap().spec.rules[0].backend_refs;
        (backends[0].weight, backends[1].weight) = (100, 0);
    });
    let weight = |plan: &Plan| plan.route.as_ref().unwrap().spec.rules[0].backend_refs[1].weight;
    scene.observe(|observed| observed.has_endpoint = None);
    assert!(scene.plan().needs_endpoint, "it is asked for");
    scene.observe(|observed| observed.has_endpoint = Some(false));
    let plan = scene.plan();
    assert_eq!((weight(&plan), plan.needs_endpoint), (0, false));
    assert!(plan.requeue_after.is_some_and(|wait| wait.as_secs() <= 1), "it is asked again soon");
    scene.observe(|observed| observed.has_endpoint = Some(true));
    assert_eq!(weight(&scene.plan()), 10);
}
