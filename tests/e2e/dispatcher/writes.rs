//! How often the status of a pool is written, counted in the audit log.

use std::time::Duration;

use api::{aidispatcher::AIDispatcher, labels};
use k8s_openapi::api::core::v1::Pod;
use local_cluster::{ClusterSpec, NodePool, api_server::audit::Event};
use serde_json::json;
use tests::{
    Scene, controller,
    dispatcher::{CONTROLLER, Load, Monitors, create, until, until_ready, workers},
    fresh_name, start, tools, until_renewed, wait_for, within,
};

const USER: &str = "system:serviceaccount:ai-system:dispatcher-controller";
/// Measured values are written at most this often.
const MEASURED_EVERY: usize = 10;
/// Seconds with another load in each.
const SECONDS: usize = 45;
/// Of the Lease, every two seconds: longer than measured values are held back.
const RENEWALS_AT_REST: usize = 8;

#[tokio::test]
async fn measured_values_are_written_at_most_every_ten_seconds_and_nothing_at_rest() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    cluster.start_controller(&controller(CONTROLLER)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let monitors = Monitors::of(&scene);
    monitors.all(Load { queued: 1, in_flight: 1, tokens: 100 });
    create(&scene, "coders", json!({"replicas": 2})).await;
    until_ready(&scene, "coders").await;
    until(&scene, "coders", "all that is measured", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| {
            (status.queue_depth, status.active_workers, status.token_usage) == (Some(2), 2, 200)
                && status.tokens_per_minute == Some(0)
        })
    })
    .await;
    for worker in workers(&scene, "coders").await {
        let name = worker.metadata.name.expect("a name");
        wait_for(&scene.api::<Pod>(), &name, "marked as busy", within(), |pod: &Pod| {
            let annotations = pod.metadata.annotations.as_ref();
            annotations.is_some_and(|known| known.contains_key(labels::POD_DELETION_COST))
        })
        .await;
    }
    // By then all pending writes are done.
    until_renewed(&scene, CONTROLLER, 2).await;
    let status = async || scene.api::<AIDispatcher>().get("coders").await.expect("a pool").status;
    let (before, known) = (writes(&scene).len(), status().await);
    until_renewed(&scene, CONTROLLER, RENEWALS_AT_REST).await;
    let at_rest = writes(&scene).split_off(before);
    assert!(at_rest.is_empty(), "{at_rest:#?}, from {known:#?} to {:#?}", status().await);

    let before = writes(&scene).len();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    for second in 0..SECONDS as u64 {
        ticks.tick().await;
        let tokens = 100 + 7 * second;
        monitors.all(Load { queued: second % 5, in_flight: second % 2, tokens });
    }
    let under_load = writes(&scene).split_off(before);
    let is_status = |event: &&Event| (&*event.resource, &*event.subresource) == ("aidispatchers", "status");
    let (statuses, others): (Vec<&Event>, Vec<&Event>) = under_load.iter().partition(is_status);
    assert!(others.is_empty(), "{others:#?}");
    assert!((2..=SECONDS / MEASURED_EVERY + 1).contains(&statuses.len()), "{statuses:#?}");
}

/// Of the controller, in this namespace.
fn writes(scene: &Scene<'_>) -> Vec<Event> {
    let events = scene.cluster().audit_events().unwrap().into_iter();
    let reads = ["get", "list", "watch"];
    events
        .filter(|event| event.user == USER && event.namespace == scene.namespace())
        .filter(|event| !reads.contains(&&*event.verb))
        .collect()
}
