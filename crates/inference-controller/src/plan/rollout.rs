//! Which pods go first when a revision changes: the new one comes before an old one goes, or, on full GPUs, after. Pure.
//!
//! A ready pod is given up only for a revision that can run as far as is known, and only where its own room is what the
//! new pod lacks. In doubt the old pods stay.

use std::time::Duration;

use api::aiinference::Rollout;
use jiff::Timestamp;
use workload::{deployment::DeploymentView, gpu::Fit, pod::PodView};

use super::{
    faults::{claim_fault, demand},
    revision::Revision,
};
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
}

/// Room that the new pod lacks and an old pod would give back.
struct Shortage {
    since: Option<Timestamp>,
}

pub(super) fn rollout(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
    now: Timestamp,
) -> Decision {
    let (strategy, look_again) = strategy(valid, revision, observed, now);
    // Before the change is made: afterwards the pod is gone.
    let replaces = |deployment: &DeploymentView| revision.is_deployed && deployment.replaces;
    let is_ahead = observed.deployment.as_ref().is_some_and(|deployment| !replaces(deployment));
    let ready: Vec<&PodView> = observed.pods().filter(|pod| pod.is_ready).collect();
    let warning = match (strategy, ready.as_slice()) {
        (Strategy::Replace, [last]) if is_ahead && valid.replicas > 0 && will_roll(revision, observed) => {
            Some(format!(
                "rollout is {:?}: pod {} is the only one that serves, and stops before the new revision is ready",
                valid.rollout,
                last.name()
            ))
        }
        _ => None,
    };
    Decision { strategy, look_again, warning }
}

/// Whether pods are about to be exchanged, or are being.
fn will_roll(revision: &Revision<'_>, observed: &Observed) -> bool {
    !revision.is_deployed || observed.others().next().is_some()
}

fn strategy(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
    now: Timestamp,
) -> (Strategy, Option<Duration>) {
    match valid.rollout {
        Rollout::Surge => (Strategy::Surge, None),
        Rollout::Replace if cannot_run(valid, observed) => (Strategy::Surge, None),
        Rollout::Replace => (Strategy::Replace, None),
        Rollout::Auto => {
            let is_rolling = revision.is_deployed && observed.others().next().is_some();
            let Some(deployment) = observed.deployment.as_ref().filter(|_| is_rolling) else {
                return (Strategy::Surge, None);
            };
            if cannot_run(valid, observed) {
                return (Strategy::Surge, None);
            }
            // Once given up, surging stays given up until the rollout ends, or the two would alternate.
            if deployment.replaces {
                return (Strategy::Replace, None);
            }
            let Some(Shortage { since }) = shortage(valid, revision, observed) else {
                return (Strategy::Surge, None);
            };
            // Clock skew can make this negative; treat it as zero.
            let waited = since.map_or(Duration::ZERO, |since| {
                Duration::try_from(now.duration_since(since)).unwrap_or_default()
            });
            match valid.surge_timeout.checked_sub(waited).filter(|left| !left.is_zero()) {
                None => (Strategy::Replace, None),
                left => (Strategy::Surge, left),
            }
        }
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

/// What keeps a pod of the new revision from its place, if an old pod would give exactly that back.
fn shortage(valid: &ValidInference, revision: &Revision<'_>, observed: &Observed) -> Option<Shortage> {
    let of_quota = quota_shortage(valid, observed);
    let of_pods = revision.pods.iter().filter_map(|pod| {
        gpu_shortage(valid, observed, pod).or_else(|| claim_shortage(valid, observed, pod))
    });
    of_quota.into_iter().chain(of_pods).min_by_key(|shortage| shortage.since)
}

/// Counted here, and confirmed by the scheduler, which sees more: nothing but GPUs is short on any node that the pod may
/// use.
fn gpu_shortage(valid: &ValidInference, observed: &Observed, pod: &PodView) -> Option<Shortage> {
    let (demand, rooms) = demand(valid).zip(observed.rooms.as_deref())?;
    let scheduled = pod.scheduled.as_ref().filter(|_| pod.is_unschedulable())?;
    let mut short = insufficient(&scheduled.message).peekable();
    let only_gpus = short.peek().is_some() && short.all(|resource| resource == demand.gpus.resource);
    // Of every old pod: the ReplicaSet chooses which of them goes.
    let would_fit = observed.others().all(|old| demand.fit_instead_of(old, rooms) == Fit::Fits);
    let is_counted = demand.shortage(rooms).is_some();
    (only_gpus && is_counted && would_fit).then_some(Shortage { since: scheduled.last_transition_time })
}

/// Resources that the scheduler names: `2 Insufficient nvidia.com/gpu, 1 Insufficient cpu.`
fn insufficient(message: &str) -> impl Iterator<Item = &str> {
    let names = message.split("Insufficient ").skip(1);
    names.filter_map(|rest| rest.split([',', ' ']).next().map(|name| name.trim_end_matches('.')))
}

/// A quota of GPUs or of pods that has room for the new pod once an old one is gone.
fn quota_shortage(valid: &ValidInference, observed: &Observed) -> Option<Shortage> {
    let failure = observed.deployment.as_ref()?.creation_failure.as_ref()?;
    let (_, quota) = failure.message.split_once("exceeded quota: ")?;
    let amounts = |label: &str| -> Option<Vec<(&str, i64)>> {
        let (_, rest) = quota.split_once(label)?;
        let end = [", used: ", ", limited: "].iter().filter_map(|next| rest.find(next)).min();
        let list = rest.get(..end.unwrap_or(rest.len()))?;
        list.split(',')
            .map(|pair| pair.trim().split_once('=').and_then(|(n, v)| Some((n, quantity::whole(v)?))))
            .collect()
    };
    let (requested, used, limited) = (amounts("requested: ")?, amounts("used: ")?, amounts("limited: ")?);
    let gpus = valid.gpus.as_ref();
    let fits_without = |old: &PodView| {
        requested.iter().all(|(name, wanted)| {
            let amount = |list: &[(&str, i64)]| list.iter().find(|(known, _)| known == name).map(|(_, v)| *v);
            let gives_back = match name.strip_prefix("requests.").unwrap_or(name) {
                "pods" | "count/pods" => 1,
                resource if gpus.is_some_and(|gpus| gpus.resource == resource) => old.held.of(resource),
                // Not known of an old pod: in doubt it stays.
                _ => 0,
            };
            amount(&used)
                .zip(amount(&limited))
                .is_some_and(|(used, limit)| used - gives_back + wanted <= limit)
        })
    };
    // Of every old pod: the ReplicaSet chooses which of them goes.
    observed.others().all(fits_without).then_some(Shortage { since: failure.last_transition_time })
}

/// A claim of one node at a time: the volume cannot be attached where the new pod was placed, as the cluster itself
/// reports, and an old pod has it elsewhere.
fn claim_shortage(valid: &ValidInference, observed: &Observed, pod: &PodView) -> Option<Shortage> {
    let claim = observed.claim.as_ref().filter(|_| matches!(valid.source, Source::Claim { .. }))?;
    let node = pod.node.as_deref()?;
    let is_elsewhere = observed.others().any(|old| old.node.as_deref().is_some_and(|held| held != node));
    let waits = observed.unattached.contains_key(pod.uid()) && !claim.is_shareable() && is_elsewhere;
    waits.then(|| Shortage {
        since: pod.scheduled.as_ref().and_then(|scheduled| scheduled.last_transition_time).or(pod.created()),
    })
}

#[cfg(test)]
mod tests;
