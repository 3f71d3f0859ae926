//! What the fake server knows, and how a truthful API server answers from it.
//!
//! One version counter for all kinds, as in etcd. Pages are not looked at; of the label selectors only equality, of the
//! field selectors only `metadata.name`. An apply is taken for the whole object, or for its whole status: fields of
//! other managers are not what is tested here.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{
    Call, Verb,
    answer::{answered, event_line, gone_line, status, streamed},
};

/// Cheap to clone, as the streams of open watches keep one.
#[derive(Clone)]
pub(super) struct Store {
    kinds: Arc<Mutex<Kinds>>,
    /// The newest version, for the watches to wait on.
    stirred: watch::Sender<u64>,
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
    history: Vec<Happening>,
    /// Older versions than this cannot be continued.
    oldest: u64,
    muted: bool,
}

/// What happened to one object at one version.
struct Happening {
    version: u64,
    event: &'static str,
    object: Value,
    before: Option<Value>,
}

/// Which objects are meant.
#[derive(Clone, Default)]
struct Selector {
    name: Option<String>,
    labels: Vec<(String, String)>,
}

/// A follower of one kind.
struct Follower {
    store: Store,
    plural: String,
    selector: Selector,
    seen: u64,
    woken: watch::Receiver<u64>,
    ends_at: Option<Instant>,
    /// Watches that were open when their kind was muted are told nothing more.
    deaf: bool,
    ended: bool,
}

impl Default for Store {
    fn default() -> Self {
        // Not 1: a version that a test takes for a version must look like one.
        let kinds = Kinds { version: 100, by_plural: HashMap::new() };
        Self { kinds: Arc::new(Mutex::new(kinds)), stirred: watch::Sender::new(100) }
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

    pub(super) fn forget(&self) {
        self.lock().by_plural.values_mut().for_each(|kind| kind.history = Vec::new());
    }

    pub(super) fn answer(&self, call: &Call) -> Response {
        let key = (call.namespace.clone(), call.name.clone());
        match call.verb {
            Verb::List => self.list(call),
            Verb::Watch => self.follow(call),
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
        let version = kinds.version.to_string();
        let selector = Selector::of(call);
        let objects = kinds.kind(&call.plural).objects.values();
        let mut items: Vec<Value> = objects.filter(|object| selector.matches(object)).cloned().collect();
        // As the real one does it: the list says what kind its items are.
        for item in items.iter_mut().filter_map(Value::as_object_mut) {
            item.retain(|field, _| field != "apiVersion" && field != "kind");
        }
        let metadata = json!({"resourceVersion": version});
        answered(
            200,
            json!({"kind": "FakeList", "apiVersion": "v1", "metadata": metadata, "items": items}).to_string(),
        )
    }

    fn follow(&self, call: &Call) -> Response {
        let seconds = call.query.get("timeoutSeconds").and_then(|text| text.parse().ok());
        let follower = Follower {
            store: self.clone(),
            plural: call.plural.clone(),
            selector: Selector::of(call),
            seen: call.query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0),
            woken: self.stirred.subscribe(),
            ends_at: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            deaf: false,
            ended: false,
        };
        streamed(stream::unfold(follower, Follower::next)).into_response()
    }

    fn change<T>(&self, edit: impl FnOnce(&mut Kinds) -> T) -> T {
        let (answer, version) = {
            let mut kinds = self.lock();
            let answer = edit(&mut kinds);
            (answer, kinds.version)
        };
        self.stirred.send_replace(version);
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
        kind.history.push(Happening { version, event, object: object.clone(), before });
        object
    }

    fn remove(&mut self, plural: &str, key: &(String, String)) {
        self.version += 1;
        let version = self.version;
        let kind = self.kind(plural);
        if let Some(mut object) = kind.objects.remove(key) {
            let before = Some(object.clone());
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            kind.history.push(Happening { version, event: "DELETED", object, before });
        }
    }

    fn write(&mut self, call: &Call, key: (String, String)) -> Response {
        let mut wanted = call.body.clone();
        let key = if call.verb == Verb::Create {
            (key.0, wanted["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        } else {
            key
        };
        let there = self.kind(&call.plural).objects.get(&key).cloned();
        let claims = &wanted[if call.verb == Verb::Delete { "preconditions" } else { "metadata" }];
        match (&there, call.verb) {
            (Some(_), Verb::Create) => return refused(409, "AlreadyExists", call),
            (None, Verb::Update | Verb::Delete) => return not_found(call),
            (Some(there), Verb::Patch) if names_another(claims, &there["metadata"], "uid") => {
                return uid_is_immutable(call);
            }
            (Some(there), _) if contradicts(claims, &there["metadata"]) => {
                return refused(409, "Conflict", call);
            }
            // An apply that names a uid means that object and no new one.
            (None, Verb::Patch) if claims["uid"].is_string() => return refused(409, "Conflict", call),
            _ => {}
        }
        if call.verb == Verb::Delete {
            self.remove(&call.plural, &key);
            return answered(200, json!({"kind": "Status", "status": "Success"}).to_string());
        }
        if call.subresource == "status" {
            let Some(mut there) = there else { return not_found(call) };
            there["status"] = wanted["status"].take();
            return answered(200, self.put(&call.plural, there).to_string());
        }
        wanted["metadata"]["namespace"] = json!(key.0);
        if let Some(there) = &there {
            wanted["metadata"]["uid"] = there["metadata"]["uid"].clone();
        }
        let code = if there.is_some() { 200 } else { 201 };
        answered(code, self.put(&call.plural, wanted).to_string())
    }
}

/// A version or uid that the caller names and the object does not have.
fn contradicts(claims: &Value, meta: &Value) -> bool {
    ["resourceVersion", "uid"].iter().any(|field| names_another(claims, meta, field))
}

fn names_another(claims: &Value, meta: &Value, field: &str) -> bool {
    claims[field].is_string() && claims[field] != meta[field]
}

/// So the API server refuses an apply that means another object of this name.
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
    answered(code, status(code, reason, &message).to_string())
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

    /// An object that leaves the selection is DELETED, with its old content and the new version; one that enters it is
    /// ADDED.
    fn sees(&self, happening: &Happening) -> Option<(&'static str, Value)> {
        let Happening { version, event, object, before } = happening;
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

impl Follower {
    /// The next lines of this watch; `None` ends it.
    async fn next(mut self) -> Option<(String, Self)> {
        loop {
            if self.ended {
                return None;
            }
            // Marked as seen before the look, so that nothing falls in between.
            self.woken.borrow_and_update();
            let lines = self.look();
            if !lines.is_empty() {
                return Some((lines, self));
            }
            let woken = self.woken.changed();
            match self.ends_at {
                Some(at) => {
                    if tokio::time::timeout_at(at, woken).await.is_err() {
                        return None;
                    }
                }
                None => woken.await.ok()?,
            }
        }
    }

    fn look(&mut self) -> String {
        let mut kinds = self.store.lock();
        let kind = kinds.kind(&self.plural);
        if self.seen < kind.oldest {
            self.ended = true;
            return gone_line() + "\n";
        }
        self.deaf |= kind.muted;
        if self.deaf {
            return String::new();
        }
        let (mut lines, from) = (String::new(), self.seen);
        for happening in kind.history.iter().filter(|happening| happening.version > from) {
            if let Some((event, object)) = self.selector.sees(happening) {
                lines.push_str(&event_line(event, &object));
                lines.push('\n');
                self.seen = happening.version;
            }
        }
        lines
    }
}
