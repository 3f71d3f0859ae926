//! ModelEvaluation in tests: create, change, wait; and the script for the tests of every controller.

use api::{
    aiinference::{
        AIInference,
        evaluation::{ModelEvaluation, Phase},
    },
    conditions,
    controllers::CONTROLLERS,
    labels, reasons,
};
use k8s_openapi::{
    api::{batch::v1::Job, core::v1::PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::api::{ApiResource, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::endpoint::contest;
use crate::{
    Scene,
    lives::{Edited, Further, Life},
    wait_for, wait_until_gone, within,
};

pub const CONTROLLER: &str = "evaluation-controller";

/// The URL that the controller of a life allows.
const MODELS: &str = "http://models.example";

/// The options of the controller in tests.
pub fn options() -> Vec<String> {
    vec!["--evalscope-image=evalscope:1.10.0".to_owned(), format!("--allowed-endpoints={MODELS}")]
}

/// The script for an evaluation whose first server does not start. No inference-controller has to run: the object is done when
/// its spec is accepted, and its AIInference is what it should be.
pub(crate) fn life() -> Life {
    let kind = CONTROLLERS.iter().find(|known| known.name == CONTROLLER).expect("a controller").kinds[0];
    Life {
        controller: CONTROLLER,
        kind: kind.done_with(conditions::ACCEPTED),
        samples_of: &[],
        args: options,
        given: |_| Vec::new(),
        leaves: |_| Vec::new(),
        spec: |_| {
            let server = json!({"accelerator": "no-such-product"});
            json!({"baselineModel": "qwen/Qwen-7B", "candidateModel": "qwen/Qwen-7B-Chat", "testSet": "mmlu-zh",
                   "server": server, "ttlSecondsAfterFinished": 86400})
        },
        scaled: json!({"ttlSecondsAfterFinished": 3600}),
        changed: json!({"ttlSecondsAfterFinished": 7200}),
        edited: Edited {
            resource: ApiResource::erase::<AIInference>(&()),
            suffix: "-baseline",
            edit: json!({"modelSource": "s3://models/another"}),
        },
        children: None,
        // The server goes and comes back.
        further: [json!({"suspend": true}), json!({"suspend": false})].map(Further::once_done).into(),
        needs_gateway: false,
        measured: &["startTime", "completionTime", "message"],
        counted: &["modelevaluation_phase{phase=\"preparing\"} 1"],
        beyond_a_namespace: &[],
        use_every_right: |scene| Box::pin(use_every_right(scene)),
        settle: |scene| Box::pin(settle(scene)),
    }
}

/// Two models of an API that answers in the simulation, merged with `changes`.
pub fn of_endpoints(changes: Value) -> Value {
    let mut spec = json!({
        "baselineModel": format!("endpoint:{MODELS}/v1#base"),
        "candidateModel": format!("endpoint:{MODELS}/v1#new"),
        "testSet": "mmlu-zh",
    });
    merge(&mut spec, changes);
    spec
}

/// Two models of a hub, whose servers are temporary, merged with `changes`.
pub fn of_models(changes: Value) -> Value {
    let mut spec =
        json!({"baselineModel": "qwen/Qwen-7B", "candidateModel": "qwen/Qwen-7B-Chat", "testSet": "mmlu-zh"});
    merge(&mut spec, changes);
    spec
}

fn merge(spec: &mut Value, changes: Value) {
    if let (Some(spec), Value::Object(changes)) = (spec.as_object_mut(), changes) {
        spec.extend(changes);
    }
}

/// Settings that decide the fate of the simulated pods of an evaluation.
pub fn fate(settings: &[(&str, &str)]) -> Value {
    let annotations =
        settings.iter().map(|(key, value)| (format!("sim.ai.infra.example.com/{key}"), json!(value)));
    json!({"podAnnotations": annotations.collect::<serde_json::Map<_, _>>()})
}

pub async fn create(scene: &Scene<'_>, name: &str, spec: Value) -> ModelEvaluation {
    let object = serde_json::from_value(json!({
        "apiVersion": "aistudio.modelscope.cn/v1alpha1",
        "kind": "ModelEvaluation",
        "metadata": {"name": name, "namespace": scene.namespace()},
        "spec": spec,
    }))
    .expect("a ModelEvaluation");
    scene.api().create(&PostParams::default(), &object).await.expect("it is accepted")
}

pub async fn change(scene: &Scene<'_>, name: &str, spec: Value) -> ModelEvaluation {
    let patch = Patch::Merge(json!({"spec": spec}));
    scene.api().patch(name, &PatchParams::default(), &patch).await.expect("the change is accepted")
}

pub async fn until_phase(scene: &Scene<'_>, name: &str, phase: Phase) -> ModelEvaluation {
    let is_so = |evaluation: &ModelEvaluation| {
        evaluation.status.as_ref().is_some_and(|status| status.phase == Some(phase))
    };
    wait_for(&scene.api::<ModelEvaluation>(), name, &format!("{phase:?}"), within(), is_so).await
}

/// Waits until the condition has this reason.
pub async fn until_reason(scene: &Scene<'_>, name: &str, type_: &str, reason: &str) -> ModelEvaluation {
    let what = format!("{type_} because of {reason}");
    let is_so = |evaluation: &ModelEvaluation| {
        condition(evaluation, type_).is_some_and(|known| {
            known.reason == reason && known.observed_generation == evaluation.metadata.generation
        })
    };
    wait_for(&scene.api::<ModelEvaluation>(), name, &what, within(), is_so).await
}

pub fn condition<'e>(evaluation: &'e ModelEvaluation, type_: &str) -> Option<&'e Condition> {
    evaluation.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_)
}

async fn use_every_right(scene: &Scene<'_>) {
    create(scene, "short", of_endpoints(json!({"ttlSecondsAfterFinished": 0}))).await;
    wait_until_gone(&scene.api::<ModelEvaluation>(), "short", within()).await;

    create(scene, "rights", of_models(json!({"server": {"accelerator": "no-such-product"}}))).await;
    let servers = scene.api::<AIInference>();
    let server = "rights-baseline";
    let there = wait_for(&servers, server, "there", within(), |_: &AIInference| true).await;
    contest::<AIInference>(scene, server, |number| json!({"modelSource": format!("s3://models/{number}")}))
        .await;
    // A child that was deleted is made again, and its owner is read before that.
    let uid = there.metadata.uid;
    servers.delete(server, &DeleteParams::default()).await.expect("it can be deleted");
    let is_another = |server: &AIInference| server.metadata.uid != uid;
    wait_for(&servers, server, "made again", within(), is_another).await;
    change(scene, "rights", json!({"suspend": true})).await;
    wait_until_gone(&servers, server, within()).await;

    let mut endless = of_endpoints(json!({}));
    merge(&mut endless, fate(&[("run-time", "24h")]));
    create(scene, "endless", endless).await;
    let jobs = scene.api::<Job>();
    let job = "endless-baseline-0";
    wait_for(&jobs, job, "there", within(), |_: &Job| true).await;
    wait_for(&scene.api::<PersistentVolumeClaim>(), "endless-evaluation", "there", within(), |_| true).await;
    // Without the label no watch of the controller sees the Job.
    let unlabelled = Patch::Merge(json!({"metadata": {"labels": {labels::MANAGED_BY: null}}}));
    jobs.patch(job, &PatchParams::default(), &unlabelled).await.expect("it is accepted");
    wait_for(&jobs, job, "its label again", within(), |job: &Job| {
        job.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(labels::MANAGED_BY))
    })
    .await;
    change(scene, "endless", json!({"suspend": true})).await;
    wait_until_gone(&jobs, job, within()).await;
}

/// Evaluations in every state that lasts.
async fn settle(scene: &Scene<'_>) {
    create(scene, "passed", of_endpoints(json!({}))).await;
    let mut failed = of_endpoints(json!({}));
    merge(&mut failed, fate(&[("crash-reason", "Error"), ("crash-exit-code", "81")]));
    create(scene, "failed", failed).await;
    let mut endless = of_endpoints(json!({}));
    merge(&mut endless, fate(&[("run-time", "24h")]));
    create(scene, "runs", endless).await;
    create(scene, "suspended", of_endpoints(json!({"suspend": true}))).await;
    create(scene, "waiting", of_models(json!({"candidateModel": "/checkpoints/none"}))).await;
    create(scene, "invalid", of_endpoints(json!({"candidateModel": "endpoint:http://others.example/v1"})))
        .await;
    until_reason(scene, "passed", conditions::COMPARED, reasons::PASSED).await;
    until_reason(scene, "failed", conditions::FAILED, reasons::DATASET_NOT_FOUND).await;
    until_reason(scene, "runs", conditions::EVALUATED, reasons::EVALUATING).await;
    until_reason(scene, "suspended", conditions::SERVERS_READY, reasons::SUSPENDED).await;
    until_reason(scene, "waiting", conditions::SERVERS_READY, reasons::DEPENDENCY_NOT_FOUND).await;
    until_reason(scene, "invalid", conditions::ACCEPTED, reasons::ENDPOINT_NOT_ALLOWED).await;
}
