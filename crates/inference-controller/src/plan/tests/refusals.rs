//! An invalid spec, and children that are refused or belong to another owner.

use super::*;

#[test]
fn an_invalid_spec_does_not_change_the_children() {
    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| spec.args = vec!["--port=1".into()]);
    let observed = scene.observed();
    let invalid = validate(&observed.inference).unwrap().tolerated.unwrap();
    let plan = rejected(&invalid, &observed, &Allowance::default(), at(0));
    assert!(plan.children.is_empty() && plan.superfluous.is_empty());
    assert_eq!(plan.status.phase, Some(Phase::Failed));
    assert_eq!(reason(&plan.status, conditions::ACCEPTED), ("False", reasons::INVALID_SPEC));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::INVALID_SPEC));
    assert_eq!((plan.status.ready_replicas, plan.status.model_loaded), (2, false));
    assert_eq!(plan.status.url, observed.inference.status.as_ref().unwrap().url);
    assert!(plan.events[0].message.contains("--port"));
    assert_eq!(
        rejected(&Invalid("x".into()), &observed, &Allowance::default(), at(0)).requeue_after,
        None,
        "only a change of the spec helps"
    );
}

/// Its pods would get the rights of the controller.
#[test]
fn no_engine_uses_the_service_account_of_the_controller() {
    let mut scene = Scene::new(CHAT);
    scene.edit_spec(|spec| spec.pods.service_account_name = Some("controller".to_owned()));
    let planned = |namespace: &str| {
        let namespace = format!("--own-namespace={namespace}");
        let own = defaults(&["--own-service-account=controller", &namespace]);
        let decided = crate::plan::plan(&scene.observed(), &own, at(0));
        let runtime::reconcile::Decision::Plan(plan) = decided else { panic!("a doubt") };
        plan
    };
    let refused = planned("demo");
    assert!(refused.children.is_empty());
    let message =
        "spec.serviceAccountName: controller is the service account of the controller; use another one";
    assert_eq!(condition(&refused.status, conditions::ACCEPTED), ("False", reasons::INVALID_SPEC, message));
    assert!(!planned("ai-system").children.is_empty());
}

#[test]
fn an_ownership_conflict_is_reported_and_retried() {
    let observed = Scene::new(CHAT).observed();
    let valid = validate(&observed.inference).unwrap();
    let refusal = Refusal::OwnershipConflict("Deployment demo/chat exists and has no owner".into());
    let plan = of_refused(
        &refusal,
        &valid,
        &crate::plan::of_valid(&valid, &observed, &Allowance::default(), &defaults(&[]), at(0)),
        &observed,
        &defaults(&[]),
        at(0),
    );
    assert!(plan.children.is_empty());
    assert_eq!(plan.status.phase, Some(Phase::Failed));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::OWNERSHIP_CONFLICT));
    assert_eq!(reason(&plan.status, conditions::ACCEPTED), ("True", reasons::VALID));
    assert_eq!(plan.requeue_after, Some(REFUSAL_RETRY));
}

#[test]
fn children_of_a_deleted_predecessor_are_waited_for() {
    let observed = Scene::new(CHAT).observed();
    let valid = validate(&observed.inference).unwrap();
    let leftover = Refusal::Leftover { deleted: Some(at(-90)), message: "is still there".into() };
    let plan = of_refused(
        &leftover,
        &valid,
        &crate::plan::of_valid(&valid, &observed, &Allowance::default(), &defaults(&[]), at(0)),
        &observed,
        &defaults(&[]),
        at(0),
    );
    assert!(plan.children.is_empty());
    assert_eq!(plan.status.phase, Some(Phase::Pending));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::LOADING));
    assert_eq!(plan.requeue_after, Some(LEFTOVER_RETRY));
}

#[test]
fn a_child_of_a_deleted_predecessor_that_is_not_deleted_in_time_is_a_conflict() {
    let mut scene = Scene::new(CHAT);
    scene.observe(|observed| {
        std::sync::Arc::make_mut(&mut observed.inference).metadata.creation_timestamp = Some(Time(at(-91)));
    });
    let observed = scene.observed();
    let valid = validate(&observed.inference).unwrap();
    for deleted in [Some(at(-91)), None] {
        let leftover = Refusal::Leftover { deleted, message: "Service demo/chat is still there".into() };
        let plan = of_refused(
            &leftover,
            &valid,
            &crate::plan::of_valid(&valid, &observed, &Allowance::default(), &defaults(&[]), at(0)),
            &observed,
            &defaults(&[]),
            at(0),
        );
        let expected = ("False", reasons::OWNERSHIP_CONFLICT, "Service demo/chat is still there");
        assert_eq!(condition(&plan.status, conditions::READY), expected);
        assert_eq!(plan.requeue_after, Some(OVERDUE_RETRY));
    }
}

#[test]
fn a_denied_child_is_reported_with_the_api_servers_message_and_retried() {
    let observed = Scene::new(CHAT).observed();
    let valid = validate(&observed.inference).unwrap();
    let words = "the API server denies Deployment demo/chat: exceeded quota: gpus";
    let plan = of_refused(
        &Refusal::Denied(words.into()),
        &valid,
        &crate::plan::of_valid(&valid, &observed, &Allowance::default(), &defaults(&[]), at(0)),
        &observed,
        &defaults(&[]),
        at(0),
    );
    assert_eq!(condition(&plan.status, conditions::READY), ("False", reasons::DENIED, words));
    assert_eq!(reason(&plan.status, conditions::ACCEPTED), ("True", reasons::VALID));
    assert_eq!(plan.status.phase, Some(Phase::Failed));
    assert_eq!(plan.requeue_after, Some(REFUSAL_RETRY));
}

#[test]
fn a_child_refused_as_invalid_is_a_fault_of_the_spec() {
    let observed = Scene::new(CHAT).observed();
    let valid = validate(&observed.inference).unwrap();
    let plan = of_refused(
        &Refusal::Invalid("no".into()),
        &valid,
        &crate::plan::of_valid(&valid, &observed, &Allowance::default(), &defaults(&[]), at(0)),
        &observed,
        &defaults(&[]),
        at(0),
    );
    assert_eq!(condition(&plan.status, conditions::ACCEPTED), ("False", reasons::INVALID_SPEC, "no"));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::INVALID_SPEC));
}
