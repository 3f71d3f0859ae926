//! One autoscaler per target.

use api::{aiinference::AIInference, aiscaler::AIScaler, conditions, labels};
use k8s_openapi::api::{apps::v1::Deployment, autoscaling::v2::HorizontalPodAutoscaler};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use tests::{
    inference,
    scaler::{
        create, deployment, hpa, install_kind, message, spec, until_active, until_condition, until_inactive,
        until_replicas,
    },
    simulated, wait_for, within,
};

use super::deploy;

#[tokio::test]
async fn an_autoscaler_of_kubernetes_has_the_target_until_it_goes() {
    let scene = simulated().await;
    deploy(&scene, "chat", 1).await;
    scene.apply(&hpa("older", "chat").to_string()).await.unwrap();
    create(&scene, "chat", spec("chat", "vector(15)"), json!({})).await;
    let scaler = until_inactive(&scene, "chat", "TargetManagedByOther").await;
    let text = message(&scaler, conditions::SCALING_ACTIVE);
    assert!(text.contains("HorizontalPodAutoscaler older"), "{text}");
    assert_eq!(scene.api::<Deployment>().get("chat").await.unwrap().spec.unwrap().replicas, Some(1));
    let hpas = scene.api::<HorizontalPodAutoscaler>();
    hpas.delete("older", &DeleteParams::default()).await.unwrap();
    until_replicas(&scene, "chat", 3).await;
    // And one that comes later.
    scene.apply(&hpa("younger", "chat").to_string()).await.unwrap();
    until_inactive(&scene, "chat", "TargetManagedByOther").await;
}

#[tokio::test]
async fn the_older_of_two_scalers_has_the_target_until_it_goes() {
    let scene = simulated().await;
    deploy(&scene, "chat", 1).await;
    create(&scene, "first", spec("chat", "vector(10)"), json!({})).await;
    until_replicas(&scene, "chat", 2).await;
    // Of two that were created in the same second, the name decides.
    create(&scene, "second", spec("chat", "vector(25)"), json!({})).await;
    let scaler = until_inactive(&scene, "second", "TargetManagedByOther").await;
    let text = message(&scaler, conditions::SCALING_ACTIVE);
    assert!(text.contains("AIScaler first"), "{text}");
    scene.api::<AIScaler>().delete("first", &DeleteParams::default()).await.unwrap();
    until_replicas(&scene, "chat", 5).await;
}

#[tokio::test]
async fn the_model_server_is_scaled_where_its_deployment_is_named() {
    let scene = simulated().await;
    inference::create(&scene, "chat", json!({})).await;
    inference::until_ready(&scene, "chat").await;
    create(&scene, "chat", spec("chat", "vector(10)"), json!({})).await;
    wait_for(&scene.api::<AIInference>(), "chat", "2 replicas", within(), |inference: &AIInference| {
        inference.spec.replicas == 2
    })
    .await;
    inference::until_ready(&scene, "chat").await;
    until_active(&scene, "chat").await;
    until_replicas(&scene, "chat", 2).await;
}

/// Their labels are those of another Deployment, whose pods crash: more of the own ones would start.
#[tokio::test]
async fn pods_of_another_deployment_that_the_selector_matches_do_not_count() {
    let scene = simulated().await;
    let labelled = |name: &str, replicas: i32, env: Value| {
        let mut target = deployment(name, replicas);
        let labels = json!({"app": "shared"});
        target["spec"]["selector"]["matchLabels"] = labels.clone();
        let template = &mut target["spec"]["template"];
        template["metadata"]["labels"] = labels;
        template["metadata"]["labels"]["part"] = json!(name);
        template["spec"]["containers"][0]["env"] = env;
        target.to_string()
    };
    let crash = json!([{"name": "SIM_IMAGE_PULL", "value": "fail"}]);
    scene.apply(&labelled("neighbour", 3, crash)).await.unwrap();
    wait_for(&scene.api::<Deployment>(), "neighbour", "3 pods", within(), |neighbour: &Deployment| {
        neighbour.status.as_ref().is_some_and(|status| status.replicas == Some(3))
    })
    .await;
    scene.apply(&labelled("own", 1, json!([]))).await.unwrap();
    create(&scene, "own", spec("own", "vector(15)"), json!({})).await;
    until_replicas(&scene, "own", 3).await;
    let scaler = until_condition(&scene, "own", conditions::SCALING_ACTIVE, ("True", "ForeignPods")).await;
    let text = message(&scaler, conditions::SCALING_ACTIVE);
    assert!(text.contains("Deployment neighbour"), "{text}");
    // Once the other's pods have other labels, nothing is to be said.
    scene.kubectl(&["delete", "deployment", "neighbour", "--wait"]);
    until_active(&scene, "own").await;
}

/// A kind of another project with a scale subresource.
fn pools() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pools.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"kind": "Pool", "listKind": "PoolList", "plural": "pools", "singular": "pool"},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.selector",
                }},
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                }},
            }],
        },
    })
}

#[tokio::test]
async fn a_kind_of_another_project_is_scaled_once_its_rights_have_the_label() {
    let scene = simulated().await;
    install_kind(&scene, &pools()).await;
    let pool = json!({
        "apiVersion": "example.com/v1",
        "kind": "Pool",
        "metadata": {"name": "workers"},
        "spec": {"replicas": 1},
    });
    scene.apply(&pool.to_string()).await.unwrap();
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", "v1", "Pool"), "pools");
    let objects: Api<DynamicObject> = Api::namespaced_with(scene.client(), scene.namespace(), &resource);
    let status = Patch::Merge(json!({"status": {"replicas": 1, "selector": "app=workers"}}));
    objects.patch_status("workers", &PatchParams::default(), &status).await.unwrap();
    let target = json!({"apiVersion": "example.com/v1", "kind": "Pool", "name": "workers"});
    let changes = json!({"deploymentName": null, "targetRef": target});
    create(&scene, "workers", spec("workers", "vector(15)"), changes).await;
    let blind =
        until_condition(&scene, "workers", conditions::ABLE_TO_SCALE, ("False", "FailedGetScale")).await;
    let text = message(&blind, conditions::ABLE_TO_SCALE);
    assert!(text.contains("aggregate-to-scaler"), "{text}");
    // As that message says.
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "pools", "labels": {labels::AGGREGATE_TO_SCALER: "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["pools/scale"], "verbs": ["get", "update"]}],
    });
    scene.apply(&role.to_string()).await.unwrap();
    wait_for(&objects, "workers", "3 replicas", within(), |pool: &DynamicObject| {
        pool.data["spec"]["replicas"] == 3
    })
    .await;
}
