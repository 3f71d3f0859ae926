//! Applies a plan in a fixed order. It only decides when to reconcile again after a contested write.
//!
//! Deletion costs first, so that a smaller number of workers takes idle ones. Then the Deployment and the event about its new
//! number, the PodDisruptionBudget, the status, and the other events; the first failure ends this sequence.

use std::{collections::BTreeMap, time::Duration};

use api::{aidispatcher::AIDispatcher, labels, reasons};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use runtime::{
    apply::{ApplyError, Written},
    controller::ReconcileError as _,
    events::{Note, Severity},
    refusal::Refusal,
};
use tracing::warn;
use workload::deployment::RenderedDeployment;

use crate::{
    Context, NAME,
    plan::{Cost, Plan, TOO_MANY},
};

/// The outcome of a plan.
#[derive(Debug)]
pub(crate) enum Applied {
    All {
        requeue_after: Option<Duration>,
    },
    /// The write of the Deployment was refused; the steps after it were skipped.
    Refused(Refusal),
}

/// A pool has up to a thousand pods.
const COSTS_AT_ONCE: usize = 16;

pub(crate) async fn apply(
    ctx: &Context,
    dispatcher: &AIDispatcher,
    mut plan: Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let uid = dispatcher.metadata.uid.as_deref().unwrap_or_default();
    let (written, unmarked) = match mark_all(ctx, std::mem::take(&mut plan.costs)).await {
        Ok(unmarked) => (write_deployment(ctx, plan.deployment.as_deref()).await, unmarked),
        Err(error) => (Err(error), None),
    };
    if !is_settled(&written) {
        // The time limit for marking busy workers counts only while writes succeed.
        ctx.fact_times.end(uid, TOO_MANY);
    }
    // The child before the status: after a failure the status is not written, so it never reports what did not happen.
    let written = match written {
        Ok(written) => written,
        Err(error) => return Refusal::of(error).map(Applied::Refused),
    };
    let has_changed = matches!(written, Some(Written::Created | Written::Changed));
    if !has_changed {
        plan.forget_rescale(dispatcher.status.as_ref());
    }
    let Plan {
        costs: _,
        deployment: _,
        budget,
        status,
        events,
        rescaled,
        replaces,
        past,
        facts: _,
        mut requeue_after,
    } = plan;
    report_contest(ctx, dispatcher, written, &mut requeue_after, now).await;
    if let Some(past) = past {
        ctx.pools.remember(uid, past);
    }
    // Before the status: if that is not written, the next plan has no change to report.
    if let Some(note) = &rescaled {
        ctx.recorder.publish(dispatcher, note, now).await;
    }
    if let Some(note) = replaces.filter(|_| has_changed) {
        ctx.recorder.publish(dispatcher, &note, now).await;
    }
    if let Some(note) = unmarked.filter(|_| has_changed) {
        ctx.recorder.publish(dispatcher, &note, now).await;
    }
    if let Some(budget) = &budget {
        match ctx.budgets.apply(budget).await {
            Ok(written) => report_contest(ctx, dispatcher, Some(written), &mut requeue_after, now).await,
            Err(error) => return Refusal::of(error).map(Applied::Refused),
        }
    }
    ctx.writer.apply_status(&ctx.dispatchers, dispatcher, &status).await?;
    // After the status, which has the same content.
    for note in &events {
        ctx.recorder.publish(dispatcher, note, now).await;
    }
    Ok(Applied::All { requeue_after })
}

/// At once, because a later step may fail and a contest is reported as new only once.
async fn report_contest(
    ctx: &Context,
    dispatcher: &AIDispatcher,
    written: Option<Written>,
    requeue_after: &mut Option<Duration>,
    now: Timestamp,
) {
    let Some(Written::Contested(contest)) = written else { return };
    *requeue_after = Some(requeue_after.map_or(contest.wait, |planned| planned.min(contest.wait)));
    if contest.is_new {
        let (severity, reason) = (Severity::Warning, reasons::FIELD_CONFLICT);
        let note = Note { severity, reason, message: contest.message() };
        ctx.recorder.publish(dispatcher, &note, now).await;
    }
}

/// Whether the Deployment is as planned, or is being deleted.
fn is_settled(written: &Result<Option<Written>, ApplyError>) -> bool {
    match written {
        Ok(None | Some(Written::Unchanged | Written::Created | Written::Changed)) => true,
        Ok(Some(Written::Contested(_))) | Err(_) => false,
    }
}

/// What the user reads if a pod could not be marked; the first of them.
async fn mark_all(ctx: &Context, costs: Vec<Cost>) -> Result<Option<Note>, ApplyError> {
    let refused = stream::iter(costs).map(|cost| mark(ctx, cost)).buffer_unordered(COSTS_AT_ONCE);
    let first = |first: Option<Note>, refused: Option<Note>| async { Ok(first.or(refused)) };
    refused.try_fold(None, first).await
}

async fn write_deployment(
    ctx: &Context,
    deployment: Option<&RenderedDeployment>,
) -> Result<Option<Written>, ApplyError> {
    let Some(deployment) = deployment else { return Ok(None) };
    ctx.deployments.apply_to_version(deployment, deployment.planned_on.as_deref()).await.map(Some)
}

/// A pod that has changed is planned again with its next version. If marking a pod is refused, for example by an
/// admission policy, a smaller number of workers is delayed by a few seconds, and does not spare busy ones.
async fn mark(ctx: &Context, Cost { pod, cost, guards }: Cost) -> Result<Option<Note>, ApplyError> {
    let cost = (labels::POD_DELETION_COST, Some(cost.to_string()));
    let annotations: BTreeMap<&str, Option<String>> = guards.into_iter().chain([cost]).collect();
    match ctx.pods.annotate(&*pod, &annotations).await {
        Err(error) if error.is_stale() => Ok(None),
        Err(error) => {
            let refusal = Refusal::of(error)?;
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            warn!(pod = name, why = refusal.message(), "the deletion cost of a worker is refused");
            let message = format!(
                "the workers could not be marked, so a busy one may be removed while idle ones stay: {}; allow \
                 {NAME} to set the annotations {} of pods",
                refusal.message(),
                labels::POD_MARKS.join(", ")
            );
            Ok(Some(Note { severity: Severity::Warning, reason: reasons::DENIED, message }))
        }
        Ok(()) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use runtime::{
        apply::{Contest, Stale},
        cache::Key,
    };

    use super::*;

    #[test]
    fn a_number_that_was_contested_or_failed_is_not_settled() {
        let key = Key::new("demo", "coder-workers");
        let contest = Contest {
            kind: "Deployment",
            key: key.clone(),
            manager: None,
            wait: Duration::from_secs(1),
            is_new: false,
        };
        assert!(!is_settled(&Ok(Some(Written::Contested(contest)))));
        let stale = ApplyError::Stale { kind: "Deployment", key, why: Stale::Changed };
        assert!(!is_settled(&Err(stale)));
        for written in [None, Some(Written::Changed), Some(Written::Created), Some(Written::Unchanged)] {
            assert!(is_settled(&Ok(written)));
        }
    }
}
