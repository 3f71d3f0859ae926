//! Metrics: the number of AIScalers by what they do.
//!
//! Only the leader exports them, so that standbys do not count twice.

use api::{aiscaler::AIScaler, conditions, reasons};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runtime::{cache::Cache, phases::Phases, process::Process};

/// What an AIScaler does, by its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Replicas follow the metric.
    Active,
    /// No metric can be used: replicas stay.
    Blind,
    /// The target is missing, or its replicas cannot be written.
    Unable,
    /// Another autoscaler has the target, or others set its replicas again and again.
    Yielding,
    /// A person wants the replicas to stay.
    Paused,
    /// The spec cannot be used.
    Invalid,
    /// The first samples are on their way.
    Pending,
}

const PHASES: Phases<AIScaler, Phase> = Phases {
    name: "aiscaler_phase",
    help: "AIScalers by what they do",
    labels: &[
        (Phase::Active, "active"),
        (Phase::Blind, "blind"),
        (Phase::Unable, "unable"),
        (Phase::Yielding, "yielding"),
        (Phase::Paused, "paused"),
        (Phase::Invalid, "invalid"),
        (Phase::Pending, "pending"),
    ],
    phase_of,
};

pub(crate) fn export(process: &Process, scalers: &Cache<AIScaler>) {
    process.count_phases(scalers, PHASES);
}

fn phase_of(scaler: &AIScaler) -> Phase {
    let conditions = scaler.status.iter().flat_map(|status| &status.conditions);
    let Some(ready) = conditions.clone().find(|known| known.type_ == conditions::READY) else {
        return Phase::Pending;
    };
    let is_contested = |known: &&Condition| {
        known.type_ == conditions::ABLE_TO_SCALE && known.reason == reasons::REPLICAS_CONTESTED
    };
    match ready.reason.as_str() {
        _ if conditions.clone().any(|known| is_contested(&known)) => Phase::Yielding,
        _ if ready.status == "True" => Phase::Active,
        reasons::METRIC_MISSING
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
    fn a_target_whose_replicas_are_set_back_again_and_again_is_contested_although_it_is_ready() {
        let condition = |type_: &str, reason: &str| {
            format!(
                "{{type: {type_}, status: 'True', reason: {reason}, message: '', lastTransitionTime: \
                 '2026-01-01T00:00:00Z'}}"
            )
        };
        let ready = condition("Ready", "ValidMetricFound");
        let able = condition("AbleToScale", "ReplicasContested");
        assert_eq!(phase(&format!("{{conditions: [{able}, {ready}]}}")), Phase::Yielding);
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
            (ready("False", "FailedGetScale"), Phase::Unable),
            (ready("False", "TargetManagedByOther"), Phase::Yielding),
            (ready("False", "ReplicasContested"), Phase::Yielding),
            (ready("False", "Waiting"), Phase::Pending),
            (ready("False", "Paused"), Phase::Paused),
            (ready("False", "InvalidSpec"), Phase::Invalid),
        ] {
            assert_eq!(found, wanted);
            assert!(PHASES.labels.iter().any(|(phase, _)| *phase == found));
        }
    }
}
