//! A controller of one namespace, under Roles alone.

use std::{collections::BTreeSet, fs, path::PathBuf};

use api::aiinference::AIInference;
use k8s_openapi::api::{
    core::v1::ConfigMap,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role},
};
use kube::{
    Resource,
    api::{DynamicObject, ListParams},
};
use local_cluster::{Cluster, ClusterSpec, NodePool};
use serde_json::json;
use tempfile::TempDir;
use tests::{Scene, controller, fresh_name, start, tools};
use tokio::sync::OnceCell;

use super::{
    change, create,
    overlays::{built, copy_folder, deploy},
    rights::{Right, expanded},
    until_ready,
};

#[tokio::test]
async fn a_controller_of_one_namespace_serves_it_under_roles_alone_and_no_other() {
    let (scene, other) = (scene().await, scene().await);
    create(&other, "chat", json!({})).await;
    start_controller(&scene, &[]).await;
    create(&scene, "chat", json!({"image": "engine:1", "replicas": 2})).await;
    until_ready(&scene, "chat").await;
    change(&scene, "chat", json!({"image": "engine:2", "replicas": 1})).await;
    until_ready(&scene, "chat").await;

    let bindings = scene.cluster_api::<ClusterRoleBinding>().list(&ListParams::default()).await.unwrap();
    let subjects = bindings.into_iter().flat_map(|binding| binding.subjects.unwrap_or_default());
    assert!(!subjects.into_iter().any(|subject| subject.namespace.as_deref() == Some(scene.namespace())));
    let user = format!("system:serviceaccount:{}:inference-controller", scene.namespace());
    let events = scene.audit_events().unwrap();
    let ours: Vec<_> = events.iter().filter(|event| event.user == user).collect();
    assert!(!ours.is_empty() && ours.iter().all(|event| event.code != Some(403)), "{ours:#?}");
    assert_eq!(other.api::<AIInference>().get("chat").await.unwrap().status, None);
    assert_eq!(other.api::<ConfigMap>().get_opt("chat-model").await.unwrap(), None);
}

#[tokio::test]
async fn the_overlay_for_one_namespace_is_accepted_whole_and_without_a_warning() {
    let scene = scene().await;
    let (_copy, overlay) = overlay_for(scene.namespace());
    let apply = ["apply", "--server-side", "--dry-run=server", "--kustomize", overlay.to_str().unwrap()];
    let output = scene.kubectl_with_input(&apply, "");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !complaint.contains("Warning"), "{complaint}");
    let applied = String::from_utf8_lossy(&output.stdout);
    assert!(applied.contains("deployment.apps/inference-controller"), "{applied}");
    assert!(!applied.contains("clusterrole") && !applied.contains("namespace/"), "{applied}");
}

#[tokio::test]
async fn the_role_for_one_namespace_is_the_cluster_role_without_nodes_and_their_pods() {
    let kubectl = scene().await.cluster().kubectl();
    let base: ClusterRole = named(built(&kubectl, &deploy().join("base")), "inference-controller");
    let overlay = built(&kubectl, &deploy().join("overlays/namespaced"));
    let role: Role = named(overlay, "inference-controller-models");
    let mut wanted: BTreeSet<Right> = base.rules.iter().flatten().flat_map(expanded).collect();
    for (resource, verb) in [("nodes", "list"), ("nodes", "watch"), ("pods", "delete")] {
        assert!(wanted.remove(&(String::new(), resource.to_owned(), verb.to_owned())), "{verb} {resource}");
    }
    assert_eq!(role.rules.iter().flatten().flat_map(expanded).collect::<BTreeSet<_>>(), wanted);
}

/// A namespace in a cluster in which no controller runs but those that tests start for their own.
pub(super) async fn scene() -> Scene<'static> {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let spec = || ClusterSpec::simulated(fresh_name(), tools(), NodePool::default());
    Scene::new(CLUSTER.get_or_init(|| start(spec())).await).await
}

/// Starts a controller for this namespace alone, and returns its name as a component.
pub(super) async fn start_controller(scene: &Scene<'_>, args: &[&str]) -> String {
    let name = format!("inference-controller-{}", scene.namespace());
    let (_copy, overlay) = overlay_for(scene.namespace());
    let mut controller = controller("inference-controller").replica(&name);
    controller.base = overlay;
    controller.args = vec![format!("--namespace={}", scene.namespace())];
    controller.args.extend(args.iter().map(|&arg| arg.to_owned()));
    scene.start_controller(&controller).await.unwrap();
    name
}

/// An overlay on ours, as a user would write it, and the folder that it is in.
fn overlay_for(namespace: &str) -> (TempDir, PathBuf) {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&deploy(), copy.path());
    let overlay = copy.path().join("overlays/theirs");
    fs::create_dir(&overlay).unwrap();
    let text = format!("namespace: {namespace}\nresources: [../namespaced]\n");
    fs::write(overlay.join("kustomization.yaml"), text).unwrap();
    (copy, overlay)
}

fn named<K>(objects: Vec<DynamicObject>, name: &str) -> K
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let is_it = |object: &DynamicObject| {
        object.metadata.name.as_deref() == Some(name)
            && object.types.as_ref().is_some_and(|types| types.kind == K::kind(&()))
    };
    objects.into_iter().find(is_it).expect("an object of that name").try_parse().unwrap()
}
