//! What is reported of states that are not saved, lost or damaged.

use super::*;

#[test]
fn a_state_that_is_not_saved_is_reported_beside_an_invalid_spec() {
    let mut scene = Scene::ready("{role: coder}", 1);
    scene.loads(vec![crate::load::WorkerLoad { unsaved: Some("away".to_owned()), ..load(0, 0) }]);
    let plan = crate::plan::rejected(&Invalid("spec.env: remove it".to_owned()), scene.observed(), at(0));
    assert_eq!(reason(&plan, conditions::CHECKPOINT_FAILED), reasons::STATE_NOT_SAVED);
    assert_eq!(reason(&plan, conditions::READY), reasons::INVALID_SPEC);
}

#[test]
fn a_damaged_state_is_reported_unless_the_state_of_a_worker_is_not_saved() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let damaged = crate::load::WorkerLoad { damaged: Some("1 saved state".to_owned()), ..load(0, 0) };
    scene.loads(vec![damaged.clone()]);
    let plan = scene.plan();
    let failed = condition(&plan, conditions::CHECKPOINT_FAILED).unwrap();
    assert_eq!((failed.status.as_str(), failed.reason.as_str()), ("True", reasons::STATE_DAMAGED));
    assert!(failed.message.contains("coder-0") && failed.message.contains("1 saved state"));
    scene.loads(vec![crate::load::WorkerLoad { unsaved: Some("away".to_owned()), ..damaged }]);
    assert_eq!(reason(&scene.plan(), conditions::CHECKPOINT_FAILED), reasons::STATE_NOT_SAVED);
}

#[test]
fn a_store_that_does_not_take_the_state_of_a_worker_is_told() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let unsaved = crate::load::WorkerLoad {
        unsaved: Some("s3://states does not answer".to_owned()),
        saved: Some(1_767_268_000),
        ..load(0, 0)
    };
    scene.loads(vec![unsaved]);
    let plan = scene.plan();
    let failed = condition(&plan, conditions::CHECKPOINT_FAILED).unwrap();
    assert_eq!(failed.reason, reasons::STATE_NOT_SAVED);
    assert!(failed.message.contains("s3://states"), "{}", failed.message);
    assert_eq!(plan.status.last_checkpoint_time.unwrap().0.as_second(), 1_767_268_000);
    assert_eq!(plan.status.current_phase, Some(Phase::Ready), "the pool works");
}

#[test]
fn state_that_was_lost_is_told_once_and_stays_in_the_status_for_a_while() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let ended = "{name: coder-9, phase: Succeeded, init: [{name: monitor, state: {terminated: {exitCode: 0, message: \
                 '{\"tokens\": 7, \"error\": \"bucket states does not exist\"}'}}}]}";
    scene.observe(|observed| observed.ending = vec![std::sync::Arc::new(crate::tests::pod(ended))]);
    let plan = scene.plan();
    let failed = condition(&plan, conditions::CHECKPOINT_FAILED).unwrap();
    assert_eq!(failed.reason, reasons::STATE_LOST);
    assert!(failed.message.contains("coder-9") && failed.message.contains("bucket states"));
    assert_eq!(plan.events.iter().filter(|note| note.reason == reasons::STATE_LOST).count(), 1);
    scene.write_status();
    assert!(scene.plan().events.is_empty());
    // The state of another worker is not saved now; the loss is still reported.
    scene.loads(vec![crate::load::WorkerLoad { unsaved: Some("away".to_owned()), ..load(0, 0) }]);
    scene.observe(|observed| observed.ending.clear());
    scene.note(&plan, at(0));
    let reason_at = |seconds| {
        condition(&scene.plan_at(at(seconds)), conditions::CHECKPOINT_FAILED).unwrap().reason.clone()
    };
    assert_eq!(reason_at(60), reasons::STATE_LOST);
    assert_eq!(reason_at(700), reasons::STATE_NOT_SAVED);
}

/// A pod that has failed, and whose state was not saved.
fn failed(name: &str, finished: i64) -> std::sync::Arc<workload::views::pod::PodView> {
    std::sync::Arc::new(crate::tests::pod(&format!(
        "{{name: {name}, phase: Failed, init: [{{name: monitor, state: {{terminated: {{exitCode: 0, message: \
         '{{\"tokens\": 7, \"error\": \"away\"}}', finishedAt: '{}'}}}}}}]}}",
        at(finished)
    )))
}

#[test]
fn a_loss_is_reported_for_ten_minutes_however_long_the_pod_is_kept() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let is_reported = |plan: &Plan| condition(plan, conditions::CHECKPOINT_FAILED).is_some();
    scene.observe(|observed| observed.ending = vec![failed("coder-7", -700)]);
    assert!(!is_reported(&scene.plan()), "this process has just begun");
    scene.observe(|observed| observed.ending = vec![failed("coder-7", -500)]);
    let plan = scene.plan();
    assert!(is_reported(&plan));
    assert_eq!(plan.requeue_after, Some(std::time::Duration::from_secs(100)));
    scene.write_status();
    scene.note(&plan, at(0));
    assert!(!is_reported(&scene.plan_at(at(101))));
    // Also after the pod was deleted.
    scene.observe(|observed| observed.ending.clear());
    assert!(is_reported(&scene.plan_at(at(99))) && !is_reported(&scene.plan_at(at(101))));
}

#[test]
fn an_event_tells_of_a_new_loss_and_not_of_another_first_pod() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let losses = |plan: &Plan| plan.events.iter().filter(|note| note.reason == reasons::STATE_LOST).count();
    let note = |scene: &mut Scene| {
        let plan = scene.plan();
        scene.write_status();
        scene.note(&plan, at(0));
    };
    scene.observe(|observed| observed.ending = vec![failed("coder-7", -10), failed("coder-8", -5)]);
    assert_eq!(losses(&scene.plan()), 1);
    note(&mut scene);
    scene.observe(|observed| observed.ending = vec![failed("coder-8", -5)]);
    assert_eq!(losses(&scene.plan()), 0);
    note(&mut scene);
    scene.observe(|observed| observed.ending = vec![failed("coder-8", -5), failed("coder-9", -1)]);
    assert_eq!(losses(&scene.plan()), 1);
}

#[test]
fn several_losses_are_counted() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let ended = |name: &str| failed(name, 0);
    scene.observe(|observed| observed.ending = vec![ended("coder-7"), ended("coder-8"), ended("coder-9")]);
    let plan = scene.plan();
    let message = &condition(&plan, conditions::CHECKPOINT_FAILED).unwrap().message;
    assert!(message.starts_with("the state of pod coder-7 and 2 others was not saved"), "{message}");
}

#[test]
fn a_worker_that_has_started_without_a_state_is_reported_until_it_has_saved_one() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let loader = |end: &str| {
        format!(
            "{{name: coder-0, ready: true, node: a, phase: Running, init: [{{name: memory-loader, state: {{terminated: {end}}}}}]}}"
        )
    };
    scene.pods(&[&loader("{exitCode: 0, message: 's3://states does not answer'}")]);
    let plan = scene.plan();
    let failed = condition(&plan, conditions::CHECKPOINT_FAILED).unwrap();
    assert_eq!((&*failed.status, &*failed.reason), ("True", reasons::STARTED_EMPTY));
    assert!(
        failed.message.contains("coder-0") && failed.message.contains("s3://states"),
        "{}",
        failed.message
    );
    assert_eq!(plan.events.iter().filter(|note| note.reason == reasons::STARTED_EMPTY).count(), 1);
    let saved = |waiting| crate::load::WorkerLoad { saved: Some(1), waiting, ..load(0, 0) };
    // The state from before the storage was away.
    scene.loads(vec![saved(Some(1))]);
    let message = condition(&scene.plan(), conditions::CHECKPOINT_FAILED).unwrap().message.clone();
    assert!(message.ends_with("; one saved state waits for one more worker"), "{message}");
    scene.loads(vec![saved(None)]);
    assert!(condition(&scene.plan(), conditions::CHECKPOINT_FAILED).is_none());
    scene.loads(vec![load(0, 0)]);
    scene.pods(&[&loader("{exitCode: 0}")]);
    assert!(condition(&scene.plan(), conditions::CHECKPOINT_FAILED).is_none());
}

#[test]
fn only_a_pool_that_may_start_empty_has_the_option() {
    let loader = |checkpoint: &str| {
        let spec = format!("{{role: coder, checkpoint: {checkpoint}}}");
        let pod = deployment_of(&Scene::new(&spec).plan()).spec.unwrap().template.spec.unwrap();
        pod.init_containers.unwrap()[0].args.clone().unwrap().contains(&"--start-empty".to_owned())
    };
    assert!(!loader("{claimName: states}"));
    assert!(loader("{claimName: states, whenUnavailable: StartEmpty}"));
}

#[test]
fn the_authorities_of_the_store_are_mounted_beside_the_monitor_alone() {
    let spec = |checkpoint: &str| {
        let scene = Scene::new(&format!("{{role: coder, checkpoint: {{{checkpoint}}}}}"));
        serde_json::to_value(deployment_of(&scene.plan()).spec.unwrap().template.spec).unwrap()
    };
    let pod = spec("uri: 's3://states', caSecretName: authority");
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == "checkpoint-ca").unwrap();
    assert_eq!(
        (&volume["secret"]["secretName"], &volume["secret"]["optional"]),
        (&"authority".into(), &true.into())
    );
    let names = |container: &serde_json::Value, list: &str, key: &str| -> Vec<String> {
        let all = container[list].as_array().unwrap().iter();
        all.map(|one| if key.is_empty() { one.clone() } else { one[key].clone() })
            .map(|one| one.as_str().unwrap().to_owned())
            .collect()
    };
    for container in pod["initContainers"].as_array().unwrap() {
        assert!(names(container, "args", "").contains(&"--ca-file=/etc/checkpoint-store/ca.crt".to_owned()));
        assert!(names(container, "volumeMounts", "name").contains(&"checkpoint-ca".to_owned()));
    }
    assert!(!names(&pod["containers"][0], "volumeMounts", "name").contains(&"checkpoint-ca".to_owned()));
    assert!(!spec("uri: 's3://states'").to_string().contains("checkpoint-ca"));
    let without_uri = "{role: coder, checkpoint: {claimName: states, caSecretName: authority}}";
    let refused = validate(&crate::tests::dispatcher(without_uri), &defaults(&[])).unwrap_err();
    assert!(refused.0.contains("spec.checkpoint.caSecretName"), "{refused:?}");
}
