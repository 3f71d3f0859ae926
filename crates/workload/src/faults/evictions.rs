//! Repeated failures of pods: evicted by a kubelet, or rejected at admission. Pure.

use std::{sync::Arc, time::Duration};

use api::reasons;
use jiff::Timestamp;

use crate::{
    Cause, Finding,
    faults::container::quote,
    time::elapsed,
    views::pod::{Container, PodView},
};

/// One eviction may be temporary node pressure; two indicate a lasting cause.
const FEWEST_FAILURES: usize = 2;
/// Reasons of pods that ended because their node shut down; not counted.
const NODE_SHUTDOWN: [&str; 3] = ["Terminated", "NodeShutdown", "Shutdown"];
/// Several times longer than a replacement usually waits for a node.
const COUNTED_FOR: Duration = Duration::from_secs(3_600);

/// `failed`: failed pods of a revision. `live`: its other pods, none of them ready.
///
/// No finding if a newer pod is running, or a pod has survived for longer than every failed one.
pub fn finding(failed: &[Arc<PodView>], live: &[&PodView], now: Timestamp) -> Finding {
    let counted: Vec<Failure<'_>> = failed
        .iter()
        .filter(|pod| !NODE_SHUTDOWN.contains(&&*pod.reason))
        .filter_map(|pod| Failure::of(pod))
        .filter(|one| !one.remaining_count(now).is_zero())
        .collect();
    let longest = counted.iter().map(|one| one.survived).max().unwrap_or_default();
    let ended = counted.iter().map(|one| one.ended).max();
    let runs = |pod: &&&PodView| pod.phase == "Running" && pod.created() > ended;
    let survives = |pod: &&PodView| {
        pod.placed().filter(|_| pod.has_started_containers()).map(|placed| elapsed(placed, now))
    };
    let Some(last) = counted.iter().max_by_key(|one| one.pod.created()) else { return Finding::default() };
    let got_further =
        live.iter().any(|pod| runs(&pod) || survives(pod).is_some_and(|survives| survives > longest));
    if counted.len() < FEWEST_FAILURES || got_further {
        return Finding::default();
    }
    let on = last.pod.node.as_deref().map(|node| format!(" on node {node}")).unwrap_or_default();
    let message = format!(
        "{} pods were ended by kubelets; last: pod {}{on} ({}): {}",
        counted.len(),
        last.pod.name(),
        last.pod.reason,
        quote(&last.pod.message)
    );
    // Timestamps of the API have whole seconds.
    let overtakes =
        live.iter().filter_map(survives).map(|survives| longest - survives + Duration::from_secs(1));
    let requeue_after = counted.iter().map(|one| one.remaining_count(now)).chain(overtakes).min();
    Finding { cause: Some(Cause { reason: reasons::EVICTED, message }), requeue_after }
}

/// What to say of pods that kubelets did not admit, also while other pods serve; and until when.
pub fn refusals(failed: &[Arc<PodView>], now: Timestamp) -> (Option<String>, Option<Duration>) {
    let refused: Vec<Failure<'_>> = failed
        .iter()
        .filter(|pod| !NODE_SHUTDOWN.contains(&&*pod.reason) && !ENDED.contains(&&*pod.reason))
        .filter_map(|pod| Failure::of(pod))
        .filter(|one| !one.remaining_count(now).is_zero())
        .collect();
    let Some(last) = refused.iter().max_by_key(|one| one.pod.created()) else { return (None, None) };
    if refused.len() < FEWEST_FAILURES {
        return (None, None);
    }
    let on = last.pod.node.as_deref().map(|node| format!(" on node {node}")).unwrap_or_default();
    let message = format!(
        "kubelets have refused {} pods within the last hour; last: pod {}{on} ({}): {}",
        refused.len(),
        last.pod.name(),
        last.pod.reason,
        quote(&last.pod.message)
    );
    (Some(message), refused.iter().map(|one| one.remaining_count(now)).min())
}

/// Reasons of pods that their kubelet had admitted, and ended later.
const ENDED: [&str; 4] = ["", "Evicted", "Preempting", "DeadlineExceeded"];

struct Failure<'a> {
    pod: &'a PodView,
    ended: Timestamp,
    /// How long the pod was on its node without being ready.
    survived: Duration,
}

impl<'a> Failure<'a> {
    fn of(pod: &'a PodView) -> Option<Self> {
        let containers = pod.init_containers.iter().chain(&pod.containers);
        let finished = |one: &Container| one.state.terminated.as_ref()?.finished_at;
        let last = containers.filter_map(finished).chain(pod.disrupted).max();
        let began = pod.ready_changed.max(pod.placed())?;
        let ended = last.map_or(began, |last| last.max(began));
        Some(Self { pod, ended, survived: elapsed(began, ended) })
    }

    /// The remaining time in which the failure counts: an hour, and as long as the next pod needs to get as far.
    fn remaining_count(&self, now: Timestamp) -> Duration {
        (COUNTED_FOR + self.survived).saturating_sub(elapsed(self.ended, now))
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn at(minutes: i64) -> Timestamp {
        "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes)
    }

    /// A managed pod with this status.
    fn pod(name: &str, created: Timestamp, status: &str) -> Arc<PodView> {
        let labels = "{app.kubernetes.io/managed-by: a-controller, app.kubernetes.io/name: a, \
                      app.kubernetes.io/instance: b}";
        let text = format!(
            "{{metadata: {{name: {name}, creationTimestamp: '{created}', labels: {labels}}}, status: {{{status}}}}}"
        );
        Arc::new(serde_saphyr::from_str(&text).unwrap())
    }

    /// A pod that was evicted by its kubelet while its model was loading.
    fn evicted(name: &str, created: i64, ended: i64) -> Arc<PodView> {
        let (created, ended) = (at(created), at(ended));
        let unready = format!("{{type: Ready, status: 'False', lastTransitionTime: '{created}'}}");
        let status = format!(
            "phase: Failed, reason: Evicted, message: too much, conditions: [{unready}], initContainerStatuses: \
             [{{name: loader, state: {{terminated: {{exitCode: 137, finishedAt: '{ended}'}}}}}}]"
        );
        pod(name, created, &status)
    }

    fn rejected(created: i64) -> Arc<PodView> {
        pod("rejected", at(created), "phase: Failed, reason: UnexpectedAdmissionError")
    }

    fn loading(created: i64) -> Arc<PodView> {
        let status = "phase: Pending, initContainerStatuses: [{name: loader, state: {running: {}}}]";
        pod("loading", at(created), status)
    }

    fn found(failed: &[Arc<PodView>], live: &[Arc<PodView>], minute: i64) -> Option<String> {
        let live: Vec<&PodView> = live.iter().map(AsRef::as_ref).collect();
        finding(failed, &live, at(minute)).cause.map(|cause| cause.message)
    }

    #[test]
    fn repeated_evictions_are_counted() {
        let pods = [evicted("old", 0, 1), evicted("new", 2, 3), evicted("older", -2, -1)];
        assert_eq!(found(&pods[..1], &[], 4), None);
        let message = "3 pods were ended by kubelets; last: pod new (Evicted): too much";
        assert_eq!(found(&pods, &[], 4).as_deref(), Some(message));
    }

    #[test]
    fn pods_that_ended_with_their_node_are_not_counted() {
        let shut_down = |name: &str| pod(name, at(0), "phase: Failed, reason: Terminated");
        assert_eq!(found(&[shut_down("a"), shut_down("b")], &[], 4), None);
    }

    #[test]
    fn rejected_pods_are_no_finding_while_another_pod_loads() {
        let failed = [rejected(0), rejected(1)];
        let waits = pod("waits", at(2), "phase: Pending");
        assert!(found(&failed, std::slice::from_ref(&waits), 30).is_some(), "it has not begun");
        assert_eq!(found(&failed, &[loading(2)], 3), None);
        assert_eq!(found(&failed, &[waits, loading(2)], 42), None);
    }

    #[test]
    fn refused_pods_are_named_with_their_node_also_while_others_serve() {
        let on_node = |created: i64| {
            let mut pod = PodView::clone(&rejected(created));
            pod.node = Some("gpu-7".to_owned());
            Arc::new(pod)
        };
        let (said, until) = refusals(&[on_node(0), on_node(1)], at(5));
        assert_eq!(
            said.as_deref(),
            Some(
                "kubelets have refused 2 pods within the last hour; last: pod rejected on node gpu-7 \
                 (UnexpectedAdmissionError): "
            )
        );
        assert_eq!(until, Some(Duration::from_secs(55 * 60)));
        assert_eq!(refusals(&[on_node(0)], at(5)), (None, None), "one may be a kubelet that restarts");
        assert_eq!(refusals(&[on_node(0), on_node(1)], at(99)), (None, None));
        assert_eq!(refusals(&[evicted("a", 0, 1), evicted("b", 1, 2)], at(3)), (None, None), "they ran");
    }

    #[test]
    fn evictions_count_until_a_pod_survives_longer_or_runs() {
        let failed = [evicted("a", 0, 10), evicted("b", 10, 22)];
        assert!(found(&failed, &[loading(23)], 35).is_some());
        assert_eq!(found(&failed, &[loading(23)], 36), None);
        let requeue_after = finding(&failed, &[&loading(23)], at(35)).requeue_after;
        assert_eq!(requeue_after, Some(Duration::from_secs(1)), "no event starts a reconcile then");
        let runs = |created| pod("runs", at(created), "phase: Running");
        assert_eq!(found(&failed, &[runs(23)], 24), None);
        assert!(found(&failed, &[runs(21)], 24).is_some(), "it was created before the last failure");
    }

    #[test]
    fn evictions_after_more_than_an_hour_of_loading_count() {
        let failed = [evicted("a", 0, 70), evicted("b", 71, 141)];
        assert!(found(&failed, &[], 142).is_some());
        assert!(found(&failed, &[], 199).is_some());
        assert_eq!(found(&failed, &[], 200), None, "the first failure no longer counts");
        assert_eq!(finding(&failed, &[], at(199)).requeue_after, Some(Duration::from_secs(60)));
    }

    #[test]
    fn an_eviction_of_a_ready_pod_is_counted_within_an_hour() {
        let served = |ended: i64| {
            let ready = format!("{{type: Ready, status: 'False', lastTransitionTime: '{}'}}", at(ended));
            pod("served", at(-90_000), &format!("phase: Failed, conditions: [{ready}]"))
        };
        assert!(found(&[served(0), served(1)], &[], 59).is_some());
        assert_eq!(found(&[served(0), served(1)], &[], 60), None);
    }
}
