//! What a training takes from elsewhere: checkpoints of another job, and what an earlier attempt has loaded from a hub.

use std::fs;

use api::{
    launcher::hub_folders::HUGGING_FACE,
    reasons,
    trainingjob::{Phase, TrainingJob},
};
use kube::api::DeleteParams;
use serde_json::json;
use tests::{
    real,
    training::{self, create, until_phase},
    wait_until_gone, within,
};

use super::{
    QUICK_STEPS, SLOW, STEPS, failure, history::History, kill_launcher, run, status, until_succeeded,
};

/// While this file exists in the claim, the stand-in reaches no hub.
const AWAY: &str = "hub-is-away";

#[tokio::test]
async fn a_training_goes_on_while_the_hub_is_away_and_keeps_nothing_after_success() {
    let scene = real().await;
    let mut spec = run(SLOW, json!({ "hub": "huggingface" }));
    let variable = json!({ "name": "FAKE_SWIFT_HUB_AWAY", "value": format!("/output/{AWAY}") });
    spec["env"].as_array_mut().expect("variables").push(variable);
    create(&scene, "qwen", spec).await;
    let history = History::of(&scene, "qwen").await;
    history.until_step(1, QUICK_STEPS).await;
    let cache = history.path(".cache/hub/qwen").join(HUGGING_FACE);
    assert!(cache.join("hub").exists(), "the first attempt has loaded its model into the claim");
    fs::write(history.path(AWAY), "").expect("the claim can be written");
    kill_launcher(&training::pods(&scene, "qwen").await[0]);
    until_succeeded(&scene, "qwen", 2).await;
    assert_eq!(history.first_step(2, 0), Some(6));
    assert!(!history.path(".cache").exists(), "what was loaded is deleted");
}

#[tokio::test]
async fn a_successor_goes_on_after_the_last_checkpoint_of_a_failed_and_deleted_job() {
    let scene = real().await;
    create(&scene, "first", run("exit@8", json!({ "retryLimit": 0 }))).await;
    let first = until_phase(&scene, "first", Phase::Failed).await;
    let message = status(&first).message.clone().unwrap_or_default();
    assert!(message.contains("spec.resumeFrom.job first"), "{message}");
    // One that exists, and one that is gone.
    create(&scene, "second", run("exit@12", json!({ "retryLimit": 0, "resumeFrom": { "job": "first" } })))
        .await;
    until_phase(&scene, "second", Phase::Failed).await;
    let history = History::of(&scene, "second").await;
    assert_eq!((history.first_step(1, 0), history.checkpoint(10)), (Some(6), Some(10)));
    let jobs = scene.api::<TrainingJob>();
    for name in ["first", "second"] {
        jobs.delete(name, &DeleteParams::default()).await.expect("it can be deleted");
        wait_until_gone(&jobs, name, within()).await;
    }
    create(&scene, "third", run("", json!({ "resumeFrom": { "job": "second" } }))).await;
    let third = until_succeeded(&scene, "third", 1).await;
    let last = History::of(&scene, "third").await;
    assert_eq!((last.first_step(1, 0), last.checkpoint(STEPS)), (Some(11), Some(STEPS)));
    assert_eq!(history.checkpoint(10), Some(10), "the source stays as it was");
    assert_eq!(
        status(&third).resume_from.as_ref().map(|source| source.claim_name.as_str()),
        Some("second-output")
    );
}

#[tokio::test]
async fn a_checkpoint_of_another_training_is_refused_with_the_difference() {
    let scene = real().await;
    create(&scene, "first", run("exit@8", json!({ "retryLimit": 0 }))).await;
    until_phase(&scene, "first", Phase::Failed).await;
    let jobs = scene.api::<TrainingJob>();
    jobs.delete("first", &DeleteParams::default()).await.expect("it can be deleted");
    wait_until_gone(&jobs, "first", within()).await;
    let changes = json!({ "dataset": "other/data", "resumeFrom": { "claimName": "first-output" } });
    create(&scene, "second", run("", changes)).await;
    let second = until_phase(&scene, "second", Phase::Failed).await;
    assert_eq!(failure(&second).reason, reasons::CANNOT_RESUME);
    let message = failure(&second).message.clone().unwrap_or_default();
    assert!(message.contains("that of this job other/data"), "{message}");
}
