//! The PodDisruptionBudget: a drain ends the workers of a pool one after the other. Pure.
//!
//! It gives way where workers are missing anyway: a worker that finds no node must not stop every drain of the cluster.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use workload::{pod::PodView, time::remaining};

use super::metadata::{metadata, selector};
use crate::{names, observe::Observed, validate::ValidDispatcher};

/// A worker that is missing for longer does not hold evictions back. Most memories are loaded by then.
const MISSING_FOR: Duration = Duration::from_secs(300);

/// The budget, and when it may change although no object changes. `None`: it stays, because the pods are not known.
pub(super) fn disruption_budget(
    valid: &ValidDispatcher,
    observed: &Observed,
    now: Timestamp,
) -> (Option<PodDisruptionBudget>, Option<Duration>) {
    if observed.unwatched.is_some() {
        return (None, None);
    }
    let (missing, requeue_after) = missing(observed, now);
    let budget = PodDisruptionBudget {
        metadata: metadata(valid, names::disruption_budget(&valid.name)),
        spec: Some(PodDisruptionBudgetSpec {
            selector: Some(LabelSelector {
                match_labels: Some(selector(&valid.name)),
                ..LabelSelector::default()
            }),
            // Also of one worker: its state is saved when it is evicted, and its drain must not wait for ever.
            max_unavailable: Some(IntOrString::Int(1 + missing)),
            // A worker that is not ready must not block a drain.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    };
    (Some(budget), requeue_after)
}

/// How many of the wanted workers have been missing for long, and when one more is.
fn missing(observed: &Observed, now: Timestamp) -> (i32, Option<Duration>) {
    let Some(deployment) = &observed.deployment else { return (0, None) };
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let ready = number(observed.pods().filter(|pod| pod.is_ready).count());
    let lacking = deployment.replicas.saturating_sub(ready).max(0);
    if lacking == 0 {
        return (0, None);
    }
    let unready = observed.pods().map(AsRef::as_ref).filter(|pod: &&PodView| !pod.is_ready);
    let since = unready.map(|pod| pod.ready_changed.or(pod.created()).unwrap_or(now));
    // Pods that could not be created, such as because of a quota.
    let uncreated = deployment.replicas.saturating_sub(number(observed.pods().count())).max(0);
    let failing = deployment.creation_failure.as_ref().and_then(|failure| failure.last_transition_time);
    let uncreated = failing.into_iter().flat_map(|since| (0..uncreated).map(move |_| since));
    let (mut missing, mut requeue_after) = (0, None::<Duration>);
    for since in since.chain(uncreated) {
        match remaining(MISSING_FOR, since, now) {
            None => missing += 1,
            Some(wait) => requeue_after = Some(requeue_after.map_or(wait, |known| known.min(wait))),
        }
    }
    (missing.min(lacking), requeue_after)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{
        plan::Plan,
        tests::{Scene, at},
    };

    fn unavailable(plan: &Plan) -> serde_json::Value {
        let budget = plan.budget.as_ref().expect("a budget");
        serde_json::to_value(budget.spec.clone().unwrap().max_unavailable).unwrap()
    }

    fn worker(index: usize, is_ready: bool, since: i64) -> String {
        let status = if is_ready { "True" } else { "False" };
        format!(
            "{{name: coder-{index}, node: a, phase: Running, created: '{0}', conditions: [{{type: Ready, status: \
             '{status}', lastTransitionTime: '{0}'}}]}}",
            at(since)
        )
    }

    #[test]
    fn a_drain_ends_workers_one_after_the_other() {
        let scene = Scene::ready("{role: coder, replicas: 4}", 4);
        let plan = scene.plan();
        assert_eq!(unavailable(&plan), 1);
        let spec = plan.budget.unwrap().spec.unwrap();
        assert_eq!(spec.unhealthy_pod_eviction_policy.as_deref(), Some("AlwaysAllow"));
        assert_eq!(unavailable(&Scene::ready("{role: coder}", 1).plan()), 1, "one worker blocks no drain");
    }

    #[test]
    fn workers_that_are_missing_for_long_hold_no_drain_back() {
        let mut scene = Scene::ready("{role: coder, replicas: 3}", 3);
        let pods = |missing: i64| [worker(0, true, -900), worker(1, false, missing), worker(2, false, -10)];
        let set = |scene: &mut Scene, pods: [String; 3]| {
            scene.pods(&pods.iter().map(String::as_str).collect::<Vec<_>>());
        };
        set(&mut scene, pods(-299));
        let plan = scene.plan();
        assert_eq!((unavailable(&plan), plan.requeue_after), (1.into(), Some(Duration::from_secs(1))));
        set(&mut scene, pods(-300));
        assert_eq!(unavailable(&scene.plan()), 2);
    }

    #[test]
    fn a_rollout_that_does_not_succeed_lets_no_more_workers_be_evicted() {
        let mut scene = Scene::ready("{role: coder}", 1);
        let (ready, new) = (worker(0, true, -900), worker(1, false, -900));
        scene.pods(&[&ready, &new]);
        assert_eq!(unavailable(&scene.plan()), 1, "the wanted number is ready");
    }

    #[test]
    fn the_budget_stays_while_the_pods_are_not_known() {
        let mut scene = Scene::ready("{role: coder}", 1);
        scene.observe(|observed| observed.unwatched = Some("pods"));
        assert!(scene.plan().budget.is_none());
    }
}
