//! A child that lacks the labels of its watch is found by its name, and gets them back from its owner alone.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Resource;
use runtime::{key::Key, write::apply::Stale};
use serde_json::json;

use crate::{
    applying::{children, is_foreign, is_stale, patches, wanted},
    fake::{Answer, ScriptedApi, Verb},
    given::{child_of, deployment},
};

/// The child of "a" without a label that its watch selects by, and the labels of that watch.
fn unlabelled(fake: &ScriptedApi) -> (ConfigMap, BTreeMap<String, String>) {
    let labels = [("app".to_owned(), "x".to_owned()), ("of".to_owned(), "a".to_owned())].into();
    let mut object = child_of(&deployment("a", 1), "child");
    object.metadata.labels = Some([("app".to_owned(), "x".to_owned())].into());
    (serde_json::from_value(fake.put(&object)).unwrap(), labels)
}

#[tokio::test]
async fn a_child_that_no_watch_delivers_gets_its_labels_back_and_does_not_come_into_the_cache() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    let (object, labels) = unlabelled(&fake);
    fake.next(patches(), [Answer::text(200, &serde_json::to_string(&object).unwrap())]);
    let owner = deployment("a", 1).controller_owner_ref(&()).unwrap();
    assert!(children.find(&Key::new("demo", "child"), &owner, &labels).await.unwrap());
    assert_eq!(fake.verbs(), ["Get configmaps", "Patch configmaps"]);
    let body = json!({"metadata": {"uid": object.metadata.uid, "labels": labels}});
    assert_eq!(fake.calls(patches())[0].body, body);
    assert!(children.is_empty(), "the watch brings it");
}

#[tokio::test]
async fn a_creation_that_finds_its_child_without_labels_puts_them_back() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    let (object, labels) = unlabelled(&fake);
    fake.next(patches(), [Answer::text(200, &serde_json::to_string(&object).unwrap())]);
    let mut desired = wanted();
    desired.metadata.labels = Some(labels);
    let error = children.create(&desired).await.unwrap_err();
    assert!(is_stale(&error, Stale::Found), "{error:?}");
    assert_eq!(fake.verbs().last().unwrap(), "Patch configmaps");
    assert!(children.is_empty());
}

#[tokio::test]
async fn an_object_of_another_owner_gets_no_labels_and_does_not_come_into_the_cache() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    fake.put(&child_of(&deployment("b", 2), "child"));
    let error = children.create(&wanted()).await.unwrap_err();
    assert!(is_foreign(&error), "{error:?}");
    assert!(children.is_empty(), "its deletion would not be seen");
}

#[tokio::test]
async fn what_only_may_be_listed_is_looked_for_by_its_name() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    assert!(children.is_not_listed(&Key::new("demo", "child")).await.unwrap());
    fake.put(&child_of(&deployment("a", 1), "child"));
    assert!(!children.is_not_listed(&Key::new("demo", "child")).await.unwrap());
    assert_eq!(children.len(), 1);
    let lists = fake.calls(Verb::List.of("configmaps"));
    assert!(lists.iter().all(|call| call.query["fieldSelector"] == "metadata.name=child"), "{lists:?}");
}
