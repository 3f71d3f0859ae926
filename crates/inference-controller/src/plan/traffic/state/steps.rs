//! The steps of a canary that goes on: how its share rises, and what ends it.

use std::time::Duration;

use api::{
    aiinference::{
        analysis::OnInconclusive,
        traffic::{Canary, CanaryPhase, CanaryStatus, CanaryStep, Pin, Promotion},
    },
    reasons,
};
use jiff::Timestamp;
use runtime::write::conditions::whole_seconds;
use workload::time::remaining;

use super::{
    ended, is_needed, promoted, rejected, rolled_back, scaled,
    seen::{Finding, Gate, Next, Route, Seen, Share, Wanted},
    shared, with_seen, without_requests,
};

/// How often a candidate may lose its last ready pod.
const LOSSES: i32 = 2;

/// A step with its defaults.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) number: i32,
    pub(super) weight: i32,
    pub(super) replicas: i32,
    pub(super) lasts: Duration,
    pub(super) needs_approval: bool,
}

/// The steps of a canary. A fixed share is one step that does not end by itself.
pub(super) struct Steps {
    pub(super) all: Vec<Step>,
    /// What `approvedSteps` must be for the promotion.
    pub(super) promotes: i32,
    pub(super) is_fixed: bool,
}

impl Steps {
    pub(super) fn of(canary: &Canary) -> Self {
        let is_fixed = canary.steps.is_empty();
        if is_fixed && canary.weight_percent == 0 {
            return Self { all: Vec::new(), promotes: 1, is_fixed };
        }
        if is_fixed {
            let (number, weight, replicas) = (1, canary.weight_percent, canary.replicas);
            let step = Step { number, weight, replicas, lasts: Duration::ZERO, needs_approval: false };
            return Self { all: vec![step], promotes: 1, is_fixed };
        }
        let step = |(number, step): (i32, &CanaryStep)| Step {
            number,
            weight: step.weight_percent,
            replicas: step.replicas.unwrap_or(canary.replicas),
            lasts: Duration::from_secs(u64::from(step.min_seconds.unsigned_abs())),
            needs_approval: step.approval,
        };
        let all: Vec<Step> = (1..).zip(&canary.steps).map(step).collect();
        Self { promotes: i32::try_from(all.len()).unwrap_or(i32::MAX - 1) + 1, all, is_fixed }
    }

    /// The step of this number. After the last one was removed from the spec: the last.
    pub(super) fn at(&self, number: i32) -> Option<Step> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.all.get(index).or(self.all.last()).copied()
    }

    pub(super) fn after(&self, number: i32) -> Option<Step> {
        self.all.get(usize::try_from(number).ok()?).copied()
    }
}

pub(super) fn going_on(before: CanaryStatus, canary: &Canary, seen: &Seen, now: Timestamp) -> Next {
    let steps = Steps::of(canary);
    let is_stale = before.stale_approvals == canary.approved_steps;
    // With fewer steps, approvals of steps would be one of the promotion.
    let is_shorter = steps.promotes < before.approvals_needed;
    let stale_approvals = match (is_shorter, is_stale) {
        (true, _) => canary.approved_steps,
        (false, true) => before.stale_approvals,
        (false, false) => 0,
    };
    let approved_steps = if stale_approvals > 0 { 0 } else { canary.approved_steps };
    let canary = &Canary { approved_steps, ..canary.clone() };
    let before = CanaryStatus { stale_approvals, approvals_needed: steps.promotes, ..before };
    if seen.gate == Gate::Closed && before.step == 0 {
        return ended(before, CanaryPhase::AwaitingEvaluation, seen, now);
    }
    let before = CanaryStatus { draining_since: None, ..before };
    if seen.is_stopped {
        let (step, step_started_at, phase) = (0, None, Some(CanaryPhase::Starting));
        let status = CanaryStatus { step, step_started_at, phase, ..before };
        let share = without_requests(seen);
        let pods = scaled(0, &status, share, seen);
        return with_seen(status, share, pods, seen, None);
    }
    if before.stable_revision != seen.stable {
        // It would be compared with a version that leaves.
        let stable_revision =
            if seen.stable_is_complete { seen.stable.clone() } else { before.stable_revision };
        let (step, step_started_at, phase) = (0, None, Some(CanaryPhase::Starting));
        let status = CanaryStatus { stable_revision, step, step_started_at, phase, ..before };
        if is_needed(seen) {
            return with_seen(status, shared(seen), Wanted::Kept, seen, None);
        }
        let share = without_requests(seen);
        let pods = scaled(canary.replicas, &status, share, seen);
        return with_seen(status, share, pods, seen, None);
    }
    match steps.at(before.step) {
        Some(step) => in_step(before, step, &steps, canary, seen, now),
        None => starting(before, &steps, canary, seen, now),
    }
}

/// Before the first step, and without the pods that it needs.
pub(crate) fn waits_for_pods(before: &CanaryStatus, canary: &Canary, seen: &Seen) -> bool {
    let is_at_start = before.step == 0 && matches!(before.phase, None | Some(CanaryPhase::Starting));
    // While stable rolls, it may have the GPU.
    let is_alone = before.stable_revision == seen.stable && !seen.is_stopped;
    let serves = shared(seen).has_requests() && seen.candidate.has_endpoint;
    is_at_start && is_alone && !serves && !is_ready(&Steps::of(canary), canary, seen)
}

fn is_ready(steps: &Steps, canary: &Canary, seen: &Seen) -> bool {
    seen.candidate.ready >= first_replicas(steps, canary) && seen.candidate.has_endpoint
}

fn first_replicas(steps: &Steps, canary: &Canary) -> i32 {
    steps.after(0).map_or(canary.replicas, |step| step.replicas)
}

/// How many pods the candidate needs before its first step.
pub(crate) fn pods_at_start(canary: &Canary) -> i32 {
    first_replicas(&Steps::of(canary), canary)
}

/// A gateway that refuses a route may serve nothing of it, stable neither. Without a share it has no such rules.
pub(super) fn refused(canary: &Canary, seen: &Seen) -> Option<String> {
    let stored = shared(seen);
    let fields = [
        (canary.pin == Pin::Cookie && stored.weight > 0, "pin"),
        (stored.matches, "match"),
        (stored.mirrors, "mirror"),
    ];
    let fields = fields.into_iter().filter(|(is_there, _)| *is_there);
    let fields: Vec<String> = fields.map(|(_, field)| format!("spec.canary.{field}")).collect();
    let words = seen.rules_refused.as_ref().filter(|_| !fields.is_empty())?;
    Some(format!("{words}; remove {}, and change the version to try it again", fields.join(" and ")))
}

/// Before the first step: the pods come up, and the route learns their Service.
fn starting(before: CanaryStatus, steps: &Steps, canary: &Canary, seen: &Seen, now: Timestamp) -> Next {
    if let Some(message) = refused(canary, seen) {
        return rolled_back(rejected(before, reasons::ROUTE_REJECTED, message, now), seen, now);
    }
    if let Some(message) = &seen.is_overdue {
        return rolled_back(rejected(before, reasons::CANDIDATE_UNREADY, message.clone(), now), seen, now);
    }
    let first = steps.after(0);
    let replicas = first_replicas(steps, canary);
    let has_all = seen.candidate.ready >= replicas;
    let is_ready = is_ready(steps, canary, seen);
    let known = shared(seen).is_known;
    let stored = shared(seen);
    let may_have_requests = seen.gate == Gate::Open;
    let serves = seen.candidate.has_endpoint && known && may_have_requests;
    // Rules that the gateways refuse without them, too, are no fault of theirs.
    let may_begin = has_all && seen.route.is_some_and(|route| route.is_accepted) && !seen.is_contested;
    let matches = serves && !canary.matches.is_empty() && (may_begin || stored.matches);
    let mirrors = serves && canary.mirror && (may_begin || stored.mirrors);
    let is_known = seen.route.is_some() && (known || is_ready);
    let share = Share { weight: 0, matches, mirrors, is_known };
    let pods = scaled(replicas, &before, share, seen);
    let status = |phase, step| CanaryStatus { phase: Some(phase), step, ..before.clone() };
    if !is_ready {
        return with_seen(status(CanaryPhase::Starting, 0), share, pods, seen, None);
    }
    if !may_have_requests {
        return with_seen(status(CanaryPhase::AwaitingEvaluation, 0), share, pods, seen, None);
    }
    let Some(first) = first else {
        let dark = with_seen(status(CanaryPhase::Dark, 0), share, pods, seen, None);
        let is_approved = canary.approved_steps >= steps.promotes;
        return if is_approved { promoted(dark, seen) } else { dark };
    };
    let is_expected =
        seen.route.is_some_and(|route| route.is_accepted && !route.is_unresolved && route.share.is_known);
    if !is_expected || !seen.stable_is_complete {
        return with_seen(status(CanaryPhase::Starting, 0), share, pods, seen, None);
    }
    if first.needs_approval && canary.approved_steps < first.number {
        return with_seen(status(CanaryPhase::AwaitingApproval, 0), share, pods, seen, None);
    }
    if seen.is_contested {
        return with_seen(status(CanaryPhase::Starting, 0), share, pods, seen, None);
    }
    let share = Share { weight: first.weight, ..share };
    with_seen(status(CanaryPhase::Analysing, first.number), share, pods, seen, None)
}

/// The share of a step. It rises only when the gateways have accepted the rules of before, and all pods are ready.
pub(super) fn share_of(step: Step, canary: &Canary, seen: &Seen) -> Share {
    let Route { share, is_accepted, .. } = seen.route.unwrap_or_default();
    let is_open = seen.gate == Gate::Open;
    let has_pods = seen.candidate.ready >= step.replicas;
    let may_rise = is_accepted && share.is_known && has_pods && is_open && !seen.is_contested;
    let weight = if may_rise { step.weight } else { step.weight.min(share.weight) };
    let matches = !canary.matches.is_empty() && share.is_known && (is_open || share.matches);
    let is_known = seen.route.is_some();
    Share { weight, matches, is_known, ..Share::default() }
}

fn in_step(
    before: CanaryStatus,
    step: Step,
    steps: &Steps,
    canary: &Canary,
    seen: &Seen,
    now: Timestamp,
) -> Next {
    let before = CanaryStatus { step: step.number, ..before };
    if let Finding::Fails { reason, message } = &seen.finding {
        return rolled_back(rejected(before, reason, message.clone(), now), seen, now);
    }
    if let Some(message) = refused(canary, seen) {
        return rolled_back(rejected(before, reasons::ROUTE_REJECTED, message, now), seen, now);
    }
    if seen.gate == Gate::Contradicted && !is_needed(seen) {
        // These files were not evaluated.
        let (step_started_at, phase) = (None, Some(CanaryPhase::AwaitingEvaluation));
        let status = CanaryStatus { step: 0, step_started_at, phase, ..before };
        let share = without_requests(seen);
        let pods = scaled(step.replicas, &status, share, seen);
        return with_seen(status, share, pods, seen, None);
    }
    if !seen.candidate.has_endpoint {
        // The status of a loss has no ready pod. As long as the weight cannot be written, the same loss is seen again.
        let had_share =
            before.step_started_at.is_some() || before.ready_replicas > 0 && shared(seen).weight > 0;
        // Without its pool it has no endpoint either, and ready pods.
        let is_lost = had_share && !seen.candidate.is_rolling && seen.candidate.ready == 0;
        let lost = before.lost + i32::from(is_lost);
        let status =
            CanaryStatus { lost, step_started_at: None, phase: Some(CanaryPhase::Analysing), ..before };
        if lost > LOSSES {
            let message =
                format!("the candidate has lost its last ready pod {lost} times while it had a share");
            let (reason, message) = match &seen.latest_failure {
                Some(failure) => (reasons::CANDIDATE_CRASHED, format!("{message}; {failure}")),
                None => (reasons::CANDIDATE_UNREADY, message),
            };
            return rolled_back(rejected(status, reason, message, now), seen, now);
        }
        let share = without_requests(seen);
        let pods = scaled(step.replicas, &status, share, seen);
        return with_seen(status, share, pods, seen, None);
    }
    let Some(route) = seen.route else {
        // The API server refuses a step without a gateway. An object that is older than the rule waits.
        return with_seen(before, Share::default(), Wanted::Replicas(step.replicas), seen, None);
    };
    let share = share_of(step, canary, seen);
    // Pods of the next step stay while they come up.
    let next_replicas = steps.after(step.number).map_or(step.replicas, |next| next.replicas);
    let replicas = step.replicas.max(seen.candidate.staying.min(next_replicas));
    let pods = scaled(replicas, &before, share, seen);
    let is_in_force = route.is_accepted && !route.is_unresolved && route.share.weight == step.weight;
    // A step with another share begins again.
    let since = before.step_started_at.clone().filter(|_| route.share.weight == step.weight);
    // A step that begins now would begin after the failure, and forget it.
    let may_begin = is_in_force && seen.finding != Finding::Suspected;
    let since =
        since.or_else(|| may_begin.then(|| whole_seconds(now))).filter(|_| !seen.candidate.is_rolling);
    // A share that was lost does not come back before the evaluation has passed.
    let is_held_back = seen.gate != Gate::Open && share.weight < step.weight;
    let phase = if is_held_back { CanaryPhase::AwaitingEvaluation } else { CanaryPhase::Analysing };
    let status = CanaryStatus { step_started_at: since.clone(), phase: Some(phase), ..before.clone() };
    let (Some(since), true) = (since, is_in_force) else { return with_seen(status, share, pods, seen, None) };
    if let Some(wait) = remaining(step.lasts, since.0, now) {
        return with_seen(status, share, pods, seen, Some(wait));
    }
    let is_approved = canary.approved_steps >= steps.promotes;
    let awaits = CanaryStatus { phase: Some(CanaryPhase::AwaitingApproval), ..status.clone() };
    let needs_approval = match steps.after(step.number) {
        Some(next) => next.needs_approval && canary.approved_steps < next.number,
        None => !is_approved && !steps.is_fixed && canary.promotion == Promotion::Manual,
    };
    // It has passed once. Whether it still does is asked when the approval comes.
    if needs_approval && before.phase == Some(CanaryPhase::AwaitingApproval) {
        return with_seen(awaits, share, pods, seen, None);
    }
    if seen.finding == Finding::Suspected && (!steps.is_fixed || is_approved) {
        return with_seen(status, share, pods, seen, None);
    }
    if let Finding::Open { is_over, timeout, then, message } = &seen.finding
        && (!steps.is_fixed || is_approved)
    {
        match (is_over, then) {
            (false, _) => return with_seen(status, share, pods, seen, None),
            (true, OnInconclusive::Hold) => {
                let status = CanaryStatus { phase: Some(CanaryPhase::Held), ..status };
                return with_seen(status, share, pods, seen, None);
            }
            (true, OnInconclusive::Rollback) => {
                let message = format!("no verdict within {} s: {message}", timeout.as_secs());
                return rolled_back(rejected(status, reasons::CANARY_INCONCLUSIVE, message, now), seen, now);
            }
            (true, OnInconclusive::Promote) => {}
        }
    }
    // Its pods come before that is known, and do not come and go with each look.
    let may_go_on = seen.finding != Finding::PassesSoon;
    if needs_approval {
        return with_seen(if may_go_on { awaits } else { status }, share, pods, seen, None);
    }
    // It is judged all the same, and no share rises.
    if seen.is_contested {
        return with_seen(status, share, pods, seen, None);
    }
    let goes_on = steps.after(step.number).is_some() || is_approved || canary.promotion == Promotion::Auto;
    if goes_on && seen.gate != Gate::Open {
        let status = CanaryStatus { phase: Some(CanaryPhase::AwaitingEvaluation), ..status };
        return with_seen(status, share, pods, seen, None);
    }
    match steps.after(step.number) {
        Some(next) if seen.candidate.ready < next.replicas || !may_go_on => {
            // Its pods first. Until they are ready, the candidate is judged in the step that it has.
            with_seen(status, share, Wanted::Replicas(next.replicas.max(step.replicas)), seen, None)
        }
        Some(next) => {
            // The share follows when the status has the step: after a crash between the two it would fall to that of this step.
            let status = CanaryStatus { step: next.number, step_started_at: None, ..status };
            with_seen(status, share, Wanted::Replicas(next.replicas), seen, Some(Duration::ZERO))
        }
        None if may_go_on && (is_approved || canary.promotion == Promotion::Auto) => {
            promoted(with_seen(status, share, pods, seen, None), seen)
        }
        None => with_seen(status, share, pods, seen, None),
    }
}
