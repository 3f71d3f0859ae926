//! Replacement of the pods of one AIInference on lost nodes or with lost GPUs, and the migrations in its status. Pure.
//!
//! Pods are replaced even if the spec is invalid or children are refused. So only three fields of the spec are read here,
//! which the API server has validated.

use std::time::Duration;

use api::{aiinference::Migration, reasons};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use runtime::write::{
    conditions::whole_seconds,
    events::{Note, Severity},
};
use serde::Serialize;
use workload::{
    faults::{
        gpu_faults::{self, FaultyPods},
        migrations::{MOST_OF_ONE, PodMigration},
        pace::Allowance,
        stranded::{StrandedPods, Terms},
    },
    templates::revision::Revision,
    views::pod::PodView,
};

use crate::{names::ENGINE, observe::Observed, validate::ValidInference};

/// The deletion of a pod on a lost node or with a lost GPU.
#[derive(Debug, Serialize)]
pub(crate) struct PodDeletion {
    /// Its identity, as precondition.
    pub(crate) pod: Pod,
    /// What `Migrations` keeps of an accepted deletion.
    #[serde(skip)]
    pub(crate) migration: PodMigration,
    /// The event of an accepted deletion.
    pub(crate) note: Note,
}

impl PodDeletion {
    /// Which pod is gone after it, and why.
    pub(super) fn record(&self) -> (&str, &PodMigration) {
        (self.pod.metadata.uid.as_deref().unwrap_or_default(), &self.migration)
    }
}

/// How far the replacement of pods on lost nodes has progressed.
#[derive(Debug, Default)]
pub(super) struct MigrationState {
    /// A pod was deleted, and its replacement is not ready yet.
    pub(super) under_way: bool,
    /// A message about the first pod that is still on a lost node, or still has a lost GPU.
    pub(super) outlook: Option<String>,
}

/// The uids of the pods whose time has come, in the order in which `Pace` should allow them.
pub(super) fn due(observed: &Observed, now: Timestamp) -> Vec<&str> {
    let mut due = stranded(observed, now).due();
    due.extend(faulty(observed, now).due());
    due
}

/// The deletions that the allowance covers.
pub(super) fn pod_deletions(observed: &Observed, allowance: &Allowance, now: Timestamp) -> Vec<PodDeletion> {
    let deletion = |pod, migration: PodMigration, message| {
        let (severity, reason) = (Severity::Warning, migration.reason);
        PodDeletion { pod, migration, note: Note { severity, reason, message } }
    };
    let (stranded, faulty) = (stranded(observed, now), faulty(observed, now));
    let of_nodes = stranded
        .allowed(allowance)
        .map(|stranded| deletion(stranded.identity(), stranded.migration(now), stranded.message()));
    let of_gpus = faulty
        .allowed(allowance)
        .map(|faulty| deletion(faulty.identity(), faulty.migration(now), faulty.message()));
    of_nodes.chain(of_gpus).collect()
}

/// When to check again. `observed` has no pods that are being deleted: an allowed pod that is still there was refused.
pub(super) fn requeue_after(observed: &Observed, allowance: &Allowance, now: Timestamp) -> Option<Duration> {
    let waits =
        [stranded(observed, now).requeue_after(allowance), faulty(observed, now).requeue_after(allowance)];
    waits.into_iter().flatten().min()
}

pub(super) fn migration_state(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
    now: Timestamp,
) -> MigrationState {
    // From the first deletion until all replicas of this revision are ready again.
    let complete = i32::try_from(revision.ready().count()).unwrap_or(i32::MAX) >= valid.replicas;
    let mut conditions = observed.inference.status.iter().flat_map(|status| &status.conditions);
    let has_begun =
        !observed.unrecorded.is_empty() || conditions.any(|condition| condition.reason == reasons::MIGRATING);
    let outlook = stranded(observed, now).outlook_message();
    let outlook = outlook.or_else(|| faulty(observed, now).outlook_message());
    MigrationState { under_way: has_begun && !complete, outlook }
}

fn stranded(observed: &Observed, now: Timestamp) -> StrandedPods<'_> {
    let spec = &observed.inference.spec;
    let timeout = Duration::from_secs(u64::from(spec.node_failure_seconds.unsigned_abs()));
    let terms = Terms { timeout, is_paused: spec.pods.paused, container: ENGINE };
    StrandedPods::of(observed.pods(), &observed.nodes, &terms, now)
}

/// Pods on lost nodes are left to `stranded`.
fn faulty(observed: &Observed, now: Timestamp) -> FaultyPods<'_> {
    let spec = &observed.inference.spec;
    let terms = gpu_faults::Terms {
        is_paused: spec.pods.paused,
        replicas: spec.replicas,
        container: ENGINE,
        last: last_gpu_fault(observed),
    };
    let on_lost_nodes =
        |pod: &&PodView| pod.node.as_ref().is_some_and(|node| observed.nodes.lost.contains_key(node));
    let others: Vec<&str> = observed.pods().filter(on_lost_nodes).map(PodView::uid).collect();
    FaultyPods::of(observed.pods(), &observed.gpu_faults, &others, &terms, now)
}

/// When a pod was last deleted because of its GPU, by the status and by what it does not record yet.
fn last_gpu_fault(observed: &Observed) -> Option<Timestamp> {
    let recorded = observed.inference.status.iter().flat_map(|status| &status.migrations);
    let recorded = recorded.filter(|migration| migration.reason == reasons::GPU_FAULT).filter_map(time);
    let unrecorded = observed.unrecorded.iter().filter(|migration| migration.reason == reasons::GPU_FAULT);
    recorded.chain(unrecorded.map(|migration| migration.time)).max()
}

/// The latest migrations, reported and unreported, with the nodes of the replacements as far as they are scheduled.
pub(super) fn migrations(observed: &Observed) -> Vec<Migration> {
    let mut migrations = observed.inference.status.clone().unwrap_or_default().migrations;
    migrations.extend(observed.unrecorded.iter().map(|migration| Migration {
        pod: migration.pod.clone(),
        from_node: migration.node.clone(),
        to_node: None,
        reason: migration.reason.to_owned(),
        message: migration.message.clone(),
        time: Some(whole_seconds(migration.time)),
    }));
    let surplus = migrations.len().saturating_sub(MOST_OF_ONE);
    migrations.drain(..surplus);
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
    // Each replacement is reported for one migration only.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::conditions;

    use workload::{
        faults::{gpu_faults::GpuFault, stranded::Nodes},
        views::node::{LossKind, NodeLoss},
    };

    use crate::{
        tests::{Scene, at, defaults},
        validate::validate,
    };

    use super::*;

    /// Two replicas, on gpu-0 and gpu-1; gpu-1 has been lost for `for_seconds`.
    fn scene(kind: LossKind, for_seconds: i64) -> Scene {
        let mut scene = Scene::ready(2);
        scene.pods(&["{name: a, ready: true, node: gpu-0}", "{name: b, ready: true, node: gpu-1}"]);
        scene.write_status();
        lose(&mut scene, kind, for_seconds, 1);
        scene
    }

    /// `down` of four nodes are lost, gpu-1 among them.
    fn lose(scene: &mut Scene, kind: LossKind, for_seconds: i64, down: usize) {
        let lost = NodeLoss { kind, since: at(-for_seconds), reported: at(-for_seconds) };
        scene.observe(|observed| {
            observed.nodes =
                Nodes { lost: [("gpu-1".to_owned(), lost)].into(), down, all: 4, is_stale: false };
        });
    }

    fn due_in(scene: &Scene) -> Vec<String> {
        due(&scene.observed(), at(0)).into_iter().map(str::to_owned).collect()
    }

    fn allowing(pods: &[&str], requeue_after: Option<u64>) -> Allowance {
        Allowance {
            pods: pods.iter().map(|&pod| pod.to_owned()).collect(),
            requeue_after: requeue_after.map(Duration::from_secs),
        }
    }

    fn plan(scene: &Scene, allowance: &Allowance) -> super::super::Plan {
        let observed = scene.observed();
        let valid = validate(&observed.inference).unwrap();
        super::super::of_valid(&valid, &observed, allowance, &defaults(&[]), at(0))
    }

    /// Pod b was deleted from its lost node; the status does not record it yet.
    fn with_unrecorded() -> Scene {
        let mut scene = scene(LossKind::Unreachable, 30);
        let deletions = pod_deletions(&scene.observed(), &allowing(&["b"], None), at(0));
        scene.pods(&["{name: a, ready: true, node: gpu-0}"]);
        scene.observe(|observed| {
            observed.unrecorded = deletions.into_iter().map(|deletion| deletion.migration).collect();
        });
        scene
    }

    #[test]
    fn a_pod_on_an_unreachable_node_is_not_counted_as_ready() {
        let status = plan(&scene(LossKind::Unreachable, 1), &allowing(&[], None)).status;
        assert_eq!((status.ready_replicas, status.updated_ready_replicas), (1, 1));
        let ready = status.conditions.iter().find(|c| c.type_ == conditions::READY).unwrap();
        let message = "node gpu-1 is unreachable; pod b is replaced unless the node recovers";
        assert_eq!((ready.reason.as_str(), ready.message.as_str()), (reasons::MIGRATING, message));
    }

    #[test]
    fn pods_are_replaced_despite_an_invalid_spec_or_a_refused_child() {
        let mut scene = scene(LossKind::Unreachable, 12);
        scene.edit_spec(|spec| spec.model_source = "nonsense".to_owned());
        let observed = scene.observed();
        let invalid = validate(&observed.inference).unwrap_err();
        let nothing = Allowance::default();
        let plan = super::super::rejected(&invalid, &observed, &nothing, at(0));
        assert_eq!(plan.requeue_after, Some(Duration::from_secs(18)), "exactly when the pod is due");
        lose(&mut scene, LossKind::Unreachable, 30, 1);
        assert_eq!(due_in(&scene), ["b"]);

        let observed = self::scene(LossKind::Unreachable, 12).observed();
        let valid = validate(&observed.inference).unwrap();
        let refusal = runtime::write::refusal::Refusal::Denied("no".into());
        let plan = super::super::of_refused(
            &refusal,
            &valid,
            &super::super::of_valid(&valid, &observed, &nothing, &defaults(&[]), at(0)),
            &observed,
            &defaults(&[]),
            at(0),
        );
        assert_eq!(
            plan.requeue_after,
            Some(Duration::from_secs(18)),
            "sooner than the retry of the children"
        );
    }

    #[test]
    fn every_plan_records_a_migration_that_the_status_lacks() {
        let mut scene = with_unrecorded();
        let recorded = |plan: super::super::Plan| {
            let pods = plan.status.migrations.into_iter().map(|migration| migration.pod);
            pods.collect::<Vec<_>>()
        };
        // The second plan is that after a conflict of the status write.
        for _ in 0..2 {
            assert_eq!(recorded(plan(&scene, &Allowance::default())), ["b"]);
        }
        let observed = scene.observed();
        let valid = validate(&observed.inference).unwrap();
        let refusal = runtime::write::refusal::Refusal::Denied("no".into());
        let nothing = Allowance::default();
        let refused = super::super::of_refused(
            &refusal,
            &valid,
            &super::super::of_valid(&valid, &observed, &nothing, &defaults(&[]), at(0)),
            &observed,
            &defaults(&[]),
            at(0),
        );
        assert_eq!(recorded(refused), ["b"]);
        scene.edit_spec(|spec| spec.model_source = "nonsense".to_owned());
        let observed = scene.observed();
        let invalid = validate(&observed.inference).unwrap_err();
        assert_eq!(recorded(super::super::rejected(&invalid, &observed, &nothing, at(0))), ["b"]);
    }

    #[test]
    fn a_paused_spec_keeps_its_pods_even_if_it_is_invalid() {
        let mut scene = scene(LossKind::Unreachable, 900);
        scene.edit_spec(|spec| {
            spec.model_source = "nonsense".to_owned();
            spec.pods.paused = true;
        });
        assert_eq!(due_in(&scene), [""; 0]);
    }

    #[test]
    fn pods_of_an_older_revision_are_replaced_too() {
        let mut scene = scene(LossKind::Unreachable, 30);
        scene.roll();
        lose(&mut scene, LossKind::Unreachable, 30, 1);
        assert_eq!(due_in(&scene), ["b"]);
    }

    #[test]
    fn an_allowed_pod_is_deleted_and_reported_once_the_deletion_was_accepted() {
        let before = scene(LossKind::Unreachable, 30);
        let allowed = allowing(&["b"], None);
        let [PodDeletion { pod, note, .. }] = &*pod_deletions(&before.observed(), &allowed, at(0)) else {
            panic!("one")
        };
        assert_eq!(pod.metadata.name.as_deref(), Some("b"));
        assert_eq!(note.message, "node gpu-1 is unreachable; pod b is replaced");
        assert_eq!(plan(&before, &allowed).status.migrations, [], "its deletion was not accepted");

        let status = plan(&with_unrecorded(), &allowed).status;
        let [migration] = status.migrations.as_slice() else { panic!("one") };
        assert_eq!((&*migration.pod, &*migration.from_node, &migration.to_node), ("b", "gpu-1", &None));
        assert_eq!((&*migration.reason, time(migration)), (reasons::NODE_UNREACHABLE, Some(at(0))));
        let progressing = status.conditions.iter().find(|c| c.type_ == conditions::PROGRESSING).unwrap();
        assert_eq!((progressing.status.as_str(), progressing.reason.as_str()), ("True", reasons::MIGRATING));
    }

    #[test]
    fn the_reason_is_migrating_until_the_replacement_is_ready_and_its_node_is_reported() {
        let mut scene = with_unrecorded();
        scene.write_status();
        scene.observe(|observed| observed.unrecorded.clear());
        let progress = |scene: &Scene| {
            let status = plan(scene, &allowing(&[], None)).status;
            let reason = |type_| status.conditions.iter().find(|c| c.type_ == type_).unwrap().reason.clone();
            (reason(conditions::PROGRESSING), status.migrations[0].to_node.clone())
        };
        let replacement = |more: &str| format!("{{name: c, created: '{}', {more}}}", at(1));
        let other = "{name: a, ready: true, node: gpu-0, created: '2025-01-01T00:00:00Z'}";
        scene.pods(&[other, &replacement("phase: Pending")]);
        assert_eq!(progress(&scene), ("Migrating".into(), None));
        scene.pods(&[other, &replacement("node: gpu-2")]);
        assert_eq!(progress(&scene), ("Migrating".into(), Some("gpu-2".into())));
        scene.write_status();
        scene.pods(&[other, &replacement("ready: true, node: gpu-2")]);
        assert_eq!(progress(&scene), ("Complete".into(), Some("gpu-2".into())));
    }

    #[test]
    fn a_replacement_is_reported_for_one_migration_only() {
        let mut scene = with_unrecorded();
        scene.write_status();
        scene.observe(|observed| {
            let status = Arc::make_mut(&mut observed.inference).status.as_mut().unwrap();
            status.migrations[0].to_node = Some("gpu-2".into());
        });
        scene.pods(&[&format!("{{name: c, node: gpu-2, created: '{}'}}", at(1))]);
        assert_eq!(plan(&scene, &allowing(&[], None)).status.migrations[1].to_node, None);
    }

    #[test]
    fn the_last_ten_migrations_are_kept() {
        let mut scene = with_unrecorded();
        scene.write_status();
        scene.observe(|observed| {
            let migration =
                |index: usize| PodMigration { pod: index.to_string(), ..observed.unrecorded[0].clone() };
            observed.unrecorded = (0..10).map(migration).collect();
        });
        let reported = plan(&scene, &Allowance::default()).status.migrations;
        let pods: Vec<&str> = reported.iter().map(|migration| migration.pod.as_str()).collect();
        assert_eq!(pods, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    }

    /// Two replicas on gpu-0 and gpu-1; the GPU of pod b had this XID a second ago.
    fn with_xid(xid: u64) -> Scene {
        let mut scene = Scene::ready(2);
        scene.pods(&["{name: a, ready: true, node: gpu-0}", "{name: b, ready: true, node: gpu-1}"]);
        scene.write_status();
        let remedy = gpu_faults::remedy(xid, 1).unwrap();
        let fault = GpuFault { gpu: "GPU-5a".to_owned(), xid: Some(xid), remedy, at: at(-1) };
        scene.observe(|observed| observed.gpu_faults.faults = [("b".to_owned(), fault)].into());
        scene
    }

    #[test]
    fn a_pod_whose_gpu_is_lost_is_replaced_and_the_status_names_the_error() {
        let mut scene = with_xid(79);
        assert_eq!(due_in(&scene), ["b"]);
        assert!(pod_deletions(&scene.observed(), &allowing(&[], None), at(0)).is_empty(), "not at this pace");
        let deletions = pod_deletions(&scene.observed(), &allowing(&["b"], None), at(0));
        let [PodDeletion { pod, migration, note }] = &*deletions else { panic!("one") };
        assert_eq!(pod.metadata.name.as_deref(), Some("b"));
        assert_eq!(
            (note.reason, &*note.message),
            (reasons::GPU_FAULT, "XID 79 of GPU-5a on node gpu-1; pod b is replaced")
        );
        scene.observe(|observed| observed.unrecorded = vec![migration.clone()]);
        scene.pods(&["{name: a, ready: true, node: gpu-0}"]);
        let status = plan(&scene, &Allowance::default()).status;
        let [recorded] = status.migrations.as_slice() else { panic!("one") };
        assert_eq!(
            (&*recorded.reason, recorded.message.as_deref()),
            (reasons::GPU_FAULT, Some("XID 79 of GPU-5a on node gpu-1"))
        );
        let progressing = status.conditions.iter().find(|c| c.type_ == conditions::PROGRESSING).unwrap();
        assert_eq!(progressing.reason, reasons::MIGRATING);
    }

    #[test]
    fn the_next_pod_waits_for_the_replacement_also_after_a_restart() {
        let mut scene = with_xid(79);
        let deletions = pod_deletions(&scene.observed(), &allowing(&["b"], None), at(0));
        scene.observe(|observed| {
            observed.unrecorded = deletions.into_iter().map(|deletion| deletion.migration).collect();
            let fault = observed.gpu_faults.faults["b"].clone();
            observed.gpu_faults.faults = [("a".to_owned(), fault)].into();
        });
        scene.pods(&["{name: a, ready: true, node: gpu-0}", "{name: c, node: gpu-2}"]);
        assert_eq!(due_in(&scene), [""; 0]);
        scene.write_status();
        scene.observe(|observed| observed.unrecorded.clear());
        assert_eq!(due_in(&scene), [""; 0], "the status says that one is being replaced");
        scene.pods(&["{name: a, ready: true, node: gpu-0}", "{name: c, ready: true, node: gpu-2}"]);
        assert_eq!(due_in(&scene), ["a"]);
    }

    #[test]
    fn a_pod_on_a_lost_node_is_replaced_for_that() {
        let mut scene = with_xid(79);
        lose(&mut scene, LossKind::Unreachable, 12, 1);
        assert_eq!(due_in(&scene), [""; 0], "the node may recover");
        lose(&mut scene, LossKind::Unreachable, 30, 1);
        assert_eq!(due_in(&scene), ["b"]);
        let deletions = pod_deletions(&scene.observed(), &allowing(&["b"], None), at(0));
        let reasons: Vec<&str> = deletions.iter().map(|deletion| deletion.migration.reason).collect();
        assert_eq!(reasons, [reasons::NODE_UNREACHABLE]);
    }

    #[test]
    fn a_paused_object_keeps_a_pod_with_a_lost_gpu_and_an_invalid_one_does_not() {
        let mut scene = with_xid(79);
        scene.edit_spec(|spec| spec.model_source = "nonsense".to_owned());
        assert_eq!(due_in(&scene), ["b"]);
        scene.edit_spec(|spec| spec.pods.paused = true);
        assert_eq!(due_in(&scene), [""; 0]);
    }

    #[test]
    fn a_doubt_about_a_gpu_is_looked_at_again() {
        let mut scene = Scene::ready(1);
        scene.observe(|observed| observed.gpu_faults.is_doubtful = true);
        assert_eq!(plan(&scene, &Allowance::default()).requeue_after, Some(Duration::from_secs(5)));
    }
}
