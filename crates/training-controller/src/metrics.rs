//! Metrics: TrainingJobs by phase, since when the oldest one is pending, and what became of them: durations, waits, ends,
//! retries and failures by reason.
//!
//! Only the leader counts, so that standbys do not count twice. Everything is counted when a status changes, so after a
//! restart nothing is counted again. Counters of a closed list begin at 0, because Prometheus computes no increase from the
//! first value of a series.

use std::fmt;

use api::{
    conditions, reasons,
    trainingjob::{Method, Phase, TrainingJob, TrainingJobStatus},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::ConstGauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Unit,
};
use runtime::{
    process::Process,
    watch::{cache::Cache, object_counts::ObjectCounts},
};

use crate::plan::failure_reasons;

/// The number of objects in each phase.
const PHASES: ObjectCounts<TrainingJob, Phase> = ObjectCounts {
    name: "trainingjob_total",
    help: "TrainingJobs by phase",
    label: "phase",
    values: &[
        (Phase::Pending, "pending"),
        (Phase::Running, "running"),
        (Phase::Succeeded, "succeeded"),
        (Phase::Failed, "failed"),
    ],
    value_of: phase_of,
};

/// The number of objects whose result could not be uploaded yet.
const UPLOAD_FAILED: ObjectCounts<TrainingJob, Option<&'static str>> = ObjectCounts {
    name: "trainingjob_upload_failed",
    help: "TrainingJobs whose result has not been uploaded after at least one failed try, by the reason of the condition Uploaded",
    label: "reason",
    values: &[(Some(reasons::UPLOAD_FAILED), reasons::UPLOAD_FAILED)],
    value_of: upload_failure_of,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    method: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

const SUCCEEDED: &str = "succeeded";
const FAILED: &str = "failed";

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
    ends: Family<Outcome, Counter>,
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
        let counts = Self {
            durations: Family::new_with_constructor(seconds as fn() -> Histogram),
            queue_waits: seconds(),
            first_steps: seconds(),
            ends: Family::default(),
            failures: Family::default(),
            retries: Counter::default(),
            stalls: Counter::default(),
        };
        for outcome in [SUCCEEDED, FAILED] {
            drop(counts.ends.get_or_create(&Outcome { outcome }));
        }
        for reason in failure_reasons() {
            drop(counts.failures.get_or_create(&Failed { reason }));
        }
        counts
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
        // A newer checkpoint has set the count back before the retry was added.
        let saved =
            |status: &TrainingJobStatus| status.failure.as_ref().and_then(|failure| failure.checkpoint_step);
        let counted = if saved(after) > saved(before) { 0 } else { before.retries };
        self.retries.inc_by(u64::try_from(after.retries.saturating_sub(counted)).unwrap_or_default());
        let attempt =
            |status: &TrainingJobStatus| status.failure.as_ref().map_or(0, |failure| failure.attempt);
        if let Some(failure) = &after.failure
            && attempt(after) > attempt(before)
            && let Some(reason) = failure_reasons().find(|known| *known == failure.reason)
        {
            self.failures.get_or_create(&Failed { reason }).inc();
            if reason == reasons::NO_PROGRESS {
                self.stalls.inc();
            }
        }
        let outcome = match (before.phase, after.phase) {
            (Some(Phase::Succeeded | Phase::Failed), _) => None,
            (_, Some(Phase::Succeeded)) => Some(SUCCEEDED),
            (_, Some(Phase::Failed)) => Some(FAILED),
            (_, Some(Phase::Pending | Phase::Running) | None) => None,
        };
        if let Some(outcome) = outcome {
            self.ends.get_or_create(&Outcome { outcome }).inc();
        }
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
        let Counts { durations, queue_waits, first_steps, ends, failures, retries, stalls } = counts.clone();
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
        registry.register("trainingjob_ends", "TrainingJobs that have ended by outcome", ends);
        registry.register("trainingjob_failures", "Failed and interrupted attempts by reason", failures);
        registry.register("trainingjob_retries", "Attempts that counted against retryLimit", retries);
        registry.register("trainingjob_stalls", "Attempts that ended because they made no progress", stalls);
    });
    process.count(jobs, PHASES);
    process.count(jobs, UPLOAD_FAILED);
    let oldest = OldestPending { jobs: jobs.clone(), leads: Box::new(process.leadership()) };
    process.metrics().with_registry(|registry| registry.register_collector(Box::new(oldest)));
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

/// Since when the oldest TrainingJob is pending, read from the cache when the page is asked for. A moment and not an age,
/// because only `runtime` reads the clock; the alert subtracts it from the time of Prometheus.
struct OldestPending {
    jobs: Cache<TrainingJob>,
    leads: Box<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for OldestPending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OldestPending").finish_non_exhaustive()
    }
}

impl Collector for OldestPending {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if !(self.leads)() {
            return Ok(());
        }
        let oldest = self.jobs.all().iter().filter_map(|job| pending_since(job)).min();
        let name = "trainingjob_oldest_pending_timestamp_seconds";
        let help = "Since when the TrainingJob is pending that is so for the longest time, in seconds since 1970; without \
                    those that are suspended, paused, being deleted, or wait for other TrainingJobs that have not ended";
        let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        match oldest {
            Some(oldest) => ConstGauge::new(oldest.as_second()).encode(family),
            None => Ok(()),
        }
    }
}

/// Conditions whose changes begin another wait: an attempt that ran has ended, the job was resumed, or its dependencies have
/// succeeded.
const WAITS_ANEW: [&str; 3] = [conditions::RUNNING, conditions::SUSPENDED, conditions::DEPENDENCIES_READY];

/// Since when a job waits for GPUs, a quota, an image or a correction. `None`: it does not, or its user wants it to wait, or it
/// waits for another job, which counts itself if it is pending.
fn pending_since(job: &TrainingJob) -> Option<Timestamp> {
    let is_leaving = job.metadata.deletion_timestamp.is_some();
    if phase_of(job) != Phase::Pending || job.spec.suspend || job.spec.pods.paused || is_leaving {
        return None;
    }
    let conditions = job.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let waits_for_jobs = conditions.iter().any(|condition| {
        condition.type_ == conditions::DEPENDENCIES_READY && condition.reason == reasons::WAITING
    });
    if waits_for_jobs {
        return None;
    }
    let changes = conditions.iter().filter(|condition| WAITS_ANEW.contains(&condition.type_.as_str()));
    let last_change = changes.map(|condition| condition.last_transition_time.0).max();
    last_change.max(job.metadata.creation_timestamp.as_ref().map(|created| created.0))
}

/// The reason of the condition Uploaded, while the upload fails.
fn upload_failure_of(job: &TrainingJob) -> Option<&'static str> {
    let mut conditions = job.status.iter().flat_map(|status| &status.conditions);
    let uploaded = conditions.find(|condition| condition.type_ == conditions::UPLOADED)?;
    (uploaded.reason == reasons::UPLOAD_FAILED).then_some(reasons::UPLOAD_FAILED)
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
        registry.register("ends", "", counts.ends.clone());
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
            "ends_total{outcome=\"succeeded\"} 1",
            "ends_total{outcome=\"failed\"} 0",
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
    fn a_result_that_could_not_be_uploaded_is_counted_until_it_is() {
        let with = |reason: &str| {
            let uploaded = json!({"type": "Uploaded", "status": "False", "reason": reason, "message": "", "lastTransitionTime": at(0)});
            let mut job = job("a", "{model: m, dataset: d, method: lora}");
            job.status = Some(status(json!({"phase": "Running", "conditions": [uploaded]})));
            upload_failure_of(&job)
        };
        assert_eq!(
            (with("UploadFailed"), with("Uploading"), with("Uploaded")),
            (Some("UploadFailed"), None, None)
        );
    }

    /// Such as one whose dependency has failed.
    #[test]
    fn a_job_that_fails_without_a_failed_attempt_is_counted() {
        let counts = Counts::new();
        let job = job("a", "{model: m, dataset: d, method: lora}");
        let failed =
            status(json!({"phase": "Failed", "reason": "DependencyFailed", "completionTime": at(60)}));
        counts.note(&job, &TrainingJobStatus::default(), &failed);
        counts.note(&job, &failed, &failed);
        let page = page(&counts);
        assert!(page.contains("ends_total{outcome=\"failed\"} 1\n"), "{page}");
    }

    #[test]
    fn the_counters_of_every_reason_and_outcome_begin_at_zero() {
        let page = page(&Counts::new());
        let of_reasons = failure_reasons().map(|reason| format!("failures_total{{reason=\"{reason}\"}} 0\n"));
        let of_outcomes =
            [SUCCEEDED, FAILED].map(|outcome| format!("ends_total{{outcome=\"{outcome}\"}} 0\n"));
        let lines: Vec<String> = of_reasons.chain(of_outcomes).collect();
        assert!(lines.len() > 20);
        for line in lines {
            assert!(page.contains(&line), "{line} in {page}");
        }
    }

    /// A job whose status has these conditions, each since its number of seconds.
    fn with_conditions(spec: &str, phase: &str, conditions: &[(&str, &str, &str, i64)]) -> TrainingJob {
        let condition = |(type_, value, reason, since): &(&str, &str, &str, i64)| json!({"type": type_, "status": value, "reason": reason, "message": "", "lastTransitionTime": at(*since)});
        let conditions: Vec<_> = conditions.iter().map(condition).collect();
        let mut job = job("a", &format!("{{model: m, dataset: d, method: lora{spec}}}"));
        job.status = Some(status(json!({"phase": phase, "conditions": conditions})));
        job
    }

    #[test]
    fn a_job_is_pending_since_the_last_change_of_what_it_waits_for() {
        let since = |spec: &str, phase: &str, conditions: &[(&str, &str, &str, i64)]| {
            pending_since(&with_conditions(spec, phase, conditions))
        };
        assert_eq!(
            pending_since(&job("a", "{model: m, dataset: d, method: lora}")),
            Some(at(0)),
            "a new job"
        );
        let starts = [("Scheduled", "False", "InsufficientGPU", 9), ("Running", "False", "Starting", 5)];
        assert_eq!(since("", "Pending", &starts), Some(at(5)));
        let resumed = [("Suspended", "False", "Resumed", 70), ("Running", "False", "NotRunning", 5)];
        assert_eq!(since("", "Pending", &resumed), Some(at(70)));
        let missing = [("DependenciesReady", "False", "DependencyNotFound", 3)];
        assert_eq!(since("", "Pending", &missing), Some(at(3)));
    }

    #[test]
    fn a_job_that_is_to_wait_or_waits_for_another_one_is_not_pending_for_too_long() {
        let waits = [("DependenciesReady", "False", "Waiting", 3)];
        for (spec, phase, conditions) in [
            (", suspend: true", "Pending", &[][..]),
            (", paused: true", "Pending", &[]),
            ("", "Pending", &waits),
            ("", "Running", &[]),
            ("", "Failed", &[]),
        ] {
            assert_eq!(pending_since(&with_conditions(spec, phase, conditions)), None, "{spec} {phase}");
        }
        let mut leaves = with_conditions("", "Pending", &[]);
        leaves.metadata.deletion_timestamp = Some(Time(at(9)));
        assert_eq!(pending_since(&leaves), None);
    }

    #[test]
    fn the_leader_exports_since_when_the_oldest_job_is_pending() {
        let page = |leads: bool, jobs: Vec<TrainingJob>| {
            let cache = Cache::default();
            for (mut job, name) in jobs.into_iter().zip(["a", "b", "c"]) {
                job.metadata.name = Some(name.to_owned());
                cache.upsert(job);
            }
            let mut registry = prometheus_client::registry::Registry::default();
            registry
                .register_collector(Box::new(OldestPending { jobs: cache, leads: Box::new(move || leads) }));
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        let pending = |since| with_conditions("", "Pending", &[("Running", "False", "Starting", since)]);
        let jobs = || vec![pending(30), pending(20), with_conditions(", suspend: true", "Pending", &[])];
        let line = format!("trainingjob_oldest_pending_timestamp_seconds {}\n", at(20).as_second());
        let leaders = page(true, jobs());
        assert!(leaders.contains(&line), "{line} in {leaders}");
        assert!(!page(false, jobs()).contains("oldest_pending"));
        // The page of a leader has the name also without a series.
        assert!(
            page(true, Vec::new()).contains("# TYPE trainingjob_oldest_pending_timestamp_seconds gauge\n")
        );
    }

    #[test]
    fn every_phase_has_a_label_and_an_object_without_a_status_is_pending() {
        let job = job("a", "{model: m, dataset: d, method: lora}");
        let label = PHASES.values.iter().find(|(phase, _)| *phase == phase_of(&job));
        assert_eq!(label.map(|(_, label)| *label), Some("pending"));
    }
}
