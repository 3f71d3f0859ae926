//! What the API server stored in a namespace with canaries: each version of each route, EndpointSlice and Deployment.
//!
//! A watch delivers every stored version in order, and the versions of all kinds are numbered together. So this is what an audit
//! log with whole objects would say, also about the writers that such a log leaves out.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    time::Instant,
};

use futures::TryStreamExt as _;
use k8s_openapi::api::{apps::v1::Deployment, discovery::v1::EndpointSlice};
use kube::{
    Api, Resource,
    api::{DynamicObject, ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;

use crate::{Scene, ask_until, gateway::routes, within};

#[derive(Clone, Debug, Default)]
pub struct Record {
    pub routes: Vec<Stored<DynamicObject>>,
    pub slices: Vec<Stored<EndpointSlice>>,
    pub deployments: Vec<Stored<Deployment>>,
}

/// A version of an object, or its end.
#[derive(Clone, Debug)]
pub struct Stored<K> {
    pub version: u64,
    /// When the watch delivered it.
    pub at: Instant,
    pub is_deleted: bool,
    pub object: K,
}

impl<K: Resource> Stored<K> {
    fn now(object: K, is_deleted: bool) -> Self {
        let version = object.meta().resource_version.as_deref().unwrap_or_default();
        let version = version.parse().expect("versions of a store are numbers");
        Self { version, at: Instant::now(), is_deleted, object }
    }

    pub fn name(&self) -> &str {
        self.object.meta().name.as_deref().unwrap_or_default()
    }

    pub fn uid(&self) -> &str {
        self.object.meta().uid.as_deref().unwrap_or_default()
    }
}

/// Records until the script ends, and everything that is stored then.
pub async fn recorded(scene: &Scene<'_>, script: impl Future<Output = ()>) -> Record {
    let record = RefCell::new(Record::default());
    let (routes, slices, deployments) =
        (routes(scene), scene.api::<EndpointSlice>(), scene.api::<Deployment>());
    let script = async {
        script.await;
        until_delivered(&routes, || record.borrow().routes.clone()).await;
        until_delivered(&slices, || record.borrow().slices.clone()).await;
        until_delivered(&deployments, || record.borrow().deployments.clone()).await;
    };
    tokio::select! {
        () = each_version(&routes, |stored| record.borrow_mut().routes.push(stored)) => {}
        () = each_version(&slices, |stored| record.borrow_mut().slices.push(stored)) => {}
        () = each_version(&deployments, |stored| record.borrow_mut().deployments.push(stored)) => {}
        () = script => {}
    }
    record.into_inner()
}

/// Until the watch has delivered what is stored, and the end of what is not.
async fn until_delivered<K>(api: &Api<K>, known: impl Fn() -> Vec<Stored<K>>)
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    ask_until("the watch has delivered everything", within(), async || {
        let list = api.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let stored: BTreeSet<u64> =
            list.items.into_iter().map(|object| Stored::now(object, false).version).collect();
        let known = known();
        let newest: BTreeMap<&str, &Stored<K>> = known.iter().map(|known| (known.uid(), known)).collect();
        let left = newest.values().filter(|known| !known.is_deleted).map(|known| known.version).collect();
        if stored == left { Ok(()) } else { Err(format!("stored {stored:?}, delivered {left:?}")) }
    })
    .await;
}

/// Does not end. A watch that skips a version is a panic.
async fn each_version<K>(api: &Api<K>, mut note: impl FnMut(Stored<K>))
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let list = api.list(&ListParams::default()).await.expect("a list to begin with");
    let mut from = list.metadata.resource_version.unwrap_or_default();
    list.items.into_iter().for_each(|object| note(Stored::now(object, false)));
    // The API server ends each watch after some minutes.
    loop {
        let events = api.watch(&WatchParams::default(), &from).await.expect("a watch");
        futures::pin_mut!(events);
        while let Some(event) = events.try_next().await.expect("a watch that does not break") {
            let stored = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => Stored::now(object, false),
                WatchEvent::Deleted(object) => Stored::now(object, true),
                WatchEvent::Bookmark(bookmark) => {
                    from = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => panic!("the watch broke: {status:?}"),
            };
            from = stored.version.to_string();
            note(stored);
        }
    }
}
