//! Applies a plan in a fixed order. It only decides when to reconcile again after a contested write or a log read.
//!
//! Pods on lost nodes are deleted first and independently of the rest. Then children, deletions, status, events and logs;
//! the first failure ends this sequence.

use std::time::Duration;

use api::{aiinference::AIInference, reasons};
use jiff::Timestamp;
use runtime::{
    apply::{ApplyError, Written},
    cache::Key,
    events::{Note, Severity},
    logs::Tail,
    refusal::Refusal,
};
use workload::crashes::Reading;

use crate::{
    Context,
    plan::{Child, Plan, PodDeletion},
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

/// Deletes pods on lost nodes. All deletions are attempted; the first refusal is returned.
pub(crate) async fn delete_stranded(
    ctx: &Context,
    inference: &AIInference,
    deletions: Vec<PodDeletion>,
    now: Timestamp,
) -> Result<Option<Refusal>, ApplyError> {
    let mut failed = None;
    for PodDeletion { pod, migration, note } in deletions {
        match ctx.pods.delete(&pod).await {
            Ok(()) => {
                // Recorded before the status write, which may fail with a conflict.
                ctx.migrations.note(inference.metadata.uid.as_deref().unwrap_or_default(), migration);
                ctx.recorder.publish(inference, &note, now).await;
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map(Refusal::of).transpose()
}

pub(crate) async fn apply(
    ctx: &Context,
    inference: &AIInference,
    plan: Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let Plan { children, budget_deletions, status, events, logs, facts: _, mut requeue_after } = plan;
    // Children before the status: after a failure the status is not written, so it never reports what did not happen.
    for child in &children {
        match apply_child(ctx, child).await {
            Ok(Written::Contested(contest)) => {
                requeue_after = Some(requeue_after.map_or(contest.wait, |planned| planned.min(contest.wait)));
                if contest.is_new {
                    // At once: a later step may fail, and the contest is new only this time.
                    let (severity, reason) = (Severity::Warning, reasons::FIELD_CONFLICT);
                    let note = Note { severity, reason, message: contest.message() };
                    ctx.recorder.publish(inference, &note, now).await;
                }
            }
            Ok(Written::Unchanged | Written::Created | Written::Changed) => {}
            Err(error) => return Refusal::of(error).map(Applied::Refused),
        }
    }
    for budget in &budget_deletions {
        if let Err(error) = ctx.budgets.delete_child(budget).await {
            return Refusal::of(error).map(Applied::Refused);
        }
    }
    ctx.writer.apply_status(&ctx.inferences, inference, &status).await?;
    // After the status, which has the same content.
    for note in &events {
        ctx.recorder.publish(inference, note, now).await;
    }
    // Last, because a request to a kubelet may be slow.
    for log in &logs {
        let namespace = inference.metadata.namespace.as_deref().unwrap_or_default();
        let tail = ctx.logs.end_of(namespace, &log.pod, &log.container, log.previous).await;
        // An entry for a pod that was deleted meanwhile would never be removed.
        let known = ctx.pods.get(&Key::new(namespace, &log.pod));
        if known.is_none_or(|pod| pod.uid() != log.uid) {
            continue;
        }
        match &tail {
            Tail::Text(text) => ctx.crashes.note(log, Reading::Text(text)),
            Tail::Unreadable => ctx.crashes.note(log, Reading::Unreadable),
            Tail::Forbidden => ctx.crashes.note(log, Reading::Forbidden),
        }
        requeue_after = Some(Duration::ZERO);
    }
    Ok(Applied::All { requeue_after })
}

async fn apply_child(ctx: &Context, child: &Child) -> Result<Written, ApplyError> {
    match child {
        Child::ConfigMap(child) => ctx.config_maps.apply(child).await,
        Child::Deployment(child) => {
            ctx.deployments.apply_to_version(child, child.planned_on.as_deref()).await
        }
        Child::Service(child) => ctx.services.apply(child).await,
        Child::PodDisruptionBudget(child) => ctx.budgets.apply(child).await,
    }
}
