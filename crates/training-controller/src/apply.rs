//! Applies a plan in a fixed order: children, deletions, the status, events, the log. The first failure ends it, so that the
//! status never claims what did not happen.

use std::time::Duration;

use api::{labels, trainingjob::TrainingJob};
use jiff::Timestamp;
use runtime::{
    apply::{ApplyError, Written},
    cache::Key,
    refusal::Refusal,
};
use tracing::warn;

use crate::{
    Context,
    plan::{
        Child, DETAIL_HELD_BACK, Deletion, Plan, Retirement, has_finalizer, needs_finalizer, reduced,
        wait_after_reduction, without_snapshot,
    },
};

/// The outcome of a plan.
#[derive(Debug)]
pub(crate) enum Applied {
    All {
        requeue_after: Option<Duration>,
    },
    /// The write of a child or a deletion was refused; the steps after it were skipped.
    Refused(Refusal),
}

pub(crate) async fn apply(
    ctx: &Context,
    job: &TrainingJob,
    plan: &Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let Plan { children, deletions, status, events, follow, facts, is_expired, requeue_after } = plan;
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    ctx.fact_times.note(uid, facts, now);
    // Before the first pod: what is written then must not be forgotten at the deletion.
    let wanted = needs_finalizer(job) && !is_expired;
    if wanted && !has_finalizer(job) {
        ctx.writer.set_finalizer(&ctx.training_jobs, job, labels::OUTPUT_FINALIZER, true).await?;
        return Ok(Applied::All { requeue_after: Some(Duration::ZERO) });
    }
    for child in children {
        if let Err(error) = create(ctx, job, child).await {
            return Refusal::of(error).map(Applied::Refused);
        }
    }
    let mut refused = None;
    for deletion in deletions {
        if let Err(error) = delete(ctx, deletion).await {
            // A pod that must not be deleted does not keep its Job, whose deletion may end it.
            let refusal = Refusal::of(error)?;
            refused.get_or_insert(refusal);
        }
    }
    if let Some(refusal) = refused {
        return Ok(Applied::Refused(refusal));
    }
    if *is_expired {
        ctx.writer.delete_root(&ctx.training_jobs, job).await?;
        return Ok(Applied::All { requeue_after: None });
    }
    let mut requeue_after = *requeue_after;
    // Most reconciles change nothing: this saves the rendering that `apply_status` compares.
    let is_unchanged = job.status.as_ref() == Some(status);
    if !is_unchanged {
        if let Err(error) = ctx.writer.apply_status(&ctx.training_jobs, job, status).await {
            let Some(words) = refusal_of_status(&error) else { return Err(error) };
            warn!(job = %Key::of(job), words, "the API server refuses the status; a reduced one is written");
            let reduced = reduced(job, status, words, now);
            let written = ctx.writer.apply_status(&ctx.training_jobs, job, &reduced).await?;
            requeue_after = Some(wait_after_reduction(&written, requeue_after, ctx.defaults.refusal_retry));
        }
        ctx.fact_times.end(uid, DETAIL_HELD_BACK);
    }
    // After the status, which has the same content.
    for note in events {
        ctx.recorder.publish(job, note, now).await;
    }
    match follow {
        Some(target) => {
            let key = Key::of(job);
            ctx.progress.follow(&key, uid, target, status);
            // Its removal may have come before.
            if ctx.training_jobs.get(&key).is_none_or(|known| known.metadata.uid != job.metadata.uid) {
                ctx.progress.forget(uid);
            }
        }
        None => ctx.progress.forget(uid),
    }
    Ok(Applied::All { requeue_after })
}

/// The words of the API server, if it calls the status invalid.
fn refusal_of_status(error: &ApplyError) -> Option<&str> {
    let ApplyError::Call { source, .. } = error else { return None };
    let kube::Error::Api(status) = &**source else { return None };
    (status.code == 422).then_some(&status.message)
}

/// Ends what a TrainingJob that is being deleted has left.
pub(crate) async fn retire(
    ctx: &Context,
    job: &TrainingJob,
    retirement: Retirement,
    now: Timestamp,
) -> Result<Option<Duration>, ApplyError> {
    let Retirement { deletions, snapshot, claim, releases, event, status, facts, requeue_after } = retirement;
    ctx.fact_times.note(job.metadata.uid.as_deref().unwrap_or_default(), &facts, now);
    for deletion in &deletions {
        delete(ctx, deletion).await?;
    }
    if let Some(snapshot) = snapshot {
        match ctx.snapshots.create_anyway(&snapshot).await {
            Ok(_) => {}
            Err(error) => match unavailable(&error) {
                Some(why) => return Box::pin(retire(ctx, job, without_snapshot(&why), now)).await,
                None => return Err(error),
            },
        }
    }
    if let Some(claim) = claim {
        ctx.claims.delete(&claim).await?;
    }
    let is_known = status.as_deref().is_some_and(|status| job.status.as_ref() == Some(status));
    if let Some(status) = status.filter(|_| !is_known) {
        ctx.writer.apply_status(&ctx.training_jobs, job, &*status).await?;
    }
    if let Some(note) = event.filter(|_| !is_known) {
        ctx.recorder.publish(job, &note, now).await;
    }
    if releases {
        ctx.writer.set_finalizer(&ctx.training_jobs, job, labels::OUTPUT_FINALIZER, false).await?;
    }
    Ok(requeue_after)
}

/// Why the cluster will not make the snapshot, however often it is asked.
fn unavailable(error: &ApplyError) -> Option<String> {
    let ApplyError::Call { source, .. } = error else { return None };
    let kube::Error::Api(status) = &**source else { return None };
    match status.code {
        404 => Some("the cluster has no VolumeSnapshots (snapshot.storage.k8s.io/v1)".to_owned()),
        403 if status.message.contains("is being terminated") => {
            Some("the namespace is being deleted".to_owned())
        }
        _ => None,
    }
}

async fn delete(ctx: &Context, deletion: &Deletion) -> Result<(), ApplyError> {
    match deletion {
        Deletion::Job(job) => ctx.jobs.delete(job).await,
        Deletion::Pod { pod, grace } => ctx.pods.delete_within(pod, *grace).await,
    }
}

async fn create(ctx: &Context, job: &TrainingJob, child: &Child) -> Result<Written, ApplyError> {
    match child {
        Child::Claim(claim) => {
            let owner = kube::Resource::controller_owner_ref(job, &()).unwrap_or_default();
            ctx.claims.create_for(&owner, claim).await
        }
        Child::Service(service) => ctx.services.apply(service).await,
        Child::Job(job) => ctx.jobs.create(job).await,
    }
}
