//! The store of the scripted API server, and its answers without faults.
//!
//! One version counter for all kinds, as in etcd. Pages are not consistent snapshots. Supported selectors: label equality
//! and `metadata.name`. An apply replaces the whole object or its whole status; other field managers are not simulated.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use crate::{
    call::{Call, Verb},
    wire::{answered, event_line, expired_line, failure, list, status, streamed},
};

/// Cheap to clone, for the streams of open watches.
#[derive(Clone)]
pub(super) struct Store {
    kinds: Arc<Mutex<Kinds>>,
    /// The newest version, on which watches wait.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Kinds {
    version: u64,
    by_plural: HashMap<String, Kind>,
}

#[derive(Default)]
struct Kind {
    /// By namespace and name.
    objects: BTreeMap<(String, String), Value>,
    history: Vec<Recorded>,
    /// Watches cannot start at older versions than this.
    oldest: u64,
    muted: bool,
}

/// One change of one object.
struct Recorded {
    version: u64,
    event: &'static str,
    object: Value,
    before: Option<Value>,
}

/// Selects objects.
#[derive(Clone, Default)]
struct Selector {
    name: Option<String>,
    labels: Vec<(String, String)>,
}

/// An open watch of one kind.
struct OpenWatch {
    store: Store,
    plural: String,
    selector: Selector,
    seen: u64,
    changes: watch::Receiver<u64>,
    ends_at: Option<Instant>,
    /// Whether the kind was muted while this watch was open.
    muted: bool,
    ended: bool,
}

impl Default for Store {
    fn default() -> Self {
        // Not 1, so that a count is never equal to a version.
        let kinds = Kinds { version: 100, by_plural: HashMap::new() };
        Self { kinds: Arc::new(Mutex::new(kinds)), changed: watch::Sender::new(100) }
    }
}

impl Store {
    pub(super) fn put(&self, plural: &str, object: Value) -> Value {
        self.change(|kinds| kinds.put(plural, object))
    }

    pub(super) fn remove(&self, plural: &str, name: &str) {
        self.change(|kinds| {
            let key = kinds.kind(plural).objects.keys().find(|(_, known)| known == name).cloned();
            kinds.remove(plural, &key.unwrap_or_else(|| panic!("no {plural} {name} is stored")));
        });
    }

    pub(super) fn get(&self, plural: &str, name: &str) -> Option<Value> {
        let mut kinds = self.kinds.lock().unwrap();
        let objects = &kinds.kind(plural).objects;
        objects.iter().find(|((_, known), _)| known == name).map(|(_, object)| object.clone())
    }

    pub(super) fn mute(&self, plural: &str) {
        self.change(|kinds| kinds.kind(plural).muted = true);
    }

    pub(super) fn compact(&self, plural: &str) {
        self.change(|kinds| {
            kinds.version += 1;
            let now = kinds.version;
            let kind = kinds.kind(plural);
            kind.oldest = now;
            kind.history.clear();
            kind.muted = false;
        });
    }

    pub(super) fn clear_events(&self) {
        self.lock().by_plural.values_mut().for_each(|kind| kind.history = Vec::new());
    }

    pub(super) fn answer(&self, call: &Call) -> Response {
        let key = (call.namespace.clone(), call.name.clone());
        match call.verb {
            Verb::List => self.list(call),
            Verb::Watch => self.watch(call),
            Verb::Get => match self.lock().kind(&call.plural).objects.get(&key) {
                Some(object) => answered(200, object.to_string()),
                None => not_found(call),
            },
            Verb::Create | Verb::Update | Verb::Patch | Verb::Delete => {
                self.change(|kinds| kinds.write(call, key))
            }
        }
    }

    fn list(&self, call: &Call) -> Response {
        let mut kinds = self.lock();
        let (version, selector) = (kinds.version, Selector::of(call));
        let number = |name: &str| call.query.get(name).and_then(|text| text.parse::<usize>().ok());
        let (first, limit) = (number("continue").unwrap_or(0), number("limit").unwrap_or(usize::MAX));
        let objects = kinds.kind(&call.plural).objects.values();
        let mut rest = objects.filter(|object| selector.matches(object)).skip(first);
        let items = rest.by_ref().take(limit).cloned().collect();
        let next = rest.next().map(|_| (first + limit).to_string());
        list("Fake", version, next.as_deref().unwrap_or_default(), items)
    }

    fn watch(&self, call: &Call) -> Response {
        let seconds = call.query.get("timeoutSeconds").and_then(|text| text.parse().ok());
        let open = OpenWatch {
            store: self.clone(),
            plural: call.plural.clone(),
            selector: Selector::of(call),
            seen: call.query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0),
            changes: self.changed.subscribe(),
            ends_at: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            muted: false,
            ended: false,
        };
        streamed(stream::unfold(open, OpenWatch::next)).into_response()
    }

    fn change<T>(&self, edit: impl FnOnce(&mut Kinds) -> T) -> T {
        let (answer, version) = {
            let mut kinds = self.lock();
            let answer = edit(&mut kinds);
            (answer, kinds.version)
        };
        self.changed.send_replace(version);
        answer
    }

    fn lock(&self) -> MutexGuard<'_, Kinds> {
        self.kinds.lock().unwrap()
    }
}

impl Kinds {
    fn kind(&mut self, plural: &str) -> &mut Kind {
        self.by_plural.entry(plural.to_owned()).or_default()
    }

    fn put(&mut self, plural: &str, mut object: Value) -> Value {
        self.version += 1;
        let version = self.version;
        let meta = &mut object["metadata"];
        meta["resourceVersion"] = json!(version.to_string());
        if meta["uid"].is_null() {
            meta["uid"] = json!(format!("uid-at-{version}"));
        }
        let text = |name: &str| meta[name].as_str().unwrap_or_default().to_owned();
        let key = (text("namespace"), text("name"));
        let kind = self.kind(plural);
        let before = kind.objects.insert(key, object.clone());
        let event = if before.is_some() { "MODIFIED" } else { "ADDED" };
        kind.history.push(Recorded { version, event, object: object.clone(), before });
        object
    }

    fn remove(&mut self, plural: &str, key: &(String, String)) {
        self.version += 1;
        let version = self.version;
        let kind = self.kind(plural);
        if let Some(mut object) = kind.objects.remove(key) {
            let before = Some(object.clone());
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            kind.history.push(Recorded { version, event: "DELETED", object, before });
        }
    }

    fn write(&mut self, call: &Call, key: (String, String)) -> Response {
        let mut wanted = call.body.clone();
        let key = if call.verb == Verb::Create {
            (key.0, wanted["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        } else {
            key
        };
        let stored = self.kind(&call.plural).objects.get(&key).cloned();
        let named = &wanted[if call.verb == Verb::Delete { "preconditions" } else { "metadata" }];
        match (&stored, call.verb) {
            (Some(_), Verb::Create) => return refused(409, "AlreadyExists", call),
            (None, Verb::Update | Verb::Delete) => return not_found(call),
            (Some(stored), Verb::Patch) if names_another(named, &stored["metadata"], "uid") => {
                return uid_is_immutable(call);
            }
            (Some(stored), _) if names_another_version(named, &stored["metadata"]) => {
                return refused(409, "Conflict", call);
            }
            // An apply with a uid must not create an object.
            (None, Verb::Patch) if named["uid"].is_string() => return refused(409, "Conflict", call),
            _ => {}
        }
        if call.verb == Verb::Delete {
            self.remove(&call.plural, &key);
            return answered(200, json!({"kind": "Status", "status": "Success"}).to_string());
        }
        if call.subresource == "status" {
            let Some(mut stored) = stored else { return not_found(call) };
            stored["status"] = wanted["status"].take();
            return answered(200, self.put(&call.plural, stored).to_string());
        }
        wanted["metadata"]["namespace"] = json!(key.0);
        if let Some(stored) = &stored {
            wanted["metadata"]["uid"] = stored["metadata"]["uid"].clone();
        }
        let code = if stored.is_some() { 200 } else { 201 };
        answered(code, self.put(&call.plural, wanted).to_string())
    }
}

/// Whether a version or uid of the request differs from the object's.
fn names_another_version(named: &Value, meta: &Value) -> bool {
    ["resourceVersion", "uid"].iter().any(|field| names_another(named, meta, field))
}

fn names_another(named: &Value, meta: &Value, field: &str) -> bool {
    named[field].is_string() && named[field] != meta[field]
}

/// The API server's refusal of an apply with another uid.
fn uid_is_immutable(call: &Call) -> Response {
    let message = format!("{} {:?} is invalid: metadata.uid: field is immutable", call.plural, call.name);
    let mut status = status(422, "Invalid", &message);
    let cause =
        json!({"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"});
    status["details"] = json!({"name": call.name, "causes": [cause]});
    answered(422, status.to_string())
}

fn not_found(call: &Call) -> Response {
    refused(404, "NotFound", call)
}

fn refused(code: u16, reason: &str, call: &Call) -> Response {
    let message = format!("{} {:?} on {} {:?}", reason, call.verb, call.plural, call.name);
    failure(code, reason, &message)
}

impl Selector {
    fn of(call: &Call) -> Self {
        let text = |parameter: &str| call.query.get(parameter).map(String::as_str).unwrap_or_default();
        let pairs = text("labelSelector").split(',').filter_map(|pair| pair.split_once('='));
        Self {
            name: text("fieldSelector").strip_prefix("metadata.name=").map(str::to_owned),
            labels: pairs.map(|(label, value)| (label.to_owned(), value.to_owned())).collect(),
        }
    }

    fn matches(&self, object: &Value) -> bool {
        let meta = &object["metadata"];
        self.name.as_deref().is_none_or(|name| meta["name"] == name)
            && self.labels.iter().all(|(label, value)| meta["labels"][label] == **value)
    }

    /// For an object that leaves the selection: DELETED, with its old content and the new version; for one that enters it:
    /// ADDED.
    fn event_of(&self, recorded: &Recorded) -> Option<(&'static str, Value)> {
        let Recorded { version, event, object, before } = recorded;
        let was_in = before.as_ref().is_some_and(|before| self.matches(before));
        let is_in = *event != "DELETED" && self.matches(object);
        match (was_in, is_in) {
            (true, true) => Some(("MODIFIED", object.clone())),
            (false, true) => Some(("ADDED", object.clone())),
            (true, false) => {
                let mut left = before.clone()?;
                left["metadata"]["resourceVersion"] = json!(version.to_string());
                Some(("DELETED", left))
            }
            (false, false) => None,
        }
    }
}

impl OpenWatch {
    /// The next lines of this watch; `None` ends it.
    async fn next(mut self) -> Option<(String, Self)> {
        loop {
            if self.ended {
                return None;
            }
            // Marked as seen before the events are read, so that no change is missed in between.
            self.changes.borrow_and_update();
            let lines = self.new_lines();
            if !lines.is_empty() {
                return Some((lines, self));
            }
            let change = self.changes.changed();
            match self.ends_at {
                Some(at) => {
                    if tokio::time::timeout_at(at, change).await.is_err() {
                        return None;
                    }
                }
                None => change.await.ok()?,
            }
        }
    }

    fn new_lines(&mut self) -> String {
        let mut kinds = self.store.lock();
        let kind = kinds.kind(&self.plural);
        if self.seen < kind.oldest {
            self.ended = true;
            return expired_line() + "\n";
        }
        self.muted |= kind.muted;
        if self.muted {
            return String::new();
        }
        let (mut lines, from) = (String::new(), self.seen);
        for recorded in kind.history.iter().filter(|recorded| recorded.version > from) {
            if let Some((event, object)) = self.selector.event_of(recorded) {
                lines.push_str(&event_line(event, &object));
                lines.push('\n');
                self.seen = recorded.version;
            }
        }
        lines
    }
}
