//! A fake API server for tests: it answers LIST, WATCH, GET and writes from its store, with checks of the resourceVersion,
//! unless a script has another answer.
//!
//! It records every request, so that tests wait for requests instead of sleeping. Objects are untyped JSON by plural, so
//! malformed ones can be stored, too.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use kube::Resource;
use serde_json::Value;
use tokio::sync::watch;

use crate::{
    answer::Answer,
    call::{Call, Verb},
    server::Server,
    store::Store,
};

/// Deadline of every wait, ten times longer than needed on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct ScriptedApi {
    server: Server,
    state: Arc<State>,
}

struct State {
    store: Store,
    script: Mutex<Vec<Rule>>,
    calls: watch::Sender<Vec<Call>>,
}

/// Selects calls.
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

/// The answers to the next selected calls, and to all later ones. Calls without a rule are answered from the store.
struct Rule {
    on: On,
    next: VecDeque<Answer>,
    always: Option<Answer>,
}

impl ScriptedApi {
    pub async fn start() -> Self {
        let state = Arc::new(State {
            store: Store::default(),
            script: Mutex::default(),
            calls: watch::Sender::new(Vec::new()),
        });
        let answering = Arc::clone(&state);
        let server = Server::start(move |call| {
            let answer = answering.answer_to(&call);
            // Applied before the call is recorded, so that tests that wait for the call can rely on its effect.
            let response = answer.prepare(&answering.store, &call);
            answering.calls.send_modify(|calls| calls.push(call));
            response
        });
        Self { server: server.await.unwrap(), state }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Sets the answers to the next selected calls, in order.
    pub fn next<const N: usize>(&self, on: On, answers: [Answer; N]) {
        self.script().push(Rule { on, next: answers.into(), always: None });
    }

    /// Sets the answer to all selected calls until `clear_script`.
    pub fn always(&self, on: On, answer: Answer) {
        self.script().push(Rule { on, next: VecDeque::new(), always: Some(answer) });
    }

    /// Removes all rules. Open connections are not affected.
    pub fn clear_script(&self) {
        self.script().clear();
    }

    /// Stores an object, new or changed; the server sets its version, and its uid unless it has one.
    pub fn put<K>(&self, object: &K) -> Value
    where
        K: Resource<DynamicType = ()> + serde::Serialize,
    {
        self.put_json(&K::plural(&()), serde_json::to_value(object).unwrap())
    }

    /// Like `put`, for objects that do not fit their type.
    pub fn put_json(&self, plural: &str, object: Value) -> Value {
        self.state.store.put(plural, object)
    }

    pub fn remove(&self, plural: &str, name: &str) {
        self.state.store.remove(plural, name);
    }

    pub fn stored(&self, plural: &str, name: &str) -> Option<Value> {
        self.state.store.get(plural, name)
    }

    /// Sends no further events to open watches of this kind.
    pub fn mute(&self, plural: &str) {
        self.state.store.mute(plural);
    }

    /// Discards the history: open watches end with a 410 in their stream, and no watch can start at an older version.
    pub fn compact(&self, plural: &str) {
        self.state.store.compact(plural);
    }

    /// Deletes recorded calls and events. Watches that have sent all events are not affected.
    pub fn clear_records(&self) {
        self.state.store.clear_events();
        self.state.calls.send_replace(Vec::new());
    }

    /// The selected calls so far.
    pub fn calls(&self, on: On) -> Vec<Call> {
        self.state.calls.borrow().iter().filter(|call| on.matches(call)).cloned().collect()
    }

    /// All calls so far, as "Verb plural", in the order of arrival.
    pub fn verbs(&self) -> Vec<String> {
        self.state.calls.borrow().iter().map(|call| format!("{:?} {}", call.verb, call.plural)).collect()
    }

    /// Waits until at least `times` selected calls have arrived.
    pub async fn until_called(&self, on: On, times: usize) -> Vec<Call> {
        let mut calls = self.state.calls.subscribe();
        let enough = calls.wait_for(|calls| calls.iter().filter(|call| on.matches(call)).count() >= times);
        if tokio::time::timeout(PATIENCE, enough).await.is_err() {
            panic!("{on:?} did not arrive {times} times; what arrived: {:#?}", self.verbs());
        }
        self.calls(on)
    }

    fn script(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.state.script.lock().unwrap()
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
        Answer::Stored
    }
}
