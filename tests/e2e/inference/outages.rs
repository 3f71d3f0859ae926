//! A revision that cannot run costs no ready pod with any `rollout`; and with `Replace` the status announces the outage
//! first.

use std::collections::BTreeMap;

use api::{aiinference::AIInference, conditions};
use futures::future::{join_all, join3};
use k8s_openapi::{
    api::core::v1::{Pod, ResourceQuota},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::api::PostParams;
use local_cluster::{Cluster, ClusterSpec, NodePool};
use serde_json::{Value, json};
use tests::{Scene, controller, follow, fresh_name, simulated, start, tools, wait_for, within};
use tokio::sync::Notify;

use super::{change, condition, create, is_ready, pods_of, until_not_ready, until_ready, until_renewed};

/// The minimum of the API.
const SURGE_TIMEOUT_SECONDS: u32 = 30;
/// Renewals of two seconds: longer than the surge timeout.
const RENEWALS: usize = 19;

struct Case {
    rollout: &'static str,
    change: Value,
    reason: &'static str,
}

#[tokio::test]
async fn the_only_ready_pod_is_not_deleted_for_a_revision_that_cannot_run() {
    let product = json!({"gpu": {"count": 1, "productLabel": "B9000"}});
    let image = json!({"env": [{"name": "SIM_IMAGE_PULL", "value": "fail"}]});
    let claim = json!({"modelSource": "pvc://missing/qwen"});
    let more = json!({"gpu": {"count": 2}});
    let mut cases = Vec::new();
    for rollout in ["Auto", "Surge", "Replace"] {
        cases.push(Case { rollout, change: product.clone(), reason: "NoSuchProduct" });
        cases.push(Case { rollout, change: claim.clone(), reason: "ClaimNotFound" });
    }
    for rollout in ["Auto", "Surge"] {
        cases.push(Case { rollout, change: image.clone(), reason: "ImagePullFailed" });
        // The quota below allows one GPU in total.
        cases.push(Case { rollout, change: more.clone(), reason: "Unschedulable" });
    }
    // A separate cluster, so that no other test uses its GPUs.
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    cluster.start_controller(&controller("inference-controller")).await.unwrap();
    join_all(cases.into_iter().map(|case| keeps_serving(&cluster, case))).await;
}

async fn keeps_serving(cluster: &Cluster, Case { rollout, change: spec, reason }: Case) {
    let case = format!("{rollout}, {reason}");
    let scene = Scene::new(cluster).await;
    quota(&scene, 1 + u32::from(reason != "Unschedulable")).await;
    create(&scene, "chat", json!({"rollout": rollout, "surgeTimeoutSeconds": SURGE_TIMEOUT_SECONDS})).await;
    until_ready(&scene, "chat").await;
    let before = serving(&scene).await;
    assert_eq!(before.len(), 1, "{case}");
    change(&scene, "chat", spec).await;
    until_not_ready(&scene, "chat", reason).await;
    until_renewed(&scene, RENEWALS).await;
    let inference = until_not_ready(&scene, "chat", reason).await;
    assert_eq!(serving(&scene).await, before, "{case}: the ready pod was deleted");
    assert_eq!(condition(&inference, conditions::AVAILABLE).unwrap().status, "True", "{case}");
    assert_eq!(inference.status.unwrap().ready_replicas, 1, "{case}");
}

#[tokio::test]
async fn a_quota_that_the_old_pod_uses_up_leads_to_its_replacement_after_the_surge_timeout() {
    let scene = simulated().await;
    quota(&scene, 1).await;
    create(&scene, "chat", json!({"surgeTimeoutSeconds": SURGE_TIMEOUT_SECONDS})).await;
    until_ready(&scene, "chat").await;
    let before = serving(&scene).await;
    change(&scene, "chat", json!({"image": "engine:2"})).await;
    // The surge timeout comes on top of the time that a replacement takes.
    wait_for(&scene.api::<AIInference>(), "chat", "ready", 2 * within(), is_ready).await;
    assert_ne!(serving(&scene).await, before);
}

#[tokio::test]
async fn replace_announces_the_outage_before_the_pod_is_deleted() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"rollout": "Replace"})).await;
    until_ready(&scene, "chat").await;
    let before = serving(&scene).await;
    let (pod, _) = before.first_key_value().expect("a pod that serves");
    let (inferences, pods, labels) = (scene.api::<AIInference>(), scene.api::<Pod>(), pods_of("chat"));
    // The change waits for both lists: then each watch shows all that follows from it.
    let (inferences_listed, pods_listed) = (Notify::new(), Notify::new());
    let announcement = format!("pod {pod}, the only ready one, is deleted");
    let announced = Box::pin(follow(&inferences, "", |all| {
        inferences_listed.notify_one();
        let announces = |inference: &AIInference| {
            let progressing = condition(inference, conditions::PROGRESSING);
            progressing.is_some_and(|progressing| progressing.message.contains(&announcement))
        };
        all.values().find(|inference| announces(inference)).cloned()
    }));
    let deleted = Box::pin(follow(&pods, &labels, |all| {
        pods_listed.notify_one();
        let is_deleted = |other: &Pod| {
            other.metadata.name.as_ref() == Some(pod) && other.metadata.deletion_timestamp.is_some()
        };
        all.values().find(|other| is_deleted(other)).cloned()
    }));
    let changed = Box::pin(async {
        inferences_listed.notified().await;
        pods_listed.notified().await;
        change(&scene, "chat", json!({"env": [{"name": "SIM_IMAGE_PULL", "value": "fail"}]})).await
    });
    let all = tokio::time::timeout(within(), join3(announced, deleted, changed)).await;
    let (announced, deleted, _) = all.expect("an announcement and a deletion in time");
    // etcd counts the versions of all objects together.
    let version = |meta: &ObjectMeta| meta.resource_version.as_ref().unwrap().parse::<u64>().unwrap();
    let (first, second) = (version(&announced.metadata), version(&deleted.metadata));
    assert!(first < second, "announced in version {first}, deleted in version {second}");
    let announced_generation = condition(&announced, conditions::PROGRESSING).unwrap().observed_generation;
    assert_eq!(announced_generation, announced.metadata.generation);
    assert_eq!(announced.status.unwrap().ready_replicas, 1);
}

/// The uids of ready pods that are not being deleted, by name.
async fn serving(scene: &Scene<'_>) -> BTreeMap<String, String> {
    let pods =
        scene.api::<Pod>().list(&kube::api::ListParams::default().labels(&pods_of("chat"))).await.unwrap();
    let serves = |pod: &Pod| pod.metadata.deletion_timestamp.is_none() && tests::is_ready(pod);
    let named = |pod: &Pod| Some((pod.metadata.name.clone()?, pod.metadata.uid.clone()?));
    pods.iter().filter(|pod| serves(pod)).filter_map(named).collect()
}

async fn quota(scene: &Scene<'_>, gpus: u32) {
    let quota: ResourceQuota = serde_json::from_value(json!({
        "metadata": {"name": "gpus"},
        "spec": {"hard": {"requests.nvidia.com/gpu": gpus.to_string()}},
    }))
    .unwrap();
    scene.api().create(&PostParams::default(), &quota).await.unwrap();
    wait_for(&scene.api::<ResourceQuota>(), "gpus", "it counts", within(), |quota| {
        quota.status.as_ref().is_some_and(|status| status.used.is_some())
    })
    .await;
}
