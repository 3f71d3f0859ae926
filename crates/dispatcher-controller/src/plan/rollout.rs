//! The order of a rollout: a new worker starts before an old one ends, unless both cannot mount the claim for checkpoints.
//! Pure.
//!
//! An old worker ends first only if a new one waits for its claim as far as the pods show it. One that fails for another
//! reason, such as an image that does not exist, ends none.

use std::time::Duration;

use jiff::Timestamp;
use workload::{
    templates::{deployment::OlderRevision, revision::Revision},
    time::remaining,
    views::pod::PodView,
};

use crate::{
    observe::Observed,
    validate::{Storage, ValidDispatcher},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// A new pod becomes ready before an old one is deleted.
    Surge,
    /// An old pod is deleted before a new one is created.
    Replace,
}

/// Volumes are attached and mounted within this time, unless another node has them.
pub(super) const MOUNTED_WITHIN: Duration = Duration::from_secs(60);
/// Part of the scheduler's message about a ReadWriteOncePod claim that is in use.
const USED_BY_A_POD: &str = "PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";

/// The strategy, and when to decide again.
pub(super) fn rollout(
    valid: &ValidDispatcher,
    revision: &Revision<'_>,
    observed: &Observed,
    now: Timestamp,
) -> (Strategy, Option<Duration>) {
    if !revision.is_deployed || !holds_claim(valid, observed) {
        return (Strategy::Surge, None);
    }
    // `Replace` stays until the rollout ends; otherwise the strategy would alternate.
    if observed.deployment.as_ref().is_some_and(|deployment| deployment.replaces) {
        return (Strategy::Replace, None);
    }
    // Pods that are not known may be the ones that started meanwhile.
    if observed.unwatched.is_some() {
        return (Strategy::Surge, None);
    }
    let waits = revision.pods.iter().filter_map(|pod| waits_for_claim(pod, observed));
    let Some(since) = waits.min() else { return (Strategy::Surge, None) };
    match remaining(MOUNTED_WITHIN, since, now) {
        None => (Strategy::Replace, None),
        wait => (Strategy::Surge, wait),
    }
}

/// The claim for checkpoints, if pods on two nodes cannot write to it.
pub(super) fn claim_of_one<'v>(valid: &'v ValidDispatcher, observed: &Observed) -> Option<&'v str> {
    let Storage::Claim(name) = &valid.checkpoint.as_ref()?.storage else { return None };
    let is_of_one = observed.claim.as_ref().is_some_and(|claim| !claim.is_writable_by_many());
    is_of_one.then_some(name)
}

/// Whether all older pods use the claim, and others cannot mount it meanwhile.
fn holds_claim(valid: &ValidDispatcher, observed: &Observed) -> bool {
    let Some(name) = claim_of_one(valid, observed) else { return false };
    let mounts = format!("\"claimName\":\"{name}\"");
    let has_claim = |older: &OlderRevision| {
        older.revision.rendered.as_ref().is_some_and(|rendered| rendered.template.contains(&mounts))
    };
    !observed.older.is_empty() && observed.older.iter().all(has_claim)
}

/// Since when a new pod waits for the claim, as far as its status shows it.
pub(super) fn waits_for_claim(pod: &PodView, observed: &Observed) -> Option<Timestamp> {
    if pod.node.is_some() {
        // Images and Secrets of variables come after the volumes.
        let mut holders = observed.pods().filter(|other| other.uid() != pod.uid() && other.node.is_some());
        // Only the end of the last pod that mounts the volume lets the new one mount it.
        let is_elsewhere =
            holders.next().is_some_and(|only| only.node != pod.node) && holders.next().is_none();
        let has_no_volumes = pod.is_coming_up() && !pod.has_started_containers();
        return pod.placed().filter(|_| is_elsewhere && has_no_volumes);
    }
    let scheduled = pod.scheduled.as_ref().filter(|_| pod.is_unschedulable())?;
    let is_in_use =
        scheduled.message.contains(USED_BY_A_POD) && pod.insufficient_resources().next().is_none();
    scheduled.last_transition_time.or(pod.created()).filter(|_| is_in_use)
}
