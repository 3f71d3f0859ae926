//! A scripted fake API server on loopback, over plain HTTP.
//!
//! It tells the truth about what is stored in it (LIST, WATCH, GET, writes with resourceVersion checks), unless a
//! script says otherwise. It records every request, and tests wait for requests, never for time. It knows no kind:
//! an object is JSON under a plural, so that a broken one can be stored too. [`many`] serves more objects than this one
//! would keep.

mod answer;
pub mod many;
mod store;

use std::{
    collections::{HashMap, VecDeque},
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::{
    Router,
    extract::{Query, Request, State as Shared},
    response::Response,
};
use http::Method;
use kube::Resource;
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle, time::Instant};

pub use answer::{Answer, End, Gate};
use store::Store;

/// Every wait of a test ends after so long; nothing that works takes a tenth of it, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Fake {
    address: SocketAddr,
    state: Arc<State>,
    server: JoinHandle<()>,
}

struct State {
    store: Store,
    script: Mutex<Vec<Rule>>,
    calls: watch::Sender<Vec<Call>>,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Call {
    pub verb: Verb,
    pub plural: String,
    pub namespace: String,
    /// Empty for LIST, WATCH and CREATE.
    pub name: String,
    pub subresource: String,
    pub query: HashMap<String, String>,
    pub body: Value,
    /// The caller's User-Agent, which tells contenders for a Lease apart.
    pub agent: String,
    pub at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    List,
    Watch,
    Get,
    Create,
    Update,
    Patch,
    Delete,
}

/// Which calls are meant.
#[derive(Clone, Copy, Debug)]
pub struct On {
    verb: Verb,
    plural: &'static str,
    agent: Option<&'static str>,
}

impl Verb {
    pub fn of(self, plural: &'static str) -> On {
        On { verb: self, plural, agent: None }
    }
}

impl On {
    pub fn by(self, agent: &'static str) -> Self {
        Self { agent: Some(agent), ..self }
    }

    fn matches(&self, call: &Call) -> bool {
        self.verb == call.verb
            && self.plural == call.plural
            && self.agent.is_none_or(|agent| agent == call.agent)
    }
}

/// What the next calls of a sort are answered, and what all later ones are; without a rule, the truth.
struct Rule {
    on: On,
    next: VecDeque<Answer>,
    always: Option<Answer>,
}

impl Fake {
    pub async fn start() -> Self {
        let state = Arc::new(State {
            store: Store::default(),
            script: Mutex::default(),
            calls: watch::Sender::new(Vec::new()),
        });
        // Listens before any client starts: a refused connection would be another fault than the one scripted.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(serve).with_state(Arc::clone(&state));
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, state, server }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next calls of this sort are answered so, one after the other.
    pub fn next<const N: usize>(&self, on: On, answers: [Answer; N]) {
        self.script().push(Rule { on, next: answers.into(), always: None });
    }

    /// All calls of this sort are answered so from now on, until `heal`.
    pub fn always(&self, on: On, answer: Answer) {
        self.script().push(Rule { on, next: VecDeque::new(), always: Some(answer) });
    }

    /// Back to the truth. Connections that are open stay as they are.
    pub fn heal(&self) {
        self.script().clear();
    }

    /// Stores an object, new or changed; the server sets its version, and its uid unless it has one.
    pub fn put<K>(&self, object: &K) -> Value
    where
        K: Resource<DynamicType = ()> + serde::Serialize,
    {
        self.put_json(&K::plural(&()), serde_json::to_value(object).unwrap())
    }

    /// As `put`, for what does not fit its type.
    pub fn put_json(&self, plural: &str, object: Value) -> Value {
        self.state.store.put(plural, object)
    }

    pub fn remove(&self, plural: &str, name: &str) {
        self.state.store.remove(plural, name);
    }

    pub fn stored(&self, plural: &str, name: &str) -> Option<Value> {
        self.state.store.get(plural, name)
    }

    /// Open watches of this kind stay open and are told nothing more.
    pub fn mute(&self, plural: &str) {
        self.state.store.mute(plural);
    }

    /// The past is forgotten: open watches end with an in-stream 410, and no older version can be continued.
    pub fn compact(&self, plural: &str) {
        self.state.store.compact(plural);
    }

    /// As if nothing had happened so far; who has followed it all goes on undisturbed.
    pub fn forget(&self) {
        self.state.store.forget();
        self.state.calls.send_replace(Vec::new());
    }

    /// The calls of this sort so far.
    pub fn calls(&self, on: On) -> Vec<Call> {
        self.state.calls.borrow().iter().filter(|call| on.matches(call)).cloned().collect()
    }

    /// Everything so far, as "Verb plural", in the order of arrival.
    pub fn verbs(&self) -> Vec<String> {
        self.state.calls.borrow().iter().map(|call| format!("{:?} {}", call.verb, call.plural)).collect()
    }

    /// Waits until at least so many calls of this sort have arrived.
    pub async fn called(&self, on: On, times: usize) -> Vec<Call> {
        let mut calls = self.state.calls.subscribe();
        let enough = calls.wait_for(|calls| calls.iter().filter(|call| on.matches(call)).count() >= times);
        if tokio::time::timeout(PATIENCE, enough).await.is_err() {
            panic!("{on:?} did not come {times} times; what came: {:#?}", self.verbs());
        }
        self.calls(on)
    }

    fn script(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.state.script.lock().unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl State {
    fn answer_to(&self, call: &Call) -> Answer {
        let mut script = self.script.lock().unwrap();
        for rule in script.iter_mut().filter(|rule| rule.on.matches(call)) {
            if let Some(answer) = rule.next.pop_front().or_else(|| rule.always.clone()) {
                return answer;
            }
        }
        Answer::Truth
    }
}

async fn serve(Shared(state): Shared<Arc<State>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let call = Call::read(&head, &body);
    let answer = state.answer_to(&call);
    // Done before it is recorded, so that who waits for a call may rely on its effect.
    let response = answer.prepare(&state.store, &call);
    state.calls.send_modify(|calls| calls.push(call));
    response.await
}

impl Call {
    /// `/api/v1/…` or `/apis/<group>/<version>/…`, then `[namespaces/<ns>/]<plural>[/<name>[/<subresource>]]`.
    fn read(head: &http::request::Parts, body: &[u8]) -> Self {
        let segments: Vec<&str> = head.uri.path().split('/').skip(1).collect();
        let prefix = if segments[0] == "api" { 2 } else { 3 };
        let (namespace, rest) = match &segments[prefix..] {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let name = rest.get(1).copied().unwrap_or_default();
        let Query(query) = Query::<HashMap<String, String>>::try_from_uri(&head.uri).unwrap();
        let verb = match head.method {
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ if query.contains_key("watch") => Verb::Watch,
            _ if name.is_empty() => Verb::List,
            _ => Verb::Get,
        };
        let agent = head.headers.get(http::header::USER_AGENT);
        Self {
            verb,
            plural: rest[0].to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: rest.get(2).copied().unwrap_or_default().to_owned(),
            query,
            body: serde_json::from_slice(body).unwrap_or_default(),
            agent: agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default().to_owned(),
            at: Instant::now(),
        }
    }
}
