//! Sends a plan in a fixed order: deletions, children, status, events, and the deletion of an evaluation whose time is over.
//! It decides nothing. The first failure ends this sequence, so the status never reports what did not happen.

use std::time::Duration;

use api::{aiinference::evaluation::ModelEvaluation, reasons};
use jiff::Timestamp;
use runtime::{
    reconcile::Applied,
    write::{
        apply::{ApplyError, Written},
        refusal::Refusal,
    },
};

use crate::{
    Context,
    plan::{Child, Deletion, Plan},
};

pub(crate) async fn apply(
    ctx: &Context,
    evaluation: &ModelEvaluation,
    plan: &Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let Plan { children, deletions, status, events, is_expired, requeue_after } = plan;
    let again = match apply_children(ctx, evaluation, children, deletions, now).await {
        Ok(again) => again,
        Err(error) => return Refusal::of(error).map(Applied::Refused),
    };
    if *is_expired {
        return match ctx.writer.delete_root(&ctx.evaluations, evaluation).await {
            Ok(()) => Ok(Applied::All { requeue_after: None }),
            Err(error) => Refusal::of(error).map(Applied::Refused),
        };
    }
    ctx.writer.apply_status(&ctx.evaluations, evaluation, status).await?;
    for note in events {
        ctx.recorder.publish(evaluation, note, now).await;
    }
    Ok(Applied::All { requeue_after: requeue_after.iter().chain(&again).min().copied() })
}

/// When to reconcile again: when a contested write is repeated.
async fn apply_children(
    ctx: &Context,
    evaluation: &ModelEvaluation,
    children: &[Child],
    deletions: &[Deletion],
    now: Timestamp,
) -> Result<Option<Duration>, ApplyError> {
    let mut again: Option<Duration> = None;
    // GPUs are given back also where a child is refused.
    for deletion in deletions {
        match deletion {
            Deletion::Server(server) => ctx.inferences.delete_child(server).await?,
            Deletion::Job(job) => ctx.jobs.delete(job).await?,
        }
    }
    for child in children {
        let written = match child {
            Child::Claim(claim) => ctx.claims.create(claim).await?,
            Child::Server(server) => ctx.inferences.apply(server).await?,
            Child::Job(job) => ctx.jobs.create(job).await?,
        };
        match written {
            Written::Contested(contest) => {
                again = again.into_iter().chain([contest.wait]).min();
                if let Some(note) = contest.note(reasons::FIELD_CONFLICT) {
                    // At once: a later step may fail, and the contest is new only this time.
                    ctx.recorder.publish(evaluation, &note, now).await;
                }
            }
            Written::Unchanged | Written::Created | Written::Changed => {}
        }
    }
    Ok(again)
}
