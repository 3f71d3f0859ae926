//! TrainingJobs with a checkpoint whose next attempt cannot start: nothing is lost, no pod is held, and they go on by
//! themselves. The trainer is the stand-in for ms-swift in `tests/trainer`.

use std::time::Duration;

use api::{
    conditions, reasons,
    trainingjob::{Phase, TrainingJob},
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use tests::{
    PRODUCT, Scene, TRAINER_IMAGE, ask_until, real,
    training::{self, condition, create},
    wait_for, within,
};

use crate::store::{settings, with};

/// A kubelet may report a fault for two minutes before its attempt ends.
fn patience() -> Duration {
    within() * 3
}

/// A training that has a checkpoint after each fifth step, and is slow from step 8 on in its first attempt.
fn spec(changes: Value) -> Value {
    let environment = settings([
        ("FAKE_SWIFT_ARGUMENTS", "/output/starts"),
        ("FAKE_SWIFT_STEPS", "/output/steps"),
        ("FAKE_SWIFT_FAULTS", "slow@8=4000"),
        ("FAKE_SWIFT_FAULTS_ONCE", "/output"),
    ]);
    let spec = json!({
        "image": TRAINER_IMAGE,
        "gpuProductLabel": PRODUCT,
        "saveSteps": 5,
        "retryLimit": 0,
        "extraArgs": ["--max_steps", "20", "--logging_steps", "1"],
        "output": {"size": "1Gi"},
    });
    with(with(spec, environment), changes)
}

async fn secret(scene: &Scene<'_>) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "key", "namespace": scene.namespace()}, "stringData": {"key": "value"},
    });
    let secret: Secret = serde_json::from_value(secret).expect("a Secret");
    scene.api::<Secret>().create(&PostParams::default(), &secret).await.expect("it is created");
}

async fn until(scene: &Scene<'_>, what: &str, holds: impl Fn(&TrainingJob) -> bool) -> TrainingJob {
    wait_for(&scene.api::<TrainingJob>(), "qwen", what, patience(), |job: &TrainingJob| {
        let phase = job.status.as_ref().and_then(|status| status.phase);
        assert_ne!(phase, Some(Phase::Failed), "{:?}", job.status);
        holds(job)
    })
    .await
}

#[tokio::test]
async fn a_secret_that_is_deleted_in_the_middle_of_a_training_holds_no_pod_and_costs_nothing() {
    let scene = real().await;
    secret(&scene).await;
    let mut spec = spec(json!({}));
    let reference = json!({"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "key"}}});
    spec["env"].as_array_mut().expect("variables").push(reference);
    create(&scene, "qwen", spec).await;
    until(&scene, "a checkpoint", |job| {
        job.status.as_ref().is_some_and(|status| status.checkpoint.is_some())
    })
    .await;
    scene.api::<Secret>().delete("key", &DeleteParams::default()).await.expect("it is deleted");
    let pod = training::pods(&scene, "qwen").await.remove(0);
    let pods: Api<Pod> = scene.api();
    let name = pod.metadata.name.unwrap_or_default();
    pods.delete(&name, &DeleteParams::default()).await.expect("it is deleted");

    until(&scene, "a second attempt that cannot start", |job| {
        let is_stalled = condition(job, conditions::STALLED)
            .is_some_and(|stalled| stalled.status == "True" && stalled.reason == reasons::SECRET_NOT_FOUND);
        is_stalled && job.status.as_ref().is_some_and(|status| status.ended_attempts >= 2)
    })
    .await;
    ask_until("no pod holds a GPU between two attempts", patience(), async || {
        let running = training::pods(&scene, "qwen").await.into_iter().filter(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            !matches!(phase, Some("Failed" | "Succeeded"))
        });
        match running.count() {
            0 => Ok(()),
            count => Err(format!("{count} pods")),
        }
    })
    .await;

    secret(&scene).await;
    let job = until(&scene, "success", |job| {
        job.status.as_ref().is_some_and(|status| status.phase == Some(Phase::Succeeded))
    })
    .await;
    let status = job.status.expect("a status");
    assert_eq!(status.retries, 0, "{status:?}");
    assert!(status.failures.iter().any(|known| known.reason == reasons::SECRET_NOT_FOUND), "{status:?}");
    assert!(condition(&until(&scene, "its end", |_| true).await, conditions::STALLED).is_none());
}
