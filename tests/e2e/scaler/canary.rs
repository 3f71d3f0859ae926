//! An AIScaler of an AIInference with two versions.

use api::{
    aiinference::{AIInference, traffic::CanaryPhase},
    conditions,
};
use fake_prometheus::Answer;
use serde_json::json;
use tests::{
    Scene, follow,
    gateway::Gateway,
    inference,
    scaler::{CONTROLLER, create, message, prometheus, spec, until_condition},
    simulated, until_renewed, wait_for, within,
};

use super::load_of;

/// A rollback gives all requests to stable, which needs the pods that it had at the start.
const AT_START: i32 = 2;

async fn until_replicas(scene: &Scene<'_>, replicas: i32) {
    let what = format!("{replicas} replicas");
    wait_for(&scene.api::<AIInference>(), "chat", &what, within(), |inference: &AIInference| {
        inference.spec.replicas == replicas
    })
    .await;
    inference::until_ready(scene, "chat").await;
}

async fn script(scene: &Scene<'_>) {
    let load = load_of(scene, "chat");
    prometheus().set(&load, Answer::Value(10.0));
    let gateway = json!({"name": "public", "hostnames": ["chat.example.com"]});
    inference::create(scene, "chat", json!({"image": "engine:1", "gateway": gateway})).await;
    inference::until_ready(scene, "chat").await;
    create(scene, "chat", spec("chat", &format!("sum({load})")), json!({})).await;
    until_replicas(scene, AT_START).await;

    let steps = json!([{"weightPercent": 50, "minSeconds": 5}]);
    inference::change(scene, "chat", json!({"canary": {"image": "engine:2", "steps": steps}})).await;
    wait_for(&scene.api::<AIInference>(), "chat", "a share", within(), |inference: &AIInference| {
        let status = inference.status.as_ref();
        let phase = status.and_then(|status| status.canary.as_ref()?.phase);
        phase == Some(CanaryPhase::AwaitingApproval)
            && status.and_then(|status| status.min_stable_replicas) == Some(AT_START)
    })
    .await;
    // Up is allowed, and then down to what it was.
    prometheus().set(&load, Answer::Value(15.0));
    until_replicas(scene, 3).await;
    prometheus().set(&load, Answer::Value(1.0));
    until_replicas(scene, AT_START).await;
    let limited = ("True", "TooFewReplicas");
    let scaler = until_condition(scene, "chat", conditions::SCALING_LIMITED, limited).await;
    let text = message(&scaler, conditions::SCALING_LIMITED);
    assert!(text.contains("1 replicas are recommended") && text.contains("keeps at least 2"), "{text}");
    // Two seconds each, and the controller decides every second.
    until_renewed(scene, CONTROLLER, 2).await;
    let held = scene.api::<AIInference>().get("chat").await.unwrap();
    assert_eq!(held.spec.replicas, AT_START);

    inference::change(scene, "chat", json!({"canary": {"abort": true}})).await;
    until_replicas(scene, 1).await;
}

#[tokio::test]
async fn stable_keeps_the_replicas_that_it_had_when_the_canary_began_until_it_is_over() {
    let scene = simulated().await;
    let _stand_in = Gateway::start(&scene).await;
    let inferences = scene.api::<AIInference>();
    // Every version that is stored, until one breaks the rule.
    let fewer = follow(&inferences, "", |all| {
        all.values().find_map(|inference| {
            let least = inference.status.as_ref()?.min_stable_replicas?;
            (inference.spec.replicas < least).then_some((inference.spec.replicas, least))
        })
    });
    tokio::select! {
        () = script(&scene) => {}
        (replicas, least) = fewer => panic!("{replicas} replicas, and stable needs {least}"),
    }
}
