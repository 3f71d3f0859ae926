//! What becomes of the output when its TrainingJob is deleted.

use std::{sync::Arc, time::Duration};

use api::{labels, reasons, trainingjob::Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::write::refusal::Refusal;
use serde_json::json;
use workload::{
    faults::stranded::Nodes,
    views::{
        claim::ClaimView,
        job::{Failed, JobView},
        node::{LossKind, NodeLoss},
    },
};

use super::{Deletion, World, message_at};
use crate::{
    NAME, names,
    objects::volume_snapshot::{SnapshotError, SnapshotSource, SnapshotStatus, VolumeSnapshot},
    plan::retention::{Retirement, refused, retire},
    tests::at,
};

/// A job with this retention has succeeded and is being deleted.
pub(super) fn deleted(retention: &str) -> World {
    let spec = format!("{{model: m, dataset: d, method: lora, output: {{retention: {retention}}}}}");
    let mut world = World::training(&spec);
    world.succeeds(&message_at(Some(100)));
    world.deletes();
    world
}

impl World {
    fn deletes(&mut self) {
        let now = at(self.seconds);
        self.job().metadata.deletion_timestamp = Some(Time(now));
    }

    pub(super) fn retires(
        &mut self,
        claim: Option<&ClaimView>,
        snapshot: Option<&VolumeSnapshot>,
    ) -> Retirement {
        self.observed.made_claim = claim.cloned().map(Arc::new);
        self.observed.snapshot = snapshot.cloned().map(Arc::new);
        let retirement = retire(&self.observed, at(self.seconds));
        self.observed.facts.retain(|fact, _| retirement.facts.contains(fact));
        for fact in &retirement.facts {
            self.observed.facts.entry(fact.clone()).or_insert(at(self.seconds));
        }
        retirement
    }
}

/// The claim that the controller has made, or one of another owner.
pub(super) fn claim(made_by: &str) -> ClaimView {
    let labels = json!({labels::MANAGED_BY: made_by, labels::NAME: names::KIND, labels::INSTANCE: "qwen"});
    let annotations = json!({labels::MADE_FOR: "uid-of-qwen"});
    let metadata = json!({"name": "qwen-output", "uid": "c", "labels": labels, "annotations": annotations});
    serde_json::from_value(json!({"metadata": metadata})).unwrap()
}

/// The snapshot that the controller asks for, with this status.
fn snapshot(status: SnapshotStatus) -> VolumeSnapshot {
    let asks = deleted("Snapshot").retires(Some(&claim(NAME)), None);
    VolumeSnapshot { status: Some(status), ..*asks.snapshot.unwrap() }
}

fn ready() -> SnapshotStatus {
    SnapshotStatus { ready_to_use: Some(true), error: None }
}

/// Whether the claim is deleted, and whether the TrainingJob may go.
fn outcome(retirement: &Retirement) -> (bool, bool) {
    (retirement.claim.is_some(), retirement.releases)
}

#[test]
fn the_claim_goes_with_its_job_only_if_the_user_says_so() {
    let own = claim(NAME);
    assert_eq!(outcome(&deleted("Delete").retires(Some(&own), None)), (true, true));
    assert_eq!(outcome(&deleted("Retain").retires(Some(&own), None)), (false, true));
}

#[test]
fn a_claim_of_somebody_else_is_never_deleted() {
    let other = claim("helm");
    assert_eq!(outcome(&deleted("Delete").retires(Some(&other), None)), (false, true));
    assert_eq!(outcome(&deleted("Delete").retires(None, None)), (false, true));
}

#[test]
fn the_claim_stays_until_its_snapshot_can_be_used() {
    let (mut world, own) = (deleted("Snapshot"), claim(NAME));
    let asks = world.retires(Some(&own), None);
    let source = asks.snapshot.as_ref().unwrap().spec.source.persistent_volume_claim_name.as_deref();
    assert_eq!((source, outcome(&asks)), (Some("qwen-output"), (false, false)));
    let waits = world.retires(Some(&own), Some(&snapshot(SnapshotStatus::default())));
    assert_eq!((waits.snapshot.is_none(), outcome(&waits)), (true, (false, false)));
    assert_eq!(outcome(&world.retires(Some(&own), Some(&snapshot(ready())))), (true, true));
}

/// The status says what is waited for, so it is neither written nor reported again.
#[test]
fn a_wait_is_written_and_reported_once() {
    let (mut world, own) = (deleted("Snapshot"), claim(NAME));
    let known = snapshot(SnapshotStatus::default());
    let waits = world.retires(Some(&own), Some(&known));
    assert_eq!(waits.event.map(|note| note.reason), Some(reasons::WAITING));
    world.job().status = waits.status.map(|status| *status);
    world.seconds += 5;
    let again = world.retires(Some(&own), Some(&known));
    assert_eq!((again.status, again.event), (None, None));
    assert_eq!((again.facts, again.requeue_after), (waits.facts, Some(Duration::from_secs(595))));
}

/// Its labels were taken off, or a watch is late.
#[test]
fn what_is_not_seen_is_waited_for_and_keeps_the_claim_in_the_end() {
    for retention in ["Delete", "Snapshot"] {
        let (mut world, own) = (deleted(retention), claim(NAME));
        world.observed.has_unseen = true;
        let waits = world.retires(Some(&own), Some(&snapshot(ready())));
        assert_eq!((outcome(&waits), waits.snapshot.is_none()), ((false, false), true));
        assert_eq!(waits.requeue_after, Some(Duration::from_secs(1)), "no watch says when it ends");
        world.seconds += 600;
        let ends = world.retires(Some(&own), Some(&snapshot(ready())));
        assert_eq!(outcome(&ends), (false, true));
        assert!(ends.event.unwrap().message.contains("has lost its labels"));
    }
    let mut world = deleted("Retain");
    world.observed.has_unseen = true;
    assert_eq!(outcome(&world.retires(Some(&claim(NAME)), None)), (false, true), "nothing rests on it");
}

#[test]
fn a_claim_that_an_earlier_job_of_the_name_has_left_is_never_deleted() {
    for (made_for, words) in
        [(Some("another-uid"), "made for an earlier TrainingJob of this name"), (None, "has no annotation")]
    {
        let left = ClaimView { made_for: made_for.map(str::to_owned), ..claim(NAME) };
        for retention in ["Delete", "Snapshot"] {
            let retirement = deleted(retention).retires(Some(&left), Some(&snapshot(ready())));
            assert_eq!(outcome(&retirement), (false, true));
            let note = retirement.event.unwrap();
            assert!(note.reason == reasons::OUTPUT_KEPT && note.message.contains(words), "{}", note.message);
        }
    }
}

#[test]
fn a_claim_says_for_which_job_it_was_made() {
    let mut world = World::new("{model: m, dataset: d, method: lora, output: {retention: Delete}}");
    world.settles();
    let made = world.claims["qwen-output"].clone().unwrap();
    assert_eq!(made.made_for.as_deref(), Some("uid-of-qwen"));
    world.pods_go();
    world.observed.attempts.clear();
    world.deletes();
    assert_eq!(outcome(&world.retires(Some(&made), None)), (true, true));
}

#[test]
fn a_snapshot_of_something_else_saves_nothing() {
    let source = |name: &str| SnapshotSource { persistent_volume_claim_name: Some(name.into()) };
    let edits: [fn(&mut VolumeSnapshot); 4] = [
        |snapshot| snapshot.metadata.annotations = None,
        |snapshot| snapshot.metadata.annotations.as_mut().unwrap().values_mut().for_each(|uid| uid.push('x')),
        |snapshot| snapshot.metadata.deletion_timestamp = Some(Time(at(0))),
        |snapshot| snapshot.spec.source.persistent_volume_claim_name = None,
    ];
    let mut foreign: Vec<VolumeSnapshot> = edits
        .iter()
        .map(|edit| {
            let mut snapshot = snapshot(ready());
            edit(&mut snapshot);
            snapshot
        })
        .collect();
    let mut other = snapshot(ready());
    other.spec.source = source("other");
    foreign.push(other);
    for snapshot in foreign {
        let retirement = deleted("Snapshot").retires(Some(&claim(NAME)), Some(&snapshot));
        assert_eq!(outcome(&retirement), (false, true), "{snapshot:?}");
        assert_eq!(retirement.event.unwrap().reason, reasons::OUTPUT_KEPT);
    }
}

#[test]
fn the_claim_stays_while_another_job_reads_it() {
    let (mut world, own) = (deleted("Delete"), claim(NAME));
    world.observed.dependents = 1;
    let waits = world.retires(Some(&own), None);
    assert_eq!(outcome(&waits), (false, false));
    world.seconds += i64::try_from(waits.requeue_after.unwrap().as_secs()).unwrap();
    let ends = world.retires(Some(&own), None);
    assert_eq!(outcome(&ends), (false, true));
    assert!(ends.event.unwrap().message.contains("1 TrainingJobs read it"));
    world.observed.dependents = 0;
    assert_eq!(outcome(&world.retires(Some(&own), None)), (true, true));
}

#[test]
fn after_ten_minutes_the_job_goes_and_the_claim_stays() {
    let (mut world, own) = (deleted("Snapshot"), claim(NAME));
    let error = SnapshotError { message: Some("no space in the pool".into()) };
    let fails = snapshot(SnapshotStatus { ready_to_use: None, error: Some(error) });
    let waits = world.retires(Some(&own), Some(&fails));
    world.seconds += i64::try_from(waits.requeue_after.unwrap().as_secs()).unwrap();
    let ends = world.retires(Some(&own), Some(&fails));
    assert_eq!(outcome(&ends), (false, true));
    assert!(ends.event.unwrap().message.contains("no space in the pool"));
}

fn denied() -> Refusal {
    Refusal::Denied("the API server denies it: policy".to_owned())
}

impl World {
    /// The plan after this plan was refused, and what it has written.
    fn is_refused(&mut self, refusal: &Refusal, planned: Retirement) -> Retirement {
        let report = refused(refusal, planned, &self.observed, Duration::from_secs(30));
        if let Some(status) = &report.status {
            self.job().status = Some((**status).clone());
        }
        report
    }
}

#[test]
fn a_cluster_without_snapshots_keeps_the_claim_and_lets_the_job_go() {
    let (mut world, own) = (deleted("Snapshot"), claim(NAME));
    let asks = world.retires(Some(&own), None);
    let never = Refusal::Invalid("the cluster has no VolumeSnapshots".to_owned());
    let report = world.is_refused(&never, asks);
    assert_eq!((outcome(&report), report.snapshot.is_none()), ((false, true), true));
    assert!(report.event.unwrap().message.contains("no VolumeSnapshots"));
}

/// A policy of the cluster, such as one that protects Jobs, claims or the space for snapshots.
#[test]
fn what_a_policy_denies_is_reported_and_keeps_the_job_for_ten_minutes() {
    let training = || World::training("{model: m, dataset: d, method: lora, output: {retention: Delete}}");
    let running = || {
        let mut world = training();
        world.deletes();
        world
    };
    for (what, mut world) in
        [("Job", running()), ("claim", deleted("Delete")), ("snapshot", deleted("Snapshot"))]
    {
        let own = claim(NAME);
        let sent = |it: &Retirement| !it.deletions.is_empty() || it.snapshot.is_some() || it.claim.is_some();
        let planned = world.retires(Some(&own), None);
        assert!(sent(&planned), "{what}");
        let report = world.is_refused(&denied(), planned);
        assert!(!sent(&report) && !report.releases, "{what}: {report:?}");
        assert_eq!(report.requeue_after, Some(Duration::from_secs(30)), "{what}");
        let event = report.event.unwrap();
        assert_eq!((event.reason, event.message.contains("policy")), (reasons::DENIED, true), "{what}");
        // It is tried again, and said once.
        world.seconds += 30;
        let again = world.retires(Some(&own), None);
        assert!(sent(&again), "{what}");
        let report = world.is_refused(&denied(), again);
        assert_eq!((report.status, report.event), (None, None), "{what}");
        world.seconds += 569;
        let last = world.retires(Some(&own), None);
        assert!(!outcome(&last).1 || last.claim.is_some(), "{what}: {last:?}");
        assert!(sent(&last), "{what}: {last:?}");
        world.seconds += 1;
        let ends = world.retires(Some(&own), None);
        assert!(ends.releases && !sent(&ends), "{what}: {ends:?}");
        assert!(ends.event.unwrap().message.contains("stays"), "{what}");
        // If the finalizer cannot be removed, nothing is waited for and nothing is said again.
        let again = world.retires(Some(&own), None);
        assert!(again.releases && !sent(&again) && again.event.is_none(), "{what}: {again:?}");
    }
}

/// It may still have a result, which must not be deleted unsaved.
#[test]
fn an_attempt_that_may_not_be_deleted_has_not_ended() {
    let mut world = World::training("{model: m, dataset: d, method: lora, output: {retention: Delete}}");
    world.deletes();
    let planned = world.retires(Some(&claim(NAME)), None);
    assert_eq!(planned.status.as_ref().unwrap().ended_attempts, 1, "its Job is deleted");
    let report = world.is_refused(&denied(), planned);
    assert_eq!(report.status.unwrap().ended_attempts, 0);
}

#[test]
fn a_claim_that_is_being_deleted_is_not_deleted_again() {
    let mut own = claim(NAME);
    own.metadata.deletion_timestamp = Some(Time(at(0)));
    assert_eq!(outcome(&deleted("Delete").retires(Some(&own), None)), (false, true));
}

#[test]
fn the_output_is_kept_until_its_pods_have_ended() {
    let mut world = World::training("{model: m, dataset: d, method: lora, output: {retention: Delete}}");
    world.deletes();
    let own = claim(NAME);
    let ends = world.retires(Some(&own), None);
    assert!(matches!(&*ends.deletions, [Deletion::Job(_)]) && outcome(&ends) == (false, false));
    world.terminate("qwen-1");
    world.observed.attempts.clear();
    let waits = world.retires(Some(&own), None);
    assert!(waits.deletions.is_empty() && outcome(&waits) == (false, false));
    // No kubelet reports the end of a pod on a lost node.
    world.observed.nodes = lost(LossKind::Unreachable, 1);
    let early = world.retires(Some(&own), None);
    assert_eq!((early.deletions.len(), early.requeue_after), (0, Some(Duration::from_secs(30))));
    world.seconds += 30;
    world.observed.nodes = lost(LossKind::NotReady, 1);
    assert!(world.retires(Some(&own), None).deletions.is_empty(), "its kubelet says that it runs");
    world.observed.nodes = lost(LossKind::Unreachable, 4);
    assert!(world.retires(Some(&own), None).deletions.is_empty(), "all nodes are down");
    world.observed.nodes = Nodes { is_stale: true, ..lost(LossKind::Unreachable, 1) };
    assert!(world.retires(Some(&own), None).deletions.is_empty(), "the caches are out of date");
    world.observed.nodes = lost(LossKind::Unreachable, 1);
    let forced = world.retires(Some(&own), None);
    assert!(matches!(&*forced.deletions, [Deletion::Pod { grace, .. }] if grace.is_zero()));
    world.observed.pods.clear();
    assert_eq!(outcome(&world.retires(Some(&own), None)), (true, true));
}

/// The node of the pod has just been lost, as one of so many of four.
fn lost(kind: LossKind, down: usize) -> Nodes {
    let lost = NodeLoss { kind, since: at(0), reported: at(0) };
    Nodes { lost: [("node-0".to_owned(), lost)].into(), down, all: 4, is_stale: false }
}

/// A job with an upload has been trained and is being deleted.
fn trained() -> World {
    let spec =
        "{model: m, dataset: d, method: lora, output: {retention: Delete, upload: {uri: 's3://models'}}}";
    let mut world = World::training(spec);
    world.succeeds(&message_at(Some(100)));
    world.deletes();
    world
}

fn upload_of(world: &mut World) -> &mut JobView {
    Arc::make_mut(world.observed.upload.as_mut().unwrap())
}

#[test]
fn a_result_that_was_not_uploaded_keeps_its_claim() {
    let own = claim(NAME);
    let mut world = trained();
    let since = at(0);
    upload_of(&mut world).failed = Some(Failed { since, reason: String::new(), message: String::new() });
    let kept = world.retires(Some(&own), None);
    assert_eq!(outcome(&kept), (false, true));
    let note = kept.event.unwrap();
    assert_eq!(note.reason, reasons::OUTPUT_KEPT);
    assert!(note.message.contains("was not uploaded to s3://models"), "{}", note.message);

    let mut world = trained();
    world.observed.upload = None;
    assert_eq!(outcome(&world.retires(Some(&own), None)), (false, true), "no Job uploads it");
    let mut world = trained();
    world.observed.upload = None;
    world.job().status.as_mut().unwrap().conditions.clear();
    assert_eq!(
        outcome(&world.retires(Some(&own), None)),
        (false, true),
        "the status does not say yet that it has trained"
    );
}

/// Rank 0 has ended well, and a container that was injected into its pod runs on.
#[test]
fn a_result_that_is_proven_keeps_its_claim_before_its_job_completes() {
    let spec =
        "{model: m, dataset: d, method: lora, output: {retention: Delete, upload: {uri: 's3://models'}}}";
    let mut world = World::training(spec);
    world.rank_ends(0);
    world.deletes();
    let kept = world.retires(Some(&claim(NAME)), None);
    assert_eq!((outcome(&kept), kept.event.unwrap().reason), ((false, true), reasons::OUTPUT_KEPT));
}

/// With `--cascade=foreground`, the Jobs go first, also while no controller runs.
#[test]
fn an_attempt_whose_end_was_not_seen_may_have_left_a_result() {
    let spec =
        "{model: m, dataset: d, method: lora, output: {retention: Delete, upload: {uri: 's3://models'}}}";
    let own = claim(NAME);
    let mut world = World::training(spec);
    world.observed.attempts.clear();
    world.observed.pods.clear();
    world.deletes();
    assert_eq!(outcome(&world.retires(Some(&own), None)), (false, true));
    // A controller ends the attempt, and sees that there was none. What it has seen survives a restart and other waits.
    let mut world = World::training(spec);
    world.deletes();
    let ends = world.retires(Some(&own), None);
    assert_eq!(outcome(&ends), (false, false));
    world.job().status = ends.status.map(|status| *status);
    world.observed.attempts.clear();
    world.observed.pods.clear();
    world.observed.facts.clear();
    world.observed.dependents = 1;
    assert_eq!(outcome(&world.retires(Some(&own), None)), (false, false));
    world.observed.dependents = 0;
    assert_eq!(outcome(&world.retires(Some(&own), None)), (true, true));
}

#[test]
fn an_upload_that_is_done_beside_a_sidecar_lets_the_claim_go() {
    let (mut world, own) = (trained(), claim(NAME));
    let uid = world.observed.upload.as_ref().unwrap().metadata.uid.clone().unwrap();
    let containers = json!([
        {"name": "uploader", "state": {"terminated": {"exitCode": 0, "message": "{}", "finishedAt": at(0)}}},
        {"name": "istio-proxy", "ready": true, "state": {"running": {}}},
    ]);
    let status = json!({"phase": "Running", "containerStatuses": containers});
    world.observed.pods.push(Arc::new(super::pod("qwen-upload", &uid, 0, &status)));
    let ends = world.retires(Some(&own), None);
    assert_eq!((outcome(&ends), ends.deletions.len()), ((true, true), 0));
}

#[test]
fn an_upload_that_runs_is_waited_for_and_the_claim_goes_after_it() {
    let (mut world, own) = (trained(), claim(NAME));
    let waits = world.retires(Some(&own), None);
    assert_eq!((outcome(&waits), waits.deletions.len()), ((false, false), 0), "the upload goes on");
    let message = waits.status.unwrap().message.unwrap();
    assert!(message.contains("waits for the upload of its result"), "{message}");
    upload_of(&mut world).completed = Some(at(5));
    assert_eq!(outcome(&world.retires(Some(&own), None)), (true, true));
}

#[test]
fn an_upload_that_does_not_end_keeps_the_claim() {
    let (mut world, own) = (trained(), claim(NAME));
    let waits = world.retires(Some(&own), None);
    world.seconds += i64::try_from(waits.requeue_after.unwrap().as_secs()).unwrap();
    assert_eq!(outcome(&world.retires(Some(&own), None)), (false, true));
}

#[test]
fn a_job_that_never_trained_has_no_result_to_upload() {
    let spec =
        "{model: m, dataset: d, method: lora, output: {retention: Delete, upload: {uri: 's3://models'}}}";
    let mut world = World::new(spec);
    world.settles();
    world.deletes();
    let ends = world.retires(Some(&claim(NAME)), None);
    assert!(matches!(&*ends.deletions, [Deletion::Job(_)]), "its check");
    world.observed.upload_check = None;
    assert_eq!(outcome(&world.retires(Some(&claim(NAME)), None)), (true, true));
}

/// Such a status is written by hand alone: an upload is tried until it works.
#[test]
fn a_job_whose_upload_has_failed_is_not_deleted_because_its_time_is_over() {
    let mut world = trained();
    world.job().metadata.deletion_timestamp = None;
    let status = world.job().status.as_mut().unwrap();
    status.phase = Some(Phase::Failed);
    status.completion_time = Some(Time(at(0)));
    world.passes(8 * 86_400);
    assert!(!world.is_expired);
    for condition in &mut world.job().status.as_mut().unwrap().conditions {
        condition.status = "True".into();
    }
    world.passes(1);
    assert!(world.is_expired);
}

#[test]
fn a_snapshot_is_asked_for_also_long_after_the_deletion() {
    // No controller was there, or its clock is ahead.
    let (mut world, own) = (deleted("Snapshot"), claim(NAME));
    world.seconds += 11 * 60;
    let asks = world.retires(Some(&own), None);
    assert!(asks.snapshot.is_some() && outcome(&asks) == (false, false));
    world.seconds += 599;
    let waits = world.retires(Some(&own), Some(&snapshot(SnapshotStatus::default())));
    assert_eq!((outcome(&waits), waits.requeue_after), ((false, false), Some(Duration::from_secs(1))));
}

#[test]
fn the_time_of_pods_that_save_is_not_that_of_the_snapshot() {
    let mut world = World::training("{model: m, dataset: d, method: lora, output: {retention: Snapshot}}");
    world.deletes();
    world.terminate("qwen-1");
    world.observed.attempts.clear();
    let own = claim(NAME);
    let waits = world.retires(Some(&own), None);
    assert_eq!(waits.requeue_after, Some(Duration::from_secs(900)), "ten minutes and the grace period");
    world.seconds += 899;
    assert_eq!(outcome(&world.retires(Some(&own), None)), (false, false));
    world.observed.pods.clear();
    assert!(world.retires(Some(&own), None).snapshot.is_some());
}
