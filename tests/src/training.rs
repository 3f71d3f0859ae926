//! TrainingJob in tests: create, change, wait; and the script for the tests of every controller.

use std::collections::BTreeMap;

use api::{
    conditions,
    controllers::CONTROLLERS,
    labels, reasons,
    trainingjob::{Phase, TrainingJob},
};
use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{PersistentVolumeClaim, Pod, Service},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use local_cluster::simulation::nodes;
use serde_json::{Value, json};

use crate::{
    Scene, ask_until, follow,
    lives::{Edited, Life},
    scaler::install_kind,
    wait_for, wait_until_gone, within,
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

/// The label selector of the pods of a job.
pub fn selector(name: &str) -> String {
    format!("{}=trainingjob,{}={name}", labels::NAME, labels::INSTANCE)
}

/// The pods of a job, in the order of their names.
pub async fn pods(scene: &Scene<'_>, name: &str) -> Vec<Pod> {
    let pods: Api<Pod> = scene.api();
    let mut pods = pods.list(&ListParams::default().labels(&selector(name))).await.expect("the pods").items;
    pods.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    pods
}

/// Runs until it is deleted.
const ENDLESS: (&str, &str) = ("run-time", "24h");

/// The script for a gang of two pods that train without end.
pub(crate) fn life() -> Life {
    let kind = CONTROLLERS.iter().find(|known| known.name == CONTROLLER).expect("a controller").kinds[0];
    Life {
        controller: CONTROLLER,
        kind: kind.done_with(conditions::RUNNING),
        samples_of: &[],
        args: Vec::new,
        given: |_| Vec::new(),
        leaves: |name| {
            let metadata = json!({"name": format!("{name}-output")});
            vec![json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata})]
        },
        spec: |_| {
            let mut changes = fate(&[ENDLESS]);
            changes["nodes"] = json!(2);
            spec(changes)
        },
        scaled: json!({"retryLimit": 2}),
        changed: json!({"activeDeadlineSeconds": 86400}),
        edited: Edited {
            resource: ApiResource::erase::<Service>(&()),
            suffix: "-gang",
            edit: json!({"selector": {labels::NAME: "another"}}),
        },
        children: None,
        // What is known of a lost pod depends on whether it was seen before it was gone; `failures` has the reason.
        further: Vec::new(),
        needs_gateway: false,
        measured: &["startTime", "activeSince", "activeSeconds", "nextAttemptTime", "failure"],
        counted: &["trainingjob_total{phase=\"running\"} 1"],
        // Rights for the end of attempts on lost nodes.
        beyond_a_namespace: &[("", "nodes", "list"), ("", "nodes", "watch")],
        use_every_right: |scene| Box::pin(use_every_right(scene)),
        settle: |scene| Box::pin(settle(scene)),
    }
}

/// Uses the rights that the life does not: those to delete, and to read what is hidden from a watch.
async fn use_every_right(scene: &Scene<'_>) {
    create(scene, "short", json!({"ttlSecondsAfterFinished": 0})).await;
    wait_until_gone(&scene.api::<TrainingJob>(), "short", within()).await;

    install_kind(scene, &volume_snapshots()).await;
    create(scene, "saved", json!({"output": {"retention": "Snapshot"}})).await;
    until_phase(scene, "saved", Phase::Succeeded).await;
    delete_with_snapshot(scene, "saved").await;

    let mut gang = fate(&[ENDLESS]);
    gang["nodes"] = json!(2);
    create(scene, "gang", gang).await;
    until_phase(scene, "gang", Phase::Running).await;
    // Without the label no watch of the controller sees the Service.
    let unlabelled = Patch::Merge(json!({"metadata": {"labels": {labels::MANAGED_BY: null}}}));
    let services = scene.api::<Service>();
    services.patch("gang-gang", &PatchParams::default(), &unlabelled).await.expect("it is accepted");
    wait_for(&services, "gang-gang", "its label again", within(), |service: &Service| {
        service.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(labels::MANAGED_BY))
    })
    .await;
    let jobs = scene.api::<Job>();
    jobs.patch("gang-1", &PatchParams::default(), &unlabelled).await.expect("it is accepted");
    wait_for(&jobs, "gang-1", "its label again", within(), |job: &Job| {
        job.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(labels::MANAGED_BY))
    })
    .await;
    scene.api::<Job>().delete("gang-1", &DeleteParams::background()).await.expect("it can be deleted");
    let second = |job: &TrainingJob| job.status.as_ref().is_some_and(|status| status.attempts == 2);
    wait_for(&scene.api::<TrainingJob>(), "gang", "a second attempt", within(), second).await;
    until_phase(scene, "gang", Phase::Running).await;

    change(scene, "gang", json!({"suspend": true})).await;
    let gone = |all: &BTreeMap<String, Pod>| all.is_empty().then_some(());
    let of_gang = selector("gang");
    tokio::time::timeout(within(), follow(&scene.api::<Pod>(), &of_gang, gone)).await.expect("its pods end");
    change(scene, "gang", json!({"suspend": false})).await;
    until_phase(scene, "gang", Phase::Running).await;

    let pod = pods(scene, "gang").await.remove(0);
    let node = pod.spec.and_then(|spec| spec.node_name).expect("a node");
    nodes::stop_heartbeat(&scene.client(), &node).await.expect("a dead node");
    let uid = pod.metadata.uid;
    let gone = |all: &BTreeMap<String, Pod>| all.values().all(|pod| pod.metadata.uid != uid).then_some(());
    tokio::time::timeout(within(), follow(&scene.api::<Pod>(), &of_gang, gone)).await.expect("by force");
    nodes::start_heartbeat(&scene.client(), &node).await.expect("the node is back");
}

/// The kind of the snapshot controller, without its controller.
pub fn volume_snapshots() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "volumesnapshots.snapshot.storage.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter/pull/814"},
        },
        "spec": {
            "group": "snapshot.storage.k8s.io",
            "scope": "Namespaced",
            "names": {"plural": "volumesnapshots", "singular": "volumesnapshot", "kind": "VolumeSnapshot"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}},
            }],
        },
    })
}

fn snapshots(scene: &Scene<'_>) -> Api<DynamicObject> {
    let kind = ApiResource {
        group: "snapshot.storage.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "snapshot.storage.k8s.io/v1".to_owned(),
        kind: "VolumeSnapshot".to_owned(),
        plural: "volumesnapshots".to_owned(),
    };
    Api::namespaced_with(scene.client(), scene.namespace(), &kind)
}

/// Deletes a job with retention Snapshot, and plays the snapshot controller. The claim is there until the snapshot is ready.
pub async fn delete_with_snapshot(scene: &Scene<'_>, name: &str) {
    let jobs = scene.api::<TrainingJob>();
    jobs.delete(name, &DeleteParams::default()).await.expect("it can be deleted");
    let snapshots = snapshots(scene);
    // The API server prepares the storage of a new kind.
    ask_until("the kind is served", within(), async || snapshots.list(&ListParams::default()).await).await;
    let first = |all: &BTreeMap<String, DynamicObject>| all.values().next().cloned();
    let made_for = format!("{}=trainingjob,{}={name}", labels::NAME, labels::KEPT_INSTANCE);
    let snapshot = tokio::time::timeout(within(), follow(&snapshots, &made_for, first));
    let snapshot = snapshot.await.expect("a snapshot is asked for");
    let claim = scene.api::<PersistentVolumeClaim>().get(&format!("{name}-output")).await.expect("the claim");
    assert!(claim.metadata.deletion_timestamp.is_none(), "nothing is saved yet");
    assert_eq!(snapshot.data["spec"]["source"]["persistentVolumeClaimName"], json!(claim.metadata.name));
    let ready = Patch::Merge(json!({"status": {"readyToUse": true}}));
    let snapshot = snapshot.metadata.name.expect("a name");
    snapshots.patch_status(&snapshot, &PatchParams::default(), &ready).await.expect("it is accepted");
    wait_until_gone(&jobs, name, within()).await;
    wait_until_gone(&scene.api::<PersistentVolumeClaim>(), &format!("{name}-output"), within()).await;
    snapshots.get(&snapshot).await.expect("the snapshot stays");
}

/// Jobs in every state that lasts, besides one that has succeeded and one that runs.
async fn settle(scene: &Scene<'_>) {
    let mut failed = fate(&[("crash-reason", "Error")]);
    failed["retryLimit"] = json!(0);
    create(scene, "failed", failed).await;
    until_phase(scene, "failed", Phase::Failed).await;
    create(scene, "suspended", json!({"suspend": true})).await;
    create(scene, "waiting", json!({"dependsOn": ["unknown"]})).await;
    create(scene, "invalid", json!({"device": "mps", "nodes": 2})).await;
    until_reason(scene, "suspended", conditions::SUSPENDED, reasons::SUSPENDED).await;
    until_reason(scene, "waiting", conditions::DEPENDENCIES_READY, reasons::DEPENDENCY_NOT_FOUND).await;
    until_reason(scene, "invalid", conditions::ACCEPTED, reasons::INVALID_SPEC).await;
}
