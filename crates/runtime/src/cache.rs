//! What a controller knows of one kind: the objects by key, indexed by the uid of their controlling owner.
//!
//! Filled by a watch task (`watch.rs`) and by the answers to our own writes (`absorb`); read by everybody, without a
//! request. Subscribers are told synchronously of each change, also of objects that vanished behind a re-list. It
//! never talks to the API server and never waits.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use tokio::sync::watch;

/// Namespace and name; the namespace is empty for cluster-scoped kinds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub fn of<K: Resource>(object: &K) -> Self {
        Self::named_in(object.meta())
    }

    pub(crate) fn named_in(meta: &ObjectMeta) -> Self {
        Self::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// One object before and after; both are never absent.
#[derive(Debug)]
pub struct Change<'a, K> {
    pub key: &'a Key,
    pub old: Option<&'a Arc<K>>,
    pub new: Option<&'a Arc<K>>,
    /// True for the objects of the very first list: nothing happened to them, they only became known.
    pub initial: bool,
}

type Subscriber<K> = Box<dyn Fn(&Change<'_, K>) + Send + Sync>;

/// A shared, cheaply cloned view of all objects of one kind within a scope.
pub struct Cache<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: RwLock<State<K>>,
    subscribers: RwLock<Vec<Subscriber<K>>>,
    /// True once the first list has arrived.
    synced: watch::Sender<bool>,
}

struct State<K> {
    objects: HashMap<Key, Arc<K>>,
    /// uid of the controlling owner → the keys of what it controls, in order. Mostly one, so no tree.
    by_owner: HashMap<Arc<str>, Vec<Key>>,
    /// The newest resource version that the watch has told of, for `absorb`.
    version: u64,
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
        let state = State { objects: HashMap::new(), by_owner: HashMap::new(), version: 0 };
        let shared = Shared {
            state: RwLock::new(state),
            subscribers: RwLock::new(Vec::new()),
            synced: watch::Sender::new(false),
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

    /// What the owner of this uid controls, ordered by key so that decisions are deterministic.
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let keys = state.by_owner.get(uid).into_iter().flatten();
        keys.filter_map(|key| state.objects.get(key).cloned()).collect()
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

    /// Called for every later change, synchronously; it must be quick and must not write to this cache. What is in
    /// the cache already is told at once. A change says *that* something happened: what is true now is in the cache.
    pub fn subscribe(&self, subscriber: impl Fn(&Change<'_, K>) + Send + Sync + 'static) {
        // The list of subscribers is locked first, as in every change, so that nothing falls between the two steps.
        let mut subscribers = self.shared.subscribers.write().unwrap_or_else(PoisonError::into_inner);
        let known: Vec<(Key, Arc<K>)> =
            self.read().objects.iter().map(|(key, object)| (key.clone(), Arc::clone(object))).collect();
        for (key, object) in &known {
            subscriber(&Change { key, old: None, new: Some(object), initial: true });
        }
        subscribers.push(Box::new(subscriber));
    }

    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.shared.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.shared.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Resource> Cache<K> {
    /// One object as the watch told it. What came before the answer to our own write is known to be out of date.
    pub fn upsert(&self, object: K) {
        let object = Arc::new(object);
        self.change(|state| {
            let key = Key::of(&*object);
            let version = version_of(&*object);
            state.version = state.version.max(version);
            match state.objects.get(&key) {
                Some(known) if known.meta().uid == object.meta().uid && version_of(&**known) > version => {
                    Vec::new()
                }
                Some(_) | None => vec![state.put(key, Arc::clone(&object))],
            }
        });
    }

    /// The watch told that the object with this metadata is gone. A younger object of the same name stays.
    pub fn remove(&self, meta: &ObjectMeta) {
        self.change(|state| {
            state.version = state.version.max(parse_version(meta));
            let key = Key::named_in(meta);
            match state.objects.get(&key) {
                Some(known) if known.meta().uid == meta.uid => vec![state.take(key)],
                Some(_) | None => Vec::new(),
            }
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
                vec![state.put(key, Arc::clone(&object))]
            } else {
                Vec::new()
            }
        });
    }

    /// How many of the known objects a complete list does not have.
    pub(crate) fn count_missing_from(&self, listed: &[Arc<K>]) -> usize {
        if self.is_empty() {
            return 0;
        }
        let listed: HashSet<Key> = listed.iter().map(|object| Key::of(&**object)).collect();
        self.read().objects.keys().filter(|key| !listed.contains(*key)).count()
    }

    /// A complete list: what differs is told, and so is what vanished.
    pub fn replace(&self, objects: Vec<Arc<K>>, list_version: &str) {
        let initial = !*self.shared.synced.borrow();
        self.change(|state| {
            let mut fresh: HashMap<Key, Arc<K>> = HashMap::with_capacity(objects.len());
            for object in objects {
                fresh.insert(Key::of(&*object), object);
            }
            let vanished: Vec<Key> =
                state.objects.keys().filter(|key| !fresh.contains_key(*key)).cloned().collect();
            let mut changes: Vec<Told<K>> = vanished.into_iter().map(|key| state.take(key)).collect();
            changes.extend(fresh.into_iter().map(|(key, object)| state.put(key, object)));
            for change in &mut changes {
                change.initial = initial;
            }
            // A list of an older state (a restored etcd) is the truth from now on.
            state.version = list_version.parse().unwrap_or(0);
            changes
        });
        self.shared.synced.send_replace(true);
    }

    fn change(&self, edit: impl FnOnce(&mut State<K>) -> Vec<Told<K>>) {
        let subscribers = self.shared.subscribers.read().unwrap_or_else(PoisonError::into_inner);
        let changes = edit(&mut self.write());
        for told in changes.iter().filter(|told| told.differs()) {
            let change = Change {
                key: &told.key,
                old: told.old.as_ref(),
                new: told.new.as_ref(),
                initial: told.initial,
            };
            for subscriber in subscribers.iter() {
                subscriber(&change);
            }
        }
    }
}

struct Told<K> {
    key: Key,
    old: Option<Arc<K>>,
    new: Option<Arc<K>>,
    initial: bool,
}

impl<K: Resource> Told<K> {
    /// The same version twice (a re-list, or the echo of an absorbed write) is no change.
    fn differs(&self) -> bool {
        match (&self.old, &self.new) {
            (Some(old), Some(new)) => !is_same(old, new),
            (Some(_), None) | (None, Some(_)) => true,
            (None, None) => false,
        }
    }
}

impl<K: Resource> State<K> {
    fn put(&mut self, key: Key, object: Arc<K>) -> Told<K> {
        // What is known of this very version stays: it may be less by now than what was read again (`kept`).
        if let Some(known) = self.objects.get(&key).filter(|known| is_same(known, &object)) {
            return Told { key, old: Some(Arc::clone(known)), new: Some(Arc::clone(known)), initial: false };
        }
        let old = self.objects.insert(key.clone(), Arc::clone(&object));
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
        Told { key, old, new: Some(object), initial: false }
    }

    fn take(&mut self, key: Key) -> Told<K> {
        let old = self.objects.remove(&key);
        if let Some(uid) = old.as_deref().and_then(owner_uid) {
            self.disown(uid, &key);
        }
        Told { key, old, new: None, initial: false }
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
mod tests {
    use std::sync::Mutex;

    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn listed<const N: usize>(objects: [ConfigMap; N]) -> Vec<Arc<ConfigMap>> {
        objects.into_iter().map(Arc::new).collect()
    }

    fn config_map(name: &str, version: u64, owner: Option<&str>) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some("demo".into());
        object.metadata.name = Some(name.into());
        object.metadata.uid = Some(format!("uid-{name}"));
        object.metadata.resource_version = Some(version.to_string());
        object.metadata.owner_references = owner.map(|uid| {
            vec![OwnerReference { uid: uid.into(), controller: Some(true), ..OwnerReference::default() }]
        });
        object
    }

    /// The names told since the last look, with a sign: + new, ~ changed, - gone.
    fn record(cache: &Cache<ConfigMap>) -> impl Fn() -> Vec<String> + use<> {
        let log = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&log);
        cache.subscribe(move |change| {
            let sign = match (change.old, change.new) {
                (None, _) => '+',
                (Some(_), Some(_)) => '~',
                (Some(_), None) => '-',
            };
            sink.lock().unwrap().push(format!("{sign}{}", change.key.name));
        });
        move || {
            let mut seen = std::mem::take(&mut *log.lock().unwrap());
            seen.sort();
            seen
        }
    }

    #[test]
    fn a_relist_tells_what_is_new_changed_and_vanished() {
        let cache = Cache::default();
        cache.replace(
            listed([config_map("a", 1, None), config_map("b", 2, None), config_map("c", 3, None)]),
            "3",
        );
        let told = record(&cache);
        assert_eq!(told(), ["+a", "+b", "+c"], "a late subscriber is told what is known");
        cache.replace(
            listed([config_map("a", 1, None), config_map("b", 9, None), config_map("d", 8, None)]),
            "9",
        );
        assert_eq!(told(), ["+d", "-c", "~b"]);
    }

    #[test]
    fn an_absorbed_write_is_seen_at_once_and_its_echo_is_no_change() {
        let cache = Cache::default();
        cache.replace(listed([config_map("a", 5, None)]), "5");
        let told = record(&cache);
        told();
        cache.absorb(config_map("a", 6, None));
        assert_eq!(told(), ["~a"]);
        cache.upsert(config_map("a", 6, None));
        assert!(told().is_empty());
    }

    #[test]
    fn a_late_answer_never_brings_back_a_deleted_object() {
        let cache = Cache::default();
        cache.replace(listed([config_map("a", 5, None)]), "5");
        cache.remove(&config_map("a", 7, None).metadata);
        cache.absorb(config_map("a", 6, None));
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn the_delete_of_an_older_object_leaves_its_namesake_alone() {
        let cache = Cache::default();
        let mut young = config_map("a", 8, None);
        young.metadata.uid = Some("young".into());
        cache.replace(listed([young]), "8");
        cache.remove(&config_map("a", 7, None).metadata);
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn the_owner_index_follows_a_change_of_owner() {
        let cache = Cache::default();
        cache.replace(listed([config_map("b", 1, Some("one")), config_map("a", 2, Some("one"))]), "2");
        let names = |uid: &str| -> Vec<String> {
            cache.owned_by(uid).iter().filter_map(|object| object.metadata.name.clone()).collect()
        };
        assert_eq!(names("one"), ["a", "b"]);
        cache.upsert(config_map("a", 3, Some("two")));
        assert_eq!(names("one"), ["b"]);
        assert_eq!(names("two"), ["a"]);
        cache.remove(&config_map("a", 4, Some("two")).metadata);
        assert!(names("two").is_empty());
        assert_eq!(cache.read().by_owner.len(), 1, "an owner without children keeps no memory");
    }
}
