//! Waits by watching, and by polling where watching is not possible. At the deadline they panic with the last state.

use std::{
    collections::BTreeMap,
    fmt::{Debug, Display},
    fs,
    time::Duration,
};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
};
use local_cluster::{Cluster, ComponentStatus, explained};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep};

use kstatus::assert_kstatus;

mod kstatus;

/// Polling interval.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The default deadline, long enough for a loaded machine, and for the garbage collector, which pauses up to a minute while
/// a kind is installed.
pub fn within() -> Duration {
    Duration::from_secs(120)
}

/// Waits until the condition is true for the object and returns the object; panics with its last state.
pub async fn wait_for<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    deadline: Duration,
    mut holds: impl FnMut(&K) -> bool,
) -> K
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    let mut look = |object: &K| {
        agrees_with_kstatus(object);
        holds(object)
    };
    let seen = local_cluster::api_server::watch::wait_for(api, name, deadline, |object| {
        object.is_some_and(&mut look)
    })
    .await;
    match seen {
        Ok(Some(object)) => object,
        Ok(None) => panic!("{name} is gone, instead of: {what}"),
        Err(late) => {
            let reason = explained(&late);
            let last = late.last_seen.as_deref().map_or("it was not there".to_owned(), shown);
            panic!("waited in vain for {name}: {what} ({reason}); last seen:\n{last}")
        }
    }
}

/// Waits until the object is deleted; panics with its last state.
pub async fn wait_until_gone<K>(api: &Api<K>, name: &str, deadline: Duration)
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    let gone =
        local_cluster::api_server::watch::wait_for(api, name, deadline, |object| object.is_none()).await;
    if let Err(late) = gone {
        let last = late.last_seen.as_deref().map_or("it could not be seen".to_owned(), shown);
        panic!("waited in vain for {name} to go; last seen:\n{last}")
    }
}

/// Whether a pod is Ready.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Polls until the result is accepted and returns it; panics with the last rejected one. Only where watching is not
/// possible: processes, files, metrics, an API server that is down.
pub async fn ask_until<T, E: Display>(
    what: &str,
    deadline: Duration,
    mut ask: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(other) if began.elapsed() > deadline => {
                panic!("waited in vain: {what}; the last answer: {other}")
            }
            Err(_) => sleep(ASK_AGAIN_AFTER).await,
        }
    }
}

/// Waits until the condition is true for a process of the cluster.
pub async fn until_component(
    cluster: &Cluster,
    name: &str,
    what: &str,
    holds: impl Fn(&ComponentStatus) -> bool,
) -> ComponentStatus {
    ask_until(&format!("{name}: {what}"), within(), async || {
        let status = cluster.status().await.map_err(|error| explained(&error))?;
        let component = status.components.into_iter().find(|component| component.name == name);
        let component = component.ok_or_else(|| format!("there is no {name}"))?;
        if holds(&component) {
            return Ok(component);
        }
        let log = fs::read_to_string(cluster.folder().log(name)).unwrap_or_default();
        Err(format!("{component:?}; its log:\n{log}"))
    })
    .await
}

/// Calls `look` with all objects with these labels, by uid, now and after each change, until it returns a value. No change
/// is skipped: a broken watch is a panic. The caller sets the deadline.
pub async fn follow<K, T>(
    api: &Api<K>,
    labels: &str,
    mut look: impl FnMut(&BTreeMap<String, K>) -> Option<T>,
) -> T
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let list = api.list(&ListParams::default().labels(labels)).await.expect("a list to begin with");
    let uid = |object: &K| object.meta().uid.clone().unwrap_or_default();
    let mut version = list.metadata.resource_version.unwrap_or_default();
    let mut all: BTreeMap<String, K> = list.items.into_iter().map(|object| (uid(&object), object)).collect();
    if let Some(found) = look(&all) {
        return found;
    }
    // The API server ends each watch after some minutes.
    loop {
        let events = api.watch(&WatchParams::default().labels(labels), &version).await.expect("a watch");
        futures::pin_mut!(events);
        while let Some(event) = events.try_next().await.expect("a watch that does not break") {
            let seen = |object: &K| object.meta().resource_version.clone().unwrap_or_default();
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    version = seen(&object);
                    all.insert(uid(&object), object);
                }
                WatchEvent::Deleted(object) => {
                    version = seen(&object);
                    all.remove(&uid(&object));
                }
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => panic!("the watch broke: {status:?}"),
            }
            if let Some(found) = look(&all) {
                return found;
            }
        }
    }
}

/// The kinds with the condition `Ready`, and a kind with `Complete` instead.
const KINDS_OF_KSTATUS: [&str; 5] =
    ["AIDispatcher", "AIInference", "AIScaler", "InferenceEndpoint", "ModelEvaluation"];

/// Checks every object of these kinds that a test watches with kstatus.
fn agrees_with_kstatus<K: Serialize>(object: &K) {
    let object = serde_json::to_value(object).expect("an object that the API server sent is JSON");
    if KINDS_OF_KSTATUS.iter().any(|kind| object["kind"] == *kind) {
        assert_kstatus(&object);
    }
}

/// Without the owners of its fields, which are longer than the object.
fn shown<K: Serialize>(object: &K) -> String {
    let text = serde_json::to_value(object).map_err(|error| error.to_string()).and_then(|mut value| {
        if let Some(metadata) = value.get_mut("metadata").and_then(serde_json::Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        serde_saphyr::to_string(&value).map_err(|error| error.to_string())
    });
    text.unwrap_or_else(|error| format!("(it cannot be shown: {error})"))
}
