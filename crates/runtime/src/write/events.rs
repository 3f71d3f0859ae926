//! Kubernetes events: what a user reads in `kubectl describe`. Best effort: an event that cannot be written is logged
//! and counted, and fails nothing.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Client, Resource, api::PostParams, core::Request};
use tracing::warn;

use crate::{causes::with_causes, key::Key, metrics::Metrics, write::conditions::shortened};

/// One line for the user, with the reason of the condition that changed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Note {
    pub severity: Severity,
    /// CamelCase, a constant.
    pub reason: &'static str,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Severity {
    Normal,
    Warning,
}

/// Writes notes in the name of one controller.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    controller: &'static str,
    instance: String,
    metrics: Arc<Metrics>,
}

/// The API server's limit for a note.
const LONGEST_NOTE: usize = 1_024;

impl Recorder {
    pub fn new(client: Client, controller: &'static str, instance: String, metrics: Arc<Metrics>) -> Self {
        Self { client, controller, instance, metrics }
    }

    pub async fn publish<K>(&self, about: &K, note: &Note, now: Timestamp)
    where
        K: Resource<DynamicType = ()>,
    {
        let key = Key::of(about);
        if let Err(error) = self.send(self.event(about, note, now)).await {
            self.metrics.event_failed();
            let error = with_causes(&error);
            warn!(object = %key, reason = note.reason, error, "failed to write an event");
        }
    }

    fn event<K>(&self, about: &K, note: &Note, now: Timestamp) -> Event
    where
        K: Resource<DynamicType = ()>,
    {
        let meta = about.meta();
        let mut hasher = DefaultHasher::new();
        (&meta.uid, note.reason, &note.message, now.as_nanosecond()).hash(&mut hasher);
        let name = format!("{}.{:016x}", meta.name.as_deref().unwrap_or_default(), hasher.finish());
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                // An event about a cluster-scoped object lives in the namespace default.
                namespace: Some(meta.namespace.clone().unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            type_: Some(format!("{:?}", note.severity)),
            reason: Some(note.reason.to_owned()),
            note: Some(shortened(&note.message, LONGEST_NOTE)),
            action: Some("Reconcile".to_owned()),
            regarding: Some(ObjectReference {
                api_version: Some(K::api_version(&()).into_owned()),
                kind: Some(K::kind(&()).into_owned()),
                name: meta.name.clone(),
                namespace: meta.namespace.clone(),
                uid: meta.uid.clone(),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(self.controller.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
    }

    async fn send(&self, event: Event) -> Result<(), kube::Error> {
        let path = Event::url_path(&(), event.metadata.namespace.as_deref());
        let body = serde_json::to_vec(&event).map_err(kube::Error::SerdeError)?;
        let mut request =
            Request::new(path).create(&PostParams::default(), body).map_err(kube::Error::BuildRequest)?;
        request.extensions_mut().insert("create");
        self.client.request_text(request).await.map(drop)
    }
}
