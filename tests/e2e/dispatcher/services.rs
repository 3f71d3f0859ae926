//! The Services of a pool: they follow the field, and another owner's Service of that name is left alone.

use api::{aidispatcher::AIDispatcher, conditions};
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tests::{
    dispatcher::{change, condition, create, deployment, is_ready, until, until_ready, until_reason},
    simulated, wait_for, wait_until_gone, within,
};

#[tokio::test]
async fn the_services_of_a_pool_follow_the_field() {
    let scene = simulated().await;
    let services = scene.api::<Service>();
    create(&scene, "coders", json!({})).await;
    until_ready(&scene, "coders").await;
    let uid = deployment(&scene, "coders").await.metadata.uid;
    assert!(services.list(&Default::default()).await.unwrap().items.is_empty());

    change(&scene, "coders", json!({"service": {"port": 9000}})).await;
    let tasks = wait_for(&services, "coders", "a Service for tasks", within(), |_| true).await.spec.unwrap();
    let workers = wait_for(&services, "coders-workers", "a headless Service", within(), |_| true).await;
    let port = &tasks.ports.as_ref().unwrap()[0];
    assert_eq!((port.port, serde_json::to_value(&port.target_port).unwrap()), (8080, json!("tasks")));
    assert_eq!(workers.spec.as_ref().unwrap().cluster_ip.as_deref(), Some("None"));
    // The workers get the port in their environment.
    until(&scene, "coders", "ready with the new port", |found| {
        is_ready(found) && found.status.as_ref().is_some_and(|status| status.observed_generation == 2)
    })
    .await;

    change(&scene, "coders", json!({"service": null})).await;
    wait_until_gone(&services, "coders", within()).await;
    wait_until_gone(&services, "coders-workers", within()).await;
    assert_eq!(deployment(&scene, "coders").await.metadata.uid, uid);
}

#[tokio::test]
async fn a_service_of_another_owner_stays_and_the_workers_run() {
    let scene = simulated().await;
    let services = scene.api::<Service>();
    let foreign = json!({"metadata": {"name": "coders"}, "spec": {"ports": [{"port": 80}]}});
    let foreign = serde_json::from_value(foreign).unwrap();
    let foreign = services.create(&PostParams::default(), &foreign).await.unwrap();
    create(&scene, "coders", json!({"service": {}})).await;
    let seen = until_reason(&scene, "coders", conditions::SERVICE_OMITTED, "OwnershipConflict").await;
    let message = &condition(&seen, conditions::SERVICE_OMITTED).unwrap().message;
    assert!(message.contains("Service") && message.contains("coders"), "{message}");
    until_ready(&scene, "coders").await;
    assert_eq!(services.get("coders").await.unwrap().spec, foreign.spec);

    services.delete("coders", &DeleteParams::default()).await.unwrap();
    let owned = |service: &Service| service.metadata.owner_references.is_some();
    wait_for(&services, "coders", "the Service of the pool", within(), owned).await;
    until(&scene, "coders", "nothing is omitted", |found: &AIDispatcher| {
        condition(found, conditions::SERVICE_OMITTED).is_none()
    })
    .await;
}
