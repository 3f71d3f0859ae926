//! The scale subresource: up, down, and to zero.

use api::aiinference::{AIInference, Phase};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::api::ListParams;
use serde_json::json;
use tests::{Scene, simulated, wait_for, wait_until_gone, within};

use super::{change, create, until_not_ready, until_ready};

#[tokio::test]
async fn kubectl_scale_adds_replicas_without_a_new_revision() {
    let scene = simulated().await;
    create(&scene, "chat", json!({})).await;
    until_ready(&scene, "chat").await;
    scene.kubectl(&["scale", "aii/chat", "--replicas=3"]);
    let inference = until_ready(&scene, "chat").await;
    assert_eq!(inference.status.unwrap().ready_replicas, 3);
    assert_eq!(revisions(&scene).await, 1);
}

#[tokio::test]
async fn fewer_replicas_stay_ready_and_a_single_one_has_another_budget() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"replicas": 2})).await;
    until_ready(&scene, "chat").await;
    let budgets = scene.api::<PodDisruptionBudget>();
    let of_several = budgets.get("chat").await.unwrap().spec.unwrap();
    assert_eq!((of_several.max_unavailable, of_several.min_available), (Some(IntOrString::Int(1)), None));
    change(&scene, "chat", json!({"replicas": 1})).await;
    wait_for(&budgets, "chat", "of a single replica", within(), |budget: &PodDisruptionBudget| {
        let spec = budget.spec.clone().unwrap_or_default();
        (spec.max_unavailable, spec.min_available) == (None, Some(IntOrString::Int(1)))
    })
    .await;
    wait_for(&scene.api::<AIInference>(), "chat", "one replica", within(), |inference: &AIInference| {
        inference
            .status
            .as_ref()
            .is_some_and(|status| status.replicas == 1 && status.phase == Some(Phase::Ready))
    })
    .await;
}

#[tokio::test]
async fn no_replicas_means_stopped_and_one_starts_it_again() {
    let scene = simulated().await;
    create(&scene, "chat", json!({})).await;
    until_ready(&scene, "chat").await;
    scene.kubectl(&["scale", "aii/chat", "--replicas=0"]);
    wait_until_gone(&scene.api::<PodDisruptionBudget>(), "chat", within()).await;
    let inference = until_not_ready(&scene, "chat", "Stopped").await;
    let status = inference.status.unwrap();
    assert_eq!((status.phase, status.model_loaded), (Some(Phase::Pending), false));
    wait_for(&scene.api::<Deployment>(), "chat", "empty", within(), |deployment: &Deployment| {
        deployment.status.as_ref().is_some_and(|status| status.replicas.unwrap_or_default() == 0)
    })
    .await;
    scene.kubectl(&["scale", "aii/chat", "--replicas=1"]);
    until_ready(&scene, "chat").await;
    assert_eq!(revisions(&scene).await, 1);
}

async fn revisions(scene: &Scene<'_>) -> usize {
    scene.api::<ReplicaSet>().list(&ListParams::default()).await.unwrap().items.len()
}
