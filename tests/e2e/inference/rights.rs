//! The controller's roles are what it needs: an unused rule fails this, and so does a request that was denied.

use std::collections::BTreeSet;

use api::aiinference::AIInference;
use k8s_openapi::api::{
    core::v1::Service,
    policy::v1::PodDisruptionBudget,
    rbac::v1::{ClusterRole, PolicyRule, Role},
};
use kube::{Api, api::DeleteParams};
use local_cluster::{ClusterSpec, NodePool, audit::Event};
use serde_json::json;
use tests::{Scene, controller, fresh_name, simulated, start, tools, wait_for, wait_until_gone, within};

use super::{change, create, nodes::lose_a_node_under, until_not_ready, until_ready};

const USER: &str = "system:serviceaccount:ai-system:inference-controller";

/// What admission plugins ask the authorizer for. No request of the controller shows it, so the audit log does not have
/// it.
///
/// OwnerReferencesPermissionEnforcement: the writer of an owner reference with `blockOwnerDeletion` must be allowed to
/// update the finalizers of that owner.
const ASKED_BY_ADMISSION: [(&str, &str, &str); 1] =
    [("ai.infra.example.com", "aiinferences/finalizers", "update")];

/// Group, resource with subresource, verb.
pub(super) type Right = (String, String, String);

#[tokio::test]
async fn every_right_is_used_and_none_is_missing() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    cluster.start_controller(&controller("inference-controller")).await.unwrap();
    let scene = Scene::new(&cluster).await;
    walk_through_a_life(&scene).await;

    let events: Vec<Event> =
        cluster.audit_events().unwrap().into_iter().filter(|event| event.user == USER).collect();
    let denied: Vec<&Event> = events.iter().filter(|event| event.code == Some(403)).collect();
    assert!(denied.is_empty(), "{denied:#?}");
    let asked =
        ASKED_BY_ADMISSION.map(|(group, resource, verb)| (group.into(), resource.into(), verb.into()));
    let used: BTreeSet<Right> = events.iter().flat_map(rights_of).chain(asked).collect();
    let granted = granted(&scene).await;
    let unused: Vec<&Right> = granted.difference(&used).collect();
    assert!(unused.is_empty(), "rules that nothing needs: {unused:#?}");
    let unexplained: Vec<&Right> = used.difference(&granted).collect();
    assert!(unexplained.is_empty(), "used, but granted elsewhere: {unexplained:#?}");
}

#[tokio::test]
async fn a_child_is_refused_to_whom_the_finalizers_of_its_owner_are() {
    let scene = simulated().await;
    let model = create(&scene, "chat", json!({})).await;
    scene.kubectl(&["create", "role", "children", "--verb=create,get", "--resource=configmaps"]);
    let account = format!("{}:children", scene.namespace());
    scene.kubectl(&["create", "rolebinding", "children", "--role=children", "--serviceaccount", &account]);
    let child = |blocks: bool| {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"generateName": "child-", "ownerReferences": [{
                "apiVersion": "ai.infra.example.com/v1alpha1",
                "kind": "AIInference",
                "name": "chat",
                "uid": model.metadata.uid,
                "blockOwnerDeletion": blocks,
            }]},
        })
        .to_string()
    };
    let user = format!("--as=system:serviceaccount:{account}");
    let create = |child: &str| scene.kubectl_with_input(&[&user, "create", "-f", "-"], child);
    assert!(create(&child(false)).status.success());
    let refused = create(&child(true));
    let reason = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && reason.contains("cannot set blockOwnerDeletion"), "{reason}");
}

/// Everything that makes the controller send a request of another kind.
async fn walk_through_a_life(scene: &Scene<'_>) {
    // A name that is taken makes it look at the object that has it.
    let meta = |name: &str| json!({"name": name, "namespace": scene.namespace()});
    for (name, foreign) in [
        (
            "config-map",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("config-map-model")}),
        ),
        (
            "deployment",
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta("deployment"), "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": "theirs"}},
                "template": {
                    "metadata": {"labels": {"app": "theirs"}},
                    "spec": {"containers": [{"name": "theirs", "image": "theirs:1"}]},
                },
            }}),
        ),
        (
            "service",
            json!({"apiVersion": "v1", "kind": "Service", "metadata": meta("service"), "spec": {"ports": [{"port": 1}]}}),
        ),
        (
            "budget",
            json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta("budget"),
                "spec": {"maxUnavailable": 1}}),
        ),
    ] {
        scene.apply(&foreign.to_string()).await.unwrap();
        create(scene, name, json!({"replicas": 2})).await;
        until_not_ready(scene, name, "OwnershipConflict").await;
    }
    create(scene, "chat", json!({"replicas": 2, "nodeFailureSeconds": 0})).await;
    until_ready(scene, "chat").await;
    // Before it is created again, its owner is read.
    let services = scene.api::<Service>();
    let service = services.get("chat").await.unwrap().metadata.uid;
    services.delete("chat", &DeleteParams::default()).await.unwrap();
    wait_for(&services, "chat", "made anew", within(), |new: &Service| new.metadata.uid != service).await;
    lose_a_node_under(scene, "chat").await;
    change(scene, "chat", json!({"replicas": 1})).await;
    wait_until_gone(&scene.api::<PodDisruptionBudget>(), "chat", within()).await;
    scene.api::<AIInference>().delete("chat", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&scene.api::<AIInference>(), "chat", within()).await;
}

/// What a request needs. A server-side apply that makes the object needs both patch and create.
fn rights_of(event: &Event) -> Vec<Right> {
    if event.resource.is_empty() {
        return Vec::new();
    }
    let resource = match event.subresource.as_str() {
        "" => event.resource.clone(),
        subresource => format!("{}/{subresource}", event.resource),
    };
    let right = |verb: &str| (event.group.clone(), resource.clone(), verb.to_owned());
    match (event.verb.as_str(), event.code) {
        ("patch", Some(201)) => vec![right("patch"), right("create")],
        (verb, _) => vec![right(verb)],
    }
}

async fn granted(scene: &Scene<'_>) -> BTreeSet<Right> {
    let name = "inference-controller";
    let everywhere = scene.cluster_api::<ClusterRole>().get(name).await.unwrap();
    let own: Api<Role> = Api::namespaced(scene.client(), "ai-system");
    let own = own.get(name).await.unwrap();
    let rules = everywhere.rules.into_iter().chain(own.rules).flatten();
    rules.flat_map(|rule| expanded(&rule)).collect()
}

pub(super) fn expanded(rule: &PolicyRule) -> Vec<Right> {
    let mut rights = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            for verb in &rule.verbs {
                rights.push((group.clone(), resource.clone(), verb.clone()));
            }
        }
    }
    rights
}
