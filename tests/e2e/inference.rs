//! AIInference on simulated nodes: the real controller with its own rights, and simulated pods.

use std::time::Duration;

use api::{aiinference::AIInference, conditions};
use k8s_openapi::api::core::v1::Pod;
use tests::{
    Scene,
    inference::{
        CONTROLLER, change, condition, create, is_observed, is_ready, pods_of, until_not_ready, until_ready,
    },
    wait_for, within,
};

mod canary_order;
mod conflict;
mod custom_metric;
mod disruptions;
mod drift;
mod faults;
mod gpus;
mod kinds;
mod lifecycle;
mod nodes;
mod outages;
mod rollouts;
mod scale;
mod traffic;
mod writes;

/// Waits until the controller has renewed its Lease `times` times.
async fn until_renewed(scene: &Scene<'_>, times: usize) {
    tests::until_renewed(scene, CONTROLLER, times).await;
}

/// Maximum delay between a fault of a pod and its report in the status. The promise is five seconds, on a machine that is not
/// busy.
const REPORTED_WITHIN: Duration = Duration::from_secs(15);

/// The expected report of a fault: `Ready` has the reason and the message of the failing condition.
struct Report<'a> {
    condition: &'a str,
    reason: &'a str,
    /// Part of the message.
    message: &'a str,
}

/// Makes a pod fail and waits until the status reports it, within `REPORTED_WITHIN` of the pod's own status.
fn reported_in_time(
    scene: &Scene<'_>,
    name: &str,
    report: Report<'_>,
    fails: impl Fn(&Pod) -> bool,
    act: impl Future,
) -> impl Future<Output = AIInference> {
    let Report { condition: type_, reason, message } = report;
    let what = format!("{type_} and Ready are false because of {reason}: {message}");
    let inferences = scene.api::<AIInference>();
    let is_reported = move |inference: &AIInference| {
        [type_, conditions::READY].into_iter().all(|type_| {
            condition(inference, type_).is_some_and(|condition| {
                condition.status == "False"
                    && condition.reason == reason
                    && condition.message.contains(message)
            })
        })
    };
    Box::pin(async move {
        let report = wait_for(&inferences, name, &what, within(), |inference| {
            is_observed(inference) && is_reported(inference)
        });
        scene.soon_after((&pods_of(name), fails), REPORTED_WITHIN, act, report).await
    })
}
