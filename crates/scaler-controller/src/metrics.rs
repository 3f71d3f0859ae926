//! Metrics: the number of AIScalers by what they do, what their sources answered, and how fast replicas followed.
//!
//! Only the leader exports `aiscaler_phase`, so that standbys do not count twice. The counters grow only in the leader, which
//! alone reads sources and writes replicas.

use api::{
    aiscaler::{AIScaler, Decision},
    conditions, reasons,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Unit,
};
use runtime::{
    process::Process,
    watch::{cache::Cache, object_counts::ObjectCounts},
};
use scaling::reading::{Fault, Reading};

use crate::{plan::ScaleWrite, sources::answer::Answer, validate::MetricSource};

/// What an AIScaler does, by its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Replicas follow the metric.
    Active,
    /// No metric can be used: replicas stay.
    Blind,
    /// The target is missing, or its replicas cannot be written.
    Unable,
    /// More replicas are asked for, and their pods would not start.
    Blocked,
    /// Another autoscaler has the target, or others set its replicas again and again.
    Yielding,
    /// A person wants the replicas to stay.
    Paused,
    /// The spec cannot be used.
    Invalid,
    /// The first samples are on their way.
    Pending,
}

const PHASES: ObjectCounts<AIScaler, Phase> = ObjectCounts {
    name: "aiscaler_phase",
    help: "AIScalers by what they do",
    label: "phase",
    values: &[
        (Phase::Active, "active"),
        (Phase::Blind, "blind"),
        (Phase::Unable, "unable"),
        (Phase::Blocked, "blocked"),
        (Phase::Yielding, "yielding"),
        (Phase::Paused, "paused"),
        (Phase::Invalid, "invalid"),
        (Phase::Pending, "pending"),
    ],
    value_of: phase_of,
};

pub(crate) fn export(process: &Process, scalers: &Cache<AIScaler>, counts: &Counts) {
    process.count(scalers, PHASES);
    let Counts { readings, rescales, reactions } = counts.clone();
    process.metrics().with_registry(|registry| {
        registry.register("aiscaler_readings", "Answers of sources, by source and result", readings);
        registry.register("aiscaler_rescales", "Writes of replicas, by direction and result", rescales);
        registry.register_with_unit(
            "aiscaler_reaction",
            "From the newest sample of the metric that asked for new replicas, by the clock of its source, to the decision",
            Unit::Seconds,
            reactions,
        );
    });
}

/// What a process counts of its work.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    readings: Family<ReadingLabels, Counter>,
    rescales: Family<RescaleLabels, Counter>,
    reactions: Histogram,
}

/// How the API server answered a write of replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rescaled {
    Written,
    /// The target had changed since it was seen.
    Outdated,
    Refused,
    /// Whether it took effect is not known yet.
    Unknown,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReadingLabels {
    source: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RescaleLabels {
    direction: &'static str,
    result: &'static str,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            readings: Family::default(),
            rescales: Family::default(),
            // From 50 ms to two minutes: a push arrives at once, a query may wait for the next evaluation of a rule.
            reactions: Histogram::new(exponential_buckets(0.05, 2.0, 12)),
        }
    }
}

impl Counts {
    pub(crate) fn read(&self, source: &MetricSource, answer: &Answer) {
        let labels = ReadingLabels { source: kind(source), result: result(answer) };
        self.readings.get_or_create(&labels).inc();
    }

    pub(crate) fn rescaled(&self, write: &ScaleWrite, rescaled: Rescaled, now: Timestamp) {
        let direction = direction(write.target.scaled.replicas, write.to());
        let result = match rescaled {
            Rescaled::Written => "written",
            Rescaled::Outdated => "outdated",
            Rescaled::Refused => "refused",
            Rescaled::Unknown => "unknown",
        };
        self.rescales.get_or_create(&RescaleLabels { direction, result }).inc();
        if let (Rescaled::Written, Some(sampled)) = (rescaled, write.sampled) {
            // The clock of a source can be ahead.
            self.reactions.observe(now.duration_since(sampled).as_secs_f64().max(0.0));
        }
    }

    /// A write that was counted as unknown has taken effect.
    pub(crate) fn confirmed(&self, decision: &Decision) {
        let direction = direction(decision.from, decision.to);
        self.rescales.get_or_create(&RescaleLabels { direction, result: "written" }).inc();
    }
}

fn kind(source: &MetricSource) -> &'static str {
    match source {
        MetricSource::Prometheus(_) => "prometheus",
        MetricSource::Pods { .. } => "pods",
        MetricSource::Agents(_) => "agents",
    }
}

fn direction(from: i32, to: i32) -> &'static str {
    if to > from { "up" } else { "down" }
}

fn result(answer: &Answer) -> &'static str {
    match &answer.reading {
        // Some pods have no value.
        Reading::Pods(_) if !answer.message.is_empty() => "partial",
        Reading::Total { .. } | Reading::Pods(_) => "value",
        Reading::PartialTotal { .. } => "partial",
        Reading::Missing(fault) => match fault {
            Fault::Empty => "empty",
            Fault::NotANumber => "not_a_number",
            Fault::Infinite => "infinite",
            Fault::Negative => "negative",
            Fault::Malformed => "malformed",
            Fault::Unreachable => "unreachable",
            Fault::Refused => "refused",
            Fault::Slow => "slow",
            Fault::NoSettledPods => "no_settled_pods",
            Fault::Stale => "stale",
        },
    }
}

fn phase_of(scaler: &AIScaler) -> Phase {
    let conditions = scaler.status.iter().flat_map(|status| &status.conditions);
    let Some(ready) = conditions.clone().find(|known| known.type_ == conditions::READY) else {
        return Phase::Pending;
    };
    let able = |known: &&Condition| known.type_ == conditions::ABLE_TO_SCALE;
    let able = conditions.clone().find(able).map(|known| known.reason.as_str()).unwrap_or_default();
    match ready.reason.as_str() {
        _ if able == reasons::REPLICAS_CONTESTED => Phase::Yielding,
        _ if [reasons::CRASH_LOOP, reasons::CANNOT_START].contains(&able) => Phase::Blocked,
        _ if ready.status == "True" => Phase::Active,
        reasons::METRIC_MISSING
        | reasons::METRIC_NEEDS_PODS
        | reasons::METRIC_STALE
        | reasons::METRIC_PARTIAL
        | reasons::METRIC_NOT_LOAD_SENSITIVE => Phase::Blind,
        reasons::TARGET_MANAGED_BY_OTHER | reasons::REPLICAS_CONTESTED => Phase::Yielding,
        reasons::WAITING => Phase::Pending,
        reasons::PAUSED | reasons::SCALING_DISABLED => Phase::Paused,
        reasons::INVALID_SPEC => Phase::Invalid,
        _ => Phase::Unable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(status: &str) -> Phase {
        let text = format!(
            "{{apiVersion: ai.infra.example.com/v1, kind: AIScaler, metadata: {{name: a}}, spec: {{deploymentName: a, \
             metricType: queue_depth, targetValue: 5, maxReplicas: 4}}, status: {status}}}"
        );
        phase_of(&serde_saphyr::from_str(&text).unwrap())
    }

    #[test]
    fn a_target_whose_replicas_are_set_back_or_would_not_start_is_counted_although_it_is_ready() {
        let condition = |type_: &str, reason: &str| {
            format!(
                "{{type: {type_}, status: 'True', reason: {reason}, message: '', lastTransitionTime: \
                 '2026-01-01T00:00:00Z'}}"
            )
        };
        let ready = condition("Ready", "ValidMetricFound");
        let able = condition("AbleToScale", "ReplicasContested");
        assert_eq!(phase(&format!("{{conditions: [{able}, {ready}]}}")), Phase::Yielding);
        for reason in ["CrashLoop", "CannotStart"] {
            let able = condition("AbleToScale", reason);
            assert_eq!(phase(&format!("{{conditions: [{able}, {ready}]}}")), Phase::Blocked);
        }
    }

    #[test]
    fn an_answer_without_the_values_of_some_pods_is_partial() {
        let of_pods = |message: &str| Answer::new(Reading::Pods(Vec::new()), message.to_owned());
        assert_eq!(result(&of_pods("")), "value");
        assert_eq!(result(&of_pods("no reading of pod demo/chat-0")), "partial");
        assert_eq!(result(&Answer::new(Reading::Missing(Fault::Slow), "slow".to_owned())), "slow");
    }

    #[test]
    fn the_manual_lists_every_phase_and_result() {
        let manual = include_str!("../../../deploy/monitoring/README.md");
        let phases: Vec<&str> = PHASES.values.iter().map(|(_, label)| *label).collect();
        assert!(manual.contains(&format!("phase: {} |", phases.join(", "))), "{phases:?}");
        let (_, results) = manual.split_once("agents; result: ").unwrap();
        let results: Vec<&str> = results.split(" |").next().unwrap().split(", ").collect();
        let faults = [
            Fault::Empty,
            Fault::NotANumber,
            Fault::Infinite,
            Fault::Negative,
            Fault::Malformed,
            Fault::Unreachable,
            Fault::Refused,
            Fault::Slow,
            Fault::NoSettledPods,
            Fault::Stale,
        ];
        let of_faults = faults.map(|fault| result(&Answer::new(Reading::Missing(fault), String::new())));
        assert_eq!(results, [&["value", "partial"], &of_faults[..]].concat());
    }

    #[test]
    fn the_reason_of_ready_decides_the_phase_and_every_phase_has_a_label() {
        let ready = |status: &str, reason: &str| {
            phase(&format!(
                "{{conditions: [{{type: Ready, status: '{status}', reason: {reason}, message: '', \
                 lastTransitionTime: '2026-01-01T00:00:00Z'}}]}}"
            ))
        };
        for (found, wanted) in [
            (phase("{}"), Phase::Pending),
            (ready("True", "ValidMetricFound"), Phase::Active),
            (ready("False", "MetricMissing"), Phase::Blind),
            (ready("False", "MetricNeedsPods"), Phase::Blind),
            (ready("True", "ForeignPods"), Phase::Active),
            (ready("False", "FailedGetScale"), Phase::Unable),
            (ready("False", "TargetManagedByOther"), Phase::Yielding),
            (ready("False", "ReplicasContested"), Phase::Yielding),
            (ready("False", "Waiting"), Phase::Pending),
            (ready("False", "Paused"), Phase::Paused),
            (ready("False", "InvalidSpec"), Phase::Invalid),
        ] {
            assert_eq!(found, wanted);
            assert!(PHASES.values.iter().any(|(phase, _)| *phase == found));
        }
    }
}
