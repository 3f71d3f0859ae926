//! Carries a plan out, in a fixed order. Decides nothing.

use std::time::Duration;

use api::{aiinference::AIInference, reasons};
use jiff::Timestamp;
use runtime::{
    apply::{ApplyError, Written},
    events::{Note, Severity},
    refusal::Refusal,
};

use crate::{
    Context,
    plan::{Child, Deletion, Plan},
};

/// How a plan ended.
#[derive(Debug)]
pub(crate) enum Applied {
    All {
        requeue_after: Option<Duration>,
    },
    /// A child was refused, or a deletion; nothing after it was tried.
    Refused(Refusal),
}

pub(crate) async fn apply(
    ctx: &Context,
    model: &AIInference,
    plan: Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let Plan { children, deletions, status, mut events, logs, mut requeue_after } = plan;
    // Children first: if one fails, the status is not written and so never claims what did not happen.
    for child in &children {
        match apply_child(ctx, child).await {
            Ok(Written::Contested(contest)) => {
                requeue_after = Some(requeue_after.map_or(contest.wait, |planned| planned.min(contest.wait)));
                if contest.is_new {
                    let (severity, reason) = (Severity::Warning, reasons::FIELD_CONFLICT);
                    events.push(Note { severity, reason, message: contest.message() });
                }
            }
            Ok(Written::Unchanged | Written::Created | Written::Changed) => {}
            Err(error) => return Refusal::of(error).map(Applied::Refused),
        }
    }
    for deletion in &deletions {
        let deleted = match deletion {
            Deletion::PodDisruptionBudget(budget) => ctx.budgets.delete(budget).await,
            Deletion::Pod(pod) => ctx.pods.delete(pod).await,
            Deletion::LoadingPod { pod, grace_seconds } => ctx.pods.delete_now(pod, *grace_seconds).await,
        };
        if let Err(error) = deleted {
            return Refusal::of(error).map(Applied::Refused);
        }
    }
    ctx.writer.apply_status(&ctx.models, model, &status).await?;
    // Events last: they tell of what the status already says.
    for note in &events {
        ctx.recorder.publish(model, note, now).await;
    }
    // Logs after everything that must not wait for a node.
    for log in &logs {
        let namespace = model.metadata.namespace.as_deref().unwrap_or_default();
        let text = ctx.logs.end_of(namespace, &log.pod, &log.container, log.previous).await;
        ctx.crashes.note(log, text.as_deref());
        requeue_after = Some(Duration::ZERO);
    }
    Ok(Applied::All { requeue_after })
}

async fn apply_child(ctx: &Context, child: &Child) -> Result<Written, ApplyError> {
    match child {
        Child::ConfigMap(child) => ctx.config_maps.apply(child).await,
        Child::Deployment(child) => ctx.deployments.apply_onto(child, child.planned_on.as_deref()).await,
        Child::Service(child) => ctx.services.apply(child).await,
        Child::PodDisruptionBudget(child) => ctx.budgets.apply(child).await,
    }
}
