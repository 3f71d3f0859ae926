//! `runtime::write` with the real API server, for the details of server-side apply.

use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, api::PostParams};
use runtime::{
    watch::{
        cache::Cache,
        cached_child::{CachedChild, Metadata},
    },
    write::apply::{ApplyError, Stale, Writer, Written},
};
use serde_json::json;
use tests::Scene;

const OWNER: &str = "2b1f4d4e-6f51-4dd8-a5a8-0c0f8cf0a001";

/// The type that controllers use.
type Children = runtime::write::children::Children<CachedChild<Metadata<ConfigMap>, ConfigMap>, ConfigMap>;

/// Children with an empty cache.
fn children(scene: &Scene<'_>) -> Children {
    let roots = Cache::default();
    let writer = Writer::new(scene.client(), "test-controller", "test.example/hash", &roots);
    // Afterwards: as if it were created just now.
    roots.upsert(ConfigMap {
        metadata: ObjectMeta {
            name: Some("owner".into()),
            namespace: Some(scene.namespace().into()),
            uid: Some(OWNER.into()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    });
    writer.of(Cache::default())
}

fn is_stale(error: &ApplyError, expected: Stale) -> bool {
    matches!(error, ApplyError::Stale { why, .. } if *why == expected)
}

/// A rendered child.
fn child(scene: &Scene<'_>, data: &[(&str, &str)]) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some("child".into()),
            namespace: Some(scene.namespace().into()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "ConfigMap".into(),
                name: "owner".into(),
                uid: OWNER.into(),
                controller: Some(true),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        data: Some(data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()),
        ..ConfigMap::default()
    }
}

/// The API server without a garbage collector, which would delete children of the nonexistent owner.
async fn scene() -> Scene<'static> {
    tests::api_server().await
}

#[tokio::test]
async fn an_absent_child_is_created_and_then_not_written_again() {
    let scene = scene().await;
    let children = children(&scene);
    let wanted = child(&scene, &[("a", "1")]);
    assert_eq!(children.apply(&wanted).await.unwrap(), Written::Created);
    assert_eq!(children.apply(&wanted).await.unwrap(), Written::Unchanged, "the response is in the cache");
}

#[tokio::test]
async fn an_object_of_another_owner_is_not_touched() {
    let scene = scene().await;
    let config_maps: Api<ConfigMap> = scene.api();
    let mut foreign = child(&scene, &[("foreign", "x")]);
    foreign.metadata.owner_references = None;
    let before = config_maps.create(&PostParams::default(), &foreign).await.unwrap();
    let refused = children(&scene).apply(&child(&scene, &[("a", "1")])).await.unwrap_err();
    assert!(matches!(refused, ApplyError::Foreign { .. }), "{refused:?}");
    let after = config_maps.get("child").await.unwrap();
    assert_eq!(before.metadata.resource_version, after.metadata.resource_version);
}

#[tokio::test]
async fn a_child_that_the_cache_does_not_have_is_read_first_and_written_by_the_next_apply() {
    let scene = scene().await;
    children(&scene).apply(&child(&scene, &[("a", "1")])).await.unwrap();
    let children = children(&scene);
    let wanted = child(&scene, &[("a", "2")]);
    let found = children.apply(&wanted).await.unwrap_err();
    assert!(is_stale(&found, Stale::Found), "{found:?}");
    assert_eq!(scene.api::<ConfigMap>().get("child").await.unwrap().data.unwrap()["a"], "1");
    assert_eq!(children.apply(&wanted).await.unwrap(), Written::Changed);
}

#[tokio::test]
async fn a_field_that_is_no_longer_applied_is_removed_and_a_foreign_field_is_kept() {
    let scene = scene().await;
    let children = children(&scene);
    children.apply(&child(&scene, &[("a", "1"), ("b", "2")])).await.unwrap();
    scene.kubectl(&["patch", "configmap", "child", "--type=merge", "-p", r#"{"data":{"foreign":"x"}}"#]);
    assert_eq!(children.apply(&child(&scene, &[("a", "1")])).await.unwrap(), Written::Changed);
    let data = scene.api::<ConfigMap>().get("child").await.unwrap().data.unwrap();
    assert_eq!(data.into_keys().collect::<Vec<_>>(), ["a", "foreign"]);
}

#[tokio::test]
async fn a_write_for_a_deleted_object_does_not_change_a_newer_object_of_its_name() {
    let scene = scene().await;
    let children = children(&scene);
    let api: Api<ConfigMap> = scene.api();
    children.apply(&child(&scene, &[("a", "1")])).await.unwrap();
    let stale = api.get("child").await.unwrap();
    scene.kubectl(&["delete", "configmap", "child"]);
    let mut foreign = child(&scene, &[("foreign", "x")]);
    foreign.metadata.owner_references = None;
    api.create(&PostParams::default(), &foreign).await.unwrap();
    let refused = children.apply(&child(&scene, &[("a", "2")])).await.unwrap_err();
    assert!(is_stale(&refused, Stale::Changed), "{refused:?}");
    assert_eq!(api.get("child").await.unwrap().data, foreign.data);
    let refused = children.delete(&stale).await.unwrap_err();
    assert!(is_stale(&refused, Stale::Changed), "nor does a delete: {refused:?}");
    assert!(api.get_opt("child").await.unwrap().is_some());
}

#[tokio::test]
async fn a_deleted_child_leaves_the_cache_at_once() {
    let scene = scene().await;
    let children = children(&scene);
    children.apply(&child(&scene, &[("a", "1")])).await.unwrap();
    let stored = scene.api::<ConfigMap>().get("child").await.unwrap();
    children.delete(&stored).await.unwrap();
    assert!(children.is_empty());
    children.delete(&stored).await.expect("gone is what was wanted");
}

#[tokio::test]
async fn a_status_goes_to_the_version_that_it_was_planned_on_and_to_no_newer_one() {
    let scene = scene().await;
    let api: Api<Namespace> = scene.cluster_api();
    let planned_on = api.get(scene.namespace()).await.unwrap();
    scene.kubectl(&["annotate", "namespace", scene.namespace(), "test.example/touched=yes"]);
    let roots = Cache::default();
    let writer = Writer::new(scene.client(), "test-controller", "test.example/hash", &roots);
    let status = json!({"conditions": [{
        "type": "Test", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]});
    let refused = writer.apply_status(&roots, &planned_on, &status).await.unwrap_err();
    assert!(is_stale(&refused, Stale::Changed), "{refused:?}");
    let newer = api.get(scene.namespace()).await.unwrap();
    assert_eq!(writer.apply_status(&roots, &newer, &status).await.unwrap(), Written::Changed);
}
