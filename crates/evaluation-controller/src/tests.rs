//! Objects for the unit tests of this crate.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::aiinference::evaluation::ModelEvaluation;
use jiff::Timestamp;
use serde_json::{Value, json};
use workload::own_account::OwnAccount;

use crate::{
    Settings,
    inference::InferenceView,
    observe::{Observed, Sighting},
};

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_268_800 + seconds).unwrap()
}

/// With the fields of the spec that the text adds.
pub(crate) fn evaluation(fields: &Value) -> ModelEvaluation {
    let mut spec = json!({"baselineModel": "a/b", "candidateModel": "a/c"});
    let fields = fields.as_object().unwrap();
    if !fields.contains_key("testSets") {
        spec["testSet"] = "cmmlu".into();
    }
    spec.as_object_mut().unwrap().extend(fields.clone());
    serde_json::from_value(json!({
        "apiVersion": "aistudio.modelscope.cn/v1alpha1",
        "kind": "ModelEvaluation",
        "metadata": {"name": "ab", "namespace": "demo", "uid": "e", "generation": 1},
        "spec": spec,
        "status": {"phase": "Pending", "observedGeneration": 0},
    }))
    .unwrap()
}

pub(crate) fn settings() -> Settings {
    Settings {
        runner_image: "eval-runner:1".to_owned(),
        transfer_image: "model-transfer:1".to_owned(),
        evalscope_image: Some("evalscope:1".to_owned()),
        lm_eval_image: None,
        library: None,
        allowed_endpoints: Vec::new(),
        allow_online: false,
        allow_code_execution: false,
        server_fault: Duration::from_secs(600),
        own_account: OwnAccount::new(Some("demo".to_owned()), Some("controller".to_owned())),
        refusal_retry: Duration::from_secs(60),
    }
}

/// Nothing of it exists yet, and it has not been paused for a day.
pub(crate) fn observed(evaluation: ModelEvaluation) -> Observed {
    Observed {
        evaluation: Arc::new(evaluation),
        baseline: Sighting::Absent,
        candidate: Sighting::Absent,
        running_baseline: None,
        running_candidate: None,
        baseline_writers: Vec::new(),
        candidate_writers: Vec::new(),
        jobs: BTreeMap::new(),
        pods: Vec::new(),
        pods_are_stale: false,
        creates_nothing: false,
        claims: BTreeMap::new(),
        serves_inferences: true,
        facts: BTreeMap::from([("is not paused".to_owned(), at(-86_400))]),
    }
}

/// A ready one, unless the condition says something else.
pub(crate) fn server(name: &str, condition: &Value) -> InferenceView {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "demo", "uid": format!("uid-{name}"), "resourceVersion": "7", "generation": 1},
        "status": {"observedGeneration": 1, "url": format!("http://{name}.demo.svc:8000"), "conditions": [condition],
                   "model": {"digest": "sha256:1", "files": 1, "bytes": 1}},
    }))
    .unwrap()
}

pub(crate) fn ready() -> Value {
    condition("Ready", "True", "Ready")
}

pub(crate) fn condition(type_: &str, status: &str, reason: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": format!("{reason}."),
           "lastTransitionTime": "2026-01-01T12:00:00Z"})
}

/// A Job with a pod, which has ended with this exit code and message; `None`: it runs.
pub(crate) fn add_job(observed: &mut Observed, name: &str, end: Option<(i32, &str)>) {
    let ended = end.map(|(code, _)| if code == 0 { "Complete" } else { "Failed" });
    let conditions: Vec<Value> = ended.iter().map(|type_| condition(type_, "True", "Ended")).collect();
    let job = json!({"metadata": {"name": name, "namespace": "demo", "uid": format!("uid-{name}"), "resourceVersion": "3"},
                     "status": {"conditions": conditions}});
    observed.jobs.insert(name.to_owned(), Arc::new(serde_json::from_value(job).unwrap()));
    let state = match end {
        Some((code, message)) => json!({"terminated": {"exitCode": code, "message": message}}),
        None => json!({"running": {}}),
    };
    let pod = json!({
        "metadata": {"name": format!("{name}-x"), "namespace": "demo", "uid": format!("uid-{name}-x"),
            "labels": {"app.kubernetes.io/name": "modelevaluation", "app.kubernetes.io/instance": "ab",
                       "app.kubernetes.io/managed-by": "evaluation-controller"},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": format!("uid-{name}"),
                                 "controller": true}]},
        "spec": {"nodeName": "n", "containers": []},
        "status": {"phase": "Running", "containerStatuses": [{"name": "runner", "state": state}]},
    });
    observed.pods.push(Arc::new(serde_json::from_value(pod).unwrap()));
}
