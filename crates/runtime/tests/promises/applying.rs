//! Writes go to our own objects only, only when something differs, and only if they were planned on what is there.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{Resource, ResourceExt};
use runtime::{
    controller::ReconcileError,
    watch::{cache::Cache, watched::Watched},
    write::{
        apply::{ApplyError, Stale, Written},
        children::Children,
    },
};
use serde_json::{Value, json};

use crate::{
    fake::{Answer, Call, On, ScriptedApi, Verb},
    given::{Child, child_of, config_map, deployment, rendered, writer},
};

pub(crate) fn patches() -> On {
    Verb::Patch.of("configmaps")
}

/// The root "a", which is known.
fn roots() -> Cache<Deployment> {
    let roots = Cache::default();
    roots.upsert(deployment("a", 1));
    roots
}

pub(crate) fn children(fake: &ScriptedApi) -> Children<Child, ConfigMap> {
    let roots = Cache::default();
    let children = writer(fake, &roots).of(Cache::default());
    // Afterwards: as if it were created just now.
    roots.upsert(deployment("a", 1));
    children
}

/// An annotation to write.
fn cost() -> BTreeMap<&'static str, Option<String>> {
    BTreeMap::from([("cost", Some("100".to_owned()))])
}

/// The child of "a" that these tests want.
pub(crate) fn wanted() -> ConfigMap {
    let mut child = rendered(&deployment("a", 1), "child");
    child.data = Some([("key".to_owned(), "value".to_owned())].into());
    child
}

/// As a watch would deliver it.
fn child(object: &ConfigMap) -> Child {
    Child::from_json(&serde_json::to_string(object).unwrap()).unwrap()
}

fn is_forced(call: &Call) -> bool {
    call.query.get("force").is_some_and(|force| force == "true")
}

pub(crate) fn is_stale(error: &ApplyError, expected: Stale) -> bool {
    error.is_stale() && matches!(error, ApplyError::Stale { why, .. } if *why == expected)
}

async fn assert_refused(there: &ConfigMap, is_expected: impl Fn(&ApplyError) -> bool) {
    let fake = ScriptedApi::start().await;
    let stored = fake.put(there);
    let children = children(&fake);
    let error = children.apply(&wanted()).await.unwrap_err();
    assert!(is_expected(&error), "{error:?}");
    assert_eq!(fake.verbs(), ["Patch configmaps", "Get configmaps"]);
    assert!(!is_forced(&fake.calls(patches())[0]));
    assert_eq!(fake.stored("configmaps", "child"), Some(stored), "it is untouched");
    assert!(children.is_empty());
}

pub(crate) fn is_foreign(error: &ApplyError) -> bool {
    matches!(error, ApplyError::Foreign { .. })
        && error.to_string().contains("ConfigMap demo/child exists and belongs to")
}

#[tokio::test]
async fn an_unseen_object_of_another_owner_is_refused_and_left_alone() {
    assert_refused(&child_of(&deployment("another", 1), "child"), is_foreign).await;
}

#[tokio::test]
async fn an_unseen_object_without_owner_is_refused_and_left_alone() {
    assert_refused(&config_map("child"), is_foreign).await;
}

#[tokio::test]
async fn an_unseen_object_of_a_deleted_predecessor_of_the_owner_is_a_leftover_and_left_alone() {
    let mut older = deployment("a", 1);
    older.metadata.uid = Some("uid-of-an-older-a".into());
    let is_leftover = |error: &ApplyError| matches!(error, ApplyError::Leftover { .. });
    assert_refused(&child_of(&older, "child"), is_leftover).await;
}

#[tokio::test]
async fn an_unseen_child_of_the_same_owner_is_returned_to_the_plan_before_it_is_written() {
    let fake = ScriptedApi::start().await;
    let stored = fake.put(&child_of(&deployment("a", 1), "child"));
    let children = children(&fake);
    let error = children.apply(&wanted()).await.unwrap_err();
    assert!(is_stale(&error, Stale::Found), "{error:?}");
    assert_eq!(fake.verbs(), ["Patch configmaps", "Get configmaps"]);
    assert_eq!(fake.stored("configmaps", "child").as_ref(), Some(&stored), "no plan has known it yet");
    assert_eq!(children.len(), 1, "the next one does");

    assert_eq!(children.apply(&wanted()).await.unwrap(), Written::Changed);
    let forced = &fake.calls(patches())[1];
    assert!(is_forced(forced));
    assert_eq!(forced.body["metadata"]["uid"], stored["metadata"]["uid"]);
    assert_eq!(children.apply(&wanted()).await.unwrap(), Written::Unchanged, "the answer is known at once");
}

#[tokio::test]
async fn a_seen_object_of_another_owner_is_refused_without_a_request() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    children.upsert(child(&child_of(&deployment("another", 1), "child")));
    let error = children.apply(&wanted()).await.unwrap_err();
    assert!(matches!(error, ApplyError::Foreign { .. }), "{error:?}");
    assert!(fake.verbs().is_empty());
}

#[tokio::test]
async fn an_absent_child_is_created_once_and_then_nothing_is_sent() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    assert_eq!(children.apply(&wanted()).await.unwrap(), Written::Created);
    assert_eq!(children.apply(&wanted()).await.unwrap(), Written::Unchanged);
    assert_eq!(fake.verbs(), ["Patch configmaps"]);
}

#[tokio::test]
async fn a_child_that_was_replaced_since_it_was_seen_is_not_written_and_leaves_the_cache() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    let mut seen = child_of(&deployment("a", 1), "child");
    seen.metadata.resource_version = Some("50".into());
    children.upsert(child(&seen));
    let mut other = child_of(&deployment("a", 1), "child");
    other.metadata.uid = Some("another".into());
    let stored = fake.put(&other);
    let error = children.apply(&wanted()).await.unwrap_err();
    assert!(is_stale(&error, Stale::Changed), "{error:?}");
    assert_eq!(fake.stored("configmaps", "child"), Some(stored));
    assert!(children.is_empty(), "a watch that does not select it would never say that it is gone");
}

#[tokio::test]
async fn a_child_that_was_planned_on_another_version_is_not_written() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    let mut seen = child_of(&deployment("a", 1), "child");
    seen.metadata.resource_version = Some("50".into());
    children.upsert(child(&seen));
    for planned_on in [None, Some("49")] {
        let error = children.apply_to_version(&wanted(), planned_on).await.unwrap_err();
        assert!(is_stale(&error, Stale::Changed), "{error:?}");
    }
    assert!(fake.verbs().is_empty(), "nothing is sent");
}

#[tokio::test]
async fn a_child_that_has_changed_in_the_api_server_since_it_was_planned_on_is_not_written_either() {
    let fake = ScriptedApi::start().await;
    fake.put(&child_of(&deployment("a", 1), "child"));
    let (children, planned_on) = (children(&fake), seen(&fake));
    children.upsert(child(&planned_on));
    // Another process writes it, and our watch is late.
    fake.put(&child_of(&deployment("a", 1), "child"));
    let newer = seen(&fake);
    let planned_on = planned_on.metadata.resource_version;
    let error = children.apply_to_version(&wanted(), planned_on.as_deref()).await.unwrap_err();
    assert!(is_stale(&error, Stale::Changed), "{error:?}");
    assert_eq!(seen(&fake), newer, "what the other process wrote stays");
    // The next plan knows it, without the watch.
    let newest = newer.metadata.resource_version.as_deref();
    assert_eq!(children.apply_to_version(&wanted(), newest).await.unwrap(), Written::Changed);
}

#[tokio::test]
async fn a_child_that_is_as_it_should_be_is_not_planned_again_for_a_newer_version() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    assert_eq!(children.apply(&wanted()).await.unwrap(), Written::Created);
    assert_eq!(
        children.apply_to_version(&wanted(), Some("an older version")).await.unwrap(),
        Written::Unchanged
    );
}

#[tokio::test]
async fn a_child_that_went_behind_the_cache_is_known_to_be_gone_after_one_try() {
    let fake = ScriptedApi::start().await;
    fake.put(&child_of(&deployment("a", 1), "child"));
    let (children, stored) = (children(&fake), seen(&fake));
    children.upsert(child(&stored));
    fake.remove("configmaps", "child");
    let planned_on = stored.metadata.resource_version.as_deref();
    let error = children.apply_to_version(&wanted(), planned_on).await.unwrap_err();
    assert!(is_stale(&error, Stale::Changed), "{error:?}");
    assert!(children.all().is_empty());
}

#[tokio::test]
async fn a_child_of_another_owner_is_reported_and_not_planned_again_for_ever() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    let mut foreign = config_map("child");
    foreign.metadata.resource_version = Some("50".into());
    children.upsert(child(&foreign));
    // A plan knows children by their owner, so it was made as if there were none.
    let error = children.apply_to_version(&wanted(), None).await.unwrap_err();
    assert!(matches!(error, ApplyError::Foreign { .. }), "{error:?}");
}

/// Large children are not kept in memory.
#[tokio::test]
async fn a_large_child_is_read_to_be_compared_and_written_only_if_it_differs() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    let large = |text: &str| {
        let mut child = wanted();
        child.data = Some([("key".to_owned(), text.repeat(1 << 20))].into());
        child
    };
    assert_eq!(children.apply(&large("a")).await.unwrap(), Written::Created);
    for _ in 0..3 {
        assert_eq!(children.apply(&large("a")).await.unwrap(), Written::Unchanged);
    }
    assert_eq!(fake.verbs(), ["Patch configmaps", "Get configmaps"], "once for each version");
    assert_eq!(children.apply(&large("b")).await.unwrap(), Written::Changed);
    let older = seen(&fake);
    fake.put(&older);
    let error = children.apply(&large("b")).await.unwrap_err();
    assert!(is_stale(&error, Stale::Changed), "the watch has not delivered that version yet: {error:?}");
}

#[tokio::test]
async fn whether_a_root_is_the_newest_is_read_from_the_server_and_what_was_read_is_known() {
    let (fake, roots) = (ScriptedApi::start().await, roots());
    let (writer, known) = (writer(&fake, &roots), roots.all().pop().unwrap());
    fake.put(&deployment("a", 7));
    assert!(!writer.is_newest(&roots, &*known).await.unwrap());
    let known = roots.all().pop().unwrap();
    assert_eq!(known.metadata.generation, Some(7));
    assert!(writer.is_newest(&roots, &*known).await.unwrap());
    fake.remove("deployments", "a");
    assert!(!writer.is_newest(&roots, &*known).await.unwrap());
    assert!(roots.is_empty());
}

/// The child as it is stored now.
fn seen(fake: &ScriptedApi) -> ConfigMap {
    serde_json::from_value(fake.stored("configmaps", "child").unwrap()).unwrap()
}

#[tokio::test]
async fn a_delete_names_the_uid_and_the_version_it_was_decided_on() {
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("child"));
    let (children, seen) = (children(&fake), seen(&fake));
    // Another writer changes it before our delete arrives.
    fake.put(&config_map("child"));
    let error = children.delete(&seen).await.unwrap_err();
    assert!(is_stale(&error, Stale::Changed), "{error:?}");
    let claims = &fake.calls(Verb::Delete.of("configmaps"))[0].body["preconditions"];
    assert_eq!(claims["uid"], seen.uid().unwrap());
    assert_eq!(claims["resourceVersion"], seen.resource_version().unwrap());
    assert!(fake.stored("configmaps", "child").is_some());
    // Until the watch has brought another version, that one is not sent again.
    let error = children.delete(&seen).await.unwrap_err();
    assert!(is_stale(&error, Stale::Awaited), "{error:?}");
    assert_eq!(fake.calls(Verb::Delete.of("configmaps")).len(), 1);
}

/// No watch runs here, as while it fails.
#[tokio::test]
async fn a_child_that_has_changed_before_its_deletion_is_read_and_then_deleted() {
    let fake = ScriptedApi::start().await;
    fake.put(&wanted());
    let (children, first) = (children(&fake), seen(&fake));
    children.upsert(child(&first));
    // Such as a write of its status.
    fake.put(&first);
    let error = children.delete_child(&first).await.unwrap_err();
    assert!(is_stale(&error, Stale::Changed), "{error:?}");
    let known = children.all().pop().unwrap();
    assert_eq!(known.meta().resource_version, seen(&fake).metadata.resource_version);
    let newest = ConfigMap { metadata: known.meta().clone(), ..ConfigMap::default() };
    children.delete_child(&newest).await.unwrap();
    assert_eq!(fake.verbs(), ["Delete configmaps", "Get configmaps", "Delete configmaps"]);
    assert!(children.is_empty());
}

/// Its user has made another one of that name, or has taken the owner reference off.
#[tokio::test]
async fn an_object_that_is_no_child_any_more_is_not_deleted_and_is_no_error() {
    for is_same in [false, true] {
        let fake = ScriptedApi::start().await;
        fake.put(&wanted());
        let (children, first) = (children(&fake), seen(&fake));
        children.upsert(child(&first));
        let mut unowned = first.clone();
        unowned.metadata.owner_references = None;
        if !is_same {
            unowned.metadata.uid = None;
            fake.remove("configmaps", "child");
        }
        let foreign = fake.put(&unowned);
        children.delete_child(&first).await.unwrap();
        assert_eq!(fake.stored("configmaps", "child"), Some(foreign), "it is untouched");
        assert!(children.owned_by::<Deployment>("demo", "uid-a").is_empty());
    }
}

#[tokio::test]
async fn a_deleted_child_leaves_the_cache_at_once() {
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("child"));
    let (children, seen) = (children(&fake), seen(&fake));
    children.upsert(child(&seen));
    children.delete(&seen).await.unwrap();
    assert!(children.is_empty(), "the next reconcile would delete it again");
}

#[tokio::test]
async fn a_deleted_child_that_ends_later_is_in_the_cache_with_its_deletion_timestamp() {
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("child"));
    let (children, seen) = (children(&fake), seen(&fake));
    children.upsert(child(&seen));
    let mut ending = serde_json::to_value(&seen).unwrap();
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    ending["metadata"]["resourceVersion"] = json!("9000");
    fake.next(Verb::Delete.of("configmaps"), [Answer::text(200, &ending.to_string())]);
    children.delete(&seen).await.unwrap();
    assert!(children.all()[0].meta().deletion_timestamp.is_some());
}

#[tokio::test]
async fn a_status_goes_to_the_version_that_it_was_planned_on_and_to_no_newer_one() {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    let planned_on: Deployment = serde_json::from_value(fake.stored("deployments", "a").unwrap()).unwrap();
    let roots = Cache::default();
    roots.upsert(planned_on.clone());
    // A frozen leader wakes up: another has counted an attempt since.
    let mut newer = fake.stored("deployments", "a").unwrap();
    newer["status"] = json!({"replicas": 7});
    let newer = fake.put_json("deployments", newer);
    let writer = writer(&fake, &roots);
    let error = writer.apply_status(&roots, &planned_on, &json!({"replicas": 1})).await.unwrap_err();
    assert!(is_stale(&error, Stale::Changed), "{error:?}");
    assert_eq!(fake.stored("deployments", "a").as_ref(), Some(&newer));
    let planned_on: Deployment = serde_json::from_value(newer).unwrap();
    let written = writer.apply_status(&roots, &planned_on, &json!({"replicas": 8})).await.unwrap();
    assert_eq!(written, Written::Changed);
    assert_eq!(fake.stored("deployments", "a").unwrap()["status"]["replicas"], 8);
}

#[tokio::test]
async fn a_status_of_a_root_that_is_gone_is_no_failure() {
    let fake = ScriptedApi::start().await;
    let roots = roots();
    let root = deployment("a", 1);
    fake.next(Verb::Patch.of("deployments"), [Answer::status(404, "NotFound", "not found")]);
    let error = writer(&fake, &roots).apply_status(&roots, &root, &json!({"replicas": 1})).await.unwrap_err();
    assert!(is_stale(&error, Stale::OwnerGone), "{error:?}");
}

#[tokio::test]
async fn a_condition_of_another_manager_costs_one_request_and_not_one_for_each_reconcile() {
    let fake = ScriptedApi::start().await;
    let condition = |type_: &str| json!({"type": type_, "status": "True"});
    let mut root = serde_json::to_value(deployment("a", 1)).unwrap();
    root["status"] = json!({"conditions": [condition("Ready"), condition("Theirs")]});
    let root = fake.put_json("deployments", root);
    // A real server merges conditions by type, finds that nothing changes, and writes nothing.
    fake.always(Verb::Patch.of("deployments"), Answer::text(200, &root.to_string()));
    let (object, roots): (Deployment, _) = (serde_json::from_value(root).unwrap(), Cache::default());
    roots.upsert(object.clone());
    let writer = writer(&fake, &roots);
    let status = json!({"conditions": [condition("Ready")]});
    for _ in 0..3 {
        writer.apply_status(&roots, &object, &status).await.unwrap();
    }
    assert_eq!(fake.calls(Verb::Patch.of("deployments")).len(), 1);
    writer.apply_status(&roots, &object, &json!({"conditions": []})).await.unwrap();
    assert_eq!(fake.calls(Verb::Patch.of("deployments")).len(), 2, "another status is sent");
    writer.apply_status(&roots, &object, &status).await.unwrap();
    let mut newer = object.clone();
    newer.metadata.resource_version = Some("9000".into());
    let sent = fake.calls(Verb::Patch.of("deployments")).len();
    writer.apply_status(&roots, &newer, &status).await.unwrap();
    assert_eq!(fake.calls(Verb::Patch.of("deployments")).len(), sent + 1, "the new version may lack it");
}

#[tokio::test]
async fn a_write_that_another_manager_takes_back_each_time_is_held_back_and_the_manager_is_named() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    assert_eq!(children.apply(&wanted()).await.unwrap(), Written::Created);
    let take_back = |fake: &ScriptedApi, children: &Children<Child, ConfigMap>| {
        let mut other = fake.stored("configmaps", "child").unwrap();
        other["data"]["key"] = json!("another value");
        other["metadata"]["managedFields"] = json!([
            {"manager": "test", "operation": "Apply", "time": "2026-01-01T00:00:09Z"},
            {"manager": "argocd", "operation": "Apply", "time": "2026-01-01T00:00:08Z"},
            {"manager": "kubectl", "operation": "Update", "time": "2026-01-01T00:00:01Z"},
            {"manager": "kubelet", "operation": "Update", "time": "2026-01-01T00:00:09Z", "subresource": "status"},
        ]);
        let other: Value = fake.put_json("configmaps", other);
        children.upsert(Child::from_json(&other.to_string()).unwrap());
    };
    for _ in 0..3 {
        take_back(&fake, &children);
        assert_eq!(children.apply(&wanted()).await.unwrap(), Written::Changed, "a person may try twice");
    }
    take_back(&fake, &children);
    let sent = fake.calls(patches()).len();
    let Written::Contested(contest) = children.apply(&wanted()).await.unwrap() else {
        panic!("sent at once")
    };
    assert_eq!(contest.manager.as_deref(), Some("argocd"));
    assert!(contest.is_new && contest.wait <= Duration::from_secs(1), "{contest:?}");
    let note = contest.note("Contest").expect("an event");
    assert!(note.message.contains("argocd keeps changing fields of ConfigMap demo/child"), "{note:?}");
    let Written::Contested(again) = children.apply(&wanted()).await.unwrap() else { panic!("sent at once") };
    assert_eq!(again.note("Contest"), None, "it is reported once");
    assert_eq!(fake.calls(patches()).len(), sent);
    assert_eq!(fake.calls(Verb::Get.of("configmaps")).len(), 1);
}

#[tokio::test]
async fn a_write_is_held_back_also_while_very_many_other_children_are_fought_about() {
    /// More than are remembered beside those of the cache.
    const CHILDREN: usize = 1_100;
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    let wanted: Vec<ConfigMap> = (0..CHILDREN)
        .map(|number| {
            let mut child = wanted();
            child.metadata.name = Some(format!("child-{number}"));
            child
        })
        .collect();
    for wanted in &wanted {
        let mut there = child_of(&deployment("a", 1), wanted.metadata.name.as_deref().unwrap());
        there.metadata.resource_version = Some("50".into());
        children.upsert(child(&there));
    }
    // The cache keeps what it has, as if another manager had taken each write back at once.
    let answer = serde_json::to_string(&child_of(&deployment("a", 1), "another")).unwrap();
    fake.always(patches(), Answer::text(200, &answer));
    fake.always(Verb::Get.of("configmaps"), Answer::text(200, &answer));
    for _ in 0..2 {
        for wanted in &wanted {
            assert_eq!(children.apply(wanted).await.unwrap(), Written::Changed);
        }
    }
    // The third write, and what would be the fourth, come right after each other, however slow the machine is.
    let last = wanted.last().unwrap();
    assert_eq!(children.apply(last).await.unwrap(), Written::Changed, "a person may try twice");
    let written = children.apply(last).await.unwrap();
    assert!(matches!(written, Written::Contested(_)), "{written:?}");
}

#[tokio::test]
async fn a_child_that_is_being_deleted_is_not_written() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    let mut ending = serde_json::to_value(child_of(&deployment("a", 1), "child")).unwrap();
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    children.upsert(Child::from_json(&ending.to_string()).unwrap());
    assert_eq!(children.apply(&wanted()).await.unwrap(), Written::Unchanged);
    assert!(fake.verbs().is_empty(), "its end starts the next reconcile");
}

#[tokio::test]
async fn an_object_that_outlives_its_owner_is_not_taken_for_present_while_it_is_being_deleted() {
    let fake = ScriptedApi::start().await;
    let (owner, kept) = (deployment("a", 1).controller_owner_ref(&()).unwrap(), config_map("child"));
    let known = children(&fake);
    known.upsert(child(&kept));
    assert_eq!(known.create_for(&owner, &kept).await.unwrap(), Written::Unchanged);
    let mut ending = serde_json::to_value(&kept).unwrap();
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let known = children(&fake);
    known.upsert(Child::from_json(&ending.to_string()).unwrap());
    let error = known.create_for(&owner, &kept).await.unwrap_err();
    assert!(matches!(error, ApplyError::Leftover { deleted: Some(_), .. }), "{error:?}");
    assert!(fake.verbs().is_empty(), "its end starts the next reconcile");
}

#[tokio::test]
async fn a_child_that_ends_between_its_refused_creation_and_the_read_is_planned_again() {
    let fake = ScriptedApi::start().await;
    fake.next(patches(), [Answer::status(409, "Conflict", "the object exists")]);
    let error = children(&fake).apply(&wanted()).await.unwrap_err();
    assert!(is_stale(&error, Stale::Changed), "{error:?}");
    assert_eq!(fake.verbs(), ["Patch configmaps", "Get configmaps"]);
}

#[tokio::test]
async fn a_child_that_was_gone_before_its_deletion_leaves_the_cache() {
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("child"));
    let (children, seen) = (children(&fake), seen(&fake));
    children.upsert(child(&seen));
    fake.remove("configmaps", "child");
    children.delete(&seen).await.unwrap();
    assert!(children.is_empty(), "the next reconcile would delete it again");
}

#[tokio::test]
async fn the_answer_to_a_deletion_brings_no_other_object_into_the_cache() {
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("child"));
    let (children, seen) = (children(&fake), seen(&fake));
    children.upsert(child(&seen));
    let mut other = serde_json::to_value(&seen).unwrap();
    other["metadata"]["uid"] = json!("another");
    other["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    other["metadata"]["resourceVersion"] = json!("9000");
    fake.next(Verb::Delete.of("configmaps"), [Answer::text(200, &other.to_string())]);
    children.delete(&seen).await.unwrap();
    assert!(children.is_empty(), "it was deleted, and nothing is known of another one");
}

#[tokio::test]
async fn an_object_of_another_kind_with_the_name_of_the_owner_is_a_foreign_owner() {
    let mut there = child_of(&deployment("a", 1), "child");
    let owner = &mut there.metadata.owner_references.as_mut().unwrap()[0];
    (owner.kind, owner.uid) = ("StatefulSet".into(), "another".into());
    assert_refused(&there, is_foreign).await;
}

#[tokio::test]
async fn only_the_controlling_owner_counts() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    let mut there = child_of(&deployment("a", 1), "child");
    there.metadata.resource_version = Some("50".into());
    let mut beside = there.metadata.owner_references.clone().unwrap()[0].clone();
    (beside.uid, beside.controller) = ("another".into(), None);
    there.metadata.owner_references.as_mut().unwrap().insert(0, beside);
    children.upsert(child(&there));
    fake.put(&there);
    assert_eq!(children.apply(&wanted()).await.unwrap(), Written::Changed);

    for owner in there.metadata.owner_references.as_mut().unwrap() {
        owner.controller = None;
    }
    assert_refused(&there, is_foreign).await;
}

#[tokio::test]
async fn a_status_names_the_uid_of_its_object_and_is_written_once_for_each_version() {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("a", 1));
    let planned_on: Deployment = serde_json::from_value(fake.stored("deployments", "a").unwrap()).unwrap();
    let roots = Cache::default();
    roots.upsert(planned_on.clone());
    let (writer, status) = (writer(&fake, &roots), json!({"replicas": 1}));
    assert_eq!(writer.apply_status(&roots, &planned_on, &status).await.unwrap(), Written::Changed);
    let sent = &fake.calls(Verb::Patch.of("deployments"))[0].body["metadata"];
    assert_eq!(sent["uid"], planned_on.metadata.uid.clone().unwrap());
    // The status has changed the object, so the version that it was planned on is an old one.
    let error = writer.apply_status(&roots, &planned_on, &status).await.unwrap_err();
    assert!(is_stale(&error, Stale::Changed), "{error:?}");
}

/// An object as the server has it, which is in the cache.
fn known(fake: &ScriptedApi, children: &Children<Child, ConfigMap>) -> ConfigMap {
    let stored = fake.put(&child_of(&deployment("a", 1), "child"));
    let object: ConfigMap = serde_json::from_value(stored).unwrap();
    children.upsert(child(&object));
    object
}

#[tokio::test]
async fn an_annotation_is_set_on_exactly_one_version_and_the_answer_is_known_at_once() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    let object = known(&fake, &children);
    let mut changed = object.clone();
    changed.metadata.resource_version = Some("1000".into());
    fake.next(patches(), [Answer::text(200, &serde_json::to_string(&changed).unwrap())]);
    children.annotate(&object, &cost()).await.unwrap();
    let meta = &object.metadata;
    let body = json!({"metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version, "annotations": {"cost": "100"},
    }});
    assert_eq!(fake.calls(patches())[0].body, body);
    assert_eq!(children.all()[0].meta().resource_version, changed.metadata.resource_version);
}

#[tokio::test]
async fn an_object_that_has_changed_or_was_replaced_is_not_annotated_and_the_error_is_stale() {
    for uid in ["uid-child", "uid-of-an-older-child"] {
        let fake = ScriptedApi::start().await;
        let children = children(&fake);
        let object = known(&fake, &children);
        let stored = fake.put(&object);
        let mut planned_on = object.clone();
        planned_on.metadata.uid = Some(uid.into());
        let error = children.annotate(&planned_on, &cost()).await.unwrap_err();
        assert!(is_stale(&error, Stale::Changed), "{error:?}");
        assert_eq!(fake.stored("configmaps", "child"), Some(stored), "it is untouched");
        assert_eq!(children.all()[0].meta().resource_version, object.metadata.resource_version);
    }
}

#[tokio::test]
async fn an_object_that_is_gone_is_not_annotated_and_leaves_the_cache() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    let object = known(&fake, &children);
    let not_found = || Answer::status(404, "NotFound", "configmaps \"child\" not found");
    fake.next(patches(), [not_found(), not_found()]);
    let mut older = object.clone();
    older.metadata.uid = Some("uid-of-an-older-child".into());
    children.annotate(&older, &cost()).await.unwrap();
    assert_eq!(children.len(), 1, "a successor stays");
    children.annotate(&object, &cost()).await.unwrap();
    assert!(children.is_empty());
}

#[tokio::test]
async fn an_annotation_that_is_refused_is_an_error_that_names_the_step_and_the_object() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    let object = known(&fake, &children);
    fake.next(patches(), [Answer::status(403, "Forbidden", "a policy for pods")]);
    let error = children.annotate(&object, &cost()).await.unwrap_err();
    assert!(!error.is_stale());
    assert_eq!(error.to_string(), "failed to annotate ConfigMap demo/child");
}

#[tokio::test]
async fn whether_objects_are_the_newest_is_read_in_one_list_and_what_was_read_is_known() {
    let fake = ScriptedApi::start().await;
    let children = children(&fake);
    let mut object = config_map("a");
    object.metadata.labels = Some([("app".to_owned(), "x".to_owned())].into());
    fake.put(&object);
    assert!(!children.are_newest("demo", "app=x").await.unwrap());
    assert!(children.are_newest("demo", "app=x").await.unwrap(), "it is in the cache now");
    fake.put(&object);
    assert!(!children.are_newest("demo", "app=x").await.unwrap(), "there is another version");
    let lists = fake.calls(Verb::List.of("configmaps"));
    assert!(lists.iter().all(|call| call.query["labelSelector"] == "app=x"), "{lists:?}");
    fake.next(Verb::List.of("configmaps"), [Answer::status(403, "Forbidden", "no")]);
    assert!(children.are_newest("demo", "app=x").await.is_err());
}
