//! Waiting for an object by watching it, with a deadline. One object at a time: this is no cache.

use std::{fmt::Debug, time::Duration};

use futures::TryStreamExt as _;
use kube::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
    core::Resource,
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout_at};

/// After a watch or a list broke; short, because waits have deadlines of seconds.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// What an object was when its waiter gave up.
#[derive(Debug, thiserror::Error)]
#[error("{name} was not as expected within {} s", after.as_secs_f32())]
pub struct WaitedTooLong<K> {
    pub name: String,
    pub after: Duration,
    /// As it was seen last; `None` when it was not there.
    pub last_seen: Option<Box<K>>,
    /// Why it could not be seen, if the last try failed.
    #[source]
    pub last_error: Option<Box<kube::Error>>,
}

/// Waits until the claim holds for the object of this name (`None` while there is none), and returns what it held for.
pub async fn wait_for<K>(
    api: &Api<K>,
    name: &str,
    within: Duration,
    mut holds: impl FnMut(Option<&K>) -> bool,
) -> Result<Option<K>, WaitedTooLong<K>>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let deadline = Instant::now() + within;
    let mut last_seen = None;
    let mut last_error = None;
    loop {
        let round = watch_once(api, name, &mut last_seen, &mut holds);
        match timeout_at(deadline, round).await {
            Ok(Ok(true)) => return Ok(last_seen),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => last_error = Some(Box::new(error)),
            Err(_) => break,
        }
        if timeout_at(deadline, sleep(RETRY_AFTER)).await.is_err() {
            break;
        }
    }
    Err(WaitedTooLong {
        name: name.to_owned(),
        after: within,
        last_seen: last_seen.map(Box::new),
        last_error,
    })
}

/// As [`wait_for`], with the errors of this crate.
pub(crate) async fn wait_until<K>(
    api: &Api<K>,
    name: &str,
    within: Duration,
    holds: impl FnMut(Option<&K>) -> bool,
) -> crate::Result<Option<K>>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    wait_for(api, name, within, holds).await.map_err(|late| {
        let reason = crate::explained(&late);
        crate::Error::invalid("wait for", name, reason)
    })
}

/// One list and the watch that follows it; false when the watch ended before the claim held.
async fn watch_once<K>(
    api: &Api<K>,
    name: &str,
    last_seen: &mut Option<K>,
    holds: &mut impl FnMut(Option<&K>) -> bool,
) -> kube::Result<bool>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let only_this = format!("metadata.name={name}");
    let list = api.list(&ListParams::default().fields(&only_this)).await?;
    let version = list.metadata.resource_version.unwrap_or_default();
    *last_seen = list.items.into_iter().next();
    if holds(last_seen.as_ref()) {
        return Ok(true);
    }
    let events = api.watch(&WatchParams::default().fields(&only_this), &version).await?;
    futures::pin_mut!(events);
    while let Some(event) = events.try_next().await? {
        *last_seen = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => Some(object),
            WatchEvent::Deleted(_) => None,
            WatchEvent::Bookmark(_) => continue,
            // Most likely the version is too old: list again.
            WatchEvent::Error(_) => return Ok(false),
        };
        if holds(last_seen.as_ref()) {
            return Ok(true);
        }
    }
    Ok(false)
}
