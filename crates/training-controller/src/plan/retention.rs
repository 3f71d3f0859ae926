//! What becomes of the output when its TrainingJob is deleted: kept, deleted, or deleted after a snapshot. Pure.
//!
//! A finalizer keeps the TrainingJob until then, for ten minutes at most. Whatever is in doubt by then stays: no data is
//! deleted because a time is over.

use std::time::Duration;

use api::{
    labels, reasons,
    trainingjob::{Retention, TrainingJob},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use runtime::events::{Note, Severity};
use serde::Serialize;
use workload::{claim::ClaimView, time::remaining};

use super::{Deletion, stage::has_stopped};
use crate::{
    NAME, names,
    observe::{Observed, job_of},
    volume_snapshot::{SnapshotSource, SnapshotSpec, VolumeSnapshot},
};

/// What is done for a TrainingJob that is being deleted and has the finalizer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Retirement {
    /// Its Jobs, and pods on lost nodes.
    pub(crate) deletions: Vec<Deletion>,
    pub(crate) snapshot: Option<Box<VolumeSnapshot>>,
    pub(crate) claim: Option<Box<PersistentVolumeClaim>>,
    /// Whether the finalizer is removed.
    pub(crate) releases: bool,
    pub(crate) event: Option<Note>,
    pub(crate) requeue_after: Option<Duration>,
}

/// How long the deletion of a TrainingJob may wait for its output.
const LIMIT: Duration = Duration::from_secs(600);

/// Whether a TrainingJob has something to do when it is deleted.
pub(crate) fn needs_finalizer(job: &TrainingJob) -> bool {
    let output = job.spec.output.as_ref();
    output.is_some_and(|output| output.retention != Retention::Retain && output.claim_name.is_none())
}

pub(crate) fn has_finalizer(job: &TrainingJob) -> bool {
    job.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == labels::OUTPUT_FINALIZER)
}

/// `claim`: that of the output.
pub(crate) fn retire(
    observed: &Observed,
    claim: Option<&ClaimView>,
    snapshot: Option<&VolumeSnapshot>,
    now: Timestamp,
) -> Retirement {
    let job = &observed.job;
    let output = job.spec.output.clone().unwrap_or_default();
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let is_made = |claim: &&ClaimView| {
        claim.instance.as_ref().and_then(|instance| instance.of_kind(names::KIND)) == Some(name)
    };
    let Some(claim) = claim.filter(is_made).filter(|_| needs_finalizer(job)) else { return released(None) };
    let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
    let deleted = job.metadata.deletion_timestamp.as_ref().map_or(now, |deleted| deleted.0);
    let Some(left) = remaining(LIMIT, deleted, now) else {
        let why = snapshot.and_then(VolumeSnapshot::error).map(|why| format!(": {why}")).unwrap_or_default();
        let message = format!(
            "the output was not {} within {} s{why}; claim {claim_name} stays: delete it by hand",
            if output.retention == Retention::Snapshot { "saved in a snapshot" } else { "free" },
            LIMIT.as_secs()
        );
        return released(Some(warning(message)));
    };
    let running: Vec<_> = observed.pods.iter().filter(|pod| !has_stopped(pod)).collect();
    let jobs = observed.attempts.values().chain(&observed.upload);
    let unfinished: Vec<Deletion> = jobs
        .filter(|job| !job.is_finished() && !job.is_being_deleted())
        .map(|job| Deletion::Job(Box::new(job.identity())))
        .collect();
    if !running.is_empty() || !unfinished.is_empty() {
        let is_orphan = |pod: &&&std::sync::Arc<workload::pod::PodView>| {
            pod.metadata.deletion_timestamp.is_some()
                && pod.node.as_ref().is_some_and(|node| observed.nodes.lost.contains_key(node))
                && job_of(pod).is_some()
        };
        let orphans = running.iter().filter(is_orphan).map(|pod| Deletion::now(pod));
        let deletions = unfinished.into_iter().chain(orphans).collect();
        return Retirement { deletions, ..waiting(left) };
    }
    match (output.retention, snapshot) {
        (Retention::Retain, _) => released(None),
        (Retention::Delete, _) => deleting(claim),
        (Retention::Snapshot, Some(snapshot)) if snapshot.is_ready() => deleting(claim),
        (Retention::Snapshot, Some(_)) => waiting(left),
        (Retention::Snapshot, None) => {
            let snapshot = new_snapshot(job, claim_name, output.snapshot_class_name);
            Retirement { snapshot: Some(Box::new(snapshot)), ..waiting(left) }
        }
    }
}

/// The cluster cannot make the snapshot: nothing is deleted.
pub(crate) fn without_snapshot(why: &str) -> Retirement {
    released(Some(warning(format!("no snapshot of the output was made, because {why}; its claim stays"))))
}

fn warning(message: String) -> Note {
    Note { severity: Severity::Warning, reason: reasons::OUTPUT_KEPT, message }
}

fn nothing() -> Retirement {
    Retirement {
        deletions: Vec::new(),
        snapshot: None,
        claim: None,
        releases: false,
        event: None,
        requeue_after: None,
    }
}

fn released(event: Option<Note>) -> Retirement {
    Retirement { releases: true, event, ..nothing() }
}

/// A change of what is waited for wakes the object; the end of its time does not.
fn waiting(left: Duration) -> Retirement {
    Retirement { requeue_after: Some(left), ..nothing() }
}

fn deleting(claim: &ClaimView) -> Retirement {
    Retirement { claim: Some(Box::new(claim.identity())), releases: true, ..nothing() }
}

/// It has no owner, because it has to outlive the TrainingJob.
fn new_snapshot(job: &TrainingJob, claim: &str, class: Option<String>) -> VolumeSnapshot {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let labels = [(labels::NAME, names::KIND), (labels::INSTANCE, name), (labels::MANAGED_BY, NAME)];
    VolumeSnapshot {
        metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            name: Some(names::snapshot(name, job.metadata.uid.as_deref().unwrap_or_default())),
            namespace: job.metadata.namespace.clone(),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..Default::default()
        },
        spec: SnapshotSpec {
            source: SnapshotSource { persistent_volume_claim_name: Some(claim.to_owned()) },
            volume_snapshot_class_name: class,
        },
        status: None,
    }
}
