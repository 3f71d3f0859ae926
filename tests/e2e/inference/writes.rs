//! The number of writes until a model is ready, counted in the audit log.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use local_cluster::api_server::audit::Event;
use serde_json::json;
use tests::{Scene, simulated};

use super::{create, until_ready, until_renewed};

const USER: &str = "system:serviceaccount:ai-system:inference-controller";
/// ConfigMap, Deployment, Service and PodDisruptionBudget, and the ConfigMap with what pods have loaded.
const CHILDREN: usize = 5;
/// The longest time for which the controller delays a status that reports the progress of a pod.
const STATUS_DELAY: Duration = Duration::from_secs(2);

#[tokio::test]
async fn one_replica_costs_its_children_two_statuses_and_one_event() {
    let written = written_until_ready(json!({})).await;
    assert_eq!(written.children, CHILDREN, "{:#?}", written.all);
    // One, if it is ready before the first status is due.
    assert!(
        written.statuses <= 2 + written.delays && written.events == 1 && written.reads == 0,
        "{} delays of a status: {:#?}",
        written.delays,
        written.all
    );
}

#[tokio::test]
async fn a_further_replica_costs_one_status_when_it_is_scheduled_and_one_when_it_is_ready() {
    let replicas = 3;
    let written = written_until_ready(json!({"replicas": replicas})).await;
    assert_eq!(written.children, CHILDREN, "{:#?}", written.all);
    // Several may be scheduled or ready at once, depending on the machine's load.
    assert!(
        written.statuses <= 3 + 2 * (replicas - 1) + written.delays
            && written.events == 1
            && written.reads == 0,
        "{} delays of a status: {:#?}",
        written.delays,
        written.all
    );
}

struct Written {
    children: usize,
    statuses: usize,
    events: usize,
    reads: usize,
    /// The number of times that `STATUS_DELAY` passed until the model was ready: each allows one more status.
    delays: usize,
    all: BTreeMap<String, usize>,
}

async fn written_until_ready(spec: serde_json::Value) -> Written {
    let scene = simulated().await;
    let began = Instant::now();
    create(&scene, "chat", spec).await;
    until_ready(&scene, "chat").await;
    let delays = usize::try_from(began.elapsed().as_secs() / STATUS_DELAY.as_secs()).unwrap();
    // By then all pending writes are done.
    until_renewed(&scene, 2).await;
    let events = scene.cluster().audit_events().unwrap();
    let written: Vec<&Event> = events.iter().filter(|event| is_of_the_controller(&scene, event)).collect();
    let count = |holds: &dyn Fn(&Event) -> bool| written.iter().filter(|event| holds(event)).count();
    let mut all = BTreeMap::new();
    for event in &written {
        *all.entry(format!("{} {}/{}", event.verb, event.resource, event.subresource)).or_default() += 1;
    }
    Written {
        children: count(&|event| event.verb == "patch" && event.subresource.is_empty()),
        statuses: count(&|event| event.subresource == "status"),
        events: count(&|event| event.resource == "events"),
        reads: count(&|event| event.verb == "get" || event.verb == "list"),
        delays,
        all,
    }
}

fn is_of_the_controller(scene: &Scene<'_>, event: &Event) -> bool {
    event.user == USER && event.namespace == scene.namespace()
}
