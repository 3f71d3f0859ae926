//! A route that has the name of an AIInference and belongs to another owner.

use api::{
    aiinference::{AIInference, traffic::CanaryPhase},
    conditions,
};
use kube::api::{DeleteParams, DynamicObject, PostParams};
use serde_json::json;
use tests::{
    gateway::{Gateway, routes},
    simulated, wait_for, within,
};

use super::{
    super::{change, condition, create, is_observed, until_ready, until_renewed},
    canary, gateway, of_somebody_else, until_phase,
};

#[tokio::test]
async fn a_route_of_another_owner_is_not_written_and_after_its_deletion_there_is_an_own_one() {
    let scene = simulated().await;
    let _stand_in = Gateway::start(&scene).await;
    let routes = routes(&scene);
    let mut foreign = of_somebody_else();
    foreign.metadata.name = Some("chat".to_owned());
    routes.create(&PostParams::default(), &foreign).await.unwrap();
    let before = wait_for(&routes, "chat", "accepted", within(), |route: &DynamicObject| {
        route.data["status"]["parents"].is_array()
    })
    .await;

    create(&scene, "chat", json!({"image": "engine:1", "drainSeconds": 5, "gateway": gateway()})).await;
    let inferences = scene.api::<AIInference>();
    let conflict = async || {
        let inference = wait_for(&inferences, "chat", "a conflict", within(), |inference: &AIInference| {
            let ready = condition(inference, conditions::TRAFFIC_READY);
            is_observed(inference)
                && inference.status.as_ref().is_some_and(|status| status.ready_replicas == 1)
                && ready
                    .is_some_and(|ready| (&*ready.status, &*ready.reason) == ("False", "OwnershipConflict"))
        })
        .await;
        condition(&inference, conditions::TRAFFIC_READY).unwrap().message.clone()
    };
    let message = conflict().await;
    assert!(message.contains(&format!("HTTPRoute {}/chat", scene.namespace())), "{message}");
    // What would be written differs each time.
    for spec in [
        json!({"gateway": {"requestTimeoutSeconds": 600}}),
        json!({"gateway": {"hostnames": ["other.example.com"]}}),
        json!({"canary": canary("engine:2")}),
    ] {
        change(&scene, "chat", spec).await;
        conflict().await;
    }
    let waiting = wait_for(&inferences, "chat", "a candidate", within(), |inference: &AIInference| {
        let canary = inference.status.as_ref().and_then(|status| status.canary.as_ref());
        canary.is_some_and(|canary| canary.ready_replicas == 1)
    });
    let waiting = waiting.await.status.unwrap().canary.unwrap();
    assert_eq!((waiting.phase, waiting.weight_percent), (Some(CanaryPhase::Starting), 0));
    until_renewed(&scene, 2).await;
    assert_eq!(routes.get("chat").await.unwrap(), before, "not even its version has changed");

    routes.delete("chat", &DeleteParams::default()).await.unwrap();
    let own = wait_for(&routes, "chat", "an own route", within(), |route: &DynamicObject| {
        let owners = route.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|owner| owner.kind == "AIInference" && owner.name == "chat")
    });
    assert_eq!(own.await.data["spec"]["hostnames"], json!(["other.example.com"]));
    until_ready(&scene, "chat").await;
    until_phase(&scene, CanaryPhase::AwaitingApproval).await;
}
