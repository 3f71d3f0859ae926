//! From two models to a verdict.

use std::fs;

use api::{
    aiinference::{
        AIInference,
        evaluation::{ModelEvaluation, Phase},
    },
    conditions, reasons,
};
use k8s_openapi::api::{batch::v1::Job, core::v1::PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use tests::{
    inference::{
        self,
        evaluation::{condition, create, fate, of_endpoints, of_models, until_phase, until_reason},
    },
    simulated, training, wait_for, wait_until_gone, within, workspace,
};

/// The manifest of the seeds, as it is. Its candidate is what a TrainingJob writes.
#[tokio::test]
async fn the_given_manifest_waits_for_its_training_job_and_passes() {
    let scene = simulated().await;
    let manifest = fs::read_to_string(workspace().join("tests/fixtures/modelevaluation.yaml")).unwrap();
    scene.apply(&manifest).await.unwrap();
    let name = "qwen-qlora-vs-base";
    until_reason(&scene, name, conditions::SERVERS_READY, reasons::DEPENDENCY_NOT_FOUND).await;
    let servers = scene.api::<AIInference>();
    assert!(servers.list(&ListParams::default()).await.unwrap().items.is_empty(), "no GPU is taken yet");
    let changes = json!({"method": "qlora", "outputDir": "/checkpoints/qwen-qlora-v2"});
    training::create(&scene, "qwen-qlora-v2", changes).await;
    let waiting = until_reason(&scene, name, conditions::SERVERS_READY, reasons::WAITING).await;
    let message = &condition(&waiting, conditions::SERVERS_READY).unwrap().message;
    assert!(message.starts_with("waits for TrainingJob qwen-qlora-v2"), "{message}");

    let server = wait_for(&servers, &format!("{name}-candidate"), "there", within(), |_| true).await;
    assert_eq!(server.spec.model_source, "ms://qwen/Qwen-7B", "the base of the adapters");
    assert!(server.spec.args.iter().any(|arg| arg == "--enable-lora"), "{:?}", server.spec.args);
    assert!(
        servers.get_opt(&format!("{name}-baseline")).await.unwrap().is_none(),
        "one server at a time: the GPUs of the first are free"
    );
    let done = until_phase(&scene, name, Phase::Succeeded).await;
    let status = done.status.clone().unwrap();
    assert_eq!(status.verdict.as_deref(), Some("Passed"), "{:?}", status.message);
    assert_eq!(status.results[0].test_set, "mmlu-zh");
    assert_eq!(
        status.runs.iter().map(|run| run.side.as_str()).collect::<Vec<_>>(),
        ["baseline", "control", "candidate"]
    );
    assert_eq!(status.null_control.unwrap().flips, Some(4));
    let resolved = status.resolved.unwrap().candidate.unwrap();
    assert_eq!(resolved.training_job.as_deref(), Some("qwen-qlora-v2"));
    assert!(condition(&done, conditions::COMPLETE).is_some_and(|complete| complete.status == "True"));
    assert!(condition(&done, conditions::RECONCILING).is_none());
    wait_until_gone(&servers, &format!("{name}-candidate"), within()).await;

    let shown = scene.kubectl(&["get", "me", name]);
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    let columns = ["NAME", "BASELINE", "CANDIDATE", "TESTSET", "VERDICT", "DIFFERENCE", "PHASE", "AGE"];
    assert_eq!(lines[0], columns);
    assert_eq!(lines[1][..5], [name, "qwen/Qwen-7B", "/checkpoints/qwen-qlora-v2", "mmlu-zh", "Passed"]);

    // What it made goes with it.
    scene.api::<ModelEvaluation>().delete(name, &DeleteParams::default()).await.unwrap();
    wait_until_gone(&scene.api::<PersistentVolumeClaim>(), &format!("{name}-evaluation"), within()).await;
    wait_until_gone(&scene.api::<Job>(), &format!("{name}-pair"), within()).await;
}

#[tokio::test]
async fn a_regression_is_a_success_of_the_evaluation_and_says_how_large_it_is() {
    let scene = simulated().await;
    let worse = r#"{"bothRight":1000,"onlyBaseline":200,"onlyCandidate":40,"bothWrong":760}"#;
    let mut spec = of_endpoints(fate(&[("pairs", worse)]));
    spec["regressionBudgetPoints"] = json!("2.0");
    create(&scene, "worse", spec).await;
    let done = until_phase(&scene, "worse", Phase::Succeeded).await;
    let status = done.status.clone().unwrap();
    assert_eq!(status.verdict.as_deref(), Some("Regressed"));
    assert!(status.difference.as_deref().unwrap().starts_with("-8.00 ["), "{:?}", status.difference);
    assert!(condition(&done, conditions::FAILED).is_none());
    let events = scene.kubectl(&["get", "events", "--field-selector=reason=Regressed"]);
    assert!(events.contains("Warning"), "{events}");
}

#[tokio::test]
async fn suspension_frees_the_gpus_and_goes_on_with_the_next_run() {
    let scene = simulated().await;
    create(&scene, "chat", of_models(fate(&[("run-time", "3s")]))).await;
    let servers = scene.api::<AIInference>();
    let evaluations = scene.api::<ModelEvaluation>();
    let has_run = |evaluation: &ModelEvaluation| {
        evaluation.status.as_ref().is_some_and(|status| !status.runs.is_empty())
    };
    let running = wait_for(&evaluations, "chat", "a finished run", within(), has_run).await;
    let first = running.status.unwrap().runs.remove(0);
    inference::evaluation::change(&scene, "chat", json!({"suspend": true})).await;
    wait_until_gone(&servers, "chat-baseline", within()).await;
    wait_until_gone(&scene.api::<Job>(), "chat-control-0", within()).await;
    until_reason(&scene, "chat", conditions::SERVERS_READY, reasons::SUSPENDED).await;
    inference::evaluation::change(&scene, "chat", json!({"suspend": false})).await;
    let done = until_phase(&scene, "chat", Phase::Succeeded).await;
    assert_eq!(done.status.unwrap().runs[0], first, "it was not repeated");
}

/// The server belongs to its user.
#[tokio::test]
async fn a_server_that_runs_is_used_and_stays() {
    let scene = simulated().await;
    let mut spec = of_endpoints(json!({"baselineModel": "aiinference/mine"}));
    spec["testSets"] = json!([{"name": "one"}, {"name": "two"}]);
    spec.as_object_mut().unwrap().remove("testSet");
    create(&scene, "chat", spec).await;
    until_reason(&scene, "chat", conditions::SERVERS_READY, reasons::DEPENDENCY_NOT_FOUND).await;
    inference::create(&scene, "mine", json!({})).await;
    let done = until_phase(&scene, "chat", Phase::Succeeded).await;
    let status = done.status.unwrap();
    assert_eq!((status.results.len(), status.test_sets.as_deref()), (2, Some("one, two")));
    let mine = scene.api::<AIInference>().get("mine").await.unwrap();
    assert!(mine.metadata.deletion_timestamp.is_none() && mine.metadata.owner_references.is_none());
}

/// They share the server of the baseline, and nothing else.
#[tokio::test]
async fn two_evaluations_of_one_baseline_do_not_disturb_each_other() {
    let scene = simulated().await;
    inference::create(&scene, "mine", json!({})).await;
    inference::until_ready(&scene, "mine").await;
    let servers = scene.api::<AIInference>();
    let before = servers.get("mine").await.unwrap().metadata;
    for (name, order) in [("first", "Sequential"), ("second", "Parallel")] {
        let mut spec = of_models(fate(&[("run-time", "3s")]));
        spec["baselineModel"] = json!("aiinference/mine");
        spec["order"] = json!(order);
        create(&scene, name, spec).await;
    }
    wait_for(&servers, "second-candidate", "there", within(), |_| true).await;
    let first = servers.get_opt("first-candidate").await.unwrap();
    assert!(first.is_none(), "Sequential: its baseline is asked first");
    for name in ["first", "second"] {
        let done = until_phase(&scene, name, Phase::Succeeded).await;
        let status = done.status.unwrap();
        assert_eq!(status.verdict.as_deref(), Some("Passed"), "{name}: {:?}", status.message);
        let mut sides: Vec<&str> = status.runs.iter().map(|run| run.side.as_str()).collect();
        sides.sort_unstable();
        assert_eq!(sides, ["baseline", "candidate", "control"], "{name}");
        assert_eq!(status.resolved.unwrap().baseline.unwrap().inference_uid, before.uid);
        wait_until_gone(&servers, &format!("{name}-candidate"), within()).await;
        let claims = scene.api::<PersistentVolumeClaim>();
        assert!(claims.get_opt(&format!("{name}-evaluation")).await.unwrap().is_some());
    }
    let after = servers.get("mine").await.unwrap().metadata;
    assert_eq!(
        (after.uid, after.generation, after.deletion_timestamp),
        (before.uid, before.generation, None)
    );
}
