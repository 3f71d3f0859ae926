//! What we answer: the engine's own paths for probes, metrics and inference, and `/model` for tests.

use std::{
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{self, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    behaviour::Behaviour,
    invocation::{Engine, Invocation},
    metrics::{self, Counts},
    model::Model,
};

/// What every request may look at.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) invocation: Invocation,
    pub(crate) behaviour: Behaviour,
    /// Set when the model was read and we have warmed up.
    pub(crate) model: OnceLock<Model>,
    /// Taken back by a fault.
    pub(crate) unready: AtomicBool,
    running: AtomicU64,
    succeeded: AtomicU64,
    refused: AtomicU64,
}

impl Serving {
    pub(crate) fn new(invocation: Invocation, behaviour: Behaviour) -> Arc<Self> {
        Arc::new(Self {
            invocation,
            behaviour,
            model: OnceLock::new(),
            unready: AtomicBool::new(false),
            running: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    fn name(&self) -> &str {
        self.invocation.served_model_name.as_deref().unwrap_or("model")
    }

    fn refuse(&self, status: StatusCode, why: &str) -> Response {
        self.refused.fetch_add(1, Ordering::Relaxed);
        (status, Json(json!({ "error": why, "pod": self.behaviour.pod }))).into_response()
    }
}

/// All paths of the main port.
pub(crate) fn router(serving: &Arc<Serving>) -> Router {
    let router = Router::new().route("/model", get(model));
    let router = match serving.invocation.engine {
        Engine::Vllm => router
            .route("/health", get(ready))
            .route("/v1/models", get(models))
            .route("/v1/completions", post(complete))
            .route("/v1/chat/completions", post(complete))
            .route("/metrics", get(metrics)),
        Engine::Triton => router
            .route("/v2/health/ready", get(ready))
            .route("/v2/health/live", get(async || StatusCode::OK))
            .route("/v2/models/{model}/ready", get(ready))
            .route("/v2/models/{model}/infer", post(infer)),
        Engine::Tgi => router
            .route("/health", get(ready))
            .route("/generate", post(complete))
            .route("/v1/chat/completions", post(complete))
            .route("/metrics", get(metrics)),
    };
    router.with_state(Arc::clone(serving))
}

/// Those of a port for metrics alone.
pub(crate) fn metrics_router(serving: &Arc<Serving>) -> Router {
    Router::new().route("/metrics", get(metrics)).with_state(Arc::clone(serving))
}

async fn ready(State(serving): State<Arc<Serving>>) -> StatusCode {
    if serving.model.get().is_some() && !serving.unready.load(Ordering::Relaxed) {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

async fn model(State(serving): State<Arc<Serving>>) -> Response {
    match serving.model.get() {
        Some(model) => Json(model).into_response(),
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

async fn models(State(serving): State<Arc<Serving>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [{ "id": serving.name(), "object": "model" }] }))
}

async fn metrics(State(serving): State<Arc<Serving>>) -> String {
    let counts = Counts {
        running: serving.running.load(Ordering::Relaxed),
        succeeded: serving.succeeded.load(Ordering::Relaxed),
        refused: serving.refused.load(Ordering::Relaxed),
    };
    metrics::text(serving.invocation.engine, serving.name(), counts)
}

async fn complete(State(serving): State<Arc<Serving>>, body: Bytes) -> Response {
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        return serving.refuse(StatusCode::BAD_REQUEST, "the body is no JSON");
    };
    // vLLM knows its model by one name; TGI has one model and does not ask.
    if let (Some(wanted), Some(ours)) = (request["model"].as_str(), &serving.invocation.served_model_name)
        && wanted != ours
    {
        return serving.refuse(StatusCode::NOT_FOUND, &format!("the model `{wanted}` does not exist"));
    }
    answer(&serving).await
}

async fn infer(State(serving): State<Arc<Serving>>, extract::Path(name): extract::Path<String>) -> Response {
    let is_a_name = Path::new(&name).components().count() == 1 && !name.starts_with('.');
    if !is_a_name || !serving.invocation.model_path.join(&name).is_dir() {
        return serving.refuse(StatusCode::BAD_REQUEST, &format!("request for unknown model: '{name}'"));
    }
    answer(&serving).await
}

/// Takes its time and says who answered.
async fn answer(serving: &Serving) -> Response {
    if serving.model.get().is_none() {
        return serving.refuse(StatusCode::SERVICE_UNAVAILABLE, "the model is not loaded");
    }
    let Behaviour { answer, pod, revision, .. } = &serving.behaviour;
    let _running = Running::begin(&serving.running);
    sleep(*answer).await;
    serving.succeeded.fetch_add(1, Ordering::Relaxed);
    let choice = json!({ "index": 0, "text": "tested", "finish_reason": "stop" });
    let model = serving.name();
    Json(json!({ "model": model, "choices": [choice], "pod": pod, "revision": revision })).into_response()
}

/// A request in flight; also one whose client went away is counted down.
struct Running<'a>(&'a AtomicU64);

impl<'a> Running<'a> {
    fn begin(running: &'a AtomicU64) -> Self {
        running.fetch_add(1, Ordering::Relaxed);
        Self(running)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
