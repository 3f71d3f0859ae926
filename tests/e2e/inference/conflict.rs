//! Children that the API server does not take: a name that another object has, and a quota.

use std::time::Duration;

use api::aiinference::{AIInference, Phase};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ResourceQuota, Service},
};
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tests::{simulated, wait_for, within};

use super::{create, is_ready, until_not_ready};

/// The controller looks again every minute.
const HEALS_WITHIN: Duration = Duration::from_secs(120);

#[tokio::test]
async fn a_foreign_deployment_is_not_touched_and_is_waited_for() {
    let scene = simulated().await;
    let deployments = scene.api::<Deployment>();
    let foreign = serde_json::from_value(json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "theirs"}},
            "template": {
                "metadata": {"labels": {"app": "theirs"}},
                "spec": {"containers": [{"name": "theirs", "image": "theirs:1"}]},
            },
        },
    }))
    .unwrap();
    let foreign = deployments.create(&PostParams::default(), &foreign).await.unwrap();

    create(&scene, "chat", json!({})).await;
    let model = until_not_ready(&scene, "chat", "OwnershipConflict").await;
    assert_eq!(model.status.as_ref().unwrap().phase, Some(Phase::Failed));
    let message = &super::condition(&model, "Ready").unwrap().message;
    assert!(message.contains(&format!("Deployment {}/chat", scene.namespace())), "{message}");
    assert_eq!(deployments.get("chat").await.unwrap().spec, foreign.spec);
    assert!(scene.api::<Service>().get_opt("chat").await.unwrap().is_none(), "nothing was tried after it");

    deployments.delete("chat", &DeleteParams::default()).await.unwrap();
    wait_for(&scene.api::<AIInference>(), "chat", "healed", HEALS_WITHIN, is_ready).await;
}

#[tokio::test]
async fn what_a_quota_denies_is_in_the_status_and_heals() {
    let scene = simulated().await;
    let quotas = scene.api::<ResourceQuota>();
    let quota = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none"},
        "spec": {"hard": {"count/deployments.apps": "0"}},
    }))
    .unwrap();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    wait_for(&quotas, "none", "enforced", within(), |quota: &ResourceQuota| {
        quota.status.as_ref().is_some_and(|status| status.hard.is_some())
    })
    .await;

    create(&scene, "chat", json!({})).await;
    let model = until_not_ready(&scene, "chat", "Denied").await;
    assert_eq!(model.status.as_ref().unwrap().phase, Some(Phase::Failed));
    let message = &super::condition(&model, "Ready").unwrap().message;
    assert!(message.contains("exceeded quota: none"), "{message}");

    quotas.delete("none", &DeleteParams::default()).await.unwrap();
    wait_for(&scene.api::<AIInference>(), "chat", "healed", HEALS_WITHIN, is_ready).await;
}
