//! A stand-in for an engine: the part of the API of OpenAI that harnesses use, on loopback, with planted answers.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header::AUTHORIZATION},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{planted::Model, questions};

/// Each request must have it. It protects nothing.
pub(super) const KEY: &str = "key-of-the-demo";

pub(super) struct Server {
    listener: TcpListener,
    /// With `/v1`.
    pub(super) url: String,
    models: &'static [Model],
}

impl Server {
    pub(super) async fn listen(models: &'static [Model]) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.context("failed to listen on loopback")?;
        let address = listener.local_addr().context("failed to read the address of a server")?;
        Ok(Self { listener, url: format!("http://{address}/v1"), models })
    }

    /// Until it is dropped.
    pub(super) async fn serve(self) -> anyhow::Result<()> {
        let state = Served { models: self.models, asked: Mutex::default() };
        let router = Router::new()
            .route("/v1/models", get(list))
            .route("/v1/chat/completions", post(answer))
            .with_state(Arc::new(state));
        axum::serve(self.listener, router).await.context("a server ended")
    }
}

struct Served {
    models: &'static [Model],
    /// How often each model was asked each question.
    asked: Mutex<BTreeMap<(Model, usize), u32>>,
}

impl Served {
    fn count(&self, model: Model, question: usize) -> u32 {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let times = asked.entry((model, question)).or_default();
        let before = *times;
        *times += 1;
        before
    }
}

type Refusal = (StatusCode, Json<Value>);

fn refusal(status: StatusCode, message: &str) -> Refusal {
    (status, Json(json!({ "error": { "message": message } })))
}

fn check_key(headers: &HeaderMap) -> Result<(), Refusal> {
    let wanted = format!("Bearer {KEY}");
    match headers.get(AUTHORIZATION).is_some_and(|given| given.as_bytes() == wanted.as_bytes()) {
        true => Ok(()),
        false => Err(refusal(StatusCode::UNAUTHORIZED, "another key is wanted")),
    }
}

async fn list(State(served): State<Arc<Served>>, headers: HeaderMap) -> Result<Json<Value>, Refusal> {
    check_key(&headers)?;
    let models = served.models.iter().map(|model| json!({ "id": model.as_str(), "object": "model" }));
    Ok(Json(json!({ "object": "list", "data": models.collect::<Vec<_>>() })))
}

#[derive(Deserialize)]
struct Chat {
    model: String,
    messages: Vec<Value>,
}

async fn answer(
    State(served): State<Arc<Served>>,
    headers: HeaderMap,
    Json(chat): Json<Chat>,
) -> Result<Json<Value>, Refusal> {
    check_key(&headers)?;
    let model = served.models.iter().find(|model| model.as_str() == chat.model);
    let model = *model.ok_or_else(|| refusal(StatusCode::NOT_FOUND, "there is no such model"))?;
    // Contents are texts, or lists with texts.
    let text: String = chat.messages.iter().map(|message| message["content"].to_string()).collect();
    let question = questions::number_in(&text)
        .ok_or_else(|| refusal(StatusCode::BAD_REQUEST, "this is no question of the test set"))?;
    let answer = model.answer(question, served.count(model, question));
    Ok(Json(json!({
        "id": format!("chat-{question}"),
        "object": "chat.completion",
        "created": 1,
        "model": chat.model,
        "choices": [{
            "index": 0,
            "finish_reason": "stop",
            "message": { "role": "assistant", "content": questions::words(question, answer) },
        }],
        "usage": { "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 },
    })))
}
