//! Create, change, delete.

use std::{collections::BTreeSet, fmt::Debug};

use api::{aiinference::AIInference, conditions};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::{Deployment, ReplicaSet},
        core::v1::{ConfigMap, Pod, Service},
        policy::v1::PodDisruptionBudget,
    },
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tests::{Scene, follow, simulated, wait_for, wait_until_gone, within};

use super::{change, condition, create, is_ready, until_not_ready, until_ready};

/// Maximum time from the response to the deletion until the creation of the new object.
const RECREATED_WITHIN: SignedDuration = SignedDuration::from_millis(300);
/// Rounds that must be as fast as that, and the rounds in which a busy machine must achieve it.
const ROUNDS_AT_ONCE: u32 = 5;
const MOST_ROUNDS: u32 = 40;

#[tokio::test]
async fn a_new_inference_becomes_ready_with_children_and_a_url() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"gpu": {"count": 1, "productLabel": "A100"}, "replicas": 2})).await;
    let inference = until_ready(&scene, "chat").await;
    let status = inference.status.as_ref().unwrap();
    assert_eq!(status.url, Some(format!("http://chat.{}.svc:8000", scene.namespace())));
    assert_eq!((status.replicas, status.ready_replicas, status.model_loaded), (2, 2, true));
    let cold_start = status.last_cold_start.as_ref().unwrap();
    assert!(u64::try_from(cold_start.seconds).unwrap() <= within().as_secs(), "{cold_start:?}");

    let uid = inference.metadata.uid.as_ref().unwrap();
    assert!(is_owned(&scene.api::<ConfigMap>().get("chat-model").await.unwrap(), uid));
    assert!(is_owned(&scene.api::<Deployment>().get("chat").await.unwrap(), uid));
    assert!(is_owned(&scene.api::<Service>().get("chat").await.unwrap(), uid));
    assert!(is_owned(&scene.api::<PodDisruptionBudget>().get("chat").await.unwrap(), uid));
    let pods =
        scene.api::<Pod>().list(&ListParams::default().labels(status.selector.as_ref().unwrap())).await;
    for pod in pods.unwrap() {
        let node = pod.spec.unwrap().node_name.unwrap();
        assert!(["gpu-0", "gpu-2"].contains(&node.as_str()), "{node} has no A100");
    }
}

#[tokio::test]
async fn its_pods_pass_pod_security_restricted() {
    let shared = simulated().await;
    let scene = Scene::restricted(&shared).await;
    create(&scene, "chat", json!({})).await;
    until_ready(&scene, "chat").await;
}

#[tokio::test]
async fn pods_that_pod_security_refuses_are_reported() {
    let shared = simulated().await;
    let scene = Scene::restricted(&shared).await;
    create(&scene, "chat", json!({"securityContext": {"runAsUser": 0}})).await;
    let inference = until_not_ready(&scene, "chat", "Unschedulable").await;
    let message = &condition(&inference, conditions::READY).unwrap().message;
    assert!(message.contains("violates PodSecurity"), "{message}");
}

#[tokio::test]
async fn what_kubectl_shows_comes_from_the_status() {
    let scene = simulated().await;
    create(&scene, "chat", json!({})).await;
    until_ready(&scene, "chat").await;
    let shown = scene.kubectl(&["get", "aii", "chat", "--no-headers", "-o", "wide"]);
    let columns: Vec<&str> = shown.split_whitespace().collect();
    assert_eq!(columns[..5], ["chat", "Ready", "1", "1", "vllm"], "{shown}");
    assert!(shown.contains("s3://models/qwen") && shown.contains(":8000"), "{shown}");
    scene.kubectl(&["wait", "--for=condition=Ready", "aii/chat", "--timeout=30s"]);
}

#[tokio::test]
async fn a_new_image_replaces_the_pods_and_leaves_the_old_replica_set_empty() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"image": "engine:1", "replicas": 2})).await;
    until_ready(&scene, "chat").await;
    let old = replica_set(&scene, "engine:1").await;

    change(&scene, "chat", json!({"image": "engine:2"})).await;
    let inference = until_ready(&scene, "chat").await;
    assert_eq!(inference.status.unwrap().resolved.unwrap().image, "engine:2");
    wait_for(&scene.api::<ReplicaSet>(), &old, "empty", within(), |replica_set: &ReplicaSet| {
        replica_set.status.as_ref().is_some_and(|status| status.replicas == 0)
    })
    .await;
    wait_for(&scene.api::<AIInference>(), "chat", "complete", within(), |inference| {
        condition(inference, conditions::PROGRESSING)
            .is_some_and(|progressing| progressing.reason == "Complete")
    })
    .await;
}

#[tokio::test]
async fn a_change_that_is_reverted_during_the_rollout_ends_with_the_first_revision() {
    let scene = simulated().await;
    let slow = json!([{"name": "SIM_READY_DELAY", "value": "20s"}]);
    create(&scene, "chat", json!({"image": "engine:1"})).await;
    until_ready(&scene, "chat").await;
    let first = replica_set(&scene, "engine:1").await;
    change(&scene, "chat", json!({"image": "engine:2", "env": slow})).await;
    until_not_ready(&scene, "chat", "Loading").await;
    change(&scene, "chat", json!({"image": "engine:1", "env": null})).await;
    until_ready(&scene, "chat").await;
    let replica_set = scene.api::<ReplicaSet>().get(&first).await.unwrap();
    assert_eq!(replica_set.status.unwrap().ready_replicas, Some(1));
}

#[tokio::test]
async fn deletion_leaves_no_objects_behind() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"replicas": 2})).await;
    let inference = until_ready(&scene, "chat").await;
    let selector = inference.status.unwrap().selector.unwrap();
    let pods = scene.api::<Pod>().list(&ListParams::default().labels(&selector)).await.unwrap();

    scene.api::<AIInference>().delete("chat", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&scene.api::<AIInference>(), "chat", within()).await;
    wait_until_gone(&scene.api::<ConfigMap>(), "chat-model", within()).await;
    wait_until_gone(&scene.api::<Deployment>(), "chat", within()).await;
    wait_until_gone(&scene.api::<Service>(), "chat", within()).await;
    wait_until_gone(&scene.api::<PodDisruptionBudget>(), "chat", within()).await;
    for pod in pods {
        wait_until_gone(&scene.api::<Pod>(), pod.metadata.name.as_deref().unwrap(), within()).await;
    }
}

#[tokio::test]
async fn an_object_that_is_deleted_and_created_again_at_once_gets_its_own_children() {
    let scene = simulated().await;
    let inferences: Api<AIInference> = scene.api();
    let spec = json!({"replicas": 2});
    let mut old = create(&scene, "chat", spec.clone()).await;
    let mut at_once = 0;
    for round in 1..=MOST_ROUNDS {
        until_ready(&scene, "chat").await;
        let left = uids_below(&scene, &old).await;
        assert!(left.len() > 2 + 4, "two pods, four children and a ReplicaSet: {left:?}");
        inferences.delete("chat", &DeleteParams::default()).await.unwrap();
        let deleted = Timestamp::now();
        let new = create(&scene, "chat", spec.clone()).await;
        assert_ne!(new.metadata.uid, old.metadata.uid);
        let late = received_last(&scene, "create", "chat").duration_since(deleted);
        at_once += u32::from(late <= RECREATED_WITHIN);

        // The garbage collector pauses while another test installs a kind.
        wait_for(
            &inferences,
            "chat",
            "ready and never in conflict",
            2 * within(),
            |inference: &AIInference| {
                let ready = condition(inference, conditions::READY);
                assert_ne!(
                    ready.map(|ready| ready.reason.as_str()),
                    Some("OwnershipConflict"),
                    "round {round}"
                );
                is_ready(inference)
            },
        )
        .await;
        let uid = new.metadata.uid.as_ref().unwrap();
        assert!(is_owned(&scene.api::<ConfigMap>().get("chat-model").await.unwrap(), uid));
        assert!(is_owned(&scene.api::<Deployment>().get("chat").await.unwrap(), uid));
        assert!(is_owned(&scene.api::<Service>().get("chat").await.unwrap(), uid));
        assert!(is_owned(&scene.api::<PodDisruptionBudget>().get("chat").await.unwrap(), uid));
        until_gone::<Pod>(&scene, &left).await;
        until_gone::<ReplicaSet>(&scene, &left).await;
        if at_once == ROUNDS_AT_ONCE {
            return;
        }
        // On a busy machine the requests may be further apart; such a round does not count.
        old = new;
    }
    panic!("only {at_once} of {MOST_ROUNDS} times it was created within {RECREATED_WITHIN:?}");
}

#[tokio::test]
async fn a_name_that_is_invalid_for_a_service_is_replaced_in_the_url() {
    let scene = simulated().await;
    create(&scene, "qwen2.5-chat", json!({})).await;
    let url = until_ready(&scene, "qwen2.5-chat").await.status.unwrap().url.unwrap();
    let service = url.trim_start_matches("http://").split('.').next().unwrap();
    assert!(service.starts_with("qwen2-5-chat-"), "{service}");
    scene.api::<Service>().get(service).await.unwrap();
}

/// The uids of all descendants of an object, down to the third generation.
async fn uids_below(scene: &Scene<'_>, inference: &AIInference) -> BTreeSet<String> {
    let mut all = uids_and_owners::<ConfigMap>(scene).await;
    all.extend(uids_and_owners::<Deployment>(scene).await);
    all.extend(uids_and_owners::<Service>(scene).await);
    all.extend(uids_and_owners::<PodDisruptionBudget>(scene).await);
    all.extend(uids_and_owners::<ReplicaSet>(scene).await);
    all.extend(uids_and_owners::<Pod>(scene).await);
    let mut below = BTreeSet::from([inference.uid().unwrap()]);
    // Owners first.
    for (uid, owners) in all {
        if owners.iter().any(|owner| below.contains(owner)) {
            below.insert(uid);
        }
    }
    below.remove(&inference.uid().unwrap());
    below
}

async fn uids_and_owners<K>(scene: &Scene<'_>) -> Vec<(String, Vec<String>)>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let all = scene.api::<K>().list(&ListParams::default()).await.unwrap();
    let owners = |object: &K| object.owner_references().iter().map(|owner| owner.uid.clone()).collect();
    all.iter().map(|object| (object.uid().unwrap(), owners(object))).collect()
}

async fn until_gone<K>(scene: &Scene<'_>, uids: &BTreeSet<String>)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api = scene.api::<K>();
    let gone = follow(&api, "", |all| (!all.keys().any(|uid| uids.contains(uid))).then_some(()));
    tokio::time::timeout(within(), gone).await.expect("nothing that is left of the old object");
}

/// When the API server received the last request of this kind in this namespace, by the machine's clock.
fn received_last(scene: &Scene<'_>, verb: &str, name: &str) -> Timestamp {
    let events = scene.audit_events().unwrap();
    let mut newest_first = events.iter().rev();
    let found = newest_first.find(|event| {
        (event.verb.as_str(), event.name.as_str()) == (verb, name)
            && event.resource == "aiinferences"
            && event.namespace == scene.namespace()
    });
    found.expect("the request in the audit log").received.parse().unwrap()
}

fn is_owned<K: Resource>(child: &K, uid: &str) -> bool {
    let owners = child.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().any(|owner| owner.uid == uid && owner.controller == Some(true))
}

/// Name of the ReplicaSet whose pods run this image.
async fn replica_set(scene: &Scene<'_>, image: &str) -> String {
    let all = scene.api::<ReplicaSet>().list(&ListParams::default()).await.unwrap();
    let found = all.into_iter().find(|replica_set| {
        let pod = replica_set.spec.as_ref().and_then(|spec| spec.template.as_ref()?.spec.as_ref());
        pod.is_some_and(|pod| pod.containers.iter().any(|c| c.image.as_deref() == Some(image)))
    });
    found.expect("a ReplicaSet with that image").metadata.name.unwrap()
}
