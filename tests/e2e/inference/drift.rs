//! Changes of children by other managers: fields that the controller sets are restored, all other fields are kept.

use api::labels::GENERATION;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Service},
    events::v1::Event,
};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tests::{Scene, ask_until, simulated, wait_for, within};

use super::{change, create, until_ready, until_renewed};

#[tokio::test]
async fn a_field_that_the_controller_sets_is_restored_and_a_foreign_field_is_kept() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"image": "engine:1"})).await;
    until_ready(&scene, "chat").await;
    let deployments = scene.api::<Deployment>();
    let edit = json!({
        "metadata": {"annotations": {"example.com/foreign": "x"}},
        "spec": {
            "minReadySeconds": 1,
            "template": {"spec": {"containers": [{"name": "engine", "image": "other:1"}]}},
        },
    });
    let edited = deployments.patch("chat", &PatchParams::default(), &Patch::Strategic(&edit)).await.unwrap();
    let repaired =
        wait_for(&deployments, "chat", "the image is restored", within(), |deployment: &Deployment| {
            deployment.metadata.generation > edited.metadata.generation
                && image(deployment) == Some("engine:1")
        })
        .await;
    assert_eq!(repaired.spec.as_ref().unwrap().min_ready_seconds, Some(1));
    assert_eq!(repaired.metadata.annotations.unwrap()["example.com/foreign"], "x");
    until_ready(&scene, "chat").await;
}

#[tokio::test]
async fn a_label_that_the_watch_of_a_child_selects_by_is_restored() {
    let scene = simulated().await;
    create(&scene, "chat", json!({})).await;
    until_ready(&scene, "chat").await;
    let services = scene.api::<Service>();
    let edit = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
    services.patch("chat", &PatchParams::default(), &Patch::Merge(&edit)).await.unwrap();
    wait_for(&services, "chat", "managed again", within(), |service: &Service| {
        let labels = service.metadata.labels.as_ref();
        labels.is_some_and(|labels| labels.contains_key("app.kubernetes.io/managed-by"))
    })
    .await;
}

/// Without its labels the Deployment is no longer watched, and a plan without it would render its template again.
#[tokio::test]
async fn removed_labels_of_a_deployment_are_restored_and_the_model_stays_ready() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"image": "engine:1"})).await;
    until_ready(&scene, "chat").await;
    let deployments = scene.api::<Deployment>();
    let before = deployments.get("chat").await.unwrap().spec;
    for (label, value) in [
        ("app.kubernetes.io/managed-by", json!(null)),
        ("app.kubernetes.io/managed-by", json!("another")),
        ("app.kubernetes.io/name", json!(null)),
    ] {
        let edit = json!({"metadata": {"labels": {label: value}}});
        let edited = deployments.patch("chat", &PatchParams::default(), &Patch::Merge(&edit)).await.unwrap();
        let repaired =
            wait_for(&deployments, "chat", "labelled again", within(), |deployment: &Deployment| {
                deployment.metadata.resource_version != edited.metadata.resource_version
                    && has_the_controllers_labels(deployment.metadata.labels.as_ref())
            })
            .await;
        assert_eq!(repaired.spec, before, "its template is unchanged");
        let inference = until_ready(&scene, "chat").await;
        assert_eq!(super::condition(&inference, "Ready").unwrap().reason, "Ready");
    }
}

fn has_the_controllers_labels(labels: Option<&std::collections::BTreeMap<String, String>>) -> bool {
    let has =
        |label: &str, value: &str| labels.is_some_and(|labels| labels.get(label).is_some_and(|v| v == value));
    has("app.kubernetes.io/managed-by", "inference-controller")
        && has("app.kubernetes.io/name", "aiinference")
}

#[tokio::test]
async fn a_deleted_child_is_created_again() {
    let scene = simulated().await;
    create(&scene, "chat", json!({})).await;
    until_ready(&scene, "chat").await;
    let (services, config_maps) = (scene.api::<Service>(), scene.api::<ConfigMap>());
    let service = services.get("chat").await.unwrap().metadata.uid;
    let config_map = config_maps.get("chat-model").await.unwrap().metadata.uid;
    services.delete("chat", &DeleteParams::default()).await.unwrap();
    config_maps.delete("chat-model", &DeleteParams::default()).await.unwrap();
    wait_for(&services, "chat", "made anew", within(), |new: &Service| new.metadata.uid != service).await;
    wait_for(&config_maps, "chat-model", "made anew", within(), |new: &ConfigMap| {
        new.metadata.uid != config_map
    })
    .await;
}

fn image(deployment: &Deployment) -> Option<&str> {
    let containers = &deployment.spec.as_ref()?.template.spec.as_ref()?.containers;
    containers.iter().find(|container| container.name == "engine")?.image.as_deref()
}

#[tokio::test]
async fn a_manager_that_changes_a_field_back_each_time_is_named_in_one_event() {
    let scene = simulated().await;
    create(&scene, "chat", json!({})).await;
    until_ready(&scene, "chat").await;
    // The times in managedFields have whole seconds, and the Deployment controller is a manager, too.
    until_renewed(&scene, 1).await;
    let contests = contest_a_field(&scene).await;
    let [contest] = contests.as_slice() else { panic!("{contests:#?}") };
    let regarding = contest.regarding.as_ref().unwrap();
    assert_eq!(regarding.kind.as_deref(), Some("AIInference"));
    assert_eq!((regarding.name.as_deref(), contest.type_.as_deref()), (Some("chat"), Some("Warning")));
    let note = contest.note.as_deref().unwrap();
    let expected = format!("other-operator keeps changing fields of Deployment {}/chat", scene.namespace());
    assert!(note.starts_with(&expected), "{note}");
}

#[tokio::test]
async fn a_manager_that_changes_a_field_back_is_named_even_if_a_later_child_is_refused() {
    let scene = simulated().await;
    let foreign = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chat"},
        "spec": {"ports": [{"port": 80}]},
    });
    let foreign: Service = serde_json::from_value(foreign).unwrap();
    scene.api::<Service>().create(&PostParams::default(), &foreign).await.unwrap();
    create(&scene, "chat", json!({})).await;
    wait_for(&scene.api::<Deployment>(), "chat", "created", within(), |_: &Deployment| true).await;
    assert!(!contest_a_field(&scene).await.is_empty());
}

/// Changes a field of the Deployment back each time, as another manager, until there are events about that.
async fn contest_a_field(scene: &Scene<'_>) -> Vec<Event> {
    const OTHER_LIMIT: i32 = 7;
    let (deployments, events) = (scene.api::<Deployment>(), scene.api::<Event>());
    let other = Patch::Apply(json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat"},
        "spec": {"revisionHistoryLimit": OTHER_LIMIT},
    }));
    let params = PatchParams::apply("other-operator").force();
    ask_until("an event about the other manager", within(), async || {
        let deployment = deployments.get("chat").await.unwrap();
        if deployment.spec.unwrap().revision_history_limit != Some(OTHER_LIMIT) {
            deployments.patch("chat", &params, &other).await.unwrap();
        }
        let events = events.list(&ListParams::default()).await.unwrap();
        let is_contest = |event: &Event| event.reason.as_deref() == Some("FieldConflict");
        let contests: Vec<Event> = events.into_iter().filter(is_contest).collect();
        if contests.is_empty() { Err("there is none") } else { Ok(contests) }
    })
    .await
}

/// A generation above that of the object makes the controller wait for its watch, but only if the API server confirms it.
#[tokio::test]
async fn a_generation_that_was_edited_by_hand_is_repaired_and_the_spec_is_applied() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"image": "engine:1"})).await;
    until_ready(&scene, "chat").await;
    let deployments = scene.api::<Deployment>();
    let edit = json!({"metadata": {"annotations": {GENERATION: "9000000000000000000"}}});
    deployments.patch("chat", &PatchParams::default(), &Patch::Merge(&edit)).await.unwrap();
    wait_for(&deployments, "chat", "its own generation again", within(), |deployment: &Deployment| {
        deployment.metadata.annotations.as_ref().is_some_and(|known| known[GENERATION] == "1")
    })
    .await;
    change(&scene, "chat", json!({"image": "engine:2"})).await;
    until_ready(&scene, "chat").await;
}
