//! Carries out what was planned, in a fixed order. Decides only when to look again after a contested write or a read log.
//!
//! Pods leave lost nodes first: no spec, child or status that fails may keep a service on a dead node, and neither may
//! hold up the other. Then children, deletions, status, events and logs; the first failure ends this order.

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
    plan::{Child, Leaving, Plan},
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

/// Deletes pods of lost nodes; the failure of one holds up no other. What is refused is returned.
pub(crate) async fn leave(
    ctx: &Context,
    model: &AIInference,
    leaving: Vec<Leaving>,
    now: Timestamp,
) -> Result<Option<Refusal>, ApplyError> {
    let mut failed = None;
    for Leaving { pod, departure, note } in leaving {
        match ctx.pods.delete(&pod).await {
            Ok(()) => {
                // At once: the write of the status may meet a conflict, and this process may end before it.
                ctx.departures.note(model.metadata.uid.as_deref().unwrap_or_default(), departure);
                ctx.recorder.publish(model, &note, now).await;
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map(Refusal::of).transpose()
}

pub(crate) async fn apply(
    ctx: &Context,
    model: &AIInference,
    plan: Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let Plan { children, deletions, status, events, logs, lasting: _, mut requeue_after } = plan;
    let mut notes = Vec::new();
    // Children before the status: if one fails, the status is not written and so never claims what did not happen.
    for child in &children {
        match apply_child(ctx, child).await {
            Ok(Written::Contested(contest)) => {
                requeue_after = Some(requeue_after.map_or(contest.wait, |planned| planned.min(contest.wait)));
                if contest.is_new {
                    let (severity, reason) = (Severity::Warning, reasons::FIELD_CONFLICT);
                    notes.push(Note { severity, reason, message: contest.message() });
                }
            }
            Ok(Written::Unchanged | Written::Created | Written::Changed) => {}
            Err(error) => return Refusal::of(error).map(Applied::Refused),
        }
    }
    for budget in &deletions {
        if let Err(error) = ctx.budgets.delete(budget).await {
            return Refusal::of(error).map(Applied::Refused);
        }
    }
    ctx.writer.apply_status(&ctx.models, model, &status).await?;
    // Events last: they say what the status says already.
    for note in events.iter().chain(&notes) {
        ctx.recorder.publish(model, note, now).await;
    }
    // Logs after everything that must not wait for a node.
    for log in &logs {
        let namespace = model.metadata.namespace.as_deref().unwrap_or_default();
        let tail = ctx.logs.end_of(namespace, &log.pod, &log.container, log.previous).await;
        // What was noted of a pod that has left meanwhile would never be forgotten.
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
        Child::Deployment(child) => ctx.deployments.apply_onto(child, child.planned_on.as_deref()).await,
        Child::Service(child) => ctx.services.apply(child).await,
        Child::PodDisruptionBudget(child) => ctx.budgets.apply(child).await,
    }
}
