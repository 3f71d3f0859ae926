//! The phase and the conditions of an AIInference, each with a reason and a message. Pure.
//!
//! `Ready` counts only observed ready pods of the current revision. Transition times are set in `status`.

use std::{sync::Arc, time::Duration};

use api::{aiinference::Phase, conditions, reasons};
use jiff::Timestamp;
use runtime::write::{conditions::Verdict, refusal::Refusal};
use workload::{
    faults::{
        container::{WarmUp, last_end, warm_up, was_killed},
        evictions,
    },
    templates::{pinned_template::summary, revision::Revision},
    time::remaining,
    views::{
        node::LossKind,
        pod::{Container, PodView},
    },
};

use super::{
    faults::{Fault, FaultyCondition, claim_fault, creation_fault, eviction_fault, fault_of},
    handover::Handover,
    model,
    nodes::MigrationState,
    rollout::Order,
};
use crate::{
    names::{ENGINE, LOADER},
    observe::Observed,
    validate::{Content, Invalid, ValidInference},
};

/// Phase and conditions without transition times.
#[derive(Debug)]
pub(super) struct Assessment {
    pub(super) phase: Phase,
    pub(super) verdicts: Vec<Verdict>,
    pub(super) counts: Counts,
    /// When a timeout ends, so that the assessment may change although no object changes.
    pub(super) requeue_after: Option<Duration>,
}

/// Numbers of pods.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Pods of all revisions.
    pub(super) all: i32,
    pub(super) ready: i32,
    /// Pods of the current revision.
    pub(super) updated: i32,
    pub(super) updated_ready: i32,
}

/// Shorter stages are not reported, to save status writes.
const STAGE_REPORTED_AFTER: Duration = Duration::from_secs(10);
/// The watch of claims may lag behind that of AIInferences. Creation times have whole seconds.
const CLAIM_WATCH_LAG: Duration = Duration::from_secs(3);
/// Free GPUs change with every pod of the cluster. A pod that is scheduled is reported at once.
const GPU_RECOUNT_PERIOD: Duration = Duration::from_secs(30);

/// Results of other parts of the plan that conditions report.
pub(super) struct Decided<'a> {
    pub(super) revision: Revision<'a>,
    pub(super) migration: MigrationState,
    pub(super) rollout: Order,
    pub(super) handover: Handover,
}

pub(super) fn of_valid(
    valid: &ValidInference,
    observed: &Observed,
    decided: &Decided<'_>,
    now: Timestamp,
) -> Assessment {
    let mut assessment = if valid.replicas == 0 {
        stopped(valid, counts(observed, decided.revision.pods))
    } else {
        serving(valid, observed, decided, now)
    };
    if valid.content != Content::Kept {
        assessment.verdicts.extend(outdated(&decided.revision));
    }
    if valid.pods.paused { paused(assessment) } else { with_progress(assessment) }
}

/// Pods of the last valid spec keep running; there are no pods of an invalid spec.
pub(super) fn of_invalid(invalid: &Invalid, observed: &Observed) -> Assessment {
    let message = invalid.to_string();
    let counts = counts(observed, &[]);
    let accepted = fails(conditions::ACCEPTED, reasons::INVALID_SPEC, message.clone());
    with_progress(Assessment {
        phase: Phase::Failed,
        verdicts: vec![accepted, available(counts), fails(conditions::READY, reasons::INVALID_SPEC, message)],
        counts,
        requeue_after: None,
    })
}

pub(super) fn of_refused(
    refusal: &Refusal,
    valid: &ValidInference,
    observed: &Observed,
    decided: &Decided<'_>,
    now: Timestamp,
) -> Assessment {
    let mut assessment = of_valid(valid, observed, decided, now);
    let (reason, message) = match refusal {
        // The garbage collector is about to delete the child of the deleted owner; no fault.
        Refusal::Leftover { .. } => return assessment,
        Refusal::OwnershipConflict(message) => (reasons::OWNERSHIP_CONFLICT, message),
        Refusal::Denied(message) => {
            // Keeps the announcement, so that it is not repeated.
            let warning = decided.rollout.warning.iter().map(|warning| format!("{warning}; "));
            let message_of_progress = warning.chain([message.clone()]).collect();
            assessment.replace(fails(conditions::PROGRESSING, reasons::DENIED, message_of_progress));
            (reasons::DENIED, message)
        }
        Refusal::Invalid(message) => {
            assessment.replace(fails(conditions::ACCEPTED, reasons::INVALID_SPEC, message.clone()));
            (reasons::INVALID_SPEC, message)
        }
    };
    assessment.replace(fails(conditions::READY, reason, message.clone()));
    assessment.phase = Phase::Failed;
    with_progress(assessment)
}

fn counts(observed: &Observed, pods: &[Arc<PodView>]) -> Counts {
    // The status of pods on an unreachable node is out of date.
    let serves = |pod: &PodView| {
        let lost = pod.node.as_deref().and_then(|node| observed.nodes.lost.get(node));
        pod.is_ready && lost.is_none_or(|lost| lost.kind == LossKind::NotReady)
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

/// `1 pod`, `2 pods`.
fn pods_text(count: i32) -> String {
    if count == 1 { "1 pod".to_owned() } else { format!("{count} pods") }
}

impl Assessment {
    /// With the conditions of the route and the canary. A service that no gateway leads to is not ready.
    /// The route of `spec.routeRef` does not decide whether the service is ready.
    pub(super) fn with_traffic(mut self, verdicts: &[Verdict], observed: &Observed) -> Self {
        self.verdicts.extend(verdicts.iter().cloned());
        let is_ready = self.verdicts.iter().any(|known| known.type_ == conditions::READY && known.holds);
        let failing = verdicts
            .iter()
            .find(|known| known.type_ == conditions::TRAFFIC_READY && !known.holds)
            .filter(|_| observed.inference.spec.gateway.is_some());
        let Some(Verdict { reason, message, .. }) = failing.filter(|_| is_ready) else { return self };
        self.phase = if *reason == reasons::ROUTE_NOT_OBSERVED { Phase::Loading } else { Phase::Failed };
        self.replace(fails(conditions::READY, reason, message.clone()));
        with_progress(self)
    }

    fn replace(&mut self, verdict: Verdict) {
        match self.verdicts.iter_mut().find(|known| known.type_ == verdict.type_) {
            Some(known) => *known = verdict,
            None => self.verdicts.push(verdict),
        }
    }
}

/// Conditions of kstatus, present only while True: `Reconciling` while the generation is in progress, `Stalled` if it needs
/// a change to complete.
fn with_progress(mut assessment: Assessment) -> Assessment {
    assessment
        .verdicts
        .retain(|verdict| ![conditions::RECONCILING, conditions::STALLED].contains(&verdict.type_));
    let ready =
        assessment.verdicts.iter().find(|verdict| verdict.type_ == conditions::READY && !verdict.holds);
    let Some(Verdict { reason, message, .. }) = ready.filter(|ready| ready.reason != reasons::STOPPED) else {
        return assessment;
    };
    let type_ = match assessment.phase {
        Phase::Failed => conditions::STALLED,
        Phase::Pending | Phase::Loading | Phase::Ready => conditions::RECONCILING,
    };
    let verdict = holds(type_, reason, message.clone());
    assessment.verdicts.push(verdict);
    assessment
}

/// Reports that the running release would render another template. This is no fault.
fn outdated(revision: &Revision<'_>) -> Option<Verdict> {
    let message = format!(
        "this release renders the pod template differently: {}; the pods keep their template until the spec changes or \
         the annotation {} gets a new value",
        summary(&revision.outdated),
        api::labels::REFRESH,
    );
    let is_outdated = !revision.outdated.is_empty();
    is_outdated.then(|| holds(conditions::TEMPLATE_OUTDATED, reasons::NEWER_TEMPLATE, message))
}

fn stopped(valid: &ValidInference, counts: Counts) -> Assessment {
    let message = "spec.replicas is 0".to_owned();
    let progressing = if counts.all == 0 {
        holds(conditions::PROGRESSING, reasons::COMPLETE, "no pod remains".to_owned())
    } else {
        holds(conditions::PROGRESSING, reasons::SCALING, format!("{} not deleted yet", pods_text(counts.all)))
    };
    Assessment {
        phase: Phase::Pending,
        verdicts: vec![
            accepted(valid),
            fails(conditions::MODEL_LOADED, reasons::STOPPED, message.clone()),
            available(counts),
            progressing,
            fails(conditions::READY, reasons::STOPPED, message),
        ],
        counts,
        requeue_after: None,
    }
}

fn serving(valid: &ValidInference, observed: &Observed, decided: &Decided<'_>, now: Timestamp) -> Assessment {
    let Decided { revision, migration, rollout: _, handover: _ } = decided;
    let pods: Vec<&PodView> = revision.pods.iter().map(AsRef::as_ref).collect();
    let counts = counts(observed, revision.pods);
    let (faults, faults_requeue_after) = faults(valid, observed, revision, &pods, now);
    let fault_in = |condition: FaultyCondition| faults.iter().find(|fault| fault.condition == condition);
    let complete = counts.updated_ready >= valid.replicas;

    let (stage, stage_requeue_after) = stage(&pods, now);
    let differing = model::differing(revision, observed);
    let model_loaded = model_loaded(fault_in(FaultyCondition::ModelLoaded), counts, differing, stage);
    let scheduled = scheduled(fault_in(FaultyCondition::Scheduled), &pods, decided.rollout.why_kept);
    let progressing = progressing(fault_in(FaultyCondition::Progressing), valid, observed, decided, counts);
    let (refusals, refusals_requeue_after) =
        if complete { (None, None) } else { evictions::refusals(&observed.failed, now) };
    let ready = if complete {
        let message = format!("{} of {} replicas are ready", counts.updated_ready, valid.replicas);
        holds(conditions::READY, reasons::READY, message)
    } else {
        // A fault of the model takes precedence, even if other replicas have loaded the model.
        let model_fault = fault_in(FaultyCondition::ModelLoaded)
            .map(|Fault { reason, message, condition: _ }| fails(conditions::READY, reason, message.clone()));
        let order = [model_fault.as_ref(), scheduled.as_ref(), Some(&progressing), Some(&model_loaded)];
        let cause = order.into_iter().flatten().find(|verdict| !verdict.holds);
        match cause {
            Some(Verdict { reason, message, .. }) => fails(conditions::READY, reason, message.clone()),
            // Some replicas are ready, and the others have no fault.
            None => {
                let reason = match progressing.reason {
                    reasons::COMPLETE => reasons::LOADING,
                    under_way => under_way,
                };
                let ready = format!("{} of {} replicas are ready", counts.updated_ready, valid.replicas);
                let outlook = migration.outlook.clone().unwrap_or(ready);
                let message = [Some(outlook), refusals].into_iter().flatten().collect::<Vec<_>>().join("; ");
                fails(conditions::READY, reason, message)
            }
        }
    };
    let phase = if complete {
        Phase::Ready
    } else if fault_in(FaultyCondition::ModelLoaded).is_some()
        || fault_in(FaultyCondition::Progressing).is_some()
    {
        Phase::Failed
    } else if pods.iter().any(|pod| pod.node.is_some()) {
        Phase::Loading
    } else {
        Phase::Pending
    };
    let timeout = warmup_timeout(valid);
    let requeue_after = pods.iter().filter_map(|pod| match warm_up(pod.container(ENGINE), timeout, now) {
        WarmUp::Remaining(remaining) => Some(remaining),
        WarmUp::None | WarmUp::TimedOut => None,
    });
    let counted = fault_in(FaultyCondition::Scheduled).filter(|_| observed.capacities.is_some());
    Assessment {
        phase,
        counts,
        requeue_after: requeue_after
            .chain(stage_requeue_after)
            .chain(faults_requeue_after)
            .chain(refusals_requeue_after)
            .chain(counted.map(|_| GPU_RECOUNT_PERIOD))
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

/// In the order of the pods' names, so that the message is stable.
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
        let (fault, requeue_after) = fault_of(valid, revision, pod, observed, now);
        // After the timeout the kubelet restarts the engine; report the timeout, not a crash.
        let was_restarted = had_timed_out && !pod.is_ready && pod.container(ENGINE).is_some_and(was_killed);
        if timed_out || was_restarted {
            (Some(too_slow(valid, pod)), requeue_after)
        } else {
            (fault, requeue_after)
        }
    });
    let (of_pods, requeue_after): (Vec<Option<Fault>>, Vec<Option<Duration>>) = of_pods.unzip();
    let deployment = observed.deployment.as_ref().filter(|_| revision.is_deployed);
    let (evicted, evictions_requeue_after) =
        if revision.is_deployed { eviction_fault(observed, pods, now) } else { (None, None) };
    let of_deployment = [evicted, deployment.and_then(creation_fault)];
    let (of_claim, claim_requeue_after) = claim_fault_by_now(valid, observed, now);
    let faults = [of_claim].into_iter().chain(of_pods).chain(of_deployment);
    (
        faults.flatten().collect(),
        requeue_after.into_iter().chain([evictions_requeue_after, claim_requeue_after]).flatten().min(),
    )
}

/// Ignores a missing claim for a short time after the creation of the object, because the watch of claims may be late.
fn claim_fault_by_now(
    valid: &ValidInference,
    observed: &Observed,
    now: Timestamp,
) -> (Option<Fault>, Option<Duration>) {
    let created =
        observed.inference.metadata.creation_timestamp.as_ref().filter(|_| observed.claim.is_none());
    let wait = created.and_then(|created| remaining(CLAIM_WATCH_LAG, created.0, now));
    match (claim_fault(valid, observed), wait) {
        (Some(_), Some(wait)) => (None, Some(wait)),
        (fault, _) => (fault, None),
    }
}

fn too_slow(valid: &ValidInference, pod: &PodView) -> Fault {
    Fault {
        condition: FaultyCondition::Progressing,
        reason: reasons::WARMUP_TIMEOUT,
        message: format!(
            "engine of pod {} was not ready within {} s of its start; raise spec.warmupTimeoutSeconds, or see kubectl logs {0}",
            pod.name(),
            valid.warmup_timeout_seconds
        ),
    }
}

fn model_loaded(fault: Option<&Fault>, counts: Counts, differing: Option<String>, stage: String) -> Verdict {
    let type_ = conditions::MODEL_LOADED;
    if let Some(differing) = differing {
        return holds(type_, reasons::MODEL_CHANGED, differing);
    }
    if counts.updated_ready > 0 {
        return holds(
            type_,
            reasons::LOADED,
            format!("the model is loaded in {}", pods_text(counts.updated_ready)),
        );
    }
    match fault {
        Some(Fault { reason, message, condition: _ }) => fails(type_, reason, message.clone()),
        None => fails(type_, reasons::LOADING, stage),
    }
}

/// A message about the present stage of a pod, once it takes long, and when to check again.
fn stage(pods: &[&PodView], now: Timestamp) -> (String, Option<Duration>) {
    let mut requeue_after: Option<Duration> = None;
    for (stage, since) in pods.iter().filter_map(|pod| stage_since(pod)) {
        match remaining(STAGE_REPORTED_AFTER, since, now) {
            None => return (stage, None),
            wait => requeue_after = requeue_after.or(wait).min(wait),
        }
    }
    ("no pod of the current revision is ready yet".to_owned(), requeue_after)
}

fn stage_since(pod: &PodView) -> Option<(String, Timestamp)> {
    let since = |container: &Container| container.state.running.as_ref()?.started_at;
    let name = pod.name();
    if let Some((engine, since)) = pod.container(ENGINE).and_then(|engine| Some((engine, since(engine)?))) {
        let again =
            last_end(engine).map(|ended| format!("; its last run ended with code {}", ended.exit_code));
        return Some((format!("{ENGINE} of pod {name} is warming up{}", again.unwrap_or_default()), since));
    }
    let loader = pod.init_container(LOADER).and_then(since);
    loader.map(|since| (format!("{LOADER} of pod {name} is copying the model"), since))
}

/// `None` while there are no pods, or the scheduler has not tried all of them.
fn scheduled(fault: Option<&Fault>, pods: &[&PodView], why_kept: Option<&str>) -> Option<Verdict> {
    let type_ = conditions::SCHEDULED;
    if let Some(Fault { reason, message, condition: _ }) = fault {
        let why_kept = why_kept
            .filter(|_| [reasons::INSUFFICIENT_GPU, reasons::SCHEDULING_GATED].contains(reason))
            .map(|why| format!("; {why}"));
        return Some(fails(type_, reason, format!("{message}{}", why_kept.unwrap_or_default())));
    }
    let placed = !pods.is_empty() && pods.iter().all(|pod| pod.node.is_some());
    placed.then(|| holds(type_, reasons::SCHEDULED, format!("{} scheduled", pods_text(count(pods.len())))))
}

fn available(counts: Counts) -> Verdict {
    let type_ = conditions::AVAILABLE;
    match counts.ready {
        0 => fails(type_, reasons::NO_READY_REPLICAS, "no pod is ready".to_owned()),
        ready => holds(type_, reasons::MINIMUM_REPLICAS, format!("{} ready", pods_text(ready))),
    }
}

fn progressing(
    fault: Option<&Fault>,
    valid: &ValidInference,
    observed: &Observed,
    decided: &Decided<'_>,
    counts: Counts,
) -> Verdict {
    let Decided { revision: _, migration, rollout, handover } = decided;
    let type_ = conditions::PROGRESSING;
    let Counts { all, ready, updated, updated_ready } = counts;
    // Takes precedence over faults: the announcement must be in the status before the change.
    if let Some(warning) = &rollout.warning {
        return holds(type_, reasons::ROLLING, warning.clone());
    }
    if let Some(Fault { reason, message, condition: _ }) = fault {
        let still = ready - updated_ready;
        let message = if still > 0 {
            format!("{message}; {} of an older revision still ready", pods_text(still))
        } else {
            message.clone()
        };
        return fails(type_, reason, message);
    }
    if let Some(message) = &handover.message {
        return holds(type_, reasons::MIGRATING, message.clone());
    }
    let wanted = valid.replicas;
    let was_complete = [Some(reasons::COMPLETE), Some(reasons::SCALING), Some(reasons::MIGRATING)]
        .contains(&reason_before(observed, type_));
    if all > updated {
        let message = format!(
            "{updated_ready} of {wanted} replicas are ready; {} of an older revision remaining",
            pods_text(all - updated)
        );
        holds(type_, reasons::ROLLING, message)
    } else if migration.under_way || (migration.outlook.is_some() && updated_ready < wanted) {
        let replacing = format!(
            "{updated_ready} of {wanted} replicas are ready; a pod is being replaced on another node"
        );
        let message = migration.outlook.clone().unwrap_or(replacing);
        holds(type_, reasons::MIGRATING, message)
    } else if updated_ready >= wanted && updated == wanted {
        holds(
            type_,
            reasons::COMPLETE,
            format!("all {wanted} replicas are ready and have the current revision"),
        )
    } else if was_complete && updated != wanted {
        holds(type_, reasons::SCALING, format!("{updated} of {wanted} replicas exist"))
    } else if was_complete {
        // The replacement of a single pod is neither a rollout nor scaling: keep the reason.
        let unchanged = reason_before(observed, type_).filter(|reason| *reason == reasons::COMPLETE);
        let reason = unchanged.unwrap_or(reasons::SCALING);
        holds(type_, reason, format!("{updated_ready} of {wanted} replicas are ready"))
    } else {
        holds(type_, reasons::ROLLING, format!("{updated_ready} of {wanted} replicas are ready"))
    }
}

/// Adds to `Ready` that the object is paused.
fn paused(mut assessment: Assessment) -> Assessment {
    for verdict in assessment.verdicts.iter_mut().filter(|verdict| verdict.type_ == conditions::READY) {
        verdict.reason = reasons::PAUSED;
        verdict.message = format!("spec.paused is true, so no changes are applied; {}", verdict.message);
    }
    assessment
}

/// The reason of the condition in the last status, if it is one of these constants.
fn reason_before(observed: &Observed, type_: &str) -> Option<&'static str> {
    let status = observed.inference.status.as_ref()?;
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
        Some(Invalid(message)) => format!("{message}; running pods stay unchanged until the spec changes"),
        None => "the spec is valid".to_owned(),
    };
    holds(conditions::ACCEPTED, reasons::VALID, message)
}

fn holds(type_: &'static str, reason: &'static str, message: String) -> Verdict {
    Verdict { type_, holds: true, reason, message }
}

fn fails(type_: &'static str, reason: &'static str, message: String) -> Verdict {
    Verdict { type_, holds: false, reason, message }
}
