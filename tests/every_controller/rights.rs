//! The roles of a controller are minimal and complete: unused rules and denied requests fail the tests.

use std::collections::BTreeSet;

use api::controllers::{CONTROLLERS, Controller};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::Api;
use local_cluster::audit::Event;
use serde_json::json;
use tests::{Scene, lives::life_of};

use crate::{
    Right, cluster_of, for_every_controller,
    overlays::{built, deploy},
    rights, user,
};

#[tokio::test]
async fn every_right_is_used_and_none_is_missing() {
    for_every_controller(async |controller| {
        let cluster = cluster_of(controller).await;
        let scene = Scene::new(&cluster).await;
        let life = life_of(controller);
        life.play(&scene, "life").await;
        (life.use_every_right)(&scene).await;

        let user = user(controller, "ai-system");
        let events = cluster.audit_events().unwrap();
        let events: Vec<&Event> = events.iter().filter(|event| event.user == user).collect();
        let denied: Vec<&&Event> = events.iter().filter(|event| event.code == Some(403)).collect();
        assert!(denied.is_empty(), "{denied:#?}");
        let requested = events.iter().flat_map(|event| rights_of(event));
        let used: BTreeSet<Right> = requested.chain(checked_by_admission(controller)).collect();
        let granted = granted(controller, &scene).await;
        let unused: Vec<&Right> = granted.difference(&used).collect();
        assert!(unused.is_empty(), "rules that nothing needs: {unused:#?}");
        let unexplained: Vec<&Right> = used.difference(&granted).collect();
        assert!(unexplained.is_empty(), "used, but granted elsewhere: {unexplained:#?}");
    })
    .await;
}

#[tokio::test]
async fn a_child_that_blocks_the_deletion_of_its_owner_needs_the_right_to_the_owners_finalizers() {
    let cluster = cluster_of(&CONTROLLERS[0]).await;
    let scene = Scene::new(&cluster).await;
    let life = life_of(&CONTROLLERS[0]);
    let owner = life.create(&scene, "owner").await;
    let kind = life.kind.resource();
    scene.kubectl(&["create", "role", "children", "--verb=create,get", "--resource=configmaps"]);
    let account = format!("{}:children", scene.namespace());
    scene.kubectl(&["create", "rolebinding", "children", "--role=children", "--serviceaccount", &account]);
    let child = |blocks: bool| {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"generateName": "child-", "ownerReferences": [{
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                "name": "owner",
                "uid": owner.metadata.uid,
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

/// The right to read logs is in a separate role, which administrators may omit.
#[tokio::test]
async fn logs_are_a_right_of_their_own() {
    let kubectl = crate::confined::scene().await.cluster().kubectl();
    for_every_controller(async |controller| {
        for folder in ["base", "overlays/namespaced"] {
            let roles = built(&kubectl, &deploy(controller).join(folder)).into_iter().filter(|object| {
                object.types.as_ref().is_some_and(|types| ["ClusterRole", "Role"].contains(&&*types.kind))
            });
            for role in roles {
                let name = role.metadata.name.clone().unwrap();
                let rules: Vec<PolicyRule> = serde_json::from_value(role.data["rules"].clone()).unwrap();
                let rights = rights(&rules);
                let is_for_logs = rights.iter().any(|(_, resource, _)| resource == "pods/log");
                assert_eq!(is_for_logs, name == logs_role(controller), "{folder}: {name}");
                assert!(!is_for_logs || rights.len() == 1, "{folder}: {rights:?}");
            }
        }
    })
    .await;
}

/// The role of a controller that reads logs.
pub(super) fn logs_role(controller: &Controller) -> String {
    format!("{}-logs", controller.name)
}

/// Rights that admission plugins check. They are not in the audit log.
///
/// OwnerReferencesPermissionEnforcement: the writer of an owner reference with `blockOwnerDeletion` must be allowed to
/// update the finalizers of that owner. Without the right, no child is created.
fn checked_by_admission(controller: &Controller) -> impl Iterator<Item = Right> {
    controller.kinds.iter().map(|kind| {
        let kind = kind.resource();
        (kind.group, format!("{}/finalizers", kind.plural), "update".to_owned())
    })
}

/// The rights of a request. A server-side apply that creates the object needs both patch and create.
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

async fn granted(controller: &Controller, scene: &Scene<'_>) -> BTreeSet<Right> {
    let roles = scene.cluster_api::<ClusterRole>();
    let everywhere = roles.get(controller.name).await.unwrap();
    let logs = roles.get_opt(&logs_role(controller)).await.unwrap().and_then(|role| role.rules);
    let own: Api<Role> = Api::namespaced(scene.client(), "ai-system");
    let own = own.get(controller.name).await.unwrap();
    rights(everywhere.rules.iter().chain(&own.rules).chain(&logs).flatten())
}
