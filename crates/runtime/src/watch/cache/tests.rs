use std::sync::Mutex;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};

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
        vec![OwnerReference {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            uid: uid.into(),
            controller: Some(true),
            ..OwnerReference::default()
        }]
    });
    object
}

/// The names of changes since the last call, with a sign: + new, ~ changed, - gone.
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

/// The answer to the creation of the second one came before the watch had delivered the last change of the first.
#[test]
fn an_older_event_of_a_deleted_namesake_changes_nothing() {
    let cache = Cache::default();
    cache.replace(listed([]), "5");
    let of = |uid: &str, version| {
        let mut object = config_map("a", version, None);
        object.metadata.uid = Some(uid.to_owned());
        object
    };
    cache.absorb(of("uid-2", 9));
    let changes = record(&cache);
    changes();
    cache.upsert(of("uid-1", 7));
    assert_eq!(changes(), [""; 0]);
    let known = cache.get(&Key::of(&of("uid-2", 9))).unwrap();
    assert_eq!(known.metadata.uid.as_deref(), Some("uid-2"));
}

#[test]
fn a_relist_reports_what_is_new_changed_and_vanished() {
    let cache = Cache::default();
    cache
        .replace(listed([config_map("a", 1, None), config_map("b", 2, None), config_map("c", 3, None)]), "3");
    let changes = record(&cache);
    assert_eq!(changes(), ["+a", "+b", "+c"], "a late subscriber gets what is known");
    cache
        .replace(listed([config_map("a", 1, None), config_map("b", 9, None), config_map("d", 8, None)]), "9");
    assert_eq!(changes(), ["+d", "-c", "~b"]);
}

#[test]
fn an_absorbed_write_is_seen_at_once_and_its_echo_is_no_change() {
    let cache = Cache::default();
    cache.replace(listed([config_map("a", 5, None)]), "5");
    let changes = record(&cache);
    changes();
    cache.absorb(config_map("a", 6, None));
    assert_eq!(changes(), ["~a"]);
    cache.upsert(config_map("a", 6, None));
    assert!(changes().is_empty());
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
fn a_list_does_not_take_back_what_was_answered_since_it_was_sent() {
    let cache = Cache::default();
    let [a, b, c] = ["a", "b", "c"].map(|name| config_map(name, 5, None));
    cache.replace(listed([a.clone(), b.clone(), c.clone()]), "5");
    cache.begin_list();
    cache.absorb(config_map("a", 8, None));
    cache.absorb(config_map("new", 9, None));
    cache.forget(&Key::of(&b), b.metadata.uid.as_deref());
    cache.replace(listed([a, b, c]), "7");
    let mut known: Vec<_> =
        cache.all().iter().map(|known| (Key::of(&**known), version_of(&**known))).collect();
    known.sort();
    let key = |name| Key::new("demo", name);
    assert_eq!(known, [(key("a"), 8), (key("c"), 5), (key("new"), 9)]);
}

#[test]
fn a_list_replaces_everything_else_however_old_it_is() {
    let cache = Cache::default();
    cache.replace(listed([config_map("a", 5, None)]), "5");
    cache.absorb(config_map("a", 8, None));
    cache.begin_list();
    // A restored etcd counts from an older version.
    cache.replace(listed([config_map("a", 3, None)]), "4");
    assert_eq!(version_of(&*cache.all()[0]), 3);
    cache.absorb(config_map("a", 5, None));
    assert_eq!(version_of(&*cache.all()[0]), 5, "answers count from there on");
}

#[test]
fn a_list_that_is_newer_than_an_answer_counts() {
    let cache = Cache::default();
    cache.replace(listed([config_map("b", 5, None)]), "5");
    cache.begin_list();
    cache.absorb(config_map("a", 8, None));
    cache.forget(&Key::new("demo", "b"), Some("uid-b"));
    let mut young = config_map("b", 9, None);
    young.metadata.uid = Some("young".into());
    cache.replace(listed([young]), "9");
    let known: Vec<_> = cache.all().iter().map(|known| known.metadata.uid.clone()).collect();
    assert_eq!(known, [Some("young".to_owned())], "a was deleted, and b created again");
}

#[test]
fn an_object_that_was_read_counts_unless_one_has_left_since() {
    let cache = Cache::default();
    cache.replace(listed([config_map("other", 5, None)]), "9");
    let removals = cache.removals();
    cache.absorb_read(config_map("hidden", 7, None), removals);
    assert_eq!(cache.len(), 2, "the watch, which is at version 9, does not select it");
    let removals = cache.removals();
    cache.remove(&config_map("read", 10, None).metadata);
    cache.remove(&config_map("hidden", 11, None).metadata);
    cache.absorb_read(config_map("hidden", 7, None), removals);
    assert_eq!(cache.len(), 1, "it may have been read before it was deleted");
}

#[test]
fn changes_reach_subscribers_in_their_order() {
    let (cache, next) = (Cache::<ConfigMap>::default(), Arc::new(std::sync::atomic::AtomicU64::new(1)));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    cache.subscribe(move |change| {
        let version = version_of(&**change.new.unwrap());
        // Long enough for another thread to come in between, if one could.
        std::thread::yield_now();
        sink.lock().unwrap().push(version);
    });
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let version = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    cache.upsert(config_map("a", version, None));
                }
            });
        }
    });
    let seen = seen.lock().unwrap();
    assert!(seen.is_sorted(), "{seen:?}");
}

#[test]
fn a_subscriber_that_panics_does_not_stop_the_others() {
    let cache = Cache::default();
    cache.subscribe(|_| panic!("on purpose"));
    let changes = record(&cache);
    cache.upsert(config_map("a", 1, None));
    assert_eq!(changes(), ["+a"]);
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
fn an_object_is_gone_if_it_was_deleted_or_another_one_has_its_name() {
    let cache = Cache::default();
    let gone = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&gone);
    cache.subscribe(move |change: &Change<'_, ConfigMap>| {
        seen.lock().unwrap().extend(change.gone().and_then(|object| object.metadata.uid.clone()));
    });
    cache.replace(listed([config_map("a", 1, None), config_map("b", 1, None)]), "1");
    cache.upsert(config_map("a", 2, None));
    assert!(gone.lock().unwrap().is_empty());
    let mut young = config_map("a", 3, None);
    young.metadata.uid = Some("young".into());
    cache.upsert(young);
    cache.remove(&config_map("b", 1, None).metadata);
    assert_eq!(*gone.lock().unwrap(), ["uid-a", "uid-b"]);
}

#[test]
fn an_object_of_another_namespace_or_of_another_kind_of_owner_is_no_child() {
    let cache = Cache::default();
    let child = config_map("child", 1, Some("one"));
    let (mut elsewhere, mut of_a_daemon) = (config_map("b", 2, Some("one")), config_map("c", 3, Some("one")));
    elsewhere.metadata.namespace = Some("another".into());
    of_a_daemon.metadata.owner_references.as_mut().unwrap()[0].kind = "DaemonSet".into();
    let mut of_a_namesake = config_map("d", 4, Some("one"));
    of_a_namesake.metadata.owner_references.as_mut().unwrap()[0].api_version = "theirs/v1".into();
    cache.replace(listed([child, elsewhere, of_a_daemon, of_a_namesake]), "4");
    let owned = cache.owned_by::<Deployment>("demo", "one");
    let names: Vec<_> = owned.iter().map(|object| object.metadata.name.as_deref()).collect();
    assert_eq!(names, [Some("child")]);
}

#[test]
fn the_owner_index_follows_a_change_of_owner() {
    let cache = Cache::default();
    cache.replace(listed([config_map("b", 1, Some("one")), config_map("a", 2, Some("one"))]), "2");
    let names = |uid: &str| -> Vec<String> {
        let owned = cache.owned_by::<Deployment>("demo", uid);
        owned.iter().filter_map(|object| object.metadata.name.clone()).collect()
    };
    assert_eq!(names("one"), ["a", "b"]);
    cache.upsert(config_map("a", 3, Some("two")));
    assert_eq!(names("one"), ["b"]);
    assert_eq!(names("two"), ["a"]);
    cache.remove(&config_map("a", 4, Some("two")).metadata);
    assert!(names("two").is_empty());
    assert_eq!(cache.read().by_owner.len(), 1, "an owner without children keeps no memory");
}
