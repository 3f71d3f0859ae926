//! What is true of an AIInference now: its phase and its conditions, each with a reason and a message. Pure.
//!
//! `Ready` speaks of the revision that the spec asks for, and only of pods that were seen to be ready. When a condition
//! was last different is not decided here, but in `status`.

use std::{sync::Arc, time::Duration};

use api::{aiinference::Phase, conditions, reasons};
use jiff::Timestamp;
use runtime::{conditions::Verdict, refusal::Refusal};
use workload::{
    container::{WarmUp, last_end, warm_up, was_killed},
    kept_template::summary,
    node::Loss,
    pod::{Container, PodView},
    revision::Revision,
    time::left,
};

use super::{
    faults::{About, Fault, claim_fault, creation_fault, eviction_fault, fault_of},
    nodes::Moves,
    pod::{ENGINE, LOADER},
    rollout::Decision,
};
use crate::{
    observe::Observed,
    validate::{Invalid, ValidInference},
};

/// Phase and conditions, without their times.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) phase: Phase,
    pub(super) verdicts: Vec<Verdict>,
    pub(super) counts: Counts,
    /// When a warm-up will have taken too long, or long enough to be mentioned, or a fault will come or go by itself.
    pub(super) look_again: Option<Duration>,
}

/// How many pods there are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Of any revision.
    pub(super) all: i32,
    pub(super) ready: i32,
    /// Of the revision that the spec asks for.
    pub(super) updated: i32,
    pub(super) updated_ready: i32,
}

/// Most pods are ready sooner, and reporting each of their steps would cost status writes of no use.
const WORTH_REPORTING: Duration = Duration::from_secs(10);
/// After the object itself, whose time of creation is in whole seconds.
const CLAIMS_ARE_SEEN_WITHIN: Duration = Duration::from_secs(3);
/// What is free changes with every pod of the cluster; that a pod finds a node is reported at once.
const COUNT_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// What the other parts of a plan have decided, as far as conditions speak of it.
pub(super) struct Decided<'a> {
    pub(super) revision: &'a Revision<'a>,
    pub(super) moves: &'a Moves,
    pub(super) rollout: &'a Decision,
}

pub(super) fn of_valid(
    valid: &ValidInference,
    observed: &Observed,
    decided: &Decided<'_>,
    now: Timestamp,
) -> Judged {
    let mut judged = if valid.replicas == 0 {
        stopped(valid, counts(observed, decided.revision.pods))
    } else {
        serving(valid, observed, decided, now)
    };
    judged.verdicts.extend(outdated(decided.revision));
    if valid.pods.paused { paused(judged) } else { with_progress(judged) }
}

/// The pods of the last valid spec go on; of this one there are none.
pub(super) fn of_invalid(invalid: &Invalid, observed: &Observed) -> Judged {
    let message = invalid.to_string();
    let counts = counts(observed, &[]);
    let accepted = fails(conditions::ACCEPTED, reasons::INVALID_SPEC, message.clone());
    with_progress(Judged {
        phase: Phase::Failed,
        verdicts: vec![accepted, available(counts), fails(conditions::READY, reasons::INVALID_SPEC, message)],
        counts,
        look_again: None,
    })
}

pub(super) fn of_refused(
    refusal: &Refusal,
    valid: &ValidInference,
    observed: &Observed,
    decided: &Decided<'_>,
    now: Timestamp,
) -> Judged {
    let mut judged = of_valid(valid, observed, decided, now);
    let (reason, message) = match refusal {
        // Nothing is wrong, and soon nothing is left of it.
        Refusal::Leftover { .. } => return judged,
        Refusal::OwnershipConflict(message) => (reasons::OWNERSHIP_CONFLICT, message),
        Refusal::Denied(message) => {
            // What was announced stays announced.
            let warning = decided.rollout.warning.iter().map(|warning| format!("{warning}; "));
            let said = warning.chain([message.clone()]).collect();
            judged.replace(fails(conditions::PROGRESSING, reasons::DENIED, said));
            (reasons::DENIED, message)
        }
        Refusal::Invalid(message) => {
            judged.replace(fails(conditions::ACCEPTED, reasons::INVALID_SPEC, message.clone()));
            (reasons::INVALID_SPEC, message)
        }
    };
    judged.replace(fails(conditions::READY, reason, message.clone()));
    judged.phase = Phase::Failed;
    with_progress(judged)
}

fn counts(observed: &Observed, pods: &[Arc<PodView>]) -> Counts {
    // A node that does not answer keeps its pods' last status, which says nothing of now.
    let serves = |pod: &PodView| {
        let lost = pod.node.as_deref().and_then(|node| observed.nodes.lost.get(node));
        pod.is_ready && lost.is_none_or(|lost| lost.how == Loss::NotReady)
    };
    Counts {
        all: count(observed.pods().count()),
        ready: count(observed.pods().filter(|pod| serves(pod)).count()),
        updated: count(pods.len()),
        updated_ready: count(pods.iter().filter(|pod| serves(pod)).count()),
    }
}

fn count(pods: usize) -> i32 {
    i32::try_from(pods).unwrap_or(i32::MAX)
}

impl Judged {
    fn replace(&mut self, verdict: Verdict) {
        match self.verdicts.iter_mut().find(|known| known.type_ == verdict.type_) {
            Some(known) => *known = verdict,
            None => self.verdicts.push(verdict),
        }
    }
}

/// What tools that follow kstatus look for, present only while True: `Reconciling` while the generation is not done,
/// `Stalled` when it will not get there without a change.
fn with_progress(mut judged: Judged) -> Judged {
    judged
        .verdicts
        .retain(|verdict| ![conditions::RECONCILING, conditions::STALLED].contains(&verdict.type_));
    let ready = judged.verdicts.iter().find(|verdict| verdict.type_ == conditions::READY && !verdict.holds);
    let Some(Verdict { reason, message, .. }) = ready.filter(|ready| ready.reason != reasons::STOPPED) else {
        return judged;
    };
    let type_ = match judged.phase {
        Phase::Failed => conditions::STALLED,
        Phase::Pending | Phase::Loading | Phase::Ready => conditions::RECONCILING,
    };
    let verdict = holds(type_, reason, message.clone());
    judged.verdicts.push(verdict);
    judged
}

/// The pods that serve were rendered by another release, which is no fault.
fn outdated(revision: &Revision<'_>) -> Option<Verdict> {
    let message = format!(
        "this release renders these pods differently: {}; they are kept until the spec changes or the annotation {} \
         gets a new value",
        summary(&revision.outdated),
        api::labels::REFRESH,
    );
    let is_outdated = !revision.outdated.is_empty();
    is_outdated.then(|| holds(conditions::TEMPLATE_OUTDATED, reasons::NEWER_TEMPLATE, message))
}

fn stopped(valid: &ValidInference, counts: Counts) -> Judged {
    let message = "spec.replicas is 0".to_owned();
    let progressing = if counts.all == 0 {
        holds(conditions::PROGRESSING, reasons::COMPLETE, "no pod is left".to_owned())
    } else {
        holds(conditions::PROGRESSING, reasons::SCALING, format!("{} pods are left", counts.all))
    };
    Judged {
        phase: Phase::Pending,
        verdicts: vec![
            accepted(valid),
            fails(conditions::MODEL_LOADED, reasons::STOPPED, message.clone()),
            available(counts),
            progressing,
            fails(conditions::READY, reasons::STOPPED, message),
        ],
        counts,
        look_again: None,
    }
}

fn serving(valid: &ValidInference, observed: &Observed, decided: &Decided<'_>, now: Timestamp) -> Judged {
    let Decided { revision, moves, rollout: _ } = decided;
    let pods: Vec<&PodView> = revision.pods.iter().map(AsRef::as_ref).collect();
    let counts = counts(observed, revision.pods);
    let (faults, fault_turns) = faults(valid, observed, revision, &pods, now);
    let about = |about: About| faults.iter().find(|fault| fault.about == about);
    let complete = counts.updated_ready >= valid.replicas;

    let (stage, stage_turns) = stage(&pods, now);
    let model_loaded = model_loaded(about(About::ModelLoaded), counts, stage);
    let scheduled = scheduled(about(About::Scheduled), &pods, decided.rollout.spares);
    let progressing = progressing(about(About::Progressing), valid, observed, decided, counts);
    let ready = if complete {
        let message = format!("{} of {} replicas are ready", counts.updated_ready, valid.replicas);
        holds(conditions::READY, reasons::READY, message)
    } else {
        // A model that is not there, or an engine that does not run, is the cause; that it has not loaded, the effect.
        // It stays one while other replicas have loaded the model.
        let lasting = about(About::ModelLoaded)
            .map(|Fault { reason, message, about: _ }| fails(conditions::READY, reason, message.clone()));
        let order = [lasting.as_ref(), scheduled.as_ref(), Some(&progressing), Some(&model_loaded)];
        let cause = order.into_iter().flatten().find(|verdict| !verdict.holds);
        match cause {
            Some(Verdict { reason, message, .. }) => fails(conditions::READY, reason, message.clone()),
            // Some replicas serve, and the others are on their way.
            None => {
                let reason = match progressing.reason {
                    reasons::COMPLETE => reasons::LOADING,
                    under_way => under_way,
                };
                let ready = format!("{} of {} replicas are ready", counts.updated_ready, valid.replicas);
                fails(conditions::READY, reason, moves.waits_for.clone().unwrap_or(ready))
            }
        }
    };
    let phase = if complete {
        Phase::Ready
    } else if about(About::ModelLoaded).is_some() || about(About::Progressing).is_some() {
        Phase::Failed
    } else if pods.iter().any(|pod| pod.node.is_some()) {
        Phase::Loading
    } else {
        Phase::Pending
    };
    let timeout = warmup_timeout(valid);
    let look_again = pods.iter().filter_map(|pod| match warm_up(pod.container(ENGINE), timeout, now) {
        WarmUp::Left(left) => Some(left),
        WarmUp::None | WarmUp::TimedOut => None,
    });
    let counted = about(About::Scheduled).filter(|_| observed.rooms.is_some());
    Judged {
        phase,
        counts,
        look_again: look_again
            .chain(stage_turns)
            .chain(fault_turns)
            .chain(counted.map(|_| COUNT_AGAIN_AFTER))
            .min(),
        verdicts: [
            Some(accepted(valid)),
            Some(model_loaded),
            scheduled,
            Some(available(counts)),
            Some(progressing),
            Some(ready),
        ]
        .into_iter()
        .flatten()
        .collect(),
    }
}

/// In the order of the pods' names, so that the same pods give the same message.
fn faults(
    valid: &ValidInference,
    observed: &Observed,
    revision: &Revision<'_>,
    pods: &[&PodView],
    now: Timestamp,
) -> (Vec<Fault>, Option<Duration>) {
    let timeout = warmup_timeout(valid);
    let had_timed_out = reason_before(observed, conditions::PROGRESSING) == Some(reasons::WARMUP_TIMEOUT);
    let of_pods = pods.iter().map(|pod| {
        let timed_out = warm_up(pod.container(ENGINE), timeout, now) == WarmUp::TimedOut && !pod.is_ready;
        let (fault, turns) = fault_of(valid, pod, observed, now);
        // The kubelet's restart comes after the timeout, and must not hide it behind a crash.
        let was_restarted = had_timed_out && !pod.is_ready && pod.container(ENGINE).is_some_and(was_killed);
        if timed_out || was_restarted { (Some(too_slow(valid, pod)), turns) } else { (fault, turns) }
    });
    let (of_pods, turns): (Vec<Option<Fault>>, Vec<Option<Duration>>) = of_pods.unzip();
    let deployment = observed.deployment.as_ref().filter(|_| revision.is_deployed);
    let (evicted, evictions_turn) =
        if revision.is_deployed { eviction_fault(observed, pods, now) } else { (None, None) };
    let of_deployment = [evicted, deployment.and_then(creation_fault)];
    let (of_claim, claim_turns) = claim_fault_by_now(valid, observed, now);
    let faults = [of_claim].into_iter().chain(of_pods).chain(of_deployment);
    (faults.flatten().collect(), turns.into_iter().chain([evictions_turn, claim_turns]).flatten().min())
}

/// A claim that is created together with the object may be seen after it: then it is no fault yet, and when it will be.
fn claim_fault_by_now(
    valid: &ValidInference,
    observed: &Observed,
    now: Timestamp,
) -> (Option<Fault>, Option<Duration>) {
    let created = observed.model.metadata.creation_timestamp.as_ref().filter(|_| observed.claim.is_none());
    let left = created.and_then(|created| left(CLAIMS_ARE_SEEN_WITHIN, created.0, now));
    match (claim_fault(valid, observed), left) {
        (Some(_), Some(left)) => (None, Some(left)),
        (fault, _) => (fault, None),
    }
}

fn too_slow(valid: &ValidInference, pod: &PodView) -> Fault {
    Fault {
        about: About::Progressing,
        reason: reasons::WARMUP_TIMEOUT,
        message: format!(
            "engine of pod {} was not ready within {} s; raise spec.warmupTimeoutSeconds, or see kubectl logs {0}",
            pod.name(),
            valid.warmup_timeout_seconds
        ),
    }
}

fn model_loaded(fault: Option<&Fault>, counts: Counts, stage: String) -> Verdict {
    let type_ = conditions::MODEL_LOADED;
    if counts.updated_ready > 0 {
        return holds(
            type_,
            reasons::LOADED,
            format!("{} replicas have loaded the model", counts.updated_ready),
        );
    }
    match fault {
        Some(Fault { reason, message, about: _ }) => fails(type_, reason, message.clone()),
        None => fails(type_, reasons::LOADING, stage),
    }
}

/// What a pod is busy with, once that takes long; and when it will have.
fn stage(pods: &[&PodView], now: Timestamp) -> (String, Option<Duration>) {
    let mut look_again: Option<Duration> = None;
    for (busy, since) in pods.iter().filter_map(|pod| busy_since(pod)) {
        match left(WORTH_REPORTING, since, now) {
            None => return (busy, None),
            left => look_again = look_again.or(left).min(left),
        }
    }
    ("no pod of this revision is ready yet".to_owned(), look_again)
}

fn busy_since(pod: &PodView) -> Option<(String, Timestamp)> {
    let since = |container: &Container| container.state.running.as_ref()?.started_at;
    let name = pod.name();
    if let Some((engine, since)) = pod.container(ENGINE).and_then(|engine| Some((engine, since(engine)?))) {
        let again = last_end(engine).map(|ended| format!(", after it ended with code {}", ended.exit_code));
        return Some((format!("{ENGINE} of pod {name} warms up{}", again.unwrap_or_default()), since));
    }
    let loader = pod.init_container(LOADER).and_then(since);
    loader.map(|since| (format!("{LOADER} of pod {name} brings the model"), since))
}

/// Absent while there is nothing to place.
fn scheduled(fault: Option<&Fault>, pods: &[&PodView], spares: Option<&str>) -> Option<Verdict> {
    let type_ = conditions::SCHEDULED;
    if let Some(Fault { reason, message, about: _ }) = fault {
        let spares = spares.filter(|_| *reason == reasons::INSUFFICIENT_GPU).map(|why| format!("; {why}"));
        return Some(fails(type_, reason, format!("{message}{}", spares.unwrap_or_default())));
    }
    let placed = !pods.is_empty() && pods.iter().all(|pod| pod.node.is_some());
    placed.then(|| holds(type_, reasons::SCHEDULED, format!("{} pods have a node", pods.len())))
}

fn available(counts: Counts) -> Verdict {
    let type_ = conditions::AVAILABLE;
    match counts.ready {
        0 => fails(type_, reasons::NO_READY_REPLICAS, "no pod is ready".to_owned()),
        ready => holds(type_, reasons::MINIMUM_REPLICAS, format!("{ready} pods are ready")),
    }
}

fn progressing(
    fault: Option<&Fault>,
    valid: &ValidInference,
    observed: &Observed,
    decided: &Decided<'_>,
    counts: Counts,
) -> Verdict {
    let Decided { revision: _, moves, rollout } = decided;
    let type_ = conditions::PROGRESSING;
    let Counts { all, ready, updated, updated_ready } = counts;
    // Before any fault: what is about to be done must have been said.
    if let Some(warning) = &rollout.warning {
        return holds(type_, reasons::ROLLING, warning.clone());
    }
    if let Some(Fault { reason, message, about: _ }) = fault {
        let still = ready - updated_ready;
        let message = if still > 0 {
            format!("{message}; {still} pods of an older revision serve on")
        } else {
            message.clone()
        };
        return fails(type_, reason, message);
    }
    let wanted = valid.replicas;
    let was_complete = [Some(reasons::COMPLETE), Some(reasons::SCALING), Some(reasons::MIGRATING)]
        .contains(&reason_before(observed, type_));
    if all > updated {
        let message =
            format!("{updated_ready} of {wanted} replicas are ready, {} pods are older", all - updated);
        holds(type_, reasons::ROLLING, message)
    } else if moves.under_way || (moves.waits_for.is_some() && updated_ready < wanted) {
        let leaves = format!("{updated_ready} of {wanted} replicas are ready, others leave a lost node");
        let message = moves.waits_for.clone().unwrap_or(leaves);
        holds(type_, reasons::MIGRATING, message)
    } else if updated_ready >= wanted && updated == wanted {
        holds(type_, reasons::COMPLETE, format!("all {wanted} replicas are of this revision"))
    } else if was_complete && updated != wanted {
        holds(type_, reasons::SCALING, format!("{updated} of {wanted} replicas exist"))
    } else if was_complete {
        // A pod that is replaced one for one is neither.
        let unchanged = reason_before(observed, type_).filter(|reason| *reason == reasons::COMPLETE);
        let reason = unchanged.unwrap_or(reasons::SCALING);
        holds(type_, reason, format!("{updated_ready} of {wanted} replicas are ready"))
    } else {
        holds(type_, reasons::ROLLING, format!("{updated_ready} of {wanted} replicas are ready"))
    }
}

/// Adds that nothing is changed to what `Ready` says.
fn paused(mut judged: Judged) -> Judged {
    for verdict in judged.verdicts.iter_mut().filter(|verdict| verdict.type_ == conditions::READY) {
        verdict.reason = reasons::PAUSED;
        verdict.message = format!("spec.paused is set, so nothing is changed; {}", verdict.message);
    }
    judged
}

/// The constant that the condition of this type had as its reason.
fn reason_before(observed: &Observed, type_: &str) -> Option<&'static str> {
    let status = observed.model.status.as_ref()?;
    let reason = &status.conditions.iter().find(|condition| condition.type_ == type_)?.reason;
    [reasons::COMPLETE, reasons::SCALING, reasons::MIGRATING, reasons::ROLLING, reasons::WARMUP_TIMEOUT]
        .into_iter()
        .find(|known| known == reason)
}

fn warmup_timeout(valid: &ValidInference) -> Duration {
    Duration::from_secs(u64::from(valid.warmup_timeout_seconds.unsigned_abs()))
}

fn accepted(valid: &ValidInference) -> Verdict {
    let message = match &valid.tolerated {
        Some(Invalid(message)) => format!("{message}; the pods are kept as they are until the spec changes"),
        None => "the spec can be carried out".to_owned(),
    };
    holds(conditions::ACCEPTED, reasons::VALID, message)
}

fn holds(type_: &'static str, reason: &'static str, message: String) -> Verdict {
    Verdict { type_, holds: true, reason, message }
}

fn fails(type_: &'static str, reason: &'static str, message: String) -> Verdict {
    Verdict { type_, holds: false, reason, message }
}
