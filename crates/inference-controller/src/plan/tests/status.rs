//! What the status says of pods that come up, serve and are replaced, and when it is written.

use super::*;

#[test]
fn an_object_with_all_replicas_ready_is_ready() {
    let status = Scene::ready(2).plan().status;
    assert_eq!((status.phase, status.ready_replicas, status.model_loaded), (Some(Phase::Ready), 2, true));
    for (type_, expected) in [
        (conditions::ACCEPTED, reasons::VALID),
        (conditions::MODEL_LOADED, reasons::LOADED),
        (conditions::SCHEDULED, reasons::SCHEDULED),
        (conditions::AVAILABLE, reasons::MINIMUM_REPLICAS),
        (conditions::PROGRESSING, reasons::COMPLETE),
        (conditions::READY, reasons::READY),
    ] {
        assert_eq!(reason(&status, type_), ("True", expected));
    }
    assert_eq!(status.url.as_deref(), Some("http://chat.demo.svc:8000"));
    let selector = "ai.infra.example.com/track=stable,app.kubernetes.io/instance=chat,app.kubernetes.io/name=aiinference";
    assert_eq!(status.selector.as_deref(), Some(selector));
}

#[test]
fn at_rest_nothing_changes_and_nothing_is_reported() {
    let scene = Scene::ready(2);
    let plan = scene.plan_with(&defaults(&[]), at(3600));
    assert_eq!(Some(&plan.status), scene.observed().inference.status.as_ref());
    assert!(plan.events.is_empty() && plan.superfluous.is_empty() && plan.requeue_after.is_none());
}

#[test]
fn a_changed_spec_is_ready_only_when_its_own_pods_are() {
    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| spec.args = vec!["--max-model-len=1".into()]);
    let status = scene.plan().status;
    assert_eq!(status.phase, Some(Phase::Pending));
    assert_eq!(reason(&status, conditions::READY), ("False", reasons::LOADING));
    assert_eq!(reason(&status, conditions::PROGRESSING), ("True", reasons::ROLLING));
    assert_eq!(
        reason(&status, conditions::AVAILABLE),
        ("True", reasons::MINIMUM_REPLICAS),
        "the old pods still serve"
    );
    assert_eq!((status.ready_replicas, status.updated_ready_replicas, status.model_loaded), (2, 0, false));
    assert_eq!(status.observed_generation, 2);
}

#[test]
fn the_first_status_waits_until_there_is_something_to_say_and_its_phase_has_a_time() {
    let mut scene = Scene::new("{modelSource: s3://models/qwen, engine: vllm, gpu: {count: 1}}");
    // As the API server fills it in.
    let default = AIInferenceStatus { phase: Some(Phase::Pending), ..AIInferenceStatus::default() };
    scene.observe(|observed| {
        std::sync::Arc::make_mut(&mut observed.inference).status = Some(default.clone());
    });
    let plan = scene.plan_with(&defaults(&[]), at(100));
    assert!(!plan.children.is_empty(), "its children wait for nothing");
    assert_eq!((&plan.status, plan.events.len()), (&default, 0));
    let wait = plan.requeue_after.unwrap();
    assert!(wait <= std::time::Duration::from_secs(2), "{wait:?}");

    let since = plan.facts.into_iter().flatten().map(|fact| (fact, at(100)));
    scene.observe(|observed| observed.facts = since.collect());
    let plan = scene.plan_with(&defaults(&[]), at(102));
    let status = plan.status;
    assert_eq!((status.phase, status.last_transition_time.is_some()), (Some(Phase::Pending), true));
    assert_eq!(status.observed_generation, 1);

    // As `FactTimes` does it, and the write has failed.
    scene.observe(|observed| observed.facts.retain(|fact, _| plan.facts.as_ref().unwrap().contains(fact)));
    let soon = at(102) + jiff::SignedDuration::from_millis(5);
    let again = scene.plan_with(&defaults(&[]), soon).status;
    assert_eq!(again.observed_generation, 1, "it is tried again without another wait");

    scene.observe(|observed| observed.facts.clear());
    scene.settle(1);
    scene.observe(|observed| {
        std::sync::Arc::make_mut(&mut observed.inference).status = Some(default.clone());
    });
    let plan = scene.plan_with(&defaults(&[]), at(100));
    assert_eq!(
        (plan.status.phase, plan.events.len()),
        (Some(Phase::Ready), 1),
        "this is worth saying at once"
    );
}

#[test]
fn pods_of_another_template_do_not_make_it_ready() {
    let mut scene = Scene::ready(2);
    // As after an edit of the Deployment: there is no revision of that template yet.
    scene.older_pods(2);
    scene.observe(|observed| observed.deployed = None);
    let status = scene.plan().status;
    assert_eq!(reason(&status, conditions::READY).0, "False");
    assert_eq!((status.ready_replicas, status.updated_ready_replicas), (2, 0));
}

#[test]
fn progress_causes_no_events_and_completion_causes_one() {
    let mut scene = Scene::new(CHAT);
    scene.edit_spec(|spec| spec.replicas = 3);
    scene.settle(0);
    scene.pods(&["{node: gpu-0}", "{node: gpu-1}", "{node: gpu-2}"]);
    scene.write_status();
    scene.pods(&["{ready: true, node: gpu-0}", "{node: gpu-1}", "{node: gpu-2}"]);
    let plan = scene.plan();
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::ROLLING), "another reason");
    assert!(plan.events.is_empty());
    scene.write_status();
    scene.pods(&["{ready: true, node: gpu-0}", "{ready: true, node: gpu-1}", "{ready: true, node: gpu-2}"]);
    assert_eq!(scene.plan().events.len(), 1);
}

#[test]
fn counts_of_new_pods_are_delayed_and_condition_changes_are_not() {
    let mut scene = Scene::new(CHAT);
    scene.settle(0);
    let new = |more: &str| format!("{{created: '{}', {more}}}", at(0));
    scene.pods(&[&new("phase: Pending")]);
    let seen = |scene: &Scene, seconds| {
        let plan = scene.plan_with(&defaults(&[]), at(seconds));
        (plan.status.replicas, plan.requeue_after.map(|wait| wait.as_secs()))
    };
    assert_eq!(seen(&scene, 0), (0, Some(5)));
    assert_eq!(seen(&scene, 4), (0, Some(1)));
    // The scheduler has a minute to look at the pod.
    assert_eq!(seen(&scene, 5), (1, Some(55)));
    assert_eq!(seen(&scene, -5), (1, Some(60)), "clock skew delays nothing");
    scene.pods(&[&new("node: gpu-0")]);
    assert_eq!(seen(&scene, 0), (1, None), "the pod was scheduled");
}

#[test]
fn a_change_of_measured_numbers_is_written_after_ten_seconds_and_other_changes_at_once() {
    let mut scene = Scene::new(CHAT);
    scene.settle(0);
    let stuck = |name: &str| {
        format!(
            "{{name: {name}, conditions: [{{type: PodScheduled, status: 'False', reason: Unschedulable, message: \
             '1 Insufficient nvidia.com/gpu.'}}]}}"
        )
    };
    scene.pods(&[&stuck("a")]);
    let free = |scene: &mut Scene, free: i64| {
        let node = "{metadata: {name: gpu-0, labels: {nvidia.com/gpu.product: A100}}}";
        let capacity = NodeCapacity {
            node: std::sync::Arc::new(serde_saphyr::from_str(node).unwrap()),
            allocatable: 8,
            free,
        };
        // Fewer than are requested.
        scene.observe(|observed| observed.capacities = Some(vec![capacity]));
    };
    scene.edit_spec(|spec| spec.gpu.count = 4);
    scene.settle(0);
    scene.pods(&[&stuck("a")]);
    free(&mut scene, 1);
    scene.write_status();
    free(&mut scene, 2);
    let seen = |scene: &Scene, seconds| {
        let plan = scene.plan_with(&defaults(&[]), at(seconds));
        let message = condition(&plan.status, conditions::SCHEDULED).2;
        (
            message[message.len() - 1..].to_owned(),
            plan.facts.unwrap(),
            plan.requeue_after.map(|wait| wait.as_secs()),
        )
    };
    let (number, measured, wait) = seen(&scene, 0);
    assert_eq!((&*number, measured.len(), wait), ("1", 1, Some(10)));
    scene.observe(|observed| observed.facts = [(measured[0].clone(), at(0))].into());
    assert_eq!(seen(&scene, 9), ("1".into(), measured.clone(), Some(1)));
    assert_eq!(seen(&scene, 10), ("2".into(), measured, Some(30)));

    // As `FactTimes` does it, and the write has failed.
    let noted = scene.plan_with(&defaults(&[]), at(10)).facts.unwrap();
    scene.observe(|observed| observed.facts.retain(|fact, _| noted.contains(fact)));
    assert_eq!(seen(&scene, 11).0, "2", "it is tried again without another wait");

    let written = scene.plan_with(&defaults(&[]), at(11)).status;
    let stored = scene.observed().inference.status.clone();
    scene.observe(|observed| std::sync::Arc::make_mut(&mut observed.inference).status = Some(written));
    free(&mut scene, 3);
    assert_eq!(seen(&scene, 12).0, "2", "a written number waits for the next one as long again");
    scene.observe(|observed| std::sync::Arc::make_mut(&mut observed.inference).status = stored);

    free(&mut scene, 1);
    assert_eq!(seen(&scene, 9).1, [""; 0], "the status equals the written one");

    scene.pods(&[&stuck("a"), &stuck("b")]);
    free(&mut scene, 2);
    assert_eq!(seen(&scene, 1).0, "2", "the number of pods has changed, too");
    free(&mut scene, 4);
    assert_eq!(reason(&scene.plan().status, conditions::SCHEDULED).1, reasons::INSUFFICIENT_GPU);
    scene.observe(|observed| observed.capacities = None);
    assert!(scene.plan().facts.unwrap().is_empty(), "another message is no measured number");
}

#[test]
fn a_changed_reason_is_never_delayed() {
    let mut scene = Scene::new(CHAT);
    scene.settle(0);
    let crashed = |why: &str| {
        let state = format!("restartCount: 2, state: {{terminated: {{exitCode: 1, reason: {why}}}}}");
        format!("{{created: '{}', node: gpu-0, containers: [{{name: engine, {state}}}]}}", at(0))
    };
    for (why, expected) in [("Error", reasons::CRASH_LOOP), ("OOMKilled", reasons::OUT_OF_MEMORY)] {
        scene.pods(&[&crashed(why)]);
        assert_eq!(reason(&scene.plan().status, conditions::READY), ("False", expected));
        scene.write_status();
    }
}

#[test]
fn scaling_up_is_not_ready_and_scaling_down_is() {
    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| spec.replicas = 3);
    let status = scene.plan().status;
    assert_eq!(reason(&status, conditions::READY), ("False", reasons::SCALING));
    assert_eq!(reason(&status, conditions::PROGRESSING), ("True", reasons::SCALING));
    assert!(status.model_loaded);

    let mut scene = Scene::ready(3);
    scene.edit_spec(|spec| spec.replicas = 2);
    assert_eq!(scene.plan().status.phase, Some(Phase::Ready));
}

#[test]
fn no_replicas_means_stopped() {
    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| spec.replicas = 0);
    let plan = scene.plan();
    assert_eq!(deployment_of(&plan).spec.as_ref().unwrap().replicas, Some(0));
    assert_eq!((plan.status.phase, plan.status.model_loaded), (Some(Phase::Pending), false));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::STOPPED));
}

#[test]
fn a_paused_object_is_not_changed_and_has_the_reason_paused() {
    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| {
        spec.pods.paused = true;
        spec.replicas = 7;
    });
    let plan = scene.plan();
    assert!(plan.children.is_empty() && plan.superfluous.is_empty());
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::PAUSED));

    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| spec.pods.paused = true);
    let (status, reason, message) = {
        let plan = scene.plan();
        let (status, reason, message) = condition(&plan.status, conditions::READY);
        (status.to_owned(), reason.to_owned(), message.to_owned())
    };
    assert_eq!((status.as_str(), reason.as_str()), ("True", reasons::PAUSED), "it still serves");
    assert!(message.contains("2 of 2 replicas are ready"), "{message}");
}

#[test]
fn an_announcement_is_made_once_even_if_the_change_is_denied() {
    let announced = |edit: fn(&mut api::aiinference::AIInferenceSpec)| {
        let mut scene = Scene::ready(1);
        scene.edit_spec(|spec| {
            spec.rollout = Rollout::Replace;
            spec.args = vec!["--x".into()];
            edit(spec);
        });
        scene
    };
    let mut scene = announced(|_| {});
    let first = scene.plan();
    assert!(first.children.is_empty() && first.requeue_after == Some(Duration::ZERO));
    scene.write_status();
    assert!(!scene.plan().children.is_empty());
    // A webhook denies the announced change.
    let observed = scene.observed();
    let valid = validate(&observed.inference).unwrap();
    let denied = of_refused(
        &Refusal::Denied("no".into()),
        &valid,
        &crate::plan::of_valid(&valid, &observed, &Allowance::default(), &defaults(&[]), at(0)),
        &observed,
        &defaults(&[]),
        at(0),
    )
    .status;
    assert_eq!(reason(&denied, conditions::PROGRESSING), ("False", reasons::DENIED));
    scene.observe(|observed| std::sync::Arc::make_mut(&mut observed.inference).status = Some(denied));
    assert!(!scene.plan().children.is_empty());

    let stopped = announced(|spec| spec.replicas = 0);
    assert!(!stopped.plan().children.is_empty(), "stopping needs no announcement");
}

#[test]
fn a_scheduled_pod_is_loading_and_an_unscheduled_one_pending() {
    let mut scene = Scene::ready(1);
    scene.pods(&["{phase: Pending}"]);
    let status = scene.plan().status;
    assert_eq!(status.phase, Some(Phase::Pending));
    assert_eq!(reason(&status, conditions::SCHEDULED).0, "absent");

    scene.pods(&["{phase: Pending, node: gpu-0}"]);
    let status = scene.plan().status;
    assert_eq!(status.phase, Some(Phase::Loading));
    assert_eq!(reason(&status, conditions::READY), ("False", reasons::LOADING));
    assert_eq!(reason(&status, conditions::SCHEDULED), ("True", reasons::SCHEDULED));
}

#[test]
fn a_transition_time_changes_only_with_the_status() {
    let mut scene = Scene::ready(1);
    let time = |status: &AIInferenceStatus, type_: &str| {
        status.conditions.iter().find(|c| c.type_ == type_).unwrap().last_transition_time.0
    };
    scene.pods(&["{phase: Pending, node: gpu-0}"]);
    let changed = scene.plan_with(&defaults(&[]), at(60)).status;
    assert_eq!(time(&changed, conditions::READY), at(60));
    assert_eq!(time(&changed, conditions::ACCEPTED), at(0));
    assert_eq!(changed.last_transition_time.clone().unwrap().0, at(60));

    scene.observe(|observed| std::sync::Arc::make_mut(&mut observed.inference).status = Some(changed));
    scene.pods(&[
        "{node: gpu-0, containers: [{name: engine, restartCount: 2, state: {terminated: {exitCode: 1}}}]}",
    ]);
    let still = scene.plan_with(&defaults(&[]), at(90)).status;
    assert_eq!(reason(&still, conditions::READY), ("False", reasons::CRASH_LOOP));
    assert_eq!(time(&still, conditions::READY), at(60), "another reason is no transition");
}

#[test]
fn the_replacement_of_a_pod_is_no_rollout() {
    let mut scene = Scene::ready(2);
    scene.pods(&["{ready: true, node: gpu-0}", "{phase: Pending}"]);
    let status = scene.plan().status;
    assert_eq!(reason(&status, conditions::PROGRESSING), ("True", reasons::COMPLETE));
    assert_eq!(reason(&status, conditions::READY), ("False", reasons::LOADING));
    assert_eq!(status.phase, Some(Phase::Loading));
}
