//! An API server under load, for the bench: ConfigMaps alone, one list in pages, and one watch. It makes its objects as
//! they are read and keeps none, so that what it costs does not grow with their number.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use axum::{
    Router,
    extract::{Query, State},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};

use crate::answer::{answered, event_line, status, streamed};

/// Serves until it is dropped.
pub struct FakeApi {
    port: u16,
    version: AtomicU64,
    events: mpsc::Sender<String>,
    server: JoinHandle<()>,
}

/// One ConfigMap of about 1.4 KB, half of it managed fields, as real ones are.
pub struct Object {
    name: String,
    data: Value,
}

/// What of the watch is waiting to be read; then the writer waits, as a real API server's does.
const EVENTS_WAITING: usize = 64;
/// Real objects differ in their last digits, too.
const FIRST_VERSION: u64 = 1_000_000;

#[derive(Clone)]
struct Served {
    objects: u64,
    /// Taken by the first watch: a second one would mean that the engine has given the first up.
    events: Arc<Mutex<Option<mpsc::Receiver<String>>>>,
}

#[derive(Deserialize)]
struct Params {
    watch: Option<String>,
    limit: Option<u64>,
    #[serde(rename = "continue")]
    token: Option<u64>,
}

impl FakeApi {
    pub async fn start(objects: u64) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("failed to listen on loopback")?;
        let port = listener.local_addr().context("failed to find the port of the fake API server")?.port();
        let (sender, receiver) = mpsc::channel(EVENTS_WAITING);
        let served = Served { objects, events: Arc::new(Mutex::new(Some(receiver))) };
        let router = Router::new().route("/api/v1/configmaps", get(config_maps)).with_state(served);
        let server = tokio::spawn(async move {
            // It ends with an error only if the listener breaks, which the bench notices by its deadlines.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { port, version: AtomicU64::new(FIRST_VERSION + objects), events: sender, server })
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub async fn add(&self, object: &Object) -> anyhow::Result<()> {
        self.tell("ADDED", object).await
    }

    pub async fn modify(&self, object: &Object) -> anyhow::Result<()> {
        self.tell("MODIFIED", object).await
    }

    /// For each number of the range one object comes and the oldest goes, so that there are always as many.
    pub async fn churn(&self, objects: u64, range: Range<u64>) -> anyhow::Result<()> {
        for number in range {
            self.tell("ADDED", &Object::numbered(objects + number)).await?;
            self.tell("DELETED", &Object::numbered(number)).await?;
        }
        Ok(())
    }

    async fn tell(&self, what: &str, object: &Object) -> anyhow::Result<()> {
        let version = self.version.fetch_add(1, Ordering::Relaxed) + 1;
        let line = event_line(what, &object.rendered(version)) + "\n";
        self.events.send(line).await.context("the engine has closed its watch")
    }
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Object {
    pub fn numbered(number: u64) -> Self {
        Self { name: format!("object-{number:07}"), data: json!({"model": "x".repeat(400)}) }
    }

    /// The engine says when it has come to this one.
    pub fn marked(mark: &str) -> Self {
        Self { name: format!("mark-{mark}"), data: json!({"mark": mark}) }
    }

    /// The engine measures how old the event is when its reconcile begins.
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

async fn config_maps(State(served): State<Served>, Query(params): Query<Params>) -> Response {
    if params.watch.is_some() { watch(&served) } else { list(&served, &params) }
}

/// The continue token is the number of the next object.
fn list(served: &Served, params: &Params) -> Response {
    let first = params.token.unwrap_or(0);
    let next = params.limit.map_or(served.objects, |limit| served.objects.min(first + limit));
    let items: Vec<Value> =
        (first..next).map(|number| Object::numbered(number).rendered(FIRST_VERSION + number)).collect();
    let token = if next < served.objects { next.to_string() } else { String::new() };
    let version = (FIRST_VERSION + served.objects).to_string();
    let page = json!({
        "apiVersion": "v1",
        "kind": "ConfigMapList",
        "metadata": {"resourceVersion": version, "continue": token},
        "items": items,
    });
    answered(200, page.to_string())
}

fn watch(served: &Served) -> Response {
    let Some(events) = served.events.lock().unwrap_or_else(PoisonError::into_inner).take() else {
        return answered(410, status(410, "Expired", "there is one watch only").to_string());
    };
    let lines = futures::stream::unfold(events, async |mut events| {
        let line = events.recv().await?;
        Some((line, events))
    });
    streamed(lines).into_response()
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
