//! What becomes of the pods of one AIInference that are on lost nodes, and what the status says of it. Pure.

use std::time::Duration;

use api::{aiinference::Migration, reasons};
use jiff::Timestamp;
use runtime::{
    conditions::whole_seconds,
    events::{Note, Severity},
};

use workload::{
    pace::Allowance,
    revision::Revision,
    stranded::{Stranded, StrandedPods, Terms},
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

/// In the status.
const MIGRATIONS_KEPT: usize = 10;

/// uids of the pods that may be replaced now, if the pace allows it; in the order in which they go.
pub(crate) fn due<'a>(valid: &ValidInference, observed: &'a Observed, now: Timestamp) -> Vec<&'a str> {
    stranded(valid, observed, now).due()
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
    let leaving = allowance.into_iter().flat_map(|allowance| stranded.leaving(allowance));
    let deletions: Vec<Deletion> = leaving.map(|stranded| deletion(stranded, now)).collect();
    Moves {
        under_way: !deletions.is_empty() || migrations_are_under_way(valid, revision, observed),
        deletions,
        waits_for: stranded.waits_for(allowance),
        migrations: settled(observed),
        look_again: stranded.look_again(allowance),
    }
}

fn stranded<'a>(valid: &ValidInference, observed: &'a Observed, now: Timestamp) -> StrandedPods<'a> {
    let terms = Terms { patience: valid.node_failure, is_paused: valid.pods.paused, container: ENGINE };
    StrandedPods::of(observed.pods(), &observed.nodes, &terms, now)
}

fn deletion(stranded: &Stranded<'_>, now: Timestamp) -> Deletion {
    let (severity, reason, message) = (Severity::Warning, stranded.reason(), stranded.message());
    Deletion::LostPod {
        pod: Box::new(stranded.identity()),
        migration: Box::new(Migration {
            pod: stranded.pod.name().to_owned(),
            from_node: stranded.node.to_owned(),
            to_node: None,
            reason: reason.to_owned(),
            time: Some(whole_seconds(now)),
        }),
        note: Note { severity, reason, message },
    }
}

/// Adds a migration to those of a status.
pub(crate) fn record(migrations: &mut Vec<Migration>, new: Migration) {
    migrations.push(new);
    let surplus = migrations.len().saturating_sub(MIGRATIONS_KEPT);
    migrations.drain(..surplus);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::conditions;

    use workload::{
        node::{Loss, Lost},
        stranded::Nodes,
    };

    use crate::{
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
    fn a_pod_on_a_node_that_does_not_answer_is_not_counted_as_ready() {
        let status = plan(&scene(Loss::Unreachable, 1), &allowing(&[], None)).status;
        assert_eq!((status.ready_replicas, status.updated_ready_replicas), (1, 1));
        let ready = status.conditions.iter().find(|c| c.type_ == conditions::READY).unwrap();
        let message = "node gpu-1 does not answer; pod b is replaced unless the node comes back";
        assert_eq!((ready.reason.as_str(), ready.message.as_str()), (reasons::MIGRATING, message));
    }

    #[test]
    fn a_pod_stays_until_the_children_are_accepted() {
        let observed = scene(Loss::Unreachable, 1).observed();
        let valid = validate(&observed.model).unwrap();
        let conflict = runtime::refusal::Refusal::OwnershipConflict("no".into());
        let refused = super::super::refused(&conflict, &valid, &observed, &defaults(&[]), at(0)).status;
        let progressing = refused.conditions.iter().find(|c| c.type_ == conditions::PROGRESSING).unwrap();
        assert!(progressing.message.ends_with("pod b stays until the children are accepted"));
    }

    #[test]
    fn pods_of_an_older_revision_are_replaced_too() {
        let mut scene = scene(Loss::Unreachable, 30);
        scene.roll();
        lose(&mut scene, Loss::Unreachable, 30, 1);
        assert_eq!(due_in(&scene), ["b"]);
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
