//! What becomes of the output when its TrainingJob is deleted: kept, deleted, or deleted after a snapshot. Pure.
//!
//! A finalizer keeps the TrainingJob until then, for ten minutes at most. Whatever is in doubt stays: no data is deleted
//! because a time is over, and no claim that was made for another TrainingJob.

use std::time::Duration;

use api::{
    labels, reasons,
    trainingjob::{Retention, TrainingJob},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use runtime::events::{Note, Severity};
use serde::Serialize;
use workload::{
    claim::ClaimView,
    pace::Allowance,
    pod::PodView,
    stranded::{StrandedPods, Terms},
    time::remaining,
};

use super::{Deletion, claim::is_of_name, pod::TRAINER, stage::has_stopped};
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

pub(crate) fn needs_snapshot(job: &TrainingJob) -> bool {
    job.spec.output.as_ref().is_some_and(|output| output.retention == Retention::Snapshot)
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
    let Some(claim) = claim.filter(|_| needs_finalizer(job)) else { return released(None) };
    let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
    if let Some(why) = doubt(claim, job) {
        return released(Some(warning(format!(
            "PersistentVolumeClaim {claim_name} stays, because {why}; delete it by hand if its data is not needed"
        ))));
    }
    let deleted = job.metadata.deletion_timestamp.as_ref().map_or(now, |deleted| deleted.0);
    let Some(left) = remaining(LIMIT, deleted, now) else {
        let why = match (snapshot.and_then(VolumeSnapshot::error), observed.dependents) {
            (Some(why), _) => format!(": {why}"),
            (None, 0) => String::new(),
            (None, count) => format!(": {count} TrainingJobs read it or wait for it"),
        };
        let what = match output.retention {
            Retention::Snapshot => "saved in a snapshot",
            Retention::Delete | Retention::Retain => "free",
        };
        let message = format!(
            "the output was not {what} within {} s{why}; claim {claim_name} stays: delete it by hand",
            LIMIT.as_secs()
        );
        return released(Some(warning(message)));
    };
    let running: Vec<&PodView> =
        observed.pods.iter().map(AsRef::as_ref).filter(|pod| !has_stopped(pod)).collect();
    let jobs = observed.attempts.values().chain(&observed.upload);
    let unfinished: Vec<Deletion> = jobs
        .filter(|job| !job.is_finished() && !job.is_being_deleted())
        .map(|job| Deletion::Job(Box::new(job.identity())))
        .collect();
    if !running.is_empty() || !unfinished.is_empty() {
        let (lost, wait) = lost_pods(observed, &running, now);
        let deletions = unfinished.into_iter().chain(lost).collect();
        return Retirement { deletions, ..waiting(wait.map_or(left, |wait| wait.min(left))) };
    }
    if observed.dependents > 0 {
        return waiting(left);
    }
    match (output.retention, snapshot) {
        (Retention::Retain, _) => released(None),
        (Retention::Delete, _) => deleting(claim),
        (Retention::Snapshot, Some(snapshot)) if !is_of(snapshot, claim_name, job) => {
            let name = snapshot.metadata.name.as_deref().unwrap_or_default();
            released(Some(warning(format!(
                "PersistentVolumeClaim {claim_name} stays, because VolumeSnapshot {name} was not made of it for this \
                 TrainingJob, or is being deleted; save its data, and delete it by hand"
            ))))
        }
        (Retention::Snapshot, Some(snapshot)) if snapshot.is_ready() => deleting(claim),
        (Retention::Snapshot, Some(_)) => waiting(left),
        (Retention::Snapshot, None) => {
            let snapshot = new_snapshot(job, claim_name, output.snapshot_class_name);
            Retirement { snapshot: Some(Box::new(snapshot)), ..waiting(left) }
        }
    }
}

/// Why the claim may not have been made for this very job; `None`: it was.
fn doubt(claim: &ClaimView, job: &TrainingJob) -> Option<String> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    match &claim.made_for {
        _ if !is_of_name(claim, name) => Some("it was not made for a TrainingJob of this name".to_owned()),
        None => Some(format!(
            "it has no annotation {} that says for which TrainingJob it was made",
            labels::MADE_FOR
        )),
        Some(uid) if Some(uid) != job.metadata.uid.as_ref() => {
            Some("it was made for an earlier TrainingJob of this name".to_owned())
        }
        Some(_) => None,
    }
}

/// Whether a snapshot is one that was made of this claim for this very job, and stays.
fn is_of(snapshot: &VolumeSnapshot, claim: &str, job: &TrainingJob) -> bool {
    let annotations = snapshot.metadata.annotations.as_ref();
    let made_for = annotations.and_then(|annotations| annotations.get(labels::MADE_FOR));
    snapshot.spec.source.persistent_volume_claim_name.as_deref() == Some(claim)
        && made_for.is_some()
        && made_for == job.metadata.uid.as_ref()
        && snapshot.metadata.deletion_timestamp.is_none()
}

/// Pods whose end no kubelet will report, and when there may be more of them.
fn lost_pods(observed: &Observed, running: &[&PodView], now: Timestamp) -> (Vec<Deletion>, Option<Duration>) {
    let seconds = u64::from(observed.job.spec.node_failure_seconds.unsigned_abs());
    // The deletion of the TrainingJob ends its pods, also while it is paused.
    let terms = Terms { timeout: Duration::from_secs(seconds), is_paused: false, container: TRAINER };
    let stranded = StrandedPods::of(running.iter().copied(), &observed.nodes, &terms, now);
    let due = stranded.due();
    let is_lost = |pod: &&&PodView| {
        pod.metadata.deletion_timestamp.is_some() && due.contains(&pod.uid()) && job_of(pod).is_some()
    };
    let lost = running.iter().filter(is_lost).map(|pod| Deletion::now(pod)).collect();
    (lost, stranded.requeue_after(&Allowance::default()))
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
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    let labels = [(labels::NAME, names::KIND), (labels::INSTANCE, name), (labels::MANAGED_BY, NAME)];
    VolumeSnapshot {
        metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            name: Some(names::snapshot(name, uid)),
            namespace: job.metadata.namespace.clone(),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            annotations: Some([(labels::MADE_FOR.to_owned(), uid.to_owned())].into()),
            ..Default::default()
        },
        spec: SnapshotSpec {
            source: SnapshotSource { persistent_volume_claim_name: Some(claim.to_owned()) },
            volume_snapshot_class_name: class,
        },
        status: None,
    }
}
