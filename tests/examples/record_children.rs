//! Records the children that a released controller has created, as fixtures of the upgrade tests; see
//! `tests/fixtures/released/README.md`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use api::controllers::CONTROLLERS;
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::{ConfigMap, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
};
use local_cluster::{ClusterSpec, Controller, NodePool, api_server::install};
use tests::{
    Scene, controller, fresh_name, lives::Life, start, table::life_of, tools, wait_for, within, workspace,
};

const NAMESPACE: &str = install::DEFAULT_NAMESPACE;

#[tokio::main]
async fn main() {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [program, version] = args.as_slice() else { panic!("usage: record_children PROGRAM VERSION") };
    let program = program.canonicalize().expect("the controller's program");
    let is_program = |name: &str| program.file_name().is_some_and(|file| file == name);
    let released = CONTROLLERS.iter().find(|known| is_program(known.name)).expect("PROGRAM is a controller");
    let (name, life) = (released.name, life_of(released));
    let folder = workspace().join("tests/fixtures/released");
    let (given, made) = (folder.join("given").join(name), folder.join(version).join(name));
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let released = Controller { program, ..controller(name) };
    cluster.start_controller(&released).await.expect("the controller is ready");
    let scene = Scene::new(&cluster).await;
    fs::create_dir_all(&made).expect("a folder for the fixtures");
    for given in install::yaml_files(&given).expect("what is given") {
        let text = fs::read_to_string(&given).expect("what is given");
        let applied = install::apply(&scene.client(), NAMESPACE, &text).await.expect("it is accepted");
        let object = applied.into_iter().last().and_then(|object| object.metadata.name).expect("an object");
        let objects: Api<DynamicObject> =
            Api::namespaced_with(scene.client(), NAMESPACE, &life.kind.resource());
        wait_for(&objects, &object, life.kind.done, within(), |object| life.kind.is_done(object)).await;
        record(&scene, &life, &object, &made.join(given.file_name().expect("a name"))).await;
    }
}

/// Writes the object and all its dependents, in the order of creation.
async fn record(scene: &Scene<'_>, life: &Life, root: &str, path: &Path) {
    let mut recorded: Vec<DynamicObject> = Vec::new();
    for kind in [
        life.kind.resource(),
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
            let is_it = recorded.is_empty() && object.metadata.name.as_deref() == Some(root);
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
