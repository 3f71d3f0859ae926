//! Metrics: the number of AIDispatchers by phase. Only the leader exports them, so that standbys do not count twice.

use api::aidispatcher::{AIDispatcher, Phase};
use runtime::{cache::Cache, phases::Phases, process::Process};

/// The number of objects in each phase.
const PHASES: Phases<AIDispatcher, Phase> = Phases {
    name: "aidispatcher_phase",
    help: "AIDispatchers by phase",
    labels: &[
        (Phase::Initializing, "initializing"),
        (Phase::Processing, "processing"),
        (Phase::Ready, "ready"),
        (Phase::Failed, "failed"),
    ],
    phase_of,
};

pub(crate) fn export(process: &Process, dispatchers: &Cache<AIDispatcher>) {
    process.count_phases(dispatchers, PHASES);
}

/// An object without a status is initializing.
fn phase_of(dispatcher: &AIDispatcher) -> Phase {
    dispatcher.status.as_ref().and_then(|status| status.current_phase).unwrap_or(Phase::Initializing)
}

#[cfg(test)]
mod tests {
    use crate::tests::dispatcher;

    use super::*;

    #[test]
    fn an_object_without_a_status_is_initializing() {
        let new = dispatcher("{role: coder}");
        let label = PHASES.labels.iter().find(|(phase, _)| *phase == phase_of(&new));
        assert_eq!(label.map(|(_, label)| *label), Some("initializing"));
    }
}
