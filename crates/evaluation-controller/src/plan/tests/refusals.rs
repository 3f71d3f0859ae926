//! What the API server refuses, and room for one run at a time: one side does not end the other one.

use std::sync::Arc;

use workload::views::pod::PodView;

use super::{
    side_by_side::{ends, running},
    *,
};

/// Both servers answer. The baseline is asked, and the Job of the candidate is not there.
fn candidate_waits() -> Observed {
    let mut seen = running(&json!({"nullControl": false}));
    seen.jobs.remove("ab-candidate-0");
    seen.pods.retain(|pod| pod.name() != "ab-candidate-0-x");
    with_own_claim(seen)
}

/// The run of the baseline has ended at this time, and the status has it.
pub(super) fn baseline_ended(mut seen: Observed, seconds: i64) -> Observed {
    ends(&mut seen, "ab-baseline-0");
    let plan = plan(&seen, &settings(), at(seconds));
    assert_eq!(plan.status.runs.len(), 1);
    with_status(seen, &plan)
}

#[test]
fn a_refused_child_keeps_its_own_side_from_the_rest_alone() {
    let seen = candidate_waits();
    let plan = planned(&seen);
    let tried = |refused: &[Option<Side>]| {
        let tried = plan.children.iter().filter(|child| child.is_tried_after(refused));
        tried.map(Child::side).collect::<Vec<_>>()
    };
    let (baseline, candidate) = (Some(Side::Baseline), Some(Side::Candidate));
    assert_eq!(tried(&[]), [baseline, candidate, candidate]);
    assert_eq!(tried(&[baseline]), [candidate, candidate]);
    assert_eq!(tried(&[candidate]), [baseline]);
    assert!(tried(&[None]).is_empty(), "each run needs the claim");
}

/// A quota may have room for one Job.
#[test]
fn a_refused_run_waits_for_the_end_of_the_other_one() {
    let mut seen = candidate_waits();
    let first = denied(&seen, 0);
    assert_eq!(said(&first, conditions::STALLED), is("True", reasons::DENIED));
    assert_eq!(first.status.phase, Some(Phase::Running));
    let message = first.status.message.clone().unwrap();
    assert!(message.starts_with("denied: quota; baseline on cmmlu; 0 of 2 runs"), "{message}");
    seen = noted(seen, &first, 0);
    assert_eq!(denied(&seen, 9_999).status.phase, Some(Phase::Running));

    // The ten minutes count from its end, though the refusal is as old as before.
    let ended = baseline_ended(candidate_waits(), 10_000);
    let runs = ended.evaluation.status.clone().unwrap().runs;
    seen = Observed { evaluation: Arc::clone(&seen.evaluation), facts: seen.facts, ..ended };
    Arc::make_mut(&mut seen.evaluation).status.as_mut().unwrap().runs = runs;
    assert_ne!(denied(&seen, 10_599).status.phase, Some(Phase::Failed));
    assert_eq!(said(&denied(&seen, 10_600), conditions::FAILED), is("True", reasons::DENIED));
}

/// After a refusal at this time.
fn denied_at(seen: Observed, seconds: i64) -> Observed {
    let plan = denied(&seen, seconds);
    noted(seen, &plan, seconds)
}

#[test]
fn both_sides_that_are_refused_give_their_gpus_back() {
    let mut seen = candidate_waits();
    seen.jobs.clear();
    seen.pods.clear();
    seen = denied_at(seen, 0);
    assert_ne!(denied(&seen, 599).status.phase, Some(Phase::Failed));
    assert_eq!(denied(&seen, 600).status.phase, Some(Phase::Failed));
}

/// The server of the other side loads its model, and is not held in vain.
#[test]
fn a_refused_server_does_not_end_a_side_that_starts() {
    let mut seen = candidate_waits();
    seen.jobs.clear();
    seen.pods.clear();
    seen.candidate = Sighting::Absent;
    seen.baseline = own("ab-baseline", &condition("Ready", "False", "Loading"));
    seen = denied_at(seen, 0);
    let later = denied(&seen, 9_999);
    assert_eq!(later.status.phase, Some(Phase::Preparing));
    assert_eq!(said(&later, conditions::SERVERS_READY), is("False", reasons::DENIED));
}

#[test]
fn a_refusal_does_not_lose_the_runs_that_have_ended() {
    let mut seen = with_own_claim(running(&json!({"testSets": [{"name": "one"}, {"name": "two"}]})));
    ends(&mut seen, "ab-baseline-0");
    let plan = planned(&seen);
    assert_eq!((plan.status.runs.len(), plan.children.len()), (1, 0));
    seen = with_status(seen, &plan);
    assert_eq!(names(&planned(&seen)).0.first().unwrap(), "server ab-baseline");
    assert_eq!(denied(&seen, 1).status.runs.len(), 1);
}

/// The runs go on, and the status says what is still there.
#[test]
fn a_refused_deletion_stops_and_ends_nothing() {
    let mut seen = with_own_claim(baseline_ended(running(&json!({"nullControl": false})), 0));
    let plan_now = planned(&seen);
    assert_eq!(
        names(&plan_now),
        (vec!["server ab-candidate".to_owned()], vec!["server ab-baseline".to_owned()])
    );
    let first = denied(&seen, 0);
    assert_eq!(said(&first, conditions::STALLED), is("True", reasons::DENIED));
    assert_eq!(said(&first, conditions::EVALUATED), is("False", reasons::EVALUATING));
    let message = first.status.message.clone().unwrap();
    assert_eq!(message, "denied: quota; candidate on cmmlu; 1 of 2 runs have ended");
    assert_eq!(first.events[0].reason, reasons::DENIED);
    seen = with_status(seen, &first);
    let later = denied(&seen, 9_999);
    assert_eq!((&later.status, later.events.len()), (&first.status, 0), "nothing is written at rest");

    // The next Job is refused for the same reason, hours later.
    let mut refused = seen.clone();
    drop_job(&mut refused, "ab-candidate-0");
    refused.baseline = Sighting::Absent;
    for seconds in [9_999, 10_598] {
        let waits = denied(&refused, seconds);
        assert_ne!(waits.status.phase, Some(Phase::Failed), "{seconds}: {:?}", waits.status.message);
        refused = noted(refused, &waits, seconds);
    }
    assert_eq!(denied(&refused, 10_599).status.phase, Some(Phase::Failed));

    // The comparison follows, also where its Job is refused.
    ends(&mut seen, "ab-candidate-0");
    let plan = plan(&seen, &settings(), at(9_999));
    seen = with_status(seen, &plan);
    assert!(names(&planned(&seen)).0.contains(&"job ab-pair".to_owned()));
    seen = denied_at(seen, 9_999);
    assert_eq!(denied(&seen, 99_999).status.phase, Some(Phase::Comparing));
}

#[test]
fn a_suspended_evaluation_does_not_fail_by_a_refused_deletion() {
    let mut seen = with_own_claim(running(&json!({"suspend": true})));
    seen = denied_at(seen, 0);
    let later = denied(&seen, 9_999);
    assert_eq!(later.status.phase, Some(Phase::Pending));
    assert_eq!(said(&later, conditions::STALLED), is("True", reasons::DENIED));
}

/// A webhook that answers with an error is no refusal, and no plan follows.
#[test]
fn a_run_whose_job_cannot_be_created_for_long_gives_its_gpus_back() {
    let phase = |seen: &Observed, seconds| plan(seen, &settings(), at(seconds)).status.phase;
    let lacking = |other: bool| {
        let mut seen = candidate_waits();
        if !other {
            drop_job(&mut seen, "ab-baseline-0");
        }
        noted(seen.clone(), &plan(&seen, &settings(), at(0)), 0)
    };
    // Both.
    let mut seen = lacking(false);
    for seconds in [1, 300, 599] {
        let now = plan(&seen, &settings(), at(seconds));
        assert_eq!(names(&now).0.iter().filter(|child| child.starts_with("job ")).count(), 2, "{seconds}");
        seen = noted(seen, &now, seconds);
    }
    let failed = plan(&seen, &settings(), at(600));
    assert_eq!(said(&failed, conditions::FAILED), is("True", reasons::WAITING));
    let message = failed.status.message.unwrap();
    assert!(message.contains("Job ab-baseline-0 could not be created"), "{message}");
    // A refusal has its own time, and a controller that was started again knows none.
    let refused = denied_at(seen.clone(), 599);
    assert_eq!(phase(&refused, 600), Some(Phase::Running));
    assert_eq!(phase(&Observed { facts: Default::default(), ..seen.clone() }, 600), Some(Phase::Running));
    // Nor does the time of an outage count, in which the watches fail, too.
    let outages = [
        Observed { pods_are_stale: true, ..seen.clone() },
        Observed { creates_nothing: true, ..seen.clone() },
    ];
    for outage in outages {
        let waits = plan(&outage, &settings(), at(600));
        assert_eq!(waits.status.phase, Some(Phase::Running));
        assert!(!facts(&waits).iter().any(|fact| fact.ends_with("is created")), "{:?}", facts(&waits));
    }
    // The run of the other side goes on.
    let seen = lacking(true);
    assert_eq!(phase(&seen, 9_999), Some(Phase::Running));
    let seen = baseline_ended(seen, 10_000);
    assert_ne!(phase(&seen, 10_599), Some(Phase::Failed));
    assert_eq!(phase(&seen, 10_600), Some(Phase::Failed));
}

/// An hour of another fault does not count.
#[test]
fn the_time_of_a_refusal_begins_with_it() {
    let mut seen = candidate_waits();
    seen.jobs.clear();
    seen.pods.clear();
    let status = Arc::make_mut(&mut seen.evaluation).status.as_mut().unwrap();
    status.conditions = vec![serde_json::from_value(condition("Stalled", "True", "ClaimNotFound")).unwrap()];
    let first = denied(&seen, 3_600);
    assert_eq!(said(&first, conditions::STALLED), is("True", reasons::DENIED));
    seen = noted(seen, &first, 3_600);
    assert_ne!(denied(&seen, 3_601).status.phase, Some(Phase::Failed));
    assert_ne!(denied(&seen, 4_199).status.phase, Some(Phase::Failed));
    assert_eq!(denied(&seen, 4_200).status.phase, Some(Phase::Failed));
}

/// The pod of the candidate as the text says, created and placed at noon.
pub(super) fn with_pod(spec: &Value, status: &Value) -> Observed {
    let mut seen = with_own_claim(running(&json!({"nullControl": false})));
    let pod = seen.pods.iter_mut().find(|pod| pod.name() == "ab-candidate-0-x").unwrap();
    let labels = json!({"app.kubernetes.io/name": "modelevaluation", "app.kubernetes.io/instance": "ab",
        "app.kubernetes.io/managed-by": "evaluation-controller"});
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "ab-candidate-0", "uid": "uid-ab-candidate-0",
        "controller": true});
    let metadata = json!({"name": "ab-candidate-0-x", "namespace": "demo", "labels": labels,
        "creationTimestamp": "2026-01-01T12:00:00Z", "ownerReferences": [owner]});
    let text = json!({"metadata": metadata, "spec": spec, "status": status});
    *pod = Arc::new(serde_json::from_value::<PodView>(text).unwrap());
    seen
}

pub(super) fn without_a_node() -> Observed {
    let scheduled = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "1 node had volume node affinity conflict"});
    with_pod(&json!({"containers": []}), &json!({"phase": "Pending", "conditions": [scheduled]}))
}

/// A volume may be on one node, where the other run has the room.
#[test]
fn a_run_without_a_node_waits_for_the_end_of_the_other_one() {
    let mut seen = without_a_node();
    let waits = plan(&seen, &settings(), at(9_999));
    assert_eq!((waits.status.phase, waits.requeue_after), (Some(Phase::Running), None));
    assert!(waits.status.message.as_deref().unwrap().contains("pod ab-candidate-0-x has no node"));
    seen = baseline_ended(seen, 10_000);
    let last = plan(&seen, &settings(), at(10_599));
    assert_eq!((last.status.phase, last.requeue_after), (Some(Phase::Running), Some(Duration::from_secs(1))));
    assert_eq!(plan(&seen, &settings(), at(10_600)).status.phase, Some(Phase::Failed));
}

/// The pod of the baseline is as that of the candidate.
pub(super) fn both_alike(mut seen: Observed) -> Observed {
    let mut other = (*seen.pods.iter().find(|pod| pod.name() == "ab-candidate-0-x").unwrap().clone()).clone();
    other.metadata.name = Some("ab-baseline-0-x".to_owned());
    let owner = &mut other.metadata.owner_references.as_mut().unwrap()[0];
    (owner.name, owner.uid) = ("ab-baseline-0".to_owned(), "uid-ab-baseline-0".to_owned());
    seen.pods.retain(|pod| pod.name() != "ab-baseline-0-x");
    seen.pods.push(Arc::new(other));
    seen
}

/// A volume of one node was held by the run of hours whose node is lost. Its next Job waits for its server.
#[test]
fn a_run_that_waited_for_the_other_one_has_its_time_from_when_that_one_runs_no_more() {
    let mut seen = without_a_node();
    let runs = plan(&seen, &settings(), at(17_999));
    assert_eq!(runs.status.phase, Some(Phase::Running));
    seen = noted(seen, &runs, 17_999);
    let before = seen.clone();
    // Its Job is gone, or has ended and is not in the status yet.
    let mut ended = seen.clone();
    ends(&mut ended, "ab-baseline-0");
    let pod = Arc::make_mut(ended.pods.last_mut().unwrap());
    pod.containers[0].state = Default::default();
    drop_job(&mut seen, "ab-baseline-0");
    for mut seen in [seen, ended] {
        seen.baseline = own("ab-baseline", &condition("Ready", "False", "Loading"));
        for seconds in [18_000, 18_060] {
            let waits = plan(&seen, &settings(), at(seconds));
            assert_ne!(waits.status.phase, Some(Phase::Failed), "{seconds}: {:?}", waits.status.message);
            seen = noted(seen, &waits, seconds);
        }
        drop_job(&mut seen, "ab-baseline-0");
        let waits = plan(&seen, &settings(), at(18_599));
        assert_ne!(waits.status.phase, Some(Phase::Failed));
        assert_eq!(waits.requeue_after, Some(Duration::from_secs(1)));
        assert_eq!(plan(&seen, &settings(), at(18_600)).status.phase, Some(Phase::Failed));
    }
    // A refusal of its next Job is no earlier end.
    let mut refused = before;
    drop_job(&mut refused, "ab-baseline-0");
    for seconds in [18_000, 18_300, 18_599] {
        let waits = denied(&refused, seconds);
        assert_ne!(waits.status.phase, Some(Phase::Failed), "{seconds}: {:?}", waits.status.message);
        refused = noted(refused, &waits, seconds);
    }
    assert_eq!(denied(&refused, 18_600).status.phase, Some(Phase::Failed));
}

#[test]
fn runs_that_both_find_no_node_give_their_gpus_back() {
    let seen = both_alike(without_a_node());
    assert_ne!(plan(&seen, &settings(), at(599)).status.phase, Some(Phase::Failed));
    assert_eq!(plan(&seen, &settings(), at(600)).status.phase, Some(Phase::Failed));
}

/// The pod of the candidate was created at noon, and its kubelet says this of the runner.
fn with_runner(waits: &str) -> Observed {
    let state = json!({"waiting": {"reason": waits, "message": "no such image"}});
    let status = json!({"phase": "Pending", "containerStatuses": [{"name": "runner", "state": state}]});
    with_pod(&json!({"nodeName": "n", "containers": []}), &status)
}

/// The end of the other run does not mend it.
#[test]
fn a_run_without_its_image_does_not_wait_for_the_other_one() {
    let seen = with_runner("ImagePullBackOff");
    let seen = noted(seen.clone(), &planned(&seen), 0);
    assert_ne!(plan(&seen, &settings(), at(599)).status.phase, Some(Phase::Failed));
    let failed = plan(&seen, &settings(), at(600));
    assert_eq!(said(&failed, conditions::FAILED), is("True", reasons::IMAGE_PULL_FAILED));
}

/// Its node was bought, or its image was pulled for long.
#[test]
fn an_image_that_cannot_be_pulled_late_has_ten_minutes_from_then_on() {
    let mut seen = with_runner("ContainerCreating");
    seen = noted(seen.clone(), &plan(&seen, &settings(), at(10)), 10);
    let pods = with_runner("ErrImagePull").pods;
    seen.pods = pods;
    let first = plan(&seen, &settings(), at(700));
    assert_eq!(said(&first, conditions::STALLED), is("True", reasons::IMAGE_PULL_FAILED));
    assert_eq!(
        (first.status.phase, first.requeue_after),
        (Some(Phase::Running), Some(settings().server_fault))
    );
    seen = noted(seen, &first, 700);
    // The kubelet waits longer between two pulls.
    seen.pods = with_runner("ImagePullBackOff").pods;
    let waits = plan(&seen, &settings(), at(1_299));
    assert_eq!(
        (waits.status.phase, waits.requeue_after),
        (Some(Phase::Running), Some(Duration::from_secs(1)))
    );
    // A controller that was started again knows no times.
    let restarted = Observed { facts: Default::default(), ..noted(seen.clone(), &waits, 1_299) };
    assert_eq!(plan(&restarted, &settings(), at(1_300)).status, waits.status);
    seen = noted(seen, &waits, 1_299);
    let failed = plan(&seen, &settings(), at(1_300));
    assert_eq!(said(&failed, conditions::FAILED), is("True", reasons::IMAGE_PULL_FAILED));
}

/// CRI-O says so between two back-offs, and a Secret may go meanwhile.
#[test]
fn a_kubelet_that_alternates_between_reasons_does_not_lengthen_the_time() {
    let mut seen = with_runner("ImagePullBackOff");
    for seconds in (0..600).step_by(30) {
        let now = plan(&seen, &settings(), at(seconds));
        assert_eq!(now.status.phase, Some(Phase::Running), "{seconds}");
        seen = noted(seen, &now, seconds);
        let waits = match seconds % 90 {
            0 => "SignatureValidationFailed",
            30 => "CreateContainerConfigError",
            _ => "ImagePullBackOff",
        };
        seen.pods = with_runner(waits).pods;
    }
    let failed = plan(&seen, &settings(), at(600));
    assert_eq!(failed.status.phase, Some(Phase::Failed));
}

#[test]
fn a_pod_whose_volume_is_on_another_node_is_named() {
    let scheduled =
        json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T12:00:00Z"});
    let state = json!({"waiting": {"reason": "ContainerCreating"}});
    let status = json!({"phase": "Pending", "conditions": [scheduled],
        "containerStatuses": [{"name": "runner", "state": state}]});
    let seen = with_pod(&json!({"nodeName": "n", "containers": []}), &status);
    let soon = plan(&seen, &settings(), at(119));
    assert_eq!(soon.requeue_after, Some(Duration::from_secs(1)));
    assert!(!soon.status.message.unwrap().contains("started"));
    let message = plan(&seen, &settings(), at(120)).status.message.unwrap();
    assert!(
        message.contains("pod ab-candidate-0-x is on node n, and none of its containers has started"),
        "{message}"
    );
    // A kubelet of 1.36 pulls no image before.
    let why =
        "the network may not be set up, or, before Kubernetes 1.36, its first image may still be pulled";
    assert!(message.contains(why), "{message}");
}

/// A node was bought for it. Kubelets before 1.36 say nothing of a first image that is pulled for a quarter of an hour.
#[test]
fn the_time_for_its_volume_counts_from_when_a_pod_has_a_node_and_is_long_enough_for_an_image() {
    let scheduled =
        json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T12:15:00Z"});
    let status = json!({"phase": "Pending", "conditions": [scheduled]});
    let seen = with_pod(&json!({"nodeName": "n", "containers": []}), &status);
    let seen = baseline_ended(seen, 0);
    assert!(plan(&seen, &settings(), at(1_020)).status.message.unwrap().contains("none of its containers"));
    assert_eq!(plan(&seen, &settings(), at(2_699)).status.phase, Some(Phase::Running));
    assert_eq!(plan(&seen, &settings(), at(2_700)).status.phase, Some(Phase::Failed));
}

/// It is created again when the claim is there.
#[test]
fn a_claim_that_is_gone_gives_the_gpus_back() {
    let mut seen = observed(evaluation(&json!({"output": {"claimName": "mine"}})));
    seen.claims.insert("mine".to_owned(), Some(Arc::default()));
    seen = with_status(seen, &planned(&observed(evaluation(&json!({"output": {"claimName": "mine"}})))));
    seen.baseline = own("ab-baseline", &ready());
    assert_eq!(names(&planned(&seen)).0, ["server ab-baseline", "job ab-baseline-0"]);
    seen.claims.insert("mine".to_owned(), None);
    let gone = planned(&seen);
    assert_eq!(names(&gone), (vec![], vec!["server ab-baseline".to_owned()]));
    assert_eq!(said(&gone, conditions::STALLED), is("True", reasons::CLAIM_NOT_FOUND));
}
