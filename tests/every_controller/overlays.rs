//! The kustomize base and overlays build, and the API server accepts them without warnings.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use api::controllers::{Controller, REGISTRY};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Namespace, networking::v1::NetworkPolicy},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::api::DynamicObject;
use local_cluster::ClusterSpec;
use tests::{Scene, api_server, fresh_name, start, table::life_of, tools, workspace};

use crate::for_every_controller;

const FOLDERS: [&str; 3] = ["base", "overlays/dev", "overlays/prod"];

#[tokio::test]
async fn the_base_and_every_overlay_are_accepted_whole_and_without_a_warning() {
    let scene = api_server().await;
    for_every_controller(async |controller| {
        for folder in FOLDERS {
            let folder = deploy(controller).join(folder);
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
                assert!(applied.contains(&format!("{kind}/{}", controller.name)), "{folder:?}: {applied}");
            }
            // Objects for kustomize only and objects shared by all controllers are not applied.
            assert!(!applied.contains("pod/") && !applied.contains("namespace/"), "{folder:?}: {applied}");
        }
    })
    .await;
}

#[tokio::test]
async fn deleting_a_controller_leaves_the_namespace_and_the_kinds_to_the_others() {
    let cluster = start(ClusterSpec::api_only(fresh_name(), tools())).await;
    let scene = Scene::new(&cluster).await;
    for_every_controller(async |controller| {
        let life = life_of(controller);
        life.create(&scene, controller.name).await;
        for folder in FOLDERS {
            let folder = deploy(controller).join(folder);
            let within = ["--namespace", "ai-system", "--kustomize", folder.to_str().unwrap()];
            scene.kubectl(&[&["apply", "--server-side"], &within[..]].concat());
            scene.kubectl(&[&["delete", "--wait=false"], &within[..]].concat());
            let namespace = scene.cluster_api::<Namespace>().get("ai-system").await.unwrap();
            assert_eq!(namespace.metadata.deletion_timestamp, None, "{folder:?}");
            let object = life.objects(&scene).get(controller.name).await.unwrap();
            assert_eq!(object.metadata.deletion_timestamp, None, "{folder:?}");
        }
    })
    .await;
}

/// Only the API server has no label that a rule could name.
#[tokio::test]
async fn every_rule_of_the_network_policy_but_that_for_the_api_server_names_its_peers() {
    let kubectl = api_server().await.cluster().kubectl();
    for_every_controller(async |controller| {
        for folder in FOLDERS {
            let built = built(&kubectl, &deploy(controller).join(folder));
            let is_policy = |kind: &kube::core::TypeMeta| kind.kind == "NetworkPolicy";
            let policy = built.into_iter().find(|object| object.types.as_ref().is_some_and(is_policy));
            let policy: NetworkPolicy = policy.expect("a NetworkPolicy").try_parse().unwrap();
            let spec = policy.spec.unwrap();
            let ingress = spec.ingress.unwrap_or_default();
            assert!(
                !ingress.is_empty() && ingress.iter().all(|rule| rule.from.is_some()),
                "{folder}: {ingress:#?}"
            );
            let anywhere = spec.egress.unwrap_or_default().into_iter().filter(|rule| rule.to.is_none());
            let ports = anywhere.flat_map(|rule| rule.ports.unwrap_or_default()).filter_map(|port| port.port);
            assert_eq!(ports.collect::<Vec<_>>(), [443, 6443].map(IntOrString::Int), "{folder}");
        }
    })
    .await;
}

#[tokio::test]
async fn two_replicas_are_deployed_and_the_images_of_an_overlay_arrive_in_the_flags() {
    let kubectl = api_server().await.cluster().kubectl();
    for_every_controller(async |controller| {
        let copy = tempfile::tempdir().unwrap();
        copy_folder(&deploy(controller), copy.path());
        for overlay in ["overlays/dev", "overlays/prod"] {
            let folder = copy.path().join(overlay);
            let path = folder.join("kustomization.yaml");
            let mut expected = args_of(&kubectl, &deploy(controller).join("base"));
            for program in controller.programs {
                let (image, other) = (format!("{REGISTRY}/{}", program.name), "registry.example/it:9.9");
                let text = fs::read_to_string(&path).unwrap();
                let (before, after) = text.split_once(&format!("{image}\n")).expect("the image of a program");
                // Its tag is on the next line.
                let (_, after) = after.split_once('\n').expect("the tag");
                let replacement = "    newName: registry.example/it\n    newTag: '9.9'";
                fs::write(&path, format!("{before}{image}\n{replacement}\n{after}")).unwrap();
                let mut flags = expected.iter_mut().filter(|flag| flag.contains(&format!("={image}:")));
                let flag = flags.next().expect("a flag with the image");
                *flag = format!("{}={other}", flag.split_once('=').unwrap().0);
            }
            assert_eq!(args_of(&kubectl, &folder), expected, "{overlay}");
            assert_eq!(deployment_of(&kubectl, &folder).spec.unwrap().replicas, Some(2), "{overlay}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_overlay_for_one_namespace_differs_in_the_flag_that_names_it() {
    let kubectl = api_server().await.cluster().kubectl();
    for_every_controller(async |controller| {
        let mut expected = args_of(&kubectl, &deploy(controller).join("base"));
        expected.push("--namespace=$(POD_NAMESPACE)".to_owned());
        assert_eq!(args_of(&kubectl, &deploy(controller).join("overlays/namespaced")), expected);
    })
    .await;
}

#[tokio::test]
async fn the_file_of_products_of_an_overlay_reaches_the_controllers_that_place_pods_on_gpus() {
    const EXAMPLE: &str = "components:\n  - ../../components/gpu-products\nconfigMapGenerator:\n  \
                           - name: inference-gpu-products\n    namespace: ai-system\n    files: [products]\n";
    let kubectl = api_server().await.cluster().kubectl();
    let install = fs::read_to_string(workspace().join("docs/install.md")).unwrap();
    for_every_controller(async |controller| {
        let places =
            ["endpoint-controller", "inference-controller", "training-controller"].contains(&controller.name);
        assert_eq!(
            deploy(controller).join("components/gpu-products").exists(),
            places,
            "{}",
            controller.name
        );
        if !places {
            return;
        }
        assert!(install.contains(EXAMPLE), "the manual has another example than this test");
        // One of its own for each controller: the removal of one copy leaves the other controller its file.
        let generated = EXAMPLE.replace("inference", controller.name.trim_end_matches("-controller"));
        let copy = tempfile::tempdir().unwrap();
        copy_folder(&deploy(controller), copy.path());
        for overlay in ["overlays/dev", "overlays/prod"] {
            let folder = copy.path().join(overlay);
            let file = folder.join("kustomization.yaml");
            fs::write(&file, fs::read_to_string(&file).unwrap() + &generated).unwrap();
            fs::write(folder.join("products"), "h100: example.com/card=h100\n").unwrap();
            let pod = deployment_of(&kubectl, &folder).spec.unwrap().template.spec.unwrap();
            let volumes = pod.volumes.unwrap().into_iter().filter_map(|volume| volume.config_map);
            let name = volumes.map(|source| source.name).next().unwrap();
            let mut all = built(&kubectl, &folder).into_iter();
            let map = all
                .rfind(|it| it.metadata.name.as_ref() == Some(&name))
                .expect("the ConfigMap with the hash of its content");
            assert_eq!(map.data["data"]["products"], "h100: example.com/card=h100\n", "{overlay}");
            let variables = pod.containers[0].env.clone().unwrap();
            let variable = variables.into_iter().find(|variable| variable.name == "GPU_PRODUCTS").unwrap();
            let mounts = pod.containers[0].volume_mounts.clone().unwrap();
            assert!(
                mounts.iter().any(|mount| variable.value == Some(format!("{}/products", mount.mount_path)))
            );
        }
    })
    .await;
}

pub(super) fn deploy(controller: &Controller) -> PathBuf {
    workspace().join("deploy").join(controller.name)
}

fn args_of(kubectl: &Path, folder: &Path) -> Vec<String> {
    let pod = deployment_of(kubectl, folder).spec.unwrap().template.spec.unwrap();
    pod.containers[0].args.clone().unwrap()
}

fn deployment_of(kubectl: &Path, folder: &Path) -> Deployment {
    let is_deployment =
        |kind: Option<&kube::core::TypeMeta>| kind.is_some_and(|types| types.kind == "Deployment");
    let found = built(kubectl, folder).into_iter().find(|object| is_deployment(object.types.as_ref()));
    found.expect("a Deployment").try_parse().unwrap()
}

/// The output of kustomize for a folder.
pub(super) fn built(kubectl: &Path, folder: &Path) -> Vec<DynamicObject> {
    let output = Command::new(kubectl).arg("kustomize").arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    local_cluster::api_server::install::parse(&String::from_utf8_lossy(&output.stdout)).unwrap()
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
