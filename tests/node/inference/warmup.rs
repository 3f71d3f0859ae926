//! Slow engines: `warmupTimeoutSeconds` counts from the start of the engine.

use api::{
    aiinference::{AIInference, Phase},
    conditions, reasons,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tests::{
    Scene, follow,
    inference::{change, condition, create, is_ready, pods_of, until_not_ready_within, until_ready},
    real, within,
};

use crate::{
    claims::model_in_a_claim,
    pods::container_status,
    store::{on_real_nodes, pod_of, settings, with},
};

/// Longer than an engine without load time needs on a loaded machine.
const TIMEOUT_SECONDS: i64 = 45;
/// Maximum delay of the report.
const PRECISION_SECONDS: i64 = 10;

#[tokio::test]
async fn a_slow_engine_fails_at_the_warm_up_timeout_and_not_before() {
    let scene = real().await;
    create_warming_up(&scene, settings([("ENGINE_LOAD_SECONDS", "300")])).await;
    fails_in_time(&scene).await;
    change(&scene, "chat", settings([("ENGINE_LOAD_SECONDS", "1")])).await;
    let healed = until_ready(&scene, "chat").await;
    assert_eq!(condition(&healed, conditions::PROGRESSING).map(|found| found.status.as_str()), Some("True"));
}

#[tokio::test]
async fn a_hanging_engine_fails_at_the_warm_up_timeout() {
    let scene = real().await;
    create_warming_up(&scene, settings([("ENGINE_FAULT", "hang")])).await;
    fails_in_time(&scene).await;
}

#[tokio::test]
async fn an_engine_that_is_ready_before_the_timeout_does_not_fail() {
    let scene = real().await;
    create_warming_up(&scene, settings([("ENGINE_LOAD_SECONDS", "15")])).await;
    let api = scene.api::<AIInference>();
    let becomes_ready = follow(&api, "", |all| {
        let inference = all.values().next()?;
        let phase = inference.status.as_ref().and_then(|status| status.phase);
        assert_ne!(phase, Some(Phase::Failed), "{:?}", inference.status);
        is_ready(inference).then_some(())
    });
    tokio::time::timeout(within(), becomes_ready).await.expect("it is ready in time");
    let pod = pod_of(&scene, "chat").await;
    assert_eq!(container_status(&pod, "engine").map(|engine| engine.restart_count), Some(0));
}

async fn create_warming_up(scene: &Scene<'_>, settings: Value) {
    let spec = with(on_real_nodes(&model_in_a_claim(scene).await), settings);
    create(scene, "chat", with(spec, json!({ "warmupTimeoutSeconds": TIMEOUT_SECONDS }))).await;
}

async fn fails_in_time(scene: &Scene<'_>) {
    let started = engine_started(scene).await;
    let failed = until_not_ready_within(scene, "chat", reasons::WARMUP_TIMEOUT, 2 * within()).await;
    assert_eq!(failed.status.as_ref().and_then(|status| status.phase), Some(Phase::Failed));
    let progressing = condition(&failed, conditions::PROGRESSING).expect("a condition");
    assert_eq!(
        (progressing.status.as_str(), progressing.reason.as_str()),
        ("False", reasons::WARMUP_TIMEOUT)
    );
    // Both times have whole seconds.
    let after = progressing.last_transition_time.0.duration_since(started).as_secs();
    let in_time = TIMEOUT_SECONDS..=TIMEOUT_SECONDS + PRECISION_SECONDS;
    assert!(in_time.contains(&after), "{after} s after the engine's start");
    eprintln!("reported {after} s after the engine's start, of {TIMEOUT_SECONDS} s");
}

/// The start of the engine, from the status of the only pod.
async fn engine_started(scene: &Scene<'_>) -> Timestamp {
    let started = |pod: &Pod| {
        Some(container_status(pod, "engine")?.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0)
    };
    let (api, labels) = (scene.api::<Pod>(), pods_of("chat"));
    let seen = follow(&api, &labels, |all| all.values().find_map(started));
    tokio::time::timeout(within(), seen).await.expect("an engine that starts")
}
