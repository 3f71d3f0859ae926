//! What becomes of the output when its TrainingJob is deleted: kept, deleted, or deleted after a snapshot. Pure.
//!
//! A finalizer keeps the TrainingJob until then. Each wait has ten minutes, by the clock of this process from when it began to
//! wait. In doubt a claim stays. No data is deleted because a time is over. A claim of another TrainingJob stays. With
//! retention Delete, a result that is to be uploaded and was not stays.

use std::time::Duration;

use api::{
    conditions as types, labels, reasons,
    trainingjob::{Retention, TrainingJob, TrainingJobStatus},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use runtime::{
    reconcile::LATE_WATCH_RETRY,
    write::{
        events::{Note, Severity},
        refusal::Refusal,
    },
};
use serde::Serialize;
use workload::{
    faults::{
        pace::Allowance,
        stranded::{StrandedPods, Terms},
    },
    time::remaining,
    uploads::has_succeeded,
    views::{claim::ClaimView, job::JobView, pod::PodView},
};

use super::{
    Deletion,
    attempt::failure::has_proven_result,
    children::{claim::is_of_name, metadata::metadata_of_kept},
    status::conditions::refusal_of,
};
use crate::{
    names,
    objects::{
        pod::{TRAINER, has_stopped, job_of},
        training_job::{condition, has_running_attempt, needs_finalizer},
        volume_snapshot::{SnapshotSource, SnapshotSpec, VolumeSnapshot},
    },
    observe::Observed,
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
    /// What is waited for, with `event`, if the status does not say so yet.
    pub(crate) status: Option<Box<TrainingJobStatus>>,
    /// For `FactTimes`.
    #[serde(skip)]
    pub(crate) facts: Vec<String>,
    pub(crate) requeue_after: Option<Duration>,
}

/// How long the deletion of a TrainingJob may wait for one thing; for pods, in addition to their grace period.
const LIMIT: Duration = Duration::from_secs(600);

/// The fact that an event says what becomes of the output.
const REPORTED: &str = "the end of the deletion is reported";

/// What the deletion of a TrainingJob waits for.
#[derive(Clone, Copy, Debug)]
enum Awaited {
    Pods,
    /// What the API server has and the caches do not show.
    Unseen,
    Upload,
    Dependents,
    Snapshot,
    /// That the API server takes the deletion of the claim.
    Deletion,
}

impl Awaited {
    /// For `FactTimes`.
    fn fact(self) -> String {
        format!("the deletion waits: {self:?}")
    }
}

/// The plan for a TrainingJob that is being deleted.
pub(super) fn retire(observed: &Observed, now: Timestamp) -> Retirement {
    let mut retirement = retirement(observed, now);
    if retirement.releases && retirement.event.is_some() {
        // The finalizer may not be removable for long.
        let is_reported = observed.facts.contains_key(REPORTED);
        retirement.event = retirement.event.filter(|_| !is_reported);
        retirement.facts.push(REPORTED.to_owned());
    }
    match &retirement.status {
        Some(status) if observed.job.status.as_ref() == Some(&**status) => {
            Retirement { status: None, event: None, ..retirement }
        }
        Some(_) | None => retirement,
    }
}

fn retirement(observed: &Observed, now: Timestamp) -> Retirement {
    let (job, claim) = (&observed.job, observed.made_claim.as_deref());
    let Some(claim) = claim.filter(|_| needs_finalizer(job)) else { return released(None) };
    let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
    if let Some(why) = doubt(claim, job) {
        return released(Some(warning(format!(
            "PersistentVolumeClaim {claim_name} stays, because {why}; delete it by hand if its data is not needed"
        ))));
    }
    if observed.has_unseen {
        return unseen(observed, claim_name, now);
    }
    of_own_claim(observed, claim, now)
}

/// What is not seen may still write into the claim, so nothing is decided. No change wakes the object, because a watch shows
/// nothing without its labels.
fn unseen(observed: &Observed, claim: &str, now: Timestamp) -> Retirement {
    let waits = waits(observed, claim, Awaited::Unseen, Duration::ZERO, now);
    let requeue_after = waits.requeue_after.map(|left| left.min(LATE_WATCH_RETRY));
    Retirement { requeue_after, ..waits }
}

/// The claim was made for this job. First everything that writes into it ends.
fn of_own_claim(observed: &Observed, claim: &ClaimView, now: Timestamp) -> Retirement {
    let job = &observed.job;
    let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
    let retention = job.spec.output.as_ref().map(|output| output.retention).unwrap_or_default();
    let waits = |awaited, more| waits(observed, claim_name, awaited, more, now);
    let owed = owed(observed);
    let upload = match &owed {
        // It goes on while the rest ends.
        Some(Owed::UnderWay(upload)) => Some(*upload),
        // A container that was injected into its pod runs on. The pod goes with the TrainingJob.
        Some(Owed::Failed(_)) | None => {
            observed.upload.as_deref().filter(|job| !job.is_finished() && has_uploaded(observed, job))
        }
    };
    let is_of_upload = |pod: &&PodView| upload.is_some_and(|upload| upload.has_pod(pod));
    let running: Vec<&PodView> = observed.pods.iter().map(AsRef::as_ref).collect();
    let running: Vec<&PodView> =
        running.into_iter().filter(|pod| !has_stopped(pod) && !is_of_upload(pod)).collect();
    let jobs = observed.attempts.values().chain(&observed.upload).chain(&observed.upload_check);
    let unfinished: Vec<Deletion> = jobs
        .filter(|job| job.is_active())
        .filter(|job| upload.is_none_or(|upload| job.metadata.uid != upload.metadata.uid))
        .map(|job| Deletion::job(job))
        .collect();
    if let (Retention::Delete, Some(Owed::Failed(why))) = (retention, &owed) {
        // Before anything ends: the pods have the proof of the result.
        return released(Some(not_uploaded(job, claim_name, why)));
    }
    if !running.is_empty() || !unfinished.is_empty() {
        let (lost, wait) = lost_pods(observed, &running, now);
        let deletions = unfinished.into_iter().chain(lost).collect();
        let waits = with_seen_end(waits(Awaited::Pods, longest_grace(&running)), observed);
        if waits.releases {
            // A deletion that is refused must not keep the TrainingJob. The garbage collector has the rest.
            return waits;
        }
        let requeue_after = waits.requeue_after.into_iter().chain(wait).min();
        return Retirement { deletions, requeue_after, ..waits };
    }
    if matches!((retention, &owed), (Retention::Delete, Some(Owed::UnderWay(_)))) {
        return waits(Awaited::Upload, Duration::ZERO);
    }
    if observed.dependents > 0 {
        return waits(Awaited::Dependents, Duration::ZERO);
    }
    of_unused_claim(observed, claim, now)
}

/// Nothing writes into the claim, and no other job reads it.
fn of_unused_claim(observed: &Observed, claim: &ClaimView, now: Timestamp) -> Retirement {
    let job = &observed.job;
    let output = job.spec.output.clone().unwrap_or_default();
    let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
    let waits = || waits(observed, claim_name, Awaited::Snapshot, Duration::ZERO, now);
    match (output.retention, observed.snapshot.as_deref()) {
        (Retention::Retain, _) => released(None),
        (Retention::Delete, _) => deleting(observed, claim, now),
        (Retention::Snapshot, Some(snapshot)) if !is_of(snapshot, claim_name, job) => {
            let name = snapshot.metadata.name.as_deref().unwrap_or_default();
            released(Some(warning(format!(
                "PersistentVolumeClaim {claim_name} stays, because VolumeSnapshot {name} was not made of it for this \
                 TrainingJob, or is being deleted; save its data, and delete it by hand"
            ))))
        }
        (Retention::Snapshot, Some(snapshot)) if snapshot.is_ready() => deleting(observed, claim, now),
        (Retention::Snapshot, Some(_)) => waits(),
        (Retention::Snapshot, None) => {
            let waits = waits();
            if waits.releases {
                return waits;
            }
            let snapshot = new_snapshot(job, claim_name, output.snapshot_class_name);
            Retirement { snapshot: Some(Box::new(snapshot)), ..waits }
        }
    }
}

/// A result that is to be uploaded, and was not.
enum Owed<'a> {
    /// By this Job, which runs.
    UnderWay(&'a JobView),
    /// No Job uploads it, and why.
    Failed(String),
}

/// `None`: the result was uploaded, or there is none.
fn owed(observed: &Observed) -> Option<Owed<'_>> {
    let output = observed.job.spec.output.as_ref()?;
    output.upload.as_ref().filter(|_| output.retention == Retention::Delete)?;
    let uploaded = condition(observed.job.status.as_ref(), types::UPLOADED);
    // The status may not say yet that the training has succeeded.
    let is_proven = observed.attempts.values().any(|job| job.completed.is_some())
        || observed.pods.iter().any(|pod| has_proven_result(pod));
    let has_trained = uploaded.is_some() || is_proven || has_unseen_end(observed);
    let job = observed.upload.as_deref();
    let is_uploaded = uploaded.is_some_and(|known| known.status == "True")
        || job.is_some_and(|job| has_uploaded(observed, job));
    if !has_trained || is_uploaded {
        return None;
    }
    Some(match job.filter(|job| job.is_active()) {
        Some(job) => Owed::UnderWay(job),
        None => Owed::Failed(uploaded.map_or("no upload had begun", |known| &known.message).to_owned()),
    })
}

fn has_uploaded(observed: &Observed, upload: &JobView) -> bool {
    upload.completed.is_some() || has_succeeded(&observed.pods_of(upload))
}

/// Whether the Job of the last attempt was deleted with the TrainingJob before a controller saw how it ended.
fn has_unseen_end(observed: &Observed) -> bool {
    let status = observed.job.status.as_ref();
    has_running_attempt(&observed.job)
        && status.is_some_and(|status| !observed.attempts.contains_key(&status.attempts))
}

/// That the last attempt has ended without a result, as this process has seen it before it deletes its Job.
fn with_seen_end(mut waits: Retirement, observed: &Observed) -> Retirement {
    if let Some(status) = &mut waits.status
        && observed.attempts.contains_key(&status.attempts)
    {
        status.ended_attempts = status.attempts;
    }
    waits
}

fn not_uploaded(job: &TrainingJob, claim: &str, why: &str) -> Note {
    let upload = job.spec.output.as_ref().and_then(|output| output.upload.as_ref());
    let uri = upload.map_or("", |upload| &upload.uri);
    warning(format!(
        "PersistentVolumeClaim {claim} stays, because the result was not uploaded to {uri} ({why}); upload it by hand, then \
         delete the claim"
    ))
}

/// Pods that end well may take so long.
fn longest_grace(pods: &[&PodView]) -> Duration {
    let seconds = pods.iter().filter_map(|pod| pod.metadata.deletion_grace_period_seconds).max();
    Duration::from_secs(u64::try_from(seconds.unwrap_or_default()).unwrap_or_default())
}

/// Waits, or gives up and keeps the claim. A change of what is waited for wakes the object; the end of its time does not.
fn waits(observed: &Observed, claim: &str, awaited: Awaited, more: Duration, now: Timestamp) -> Retirement {
    let fact = awaited.fact();
    let since = observed.facts.get(&fact).copied().unwrap_or(now);
    let limit = LIMIT.saturating_add(more);
    let count = observed.dependents;
    let Some(left) = remaining(limit, since, now) else {
        let why = match awaited {
            Awaited::Pods => "its pods have not ended".to_owned(),
            Awaited::Unseen => "a Job or pod of it that has lost its labels has not ended".to_owned(),
            Awaited::Upload => {
                let note = not_uploaded(&observed.job, claim, "its upload has not ended");
                return expired(note, fact);
            }
            Awaited::Dependents => format!("{count} TrainingJobs read it or wait for it"),
            Awaited::Snapshot => match observed.snapshot.as_deref().and_then(VolumeSnapshot::error) {
                Some(why) => format!("its snapshot is not ready: {why}"),
                None if observed.snapshot.is_none() => "no snapshot of it could be made".to_owned(),
                None => "its snapshot is not ready".to_owned(),
            },
            Awaited::Deletion => "the API server has not taken its deletion".to_owned(),
        };
        let message = format!(
            "PersistentVolumeClaim {claim} stays: after {} s {why}; save its data if it is needed, and delete it by hand",
            limit.as_secs()
        );
        return expired(warning(message), fact);
    };
    let what = match awaited {
        Awaited::Pods => "its pods".to_owned(),
        Awaited::Unseen => "a Job or pod of it that is not seen".to_owned(),
        Awaited::Upload => "the upload of its result".to_owned(),
        Awaited::Dependents => format!("{count} TrainingJobs that read its result or wait for it"),
        Awaited::Snapshot => "the snapshot of its output".to_owned(),
        Awaited::Deletion => "the deletion of its output".to_owned(),
    };
    let message =
        format!("the job is being deleted, and waits for {what}; after a while claim {claim} is kept");
    let status = observed.job.status.clone().unwrap_or_default();
    let status = TrainingJobStatus { message: Some(message.clone()), ..status };
    let event = Note { severity: Severity::Normal, reason: reasons::WAITING, message };
    Retirement {
        status: Some(Box::new(status)),
        event: Some(event),
        facts: vec![fact],
        requeue_after: Some(left),
        ..nothing()
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

/// After the API server has refused something of `planned`: it is tried again after `again`, until its time is over. What was
/// to be deleted stays.
pub(super) fn refused(
    refusal: &Refusal,
    planned: Retirement,
    observed: &Observed,
    again: Duration,
) -> Retirement {
    if let (Some(_), Refusal::Invalid(why)) = (&planned.snapshot, refusal) {
        return without_snapshot(why);
    }
    let claim = observed.made_claim.as_deref().and_then(|claim| claim.metadata.name.as_deref());
    let claim = claim.unwrap_or_default();
    let why = refusal.message();
    let mut message = format!("the job is being deleted, and waits: {why}");
    // When only the finalizer is left, the wait has no limit, and no claim to keep.
    if !planned.releases || planned.claim.is_some() {
        message = format!("{message}; after a while claim {claim} is kept");
    }
    let before = observed.job.status.clone().unwrap_or_default();
    let mut status = planned.status.map_or_else(|| before.clone(), |status| *status);
    status.message = Some(message.clone());
    if observed.attempts.get(&before.attempts).is_some_and(|job| job.is_active()) {
        // It was not deleted, and may still have a result.
        status.ended_attempts = before.ended_attempts;
    }
    let is_new = status != before;
    let reason = refusal_of(refusal).map_or(reasons::WAITING, |(reason, _)| reason);
    let event = Note { severity: Severity::Warning, reason, message };
    Retirement {
        status: is_new.then(|| Box::new(status)),
        event: is_new.then_some(event),
        facts: planned.facts,
        requeue_after: planned.requeue_after.into_iter().chain([again]).min(),
        ..nothing()
    }
}

/// The cluster cannot make the snapshot: nothing is deleted. `why`: in the words of `apply`.
fn without_snapshot(why: &str) -> Retirement {
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
        status: None,
        facts: Vec::new(),
        requeue_after: None,
    }
}

fn released(event: Option<Note>) -> Retirement {
    Retirement { releases: true, event, ..nothing() }
}

/// The time of what was waited for is over, and stays over if the finalizer cannot be removed at once.
fn expired(event: Note, fact: String) -> Retirement {
    Retirement { facts: vec![fact], ..released(Some(event)) }
}

fn deleting(observed: &Observed, claim: &ClaimView, now: Timestamp) -> Retirement {
    if claim.metadata.deletion_timestamp.is_some() {
        return released(None);
    }
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let waits = waits(observed, name, Awaited::Deletion, Duration::ZERO, now);
    if waits.releases {
        return waits;
    }
    let claim = Some(Box::new(claim.identity()));
    Retirement { claim, releases: true, facts: waits.facts, ..nothing() }
}

/// It has no owner, because it has to outlive the TrainingJob.
fn new_snapshot(job: &TrainingJob, claim: &str, class: Option<String>) -> VolumeSnapshot {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (name, uid) = (text(&job.metadata.name), text(&job.metadata.uid));
    VolumeSnapshot {
        metadata: metadata_of_kept(names::snapshot(&name, &uid), &text(&job.metadata.namespace), &name, &uid),
        spec: SnapshotSpec {
            source: SnapshotSource { persistent_volume_claim_name: Some(claim.to_owned()) },
            volume_snapshot_class_name: class,
        },
        status: None,
    }
}
