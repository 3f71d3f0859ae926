//! When something was first seen to be true of each object of a kind, by a watch of the meter's own. No cache.

use std::{collections::HashMap, fmt::Debug, time::Duration};

use anyhow::{Context as _, bail};
use futures::TryStreamExt as _;
use kube::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
    core::Resource,
};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, task::JoinHandle, time::Instant};

/// Follows a kind until it is dropped.
pub(crate) struct Sightings {
    what: &'static str,
    seen: watch::Receiver<Seen>,
    follower: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    first: HashMap<String, Instant>,
    /// Why nothing more will be seen.
    failure: Option<String>,
}

impl Sightings {
    /// From now on; `claim` gives the name under which an object counts, once it is as one waits for it to be.
    pub(crate) async fn of<K>(
        what: &'static str,
        api: Api<K>,
        labels: &str,
        claim: impl Fn(&K) -> Option<String> + Send + 'static,
    ) -> anyhow::Result<Self>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let list =
            api.list(&ListParams::default().labels(labels).limit(1)).await.context("failed to list")?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let params = WatchParams::default().labels(labels);
        let (sender, seen) = watch::channel(Seen::default());
        let follower = tokio::spawn(async move {
            let Err(error) = follow(&api, &params, version, &sender, claim).await;
            sender.send_modify(|seen| seen.failure = Some(format!("{error:#}")));
        });
        Ok(Self { what, seen, follower })
    }

    /// Waits until so many objects have been seen in all.
    pub(crate) async fn until(&mut self, count: usize, deadline: Duration) -> anyhow::Result<()> {
        let enough = self.seen.wait_for(|seen| seen.first.len() >= count || seen.failure.is_some());
        let late = tokio::time::timeout(deadline, enough).await.is_err();
        let (seen, what) = (self.seen.borrow(), self.what);
        if let Some(failure) = &seen.failure {
            bail!("the watch for {what} objects failed: {failure}");
        }
        if late {
            bail!("{} of {count} objects were {what} within {} s", seen.first.len(), deadline.as_secs());
        }
        Ok(())
    }

    /// When the last object was first seen.
    pub(crate) fn last(&self) -> Option<Instant> {
        self.seen.borrow().first.values().max().copied()
    }

    pub(crate) fn first(&self, name: &str) -> Option<Instant> {
        self.seen.borrow().first.get(name).copied()
    }
}

impl Drop for Sightings {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

/// Watches until it is dropped; a watch that the server closes without an error is continued at the last version.
async fn follow<K>(
    api: &Api<K>,
    params: &WatchParams,
    mut version: String,
    seen: &watch::Sender<Seen>,
    claim: impl Fn(&K) -> Option<String>,
) -> anyhow::Result<std::convert::Infallible>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    loop {
        let mut events = std::pin::pin!(api.watch(params, &version).await.context("failed to watch")?);
        while let Some(event) = events.try_next().await.context("failed to read a watch")? {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    note_version(&mut version, &object);
                    if let Some(name) = claim(&object) {
                        let now = Instant::now();
                        seen.send_if_modified(|seen| {
                            let before = seen.first.len();
                            seen.first.entry(name).or_insert(now);
                            seen.first.len() > before
                        });
                    }
                }
                WatchEvent::Deleted(object) => note_version(&mut version, &object),
                WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                WatchEvent::Error(status) => bail!("{} {}", status.code, status.message),
            }
        }
    }
}

fn note_version<K: Resource>(version: &mut String, object: &K) {
    if let Some(reached) = &object.meta().resource_version {
        version.clone_from(reached);
    }
}
