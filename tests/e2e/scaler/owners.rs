//! One autoscaler per target.

use api::{aiinference::AIInference, aiscaler::AIScaler, conditions};
use k8s_openapi::api::{apps::v1::Deployment, autoscaling::v2::HorizontalPodAutoscaler};
use kube::api::DeleteParams;
use serde_json::json;
use tests::{
    inference,
    scaler::{create, hpa, message, spec, until_active, until_inactive, until_replicas},
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
