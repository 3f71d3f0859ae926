//! What is planned for an evaluation in each state.

use api::{aiinference::evaluation::ModelEvaluation, conditions, reasons};
use k8s_openapi::api::core::v1::PodSpec;
use runtime::write::refusal::Refusal;
use serde_json::{Value, json};

use super::*;
use crate::{
    observe::Sighting,
    tests::{add_job, at, condition, evaluation, observed, ready, server, settings},
};

mod arguments;
mod bad_hours;
mod injected;
mod interrupted;
mod refusals;
mod side_by_side;
mod store_check;
mod uploads;

const ASKED: &str = r#"{"side":{"questions":1000,"failed":3,"metric":"acc","harness":"evalscope","harnessVersion":"1.10.0"}}"#;

fn planned(observed: &Observed) -> Plan {
    plan(observed, &settings(), at(0))
}

/// The plan after the API server has refused this plan, of which nothing was created.
fn denied(seen: &Observed, seconds: i64) -> Plan {
    let denied = Refusal::Denied("denied: quota".to_owned());
    let now = at(seconds);
    refused::refused(&denied, &plan(seen, &settings(), now), seen, &settings(), now)
}

/// With the claim that the controller has made.
fn with_own_claim(mut seen: Observed) -> Observed {
    let owner = json!({"name": "ab-evaluation", "ownerReferences": [{"apiVersion": "aistudio.modelscope.cn/v1alpha1",
        "kind": "ModelEvaluation", "name": "ab", "uid": "e", "controller": true}]});
    let metadata = serde_json::from_value(owner).unwrap();
    let claim = workload::views::claim::ClaimView { metadata, ..Default::default() };
    seen.claims.insert("ab-evaluation".to_owned(), Some(std::sync::Arc::new(claim)));
    seen
}

/// What a plan notes, but that it is not paused.
fn facts(plan: &Plan) -> Vec<&str> {
    plan.facts.iter().map(String::as_str).filter(|fact| *fact != "is not paused").collect()
}

/// The same at this time, with the facts of the plan in memory.
fn noted(mut seen: Observed, plan: &Plan, seconds: i64) -> Observed {
    let since = |fact: &String| (fact.clone(), seen.facts.get(fact).copied().unwrap_or(at(seconds)));
    seen.facts = plan.facts.iter().map(since).collect();
    with_status(seen, plan)
}

/// The next state of the same evaluation.
fn with_status(mut seen: Observed, plan: &Plan) -> Observed {
    let mut next: ModelEvaluation = (*seen.evaluation).clone();
    next.status = Some(plan.status.clone());
    seen.evaluation = std::sync::Arc::new(next);
    seen
}

/// The Job of the pods that speak to the store, whose uploader has ended with this exit code and message; `None`: it runs.
fn add_uploader(seen: &mut Observed, job: &str, end: Option<(i32, &str)>) {
    add_job(seen, job, end);
    let store = upload::destination(&seen.evaluation).unwrap();
    std::sync::Arc::make_mut(seen.jobs.get_mut(job).unwrap()).asked_server = Some(upload::mark(&store));
    let mut pod = (*seen.pods.pop().unwrap()).clone();
    pod.containers[0].name = "uploader".to_owned();
    if end.is_some() {
        pod.phase = "Failed".to_owned();
    }
    seen.pods.push(std::sync::Arc::new(pod));
}

fn drop_job(seen: &mut Observed, job: &str) {
    seen.jobs.remove(job);
    seen.pods.retain(|pod| pod.name() != format!("{job}-x"));
}

fn names(plan: &Plan) -> (Vec<String>, Vec<String>) {
    let child = |child: &Child| match child {
        Child::Claim(claim) => format!("claim {}", claim.metadata.name.clone().unwrap()),
        Child::Server(_, server) => format!("server {}", server.metadata.name.clone().unwrap()),
        Child::Job(_, job) => format!("job {}", job.metadata.name.clone().unwrap()),
    };
    let deletion = |deletion: &Deletion| match deletion {
        Deletion::Server(server) => format!("server {}", server.metadata.name.clone().unwrap()),
        Deletion::Job(job) => format!("job {}", job.metadata.name.clone().unwrap()),
    };
    (plan.children.iter().map(child).collect(), plan.deletions.iter().map(deletion).collect())
}

fn said(plan: &Plan, type_: &str) -> Option<(String, String)> {
    let found = plan.status.conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((found.status.clone(), found.reason.clone()))
}

fn is(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

fn own(name: &str, said: &Value) -> Sighting {
    Sighting::Own(Box::new(server(name, said)))
}

/// Through the runs of both models to the verdict, with one server at a time.
#[test]
fn the_servers_follow_each_other_and_the_verdict_comes_last() {
    let mut seen = observed(evaluation(&json!({})));
    let plan = planned(&seen);
    assert_eq!(names(&plan).0, ["claim ab-evaluation", "server ab-baseline"]);
    assert_eq!(
        (plan.status.phase, said(&plan, conditions::SERVERS_READY)),
        (Some(Phase::Preparing), is("False", "Waiting"))
    );
    seen = with_status(seen, &plan);
    seen.baseline = own("ab-baseline", &ready());
    let plan = planned(&seen);
    assert_eq!(names(&plan).0.last().unwrap(), "job ab-baseline-0");
    assert_eq!(plan.status.phase, Some(Phase::Running));
    let resolved = plan.status.resolved.clone().unwrap().baseline.unwrap();
    assert_eq!((&*resolved.model_source, resolved.digest.as_deref()), ("ms://a/b", Some("sha256:1")));

    seen = with_status(seen, &plan);
    add_job(&mut seen, "ab-baseline-0", Some((0, ASKED)));
    add_job(&mut seen, "ab-control-0", Some((0, ASKED)));
    let plan = planned(&seen);
    assert_eq!(plan.status.runs.len(), 2);
    assert_eq!(plan.status.runs[0].harness.as_deref(), Some("evalscope 1.10.0"));
    assert!(names(&plan).1.is_empty(), "the server goes when the status has the runs");
    assert_eq!(plan.requeue_after, Some(Duration::ZERO));
    seen = with_status(seen, &plan);
    let plan = planned(&seen);
    assert_eq!(names(&plan), (vec!["claim ab-evaluation".to_owned()], vec!["server ab-baseline".to_owned()]));
    seen.baseline = Sighting::Absent;
    assert_eq!(names(&planned(&seen)).0.last().unwrap(), "server ab-candidate");
    seen.candidate = own("ab-candidate", &ready());
    let plan = planned(&seen);
    assert_eq!(names(&plan).0.last().unwrap(), "job ab-candidate-0");

    seen = with_status(seen, &plan);
    add_job(&mut seen, "ab-candidate-0", Some((0, ASKED)));
    let plan = planned(&seen);
    seen = with_status(seen, &plan);
    let plan = planned(&seen);
    assert_eq!(names(&plan).0.last().unwrap(), "job ab-pair");
    assert_eq!(
        (names(&plan).1, plan.status.phase),
        (vec!["server ab-candidate".to_owned()], Some(Phase::Comparing))
    );
    seen = with_status(seen, &plan);
    let pair = r#"{"pairs":[{"bothRight":2100,"onlyBaseline":20,"onlyCandidate":20,"bothWrong":860}],
        "control":{"bothRight":140,"onlyBaseline":2,"onlyCandidate":2,"bothWrong":56}}"#;
    add_job(&mut seen, "ab-pair", Some((0, pair)));
    let plan = planned(&seen);
    assert_eq!((plan.status.phase, plan.status.verdict.as_deref()), (Some(Phase::Succeeded), Some("Passed")));
    assert_eq!(said(&plan, conditions::COMPLETE), is("True", reasons::SUCCEEDED));
    let summary = plan.status.summary.clone().unwrap();
    assert!(
        summary.starts_with("cmmlu 0.00 [") && summary.ends_with("noise: 4 of 200 answers change on a rerun"),
        "{summary}"
    );
    assert_eq!(plan.status.results[0].n, 3000);
    seen = with_status(seen, &plan);
    let plan = planned(&seen);
    assert_eq!(
        (names(&plan).1, &plan.status),
        (vec!["server ab-candidate".to_owned()], seen.evaluation.status.as_ref().unwrap())
    );
}

fn compared(pairs: &str, control: &str) -> Plan {
    let mut seen = observed(evaluation(&json!({})));
    for job in ["ab-baseline-0", "ab-control-0", "ab-candidate-0"] {
        add_job(&mut seen, job, Some((0, ASKED)));
    }
    add_job(&mut seen, "ab-pair", Some((0, &format!(r#"{{"pairs":[{pairs}],"control":{control}}}"#))));
    planned(&seen)
}

const QUIET: &str = r#"{"bothRight":140,"onlyBaseline":2,"onlyCandidate":2,"bothWrong":56}"#;

#[test]
fn a_regression_is_a_success_and_few_questions_are_inconclusive() {
    let plan = compared(r#"{"bothRight":1000,"onlyBaseline":200,"onlyCandidate":40,"bothWrong":760}"#, QUIET);
    assert_eq!(
        (plan.status.phase, plan.status.verdict.as_deref()),
        (Some(Phase::Succeeded), Some("Regressed"))
    );
    assert_eq!(said(&plan, conditions::COMPARED), is("True", reasons::REGRESSED));
    assert!(plan.status.difference.as_deref().unwrap().starts_with("-8.00 ["));
    assert_eq!(plan.events[0].reason, reasons::REGRESSED);
    let plan = compared(r#"{"bothRight":20,"onlyBaseline":3,"onlyCandidate":2,"bothWrong":5}"#, QUIET);
    assert_eq!(plan.status.verdict.as_deref(), Some("Inconclusive"));
    assert!(plan.status.results[0].needed.is_some());
}

#[test]
fn a_baseline_that_differs_from_itself_gives_no_verdict() {
    let loud = r#"{"bothRight":100,"onlyBaseline":40,"onlyCandidate":2,"bothWrong":58}"#;
    let plan = compared(r#"{"bothRight":1000,"onlyBaseline":200,"onlyCandidate":40,"bothWrong":760}"#, loud);
    assert_eq!(plan.status.verdict.as_deref(), Some("Inconclusive"));
    assert_eq!(said(&plan, conditions::COMPARED), is("True", reasons::UNSTABLE_MEASUREMENT));
    assert!(plan.status.null_control.unwrap().unstable);
}

#[test]
fn a_comparison_without_a_test_set_is_no_verdict() {
    let plan = compared("", QUIET);
    assert_eq!((plan.status.phase, plan.status.verdict.as_deref()), (Some(Phase::Failed), None));
    assert_eq!(said(&plan, conditions::FAILED), is("True", reasons::OUTPUT_UNREADABLE));
}

#[test]
fn the_exit_code_of_the_runner_is_the_reason_and_its_words_are_the_message() {
    for (code, reason) in [
        (81, reasons::DATASET_NOT_FOUND),
        (84, reasons::SERVER_FAILED),
        (85, reasons::HARNESS_FAILED),
        (89, reasons::PAIRING_FAILED),
        (93, reasons::TEST_SET_UNSUPPORTED),
        (1, reasons::HARNESS_FAILED),
    ] {
        let mut seen = observed(evaluation(&json!({})));
        add_job(&mut seen, "ab-baseline-0", Some((code, r#"{"error":"no file /datasets/cmmlu"}"#)));
        let plan = planned(&seen);
        assert_eq!(said(&plan, conditions::FAILED), is("True", reason), "{code}");
        let message = plan.status.message.unwrap();
        assert_eq!(message, "baseline on cmmlu: no file /datasets/cmmlu");
    }
}

/// kstatus, and Flux with it, takes an object without `Ready` for complete, unless it is stalled.
#[test]
fn a_failure_is_stalled_until_it_is_deleted_and_a_regression_is_not() {
    let mut seen = observed(evaluation(&json!({})));
    add_job(&mut seen, "ab-baseline-0", Some((81, "")));
    seen.baseline = own("ab-baseline", &ready());
    let failed = planned(&seen);
    assert_eq!(said(&failed, conditions::FAILED), is("True", reasons::DATASET_NOT_FOUND));
    assert_eq!(said(&failed, conditions::STALLED), is("True", reasons::DATASET_NOT_FOUND));
    seen = with_status(seen, &failed);
    let later = plan(&seen, &settings(), at(60));
    assert_eq!(later.status, failed.status, "the end changes nothing");
    // What cannot be deleted is said meanwhile.
    let undeleted = denied(&seen, 60);
    assert_eq!(said(&undeleted, conditions::STALLED), is("True", reasons::DENIED));
    seen = with_status(seen, &undeleted);
    seen.baseline = Sighting::Absent;
    assert_eq!(plan(&seen, &settings(), at(120)).status, failed.status);

    let regressed =
        compared(r#"{"bothRight":1000,"onlyBaseline":200,"onlyCandidate":40,"bothWrong":760}"#, QUIET);
    assert_eq!(said(&regressed, conditions::COMPARED), is("True", reasons::REGRESSED));
    assert_eq!(said(&regressed, conditions::STALLED), None);
}

/// An earlier release has not said that it is stalled.
#[test]
fn a_failure_of_an_earlier_release_is_stalled_too() {
    let mut ended = evaluation(&json!({}));
    let status = json!({"phase": "Failed", "completionTime": "2026-01-01T12:00:00Z", "observedGeneration": 1,
        "conditions": [condition("Failed", "True", "HarnessFailed")]});
    ended.status = Some(serde_json::from_value(status).unwrap());
    let seen = observed(ended);
    let plan = planned(&seen);
    assert_eq!(said(&plan, conditions::STALLED), is("True", reasons::HARNESS_FAILED));
    assert_eq!(planned(&with_status(seen, &plan)).status, plan.status);
}

/// The runner finds the result on the volume.
#[test]
fn a_completed_job_whose_pod_is_gone_is_repeated() {
    let mut seen = observed(evaluation(&json!({})));
    seen.baseline = own("ab-baseline", &ready());
    add_job(&mut seen, "ab-baseline-0", Some((0, "")));
    seen.pods.clear();
    let early = plan(&seen, &settings(), at(5));
    assert!(names(&early).1.is_empty() && early.requeue_after == Some(Duration::from_secs(85)));
    assert_eq!(names(&plan(&seen, &settings(), at(91))).1, ["job ab-baseline-0"]);
}

#[test]
fn suspension_deletes_what_holds_gpus_and_keeps_finished_runs() {
    let mut seen = observed(evaluation(&json!({"suspend": true})));
    let mut with_runs = (*seen.evaluation).clone();
    let runs = json!({"phase": "Running", "startTime": "2026-01-01T11:00:00Z",
        "runs": [{"side": "baseline", "testSet": "cmmlu"}]});
    with_runs.status = Some(serde_json::from_value(runs).unwrap());
    seen.evaluation = std::sync::Arc::new(with_runs);
    seen.baseline = own("ab-baseline", &ready());
    add_job(&mut seen, "ab-control-0", None);
    let plan = planned(&seen);
    assert_eq!(names(&plan), (vec![], vec!["job ab-control-0".to_owned(), "server ab-baseline".to_owned()]));
    assert_eq!((plan.status.runs.len(), plan.status.start_time.clone()), (1, None));
    assert_eq!(said(&plan, conditions::SERVERS_READY), is("False", reasons::SUSPENDED));
}

#[test]
fn a_paused_evaluation_is_left_alone() {
    let mut seen = observed(evaluation(&json!({"paused": true})));
    seen.baseline = own("ab-baseline", &ready());
    let plan = planned(&seen);
    assert_eq!(names(&plan), (vec![], vec![]));
    add_job(&mut seen, "ab-baseline-0", Some((81, "")));
    assert_eq!(planned(&seen).status.completion_time, None, "no end is decided");
}

#[test]
fn a_deadline_ends_it_and_the_end_deletes_its_server() {
    let mut seen = observed(evaluation(&json!({"activeDeadlineSeconds": 60})));
    let first = planned(&seen);
    assert_eq!(first.requeue_after, Some(Duration::from_secs(60)));
    seen = with_status(seen, &first);
    seen.baseline = own("ab-baseline", &condition("Ready", "False", "Loading"));
    assert_eq!(plan(&seen, &settings(), at(59)).requeue_after, Some(Duration::from_secs(1)));
    let late = plan(&seen, &settings(), at(60));
    assert_eq!(said(&late, conditions::FAILED), is("True", reasons::DEADLINE_EXCEEDED));
    seen = with_status(seen, &late);
    assert_eq!(names(&planned(&seen)).1, ["server ab-baseline"]);
}

#[test]
fn a_server_that_stays_stalled_fails_and_one_without_gpus_is_awaited() {
    let mut seen = observed(evaluation(&json!({})));
    seen = with_status(seen, &planned(&observed(evaluation(&json!({})))));
    seen.baseline = own("ab-baseline", &condition("Stalled", "True", "CrashLoop"));
    let waiting = plan(&seen, &settings(), at(599));
    assert_eq!(said(&waiting, conditions::STALLED), is("True", reasons::SERVER_FAILED));
    assert_eq!(waiting.requeue_after, Some(Duration::from_secs(1)));
    let failed = plan(&seen, &settings(), at(600));
    assert_eq!(said(&failed, conditions::FAILED), is("True", reasons::SERVER_FAILED));
    assert!(failed.status.message.unwrap().contains("CrashLoop."));
    seen.baseline = own("ab-baseline", &condition("Stalled", "True", "InsufficientGPU"));
    assert_eq!(plan(&seen, &settings(), at(9_999)).status.phase, Some(Phase::Preparing));
}

#[test]
fn a_model_that_changes_between_two_runs_is_a_failure() {
    let fields = json!({"baselineModel": "aiinference/chat", "nullControl": false,
        "testSets": [{"name": "one"}, {"name": "two"}]});
    let mut seen = observed(evaluation(&fields));
    seen.running_baseline = Some(std::sync::Arc::new(server("chat", &ready())));
    let plan = planned(&seen);
    assert_eq!(names(&plan).0.last().unwrap(), "job ab-baseline-0");
    seen = with_status(seen, &plan);
    add_job(&mut seen, "ab-baseline-0", Some((0, ASKED)));
    let mut other = server("chat", &ready());
    other.status.model.as_mut().unwrap().digest = "sha256:2".to_owned();
    seen.running_baseline = Some(std::sync::Arc::new(other));
    assert_eq!(said(&planned(&seen), conditions::FAILED), is("True", reasons::MODEL_CHANGED));
}

#[test]
fn nothing_is_made_before_both_models_are_known() {
    let seen = observed(evaluation(&json!({"candidateModel": "/checkpoints/none"})));
    let plan = planned(&seen);
    assert_eq!(names(&plan), (vec![], vec![]));
    assert_eq!(said(&plan, conditions::STALLED), is("True", reasons::DEPENDENCY_NOT_FOUND));
    let settings = Settings { evalscope_image: None, ..settings() };
    let plan = super::plan(&observed(evaluation(&json!({}))), &settings, at(0));
    assert_eq!(said(&plan, conditions::ACCEPTED), is("False", reasons::HARNESS_IMAGE_MISSING));
}

/// What Pod Security `restricted` demands of a pod.
fn is_restricted(pod: &PodSpec) {
    let security = pod.security_context.as_ref().unwrap();
    assert_eq!(security.run_as_non_root, Some(true));
    assert_eq!(security.seccomp_profile.as_ref().unwrap().type_, "RuntimeDefault");
    for container in pod.init_containers.iter().flatten().chain(&pod.containers) {
        let security = container.security_context.as_ref().unwrap();
        assert_eq!(security.allow_privilege_escalation, Some(false), "{}", container.name);
        let capabilities = security.capabilities.as_ref().unwrap();
        assert_eq!(
            (capabilities.add.as_ref(), capabilities.drop.clone()),
            (None, Some(vec!["ALL".to_owned()]))
        );
        assert_eq!((security.privileged, security.run_as_non_root), (None, None), "{}", container.name);
    }
    let sources = pod.volumes.iter().flatten();
    assert!(sources.into_iter().all(|volume| volume.host_path.is_none()));
}

/// Of all works: a run, the comparison, the check of the store, and the upload.
#[test]
fn every_pod_is_restricted() {
    let mut seen = observed(evaluation(&json!({"output": {"uri": "s3://evaluations/chat"}})));
    seen.baseline = own("ab-baseline", &ready());
    let mut kinds = Vec::new();
    let mut look = |plan: &Plan| {
        let children = plan.children.iter().filter_map(|child| match child {
            Child::Job(_, job) => Some(job),
            Child::Claim(_) | Child::Server(..) => None,
        });
        for job in children.chain(plan.check.as_ref()) {
            is_restricted(job.spec.as_ref().unwrap().template.spec.as_ref().unwrap());
            kinds.push(job.metadata.name.clone().unwrap());
        }
    };
    look(&planned(&seen));
    for job in ["ab-baseline-0", "ab-control-0", "ab-candidate-0"] {
        add_job(&mut seen, job, Some((0, ASKED)));
    }
    seen = with_status(seen.clone(), &planned(&seen));
    look(&planned(&seen));
    let pair = format!(r#"{{"pairs":[{{"bothRight":2100,"bothWrong":900}}],"control":{QUIET}}}"#);
    add_job(&mut seen, "ab-pair", Some((0, &pair)));
    seen = with_status(seen.clone(), &planned(&seen));
    look(&planned(&seen));
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, ["ab-answers", "ab-answers-check", "ab-baseline-0", "ab-pair"]);
}

/// Some of the answers, and of one model: all would be a failure of the run.
#[test]
fn answers_that_could_not_be_read_are_in_the_status() {
    let mut seen = observed(evaluation(&json!({"nullControl": false})));
    let unread = ASKED.replace("\"failed\":3", "\"failed\":3,\"unparsed\":17");
    add_job(&mut seen, "ab-baseline-0", Some((0, ASKED)));
    add_job(&mut seen, "ab-candidate-0", Some((0, &unread)));
    let runs = planned(&seen).status.runs;
    let counts: Vec<(&str, i64, i64)> =
        runs.iter().map(|run| (run.side.as_str(), run.failed, run.unparsed)).collect();
    assert_eq!(counts, [("baseline", 3, 0), ("candidate", 3, 17)]);
}

#[test]
fn the_pod_of_a_run_is_restricted_and_has_no_token() {
    let fields = json!({"apiKeySecretName": "key", "testSets": [{"name": "Ours", "dataset": "general_mcq", "limit": 5,
        "subsets": ["a b"], "claimName": "questions", "path": "x"}]});
    let mut seen = observed(evaluation(&fields));
    seen.claims.insert("questions".to_owned(), Some(std::sync::Arc::default()));
    seen.baseline = own("ab-baseline", &ready());
    let plan = planned(&seen);
    let Some(Child::Job(_, job)) = plan.children.last() else { panic!("{:?}", names(&plan)) };
    let pod = job.spec.as_ref().unwrap().template.spec.clone().unwrap();
    assert_eq!(pod.automount_service_account_token, Some(false));
    assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
    is_restricted(&pod);
    let container = &pod.containers[0];
    assert!(
        container.env.as_ref().unwrap().iter().all(|variable| variable.name != "EVAL_API_KEY"),
        "it is no endpoint"
    );
    let args = container.args.clone().unwrap();
    for wanted in [
        "--side=baseline",
        "--harness=evalscope",
        "--dataset=general_mcq",
        "--dataset-path=/questions",
        "--subset=a b",
        "--limit=5",
        "--url=http://ab-baseline.demo.svc:8000/v1",
        "--model=ab-baseline",
        "--output-dir=/evaluation/e",
    ] {
        assert!(args.iter().any(|arg| arg == wanted), "{wanted} is not in {args:?}");
    }
    assert!(!args.iter().any(|arg| arg == "--allow-online"));
}

#[test]
fn adapters_are_mounted_and_served_under_a_name_of_their_own() {
    let job: api::trainingjob::TrainingJob = serde_json::from_value(json!({
        "apiVersion": "aistudio.modelscope.cn/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "qlora", "namespace": "demo", "uid": "t"},
        "spec": {"model": "qwen/Qwen-7B", "dataset": "d", "method": "qlora", "outputDir": "/checkpoints/v2"},
        "status": {"phase": "Succeeded", "checkpoint": {"path": "/checkpoints/v2/checkpoint-40", "step": 40}},
    }))
    .unwrap();
    let mut seen = observed(evaluation(&json!({"baselineModel": "/checkpoints/v2"})));
    seen.baseline_writers = vec![std::sync::Arc::new(job)];
    let plan = planned(&seen);
    let Some(Child::Server(_, rendered)) = plan.children.last() else { panic!("{:?}", names(&plan)) };
    assert_eq!(rendered.spec["modelSource"], "ms://qwen/Qwen-7B");
    let volume = json!([{"name": "adapters", "mountPath": "/adapters", "claimName": "qlora-output", "subPath": "checkpoint-40"}]);
    assert_eq!(rendered.spec["volumes"], volume);
    let args = json!(["--enable-lora", "--lora-modules", "adapters=/adapters", "--max-lora-rank", "64"]);
    assert_eq!(rendered.spec["args"], args);
    seen = with_status(seen, &plan);
    seen.baseline = own("ab-baseline", &ready());
    let plan = planned(&seen);
    let Some(Child::Job(_, job)) = plan.children.last() else { panic!("{:?}", names(&plan)) };
    let args = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0].args.clone().unwrap();
    assert!(args.contains(&"--model=adapters".to_owned()), "{args:?}");
}

#[test]
fn a_server_has_the_time_that_its_model_needs_to_warm_up() {
    let seconds = |fields: &Value| {
        let plan = planned(&observed(evaluation(fields)));
        let Some(Child::Server(_, rendered)) = plan.children.last() else { panic!("{:?}", names(&plan)) };
        rendered.spec["warmupTimeoutSeconds"].clone()
    };
    assert_eq!(seconds(&json!({})), Value::Null, "a value that a user has set there stays");
    assert_eq!(seconds(&json!({"server": {"warmupTimeoutSeconds": 3600}})), json!(3600));
}

/// Two models of a hub may both have weights in several formats.
#[test]
fn a_server_copies_the_files_of_a_hub_that_the_evaluation_asks_for() {
    let loader =
        json!({"exclude": ["original/"], "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]});
    let loader_of = |fields: &Value| {
        let plan = planned(&observed(evaluation(fields)));
        let Some(Child::Server(_, rendered)) = plan.children.last() else { panic!("{:?}", names(&plan)) };
        rendered.spec["modelLoader"].clone()
    };
    assert_eq!(loader_of(&json!({"server": {"modelLoader": loader}})), loader);
    assert_eq!(loader_of(&json!({})), Value::Null);
}

/// An admission policy demands them of all pods.
#[test]
fn a_server_has_the_labels_of_the_pods_and_not_the_annotations_of_runs() {
    let spec = |fields: &Value| {
        let plan = planned(&observed(evaluation(fields)));
        let Some(Child::Server(_, rendered)) = plan.children.last() else { panic!("{:?}", names(&plan)) };
        (rendered.spec["podLabels"].clone(), rendered.spec["podAnnotations"].clone())
    };
    let (labels, annotations) = (json!({"team": "a"}), json!({"cost": "b"}));
    let given = spec(&json!({"podLabels": labels, "podAnnotations": annotations}));
    assert_eq!(given, (labels, Value::Null));
    assert_eq!(spec(&json!({})), (Value::Null, Value::Null));
}

/// Both models may have lost the same answers.
#[test]
fn a_number_of_questions_that_could_not_be_checked_is_in_the_summary() {
    let mut seen = observed(evaluation(&json!({"nullControl": false})));
    let unchecked = ASKED.replace("\"failed\":3", "\"unchecked\":true");
    add_job(&mut seen, "ab-baseline-0", Some((0, ASKED)));
    add_job(&mut seen, "ab-candidate-0", Some((0, &unchecked)));
    let pairs = r#"{"pairs":[{"bothRight":2100,"onlyBaseline":20,"onlyCandidate":20,"bothWrong":860}]}"#;
    add_job(&mut seen, "ab-pair", Some((0, pairs)));
    let status = planned(&seen).status;
    assert_eq!(status.runs.iter().map(|run| run.unchecked).collect::<Vec<_>>(), [false, true]);
    let summary = status.summary.unwrap();
    assert!(summary.ends_with("; the number of questions of cmmlu could not be checked"), "{summary}");
}

#[test]
fn an_evaluation_is_deleted_when_its_time_is_over() {
    let mut ended = evaluation(&json!({"ttlSecondsAfterFinished": 60}));
    let status = json!({"phase": "Succeeded", "completionTime": "2026-01-01T12:00:00Z"});
    ended.status = Some(serde_json::from_value(status).unwrap());
    let seen = observed(ended);
    let plan_at = |seconds: i64| plan(&seen, &settings(), at(seconds));
    assert_eq!((plan_at(59).is_expired, plan_at(59).requeue_after), (false, Some(Duration::from_secs(1))));
    assert!(plan_at(60).is_expired);
    // What cannot be deleted is still said.
    let mut paused = observed(evaluation(&json!({"paused": true})));
    let status = json!({"phase": "Succeeded", "completionTime": "2026-01-01T12:00:00Z", "observedGeneration": 1,
        "conditions": [condition("Stalled", "True", "Denied")]});
    std::sync::Arc::make_mut(&mut paused.evaluation).status = Some(serde_json::from_value(status).unwrap());
    assert_eq!(said(&planned(&paused), conditions::STALLED), is("True", reasons::DENIED));
}
