//! A stand-in for the controller of a Gateway: it accepts every route of one kind in a namespace, and remembers what they said.
//!
//! It checks nothing of the data plane. Requests through a real gateway are not its part.

use std::sync::{Arc, Mutex, PoisonError};

use futures::TryStreamExt as _;
use jiff::Timestamp;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use local_cluster::gateway::{GRPC_ROUTES, HTTP_ROUTES, INFERENCE_POOLS};
use serde_json::{Value, json};

use crate::{Scene, ask_until, scaler::install_kind, within};

pub mod contour;
pub mod invariants;
pub mod order;
pub mod record;

/// Ends with its test.
pub struct Gateway {
    task: tokio::task::JoinHandle<()>,
    seen: Arc<Mutex<Vec<Version>>>,
    answer: Arc<Mutex<Value>>,
}

/// One stored version of a route.
#[derive(Clone, Debug)]
pub struct Version {
    pub name: String,
    pub generation: i64,
    /// Percent of stable and of the candidate; `None`: the rule does not name the candidate.
    pub weights: (i64, Option<i64>),
    pub route: DynamicObject,
}

impl Version {
    fn of(route: &DynamicObject) -> Self {
        let rules = route.data["spec"]["rules"].as_array().cloned().unwrap_or_default();
        let refs = rules.last().and_then(|rule| rule["backendRefs"].as_array()).cloned().unwrap_or_default();
        let weight = |index: usize| refs.get(index).and_then(|known: &Value| known["weight"].as_i64());
        Self {
            name: route.metadata.name.clone().unwrap_or_default(),
            generation: route.metadata.generation.unwrap_or_default(),
            weights: (weight(0).unwrap_or_default(), weight(1)),
            route: route.clone(),
        }
    }

    /// Also after another status.
    fn is_same_as(&self, other: &Self) -> bool {
        self.route.metadata.uid == other.route.metadata.uid && self.generation == other.generation
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn routes(scene: &Scene<'_>) -> Api<DynamicObject> {
    of_kind(scene, "gateway.networking.k8s.io", "HTTPRoute")
}

pub fn grpc_routes(scene: &Scene<'_>) -> Api<DynamicObject> {
    of_kind(scene, "gateway.networking.k8s.io", "GRPCRoute")
}

pub fn pools(scene: &Scene<'_>) -> Api<DynamicObject> {
    of_kind(scene, "inference.networking.k8s.io", "InferencePool")
}

fn of_kind(scene: &Scene<'_>, group: &str, kind: &str) -> Api<DynamicObject> {
    let kind = ApiResource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{group}/v1"),
        kind: kind.to_owned(),
        plural: format!("{}s", kind.to_lowercase()),
    };
    Api::namespaced_with(scene.client(), scene.namespace(), &kind)
}

pub async fn install(scene: &Scene<'_>) {
    install_as(scene, HTTP_ROUTES, &routes(scene)).await;
}

/// Also the kinds that few objects need.
pub async fn install_all(scene: &Scene<'_>) {
    install(scene).await;
    install_as(scene, GRPC_ROUTES, &grpc_routes(scene)).await;
    install_pools(scene).await;
}

pub async fn install_pools(scene: &Scene<'_>) {
    install_as(scene, INFERENCE_POOLS, &pools(scene)).await;
}

async fn install_as(scene: &Scene<'_>, crd: &str, objects: &Api<DynamicObject>) {
    let crd: Value = serde_saphyr::from_str(crd).expect("a CRD");
    install_kind(scene, &crd).await;
    // The API server prepares the storage of a new kind.
    ask_until("the kind is served", within(), async || objects.list(&ListParams::default()).await).await;
}

impl Gateway {
    /// Installs the kind, and answers for each Gateway that a route of the namespace names.
    pub async fn start(scene: &Scene<'_>) -> Self {
        install(scene).await;
        Self::of(routes(scene))
    }

    /// As `start`, for GRPCRoutes.
    pub async fn of_calls(scene: &Scene<'_>) -> Self {
        install_as(scene, GRPC_ROUTES, &grpc_routes(scene)).await;
        Self::of(grpc_routes(scene))
    }

    fn of(routes: Api<DynamicObject>) -> Self {
        let seen = Arc::<Mutex<Vec<Version>>>::default();
        let answer = Arc::new(Mutex::new(json!({"Accepted": "True", "ResolvedRefs": "True"})));
        let task = tokio::spawn(answering(routes, Arc::clone(&seen), Arc::clone(&answer)));
        Self { task, seen, answer }
    }

    /// The status of conditions that routes get from their next version on. With `null` there is no answer.
    pub fn answers(&self, conditions: Value) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = conditions;
    }

    /// All versions that differ in their spec.
    pub fn versions(&self) -> Vec<Version> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn answering(routes: Api<DynamicObject>, seen: Arc<Mutex<Vec<Version>>>, answer: Arc<Mutex<Value>>) {
    let mut from = "0".to_owned();
    loop {
        let events = routes.watch(&WatchParams::default(), &from).await.expect("a watch of routes");
        futures::pin_mut!(events);
        while let Some(event) = events.try_next().await.expect("a watch that does not break") {
            let (WatchEvent::Added(route) | WatchEvent::Modified(route)) = event else { continue };
            from = route.metadata.resource_version.clone().unwrap_or_default();
            note(&seen, &route);
            let answer = answer.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if !answer.is_null() {
                say(&routes, &route, &answer).await;
            }
        }
    }
}

fn note(seen: &Mutex<Vec<Version>>, route: &DynamicObject) {
    let version = Version::of(route);
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    if !seen.iter().any(|known| known.is_same_as(&version)) {
        seen.push(version);
    }
}

async fn say(routes: &Api<DynamicObject>, route: &DynamicObject, answer: &Value) {
    let generation = route.metadata.generation;
    let is_said = |parent: &Value| {
        let mut conditions = parent["conditions"].as_array().into_iter().flatten();
        conditions.all(|known| {
            known["observedGeneration"] == json!(generation)
                && answer[known["type"].as_str().unwrap_or_default()] == known["status"]
        })
    };
    let said = route.data["status"]["parents"].as_array();
    if said.is_some_and(|said| !said.is_empty() && said.iter().all(is_said)) {
        return;
    }
    let conditions = |answer: &Value| -> Vec<Value> {
        let condition = |(type_, status): (&String, &Value)| {
            json!({
                "type": type_, "status": status, "reason": "Tested", "message": "as the test says",
                "observedGeneration": generation, "lastTransitionTime": Timestamp::now().strftime("%FT%TZ").to_string(),
            })
        };
        answer.as_object().into_iter().flatten().map(condition).collect()
    };
    let parents = route.data["spec"]["parentRefs"].as_array().cloned().unwrap_or_default();
    let parents: Vec<Value> = parents
        .into_iter()
        .map(|parent| {
            json!({"parentRef": parent, "controllerName": "example.com/stand-in", "conditions": conditions(answer)})
        })
        .collect();
    let patch = Patch::Merge(json!({"status": {"parents": parents}}));
    let name = route.metadata.name.as_deref().unwrap_or_default();
    // A route that is deleted meanwhile needs no answer.
    let _ = routes.patch_status(name, &PatchParams::default(), &patch).await;
}
