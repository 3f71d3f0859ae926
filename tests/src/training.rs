//! TrainingJob in tests: create, change, wait; and the script for the tests of every controller.

use api::{
    controllers::CONTROLLERS,
    labels,
    trainingjob::{Phase, TrainingJob},
};
use k8s_openapi::{
    api::core::v1::{Pod, Service},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api,
    api::{ApiResource, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    Scene,
    lives::{Edited, Life},
    wait_for, within,
};

pub const CONTROLLER: &str = "training-controller";

/// A spec with LoRA on one GPU, merged with `changes`.
pub fn spec(changes: Value) -> Value {
    let mut spec = json!({"model": "qwen/Qwen-7B", "dataset": "my_alpaca_zh", "method": "lora"});
    if let (Some(spec), Value::Object(changes)) = (spec.as_object_mut(), changes) {
        spec.extend(changes);
    }
    spec
}

pub async fn create(scene: &Scene<'_>, name: &str, changes: Value) -> TrainingJob {
    let object = serde_json::from_value(json!({
        "apiVersion": "aistudio.modelscope.cn/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": scene.namespace()},
        "spec": spec(changes),
    }))
    .expect("a TrainingJob");
    scene.api().create(&PostParams::default(), &object).await.expect("it is accepted")
}

pub async fn change(scene: &Scene<'_>, name: &str, spec: Value) -> TrainingJob {
    let patch = Patch::Merge(json!({"spec": spec}));
    scene.api().patch(name, &PatchParams::default(), &patch).await.expect("the change is accepted")
}

/// Environment variables that decide the fate of a simulated pod.
pub fn fate(settings: &[(&str, &str)]) -> Value {
    let variables = settings.iter().map(|(setting, value)| {
        let name = format!("SIM_{}", setting.replace('-', "_").to_uppercase());
        json!({"name": name, "value": value})
    });
    json!({"env": variables.collect::<Vec<_>>()})
}

pub async fn until_phase(scene: &Scene<'_>, name: &str, phase: Phase) -> TrainingJob {
    wait_for(&scene.api::<TrainingJob>(), name, &format!("{phase:?}"), within(), |job: &TrainingJob| {
        job.status.as_ref().is_some_and(|status| status.phase == Some(phase))
    })
    .await
}

/// Waits until the condition has this reason.
pub async fn until_reason(scene: &Scene<'_>, name: &str, type_: &str, reason: &str) -> TrainingJob {
    let what = format!("{type_} because of {reason}");
    wait_for(&scene.api::<TrainingJob>(), name, &what, within(), |job: &TrainingJob| {
        condition(job, type_).is_some_and(|known| known.reason == reason)
    })
    .await
}

pub fn condition<'a>(job: &'a TrainingJob, type_: &str) -> Option<&'a Condition> {
    job.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_)
}

/// The pods of a job, in the order of their names.
pub async fn pods(scene: &Scene<'_>, name: &str) -> Vec<Pod> {
    let selector = format!("{}=trainingjob,{}={name}", labels::NAME, labels::INSTANCE);
    let pods: Api<Pod> = scene.api();
    let mut pods = pods.list(&ListParams::default().labels(&selector)).await.expect("the pods").items;
    pods.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    pods
}

/// The script for a TrainingJob on one GPU.
pub(crate) fn life() -> Life {
    Life {
        controller: CONTROLLER,
        kind: CONTROLLERS.iter().find(|known| known.name == CONTROLLER).expect("a controller").kinds[0],
        samples_of: &[],
        args: Vec::new,
        given: |_| Vec::new(),
        spec: |_| spec(json!({})),
        scaled: json!({"retryLimit": 2}),
        changed: json!({"ttlSecondsAfterFinished": 100}),
        edited: Edited {
            resource: ApiResource::erase::<Service>(&()),
            suffix: "-gang",
            edit: json!({"selector": {labels::NAME: "another"}}),
        },
        children: None,
        measured: &[],
        counted: &[],
        beyond_a_namespace: &[("", "nodes", "list"), ("", "nodes", "watch"), ("", "pods", "delete")],
        use_every_right: |_| Box::pin(async {}),
        settle: |_| Box::pin(async {}),
    }
}
