//! The canary as a state machine: what was decided before and what is seen now give what is decided next. Pure.
//!
//! Weights go up one step at a time, and only while the gateways have accepted the rules of before and the candidate has
//! ready pods. They go down to 0 at any time. Pods that had requests end only after the gateways have accepted that they get
//! no more, and the requests have had time to end.

use std::time::Duration;

use api::{
    aiinference::{
        analysis::OnInconclusive,
        traffic::{Canary, CanaryPhase, CanaryStatus, CanaryStep, Promotion, Rollback},
    },
    reasons,
};
use jiff::Timestamp;
use runtime::write::conditions::whole_seconds;
use workload::time::remaining;

/// How often a candidate may lose its last ready pod.
const LOSSES: i32 = 2;

/// Of a rollback, in bytes. The schema has as many characters.
const LONGEST_MESSAGE: usize = 1_024;

/// What is seen of both versions and of the route.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Hash of the candidate's version.
    pub(crate) revision: String,
    /// Hash of the version that stable should have.
    pub(crate) stable: String,
    /// Stable has no replicas.
    pub(crate) is_stopped: bool,
    /// Stable has a ready pod.
    pub(crate) stable_has_endpoint: bool,
    /// All replicas of stable are ready and have that version.
    pub(crate) stable_is_complete: bool,
    pub(crate) candidate: Pods,
    pub(crate) finding: Finding,
    /// `None` without `spec.gateway` and `spec.routeRef`.
    pub(crate) route: Option<Route>,
    /// How long requests of the candidate may still run after it has got the last.
    pub(crate) drain: Duration,
    /// No request runs in the candidate's engines since it gets none.
    pub(crate) is_drained: bool,
}

/// What is known against the candidate, in the step that the status is in.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Finding {
    /// There is no analysis, or it decides nothing.
    #[default]
    NotAsked,
    /// Nothing yet. `is_over`: for so long that something else has to follow.
    Open {
        is_over: bool,
        timeout: Duration,
        then: OnInconclusive,
        message: String,
    },
    Passes,
    /// An engine has failed. Whether its GPU is the cause will be known soon.
    Suspected,
    Fails {
        reason: &'static str,
        message: String,
    },
}

/// The pods of the candidate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pods {
    /// Whether it has children.
    pub(crate) exists: bool,
    pub(crate) all: i32,
    /// Those that are neither on nodes that are emptied, nor replaced.
    pub(crate) staying: i32,
    /// Ready, of its present version.
    pub(crate) ready: i32,
    /// Whether its Service has a ready endpoint.
    pub(crate) has_endpoint: bool,
    /// The annotation `refresh` replaces its pods.
    pub(crate) is_rolling: bool,
}

/// The rules of the route as they are stored; of several, `Routes::as_one`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Route {
    pub(crate) share: Share,
    /// All gateways have accepted these rules.
    pub(crate) is_accepted: bool,
    /// A gateway does not find one of the Services. At rest that is the candidate's, of a route that its user has written.
    pub(crate) is_unresolved: bool,
    /// It is that of `spec.routeRef`, whose owner decides which Services it names.
    pub(crate) is_foreign: bool,
}

/// What the candidate gets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Share {
    /// Percent of the requests.
    pub(crate) weight: i32,
    /// Requests with the headers of `canary.match`.
    pub(crate) matches: bool,
    /// Copies of all requests. The gateway drops the answers.
    pub(crate) mirrors: bool,
    /// The route knows its Service. A weight of 0 makes gateways get ready for it.
    pub(crate) is_known: bool,
}

impl Share {
    pub(super) fn has_requests(self) -> bool {
        self.answers() || self.mirrors
    }

    /// Callers wait for its answers.
    fn answers(self) -> bool {
        self.weight > 0 || self.matches
    }

    pub(super) fn without_requests(self) -> Self {
        Self { weight: 0, matches: false, mirrors: false, ..self }
    }

    /// Whether it has more than that one.
    pub(super) fn exceeds(self, before: Self) -> bool {
        self.weight > before.weight || self.matches && !before.matches || self.mirrors && !before.mirrors
    }

    /// What any of the two gives.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            weight: self.weight.max(other.weight),
            matches: self.matches || other.matches,
            mirrors: self.mirrors || other.mirrors,
            is_known: self.is_known || other.is_known,
        }
    }

    /// What both have.
    pub(super) fn at_most(self, other: Self) -> Self {
        let weight = self.weight.min(other.weight);
        let (matches, mirrors) = (self.matches && other.matches, self.mirrors && other.mirrors);
        Self { weight, matches, mirrors, ..self }
    }
}

/// What becomes of the children of the candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// They are applied, with so many pods.
    Replicas(i32),
    /// They stay as they are.
    Kept,
    Deleted,
}

#[derive(Clone, Debug)]
pub(crate) struct Next {
    pub(crate) status: Option<CanaryStatus>,
    pub(crate) promoted: Option<String>,
    pub(crate) share: Share,
    pub(crate) pods: Wanted,
    /// When time alone changes the decision.
    pub(crate) wait: Option<Duration>,
}

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
                decided(Some(&CanaryStatus { stale_approvals, ..status }), promoted, Some(canary), seen, now)
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
        let pods = if seen.candidate.exists { Wanted::Kept } else { Wanted::Replicas(canary.replicas) };
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
    let is_drained = seen.is_drained || has_ended && before.draining_since.is_some();
    let before = CanaryStatus { phase: Some(phase), step_started_at: None, ..before };
    let Route { share, is_accepted, is_foreign, .. } = seen.route.unwrap_or_default();
    let known = Share { is_known: share.is_known, ..Share::default() };
    if is_needed(seen) {
        return with_seen(CanaryStatus { draining_since: None, ..before }, share, Wanted::Kept, seen, None);
    }
    // A rule of the user that does not fit any more may have sent requests until now.
    let may_send = share.is_known || is_foreign;
    if share.has_requests() || may_send && before.served && !is_accepted {
        return with_seen(CanaryStatus { draining_since: None, ..before }, known, Wanted::Kept, seen, None);
    }
    let since = before.draining_since.clone().unwrap_or_else(|| whole_seconds(now));
    let drain = if before.served && !is_drained { seen.drain } else { Duration::ZERO };
    let wait = remaining(drain, since.0, now);
    let before = CanaryStatus { draining_since: Some(since), ..before };
    match (wait, share.is_known && !is_foreign) {
        (Some(wait), _) => with_seen(before, known, Wanted::Kept, seen, Some(wait)),
        // A route must not name a Service that does not exist.
        (None, true) => with_seen(before, Share::default(), Wanted::Kept, seen, None),
        (None, false) => with_seen(before, Share::default(), Wanted::Deleted, seen, None),
    }
}

/// Stable gets the version of the candidate, which serves until all of stable has it.
fn promoting(before: CanaryStatus, canary: &Canary, seen: &Seen, now: Timestamp) -> Next {
    let promoted = Some(seen.revision.clone());
    let is_over = before.phase == Some(CanaryPhase::Promoted);
    if is_over || seen.stable_is_complete && seen.stable == seen.revision {
        let stable_revision = seen.revision.clone();
        return Next {
            promoted,
            ..ended(CanaryStatus { stable_revision, ..before }, CanaryPhase::Promoted, seen, now)
        };
    }
    let step = Steps::of(canary).at(before.step);
    let share = match step {
        _ if !seen.candidate.has_endpoint || seen.is_stopped => without_requests(seen),
        Some(step) => share_of(step, canary, seen),
        None => shared(seen),
    };
    let status = CanaryStatus { phase: Some(CanaryPhase::Promoting), ..before };
    if seen.is_stopped {
        let pods = scaled(0, &status, share, seen);
        return Next { promoted, ..with_seen(status, share, pods, seen, None) };
    }
    let replicas = step.map_or(canary.replicas, |step| step.replicas);
    Next { promoted, ..with_seen(status, share, Wanted::Replicas(replicas), seen, None) }
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

/// A step with its defaults.
#[derive(Clone, Copy, Debug)]
struct Step {
    number: i32,
    weight: i32,
    replicas: i32,
    lasts: Duration,
    needs_approval: bool,
}

/// The steps of a canary. A fixed share is one step that does not end by itself.
struct Steps {
    all: Vec<Step>,
    /// What `approvedSteps` must be for the promotion.
    promotes: i32,
    is_fixed: bool,
}

impl Steps {
    fn of(canary: &Canary) -> Self {
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
    fn at(&self, number: i32) -> Option<Step> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.all.get(index).or(self.all.last()).copied()
    }

    fn after(&self, number: i32) -> Option<Step> {
        self.all.get(usize::try_from(number).ok()?).copied()
    }
}

/// While requests are taken from it, the candidate gets fewer pods only after all gateways have accepted that. `status`: its own.
fn scaled(replicas: i32, status: &CanaryStatus, share: Share, seen: &Seen) -> Wanted {
    let Route { share: stored, is_accepted, is_foreign, .. } = seen.route.unwrap_or_default();
    // A rule of the user that does not fit any more may have sent requests until now.
    let may_send = status.served && (stored.is_known || is_foreign) && !is_accepted;
    let is_taken = (stored.has_requests() || may_send) && !share.has_requests();
    if is_taken && seen.candidate.all > replicas { Wanted::Kept } else { Wanted::Replicas(replicas) }
}

fn going_on(before: CanaryStatus, canary: &Canary, seen: &Seen, now: Timestamp) -> Next {
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
    let before =
        CanaryStatus { draining_since: None, stale_approvals, approvals_needed: steps.promotes, ..before };
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
        None => starting(before, &steps, canary, seen),
    }
}

/// Before the first step: the pods come up, and the route learns their Service.
fn starting(before: CanaryStatus, steps: &Steps, canary: &Canary, seen: &Seen) -> Next {
    let first = steps.after(0);
    let replicas = first.map_or(canary.replicas, |step| step.replicas);
    let has_all = seen.candidate.ready >= replicas;
    let is_ready = has_all && seen.candidate.has_endpoint;
    let known = shared(seen).is_known;
    let stored = shared(seen);
    let serves = seen.candidate.has_endpoint && known;
    let matches = serves && !canary.matches.is_empty() && (has_all || stored.matches);
    let mirrors = serves && canary.mirror && (has_all || stored.mirrors);
    let is_known = seen.route.is_some() && (known || is_ready);
    let share = Share { weight: 0, matches, mirrors, is_known };
    let pods = scaled(replicas, &before, share, seen);
    let status = |phase, step| CanaryStatus { phase: Some(phase), step, ..before.clone() };
    if !is_ready {
        return with_seen(status(CanaryPhase::Starting, 0), share, pods, seen, None);
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
    let share = Share { weight: first.weight, ..share };
    with_seen(status(CanaryPhase::Analysing, first.number), share, pods, seen, None)
}

/// The share of a step. It rises only when the gateways have accepted the rules of before, and all pods are ready.
fn share_of(step: Step, canary: &Canary, seen: &Seen) -> Share {
    let Route { share, is_accepted, .. } = seen.route.unwrap_or_default();
    let may_rise = is_accepted && share.is_known && seen.candidate.ready >= step.replicas;
    let weight = if may_rise { step.weight } else { step.weight.min(share.weight) };
    let (matches, is_known) = (!canary.matches.is_empty() && share.is_known, seen.route.is_some());
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
            return rolled_back(rejected(status, reasons::CANDIDATE_UNREADY, message, now), seen, now);
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
    let status = CanaryStatus {
        step_started_at: since.clone(),
        phase: Some(CanaryPhase::Analysing),
        ..before.clone()
    };
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
    if needs_approval {
        return with_seen(awaits, share, pods, seen, None);
    }
    match steps.after(step.number) {
        Some(next) if seen.candidate.ready < next.replicas => {
            // Its pods first. Until they are ready, the candidate is judged in the step that it has.
            with_seen(status, share, Wanted::Replicas(next.replicas), seen, None)
        }
        Some(next) => {
            let status = CanaryStatus { step: next.number, step_started_at: None, ..status };
            let share = Share { weight: next.weight, ..share };
            with_seen(status, share, Wanted::Replicas(next.replicas), seen, None)
        }
        None if is_approved || canary.promotion == Promotion::Auto => {
            promoted(with_seen(status, share, pods, seen, None), seen)
        }
        None => with_seen(status, share, pods, seen, None),
    }
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
