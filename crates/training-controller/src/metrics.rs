//! Metrics: TrainingJobs by phase, and what became of them: durations, waits, retries and failures by reason.
//!
//! Only the leader exports them, so that standbys do not count twice. Everything is counted when a status changes, so after a
//! restart nothing is counted again.

use api::trainingjob::{Method, Phase, TrainingJob, TrainingJobStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Unit,
};
use runtime::{cache::Cache, phases::Phases, process::Process};

use crate::plan::failure_reasons;

/// The number of objects in each phase.
const PHASES: Phases<TrainingJob, Phase> = Phases {
    name: "trainingjob_total",
    help: "TrainingJobs by phase",
    labels: &[
        (Phase::Pending, "pending"),
        (Phase::Running, "running"),
        (Phase::Succeeded, "succeeded"),
        (Phase::Failed, "failed"),
    ],
    phase_of,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    method: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failed {
    reason: &'static str,
}

/// What is counted over the life of the process.
#[derive(Clone)]
struct Counts {
    durations: Family<Ended, Histogram, fn() -> Histogram>,
    queue_waits: Histogram,
    first_steps: Histogram,
    failures: Family<Failed, Counter>,
    retries: Counter,
    stalls: Counter,
}

/// From one second to twelve days.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 20))
}

impl Counts {
    fn new() -> Self {
        Self {
            durations: Family::new_with_constructor(seconds as fn() -> Histogram),
            queue_waits: seconds(),
            first_steps: seconds(),
            failures: Family::default(),
            retries: Counter::default(),
            stalls: Counter::default(),
        }
    }

    fn note(&self, job: &TrainingJob, before: &TrainingJobStatus, after: &TrainingJobStatus) {
        if let (None, Some(started)) = (&before.start_time, &after.start_time)
            && let Some(created) = &job.metadata.creation_timestamp
        {
            self.queue_waits.observe(between(created.0, started.0));
        }
        let step = |status: &TrainingJobStatus| status.progress.as_ref().map_or(0, |progress| progress.step);
        let read = after.progress.as_ref().and_then(|progress| progress.time.as_ref());
        if step(before) == 0
            && step(after) > 0
            && let (Some(started), Some(Time(read))) = (&after.start_time, read)
        {
            self.first_steps.observe(between(started.0, *read));
        }
        self.retries.inc_by(u64::try_from(after.retries - before.retries).unwrap_or_default());
        let attempt =
            |status: &TrainingJobStatus| status.failure.as_ref().map_or(0, |failure| failure.attempt);
        if let Some(failure) = &after.failure
            && attempt(after) > attempt(before)
            && let Some(reason) = failure_reasons().find(|known| *known == failure.reason)
        {
            self.failures.get_or_create(&Failed { reason }).inc();
            if reason == api::reasons::NO_PROGRESS {
                self.stalls.inc();
            }
        }
        let outcome = match (before.phase, after.phase) {
            (Some(Phase::Succeeded | Phase::Failed), _) => None,
            (_, Some(Phase::Succeeded)) => Some("succeeded"),
            (_, Some(Phase::Failed)) => Some("failed"),
            (_, Some(Phase::Pending | Phase::Running) | None) => None,
        };
        if let (Some(outcome), Some(started), Some(ended)) =
            (outcome, &after.start_time, &after.completion_time)
        {
            let method = method(job.spec.method);
            self.durations.get_or_create(&Ended { method, outcome }).observe(between(started.0, ended.0));
        }
    }
}

/// Clock skew can make it negative; then it counts as zero.
fn between(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

fn method(method: Method) -> &'static str {
    match method {
        Method::Lora => "lora",
        Method::Qlora => "qlora",
        Method::Full => "full",
        Method::Dpo => "dpo",
        Method::Ppo => "ppo",
    }
}

pub(crate) fn export(process: &Process, jobs: &Cache<TrainingJob>) {
    let counts = Counts::new();
    process.metrics().with_registry(|registry| {
        let Counts { durations, queue_waits, first_steps, failures, retries, stalls } = counts.clone();
        registry.register_with_unit(
            "trainingjob_duration",
            "From the first start of a TrainingJob to its end",
            Unit::Seconds,
            durations,
        );
        registry.register_with_unit(
            "trainingjob_queue_wait",
            "From the creation of a TrainingJob to its first start",
            Unit::Seconds,
            queue_waits,
        );
        registry.register_with_unit(
            "trainingjob_time_to_first_step",
            "From the first start of a TrainingJob to its first step",
            Unit::Seconds,
            first_steps,
        );
        registry.register("trainingjob_failures", "Failed and interrupted attempts by reason", failures);
        registry.register("trainingjob_retries", "Attempts that counted against retryLimit", retries);
        registry.register("trainingjob_stalls", "Attempts that ended because they made no progress", stalls);
    });
    process.count_phases(jobs, PHASES);
    let leads = process.leadership();
    jobs.subscribe(move |change| {
        let (Some(before), Some(after)) = (change.old, change.new) else { return };
        if before.metadata.uid == after.metadata.uid && leads() {
            let none = TrainingJobStatus::default();
            let of = |job: &TrainingJob| job.status.clone().unwrap_or_else(|| none.clone());
            if before.status != after.status {
                counts.note(after, &of(before), &of(after));
            }
        }
    });
}

/// An object without a status is pending.
fn phase_of(job: &TrainingJob) -> Phase {
    job.status.as_ref().and_then(|status| status.phase).unwrap_or(Phase::Pending)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::{at, job};

    fn status(fields: serde_json::Value) -> TrainingJobStatus {
        serde_json::from_value(fields).unwrap()
    }

    fn page(counts: &Counts) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register("failures", "", counts.failures.clone());
        registry.register("durations", "", counts.durations.clone());
        registry.register("waits", "", counts.queue_waits.clone());
        registry.register("steps", "", counts.first_steps.clone());
        registry.register("retries", "", counts.retries.clone());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn each_change_of_a_status_is_counted_once() {
        let counts = Counts::new();
        let job = job("a", "{model: m, dataset: d, method: dpo}");
        let started = status(json!({"phase": "Running", "startTime": at(60)}));
        counts.note(&job, &TrainingJobStatus::default(), &started);
        let trains = status(json!({
            "phase": "Running", "startTime": at(60), "progress": {"step": 1, "totalSteps": 5, "time": at(90)},
        }));
        counts.note(&job, &started, &trains);
        let failed = status(json!({
            "phase": "Pending", "startTime": at(60), "retries": 1, "progress": {"step": 1, "totalSteps": 5},
            "failure": {"attempt": 1, "reason": "UserError"},
        }));
        counts.note(&job, &trains, &failed);
        counts.note(&job, &failed, &failed);
        let ended = status(json!({
            "phase": "Succeeded", "startTime": at(60), "retries": 1, "completionTime": at(160),
            "failure": {"attempt": 1, "reason": "UserError"},
        }));
        counts.note(&job, &failed, &ended);
        counts.note(&job, &ended, &ended);
        let page = page(&counts);
        for line in [
            "failures_total{reason=\"UserError\"} 1",
            "retries_total 1",
            "waits_sum 60.0",
            "waits_count 1",
            "steps_sum 30.0",
            "durations_sum{method=\"dpo\",outcome=\"succeeded\"} 100.0",
            "durations_count{method=\"dpo\",outcome=\"succeeded\"} 1",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
    }

    #[test]
    fn every_phase_has_a_label_and_an_object_without_a_status_is_pending() {
        let job = job("a", "{model: m, dataset: d, method: lora}");
        let label = PHASES.labels.iter().find(|(phase, _)| *phase == phase_of(&job));
        assert_eq!(label.map(|(_, label)| *label), Some("pending"));
    }
}
