//! The status: counts, conditions with the times at which they turned, and where the service is reached. Pure.

use std::time::Duration;

use api::aiinference::{AIInferenceStatus, Migration};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runtime::conditions::{merged, whole_seconds};
use workload::{gpu::Gpus, pod::PodView, revision::Revision, time::left};

use super::{
    conditions::{Counts, Judged},
    metadata::selector,
    revision::resolved,
    service,
};
use crate::{observe::Observed, validate::ValidInference};

/// A pod is placed sooner than that, unless something is wrong.
const NEW_FOR: Duration = Duration::from_secs(5);

/// Measured numbers change with every pod of the cluster. A change of them alone is written after it has lasted so long:
/// no two such writes are closer together, after a restart of the process neither.
const MEASURED_EVERY: Duration = Duration::from_secs(10);
/// That such a change has not been written yet.
pub(super) const MEASURED: &str = "measured";

pub(super) fn of_valid(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
    judged: Judged,
    migrations: Vec<Migration>,
    now: Timestamp,
) -> AIInferenceStatus {
    AIInferenceStatus {
        url: Some(service::url(valid)),
        selector: Some(joined(&valid.name)),
        resolved: Some(resolved(revision)),
        gpu: valid.gpus.as_ref().and_then(Gpus::product_names),
        migrations,
        ..written(observed, judged, now)
    }
}

/// What the last valid spec led to stays as it is.
pub(super) fn of_invalid(observed: &Observed, judged: Judged, now: Timestamp) -> AIInferenceStatus {
    written(observed, judged, now)
}

fn written(observed: &Observed, judged: Judged, now: Timestamp) -> AIInferenceStatus {
    let Counts { all, ready, updated, updated_ready } = judged.counts;
    let before = observed.model.status.clone().unwrap_or_default();
    let generation = observed.model.metadata.generation;
    let phase_turned = before.phase != Some(judged.phase);
    AIInferenceStatus {
        phase: Some(judged.phase),
        // A new object has its first phase by default, and no time of it.
        last_transition_time: before
            .last_transition_time
            .filter(|_| !phase_turned)
            .or_else(|| Some(whole_seconds(now))),
        ready_replicas: ready,
        model_loaded: updated_ready > 0 && !is_stopped(observed),
        conditions: merged(judged.verdicts, &before.conditions, generation, now),
        replicas: all,
        updated_replicas: updated,
        updated_ready_replicas: updated_ready,
        url: before.url,
        selector: before.selector,
        resolved: before.resolved,
        observed_generation: generation.unwrap_or_default(),
        gpu: before.gpu,
        migrations: before.migrations,
    }
}

/// How long a status may wait that differs in measured numbers alone, such as free GPUs.
pub(super) fn may_measure(
    observed: &Observed,
    status: &AIInferenceStatus,
    now: Timestamp,
) -> Option<Duration> {
    let before = observed.model.status.as_ref()?;
    if before == status || worded(before, without_numbers) != worded(status, without_numbers) {
        return None;
    }
    let since = observed.lasting.get(MEASURED).copied().unwrap_or(now);
    left(MEASURED_EVERY, since, now)
}

/// How long a status that differs in counts and wording alone may wait: while pods are new these change by the moment,
/// and each step would be a write. Phase, conditions and their reasons are written at once.
pub(super) fn may_wait(observed: &Observed, status: &AIInferenceStatus, now: Timestamp) -> Option<Duration> {
    let before = observed.model.status.as_ref()?;
    if before == status || without_steps(before) != without_steps(status) {
        return None;
    }
    // The oldest of those that are not ready, so that pods that come and go all the time cannot hold it back for ever.
    let unsettled = observed.pods().filter(|pod| !pod.is_ready).filter_map(PodView::created).min();
    let settled = observed.pods().filter_map(PodView::created).max();
    // With a creation time in the future, because of clock skew, nothing is held back.
    let age = Duration::try_from(now.duration_since(unsettled.or(settled)?)).ok()?;
    NEW_FOR.checked_sub(age).filter(|left| !left.is_zero())
}

fn without_steps(status: &AIInferenceStatus) -> AIInferenceStatus {
    AIInferenceStatus {
        ready_replicas: 0,
        replicas: 0,
        updated_replicas: 0,
        updated_ready_replicas: 0,
        ..worded(status, |_| String::new())
    }
}

fn worded(status: &AIInferenceStatus, words: impl Fn(&str) -> String) -> AIInferenceStatus {
    let reworded =
        |condition: &Condition| Condition { message: words(&condition.message), ..condition.clone() };
    AIInferenceStatus { conditions: status.conditions.iter().map(reworded).collect(), ..status.clone() }
}

/// Those that stand alone: one in a name is none.
fn without_numbers(message: &str) -> String {
    let is_number = |word: &&str| {
        let word = word.trim_matches(|c: char| c.is_ascii_punctuation());
        !word.is_empty() && word.chars().all(|c| c.is_ascii_digit())
    };
    message.split(' ').filter(|word| !is_number(word)).collect::<Vec<_>>().join(" ")
}

fn is_stopped(observed: &Observed) -> bool {
    observed.model.spec.replicas == 0
}

fn joined(instance: &str) -> String {
    let pairs: Vec<String> = selector(instance).iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}
