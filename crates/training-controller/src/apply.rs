//! Applies a plan in a fixed order: children, deletions, the status, events, the log. The first failure ends it, so that the
//! status never claims what did not happen.

use std::time::Duration;

use api::trainingjob::TrainingJob;
use jiff::Timestamp;
use runtime::{
    apply::{ApplyError, Written},
    cache::Key,
    refusal::Refusal,
};

use crate::{
    Context,
    plan::{Child, Deletion, Plan},
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
    for child in children {
        if let Err(error) = create(ctx, job, child).await {
            return Refusal::of(error).map(Applied::Refused);
        }
    }
    for deletion in deletions {
        let deleted = match deletion {
            Deletion::Job(job) => ctx.jobs.delete(job).await,
            Deletion::LostPod(pod) => ctx.pods.delete_now(pod).await,
        };
        if let Err(error) = deleted {
            return Refusal::of(error).map(Applied::Refused);
        }
    }
    if *is_expired {
        ctx.writer.delete_root(&ctx.training_jobs, job).await?;
        return Ok(Applied::All { requeue_after: None });
    }
    ctx.writer.apply_status(&ctx.training_jobs, job, status).await?;
    // After the status, which has the same content.
    for note in events {
        ctx.recorder.publish(job, note, now).await;
    }
    match follow {
        Some(target) => ctx.progress.follow(&Key::of(job), uid, target, status),
        None => ctx.progress.forget(uid),
    }
    Ok(Applied::All { requeue_after: *requeue_after })
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
