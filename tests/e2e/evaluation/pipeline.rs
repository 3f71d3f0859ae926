//! Train, evaluate, promote: the manifest of the manual, as it is.

use std::fs;

use api::{
    aiinference::{
        AIInference,
        evaluation::{ModelEvaluation, Phase},
        traffic::CanaryPhase,
    },
    conditions, reasons,
    trainingjob::TrainingJob,
};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tests::{
    Scene,
    gateway::Gateway,
    inference::{
        condition,
        evaluation::{fate, until_phase},
        is_ready, until_ready,
    },
    simulated, wait_for, within, workspace,
};

/// The objects of the page, in their order.
fn manifest() -> Vec<Value> {
    let page = fs::read_to_string(workspace().join("docs/train-evaluate-promote.md")).unwrap();
    let (_, rest) = page.split_once("```yaml\n").unwrap();
    let (manifest, _) = rest.split_once("\n```").unwrap();
    manifest.split("\n---\n").map(|object| serde_saphyr::from_str(object).unwrap()).collect()
}

async fn apply(scene: &Scene<'_>, objects: &[Value]) {
    let text: Vec<String> = objects.iter().map(ToString::to_string).collect();
    scene.apply(&text.join("\n---\n")).await.unwrap();
}

/// `CanaryProgressing` of the service.
async fn until(scene: &Scene<'_>, reason: &str) -> AIInference {
    wait_for(&scene.api::<AIInference>(), "qwen-small", reason, within(), |inference: &AIInference| {
        condition(inference, conditions::CANARY_PROGRESSING).is_some_and(|known| known.reason == reason)
    })
    .await
}

fn phase(inference: &AIInference) -> Option<CanaryPhase> {
    inference.status.as_ref()?.canary.as_ref()?.phase
}

async fn candidates(scene: &Scene<'_>) -> usize {
    let selector = ListParams::default().labels("ai.infra.example.com/track=canary");
    scene.api::<Deployment>().list(&selector).await.unwrap().items.len()
}

#[tokio::test]
async fn one_apply_trains_evaluates_and_promotes() {
    let scene = simulated().await;
    let gateway = Gateway::start(&scene).await;
    apply(&scene, &manifest()).await;
    let waiting = until(&scene, reasons::EVALUATION_PENDING).await;
    assert_eq!(phase(&waiting), Some(CanaryPhase::AwaitingEvaluation));
    let training = scene.api::<TrainingJob>().get("qwen-v2").await.unwrap();
    assert_ne!(training.status.and_then(|status| status.phase), Some(api::trainingjob::Phase::Failed));
    assert_eq!(candidates(&scene).await, 0, "no pod before there is a verdict");

    let evaluated = until_phase(&scene, "qwen-v2", Phase::Succeeded).await.status.unwrap();
    assert_eq!(evaluated.verdict.as_deref(), Some("Passed"), "{:?}", evaluated.message);
    let resolved = evaluated.resolved.unwrap().candidate.unwrap();
    assert_eq!(resolved.model_source, "pvc://qwen-v2-output/checkpoint-1200");
    let promoted = wait_for(
        &scene.api::<AIInference>(),
        "qwen-small",
        "promoted",
        within(),
        |inference: &AIInference| phase(inference) == Some(CanaryPhase::Promoted) && is_ready(inference),
    )
    .await;
    let status = promoted.status.unwrap();
    let passed = status.canary.unwrap().evaluation.unwrap();
    assert_eq!((passed.name.as_str(), Some(passed.digest)), ("qwen-v2", resolved.digest));
    let stable = scene.api::<Deployment>().get("qwen-small").await.unwrap();
    assert!(serde_json::to_string(&stable.spec).unwrap().contains("qwen-v2-output"), "{stable:?}");
    // The route may be younger than the verdict: the controller finds its kind some seconds after it is installed.
    let weights: Vec<i64> = gateway.versions().iter().filter_map(|version| version.weights.1).collect();
    assert!(weights.starts_with(&[0, 10, 50]), "{weights:?}");
}

#[tokio::test]
async fn a_planted_regression_gets_no_pod_and_a_new_evaluation_lets_it_go_on() {
    let scene = simulated().await;
    let gateway = Gateway::start(&scene).await;
    let mut objects = manifest();
    let worse = r#"{"bothRight":1000,"onlyBaseline":200,"onlyCandidate":40,"bothWrong":760}"#;
    let planted = fate(&[("pairs", worse)]);
    objects[1]["spec"].as_object_mut().unwrap().extend(planted.as_object().unwrap().clone());
    apply(&scene, &objects).await;
    let held = until(&scene, reasons::EVALUATION_NOT_PASSED).await;
    let message = &condition(&held, conditions::CANARY_PROGRESSING).unwrap().message;
    assert!(message.contains("has the verdict Regressed (-8.00 ["), "{message}");
    until_ready(&scene, "qwen-small").await;
    assert_eq!(candidates(&scene).await, 0);
    assert!(
        gateway.versions().iter().all(|version| version.weights.1.is_none()),
        "no rule names the candidate"
    );

    // Another model, whose evaluation is about the first one.
    let evaluations = scene.api::<ModelEvaluation>();
    evaluations.delete("qwen-v2", &Default::default()).await.unwrap();
    until(&scene, reasons::EVALUATION_NOT_FOUND).await;
    apply(&scene, &manifest()[1..2]).await;
    let inferences = scene.api::<AIInference>();
    let other = json!({"spec": {"canary": {"modelSource": "s3://models/qwen-v3"}}});
    inferences.patch("qwen-small", &PatchParams::default(), &Patch::Merge(other)).await.unwrap();
    let other = until(&scene, reasons::EVALUATION_FOR_OTHER_MODEL).await;
    assert_eq!(other.status.as_ref().unwrap().canary.as_ref().unwrap().weight_percent, 0);
    apply(&scene, &manifest()[2..]).await;
    wait_for(&inferences, "qwen-small", "promoted", within(), |inference: &AIInference| {
        phase(inference) == Some(CanaryPhase::Promoted)
    })
    .await;
}
