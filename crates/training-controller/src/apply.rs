//! Applies a plan in a fixed order: children, deletions, the status, events, the log. The first failure ends it, so that the
//! status never claims what did not happen.

use std::time::Duration;

use api::{
    labels, reasons,
    trainingjob::{TrainingJob, TrainingJobStatus},
};
use jiff::Timestamp;
use runtime::{
    key::Key,
    reconcile::Applied,
    write::{
        apply::{ApplyError, Written},
        refusal::Refusal,
    },
};
use tracing::warn;

use crate::{
    Context,
    plan::{Child, DETAIL_HELD_BACK, Deletion, Plan, Retirement, Run, reduced, wait_after_reduction},
    progress::Target,
};

pub(crate) async fn apply(
    ctx: &Context,
    job: &TrainingJob,
    plan: &Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    match plan {
        Plan::SetFinalizer { run } => {
            note(ctx, job, &run.facts, now);
            Ok(match set_finalizer(ctx, job, true).await? {
                None => Applied::All { requeue_after: Some(Duration::ZERO) },
                Some(refusal) => Applied::Refused(refusal),
            })
        }
        Plan::Run(run) => apply_run(ctx, job, run, now).await,
        Plan::Retire(retirement) => retire(ctx, job, retirement, now).await,
    }
}

/// The refusal, which names the finalizer and the fix. An ended job has no condition for it, so the log has it.
async fn set_finalizer(
    ctx: &Context,
    job: &TrainingJob,
    is_set: bool,
) -> Result<Option<Refusal>, ApplyError> {
    let finalizer = labels::OUTPUT_FINALIZER;
    let Err(error) = ctx.writer.set_finalizer(&ctx.training_jobs, job, finalizer, is_set).await else {
        return Ok(None);
    };
    let refusal = Refusal::of(error)?;
    let what = if is_set { "set, which output.retention needs" } else { "removed" };
    let message = format!("the finalizer {finalizer} cannot be {what}: {}; allow it", refusal.message());
    warn!(job = %Key::of(job), message, "the API server refuses a finalizer");
    Ok(Some(Refusal::Denied(message)))
}

fn note(ctx: &Context, job: &TrainingJob, facts: &[String], now: Timestamp) {
    ctx.fact_times.note(uid(job), facts, now);
}

fn uid(job: &TrainingJob) -> &str {
    job.metadata.uid.as_deref().unwrap_or_default()
}

async fn apply_run(
    ctx: &Context,
    job: &TrainingJob,
    run: &Run,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let Run { children, deletions, status, events, follow, facts, is_expired, requeue_after } = run;
    note(ctx, job, facts, now);
    let mut contest: Option<Duration> = None;
    for child in children {
        match create(ctx, job, child).await {
            Ok(Written::Contested(contested)) => {
                contest = contest.into_iter().chain([contested.wait]).min();
                if let Some(note) = contested.note(reasons::FIELD_CONFLICT) {
                    // At once: a later step may fail, and the contest is new only this time.
                    ctx.recorder.publish(job, &note, now).await;
                }
            }
            Ok(Written::Unchanged | Written::Created | Written::Changed) => {}
            Err(error) => return Refusal::of(error).map(|refusal| refused(refusal, contest)),
        }
    }
    if let Some(refusal) = delete_all(ctx, deletions).await? {
        return Ok(refused(refusal, contest));
    }
    if *is_expired {
        return match ctx.writer.delete_root(&ctx.training_jobs, job).await {
            Ok(_) => Ok(Applied::All { requeue_after: None }),
            Err(error) => {
                let refusal = Refusal::of(error)?;
                // Of a job that has ended the status stays as it is.
                warn!(job = %Key::of(job), why = refusal.message(), "the API server refuses to delete a job whose time is over");
                Ok(Applied::Refused(refusal))
            }
        };
    }
    let requeue_after = write_status(ctx, job, status, *requeue_after, now).await?;
    // After the status, which has the same content.
    for note in events {
        ctx.recorder.publish(job, note, now).await;
    }
    read_log(ctx, job, follow.as_ref(), status);
    Ok(Applied::All { requeue_after: requeue_after.into_iter().chain(contest).min() })
}

fn refused(refusal: Refusal, contest: Option<Duration>) -> Applied {
    match contest {
        None => Applied::Refused(refusal),
        Some(wait) => Applied::RefusedAfterContest { refusal, wait },
    }
}

/// All are tried: a pod that must not be deleted does not keep its Job, whose deletion may end it. A failure, which is tried
/// again sooner, counts more than a refusal.
async fn delete_all(ctx: &Context, deletions: &[Deletion]) -> Result<Option<Refusal>, ApplyError> {
    let (mut refused, mut failed) = (None, None);
    for deletion in deletions {
        match delete(ctx, deletion).await.map_err(Refusal::of) {
            Ok(()) => {}
            Err(Ok(refusal)) => {
                refused.get_or_insert(refusal);
            }
            Err(Err(error)) => {
                failed.get_or_insert(error);
            }
        }
    }
    failed.map_or(Ok(refused), Err)
}

/// A status that the API server calls invalid is followed by a reduced one. Returns when to reconcile again.
async fn write_status(
    ctx: &Context,
    job: &TrainingJob,
    status: &TrainingJobStatus,
    planned: Option<Duration>,
    now: Timestamp,
) -> Result<Option<Duration>, ApplyError> {
    // Most reconciles change nothing: this saves the rendering that `apply_status` compares.
    if job.status.as_ref() == Some(status) {
        return Ok(planned);
    }
    let mut requeue_after = planned;
    if let Err(error) = ctx.writer.apply_status(&ctx.training_jobs, job, status).await {
        let Some(words) = refusal_of_status(&error) else { return Err(error) };
        warn!(job = %Key::of(job), words, "the API server refuses the status; a reduced one is written");
        let reduced = reduced(job, status, words, now);
        let written = ctx.writer.apply_status(&ctx.training_jobs, job, &reduced).await?;
        requeue_after = Some(wait_after_reduction(&written, planned, ctx.defaults.refusal_retry));
    }
    ctx.fact_times.end(uid(job), DETAIL_HELD_BACK);
    Ok(requeue_after)
}

fn read_log(ctx: &Context, job: &TrainingJob, follow: Option<&Target>, status: &TrainingJobStatus) {
    let (key, uid) = (Key::of(job), uid(job));
    let Some(target) = follow else { return ctx.progress.forget(uid) };
    ctx.progress.follow(&key, uid, target, status);
    // Its removal may have come before.
    if ctx.training_jobs.get(&key).is_none_or(|known| known.metadata.uid != job.metadata.uid) {
        ctx.progress.forget(uid);
    }
}

/// The words of the API server, if it calls the status invalid.
fn refusal_of_status(error: &ApplyError) -> Option<&str> {
    let ApplyError::Call { source, .. } = error else { return None };
    let kube::Error::Api(status) = &**source else { return None };
    (status.code == 422).then_some(&status.message)
}

/// Ends what a TrainingJob that is being deleted has left.
async fn retire(
    ctx: &Context,
    job: &TrainingJob,
    retirement: &Retirement,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let Retirement { deletions, snapshot, claim, releases, event, status, facts, requeue_after } = retirement;
    ctx.progress.forget(uid(job));
    note(ctx, job, facts, now);
    if let Some(refusal) = delete_all(ctx, deletions).await? {
        return Ok(Applied::Refused(refusal));
    }
    if let Some(snapshot) = snapshot
        && let Err(error) = ctx.snapshots.create_anyway(snapshot).await
    {
        let refusal = match unavailable(&error) {
            Some(why) => Refusal::Invalid(why),
            None => Refusal::of(error)?,
        };
        return Ok(Applied::Refused(refusal));
    }
    if let Some(claim) = claim
        && let Err(error) = ctx.claims.delete(claim).await
    {
        return Refusal::of(error).map(Applied::Refused);
    }
    if let Some(status) = status {
        ctx.writer.apply_status(&ctx.training_jobs, job, &**status).await?;
    }
    if let Some(note) = event {
        ctx.recorder.publish(job, note, now).await;
    }
    if *releases && let Some(refusal) = set_finalizer(ctx, job, false).await? {
        return Ok(Applied::Refused(refusal));
    }
    Ok(Applied::All { requeue_after: *requeue_after })
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
