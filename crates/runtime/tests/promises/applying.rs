//! Writes go to our own objects only, and only when something differs.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use runtime::{
    apply::{ApplyError, Writer, Written},
    cache::Cache,
    kept::{Kept, Metadata},
};

use crate::{
    fake::{Call, Fake, On, Verb},
    given::{child_of, client, config_map, deployment},
};

fn patches() -> On {
    Verb::Patch.of("configmaps")
}

fn writer(fake: &Fake) -> Writer {
    Writer::new(client(fake), "test", "test/hash")
}

/// The child of "a" that these tests want, as a controller renders it: without a uid.
fn wanted() -> ConfigMap {
    let mut child = child_of(&deployment("a", 1), "child");
    child.metadata.uid = None;
    child.data = Some([("key".to_owned(), "value".to_owned())].into());
    child
}

fn is_forced(call: &Call) -> bool {
    call.query.get("force").is_some_and(|force| force == "true")
}

async fn assert_foreign(there: &ConfigMap) {
    let fake = Fake::start().await;
    let stored = fake.put(there);
    let cache = Cache::<ConfigMap>::default();
    let error = writer(&fake).apply(&cache, &wanted()).await.unwrap_err();
    assert!(matches!(error, ApplyError::Foreign { .. }), "{error:?}");
    assert!(error.to_string().contains("ConfigMap demo/child exists and belongs to"), "{error}");
    assert_eq!(fake.verbs(), ["Patch configmaps", "Get configmaps"]);
    assert!(!is_forced(&fake.calls(patches())[0]));
    assert_eq!(fake.stored("configmaps", "child"), Some(stored), "it is untouched");
    assert!(cache.is_empty());
}

#[tokio::test]
async fn an_unseen_object_of_another_owner_is_refused_and_left_alone() {
    assert_foreign(&child_of(&deployment("another", 1), "child")).await;
}

#[tokio::test]
async fn an_unseen_object_of_nobody_is_refused_and_left_alone() {
    assert_foreign(&config_map("child")).await;
}

#[tokio::test]
async fn an_unseen_object_of_an_older_namesake_of_our_owner_is_refused_and_left_alone() {
    let mut older = deployment("a", 1);
    older.metadata.uid = Some("uid-of-an-older-a".into());
    assert_foreign(&child_of(&older, "child")).await;
}

#[tokio::test]
async fn an_unseen_object_of_our_own_is_taken_over_by_its_uid() {
    let fake = Fake::start().await;
    let stored = fake.put(&child_of(&deployment("a", 1), "child"));
    let cache = Cache::<Kept<Metadata<ConfigMap>>>::default();
    let written = writer(&fake).apply(&cache, &wanted()).await.unwrap();
    assert_eq!(written, Written::Changed);
    assert_eq!(fake.verbs(), ["Patch configmaps", "Get configmaps", "Patch configmaps"]);
    let forced = &fake.calls(patches())[1];
    assert!(is_forced(forced));
    assert_eq!(forced.body["metadata"]["uid"], stored["metadata"]["uid"]);
    let again = writer(&fake).apply(&cache, &wanted()).await.unwrap();
    assert_eq!(again, Written::Unchanged, "the answer is known at once");
}

#[tokio::test]
async fn a_seen_object_of_another_owner_is_refused_without_a_request() {
    let fake = Fake::start().await;
    let cache = Cache::<ConfigMap>::default();
    cache.upsert(child_of(&deployment("another", 1), "child"));
    let error = writer(&fake).apply(&cache, &wanted()).await.unwrap_err();
    assert!(matches!(error, ApplyError::Foreign { .. }), "{error:?}");
    assert!(fake.verbs().is_empty());
}

#[tokio::test]
async fn an_absent_child_is_created_once_and_then_nothing_is_sent() {
    let fake = Fake::start().await;
    let (writer, cache) = (writer(&fake), Cache::<Kept<Metadata<ConfigMap>>>::default());
    assert_eq!(writer.apply(&cache, &wanted()).await.unwrap(), Written::Created);
    assert_eq!(writer.apply(&cache, &wanted()).await.unwrap(), Written::Unchanged);
    assert_eq!(fake.verbs(), ["Patch configmaps"]);
}

#[tokio::test]
async fn a_child_that_was_replaced_since_we_looked_is_not_written() {
    let fake = Fake::start().await;
    let cache = Cache::<ConfigMap>::default();
    let mut seen = child_of(&deployment("a", 1), "child");
    seen.metadata.resource_version = Some("50".into());
    cache.upsert(seen);
    let mut other = child_of(&deployment("a", 1), "child");
    other.metadata.uid = Some("another".into());
    let stored = fake.put(&other);
    let error = writer(&fake).apply(&cache, &wanted()).await.unwrap_err();
    assert!(error.to_string().contains("failed to apply ConfigMap demo/child"), "{error}");
    assert_eq!(fake.stored("configmaps", "child"), Some(stored));
}

#[tokio::test]
async fn a_delete_names_the_uid_and_the_version_it_was_decided_on() {
    let fake = Fake::start().await;
    fake.put(&config_map("child"));
    let seen: ConfigMap = serde_json::from_value(fake.stored("configmaps", "child").unwrap()).unwrap();
    // Somebody changes it before our delete arrives.
    fake.put(&config_map("child"));
    writer(&fake).delete(&seen).await.unwrap_err();
    let claims = &fake.calls(Verb::Delete.of("configmaps"))[0].body["preconditions"];
    assert_eq!(claims["uid"], seen.uid().unwrap());
    assert_eq!(claims["resourceVersion"], seen.resource_version().unwrap());
    assert!(fake.stored("configmaps", "child").is_some());
    fake.remove("configmaps", "child");
    writer(&fake).delete(&seen).await.expect("gone is what was wanted");
}
