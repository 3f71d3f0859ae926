//! What the ports answer: the engine's own paths for probes, metrics and inference, and `/model` for tests.

pub(crate) mod calls;
mod restricted;
mod stream;

use std::{
    collections::BTreeMap,
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
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::{Instant, sleep},
};

use crate::{
    behaviour::{Behaviour, Fault},
    invocation::{Engine, Invocation},
    metrics::{self, Buckets, Counters, End},
    model::Model,
};

/// What every request may look at.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) invocation: Invocation,
    pub(crate) behaviour: Behaviour,
    /// Set when the model was read and the engine has warmed up.
    pub(crate) loaded: OnceLock<Loaded>,
    /// Taken back by a fault.
    pub(crate) unready: AtomicBool,
    /// Why new requests get 500.
    refuses: OnceLock<&'static str>,
    in_flight: watch::Sender<u64>,
    /// `crash-after-requests` notifies it once.
    pub(crate) crashes: Notify,
    /// Requests that run at a time; the others wait.
    slots: Option<Semaphore>,
}

/// What an engine has when it is ready.
#[derive(Debug)]
pub(crate) struct Loaded {
    model: Model,
    /// By the names that requests call them: one model, but for Triton.
    models: BTreeMap<String, Counters>,
}

impl Loaded {
    pub(crate) fn new(model: Model, names: Vec<String>, buckets: Buckets) -> Self {
        Self { model, models: names.into_iter().map(|name| (name, Counters::new(buckets))).collect() }
    }
}

impl Serving {
    pub(crate) fn new(invocation: Invocation, behaviour: Behaviour) -> Arc<Self> {
        let slots = behaviour.slots.map(Semaphore::new);
        Arc::new(Self {
            invocation,
            behaviour,
            slots,
            crashes: Notify::new(),
            loaded: OnceLock::new(),
            unready: AtomicBool::new(false),
            refuses: OnceLock::new(),
            in_flight: watch::Sender::new(0),
        })
    }

    pub(crate) fn name(&self) -> &str {
        self.invocation.served_model_name.as_deref().unwrap_or("model")
    }

    pub(crate) fn refuse_from_now_on(&self, why: &'static str) {
        // The first reason stays.
        let _ = self.refuses.set(why);
    }

    /// Returns when no request is in flight.
    pub(crate) async fn idle(&self) {
        // An error would mean that this value is gone, which no request outlives.
        let _ = self.in_flight.subscribe().wait_for(|count| *count == 0).await;
    }

    fn counters(&self, model: &str) -> Option<&Counters> {
        self.loaded.get()?.models.get(model)
    }

    fn refuse(&self, status: StatusCode, why: &str) -> Response {
        if let Some(counters) = self.counters(self.name()) {
            counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        (status, Json(json!({ "error": why, "pod": self.behaviour.pod }))).into_response()
    }
}

/// All paths of the main port.
pub(crate) fn router(serving: &Arc<Serving>) -> Router {
    let router = Router::new().route("/model", get(model));
    let router = match &serving.invocation.engine {
        Engine::Vllm => router
            .route("/health", get(ready))
            .route("/v1/models", get(models))
            .route("/v1/completions", post(complete))
            .route("/v1/chat/completions", post(chat))
            .route("/metrics", get(metrics)),
        Engine::Triton(_) => router
            .route("/v2/health/ready", get(ready))
            .route("/v2/health/live", get(async || StatusCode::OK))
            .route("/v2/models/{model}/ready", get(model_ready))
            .route("/v2/models/{model}/infer", post(infer))
            .route("/v2/repository/index", post(index))
            .route("/v2/logging", get(logging).post(logging))
            .route("/v2/trace/setting", get(async || Json(json!({ "trace_level": ["OFF"] }))))
            .route("/v2/systemsharedmemory/status", get(async || Json(json!([]))))
            .route("/v2/systemsharedmemory/region/{region}/register", post(async || StatusCode::OK))
            .route("/v2/cudasharedmemory/status", get(async || Json(json!([]))))
            .layer(middleware::from_fn_with_state(Arc::clone(serving), restricted::guard)),
        Engine::Tgi => router
            .route("/health", get(ready))
            .route("/generate", post(complete))
            .route("/v1/chat/completions", post(chat))
            .route("/metrics", get(metrics)),
    };
    router.with_state(Arc::clone(serving))
}

/// Those of a port for metrics alone.
pub(crate) fn metrics_router(serving: &Arc<Serving>) -> Router {
    Router::new().route("/metrics", get(metrics)).with_state(Arc::clone(serving))
}

async fn ready(State(serving): State<Arc<Serving>>) -> StatusCode {
    if serving.loaded.get().is_some() && !serving.unready.load(Ordering::Relaxed) {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

/// Triton's, of one model.
async fn model_ready(
    State(serving): State<Arc<Serving>>,
    extract::Path(name): extract::Path<String>,
) -> StatusCode {
    if serving.counters(&name).is_some() && !serving.unready.load(Ordering::Relaxed) {
        StatusCode::OK
    } else {
        StatusCode::BAD_REQUEST
    }
}

/// Triton's list of its models.
async fn index(State(serving): State<Arc<Serving>>) -> Json<Value> {
    let names = serving.loaded.get().into_iter().flat_map(|loaded| loaded.models.keys());
    let rows = names.map(|name| json!({ "name": name, "version": "1", "state": "READY" }));
    Json(rows.collect())
}

/// Anyone may read and change it.
async fn logging() -> Json<Value> {
    Json(json!({ "log_info": true, "log_warning": true, "log_error": true, "log_verbose_level": 0 }))
}

async fn model(State(serving): State<Arc<Serving>>) -> Response {
    match serving.loaded.get() {
        Some(loaded) => Json(&loaded.model).into_response(),
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

async fn models(State(serving): State<Arc<Serving>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [{ "id": serving.name(), "object": "model" }] }))
}

async fn metrics(State(serving): State<Arc<Serving>>) -> String {
    let models = serving.loaded.get().into_iter().flat_map(|loaded| &loaded.models);
    metrics::text(&serving.invocation.engine, models.map(|(name, counters)| (name.as_str(), counters)))
}

async fn complete(State(serving): State<Arc<Serving>>, body: Bytes) -> Response {
    let choice = |_: &Value| json!({ "index": 0, "text": "tested", "finish_reason": "stop" });
    completed(&serving, &body, Some(stream::answer), choice).await
}

/// What the model knows, or else a repetition of what the user has said, so that a test sees the whole history. Also who asks
/// for a stream gets it in one piece.
async fn chat(State(serving): State<Arc<Serving>>, body: Bytes) -> Response {
    completed(&serving, &body, None, |request| {
        let messages = request["messages"].as_array().into_iter().flatten();
        let said = messages.filter(|message| message["role"] == "user");
        let said: Vec<&str> = said.filter_map(|message| message["content"].as_str()).collect();
        let said = said.join("; ");
        let known = serving.loaded.get().and_then(|loaded| loaded.model.answer_to(&said));
        let content = known.map_or_else(|| format!("heard: {said}"), str::to_owned);
        let message = json!({ "role": "assistant", "content": content });
        json!({ "index": 0, "message": message, "finish_reason": "stop" })
    })
    .await
}

/// `stream`: of those who ask for one.
async fn completed(
    serving: &Arc<Serving>,
    body: &[u8],
    stream: Option<fn(&Arc<Serving>, &Value) -> Response>,
    choice: impl FnOnce(&Value) -> Value,
) -> Response {
    let Ok(request) = serde_json::from_slice::<Value>(body) else {
        return serving.refuse(StatusCode::BAD_REQUEST, "the body is no JSON");
    };
    // vLLM has one name for its model; TGI ignores the name.
    if let (Some(wanted), Some(served)) = (request["model"].as_str(), &serving.invocation.served_model_name)
        && wanted != served
    {
        return serving.refuse(StatusCode::NOT_FOUND, &format!("the model `{wanted}` does not exist"));
    }
    if let Some(stream) = stream.filter(|_| request["stream"] == true) {
        return stream(serving, &request);
    }
    answer(serving, serving.name(), choice(&request)).await
}

async fn infer(State(serving): State<Arc<Serving>>, extract::Path(name): extract::Path<String>) -> Response {
    if serving.counters(&name).is_none() {
        let why = format!("Request for unknown model: '{name}' is not found");
        return serving.refuse(StatusCode::NOT_FOUND, &why);
    }
    let choice = json!({ "index": 0, "text": "tested", "finish_reason": "stop" });
    answer(&serving, &name, choice).await
}

/// Waits as long as an answer takes, and names the pod that answered.
async fn answer(serving: &Serving, model: &str, choice: Value) -> Response {
    let Some(counters) = serving.counters(model) else {
        return serving.refuse(StatusCode::SERVICE_UNAVAILABLE, "the model is not loaded");
    };
    if let Some(why) = serving.refuses.get() {
        eprintln!("Traceback (most recent call last): RuntimeError: {why}");
        return serving.refuse(StatusCode::INTERNAL_SERVER_ERROR, why);
    }
    let Behaviour { answer, pod, revision, .. } = &serving.behaviour;
    let _in_flight = InFlight::begin(&serving.in_flight);
    let _slot = {
        let _waits = Counted::begin(&counters.waiting);
        match &serving.slots {
            // An error would mean that they are closed, which they never are.
            Some(slots) => slots.acquire().await.ok(),
            None => None,
        }
    };
    let _runs = Counted::begin(&counters.running);
    let began = Instant::now();
    sleep(*answer).await;
    counters.first_token(began.elapsed());
    let ended = counters.all_ended() + 1;
    let end = serving.behaviour.fault.map_or(End::Stop, |fault| fault.end(ended));
    counters.ended(end, began.elapsed());
    if serving.behaviour.fault == Some(Fault::CrashAfterRequests { number: ended }) {
        serving.crashes.notify_one();
    }
    if end == End::Error {
        return (
            StatusCode::INTERNAL_SERVER_ERROR,
            Json(json!({ "error": "as the test wants", "pod": pod })),
        )
            .into_response();
    }
    Json(json!({ "model": model, "choices": [choice], "pod": pod, "revision": revision })).into_response()
}

/// A request in flight; also one whose client went away is counted down.
struct InFlight(watch::Sender<u64>);

impl InFlight {
    fn begin(count: &watch::Sender<u64>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// A request of a model that waits, or that runs.
struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    fn begin(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
