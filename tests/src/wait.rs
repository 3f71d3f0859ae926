//! Waiting for the world to become as a test expects it. By watching; a deadline turns a hang into an explanation.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use futures::TryStreamExt as _;
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::explained;

/// The default deadline: generous, because a loaded machine is no reason to fail.
pub fn within() -> Duration {
    Duration::from_secs(60)
}

/// Waits until the claim holds for the object and returns it; panics with the object as it was last seen.
pub async fn wait_for<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    deadline: Duration,
    mut holds: impl FnMut(&K) -> bool,
) -> K
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    let seen =
        local_cluster::watch::wait_for(api, name, deadline, |object| object.is_some_and(&mut holds)).await;
    match seen {
        Ok(Some(object)) => object,
        Ok(None) => panic!("{name} is gone, instead of: {what}"),
        Err(late) => {
            let reason = explained(&late);
            let last = late.last_seen.as_deref().map_or("it was not there".to_owned(), shown);
            panic!("waited in vain for {name}: {what} ({reason}); last seen:\n{last}")
        }
    }
}

/// Waits until there is no object of this name; panics with the object if it stays.
pub async fn wait_until_gone<K>(api: &Api<K>, name: &str, deadline: Duration)
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    let gone = local_cluster::watch::wait_for(api, name, deadline, |object| object.is_none()).await;
    if let Err(late) = gone {
        let last = late.last_seen.as_deref().map_or("it could not be seen".to_owned(), shown);
        panic!("waited in vain for {name} to go; last seen:\n{last}")
    }
}

/// Shows all objects with these labels, by uid, as they are now and after each change, until the look returns something.
/// What is seen has no gaps: a watch that breaks is a panic. The deadline is the caller's.
pub async fn follow<K, T>(
    api: &Api<K>,
    labels: &str,
    mut look: impl FnMut(&BTreeMap<String, K>) -> Option<T>,
) -> T
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let list = api.list(&ListParams::default().labels(labels)).await.expect("a list to begin with");
    let uid = |object: &K| object.meta().uid.clone().unwrap_or_default();
    let version = list.metadata.resource_version.unwrap_or_default();
    let mut all: BTreeMap<String, K> = list.items.into_iter().map(|object| (uid(&object), object)).collect();
    if let Some(found) = look(&all) {
        return found;
    }
    let events = api.watch(&WatchParams::default().labels(labels), &version).await.expect("a watch");
    futures::pin_mut!(events);
    while let Some(event) = events.try_next().await.expect("a watch that does not break") {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                all.insert(uid(&object), object);
            }
            WatchEvent::Deleted(object) => {
                all.remove(&uid(&object));
            }
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => panic!("the watch broke: {status:?}"),
        }
        if let Some(found) = look(&all) {
            return found;
        }
    }
    panic!("the watch of {labels:?} ended before its test");
}

fn shown<K: Serialize>(object: &K) -> String {
    serde_saphyr::to_string(object).unwrap_or_else(|error| format!("(it cannot be shown: {error})"))
}
