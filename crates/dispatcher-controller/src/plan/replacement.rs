//! Whether an idle worker without state gives way to one that restores a saved state that no worker has. Pure.
//!
//! Only a new worker restores a state. The first new worker of a rollout starts before an old one ends, so it finds no
//! state, and that of the last old one would wait until the next worker starts.
//!
//! The Deployment gets one worker more, and an annotation with the uid of the idle one, in one write. Once all workers are
//! ready, the idle one gets the lowest deletion cost, and the Deployment its number back. Until then nothing ends: a new
//! worker that finds no node, no quota or no storage costs the pool nothing.

use std::time::Duration;

use api::reasons;
use jiff::Timestamp;
use runtime::events::{Note, Severity};
use workload::{pod::PodView, revision::Revision, time::remaining};

use super::{
    defaults::Defaults,
    marks::{FIRST, IDLE, cost},
    readiness::is_ready,
    replicas::{Sizing, known_gives_way, without_additional},
};
use crate::{observe::Observed, validate::ValidDispatcher};

/// A state that cannot be restored costs a pool no more than one idle worker in each such time.
const REPLACED_AFTER: Duration = Duration::from_secs(60);
/// Until then, every monitor has repeated its survey after the last new worker has claimed a state, and reports the result.
fn surveys_repeated_after(defaults: &Defaults) -> Duration {
    Duration::from_secs(defaults.checkpoint_seconds.into()) * 5 / 4
}

/// The number with one worker more while one gives way, and the event when that begins.
pub(super) fn replacement(
    valid: &ValidDispatcher,
    observed: &Observed,
    revision: &Revision<'_>,
    sizing: Sizing,
    defaults: &Defaults,
    now: Timestamp,
) -> (Sizing, Option<Note>) {
    // `sizing` has decided on another number of workers, or waits for that.
    let is_settled = sizing.replicas == sizing.desired && sizing.unwatched.is_none() && !valid.pods.paused;
    if !is_settled {
        return (sizing, None);
    }
    match known_gives_way(observed) {
        Some(uid) => (under_way(valid, observed, revision, sizing, &uid, now), None),
        None => begun(valid, observed, revision, sizing, defaults, now),
    }
}

/// The Deployment has one worker more than wanted.
fn under_way(
    valid: &ValidDispatcher,
    observed: &Observed,
    revision: &Revision<'_>,
    sizing: Sizing,
    uid: &str,
    now: Timestamp,
) -> Sizing {
    let deployed = observed.deployment.as_ref().map_or(0, |deployment| deployment.replicas);
    if sizing.desired.saturating_add(1) != deployed {
        // Another number was decided, which the additional worker is a part of.
        return sizing;
    }
    let idle = revision.pods.iter().find(|pod| pod.uid() == uid && is_blank(pod, observed));
    let goes_on = valid.checkpoint.is_some() && revision.is_deployed && observed.older.is_empty();
    let Some(idle) = idle.filter(|_| goes_on) else {
        return without_additional(sizing, None, observed, now);
    };
    let is_there = revision.pods.len() >= usize::try_from(deployed).unwrap_or_default();
    if is_there && revision.pods.iter().all(|pod| is_ready(pod, now)) {
        return without_additional(sizing, Some(idle.uid()), observed, now);
    }
    Sizing { replicas: deployed, gives_way: Some(uid.to_owned()), ..sizing }
}

/// At most one worker gives way, and none while workers come or go.
fn begun(
    valid: &ValidDispatcher,
    observed: &Observed,
    revision: &Revision<'_>,
    sizing: Sizing,
    defaults: &Defaults,
    now: Timestamp,
) -> (Sizing, Option<Note>) {
    let wanted = usize::try_from(sizing.desired).unwrap_or_default();
    let deployed = observed.deployment.as_ref().map(|deployment| deployment.replicas);
    let is_stable = revision.is_deployed
        && observed.older.is_empty()
        && deployed == Some(sizing.desired)
        && revision.pods.len() == wanted
        && revision.pods.iter().all(|pod| is_ready(pod, now));
    if valid.checkpoint.is_none() || !is_stable {
        return (sizing, None);
    }
    let without_state = revision.pods.iter().filter_map(|pod| Some((pod, unclaimed(observed, pod)?)));
    let Some((pod, states)) = without_state.min_by_key(|(pod, _)| (pod.created(), pod.uid())) else {
        return (sizing, None);
    };
    let newest = revision.pods.iter().filter_map(|pod| pod.ready_changed.max(pod.created())).max();
    let settled_after = REPLACED_AFTER.max(surveys_repeated_after(defaults));
    if let Some(wait) = newest.and_then(|since| remaining(settled_after, since, now)) {
        let requeue_after = Some(sizing.requeue_after.map_or(wait, |planned| planned.min(wait)));
        return (Sizing { requeue_after, ..sizing }, None);
    }
    let states = if states == 1 { "a saved state".to_owned() } else { format!("{states} saved states") };
    let message = format!(
        "pod {} is idle and has no state, and no worker has claimed {states}: it ends once one more worker is ready, which \
         restores a state",
        pod.name()
    );
    let note = Note { severity: Severity::Normal, reason: reasons::STATE_UNCLAIMED, message };
    let (replicas, gives_way) = (sizing.desired.saturating_add(1), Some(pod.uid().to_owned()));
    (Sizing { replicas, gives_way, ..sizing }, Some(note))
}

/// How many states the monitor of an idle worker without state has found.
fn unclaimed(observed: &Observed, pod: &PodView) -> Option<u64> {
    let load = observed.load_of(pod)?;
    let (queued, _) = load.queued?;
    (queued == 0 && load.in_flight == Some(0)).then_some(load.unclaimed?).filter(|states| *states > 0)
}

/// Whether the worker is still idle, and has neither a state nor used tokens. Its monitor does not look for states all the
/// time, and the new worker has claimed one by now.
fn is_blank(pod: &PodView, observed: &Observed) -> bool {
    let load = observed.load_of(pod);
    let has_worked = load.is_none_or(|load| load.saved.is_some() || load.tokens.is_some_and(|used| used > 0));
    [FIRST, IDLE].contains(&cost(pod, observed)) && !has_worked
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use api::{aidispatcher::Phase, labels};

    use crate::{
        monitors::WorkerLoad,
        plan::Plan,
        tests::{Scene, at, deployment_of, load},
    };

    const SAVED: &str = "{role: coder, replicas: 2, checkpoint: {uri: 's3://states'}}";

    fn finds(states: u64, queued: u64, in_flight: u64) -> WorkerLoad {
        WorkerLoad { unclaimed: Some(states), ..load(queued, in_flight) }
    }

    /// The number of the Deployment, and the uid of the worker that gives way, which is also its name.
    fn planned(plan: &Plan) -> (i32, Option<String>) {
        let deployment = deployment_of(plan);
        let annotations = deployment.metadata.annotations.unwrap_or_default();
        (deployment.spec.unwrap().replicas.unwrap(), annotations.get(labels::GIVES_WAY).cloned())
    }

    fn gives_way(plan: &Plan) -> Option<String> {
        planned(plan).1
    }

    /// As the API server has the Deployment of this plan.
    fn deploy(scene: &mut Scene, plan: &Plan) {
        let stored = serde_json::to_value(deployment_of(plan)).unwrap();
        scene.observe(|observed| observed.deployment = Some(serde_json::from_value(stored).unwrap()));
    }

    const READY: &str = "ready: true, node: a, phase: Running, created: '2026-01-01T11:40:00Z'";
    const PENDING: &str = "{name: coder-1, phase: Pending}";

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
    fn an_idle_worker_without_state_gives_way_where_a_state_waits() {
        let mut scene = scene(&[600, 600]);
        scene.loads(vec![load(0, 0), finds(1, 0, 0)]);
        let plan = scene.plan();
        assert_eq!(planned(&plan), (3, Some("coder-1".to_owned())));
        assert_eq!(plan.replaces.as_ref().map(|note| note.reason), Some(api::reasons::STATE_UNCLAIMED));
        assert_eq!((plan.status.current_phase, plan.status.desired_replicas), (Some(Phase::Ready), 2));
        scene.loads(vec![finds(3, 0, 0), finds(3, 0, 0)]);
        assert_eq!(planned(&scene.plan()).0, 3, "one after the other");
        scene.edit_spec(|spec| spec.pods.paused = true);
        assert!(scene.plan().deployment.is_none());
    }

    /// A pool of one worker that is idle and has no state, with the Deployment that has one more.
    fn under_way() -> Scene {
        let mut scene = scene(&[600]);
        scene.loads(vec![finds(1, 0, 0)]);
        let begun = scene.plan();
        assert_eq!(planned(&begun), (2, Some("coder-0".to_owned())));
        deploy(&mut scene, &begun);
        scene
    }

    #[test]
    fn nothing_ends_before_the_worker_with_a_state_is_ready() {
        let mut scene = under_way();
        for successor in [
            PENDING,
            "{name: coder-1, node: a, phase: Pending, init: [{name: memory-loader, restartCount: 9, state: {waiting: \
             {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 26}}}]}",
        ] {
            scene.pods(&[&format!("{{name: coder-0, {READY}}}"), successor]);
            // The new worker may have claimed the state, and the survey of the idle one is not always there.
            for known in [finds(1, 0, 0), finds(0, 0, 0), load(0, 0)] {
                scene.loads(vec![known]);
                let plan = scene.plan_at(at(86_400));
                assert_eq!(planned(&plan), (2, Some("coder-0".to_owned())));
                assert!(plan.costs.is_empty() && plan.replaces.is_none());
                assert_eq!(plan.status.current_phase, Some(Phase::Ready));
            }
        }
        // Its quota refuses the new one.
        scene.pods(&[&format!("{{name: coder-0, {READY}}}")]);
        scene.loads(vec![finds(1, 0, 0)]);
        assert_eq!(planned(&scene.plan()), (2, Some("coder-0".to_owned())));
    }

    #[test]
    fn the_idle_worker_ends_once_the_one_with_a_state_is_ready() {
        let mut scene = under_way();
        let workers =
            |cost: &str| [format!("{{name: coder-0, {READY}{cost}}}"), format!("{{name: coder-1, {READY}}}")];
        let set = |scene: &mut Scene, cost: &str| {
            scene.pods(&workers(cost).iter().map(String::as_str).collect::<Vec<_>>());
            scene.loads(vec![load(0, 0), load(0, 0)]);
        };
        set(&mut scene, "");
        let marking = scene.plan();
        let costs: Vec<_> =
            marking.costs.iter().map(|cost| (cost.pod.metadata.name.clone(), cost.cost)).collect();
        assert_eq!(costs, [(Some("coder-0".to_owned()), -1)]);
        assert_eq!(planned(&marking), (2, Some("coder-0".to_owned())));
        set(&mut scene, ", cost: -1");
        let marked = scene.plan();
        scene.observe(|observed| {
            observed.facts = marked.facts.iter().map(|fact| (fact.clone(), at(-1))).collect();
        });
        let ended = scene.plan();
        assert_eq!((planned(&ended), ended.costs.len()), ((1, None), 0));
    }

    #[test]
    fn a_worker_that_has_got_a_task_meanwhile_does_not_give_way() {
        let mut scene = under_way();
        scene.pods(&[&format!("{{name: coder-0, {READY}}}"), PENDING]);
        scene.loads(vec![load(0, 1)]);
        let plan = scene.plan();
        assert!(plan.costs.iter().all(|cost| cost.cost > 0), "{:?}", plan.costs);
        scene.observe(|observed| {
            observed.facts = plan.facts.iter().map(|fact| (fact.clone(), at(-6))).collect();
        });
        assert_eq!(planned(&scene.plan()), (1, None), "the one that is not ready goes");
    }

    #[test]
    fn the_additional_worker_is_no_worker_for_the_rules_of_scaling() {
        let spec =
            "{role: coder, checkpoint: {uri: 's3://states'}, autoscaling: {minReplicas: 1, maxReplicas: 9}}";
        let mut scene = Scene::ready(spec, 1);
        since(&mut scene, &[600]);
        scene.loads(vec![finds(1, 0, 0)]);
        let begun = scene.plan();
        assert_eq!(planned(&begun).0, 2);
        deploy(&mut scene, &begun);
        scene.pods(&[&format!("{{name: coder-0, {READY}}}"), PENDING]);
        scene.loads(vec![load(0, 0)]);
        let held = scene.plan();
        assert_eq!((planned(&held).0, held.status.desired_replicas), (2, 1));
        assert!(held.rescaled.is_none());
        scene.loads(vec![load(14, 1)]);
        let grown = scene.plan();
        assert_eq!(planned(&grown), (4, None), "ceil(14 / 5) + 1 busy");
    }

    #[test]
    fn a_worker_with_a_task_or_without_a_waiting_state_stays() {
        let mut scene = scene(&[600, 600]);
        for other in [finds(1, 1, 0), finds(1, 0, 1), finds(0, 0, 0), load(0, 0), WorkerLoad::default()] {
            scene.loads(vec![load(0, 0), other.clone()]);
            assert_eq!(gives_way(&scene.plan()), None, "{other:?}");
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
        assert_eq!(gives_way(&scene.plan()), None, "one is not ready");
        let mut scene = Scene::ready(SAVED, 2);
        scene.loads(vec![load(0, 1), finds(1, 0, 0)]);
        scene.edit_spec(|spec| spec.replicas = 1);
        assert_eq!(gives_way(&scene.plan()), None, "there are to be fewer");
    }

    #[test]
    fn one_state_costs_one_worker() {
        let mut scene = scene(&[5, 600, 600]);
        // The new worker has claimed the state, and the others have not repeated their surveys yet.
        scene.loads(vec![load(0, 0), finds(1, 0, 0), finds(1, 0, 0)]);
        let plan = scene.plan();
        assert_eq!(gives_way(&plan), None);
        assert!(plan.requeue_after <= Some(Duration::from_secs(70)));
        assert!(gives_way(&scene.plan_at(at(71))).is_some());
    }
}
