//! `order: Parallel`: two servers, and a lane of runs for each.

use std::sync::Arc;

use workload::views::claim::ClaimView;

use super::*;

fn parallel(fields: &Value) -> Observed {
    let mut all = json!({"order": "Parallel"});
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    observed(evaluation(&all))
}

/// Both servers answer, and both have a Job.
pub(super) fn running(fields: &Value) -> Observed {
    let mut seen = parallel(fields);
    seen = with_status(seen, &planned(&parallel(fields)));
    seen.baseline = own("ab-baseline", &ready());
    seen.candidate = own("ab-candidate", &ready());
    add_job(&mut seen, "ab-baseline-0", None);
    add_job(&mut seen, "ab-candidate-0", None);
    seen
}

/// The runs of a Job have ended.
pub(super) fn ends(seen: &mut Observed, name: &str) {
    seen.pods.retain(|pod| pod.name() != format!("{name}-x"));
    add_job(seen, name, Some((0, ASKED)));
}

#[test]
fn both_servers_exist_at_once_and_each_goes_with_its_last_run() {
    let mut seen = parallel(&json!({}));
    let plan = planned(&seen);
    assert_eq!(names(&plan).0, ["claim ab-evaluation", "server ab-baseline", "server ab-candidate"]);
    assert_eq!(plan.status.phase, Some(Phase::Preparing));
    seen = with_status(seen, &plan);
    seen.baseline = own("ab-baseline", &ready());
    seen.candidate = own("ab-candidate", &condition("Ready", "False", "Loading"));
    let plan = planned(&seen);
    assert!(
        names(&plan).0.contains(&"job ab-baseline-0".to_owned()),
        "it does not wait for the other server"
    );
    assert_eq!(plan.status.phase, Some(Phase::Running));
    assert_eq!(said(&plan, conditions::SERVERS_READY), is("False", reasons::WAITING));
    let message = plan.status.message.clone().unwrap();
    assert!(
        message.starts_with("baseline on cmmlu; AIInference ab-candidate is not ready: Loading"),
        "{message}"
    );
    assert!(message.ends_with("; 0 of 3 runs have ended"), "{message}");

    seen = with_status(seen, &plan);
    seen.candidate = own("ab-candidate", &ready());
    add_job(&mut seen, "ab-baseline-0", None);
    let plan = planned(&seen);
    assert_eq!(names(&plan).0.last().unwrap(), "job ab-candidate-0");
    assert_eq!(said(&plan, conditions::SERVERS_READY), is("True", reasons::SERVING));
    let resolved = plan.status.resolved.clone().unwrap();
    assert!(resolved.baseline.unwrap().digest.is_some() && resolved.candidate.unwrap().digest.is_some());

    // The candidate ends first.
    seen = with_status(seen, &plan);
    add_job(&mut seen, "ab-candidate-0", Some((0, ASKED)));
    let plan = planned(&seen);
    assert_eq!((plan.status.runs.len(), names(&plan).1.len()), (1, 0), "the status has the run first");
    assert_eq!(plan.requeue_after, Some(Duration::ZERO));
    seen = with_status(seen, &plan);
    assert_eq!(
        names(&planned(&seen)).1,
        ["server ab-candidate"],
        "its GPUs are free while the other one runs"
    );
    seen.candidate = Sighting::Absent;
    let plan = planned(&seen);
    assert_eq!(names(&plan).0, ["server ab-baseline"], "it is not created again");

    ends(&mut seen, "ab-baseline-0");
    let plan = planned(&seen);
    assert!(names(&plan).0.is_empty(), "the status has the run first");
    seen = with_status(seen, &plan);
    let plan = planned(&seen);
    assert_eq!(names(&plan).0.last().unwrap(), "job ab-control-0", "the control comes after the baseline");
    assert!(!names(&plan).0.contains(&"job ab-pair".to_owned()));
    seen = with_status(seen, &plan);
    add_job(&mut seen, "ab-control-0", Some((0, ASKED)));
    let plan = planned(&seen);
    seen = with_status(seen, &plan);
    let plan = planned(&seen);
    assert_eq!(names(&plan).1, ["server ab-baseline"]);
    assert_eq!(
        (names(&plan).0.last().unwrap().as_str(), plan.status.phase),
        ("job ab-pair", Some(Phase::Comparing))
    );
}

#[test]
fn a_failure_of_one_side_ends_both_and_frees_all_gpus() {
    let mut seen = running(&json!({}));
    seen.pods.retain(|pod| pod.name() != "ab-candidate-0-x");
    add_job(&mut seen, "ab-candidate-0", Some((81, r#"{"error":"no file"}"#)));
    let failed = planned(&seen);
    assert_eq!(said(&failed, conditions::FAILED), is("True", reasons::DATASET_NOT_FOUND));
    assert_eq!(failed.status.message.as_deref(), Some("candidate on cmmlu: no file"));
    let gone = names(&planned(&with_status(seen, &failed))).1;
    assert_eq!(gone, ["job ab-baseline-0", "server ab-baseline", "server ab-candidate"]);
}

#[test]
fn a_side_that_needs_a_user_is_named_while_the_other_one_runs() {
    let mut seen = running(&json!({}));
    seen.jobs.remove("ab-candidate-0");
    seen.pods.retain(|pod| pod.name() != "ab-candidate-0-x");
    seen.candidate = own("ab-candidate", &condition("Stalled", "True", "ImagePullFailed"));
    let plan = plan(&seen, &settings(), at(599));
    assert_eq!(said(&plan, conditions::STALLED), is("True", reasons::SERVER_FAILED));
    assert_eq!((plan.status.phase, plan.requeue_after), (Some(Phase::Running), Some(Duration::from_secs(1))));
    let late = super::plan(&seen, &settings(), at(600));
    assert_eq!(late.status.phase, Some(Phase::Failed));
}

/// Each of them may go on for half an hour, and no object changes meanwhile.
#[test]
fn runs_whose_pods_are_both_silent_are_planned_again_when_their_time_is_over() {
    let scheduled =
        json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T12:00:00Z"});
    let status = json!({"phase": "Pending", "conditions": [scheduled]});
    let both = refusals::both_alike(refusals::with_pod(&json!({"nodeName": "n", "containers": []}), &status));
    // The server of the baseline is one of the user, so that run waits without end.
    let fields = json!({"order": "Parallel", "nullControl": false, "baselineModel": "aiinference/chat"});
    let mut of_user = both.clone();
    let status = both.evaluation.status.clone();
    of_user.evaluation = Arc::new(ModelEvaluation { status, ..evaluation(&fields) });
    of_user.baseline = Sighting::Absent;
    of_user.running_baseline = Some(Arc::new(server("chat", &ready())));
    for seen in [both, of_user] {
        let waits = plan(&seen, &settings(), at(130));
        assert_eq!(
            (waits.status.phase, waits.requeue_after),
            (Some(Phase::Running), Some(Duration::from_secs(1_670)))
        );
        assert_eq!(plan(&seen, &settings(), at(1_799)).status.phase, Some(Phase::Running));
        assert_eq!(plan(&seen, &settings(), at(1_800)).status.phase, Some(Phase::Failed));
    }
}

#[test]
fn suspension_deletes_both_servers() {
    let mut seen = running(&json!({}));
    Arc::make_mut(&mut seen.evaluation).spec.suspend = true;
    let gone = names(&planned(&seen)).1;
    assert_eq!(
        gone,
        ["job ab-baseline-0", "job ab-candidate-0", "server ab-baseline", "server ab-candidate"]
    );
}

/// A volume of most clusters is mounted on one node at a time.
#[test]
fn runs_side_by_side_prefer_one_node_unless_their_volumes_can_be_shared() {
    let node_of = |seen: &Observed| {
        let plan = planned(seen);
        let Some(Child::Job(_, job)) = plan.children.last() else { panic!("{:?}", names(&plan)) };
        let affinity = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap().affinity.clone();
        let terms = affinity?.pod_affinity?.preferred_during_scheduling_ignored_during_execution?;
        let term = terms[0].pod_affinity_term.clone();
        Some((term.topology_key, term.label_selector?.match_labels?))
    };
    let with_claim = |fields: &Value, name: &str, mode: &str| {
        let mut seen = parallel(fields);
        (seen.baseline, seen.candidate) = (own("ab-baseline", &ready()), own("ab-candidate", &ready()));
        let claim = ClaimView { access_modes: vec![mode.to_owned()], ..ClaimView::default() };
        let claim = match fields.get("output") {
            Some(_) => claim,
            None => ClaimView { metadata: owned(), ..claim },
        };
        seen.claims.insert(name.to_owned(), Some(Arc::new(claim)));
        seen
    };
    let (key, labels) = node_of(&with_claim(&json!({}), "ab-evaluation", "ReadWriteOnce")).unwrap();
    assert_eq!(key, "kubernetes.io/hostname");
    let job_labels = super::super::metadata::labels_of("ab");
    assert_eq!(labels, job_labels, "those of the pods of this evaluation");
    let fields = json!({"output": {"claimName": "mine"}});
    assert_eq!(node_of(&with_claim(&fields, "mine", "ReadWriteMany")), None);
    let refused = planned(&with_claim(&fields, "mine", "ReadWriteOncePod"));
    assert_eq!(said(&refused, conditions::STALLED), is("True", reasons::CLAIM_NOT_SHAREABLE));
    assert!(refused.status.message.unwrap().contains("spec.order Sequential"));
    let mut one_at_a_time = with_claim(
        &json!({"output": {"claimName": "mine"}, "order": "Sequential"}),
        "mine",
        "ReadWriteOncePod",
    );
    one_at_a_time.candidate = Sighting::Absent;
    assert_eq!(node_of(&one_at_a_time), None);
}

fn owned() -> k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
    let owner = json!({"ownerReferences": [{"apiVersion": "aistudio.modelscope.cn/v1alpha1", "kind": "ModelEvaluation",
        "name": "ab", "uid": "e", "controller": true}]});
    serde_json::from_value(owner).unwrap()
}
