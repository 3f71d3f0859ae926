//! What there is in a namespace, in a form in which two lives can be compared: without identities and times.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::labels;
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, PartialObjectMeta, WatchEvent, WatchParams},
};
use serde_json::{Map, Value, json};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::Scene;

/// The objects of a controller, and the pods; by the path of what they are.
pub(super) type World = BTreeMap<String, Value>;

/// Looks at these collections. Of the objects that own the others, the status counts too.
pub(super) async fn look(
    scene: &Scene<'_>,
    collections: &BTreeSet<String>,
    roots: &str,
    measured: &'static [&'static str],
    pods: &Pods,
) -> Result<World, String> {
    let mut listed = Vec::new();
    for collection in collections.iter().filter(|collection| !collection.ends_with("/events")) {
        let is_root = collection.rsplit('/').next() == Some(roots);
        let objects = list(scene, &collection.replace(ANY, scene.namespace())).await?;
        listed.push((collection, is_root, objects));
    }
    let all_roots = listed.iter().filter(|(_, is_root, _)| *is_root).flat_map(|(_, _, objects)| objects);
    let uids = all_roots.filter_map(|root| root["metadata"]["uid"].as_str().map(str::to_owned));
    let nodes = list(scene, "/api/v1/nodes").await?;
    let nodes = nodes.iter().filter_map(|node| node["metadata"]["name"].as_str().map(str::to_owned));
    let masks = Masks {
        namespace: scene.namespace().to_owned(),
        nodes: nodes.collect(),
        pods: pods.named(scene.namespace()),
        roots: uids.collect(),
        measured,
    };
    let mut world = World::new();
    for (collection, is_root, objects) in &listed {
        for object in objects.iter().filter(|object| *is_root || is_child(object)) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            world.insert(format!("{collection}/{name}"), seen(object, *is_root, &masks));
        }
    }
    let pods = list(scene, &format!("/api/v1/namespaces/{}/pods", scene.namespace())).await?;
    let mut states: Vec<String> = pods.iter().map(pod_state).collect();
    states.sort();
    if !states.is_empty() {
        world.insert("pods".to_owned(), json!(states));
    }
    Ok(world)
}

/// Stands for the namespace in paths of collections.
pub(super) const ANY: &str = "*";

/// How the one differs from the other, line by line; empty where it does not.
pub(super) fn difference(wanted: &World, there: &World) -> String {
    let mut lines = String::new();
    let paths: BTreeSet<&String> = wanted.keys().chain(there.keys()).collect();
    for path in paths {
        differ(path, wanted.get(path), there.get(path), &mut lines);
    }
    lines
}

fn differ(path: &str, wanted: Option<&Value>, there: Option<&Value>, lines: &mut String) {
    match (wanted, there) {
        (wanted, there) if wanted == there => {}
        (Some(Value::Object(wanted)), Some(Value::Object(there))) => {
            let fields: BTreeSet<&String> = wanted.keys().chain(there.keys()).collect();
            for field in fields {
                differ(&format!("{path}.{field}"), wanted.get(field), there.get(field), lines);
            }
        }
        (Some(Value::Array(wanted)), Some(Value::Array(there))) if wanted.len() == there.len() => {
            for (index, (wanted, there)) in wanted.iter().zip(there).enumerate() {
                differ(&format!("{path}[{index}]"), Some(wanted), Some(there), lines);
            }
        }
        (wanted, there) => {
            let shown = |value: Option<&Value>| value.map_or("(nothing)".to_owned(), Value::to_string);
            let _ = writeln!(lines, "  {path}: {} instead of {}", shown(there), shown(wanted));
        }
    }
}

async fn list(scene: &Scene<'_>, path: &str) -> Result<Vec<Value>, String> {
    let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
    let mut list: Value =
        scene.client().request(request).await.map_err(|error| format!("{path}: {error}"))?;
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        _ => Ok(Vec::new()),
    }
}

/// Kubernetes puts objects of its own into every namespace.
fn is_child(object: &Value) -> bool {
    let metadata = &object["metadata"];
    metadata["ownerReferences"].is_array() || metadata["labels"][labels::MANAGED_BY].is_string()
}

fn pod_state(pod: &Value) -> String {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let is_ready = conditions.into_iter().any(|found| found["type"] == "Ready" && found["status"] == "True");
    let leaves = pod["metadata"]["deletionTimestamp"].is_string();
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    format!("{phase}{}{}", if is_ready { ", ready" } else { "" }, if leaves { ", leaving" } else { "" })
}

/// What is replaced, as it differs from life to life.
struct Masks {
    namespace: String,
    /// Names of the nodes; the scheduler chooses among them.
    nodes: BTreeSet<String>,
    /// Names of the pods that the namespace has had.
    pods: BTreeSet<String>,
    /// The uids of the present roots. A deleted root of the same name has another uid, and what it owns is deleted with it.
    roots: BTreeSet<String>,
    /// Fields whose values are left out.
    measured: &'static [&'static str],
}

fn seen(object: &Value, is_root: bool, masks: &Masks) -> Value {
    let metadata = &object["metadata"];
    let mut kept = Map::new();
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        kept.insert(field.to_owned(), metadata[field].clone());
    }
    kept.insert("leaves".to_owned(), json!(metadata["deletionTimestamp"].is_string()));
    if let Some(fields) = object.as_object() {
        for (field, value) in fields {
            let of_others = field == "status" && !is_root;
            if !of_others && !["metadata", "apiVersion", "kind"].contains(&&**field) {
                kept.insert(field.clone(), value.clone());
            }
        }
    }
    masked(&Value::Object(kept), masks)
}

/// Fields whose values differ from object to object, and the hash of all that was applied, which is made of such.
const IDENTITIES: [&str; 10] = [
    "resourceVersion",
    // Kubernetes counts: an edit that is taken back before its Deployment controller has seen it has no number.
    "deployment.kubernetes.io/revision",
    "clusterIP",
    "clusterIPs",
    "volumeName",
    // Of a claim whose volume was there before the volume controller had looked for one, there are none.
    "volume.beta.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/storage-provisioner",
    "controller-uid",
    "batch.kubernetes.io/controller-uid",
    labels::APPLIED,
];

/// Whether something is owned by an object of this kind and name that was deleted since.
pub(super) fn has_children_of_before(world: &World, kind: &str, name: &str) -> bool {
    let owners = world.values().flat_map(|object| object["ownerReferences"].as_array());
    owners
        .flatten()
        .any(|owner| owner["kind"] == kind && owner["name"] == name && owner["uid"] == "(another)")
}

fn masked(value: &Value, masks: &Masks) -> Value {
    match value {
        Value::Object(fields) => {
            let is_compared = |field: &str| !IDENTITIES.contains(&field) && !masks.measured.contains(&field);
            let kept = fields.iter().filter(|(field, _)| is_compared(field));
            let kept = kept.map(|(field, value)| match (field.as_str(), value) {
                ("uid" | labels::MADE_FOR, Value::String(uid)) => {
                    let role = if masks.roots.contains(uid) { "(its root)" } else { "(another)" };
                    (field.clone(), json!(role))
                }
                _ => (field.clone(), masked(value, masks)),
            });
            kept.collect()
        }
        Value::Array(items) => items.iter().map(|item| masked(item, masks)).collect(),
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() => json!("(a time)"),
        Value::String(text) => {
            let mut text = text.replace(&masks.namespace, ANY);
            if text.contains('-') {
                for pod in &masks.pods {
                    text = text.replace(pod, "(a pod)");
                }
                // The last one first: gpu-10 before gpu-1.
                for node in masks.nodes.iter().rev() {
                    text = text.replace(node, "(a node)");
                }
                for root in &masks.roots {
                    text = text.replace(root, "(its root)");
                }
            }
            json!(text)
        }
        other => other.clone(),
    }
}

/// For so long the watch of the pods may fail without an event in between.
const REOPENS_WITHIN: Duration = Duration::from_secs(60);
const REOPEN_AFTER: Duration = Duration::from_millis(500);

/// Every pod that was ever made, in all namespaces.
pub(super) struct Pods {
    made: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>,
    broken: Arc<Mutex<Option<String>>>,
    task: JoinHandle<()>,
}

impl Pods {
    pub(super) fn follow(client: Client) -> Self {
        let made = Arc::<Mutex<BTreeMap<_, _>>>::default();
        let broken = Arc::<Mutex<Option<String>>>::default();
        let task = tokio::spawn({
            let (made, broken) = (Arc::clone(&made), Arc::clone(&broken));
            async move {
                let Err(error) = follow(&Api::all(client), &made).await;
                *locked(&broken) = Some(error.to_string());
            }
        });
        Self { made, broken, task }
    }

    /// Names of those that this namespace has had; no two pods have the same name.
    pub(super) fn named(&self, namespace: &str) -> BTreeSet<String> {
        locked(&self.made).get(namespace).cloned().unwrap_or_default()
    }

    /// How many this namespace has had.
    pub(super) fn made(&self, namespace: &str) -> Result<usize, String> {
        match &*locked(&self.broken) {
            Some(error) => Err(format!("the watch of the pods broke: {error}")),
            None => Ok(self.named(namespace).len()),
        }
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Made = Mutex<BTreeMap<String, BTreeSet<String>>>;

async fn follow(pods: &Api<Pod>, made: &Made) -> Result<std::convert::Infallible, kube::Error> {
    let note = |pod: &PartialObjectMeta<Pod>| {
        let namespace = pod.namespace().unwrap_or_default();
        locked(made).entry(namespace).or_default().insert(pod.name_any());
    };
    let list = pods.list_metadata(&ListParams::default()).await?;
    list.items.iter().for_each(note);
    let mut version = list.metadata.resource_version.unwrap_or_default();
    let mut fails_since = None;
    loop {
        let watched = async {
            let events = pods.watch_metadata(&WatchParams::default(), &version).await?;
            futures::pin_mut!(events);
            while let Some(event) = events.try_next().await? {
                if !matches!(event, WatchEvent::Error(_)) {
                    fails_since = None;
                }
                match event {
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) | WatchEvent::Deleted(pod) => {
                        version = pod.resource_version().unwrap_or_default();
                        note(&pod);
                    }
                    WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                    WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
                }
            }
            Ok(())
        };
        if let Err(error) = watched.await {
            let since = *fails_since.get_or_insert_with(Instant::now);
            if misses_events(&error) || since.elapsed() > REOPENS_WITHIN {
                return Err(error);
            }
            sleep(REOPEN_AFTER).await;
        }
    }
}

/// A watch cannot continue from its last version; after every other error it can.
fn misses_events(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_identities_do_not_count_and_everything_else_does() {
        let object = |uid: &str, time: &str, image: &str| {
            json!({
                "metadata": {"name": "chat", "uid": uid, "annotations": {labels::APPLIED: uid}},
                "spec": {"image": image},
                "status": {"since": time, "measured": uid, "message": format!("pod chat-{uid} of test-{uid} on gpu-1{uid} waits")},
            })
        };
        let world = |uid: &str, time: &str, image: &str| {
            let masks = Masks {
                namespace: format!("test-{uid}"),
                nodes: ["gpu-1", "gpu-11", "gpu-12"].map(str::to_owned).into(),
                pods: BTreeSet::from([format!("chat-{uid}")]),
                roots: BTreeSet::from([uid.to_owned()]),
                measured: &["measured"],
            };
            World::from([("chat".to_owned(), seen(&object(uid, time, image), true, &masks))])
        };
        let first = world("1", "2026-01-02T03:04:05Z", "engine:1");
        assert_eq!(difference(&first, &world("2", "2026-02-03T04:05:06Z", "engine:1")), "");
        let other = difference(&first, &world("2", "2026-02-03T04:05:06Z", "engine:2"));
        assert_eq!(other, "  chat.spec.image: \"engine:2\" instead of \"engine:1\"\n");
        assert!(difference(&first, &World::new()).starts_with("  chat: (nothing) instead of {"));
    }

    #[test]
    fn only_an_expired_version_ends_the_watch_of_the_pods() {
        let answered = |code| kube::Error::Api(kube::core::Status::failure("", "").with_code(code).boxed());
        assert!(misses_events(&answered(410)));
        assert!(!misses_events(&answered(500)));
        assert!(!misses_events(&kube::Error::Service("connection reset".into())));
    }

    #[test]
    fn children_of_an_object_that_was_deleted_are_known_by_its_uid() {
        let world = |uid: &str| {
            let owner = json!({"kind": "ModelEvaluation", "name": "life", "uid": uid});
            World::from([("claims/life".to_owned(), json!({"ownerReferences": [owner]}))])
        };
        assert!(has_children_of_before(&world("(another)"), "ModelEvaluation", "life"));
        assert!(!has_children_of_before(&world("(its root)"), "ModelEvaluation", "life"));
        assert!(!has_children_of_before(&world("(another)"), "ReplicaSet", "life"));
    }

    #[test]
    fn a_child_of_a_deleted_root_differs_from_a_child_of_the_present_one() {
        let seen_of = |owner: &str, root: &str| {
            let child =
                json!({"metadata": {"name": "chat", "ownerReferences": [{"name": "chat", "uid": owner}]}});
            let masks = Masks {
                namespace: "test".to_owned(),
                nodes: BTreeSet::new(),
                pods: BTreeSet::new(),
                roots: BTreeSet::from([root.to_owned()]),
                measured: &[],
            };
            seen(&child, false, &masks)
        };
        assert_eq!(seen_of("1", "1"), seen_of("2", "2"));
        assert_ne!(seen_of("1", "2"), seen_of("2", "2"));
    }
}
