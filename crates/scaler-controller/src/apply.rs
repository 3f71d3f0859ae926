//! Carries a plan out: the replicas and their event, then the status, which never claims what did not happen, then the
//! other events. It remembers what the API server answered, and decides nothing.

use std::ops::ControlFlow;

use api::aiscaler::AIScaler;
use jiff::Timestamp;
use kube::Resource;
use runtime::{
    controller::ReconcileError as _,
    key::Key,
    reconcile::Applied,
    watch::cache::Cache,
    write::{
        apply::{ApplyError, Written},
        refusal::Refusal,
        scale::Scaled,
    },
};

use crate::{
    Context,
    history::attempt::{Attempted, CarriedOut},
    metrics::Rescaled,
    observe::Found,
    plan::{Plan, ScaleWrite},
    target::{
        Scalable, WatchedKind,
        other_kinds::{self, ScaleRead},
    },
};

pub(crate) async fn apply(
    ctx: &Context,
    scaler: &AIScaler,
    plan: &Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let Plan { scale, status, events, past, attempted, requeue_after } = plan;
    let uid = scaler.metadata.uid.as_deref().unwrap_or_default();
    let version = scaler.metadata.resource_version.as_deref();
    // Before the next attempt, so that nothing of this one can be lost with it.
    settle(ctx, scaler, attempted, now).await;
    if let Some(write) = scale {
        if let ControlFlow::Break(applied) = rescale(ctx, uid, write, now).await? {
            return Ok(applied);
        }
        status.iter().for_each(|status| ctx.samples.note_carried_out(uid, status));
    }
    // After the replicas: without their write the rates would count a change that did not happen.
    if let Some(past) = past {
        ctx.samples.remember(uid, past.clone(), version);
    }
    // Whatever becomes of the status: the next look has no step to report.
    if let Some(ScaleWrite { attempt, .. }) = scale {
        ctx.recorder.publish(scaler, &attempt.note, now).await;
    }
    if let Some(status) = status {
        match ctx.writer.apply_status(&ctx.scalers, scaler, status).await {
            Ok(Written::Changed | Written::Created) => ctx.samples.note_written(uid, version, now),
            // Nothing was sent, so the API server has confirmed no version.
            Ok(Written::Unchanged | Written::Contested(_)) => ctx.samples.note_unchanged(uid, now),
            Err(error) => {
                if error.is_stale() {
                    ctx.samples.doubt(uid);
                }
                return Err(error);
            }
        }
    }
    for note in events {
        ctx.recorder.publish(scaler, note, now).await;
    }
    Ok(Applied::All { requeue_after: *requeue_after })
}

/// Remembers what became of a write whose answer was lost.
async fn settle(ctx: &Context, scaler: &AIScaler, attempted: &Attempted, now: Timestamp) {
    let uid = scaler.metadata.uid.as_deref().unwrap_or_default();
    match attempted {
        Attempted::CarriedOut(known) => {
            let CarriedOut { past, unwritten, note } = &**known;
            ctx.samples.settle(uid, past.clone(), unwritten.clone());
            unwritten.decisions.last().iter().for_each(|decision| ctx.counts.confirmed(decision));
            ctx.recorder.publish(scaler, note, now).await;
        }
        Attempted::Failed => ctx.samples.attempt(uid, None),
        Attempted::Nothing | Attempted::Open(_) => {}
    }
}

/// Writes the replicas. `Break`: they are not written, so nothing after them is.
async fn rescale(
    ctx: &Context,
    uid: &str,
    write: &ScaleWrite,
    now: Timestamp,
) -> Result<ControlFlow<Applied>, ApplyError> {
    let ScaleWrite { target, attempt, .. } = write;
    ctx.samples.attempt(uid, Some(attempt.clone()));
    match ctx.scales.write(&target.resource, &target.key, &target.scaled, write.to()).await {
        Ok(written) => {
            ctx.counts.rescaled(write, Rescaled::Written, now);
            note_written(ctx, uid, target, &written);
            ctx.samples.attempt(uid, None);
            Ok(ControlFlow::Continue(()))
        }
        Err(error) => failed(ctx, uid, write, error, now).map(ControlFlow::Break),
    }
}

/// The next decision must not take the replicas of before for those that another has set.
fn note_written(ctx: &Context, uid: &str, target: &Found, written: &Scaled) {
    match target.reference.watched() {
        Some(WatchedKind::Deployment) => absorb(&ctx.deployments, &target.key, written),
        Some(WatchedKind::StatefulSet) => absorb(&ctx.stateful_sets, &target.key, written),
        Some(WatchedKind::AIInference) => absorb(&ctx.inferences, &target.key, written),
        Some(WatchedKind::AIDispatcher) => absorb(&ctx.dispatchers, &target.key, written),
        None => {
            let read = ScaleRead::Found { resource: target.resource.clone(), scaled: written.clone() };
            ctx.samples.note_scale(uid, &target.reference, read);
        }
    }
}

fn absorb<K>(cache: &Cache<Scalable<K>>, key: &Key, written: &Scaled)
where
    K: Resource<DynamicType = ()> + 'static,
{
    if let Some(known) =
        cache.get(key).filter(|known| known.metadata.uid.as_deref() == Some(written.uid.as_str()))
    {
        cache.absorb(known.with(written));
    }
}

/// The words of the API server, such as those about a webhook that does not answer.
fn answered(error: &ApplyError, target: &Found) -> Option<Refusal> {
    let ApplyError::Call { source, .. } = error else { return None };
    let kube::Error::Api(status) = &**source else { return None };
    let reference = &target.reference;
    Some(Refusal::Denied(format!(
        "the API server fails to write the replicas of {reference}, and it is tried again: {} {}",
        status.code, status.message
    )))
}

/// Remembers what the API server has answered in the place of a written scale.
fn failed(
    ctx: &Context,
    uid: &str,
    write: &ScaleWrite,
    error: ApplyError,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let ScaleWrite { target, before, outdated_retry, .. } = write;
    if error.is_stale() {
        ctx.counts.rescaled(write, Rescaled::Outdated, now);
        // The change may be that of an attempt before, which the watch has not brought yet.
        ctx.samples.attempt(uid, before.clone());
        ctx.samples.note_outdated(uid, &target.scaled.version, now);
        return Ok(Applied::All { requeue_after: Some(*outdated_retry) });
    }
    let refusal = match Refusal::of(error) {
        Ok(refusal) => refusal,
        Err(error) if other_kinds::is_missing_right(&error) => {
            Refusal::Denied(other_kinds::without_right("write", &target.resource))
        }
        // Whether it took effect is not known. A single failure is soon over.
        Err(error) => {
            ctx.counts.rescaled(write, Rescaled::Unknown, now);
            return match answered(&error, target) {
                Some(why) if before.is_some() => Ok(Applied::Failed { error, why }),
                Some(_) | None => Err(error),
            };
        }
    };
    ctx.counts.rescaled(write, Rescaled::Refused, now);
    ctx.samples.attempt(uid, None);
    ctx.samples.note_refused(uid, &target.scaled.uid, write.to(), &refusal, now);
    Ok(Applied::Refused(refusal))
}
