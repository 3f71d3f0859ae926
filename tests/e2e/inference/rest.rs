//! At rest a controller is silent: it writes nothing but its Lease, and asks for nothing. One that starts anew reads what
//! there is, and writes nothing either.

use std::{collections::BTreeMap, time::Duration};

use api::aiinference::AIInference;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::ListParams};
use local_cluster::{
    Cluster, ClusterSpec, NodePool, admin,
    audit::Event,
    install::{apply, yaml_files},
};
use serde_json::json;
use tests::{Scene, ask_until, controller, fresh_name, start, tools, wait_for, within};

use super::{change, create, is_ready, until_not_ready, until_ready};

const USER: &str = "system:serviceaccount:ai-system:inference-controller";
const CONTROLLER: &str = "inference-controller";
const MINUTE: Duration = Duration::from_secs(60);
/// Each takes two seconds: the time that passes is counted in renewals of the Lease, and then read in the audit log.
const RENEWALS_OF_A_MINUTE: usize = 32;

#[tokio::test]
async fn for_a_minute_nothing_is_sent_and_a_restart_writes_nothing() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    cluster.start_controller(&controller(CONTROLLER)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let models = settle(&scene).await;

    // A pod that has just become ready may still be told of; that is over when the Lease has been renewed a few times.
    until_renewed(&scene, 4).await;
    let before = ours(&cluster).len();
    until_renewed(&scene, RENEWALS_OF_A_MINUTE).await;
    let minute = ours(&cluster).split_off(before);
    let received = |event: &Event| event.received.parse::<Timestamp>().unwrap();
    let (first, last) = (minute.iter().map(received).min(), minute.iter().map(received).max());
    let passed = last.unwrap().duration_since(first.unwrap());
    assert!(passed >= MINUTE.try_into().unwrap(), "only {passed:?}");
    let mut counted = by_verb_and_resource(&minute);
    let renewals = counted.get("update leases/").copied().unwrap_or_default();
    assert!(renewals >= 30, "the controller has another name, or stood still: {counted:?}");
    // A watch that is opened anew is no question, and the Lease is another matter.
    counted.retain(|request, _| !request.starts_with("watch ") && !request.ends_with(" leases/"));
    assert_eq!(counted, BTreeMap::new(), "at rest");

    let before = ours(&cluster).len();
    cluster.kill_component(CONTROLLER).await.unwrap();
    until_reconciled(&cluster, models).await;
    until_renewed(&scene, 2).await;
    let mut counted = by_verb_and_resource(&ours(&cluster).split_off(before));
    assert!(counted.remove("list aiinferences/").is_some(), "it has not started anew: {counted:?}");
    counted.retain(|request, _| {
        let reads = ["get ", "list ", "watch "].iter().any(|verb| request.starts_with(verb));
        !reads && !request.ends_with(" leases/")
    });
    assert_eq!(counted, BTreeMap::new(), "after a restart");
}

/// The samples, and a model in each other state that lasts; returns how many.
async fn settle(scene: &Scene<'_>) -> usize {
    let samples = yaml_files(&tests::workspace().join("deploy/samples")).unwrap();
    assert!(samples.len() >= 2, "{samples:?}");
    for sample in samples {
        let yaml = std::fs::read_to_string(&sample).unwrap();
        apply(&scene.client(), "default", &yaml).await.unwrap();
    }
    create(scene, "paused", json!({})).await;
    until_ready(scene, "paused").await;
    change(scene, "paused", json!({"paused": true})).await;
    let models: Api<AIInference> = Api::namespaced(scene.client(), "default");
    for model in models.list(&ListParams::default()).await.unwrap() {
        wait_for(&models, model.metadata.name.as_deref().unwrap(), "ready", within(), is_ready).await;
    }
    create(scene, "stopped", json!({"replicas": 0})).await;
    create(scene, "unmounted", json!({"modelSource": "pvc://nothing", "engine": "triton"})).await;
    until_not_ready(scene, "stopped", "Stopped").await;
    until_not_ready(scene, "unmounted", "ClaimNotFound").await;
    // The last one: it counts the GPUs that the others have left.
    create(scene, "nowhere", json!({"gpu": {"count": 16}})).await;
    until_not_ready(scene, "nowhere", "InsufficientGPU").await;
    scene.cluster_api::<AIInference>().list(&ListParams::default()).await.unwrap().items.len()
}

pub(super) async fn until_renewed(scene: &Scene<'_>, times: usize) {
    let leases: Api<Lease> = Api::namespaced(scene.client(), "ai-system");
    let mut seen = Vec::new();
    wait_for(&leases, CONTROLLER, "renewed", within() + MINUTE, |lease: &Lease| {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        if seen.last() != Some(&renewed) {
            seen.push(renewed);
        }
        seen.len() > times
    })
    .await;
}

/// Waits until the process that runs now has reconciled so many objects and has none left to do.
async fn until_reconciled(cluster: &Cluster, objects: usize) {
    ask_until("a controller that has started anew", within(), async || {
        let page = cluster.metrics(CONTROLLER).await.unwrap_or_default();
        let failed = r#"controller_runtime_reconcile_total{controller="inference-controller",result="error""#;
        assert_eq!(admin::sum(&page, failed), 0.0, "{page}");
        let is_done = admin::sum(&page, "controller_runtime_reconcile_total") >= objects as f64
            && admin::sum(&page, "workqueue_depth") == 0.0;
        if is_done { Ok(()) } else { Err(page) }
    })
    .await;
}

/// Every request of the controller.
fn ours(cluster: &Cluster) -> Vec<Event> {
    let mut events = cluster.audit_events().unwrap();
    events.retain(|event| event.user == USER);
    events
}

fn by_verb_and_resource(events: &[Event]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in events {
        *counts.entry(format!("{} {}/{}", event.verb, event.resource, event.subresource)).or_default() += 1;
    }
    counts
}
