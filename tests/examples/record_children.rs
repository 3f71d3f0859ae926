//! Records what a release of the inference-controller made of AIInferences, as fixtures of the tests of upgrades: how
//! and when is in `tests/fixtures/released/README.md`. It asserts nothing.

use std::{
    fs,
    path::{Path, PathBuf},
};

use api::aiinference::AIInference;
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::{ConfigMap, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
};
use local_cluster::{ClusterSpec, Controller, NodePool, install};
use tests::{Scene, controller, fresh_name, inference, start, tools, wait_for, within, workspace};

const NAMESPACE: &str = install::DEFAULT_NAMESPACE;

#[tokio::main]
async fn main() {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [program, version] = args.as_slice() else { panic!("usage: record_children PROGRAM VERSION") };
    let released = workspace().join("tests/fixtures/released");
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let program = program.canonicalize().expect("the controller's program");
    let released_controller = Controller { program, ..controller("inference-controller") };
    cluster.start_controller(&released_controller).await.expect("the controller is ready");
    let scene = Scene::new(&cluster).await;
    fs::create_dir_all(released.join(version)).expect("a folder for the fixtures");
    for given in install::yaml_files(&released.join("given")).expect("what is given") {
        let text = fs::read_to_string(&given).expect("what is given");
        let applied = install::apply(&scene.client(), NAMESPACE, &text).await.expect("it is accepted");
        let model = applied.into_iter().last().and_then(|model| model.metadata.name).expect("an AIInference");
        let models: Api<AIInference> = Api::namespaced(scene.client(), NAMESPACE);
        wait_for(&models, &model, "ready", within(), inference::is_ready).await;
        record(&scene, &model, &released.join(version).join(given.file_name().expect("a name"))).await;
    }
}

/// Writes the object and everything that it owns, in the order in which they can be created.
async fn record(scene: &Scene<'_>, model: &str, path: &Path) {
    let mut recorded: Vec<DynamicObject> = Vec::new();
    for kind in [
        ApiResource::erase::<AIInference>(&()),
        ApiResource::erase::<ConfigMap>(&()),
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<Deployment>(&()),
        ApiResource::erase::<ReplicaSet>(&()),
        ApiResource::erase::<PodDisruptionBudget>(&()),
    ] {
        let all: Api<DynamicObject> = Api::namespaced_with(scene.client(), NAMESPACE, &kind);
        for mut object in all.list(&ListParams::default()).await.expect("a list") {
            let owners = object.metadata.owner_references.iter().flatten();
            let is_owned = owners
                .into_iter()
                .any(|owner| recorded.iter().any(|known| known.metadata.uid.as_ref() == Some(&owner.uid)));
            let is_it = recorded.is_empty() && object.metadata.name.as_deref() == Some(model);
            if is_owned || is_it {
                object.metadata.managed_fields = None;
                object.types = Some(kube::core::TypeMeta {
                    api_version: kind.api_version.clone(),
                    kind: kind.kind.clone(),
                });
                recorded.push(object);
            }
        }
    }
    let documents: Vec<String> =
        recorded.iter().map(|object| serde_saphyr::to_string(object).expect("YAML")).collect();
    fs::write(path, documents.join("---\n")).expect("the fixture is written");
}
