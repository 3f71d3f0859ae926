//! What other jobs need and hold.

use std::sync::Arc;

use api::{
    labels,
    trainingjob::{
        Checkpoint, Dependency as Record, DependencyResult, Phase, TrainingJob, TrainingJobStatus,
    },
};
use runtime::{
    key::Key,
    watch::{cache::Cache, relations::Referrers},
};
use serde_json::json;
use workload::views::pod::PodView;

use super::{
    claims::uploader,
    dependencies::{dependents, needs},
};
use crate::{
    NAME, names,
    relations::{
        claim_keys, keys_by_instance, keys_of_dependencies,
        wants::{keys_of_wants, output_keys},
    },
    tests::job,
};

/// A job in this phase, with this record of the job sft.
fn dependent(phase: Phase, record: Option<Record>) -> TrainingJob {
    let mut dpo = job("dpo", "{model: /outputs/sft, dataset: d, method: dpo}");
    dpo.status = Some(TrainingJobStatus {
        phase: Some(phase),
        dependencies: record.into_iter().collect(),
        ..TrainingJobStatus::default()
    });
    dpo
}

fn record(path: Option<&str>) -> Option<Record> {
    Some(Record {
        name: "sft".into(),
        uid: "uid-of-sft".into(),
        path: path.map(str::to_owned),
        result: Some(DependencyResult { claim_name: "sft-output".into(), ..DependencyResult::default() }),
    })
}

fn succeeded(retention: &str) -> TrainingJob {
    let spec = format!(
        "{{model: m, dataset: d, method: lora, outputDir: /outputs/sft, output: {{retention: {retention}}}}}"
    );
    let mut sft = job("sft", &spec);
    sft.status = Some(TrainingJobStatus { phase: Some(Phase::Succeeded), ..TrainingJobStatus::default() });
    sft
}

/// Two jobs in the caches, with the indexes of outputs and of dependents.
fn known(sft: TrainingJob, dpo: TrainingJob) -> (Cache<TrainingJob>, Referrers, Referrers) {
    let jobs: Cache<TrainingJob> = Cache::default();
    let outputs = Referrers::of(&jobs, output_keys);
    let dependents = Referrers::of(&jobs, keys_of_wants);
    jobs.upsert(sft);
    jobs.upsert(dpo);
    (jobs, outputs, dependents)
}

#[test]
fn a_result_that_is_deleted_with_its_job_is_needed_until_its_reader_has_ended() {
    let path = || record(Some("/outputs/sft"));
    for retention in ["Delete", "Snapshot"] {
        for (phase, expected) in
            [(Phase::Pending, 1), (Phase::Running, 1), (Phase::Succeeded, 0), (Phase::Failed, 0)]
        {
            let sft = succeeded(retention);
            let (jobs, _, index) = known(sft.clone(), dependent(phase, path()));
            assert_eq!(dependents(&jobs, &index, &sft), expected, "{retention} {phase:?}");
        }
    }
    let needs = |retention, record| needs(&dependent(Phase::Running, record), &succeeded(retention));
    assert!(!needs("Retain", path()), "the claim is kept");
    assert!(!needs("Delete", record(None)), "it reads nothing");
    assert!(needs("Retain", None) && needs("Delete", None), "it waits for the result");
}

/// A job that goes on from this source and has, or has not, a checkpoint of its own.
fn successor(source: &str, has_own: bool) -> TrainingJob {
    let mut next = job("next", &format!("{{model: m, dataset: d, method: lora, resumeFrom: {{{source}}}}}"));
    next.status = Some(TrainingJobStatus {
        phase: Some(Phase::Running),
        checkpoint: has_own.then(Checkpoint::default),
        ..TrainingJobStatus::default()
    });
    next
}

#[test]
fn a_claim_that_another_job_names_for_its_checkpoints_is_needed_until_that_one_has_its_own() {
    for (source, retention, has_own, expected) in [
        ("claimName: sft-output, path: sft", "Delete", false, 1),
        ("claimName: sft-output", "Snapshot", false, 1),
        ("claimName: sft-output", "Delete", true, 0),
        ("claimName: sft-output", "Retain", false, 0),
        ("claimName: other-output", "Delete", false, 0),
        ("job: sft", "Delete", false, 1),
    ] {
        let sft = succeeded(retention);
        let next = successor(source, has_own);
        let (jobs, outputs, index) = known(sft.clone(), next.clone());
        assert_eq!(dependents(&jobs, &index, &sft), expected, "{source} {retention} {has_own}");
        // Its end, or its own checkpoint, wakes the other one.
        let is_of_sft = source.contains("sft");
        let woken = keys_of_dependencies(&jobs, &outputs, &next);
        assert_eq!(woken.contains(&Key::new("demo", "sft")), is_of_sft, "{source}: {woken:?}");
        let mut ended = next;
        ended.status.as_mut().unwrap().phase = Some(Phase::Failed);
        let (jobs, _, index) = known(sft.clone(), ended);
        assert_eq!(dependents(&jobs, &index, &sft), 0, "{source} {retention}");
    }
}

#[test]
fn a_pod_that_uploads_on_a_node_has_the_volume_until_it_ends() {
    let sft = Key::new("demo", "sft");
    let found = |job: &str, node: &str, phase: &str| {
        let labels = json!({labels::MANAGED_BY: NAME, labels::NAME: names::KIND, labels::INSTANCE: "sft"});
        let owner =
            json!({"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": "u", "controller": true});
        let pod = json!({
            "metadata": {"name": "pod", "namespace": "demo", "labels": labels, "ownerReferences": [owner]},
            "spec": if node.is_empty() { json!({}) } else { json!({"nodeName": node}) },
            "status": {"phase": phase},
        });
        let pods: Cache<PodView> = Cache::default();
        let pods_of = Referrers::of(&pods, keys_by_instance);
        pods.upsert(serde_json::from_value(pod).unwrap());
        uploader(&pods, &pods_of, &sft)
    };
    assert_eq!(found("sft-upload", "node-1", "Pending").as_deref(), Some("pod"));
    assert_eq!(found("sft-upload", "node-1", "Running").as_deref(), Some("pod"));
    for (job, node, phase) in [
        ("sft-upload", "", "Pending"),
        ("sft-upload", "node-1", "Succeeded"),
        ("sft-upload", "node-1", "Failed"),
        ("sft-1", "node-1", "Running"),
    ] {
        assert_eq!(found(job, node, phase), None, "{job} {node} {phase}");
    }
}

#[test]
fn a_job_that_is_deleted_while_it_runs_starts_the_time_of_what_it_read() {
    let dpo = dependent(Phase::Running, record(Some("/outputs/sft")));
    let (jobs, outputs, _) = known(succeeded("Delete"), dpo.clone());
    assert_eq!(keys_of_dependencies(&jobs, &outputs, &dpo), [], "its progress does not matter to others");
    jobs.replace(vec![Arc::new(succeeded("Delete"))], "2");
    assert_eq!(keys_of_dependencies(&jobs, &outputs, &dpo), [Key::new("demo", "sft")]);
}

#[test]
fn the_claims_of_results_are_looked_up_and_watched() {
    let dpo = dependent(Phase::Running, record(Some("/outputs/sft")));
    let names: Vec<String> = claim_keys(&dpo).iter().map(|key| key.name.to_string()).collect();
    assert_eq!(names, ["dpo-output", "sft-output"]);
}
