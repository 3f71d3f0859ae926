//! The canary as a state machine: what was decided before and what is seen now give what is decided next. Pure.
//!
//! Weights go up one step at a time, and only while the gateways have accepted the rules of before and the candidate has
//! ready pods. They go down to 0 at any time. Pods that had requests end only after the gateways have accepted that they get
//! no more, and the requests have had time to end. Those of a stopped object wait for gateways for a limited time.

use std::time::Duration;

use api::aiinference::traffic::{Canary, CanaryPhase, CanaryStatus, Rollback};
use jiff::Timestamp;
use runtime::write::conditions::whole_seconds;
use workload::time::remaining;

pub(crate) use self::seen::{Finding, Gate, Next, Pods, Route, Seen, Share, Wanted};
use self::steps::{Steps, going_on, refused, share_of};
pub(crate) use self::steps::{pods_at_start, waits_for_pods};

mod seen;
mod steps;

/// Of a rollback, in bytes. The schema has as many characters.
const LONGEST_MESSAGE: usize = 1_024;

/// `before` and `promoted`: of the status. `canary`: of the spec.
pub(crate) fn next(
    before: Option<&CanaryStatus>,
    promoted: Option<&str>,
    canary: Option<&Canary>,
    seen: &Seen,
    now: Timestamp,
) -> Next {
    let next = decided(before, promoted, canary, seen, now);
    // A candidate that has replaced a promoted one in the spec leaves stable what it has.
    let is_kept = canary.is_some_and(|canary| !takes_back(before, canary));
    let kept = || promoted.filter(|promoted| is_kept && *promoted == seen.stable).map(str::to_owned);
    // Without a status, a route does not name the candidate yet: the status comes first.
    let is_unknown = before.is_none() && !shared(seen).is_known;
    let share = if is_unknown { Share::default() } else { next.share };
    let next = Next { promoted: next.promoted.clone().or_else(kept), share, ..next };
    let is_counted = before.is_some_and(|before| before.draining_since.is_some());
    if is_counted && share.has_requests() && !shared(seen).has_requests() {
        // First the status forgets since when there were none. Otherwise, after a crash between the two writes, their end
        // would be counted from before they came.
        let status = next.status.map(|status| CanaryStatus { draining_since: None, ..status });
        return Next { status, share: without_requests(seen), wait: Some(Duration::ZERO), ..next };
    }
    next
}

/// An abort while stable gets the version of the candidate.
fn takes_back(before: Option<&CanaryStatus>, canary: &Canary) -> bool {
    canary.abort && before.is_some_and(|before| before.phase == Some(CanaryPhase::Promoting))
}

fn decided(
    before: Option<&CanaryStatus>,
    promoted: Option<&str>,
    canary: Option<&Canary>,
    seen: &Seen,
    now: Timestamp,
) -> Next {
    let Some(canary) = canary else {
        let Some(before) = before.cloned().or_else(|| seen.candidate.exists.then(CanaryStatus::default))
        else {
            return Next {
                status: None,
                promoted: None,
                share: Share::default(),
                pods: Wanted::Deleted,
                wait: None,
            };
        };
        // Set again while its requests end, it begins with the first step.
        let before = CanaryStatus { step: 0, ..before };
        let ended = ended(before, CanaryPhase::RollingBack, seen, now);
        let status = ended.status.filter(|_| seen.candidate.exists || ended.pods != Wanted::Deleted);
        return Next { status, promoted: None, ..ended };
    };
    let is_promoted = promoted == Some(&*seen.revision);
    // If the status was lost, the route alone shows that there were requests. The pods may have any version.
    let takes_back = takes_back(before, canary);
    let has_served = match seen.route {
        // It names the candidate's Service before there ever was one.
        Some(Route { share, is_foreign: true, .. }) => share.is_known && seen.candidate.exists,
        Some(Route { share, .. }) => share.is_known,
        None => false,
    };
    let lost = || CanaryStatus { served: has_served, ..CanaryStatus::default() };
    let before = before.cloned().unwrap_or_else(lost);
    if before.revision != seen.revision {
        let before_revision = before.revision.clone();
        return match ended(before, CanaryPhase::RollingBack, seen, now) {
            // The pods of the version of before have no requests any more.
            Next { status, pods: Wanted::Deleted, .. } => {
                let is_first = before_revision.is_empty();
                let status = begun(status.and_then(|status| status.last_rollback), seen, now);
                // Approvals were given to the version before.
                let stale_approvals = if is_first { 0 } else { canary.approved_steps };
                let begun = CanaryStatus { stale_approvals, ..status };
                let next = decided(Some(&begun), promoted, Some(canary), seen, now);
                // An aborted candidate keeps its pods, and these are of another version.
                let pods = if next.pods == Wanted::Kept { Wanted::Deleted } else { next.pods };
                Next { pods, ..next }
            }
            waiting => waiting,
        };
    }
    if is_promoted && !takes_back {
        return promoting(before, canary, seen, now);
    }
    if is_rejected(&before) {
        return rolled_back(before, seen, now);
    }
    if canary.abort {
        let share = without_requests(seen);
        let (step, step_started_at, draining_since) = (0, None, None);
        let phase = Some(CanaryPhase::Aborted);
        let status = CanaryStatus { phase, step, step_started_at, draining_since, ..before };
        let pods = match (seen.candidate.exists, seen.gate) {
            (true, _) => Wanted::Kept,
            (false, Gate::Closed) => Wanted::Deleted,
            (false, Gate::Open | Gate::PodsOnly | Gate::Contradicted) => Wanted::Replicas(canary.replicas),
        };
        return with_seen(status, share, pods, seen, None);
    }
    going_on(before, canary, seen, now)
}

fn begun(last_rollback: Option<Rollback>, seen: &Seen, now: Timestamp) -> CanaryStatus {
    CanaryStatus {
        phase: Some(CanaryPhase::Starting),
        revision: seen.revision.clone(),
        stable_revision: seen.stable.clone(),
        started_at: Some(whole_seconds(now)),
        last_rollback,
        ..CanaryStatus::default()
    }
}

fn is_rejected(status: &CanaryStatus) -> bool {
    status.last_rollback.as_ref().is_some_and(|rollback| rollback.revision == status.revision)
}

fn shared(seen: &Seen) -> Share {
    seen.route.map(|route| route.share).unwrap_or_default()
}

/// The plan with what is seen in its status.
fn with_seen(status: CanaryStatus, share: Share, pods: Wanted, seen: &Seen, wait: Option<Duration>) -> Next {
    let weight_percent = match seen.route {
        Some(Route { share, is_accepted: true, .. }) => share.weight,
        // A route that is gone, or has lost the candidate.
        Some(Route { share, is_foreign: false, .. }) if share == Share::default() => 0,
        Some(_) => status.weight_percent,
        None => 0,
    };
    let Pods { all: replicas, ready: ready_replicas, .. } = seen.candidate;
    // The status knows it before the first request comes: whatever happens between two writes, pods that may have requests
    // are not taken for pods that never had any.
    let is_first = share.has_requests() && !status.served;
    let served = status.served || share.has_requests() || shared(seen).has_requests();
    let status = CanaryStatus { weight_percent, replicas, ready_replicas, served, ..status };
    let (share, wait) = if is_first { (without_requests(seen), Some(Duration::ZERO)) } else { (share, wait) };
    Next { status: Some(status), promoted: None, share, pods, wait }
}

/// The candidate answers requests, and no pod of stable can.
fn is_needed(seen: &Seen) -> bool {
    let has_share = shared(seen).answers();
    has_share && seen.candidate.has_endpoint && !seen.stable_has_endpoint && !seen.is_stopped
}

/// Takes the requests from the candidate, waits until they have ended, and then removes it.
fn ended(before: CanaryStatus, phase: CanaryPhase, seen: &Seen, now: Timestamp) -> Next {
    // The answers of the engines are lost with a restart. An end that was decided stays decided.
    let has_ended = before.phase == Some(CanaryPhase::RolledBack) || !seen.candidate.exists;
    let is_drained = seen.is_drained || seen.is_given_up || has_ended && before.draining_since.is_some();
    let before = CanaryStatus { phase: Some(phase), step_started_at: None, ..before };
    let Route { share, is_accepted, is_foreign, .. } = seen.route.unwrap_or_default();
    let known = Share { is_known: share.is_known, ..Share::default() };
    if is_needed(seen) {
        return with_seen(CanaryStatus { draining_since: None, ..before }, share, Wanted::Kept, seen, None);
    }
    // A rule of the user that does not fit any more may have sent requests until now.
    let may_send = share.is_known || is_foreign;
    let is_open = share.has_requests() || may_send && before.served && !is_accepted;
    if is_open && !seen.is_given_up {
        return with_seen(CanaryStatus { draining_since: None, ..before }, known, Wanted::Kept, seen, None);
    }
    let since = before.draining_since.clone().unwrap_or_else(|| whole_seconds(now));
    let drain = if before.served && !is_drained { seen.drain } else { Duration::ZERO };
    let wait = remaining(drain, since.0, now);
    let before = CanaryStatus { draining_since: before.served.then_some(since), ..before };
    match (wait, share.is_known && !is_foreign && !seen.is_given_up) {
        (Some(wait), _) => with_seen(before, known, Wanted::Kept, seen, Some(wait)),
        // A route must not name a Service that does not exist.
        (None, true) => with_seen(before, Share::default(), Wanted::Kept, seen, None),
        (None, false) => with_seen(before, Share::default(), Wanted::Deleted, seen, None),
    }
}

/// Stable gets the version of the candidate, which serves until all of stable has it.
fn promoting(before: CanaryStatus, canary: &Canary, seen: &Seen, now: Timestamp) -> Next {
    // A promotion goes on, whatever becomes of the evaluation.
    let seen = &Seen { gate: Gate::Open, ..seen.clone() };
    let promoted = Some(seen.revision.clone());
    let is_over = before.phase == Some(CanaryPhase::Promoted);
    if is_over || seen.stable_is_complete && seen.stable == seen.revision {
        let stable_revision = seen.revision.clone();
        return Next {
            promoted,
            ..ended(CanaryStatus { stable_revision, ..before }, CanaryPhase::Promoted, seen, now)
        };
    }
    // What a gateway refuses is not tried again: stable takes all requests.
    let is_refused = refused(canary, seen).is_some() && !is_needed(seen);
    let before = CanaryStatus { step: if is_refused { 0 } else { before.step }, ..before };
    let step = Steps::of(canary).at(before.step);
    let share = match step {
        _ if is_refused => without_requests(seen),
        _ if !seen.candidate.has_endpoint || seen.is_stopped => without_requests(seen),
        Some(step) => share_of(step, canary, seen),
        None => shared(seen),
    };
    let status = CanaryStatus { phase: Some(CanaryPhase::Promoting), ..before };
    let replicas = if seen.is_stopped { 0 } else { step.map_or(canary.replicas, |step| step.replicas) };
    let pods = match scaled(replicas, &status, share, seen) {
        // Its steps were removed, and with them the number of pods for its share.
        Wanted::Replicas(_) if share.weight > 0 && step.is_none() => Wanted::Kept,
        pods => pods,
    };
    Next { promoted, ..with_seen(status, share, pods, seen, None) }
}

fn rolled_back(before: CanaryStatus, seen: &Seen, now: Timestamp) -> Next {
    match ended(before, CanaryPhase::RollingBack, seen, now) {
        Next { status: Some(status), pods: Wanted::Deleted, share, .. } => {
            let status = CanaryStatus { phase: Some(CanaryPhase::RolledBack), ..status };
            with_seen(status, share, Wanted::Replicas(0), seen, None)
        }
        waiting => waiting,
    }
}

fn without_requests(seen: &Seen) -> Share {
    shared(seen).without_requests()
}

/// While requests are taken from it, the candidate gets fewer pods only after all gateways have accepted that. `status`: its own.
fn scaled(replicas: i32, status: &CanaryStatus, share: Share, seen: &Seen) -> Wanted {
    let Route { share: stored, is_accepted, is_foreign, .. } = seen.route.unwrap_or_default();
    // A rule of the user that does not fit any more may have sent requests until now.
    let may_send = status.served && (stored.is_known || is_foreign) && !is_accepted;
    let is_taken = (stored.has_requests() || may_send) && !share.has_requests() && !seen.is_given_up;
    if is_taken && seen.candidate.all > replicas { Wanted::Kept } else { Wanted::Replicas(replicas) }
}

/// From now on, stable has the version of the candidate.
fn promoted(next: Next, seen: &Seen) -> Next {
    let status = next.status.map(|status| CanaryStatus { phase: Some(CanaryPhase::Promoting), ..status });
    Next { status, promoted: Some(seen.revision.clone()), ..next }
}

fn rejected(status: CanaryStatus, reason: &str, message: String, now: Timestamp) -> CanaryStatus {
    let rollback = Rollback {
        revision: status.revision.clone(),
        reason: reason.to_owned(),
        message: text::cut(message, LONGEST_MESSAGE),
        time: Some(whole_seconds(now)),
    };
    CanaryStatus { last_rollback: Some(rollback), ..status }
}

#[cfg(test)]
mod tests;
