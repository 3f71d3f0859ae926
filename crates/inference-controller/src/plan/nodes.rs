//! Pods on nodes that are lost: which of them are replaced, when, and what the status says of it. Pure.
//!
//! A pod is deleted as a user would do it, never by force: on a node that is only cut off it may still run. Its
//! ReplicaSet makes another one at once; the old one stays `Terminating` until its node is back or is declared dead. A
//! pod that is ready on a node whose kubelet still reports is left alone: it serves.

use std::time::Duration;

use api::{aiinference::Migration, reasons};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use runtime::{
    conditions::whole_seconds,
    events::{Note, Severity},
};

use workload::{
    node::{Loss, Lost},
    pace::Allowance,
    pod::PodView,
    revision::Revision,
};

use super::{Deletion, pod::ENGINE};
use crate::{observe::Observed, validate::ValidInference};

/// What is done about the lost nodes under one AIInference.
#[derive(Debug, Default)]
pub(super) struct Moves {
    pub(super) deletions: Vec<Deletion>,
    /// Those of the status, with the nodes that replacements have found.
    pub(super) migrations: Vec<Migration>,
    /// A pod has left its node, and its replacement does not serve yet.
    pub(super) under_way: bool,
    /// Which pods will be replaced, if their nodes do not come back.
    pub(super) waits_for: Option<String>,
    pub(super) look_again: Option<Duration>,
}

/// A pod on a lost node.
struct Stranded<'a> {
    pod: &'a PodView,
    node: &'a str,
    lost: Lost,
    /// How much longer its node may take to come back.
    left: Duration,
}

/// When so many nodes are down, it is more likely that the control plane is cut off than that they are dead. Kubernetes
/// itself stops evicting from a zone at the same share.
const TOO_MANY_DOWN_PERCENT: usize = 55;
/// A node that comes back starts no reconcile of objects with pods on the others.
const LOOK_AGAIN_WHILE_TOO_MANY_ARE_DOWN: Duration = Duration::from_secs(10);
/// Nodes and pods are watched apart: a node may be seen after the first pod on it.
const NODES_ARE_SEEN_WITHIN: Duration = Duration::from_secs(5);
/// In the status.
const MIGRATIONS_KEPT: usize = 10;

/// uids of the pods that may be replaced now, if the pace allows it; in the order in which they go.
pub(crate) fn due<'a>(valid: &ValidInference, observed: &'a Observed, now: Timestamp) -> Vec<&'a str> {
    if valid.pods.paused || too_many_are_down(observed) || observed.nodes.is_blind {
        return Vec::new();
    }
    let due = stranded(valid, observed, now).into_iter().filter(|stranded| stranded.left.is_zero());
    due.map(|stranded| stranded.pod.uid()).collect()
}

/// `allowance`: `None` while the API server refuses the children.
pub(super) fn moves(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
    allowance: Option<&Allowance>,
    now: Timestamp,
) -> Moves {
    let stranded = stranded(valid, observed, now);
    let is_allowed = |pod: &PodView| allowance.is_some_and(|allowance| allowance.pods.contains(pod.uid()));
    let (go, stay): (Vec<&Stranded<'_>>, Vec<&Stranded<'_>>) =
        stranded.iter().partition(|stranded| is_allowed(stranded.pod));
    let look_again = if stay.is_empty() || valid.pods.paused {
        None
    } else if too_many_are_down(observed) || observed.nodes.is_blind {
        Some(LOOK_AGAIN_WHILE_TOO_MANY_ARE_DOWN)
    } else {
        let waits = stay.iter().map(|stranded| stranded.left).filter(|left| !left.is_zero());
        waits.chain(allowance.and_then(|allowance| allowance.look_again)).min()
    };
    let deletion = |stranded: &&Stranded<'_>| Deletion::LostPod {
        pod: Box::new(identity(stranded.pod)),
        migration: Box::new(migration(stranded, now)),
        note: note(stranded),
    };
    Moves {
        deletions: go.iter().map(deletion).collect(),
        under_way: !go.is_empty() || migrations_are_under_way(valid, revision, observed),
        waits_for: stay.first().map(|first| waiting(first, outlook(valid, observed, allowance))),
        migrations: settled(observed),
        look_again,
    }
}

/// Adds a migration to those of a status.
pub(crate) fn record(migrations: &mut Vec<Migration>, new: Migration) {
    migrations.push(new);
    let surplus = migrations.len().saturating_sub(MIGRATIONS_KEPT);
    migrations.drain(..surplus);
}

fn stranded<'a>(valid: &ValidInference, observed: &'a Observed, now: Timestamp) -> Vec<Stranded<'a>> {
    let stranded = observed.pods().filter_map(|pod| {
        let node = pod.node.as_deref()?;
        let lost = *observed.nodes.lost.get(node)?;
        // It serves: its kubelet reports it, or has reported it after the node was last seen to be lost.
        let came_back = pod.ready_turned.is_some_and(|turned| turned > lost.reported);
        if lost.how == Loss::NotReady && serves(pod) || pod.is_ready && came_back {
            return None;
        }
        let patience = match lost.how {
            Loss::NotReady | Loss::Unreachable => valid.node_failure,
            Loss::Deleted => valid.node_failure.max(NODES_ARE_SEEN_WITHIN),
        };
        // Clock skew can make this negative; treat it as zero.
        let gone_for = Duration::try_from(now.duration_since(lost.since)).unwrap_or_default();
        Some(Stranded { pod, node, lost, left: patience.saturating_sub(gone_for) })
    });
    stranded.collect()
}

/// As its kubelet says it of the engine. When a node ceases to be ready, the control plane takes the condition Ready from
/// all pods on it, and their kubelet gives it back up to ten seconds later.
fn serves(pod: &PodView) -> bool {
    pod.is_ready || pod.container(ENGINE).is_some_and(|engine| engine.ready)
}

fn too_many_are_down(observed: &Observed) -> bool {
    observed.nodes.down * 100 > observed.nodes.all * TOO_MANY_DOWN_PERCENT
}

/// Those that the status has already, with the nodes that their replacements have found since.
fn settled(observed: &Observed) -> Vec<Migration> {
    let mut migrations = observed.model.status.clone().unwrap_or_default().migrations;
    let Some(first) = migrations.iter().filter(|reported| reported.to_node.is_none()).filter_map(time).min()
    else {
        return migrations;
    };
    let mut replacements: Vec<(Timestamp, &str, &str)> = observed
        .pods()
        .filter_map(|pod| Some((pod.created()?, pod.name(), pod.node.as_deref()?)))
        .filter(|(created, ..)| *created >= first)
        .collect();
    replacements.sort_unstable();
    // A replacement that is reported already is not reported twice.
    for reported in migrations.iter().filter(|reported| time(reported) >= Some(first)) {
        let known = replacements.iter().position(|(.., node)| reported.to_node.as_deref() == Some(node));
        known.map(|known| replacements.remove(known));
    }
    let mut replacements = replacements.into_iter();
    for reported in migrations.iter_mut().filter(|reported| reported.to_node.is_none()) {
        reported.to_node = replacements.next().map(|(.., node)| node.to_owned());
    }
    migrations
}

fn time(migration: &Migration) -> Option<Timestamp> {
    migration.time.as_ref().map(|time| time.0)
}

/// From the first deletion until every replica of this revision is ready again.
fn migrations_are_under_way(valid: &ValidInference, revision: &Revision<'_>, observed: &Observed) -> bool {
    let complete = i32::try_from(revision.ready().count()).unwrap_or(i32::MAX) >= valid.replicas;
    let Some(status) = observed.model.status.as_ref().filter(|_| !complete) else { return false };
    status.conditions.iter().any(|condition| condition.reason == reasons::MIGRATING)
}

fn migration(stranded: &Stranded<'_>, now: Timestamp) -> Migration {
    Migration {
        pod: stranded.pod.name().to_owned(),
        from_node: stranded.node.to_owned(),
        to_node: None,
        reason: reason(stranded.lost.how).to_owned(),
        time: Some(whole_seconds(now)),
    }
}

fn note(stranded: &Stranded<'_>) -> Note {
    Note {
        severity: Severity::Warning,
        reason: reason(stranded.lost.how),
        message: format!("node {} {}; pod {} is replaced", stranded.node, how(stranded), stranded.pod.name()),
    }
}

fn waiting(stranded: &Stranded<'_>, outlook: &str) -> String {
    format!("node {} {}; pod {} {outlook}", stranded.node, how(stranded), stranded.pod.name())
}

/// What becomes of a pod that is still on a lost node.
fn outlook(valid: &ValidInference, observed: &Observed, allowance: Option<&Allowance>) -> &'static str {
    if valid.pods.paused {
        "stays while spec.paused is set"
    } else if allowance.is_none() {
        "stays until the children are accepted"
    } else if too_many_are_down(observed) {
        "stays while most nodes are down, because the control plane may be cut off"
    } else if observed.nodes.is_blind {
        "stays while nodes or pods cannot be watched"
    } else {
        "is replaced unless the node comes back"
    }
}

fn how(stranded: &Stranded<'_>) -> &'static str {
    match stranded.lost.how {
        Loss::NotReady => "is not ready",
        Loss::Unreachable => "does not answer",
        Loss::Deleted => "was deleted",
    }
}

fn reason(loss: Loss) -> &'static str {
    match loss {
        Loss::NotReady => reasons::NODE_NOT_READY,
        Loss::Unreachable => reasons::NODE_UNREACHABLE,
        Loss::Deleted => reasons::NODE_DELETED,
    }
}

/// What a deletion needs, so that it reaches this very pod as it was seen.
fn identity(pod: &PodView) -> Pod {
    let ObjectMeta { name, namespace, uid, resource_version, .. } = pod.metadata.clone();
    Pod {
        metadata: ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() },
        ..Pod::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::conditions;

    use crate::{
        observe::Nodes,
        tests::{Scene, at, defaults},
        validate::validate,
    };

    use super::*;

    /// Two replicas on gpu-0 and gpu-1; gpu-1 has been lost for so many seconds.
    fn scene(how: Loss, for_seconds: i64) -> Scene {
        let mut scene = Scene::ready(2);
        scene.pods(&["{name: a, ready: true, node: gpu-0}", "{name: b, ready: true, node: gpu-1}"]);
        scene.write_status();
        lose(&mut scene, how, for_seconds, 1);
        scene
    }

    /// gpu-1 is one of so many nodes of four that are down.
    fn lose(scene: &mut Scene, how: Loss, for_seconds: i64, down: usize) {
        let lost = Lost { how, since: at(-for_seconds), reported: at(-for_seconds) };
        scene.observe(|observed| {
            observed.nodes =
                Nodes { lost: [("gpu-1".to_owned(), lost)].into(), down, all: 4, is_blind: false };
        });
    }

    fn due_in(scene: &Scene) -> Vec<String> {
        let observed = scene.observed();
        let valid = validate(&observed.model).unwrap();
        due(&valid, &observed, at(0)).into_iter().map(str::to_owned).collect()
    }

    fn allowing(pods: &[&str], look_again: Option<u64>) -> Allowance {
        Allowance {
            pods: pods.iter().map(|&pod| pod.to_owned()).collect(),
            look_again: look_again.map(Duration::from_secs),
        }
    }

    fn plan(scene: &Scene, allowance: &Allowance) -> super::super::Plan {
        let observed = scene.observed();
        let valid = validate(&observed.model).unwrap();
        super::super::plan(&valid, &observed, allowance, &defaults(&[]), at(0))
    }

    /// The status after all deletions were accepted.
    fn applied(plan: super::super::Plan) -> api::aiinference::AIInferenceStatus {
        let mut status = plan.status;
        for deletion in plan.deletions {
            let Deletion::LostPod { migration, .. } = deletion else { panic!("{deletion:?}") };
            record(&mut status.migrations, *migration);
        }
        status
    }

    fn deleted(plan: &super::super::Plan) -> Vec<&str> {
        let names = plan.deletions.iter().map(|deletion| match deletion {
            Deletion::LostPod { pod, .. } => pod.metadata.name.as_deref().unwrap(),
            Deletion::PodDisruptionBudget(_) => panic!("{deletion:?}"),
        });
        names.collect()
    }

    #[test]
    fn a_pod_is_due_when_its_node_has_been_lost_for_as_long_as_the_user_says() {
        assert_eq!(due_in(&scene(Loss::Unreachable, 29)), [""; 0]);
        assert_eq!(due_in(&scene(Loss::Unreachable, 30)), ["b"]);
        let look_again =
            |seconds| plan(&scene(Loss::Unreachable, seconds), &allowing(&[], None)).requeue_after;
        assert_eq!(look_again(12), Some(Duration::from_secs(18)), "the very moment");
    }

    #[test]
    fn a_ready_pod_on_a_node_whose_kubelet_still_reports_is_left_alone() {
        let mut scene = scene(Loss::NotReady, 900);
        assert_eq!(due_in(&scene), [""; 0]);
        let kept = plan(&scene, &allowing(&[], None));
        assert_eq!((kept.status.ready_replicas, kept.requeue_after), (2, None));
        scene.pods(&["{name: a, ready: true, node: gpu-0}", "{name: b, node: gpu-1}"]);
        assert_eq!(due_in(&scene), ["b"], "one that does not serve is replaced");
        let marked = "{name: b, node: gpu-1, containers: [{name: engine, ready: true}]}";
        scene.pods(&["{name: a, ready: true, node: gpu-0}", marked]);
        assert_eq!(due_in(&scene), [""; 0], "the condition is taken from it when its node is not ready");
        lose(&mut scene, Loss::Unreachable, 900, 1);
        assert_eq!(due_in(&scene), ["b"], "of a node that does not answer it says nothing");
    }

    #[test]
    fn a_pod_on_a_node_that_does_not_answer_is_not_counted_as_ready() {
        let status = plan(&scene(Loss::Unreachable, 1), &allowing(&[], None)).status;
        assert_eq!((status.ready_replicas, status.updated_ready_replicas), (1, 1));
        let ready = status.conditions.iter().find(|c| c.type_ == conditions::READY).unwrap();
        let message = "node gpu-1 does not answer; pod b is replaced unless the node comes back";
        assert_eq!((ready.reason.as_str(), ready.message.as_str()), (reasons::MIGRATING, message));
    }

    #[test]
    fn a_pod_that_stays_for_now_is_not_said_to_be_replaced() {
        let said = |edit: fn(&mut Scene)| {
            let mut scene = scene(Loss::Unreachable, 1);
            edit(&mut scene);
            let status = plan(&scene, &allowing(&[], None)).status;
            status.conditions.into_iter().find(|c| c.type_ == conditions::READY).unwrap().message
        };
        assert!(said(|_| ()).ends_with("pod b is replaced unless the node comes back"));
        let paused = said(|scene| scene.edit_spec(|spec| spec.pods.paused = true));
        assert!(paused.ends_with("pod b stays while spec.paused is set"), "{paused}");
        let down = said(|scene| lose(scene, Loss::Unreachable, 1, 3));
        assert!(
            down.ends_with("pod b stays while most nodes are down, because the control plane may be cut off")
        );
        let blind = said(|scene| scene.observe(|observed| observed.nodes.is_blind = true));
        assert!(blind.ends_with("pod b stays while nodes or pods cannot be watched"));
        let observed = scene(Loss::Unreachable, 1).observed();
        let valid = validate(&observed.model).unwrap();
        let conflict = runtime::refusal::Refusal::OwnershipConflict("no".into());
        let refused = super::super::refused(&conflict, &valid, &observed, &defaults(&[]), at(0)).status;
        let progressing = refused.conditions.iter().find(|c| c.type_ == conditions::PROGRESSING).unwrap();
        assert!(progressing.message.ends_with("pod b stays until the children are accepted"));
    }

    #[test]
    fn a_deleted_node_gets_a_moment_to_be_seen() {
        let mut quick = scene(Loss::Deleted, 4);
        quick.edit_spec(|spec| spec.node_failure_seconds = 0);
        assert_eq!(due_in(&quick), [""; 0]);
        lose(&mut quick, Loss::Deleted, 5, 1);
        assert_eq!(due_in(&quick), ["b"]);
    }

    #[test]
    fn pods_of_an_older_revision_are_replaced_too() {
        let mut scene = scene(Loss::Unreachable, 30);
        scene.roll();
        lose(&mut scene, Loss::Unreachable, 30, 1);
        assert_eq!(due_in(&scene), ["b"]);
    }

    #[test]
    fn nothing_is_due_while_more_than_55_percent_of_the_nodes_are_down() {
        let mut scene = scene(Loss::Unreachable, 900);
        lose(&mut scene, Loss::Unreachable, 900, 2);
        assert_eq!(due_in(&scene), ["b"]);
        lose(&mut scene, Loss::Unreachable, 900, 3);
        assert_eq!(due_in(&scene), [""; 0]);
        assert_eq!(plan(&scene, &allowing(&[], None)).requeue_after, Some(Duration::from_secs(10)));
    }

    #[test]
    fn nothing_is_due_while_nodes_or_pods_cannot_be_watched() {
        let mut scene = scene(Loss::Unreachable, 900);
        scene.observe(|observed| observed.nodes.is_blind = true);
        assert_eq!(due_in(&scene), [""; 0]);
    }

    #[test]
    fn a_pod_that_was_seen_ready_after_its_node_was_lost_is_left_alone() {
        let mut scene = scene(Loss::Unreachable, 900);
        let ready = format!(
            "{{name: b, node: gpu-1, conditions: [{{type: Ready, status: 'True', lastTransitionTime: '{}'}}]}}",
            at(-100)
        );
        scene.pods(&["{name: a, ready: true, node: gpu-0}", &ready]);
        assert_eq!(due_in(&scene), [""; 0]);
        // Its node reported NotReady then, and has fallen silent since.
        scene.observe(|observed| {
            observed.nodes.lost.values_mut().for_each(|lost| lost.reported = at(-99));
        });
        assert_eq!(due_in(&scene), ["b"]);
    }

    #[test]
    fn nothing_is_due_of_what_is_paused() {
        let mut scene = scene(Loss::Unreachable, 900);
        scene.edit_spec(|spec| spec.pods.paused = true);
        assert_eq!(due_in(&scene), [""; 0]);
        lose(&mut scene, Loss::Unreachable, 12, 1);
        assert_eq!(plan(&scene, &allowing(&[], None)).requeue_after, None);
    }

    #[test]
    fn what_may_go_goes_and_is_reported() {
        let plan = plan(&scene(Loss::Unreachable, 30), &allowing(&["b"], None));
        assert_eq!(deleted(&plan), ["b"]);
        let [Deletion::LostPod { migration: told, note, .. }] = plan.deletions.as_slice() else {
            panic!("one")
        };
        assert_eq!(plan.status.migrations, [], "it is not recorded before it has happened");
        assert_eq!((told.pod.as_str(), told.from_node.as_str(), &told.to_node), ("b", "gpu-1", &None));
        assert_eq!((told.reason.as_str(), time(told)), (reasons::NODE_UNREACHABLE, Some(at(0))));
        let progressing = plan.status.conditions.iter().find(|c| c.type_ == conditions::PROGRESSING).unwrap();
        assert_eq!((progressing.status.as_str(), progressing.reason.as_str()), ("True", reasons::MIGRATING));
        assert_eq!(note.message, "node gpu-1 does not answer; pod b is replaced");
    }

    #[test]
    fn what_must_wait_for_others_waits_until_it_may_go() {
        let plan = plan(&scene(Loss::Unreachable, 30), &allowing(&[], Some(7)));
        assert!(plan.deletions.is_empty() && plan.status.migrations.is_empty());
        assert_eq!(plan.requeue_after, Some(Duration::from_secs(7)));
    }

    #[test]
    fn it_migrates_until_the_replacement_serves_and_the_node_that_it_found_is_reported() {
        let mut scene = scene(Loss::Unreachable, 30);
        let gone = applied(plan(&scene, &allowing(&["b"], None)));
        scene.observe(|observed| Arc::make_mut(&mut observed.model).status = Some(gone));
        let progress = |scene: &Scene| {
            let status = plan(scene, &allowing(&[], None)).status;
            let reason = |type_| status.conditions.iter().find(|c| c.type_ == type_).unwrap().reason.clone();
            (reason(conditions::PROGRESSING), status.migrations[0].to_node.clone())
        };
        let replacement = |more: &str| format!("{{name: c, created: '{}', {more}}}", at(1));
        let kept = "{name: a, ready: true, node: gpu-0, created: '2025-01-01T00:00:00Z'}";
        scene.pods(&[kept, &replacement("phase: Pending")]);
        assert_eq!(progress(&scene), ("Migrating".into(), None));
        scene.pods(&[kept, &replacement("node: gpu-2")]);
        assert_eq!(progress(&scene), ("Migrating".into(), Some("gpu-2".into())));
        scene.write_status();
        scene.pods(&[kept, &replacement("ready: true, node: gpu-2")]);
        assert_eq!(progress(&scene), ("Complete".into(), Some("gpu-2".into())));
    }

    #[test]
    fn a_replacement_that_is_reported_for_one_pod_is_not_reported_for_another() {
        let mut scene = scene(Loss::Unreachable, 30);
        let mut gone = applied(plan(&scene, &allowing(&["b"], None))).migrations;
        gone.push(gone[0].clone());
        gone[0].to_node = Some("gpu-2".into());
        scene.observe(|observed| {
            Arc::make_mut(&mut observed.model).status.as_mut().unwrap().migrations = gone;
        });
        scene.pods(&[&format!("{{name: c, node: gpu-2, created: '{}'}}", at(1))]);
        assert_eq!(plan(&scene, &allowing(&[], None)).status.migrations[1].to_node, None);
    }

    #[test]
    fn the_last_ten_migrations_are_kept() {
        let told = |index: usize| Migration {
            pod: index.to_string(),
            from_node: "gpu-9".into(),
            to_node: Some("gpu-8".into()),
            reason: reasons::NODE_DELETED.into(),
            time: Some(whole_seconds(at(-900))),
        };
        let mut kept: Vec<Migration> = (0..10).map(told).collect();
        record(&mut kept, told(10));
        let pods: Vec<&str> = kept.iter().map(|told| told.pod.as_str()).collect();
        assert_eq!(pods, ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]);
    }
}
