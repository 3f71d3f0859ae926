//! Containers that a webhook of the cluster adds to pods, such as the sidecar of a mesh.

use std::sync::Arc;

use workload::views::pod::Container;

use super::{
    bad_hours::{change_job, running, time},
    refusals::with_pod,
    *,
};

fn container(text: &Value) -> Container {
    serde_json::from_value(text.clone()).unwrap()
}

/// The runner of the baseline has ended at second 10 with this code, in a pod whose sidecar runs on.
fn ended_beside_a_sidecar(mut seen: Observed, code: i32, words: &str) -> Observed {
    let pod = Arc::make_mut(&mut seen.pods[0]);
    let ended = json!({"exitCode": code, "message": words, "finishedAt": "2026-01-01T12:00:10Z"});
    let runner = container(&json!({"name": "runner", "state": {"terminated": ended}}));
    let proxy = container(&json!({"name": "istio-proxy", "state": {"running": {}}}));
    pod.containers = [runner, proxy].into();
    seen
}

/// The next Job of the same name.
fn repeated(mut seen: Observed, uid: &str) -> Observed {
    change_job(&mut seen, |job| job.metadata.uid = Some(uid.to_owned()));
    let pod = Arc::make_mut(&mut seen.pods[0]);
    pod.metadata.owner_references.as_mut().unwrap()[0].uid = uid.to_owned();
    seen
}

/// The Job does not see its end, and the server holds GPUs.
#[test]
fn a_run_that_fails_for_good_beside_a_sidecar_gives_its_gpus_back() {
    for (code, words, reason) in [
        (81, r#"{"error":"no file /datasets/cmmlu"}"#, reasons::DATASET_NOT_FOUND),
        (0, "{cut", reasons::OUTPUT_UNREADABLE),
    ] {
        let seen = ended_beside_a_sidecar(running(), code, words);
        let waits = plan(&seen, &settings(), at(69));
        assert_eq!(
            (waits.status.phase, waits.requeue_after),
            (Some(Phase::Running), Some(Duration::from_secs(1))),
            "it may end by itself"
        );
        let failed = plan(&seen, &settings(), at(70));
        assert_eq!(said(&failed, conditions::FAILED), is("True", reason));
        let next = planned(&with_status(seen, &failed));
        assert_eq!(names(&next).1, ["job ab-baseline-0", "server ab-baseline"]);
    }
}

#[test]
fn a_run_that_fails_beside_a_sidecar_is_tried_again_three_times() {
    let mut seen = ended_beside_a_sidecar(running(), 84, r#"{"error":"the server does not answer"}"#);
    for uid in ["first", "second", "third"] {
        seen = repeated(seen, uid);
        let waits = plan(&seen, &settings(), at(69));
        assert!(names(&waits).1.is_empty());
        seen = noted(seen, &waits, 69);
        let again = plan(&seen, &settings(), at(70));
        assert_eq!((again.status.phase, names(&again).1.len()), (Some(Phase::Running), 1));
        assert_eq!(names(&again).1, ["job ab-baseline-0"]);
        seen = noted(seen, &again, 70);
        // Its Job is gone, and the next one is created.
        let without = Observed { jobs: Default::default(), pods: Vec::new(), ..seen.clone() };
        let next = plan(&without, &settings(), at(71));
        assert_eq!(names(&next).0.last().unwrap(), "job ab-baseline-0");
        seen.facts = noted(without, &next, 71).facts;
    }
    seen = repeated(seen, "fourth");
    let ended = plan(&seen, &settings(), at(70));
    assert_eq!(said(&ended, conditions::FAILED), is("True", reasons::SERVER_FAILED));
    assert_eq!(planned(&noted(seen.clone(), &ended, 70)).facts, Vec::<String>::new(), "no try follows");
    assert_eq!(ended.status.message.as_deref(), Some("baseline on cmmlu: the server does not answer"));
}

/// It has tries of its own.
#[test]
fn the_failed_tries_of_another_run_do_not_count() {
    let mut seen = ended_beside_a_sidecar(running(), 84, "");
    let fact = |number: i32| format!("failed beside another container: Job ab-baseline-01 ({number})");
    seen.facts = (0..9).map(|number| (fact(number), at(0))).collect();
    assert_eq!(names(&plan(&seen, &settings(), at(70))).1, ["job ab-baseline-0"]);
}

/// The answers of hours are there.
#[test]
fn a_comparison_that_fails_beside_a_sidecar_is_repeated_and_fails_as_alone() {
    for (code, phase) in [(91, Phase::Comparing), (89, Phase::Failed)] {
        let mut seen = observed(evaluation(&json!({"nullControl": false})));
        for job in ["ab-baseline-0", "ab-candidate-0"] {
            add_job(&mut seen, job, Some((0, ASKED)));
        }
        let plan_now = planned(&seen);
        seen = with_status(seen, &plan_now);
        seen.pods.clear();
        add_job(&mut seen, "ab-pair", None);
        seen = ended_beside_a_sidecar(seen, code, "");
        let waits = plan(&seen, &settings(), at(69));
        assert_eq!(
            (waits.status.phase, facts(&waits)),
            (Some(Phase::Comparing), Vec::new()),
            "memory is bounded"
        );
        assert_eq!(plan(&seen, &settings(), at(70)).status.phase, Some(phase));
        let repeats = names(&plan(&seen, &settings(), at(310))).1 == ["job ab-pair"];
        assert_eq!(repeats, phase == Phase::Comparing);
    }
}

/// The pod of the candidate, placed at noon, whose runner waits for these init containers. Those with this name are sidecars.
fn initializing(sidecar: &str, containers: &Value) -> Observed {
    let state = json!({"waiting": {"reason": "PodInitializing"}});
    let status = json!({"phase": "Pending", "initContainerStatuses": containers,
        "containerStatuses": [{"name": "runner", "state": state}]});
    let init = json!([{"name": "wait-for-mesh"}, {"name": sidecar, "restartPolicy": "Always"}]);
    with_pod(&json!({"nodeName": "n", "initContainers": init, "containers": []}), &status)
}

fn message_at(seen: &Observed, seconds: i64) -> String {
    plan(seen, &settings(), at(seconds)).status.message.unwrap()
}

#[test]
fn an_init_container_that_does_not_start_is_named_and_gives_the_gpus_back() {
    for (name, state, reason, words) in [
        (
            "mesh-init",
            json!({"waiting": {"reason": "ErrImagePull"}}),
            reasons::IMAGE_PULL_FAILED,
            "cannot start",
        ),
        // A kubelet starts no other container again.
        (
            "mesh-proxy",
            json!({"waiting": {"reason": "CrashLoopBackOff"}}),
            reasons::CRASH_LOOP,
            "ended with code 1",
        ),
    ] {
        let last = json!({"terminated": {"exitCode": 1}});
        let init = json!({"name": name, "restartCount": 4, "state": state, "lastState": last});
        let done = json!({"name": "done", "state": {"terminated": {"exitCode": 0}}});
        let seen = initializing("mesh-proxy", &json!([done, init]));
        let first = planned(&seen);
        assert_eq!(said(&first, conditions::STALLED), is("True", reason));
        let message = first.status.message.clone().unwrap();
        let seen = noted(seen, &first, 0);
        assert_ne!(plan(&seen, &settings(), at(599)).status.phase, Some(Phase::Failed));
        assert!(message.contains(&format!("{name} of pod ab-candidate-0-x {words}")), "{message}");
        let failed = plan(&seen, &settings(), at(600));
        assert_eq!(said(&failed, conditions::FAILED), is("True", reason));
    }
}

/// A kubelet says of each container without a startup probe that it has started.
#[test]
fn an_init_container_that_does_not_end_is_named_and_gives_the_gpus_back() {
    let running = json!({"running": {"startedAt": "2026-01-01T12:00:00Z"}});
    let init = json!([{"name": "wait-for-mesh", "started": true, "state": running}]);
    let mut seen = initializing("istio-proxy", &init);
    let soon = plan(&seen, &settings(), at(119));
    assert_eq!(soon.requeue_after, Some(Duration::from_secs(1)));
    assert!(!soon.status.message.unwrap().contains("wait-for-mesh"));
    let message = message_at(&seen, 120);
    let words = "init container wait-for-mesh of pod ab-candidate-0-x has run since 2026-01-01T12:00:00Z";
    assert!(message.contains(words), "{message}");
    seen = refusals::baseline_ended(seen, 0);
    assert_ne!(plan(&seen, &settings(), at(599)).status.phase, Some(Phase::Failed));
    assert_eq!(plan(&seen, &settings(), at(600)).status.phase, Some(Phase::Failed));
}

/// Large images are pulled for long.
#[test]
fn a_sidecar_that_has_started_is_no_obstacle() {
    let running = json!({"running": {"startedAt": "2026-01-01T12:00:00Z"}});
    let init = json!([{"name": "istio-proxy", "started": true, "state": running}]);
    let seen = initializing("istio-proxy", &init);
    let plan = plan(&seen, &settings(), at(9_999));
    let awaits = "pod ab-candidate-0-x () awaits its runner after 1 containers";
    assert_eq!((plan.status.phase, facts(&plan)), (Some(Phase::Running), vec![awaits]));
    assert!(!message_at(&seen, 9_999).contains("istio-proxy"));
}

/// A kubelet whose pull of a large image hangs gives no reason, and the server holds GPUs.
#[test]
fn a_runner_that_does_not_start_after_others_have_ended_gives_the_gpus_back() {
    let done = json!({"name": "runner-installer", "state": {"terminated": {"exitCode": 0}}});
    let awaits = initializing("istio-proxy", &json!([done]));
    let mut seen = refusals::baseline_ended(awaits.clone(), 10);
    let first = plan(&seen, &settings(), at(10));
    assert_eq!(first.requeue_after, Some(Duration::from_secs(120)));
    seen = noted(seen, &first, 10);
    assert!(!message_at(&seen, 129).contains("known to have started"));
    let named = plan(&seen, &settings(), at(130));
    let words = "container runner of pod ab-candidate-0-x is not known to have started: its image, or that of another \
                 container, may still be pulled";
    assert!(named.status.message.as_deref().unwrap().contains(words), "{:?}", named.status.message);
    seen = noted(seen, &named, 130);
    let last = plan(&seen, &settings(), at(1_809));
    assert_eq!((&last.status, last.requeue_after), (&named.status, Some(Duration::from_secs(1))));
    assert_eq!(plan(&seen, &settings(), at(1_810)).status.phase, Some(Phase::Failed));

    // Each image has its time.
    let running = json!({"running": {"startedAt": "2026-01-01T12:20:00Z"}});
    let proxy = json!({"name": "istio-proxy", "started": true, "state": running});
    let mut next = Observed { pods: initializing("istio-proxy", &json!([done, proxy])).pods, ..seen.clone() };
    next = noted(next.clone(), &plan(&next, &settings(), at(1_200)), 1_200);
    assert_eq!(plan(&next, &settings(), at(2_999)).status.phase, Some(Phase::Running));
    assert_eq!(plan(&next, &settings(), at(3_000)).status.phase, Some(Phase::Failed));
    // It runs.
    let pod = Arc::make_mut(seen.pods.iter_mut().find(|pod| pod.name() == "ab-candidate-0-x").unwrap());
    pod.containers = [container(&json!({"name": "runner", "state": {"running": {}}}))].into();
    let runs = plan(&seen, &settings(), at(1_810));
    assert_eq!((runs.status.phase, facts(&runs)), (Some(Phase::Running), Vec::new()));
}

/// A kubelet reports none of them before it has started all, so the runner may work already.
#[test]
fn a_runner_beside_other_containers_has_the_time_of_all_their_images() {
    let running = |seen: &Observed, seconds| plan(seen, &settings(), at(seconds)).status.phase;
    let waits = json!({"waiting": {"reason": "PodInitializing"}});
    let done = json!({"name": "runner-installer", "state": {"terminated": {"exitCode": 0}}});
    let sidecar = |started: bool| {
        let state = json!({"running": {"startedAt": "2026-01-01T12:00:00Z"}});
        json!({"name": "istio-proxy", "started": started, "state": state})
    };
    let with = |init: Value| {
        let mut seen = refusals::baseline_ended(initializing("istio-proxy", &init), 0);
        let pod = Arc::make_mut(seen.pods.iter_mut().find(|pod| pod.name() == "ab-candidate-0-x").unwrap());
        pod.containers =
            ["runner", "logger"].map(|name| container(&json!({"name": name, "state": waits}))).into();
        noted(seen.clone(), &planned(&seen), 0)
    };
    for init in [json!([done]), json!([done, sidecar(true)])] {
        let seen = with(init);
        assert_eq!(running(&seen, 3_599), Some(Phase::Running));
        let message = message_at(&seen, 3_599);
        let words =
            "is not known to have started: its image, or that of another container, may still be pulled";
        assert!(message.contains(words), "{message}");
        assert_eq!(running(&seen, 3_600), Some(Phase::Failed));
    }
    // The image of the next init container is pulled.
    let next = json!({"name": "later", "state": waits});
    let seen = with(json!([done, next]));
    assert_eq!((running(&seen, 1_799), running(&seen, 1_800)), (Some(Phase::Running), Some(Phase::Failed)));
}

/// The kubelet ends it when its startup probe has failed, and starts it again.
#[test]
fn a_sidecar_that_does_not_start_is_named_and_its_restarts_do_not_lengthen_the_time() {
    let run = |since: &str| {
        let running = json!({"running": {"startedAt": since}});
        let sidecar = json!({"name": "istio-proxy", "started": false, "state": running});
        let pods = initializing("istio-proxy", &json!([sidecar]));
        refusals::baseline_ended(pods, 10)
    };
    let first = run("2026-01-01T12:00:00Z");
    let mut seen = noted(first.clone(), &plan(&first, &settings(), at(10)), 10);
    assert!(!message_at(&seen, 129).contains("istio-proxy"));
    let named = plan(&seen, &settings(), at(130));
    let words = "sidecar istio-proxy of pod ab-candidate-0-x has not started, and the next containers wait for its start";
    assert!(named.status.message.as_deref().unwrap().contains(words), "{:?}", named.status.message);
    seen = noted(seen, &named, 130);
    seen.pods = run("2026-01-01T12:09:00Z").pods;
    let again = plan(&seen, &settings(), at(609));
    assert_eq!((&again.status, again.requeue_after), (&named.status, Some(Duration::from_secs(1))));
    assert_eq!(plan(&seen, &settings(), at(610)).status.phase, Some(Phase::Failed));
}

/// The kubelet starts the runner whatever becomes of it, and says nothing of the pod while an image is pulled.
#[test]
fn a_sidecar_that_ends_after_others_have_begun_is_no_obstacle() {
    for state in [json!({"waiting": {"reason": "CrashLoopBackOff"}}), json!({"running": {}})] {
        let last = json!({"terminated": {"exitCode": 1}});
        let sidecar = json!({"name": "log-shipper", "started": false, "restartCount": 3, "state": state, "lastState": last});
        let installer = json!({"name": "runner-installer", "state": {"terminated": {"exitCode": 0}}});
        let status = json!({"phase": "Pending", "initContainerStatuses": [sidecar, installer],
            "containerStatuses": [{"name": "runner", "state": {"waiting": {"reason": "PodInitializing"}}}]});
        let init = json!([{"name": "log-shipper", "restartPolicy": "Always"}, {"name": "runner-installer"}]);
        let seen = with_pod(&json!({"nodeName": "n", "initContainers": init, "containers": []}), &status);
        let seen = refusals::baseline_ended(seen, 10);
        let now = plan(&seen, &settings(), at(9_999));
        let awaits = "pod ab-candidate-0-x () awaits its runner after 2 containers";
        assert_eq!((now.status.phase, facts(&now)), (Some(Phase::Running), vec![awaits]));
    }
}

/// The kubelet starts the next containers when the plain one has ended, whatever becomes of the sidecar.
#[test]
fn a_sidecar_that_crashes_while_a_later_init_container_runs_is_not_the_cause() {
    let last = json!({"terminated": {"exitCode": 1}});
    let waits = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let sidecar = json!({"name": "log-shipper", "restartCount": 4, "state": waits, "lastState": last});
    let running = json!({"running": {"startedAt": "2026-01-01T12:00:00Z"}});
    let init = json!([sidecar, {"name": "wait-for-mesh", "started": true, "state": running}]);
    let seen = initializing("log-shipper", &init);
    assert_eq!(said(&plan(&seen, &settings(), at(119)), conditions::STALLED), None);
    let named = plan(&seen, &settings(), at(120));
    assert_eq!(said(&named, conditions::STALLED), None);
    let message = named.status.message.unwrap();
    assert!(message.contains("init container wait-for-mesh of pod ab-candidate-0-x has run"), "{message}");
}

#[test]
fn a_sidecar_without_its_image_is_no_obstacle_of_a_run_that_goes_on() {
    let mut seen = running();
    let pod = Arc::make_mut(&mut seen.pods[0]);
    let proxy = json!({"name": "istio-proxy", "state": {"waiting": {"reason": "ErrImagePull"}}});
    pod.containers = [pod.containers[0].clone(), container(&proxy)].into();
    let plan = plan(&seen, &settings(), at(9_999));
    assert_eq!((plan.status.phase, said(&plan, conditions::STALLED)), (Some(Phase::Running), None));
}

/// No kubelet ends the sidecar, and the Job makes no other pod before.
#[test]
fn a_pod_with_a_sidecar_on_a_lost_node_is_no_lack_of_a_pod() {
    let mut seen = ended_beside_a_sidecar(running(), 137, "");
    change_job(&mut seen, |job| job.metadata.creation_timestamp = Some(time(0)));
    Arc::make_mut(&mut seen.pods[0]).metadata.deletion_timestamp = Some(time(1_000));
    let waits = plan(&seen, &settings(), at(1_299));
    assert_eq!((waits.requeue_after, facts(&waits)), (Some(Duration::from_secs(1)), Vec::new()));
    assert_eq!(said(&waits, conditions::EVALUATED), is("False", reasons::EVALUATING));
    assert_eq!(names(&plan(&seen, &settings(), at(1_300))).1, ["job ab-baseline-0"]);
    // Its runner has ended, and writes no file of the next one.
    seen.jobs.clear();
    assert_eq!(names(&plan(&seen, &settings(), at(1_001))).0.last().unwrap(), "job ab-baseline-0");
}
