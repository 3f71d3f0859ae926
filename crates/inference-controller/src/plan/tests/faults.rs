//! Why pods do not start or do not stay: crashes, volumes, sources, GPUs, warm-up.

use super::*;

#[test]
fn a_crash_fails_the_revision_while_older_pods_still_serve() {
    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| spec.image = Some("broken:1".into()));
    scene.settle(2);
    scene.older_pods(2);
    scene.pods(&["{node: gpu-0, containers: [{name: engine, restartCount: 2, lastState: {terminated: {exitCode: 1}}}]}"]);
    let plan = scene.plan();
    assert_eq!(plan.status.phase, Some(Phase::Failed));
    let (status, reason_, message) = condition(&plan.status, conditions::PROGRESSING);
    assert_eq!((status, reason_), ("False", reasons::CRASH_LOOP));
    assert!(message.ends_with("2 pods of an older revision still ready"), "{message}");
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::CRASH_LOOP));
    assert_eq!(reason(&plan.status, conditions::AVAILABLE).0, "True");
    assert_eq!(plan.events[0].severity, Severity::Warning);
    assert_eq!(plan.events[0].reason, reasons::CRASH_LOOP);
}

#[test]
fn a_missing_model_is_the_reason_of_ready() {
    let mut scene = Scene::ready(1);
    scene.pods(&["{node: gpu-0, init: [{name: model-loader, state: {terminated: {exitCode: 11, message: no such key}}}]}"]);
    let status = scene.plan().status;
    assert_eq!(status.phase, Some(Phase::Failed));
    assert_eq!(reason(&status, conditions::MODEL_LOADED), ("False", reasons::SOURCE_NOT_FOUND));
    assert_eq!(reason(&status, conditions::READY), ("False", reasons::SOURCE_NOT_FOUND));
    assert!(condition(&status, conditions::READY).2.ends_with("no such key"));
}

#[test]
fn a_volume_that_is_not_attached_within_a_minute_fails_the_revision() {
    let mut scene = Scene::ready(1);
    let placed = format!("{{type: PodScheduled, status: 'True', lastTransitionTime: '{}'}}", at(0));
    scene.pods(&[&format!("{{phase: Pending, node: gpu-1, conditions: [{placed}]}}")]);
    scene.unattached("Multi-Attach error");
    let plan = scene.plan_with(&defaults(&[]), at(59));
    assert_eq!(
        (plan.status.phase, plan.requeue_after.map(|wait| wait.as_secs())),
        (Some(Phase::Loading), Some(1))
    );
    let status = scene.plan_with(&defaults(&[]), at(60)).status;
    assert_eq!(status.phase, Some(Phase::Failed));
    let message = "pod chat-0 on node gpu-1 waits for its volume: Multi-Attach error";
    assert_eq!(condition(&status, conditions::READY), ("False", reasons::VOLUME_NOT_ATTACHED, message));
}

#[test]
fn a_missing_secret_of_authorities_is_a_fault_of_the_model_that_names_the_secret_and_the_field() {
    let mut scene = Scene::new(
        "{modelSource: s3://models/qwen, engine: vllm, gpu: {count: 1}, modelStore: {caSecretName: private-ca}}",
    );
    scene.settle(1);
    let placed = format!("{{type: PodScheduled, status: 'True', lastTransitionTime: '{}'}}", at(0));
    scene.pods(&[&format!("{{phase: Pending, node: gpu-1, conditions: [{placed}]}}")]);
    for (why, message) in [
        (
            "references non-existent secret key: ca.crt",
            "Secret demo/private-ca has no key \"ca.crt\" (spec.modelStore.caSecretName)",
        ),
        (
            "secret \"private-ca\" not found",
            "Secret demo/private-ca not found (spec.modelStore.caSecretName)",
        ),
    ] {
        scene.unmounted(&format!("MountVolume.SetUp failed for volume \"store-ca\" : {why}"));
        assert_eq!(scene.plan_with(&defaults(&[]), at(29)).status.phase, Some(Phase::Loading));
        let status = scene.plan_with(&defaults(&[]), at(30)).status;
        let expected = ("False", reasons::SECRET_NOT_FOUND, message);
        assert_eq!(condition(&status, conditions::MODEL_LOADED), expected);
        assert_eq!(condition(&status, conditions::READY), expected);
    }
    scene.unmounted("MountVolume.SetUp failed for volume \"home\" : secret \"x\" not found");
    let status = scene.plan_with(&defaults(&[]), at(30)).status;
    assert_eq!(reason(&status, conditions::PROGRESSING), ("False", reasons::SECRET_NOT_FOUND));
}

#[test]
fn an_unreachable_source_is_a_fault_until_the_loader_has_run_longer_than_its_stall_timeout() {
    let mut scene = Scene::ready(1);
    scene.pods(&[&format!(
        "{{node: gpu-0, init: [{{name: model-loader, restartCount: 1, state: {{running: {{startedAt: '{}'}}}}, \
         lastState: {{terminated: {{exitCode: 12}}}}}}]}}",
        at(0)
    )]);
    let seen = |seconds| {
        let plan = scene.plan_with(&defaults(&[]), at(seconds));
        (reason_of(&plan, conditions::READY).1.to_owned(), plan.requeue_after.map(|wait| wait.as_secs()))
    };
    assert_eq!(
        seen(200),
        (reasons::SOURCE_UNREACHABLE.to_owned(), Some(50)),
        "the loader ends after 250 s without progress"
    );
    assert_eq!(seen(250), (reasons::LOADING.to_owned(), None), "so it makes progress");
}

#[test]
fn evictions_are_the_reason_until_a_pod_survives_longer() {
    let mut scene = Scene::ready(1);
    let rejected = |seconds| {
        std::sync::Arc::new(crate::tests::pod(&format!("{{phase: Failed, created: '{}'}}", at(seconds))))
    };
    scene.observe(|observed| observed.failed = vec![rejected(-9), rejected(-8)]);
    scene.pods(&[&format!("{{node: gpu-0, created: '{}'}}", at(-7))]);
    assert_eq!(reason_of(&scene.plan(), conditions::READY).1, reasons::EVICTED);
    scene.pods(&[&format!(
        "{{node: gpu-0, created: '{}', init: [{{name: model-loader, state: {{running: {{}}}}}}]}}",
        at(-7)
    )]);
    assert_eq!(reason_of(&scene.plan(), conditions::READY).1, reasons::LOADING);
}

#[test]
fn a_lack_of_gpus_is_pending_and_no_failure() {
    let mut scene = Scene::ready(1);
    scene.pods(&[
        "{phase: Pending, conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable, \
                 message: '0/4 nodes are available: 4 Insufficient nvidia.com/gpu.'}]}",
    ]);
    let plan = scene.plan();
    assert_eq!(plan.status.phase, Some(Phase::Pending));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::INSUFFICIENT_GPU));
    assert!(condition(&plan.status, conditions::READY).2.starts_with("needs 1 nvidia.com/gpu"));
    assert_eq!(plan.events[0].severity, Severity::Warning);
}

#[test]
fn a_refused_creation_of_pods_is_the_reason() {
    let mut scene = Scene::ready(1);
    scene.pods(&[]);
    scene.observe(|observed| {
        let failure = "{type: ReplicaFailure, status: 'True', message: exceeded quota}";
        observed.deployment.as_mut().unwrap().creation_failure =
            Some(serde_saphyr::from_str(failure).unwrap());
    });
    let status = scene.plan().status;
    let expected = ("False", reasons::UNSCHEDULABLE, "pods cannot be created: exceeded quota");
    assert_eq!(condition(&status, conditions::READY), expected);
    assert_eq!(status.phase, Some(Phase::Pending));
}

fn warming_up(for_seconds: i64, more: &str) -> Scene {
    let mut scene = Scene::ready(1);
    scene.pods(&[&format!(
        "{{node: gpu-0, containers: [{{name: engine, started: false, \
         state: {{running: {{startedAt: '{}'}}}}{more}}}]}}",
        at(-for_seconds)
    )]);
    scene
}

#[test]
fn the_stage_of_a_pod_is_reported_once_it_takes_long() {
    let plan = warming_up(3, "").plan();
    assert_eq!(condition(&plan.status, conditions::READY).2, "no pod of the current revision is ready yet");
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(7)));
    let plan = warming_up(10, "").plan();
    assert_eq!(condition(&plan.status, conditions::READY).2, "engine of pod chat-0 is warming up");
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(290)));
}

#[test]
fn a_warm_up_fails_exactly_at_its_timeout() {
    let plan = warming_up(299, "").plan();
    assert_eq!(plan.status.phase, Some(Phase::Loading));
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(1)));
    let plan = warming_up(300, "").plan();
    assert_eq!(plan.status.phase, Some(Phase::Failed));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::WARMUP_TIMEOUT));
    assert_eq!(plan.requeue_after, None);
}

#[test]
fn the_kubelets_restart_does_not_hide_a_warm_up_timeout() {
    let mut scene = warming_up(300, "");
    scene.write_status();
    scene.pods(&["{node: gpu-0, containers: [{name: engine, restartCount: 1, state: {running: {}}, \
                 lastState: {terminated: {exitCode: 137, reason: Error}}}]}"]);
    let status = scene.plan().status;
    assert_eq!(reason(&status, conditions::READY), ("False", reasons::WARMUP_TIMEOUT));
    scene.write_status();
    scene.pods(&[
        "{node: gpu-0, containers: [{name: engine, restartCount: 2, state: {terminated: {exitCode: 1}}}]}",
    ]);
    assert_eq!(
        reason(&scene.plan().status, conditions::READY).1,
        reasons::CRASH_LOOP,
        "the kubelet did not end it"
    );
    scene.pods(&[
        "{ready: true, node: gpu-0, containers: [{name: engine, restartCount: 1, state: {running: {}}}]}",
    ]);
    assert_eq!(scene.plan().status.phase, Some(Phase::Ready));
}

/// Three crashing replicas.
fn crashing() -> Scene {
    let mut scene = Scene::ready(3);
    let crashed = |name: &str| {
        format!(
            "{{name: {name}, node: gpu-0, phase: Running, containers: [{{name: engine, restartCount: 3, \
             state: {{waiting: {{reason: CrashLoopBackOff}}}}, lastState: {{terminated: {{exitCode: 1}}}}}}]}}"
        )
    };
    scene.pods(&["a", "b", "c"].map(crashed).each_ref().map(String::as_str));
    for pod in ["a", "b", "c"] {
        set_crash(&mut scene, pod, Crash::Unread);
    }
    scene
}

fn set_crash(scene: &mut Scene, pod: &str, crash: Crash) {
    scene.observe(|observed| {
        observed.crashes.insert(pod.to_owned(), crash);
    });
}

#[test]
fn at_most_two_logs_are_read_at_a_time_and_none_when_a_cause_is_known() {
    let mut scene = crashing();
    let asked = |scene: &Scene| scene.plan().logs.into_iter().map(|log| log.pod).collect::<Vec<_>>();
    assert_eq!(asked(&scene), ["a", "b"]);
    for pod in ["a", "b"] {
        set_crash(&mut scene, pod, Crash::Unknown { restarts: 3 });
    }
    assert_eq!(asked(&scene), ["c"]);
    set_crash(&mut scene, "c", Crash::Known { cause: "SafetensorError: x".into() });
    assert!(asked(&scene).is_empty());
    set_crash(&mut scene, "a", Crash::Unknown { restarts: 2 });
    assert!(asked(&scene).is_empty(), "one cause is enough");
    assert_eq!(
        condition(&scene.plan().status, conditions::READY).2,
        "engine of pod a ended with code 1 (3 restarts): pod c ended with SafetensorError: x; see kubectl logs a -c engine --previous"
    );
}

#[test]
fn after_a_restart_of_the_controller_the_written_cause_stays_until_the_log_is_read() {
    let mut scene = crashing();
    set_crash(&mut scene, "a", Crash::Known { cause: "ValueError: a (b); c".into() });
    scene.write_status();
    let written = scene.observed().inference.status.clone();
    set_crash(&mut scene, "a", Crash::Unread);
    let plan = scene.plan();
    assert_eq!(
        Some(&plan.status),
        written.as_ref(),
        "a restart of the controller must not cost a write per object"
    );
    assert_eq!(plan.logs[0].pod, "a");
    set_crash(&mut scene, "a", Crash::Unknown { restarts: 3 });
    assert!(
        !condition(&scene.plan().status, conditions::READY).2.contains("ValueError"),
        "the log names no cause now"
    );
}

#[test]
fn a_claim_created_with_the_object_is_not_reported_as_missing_at_once() {
    let mut scene = Scene::new("{modelSource: pvc://models, engine: triton, gpu: {count: 1}}");
    scene.observe(|observed| {
        Arc::make_mut(&mut observed.inference).metadata.creation_timestamp = Some(Time(at(0)));
    });
    let status = |seconds| scene.plan_with(&defaults(&[]), at(seconds));
    assert_eq!(reason(&status(1).status, conditions::READY), ("False", reasons::LOADING));
    assert_eq!(status(1).requeue_after, Some(Duration::from_secs(2)));
    assert_eq!(reason(&status(3).status, conditions::READY), ("False", reasons::CLAIM_NOT_FOUND));
}
