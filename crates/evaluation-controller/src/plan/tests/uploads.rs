//! The upload of the answers, after the verdict.

use k8s_openapi::api::core::v1::PodSpec;

use super::*;

const PAIRS: &str = r#"{"pairs":[{"bothRight":2100,"onlyBaseline":20,"onlyCandidate":20,"bothWrong":860}]}"#;
const REPORT: &str = r#"{"bytes":30,"count":2,"manifestDigest":"d1","manifestBytes":140,
    "files":[{"path":"baseline/cmmlu.scores","bytes":20,"sha256":"a1"}]}"#;
const DAY: i64 = 86_400;

/// With a verdict at second 0, and the given fields of the spec and of the output.
fn judged(fields: &Value, output: &Value) -> Observed {
    let mut spec = json!({"nullControl": false, "output": {"uri": "s3://evaluations/chat/"}});
    spec["output"].as_object_mut().unwrap().extend(output.as_object().unwrap().clone());
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let mut seen = observed(evaluation(&spec));
    for (job, end) in [("ab-baseline-0", ASKED), ("ab-candidate-0", ASKED), ("ab-pair", PAIRS)] {
        add_job(&mut seen, job, Some((0, end)));
    }
    let news = planned(&seen);
    let seen = with_status(seen, &news);
    let last = planned(&seen);
    assert_eq!(last.status.phase, Some(Phase::Succeeded), "{:?}", last.status.message);
    with_status(seen, &last)
}

fn add_upload(seen: &mut Observed, end: Option<(i32, &str)>) {
    add_uploader(seen, "ab-answers", end);
}

fn drop_upload(seen: &mut Observed) {
    drop_job(seen, "ab-answers");
}

fn later(seen: &Observed, seconds: i64) -> Plan {
    plan(seen, &settings(), at(seconds))
}

fn message(plan: &Plan) -> &str {
    &plan.status.conditions.iter().find(|known| known.type_ == conditions::UPLOADED).unwrap().message
}

fn verdict(plan: &Plan) -> (Option<Phase>, Option<&str>, Option<(String, String)>) {
    let status = &plan.status;
    (status.phase, status.verdict.as_deref(), said(plan, conditions::COMPLETE))
}

/// No write, and no wait that is over.
fn is_at_rest(seen: &Observed, seconds: i64) {
    let plan = later(seen, seconds);
    assert_eq!(names(&plan), (vec![], vec![]));
    assert_eq!((Some(&plan.status), plan.events.len()), (seen.evaluation.status.as_ref(), 0));
    assert_ne!(plan.requeue_after, Some(Duration::ZERO));
}

#[test]
fn the_answers_are_uploaded_after_the_verdict() {
    let mut seen = judged(&json!({}), &json!({}));
    let complete = (Some(Phase::Succeeded), Some("Passed"), is("True", reasons::SUCCEEDED));
    let first = planned(&seen);
    assert_eq!(verdict(&first), complete);
    assert_eq!(said(&first, conditions::UPLOADED), is("False", reasons::UPLOADING));
    assert_eq!(
        (names(&first).0, message(&first)),
        (vec!["job ab-answers".to_owned()], "to s3://evaluations/chat/e")
    );
    seen = with_status(seen, &first);
    add_upload(&mut seen, None);
    is_at_rest(&seen, 60);
    drop_upload(&mut seen);
    add_upload(&mut seen, Some((0, REPORT)));
    let done = later(&seen, 90);
    assert_eq!(verdict(&done), complete);
    assert_eq!(said(&done, conditions::UPLOADED), is("True", reasons::UPLOADED));
    assert_eq!(message(&done), "2 files, 30 bytes, to s3://evaluations/chat/e");
    assert_eq!(done.events[0].reason, reasons::UPLOADED);
    let uris: Vec<&str> = done.status.artifacts.iter().map(|file| file.uri.as_str()).collect();
    let below = "s3://evaluations/chat/e";
    assert_eq!(uris, [format!("{below}/SHA256SUMS"), format!("{below}/baseline/cmmlu.scores")]);
    seen = with_status(seen, &done);
    is_at_rest(&seen, 100);
    // Also without its Job.
    drop_upload(&mut seen);
    is_at_rest(&seen, 100);
}

#[test]
fn an_evaluation_without_a_uri_or_without_a_verdict_uploads_nothing() {
    let without = |phase: &str, output: &Value| {
        let mut ended = evaluation(&json!({"output": output}));
        let status =
            json!({"phase": phase, "completionTime": "2026-01-01T12:00:00Z", "observedGeneration": 1});
        ended.status = Some(serde_json::from_value(status).unwrap());
        observed(ended)
    };
    is_at_rest(&without("Succeeded", &json!({"claimName": "mine"})), 10);
    is_at_rest(&without("Failed", &json!({"uri": "s3://evaluations"})), 10);
    // Its verdict is that of a release which knew no upload.
    let seen = without("Succeeded", &json!({"uri": "s3://evaluations"}));
    assert_eq!(names(&later(&seen, 10)).0, ["job ab-answers"]);
}

#[test]
fn the_pod_of_the_upload_reads_the_folder_of_this_evaluation_and_has_no_token() {
    let store = json!({"claimName": "mine", "endpoint": "https://minio:9000", "region": "eu", "secretName": "store",
        "caSecretName": "ca", "addressing": "Path"});
    let plan = planned(&judged(&json!({}), &store));
    let Some(Child::Job(None, job)) = plan.children.last() else { panic!("{:?}", names(&plan)) };
    let spec = job.spec.clone().unwrap();
    assert_eq!(job.metadata.owner_references.as_ref().unwrap()[0].uid, "e");
    let codes = spec.pod_failure_policy.as_ref().unwrap().rules[0].on_exit_codes.clone().unwrap();
    assert_eq!((codes.container_name.as_deref(), codes.values), (Some("uploader"), vec![2, 10, 11]));
    let PodSpec { containers, volumes, automount_service_account_token, .. } = spec.template.spec.unwrap();
    assert_eq!(automount_service_account_token, Some(false));
    let uploader = &containers[0];
    assert_eq!(uploader.image.as_deref(), Some("model-transfer:1"));
    let args = [
        "push",
        "/evaluation/e",
        "s3://evaluations/chat/e",
        "--addressing=path",
        "--ca-file=/store-authority/ca.crt",
    ];
    assert_eq!(uploader.args.as_deref().unwrap(), args);
    assert!(uploader.volume_mounts.as_ref().unwrap().iter().all(|mount| mount.read_only == Some(true)));
    let volumes = volumes.unwrap();
    assert_eq!(volumes[0].persistent_volume_claim.as_ref().unwrap().claim_name, "mine");
    assert_eq!(volumes[1].secret.as_ref().unwrap().secret_name.as_deref(), Some("ca"));
    let environment = uploader.env.as_ref().unwrap();
    let of = |name: &str| environment.iter().find(|variable| variable.name == name).cloned().unwrap();
    assert_eq!(of("AWS_ENDPOINT_URL").value.as_deref(), Some("https://minio:9000"));
    assert_eq!(of("TRANSFER_FIELDS").value.as_deref(), Some("spec.output"));
    let key = of("AWS_SECRET_ACCESS_KEY").value_from.unwrap().secret_key_ref.unwrap();
    assert_eq!((&*key.name, &*key.key), ("store", "AWS_SECRET_ACCESS_KEY"));
}

#[test]
fn a_failed_upload_is_named_with_its_fix_and_tried_again_and_the_verdict_stays() {
    let mut seen = judged(&json!({}), &json!({"secretName": "store"}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_upload(&mut seen, Some((10, "SourceUnauthorized: the store refuses the key")));
    let failed = later(&seen, 30);
    assert_eq!(verdict(&failed), (Some(Phase::Succeeded), Some("Passed"), is("True", reasons::SUCCEEDED)));
    assert_eq!(said(&failed, conditions::UPLOADED), is("False", reasons::UPLOAD_FAILED));
    for part in [
        "the last try ended with SourceUnauthorized: the store refuses the key; put keys that may write there into Secret \
         demo/store (spec.output.secretName)",
        "it is tried again at 2026-01-01T12:10:00Z, or at once after kubectl -n demo delete job ab-answers",
        "the answers are in folder e of claim demo/ab-evaluation",
    ] {
        assert!(message(&failed).contains(part), "{part} is not in {}", message(&failed));
    }
    assert_eq!((failed.events[0].reason, said(&failed, conditions::STALLED)), (reasons::UPLOAD_FAILED, None));
    assert_eq!(failed.requeue_after, Some(Duration::from_secs(570)));
    seen = with_status(seen, &failed);
    is_at_rest(&seen, 599);
    assert_eq!(names(&later(&seen, 600)), (vec![], vec!["job ab-answers".to_owned()]));
    drop_upload(&mut seen);
    let again = later(&seen, 601);
    assert_eq!(names(&again).0, ["job ab-answers"]);
    assert_eq!(message(&again), message(&failed), "it is true until the next Job has ended");
    add_upload(&mut seen, Some((0, REPORT)));
    assert_eq!(said(&later(&seen, 700), conditions::UPLOADED), is("True", reasons::UPLOADED));
}

/// Neither the evaluation nor its claim goes before the upload has ended.
#[test]
fn the_time_to_live_counts_from_the_end_of_the_upload() {
    let mut seen = judged(&json!({"ttlSecondsAfterFinished": 60}), &json!({}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_upload(&mut seen, None);
    assert!(!later(&seen, 5_000).is_expired);
    drop_upload(&mut seen);
    add_upload(&mut seen, Some((0, REPORT)));
    seen = with_status(seen.clone(), &later(&seen, 5_000));
    let waits = later(&seen, 5_059);
    assert_eq!((waits.is_expired, waits.requeue_after), (false, Some(Duration::from_secs(1))));
    assert!(later(&seen, 5_060).is_expired);
}

#[test]
fn an_upload_is_given_up_after_a_day() {
    let mut seen = judged(&json!({"ttlSecondsAfterFinished": 60}), &json!({}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_upload(&mut seen, Some((12, "SourceUnreachable: no route")));
    seen = with_status(seen.clone(), &later(&seen, 30));
    drop_upload(&mut seen);
    add_upload(&mut seen, None);
    let last = later(&seen, DAY - 1);
    assert_eq!((names(&last).1.len(), last.requeue_after), (0, Some(Duration::from_secs(1))));
    let over = later(&seen, DAY);
    assert_eq!(said(&over, conditions::UPLOADED), is("False", reasons::DEADLINE_EXCEEDED));
    assert_eq!(
        message(&over),
        "to s3://evaluations/chat/e: given up a day after the verdict: the last try ended with SourceUnreachable: no route; let \
         pods of namespace demo reach AWS S3 (spec.output.endpoint); the answers are in folder e of claim demo/ab-evaluation"
    );
    assert!(!over.is_expired && verdict(&over).1 == Some("Passed"));
    seen = with_status(seen, &over);
    assert_eq!(names(&later(&seen, DAY + 1)), (vec![], vec!["job ab-answers".to_owned()]));
    drop_upload(&mut seen);
    is_at_rest(&seen, DAY + 59);
    assert!(later(&seen, DAY + 60).is_expired);
}

#[test]
fn a_missing_secret_is_named_and_an_image_that_cannot_be_pulled_gives_way_to_another_job() {
    let mut seen = judged(&json!({}), &json!({"secretName": "store"}));
    seen = with_status(seen.clone(), &planned(&seen));
    let waits = |reason: &str, words: &str| {
        let mut seen = seen.clone();
        add_upload(&mut seen, None);
        let mut pod = (*seen.pods.pop().unwrap()).clone();
        let state = json!({"waiting": {"reason": reason, "message": words}});
        pod.containers[0].state = serde_json::from_value(state).unwrap();
        pod.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
        seen.pods.push(std::sync::Arc::new(pod));
        seen
    };
    let missing = waits("CreateContainerConfigError", "secret \"store\" not found");
    let plan = later(&missing, 700);
    assert_eq!(said(&plan, conditions::UPLOADED), is("False", reasons::SECRET_NOT_FOUND));
    assert!(names(&plan).1.is_empty(), "the kubelet tries it again");
    // A node was bought for it.
    let no_image = waits("ErrImagePull", "no such image");
    let first = later(&no_image, 700);
    assert_eq!(said(&first, conditions::UPLOADED), is("False", reasons::IMAGE_PULL_FAILED));
    assert_eq!((names(&first).1.len(), first.requeue_after), (0, Some(Duration::from_secs(600))));
    let no_image = noted(no_image, &first, 700);
    assert!(names(&later(&no_image, 1_299)).1.is_empty());
    assert_eq!(names(&later(&no_image, 1_300)).1, ["job ab-answers"]);
}

#[test]
fn a_refused_upload_is_named_and_a_refused_deletion_does_not_stop_it() {
    let seen = judged(&json!({}), &json!({}));
    let first = denied(&seen, 5);
    assert_eq!(said(&first, conditions::UPLOADED), is("False", reasons::DENIED));
    assert!(message(&first).ends_with("/e: denied: quota") && verdict(&first).1 == Some("Passed"));
    assert_eq!(first.requeue_after, Some(Duration::from_secs(60)));
    let mut seen = with_status(seen, &first);
    let again = denied(&seen, 65);
    assert_eq!((again.events.len(), &again.status), (0, &first.status), "nothing is written at rest");

    seen.baseline = own("ab-baseline", &ready());
    add_upload(&mut seen, Some((0, REPORT)));
    let stalled = denied(&seen, 70);
    assert_eq!(said(&stalled, conditions::STALLED), is("True", reasons::DENIED));
    assert_eq!(said(&stalled, conditions::UPLOADED), is("True", reasons::UPLOADED));
    assert_eq!(stalled.status.artifacts.len(), 2);
}

#[test]
fn suspension_and_deadlines_do_not_count_after_the_verdict_and_a_pause_does() {
    let late = json!({"suspend": true, "activeDeadlineSeconds": 1});
    let mut seen = judged(&json!({}), &json!({}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_upload(&mut seen, None);
    let edited = |fields: &Value| {
        let mut next = seen.clone();
        let evaluation = std::sync::Arc::make_mut(&mut next.evaluation);
        let mut spec = serde_json::to_value(&evaluation.spec).unwrap();
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        evaluation.spec = serde_json::from_value(spec).unwrap();
        next
    };
    is_at_rest(&edited(&late), 100);
    let mut paused = edited(&json!({"paused": true}));
    is_at_rest(&paused, 100);
    drop_upload(&mut paused);
    is_at_rest(&paused, 100);
}

/// The only pod is on a lost node, and being deleted.
#[test]
fn an_upload_on_a_lost_node_is_repeated() {
    let mut seen = judged(&json!({}), &json!({}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_upload(&mut seen, None);
    let mut pod = (*seen.pods.pop().unwrap()).clone();
    pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(100)));
    seen.pods.push(std::sync::Arc::new(pod));
    let waits = later(&seen, 399);
    assert_eq!((names(&waits).1.len(), waits.requeue_after), (0, Some(Duration::from_secs(1))));
    assert_eq!(names(&later(&seen, 400)).1, ["job ab-answers"]);
    seen.pods_are_stale = true;
    assert!(names(&later(&seen, 400)).1.is_empty(), "it may run on another node now");
}

/// An injected container keeps the Job from its end.
#[test]
fn an_upload_beside_an_injected_container_ends_with_its_uploader() {
    for (code, reason) in [(0, reasons::UPLOADED), (12, reasons::UPLOAD_FAILED)] {
        let mut seen = judged(&json!({}), &json!({}));
        seen = with_status(seen.clone(), &planned(&seen));
        add_upload(&mut seen, None);
        let mut pod = (*seen.pods.pop().unwrap()).clone();
        let state = json!({"terminated": {"exitCode": code, "message": REPORT, "finishedAt": "2026-01-01T12:00:10Z"}});
        pod.containers[0].state = serde_json::from_value(state).unwrap();
        seen.pods.push(std::sync::Arc::new(pod));
        let ended = later(&seen, 20);
        if code != 0 {
            assert_eq!(
                said(&ended, conditions::UPLOADED).unwrap().1,
                reasons::UPLOADING,
                "it may end by itself"
            );
            assert_eq!(ended.requeue_after, Some(Duration::from_secs(50)));
        }
        let ended = later(&seen, 70);
        assert_eq!(said(&ended, conditions::UPLOADED).unwrap().1, reason);
        assert!(names(&ended).1.is_empty(), "the status has it first");
        seen = with_status(seen, &ended);
        assert_eq!(names(&later(&seen, 670)).1, ["job ab-answers"]);
    }
}

/// Another pod may upload, or may have the report.
#[test]
fn while_the_watch_of_pods_fails_no_upload_is_ended_or_repeated() {
    let begun = || {
        let seen = judged(&json!({}), &json!({}));
        with_status(seen.clone(), &planned(&seen))
    };
    let mut beside = begun();
    add_upload(&mut beside, None);
    let state =
        json!({"terminated": {"exitCode": 12, "message": "no", "finishedAt": "2026-01-01T12:00:10Z"}});
    let pod = std::sync::Arc::make_mut(beside.pods.last_mut().unwrap());
    pod.containers[0].state = serde_json::from_value(state).unwrap();
    let ended = |code: i32| {
        let mut seen = begun();
        add_upload(&mut seen, Some((code, REPORT)));
        seen.pods.clear();
        seen
    };
    for (mut seen, reason, repeats) in [
        (beside, reasons::UPLOAD_FAILED, true),
        (ended(12), reasons::UPLOAD_FAILED, true),
        (ended(0), reasons::UPLOADED, false),
    ] {
        let acts = later(&seen, 700);
        assert_eq!(
            (said(&acts, conditions::UPLOADED).unwrap().1, names(&acts).1.len() == 1),
            (reason.to_owned(), repeats)
        );
        seen.pods_are_stale = true;
        let waits = later(&seen, 700);
        assert_eq!(
            (said(&waits, conditions::UPLOADED), names(&waits).1),
            (is("False", reasons::UPLOADING), vec![])
        );
        assert_eq!(waits.requeue_after, Some(Duration::from_secs(30)));
    }
}

/// Containers of one pod share the place for their last words.
#[test]
fn an_upload_without_a_report_beside_an_injected_container_has_worked() {
    let mut seen = judged(&json!({}), &json!({}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_upload(&mut seen, None);
    let mut pod = (*seen.pods.pop().unwrap()).clone();
    let state =
        json!({"terminated": {"exitCode": 0, "message": "{cut", "finishedAt": "2026-01-01T12:00:10Z"}});
    pod.containers[0].state = serde_json::from_value(state).unwrap();
    seen.pods.push(std::sync::Arc::new(pod));
    assert_eq!(said(&later(&seen, 70), conditions::UPLOADED).unwrap().1, reasons::UPLOADED);
}

#[test]
fn an_address_that_the_uploader_would_refuse_is_named_and_costs_no_run_and_no_verdict() {
    for (uri, is_valid) in [
        ("s3://evaluations/chat", true),
        ("s3://evaluations//chat", false),
        ("s3://evaluations/./chat", false),
        (&*format!("s3://evaluations/{}", "a".repeat(1020)), false),
    ] {
        let wrong = |mut seen: Observed| {
            let evaluation = std::sync::Arc::make_mut(&mut seen.evaluation);
            evaluation.spec.output = serde_json::from_value(json!({"uri": uri})).unwrap();
            seen
        };
        let mut running = observed(evaluation(&json!({})));
        running.baseline = own("ab-baseline", &ready());
        add_job(&mut running, "ab-baseline-0", None);
        let runs = planned(&wrong(running));
        assert_eq!((runs.status.phase, names(&runs).1.len()), (Some(Phase::Running), 0));
        let judged = planned(&wrong(judged(&json!({}), &json!({}))));
        assert_eq!(verdict(&judged).1, Some("Passed"));
        for (plan, goes_on) in [(runs, reasons::WAITING), (judged, reasons::UPLOADING)] {
            let reason = if is_valid { goes_on } else { reasons::INVALID_SPEC };
            assert_eq!(said(&plan, conditions::UPLOADED), is("False", reason), "{uri}");
            assert!(is_valid || message(&plan).starts_with("spec.output.uri: "), "{}", message(&plan));
        }
    }
}

/// The only copy of the answers is in the claim, which goes with the evaluation.
#[test]
fn a_long_pause_leaves_a_try_and_the_whole_time_to_live() {
    let mut seen = judged(&json!({"ttlSecondsAfterFinished": 60}), &json!({}));
    seen = with_status(seen.clone(), &planned(&seen));
    let late = later(&seen, DAY + 3600);
    assert_eq!(names(&late).0, ["job ab-answers"], "it was never tried");
    assert!(!late.is_expired);
    // A try has failed, and the day is over.
    seen = with_status(seen, &late);
    add_upload(&mut seen, None);
    let job = std::sync::Arc::make_mut(seen.jobs.get_mut("ab-answers").unwrap());
    job.metadata.creation_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(DAY + 3600)));
    assert_ne!(said(&later(&seen, DAY + 3900), conditions::UPLOADED).unwrap().1, reasons::DEADLINE_EXCEEDED);
    let over = later(&seen, DAY + 4200);
    assert_eq!(said(&over, conditions::UPLOADED).unwrap().1, reasons::DEADLINE_EXCEEDED);
    seen = with_status(seen, &over);
    assert!(!later(&seen, DAY + 4201).is_expired, "the time to live begins when it is said");
    assert!(later(&seen, DAY + 4261).is_expired);
}

/// Its user has found the address wrong.
#[test]
fn another_store_is_tried_at_once() {
    let mut seen = judged(&json!({}), &json!({}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_upload(&mut seen, Some((12, "SourceUnreachable: no route")));
    seen = with_status(seen.clone(), &later(&seen, 30));
    let evaluation = std::sync::Arc::make_mut(&mut seen.evaluation);
    evaluation.spec.output.as_mut().unwrap().uri = Some("s3://other".to_owned());
    let plan = later(&seen, 31);
    assert_eq!(names(&plan), (vec![], vec!["job ab-answers".to_owned()]));
    assert_eq!(said(&plan, conditions::UPLOADED), is("False", reasons::UPLOADING));
    assert_eq!(message(&plan), "to s3://other/e");
    seen = with_status(seen, &plan);
    drop_upload(&mut seen);
    assert_eq!(names(&later(&seen, 32)).0, ["job ab-answers"]);
    // A Job of an earlier release does not say for which store it is.
    add_upload(&mut seen, Some((0, REPORT)));
    std::sync::Arc::make_mut(seen.jobs.get_mut("ab-answers").unwrap()).asked_server = None;
    assert_eq!(names(&later(&seen, 33)).1, ["job ab-answers"]);
}

/// As after a pause of more than a day.
#[test]
fn a_store_that_is_corrected_after_the_day_is_tried() {
    let mut seen = judged(&json!({}), &json!({"secretName": "store"}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_upload(&mut seen, Some((10, "SourceUnauthorized: no")));
    seen = with_status(seen.clone(), &later(&seen, 30));
    for edit in [("uri", "s3://other"), ("secretName", "other")] {
        let mut next = seen.clone();
        let output = std::sync::Arc::make_mut(&mut next.evaluation).spec.output.as_mut().unwrap();
        let mut fields = serde_json::to_value(&*output).unwrap();
        fields[edit.0] = edit.1.into();
        *output = serde_json::from_value(fields).unwrap();
        let late = later(&next, DAY + 60);
        assert_eq!(said(&late, conditions::UPLOADED), is("False", reasons::UPLOADING), "{edit:?}");
        assert_eq!(names(&late).1, ["job ab-answers"]);
        next = with_status(next, &late);
        drop_upload(&mut next);
        assert_eq!(names(&later(&next, DAY + 61)).0, ["job ab-answers"]);
    }
    assert_eq!(said(&later(&seen, DAY + 60), conditions::UPLOADED).unwrap().1, reasons::DEADLINE_EXCEEDED);
}

/// Its Job is open, and was made at this time.
fn uploading_since(seen: &mut Observed, seconds: i64) {
    add_upload(seen, None);
    let job = std::sync::Arc::make_mut(seen.jobs.get_mut("ab-answers").unwrap());
    job.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(seconds)));
}

const NO_ROUTE: &str = "the last try ended with SourceUnreachable: no route; let pods of namespace demo reach AWS S3 \
                        (spec.output.endpoint)";

/// The Job pauses between two pods. Then a quota holds the next one back.
#[test]
fn an_upload_whose_next_pod_does_not_come_keeps_the_words_of_its_last_try() {
    let mut seen = judged(&json!({}), &json!({}));
    seen = with_status(seen.clone(), &planned(&seen));
    uploading_since(&mut seen, 0);
    let pod = std::sync::Arc::make_mut(seen.pods.last_mut().unwrap());
    pod.phase = "Failed".to_owned();
    let state = json!({"terminated": {"exitCode": 12, "message": "SourceUnreachable: no route"}});
    pod.containers[0].state = serde_json::from_value(state).unwrap();
    let pause = later(&seen, 100);
    assert_eq!(said(&pause, conditions::UPLOADED), is("False", reasons::UPLOADING));
    assert_eq!(message(&pause), format!("to s3://evaluations/chat/e: {NO_ROUTE}"));
    seen = noted(seen, &pause, 100);
    is_at_rest(&seen, 219);
    let words = format!(
        "to s3://evaluations/chat/e: Job ab-answers has had no other pod since ab-answers-x ended (exit code 12): Kubernetes may \
         pause for ten minutes, or a quota, a LimitRange or an admission policy holds it back; see kubectl describe job \
         ab-answers; {NO_ROUTE}"
    );
    let first = later(&seen, 220);
    assert_eq!((message(&first), names(&first).1.len()), (&*words, 0));
    assert_eq!(said(&first, conditions::UPLOADED), is("False", reasons::UPLOADING));
    seen = noted(seen, &first, 220);
    is_at_rest(&seen, 9_999);
    // A restart of the controller.
    seen.facts.clear();
    is_at_rest(&seen, 10_000);
}

/// It is counted as failed until it works.
#[test]
fn a_failed_upload_whose_next_job_gets_no_pod_has_failed_still() {
    let mut seen = judged(&json!({}), &json!({}));
    seen = with_status(seen.clone(), &planned(&seen));
    add_upload(&mut seen, Some((12, "SourceUnreachable: no route")));
    seen = with_status(seen.clone(), &later(&seen, 30));
    drop_upload(&mut seen);
    uploading_since(&mut seen, 700);
    let pod = seen.pods.pop().unwrap();
    seen = noted(seen.clone(), &later(&seen, 700), 700);
    let held = later(&seen, 730);
    assert_eq!(said(&held, conditions::UPLOADED), is("False", reasons::UPLOAD_FAILED));
    let words = message(&held).to_owned();
    assert!(words.contains("Job ab-answers has no pod: a quota") && words.ends_with(NO_ROUTE), "{words}");
    seen = noted(seen, &held, 730);
    is_at_rest(&seen, 9_999);
    let given_up = later(&seen, DAY);
    assert!(message(&given_up).contains(&format!("describe job ab-answers; {NO_ROUTE}; the answers are")));
    // It gets one.
    seen.pods.push(pod);
    let runs = later(&seen, 10_000);
    assert_eq!(message(&runs), format!("to s3://evaluations/chat/e: {NO_ROUTE}"));
    assert_eq!(said(&runs, conditions::UPLOADED), is("False", reasons::UPLOAD_FAILED));
}
