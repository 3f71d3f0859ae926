//! How long the last new pod took to serve, for whoever decides on replicas. Pure.

use api::aiinference::LastColdStart;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use workload::pod::PodView;

use super::ENGINE;
use crate::{observe::Observed, validate::ValidInference};

/// Of the pods that were created after the stored cold start, the one that was ready last; without one, the stored cold
/// start. So each pod counts at most once, and of pods that are created together one.
pub(super) fn last_cold_start(valid: &ValidInference, observed: &Observed) -> Option<LastColdStart> {
    let stored = observed.inference.status.as_ref().and_then(|status| status.last_cold_start.clone());
    let known = stored.as_ref().and_then(|stored| stored.time.as_ref()).map(|time| time.0);
    let new = observed.pods().filter_map(|pod| cold_start(pod, valid.warmup_timeout_seconds));
    let new = new.filter(|(created, _)| known.is_none_or(|known| *created > known));
    let last = new.max_by_key(|(_, ready)| *ready).map(|(created, ready)| LastColdStart {
        seconds: i32::try_from(ready.duration_since(created).as_secs()).unwrap_or(i32::MAX),
        time: Some(Time(ready)),
    });
    last.or(stored)
}

/// When the pod was created, and when it was ready for the first time.
fn cold_start(pod: &PodView, warmup_timeout_seconds: i32) -> Option<(Timestamp, Timestamp)> {
    let engine = pod.container(ENGINE).filter(|engine| pod.is_ready && engine.restart_count == 0)?;
    let started = engine.state.running.as_ref()?.started_at?;
    let (created, ready) = (pod.created()?, pod.ready_changed?);
    // Later it has become ready again: the first time is within the timeout, or the kubelet restarts the engine.
    let is_first = ready.duration_since(started).as_secs() <= i64::from(warmup_timeout_seconds);
    // By clocks that differ a pod may be ready before its creation.
    (is_first && ready >= created).then_some((created, ready))
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
    fn each_pod_counts_once_and_of_pods_that_are_created_together_one() {
        let mut scene = Scene::ready(2);
        let (first, second) = (pod("a", -500, -430, 0), pod("b", -500, -428, 0));
        assert_eq!(seen(&mut scene, &[]), None);
        assert_eq!(seen(&mut scene, std::slice::from_ref(&first)), Some((70, at(-430))));
        assert_eq!(seen(&mut scene, &[first.clone(), second]), Some((70, at(-430))), "no further write");
        let again = pod("a", -500, -300, 0);
        assert_eq!(seen(&mut scene, &[again]), Some((70, at(-430))), "it was ready before");
        assert_eq!(seen(&mut scene, &[first, pod("c", -200, -100, 0)]), Some((100, at(-100))));
        assert_eq!(seen(&mut scene, &[]), Some((100, at(-100))), "it stays without pods");
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
