//! What a controller knows of one kind: the objects by key, indexed by the uid of their controlling owner.
//!
//! Filled by a watch task (`watch.rs`) and by the answers to our own writes (`absorb`); read without a request.
//! Subscribers are called synchronously with each change, in the order of the changes, also with objects that vanished
//! behind a re-list. It never talks to the API server and never waits.

use std::{
    any::type_name,
    collections::{HashMap, HashSet},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use tokio::{sync::watch, time::Instant};
use tracing::error;

use crate::{
    causes::panic_text,
    key::Key,
    watch::{health::Health, watched::Watched},
};

/// One object before and after; both are never absent.
#[derive(Debug)]
pub struct Change<'a, K> {
    pub key: &'a Key,
    pub old: Option<&'a Arc<K>>,
    pub new: Option<&'a Arc<K>>,
    /// True for the objects of the very first list: nothing happened to them, they only became known.
    pub initial: bool,
    /// True if a write of this process made the change: who wrote it decides what comes next.
    pub own: bool,
}

impl<'a, K: Resource> Change<'a, K> {
    /// The object that no longer exists: it was deleted, or another one of its name has taken its place.
    pub fn gone(&self) -> Option<&'a Arc<K>> {
        self.old.filter(|old| self.new.is_none_or(|new| new.meta().uid != old.meta().uid))
    }
}

type Subscriber<K> = Box<dyn Fn(&Change<'_, K>) + Send + Sync>;

/// A shared, cheaply cloned view of all objects of one kind within a scope.
pub struct Cache<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: RwLock<State<K>>,
    /// Locked before the state, from a change until all subscribers were called: they see changes in their order.
    subscribers: Mutex<Vec<Subscriber<K>>>,
    /// True once the first list has arrived.
    synced: watch::Sender<bool>,
    /// Objects that cannot be decoded, are being deleted and have finalizers.
    unreadable_leavers: watch::Sender<HashMap<Key, ObjectMeta>>,
    health: Arc<Health>,
}

/// Unreadable leavers that are kept. More are found when the list is read again.
const MOST_LEAVERS: usize = 1_000;

struct State<K> {
    objects: HashMap<Key, Arc<K>>,
    /// uid of the controlling owner → the keys of what it controls, in order. Mostly one, so no tree.
    by_owner: HashMap<Arc<str>, Vec<Key>>,
    /// The newest resource version that the watch has delivered, for `absorb`.
    version: u64,
    /// How many objects have left so far.
    removals: u64,
    /// What answers to our own calls have changed since the LIST that is under way was sent; `None` while there is
    /// none.
    since_list: Option<HashMap<Key, Answered>>,
    /// Writes under way, each with the version that it replaces; `None`: it creates the object.
    writing: HashMap<Key, Option<String>>,
}

/// What an answer to a call of our own did to an object.
enum Answered {
    Written,
    Deleted { uid: Option<String> },
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K> fmt::Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("objects", &self.read().objects.len()).finish()
    }
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        let state = State {
            objects: HashMap::new(),
            by_owner: HashMap::new(),
            version: 0,
            removals: 0,
            since_list: None,
            writing: HashMap::new(),
        };
        let shared = Shared {
            state: RwLock::new(state),
            subscribers: Mutex::new(Vec::new()),
            synced: watch::Sender::new(false),
            unreadable_leavers: watch::Sender::default(),
            health: Arc::default(),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl<K> Cache<K> {
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// Everything, in no order.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.read().objects.is_empty()
    }

    /// Returns once the first list has arrived.
    pub async fn synced(&self) {
        let mut synced = self.shared.synced.subscribe();
        // The sender lives as long as this cache does, so the wait cannot fail.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Since when the watch that fills this cache has been failing; `None` while it works.
    pub fn watch_fails_since(&self) -> Option<Instant> {
        self.shared.health.failing_since()
    }

    /// For how long that watch has been failing.
    pub fn watch_fails_for(&self) -> Option<Duration> {
        self.watch_fails_since().map(|since| since.elapsed())
    }

    /// Whether the kind is not served now, for a kind that the process can do without.
    pub fn is_absent(&self) -> bool {
        self.shared.health.is_absent()
    }

    /// The metadata of an object that cannot be decoded.
    pub(crate) fn note_undecodable(&self, meta: &ObjectMeta) {
        if meta.deletion_timestamp.is_none() || meta.finalizers.iter().flatten().next().is_none() {
            return;
        }
        self.shared.unreadable_leavers.send_if_modified(|leavers| {
            let has_room = leavers.len() < MOST_LEAVERS;
            has_room && leavers.insert(Key::named_in(meta), meta.clone()).as_ref() != Some(meta)
        });
    }

    /// It has left, or lost its finalizer.
    pub(crate) fn forget_undecodable(&self, key: &Key) {
        self.shared.unreadable_leavers.send_if_modified(|leavers| leavers.remove(key).is_some());
    }

    pub(crate) fn unreadable_leavers(&self) -> watch::Receiver<HashMap<Key, ObjectMeta>> {
        self.shared.unreadable_leavers.subscribe()
    }

    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.shared.health
    }

    /// Called for every later change, synchronously; it must be quick and must not write to this cache. It is called
    /// at once for what is in the cache already. A change says *that* something happened: what is true now is in the
    /// cache. A panic of a subscriber is logged, and the others are called.
    pub fn subscribe(&self, subscriber: impl Fn(&Change<'_, K>) + Send + Sync + 'static) {
        // The list of subscribers is locked first, as in every change, so that nothing falls between the two steps.
        let mut subscribers = self.subscribers();
        let known: Vec<(Key, Arc<K>)> =
            self.read().objects.iter().map(|(key, object)| (key.clone(), Arc::clone(object))).collect();
        for (key, object) in &known {
            call(&subscriber, &Change { key, old: None, new: Some(object), initial: true, own: false });
        }
        subscribers.push(Box::new(subscriber));
    }

    fn subscribers(&self) -> MutexGuard<'_, Vec<Subscriber<K>>> {
        self.shared.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.shared.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.shared.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Resource> Cache<K> {
    /// What the owner of this kind and uid controls in its namespace, ordered by key so that decisions are deterministic.
    /// An owner reference is what the writer of an object says: a uid that is named in another namespace, or as that of
    /// another kind, is ignored.
    pub fn owned_by<O: Resource<DynamicType = ()>>(&self, namespace: &str, uid: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let keys = state.by_owner.get(uid).into_iter().flatten().filter(|key| *key.namespace == *namespace);
        let objects = keys.filter_map(|key| state.objects.get(key));
        objects.filter(|object| controller_of(&***object).is_some_and(is_of_kind::<O>)).cloned().collect()
    }

    /// How many of the known objects a complete list does not have.
    pub(crate) fn count_missing_from(&self, listed: &[Arc<K>]) -> usize {
        if self.is_empty() {
            return 0;
        }
        let listed: HashSet<Key> = listed.iter().map(|object| Key::of(&**object)).collect();
        self.read().objects.keys().filter(|key| !listed.contains(*key)).count()
    }
}

impl<K: Watched> Cache<K> {
    /// One object as the watch delivers it. What came before the answer to our own write is known to be out of date.
    pub fn upsert(&self, object: K) {
        let object = Arc::new(object);
        self.change(|state| {
            let key = Key::of(&*object);
            let version = version_of(&*object);
            state.version = state.version.max(version);
            let known = state.objects.get(&key);
            // Versions grow over all objects: an older one is of the past, also of another object of this name.
            if known.is_some_and(|known| version_of(&**known) > version) {
                return Vec::new();
            }
            // The successor of the version that a write under way replaces is the effect of that write. If it is not,
            // the write fails with a conflict, and its reconcile runs again anyway.
            let replaced = known.map(|known| known.meta().resource_version.clone());
            let own = state.writing.get(&key).is_some_and(|version| *version == replaced.flatten());
            let mut change = state.put(key, Arc::clone(&object));
            change.own = own;
            vec![change]
        });
    }

    /// The watch says that the object with this metadata is gone. A newer object of the same name stays.
    pub fn remove(&self, meta: &ObjectMeta) {
        self.change(|state| {
            state.version = state.version.max(parse_version(meta));
            state.take_if(Key::named_in(meta), meta.uid.as_deref())
        });
    }

    /// The answer to our own write, so that the next reconcile does not decide on what it has itself changed. It
    /// counts only where the watch has not come as far yet: an answer must not bring back what was deleted since.
    pub fn absorb(&self, object: K) {
        let object = Arc::new(object);
        self.change(|state| {
            let key = Key::of(&*object);
            let version = version_of(&*object);
            let newer = state.objects.get(&key).is_none_or(|known| version_of(&**known) < version);
            if newer && version > state.version {
                if let Some(answered) = &mut state.since_list {
                    answered.insert(key.clone(), Answered::Written);
                }
                let mut change = state.put(key, Arc::clone(&object));
                change.own = true;
                vec![change]
            } else {
                Vec::new()
            }
        });
    }

    /// The answer to a read of one object that this cache does not have, or has in an older version. `removals` is
    /// what `removals()` was before the read was sent. If objects have left since, the one that was read may be one of
    /// them. Then it has to be read once more.
    ///
    /// The version of the watch does not count here. An object whose labels take it out of the cache's selector is
    /// never delivered, whatever version the watch has reached.
    pub(crate) fn absorb_read(&self, object: K, removals: u64) {
        let object = Arc::new(object);
        self.change(|state| {
            let key = Key::of(&*object);
            let version = version_of(&*object);
            let newer = state.objects.get(&key).is_none_or(|known| version_of(&**known) < version);
            if newer && state.removals == removals {
                vec![state.put(key, Arc::clone(&object))]
            } else {
                Vec::new()
            }
        });
    }

    pub(crate) fn removals(&self) -> u64 {
        self.read().removals
    }

    /// The answer to a call of our own says that the object of this uid is gone.
    pub(crate) fn forget(&self, key: &Key, uid: Option<&str>) {
        self.change(|state| {
            let mut gone = state.take_if(key.clone(), uid);
            if let Some(answered) = &mut state.since_list {
                answered.insert(key.clone(), Answered::Deleted { uid: uid.map(str::to_owned) });
            }
            gone.iter_mut().for_each(|change| change.own = true);
            gone
        });
    }

    /// A write of this object is under way that replaces this version, until the answer is dropped. `None`: it creates the
    /// object, and fails if there is one.
    pub(crate) fn writing(&self, key: &Key, version: Option<&str>) -> Writing<'_, K> {
        self.write().writing.insert(key.clone(), version.map(str::to_owned));
        Writing { cache: self, key: key.clone() }
    }

    /// A LIST is about to be sent. What is absorbed from now on may be newer than its answer.
    pub(crate) fn begin_list(&self) {
        self.write().since_list = Some(HashMap::new());
    }

    /// A complete list: subscribers are called with what differs, and with what vanished.
    pub fn replace(&self, objects: Vec<Arc<K>>, list_version: &str) {
        let initial = !*self.shared.synced.borrow();
        self.change(|state| {
            // A list of an older state (a restored etcd) replaces a newer one.
            state.version = list_version.parse().unwrap_or(0);
            let mut fresh: HashMap<Key, Arc<K>> = HashMap::with_capacity(objects.len());
            for object in objects {
                fresh.insert(Key::of(&*object), object);
            }
            for (key, answered) in state.since_list.take().unwrap_or_default() {
                state.keep_newer(&mut fresh, key, &answered);
            }
            let vanished: Vec<Key> =
                state.objects.keys().filter(|key| !fresh.contains_key(*key)).cloned().collect();
            let mut changes: Vec<OwnedChange<K>> = vanished.into_iter().map(|key| state.take(key)).collect();
            changes.extend(fresh.into_iter().map(|(key, object)| state.put(key, object)));
            for change in &mut changes {
                change.initial = initial;
            }
            changes
        });
        self.shared.synced.send_replace(true);
    }

    fn change(&self, edit: impl FnOnce(&mut State<K>) -> Vec<OwnedChange<K>>) {
        let subscribers = self.subscribers();
        let changes = edit(&mut self.write());
        for owned in changes.iter().filter(|owned| owned.differs()) {
            let change = Change {
                key: &owned.key,
                old: owned.old.as_ref(),
                new: owned.new.as_ref(),
                initial: owned.initial,
                own: owned.own,
            };
            for subscriber in subscribers.iter() {
                call(subscriber, &change);
            }
        }
    }
}

/// A panic of a subscriber must end neither the watch task nor the reconcile that has made the change.
fn call<K>(subscriber: &impl Fn(&Change<'_, K>), change: &Change<'_, K>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| subscriber(change))) {
        let (kind, object) = (type_name::<K>(), change.key);
        error!(kind, %object, error = panic_text(&*panic), "a subscriber of the cache panicked at this object");
    }
}

/// See `Cache::writing`.
pub(crate) struct Writing<'a, K> {
    cache: &'a Cache<K>,
    key: Key,
}

impl<K> Drop for Writing<'_, K> {
    fn drop(&mut self) {
        self.cache.write().writing.remove(&self.key);
    }
}

struct OwnedChange<K> {
    key: Key,
    old: Option<Arc<K>>,
    new: Option<Arc<K>>,
    initial: bool,
    own: bool,
}

impl<K: Resource> OwnedChange<K> {
    /// The same version twice (a re-list, or the echo of an absorbed write) is no change.
    fn differs(&self) -> bool {
        match (&self.old, &self.new) {
            (Some(old), Some(new)) => !is_same(old, new),
            (Some(_), None) | (None, Some(_)) => true,
            (None, None) => false,
        }
    }
}

impl<K: Watched> State<K> {
    fn put(&mut self, key: Key, object: Arc<K>) -> OwnedChange<K> {
        // What is known of this very version stays: it may be less by now than what was read again (`cached_child`).
        if let Some(known) = self.objects.get(&key).filter(|known| is_same(known, &object)) {
            let (old, new) = (Some(Arc::clone(known)), Some(Arc::clone(known)));
            return OwnedChange { key, old, new, initial: false, own: false };
        }
        let old = self.objects.insert(key.clone(), Arc::clone(&object));
        if let Some(old) = old.as_ref().filter(|old| old.meta().uid == object.meta().uid) {
            object.inherit(old);
        }
        let (before, after) = (old.as_deref().and_then(owner_uid), owner_uid(&*object));
        if before != after {
            if let Some(uid) = before {
                self.disown(uid, &key);
            }
            if let Some(uid) = after {
                let keys = self.by_owner.entry(uid.into()).or_insert_with(|| Vec::with_capacity(1));
                if let Err(place) = keys.binary_search(&key) {
                    keys.insert(place, key.clone());
                }
            }
        }
        OwnedChange { key, old, new: Some(object), initial: false, own: false }
    }

    fn take_if(&mut self, key: Key, uid: Option<&str>) -> Vec<OwnedChange<K>> {
        match self.objects.get(&key) {
            Some(known) if known.meta().uid.as_deref() == uid => vec![self.take(key)],
            Some(_) | None => Vec::new(),
        }
    }

    /// What an answer said while a LIST was under way stays, if the list is older than it.
    fn keep_newer(&self, fresh: &mut HashMap<Key, Arc<K>>, key: Key, answered: &Answered) {
        match answered {
            Answered::Written => {
                let Some(known) = self.objects.get(&key) else { return };
                let version = version_of(&**known);
                if version > self.version
                    && fresh.get(&key).is_none_or(|listed| version_of(&**listed) < version)
                {
                    fresh.insert(key, Arc::clone(known));
                }
            }
            Answered::Deleted { uid } => {
                if fresh.get(&key).is_some_and(|listed| listed.meta().uid == *uid) {
                    fresh.remove(&key);
                }
            }
        }
    }

    fn take(&mut self, key: Key) -> OwnedChange<K> {
        self.removals += 1;
        let old = self.objects.remove(&key);
        if let Some(uid) = old.as_deref().and_then(owner_uid) {
            self.disown(uid, &key);
        }
        OwnedChange { key, old, new: None, initial: false, own: false }
    }

    fn disown(&mut self, uid: &str, key: &Key) {
        if let Some(keys) = self.by_owner.get_mut(uid) {
            if let Ok(place) = keys.binary_search(key) {
                keys.remove(place);
            }
            if keys.is_empty() {
                self.by_owner.remove(uid);
            }
        }
    }
}

/// The owner that controls this object; an owner without `controller: true` does not (kube's own mapping ignores it).
pub fn controller_of<K: Resource>(object: &K) -> Option<&OwnerReference> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// Whether this reference names the kind `K`, of whatever version.
pub fn is_of_kind<K: Resource<DynamicType = ()>>(owner: &OwnerReference) -> bool {
    let (group, _) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
    owner.kind == K::kind(&()) && group == K::group(&())
}

fn owner_uid<K: Resource>(object: &K) -> Option<&str> {
    controller_of(object).map(|owner| owner.uid.as_str())
}

/// The same version of the same object.
fn is_same<K: Resource>(one: &Arc<K>, other: &Arc<K>) -> bool {
    Arc::ptr_eq(one, other)
        || (one.meta().uid == other.meta().uid
            && one.meta().resource_version == other.meta().resource_version)
}

/// Resource versions are comparable numbers within one kind (Kubernetes 1.35 made that a promise; etcd always did).
fn version_of<K: Resource>(object: &K) -> u64 {
    parse_version(object.meta())
}

fn parse_version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
