//! What a user reads when there is no verdict.

use api::{
    aiinference::{AIInference, evaluation::Phase},
    conditions, reasons,
};
use serde_json::json;
use tests::{
    inference::{
        self,
        evaluation::{condition, create, fate, of_endpoints, of_models, until_phase, until_reason},
    },
    simulated, wait_for, wait_until_gone, within,
};

#[tokio::test]
async fn a_failing_harness_ends_the_evaluation_with_its_own_words_and_frees_the_gpus() {
    let scene = simulated().await;
    let words = r#"{"reason":"DatasetNotFound","error":"no file in /datasets/cmmlu"}"#;
    let fate = fate(&[("crash-reason", "Error"), ("crash-exit-code", "81"), ("crash-message", words)]);
    create(&scene, "broken", of_models(fate)).await;
    let failed = until_phase(&scene, "broken", Phase::Failed).await;
    let why = condition(&failed, conditions::FAILED).unwrap();
    assert_eq!(why.reason, reasons::DATASET_NOT_FOUND);
    assert_eq!(why.message, "baseline on mmlu-zh: no file in /datasets/cmmlu");
    wait_until_gone(&scene.api::<AIInference>(), "broken-baseline", within()).await;
}

#[tokio::test]
async fn answers_that_cannot_be_paired_give_no_verdict() {
    let scene = simulated().await;
    let words = r#"{"reason":"PairingFailed","error":"34 of 3000 questions were asked of one model only"}"#;
    let fate = fate(&[
        ("crash-only", "pair"),
        ("crash-reason", "Error"),
        ("crash-exit-code", "89"),
        ("crash-message", words),
    ]);
    create(&scene, "odd", of_endpoints(fate)).await;
    let failed = until_phase(&scene, "odd", Phase::Failed).await;
    let status = failed.status.clone().unwrap();
    assert_eq!((status.verdict, status.runs.len()), (None, 3));
    let why = condition(&failed, conditions::FAILED).unwrap();
    assert_eq!(
        (&*why.reason, &*why.message),
        (reasons::PAIRING_FAILED, "comparison: 34 of 3000 questions were asked of one model only")
    );
}

#[tokio::test]
async fn a_deadline_ends_an_evaluation_whose_server_does_not_start() {
    let scene = simulated().await;
    let mut spec = of_models(json!({"activeDeadlineSeconds": 5}));
    spec["server"] = json!({"gpus": 16});
    create(&scene, "large", spec).await;
    wait_for(&scene.api::<AIInference>(), "large-baseline", "there", within(), |_| true).await;
    let failed = until_phase(&scene, "large", Phase::Failed).await;
    assert_eq!(condition(&failed, conditions::FAILED).unwrap().reason, reasons::DEADLINE_EXCEEDED);
    wait_until_gone(&scene.api::<AIInference>(), "large-baseline", within()).await;
}

#[tokio::test]
async fn a_name_that_is_taken_is_a_conflict_until_it_is_free() {
    let scene = simulated().await;
    let theirs = inference::create(&scene, "chat-baseline", json!({"replicas": 0})).await;
    create(&scene, "chat", of_models(json!({}))).await;
    until_reason(&scene, "chat", conditions::STALLED, reasons::OWNERSHIP_CONFLICT).await;
    let there = scene.api::<AIInference>().get("chat-baseline").await.unwrap();
    assert_eq!((there.spec, there.metadata.uid), (theirs.spec, theirs.metadata.uid));
    let servers = scene.api::<AIInference>();
    servers.delete("chat-baseline", &kube::api::DeleteParams::default()).await.unwrap();
    until_phase(&scene, "chat", Phase::Succeeded).await;
}
