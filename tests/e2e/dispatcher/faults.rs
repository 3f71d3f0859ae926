//! Faults of pools: what the status reports, and what keeps running.

use api::{aidispatcher::Phase, conditions, reasons};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tests::{
    dispatcher::{change, condition, create, is_observed, until, until_ready, until_reason, workers},
    simulated, wait_for, within,
};

fn memory() -> Value {
    json!({"collection": "code", "dim": 3, "endpoint": "http://chroma:8000"})
}

/// Annotations that decide the fate of simulated pods.
fn fate(settings: &[(&str, &str)]) -> Value {
    settings
        .iter()
        .map(|(name, value)| (format!("sim.ai.infra.example.com/{name}"), json!(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[tokio::test]
async fn a_collection_or_dimension_typed_wrong_is_a_failure_with_its_reason_and_can_be_corrected() {
    let scene = simulated().await;
    for (name, code, reason) in [
        ("missing", "20", reasons::COLLECTION_NOT_FOUND),
        ("other-dim", "21", reasons::DIM_MISMATCH),
        ("away", "22", reasons::STORE_UNREACHABLE),
        ("refused", "23", reasons::STORE_UNAUTHORIZED),
    ] {
        let annotations = fate(&[("load-exit-code", code), ("load-message", "the store said so")]);
        create(&scene, name, json!({"memoryConfig": memory(), "podAnnotations": annotations})).await;
        let failed = until_reason(&scene, name, conditions::MEMORY_READY, reason).await;
        let status = failed.status.as_ref().unwrap();
        assert_eq!((status.current_phase, status.available_replicas), (Some(Phase::Failed), 0));
        for type_ in [conditions::READY, conditions::STALLED] {
            assert_eq!(condition(&failed, type_).unwrap().reason, reason, "{type_}");
        }
        assert!(condition(&failed, conditions::READY).unwrap().message.contains("the store said so"));
    }
    change(&scene, "other-dim", json!({"podAnnotations": null})).await;
    until_ready(&scene, "other-dim").await;
}

#[tokio::test]
async fn a_worker_that_crashes_again_and_again_is_a_crash_loop() {
    let scene = simulated().await;
    let annotations = fate(&[("crash-reason", "Error"), ("backoff", "100ms")]);
    create(&scene, "coders", json!({"podAnnotations": annotations})).await;
    let failed = until_reason(&scene, "coders", conditions::PROGRESSING, reasons::CRASH_LOOP).await;
    assert_eq!(failed.status.unwrap().current_phase, Some(Phase::Failed));
}

#[tokio::test]
async fn a_claim_that_does_not_exist_is_named() {
    let scene = simulated().await;
    create(&scene, "coders", json!({"checkpoint": {"claimName": "states"}})).await;
    let failed = until_reason(&scene, "coders", conditions::READY, reasons::CLAIM_NOT_FOUND).await;
    assert!(condition(&failed, conditions::READY).unwrap().message.contains("states"));
}

#[tokio::test]
async fn a_full_cluster_is_waited_for() {
    let scene = simulated().await;
    create(&scene, "coders", json!({"resources": {"requests": {"cpu": "1000"}}})).await;
    let waiting = until_reason(&scene, "coders", conditions::READY, reasons::UNSCHEDULABLE).await;
    assert_eq!(waiting.status.as_ref().unwrap().current_phase, Some(Phase::Initializing));
    assert!(condition(&waiting, conditions::STALLED).is_none(), "it passes by itself");
    change(&scene, "coders", json!({"resources": null})).await;
    until_ready(&scene, "coders").await;
}

#[tokio::test]
async fn a_quota_is_told() {
    let scene = simulated().await;
    scene.kubectl(&["create", "quota", "few", "--hard=pods=1"]);
    create(&scene, "coders", json!({"replicas": 2})).await;
    let short = until(&scene, "coders", "short of a worker", |dispatcher| {
        is_observed(dispatcher)
            && condition(dispatcher, conditions::PROGRESSING)
                .is_some_and(|known| known.reason == reasons::UNSCHEDULABLE && known.message.contains("few"))
    })
    .await;
    assert!(short.status.unwrap().available_replicas <= 1);
}

/// What a spec asks of variables that the controller sets is refused with a condition, and what runs stays.
#[tokio::test]
async fn an_invalid_spec_leaves_the_workers_as_they_are() {
    let scene = simulated().await;
    create(&scene, "coders", json!({})).await;
    until_ready(&scene, "coders").await;
    let before = workers(&scene, "coders").await;
    change(&scene, "coders", json!({"image": "agent:2", "env": [{"name": "STATE_DIR", "value": "/tmp"}]}))
        .await;
    let rejected = until_reason(&scene, "coders", conditions::ACCEPTED, reasons::INVALID_SPEC).await;
    assert!(condition(&rejected, conditions::ACCEPTED).unwrap().message.contains("STATE_DIR"));
    let uids = |pods: &[Pod]| pods.iter().map(|pod| pod.metadata.uid.clone()).collect::<Vec<_>>();
    assert_eq!(uids(&workers(&scene, "coders").await), uids(&before));
}

/// A namespace that enforces Pod Security `restricted` accepts the pods.
#[tokio::test]
async fn the_pods_pass_pod_security_restricted() {
    let scene = simulated().await;
    let label = "pod-security.kubernetes.io/enforce=restricted";
    scene.kubectl(&["label", "namespace", scene.namespace(), label]);
    scene.kubectl(&["create", "secret", "generic", "key", "--from-literal=api-key=x"]);
    let all = json!({
        "memoryConfig": memory(),
        "credentials": {"secretName": "key"},
        "checkpoint": {"uri": "s3://states", "endpoint": "http://store:9000", "secretName": "key"},
    });
    create(&scene, "coders", all).await;
    let name = "coders-workers";
    wait_for(&scene.api::<k8s_openapi::api::apps::v1::Deployment>(), name, "there", within(), |_: &_| true)
        .await;
    until_ready(&scene, "coders").await;
}
