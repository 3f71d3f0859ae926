//! The last cold start: how long a new pod took from its node to Ready. AIScalers read it from the status. Pure.

use api::aiinference::LastColdStart;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use workload::views::pod::PodView;

use crate::{names::ENGINE, observe::Observed, validate::ValidInference};

/// Of the pods that are not older than the one of the stored cold start, the one that became ready last.
pub(super) fn last_cold_start(valid: &ValidInference, observed: &Observed) -> Option<LastColdStart> {
    let stored = observed.inference.status.as_ref().and_then(|status| status.last_cold_start.clone());
    let known = stored.as_ref().and_then(|stored| {
        let ready = stored.time.as_ref()?.0;
        Some((ready.checked_sub(SignedDuration::from_secs(stored.seconds.into())).ok()?, ready))
    });
    let pods = observed.pods().filter_map(|pod| cold_start(pod, valid.warmup_timeout_seconds));
    let new = pods.filter(|(began, ready)| {
        known.is_none_or(|(known_began, known_ready)| *began >= known_began && *ready > known_ready)
    });
    let last = new.max_by_key(|(_, ready)| *ready).map(|(began, ready)| LastColdStart {
        seconds: i32::try_from(ready.duration_since(began).as_secs()).unwrap_or(i32::MAX),
        time: Some(Time(ready)),
    });
    last.or(stored)
}

/// When the pod got its node, and when it was ready for the first time. The wait for a node is that of the cluster.
fn cold_start(pod: &PodView, warmup_timeout_seconds: i32) -> Option<(Timestamp, Timestamp)> {
    let engine = pod.container(ENGINE).filter(|engine| pod.is_ready && engine.restart_count == 0)?;
    let started = engine.state.running.as_ref()?.started_at?;
    let placed = pod.scheduled.as_ref().filter(|scheduled| scheduled.status == "True");
    let began = placed.and_then(|scheduled| scheduled.last_transition_time).or_else(|| pod.created())?;
    let ready = pod.ready_changed?;
    // Later it has become ready again: the first time is within the timeout, or the kubelet restarts the engine.
    let is_first = ready.duration_since(started).as_secs() <= i64::from(warmup_timeout_seconds);
    // By clocks that differ a pod may be ready before that.
    (is_first && ready >= began).then_some((began, ready))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Scene, at};

    /// A pod that was created at `created`, whose engine started 10 s later and that became ready at `ready`.
    fn pod(name: &str, created: i64, ready: i64, restarts: i32) -> String {
        format!(
            "{{name: {name}, created: '{}', node: gpu-0, phase: Running, conditions: [{{type: Ready, status: 'True', \
             lastTransitionTime: '{}'}}], containers: [{{name: engine, ready: true, restartCount: {restarts}, \
             state: {{running: {{startedAt: '{}'}}}}}}]}}",
            at(created),
            at(ready),
            at(created + 10)
        )
    }

    /// Seconds and time of the cold start in the status after these pods, which is written.
    fn seen(scene: &mut Scene, pods: &[String]) -> Option<(i32, Timestamp)> {
        scene.pods(&pods.iter().map(String::as_str).collect::<Vec<_>>());
        scene.write_status();
        let stored = scene.observed().inference.status.as_ref()?.last_cold_start.clone()?;
        Some((stored.seconds, stored.time?.0))
    }

    #[test]
    fn the_last_pod_counts_and_none_that_is_older_than_it() {
        let mut scene = Scene::ready(2);
        let (first, second) = (pod("a", -500, -430, 0), pod("b", -500, -428, 0));
        assert_eq!(seen(&mut scene, &[]), None);
        assert_eq!(seen(&mut scene, std::slice::from_ref(&first)), Some((70, at(-430))));
        assert_eq!(
            seen(&mut scene, &[first.clone(), second]),
            Some((72, at(-428))),
            "they were created together"
        );
        assert_eq!(
            seen(&mut scene, std::slice::from_ref(&first)),
            Some((72, at(-428))),
            "it was ready sooner"
        );
        assert_eq!(seen(&mut scene, &[first, pod("c", -200, -100, 0)]), Some((100, at(-100))));
        let older = pod("b", -500, -90, 0);
        assert_eq!(seen(&mut scene, &[older]), Some((100, at(-100))), "it was ready before");
        assert_eq!(seen(&mut scene, &[]), Some((100, at(-100))), "it stays without pods");
    }

    #[test]
    fn the_wait_for_a_node_is_no_part_of_it() {
        let scheduled = format!(
            "conditions: [{{type: PodScheduled, status: 'True', lastTransitionTime: '{}'}}, ",
            at(-40)
        );
        let waited = pod("a", -22_000, -30, 0)
            .replace("conditions: [", &scheduled)
            .replace(&at(-21_990).to_string(), &at(-39).to_string());
        assert_eq!(seen(&mut Scene::ready(1), &[waited]), Some((10, at(-30))));
    }

    #[test]
    fn a_pod_that_was_restarted_or_became_ready_again_says_nothing() {
        for pod in [
            pod("a", -500, -400, 1),
            // The timeout is 300 s from the start of the engine.
            pod("a", -500, -189, 0),
            pod("a", -500, -510, 0),
        ] {
            assert_eq!(seen(&mut Scene::ready(1), &[pod]), None);
        }
        assert!(seen(&mut Scene::ready(1), &[pod("a", -500, -190, 0)]).is_some());
    }
}
