//! Claims of the output and of results: which can be used, and what is said of those that cannot.

use std::sync::Arc;

use api::{
    conditions, labels, reasons,
    trainingjob::{Phase, TrainingJobStatus},
};
use serde_json::{Value, json};
use workload::views::claim::ClaimView;

use super::{LORA, World, message_at, running};
use crate::{NAME, names, plan::Child, tests::job};

/// Asks for a size and a class.
const FAST: &str = "{model: m, dataset: d, method: lora, output: {size: 50Gi, storageClassName: fast}}";

/// The claim of the output as the controller makes it for FAST, with changes.
fn claim(changes: &[(&str, Value)]) -> Option<Arc<ClaimView>> {
    let labels = json!({labels::MANAGED_BY: NAME, labels::NAME: names::KIND, labels::INSTANCE: "qwen"});
    let mut claim = json!({
        "metadata": {"name": "qwen-output", "namespace": "demo", "labels": labels},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast",
            "resources": {"requests": {"storage": "51200Mi"}},
        },
        "status": {"phase": "Pending"},
    });
    for (path, value) in changes {
        *claim.pointer_mut(path).unwrap() = value.clone();
    }
    Some(Arc::new(serde_json::from_value(claim).unwrap()))
}

fn with(spec: &str, claim: Option<Arc<ClaimView>>) -> World {
    let mut world = World::new(spec);
    world.claims.insert("qwen-output".into(), claim);
    world.settles();
    world
}

fn being_deleted(world: &World) -> Option<Arc<ClaimView>> {
    let mut claim = ClaimView::clone(world.claims["qwen-output"].as_ref().unwrap());
    claim.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(crate::tests::at(0)));
    Some(Arc::new(claim))
}

#[test]
fn the_claim_of_an_earlier_job_of_the_name_is_used_if_it_is_the_same() {
    assert_eq!(with(FAST, claim(&[])).jobs(), ["qwen-1"]);
    assert_eq!(with(LORA, claim(&[])).jobs(), ["qwen-1"], "the class is left to the cluster");
}

#[test]
fn an_unbound_claim_of_another_class_size_or_mode_is_named_with_both_values() {
    for (path, value, words) in [
        ("/spec/storageClassName", json!("fsat"), "its storage class is fsat, where the spec has fast"),
        ("/spec/storageClassName", Value::Null, "its storage class is not set, where the spec has fast"),
        ("/spec/resources/requests/storage", json!("1Gi"), "its size is 1Gi, where the spec has 50Gi"),
        ("/spec/accessModes", json!(["ReadOnlyMany"]), "is ReadOnlyMany, where the spec has ReadWriteOnce"),
    ] {
        let mut world = with(FAST, claim(&[(path, value)]));
        assert_eq!((world.jobs(), world.outcome()), (vec![], (Phase::Pending, reasons::CLAIM_DIFFERS)));
        assert!(world.message().contains(words), "{}", world.message());
        assert!(
            world.message().contains("PersistentVolumeClaim demo/qwen-output")
                && world.message().contains("delete")
        );
        assert_eq!(world.condition(conditions::STALLED).0, "True");
        world.claims.insert("qwen-output".into(), None);
        world.settles();
        assert_eq!(world.jobs(), ["qwen-1"], "it was deleted");
    }
}

#[test]
fn a_bound_claim_that_is_too_small_is_used_and_named() {
    let small = [("/spec/resources/requests/storage", json!("1Gi")), ("/status/phase", json!("Bound"))];
    let world = with(FAST, claim(&small));
    assert_eq!((world.jobs(), world.condition(conditions::ACCEPTED).0), (vec!["qwen-1"], "True"));
    let accepted =
        world.status().conditions.iter().find(|known| known.type_ == conditions::ACCEPTED).unwrap();
    assert!(accepted.message.contains("it has 1Gi, where the spec has 50Gi"), "{}", accepted.message);
}

#[test]
fn a_claim_of_that_name_that_is_not_of_a_job_of_the_name_is_not_used() {
    for labels in
        [json!({}), json!({labels::MANAGED_BY: "helm", labels::NAME: names::KIND, labels::INSTANCE: "qwen"})]
    {
        let foreign = claim(&[("/metadata/labels", labels)]);
        let mut world = with(FAST, foreign.clone());
        assert_eq!((world.jobs(), world.outcome()), (vec![], (Phase::Pending, reasons::OWNERSHIP_CONFLICT)));
        assert!(world.message().contains("spec.output.claimName qwen-output"), "{}", world.message());
        world =
            with("{model: m, dataset: d, method: lora, output: {claimName: qwen-output}}", foreign.clone());
        assert_eq!(world.jobs(), ["qwen-1"], "the user names it");
        // A job that has begun there goes on.
        let mut world = World::training(LORA);
        world.claims.insert("qwen-output".into(), foreign);
        world.is_preempted(Some(5));
        assert_eq!(world.jobs(), ["qwen-1", "qwen-2"]);
    }
}

#[test]
fn a_claim_that_is_being_deleted_is_waited_for_and_made_anew() {
    let world = with(FAST, claim(&[]));
    let terminating = being_deleted(&world);
    let mut world = with(FAST, terminating);
    assert_eq!((world.jobs(), world.outcome()), (vec![], (Phase::Pending, reasons::UNSCHEDULABLE)));
    assert!(world.message().contains("demo/qwen-output is being deleted since"), "{}", world.message());
    assert!(world.requeue_after.is_some());
    world.claims.insert("qwen-output".into(), None);
    world.settles();
    assert_eq!(world.jobs(), ["qwen-1"]);
    assert!(world.claims["qwen-output"].is_some());
}

#[test]
fn a_claim_that_is_deleted_before_a_pod_has_a_node_is_made_again() {
    let makes_claim = |world: &World| {
        let children = world.plan().children;
        children.iter().any(|child| matches!(child, Child::Claim(_)))
    };
    let mut world = World::new(FAST);
    world.settles();
    assert!(!makes_claim(&world), "it is there");
    world.claims.insert("qwen-output".into(), None);
    assert!(makes_claim(&world));
    let waiting = json!({"node": null, "phase": "Pending"});
    world.pod(0, &waiting);
    assert!(makes_claim(&world));
    world.pod(0, &running());
    assert!(!makes_claim(&world), "the pod has mounted something");
    let mut world = World::new("{model: m, dataset: d, method: lora, output: {claimName: mine}}");
    let mine: ClaimView = serde_json::from_value(json!({"metadata": {"name": "mine"}})).unwrap();
    world.claims.insert("mine".into(), Some(Arc::new(mine)));
    world.settles();
    world.claims.insert("mine".into(), None);
    assert_eq!((world.jobs(), makes_claim(&world)), (vec!["qwen-1"], false), "it is the user's");
}

/// On two nodes, on top of the result of sft, whose claim is this.
fn on_two_nodes(claim: &Value) -> World {
    let spec = "{model: /outputs/sft, dataset: d, method: dpo, nodes: 2, outputDir: /outputs/dpo}";
    let mut sft = job("sft", "{model: m, dataset: d, method: full, outputDir: /outputs/sft}");
    sft.status = Some(TrainingJobStatus { phase: Some(Phase::Succeeded), ..TrainingJobStatus::default() });
    let mut world = World::new(spec);
    world.others = vec![Arc::new(sft)];
    let claim: Option<ClaimView> = serde_json::from_value(claim.clone()).unwrap();
    world.claims.insert("sft-output".into(), claim.map(Arc::new));
    world.settles();
    world
}

#[test]
fn a_result_in_a_claim_for_one_node_is_no_input_of_a_gang() {
    let of_modes = |modes: Value| json!({"metadata": {"name": "sft-output"}, "spec": {"accessModes": modes}});
    let world = on_two_nodes(&of_modes(json!(["ReadWriteOnce"])));
    assert_eq!((world.jobs(), world.outcome()), (vec![], (Phase::Pending, reasons::CLAIM_NOT_SHAREABLE)));
    assert!(
        world.message().contains("demo/sft-output is ReadWriteOnce; 2 nodes need"),
        "{}",
        world.message()
    );
    assert!(world.message().contains("set nodes to 1"), "{}", world.message());
    assert_eq!(on_two_nodes(&of_modes(json!(["ReadWriteMany"]))).jobs(), ["qwen-1"]);
}

#[test]
fn a_result_whose_claim_was_deleted_is_named() {
    let world = on_two_nodes(&Value::Null);
    assert_eq!((world.jobs(), world.outcome()), (vec![], (Phase::Pending, reasons::CLAIM_NOT_FOUND)));
    assert!(world.message().contains("result of TrainingJob sft"), "{}", world.message());
    let gone = json!({"metadata": {"name": "sft-output", "deletionTimestamp": "2026-01-01T00:00:00Z"},
                      "spec": {"accessModes": ["ReadWriteMany"]}});
    let world = on_two_nodes(&gone);
    assert_eq!((world.jobs(), world.outcome()), (vec![], (Phase::Pending, reasons::CLAIM_NOT_FOUND)));
    assert!(world.message().contains("is being deleted since"), "{}", world.message());
}

#[test]
fn a_job_that_has_ended_says_nothing_of_its_claim_any_more() {
    let mut world = World::training(FAST);
    world.succeeds(&message_at(Some(9)));
    world.claims.insert("qwen-output".into(), None);
    world.settles();
    assert_eq!(world.outcome(), (Phase::Succeeded, reasons::SUCCEEDED));
    assert!(world.plan().children.is_empty());
}

#[test]
fn the_scheduler_is_not_quoted_on_claims_that_have_a_volume_by_now() {
    for (phase, expected) in [("Pending", reasons::UNSCHEDULABLE), ("Bound", reasons::STARTING)] {
        let mut world = with(FAST, claim(&[("/status/phase", json!(phase))]));
        let why = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
        let scheduled =
            json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}]);
        world.pod(0, &json!({"phase": "Pending", "node": null, "conditions": scheduled}));
        world.settles();
        assert_eq!(world.condition("Scheduled"), ("False", expected), "{phase}");
    }
}

#[test]
fn a_volume_that_is_used_elsewhere_is_named_after_a_minute() {
    let mut world = World::new(LORA);
    world.settles();
    let pod = world.pod(0, &json!({"phase": "Pending"})).clone();
    let message = "Multi-Attach error for volume \"pvc-1\" Volume is already used by pod(s) other-0-abcde";
    let event = json!({
        "metadata": {"name": "e", "namespace": "demo"},
        "involvedObject": {"kind": "Pod", "namespace": "demo", "name": pod.name(), "uid": pod.uid()},
        "message": message, "lastTimestamp": "2026-01-01T00:00:01Z",
    });
    let event: Arc<workload::faults::event::EventView> = Arc::new(serde_json::from_value(event).unwrap());
    let failure =
        workload::faults::event::SetupFailure::of(&pod, &[event], &[], &Default::default()).unwrap();
    world.observed.unattached.insert(pod.uid().to_owned(), failure);
    world.settles();
    assert!(!world.message().contains("Multi-Attach"), "it may pass: {}", world.message());
    let waited = world.wakes();
    assert!((1..=60).contains(&waited), "{waited}");
    let expected = format!("pod {} on node node-0 waits for its volume: {message}", pod.name());
    assert_eq!((world.message(), world.status().ended_attempts), (expected.as_str(), 0));
    world.passes(600);
    assert_eq!(
        (world.failures(), world.status().retries),
        (vec![(reasons::VOLUME_NOT_ATTACHED, 1)], 0),
        "its GPUs are given back, and another attempt follows"
    );
}
