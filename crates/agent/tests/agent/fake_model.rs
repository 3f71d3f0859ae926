//! A server with the API of OpenAI that repeats what it is asked, refuses, holds and records.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::{get, post},
    serve::Listener,
};
use futures::stream;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{PrivateKeyDer, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    sync::watch,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// An input with this word is answered once the model is released.
pub(crate) const HOLD: &str = "hold";
/// Of each answer.
pub(crate) const TOKENS: u64 = 15;

pub(crate) struct FakeModel {
    pub(crate) url: String,
    shared: Arc<Shared>,
    _runtime: Runtime,
}

struct Shared {
    chats: Mutex<Vec<Value>>,
    keys: Mutex<Vec<String>>,
    refusals: AtomicUsize,
    is_released: watch::Sender<bool>,
    has_vectors: bool,
}

impl FakeModel {
    pub(crate) fn start() -> Self {
        Self::start_with(false)
    }

    /// `has_vectors`: it also answers embeddings.
    pub(crate) fn start_with(has_vectors: bool) -> Self {
        Self::serve(has_vectors, None)
    }

    /// With https. Also gives the certificate, which is its own authority.
    pub(crate) fn start_with_https() -> (Self, String) {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::from_pem_slice(signing_key.serialize_pem().as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key);
        let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
        (Self::serve(false, Some(acceptor)), cert.pem())
    }

    fn serve(has_vectors: bool, acceptor: Option<TlsAcceptor>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let shared = Arc::new(Shared {
            chats: Mutex::default(),
            keys: Mutex::default(),
            refusals: AtomicUsize::new(0),
            is_released: watch::channel(false).0,
            has_vectors,
        });
        let router = Router::new()
            .route("/v1/chat/completions", post(chat))
            .route("/v1/embeddings", post(embed))
            .route("/moved/chat/completions", post(moved))
            .route("/elsewhere", get(|| async { "no" }).post(|| async { "no" }))
            .with_state(shared.clone());
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let scheme = if acceptor.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}/v1", listener.local_addr().unwrap());
        match acceptor {
            Some(acceptor) => {
                runtime.spawn(async move { axum::serve(Tls { listener, acceptor }, router).await });
            }
            None => {
                runtime.spawn(async move { axum::serve(listener, router).await });
            }
        }
        Self { url, shared, _runtime: runtime }
    }

    /// The next requests are answered 503.
    pub(crate) fn refuse(&self, count: usize) {
        self.shared.refusals.store(count, Ordering::SeqCst);
    }

    /// Answers what it holds, and holds nothing more.
    pub(crate) fn release(&self) {
        self.shared.is_released.send_replace(true);
    }

    /// Requests for answers, also refused ones.
    pub(crate) fn chats(&self) -> Vec<Value> {
        self.shared.chats.lock().unwrap().clone()
    }

    /// Roles and contents of the messages of a request.
    pub(crate) fn messages(&self, request: usize) -> Vec<(String, String)> {
        let chats = self.chats();
        let messages = chats[request]["messages"].as_array().unwrap();
        let text = |message: &Value, field: &str| message[field].as_str().unwrap().to_owned();
        messages.iter().map(|message| (text(message, "role"), text(message, "content"))).collect()
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.shared.keys.lock().unwrap().clone()
    }
}

struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.listener.accept().await.unwrap();
            // A client that does not trust the certificate ends the handshake.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

async fn chat(State(shared): State<Arc<Shared>>, headers: HeaderMap, Json(request): Json<Value>) -> Response {
    let key = headers.get(header::AUTHORIZATION).map(|key| key.to_str().unwrap().to_owned());
    shared.keys.lock().unwrap().extend(key);
    let messages = request["messages"].as_array().unwrap();
    let input = messages.last().unwrap()["content"].as_str().unwrap().to_owned();
    let is_summary = messages[0]["content"].as_str().unwrap().starts_with("You summarize");
    shared.chats.lock().unwrap().push(request);
    let refuse = |left: usize| left.checked_sub(1);
    if shared.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuse).is_ok() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the model is being loaded").into_response();
    }
    if input.contains(HOLD) && !is_summary {
        shared.is_released.subscribe().wait_for(|is_released| *is_released).await.unwrap();
    }
    let text = if is_summary { "what was said before".to_owned() } else { format!("echo of {input}") };
    let (first, second) = text.split_at(text.len() / 2);
    let delta = |text: &str| json!({"choices": [{"index": 0, "delta": {"content": text}}]});
    let events = [
        delta(first),
        delta(second),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}),
    ];
    let mut events: Vec<String> = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    events.push("data: [DONE]\n\n".to_owned());
    let body = Body::from_stream(stream::iter(events.into_iter().map(Ok::<_, Infallible>)));
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

async fn embed(State(shared): State<Arc<Shared>>, Json(request): Json<Value>) -> Response {
    if !shared.has_vectors {
        return StatusCode::NOT_FOUND.into_response();
    }
    let is_about_keys = request["input"].as_str().unwrap().contains("secret");
    let vector = if is_about_keys { [1.0, 0.0] } else { [0.0, 1.0] };
    Json(json!({"data": [{"embedding": vector}]})).into_response()
}

async fn moved() -> Response {
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, "/v1/chat/completions")]).into_response()
}
