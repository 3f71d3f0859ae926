//! What a source that fails does to replicas: nothing.

use std::time::Duration;

use api::conditions;
use fake_prometheus::Answer;
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::json;
use tests::{
    Scene, ask_until,
    scaler::{condition, create, message, prometheus, spec, until_active, until_inactive, until_replicas},
    simulated, within,
};

use super::{deploy, load_of};

/// So many looks at each fault.
const LOOKS: usize = 4;

#[tokio::test]
async fn a_source_without_a_value_never_scales_down_and_recovery_is_immediate() {
    let scene = simulated().await;
    let load = load_of(&scene, "chat");
    prometheus().set(&load, Answer::Value(25.0));
    deploy(&scene, "chat", 1).await;
    create(&scene, "chat", spec("chat", &format!("sum({load})")), json!({})).await;
    until_replicas(&scene, "chat", 5).await;
    for (fault, words) in [
        (Answer::Empty, "has no series"),
        (Answer::Value(f64::NAN), "gave NaN"),
        (Answer::Status(503), "failed with 503"),
        (Answer::Status(401), "refused access with 401"),
    ] {
        prometheus().set(&load, fault);
        let scaler = until_inactive(&scene, "chat", "MetricMissing").await;
        ask_until(&format!("{fault:?} is named"), within(), async || {
            let scaler = scene.api::<api::aiscaler::AIScaler>().get("chat").await.unwrap();
            let text = message(&scaler, conditions::SCALING_ACTIVE).to_owned();
            if text.contains(words) { Ok(()) } else { Err(text) }
        })
        .await;
        assert_eq!(condition(&scaler, conditions::READY).unwrap().status, "False");
        until_asked(&load, LOOKS).await;
        assert_eq!(replicas(&scene, "chat").await, Some(5), "{fault:?}");
    }
    prometheus().set(&load, Answer::Silence);
    let slow = ask_until("the slow server is named", within(), async || {
        let scaler = scene.api::<api::aiscaler::AIScaler>().get("chat").await.unwrap();
        let text = message(&scaler, conditions::SCALING_ACTIVE).to_owned();
        if text.contains("did not answer within 3 s") { Ok(text) } else { Err(text) }
    })
    .await;
    assert_eq!(replicas(&scene, "chat").await, Some(5), "{slow}");
    prometheus().set(&load, Answer::Value(10.0));
    until_replicas(&scene, "chat", 2).await;
    until_active(&scene, "chat").await;
}

#[tokio::test]
async fn a_fallback_is_used_when_the_metric_has_been_gone_for_so_long() {
    let scene = simulated().await;
    let load = load_of(&scene, "chat");
    prometheus().set(&load, Answer::Value(25.0));
    deploy(&scene, "chat", 1).await;
    let changes = json!({"fallback": {"afterSeconds": 30, "replicas": 3}});
    create(&scene, "chat", spec("chat", &format!("sum({load})")), changes).await;
    until_replicas(&scene, "chat", 5).await;
    prometheus().set(&load, Answer::Empty);
    let began = tokio::time::Instant::now();
    until_replicas(&scene, "chat", 3).await;
    // The 30 s count from the last value, which a busy machine may have read seconds before the source became empty.
    assert!(began.elapsed() >= Duration::from_secs(25), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_target_that_only_its_own_pods_could_wake_is_named_and_does_not_flap() {
    let scene = simulated().await;
    let load = load_of(&scene, "chat");
    prometheus().set(&load, Answer::Value(5.0));
    deploy(&scene, "chat", 1).await;
    let changes = json!({"minReplicas": 0, "fallback": {"afterSeconds": 30, "replicas": 3}});
    create(&scene, "chat", spec("chat", &format!("sum({load})")), changes).await;
    until_active(&scene, "chat").await;
    prometheus().set(&load, Answer::Value(0.0));
    until_replicas(&scene, "chat", 0).await;
    prometheus().set(&load, Answer::Empty);
    let scaler = until_inactive(&scene, "chat", "MetricNeedsPods").await;
    let text = message(&scaler, conditions::SCALING_ACTIVE);
    assert!(text.contains("set minReplicas to 1"), "{text}");
    let began = tokio::time::Instant::now();
    while began.elapsed() < Duration::from_secs(40) {
        until_asked(&load, 4).await;
        assert_eq!(replicas(&scene, "chat").await, Some(0), "the fallback is due after 30 s");
    }
    prometheus().set(&load, Answer::Value(10.0));
    until_replicas(&scene, "chat", 2).await;
    until_active(&scene, "chat").await;
}

/// Waits until the source was asked so often again.
async fn until_asked(load: &str, times: usize) {
    let before = prometheus().queries(load);
    ask_until("more queries", within(), async || match prometheus().queries(load) - before {
        count if count < times => Err(format!("{count} queries")),
        _ => Ok(()),
    })
    .await;
}

async fn replicas(scene: &Scene<'_>, name: &str) -> Option<i32> {
    scene.api::<Deployment>().get(name).await.unwrap().spec.unwrap().replicas
}
