//! A controller confined to one namespace, with Roles only.

use std::{fs, path::PathBuf};

use api::controllers::Controller;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role};
use kube::{
    Resource,
    api::{DynamicObject, ListParams},
};
use local_cluster::{Cluster, ClusterSpec, NodePool};
use tempfile::TempDir;
use tests::{Scene, controller, fresh_name, start, table::life_of, tools};
use tokio::sync::OnceCell;

use crate::{
    for_every_controller,
    overlays::{built, copy_folder, deploy},
    rights,
    rights::roles_apart,
    user,
};

#[tokio::test]
async fn a_controller_of_one_namespace_serves_it_under_roles_alone_and_no_other() {
    for_every_controller(async |tested| {
        let (scene, other, life) = (scene().await, scene().await, life_of(tested));
        let untouched = life.create(&other, "life").await;
        let written = async || {
            let objects = life.edited.api(&other).list(&ListParams::default()).await.unwrap();
            objects.into_iter().map(|object| object.data["spec"].clone()).collect::<Vec<_>>()
        };
        let before = written().await;
        start_controller(tested, &scene, &[]).await;
        life.play(&scene, "life").await;

        let bindings = scene.cluster_api::<ClusterRoleBinding>().list(&ListParams::default()).await.unwrap();
        let subjects = bindings.into_iter().flat_map(|binding| binding.subjects.unwrap_or_default());
        assert!(!subjects.into_iter().any(|subject| subject.namespace.as_deref() == Some(scene.namespace())));
        let user = user(tested, scene.namespace());
        let events = scene.audit_events().unwrap();
        let requests: Vec<_> = events.iter().filter(|event| event.user == user).collect();
        assert!(
            !requests.is_empty() && requests.iter().all(|event| event.code != Some(403)),
            "{requests:#?}"
        );
        assert_eq!(life.objects(&other).get("life").await.unwrap().data, untouched.data);
        assert_eq!(written().await, before);
    })
    .await;
}

#[tokio::test]
async fn the_overlay_for_one_namespace_is_accepted_whole_and_without_a_warning() {
    let scene = scene().await;
    for_every_controller(async |tested| {
        let (_copy, overlay) = overlay_for(tested, scene.namespace());
        let apply = ["apply", "--server-side", "--dry-run=server", "--kustomize", overlay.to_str().unwrap()];
        let output = scene.kubectl_with_input(&apply, "");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !complaint.contains("Warning"), "{complaint}");
        let applied = String::from_utf8_lossy(&output.stdout);
        assert!(applied.contains(&format!("deployment.apps/{}", tested.name)), "{applied}");
        assert!(
            !applied.contains("clusterrole")
                && !applied.contains("namespace/")
                && !applied.contains("admission"),
            "{applied}"
        );
    })
    .await;
}

#[tokio::test]
async fn the_role_for_one_namespace_is_the_cluster_role_without_what_is_beyond_it() {
    let kubectl = scene().await.cluster().kubectl();
    for_every_controller(async |tested| {
        let base = built(&kubectl, &deploy(tested).join("base"));
        let overlay = built(&kubectl, &deploy(tested).join("overlays/namespaced"));
        for apart in roles_apart(tested) {
            let is_bound = |object: &DynamicObject| {
                object.metadata.name.as_deref() == Some(&apart)
                    && object.types.as_ref().is_some_and(|types| types.kind == "ClusterRoleBinding")
            };
            if !base.iter().any(is_bound) {
                continue;
            }
            let (everywhere, here): (ClusterRole, Role) =
                (named(base.clone(), &apart), named(overlay.clone(), &apart));
            assert_eq!(rights(here.rules.iter().flatten()), rights(everywhere.rules.iter().flatten()));
        }
        let base: ClusterRole = named(base, tested.name);
        let role: Role = named(overlay, &format!("{}-models", tested.name));
        let mut wanted = rights(base.rules.iter().flatten());
        for &(group, resource, verb) in life_of(tested).beyond_a_namespace {
            let right = (group.to_owned(), resource.to_owned(), verb.to_owned());
            assert!(wanted.remove(&right), "{right:?}");
        }
        assert_eq!(rights(role.rules.iter().flatten()), wanted);
    })
    .await;
}

/// A namespace in a cluster in which no controller runs but those that tests start for their own.
pub(super) async fn scene() -> Scene<'static> {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let spec = || ClusterSpec::simulated(fresh_name(), tools(), NodePool::default());
    Scene::new(CLUSTER.get_or_init(|| start(spec())).await).await
}

/// Starts a controller for this namespace alone, and returns its name as a component.
pub(super) async fn start_controller(tested: &Controller, scene: &Scene<'_>, args: &[&str]) -> String {
    let name = format!("{}-{}", tested.name, scene.namespace());
    let (_copy, overlay) = overlay_for(tested, scene.namespace());
    let controller = controller(tested.name).replica(&name).with_args(args.iter().copied());
    let mut controller = controller.with_args([format!("--namespace={}", scene.namespace())]);
    controller.base = overlay;
    scene.start_controller(&controller).await.unwrap();
    name
}

/// An overlay on the released ones, as a user would write it, and the folder that it is in.
fn overlay_for(tested: &Controller, namespace: &str) -> (TempDir, PathBuf) {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&deploy(tested), copy.path());
    let overlay = copy.path().join("overlays/team");
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
