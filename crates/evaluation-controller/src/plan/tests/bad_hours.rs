//! What a full quota, a dead node, an edit in the middle and a wrong word do to an evaluation.

use std::sync::Arc;

use api::labels;
use runtime::write::events::Severity;
use workload::views::job::JobView;

use super::*;

/// With a temporary baseline, whose run has a Job since the beginning.
pub(super) fn running() -> Observed {
    let mut seen = observed(evaluation(&json!({})));
    let plan = planned(&seen);
    seen = with_status(seen, &plan);
    seen.baseline = own("ab-baseline", &ready());
    add_job(&mut seen, "ab-baseline-0", None);
    seen
}

pub(super) fn change_job(seen: &mut Observed, change: impl Fn(&mut JobView)) {
    for job in seen.jobs.values_mut() {
        change(Arc::make_mut(job));
    }
}

pub(super) fn time(seconds: i64) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(seconds))
}

/// A quota, a LimitRange or an admission policy refuses the pod, and the server holds GPUs meanwhile.
#[test]
fn a_run_without_a_pod_gives_its_gpus_back() {
    let mut seen = running();
    seen.pods.clear();
    change_job(&mut seen, |job| job.metadata.creation_timestamp = Some(time(0)));
    let soon = plan(&seen, &settings(), at(29));
    assert_eq!((soon.status.phase, soon.requeue_after), (Some(Phase::Running), Some(Duration::from_secs(1))));
    assert_eq!(said(&soon, conditions::EVALUATED), is("False", reasons::EVALUATING));
    seen = noted(seen, &soon, 29);
    let first = plan(&seen, &settings(), at(30));
    assert!(first.status.message.as_deref().unwrap().contains("Job ab-baseline-0 has no pod: a quota"));
    seen = noted(seen, &first, 30);
    let waits = plan(&seen, &settings(), at(628));
    assert_eq!(
        (waits.status.phase, waits.requeue_after),
        (Some(Phase::Running), Some(Duration::from_secs(1)))
    );
    assert_eq!(waits.status, first.status, "nothing is written at rest");
    let mut queued = running();
    queued.pods.clear();
    change_job(&mut queued, |job| {
        job.metadata.creation_timestamp = Some(time(0));
        (job.is_suspended, job.suspended_message) = (true, "the queue is full".to_owned());
    });
    let words = plan(&queued, &settings(), at(30)).status.message.unwrap();
    assert!(words.contains("Job ab-baseline-0 is suspended: the queue is full"), "{words}");
    let ended = plan(&seen, &settings(), at(629));
    assert_eq!(ended.status.phase, Some(Phase::Failed));
    assert!(
        ended.events.iter().any(|event| event.message.contains("has no pod: a quota")),
        "{:?}",
        ended.events
    );
    // Its user mends something meanwhile.
    let mut paused = seen.clone();
    Arc::make_mut(&mut paused.evaluation).spec.pods.paused = true;
    assert_eq!(plan(&paused, &settings(), at(629)).facts, [""; 0], "the time begins anew after the pause");
    let next = planned(&with_status(seen, &ended));
    assert_eq!(names(&next).1, ["job ab-baseline-0", "server ab-baseline"]);
}

/// In a run of hours, whose Job is open.
fn with_a_failed_pod() -> Observed {
    let mut seen = running();
    change_job(&mut seen, |job| job.metadata.creation_timestamp = Some(time(0)));
    let pod = Arc::make_mut(&mut seen.pods[0]);
    pod.phase = "Failed".to_owned();
    let state =
        json!({"terminated": {"exitCode": 84, "reason": "Error", "finishedAt": "2026-01-01T13:00:00Z"}});
    pod.containers[0].state = serde_json::from_value(state).unwrap();
    seen
}

const NO_OTHER_POD: &str = "Job ab-baseline-0 has had no other pod since ab-baseline-0-x ended (exit code 84 Error): \
                            Kubernetes may pause for ten minutes, or a quota, a LimitRange or an admission policy holds it back; see kubectl \
                            describe job ab-baseline-0";

/// Its pod has failed and is kept, and a quota or a queue holds the next one back.
#[test]
fn a_run_whose_next_pod_does_not_come_gives_its_gpus_back() {
    let mut seen = with_a_failed_pod();
    let pause = plan(&seen, &settings(), at(3_600));
    assert_eq!(said(&pause, conditions::EVALUATED), is("False", reasons::EVALUATING));
    assert_eq!(pause.requeue_after, Some(Duration::from_secs(120)));
    seen = noted(seen, &pause, 3_600);
    assert_eq!(plan(&seen, &settings(), at(3_719)).status, pause.status);
    let first = plan(&seen, &settings(), at(3_720));
    assert_eq!(
        (first.status.phase, first.status.message.as_deref()),
        (Some(Phase::Running), Some(NO_OTHER_POD)),
        "its user has time"
    );
    assert_eq!(first.requeue_after, Some(Duration::from_secs(540)));
    seen = noted(seen, &first, 3_720);
    assert_eq!(plan(&seen, &settings(), at(4_259)).status, first.status, "nothing is written at rest");
    let ended = plan(&seen, &settings(), at(4_260));
    assert_eq!(
        (ended.status.phase, ended.status.message.as_deref()),
        (Some(Phase::Failed), Some(NO_OTHER_POD))
    );
    // A queue has taken its room.
    change_job(&mut seen, |job| job.is_suspended = true);
    let queued = plan(&seen, &settings(), at(3_630)).status.message.unwrap();
    assert!(queued.contains("Job ab-baseline-0 is suspended"), "{queued}");
}

#[test]
fn an_eviction_is_named_where_the_next_pod_does_not_come() {
    let mut seen = with_a_failed_pod();
    let pod = Arc::make_mut(&mut seen.pods[0]);
    pod.metadata.creation_timestamp = Some(time(0));
    let mut evicted = pod.clone();
    (evicted.reason, evicted.containers) = ("Evicted".to_owned(), [].into());
    (evicted.metadata.name, evicted.metadata.uid) = (Some("last".to_owned()), Some("last".to_owned()));
    evicted.metadata.creation_timestamp = Some(time(3_700));
    seen.pods.insert(0, Arc::new(evicted));
    seen = noted(seen.clone(), &plan(&seen, &settings(), at(3_800)), 3_800);
    let words = plan(&seen, &settings(), at(3_920)).status.message.unwrap();
    assert!(words.contains("no other pod since last ended (Evicted): "), "{words}");
}

/// It may write for its grace period, and the Job makes no other pod before.
#[test]
fn a_pod_that_is_about_to_end_is_no_lack_of_a_pod() {
    let mut seen = running();
    change_job(&mut seen, |job| job.metadata.creation_timestamp = Some(time(0)));
    let runs = planned(&seen);
    seen = with_status(seen, &runs);
    Arc::make_mut(&mut seen.pods[0]).metadata.deletion_timestamp = Some(time(3_630));
    let ends = plan(&seen, &settings(), at(3_600));
    assert_eq!((facts(&ends), &ends.status), (Vec::new(), &runs.status));
    // A Job keeps it until it is counted.
    Arc::make_mut(&mut seen.pods[0]).phase = "Failed".to_owned();
    let ended = plan(&seen, &settings(), at(3_630));
    assert_eq!(facts(&ended), ["Job ab-baseline-0 (uid-ab-baseline-0) has no pod"]);
    assert_eq!((&ended.status, ended.requeue_after), (&runs.status, Some(Duration::from_secs(120))));
}

/// Its memory is empty. The time counts anew, and the words stay.
#[test]
fn a_restart_of_the_controller_takes_no_words_back() {
    let mut without = running();
    without.pods.clear();
    change_job(&mut without, |job| job.metadata.creation_timestamp = Some(time(0)));
    let evicted = without.clone();
    for (seen, noticed, said_at) in
        [(without, 0, 30), (evicted, 3_600, 3_720), (with_a_failed_pod(), 3_600, 3_720)]
    {
        let seen = noted(seen.clone(), &plan(&seen, &settings(), at(noticed)), noticed);
        let first = plan(&seen, &settings(), at(said_at));
        assert_eq!(said(&first, conditions::EVALUATED), is("False", reasons::WAITING));
        let restarted = Observed { facts: Default::default(), ..noted(seen, &first, said_at) };
        let again = plan(&restarted, &settings(), at(5_000));
        assert_eq!((&again.status, again.events.len()), (&first.status, 0));
        let restarted = noted(restarted, &again, 5_000);
        assert_eq!(plan(&restarted, &settings(), at(5_659)).status, first.status);
        assert_eq!(plan(&restarted, &settings(), at(5_660)).status.phase, Some(Phase::Failed));
    }
}

/// The words of a refusal fill the message of the status, which then names no Job.
#[test]
fn a_run_without_a_pod_gives_its_gpus_back_also_while_the_other_run_is_refused() {
    let mut seen = with_own_claim(side_by_side::running(&json!({})));
    seen.jobs.remove("ab-candidate-0");
    seen.pods.clear();
    change_job(&mut seen, |job| job.metadata.creation_timestamp = Some(time(0)));
    let refusal = Refusal::Denied(format!("Job demo/ab-candidate-0: {}", "no ".repeat(600)));
    let mut ended = None;
    for seconds in (0..=660).step_by(60) {
        let before = plan(&seen, &settings(), at(seconds));
        let after = refused::refused(&refusal, &before, &seen, &settings(), at(seconds));
        ended = ended.or((after.status.phase == Some(Phase::Failed)).then_some(seconds));
        seen = noted(seen, &after, seconds);
    }
    assert_eq!(ended, Some(600));
}

/// Its user has mended something for an hour, and no object has a newer time.
#[test]
fn after_a_pause_the_times_of_objects_begin_anew() {
    let running_init = json!({"name": "wait", "state": {"running": {"startedAt": "2026-01-01T12:00:00Z"}}});
    let init = refusals::with_pod(
        &json!({"nodeName": "n", "containers": [], "initContainers": [{"name": "wait"}]}),
        &json!({"phase": "Pending", "initContainerStatuses": [running_init]}),
    );
    let silent =
        refusals::with_pod(&json!({"nodeName": "n", "containers": []}), &json!({"phase": "Pending"}));
    let mut stalled = running();
    drop_job(&mut stalled, "ab-baseline-0");
    stalled.baseline = own("ab-baseline", &condition("Stalled", "True", "CrashLoop"));
    for (seen, most) in [
        (refusals::baseline_ended(refusals::without_a_node(), 0), 600),
        (refusals::baseline_ended(init, 0), 600),
        (refusals::baseline_ended(silent, 0), 1_800),
        (stalled, 600),
    ] {
        let mut seen = noted(seen.clone(), &plan(&seen, &settings(), at(300)), 300);
        let pause = |seen: &mut Observed, paused: bool| {
            Arc::make_mut(&mut seen.evaluation).spec.pods.paused = paused;
        };
        pause(&mut seen, true);
        for seconds in [310, 3_600] {
            let paused = plan(&seen, &settings(), at(seconds));
            seen = noted(seen, &paused, seconds);
        }
        pause(&mut seen, false);
        for seconds in [3_700, 3_699 + most] {
            let waits = plan(&seen, &settings(), at(seconds));
            assert_ne!(waits.status.phase, Some(Phase::Failed), "{seconds}: {:?}", waits.status.message);
            seen = noted(seen, &waits, seconds);
        }
        let ended = plan(&seen, &settings(), at(3_700 + most));
        assert_eq!(ended.status.phase, Some(Phase::Failed));
    }
}

/// The Job makes the next one after a pause.
#[test]
fn a_run_of_hours_whose_pod_was_evicted_goes_on() {
    let mut seen = running();
    change_job(&mut seen, |job| job.metadata.creation_timestamp = Some(time(0)));
    let runs = planned(&seen);
    seen = with_status(seen, &runs);
    seen.pods.clear();
    for seconds in [9_000, 9_010] {
        let waits = plan(&seen, &settings(), at(seconds));
        assert_eq!(Some(&waits.status), seen.evaluation.status.as_ref());
        seen = noted(seen, &waits, seconds);
    }
    assert_eq!(Some(&plan(&seen, &settings(), at(9_119)).status), seen.evaluation.status.as_ref());
    let words = plan(&seen, &settings(), at(9_120)).status.message.unwrap();
    let pause = "Job ab-baseline-0 has no pod now: Kubernetes may pause for ten minutes, or a quota,";
    assert!(words.starts_with(pause), "{words}");
    assert_eq!(plan(&seen, &settings(), at(9_659)).status.phase, Some(Phase::Running));
    assert_eq!(plan(&seen, &settings(), at(9_660)).status.phase, Some(Phase::Failed));
}

/// The other one finds no node, or is refused, for longer than a server may be held.
#[test]
fn a_run_that_may_get_its_next_pod_is_not_ended_by_the_other_run() {
    let settings = Settings { server_fault: Duration::from_secs(120), ..settings() };
    let mut refused = with_own_claim(side_by_side::running(&json!({"nullControl": false})));
    refused.jobs.remove("ab-candidate-0");
    for (mut seen, is_refused) in [(refusals::without_a_node(), false), (refused, true)] {
        seen.pods.retain(|pod| pod.name() == "ab-candidate-0-x" && !is_refused);
        change_job(&mut seen, |job| job.metadata.creation_timestamp = Some(time(-3_600)));
        let plan_at = |seen: &Observed, seconds: i64| {
            let now = plan(seen, &settings, at(seconds));
            let denied = Refusal::Denied("denied: quota".to_owned());
            match is_refused {
                true => super::refused::refused(&denied, &now, seen, &settings, at(seconds)),
                false => now,
            }
        };
        for seconds in [0, 60, 120, 240, 480] {
            let now = plan_at(&seen, seconds);
            assert_eq!(now.status.phase, Some(Phase::Running), "{seconds}");
            seen = noted(seen, &now, seconds);
        }
        let last = plan_at(&seen, 659);
        assert_eq!(
            (last.status.phase, last.requeue_after),
            (Some(Phase::Running), Some(Duration::from_secs(1)))
        );
        assert_eq!(plan_at(&seen, 660).status.phase, Some(Phase::Failed));
    }
}

/// The baseline is a model of the user, which stays Ready, and its claim is missing.
#[test]
fn a_run_that_cannot_be_created_is_not_waited_for_by_the_other_one() {
    let fields = json!({"order": "Parallel", "nullControl": false, "baselineModel": "aiinference/chat",
        "output": {"claimName": "mine"}});
    let mut seen = refusals::without_a_node();
    let status = seen.evaluation.status.clone();
    seen.evaluation = Arc::new(ModelEvaluation { status, ..evaluation(&fields) });
    seen.baseline = Sighting::Absent;
    seen.running_baseline = Some(Arc::new(server("chat", &ready())));
    seen.jobs.remove("ab-baseline-0");
    seen.pods.retain(|pod| pod.name() == "ab-candidate-0-x");
    seen.claims.insert("mine".to_owned(), None);
    seen = noted(seen.clone(), &planned(&seen), 0);
    assert_eq!(plan(&seen, &settings(), at(599)).status.phase, Some(Phase::Running));
    let ended = plan(&seen, &settings(), at(600)).status;
    assert_eq!(ended.phase, Some(Phase::Failed), "{:?}", ended.message);
}

/// The server of the other run is one of the user, so that run waits without end.
#[test]
fn a_run_whose_time_counts_from_the_pause_of_the_other_one_is_planned_again_then() {
    let fields = json!({"order": "Parallel", "nullControl": false, "baselineModel": "aiinference/chat"});
    let mut seen = refusals::without_a_node();
    let status = seen.evaluation.status.clone();
    seen.evaluation = Arc::new(ModelEvaluation { status, ..evaluation(&fields) });
    seen.baseline = Sighting::Absent;
    seen.running_baseline = Some(Arc::new(server("chat", &ready())));
    seen.pods.retain(|pod| pod.name() == "ab-candidate-0-x");
    change_job(&mut seen, |job| job.metadata.creation_timestamp = Some(time(-3_600)));
    seen = noted(seen.clone(), &planned(&seen), 0);
    let waits = plan(&seen, &settings(), at(659));
    assert_eq!(
        (waits.status.phase, waits.requeue_after),
        (Some(Phase::Running), Some(Duration::from_secs(1)))
    );
    assert_eq!(plan(&seen, &settings(), at(660)).status.phase, Some(Phase::Failed));
}

/// The pods may be otherwise now, and the run may go on.
#[test]
fn while_the_watch_of_pods_fails_no_run_is_ended_or_repeated() {
    let mut without = running();
    without.pods.clear();
    change_job(&mut without, |job| job.metadata.creation_timestamp = Some(time(0)));
    let without = noted(without.clone(), &planned(&without), 0);
    let no_node = refusals::baseline_ended(refusals::without_a_node(), 0);
    let mut lost = running();
    Arc::make_mut(&mut lost.pods[0]).metadata.deletion_timestamp = Some(time(0));
    // Of a Job that has ended, the pod that says how is not seen.
    let ended = |code: i32| {
        let mut seen = running();
        add_job(&mut seen, "ab-baseline-0", Some((code, "")));
        seen.pods.clear();
        seen
    };
    for (mut seen, acts) in [
        (without, (true, false)),
        (no_node, (true, false)),
        (lost, (false, true)),
        (ended(0), (false, true)),
        (ended(81), (true, false)),
    ] {
        let acts_now = |plan: &Plan| {
            let repeats = names(plan).1.iter().any(|name| name.starts_with("job "));
            (plan.status.phase == Some(Phase::Failed), repeats)
        };
        assert_eq!(acts_now(&plan(&seen, &settings(), at(600))), acts);
        seen.pods_are_stale = true;
        let waits = plan(&seen, &settings(), at(600));
        assert_eq!(acts_now(&waits), (false, false));
        let of_pods = facts(&waits).into_iter().filter(|fact| !fact.ends_with("is not at work"));
        assert_eq!((waits.requeue_after, of_pods.count()), (Some(Duration::from_secs(30)), 0));
    }
}

/// An evicted pod is seen, and the last one is not.
#[test]
fn the_reason_of_a_failed_run_is_that_of_its_last_pod_also_after_the_watch_of_pods_has_failed() {
    let mut seen = running();
    seen.pods.clear();
    let words = r#"{"error":"no file /datasets/cmmlu"}"#;
    for (uid, code) in [("first", 137), ("last", 81)] {
        add_job(&mut seen, "ab-baseline-0", Some((code, words)));
        let pod = Arc::make_mut(seen.pods.last_mut().unwrap());
        (pod.metadata.uid, pod.phase) = (Some(uid.to_owned()), "Failed".to_owned());
        pod.containers[0].state.terminated.as_mut().unwrap().finished_at = Some(at(i64::from(200 - code)));
    }
    let mut stale = Observed { pods_are_stale: true, ..seen.clone() };
    stale.pods.pop();
    let waits = plan(&stale, &settings(), at(600));
    assert_eq!(
        (waits.status.phase, waits.requeue_after),
        (Some(Phase::Running), Some(Duration::from_secs(30)))
    );
    let failed = plan(&seen, &settings(), at(600));
    assert_eq!(said(&failed, conditions::FAILED), is("True", reasons::DATASET_NOT_FOUND));
}

/// Nothing is held in vain.
#[test]
fn a_run_without_a_pod_waits_where_the_server_is_of_the_user() {
    let mut seen = observed(evaluation(&json!({"baselineModel": "aiinference/chat"})));
    seen.running_baseline = Some(Arc::new(server("chat", &ready())));
    add_job(&mut seen, "ab-baseline-0", None);
    seen.pods.clear();
    change_job(&mut seen, |job| job.metadata.creation_timestamp = Some(time(0)));
    let first = plan(&seen, &settings(), at(0));
    seen = noted(seen, &first, 0);
    let later = plan(&seen, &settings(), at(9_999));
    assert_eq!(
        (later.status.phase, said(&later, conditions::EVALUATED)),
        (Some(Phase::Running), is("False", "Waiting"))
    );
}

#[test]
fn a_refused_run_gives_its_gpus_back() {
    let mut seen = running();
    seen.jobs.clear();
    let first = denied(&seen, 0);
    assert_eq!(said(&first, conditions::STALLED), is("True", reasons::DENIED));
    assert_eq!(said(&first, conditions::EVALUATED), is("False", reasons::DENIED));
    seen = noted(seen, &first, 0);
    assert_ne!(denied(&seen, 599).status.phase, Some(Phase::Failed));
    let ended = denied(&seen, 600);
    assert_eq!(said(&ended, conditions::FAILED), is("True", reasons::DENIED));
    seen.baseline = Sighting::Absent;
    assert_ne!(denied(&seen, 9_999).status.phase, Some(Phase::Failed), "nothing is held");
}

/// A Job makes no other pod before the deleted one has ended, and no kubelet ends it.
#[test]
fn a_run_on_a_lost_node_is_asked_again() {
    let mut seen = running();
    let pod = Arc::make_mut(&mut seen.pods[0]);
    pod.metadata.deletion_timestamp = Some(time(0));
    let waits = plan(&seen, &settings(), at(299));
    assert_eq!((names(&waits).1.len(), waits.requeue_after), (0, Some(Duration::from_secs(1))));
    assert_eq!(names(&plan(&seen, &settings(), at(300))).1, ["job ab-baseline-0"]);
    // A pod of an earlier try is kept.
    let mut retried = seen.clone();
    let mut failed = (*retried.pods[0]).clone();
    (failed.metadata.deletion_timestamp, failed.phase) = (None, "Failed".to_owned());
    failed.metadata.uid = Some("of the first try".to_owned());
    retried.pods.push(Arc::new(failed));
    assert_eq!(names(&plan(&retried, &settings(), at(300))).1, ["job ab-baseline-0"]);
    // Its pod does not hold up the next Job.
    seen.jobs.clear();
    assert_eq!(names(&plan(&seen, &settings(), at(300))).0.last().unwrap(), "job ab-baseline-0");
    let early = plan(&seen, &settings(), at(10));
    assert!(!names(&early).0.contains(&"job ab-baseline-0".to_owned()), "it may still write");
    assert_eq!(early.requeue_after, Some(Duration::from_secs(290)));
    // The pod of another run writes other files.
    Arc::make_mut(&mut seen.pods[0]).metadata.owner_references.as_mut().unwrap()[0].name =
        "ab-candidate-0".to_owned();
    assert_eq!(names(&plan(&seen, &settings(), at(10))).0.last().unwrap(), "job ab-baseline-0");
}

#[test]
fn a_server_that_changes_during_its_only_run_is_a_failure() {
    let fields = json!({"candidateModel": "aiinference/chat", "nullControl": false});
    let mut seen = observed(evaluation(&fields));
    add_job(&mut seen, "ab-baseline-0", Some((0, ASKED)));
    let plan = planned(&seen);
    seen = with_status(seen, &plan);
    seen.running_candidate = Some(Arc::new(server("chat", &ready())));
    let plan = planned(&seen);
    let Some(Child::Job(_, job)) = plan.children.last() else { panic!("{:?}", names(&plan)) };
    let mark = job.metadata.annotations.as_ref().unwrap()[labels::ASKED_SERVER].clone();
    seen = with_status(seen, &plan);
    add_job(&mut seen, "ab-candidate-0", Some((0, ASKED)));
    change_job(&mut seen, |job| job.asked_server = Some(mark.clone()));
    assert_eq!(planned(&seen).status.runs.len(), 2);
    let changes: [fn(&mut crate::inference::InferenceView); 3] = [
        |server| server.version = "other arguments".to_owned(),
        |server| server.metadata.uid = Some("made again".to_owned()),
        |server| server.status.model.as_mut().unwrap().digest = "sha256:2".to_owned(),
    ];
    for change in changes {
        let mut other = server("chat", &ready());
        change(&mut other);
        seen.running_candidate = Some(Arc::new(other));
        assert_eq!(said(&planned(&seen), conditions::FAILED), is("True", reasons::MODEL_CHANGED));
    }
    seen.running_candidate = None;
    assert_eq!(said(&planned(&seen), conditions::FAILED), is("True", reasons::MODEL_CHANGED));
}

/// An autoscaler sets the replicas while questions are asked.
#[test]
fn only_what_decides_the_answers_is_the_version_of_a_server() {
    let of = |spec: Value| {
        let view: crate::inference::InferenceView =
            serde_json::from_value(json!({"metadata": {"name": "chat"}, "spec": spec})).unwrap();
        view.version
    };
    let known = of(json!({"modelSource": "s3://m", "replicas": 1}));
    assert_eq!(known, of(json!({"modelSource": "s3://m", "replicas": 7, "paused": true})));
    assert_ne!(known, of(json!({"modelSource": "s3://m", "args": ["--seed=1"]})));
}

#[test]
fn a_word_of_the_runner_that_cannot_be_read_is_no_run_and_is_not_asked_for_ever() {
    for words in ["", "{}", r#"{"pairs":[{}]}"#, r#"{"side":{"questi"#] {
        let mut seen = running();
        add_job(&mut seen, "ab-baseline-0", Some((0, words)));
        seen.pods.remove(0);
        let plan = planned(&seen);
        assert_eq!(said(&plan, conditions::FAILED), is("True", reasons::OUTPUT_UNREADABLE), "{words}");
        assert!(plan.status.runs.is_empty() && names(&plan).1.is_empty());
    }
}

/// An upgrade with another option must not delete hours of answers.
#[test]
fn a_permission_that_is_taken_back_ends_nothing_that_has_begun() {
    let online = Settings { allow_online: true, ..settings() };
    let mut seen = observed(evaluation(&json!({"allowOnline": true})));
    assert_eq!(said(&planned(&seen), conditions::ACCEPTED), is("False", reasons::DATASET_ONLINE_FORBIDDEN));
    let plan = plan(&seen, &online, at(0));
    seen = with_status(seen, &plan);
    seen.baseline = own("ab-baseline", &ready());
    add_job(&mut seen, "ab-baseline-0", None);
    let later = planned(&seen);
    assert_eq!((names(&later).1.len(), later.status.phase), (0, Some(Phase::Running)));
}

#[test]
fn volumes_that_meet_those_of_the_pod_are_refused_before_a_server_starts() {
    for volume in [
        json!({"name": "output", "mountPath": "/x", "claimName": "c"}),
        json!({"name": "mine", "mountPath": "/evaluation", "claimName": "c"}),
        json!({"name": "mine", "mountPath": "/questions", "claimName": "c"}),
    ] {
        let plan = planned(&observed(evaluation(&json!({"volumes": [volume]}))));
        assert_eq!(said(&plan, conditions::ACCEPTED), is("False", reasons::INVALID_SPEC));
        assert!(plan.children.is_empty());
    }
}

/// A container that was injected runs on, and keeps the claim on its node.
#[test]
fn the_pod_of_a_run_that_has_ended_is_deleted() {
    let mut seen = running();
    seen.jobs.clear();
    seen.pods.clear();
    add_job(&mut seen, "ab-baseline-0", Some((0, ASKED)));
    change_job(&mut seen, |job| (job.completed, job.failed) = (None, None));
    let plan = planned(&seen);
    assert!(names(&plan).1.is_empty(), "the status has the run first");
    seen = with_status(seen, &plan);
    assert_eq!(names(&planned(&seen)).1, ["job ab-baseline-0"]);
}

#[test]
fn a_run_that_has_ended_is_in_the_status_before_a_suspension_deletes_its_job() {
    let mut seen = running();
    seen.jobs.clear();
    seen.pods.clear();
    add_job(&mut seen, "ab-baseline-0", Some((0, ASKED)));
    change_job(&mut seen, |job| (job.completed, job.failed) = (None, None));
    Arc::make_mut(&mut seen.evaluation).spec.suspend = true;
    let plan = planned(&seen);
    assert_eq!((plan.status.runs.len(), names(&plan).1.len()), (1, 0));
    assert_eq!(plan.requeue_after, Some(Duration::ZERO));
    assert_eq!(names(&planned(&with_status(seen, &plan))).1, ["job ab-baseline-0", "server ab-baseline"]);
}

#[test]
fn the_column_has_the_largest_loss_of_the_worst_verdict() {
    let fields = json!({"nullControl": false, "testSets": [{"name": "one"}, {"name": "two"}]});
    let mut seen = observed(evaluation(&fields));
    for job in ["ab-baseline-0", "ab-baseline-1", "ab-candidate-0", "ab-candidate-1"] {
        add_job(&mut seen, job, Some((0, ASKED)));
    }
    let pairs = r#"{"pairs":[{"bothRight":1000,"onlyBaseline":100,"onlyCandidate":40,"bothWrong":860},
        {"bothRight":1000,"onlyBaseline":300,"onlyCandidate":40,"bothWrong":660}]}"#;
    add_job(&mut seen, "ab-pair", Some((0, pairs)));
    assert!(planned(&seen).status.difference.unwrap().starts_with("-13.00 ["));
}

/// No watch delivers a Job whose labels were taken off, and creating it again gives them back.
#[test]
fn a_job_without_its_labels_is_created_again_beside_its_pod() {
    let mut seen = running();
    seen.jobs.clear();
    assert_eq!(names(&planned(&seen)).0.last().unwrap(), "job ab-baseline-0");
}

/// All runs have ended, and the comparison has failed with this code, these words, and this reason of its container.
fn compared_with(code: i32, words: &str, reason: &str) -> Observed {
    let mut seen = observed(evaluation(&json!({"nullControl": false})));
    for job in ["ab-baseline-0", "ab-candidate-0"] {
        add_job(&mut seen, job, Some((0, ASKED)));
    }
    let plan = planned(&seen);
    seen = with_status(seen, &plan);
    add_job(&mut seen, "ab-pair", Some((code, words)));
    let pod = Arc::make_mut(seen.pods.last_mut().unwrap());
    let ended = pod.containers[0].state.terminated.as_mut().unwrap();
    ended.reason = reason.to_owned();
    seen
}

/// The answers of hours are on the volume.
#[test]
fn a_comparison_that_fails_by_its_node_or_volume_is_repeated_for_as_long_as_it_takes() {
    let words = r#"{"error":"cannot read /evaluation/e: Input/output error"}"#;
    for (code, reason, said_reason) in [
        (91, "Error", reasons::VOLUME_UNUSABLE),
        (137, "ContainerStatusUnknown", reasons::HARNESS_FAILED),
        (143, "Error", reasons::HARNESS_FAILED),
    ] {
        let seen = compared_with(code, words, reason);
        let waits = plan(&seen, &settings(), at(299));
        assert_eq!(
            (waits.status.phase, waits.requeue_after),
            (Some(Phase::Comparing), Some(Duration::from_secs(1)))
        );
        assert_eq!(said(&waits, conditions::COMPARED), is("False", said_reason));
        assert_eq!(said(&waits, conditions::STALLED), is("True", said_reason));
        assert_eq!(waits.events[0].severity, Severity::Warning);
        assert!(
            waits.status.message.as_deref().unwrap().contains("Input/output error"),
            "the user reads why"
        );
        assert!(names(&waits).1.is_empty());
        assert_eq!(names(&plan(&seen, &settings(), at(300))).1, ["job ab-pair"]);
    }
    let mut rejected = compared_with(137, "", "Error");
    rejected.pods.retain(|pod| pod.name() != "ab-pair-x");
    assert_eq!(plan(&rejected, &settings(), at(299)).status.phase, Some(Phase::Comparing));
    assert_eq!(names(&plan(&rejected, &settings(), at(300))).1, ["job ab-pair"]);
}

#[test]
fn a_comparison_that_no_repetition_can_mend_is_a_failure() {
    for (code, reason, said_reason) in [
        (89, "Error", reasons::PAIRING_FAILED),
        (137, "OOMKilled", reasons::OUT_OF_MEMORY),
        (101, "Error", reasons::HARNESS_FAILED),
    ] {
        let plan = planned(&compared_with(code, "", reason));
        assert_eq!(said(&plan, conditions::FAILED), is("True", said_reason), "{code}");
    }
}

/// A webhook that protects it keeps a server with its GPUs, or the evaluation itself when its time is over.
#[test]
fn a_deletion_that_is_refused_after_the_end_is_said_until_it_succeeds() {
    let mut ended = evaluation(&json!({}));
    let status = json!({"phase": "Succeeded", "verdict": "Passed", "completionTime": "2026-01-01T12:00:00Z",
        "conditions": [condition("Complete", "True", "Succeeded")]});
    ended.status = Some(serde_json::from_value(status).unwrap());
    let mut seen = observed(ended);
    seen.baseline = own("ab-baseline", &ready());
    let denied = Refusal::Denied("AIInference demo/ab-baseline: protected".to_owned());
    let refused =
        |seen: &Observed, seconds| refused::refused(&denied, &planned(seen), seen, &settings(), at(seconds));
    let first = refused(&seen, 0);
    assert_eq!(said(&first, conditions::STALLED), is("True", reasons::DENIED));
    assert_eq!(said(&first, conditions::COMPLETE), is("True", reasons::SUCCEEDED));
    assert_eq!(
        (first.status.phase, first.status.verdict.as_deref()),
        (Some(Phase::Succeeded), Some("Passed"))
    );
    assert!(first.events[0].message.contains("cannot be deleted: AIInference demo/ab-baseline: protected"));
    seen = with_status(seen, &first);
    let again = refused(&seen, 60);
    assert_eq!((again.events.len(), &again.status), (0, &first.status), "nothing is written at rest");
    assert_eq!(again.requeue_after, Some(settings().refusal_retry));
    assert_eq!(
        said(&planned(&seen), conditions::STALLED),
        None,
        "the next plan is applied after its deletions"
    );
}

/// The controller has ended between the creation of a Job and the status.
#[test]
fn the_model_of_a_run_is_noted_also_after_a_crash() {
    let mut seen = running();
    let resolved = |plan: &Plan| plan.status.resolved.clone().unwrap().baseline.unwrap();
    let plan = planned(&seen);
    assert_eq!(resolved(&plan).digest.as_deref(), Some("sha256:1"));
    seen = with_status(seen, &plan);
    assert_eq!(planned(&seen).status, plan.status);
}
