//! Sends a plan in a fixed order: deletions, children, the check of the store, status, events, and the deletion of an evaluation whose time is over.
//! It decides nothing. All deletions are tried, and the children of each side until one is refused. After a refusal, or a
//! failure of any of these, no status is written: that of the next plan says what did not happen. Only a failed check of the
//! store keeps no status back.

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
    let Plan { children, check, deletions, status, events, facts, is_expired, requeue_after } = plan;
    ctx.fact_times.note(evaluation.metadata.uid.as_deref().unwrap_or_default(), facts, now);
    // GPUs are given back also where a child is refused, and a server that must not be deleted keeps no run from its start.
    let undeleted = delete_all(ctx, deletions).await;
    let (again, uncreated) = apply_children(ctx, evaluation, children, now).await;
    // What a run needs is said first.
    let refused = uncreated.result()?.or(undeleted.result()?);
    // The store is tried also where a run is refused.
    let unchecked = match check {
        Some(job) => ctx.jobs.create(job).await.err().map(Refusal::of),
        None => None,
    };
    let (refused, failed) = match unchecked {
        Some(Ok(refusal)) => (refused.or(Some(refusal)), None),
        Some(Err(error)) => (refused, Some(error)),
        None => (refused, None),
    };
    let failed = match (refused, again, failed) {
        (None, _, failed) => failed,
        (Some(why), _, Some(error)) => return Ok(Applied::Failed { error, why }),
        (Some(refusal), None, None) => return Ok(Applied::Refused(refusal)),
        (Some(refusal), Some(wait), None) => return Ok(Applied::RefusedAfterContest { refusal, wait }),
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
    // The runs go on, and the status says so.
    if let Some(error) = failed {
        return Err(error);
    }
    Ok(Applied::All { requeue_after: requeue_after.iter().chain(&again).min().copied() })
}

/// The first failure and the first refusal of several writes.
#[derive(Default)]
struct Unwritten {
    failed: Option<ApplyError>,
    refused: Option<Refusal>,
}

impl Unwritten {
    fn note(&mut self, error: ApplyError) {
        match Refusal::of(error) {
            Ok(refusal) => {
                self.refused.get_or_insert(refusal);
            }
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
    }

    /// A failure, which is tried again sooner, counts more than a refusal.
    fn result(self) -> Result<Option<Refusal>, ApplyError> {
        self.failed.map_or(Ok(self.refused), Err)
    }
}

/// All are tried: a Job that must not be deleted does not keep a server with its GPUs.
async fn delete_all(ctx: &Context, deletions: &[Deletion]) -> Unwritten {
    let mut unwritten = Unwritten::default();
    for deletion in deletions {
        let deleted = match deletion {
            Deletion::Server(server) => ctx.inferences.delete_child(server).await,
            Deletion::Job(job) => ctx.jobs.delete(job).await,
        };
        if let Err(error) = deleted {
            unwritten.note(error);
        }
    }
    unwritten
}

/// When to reconcile again, because a contested write is repeated, and what was not created.
async fn apply_children(
    ctx: &Context,
    evaluation: &ModelEvaluation,
    children: &[Child],
    now: Timestamp,
) -> (Option<Duration>, Unwritten) {
    let (mut again, mut unwritten, mut stopped) = (None::<Duration>, Unwritten::default(), Vec::new());
    for child in children {
        if !child.is_tried_after(&stopped) {
            continue;
        }
        let written = match child {
            Child::Claim(claim) => ctx.claims.create(claim).await,
            Child::Server(_, server) => ctx.inferences.apply(server).await,
            Child::Job(_, job) => ctx.jobs.create(job).await,
        };
        match written {
            Ok(Written::Contested(contest)) => {
                again = again.into_iter().chain([contest.wait]).min();
                if let Some(note) = contest.note(reasons::FIELD_CONFLICT) {
                    // At once: a later step may fail, and the contest is new only this time.
                    ctx.recorder.publish(evaluation, &note, now).await;
                }
            }
            Ok(Written::Unchanged | Written::Created | Written::Changed) => {}
            Err(error) => {
                unwritten.note(error);
                stopped.push(child.side());
            }
        }
    }
    (again, unwritten)
}

#[cfg(test)]
mod tests;
