//! Whether an idle worker without state gives way to one that restores a saved state that no worker has. Pure.
//!
//! Only a new worker restores a state. The first new worker of a rollout starts before an old one ends, so it finds no
//! state. The state of the last old one would wait until the next worker starts.
//!
//! The Deployment gets one worker more, and an annotation with the uid of the idle one, in one write. Once all workers are
//! ready, the idle one gets the lowest deletion cost, and the Deployment its number back. Until then nothing ends: a new
//! worker that finds no node, no quota or no storage costs the pool nothing, and is given up after a while.
//!
//! As in a rollout, the idle worker ends first only if the new worker waits for the claim that the idle worker holds. The
//! pods show that. The Deployment then has one worker less until the idle worker ends.

use std::time::Duration;

use api::reasons;
use jiff::Timestamp;
use runtime::write::events::{Note, Severity};
use workload::{templates::revision::Revision, time::remaining, views::pod::PodView};

use super::{
    GivesWay, Sizing, known_gives_way,
    marks::{FIRST, IDLE, UNKNOWN, cost},
    without_additional,
};
use crate::{
    observe::Observed,
    plan::{
        readiness::is_ready,
        rollout::{MOUNTED_WITHIN, claim_of_one, waits_for_claim},
    },
    validate::{ValidDispatcher, defaults::Defaults},
};

/// A worker that starts for a state is ready within this time: its image is pulled, and its memory and state are loaded.
const READY_WITHIN: Duration = Duration::from_secs(600);
/// After one that was given up, or after an idle worker that has ended first.
pub(in crate::plan) const BACKS_OFF_FOR: Duration = Duration::from_secs(3_600);
/// The ReplicaSet controller deletes the worker that ends first within this time.
const ENDED_WITHIN: Duration = Duration::from_secs(60);
/// The fact that a worker starts for a state.
const STARTS: &str = "a worker starts for a state";
/// The fact that the Deployment has one worker less.
const ENDS: &str = "the idle worker ends first";

/// A state that cannot be restored costs a pool no more than one idle worker in each such time.
const REPLACED_AFTER: Duration = Duration::from_secs(60);
/// Until then, every monitor has repeated its survey after the last new worker has claimed a state, and reports the result.
fn surveys_repeated_after(defaults: &Defaults) -> Duration {
    Duration::from_secs(defaults.checkpoint_seconds.into()) * 5 / 4
}

/// The number with one worker more, or less, while one gives way, and the event when that begins.
pub(in crate::plan) fn replacement(
    valid: &ValidDispatcher,
    observed: &Observed,
    revision: &Revision<'_>,
    sizing: Sizing,
    defaults: &Defaults,
    now: Timestamp,
) -> (Sizing, Option<Note>) {
    let sizing = backing_off(valid, observed, sizing, now);
    // `sizing` has decided on another number of workers, or waits for that.
    let is_settled = sizing.replicas == sizing.desired && sizing.unwatched.is_none() && !valid.pods.paused;
    if !is_settled {
        return (sizing, None);
    }
    match known_gives_way(observed) {
        Some(GivesWay::AfterSuccessor(uid)) => under_way(valid, observed, revision, sizing, &uid, now),
        Some(GivesWay::First(uid)) => (ending(observed, sizing, uid, now), None),
        None => begun(valid, observed, revision, sizing, defaults, now),
    }
}

/// The fact that no worker is to be started for a state. Another spec may start one that succeeds.
fn backs_off(valid: &ValidDispatcher) -> String {
    format!("no worker starts for a state, generation {}", valid.generation)
}

/// Keeps the fact for its time.
fn backing_off(valid: &ValidDispatcher, observed: &Observed, mut sizing: Sizing, now: Timestamp) -> Sizing {
    let fact = backs_off(valid);
    let since = observed.facts.get(&fact).copied();
    if let Some(wait) = since.and_then(|since| remaining(BACKS_OFF_FOR, since, now)) {
        sizing.facts.push(fact);
        sizing.backs_off = observed.pods().any(|pod| unclaimed(observed, pod).is_some());
        sizing.requeue_after = sizing.requeue_after.into_iter().chain([wait]).min();
    }
    sizing
}

/// The Deployment has one worker more than wanted.
fn under_way(
    valid: &ValidDispatcher,
    observed: &Observed,
    revision: &Revision<'_>,
    sizing: Sizing,
    uid: &str,
    now: Timestamp,
) -> (Sizing, Option<Note>) {
    let deployed = observed.deployed_replicas();
    if sizing.desired.saturating_add(1) != deployed {
        // Another number was decided, which the additional worker is a part of.
        return (sizing, None);
    }
    let goes_on = valid.checkpoint.is_some() && revision.is_deployed && observed.older.is_empty();
    let idle = revision.pods.iter().find(|pod| pod.uid() == uid).filter(|_| goes_on);
    let idle = idle.and_then(|pod| Some((pod, blankness(pod, observed)?)));
    let Some((idle, blankness)) = idle else {
        return (without_additional(sizing, None, observed, now), None);
    };
    let is_there = revision.pods.len() >= usize::try_from(deployed).unwrap_or_default();
    let are_ready = is_there && revision.pods.iter().all(|pod| is_ready(pod, now));
    if are_ready && blankness == Blankness::Blank {
        let ended = without_additional(sizing, Some(uid), observed, now);
        return (with_facts(ended, [STARTS.to_owned()]), None);
    }
    let others = revision.pods.iter().filter(|pod| pod.uid() != uid);
    let claim = claim_of_one(valid, observed).filter(|_| blankness == Blankness::Blank);
    let waits = claim.zip(others.filter_map(|pod| waits_for_claim(pod, observed)).min());
    if let Some((claim, _)) = waits.filter(|(_, since)| remaining(MOUNTED_WITHIN, *since, now).is_none()) {
        return ended_first(sizing, idle, claim, backs_off(valid), observed, now);
    }
    let since = observed.facts.get(STARTS).copied().unwrap_or(now);
    let Some(wait) = remaining(READY_WITHIN, since, now) else {
        let given_up = without_additional(sizing, None, observed, now);
        return (with_facts(given_up, [STARTS.to_owned(), backs_off(valid)]), None);
    };
    let mounted = waits.and_then(|(_, since)| remaining(MOUNTED_WITHIN, since, now));
    let requeue_after = sizing.requeue_after.into_iter().chain([wait]).chain(mounted).min();
    let gives_way = Some(GivesWay::AfterSuccessor(uid.to_owned()));
    let kept = Sizing { replicas: deployed, gives_way, requeue_after, ..sizing };
    (with_facts(kept, [STARTS.to_owned()]), None)
}

fn with_facts(mut sizing: Sizing, facts: impl IntoIterator<Item = String>) -> Sizing {
    sizing.facts.extend(facts);
    sizing
}

/// The number without the idle worker and without the one that waits for its claim: of the two, the ReplicaSet controller
/// would delete the one that is not ready.
fn ended_first(
    sizing: Sizing,
    idle: &PodView,
    claim: &str,
    backs_off: String,
    observed: &Observed,
    now: Timestamp,
) -> (Sizing, Option<Note>) {
    let replicas = sizing.desired.saturating_sub(1).max(0);
    let ended = without_additional(Sizing { replicas, ..sizing }, Some(idle.uid()), observed, now);
    if ended.replicas != replicas {
        return (with_facts(ended, [STARTS.to_owned()]), None);
    }
    let message = format!(
        "pod {} is idle and has no state, and its successor waits for PersistentVolumeClaim {claim}: it ends before the \
         next worker starts, which restores a state",
        idle.name()
    );
    let note = Note { severity: Severity::Normal, reason: reasons::STATE_UNCLAIMED, message };
    let gives_way = Some(GivesWay::First(idle.uid().to_owned()));
    // A state that cannot be restored costs no further worker for a while.
    (with_facts(Sizing { gives_way, ..ended }, [backs_off, ENDS.to_owned()]), Some(note))
}

/// The Deployment has one worker less until the idle one ends.
fn ending(observed: &Observed, sizing: Sizing, uid: String, now: Timestamp) -> Sizing {
    let since = observed.facts.get(ENDS).copied().unwrap_or(now);
    let wait = remaining(ENDED_WITHIN, since, now);
    let Some(wait) = wait.filter(|_| observed.pods().any(|pod| pod.uid() == uid)) else { return sizing };
    let requeue_after = sizing.requeue_after.into_iter().chain([wait]).min();
    let (replicas, gives_way) = (observed.deployed_replicas(), Some(GivesWay::First(uid)));
    with_facts(Sizing { replicas, gives_way, requeue_after, ..sizing }, [ENDS.to_owned()])
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
    let is_stable = revision.is_deployed
        && observed.older.is_empty()
        && observed.deployed_replicas() == sizing.desired
        && revision.pods.len() == wanted
        && revision.pods.iter().all(|pod| is_ready(pod, now));
    let backs_off = sizing.facts.contains(&backs_off(valid));
    if valid.checkpoint.is_none() || !is_stable || backs_off {
        return (sizing, None);
    }
    let without_state = revision.pods.iter().filter_map(|pod| Some((pod, unclaimed(observed, pod)?)));
    let Some((pod, states)) = without_state.min_by_key(|(pod, _)| (pod.created(), pod.uid())) else {
        return (sizing, None);
    };
    let newest = revision.pods.iter().filter_map(|pod| pod.ready_changed.max(pod.created())).max();
    let settled_after = REPLACED_AFTER.max(surveys_repeated_after(defaults));
    if let Some(wait) = newest.and_then(|since| remaining(settled_after, since, now)) {
        let requeue_after = sizing.requeue_after.into_iter().chain([wait]).min();
        return (Sizing { requeue_after, ..sizing }, None);
    }
    let states = if states == 1 { "a saved state".to_owned() } else { format!("{states} saved states") };
    let message = format!(
        "pod {} is idle and has no state, and no worker has claimed {states}: it ends once one more worker is ready, which \
         restores a state",
        pod.name()
    );
    let note = Note { severity: Severity::Normal, reason: reasons::STATE_UNCLAIMED, message };
    let (replicas, gives_way) =
        (sizing.desired.saturating_add(1), Some(GivesWay::AfterSuccessor(pod.uid().to_owned())));
    (Sizing { replicas, gives_way, ..sizing }, Some(note))
}

/// How many states the monitor of an idle worker without state has found.
fn unclaimed(observed: &Observed, pod: &PodView) -> Option<u64> {
    let load = observed.load_of(pod)?;
    let (queued, _) = load.queued?;
    (queued == 0 && load.in_flight == Some(0)).then_some(load.unclaimed?).filter(|states| *states > 0)
}

/// Whether a worker that gives way is still without a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blankness {
    Blank,
    /// Its monitor was not read, or has not read the worker, a moment ago.
    Unknown,
}

/// `None`: the worker has tasks, a state or used tokens. Its monitor does not look for states all the time, and the new
/// worker has claimed one by now.
fn blankness(pod: &PodView, observed: &Observed) -> Option<Blankness> {
    let load = observed.load_of(pod);
    let has_worked =
        load.is_some_and(|load| load.saved.is_some() || load.tokens.is_some_and(|used| used > 0));
    match cost(pod, observed) {
        _ if has_worked => None,
        FIRST | IDLE => Some(Blankness::Blank),
        UNKNOWN => Some(Blankness::Unknown),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use api::{aidispatcher::Phase, labels};

    use crate::{
        load::WorkerLoad,
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
                assert!(plan.marks.is_empty() && plan.replaces.is_none());
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
        let marks: Vec<_> =
            marking.marks.iter().map(|mark| (mark.pod.metadata.name.clone(), mark.cost)).collect();
        assert_eq!(marks, [(Some("coder-0".to_owned()), -1)]);
        assert_eq!(planned(&marking), (2, Some("coder-0".to_owned())));
        set(&mut scene, ", cost: -1");
        let marked = scene.plan();
        scene.note(&marked, at(-1));
        let ended = scene.plan();
        assert_eq!((planned(&ended), ended.marks.len()), ((1, None), 0));
    }

    #[test]
    fn a_worker_that_has_got_a_task_meanwhile_does_not_give_way() {
        let mut scene = under_way();
        scene.pods(&[&format!("{{name: coder-0, {READY}}}"), PENDING]);
        scene.loads(vec![load(0, 1)]);
        let plan = scene.plan();
        assert!(plan.marks.iter().all(|mark| mark.cost > 0), "{:?}", plan.marks);
        scene.note(&plan, at(-6));
        assert_eq!(planned(&scene.plan()), (1, None), "the one that is not ready goes");
    }

    #[test]
    fn a_load_that_is_not_known_for_a_moment_ends_nothing() {
        let mut scene = under_way();
        let ready = [format!("{{name: coder-0, {READY}}}"), format!("{{name: coder-1, {READY}}}")];
        let ready: Vec<&str> = ready.iter().map(String::as_str).collect();
        for pods in [&[ready[0], PENDING], &ready[..]] {
            scene.pods(pods);
            scene.loads(vec![WorkerLoad::default(), load(0, 0)]);
            let plan = scene.plan();
            assert_eq!((planned(&plan), plan.marks.len()), ((2, Some("coder-0".to_owned())), 0));
        }
        // It is no worker without a state any more.
        for known in
            [WorkerLoad { saved: Some(1), ..load(0, 0) }, WorkerLoad { tokens: Some(1), ..load(0, 0) }]
        {
            scene.pods(&[ready[0], PENDING]);
            scene.loads(vec![known]);
            let plan = scene.plan();
            scene.note(&plan, at(-6));
            assert_eq!(planned(&scene.plan()), (1, None));
            scene.observe(|observed| observed.facts.clear());
        }
    }

    /// Of the last plan, since so many seconds.

    #[test]
    fn a_worker_that_does_not_become_ready_is_given_up_and_not_tried_again_for_an_hour() {
        let mut scene = under_way();
        let idle = format!("{{name: coder-0, {READY}}}");
        scene.pods(&[&idle, PENDING]);
        scene.loads(vec![finds(1, 0, 0)]);
        let begun = scene.plan();
        scene.note(&begun, at(-599));
        let waits = scene.plan();
        assert_eq!(planned(&waits), (2, Some("coder-0".to_owned())));
        assert!(waits.requeue_after <= Some(Duration::from_secs(1)));
        scene.note(&begun, at(-600));
        let marking = scene.plan();
        scene.note(&marking, at(-600));
        let given_up = scene.plan();
        assert_eq!(planned(&given_up), (1, None));
        assert!(given_up.marks.iter().all(|mark| mark.cost >= 0), "the one that is not ready goes");
        deploy(&mut scene, &given_up);
        scene.note(&given_up, at(0));
        scene.pods(&[&idle]);
        scene.loads(vec![finds(1, 0, 0)]);
        let backs_off = scene.plan_at(at(3_599));
        assert_eq!((planned(&backs_off), backs_off.replaces.is_none()), ((1, None), true));
        let mut conditions = backs_off.status.conditions.iter();
        let progressing = conditions.find(|known| known.type_ == api::conditions::PROGRESSING).unwrap();
        assert!(progressing.message.contains("a saved state waits"), "{}", progressing.message);
        assert_eq!(backs_off.status.current_phase, Some(Phase::Ready));
        assert_eq!(planned(&scene.plan_at(at(3_600))).0, 2);
        scene.edit_spec(|_| ());
        assert_eq!(planned(&scene.plan_at(at(60))).0, 2, "another spec may be one that starts");
    }

    /// As `under_way`, with a claim of these access modes, and a successor on another node.
    fn with_claim(modes: &str, since: i64) -> Scene {
        let mut scene = Scene::ready("{role: coder, checkpoint: {claimName: states}}", 1);
        let claim = format!("{{metadata: {{name: states}}, spec: {{accessModes: [{modes}]}}}}");
        scene.observe(|observed| {
            observed.claim = Some(std::sync::Arc::new(serde_saphyr::from_str(&claim).unwrap()));
        });
        self::since(&mut scene, &[600]);
        scene.loads(vec![finds(1, 0, 0)]);
        let begun = scene.plan();
        assert_eq!(planned(&begun), (2, Some("coder-0".to_owned())));
        deploy(&mut scene, &begun);
        let creating = "containers: [{name: worker, state: {waiting: {reason: PodInitializing}}}]";
        scene.pods(&[
            &format!("{{name: coder-0, {READY}}}"),
            &format!("{{name: coder-1, node: b, phase: Pending, created: '{}', {creating}}}", at(since)),
        ]);
        scene.loads(vec![finds(1, 0, 0)]);
        scene
    }

    #[test]
    fn the_idle_worker_ends_first_only_where_its_successor_waits_for_its_claim() {
        for (modes, since) in [("ReadWriteMany", -300), ("ReadWriteOnce", -59)] {
            let mut scene = with_claim(modes, since);
            let plan = scene.plan();
            scene.note(&plan, at(-6));
            assert_eq!(planned(&scene.plan()), (2, Some("coder-0".to_owned())), "{modes}");
        }
        let mut scene = with_claim("ReadWriteOnce", -60);
        let marking = scene.plan();
        assert_eq!(planned(&marking), (2, Some("coder-0".to_owned())));
        let costs: Vec<i32> = marking.marks.iter().map(|mark| mark.cost).collect();
        assert_eq!(costs, [-1, 100]);
        scene.note(&marking, at(-6));
        let ended = scene.plan();
        assert_eq!(planned(&ended), (0, Some("first coder-0".to_owned())));
        assert!(ended.replaces.as_ref().unwrap().message.contains("PersistentVolumeClaim states"));
        assert_eq!(ended.status.desired_replicas, 1);
        deploy(&mut scene, &ended);
        scene.note(&ended, at(0));
        // The ReplicaSet controller has not deleted it yet.
        scene.pods(&[&format!("{{name: coder-0, cost: -1, {READY}}}")]);
        scene.loads(vec![finds(1, 0, 0)]);
        let waits = scene.plan_at(at(59));
        assert_eq!((planned(&waits), waits.marks.len()), ((0, Some("first coder-0".to_owned())), 0));
        assert_eq!(planned(&scene.plan_at(at(60))), (1, None), "it does not end");
        scene.pods(&[]);
        let next = scene.plan_at(at(1));
        assert_eq!((planned(&next), next.status.desired_replicas), ((1, None), 1));
        // A state that cannot be restored costs no further worker.
        deploy(&mut scene, &next);
        scene.note(&next, at(0));
        self::since(&mut scene, &[600]);
        scene.loads(vec![finds(1, 0, 0)]);
        assert_eq!(planned(&scene.plan_at(at(600))), (1, None));
    }

    #[test]
    fn a_scaled_pool_of_one_worker_comes_back_after_that_has_ended_first() {
        let spec =
            "{role: coder, checkpoint: {claimName: states}, autoscaling: {minReplicas: 1, maxReplicas: 1}}";
        let mut scene = Scene::ready(spec, 0);
        scene.observe(|observed| {
            observed.deployment.as_mut().unwrap().gives_way = Some("first coder-0".into());
        });
        scene.pods(&[]);
        let plan = scene.plan();
        assert_eq!((planned(&plan), plan.status.desired_replicas), ((1, None), 1));
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
        assert!(held.rescale.is_none());
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
