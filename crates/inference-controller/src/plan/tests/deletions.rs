//! Pods that leave lost nodes, in whole plans.

use runtime::reconcile::Decision;
use workload::{
    faults::stranded::Nodes,
    views::node::{LossKind, NodeLoss},
};

use super::*;
use crate::plan::{Doubt, plan, refused};

/// Two replicas; gpu-1, the node of pod b, has been unreachable for so long.
fn scene(for_seconds: i64) -> Scene {
    let mut scene = Scene::ready(2);
    scene.pods(&["{name: a, ready: true, node: gpu-0}", "{name: b, ready: true, node: gpu-1}"]);
    scene.write_status();
    let (since, reported) = (at(-for_seconds), at(-for_seconds));
    let lost = NodeLoss { kind: LossKind::Unreachable, since, reported };
    scene.observe(|observed| {
        observed.nodes =
            Nodes { lost: [("gpu-1".to_owned(), lost)].into(), down: 1, all: 4, is_stale: false };
    });
    scene
}

fn allow(scene: &mut Scene, pods: &[&str], requeue_after: Option<Duration>) {
    let pods = pods.iter().map(|&pod| pod.to_owned()).collect();
    scene.observe(|observed| observed.allowance = Some(Allowance { pods, requeue_after }));
}

fn decided(scene: &Scene) -> Result<Plan, Doubt> {
    match plan(&scene.observed(), &defaults(&[]), at(0)) {
        Decision::Plan(plan) => Ok(plan),
        Decision::Doubt(doubt) => Err(doubt),
    }
}

fn deleted(plan: &Plan) -> Vec<&str> {
    plan.deletions.iter().filter_map(|deletion| deletion.pod.metadata.name.as_deref()).collect()
}

fn migrated(plan: &Plan) -> Vec<&str> {
    plan.status.migrations.iter().map(|migration| &*migration.pod).collect()
}

#[test]
fn a_plan_deletes_the_pod_on_a_lost_node_and_describes_the_state_after_that() {
    let mut scene = scene(30);
    allow(&mut scene, &["b"], None);
    let mut plan = decided(&scene).unwrap();
    // The children have a snapshot of their own.
    assert_eq!(plan.children.len(), 4);
    plan.children.clear();
    plan.unless_deleted.as_mut().unwrap().children.clear();
    insta::assert_yaml_snapshot!(plan);
}

#[test]
fn the_pace_is_asked_only_for_pods_whose_time_has_come() {
    assert!(decided(&scene(29)).unwrap().deletions.is_empty());
    assert_eq!(decided(&scene(30)).unwrap_err(), Doubt::Pace { due: vec!["b".to_owned()], now: at(0) });
    let mut behind = scene(30);
    behind.observe(|observed| observed.deployment.as_mut().unwrap().generation = Some("9".into()));
    assert_eq!(decided(&behind).unwrap_err(), Doubt::Object, "nothing is granted on what may be out of date");
}

#[test]
fn a_pod_that_the_pace_does_not_allow_yet_is_kept_and_looked_at_again() {
    let mut scene = scene(30);
    allow(&mut scene, &[], Some(Duration::from_secs(7)));
    let plan = decided(&scene).unwrap();
    assert_eq!((deleted(&plan), plan.unless_deleted.is_none()), (vec![], true));
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(7)));
}

#[test]
fn an_invalid_spec_keeps_no_pod_on_a_lost_node() {
    let mut scene = scene(30);
    scene.edit_spec(|spec| spec.model_source = "nonsense".to_owned());
    allow(&mut scene, &["b"], None);
    let plan = decided(&scene).unwrap();
    assert_eq!((deleted(&plan), migrated(&plan)), (vec!["b"], vec!["b"]));
    assert_eq!(reason_of(&plan, conditions::ACCEPTED), ("False", reasons::INVALID_SPEC));
    assert!(plan.children.is_empty() && plan.facts.is_none());
}

#[test]
fn without_the_deletion_the_status_reports_no_migration() {
    let mut scene = scene(30);
    allow(&mut scene, &["b"], None);
    let plan = decided(&scene).unwrap();
    assert_eq!(migrated(&plan), ["b"]);
    let kept = plan.unless_deleted.as_deref().unwrap();
    assert_eq!((kept.deletions.len(), migrated(kept), kept.status.replicas), (0, vec![], 2));
    assert_eq!(kept.children.len(), 4, "a failed deletion keeps no child from being applied");
}

#[test]
fn a_refused_deletion_is_reported_and_retried_after_a_minute() {
    let mut scene = scene(30);
    allow(&mut scene, &["b"], None);
    let plan = decided(&scene).unwrap();
    // As it is observed then: nothing was granted for this observation.
    scene.observe(|observed| observed.allowance = None);
    let denied = Refusal::Denied("no".into());
    let reported = refused(&denied, &plan, &scene.observed(), &defaults(&[]), at(0));
    assert_eq!(reason_of(&reported, conditions::READY), ("False", reasons::DENIED));
    assert_eq!((deleted(&reported), migrated(&reported)), (vec![], vec![]));
    assert_eq!(reported.requeue_after, Some(Duration::from_secs(60)));
    assert_eq!(reported.facts, None, "those that the refused plan has noted stay");

    scene.edit_spec(|spec| spec.model_source = "nonsense".to_owned());
    let reported = refused(&denied, &plan, &scene.observed(), &defaults(&[]), at(0));
    assert_eq!(reason_of(&reported, conditions::READY), ("False", reasons::INVALID_SPEC));
    assert_eq!(reported.requeue_after, Some(Duration::from_secs(60)));
}

#[test]
fn a_revision_whose_last_pod_is_deleted_is_gone() {
    let mut scene = scene(30);
    scene.roll();
    scene.pods(&["{name: c, ready: true, node: gpu-2}"]);
    let nodes = scene.observed().nodes;
    scene.observe(|observed| {
        observed.older[0].pods.retain(|pod| pod.name() == "b");
        observed.crashes = [("b".to_owned(), Crash::Unread), ("c".to_owned(), Crash::Unread)].into();
        observed.nodes = nodes;
    });
    let observed = scene.observed();
    allow(&mut scene, &["b"], None);
    let plan = decided(&scene).unwrap();
    let left = observed.without(plan.deletions.iter().map(super::super::PodDeletion::record));
    assert!(left.older.is_empty());
    assert_eq!(left.pods().map(|pod| pod.name()).collect::<Vec<_>>(), ["c"]);
    assert_eq!(left.crashes.keys().collect::<Vec<_>>(), ["c"]);
    assert_eq!(left.unrecorded.iter().map(|migration| &*migration.pod).collect::<Vec<_>>(), ["b"]);
}

/// The Deployment's record was edited. Its pods belong to older revisions; the template of one of them is in the status.
fn edit_record(scene: &mut Scene, reported: &[&str], other: &[&str]) {
    scene.observe(|observed| {
        let deployment = observed.deployment.as_mut().unwrap();
        let template = deployment.pinned_template.take().unwrap();
        let resolved = deployment.resolved.clone().unwrap();
        let with_image = |image: &str| Arc::<str>::from(template.replace("vllm/vllm-openai", image));
        let older = |template: Arc<str>, pods: &[&str]| {
            let rendered = TemplateRecord { resolved: resolved.clone(), template, token_account: None };
            let revision = ReplicaSetView { rendered: Some(Box::new(rendered)), ..ReplicaSetView::default() };
            let pods = pods.iter().map(|parts| Arc::new(crate::tests::pod(parts))).collect();
            OlderRevision { revision: Arc::new(revision), pods }
        };
        observed.older = vec![older(with_image("other/vllm"), other), older(template.clone(), reported)];
        observed.older.retain(|older| !older.pods.is_empty());
        observed.deployed = Some(Vec::new());
        deployment.pinned_template = Some(with_image("edited/vllm"));
    });
}

fn due_in(doubt: Doubt) -> Option<Vec<String>> {
    match doubt {
        Doubt::Object | Doubt::Endpoint => None,
        Doubt::Pace { due, now: _ } => Some(due),
    }
}

#[test]
fn what_only_the_due_pods_restore_delays_no_deletion() {
    let mut scene = scene(30);
    edit_record(&mut scene, &["{name: b, ready: true, node: gpu-1}"], &[]);
    assert_eq!(decided(&scene).map(drop).map_err(due_in), Err(Some(vec!["b".to_owned()])));
    allow(&mut scene, &["b"], None);
    let plan = decided(&scene).unwrap();
    assert_eq!((deleted(&plan), plan.children.len()), (vec!["b"], 4));
    let kept = plan.unless_deleted.unwrap();
    assert!(
        kept.children.is_empty() && kept.events.is_empty(),
        "it would restore for what may be out of date"
    );
    assert_eq!(Some(&kept.status), scene.observed().inference.status.as_ref());

    scene.observe(|observed| observed.is_newest = true);
    assert_eq!(decided(&scene).unwrap().unless_deleted.unwrap().children.len(), 4);
    scene.observe(|observed| observed.is_newest = false);
    allow(&mut scene, &[], None);
    assert_eq!(decided(&scene).unwrap_err(), Doubt::Object, "nothing is deleted, so b restores");
}

#[test]
fn the_pace_is_asked_last() {
    let mut scene = scene(30);
    // As long as b exists, its revision has the most ready pods.
    edit_record(&mut scene, &["{name: a, node: gpu-0}"], &["{name: b, ready: true, node: gpu-1}"]);
    assert_eq!(decided(&scene).unwrap_err(), Doubt::Object);
    scene.observe(|observed| observed.is_newest = true);
    assert_eq!(decided(&scene).map(drop).map_err(due_in), Err(Some(vec!["b".to_owned()])));
    allow(&mut scene, &["b"], None);
    let plan = decided(&scene).unwrap();
    assert_eq!((deleted(&plan), plan.children.len()), (vec!["b"], 4));
}

#[test]
fn a_pace_that_allows_one_pod_of_two_is_used_and_the_rest_is_planned_at_once() {
    let mut scene = scene(30);
    edit_record(&mut scene, &["{name: a, node: gpu-1}"], &["{name: b, ready: true, node: gpu-1}"]);
    let both = Err(Some(vec!["b".to_owned(), "a".to_owned()]));
    assert_eq!(decided(&scene).map(drop).map_err(due_in), both);
    allow(&mut scene, &["b"], Some(Duration::from_secs(10)));
    let plan = decided(&scene).unwrap();
    assert_eq!((deleted(&plan), plan.children.len()), (vec!["b"], 0));
    assert_eq!(Some(&plan.status), scene.observed().inference.status.as_ref());
    assert_eq!(plan.requeue_after, Some(Duration::ZERO), "what is left has to be asked for");
}
