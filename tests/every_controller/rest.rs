//! At rest a controller sends only Lease renewals. After a restart it reads all objects and writes nothing.

use std::{collections::BTreeMap, fs, time::Duration};

use api::controllers::{CONTROLLERS, Controller};
use jiff::Timestamp;
use kube::{
    Api,
    api::{DynamicObject, ListParams},
};
use local_cluster::{
    Cluster,
    api_server::{
        audit::Event,
        install::{DEFAULT_NAMESPACE, apply},
    },
    controller::admin,
};
use tests::{Scene, ask_until, table::life_of, until_renewed, wait_for, within, workspace};

use crate::{cluster_of, for_every_controller, user};

const MINUTE: Duration = Duration::from_secs(60);
/// Renewals of two seconds: the time is counted in renewals and checked with the audit log.
const RENEWALS_OF_A_MINUTE: usize = 32;
/// A status whose numbers alone are new is written up to 30 s after the last one.
const RENEWALS_UNTIL_NUMBERS_ARE_WRITTEN: usize = 17;

#[tokio::test]
async fn for_a_minute_nothing_is_sent_and_a_restart_writes_nothing() {
    for_every_controller(async |controller| {
        let name = controller.name;
        let cluster = cluster_of(controller).await;
        let scene = Scene::new(&cluster).await;
        let sample = controller.kinds[0].resource();
        let life = life_of(controller);
        for other in CONTROLLERS.iter().filter(|other| life.samples_of.contains(&other.name)) {
            cluster.start_controller(&tests::controller(other.name)).await.unwrap();
            apply_samples(other, &scene).await;
        }
        apply_samples(controller, &scene).await;
        (life.settle)(&scene).await;
        let objects = count(controller, &scene).await;

        until_numbers_are_written(controller, &scene, &cluster).await;
        let before = requests(controller, &cluster).len();
        until_renewed(&scene, name, RENEWALS_OF_A_MINUTE).await;
        let minute = requests(controller, &cluster).split_off(before);
        let received = |event: &Event| event.received.parse::<Timestamp>().unwrap();
        let (first, last) = (minute.iter().map(received).min(), minute.iter().map(received).max());
        let passed = last.unwrap().duration_since(first.unwrap());
        assert!(passed >= MINUTE.try_into().unwrap(), "only {passed:?}");
        let mut counted = by_verb_and_resource(&minute);
        let renewals = counted.get("update leases/").copied().unwrap_or_default();
        assert!(renewals >= 30, "the controller has another name, or stood still: {counted:?}");
        // Reopened watches and Lease requests are not counted.
        counted.retain(|request, _| !request.starts_with("watch ") && !request.ends_with(" leases/"));
        // A kind that is not installed is looked for twice a minute.
        for request in minute.iter().filter(|event| event.verb == "list" && event.code == Some(404)) {
            let looked = counted.entry(format!("list {}/", request.resource)).or_default();
            *looked = looked.saturating_sub(1);
        }
        counted.retain(|_, count| *count > 0);
        let named =
            |event: &Event| format!("{} {} {}/{}", event.received, event.verb, event.resource, event.name);
        let of_all =
            || minute.iter().filter(|event| event.resource != "leases").map(named).collect::<Vec<_>>();
        assert_eq!(counted, BTreeMap::new(), "at rest: {:#?}", of_all());

        let before = requests(controller, &cluster).len();
        cluster.kill_component(name).await.unwrap();
        until_reconciled(&cluster, name, objects).await;
        until_renewed(&scene, name, 2).await;
        let mut counted = by_verb_and_resource(&requests(controller, &cluster).split_off(before));
        let listed = counted.remove(&format!("list {}/", sample.plural));
        assert!(listed.is_some(), "it has not started anew: {counted:?}");
        counted.retain(|request, _| {
            let reads = ["get ", "list ", "watch "].iter().any(|verb| request.starts_with(verb));
            !reads && !request.ends_with(" leases/")
        });
        assert_eq!(counted, BTreeMap::new(), "after a restart");
    })
    .await;
}

/// Applies every sample of the controller's kinds and waits until all are done.
async fn apply_samples(controller: &Controller, scene: &Scene<'_>) {
    for kind in controller.kinds {
        let resource = kind.resource();
        let objects: Api<DynamicObject> = Api::namespaced_with(scene.client(), DEFAULT_NAMESPACE, &resource);
        for sample in kind.samples {
            let yaml = fs::read_to_string(workspace().join("deploy/samples").join(sample)).unwrap();
            let applied = apply(&scene.client(), DEFAULT_NAMESPACE, &yaml).await.unwrap();
            let is_of_kind = |object: &&DynamicObject| {
                object.types.as_ref().is_some_and(|types| types.kind == resource.kind)
            };
            for object in applied.iter().filter(is_of_kind) {
                let name = object.metadata.name.as_deref().unwrap();
                wait_for(&objects, name, kind.done, within(), |object| kind.is_done(object)).await;
            }
        }
    }
}

/// Waits until nothing was written for as long as a number may wait for its write.
async fn until_numbers_are_written(controller: &Controller, scene: &Scene<'_>, cluster: &Cluster) {
    let writes = || {
        let mut events = requests(controller, cluster);
        events.retain(|event| {
            event.resource != "leases" && !["get", "list", "watch"].contains(&event.verb.as_str())
        });
        events.len()
    };
    let attempts = 4;
    for _ in 0..attempts {
        let before = writes();
        until_renewed(scene, controller.name, RENEWALS_UNTIL_NUMBERS_ARE_WRITTEN).await;
        if writes() == before {
            return;
        }
    }
    panic!("{} has written in each of {attempts} half minutes", controller.name);
}

/// The number of objects of the controller's kinds.
async fn count(controller: &Controller, scene: &Scene<'_>) -> usize {
    let mut count = 0;
    for kind in controller.kinds {
        let objects: Api<DynamicObject> = Api::all_with(scene.client(), &kind.resource());
        count += objects.list(&ListParams::default()).await.unwrap().items.len();
    }
    count
}

/// Waits until the present process has reconciled `objects` objects and its queue is empty.
async fn until_reconciled(cluster: &Cluster, name: &str, objects: usize) {
    ask_until("a controller that has started anew", within(), async || {
        let page = cluster.metrics(name).await.unwrap_or_default();
        let reconciles = format!("controller_runtime_reconcile_total{{controller=\"{name}\"");
        assert_eq!(admin::sum(&page, &format!("{reconciles},result=\"error\"")), 0.0, "{page}");
        let is_done =
            admin::sum(&page, &reconciles) >= objects as f64 && admin::sum(&page, "workqueue_depth") == 0.0;
        if is_done { Ok(()) } else { Err(page) }
    })
    .await;
}

/// Every request of the controller.
fn requests(controller: &Controller, cluster: &Cluster) -> Vec<Event> {
    let user = user(controller, "ai-system");
    let mut events = cluster.audit_events().unwrap();
    events.retain(|event| event.user == user);
    events
}

fn by_verb_and_resource(events: &[Event]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in events {
        *counts.entry(format!("{} {}/{}", event.verb, event.resource, event.subresource)).or_default() += 1;
    }
    counts
}
