//! A canary that an evaluation has to let through.

use std::sync::Arc;

use api::{conditions, loader::Loaded};

use super::*;

fn digest(digit: &str) -> String {
    format!("sha256:{}", digit.repeat(64))
}

fn says(scene: &mut Scene, status: &str) {
    let text = format!("{{metadata: {{name: nightly, namespace: demo, uid: u-1}}, status: {status}}}");
    let view = serde_saphyr::from_str(&text).unwrap();
    scene.observe(|observed| observed.evaluation = Some(Arc::new(view)));
}

fn passed(digit: &str) -> String {
    format!("{{phase: Succeeded, verdict: Passed, resolved: {{candidate: {{digest: '{}'}}}}}}", digest(digit))
}

fn loaded(digit: &str) -> String {
    let loaded = Loaded { digest: digest(digit), files: 2, bytes: 7, commit: String::new() }.message();
    format!(
        "{{name: new, owner: chat-canary-7f9c, ready: true, node: gpu-1, phase: Running, gpus: 1, init: [{{name: \
         model-loader, state: {{terminated: {{exitCode: 0, message: '{loaded}'}}}}}}]}}"
    )
}

/// With a gate, and the children of the candidate as the first pass lets them come up.
fn gated() -> Scene {
    let mut scene = Scene::ready(1);
    edit(&mut scene, "{modelSource: 's3://models/v2', evaluationName: nightly}");
    let version = candidate(&scene.observed().inference).unwrap();
    let mut absent = Scene::new("{modelSource: s3://m, engine: vllm, gpu: {count: 1}}");
    absent.observe(|observed| observed.inference = Arc::new(version));
    let absent = absent.observed();
    scene.observe(|observed| observed.candidate = Some(Box::new(absent)));
    scene
}

fn progressing(plan: &Plan) -> (String, String) {
    let (status, reason, _) = condition(plan, conditions::CANARY_PROGRESSING);
    (status, reason)
}

#[test]
fn a_candidate_gets_pods_when_its_evaluation_has_passed_and_goes_on_when_they_have_its_files() {
    let mut scene = gated();
    let plan = scene.plan();
    assert!(plan.candidate.is_empty(), "{:?}", plan.candidate);
    assert_eq!(canary_of(&plan).phase, Some(CanaryPhase::AwaitingEvaluation));
    assert_eq!(progressing(&plan), ("False".to_owned(), "EvaluationNotFound".to_owned()));
    assert_eq!(plan.status.min_stable_replicas, None, "stable may be scaled meanwhile");
    says(&mut scene, "{phase: Running}");
    assert_eq!(progressing(&scene.plan()), ("True".to_owned(), "EvaluationPending".to_owned()));
    says(&mut scene, "{phase: Succeeded, verdict: Regressed}");
    let plan = scene.plan();
    assert!(plan.candidate.is_empty());
    assert_eq!(progressing(&plan), ("False".to_owned(), "EvaluationNotPassed".to_owned()));

    says(&mut scene, &passed("a"));
    assert!(!scene.plan().candidate.is_empty());
    scene.candidate(&["{name: new, node: gpu-1, phase: Running, gpus: 1}"]);
    assert_eq!(canary_of(&scene.plan()).phase, Some(CanaryPhase::Starting));
    scene.candidate(&[&loaded("b")]);
    let plan = scene.plan();
    assert_eq!(canary_of(&plan).phase, Some(CanaryPhase::AwaitingEvaluation));
    assert_eq!(progressing(&plan), ("False".to_owned(), "EvaluationForOtherModel".to_owned()));
    scene.candidate(&[&loaded("a")]);
    let plan = scene.plan();
    assert_eq!(canary_of(&plan).phase, Some(CanaryPhase::Dark));
    assert_eq!(canary_of(&plan).evaluation.map(|known| known.digest), Some(digest("a")));
}

/// What people and health checks read.
#[test]
fn a_refused_candidate_is_not_healthy_and_a_pause_changes_no_word_of_it() {
    let mut scene = gated();
    let healthy = |scene: &Scene| {
        let (status, reason, _) = condition(&scene.plan(), conditions::CANARY_HEALTHY);
        (status, reason)
    };
    assert_eq!(healthy(&scene), ("True".to_owned(), "Judging".to_owned()));
    says(&mut scene, "{phase: Succeeded, verdict: Regressed}");
    assert_eq!(healthy(&scene), ("False".to_owned(), "EvaluationNotPassed".to_owned()));
    scene.write_status();
    let before = condition(&scene.plan(), conditions::CANARY_PROGRESSING);
    scene.edit_spec(|spec| spec.pods.paused = true);
    assert_eq!(condition(&scene.plan(), conditions::CANARY_PROGRESSING), before);
    assert_eq!(healthy(&scene), ("False".to_owned(), "EvaluationNotPassed".to_owned()));
}

#[test]
fn stable_has_to_load_the_files_that_have_passed() {
    let mut scene = gated();
    says(&mut scene, &passed("a"));
    scene.candidate(&[&loaded("a")]);
    scene.write_status();
    scene.edit_spec(|spec| spec.canary.as_mut().unwrap().approved_steps = 1);
    edited(&mut scene);
    scene.write_status();
    let plan = scene.plan();
    assert_eq!(canary_of(&plan).phase, Some(CanaryPhase::Promoting));
    // Its Deployment has the version of before, whose pods load other files.
    let written = |scene: &Scene| {
        let record = scene.plan().digests?;
        record.data?.into_values().next()
    };
    scene.observe(|observed| {
        observed.deployed = Some(Vec::new());
        observed.deployed_revision = Some("8aa".to_owned());
    });
    assert!(!written(&scene).unwrap_or_default().contains("8aa"), "{:?}", written(&scene));
    scene.settle(0);
    scene.observe(|observed| observed.deployed_revision = Some("9bb".to_owned()));
    let line = format!("9bb {}\n", digest("a"));
    assert!(written(&scene).unwrap_or_default().contains(&line), "{:?}", written(&scene));
    // A pod that has started before the line was there has loaded other files.
    let early = loaded("b").replace("chat-canary-7f9c", "chat-9bb").replace("name: new", "name: early");
    scene.pods(&[&early]);
    assert!(written(&scene).unwrap_or_default().contains(&line), "{:?}", written(&scene));
    assert_eq!(canary_of(&scene.plan()).phase, Some(CanaryPhase::Promoting), "stable is not complete");
    scene.pods(&[&early.replace(&digest("b"), &digest("a"))]);
    assert_eq!(canary_of(&scene.plan()).phase, Some(CanaryPhase::Promoted));
}

#[test]
fn a_pass_is_remembered_for_its_version_alone() {
    let mut scene = gated();
    says(&mut scene, &passed("a"));
    scene.candidate(&[&loaded("a")]);
    scene.write_status();
    scene.observe(|observed| observed.evaluation = None);
    assert_eq!(canary_of(&scene.plan()).phase, Some(CanaryPhase::Dark), "the evaluation is gone");
    scene.edit_spec(|spec| spec.canary.as_mut().unwrap().model_source = Some("s3://models/v3".to_owned()));
    edited(&mut scene);
    let plan = scene.plan();
    assert_eq!(canary_of(&plan).phase, Some(CanaryPhase::AwaitingEvaluation));
    assert_eq!(canary_of(&plan).evaluation, None);
}
