//! The order of a rollout: create a new pod before an old one is deleted, or delete first if GPUs are short. Pure.
//!
//! With `Auto`, a ready pod is deleted first only if the new revision lacks exactly what the old pod would release. As far
//! as is known, it can run with that. In doubt the old pods stay, also while a watch fails.

use std::time::Duration;

use api::aiinference::Rollout;
use jiff::Timestamp;
use workload::{
    faults::{gpu::Fit, quota::Exceeded},
    templates::{
        deployment::{DeploymentView, OlderRevision},
        revision::Revision,
    },
    time::remaining,
    views::pod::PodView,
};

use super::faults::{capacities, claim_fault, demand};
use crate::{
    observe::Observed,
    validate::{Source, ValidInference},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// A new pod becomes ready before an old one is deleted.
    Surge,
    /// An old pod is deleted before a new one is created.
    Replace,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) strategy: Strategy,
    pub(super) requeue_after: Option<Duration>,
    /// Announces that no pod will be ready for a while.
    pub(super) warning: Option<String>,
    /// Shortages that the deletion of an old pod would resolve; recorded as facts, to measure how long they last.
    pub(super) shortages: Vec<String>,
    /// Why no old pod is deleted although a new one lacks GPUs.
    pub(super) why_kept: Option<&'static str>,
}

/// Part of the scheduler's message about a ReadWriteOncePod claim that is in use.
const USED_BY_A_POD: &str = "PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
/// Of Kueue, in the name of its gate.
const KUEUE: &str = "kueue.x-k8s.io/";
/// The entry of a quota in `shortages`; other entries are uids of pods.
const QUOTA: &str = "quota";
/// A watch that fails usually resumes within this time.
const WATCHED_AGAIN_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn rollout(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
    now: Timestamp,
) -> Order {
    let may_replace =
        valid.rollout == Rollout::Auto && revision.is_deployed && observed.others().next().is_some();
    let shortages = if may_replace { shortages(valid, revision, observed) } else { Vec::new() };
    let (strategy, requeue_after) = match valid.rollout {
        Rollout::Surge => (Strategy::Surge, None),
        Rollout::Replace if cannot_run(valid, revision, observed) => (Strategy::Surge, None),
        Rollout::Replace => (Strategy::Replace, None),
        Rollout::Auto if may_replace && !cannot_run(valid, revision, observed) => {
            surge_or_replace(valid, observed, &shortages, now)
        }
        Rollout::Auto => (Strategy::Surge, None),
    };
    let why_kept =
        if may_replace && shortages.is_empty() { why_kept(valid, revision, observed) } else { None };
    // Only before the change is applied; afterwards the pod is deleted.
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
                "rollout {:?}: pod {}, the only ready one, is deleted before a pod of the new revision is ready",
                valid.rollout,
                last.name()
            ))
        }
        _ => None,
    };
    Order { strategy, requeue_after, warning, shortages, why_kept }
}

/// Whether a rollout is about to start or in progress.
fn will_roll(revision: &Revision<'_>, observed: &Observed) -> bool {
    !revision.is_deployed || observed.others().next().is_some()
}

fn surge_or_replace(
    valid: &ValidInference,
    observed: &Observed,
    shortages: &[String],
    now: Timestamp,
) -> (Strategy, Option<Duration>) {
    // `Replace` stays until the rollout ends; otherwise the strategy would alternate.
    if observed.deployment.as_ref().is_some_and(|deployment| deployment.replaces) {
        return (Strategy::Replace, None);
    }
    let since = shortages.iter().map(|what| observed.facts.get(what).copied().unwrap_or(now));
    let Some(since) = since.min() else { return (Strategy::Surge, None) };
    match remaining(valid.surge_timeout, since, now) {
        // The new pod may already run. Nothing wakes this object when a watch resumes.
        None if observed.watch_fails => (Strategy::Surge, Some(WATCHED_AGAIN_WITHIN)),
        None => (Strategy::Replace, None),
        wait => (Strategy::Surge, wait),
    }
}

/// Whether it is known that the new revision cannot run, even in the place of an old pod.
fn cannot_run(valid: &ValidInference, revision: &Revision<'_>, observed: &Observed) -> bool {
    if claim_fault(valid, observed).is_some() {
        return true;
    }
    let Some((demand, capacities)) = demand(valid).zip(capacities(revision, observed)) else { return false };
    let fit = |pod: &PodView| demand.fit_in_place_of(pod, capacities);
    demand.shortage(capacities).is_some() && observed.pods().all(|pod| fit(pod) == Fit::TooSmall)
}

/// Shortages of the new revision that the deletion of an old pod would resolve.
fn shortages(valid: &ValidInference, revision: &Revision<'_>, observed: &Observed) -> Vec<String> {
    let of_quota = is_short_of_quota(valid, observed).then(|| QUOTA.to_owned());
    let pods = revision.pods.iter().map(AsRef::as_ref);
    let of_pods = pods.filter(|pod| {
        is_short_of_gpus(valid, revision, observed, pod) || waits_for_claim(valid, observed, pod)
    });
    of_quota.into_iter().chain(of_pods.map(|pod| pod.uid().to_owned())).collect()
}

/// Both the count and the scheduler's message must show that only GPUs are short, and any old pod must release enough.
fn is_short_of_gpus(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
    pod: &PodView,
) -> bool {
    let Some((demand, capacities)) = demand(valid).zip(capacities(revision, observed)) else { return false };
    let mut short = pod.insufficient_resources().peekable();
    let only_gpus = short.peek().is_some() && short.all(|resource| resource == demand.gpus.resource);
    // True for every old pod, because the ReplicaSet chooses which one is deleted.
    let would_fit = observed.others().all(|old| demand.fit_in_place_of(old, capacities) == Fit::Fits);
    only_gpus && demand.shortage(capacities).is_some() && would_fit
}

/// Why old pods are kept, for the message about a new pod that lacks GPUs or is held back.
fn why_kept(valid: &ValidInference, revision: &Revision<'_>, observed: &Observed) -> Option<&'static str> {
    // The queue may be held or belong to another flavor, or its next place to another workload.
    if revision.pods.iter().any(|pod| pod.gates.iter().any(|gate| gate.starts_with(KUEUE))) {
        return Some(
            "no older pod is deleted for it, because Kueue may not admit it then; rollout Replace deletes one",
        );
    }
    let demand = demand(valid)?;
    let is_gpu = |resource: &str| resource == demand.gpus.resource;
    let pod = revision.pods.iter().find(|pod| pod.insufficient_resources().any(is_gpu))?;
    if pod.insufficient_resources().any(|resource| !is_gpu(resource)) {
        return Some("no older pod is deleted for it, because other resources are short, too");
    }
    let capacities = capacities(revision, observed)?;
    let too_small = |old| demand.fit_in_place_of(old, capacities) == Fit::TooSmall;
    observed
        .others()
        .any(too_small)
        .then_some("no older pod is deleted for it, because the GPUs of one of them would not be enough")
}

/// Whether a quota of GPUs or pods would admit the new pod after an old one is deleted.
fn is_short_of_quota(valid: &ValidInference, observed: &Observed) -> bool {
    let failure = observed.deployment.as_ref().and_then(|deployment| deployment.creation_failure.as_ref());
    let Some(quota) = failure.and_then(|failure| Exceeded::parse(&failure.message)) else { return false };
    let gpus = valid.gpus.as_ref();
    // True for every old pod, because the ReplicaSet chooses which one is deleted.
    observed.others().all(|old| {
        quota.would_fit(|resource| match resource {
            "pods" | "count/pods" => 1,
            resource if gpus.is_some_and(|gpus| gpus.resource == resource) => old.held.of(resource),
            // Other resources of the old pod are not known, so it stays.
            _ => 0,
        })
    })
}

/// Whether the new pod waits for a claim that only old pods use. An event says that its volume is attached to their nodes.
/// For a ReadWriteOncePod claim, the scheduler's message says so.
fn waits_for_claim(valid: &ValidInference, observed: &Observed, pod: &PodView) -> bool {
    let Source::Claim { claim: name, path: _ } = &valid.source else { return false };
    if observed.claim.as_ref().is_none_or(|claim| claim.is_shareable()) {
        return false;
    }
    let mounts = format!("\"claimName\":\"{name}\"");
    let has_claim = |older: &OlderRevision| {
        older.revision.rendered.as_ref().is_some_and(|rendered| rendered.template.contains(&mounts))
    };
    // Holds for every old pod, because the ReplicaSet chooses which one is deleted.
    let is_elsewhere = |old: &PodView| old.node.is_some() && old.node != pod.node;
    if !observed.older.iter().all(has_claim) || !observed.others().all(is_elsewhere) {
        return false;
    }
    if pod.node.is_some() {
        let is_old = |name: &str| observed.others().any(|old| old.name() == name);
        return observed.unattached.get(pod.uid()).is_some_and(|failure| failure.is_used_only_by(is_old));
    }
    let is_in_use = pod.scheduled.as_ref().is_some_and(|scheduled| scheduled.message.contains(USED_BY_A_POD));
    pod.is_unschedulable() && is_in_use && pod.insufficient_resources().next().is_none()
}

#[cfg(test)]
mod tests;
