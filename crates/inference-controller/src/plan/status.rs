//! The status: counts, conditions with transition times, URL, and how long a minor change may be delayed. Pure.

use std::time::Duration;

use api::{
    aiinference::{AIInferenceStatus, Migration, Phase, traffic::CanaryStatus},
    conditions,
};
use jiff::Timestamp;
use runtime::write::conditions::{merged, whole_seconds};
use workload::{
    faults::gpu::Gpus,
    reporting::{self, Unwritten, delay_of_counts, without_numbers},
    templates::revision::Revision,
};

use self::cold_start::last_cold_start;
use super::{
    children::service,
    conditions::{Assessment, Counts},
    events::UNDER_WAY,
    metadata::selector,
    model,
    revision::resolved,
};
use crate::{names::Track, observe::Observed, validate::ValidInference};

mod cold_start;

/// Measured numbers, such as free GPUs, change with every pod of the cluster. A status that differs only in them is
/// written after this time.
const MEASURED_EVERY: Duration = Duration::from_secs(10);

/// The first status of an object that comes up without a fault is written after this time, or with the first thing that
/// there is to say.
const BEGINNING_LASTS: Duration = Duration::from_secs(2);

pub(super) fn of_valid(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
    assessment: Assessment,
    migrations: Vec<Migration>,
    now: Timestamp,
) -> AIInferenceStatus {
    AIInferenceStatus {
        url: Some(service::url(valid)),
        selector: Some(selector_text(&valid.name)),
        resolved: Some(resolved(revision)),
        gpu: valid.gpus.as_ref().and_then(Gpus::product_names),
        migrations,
        last_cold_start: last_cold_start(valid, observed),
        model: model::status(revision, observed),
        ..written(observed, assessment, now)
    }
}

/// Fields that depend on the last valid spec stay unchanged.
pub(super) fn of_invalid(observed: &Observed, assessment: Assessment, now: Timestamp) -> AIInferenceStatus {
    written(observed, assessment, now)
}

fn written(observed: &Observed, assessment: Assessment, now: Timestamp) -> AIInferenceStatus {
    let Counts { all, ready, updated, updated_ready } = assessment.counts;
    let before = observed.inference.status.clone().unwrap_or_default();
    let generation = observed.inference.metadata.generation;
    let phase_changed = before.phase != Some(assessment.phase);
    AIInferenceStatus {
        phase: Some(assessment.phase),
        // The first phase of a new object is a default without a transition time.
        last_transition_time: before
            .last_transition_time
            .filter(|_| !phase_changed)
            .or_else(|| Some(whole_seconds(now))),
        ready_replicas: ready,
        model_loaded: updated_ready > 0 && !is_stopped(observed),
        conditions: merged(assessment.verdicts, &before.conditions, generation, now),
        replicas: all,
        updated_replicas: updated,
        updated_ready_replicas: updated_ready,
        url: before.url,
        selector: before.selector,
        resolved: before.resolved,
        observed_generation: generation.unwrap_or_default(),
        gpu: before.gpu,
        migrations: before.migrations,
        last_cold_start: before.last_cold_start,
        model: before.model,
        route: before.route,
        canary: before.canary,
        promoted_revision: before.promoted_revision,
        min_stable_replicas: before.min_stable_replicas,
    }
}

/// A status, or the stored one while the write may be delayed.
pub(super) struct Delayed {
    pub(super) status: AIInferenceStatus,
    pub(super) wait: Option<Duration>,
    /// That the planned status is not written yet.
    pub(super) fact: Option<String>,
}

pub(super) fn delayed(observed: &Observed, planned: AIInferenceStatus, now: Timestamp) -> Delayed {
    let unwritten = unwritten_numbers(observed, &planned, now);
    let unwritten = unwritten.or_else(|| unwritten_first(observed, &planned, now));
    let (fact, wait) = unwritten.map_or((None, None), |Unwritten { fact, wait }| (Some(fact), wait));
    let wait = wait.or_else(|| delay_of_minor(observed, &planned, now));
    let status = match &observed.inference.status {
        Some(written) if wait.is_some() => written.clone(),
        Some(_) | None => planned,
    };
    Delayed { status, wait, fact }
}

/// The status differs from the stored one only in measured numbers.
fn unwritten_numbers(observed: &Observed, status: &AIInferenceStatus, now: Timestamp) -> Option<Unwritten> {
    let before = observed.inference.status.as_ref()?;
    if before == status || with_messages(before, without_numbers) != with_messages(status, without_numbers) {
        return None;
    }
    Some(Unwritten::measured((), &before.conditions, MEASURED_EVERY, &observed.facts, now))
}

/// The first status may wait. Until then the object has the phase of a new one, and no generation is observed.
fn unwritten_first(observed: &Observed, status: &AIInferenceStatus, now: Timestamp) -> Option<Unwritten> {
    let before = observed.inference.status.as_ref()?;
    let is_new = before.observed_generation == 0 && before.conditions.is_empty();
    let ready = status.conditions.iter().find(|condition| condition.type_ == conditions::READY)?;
    let comes_up = UNDER_WAY.contains(&&*ready.reason) && status.phase != Some(Phase::Failed);
    (is_new && comes_up).then(|| Unwritten::first(BEGINNING_LASTS, &observed.facts, now))
}

/// How long the write of a status may be delayed that differs only in counts and messages, which change often while pods
/// are new. Phase, conditions and reasons are written at once.
fn delay_of_minor(observed: &Observed, status: &AIInferenceStatus, now: Timestamp) -> Option<Duration> {
    let before = observed.inference.status.as_ref()?;
    if before == status || without_counts(before) != without_counts(status) {
        return None;
    }
    delay_of_counts(observed.pods(), now)
}

fn without_counts(status: &AIInferenceStatus) -> AIInferenceStatus {
    AIInferenceStatus {
        ready_replicas: 0,
        replicas: 0,
        updated_replicas: 0,
        updated_ready_replicas: 0,
        last_cold_start: None,
        // The last pod that goes, and the first that comes, are no details.
        canary: status.canary.clone().map(|canary| CanaryStatus {
            replicas: canary.replicas.min(1),
            ready_replicas: canary.ready_replicas.min(1),
            ..canary
        }),
        ..with_messages(status, |_| String::new())
    }
}

fn with_messages(status: &AIInferenceStatus, map: impl Fn(&str) -> String) -> AIInferenceStatus {
    AIInferenceStatus { conditions: reporting::with_messages(&status.conditions, map), ..status.clone() }
}

fn is_stopped(observed: &Observed) -> bool {
    observed.inference.spec.replicas == 0
}

fn selector_text(instance: &str) -> String {
    let pairs: Vec<String> =
        selector(instance, Track::Stable).iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}
