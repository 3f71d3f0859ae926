//! The roles of a controller are minimal and complete: unused rules and denied requests fail the tests.

use std::collections::BTreeSet;

use api::controllers::{CONTROLLERS, Controller};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::Api;
use local_cluster::{NodeClock, api_server::audit::Event};
use serde_json::json;
use tests::{Scene, ask_until, simulated, table::life_of, within};

use crate::{
    Right, cluster_with, for_every_controller,
    overlays::{built, deploy},
    rights, user,
};

#[tokio::test]
async fn every_right_is_used_and_none_is_missing() {
    for_every_controller(async |controller| {
        // One of the rights is used only when a node is lost.
        let cluster = cluster_with(controller, NodeClock::SHORT).await;
        let scene = Scene::new(&cluster).await;
        let life = life_of(controller);
        life.play(&scene, "life").await;
        (life.use_every_right)(&scene).await;

        let user = user(controller, "ai-system");
        let granted = granted(controller, &scene).await;
        // The last requests, such as the report of an event, may be on their way when the script ends.
        let (events, used) = ask_until("a use of every rule", within(), async || {
            let mut events = cluster.audit_events().unwrap();
            events.retain(|event| event.user == user);
            let requested = events.iter().flat_map(rights_of);
            let used: BTreeSet<Right> = requested.chain(checked_by_admission(controller)).collect();
            let unused: Vec<&Right> = granted.difference(&used).collect();
            if unused.is_empty() {
                return Ok((events, used));
            }
            Err(format!("rules that nothing needs: {unused:#?}"))
        })
        .await;
        let denied: Vec<&Event> = events.iter().filter(|event| event.code == Some(403)).collect();
        assert!(denied.is_empty(), "{denied:#?}");
        let unexplained: Vec<&Right> = used.difference(&granted).collect();
        assert!(unexplained.is_empty(), "used, but granted elsewhere: {unexplained:#?}");
    })
    .await;
}

#[tokio::test]
async fn a_child_that_blocks_the_deletion_of_its_owner_needs_the_right_to_the_owners_finalizers() {
    let scene = simulated().await;
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

/// The rights to read logs and Secrets are in separate roles, which administrators may omit.
#[tokio::test]
async fn logs_and_secrets_are_rights_of_their_own() {
    let kubectl = crate::confined::scene().await.cluster().kubectl();
    for_every_controller(async |controller| {
        for folder in ["base", "overlays/namespaced"] {
            let roles = built(&kubectl, &deploy(controller).join(folder)).into_iter().filter(|object| {
                object.types.as_ref().is_some_and(|types| ["ClusterRole", "Role"].contains(&&*types.kind))
            });
            for role in roles {
                let name = role.metadata.name.clone().unwrap();
                // Of a role that is aggregated from others there are none.
                let rules: Vec<PolicyRule> =
                    serde_json::from_value(role.data["rules"].clone()).unwrap_or_default();
                let rights = rights(&rules);
                for (resource, role) in ["pods/log", "secrets"].into_iter().zip(roles_apart(controller)) {
                    let has_it = rights.iter().any(|(_, found, _)| found == resource);
                    assert_eq!(has_it, name == role, "{folder}: {name}");
                    assert!(!has_it || rights.len() == 1, "{folder}: {rights:?}");
                }
            }
        }
    })
    .await;
}

/// The roles of a controller that read logs and Secrets.
pub(super) fn roles_apart(controller: &Controller) -> [String; 2] {
    ["logs", "secrets"].map(|what| format!("{}-{what}", controller.name))
}

/// Rights that admission plugins check. They are not in the audit log.
///
/// OwnerReferencesPermissionEnforcement, for controllers with children: the writer of an owner reference with `blockOwnerDeletion` must be allowed to
/// update the finalizers of that owner. Without the right, no child is created.
fn checked_by_admission(controller: &Controller) -> impl Iterator<Item = Right> {
    let kinds = controller.kinds.iter().filter(|_| !controller.children.is_empty());
    kinds.map(|kind| {
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
    let mut apart = Vec::new();
    for name in roles_apart(controller) {
        apart.extend(roles.get_opt(&name).await.unwrap().and_then(|role| role.rules).unwrap_or_default());
    }
    let own: Api<Role> = Api::namespaced(scene.client(), "ai-system");
    let own = own.get(controller.name).await.unwrap();
    rights(everywhere.rules.iter().chain(&own.rules).flatten().chain(&apart))
}
