//! What somebody else does to a child: fields of ours come back, fields of theirs stay.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Service},
};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tests::{simulated, wait_for, within};

use super::{create, until_ready};

#[tokio::test]
async fn a_field_of_ours_comes_back_and_a_field_of_theirs_stays() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"image": "engine:1"})).await;
    until_ready(&scene, "chat").await;
    let deployments = scene.api::<Deployment>();
    let edit = json!({
        "metadata": {"annotations": {"example.com/theirs": "x"}},
        "spec": {
            "minReadySeconds": 1,
            "template": {"spec": {"containers": [{"name": "engine", "image": "theirs:1"}]}},
        },
    });
    let edited = deployments.patch("chat", &PatchParams::default(), &Patch::Strategic(&edit)).await.unwrap();
    let repaired = wait_for(&deployments, "chat", "our image again", within(), |deployment: &Deployment| {
        deployment.metadata.generation > edited.metadata.generation && image(deployment) == Some("engine:1")
    })
    .await;
    assert_eq!(repaired.spec.as_ref().unwrap().min_ready_seconds, Some(1));
    assert_eq!(repaired.metadata.annotations.unwrap()["example.com/theirs"], "x");
    until_ready(&scene, "chat").await;
}

#[tokio::test]
async fn a_label_by_which_we_find_a_child_comes_back() {
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

#[tokio::test]
async fn a_child_that_is_deleted_comes_back() {
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
