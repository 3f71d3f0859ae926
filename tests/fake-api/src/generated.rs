//! A fake API server for benches: one paged list and one watch of ConfigMaps. Objects are generated when they are read, so
//! its memory does not grow with their number.

use std::{
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    call::{Call, Verb},
    server::Server,
    wire::{event_line, failure, list, streamed},
};

/// Serves until it is dropped.
pub struct GeneratedApi {
    server: Server,
    version: AtomicU64,
    events: mpsc::Sender<String>,
}

/// A ConfigMap of about 1.4 KB, half of it managed fields, like real ones.
pub struct Object {
    name: String,
    data: Value,
}

/// Maximum number of unread watch events; the writer waits for more room, as in a real API server.
const EVENTS_WAITING: usize = 64;
/// As large as real versions.
const FIRST_VERSION: u64 = 1_000_000;

struct Served {
    objects: u64,
    /// Taken by the first watch. A second watch is an error: the client must not have closed the first.
    events: Mutex<Option<mpsc::Receiver<String>>>,
}

impl GeneratedApi {
    pub async fn start(objects: u64) -> anyhow::Result<Self> {
        let (events, receiver) = mpsc::channel(EVENTS_WAITING);
        let served = Served { objects, events: Mutex::new(Some(receiver)) };
        let server = Server::start(move |call| Box::pin(std::future::ready(served.answer(&call))))
            .await
            .context("failed to listen on loopback")?;
        Ok(Self { server, version: AtomicU64::new(FIRST_VERSION + objects), events })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.server.address())
    }

    pub async fn add(&self, object: &Object) -> anyhow::Result<()> {
        self.send("ADDED", object).await
    }

    pub async fn modify(&self, object: &Object) -> anyhow::Result<()> {
        self.send("MODIFIED", object).await
    }

    /// For each number of the range, adds one object and deletes the oldest.
    pub async fn churn(&self, objects: u64, range: Range<u64>) -> anyhow::Result<()> {
        for number in range {
            self.send("ADDED", &Object::numbered(objects + number)).await?;
            self.send("DELETED", &Object::numbered(number)).await?;
        }
        Ok(())
    }

    async fn send(&self, event: &str, object: &Object) -> anyhow::Result<()> {
        let version = self.version.fetch_add(1, Ordering::Relaxed) + 1;
        let line = event_line(event, &object.rendered(version)) + "\n";
        self.events.send(line).await.context("the client has closed its watch")
    }
}

impl Object {
    pub fn numbered(number: u64) -> Self {
        Self { name: format!("object-{number:07}"), data: json!({"model": "x".repeat(400)}) }
    }

    /// An object by which the client reports its progress.
    pub fn marked(mark: &str) -> Self {
        Self { name: format!("mark-{mark}"), data: json!({"mark": mark}) }
    }

    /// Adds the present time, by which the client measures the age of the event at its reconcile.
    pub fn sent_now(mut self) -> anyhow::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
        self.data["sent"] = now.as_nanos().to_string().into();
        Ok(self)
    }

    fn rendered(&self, version: u64) -> Value {
        let Self { name, data } = self;
        let managed: Vec<Value> = ["kubectl", "bench-controller"]
            .map(|manager| {
                json!({
                    "manager": manager,
                    "operation": "Apply",
                    "apiVersion": "v1",
                    "time": "2026-01-01T00:00:00Z",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {
                        "f:data": {"f:model": {}, "f:engine": {}},
                        "f:metadata": {"f:labels": {
                            "f:app.kubernetes.io/name": {}, "f:app.kubernetes.io/instance": {},
                        }},
                    },
                })
            })
            .into();
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "namespace": "bench",
                "uid": format!("5f2d6d1c-0000-4000-8000-{name:>012}"),
                "resourceVersion": version.to_string(),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"app.kubernetes.io/name": "bench", "app.kubernetes.io/instance": name},
                "managedFields": managed,
            },
            "data": data,
        })
    }
}

impl Served {
    fn answer(&self, call: &Call) -> Response {
        match (call.verb, call.plural.as_str()) {
            (Verb::List, "configmaps") => self.page(call),
            (Verb::Watch, "configmaps") => self.watch(),
            (verb, plural) => failure(
                404,
                "NotFound",
                &format!("{verb:?} of {plural}: only ConfigMaps are listed and watched"),
            ),
        }
    }

    /// The continue token is the number of the next object.
    fn page(&self, call: &Call) -> Response {
        let number = |parameter: &str| call.query.get(parameter).and_then(|text| text.parse().ok());
        let first = number("continue").unwrap_or(0);
        let next = number("limit").map_or(self.objects, |limit: u64| self.objects.min(first + limit));
        let items: Vec<Value> =
            (first..next).map(|number| Object::numbered(number).rendered(FIRST_VERSION + number)).collect();
        let more = if next < self.objects { next.to_string() } else { String::new() };
        list("ConfigMap", FIRST_VERSION + self.objects, &more, items)
    }

    fn watch(&self) -> Response {
        let Some(events) = self.events.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return failure(410, "Expired", "only one watch is allowed");
        };
        let lines = futures::stream::unfold(events, async |mut events| {
            let line = events.recv().await?;
            Some((line, events))
        });
        streamed(lines).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_as_large_as_a_real_one() {
        let bytes = Object::numbered(7).rendered(1).to_string().len();
        assert!((1_200..1_600).contains(&bytes), "{bytes}");
    }
}
