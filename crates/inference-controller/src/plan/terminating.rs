//! Pods that are being deleted while their engine still loads. Pure.
//!
//! vLLM and Triton lose SIGTERM until they serve, so such a pod would hold its GPUs for the whole grace period, which is
//! there for requests that it cannot have. It is deleted once more with a short one. A kubelet heeds that only if it
//! arrives before the kubelet has begun to end the pod (seen with 1.36: within about a second), so this helps sometimes.

use workload::pod::PodView;

use super::{Deletion, nodes::identity, pod::ENGINE};
use crate::observe::Observed;

/// For the loader, which stops at once; not 0, which would not wait for the kubelet.
const SHORT_GRACE_SECONDS: u32 = 2;

pub(super) fn deletions(observed: &Observed) -> Vec<Deletion> {
    let loading = observed.terminating.iter().filter(|pod| still_loads(pod) && has_long_grace(pod));
    loading
        .map(|pod| Deletion::LoadingPod { pod: Box::new(identity(pod)), grace_seconds: SHORT_GRACE_SECONDS })
        .collect()
}

/// Its engine runs and has not been ready since it began.
fn still_loads(pod: &PodView) -> bool {
    pod.container(ENGINE)
        .is_some_and(|engine| engine.state.running.is_some() && engine.started != Some(true) && !pod.is_ready)
}

fn has_long_grace(pod: &PodView) -> bool {
    let grace = pod.metadata.deletion_grace_period_seconds;
    pod.metadata.deletion_timestamp.is_some()
        && grace.is_some_and(|grace| grace > i64::from(SHORT_GRACE_SECONDS))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::tests::{Scene, pod};

    use super::*;

    fn shortened(engine: &str, grace: Option<i64>) -> usize {
        let mut scene = Scene::ready(1);
        let mut pod = pod(&format!("{{node: gpu-0, containers: [{{name: engine, {engine}}}]}}"));
        pod.metadata.deletion_timestamp = pod
            .metadata
            .creation_timestamp
            .clone()
            .or(Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(crate::tests::at(0))));
        pod.metadata.deletion_grace_period_seconds = grace;
        scene.observe(|observed| observed.terminating = vec![Arc::new(pod)]);
        let planned = scene.plan().deletions;
        planned.iter().filter(|deletion| matches!(deletion, Deletion::LoadingPod { .. })).count()
    }

    #[test]
    fn a_pod_that_goes_while_its_engine_loads_gets_a_short_grace_once() {
        assert_eq!(shortened("started: false, state: {running: {}}", Some(80)), 1);
        assert_eq!(shortened("started: false, state: {running: {}}", Some(2)), 0, "it has it already");
    }

    #[test]
    fn a_pod_that_has_served_keeps_its_grace() {
        assert_eq!(shortened("started: true, state: {running: {}}", Some(80)), 0);
        assert_eq!(shortened("state: {waiting: {reason: PodInitializing}}", Some(80)), 0, "nothing runs yet");
    }
}
