//! How the pods end whose logs are followed: one watch of all pods, for as long as a log is followed.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tracing::warn;

/// What the watch has seen of a pod.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// It has not changed since the log was opened.
    Nothing,
    Pod(Arc<Pod>),
    Gone,
}

/// Cheap to clone; all clones share one watch.
#[derive(Clone)]
pub(super) struct Ends(Arc<Shared>);

struct Shared {
    client: Client,
    /// By namespace and name.
    followed: Mutex<HashMap<Name, watch::Sender<Known>>>,
    begun: Notify,
}

type Name = (String, String);

/// After a watch or a request broke.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long a watch without an event goes on when nothing is followed any more.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Shorter than the API server's own limit.
const WATCH_SECONDS: u32 = 280;

impl Ends {
    pub(super) fn new(client: Client) -> Self {
        Self(Arc::new(Shared { client, followed: Mutex::default(), begun: Notify::new() }))
    }

    /// What becomes of a pod from now on, until the value is dropped.
    pub(super) fn follow(&self, namespace: &str, pod: &str) -> watch::Receiver<Known> {
        let mut followed = self.lock();
        followed.retain(|_, known| known.receiver_count() > 0);
        let name = (namespace.to_owned(), pod.to_owned());
        let receiver = followed.entry(name).or_insert_with(|| watch::Sender::new(Known::Nothing)).subscribe();
        drop(followed);
        self.0.begun.notify_one();
        receiver
    }

    /// Watches while something is followed.
    pub(super) async fn watch(&self) -> Infallible {
        loop {
            while !self.is_used() {
                self.0.begun.notified().await;
            }
            match Box::pin(self.watch_once()).await {
                Ok(()) => {}
                Err(error) => {
                    warn!(error = crate::explained(&error), "pods are listed again");
                    sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    /// One list and the watch that follows it.
    async fn watch_once(&self) -> kube::Result<()> {
        let pods: Api<Pod> = Api::all(self.0.client.clone());
        // A log that is opened from now on reads its pod after this list, so that the pod may be newer.
        let before: Vec<Name> = self.lock().keys().cloned().collect();
        let list = pods.list(&ListParams::default()).await?;
        let there: HashSet<Name> = list.items.iter().map(name_of).collect();
        for pod in list.items {
            self.publish(&name_of(&pod), || Known::Pod(Arc::new(pod)));
        }
        for name in before.iter().filter(|name| !there.contains(*name)) {
            self.publish(name, || Known::Gone);
        }
        let version = list.metadata.resource_version.unwrap_or_default();
        let events = pods.watch(&WatchParams::default().timeout(WATCH_SECONDS), &version).await?;
        futures::pin_mut!(events);
        while self.is_used() {
            let Ok(event) = timeout(LOOK_AGAIN_AFTER, events.try_next()).await else { continue };
            match event? {
                Some(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => {
                    self.publish(&name_of(&pod), || Known::Pod(Arc::new(pod)));
                }
                Some(WatchEvent::Deleted(pod)) => self.publish(&name_of(&pod), || Known::Gone),
                Some(WatchEvent::Bookmark(_)) => {}
                // Most likely the version is too old: list again.
                Some(WatchEvent::Error(_)) | None => return Ok(()),
            }
        }
        Ok(())
    }

    fn publish(&self, name: &Name, known: impl FnOnce() -> Known) {
        if let Some(sender) = self.lock().get(name) {
            sender.send_replace(known());
        }
    }

    fn is_used(&self) -> bool {
        self.lock().values().any(|known| known.receiver_count() > 0)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, watch::Sender<Known>>> {
        self.0.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name_of(pod: &Pod) -> Name {
    (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone().unwrap_or_default())
}
