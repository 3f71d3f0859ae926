//! What conditions and events say about the route and the canary. Pure.

use std::time::Duration;

use api::{
    aiinference::traffic::{Canary, CanaryPhase, CanaryStatus},
    aiinference::{AIInferenceSpec, Phase},
    conditions, reasons,
};
use jiff::Timestamp;
use runtime::write::{
    conditions::Verdict,
    events::{Note, Severity},
};

use verdict::judge::Reason;

pub(super) use self::traffic_ready::UNANSWERED;
use self::traffic_ready::{refusals, traffic_ready, unanswered};
use super::{
    super::conditions::Assessment, analysis::Analysed, answer_of, drain, gate::Evaluated, keeps_requests,
    route::Answer, state::Share,
};
use crate::{observe::Observed, validate::Invalid, versions::overlaid};

mod traffic_ready;

/// What a child apart is, in its refusals.
pub(crate) const ROUTE: &str = "the HTTPRoute";
pub(crate) const GRPC_ROUTE: &str = "the GRPCRoute";
pub(crate) const POOLS: &str = "the InferencePool";
pub(crate) const WEIGHTS: &str = "the candidate's share in the HTTPRoute of spec.routeRef";
pub(crate) const CANDIDATE: &str = "the candidate";

/// What is known of the candidate.
#[derive(Clone, Copy, Default)]
pub(super) struct OfCandidate<'a> {
    pub(super) assessment: Option<&'a Assessment>,
    pub(super) analysed: Option<&'a Analysed>,
    pub(super) evaluated: Option<&'a Evaluated>,
}

fn verdict(type_: &'static str, holds: bool, reason: &'static str, message: String) -> Verdict {
    Verdict { type_, holds, reason, message }
}

/// Conditions, and the fact that a route which was accepted has rules without an answer.
pub(super) fn verdicts(
    observed: &Observed,
    canary: Option<&CanaryStatus>,
    known: OfCandidate<'_>,
    now: Timestamp,
) -> (Vec<Verdict>, Option<(String, Duration)>) {
    let spec = &observed.inference.spec;
    // Of the HTTPRoute of `spec.routeRef`, this says only whether a candidate can get a share.
    let is_shared = spec.gateway.is_some() || spec.route_ref.is_some() && canary.is_some();
    let mut traffic = is_shared.then(|| traffic_ready(observed, canary, known.analysed));
    let unanswered = traffic.as_ref().and_then(|verdict| unanswered(verdict, observed, now));
    if unanswered.is_some()
        && let Some(verdict) = &mut traffic
    {
        (verdict.holds, verdict.reason) = (true, reasons::ROUTE_ACCEPTED);
        "accepted; the last change is not answered yet".clone_into(&mut verdict.message);
    }
    let mut verdicts: Vec<Verdict> = traffic.into_iter().collect();
    if let Some(status) = canary {
        verdicts.push(progressing(observed, (spec.canary.as_ref(), status), known, now));
        verdicts.push(healthy(observed, status, known));
    }
    (verdicts, unanswered)
}

fn progressing(
    observed: &Observed,
    (canary, status): (Option<&Canary>, &CanaryStatus),
    OfCandidate { assessment, analysed, evaluated }: OfCandidate<'_>,
    now: Timestamp,
) -> Verdict {
    let says = |holds, reason, message| verdict(conditions::CANARY_PROGRESSING, holds, reason, message);
    if let Some((reason, message)) = observed.apart.get(CANDIDATE) {
        return says(false, reason, message.clone());
    }
    let spec = &observed.inference.spec;
    let steps = canary.map_or(0, |canary| canary.steps.len());
    let held = if is_contested(observed) { "; no step follows while the route is contested" } else { "" };
    let share = format!("the candidate has {} % of the requests{held}", status.weight_percent);
    match status.phase {
        Some(CanaryPhase::Starting) | None => starting(observed, status, assessment),
        Some(CanaryPhase::Dark) => {
            says(true, reasons::CANARY_DARK, "the candidate is ready and has no share".to_owned())
        }
        Some(CanaryPhase::Analysing) => {
            let share = match steps {
                0 => share,
                _ => format!("step {} of {steps}: {share}", status.step),
            };
            // The step goes on while the pods of the next one come up.
            let is_short = status.step_started_at.is_none() || status.ready_replicas < status.replicas;
            match unready(assessment).filter(|_| is_short) {
                Some(Verdict { reason, message, .. }) => {
                    let message =
                        with_finding(format!("{share}; the candidate: {message}"), analysed, observed);
                    says(is_coming(reason), reason, message)
                }
                None => says(true, reasons::CANARY_ANALYSING, with_finding(share, analysed, observed)),
            }
        }
        Some(CanaryPhase::Held) => {
            let what = match steps {
                0 => "the promotion".to_owned(),
                _ => format!("step {} of {steps}", status.step),
            };
            let finding = with_finding(format!("{what} has no verdict in time; {share}"), analysed, observed);
            let fix = "analysis goes on, and a pass ends this. To go on without one, set spec.canary.analysis.onInconclusive \
                       to Promote; to stop, spec.canary.abort to true";
            says(false, reasons::CANARY_HELD, format!("{finding}; {fix}"))
        }
        Some(CanaryPhase::AwaitingApproval) => {
            let next = status.step.saturating_add(1);
            let what = if usize::try_from(status.step).is_ok_and(|step| step >= steps) {
                "the promotion".to_owned()
            } else {
                format!("step {next}")
            };
            let stale = match status.stale_approvals {
                0 => String::new(),
                stale => {
                    let again = if stale == next { ", set 0 first" } else { "" };
                    format!(
                        "; {stale} was given before the version or the steps changed, and does not count{again}"
                    )
                }
            };
            let message = format!("{share}; {what} waits for spec.canary.approvedSteps: {next}{stale}");
            says(true, reasons::AWAITING_APPROVAL, message)
        }
        Some(CanaryPhase::AwaitingEvaluation) => {
            let Some((reason, message)) = evaluated.and_then(|evaluated| evaluated.why.clone()) else {
                return awaited_before(observed);
            };
            let message = match status.weight_percent {
                0 => message,
                _ => format!("{share}; {message}"),
            };
            says(reason == reasons::EVALUATION_PENDING, reason, message)
        }
        Some(CanaryPhase::Promoting) => {
            says(true, reasons::CANARY_PROMOTING, "stable gets the version of the candidate".to_owned())
        }
        Some(CanaryPhase::Promoted) => {
            let message = format!(
                "stable has the version of the candidate; {}",
                spec.canary.as_ref().map(|canary| fold(spec, canary)).unwrap_or_default()
            );
            says(true, reasons::COMPLETE, message)
        }
        Some(CanaryPhase::RollingBack) => {
            let message = match keeps_requests(observed) {
                Some(why) => format!("{why}{}", without_answer(observed)),
                None => {
                    format!(
                        "requests of the candidate end{}{}",
                        running(observed, status, now),
                        still_has(status)
                    )
                }
            };
            says(true, reasons::CANARY_ROLLING_BACK, message)
        }
        Some(CanaryPhase::RolledBack) => {
            let why = status.last_rollback.as_ref().map(|rollback| &*rollback.message).unwrap_or_default();
            let message = format!(
                "{why}; change the version in spec.canary, or remove spec.canary and set it again once it is gone"
            );
            says(false, reasons::CANARY_ROLLED_BACK, message)
        }
        Some(CanaryPhase::Aborted) => {
            let pods = if status.replicas > 0 { "its pods stay" } else { "it has no pods" };
            let message = format!("spec.canary.abort is set; {pods}{}", still_has(status));
            says(false, reasons::CANARY_ABORTED, message)
        }
    }
}

/// Of a paused or invalid object nothing is asked, and what was found stays.
fn awaited_before(observed: &Observed) -> Verdict {
    let says = |holds, reason, message| verdict(conditions::CANARY_PROGRESSING, holds, reason, message);
    let stored = observed.inference.status.iter().flat_map(|status| &status.conditions);
    let mut stored = stored.filter(|known| known.type_ == conditions::CANARY_PROGRESSING);
    let stored = stored.find_map(|known| {
        let reason = OF_EVALUATION.into_iter().find(|reason| *reason == known.reason)?;
        Some(says(known.status == "True", reason, known.message.clone()))
    });
    stored.unwrap_or_else(|| {
        let message = "the evaluation of spec.canary.evaluationName is awaited".to_owned();
        says(true, reasons::EVALUATION_PENDING, message)
    })
}

/// Reasons of a candidate that waits for its evaluation.
const OF_EVALUATION: [&str; 5] = [
    reasons::EVALUATION_NOT_FOUND,
    reasons::EVALUATION_PENDING,
    reasons::EVALUATION_NOT_PASSED,
    reasons::EVALUATION_FOR_OTHER_MODEL,
    reasons::EVALUATION_MODEL_UNKNOWN,
];

/// How many requests of the candidate run, and until when they may.
fn running(observed: &Observed, status: &CanaryStatus, now: Timestamp) -> String {
    let Some(since) = &status.draining_since else { return String::new() };
    let running = match drain::running(observed, status) {
        Some(requests) => format!("; {requests} still run"),
        None => String::new(),
    };
    let seconds = drain::longest(observed).as_secs().cast_signed();
    let until = Timestamp::from_second(since.0.as_second().saturating_add(seconds));
    // A time, not what is left of it: the words stay, and the status is not written each second.
    let until = until.ok().filter(|until| *until > now);
    let until = until.map(|until| format!("; requests may run until {until}"));
    format!("{running}{}", until.unwrap_or_default())
}

/// The weights of a route that could not be written.
fn still_has(status: &CanaryStatus) -> String {
    match status.weight_percent {
        0 => String::new(),
        share => format!("; the route still gives it {share} % of the requests, see TrafficReady"),
    }
}

fn with_finding(message: String, analysed: Option<&Analysed>, observed: &Observed) -> String {
    match analysed {
        Some(analysed) => format!("{message}; {}", analysed.message(observed.looking.faults())),
        None => message,
    }
}

/// What makes the promoted version that of the top level, without a restart.
fn fold(spec: &AIInferenceSpec, canary: &Canary) -> String {
    let fields = [
        (canary.model_source.is_some(), "modelSource"),
        (canary.manifest_digest.is_some(), "manifestDigest (to spec.modelStore)"),
        (canary.image.is_some(), "image"),
        (canary.engine_version.is_some(), "engineVersion"),
        (canary.args.is_some(), "args"),
        (canary.env.is_some(), "env"),
        (canary.resources.is_some(), "resources"),
    ];
    let moved: Vec<&str> = fields.into_iter().filter(|(is_set, _)| *is_set).map(|(_, field)| field).collect();
    // What the overlay leaves out, because it is that of another model or of another image.
    let version = overlaid(spec, canary);
    let digest = |spec: &AIInferenceSpec| spec.model_store.as_ref()?.manifest_digest.clone();
    let left_out = [
        (digest(spec).is_some() && digest(&version).is_none(), "modelStore.manifestDigest"),
        (spec.engine_version.is_some() && version.engine_version.is_none(), "engineVersion"),
    ];
    let left_out = left_out.into_iter().filter(|(is_left_out, _)| *is_left_out).map(|(_, field)| field);
    let removed: Vec<String> = left_out.chain(["canary"]).map(|field| format!("spec.{field}")).collect();
    format!(
        "in one change, move {} from spec.canary to spec and remove {}",
        moved.join(", "),
        removed.join(", ")
    )
}

/// What becomes of the pods of a stopped object whose gateways do not answer.
fn without_answer(observed: &Observed) -> String {
    match observed.inference.spec.replicas {
        0 => format!(
            "; the object is stopped, so the pods of the candidate end after {} s in any case",
            drain::longest(observed).as_secs()
        ),
        _ => String::new(),
    }
}

fn starting(observed: &Observed, status: &CanaryStatus, assessment: Option<&Assessment>) -> Verdict {
    let says = |holds, reason, message| verdict(conditions::CANARY_PROGRESSING, holds, reason, message);
    let has_pods = observed.candidate.as_deref().is_some_and(|version| version.pods().next().is_some());
    let waits = status.served && has_pods && observed.inference.spec.replicas == 0;
    if let Some(why) = keeps_requests(observed).filter(|_| waits) {
        return says(true, reasons::CANARY_STARTING, format!("{why}{}", without_answer(observed)));
    }
    if let Some(Verdict { reason, message, .. }) = unready(assessment) {
        return says(is_coming(reason), reason, format!("the candidate: {message}"));
    }
    let spec = &observed.inference.spec;
    let message = match answer_of(observed) {
        _ if is_contested(observed) => {
            "no step begins while the route is contested; see TrafficReady".to_owned()
        }
        _ if spec.gateway.is_none() && spec.route_ref.is_none() => "the candidate is ready".to_owned(),
        Some(Answer::Accepted) => {
            format!(
                "all replicas of stable have to be ready with one version before step {}",
                status.step.saturating_add(1)
            )
        }
        Some(_) | None => {
            "the gateways have to accept the route with the candidate; see TrafficReady".to_owned()
        }
    };
    says(true, reasons::CANARY_STARTING, message)
}

/// What keeps its pods from becoming ready. `None`: they are ready, or on their way.
pub(super) fn obstacle(assessment: &Assessment) -> Option<&str> {
    unready(Some(assessment)).filter(|ready| !is_coming(ready.reason)).map(|ready| &*ready.message)
}

/// Another manager keeps changing a route.
pub(super) fn is_contested(observed: &Observed) -> bool {
    refusals(observed).any(|(reason, _)| *reason == reasons::ROUTE_CONTESTED)
}

/// Why its pods are not ready.
fn unready(assessment: Option<&Assessment>) -> Option<&Verdict> {
    let mut of_pods = assessment.into_iter().flat_map(|assessment| &assessment.verdicts);
    of_pods.find(|verdict| verdict.type_ == conditions::READY).filter(|ready| !ready.holds)
}

fn is_coming(reason: &str) -> bool {
    super::super::events::UNDER_WAY.contains(&reason)
}

fn healthy(
    observed: &Observed,
    status: &CanaryStatus,
    OfCandidate { assessment, analysed, evaluated }: OfCandidate<'_>,
) -> Verdict {
    let says = |holds, reason, message| verdict(conditions::CANARY_HEALTHY, holds, reason, message);
    let rollback = status.last_rollback.as_ref().filter(|rollback| rollback.revision == status.revision);
    if let Some(rollback) = rollback {
        return says(false, known_reason(&rollback.reason), rollback.message.clone());
    }
    if status.phase == Some(CanaryPhase::Aborted) {
        return says(false, reasons::CANARY_ABORTED, "spec.canary.abort is set".to_owned());
    }
    if status.phase == Some(CanaryPhase::AwaitingEvaluation) && status.step == 0 {
        let (reason, message) = evaluated.and_then(|evaluated| evaluated.why.clone()).unwrap_or_else(|| {
            let Verdict { reason, message, .. } = awaited_before(observed);
            (reason, message)
        });
        let refuses = [reasons::EVALUATION_NOT_PASSED, reasons::EVALUATION_FOR_OTHER_MODEL].contains(&reason);
        return match refuses {
            true => says(false, reason, message),
            false => {
                says(true, reasons::CANARY_JUDGING, "it is judged when its evaluation has passed".to_owned())
            }
        };
    }
    let fails = assessment.filter(|assessment| assessment.phase == Phase::Failed);
    if let Some(ready) = unready(fails) {
        return says(false, reasons::CANDIDATE_UNREADY, format!("the candidate: {}", ready.message));
    }
    let is_lost =
        status.step > 0 && status.step_started_at.is_none() && status.lost > 0 && status.ready_replicas == 0;
    if is_lost {
        let message =
            format!("the candidate has no ready pod; it has lost the last one {} times", status.lost);
        return says(false, reasons::CANDIDATE_UNREADY, message);
    }
    let is_judged = status.analysis.is_some() && status.step_started_at.is_some();
    let Some(analysed) = analysed else {
        // Of a paused or invalid object nothing is judged, and what was found stays.
        let stored = observed.inference.status.iter().flat_map(|status| &status.conditions);
        let mut stored = stored.filter(|known| is_judged && known.type_ == conditions::CANARY_HEALTHY);
        let stored = stored.find_map(|known| {
            let reason = OF_ANALYSIS.into_iter().find(|reason| *reason == known.reason)?;
            Some(says(known.status == "True", reason, known.message.clone()))
        });
        let spec = observed.inference.spec.canary.as_ref();
        let will_be = spec.is_some_and(|spec| spec.analysis.is_some()) && !is_over(status.phase);
        let fine = || match will_be {
            true => says(
                true,
                reasons::CANARY_JUDGING,
                "its requests are judged once it has the share of a step, with pods of one version"
                    .to_owned(),
            ),
            false => says(true, reasons::CANARY_PASSING, "nothing speaks against the candidate".to_owned()),
        };
        return stored.unwrap_or_else(fine);
    };
    let message = analysed.message(observed.looking.faults());
    let reason = match analysed.judgement.reason {
        // Of a mode that only observes: otherwise the candidate is rolled back.
        Reason::Alarm => reasons::ANALYSIS_FAILED,
        Reason::MetricsMissing => reasons::METRICS_MISSING,
        Reason::BucketMismatch => reasons::BUCKET_MISMATCH,
        Reason::LoadMismatch => reasons::LOAD_MISMATCH,
        Reason::Passing => reasons::CANARY_PASSING,
        _ if status.phase == Some(CanaryPhase::Held) => reasons::CANARY_INCONCLUSIVE,
        Reason::InFlight
        | Reason::ShareTooHigh
        | Reason::NoControl
        | Reason::WarmingUp
        | Reason::TooFewRequests
        | Reason::TooEarly
        | Reason::NothingJudged => reasons::CANARY_JUDGING,
    };
    let holds = [reasons::CANARY_PASSING, reasons::CANARY_JUDGING].contains(&reason);
    says(holds, reason, message)
}

/// No verdict follows any more.
fn is_over(phase: Option<CanaryPhase>) -> bool {
    match phase {
        Some(
            CanaryPhase::Promoting
            | CanaryPhase::Promoted
            | CanaryPhase::RollingBack
            | CanaryPhase::RolledBack
            | CanaryPhase::Aborted,
        ) => true,
        Some(
            CanaryPhase::Starting
            | CanaryPhase::Dark
            | CanaryPhase::Analysing
            | CanaryPhase::AwaitingApproval
            | CanaryPhase::AwaitingEvaluation
            | CanaryPhase::Held,
        )
        | None => false,
    }
}

/// Reasons of `CanaryHealthy` that an analysis gives.
const OF_ANALYSIS: [&str; 7] = [
    reasons::ANALYSIS_FAILED,
    reasons::METRICS_MISSING,
    reasons::BUCKET_MISMATCH,
    reasons::LOAD_MISMATCH,
    reasons::CANARY_INCONCLUSIVE,
    reasons::CANARY_JUDGING,
    reasons::CANARY_PASSING,
];

/// Of a rollback that the status has.
fn known_reason(reason: &str) -> &'static str {
    let known = [
        reasons::ANALYSIS_FAILED,
        reasons::CANDIDATE_CRASHED,
        reasons::CANARY_INCONCLUSIVE,
        reasons::ROUTE_REJECTED,
    ];
    known.into_iter().find(|known| *known == reason).unwrap_or(reasons::CANDIDATE_UNREADY)
}

pub(super) fn invalid(invalid: &Invalid) -> Verdict {
    let message = format!("spec.canary: {invalid}");
    verdict(conditions::CANARY_PROGRESSING, false, reasons::INVALID_SPEC, message)
}

/// Of a candidate whose spec is invalid. What speaks against it stays.
pub(super) fn unjudged(verdicts: &mut [Verdict], share: Share) {
    let healthy = verdicts.iter_mut().find(|known| known.type_ == conditions::CANARY_HEALTHY && known.holds);
    let Some(healthy) = healthy.filter(|_| share.has_requests()) else { return };
    healthy.reason = reasons::CANARY_JUDGING;
    "nothing is judged while spec.canary is invalid; the candidate keeps its share"
        .clone_into(&mut healthy.message);
}

pub(super) fn replace(verdicts: &mut Vec<Verdict>, verdict: Verdict) {
    verdicts.retain(|known| known.type_ != verdict.type_);
    verdicts.push(verdict);
}

/// What has changed since the last status.
pub(super) fn notes(
    before: Option<&CanaryStatus>,
    now: Option<&CanaryStatus>,
    canary: Option<&Canary>,
    analysed: Option<&Analysed>,
) -> Vec<Note> {
    let Some(now) = now else { return Vec::new() };
    let mut notes = Vec::new();
    let mut note = |severity, reason, message| notes.push(Note { severity, reason, message });
    if canary.is_some() && before.is_none_or(|before| before.revision != now.revision) {
        note(Severity::Normal, reasons::CANARY_STARTED, format!("candidate {} starts", now.revision));
    }
    let share = before.map_or(0, |before| before.weight_percent);
    if share != now.weight_percent {
        let message = format!("{share} % -> {} % of the requests", now.weight_percent);
        note(Severity::Normal, reasons::TRAFFIC_SHIFTED, message);
    }
    // The verdict is that of the step before this change.
    let known = before.and_then(|before| before.analysis.as_ref()).map(|analysis| &*analysis.verdict);
    let passes = analysed.is_some_and(|analysed| analysed.judgement.verdict == verdict::judge::Verdict::Pass);
    let was_judged = |before: &&CanaryStatus| {
        before.phase == Some(CanaryPhase::Analysing) || before.phase == Some(CanaryPhase::Held)
    };
    if let Some(before) = before.filter(was_judged).filter(|_| passes && known != Some("Pass")) {
        let message = format!("candidate {} has passed step {}", now.revision, before.step);
        note(Severity::Normal, reasons::CANARY_PASSED, message);
    }
    let became = |phase| now.phase == Some(phase) && before.is_none_or(|before| before.phase != Some(phase));
    if became(CanaryPhase::Promoted) {
        note(Severity::Normal, reasons::CANARY_PROMOTED, format!("stable has version {}", now.revision));
    }
    if became(CanaryPhase::Held) {
        let message = format!("candidate {}: step {} has no verdict in time", now.revision, now.step);
        note(Severity::Warning, reasons::CANARY_HELD_EVENT, message);
    }
    if let Some(rollback) = &now.last_rollback
        && before.is_none_or(|before| before.last_rollback.as_ref() != Some(rollback))
    {
        note(Severity::Warning, reasons::CANARY_ROLLED_BACK_EVENT, rollback.message.clone());
    }
    notes
}
