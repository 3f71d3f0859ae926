//! No child is created for an owner that is gone, and the first creation of children costs no read.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use kube::Resource;
use runtime::{
    watch::{Scope, Watches, cache::Cache},
    write::{
        apply::{ApplyError, Stale, Written},
        children::Children,
    },
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    fake::{Answer, ScriptedApi, Verb},
    given::{Child, Logs, client, deployment, metrics, one_try, rendered, timings, within_patience, writer},
};

/// A root in the server and in the cache, and the handle of its children.
struct Given {
    fake: ScriptedApi,
    root: Deployment,
    roots: Cache<Deployment>,
    children: Children<Child, k8s_openapi::api::core::v1::ConfigMap>,
}

impl Given {
    /// It was there before this process.
    async fn listed(status: Value) -> Self {
        Self::with(status, |roots, root| {
            let version = root.metadata.resource_version.clone();
            roots.replace(vec![Arc::new(root)], &version.unwrap());
        })
        .await
    }

    /// It was created while this process watched.
    async fn created(status: Value) -> Self {
        Self::with(status, |roots, root| {
            roots.replace(Vec::new(), "1");
            roots.upsert(root);
        })
        .await
    }

    async fn with(status: Value, arrive: impl FnOnce(&Cache<Deployment>, Deployment)) -> Self {
        let fake = ScriptedApi::start().await;
        let mut root = serde_json::to_value(deployment("a", 1)).unwrap();
        root["status"] = status;
        let root: Deployment = serde_json::from_value(fake.put_json("deployments", root)).unwrap();
        let roots = Cache::default();
        let children = writer(&fake, &roots).of(Cache::default());
        arrive(&roots, root.clone());
        Self { fake, root, roots, children }
    }

    /// One that no controller has looked at yet.
    async fn new_root() -> Self {
        Self::created(Value::Null).await
    }

    /// One with the status that a CustomResourceDefinition gives as a default.
    async fn defaulted_root() -> Self {
        Self::created(json!({"observedGeneration": 0})).await
    }

    /// One whose children were there before this process.
    async fn old_root() -> Self {
        Self::created(json!({"replicas": 1})).await
    }

    /// One for which an earlier process may have created children without having written the status.
    async fn listed_without_a_status() -> Self {
        Self::listed(json!({"observedGeneration": 0})).await
    }

    async fn apply(&self) -> Result<Written, ApplyError> {
        self.children.apply(&rendered(&self.root, "child")).await
    }

    /// Fails if the child was created.
    async fn assert_not_created(&self) {
        let error = self.apply().await.unwrap_err();
        assert!(matches!(error, ApplyError::Stale { why: Stale::OwnerGone, .. }), "{error:?}");
        assert!(self.fake.stored("configmaps", "child").is_none());
        assert_eq!(self.reads(), 1);
        // The cache knows by now, so the next reconcile needs no read.
        self.apply().await.unwrap_err();
        assert_eq!(self.reads(), 1);
    }

    fn reads(&self) -> usize {
        self.fake.calls(Verb::Get.of("deployments")).len()
    }

    /// The garbage collector takes the child, and its event is the first to arrive.
    fn delete_child(&self) {
        self.fake.remove("configmaps", "child");
        let child = self.children.all().pop().unwrap();
        self.children.remove(child.meta());
    }
}

#[tokio::test]
async fn the_first_children_of_a_new_owner_cost_no_read() {
    for given in [Given::new_root().await, Given::defaulted_root().await] {
        assert_eq!(given.apply().await.unwrap(), Written::Created);
        assert_eq!(given.fake.verbs(), ["Patch configmaps"]);
    }
}

#[tokio::test]
async fn a_child_whose_deletion_is_seen_before_that_of_its_owner_is_not_created_again() {
    let given = Given::new_root().await;
    given.apply().await.unwrap();
    given.fake.remove("deployments", "a");
    given.delete_child();
    given.assert_not_created().await;
    assert!(given.roots.is_empty());
}

#[tokio::test]
async fn no_child_is_created_for_an_owner_that_was_deleted_before_this_process_began() {
    let given = Given::old_root().await;
    given.fake.remove("deployments", "a");
    given.assert_not_created().await;
}

#[tokio::test]
async fn no_child_is_created_for_an_owner_that_was_listed_without_a_status_and_is_gone() {
    let given = Given::listed_without_a_status().await;
    given.fake.remove("deployments", "a");
    given.assert_not_created().await;
    assert!(given.fake.calls(Verb::Patch.of("configmaps")).is_empty());
}

#[tokio::test]
async fn the_children_of_an_owner_of_the_first_list_cost_one_read_together() {
    let given = Given::listed_without_a_status().await;
    given.apply().await.unwrap();
    assert_eq!(given.reads(), 1);
    given.children.apply(&rendered(&given.root, "another")).await.unwrap();
    assert_eq!(given.reads(), 1);
}

#[tokio::test]
async fn no_child_is_created_for_an_owner_that_is_being_deleted() {
    let given = Given::old_root().await;
    let mut ending = given.fake.stored("deployments", "a").unwrap();
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    given.fake.put_json("deployments", ending);
    given.assert_not_created().await;
    assert!(given.roots.all()[0].metadata.deletion_timestamp.is_some());
}

#[tokio::test]
async fn no_child_is_created_for_an_owner_that_was_replaced_by_another_of_its_name() {
    let given = Given::old_root().await;
    given.fake.remove("deployments", "a");
    let mut namesake = deployment("a", 1);
    namesake.metadata.uid = Some("another".into());
    given.fake.put(&namesake);
    given.assert_not_created().await;
    assert_eq!(given.roots.all()[0].metadata.uid.as_deref(), Some("another"));
}

#[tokio::test]
async fn a_child_that_was_deleted_under_a_living_owner_is_created_again_after_one_read() {
    let given = Given::new_root().await;
    given.apply().await.unwrap();
    given.delete_child();
    assert_eq!(given.apply().await.unwrap(), Written::Created);
    assert_eq!(given.fake.verbs(), ["Patch configmaps", "Get deployments", "Patch configmaps"]);
    assert_eq!(given.apply().await.unwrap(), Written::Unchanged);
    assert_eq!(given.reads(), 1);
}

#[tokio::test]
async fn nothing_is_created_while_the_watch_of_the_owners_is_failing() {
    let logs = Logs::capture();
    let fake = ScriptedApi::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    fake.next(Verb::Watch.of("deployments"), [Answer::status(500, "InternalError", "etcdserver: no leader")]);
    let mut watches = Watches::new(client(&fake), one_try(), metrics());
    let roots = watches.watch::<Deployment>("Deployment", Scope::default());
    watches.start(&CancellationToken::new());
    logs.until_logged(&["watch failed", "Deployment"]).await;
    let children: Children<Child, k8s_openapi::api::core::v1::ConfigMap> =
        writer(&fake, &roots).of(Cache::default());
    let error = children.apply(&rendered(&root, "child")).await.unwrap_err();
    assert!(matches!(error, ApplyError::Stale { why: Stale::OwnerWatchFails, .. }), "{error:?}");
    assert!(fake.calls(Verb::Patch.of("configmaps")).is_empty());
}

#[tokio::test]
async fn a_child_is_created_as_soon_as_the_watch_of_the_owners_works_again() {
    let fake = ScriptedApi::start().await;
    let root = deployment("a", 1);
    fake.put(&root);
    fake.next(Verb::Watch.of("deployments"), [Answer::status(500, "InternalError", "etcdserver: no leader")]);
    let mut watches = Watches::new(client(&fake), timings(), metrics());
    let roots = watches.watch::<Deployment>("Deployment", Scope::default());
    watches.start(&CancellationToken::new());
    fake.until_called(Verb::Watch.of("deployments"), 2).await;
    let children: Children<Child, k8s_openapi::api::core::v1::ConfigMap> =
        writer(&fake, &roots).of(Cache::default());
    let created = async {
        loop {
            match children.apply(&rendered(&root, "child")).await {
                Ok(written) => return written,
                Err(error) => assert!(matches!(error, ApplyError::Stale { .. }), "{error:?}"),
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(within_patience("the child", created).await, Written::Created);
}
