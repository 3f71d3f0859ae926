//! etcd is compacted while a watch is interrupted: a new list finds the missed changes.

use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, WatchEvent, WatchParams},
};
use tests::{Scene, wait_for, within};

use crate::setup::{API_SERVER, CONTROLLER, PATIENT_LEASE, Setup, lines_about, serve, until, until_served};

const HISTORY: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_change_behind_a_compacted_version_is_found_and_repaired() {
    let setup = Setup::cluster(|spec| spec.with_history(HISTORY)).await.with_controller(&PATIENT_LEASE).await;
    let scene = Scene::new(&setup).await;
    serve(&scene, "chat").await;
    let services = scene.api::<Service>();
    let old = services.get("chat").await.unwrap();

    // While it is stopped, it does not notice closed connections; afterwards it resumes the watch at its last version.
    setup.pause_component(CONTROLLER).await.unwrap();
    setup.kill_component(API_SERVER).await.unwrap();
    until("another API server", within(), async || restarts(&setup).await == 1).await;
    until_served(&setup).await;
    services.delete("chat", &DeleteParams::default()).await.unwrap();
    let deleted = services.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    until("the compaction", within(), async || is_compacted(&services, &deleted).await).await;
    let before = expired(&setup);
    setup.continue_component(CONTROLLER).await.unwrap();

    wait_for(&services, "chat", "made anew", within(), |new: &Service| new.uid() != old.uid()).await;
    assert!(expired(&setup) > before, "{}", setup.log());
    assert_eq!(setup.controller().await.restarts, 0, "{}", setup.log());
}

/// Whether the API server refuses to watch from this version.
async fn is_compacted(services: &Api<Service>, version: &str) -> bool {
    let params = WatchParams { timeout: Some(1), ..WatchParams::default() };
    let Ok(events) = services.watch(&params, version).await else { return false };
    futures::pin_mut!(events);
    matches!(events.next().await, Some(Ok(WatchEvent::Error(status))) if status.code == 410)
}

/// The number of 410 responses to the controller's watch of Services.
fn expired(setup: &Setup) -> usize {
    let log = setup.log();
    let failures = lines_about(&log, "watch failed").filter(|line| line["kind"] == "Service");
    failures.filter(|line| line["why"].as_str().is_some_and(|why| why.contains(": 410 "))).count()
}

async fn restarts(setup: &Setup) -> u32 {
    let status = setup.status().await.unwrap();
    let api_server = status.components.iter().find(|component| component.name == API_SERVER);
    api_server.filter(|component| component.pid.is_some()).map_or(0, |component| component.restarts)
}
