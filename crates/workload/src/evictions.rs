//! Pods that kubelets end again and again: evicted, or rejected at their start. Pure.

use std::{sync::Arc, time::Duration};

use api::reasons;
use jiff::Timestamp;

use crate::{
    Cause, Finding,
    container::quote,
    pod::{Container, PodView},
    time::elapsed,
};

/// One eviction is what node pressure does now and then; two of pods that never got ready have a lasting cause.
const EVICTIONS: usize = 2;
/// Reasons of pods that ended with their node, which says nothing of the next ones.
const NODE_SHUTDOWN: [&str; 3] = ["Terminated", "NodeShutdown", "Shutdown"];
/// Longer than a replacement waits for a node, several times over.
const LATELY: Duration = Duration::from_secs(3_600);

/// `failed`: pods of a revision that kubelets have ended. `live`: its other pods, of which none is ready.
///
/// The failures say nothing of a pod that has got further: one that runs, or one that has lasted longer than they did.
pub fn finding(failed: &[Arc<PodView>], live: &[&PodView], now: Timestamp) -> Finding {
    let counted: Vec<Failure<'_>> = failed
        .iter()
        .filter(|pod| !NODE_SHUTDOWN.contains(&&*pod.reason))
        .filter_map(|pod| Failure::of(pod))
        .filter(|one| !one.counts_for(now).is_zero())
        .collect();
    let longest = counted.iter().map(|one| one.lasted).max().unwrap_or_default();
    let ended = counted.iter().map(|one| one.ended).max();
    let runs = |pod: &&&PodView| pod.phase == "Running" && pod.created() > ended;
    let lasts = |pod: &&PodView| pod.placed().filter(|_| pod.has_begun()).map(|placed| elapsed(placed, now));
    let Some(last) = counted.iter().max_by_key(|one| one.pod.created()) else { return Finding::default() };
    let got_further = live.iter().any(|pod| runs(&pod) || lasts(pod).is_some_and(|lasts| lasts > longest));
    if counted.len() < EVICTIONS || got_further {
        return Finding::default();
    }
    let message = format!(
        "{} pods were ended by their kubelets; the last one, {}: {}: {}",
        counted.len(),
        last.pod.name(),
        last.pod.reason,
        quote(&last.pod.message)
    );
    // Times of the API have whole seconds.
    let outlasts = live.iter().filter_map(lasts).map(|lasts| longest - lasts + Duration::from_secs(1));
    let look_again = counted.iter().map(|one| one.counts_for(now)).chain(outlasts).min();
    Finding { cause: Some(Cause { reason: reasons::EVICTED, message }), look_again }
}

struct Failure<'a> {
    pod: &'a PodView,
    ended: Timestamp,
    /// How long it had been on its node without being ready.
    lasted: Duration,
}

impl<'a> Failure<'a> {
    fn of(pod: &'a PodView) -> Option<Self> {
        let containers = pod.init_containers.iter().chain(&pod.containers);
        let finished = |one: &Container| one.state.terminated.as_ref()?.finished_at;
        let last = containers.filter_map(finished).chain(pod.disrupted).max();
        let began = pod.ready_turned.max(pod.placed())?;
        let ended = last.map_or(began, |last| last.max(began));
        Some(Self { pod, ended, lasted: elapsed(began, ended) })
    }

    /// How much longer it counts: some time, and as long as the next pod needs to get as far.
    fn counts_for(&self, now: Timestamp) -> Duration {
        (LATELY + self.lasted).saturating_sub(elapsed(self.ended, now))
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn at(minutes: i64) -> Timestamp {
        "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes)
    }

    /// A pod of these parts of its metadata and its status.
    fn pod(name: &str, created: Timestamp, status: &str) -> Arc<PodView> {
        let labels = "{app.kubernetes.io/managed-by: a-controller, app.kubernetes.io/name: a, \
                      app.kubernetes.io/instance: b}";
        let text = format!(
            "{{metadata: {{name: {name}, creationTimestamp: '{created}', labels: {labels}}}, status: {{{status}}}}}"
        );
        Arc::new(serde_saphyr::from_str(&text).unwrap())
    }

    /// One that was evicted while it loaded.
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
    fn pods_that_kubelets_end_again_and_again_are_counted() {
        let pods = [evicted("old", 0, 1), evicted("new", 2, 3), evicted("older", -2, -1)];
        assert_eq!(found(&pods[..1], &[], 4), None);
        let message = "3 pods were ended by their kubelets; the last one, new: Evicted: too much";
        assert_eq!(found(&pods, &[], 4).as_deref(), Some(message));
    }

    #[test]
    fn pods_that_ended_with_their_node_say_nothing_of_the_next_ones() {
        let shut_down = |name: &str| pod(name, at(0), "phase: Failed, reason: Terminated");
        assert_eq!(found(&[shut_down("a"), shut_down("b")], &[], 4), None);
    }

    #[test]
    fn pods_that_were_rejected_say_nothing_of_one_that_loads() {
        let failed = [rejected(0), rejected(1)];
        let waits = pod("waits", at(2), "phase: Pending");
        assert!(found(&failed, std::slice::from_ref(&waits), 30).is_some(), "it has not begun");
        assert_eq!(found(&failed, &[loading(2)], 3), None);
        assert_eq!(found(&failed, &[waits, loading(2)], 42), None);
    }

    #[test]
    fn pods_that_were_evicted_while_they_loaded_count_until_one_has_lasted_longer_or_runs() {
        let failed = [evicted("a", 0, 10), evicted("b", 10, 22)];
        assert!(found(&failed, &[loading(23)], 35).is_some());
        assert_eq!(found(&failed, &[loading(23)], 36), None);
        let looks_again = finding(&failed, &[&loading(23)], at(35)).look_again;
        assert_eq!(looks_again, Some(Duration::from_secs(1)), "nothing else starts a reconcile");
        let runs = |created| pod("runs", at(created), "phase: Running");
        assert_eq!(found(&failed, &[runs(23)], 24), None);
        assert!(found(&failed, &[runs(21)], 24).is_some(), "it was there before the last one ended");
    }

    #[test]
    fn pods_that_load_for_longer_than_an_hour_before_their_eviction_count() {
        let failed = [evicted("a", 0, 70), evicted("b", 71, 141)];
        assert!(found(&failed, &[], 142).is_some());
        assert!(found(&failed, &[], 199).is_some());
        assert_eq!(found(&failed, &[], 200), None, "the first one was not followed for too long");
        assert_eq!(finding(&failed, &[], at(199)).look_again, Some(Duration::from_secs(60)));
    }

    #[test]
    fn an_eviction_of_a_pod_that_was_ready_counts_for_an_hour_however_long_it_had_run() {
        let served = |ended: i64| {
            let ready = format!("{{type: Ready, status: 'False', lastTransitionTime: '{}'}}", at(ended));
            pod("served", at(-90_000), &format!("phase: Failed, conditions: [{ready}]"))
        };
        assert!(found(&[served(0), served(1)], &[], 59).is_some());
        assert_eq!(found(&[served(0), served(1)], &[], 60), None);
    }
}
