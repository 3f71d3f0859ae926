//! `runtime::apply` against the real API server: what a fake cannot tell of server-side apply.

use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, api::PostParams};
use runtime::{
    apply::{ApplyError, Writer, Written},
    cache::Cache,
    kept::{Kept, Metadata},
};
use tests::Scene;

/// As a controller keeps them.
type Children = Cache<Kept<Metadata<ConfigMap>>>;

fn writer(scene: &Scene<'_>) -> Writer {
    Writer::new(scene.client(), "test-controller", "test.example/hash")
}

/// A child as a controller would render it.
fn child(scene: &Scene<'_>, data: &[(&str, &str)]) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some("child".into()),
            namespace: Some(scene.namespace().into()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "ConfigMap".into(),
                name: "owner".into(),
                uid: "2b1f4d4e-6f51-4dd8-a5a8-0c0f8cf0a001".into(),
                controller: Some(true),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        data: Some(data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()),
        ..ConfigMap::default()
    }
}

/// The garbage collector would take children of an owner that does not exist: these tests have none of it.
async fn scene() -> Scene<'static> {
    tests::api_server().await
}

#[tokio::test]
async fn an_absent_child_is_created_and_then_left_alone() {
    let scene = scene().await;
    let (writer, cache) = (writer(&scene), Children::default());
    let wanted = child(&scene, &[("a", "1")]);
    assert_eq!(writer.apply(&cache, &wanted).await.unwrap(), Written::Created);
    assert_eq!(
        writer.apply(&cache, &wanted).await.unwrap(),
        Written::Unchanged,
        "the answer is in the cache"
    );
}

#[tokio::test]
async fn somebody_elses_object_of_that_name_is_not_touched() {
    let scene = scene().await;
    let foreign: Api<ConfigMap> = scene.api();
    let mut theirs = child(&scene, &[("theirs", "x")]);
    theirs.metadata.owner_references = None;
    let before = foreign.create(&PostParams::default(), &theirs).await.unwrap();
    let refused =
        writer(&scene).apply(&Children::default(), &child(&scene, &[("a", "1")])).await.unwrap_err();
    assert!(matches!(refused, ApplyError::Foreign { .. }), "{refused:?}");
    let after = foreign.get("child").await.unwrap();
    assert_eq!(before.metadata.resource_version, after.metadata.resource_version);
}

#[tokio::test]
async fn our_own_child_that_the_cache_has_not_seen_is_no_conflict() {
    let scene = scene().await;
    let writer = writer(&scene);
    writer.apply(&Children::default(), &child(&scene, &[("a", "1")])).await.unwrap();
    let again = writer.apply(&Children::default(), &child(&scene, &[("a", "2")])).await.unwrap();
    assert_eq!(again, Written::Changed);
}

#[tokio::test]
async fn a_field_that_we_stop_setting_is_taken_back_and_one_of_others_stays() {
    let scene = scene().await;
    let (writer, cache) = (writer(&scene), Children::default());
    writer.apply(&cache, &child(&scene, &[("a", "1"), ("b", "2")])).await.unwrap();
    scene.kubectl(&["patch", "configmap", "child", "--type=merge", "-p", r#"{"data":{"theirs":"x"}}"#]);
    assert_eq!(writer.apply(&cache, &child(&scene, &[("a", "1")])).await.unwrap(), Written::Changed);
    let data = scene.api::<ConfigMap>().get("child").await.unwrap().data.unwrap();
    assert_eq!(data.into_keys().collect::<Vec<_>>(), ["a", "theirs"]);
}

#[tokio::test]
async fn a_write_meant_for_a_deleted_object_does_not_reach_its_namesake() {
    let scene = scene().await;
    let (writer, cache) = (writer(&scene), Children::default());
    let api: Api<ConfigMap> = scene.api();
    writer.apply(&cache, &child(&scene, &[("a", "1")])).await.unwrap();
    scene.kubectl(&["delete", "configmap", "child"]);
    let mut theirs = child(&scene, &[("theirs", "x")]);
    theirs.metadata.owner_references = None;
    api.create(&PostParams::default(), &theirs).await.unwrap();
    assert!(writer.apply(&cache, &child(&scene, &[("a", "2")])).await.is_err());
    assert_eq!(api.get("child").await.unwrap().data, theirs.data);
    let stale = cache.all().pop().unwrap();
    assert!(writer.delete(&*stale).await.is_err(), "nor does a delete");
    assert!(api.get_opt("child").await.unwrap().is_some());
}
