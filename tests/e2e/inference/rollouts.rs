//! Rollouts keep the documented number of ready pods, and leave no pods of other ReplicaSets behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
};

use api::aiinference::AIInference;
use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
use kube::{ResourceExt, api::ListParams};
use serde_json::{Value, json};
use tests::{Scene, follow, simulated, wait_for, within};

use super::{change, condition, create, is_ready, pods_of, until_ready};

const REPLICAS: usize = 2;

#[tokio::test]
async fn surge_never_has_fewer_ready_pods_than_replicas() {
    every_change_keeps("Surge", REPLICAS).await;
}

#[tokio::test]
async fn replace_has_at_most_one_ready_pod_fewer_than_replicas() {
    every_change_keeps("Replace", REPLICAS - 1).await;
}

/// The Deployment controller counts ready pods by the status of ReplicaSets, which is late: if a rollout is reverted just
/// when a pod becomes ready or ends, one pod too few may be ready. So changes are reverted earlier, also on a busy machine.
const READY_AFTER: &str = "5s";

/// Applies each change, reverts it during the rollout, and applies it again.
async fn every_change_keeps(rollout: &str, floor: usize) {
    let scene = simulated().await;
    let first = json!({
        "rollout": rollout,
        "replicas": REPLICAS,
        "image": "engine:1",
        "args": ["--max-model-len", "1024"],
        "podAnnotations": {"sim.ai.infra.example.com/ready-delay": READY_AFTER},
    });
    create(&scene, "chat", first).await;
    until_ready(&scene, "chat").await;
    let changes = [
        ("image", json!("engine:1"), json!("engine:2")),
        ("args", json!(["--max-model-len", "1024"]), json!(["--max-model-len", "2048"])),
        ("engine", json!("vllm"), json!("tgi")),
        ("modelSource", json!("s3://models/qwen"), json!("s3://models/llama")),
        ("replicas", json!(REPLICAS), json!(REPLICAS + 1)),
    ];
    for (field, old, new) in changes {
        let seen = watched(&scene, async {
            midway(&scene, field, &new).await;
            settled(&scene, field, &old).await;
            settled(&scene, field, &new).await;
        })
        .await;
        assert!(seen.fewest_ready >= floor, "{field}: {} were ready, not {floor}", seen.fewest_ready);
        assert!(seen.pods.len() > REPLICAS, "{field}: nothing was replaced or added");
        for pod in seen.pods.values() {
            let selecting: Vec<_> =
                seen.replica_sets.iter().filter(|(_, selector)| selects(selector, pod)).collect();
            assert_eq!(selecting.len(), 1, "{field}: {:?} is selected by {selecting:?}", pod.labels);
            assert_eq!(Some(selecting[0].0), pod.owner.as_ref(), "{field}");
        }
    }
}

/// Applies a change and returns as soon as it has created a pod.
async fn midway(scene: &Scene<'_>, field: &str, value: &Value) {
    let (pods, labels) = (scene.api::<Pod>(), pods_of("chat"));
    // Listed before the change: a watch that is opened beside it may show the pod of the change in its first list.
    let list = pods.list(&ListParams::default().labels(&labels)).await.expect("the pods before the change");
    let before: BTreeSet<String> = list.iter().filter_map(ResourceExt::uid).collect();
    change(scene, "chat", json!({field: value})).await;
    let a_new_one = follow(&pods, &labels, |all| all.keys().any(|uid| !before.contains(uid)).then_some(()));
    let a_new_one = tokio::time::timeout(within(), a_new_one).await;
    a_new_one.unwrap_or_else(|_| panic!("{field}: no new pod"));
}

/// Applies a change and waits for its completion: the desired number of pods, all of one ReplicaSet.
async fn settled(scene: &Scene<'_>, field: &str, value: &Value) {
    change(scene, "chat", json!({field: value})).await;
    let inference =
        wait_for(&scene.api::<AIInference>(), "chat", "complete", within(), |inference: &AIInference| {
            let progressing = condition(inference, "Progressing");
            is_ready(inference) && progressing.is_some_and(|condition| condition.reason == "Complete")
        })
        .await;
    let (replica_sets, labels) = (scene.api::<ReplicaSet>(), pods_of("chat"));
    let one_is_left = follow(&replica_sets, &labels, |all| {
        let filled: Vec<i32> = all
            .values()
            .flat_map(|one| {
                [
                    one.spec.as_ref().and_then(|spec| spec.replicas),
                    one.status.as_ref().map(|status| status.replicas),
                ]
            })
            .flatten()
            .filter(|replicas| *replicas > 0)
            .collect();
        // Desired and actual number.
        (filled == [inference.spec.replicas, inference.spec.replicas]).then_some(())
    });
    tokio::time::timeout(within(), one_is_left).await.expect("old ReplicaSets that are empty");
}

/// The observed pods and ReplicaSets of a model.
struct Seen {
    fewest_ready: usize,
    /// By uid, like the selectors of ReplicaSets.
    pods: BTreeMap<String, SeenPod>,
    replica_sets: BTreeMap<String, Labels>,
}

type Labels = BTreeMap<String, String>;

struct SeenPod {
    labels: Labels,
    /// Uid of its ReplicaSet.
    owner: Option<String>,
}

fn watched(scene: &Scene<'_>, act: impl Future<Output = ()>) -> impl Future<Output = Seen> {
    let labels = pods_of("chat");
    // Three requests at once make a large future.
    Box::pin(async move {
        let (mut fewest_ready, mut pods, mut replica_sets) = (usize::MAX, BTreeMap::new(), BTreeMap::new());
        let (pod_api, replica_set_api) = (scene.api::<Pod>(), scene.api::<ReplicaSet>());
        let counting = follow(&pod_api, &labels, |all| {
            fewest_ready = fewest_ready.min(all.values().filter(|pod| is_serving(pod)).count());
            pods.extend(all.iter().map(|(uid, pod)| {
                let owner = pod.owner_references().first().map(|owner| owner.uid.clone());
                (uid.clone(), SeenPod { labels: pod.labels().clone(), owner })
            }));
            None::<Infallible>
        });
        let selecting = follow(&replica_set_api, &labels, |all| {
            replica_sets.extend(all.iter().map(|(uid, one)| {
                let selector = one.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone());
                (uid.clone(), selector.unwrap_or_default())
            }));
            None::<Infallible>
        });
        tokio::select! {
            biased;
            never = counting => match never {},
            never = selecting => match never {},
            () = act => {}
        }
        Seen { fewest_ready, pods, replica_sets }
    })
}

/// Ready and not being deleted.
fn is_serving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && tests::is_ready(pod)
}

fn selects(selector: &Labels, pod: &SeenPod) -> bool {
    selector.iter().all(|(key, value)| pod.labels.get(key) == Some(value))
}
