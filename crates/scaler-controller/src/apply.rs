//! Carries a plan out: the replicas and their event, then the status, which never claims what did not happen, then the
//! other events. It decides nothing.

use std::time::Duration;

use api::aiscaler::AIScaler;
use jiff::Timestamp;
use kube::Resource;
use runtime::{
    apply::ApplyError,
    cache::{Cache, Key},
    controller::ReconcileError as _,
    refusal::Refusal,
    scale::Scaled,
};

use crate::{
    Context,
    metrics::Rescaled,
    observe::Found,
    other_kinds::{self, ScaleRead},
    plan::{Plan, ScaleWrite},
    samples::{Attempt, Attempted, CarriedOut},
    target::{Scalable, WatchedKind},
};

/// What became of a plan.
#[derive(Debug)]
pub(crate) enum Applied {
    All {
        requeue_after: Option<Duration>,
    },
    /// The replicas were refused; nothing after them was written.
    Refused(Refusal),
    /// The write of replicas has failed again, with an answer; nothing after it was written. It is tried again.
    Failed {
        error: ApplyError,
        why: Refusal,
    },
    /// The target or the AIScaler has changed since it was seen. Its watch brings the new version, or it is read by now, or
    /// with the next samples.
    Outdated,
}

pub(crate) async fn apply(
    ctx: &Context,
    scaler: &AIScaler,
    plan: Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let Plan { scale, status, events, past, attempted, requeue_after } = plan;
    let uid = scaler.metadata.uid.as_deref().unwrap_or_default();
    // Before the next attempt, so that nothing of this one can be lost with it.
    match attempted {
        Attempted::CarriedOut(settled) => {
            let CarriedOut { past, unwritten, note } = *settled;
            let decision = unwritten.decisions.last().cloned();
            if ctx.samples.settle(uid, past, unwritten) {
                decision.iter().for_each(|decision| ctx.counts.confirmed(decision));
                ctx.recorder.publish(scaler, &note, now).await;
            }
        }
        Attempted::Failed => {
            ctx.samples.attempt(uid, None);
        }
        Attempted::Open => {}
    }
    if let Some(write) = &scale {
        let ScaleWrite { target, to, decision, note, .. } = write;
        let version = &target.scaled.version;
        let is_outdated = match target.reference.watched() {
            Some(_) => ctx.samples.is_outdated(uid, version, now),
            None => ctx.samples.is_outdated_until_read(uid, version),
        };
        if is_outdated {
            return Ok(Applied::Outdated);
        }
        let period = ctx.configuration.period;
        if let Some(refusal) = ctx.samples.refusal(uid, &target.scaled.uid, *to, period, now) {
            return Ok(Applied::Refused(refusal));
        }
        // A watch that hangs fails late: until then a new process may have a spec and a status of long ago.
        if !ctx.samples.is_confirmed(uid) {
            if !ctx.writer.is_newest(&ctx.scalers, scaler).await? {
                return Ok(Applied::Outdated);
            }
            ctx.samples.confirm(uid);
        }
        let attempt = Attempt {
            uid: target.scaled.uid.clone(),
            version: target.scaled.version.clone(),
            at: now,
            decision: decision.clone(),
            note: note.clone(),
        };
        let before = ctx.samples.attempt(uid, Some(attempt));
        match ctx.scales.write(&target.resource, &target.key, &target.scaled, *to).await {
            Ok(written) => {
                ctx.counts.rescaled(write, Rescaled::Written, now);
                note_written(ctx, uid, target, &written);
            }
            Err(error) => {
                let applied = failed(ctx, uid, target, before, error, now);
                let rescaled = match &applied {
                    Ok(Applied::Refused(_)) => Rescaled::Refused,
                    Ok(Applied::Outdated | Applied::All { .. }) => Rescaled::Outdated,
                    Ok(Applied::Failed { .. }) | Err(_) => Rescaled::Unknown,
                };
                ctx.counts.rescaled(write, rescaled, now);
                let applied = applied?;
                if let Applied::Refused(refusal) = &applied {
                    ctx.samples.note_refused(uid, &target.scaled.uid, *to, refusal, now);
                }
                return Ok(applied);
            }
        }
        ctx.samples.attempt(uid, None);
        if let Some(status) = &status {
            ctx.samples.note_carried_out(uid, status);
        }
    }
    // After the replicas: without their write the rates would count a change that did not happen.
    if let Some(past) = past {
        ctx.samples.remember(uid, past, scaler.metadata.resource_version.as_deref());
    }
    // Whatever becomes of the status: the next look has no step to report.
    if let Some(ScaleWrite { note, .. }) = &scale {
        ctx.recorder.publish(scaler, note, now).await;
    }
    if let Some(status) = &status {
        if let Err(error) = ctx.writer.apply_status(&ctx.scalers, scaler, status).await {
            if error.is_stale() {
                ctx.samples.doubt(uid);
            }
            return Err(error);
        }
        ctx.samples.note_written(uid, now);
    }
    for note in &events {
        ctx.recorder.publish(scaler, note, now).await;
    }
    Ok(Applied::All { requeue_after })
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

fn failed(
    ctx: &Context,
    uid: &str,
    target: &Found,
    before: Option<Attempt>,
    error: ApplyError,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    if error.is_stale() {
        // The change may be that of an attempt before, which the watch has not brought yet.
        ctx.samples.attempt(uid, before);
        ctx.samples.note_outdated(uid, &target.scaled.version, now);
        return Ok(Applied::Outdated);
    }
    let refusal = match Refusal::of(error) {
        Ok(refusal) => refusal,
        Err(error) if other_kinds::is_missing_right(&error) => {
            Refusal::Denied(other_kinds::without_right("write", &target.resource))
        }
        // Whether it took effect is not known. A single failure is soon over.
        Err(error) => match answered(&error, target) {
            Some(why) if before.is_some() => return Ok(Applied::Failed { error, why }),
            Some(_) | None => return Err(error),
        },
    };
    ctx.samples.attempt(uid, None);
    Ok(Applied::Refused(refusal))
}
