//! Containers that a webhook of the cluster adds to pods, such as the sidecar of a mesh.

use std::sync::Arc;

use workload::views::pod::Container;

use super::{
    bad_hours::{change_job, running},
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
        assert_eq!(plan(&seen, &settings(), at(69)).status.phase, Some(Phase::Comparing));
        assert_eq!(plan(&seen, &settings(), at(70)).status.phase, Some(phase));
        let repeats = names(&plan(&seen, &settings(), at(310))).1 == ["job ab-pair"];
        assert_eq!(repeats, phase == Phase::Comparing);
    }
}
