//! The phase and the conditions of an AIDispatcher, each with a reason and a message. Pure.
//!
//! `Ready` counts only observed ready workers of the current revision. Transition times are set in `status`.

use std::{sync::Arc, time::Duration};

use api::{
    aidispatcher::{Phase, State},
    conditions,
    monitor::ExitCode,
    reasons,
};
use jiff::Timestamp;
use runtime::write::{conditions::Verdict, refusal::Refusal};
use workload::{
    faults::{container::last_end, evictions},
    templates::{pinned_template::summary, revision::Revision},
    time::remaining,
    views::pod::PodView,
};

use crate::{
    names::LOADER,
    observe::Observed,
    plan::{
        number,
        readiness::is_ready,
        replicas::{Sizing, UNREADY_HELD_FOR, Unready, replacement::BACKS_OFF_FOR},
    },
    validate::{Invalid, ValidDispatcher},
};
use checkpoint_failed::unsaved;
use faults::{
    Fault, FaultyCondition, Unready as UnreadyFound, claim_fault, creation_fault, eviction_fault, fault_of,
    needs_a_change, unready_fault,
};
use scaling_active::scaling_active;

pub(in crate::plan) mod checkpoint_failed;
mod faults;
mod scaling_active;

/// Phase and conditions without transition times.
#[derive(Debug)]
pub(in crate::plan) struct Assessment {
    pub(in crate::plan) phase: Phase,
    /// `None`: workers are ready, and the load of none is known.
    pub(in crate::plan) state: Option<State>,
    pub(in crate::plan) verdicts: Vec<Verdict>,
    pub(in crate::plan) counts: Counts,
    /// Facts that are true now, for `FactTimes`.
    pub(in crate::plan) facts: Vec<String>,
    /// The state of a pod was lost that was not among the facts.
    pub(in crate::plan) is_newly_lost: bool,
    /// When a timeout ends, so that the assessment may change although no object changes.
    pub(in crate::plan) requeue_after: Option<Duration>,
}

/// Numbers of pods, and of tasks.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::plan) struct Counts {
    /// Pods of all revisions.
    pub(in crate::plan) all: i32,
    pub(in crate::plan) ready: i32,
    /// Pods of the current revision.
    pub(in crate::plan) updated: i32,
    pub(in crate::plan) updated_ready: i32,
    /// Workers with a task in hand.
    pub(in crate::plan) busy: i32,
    /// `None`: no worker reports it.
    pub(in crate::plan) queued: Option<i64>,
    /// Whether a worker reports its queue or its tasks.
    pub(in crate::plan) is_load_known: bool,
}

/// The watch of claims may lag behind that of AIDispatchers. Creation times have whole seconds.
const CLAIM_WATCH_LAG: Duration = Duration::from_secs(3);

pub(in crate::plan) fn of_valid(
    valid: &ValidDispatcher,
    observed: &Observed,
    revision: &Revision<'_>,
    sizing: &Sizing,
    now: Timestamp,
) -> Assessment {
    let mut assessment = working(valid, observed, revision, sizing, now);
    assessment.verdicts.extend(outdated(revision));
    if valid.pods.paused { paused(assessment) } else { with_progress(assessment) }
}

/// Pods of the last valid spec keep running; there are no pods of an invalid spec.
pub(in crate::plan) fn of_invalid(invalid: &Invalid, observed: &Observed, now: Timestamp) -> Assessment {
    let message = invalid.to_string();
    let counts = counts(observed, &[], now);
    let unsaved = unsaved(observed, now);
    let accepted = fails(conditions::ACCEPTED, reasons::INVALID_SPEC, message.clone());
    with_progress(Assessment {
        phase: Phase::Failed,
        state: state(counts),
        verdicts: [accepted, available(counts), fails(conditions::READY, reasons::INVALID_SPEC, message)]
            .into_iter()
            .chain(unsaved.verdict)
            .collect(),
        counts,
        facts: unsaved.facts,
        is_newly_lost: unsaved.is_newly_lost,
        requeue_after: unsaved.requeue_after,
    })
}

pub(in crate::plan) fn of_refused(
    refusal: &Refusal,
    valid: &ValidDispatcher,
    observed: &Observed,
    revision: &Revision<'_>,
    sizing: &Sizing,
    now: Timestamp,
) -> Assessment {
    let mut assessment = of_valid(valid, observed, revision, sizing, now);
    let (reason, message) = match refusal {
        // The garbage collector is about to delete the child of the deleted owner; no fault.
        Refusal::Leftover { .. } => return assessment,
        Refusal::OwnershipConflict(message) => (reasons::OWNERSHIP_CONFLICT, message),
        Refusal::Denied(message) => {
            assessment.replace(fails(conditions::PROGRESSING, reasons::DENIED, message.clone()));
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

fn counts(observed: &Observed, pods: &[Arc<PodView>], now: Timestamp) -> Counts {
    let loads = || observed.loads.values();
    let busy = loads().filter(|load| load.in_flight.is_some_and(|tasks| tasks > 0)).count();
    Counts {
        all: number(observed.pods().count()),
        ready: number(observed.pods().filter(|pod| is_ready(pod, now)).count()),
        updated: number(pods.len()),
        updated_ready: number(pods.iter().filter(|pod| is_ready(pod, now)).count()),
        busy: number(busy),
        is_load_known: loads().any(|load| load.queued.is_some() || load.in_flight.is_some()),
        queued: observed.queue_depth().map(|queued| i64::try_from(queued).unwrap_or(i64::MAX)),
    }
}

fn state(counts: Counts) -> Option<State> {
    if counts.ready > 0 && !counts.is_load_known {
        return None;
    }
    let queued = counts.queued.unwrap_or_default();
    Some(if counts.busy == 0 && queued == 0 {
        State::Idle
    } else if queued > 0 && counts.ready > 0 && counts.busy >= counts.ready {
        State::Saturated
    } else {
        State::Working
    })
}

fn ready_of(ready: i32, wanted: i32) -> String {
    if ready > wanted {
        return format!("{} ready, {wanted} wanted", workers_text(ready));
    }
    match wanted {
        1 => format!("{ready} of 1 worker is ready"),
        wanted => format!("{ready} of {wanted} workers are ready"),
    }
}

fn exist_of(there: i32, wanted: i32) -> String {
    if there > wanted {
        return format!("{} exist, {wanted} wanted", workers_text(there));
    }
    format!("{there} of {} exist", workers_text(wanted))
}

/// `1 worker`, `2 workers`.
fn workers_text(count: i32) -> String {
    if count == 1 { "1 worker".to_owned() } else { format!("{count} workers") }
}

impl Assessment {
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
    let Some(Verdict { reason, message, .. }) = ready else { return assessment };
    let type_ = match assessment.phase {
        Phase::Failed => conditions::STALLED,
        Phase::Initializing | Phase::Processing | Phase::Ready => conditions::RECONCILING,
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

fn working(
    valid: &ValidDispatcher,
    observed: &Observed,
    revision: &Revision<'_>,
    sizing: &Sizing,
    now: Timestamp,
) -> Assessment {
    let counts = counts(observed, revision.pods, now);
    let wanted = sizing.desired;
    let Faults { faults, is_stuck, facts, requeue_after } = faults(valid, observed, revision, wanted, now);
    let fault_in = |condition: FaultyCondition| faults.iter().find(|fault| fault.condition == condition);
    let complete = counts.updated_ready >= wanted && counts.all <= counts.updated.max(wanted);

    let loaded = revision.pods.iter().filter(|pod| has_loaded(pod) || is_ready(pod, now)).count();
    let memory_ready = memory_ready(valid, fault_in(FaultyCondition::MemoryReady), loaded);
    let progressing = progressing(fault_in(FaultyCondition::Progressing), observed, counts, sizing);
    let has_older = counts.all > counts.updated;
    let has_workers = counts.updated_ready >= wanted && !has_older;
    let (refusals, refusals_requeue_after) =
        if has_workers { (None, None) } else { evictions::refusals(&observed.failed, now) };
    let ready = if has_workers {
        holds(conditions::READY, reasons::READY, ready_of(counts.updated_ready, wanted))
    } else {
        // A fault of the memory takes precedence, even if other workers have loaded it.
        let memory_fault = fault_in(FaultyCondition::MemoryReady)
            .map(|Fault { reason, message, condition: _ }| fails(conditions::READY, reason, message.clone()));
        // Once a worker has its memory, something else is awaited.
        let loading = memory_ready.as_ref().filter(|_| !has_older);
        let order = [memory_fault.as_ref(), Some(&progressing), loading];
        match order.into_iter().flatten().find(|verdict| !verdict.holds) {
            Some(Verdict { reason, message, .. }) => fails(conditions::READY, reason, message.clone()),
            None if has_older => {
                fails(conditions::READY, under_way(progressing.reason), progressing.message.clone())
            }
            None => {
                let ready = ready_of(counts.updated_ready, wanted);
                let message = [Some(ready), refusals].into_iter().flatten().collect::<Vec<_>>().join("; ");
                fails(conditions::READY, under_way(progressing.reason), message)
            }
        }
    };
    let phase = if !has_workers && is_stuck {
        Phase::Failed
    } else if counts.ready == 0 {
        Phase::Initializing
    } else if counts.busy > 0 {
        Phase::Processing
    } else {
        Phase::Ready
    };
    let unsaved = unsaved(observed, now);
    let (scaling, scaling_requeue_after) = scaling_active(valid, observed, sizing, now);
    Assessment {
        phase,
        state: state(counts),
        counts,
        facts: unsaved.facts.into_iter().chain(facts).collect(),
        is_newly_lost: unsaved.is_newly_lost,
        requeue_after: [requeue_after, unsaved.requeue_after, scaling_requeue_after, refusals_requeue_after]
            .into_iter()
            .flatten()
            .min(),
        verdicts: [
            Some(holds(conditions::ACCEPTED, reasons::VALID, "the spec is valid".to_owned())),
            memory_ready,
            Some(available(counts)),
            Some(with_back_off(
                if complete { complete_now(progressing, counts, wanted) } else { progressing },
                sizing,
            )),
            scaling,
            unsaved.verdict,
            Some(ready),
        ]
        .into_iter()
        .flatten()
        .collect(),
    }
}

/// Also if the loader could not restore a state afterwards.
fn has_loaded(pod: &PodView) -> bool {
    let Some(loader) = pod.init_container(LOADER) else { return false };
    let has_ended_well = loader.state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0);
    let failed = last_end(loader).and_then(|ended| ExitCode::from_code(ended.exit_code));
    has_ended_well || failed.is_some_and(ExitCode::is_of_checkpoints)
}

fn under_way(reason: &'static str) -> &'static str {
    if reason == reasons::COMPLETE { reasons::SCALING } else { reason }
}

/// All workers are there and the old ones are gone.
fn complete_now(progressing: Verdict, counts: Counts, wanted: i32) -> Verdict {
    if progressing.holds && counts.updated <= wanted {
        let message = format!("{} ready, with the current revision", workers_text(wanted));
        return holds(conditions::PROGRESSING, reasons::COMPLETE, message);
    }
    progressing
}

/// That a saved state waits longer than usual.
fn with_back_off(progressing: Verdict, sizing: &Sizing) -> Verdict {
    if !sizing.backs_off {
        return progressing;
    }
    let message = format!(
        "{}; a saved state waits, because no worker that was started for it became ready: the next one starts with the \
         next change of the spec, or within {} minutes",
        progressing.message,
        BACKS_OFF_FOR.as_secs() / 60
    );
    Verdict { message, ..progressing }
}

/// What is wrong with the current revision.
struct Faults {
    faults: Vec<Fault>,
    /// One of them makes the phase Failed.
    is_stuck: bool,
    facts: Vec<String>,
    requeue_after: Option<Duration>,
}

/// In the order of the pods' names, so that the message is stable.
fn faults(
    valid: &ValidDispatcher,
    observed: &Observed,
    revision: &Revision<'_>,
    replicas: i32,
    now: Timestamp,
) -> Faults {
    let pods: Vec<&PodView> = revision.pods.iter().map(AsRef::as_ref).collect();
    let of_pods = pods.iter().map(|pod| fault_of(valid, pod, now));
    let (of_pods, requeue_after): (Vec<Option<Fault>>, Vec<Option<Duration>>) = of_pods.unzip();
    let deployment = observed.deployment.as_ref().filter(|_| revision.is_deployed);
    let (evicted, evictions_requeue_after) =
        if revision.is_deployed { eviction_fault(observed, &pods, now) } else { (None, None) };
    let unready = unready_fault(valid, observed, revision, now);
    let UnreadyFound { fault: unready, is_stuck, fact, requeue_after: unready_requeue_after } = unready;
    let of_deployment = [evicted, deployment.and_then(creation_fault)];
    let (of_claim, claim_requeue_after) = claim_fault_by_now(valid, observed, replicas, now);
    let faults = [of_claim].into_iter().chain(of_pods).chain(of_deployment).flatten();
    let mut faults: Vec<Fault> = faults.collect();
    let is_stuck = is_stuck || faults.iter().any(|fault| needs_a_change(fault.reason));
    faults.extend(unready);
    let others = [evictions_requeue_after, claim_requeue_after, unready_requeue_after];
    Faults {
        faults,
        is_stuck,
        facts: fact.into_iter().collect(),
        requeue_after: requeue_after.into_iter().chain(others).flatten().min(),
    }
}

/// Ignores a missing claim for a short time after the creation of the object, because the watch of claims may be late.
fn claim_fault_by_now(
    valid: &ValidDispatcher,
    observed: &Observed,
    replicas: i32,
    now: Timestamp,
) -> (Option<Fault>, Option<Duration>) {
    let created =
        observed.dispatcher.metadata.creation_timestamp.as_ref().filter(|_| observed.claim.is_none());
    let wait = created.and_then(|created| remaining(CLAIM_WATCH_LAG, created.0, now));
    match (claim_fault(valid, observed, replicas), wait) {
        (Some(_), Some(wait)) => (None, Some(wait)),
        (fault, _) => (fault, None),
    }
}

/// `None` without a collection. `loaded`: the workers that have the memory, also those that do not run, or whose state could
/// not be restored.
fn memory_ready(valid: &ValidDispatcher, fault: Option<&Fault>, loaded: usize) -> Option<Verdict> {
    let memory = valid.memory.as_ref()?;
    let type_ = conditions::MEMORY_READY;
    Some(match fault {
        Some(Fault { reason, message, condition: _ }) => fails(type_, reason, message.clone()),
        None if loaded > 0 => {
            let workers = workers_text(number(loaded));
            holds(type_, reasons::LOADED, format!("collection {} is loaded in {workers}", memory.collection))
        }
        None => {
            // One container does both, and the state may have to be waited for.
            let also = if valid.checkpoint.is_some() { " and looked for a saved state" } else { "" };
            let message = format!("no worker has loaded collection {}{also} yet", memory.collection);
            fails(type_, reasons::LOADING, message)
        }
    })
}

fn available(counts: Counts) -> Verdict {
    let type_ = conditions::AVAILABLE;
    match counts.ready {
        0 => fails(type_, reasons::NO_READY_REPLICAS, "no worker is ready".to_owned()),
        ready => holds(type_, reasons::MINIMUM_REPLICAS, format!("{} ready", workers_text(ready))),
    }
}

fn progressing(fault: Option<&Fault>, observed: &Observed, counts: Counts, sizing: &Sizing) -> Verdict {
    let type_ = conditions::PROGRESSING;
    let Counts { all, ready, updated, updated_ready, .. } = counts;
    if let Some(Fault { reason, message, condition: _ }) = fault {
        let still = ready - updated_ready;
        let message = if still > 0 {
            format!("{message}; {} of an older revision still ready", workers_text(still))
        } else {
            message.clone()
        };
        return fails(type_, reason, message);
    }
    let wanted = sizing.desired;
    let was_complete =
        [Some(reasons::COMPLETE), Some(reasons::SCALING)].contains(&reason_before(observed, type_));
    let message = ready_of(updated_ready, wanted);
    if all > updated {
        let older = workers_text(all - updated);
        holds(type_, reasons::ROLLING, format!("{message}; {older} of an older revision remaining"))
    } else if sizing.replicas > wanted {
        let why = match (&sizing.unready, sizing.unwatched, &sizing.gives_way) {
            (_, Some(kind), _) => format!("the watch of {kind} fails, so no worker is removed"),
            (None, None, Some(idle)) if sizing.marks.is_empty() => {
                let idle = observed.pods().find(|pod| pod.uid() == idle.uid());
                let name = idle.map_or("without state", |pod| pod.name());
                format!(
                    "the idle worker {name} ends once all are ready, so that one with a saved state takes its place"
                )
            }
            (Some(Unready::Busy(pod)), None, _) => {
                format!(
                    "pod {pod} is not ready and has tasks, and would be removed first; the number waits for their end"
                )
            }
            (Some(Unready::Unknown(pod)), None, _) => format!(
                "pod {pod} is not ready and may be busy, and would be removed first; it has {} s to become ready",
                UNREADY_HELD_FOR.as_secs()
            ),
            (None, None, _) => "busy ones get a higher deletion cost before any is removed".to_owned(),
        };
        holds(type_, reasons::SCALING, format!("{}; {why}", exist_of(updated, wanted)))
    } else if was_complete && updated != wanted {
        holds(type_, reasons::SCALING, exist_of(updated, wanted))
    } else if was_complete {
        // The replacement of a single pod is neither a rollout nor scaling: keep the reason.
        holds(type_, reason_before(observed, type_).unwrap_or(reasons::SCALING), message)
    } else {
        holds(type_, reasons::ROLLING, message)
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
    let reason = &observed.condition(type_)?.reason;
    [reasons::COMPLETE, reasons::SCALING, reasons::ROLLING].into_iter().find(|known| known == reason)
}

fn holds(type_: &'static str, reason: &'static str, message: String) -> Verdict {
    Verdict { type_, holds: true, reason, message }
}

fn fails(type_: &'static str, reason: &'static str, message: String) -> Verdict {
    Verdict { type_, holds: false, reason, message }
}
