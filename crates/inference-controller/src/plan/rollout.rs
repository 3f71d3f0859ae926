//! Which pods go first when a revision changes: the new one comes before an old one goes, or, on full GPUs, after. Pure.
//!
//! A ready pod is given up only for a revision that can run as far as is known, and only where its own room is what the
//! new pod lacks. In doubt the old pods stay.

use std::time::Duration;

use api::aiinference::Rollout;
use jiff::Timestamp;
use workload::{
    deployment::{DeploymentView, Older},
    gpu::Fit,
    pod::PodView,
    quota::Exceeded,
    revision::Revision,
    time::left,
};

use super::faults::{claim_fault, demand};
use crate::{
    observe::Observed,
    validate::{Source, ValidInference},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// The new pod is ready before an old one goes.
    Surge,
    /// One old pod goes first.
    Replace,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) strategy: Strategy,
    pub(super) look_again: Option<Duration>,
    /// What a user must know before it happens: nothing serves for a while.
    pub(super) warning: Option<String>,
    /// What an old pod would give back and the new one lacks, so that it is known since when.
    pub(super) lacks: Vec<String>,
    /// Why no old pod goes for a new one that lacks GPUs, where that is known.
    pub(super) spares: Option<&'static str>,
}

/// What the scheduler says of a claim that is ReadWriteOncePod.
const USED_BY_A_POD: &str = "PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
/// How a quota is named in `lacks`; everything else by the uid of the pod.
const QUOTA: &str = "quota";

pub(super) fn rollout(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
    now: Timestamp,
) -> Decision {
    let may_give_up =
        valid.rollout == Rollout::Auto && revision.is_deployed && observed.others().next().is_some();
    let lacks = if may_give_up { lacks(valid, revision, observed) } else { Vec::new() };
    let (strategy, look_again) = match valid.rollout {
        Rollout::Surge => (Strategy::Surge, None),
        Rollout::Replace if cannot_run(valid, observed) => (Strategy::Surge, None),
        Rollout::Replace => (Strategy::Replace, None),
        Rollout::Auto if may_give_up && !cannot_run(valid, observed) => {
            surge_or_replace(valid, observed, &lacks, now)
        }
        Rollout::Auto => (Strategy::Surge, None),
    };
    let spares = if may_give_up && lacks.is_empty() { spares(valid, revision, observed) } else { None };
    // Before the change is made: afterwards the pod is gone.
    let replaces = |deployment: &DeploymentView| revision.is_deployed && deployment.replaces;
    let is_ahead = observed.deployment.as_ref().is_some_and(|deployment| !replaces(deployment));
    let ready: Vec<&PodView> = observed.pods().filter(|pod| pod.is_ready).collect();
    let warning = match (strategy, ready.as_slice()) {
        (Strategy::Replace, [last])
            if is_ahead
                && valid.replicas > 0
                && will_roll(revision, observed)
                && revision.ready().next().is_none() =>
        {
            Some(format!(
                "rollout is {:?}: pod {} is the only one that serves, and stops before the new revision is ready",
                valid.rollout,
                last.name()
            ))
        }
        _ => None,
    };
    Decision { strategy, look_again, warning, lacks, spares }
}

/// Whether pods are about to be exchanged, or are being.
fn will_roll(revision: &Revision<'_>, observed: &Observed) -> bool {
    !revision.is_deployed || observed.others().next().is_some()
}

fn surge_or_replace(
    valid: &ValidInference,
    observed: &Observed,
    lacks: &[String],
    now: Timestamp,
) -> (Strategy, Option<Duration>) {
    // Once given up, surging stays given up until the rollout ends, or the two would alternate.
    if observed.deployment.as_ref().is_some_and(|deployment| deployment.replaces) {
        return (Strategy::Replace, None);
    }
    let since = lacks.iter().map(|what| observed.lasting.get(what).copied().unwrap_or(now));
    let Some(since) = since.min() else { return (Strategy::Surge, None) };
    match left(valid.surge_timeout, since, now) {
        None => (Strategy::Replace, None),
        left => (Strategy::Surge, left),
    }
}

/// Whether the new revision is known not to run, even with the room of an old pod.
fn cannot_run(valid: &ValidInference, observed: &Observed) -> bool {
    if claim_fault(valid, observed).is_some() {
        return true;
    }
    let Some((demand, rooms)) = demand(valid).zip(observed.rooms.as_deref()) else { return false };
    let fit = |pod: &PodView| demand.fit_instead_of(pod, rooms);
    demand.shortage(rooms).is_some() && observed.pods().all(|pod| fit(pod) == Fit::TooSmall)
}

/// What keeps pods of the new revision from their places, if an old pod would give exactly that back.
fn lacks(valid: &ValidInference, revision: &Revision<'_>, observed: &Observed) -> Vec<String> {
    let of_quota = lacks_quota(valid, observed).then(|| QUOTA.to_owned());
    let pods = revision.pods.iter().map(AsRef::as_ref);
    let of_pods = pods.filter(|pod| lacks_gpus(valid, observed, pod) || lacks_claim(valid, observed, pod));
    of_quota.into_iter().chain(of_pods.map(|pod| pod.uid().to_owned())).collect()
}

/// Counted here, and confirmed by the scheduler, which sees more: nothing but GPUs is short on any node that the pod may
/// use.
fn lacks_gpus(valid: &ValidInference, observed: &Observed, pod: &PodView) -> bool {
    let Some((demand, rooms)) = demand(valid).zip(observed.rooms.as_deref()) else { return false };
    let mut short = pod.lacks().peekable();
    let only_gpus = short.peek().is_some() && short.all(|resource| resource == demand.gpus.resource);
    // Of every old pod: the ReplicaSet chooses which of them goes.
    let would_fit = observed.others().all(|old| demand.fit_instead_of(old, rooms) == Fit::Fits);
    only_gpus && demand.shortage(rooms).is_some() && would_fit
}

/// For the message about the pod that lacks GPUs.
fn spares(valid: &ValidInference, revision: &Revision<'_>, observed: &Observed) -> Option<&'static str> {
    let demand = demand(valid)?;
    let is_gpu = |resource: &str| resource == demand.gpus.resource;
    let pod = revision.pods.iter().find(|pod| pod.lacks().any(is_gpu))?;
    if pod.lacks().any(|resource| !is_gpu(resource)) {
        return Some("no older pod is given up for it, because not only GPUs are short");
    }
    let rooms = observed.rooms.as_deref()?;
    let too_small = |old| demand.fit_instead_of(old, rooms) == Fit::TooSmall;
    observed
        .others()
        .any(too_small)
        .then_some("no older pod is given up for it, because not each of them would make enough room")
}

/// A quota of GPUs or of pods that has room for the new pod once an old one is gone.
fn lacks_quota(valid: &ValidInference, observed: &Observed) -> bool {
    let failure = observed.deployment.as_ref().and_then(|deployment| deployment.creation_failure.as_ref());
    let Some(quota) = failure.and_then(|failure| Exceeded::parse(&failure.message)) else { return false };
    let gpus = valid.gpus.as_ref();
    // Of every old pod: the ReplicaSet chooses which of them goes.
    observed.others().all(|old| {
        quota.would_fit(|resource| match resource {
            "pods" | "count/pods" => 1,
            resource if gpus.is_some_and(|gpus| gpus.resource == resource) => old.held.of(resource),
            // Not known of an old pod: in doubt it stays.
            _ => 0,
        })
    })
}

/// A claim that the old pods have, and that the new one cannot have beside them: its volume is attached elsewhere for them
/// alone, as the cluster itself reports, or, if one pod at a time may use it, the scheduler places no other.
fn lacks_claim(valid: &ValidInference, observed: &Observed, pod: &PodView) -> bool {
    let Source::Claim { claim: name, path: _ } = &valid.source else { return false };
    if observed.claim.as_ref().is_none_or(|claim| claim.is_shareable()) {
        return false;
    }
    let mounts = format!("\"claimName\":\"{name}\"");
    let has_claim = |older: &Older| {
        older.revision.rendered.as_ref().is_some_and(|rendered| rendered.template.contains(&mounts))
    };
    // Every old pod: the ReplicaSet chooses which of them goes.
    let is_elsewhere = |old: &PodView| old.node.is_some() && old.node != pod.node;
    if !observed.older.iter().all(has_claim) || !observed.others().all(is_elsewhere) {
        return false;
    }
    if pod.node.is_some() {
        let is_old = |name: &str| observed.others().any(|old| old.name() == name);
        return observed.unattached.get(pod.uid()).is_some_and(|failure| failure.is_held_by(is_old));
    }
    let said = pod.scheduled.as_ref().is_some_and(|scheduled| scheduled.message.contains(USED_BY_A_POD));
    pod.is_unschedulable() && said && pod.lacks().next().is_none()
}

#[cfg(test)]
mod tests;
