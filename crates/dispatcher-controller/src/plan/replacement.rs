//! Whether an idle worker without state is replaced by one that restores a saved state that no worker has. Pure.
//!
//! Only a new worker restores a state. The first new worker of a rollout starts before an old one ends, so it finds no
//! state, and that of the last old one would wait until the next worker starts.

use std::time::Duration;

use api::reasons;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use runtime::events::{Note, Severity};
use serde::Serialize;
use workload::{pod::PodView, revision::Revision, time::remaining};

use super::{defaults::Defaults, readiness::is_ready, replicas::Sizing};
use crate::{observe::Observed, validate::ValidDispatcher};

/// A pod to delete, with uid and version as preconditions.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodDeletion {
    pub(crate) pod: Box<Pod>,
    pub(crate) note: Note,
}

/// A state that cannot be restored costs a pool no more than one idle worker in each such time.
const REPLACED_AFTER: Duration = Duration::from_secs(60);
/// Until then, every monitor has repeated its survey after the last new worker has claimed a state, and reports the result.
fn surveys_repeated_after(defaults: &Defaults) -> Duration {
    Duration::from_secs(defaults.checkpoint_seconds.into()) * 5 / 4
}

/// What is decided about the workers without state.
#[derive(Debug, Default)]
pub(super) struct Replacement {
    pub(super) deletion: Option<PodDeletion>,
    /// The fact that a deletion was tried.
    pub(super) fact: Option<String>,
    /// The time after which one may be replaced.
    pub(super) requeue_after: Option<Duration>,
}

/// At most one pod, and none while workers come or go.
pub(super) fn replacement(
    valid: &ValidDispatcher,
    observed: &Observed,
    revision: &Revision<'_>,
    sizing: &Sizing,
    defaults: &Defaults,
    now: Timestamp,
) -> Replacement {
    let wanted = usize::try_from(sizing.desired).unwrap_or_default();
    let is_stable = revision.is_deployed
        && observed.older.is_empty()
        && sizing.replicas == sizing.desired
        && revision.pods.len() == wanted
        && revision.pods.iter().all(|pod| is_ready(pod, now));
    if valid.pods.paused || valid.checkpoint.is_none() || !is_stable {
        return Replacement::default();
    }
    let without_state = revision.pods.iter().filter_map(|pod| Some((pod, unclaimed(observed, pod)?)));
    let Some((pod, states)) = without_state.min_by_key(|(pod, _)| (pod.created(), pod.uid())) else {
        return Replacement::default();
    };
    let newest = revision.pods.iter().filter_map(|pod| pod.ready_changed.max(pod.created())).max();
    let settled_after = REPLACED_AFTER.max(surveys_repeated_after(defaults));
    if let Some(wait) = newest.and_then(|since| remaining(settled_after, since, now)) {
        return Replacement { requeue_after: Some(wait), ..Replacement::default() };
    }
    // A deletion that is denied is not tried with every reading of a load.
    let fact = format!("tried to replace {} in minute {}", pod.uid(), now.as_second() / 60);
    if observed.facts.contains_key(&fact) {
        return Replacement { fact: Some(fact), requeue_after: Some(REPLACED_AFTER), deletion: None };
    }
    let states = if states == 1 { "a saved state".to_owned() } else { format!("{states} saved states") };
    let message = format!(
        "pod {} is idle and has no state, and no worker has claimed {states}: it is replaced by one that restores a state",
        pod.name()
    );
    let note = Note { severity: Severity::Normal, reason: reasons::STATE_UNCLAIMED, message };
    let deletion = PodDeletion { pod: Box::new(pod.identity()), note };
    Replacement { deletion: Some(deletion), fact: Some(fact), requeue_after: Some(REPLACED_AFTER) }
}

/// How many states the monitor of an idle worker without state has found.
fn unclaimed(observed: &Observed, pod: &PodView) -> Option<u64> {
    let load = observed.load_of(pod)?;
    let (queued, _) = load.queued?;
    (queued == 0 && load.in_flight == Some(0)).then_some(load.unclaimed?).filter(|states| *states > 0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use api::aidispatcher::Phase;

    use crate::{
        monitors::WorkerLoad,
        plan::Plan,
        tests::{Scene, at, load},
    };

    const SAVED: &str = "{role: coder, replicas: 2, checkpoint: {uri: 's3://states'}}";

    fn finds(states: u64, queued: u64, in_flight: u64) -> WorkerLoad {
        WorkerLoad { unclaimed: Some(states), ..load(queued, in_flight) }
    }

    fn deleted(plan: &Plan) -> Vec<String> {
        plan.deletions.iter().filter_map(|deletion| deletion.pod.metadata.name.clone()).collect()
    }

    /// Workers that have been ready for this many seconds.
    fn since(scene: &mut Scene, seconds: &[i64]) {
        let pods: Vec<String> = seconds
            .iter()
            .enumerate()
            .map(|(index, seconds)| {
                format!(
                    "{{name: coder-{index}, node: a, phase: Running, created: '{0}', conditions: [{{type: Ready, status: \
                     'True', lastTransitionTime: '{0}'}}]}}",
                    at(-seconds)
                )
            })
            .collect();
        scene.pods(&pods.iter().map(String::as_str).collect::<Vec<_>>());
    }

    fn scene(seconds: &[i64]) -> Scene {
        let mut scene = Scene::ready(SAVED, seconds.len());
        let count = i32::try_from(seconds.len()).unwrap();
        scene.edit_spec(|spec| spec.replicas = count);
        since(&mut scene, seconds);
        scene
    }

    #[test]
    fn an_idle_worker_without_state_is_replaced_where_a_state_waits() {
        let mut scene = scene(&[600, 600]);
        scene.loads(vec![load(0, 0), finds(1, 0, 0)]);
        let plan = scene.plan();
        assert_eq!(deleted(&plan), ["coder-1"]);
        assert_eq!(plan.deletions[0].note.reason, api::reasons::STATE_UNCLAIMED);
        assert_eq!(plan.status.current_phase, Some(Phase::Ready));
        let both = || vec![finds(3, 0, 0), finds(3, 0, 0)];
        scene.loads(both());
        assert_eq!(deleted(&scene.plan()).len(), 1, "one after the other");
        scene.edit_spec(|spec| spec.pods.paused = true);
        assert!(deleted(&scene.plan()).is_empty());
    }

    #[test]
    fn a_deletion_that_is_denied_is_tried_once_in_a_minute() {
        let mut scene = scene(&[600, 600]);
        scene.loads(vec![load(0, 0), finds(1, 0, 0)]);
        let tried = scene.plan();
        scene.observe(|observed| {
            observed.facts = tried.facts.iter().map(|fact| (fact.clone(), at(0))).collect();
        });
        assert!(deleted(&scene.plan_at(at(1))).is_empty());
        assert!(tried.requeue_after <= Some(Duration::from_secs(60)));
        assert_eq!(deleted(&scene.plan_at(at(60))), ["coder-1"]);
    }

    #[test]
    fn a_worker_with_a_task_or_without_a_waiting_state_stays() {
        let mut scene = scene(&[600, 600]);
        for other in [finds(1, 1, 0), finds(1, 0, 1), finds(0, 0, 0), load(0, 0), WorkerLoad::default()] {
            scene.loads(vec![load(0, 0), other.clone()]);
            assert!(deleted(&scene.plan()).is_empty(), "{other:?}");
        }
    }

    #[test]
    fn no_worker_is_replaced_while_others_come_or_go() {
        let mut scene = Scene::ready(SAVED, 2);
        scene.pods(&[
            "{name: coder-0, node: a, phase: Running}",
            "{name: coder-1, ready: true, node: a, phase: Running}",
        ]);
        scene.loads(vec![WorkerLoad::default(), finds(1, 0, 0)]);
        assert!(deleted(&scene.plan()).is_empty(), "one is not ready");
        let mut scene = Scene::ready(SAVED, 2);
        scene.loads(vec![load(0, 1), finds(1, 0, 0)]);
        scene.edit_spec(|spec| spec.replicas = 1);
        assert!(deleted(&scene.plan()).is_empty(), "there are to be fewer");
    }

    #[test]
    fn one_state_costs_one_worker() {
        let mut scene = scene(&[5, 600, 600]);
        // The new worker has claimed the state, and the others have not repeated their surveys yet.
        scene.loads(vec![load(0, 0), finds(1, 0, 0), finds(1, 0, 0)]);
        let plan = scene.plan();
        assert!(deleted(&plan).is_empty());
        assert!(plan.requeue_after <= Some(Duration::from_secs(70)));
        assert_eq!(deleted(&scene.plan_at(at(71))).len(), 1);
    }
}
