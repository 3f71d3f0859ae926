//! What follows a Deployment that the API server has refused.

use runtime::write::refusal::Refusal;

use super::*;

fn refused(scene: &Scene, plan: Plan) -> Plan {
    let denied = Refusal::Denied("no".to_owned());
    crate::plan::refused(&denied, plan, scene.observed(), &defaults(&[]), at(0))
}

#[test]
fn the_report_of_a_refusal_notes_the_facts_of_the_plan_but_no_time_limit() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    scene.loads(vec![load(0, 1), load(0, 0)]);
    scene.edit_spec(|spec| spec.replicas = 1);
    let plan = scene.plan();
    assert!(!plan.facts.is_empty() && !plan.facts_if_settled.is_empty());
    let facts = plan.facts.clone();
    let report = refused(&scene, plan);
    assert_eq!((report.facts, report.facts_if_settled), (facts, Vec::new()));
    assert!(report.deployment.is_none() && report.marks.is_empty());
}

#[test]
fn a_loss_is_an_event_also_of_the_report_of_a_refusal() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let losses = |plan: &Plan| plan.events.iter().filter(|note| note.reason == reasons::STATE_LOST).count();
    let failed = |name: &str| {
        let error = "{terminated: {exitCode: 0, message: '{\"tokens\": 7, \"error\": \"away\"}'}}";
        let parts = format!("{{name: {name}, phase: Failed, init: [{{name: monitor, state: {error}}}]}}");
        std::sync::Arc::new(crate::tests::pod(&parts))
    };
    scene.observe(|observed| observed.ending = vec![failed("coder-7")]);
    let plan = scene.plan();
    scene.write_status();
    scene.note(&plan, at(0));
    scene.observe(|observed| observed.ending.push(failed("coder-8")));
    let report = refused(&scene, scene.plan());
    assert_eq!(losses(&report), 1);
    scene.note(&report, at(0));
    assert_eq!(losses(&scene.plan()), 0);
}

#[test]
fn the_report_of_a_refusal_writes_the_budget_of_the_plan() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    let plan = scene.plan();
    let mut outcome = plan.if_unchanged();
    let budget = Refusal::Denied("exceeded quota: budgets".to_owned());
    outcome.report_refused_budget(&budget, &scene.observed().dispatcher, at(0));
    let status = outcome.status.into_owned();
    scene.observe(|observed| std::sync::Arc::make_mut(&mut observed.dispatcher).status = Some(status));
    // It is tried once in a minute, whatever becomes of the Deployment.
    let report = refused(&scene, scene.plan());
    assert!(report.budget.is_some());
    scene.note(&report, at(0));
    assert!(refused(&scene, scene.plan()).budget.is_none());
}

/// Its pods would get the rights of the controller.
#[test]
fn no_worker_uses_the_service_account_of_the_controller() {
    let scene = Scene::new("{role: coder, serviceAccountName: controller}");
    let planned = |namespace: &str| {
        let namespace = format!("--own-namespace={namespace}");
        let own = defaults(&["--own-service-account=controller", &namespace]);
        scene.planned(&own, at(0)).unwrap()
    };
    let plan = planned("demo");
    assert_eq!(reason(&plan, conditions::READY), reasons::INVALID_SPEC);
    assert!(plan.deployment.is_none());
    assert!(planned("ai-system").deployment.is_some());
}

#[test]
fn a_default_that_is_gone_meanwhile_leaves_the_deployment_as_it_is() {
    let with = defaults(&["--monitor-image=monitor:1", "--memory-endpoint=http://store"]);
    let without = defaults(&["--monitor-image=monitor:1"]);
    let mut scene = Scene::new("{role: coder, memoryConfig: {collection: code, dim: 3}}");
    let written = serde_json::to_value(deployment_of(&scene.planned(&with, at(0)).unwrap())).unwrap();
    scene.observe(|observed| observed.deployment = Some(serde_json::from_value(written).unwrap()));
    let plan = scene.planned(&without, at(0)).unwrap();
    scene.observe(|observed| observed.deployment = None);
    let denied = Refusal::Denied("no".to_owned());
    let report = crate::plan::refused(&denied, plan, scene.observed(), &without, at(0));
    assert_eq!(reason(&report, conditions::READY), reasons::INVALID_SPEC);
    assert!(report.deployment.is_none());
}
