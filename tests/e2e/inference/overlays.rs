//! What people deploy: the base and its overlays build, and the API server accepts them without a warning.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use api::aiinference::AIInference;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Namespace};
use kube::api::DynamicObject;
use local_cluster::ClusterSpec;
use serde_json::json;
use tests::{Scene, fresh_name, simulated, start, tools};

use super::create;

const FOLDERS: [&str; 3] = ["base", "overlays/dev", "overlays/prod"];

#[tokio::test]
async fn the_base_and_every_overlay_are_accepted_whole_and_without_a_warning() {
    let scene = simulated().await;
    for folder in FOLDERS {
        let folder = deploy().join(folder);
        let output = scene.kubectl_with_input(
            &[
                "--namespace",
                "ai-system",
                "apply",
                "--server-side",
                "--force-conflicts",
                "--dry-run=server",
                "--kustomize",
                folder.to_str().unwrap(),
            ],
            "",
        );
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !complaint.contains("Warning"), "{folder:?}: {complaint}");
        let applied = String::from_utf8_lossy(&output.stdout);
        for kind in ["deployment.apps", "networkpolicy.networking.k8s.io", "poddisruptionbudget.policy"] {
            assert!(applied.contains(&format!("{kind}/inference-controller")), "{folder:?}: {applied}");
        }
        assert!(!applied.contains("model-loader"), "{folder:?}: {applied}");
    }
}

#[tokio::test]
async fn deleting_a_controller_leaves_the_namespace_and_the_kinds_to_the_others() {
    let cluster = start(ClusterSpec::api_only(fresh_name(), tools())).await;
    let scene = Scene::new(&cluster).await;
    create(&scene, "chat", json!({})).await;
    for folder in FOLDERS {
        let folder = deploy().join(folder);
        let folder = folder.to_str().unwrap();
        let within = ["--namespace", "ai-system", "--kustomize", folder];
        scene.kubectl(&[&["apply", "--server-side"], &within[..]].concat());
        scene.kubectl(&[&["delete", "--wait=false"], &within[..]].concat());
        let namespace = scene.cluster_api::<Namespace>().get("ai-system").await.unwrap();
        assert_eq!(namespace.metadata.deletion_timestamp, None, "{folder}");
        let model = scene.api::<AIInference>().get("chat").await.unwrap();
        assert_eq!(model.metadata.deletion_timestamp, None, "{folder}");
    }
}

#[tokio::test]
async fn two_replicas_are_deployed_and_the_loader_image_of_an_overlay_arrives_in_the_flag() {
    let kubectl = simulated().await.cluster().kubectl();
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&deploy(), copy.path());
    for (overlay, tag) in [("dev", "newTag: dev"), ("prod", "newTag: 0.1.0")] {
        let folder = copy.path().join("overlays").join(overlay);
        let path = folder.join("kustomization.yaml");
        let text = fs::read_to_string(&path).unwrap();
        let (before, after) = text.split_once("model-transfer").expect("the image of the loader");
        let after = after.replacen(tag, "newName: registry.example/loader\n    newTag: '9.9'", 1);
        fs::write(&path, format!("{before}model-transfer{after}")).unwrap();

        let deployment = deployment_of(&kubectl, &folder);
        let spec = deployment.spec.unwrap();
        assert_eq!(spec.replicas, Some(2));
        let controller = &spec.template.spec.unwrap().containers[0];
        let arguments = controller.args.clone().unwrap();
        let ours = ["--admin-address=0.0.0.0:8080", "--loader-image=registry.example/loader:9.9"];
        assert_eq!(arguments, ours, "{overlay}");
    }
}

#[tokio::test]
async fn the_overlay_for_one_namespace_differs_in_the_flag_that_names_it() {
    let kubectl = simulated().await.cluster().kubectl();
    let args_of = |folder: &str| {
        let pod = deployment_of(&kubectl, &deploy().join(folder)).spec.unwrap().template.spec.unwrap();
        pod.containers[0].args.clone().unwrap()
    };
    let mut expected = args_of("base");
    expected.push("--namespace=$(POD_NAMESPACE)".to_owned());
    assert_eq!(args_of("overlays/namespaced"), expected);
}

pub(super) fn deploy() -> PathBuf {
    tests::workspace().join("deploy/inference-controller")
}

fn deployment_of(kubectl: &Path, folder: &Path) -> Deployment {
    let is_deployment =
        |kind: Option<&kube::core::TypeMeta>| kind.is_some_and(|types| types.kind == "Deployment");
    let found = built(kubectl, folder).into_iter().find(|object| is_deployment(object.types.as_ref()));
    found.expect("a Deployment").try_parse().unwrap()
}

/// What kustomize makes of a folder.
pub(super) fn built(kubectl: &Path, folder: &Path) -> Vec<DynamicObject> {
    let output = Command::new(kubectl).arg("kustomize").arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    local_cluster::install::parse(&String::from_utf8_lossy(&output.stdout)).unwrap()
}

pub(super) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
