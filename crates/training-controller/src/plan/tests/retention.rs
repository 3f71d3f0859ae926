//! What becomes of the output when its TrainingJob is deleted.

use api::labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use workload::{claim::ClaimView, node::LossKind};

use super::{Deletion, World, message_at};
use crate::{
    NAME, names,
    plan::{Retirement, retire, without_snapshot},
    tests::at,
    volume_snapshot::{SnapshotError, SnapshotStatus, VolumeSnapshot},
};

/// A job with this retention has succeeded and is being deleted.
fn deleted(retention: &str) -> World {
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

    fn retires(&self, claim: Option<&ClaimView>, snapshot: Option<&VolumeSnapshot>) -> Retirement {
        retire(&self.observed, claim, snapshot, at(self.seconds))
    }
}

/// The claim that the controller has made, or one of somebody else.
fn claim(made_by: &str) -> ClaimView {
    let labels = json!({labels::MANAGED_BY: made_by, labels::NAME: names::KIND, labels::INSTANCE: "qwen"});
    serde_json::from_value(json!({"metadata": {"name": "qwen-output", "uid": "c", "labels": labels}}))
        .unwrap()
}

fn snapshot(status: SnapshotStatus) -> VolumeSnapshot {
    VolumeSnapshot { status: Some(status), ..VolumeSnapshot::default() }
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
    let (world, own) = (deleted("Snapshot"), claim(NAME));
    let asks = world.retires(Some(&own), None);
    let source = asks.snapshot.as_ref().unwrap().spec.source.persistent_volume_claim_name.as_deref();
    assert_eq!((source, outcome(&asks)), (Some("qwen-output"), (false, false)));
    let waits = world.retires(Some(&own), Some(&snapshot(SnapshotStatus::default())));
    assert_eq!((waits.snapshot.is_none(), outcome(&waits)), (true, (false, false)));
    let ready = snapshot(SnapshotStatus { ready_to_use: Some(true), error: None });
    assert_eq!(outcome(&world.retires(Some(&own), Some(&ready))), (true, true));
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

#[test]
fn a_cluster_without_snapshots_keeps_the_claim_and_lets_the_job_go() {
    let retirement = without_snapshot("the cluster has no VolumeSnapshots");
    assert_eq!(outcome(&retirement), (false, true));
    assert!(retirement.event.unwrap().message.contains("no VolumeSnapshots"));
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
    // Nobody else would report the end of a pod on a lost node.
    world.observed.nodes.lost = lost();
    let forced = world.retires(Some(&own), None);
    assert!(matches!(&*forced.deletions, [Deletion::Pod { grace, .. }] if grace.is_zero()));
    world.observed.pods.clear();
    assert_eq!(outcome(&world.retires(Some(&own), None)), (true, true));
}

fn lost() -> std::collections::BTreeMap<String, workload::node::NodeLoss> {
    let lost = workload::node::NodeLoss { kind: LossKind::Unreachable, since: at(0), reported: at(0) };
    [("node-0".to_owned(), lost)].into()
}
