//! Metrics: the number of AIDispatchers by phase, and of those whose state is not saved. Only the leader exports them, so
//! that standbys do not count twice.

use api::{
    aidispatcher::{AIDispatcher, Phase},
    conditions, reasons,
};
use runtime::{
    process::Process,
    watch::{cache::Cache, object_counts::ObjectCounts},
};

/// The number of objects in each phase.
const PHASES: ObjectCounts<AIDispatcher, Phase> = ObjectCounts {
    name: "aidispatcher_phase",
    help: "AIDispatchers by phase",
    label: "phase",
    values: &[
        (Phase::Initializing, "initializing"),
        (Phase::Processing, "processing"),
        (Phase::Ready, "ready"),
        (Phase::Failed, "failed"),
    ],
    value_of: phase_of,
};

/// The number of objects with the condition CheckpointFailed, by its reason.
const CHECKPOINT_FAILED: ObjectCounts<AIDispatcher, Option<&'static str>> = ObjectCounts {
    name: "aidispatcher_checkpoint_failed",
    help: "AIDispatchers with the condition CheckpointFailed, by its reason",
    label: "reason",
    values: &[
        (Some(reasons::STATE_NOT_SAVED), reasons::STATE_NOT_SAVED),
        (Some(reasons::STATE_LOST), reasons::STATE_LOST),
        (Some(reasons::STATE_DAMAGED), reasons::STATE_DAMAGED),
        (Some(reasons::STARTED_EMPTY), reasons::STARTED_EMPTY),
    ],
    value_of: checkpoint_failure_of,
};

pub(crate) fn export(process: &Process, dispatchers: &Cache<AIDispatcher>) {
    process.count(dispatchers, PHASES);
    process.count(dispatchers, CHECKPOINT_FAILED);
}

/// An object without a status is initializing.
fn phase_of(dispatcher: &AIDispatcher) -> Phase {
    dispatcher.status.as_ref().and_then(|status| status.current_phase).unwrap_or(Phase::Initializing)
}

/// The reason of the condition CheckpointFailed, which is present only while True.
fn checkpoint_failure_of(dispatcher: &AIDispatcher) -> Option<&'static str> {
    let mut conditions = dispatcher.status.iter().flat_map(|status| &status.conditions);
    let failed = conditions.find(|condition| condition.type_ == conditions::CHECKPOINT_FAILED)?;
    let known = CHECKPOINT_FAILED.values.iter().find(|(_, reason)| *reason == failed.reason);
    known.map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use api::aidispatcher::AIDispatcherStatus;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

    use crate::tests::dispatcher;

    use super::*;

    #[test]
    fn an_object_without_a_status_is_initializing() {
        let new = dispatcher("{role: coder}");
        let label = PHASES.values.iter().find(|(phase, _)| *phase == phase_of(&new));
        assert_eq!(label.map(|(_, label)| *label), Some("initializing"));
    }
    #[test]
    fn a_lost_state_is_counted_by_its_reason() {
        let mut dispatcher = dispatcher("{role: coder}");
        assert_eq!(checkpoint_failure_of(&dispatcher), None);
        let condition = |type_: &str, reason: &str| -> Condition {
            serde_json::from_value(serde_json::json!({
                "type": type_, "status": "True", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"
            }))
            .unwrap()
        };
        let ready = condition(conditions::READY, reasons::READY);
        for (_, reason) in CHECKPOINT_FAILED.values {
            let failed = condition(conditions::CHECKPOINT_FAILED, reason);
            let status = AIDispatcherStatus { conditions: vec![ready.clone(), failed], ..Default::default() };
            dispatcher.status = Some(status);
            assert_eq!(checkpoint_failure_of(&dispatcher), Some(*reason));
        }
    }
}
