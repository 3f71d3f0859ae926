//! Sends a plan in a fixed order: the hand-over of the replicas, the AIInference, deletions of autoscalers, the autoscaler,
//! status, events. It decides nothing. The first failure ends this sequence, so the status never reports what did not
//! happen. Only an autoscaler that cannot be written keeps the status from nothing: pods start without it.

use std::time::Duration;

use api::reasons;
use jiff::Timestamp;
use runtime::{
    reconcile::Applied,
    write::{
        apply::{ApplyError, Written},
        refusal::Refusal,
    },
};
use serde_json::json;

use crate::{
    Context, HANDOVER,
    endpoint::Endpoint,
    plan::{
        Handover, InferenceWrite, Plan,
        scaler::{Superfluous, Wanted},
    },
};

pub(crate) async fn apply(
    ctx: &Context,
    endpoint: &Endpoint,
    plan: &Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let Plan { handover, inference, superfluous, scaler, status, events, facts, requeue_after } = plan;
    if let Some(facts) = facts {
        ctx.fact_times.note(endpoint.metadata.uid.as_deref().unwrap_or_default(), facts, now);
    }
    let children = Children {
        handover: handover.as_ref(),
        inference: inference.as_ref(),
        superfluous,
        scaler: scaler.as_ref(),
    };
    let Sent { again, refused, failed } = match apply_children(ctx, endpoint, children, now).await {
        Ok(sent) => sent,
        Err(error) => return Refusal::of(error).map(Applied::Refused),
    };
    if let Some(refusal) = refused {
        return Ok(Applied::Refused(refusal));
    }
    ctx.writer.apply_status(&ctx.endpoints, endpoint, status).await?;
    for note in events {
        ctx.recorder.publish(endpoint, note, now).await;
    }
    if let Some(error) = failed {
        return Err(error);
    }
    let requeue_after = match again.filter(|wait| !wait.is_zero()) {
        // What goes on waits for the contested write, too.
        Some(wait) => requeue_after.filter(|after| !after.is_zero()).into_iter().chain([wait]).min(),
        None => requeue_after.iter().chain(&again).min().copied(),
    };
    Ok(Applied::All { requeue_after })
}

/// The parts of a plan that are about children.
struct Children<'a> {
    handover: Option<&'a Handover>,
    inference: Option<&'a InferenceWrite>,
    superfluous: &'a [Superfluous],
    scaler: Option<&'a Wanted>,
}

/// What became of the children.
#[derive(Default)]
struct Sent {
    /// When to reconcile again: at once after a write, whose result the status does not have yet, or when a contested write is
    /// repeated.
    again: Option<Duration>,
    /// The autoscaler, or its deletion, was refused. The others were sent.
    refused: Option<Refusal>,
    /// The autoscaler, or its deletion, was not taken, and a retry may help. The others were sent.
    failed: Option<ApplyError>,
}

/// While the AIInference is contested, its autoscaler is not written: this controller may still set the replicas.
async fn apply_children(
    ctx: &Context,
    endpoint: &Endpoint,
    children: Children<'_>,
    now: Timestamp,
) -> Result<Sent, ApplyError> {
    let Children { handover, inference, superfluous, scaler } = children;
    let mut again = None;
    // Without the write that follows, it would be repeated in vain.
    let is_held_back = match inference {
        Some(InferenceWrite { rendered, .. }) => ctx.inferences.is_held_back(rendered)?,
        None => false,
    };
    if let Some(Handover { inference, replicas }) = handover.filter(|_| !is_held_back) {
        ctx.inferences.hold(inference, &json!({"replicas": replicas}), HANDOVER).await?;
    }
    if let Some(InferenceWrite { rendered, planned_on }) = inference {
        let written = match planned_on {
            Some(version) => ctx.inferences.apply_to_version(rendered, Some(version)).await?,
            None => ctx.inferences.apply(rendered).await?,
        };
        again = after(&written);
        if let Some(wait) = contested(ctx, endpoint, written, now).await {
            return Ok(Sent { again: Some(wait), ..Sent::default() });
        }
    }
    for child in superfluous {
        let deleted = match child {
            Superfluous::HorizontalPodAutoscaler(hpa) => ctx.hpas.delete_child(hpa).await,
            Superfluous::AIScaler(scaler) => ctx.scalers.delete_child(scaler).await,
        };
        if let Err(error) = deleted {
            return Ok(Sent { again, ..Sent::without_scaler(error)? });
        }
    }
    let Some(scaler) = scaler else { return Ok(Sent { again, ..Sent::default() }) };
    let written = match scaler {
        Wanted::HorizontalPodAutoscaler(hpa) => ctx.hpas.apply(hpa).await,
        Wanted::AIScaler(scaler) => ctx.scalers.apply(scaler).await,
    };
    match written {
        Ok(written) => {
            let again = again.or(after(&written));
            Ok(Sent { again: contested(ctx, endpoint, written, now).await.or(again), ..Sent::default() })
        }
        Err(error) => Ok(Sent { again, ..Sent::without_scaler(error)? }),
    }
}

impl Sent {
    /// An autoscaler was not written, or one that goes was not deleted. The next reconcile decides again on what was stale.
    fn without_scaler(error: ApplyError) -> Result<Self, ApplyError> {
        if matches!(error, ApplyError::Stale { .. }) {
            return Err(error);
        }
        Ok(match Refusal::of(error) {
            Ok(refusal) => Self { refused: Some(refusal), ..Self::default() },
            Err(error) => Self { failed: Some(error), ..Self::default() },
        })
    }
}

/// No watch event follows a write of this controller, because the cache has its result already.
fn after(written: &Written) -> Option<Duration> {
    matches!(written, Written::Created | Written::Changed).then_some(Duration::ZERO)
}

async fn contested(ctx: &Context, endpoint: &Endpoint, written: Written, now: Timestamp) -> Option<Duration> {
    let Written::Contested(contest) = written else { return None };
    if let Some(note) = contest.note(reasons::FIELD_CONFLICT) {
        // At once: a later step may fail, and the contest is new only this time.
        ctx.recorder.publish(endpoint, &note, now).await;
    }
    Some(contest.wait)
}

#[cfg(test)]
mod tests;
