//! Metrics: the number of AIInferences and of their canaries by phase, and the duration of warm-ups.
//!
//! Only the leader exports them, so that standbys do not count twice.

use std::sync::Arc;

use api::aiinference::{AIInference, Phase, traffic::CanaryPhase};
use prometheus_client::{
    metrics::histogram::{Histogram, exponential_buckets},
    registry::Unit,
};
use runtime::{
    process::Process,
    watch::{cache::Cache, object_counts::ObjectCounts},
};
use workload::views::pod::PodView;

use crate::names::ENGINE;

/// The number of objects in each phase.
const PHASES: ObjectCounts<AIInference, Phase> = ObjectCounts {
    name: "aiinference_phase",
    help: "AIInferences by phase",
    label: "phase",
    values: &[
        (Phase::Pending, "pending"),
        (Phase::Loading, "loading"),
        (Phase::Ready, "ready"),
        (Phase::Failed, "failed"),
    ],
    value_of: phase_of,
};

/// The number of canaries in each phase. An object without one is in none.
const CANARY_PHASES: ObjectCounts<AIInference, Option<CanaryPhase>> = ObjectCounts {
    name: "aiinference_canary_phase",
    help: "Canaries of AIInferences by phase",
    label: "phase",
    values: &[
        (Some(CanaryPhase::AwaitingEvaluation), "awaiting-evaluation"),
        (Some(CanaryPhase::Starting), "starting"),
        (Some(CanaryPhase::Dark), "dark"),
        (Some(CanaryPhase::Analysing), "analysing"),
        (Some(CanaryPhase::AwaitingApproval), "awaiting-approval"),
        (Some(CanaryPhase::Held), "held"),
        (Some(CanaryPhase::Promoting), "promoting"),
        (Some(CanaryPhase::Promoted), "promoted"),
        (Some(CanaryPhase::RollingBack), "rolling-back"),
        (Some(CanaryPhase::RolledBack), "rolled-back"),
        (Some(CanaryPhase::Aborted), "aborted"),
    ],
    value_of: canary_phase_of,
};

pub(crate) fn export(process: &Process, inferences: &Cache<AIInference>, pods: &Cache<PodView>) {
    // From one second to nine hours.
    let warmups = Histogram::new(exponential_buckets(1.0, 2.0, 16));
    process.metrics().with_registry(|registry| {
        registry.register_with_unit(
            "aiinference_warmup",
            "From the start of an engine to its first ready probe",
            Unit::Seconds,
            warmups.clone(),
        );
    });
    process.count(inferences, PHASES);
    process.count(inferences, CANARY_PHASES);
    let leads = process.leadership();
    pods.subscribe(move |change| {
        let seconds = change.old.zip(change.new).and_then(|(before, after)| warmed_up(before, after));
        if let Some(seconds) = seconds.filter(|_| leads()) {
            warmups.observe(seconds);
        }
    });
}

/// The duration of a warm-up in seconds, if the pod has just become ready for the first time.
fn warmed_up(before: &Arc<PodView>, after: &Arc<PodView>) -> Option<f64> {
    if before.is_ready || !after.is_ready {
        return None;
    }
    let engine = after.containers.iter().find(|container| container.name == ENGINE)?;
    let started = engine.state.running.as_ref()?.started_at?;
    // A pod that was ready before and ceased to be did so after its engine started; that is no warm-up.
    let is_first = engine.restart_count == 0 && before.ready_changed.is_none_or(|changed| changed <= started);
    let seconds = after.ready_changed?.duration_since(started).as_secs_f64();
    is_first.then_some(seconds.max(0.0))
}

/// An object without a status is pending.
fn phase_of(inference: &AIInference) -> Phase {
    inference.status.as_ref().and_then(|status| status.phase).unwrap_or(Phase::Pending)
}

fn canary_phase_of(inference: &AIInference) -> Option<CanaryPhase> {
    inference.status.as_ref()?.canary.as_ref()?.phase
}

#[cfg(test)]
mod tests {
    use crate::tests::{at, inference, pod};

    use super::*;

    #[test]
    fn every_phase_has_a_label_and_an_object_without_a_status_is_pending() {
        let inference = inference("{modelSource: s3://m, engine: vllm, gpu: {count: 1}}");
        let label = PHASES.values.iter().find(|(phase, _)| *phase == phase_of(&inference));
        assert_eq!(label.map(|(_, label)| *label), Some("pending"));
    }

    #[test]
    fn every_phase_of_a_canary_has_a_label_and_an_object_without_one_is_in_none() {
        let mut inference = inference("{modelSource: s3://m, engine: vllm, gpu: {count: 1}}");
        assert_eq!(canary_phase_of(&inference), None);
        for phase in ["Starting", "Dark", "Analysing", "AwaitingApproval", "Held", "Promoting", "Promoted"]
            .into_iter()
            .chain(["RollingBack", "RolledBack", "Aborted", "AwaitingEvaluation"])
        {
            let status = serde_json::json!({"canary": {"phase": phase}});
            inference.status = Some(serde_json::from_value(status).unwrap());
            let found = canary_phase_of(&inference);
            assert!(found.is_some(), "{phase}");
            assert!(CANARY_PHASES.values.iter().any(|(known, _)| *known == found), "{phase}");
        }
        assert!(CANARY_PHASES.values.iter().all(|(phase, _)| phase.is_some()));
    }

    /// A pod whose Ready condition changed at `changed`, with an engine that started at 10 s.
    fn pod_with(ready: &str, changed: i64, restarts: i32) -> Arc<PodView> {
        let parts = format!(
            "{{conditions: [{{type: Ready, status: '{ready}', lastTransitionTime: '{}'}}], containers: \
             [{{name: engine, restartCount: {restarts}, state: {{running: {{startedAt: '{}'}}}}}}]}}",
            at(changed),
            at(10)
        );
        Arc::new(pod(&parts))
    }

    #[test]
    fn a_warm_up_is_counted_once() {
        let warming = pod_with("False", 3, 0);
        assert_eq!(warmed_up(&warming, &pod_with("True", 70, 0)), Some(60.0));
        assert_eq!(warmed_up(&warming, &warming), None);
        assert_eq!(warmed_up(&pod_with("True", 70, 0), &pod_with("True", 70, 0)), None);
        assert_eq!(
            warmed_up(&pod_with("False", 80, 0), &pod_with("True", 90, 0)),
            None,
            "it was ready before"
        );
        assert_eq!(warmed_up(&warming, &pod_with("True", 70, 1)), None, "a crash is no warm-up");
    }
}
