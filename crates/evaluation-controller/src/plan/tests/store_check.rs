//! The store of the answers is tried beside the first runs.

use super::*;

const CHECK: &str = "ab-answers-check";

/// An evaluation whose answers are uploaded, and whose first run goes on.
fn running(output: &Value) -> Observed {
    let mut wanted = json!({"uri": "s3://evaluations/chat"});
    wanted.as_object_mut().unwrap().extend(output.as_object().unwrap().clone());
    let mut seen = observed(evaluation(&json!({"output": wanted})));
    seen.baseline = own("ab-baseline", &ready());
    add_job(&mut seen, "ab-baseline-0", None);
    seen
}

fn later(seen: &Observed, seconds: i64) -> Plan {
    plan(seen, &settings(), at(seconds))
}

fn uploaded(plan: &Plan) -> (String, String) {
    let found = plan.status.conditions.iter().find(|known| known.type_ == conditions::UPLOADED).unwrap();
    assert_eq!(found.status, "False");
    (found.reason.clone(), found.message.clone())
}

#[test]
fn the_store_is_tried_once_beside_the_runs() {
    let mut seen = running(&json!({"secretName": "store", "caSecretName": "ca"}));
    let first = planned(&seen);
    assert_eq!(first.status.phase, Some(Phase::Running));
    assert_eq!(uploaded(&first).0, reasons::WAITING);
    let check = first.check.clone().unwrap();
    assert_eq!(check.metadata.name.as_deref(), Some(CHECK));
    let spec = check.spec.clone().unwrap();
    assert_eq!((spec.backoff_limit, spec.active_deadline_seconds), (Some(2), Some(1_800)));
    let pod = spec.template.spec.unwrap();
    let args = ["check-store", "s3://evaluations/chat/e", "--name=e", "--ca-file=/store-authority/ca.crt"];
    assert_eq!(pod.containers[0].args.as_deref().unwrap(), args);
    assert_eq!(pod.volumes.unwrap().len(), 1, "it needs no claim");

    seen = with_status(seen, &first);
    add_uploader(&mut seen, CHECK, None);
    let waits = later(&seen, 5);
    assert_eq!((waits.check.is_none(), Some(&waits.status)), (true, seen.evaluation.status.as_ref()));
    drop_job(&mut seen, CHECK);
    add_uploader(&mut seen, CHECK, Some((0, "")));
    let done = later(&seen, 6);
    let said = "to s3://evaluations/chat/e: the store has taken an object; the answers follow the verdict";
    assert_eq!(uploaded(&done), (reasons::STORE_CHECKED.to_owned(), said.to_owned()));
    assert!(done.events.iter().all(|note| note.reason != reasons::STORE_CHECKED));
    assert_eq!(names(&done).1, Vec::<String>::new(), "the status has it first");
    seen = with_status(seen, &done);
    let last = later(&seen, 7);
    assert_eq!(names(&last).1, [format!("job {CHECK}")]);
    assert_eq!((last.check.is_none(), Some(&last.status)), (true, seen.evaluation.status.as_ref()));
    assert_ne!(last.requeue_after, Some(Duration::ZERO));
    drop_job(&mut seen, CHECK);
    let rests = later(&seen, 7);
    assert_eq!((rests.check.is_none(), Some(&rests.status)), (true, seen.evaluation.status.as_ref()));
    assert_eq!(names(&rests).1, Vec::<String>::new());

    let suspended = |seen: &Observed, suspend: bool| {
        let mut next = seen.clone();
        std::sync::Arc::make_mut(&mut next.evaluation).spec.suspend = suspend;
        next
    };
    let pause = suspended(&seen, true);
    let pause = with_status(pause.clone(), &later(&pause, 8));
    assert!(later(&suspended(&pause, false), 9).check.is_none(), "it was tried before");
    let at_rest = later(&pause, 9);
    assert_eq!(uploaded(&at_rest).0, reasons::STORE_CHECKED);
    let mut moved = pause.clone();
    let output = std::sync::Arc::make_mut(&mut moved.evaluation).spec.output.as_mut().unwrap();
    output.secret_name = Some("other".to_owned());
    assert_eq!(self::said(&later(&moved, 9), conditions::UPLOADED), None, "another store was not tried");
    for (field, value) in [
        ("uri", "s3://other"),
        ("endpoint", "https://minio:9000"),
        ("region", "eu"),
        ("secretName", "other"),
        ("caSecretName", "other"),
        ("addressing", "Path"),
    ] {
        let mut moved = seen.clone();
        let output = std::sync::Arc::make_mut(&mut moved.evaluation).spec.output.as_mut().unwrap();
        let mut fields = serde_json::to_value(&*output).unwrap();
        fields[field] = value.into();
        *output = serde_json::from_value(fields).unwrap();
        let again = later(&moved, 9);
        assert!(again.check.is_some() && uploaded(&again).0 == reasons::WAITING, "another {field} was not");
    }
}

/// A prefix that is as long as one may be fits no message.
#[test]
fn a_long_prefix_is_tried_once_too() {
    let mut seen = running(&json!({"uri": format!("s3://{}", "a".repeat(1_010))}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_uploader(&mut seen, CHECK, Some((0, "")));
    seen = with_status(seen.clone(), &later(&seen, 1));
    let rests = later(&seen, 2);
    assert_eq!((Some(&rests.status), rests.check.is_none()), (seen.evaluation.status.as_ref(), true));
    assert_ne!(rests.requeue_after, Some(Duration::ZERO));
}

/// Such a Job ends at its deadline, which explains nothing.
#[test]
fn a_check_that_cannot_start_keeps_its_words() {
    let mut seen = running(&json!({"secretName": "store"}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_uploader(&mut seen, CHECK, None);
    let mut pod = (*seen.pods.pop().unwrap()).clone();
    let state =
        json!({"waiting": {"reason": "CreateContainerConfigError", "message": "secret \"store\" not found"}});
    pod.containers[0].state = serde_json::from_value(state).unwrap();
    seen.pods.push(std::sync::Arc::new(pod));
    let waits = later(&seen, 60);
    assert_eq!(uploaded(&waits).0, reasons::SECRET_NOT_FOUND);
    seen = with_status(seen, &waits);
    seen.pods.pop();
    let failed = workload::views::job::Failed {
        since: at(1_800),
        reason: "DeadlineExceeded".to_owned(),
        message: "Job was active longer than specified deadline".to_owned(),
    };
    std::sync::Arc::make_mut(seen.jobs.get_mut(CHECK).unwrap()).failed = Some(failed);
    for now in [1_801, 2_000, 2_400] {
        let ended = later(&seen, now);
        assert_eq!(Some(&ended.status), seen.evaluation.status.as_ref());
        assert_eq!(names(&ended).1.len(), usize::from(now == 2_400));
    }
    drop_job(&mut seen, CHECK);
    assert_eq!(uploaded(&later(&seen, 2_401)), uploaded(&waits));
}

#[test]
fn a_store_that_refuses_is_named_early_and_holds_no_run_back() {
    let mut seen = running(&json!({"secretName": "store"}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_uploader(&mut seen, CHECK, Some((10, "SourceUnauthorized: the store refuses the key")));
    let failed = later(&seen, 30);
    let (reason, message) = uploaded(&failed);
    assert_eq!(reason, reasons::UPLOAD_NOT_POSSIBLE);
    for part in [
        "put keys that may write there into Secret demo/store (spec.output.secretName)",
        "it is tried again at 2026-01-01T12:10:00Z, or at once after kubectl -n demo delete job ab-answers-check",
        "; the evaluation goes on",
    ] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert_eq!(failed.events[0].reason, reasons::UPLOAD_NOT_POSSIBLE);
    assert_eq!((failed.status.phase, said(&failed, conditions::STALLED)), (Some(Phase::Running), None));
    seen = with_status(seen, &failed);
    assert_eq!(names(&later(&seen, 599)).1, Vec::<String>::new());
    assert_eq!(names(&later(&seen, 600)).1, [format!("job {CHECK}")]);
    // Another Secret is tried at once.
    let mut mended = seen.clone();
    let output = std::sync::Arc::make_mut(&mut mended.evaluation).spec.output.as_mut().unwrap();
    output.secret_name = Some("other".to_owned());
    let changed = later(&mended, 31);
    assert_eq!(names(&changed).1, [format!("job {CHECK}")]);
    assert_eq!(uploaded(&changed).0, reasons::WAITING);
    // As after its deletion by hand.
    let mut deleted = seen.clone();
    drop_job(&mut deleted, CHECK);
    let again = later(&deleted, 32);
    assert!(again.check.is_some());
    assert_eq!(uploaded(&again).1, message, "it is true until the next check has ended");
    // The verdict does not wait for it.
    for (job, end) in [("ab-baseline-0", ASKED), ("ab-control-0", ASKED), ("ab-candidate-0", ASKED)] {
        drop_job(&mut seen, job);
        add_job(&mut seen, job, Some((0, end)));
    }
    let runs = later(&seen, 40);
    seen = with_status(seen, &runs);
    assert_eq!(names(&later(&seen, 41)).0, ["claim ab-evaluation", "job ab-pair"]);
}

#[test]
fn a_refused_check_is_named_and_everything_else_goes_on() {
    let mut seen = running(&json!({}));
    seen.claims.insert("ab-evaluation".to_owned(), Some(std::sync::Arc::default()));
    let refused = |words: &str, seen: &Observed| {
        let refusal = Refusal::Denied(words.to_owned());
        refused::refused(&refusal, &planned(seen), seen, &settings(), at(0))
    };
    let words = "the API server denies Job demo/ab-answers-check: quota";
    let plan = refused(words, &seen);
    assert_eq!(uploaded(&plan), (reasons::DENIED.to_owned(), format!("to s3://evaluations/chat/e: {words}")));
    assert_eq!((plan.status.phase, said(&plan, conditions::STALLED)), (Some(Phase::Running), None));
    assert_eq!((plan.check.is_none(), plan.requeue_after), (true, Some(Duration::from_secs(60))));
    let of_server = "the API server denies AIInference demo/ab-baseline: quota";
    let both = refused(of_server, &seen);
    let said_of_check =
        "to s3://evaluations/chat/e: Job demo/ab-answers-check was not created; it is tried again";
    assert_eq!(uploaded(&both), (reasons::WAITING.to_owned(), said_of_check.to_owned()));
    assert_eq!(said(&both, conditions::STALLED), is("True", reasons::DENIED));
    // What an earlier try has found stays, also when its Job is gone.
    let mut failed = with_status(seen.clone(), &planned(&seen));
    add_uploader(&mut failed, CHECK, Some((10, "SourceUnauthorized: no")));
    failed = with_status(failed.clone(), &later(&failed, 30));
    drop_job(&mut failed, CHECK);
    let stays = refused(of_server, &failed);
    assert_eq!(uploaded(&stays).0, reasons::UPLOAD_NOT_POSSIBLE);
    assert!(stays.events.iter().all(|note| note.reason != reasons::UPLOAD_NOT_POSSIBLE));
    // Its Job was created beside it.
    let planned = planned(&seen);
    add_uploader(&mut seen, CHECK, None);
    let refusal = Refusal::Denied(of_server.to_owned());
    let other = refused::refused(&refusal, &planned, &seen, &settings(), at(0));
    assert!(uploaded(&other).1.ends_with("the store is tried with a small object"), "{:?}", uploaded(&other));
    assert_eq!(said(&other, conditions::STALLED), is("True", reasons::DENIED));
}

/// The pod has ended, and its Job has not failed yet, or has lost its pod.
#[test]
fn a_store_that_refuses_again_is_named_without_a_change_of_the_reason() {
    let mut seen = running(&json!({"secretName": "store"}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_uploader(&mut seen, CHECK, Some((10, "SourceUnauthorized: no")));
    seen = with_status(seen.clone(), &later(&seen, 30));
    let job = std::sync::Arc::make_mut(seen.jobs.get_mut(CHECK).unwrap());
    let failed = job.failed.take();
    let again = later(&seen, 31);
    assert_eq!((uploaded(&again).0.as_str(), again.events.len()), (reasons::UPLOAD_NOT_POSSIBLE, 0));

    // Of the first check, the pod was seen and is gone.
    let mut first = running(&json!({"secretName": "store"}));
    first = with_status(first.clone(), &planned(&first));
    add_uploader(&mut first, CHECK, Some((10, "SourceUnauthorized: no")));
    std::sync::Arc::make_mut(first.jobs.get_mut(CHECK).unwrap()).failed = None;
    let ends = later(&first, 1);
    assert_eq!(uploaded(&ends).0, reasons::WAITING);
    first = with_status(first, &ends);
    first.pods.retain(|pod| !pod.name().starts_with(CHECK));
    std::sync::Arc::make_mut(first.jobs.get_mut(CHECK).unwrap()).failed = failed;
    // The event of the Job comes before that of the pod would.
    std::sync::Arc::make_mut(first.jobs.get_mut(CHECK).unwrap()).failed.as_mut().unwrap().since = at(2);
    first = with_status(first.clone(), &later(&first, 3));
    let ended = later(&first, 95);
    assert_eq!(uploaded(&ended).0, reasons::UPLOAD_NOT_POSSIBLE);
    assert!(uploaded(&ended).1.contains("SourceUnauthorized: no"), "{}", uploaded(&ended).1);
    // Nothing was ever seen of this one.
    let mut silent = running(&json!({}));
    silent = with_status(silent.clone(), &planned(&silent));
    add_uploader(&mut silent, CHECK, Some((10, "")));
    silent.pods.retain(|pod| !pod.name().starts_with(CHECK));
    assert_eq!(uploaded(&later(&silent, 100)).0, reasons::UPLOAD_NOT_POSSIBLE);
}

#[test]
fn a_pause_keeps_what_is_known_of_the_store_and_a_suspension_promises_no_try() {
    let mut seen = running(&json!({"secretName": "store"}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_uploader(&mut seen, CHECK, Some((10, "SourceUnauthorized: no")));
    let failed = later(&seen, 30);
    seen = with_status(seen, &failed);
    let edited = |edit: fn(&mut api::aiinference::evaluation::ModelEvaluationSpec)| {
        let mut next = seen.clone();
        edit(&mut std::sync::Arc::make_mut(&mut next.evaluation).spec);
        later(&next, 31)
    };
    assert_eq!(uploaded(&edited(|spec| spec.pods.paused = true)), uploaded(&failed));
    for other in [
        edited(|spec| spec.suspend = true),
        edited(|spec| {
            spec.pods.paused = true;
            spec.output.as_mut().unwrap().uri = Some("s3://other".to_owned());
        }),
    ] {
        assert_eq!(said(&other, conditions::UPLOADED), None);
    }
    // A wrong address stops what is sent to another one.
    let wrong = edited(|spec| spec.output.as_mut().unwrap().uri = Some("s3://a//b".to_owned()));
    assert_eq!(uploaded(&wrong).0, reasons::INVALID_SPEC);
    assert_eq!(names(&wrong).1, [format!("job {CHECK}")]);
}

/// Its words come from a claim without a node, and it ends at its deadline.
#[test]
fn a_check_that_waits_in_vain_says_for_what() {
    let mut seen = running(&json!({"caSecretName": "ca"}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_uploader(&mut seen, CHECK, None);
    seen.pods.retain(|pod| !pod.name().starts_with(CHECK));
    let job = std::sync::Arc::make_mut(seen.jobs.get_mut(CHECK).unwrap());
    job.is_suspended = true;
    job.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
    let waits = later(&seen, 600);
    assert!(uploaded(&waits).1.contains("is suspended: a queue has to admit it"), "{}", uploaded(&waits).1);
    seen = with_status(seen, &waits);
    let failed = workload::views::job::Failed {
        since: at(1_800),
        reason: "DeadlineExceeded".to_owned(),
        message: "Job was active longer than specified deadline".to_owned(),
    };
    std::sync::Arc::make_mut(seen.jobs.get_mut(CHECK).unwrap()).failed = Some(failed);
    for now in [1_801, 2_000] {
        let ended = later(&seen, now);
        assert_eq!(Some(&ended.status), seen.evaluation.status.as_ref());
        seen = with_status(seen, &ended);
    }
}
