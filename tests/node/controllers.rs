//! Deployed controllers: two Pods with leader election. Restarts and upgrades do not affect the served models.

use std::{fs, path::Path, process::Command};

use api::controllers::REGISTRY;
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    coordination::v1::Lease,
    core::v1::Pod,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use tests::{
    ENGINE_IMAGE, ENGINE_VERSION, PRODUCT, Scene,
    inference::{change, create, until_ready},
    real_spec, start_real, wait_for, within,
};

use crate::{claims::model_in_a_claim, pods::container_status};

const NAMESPACE: &str = "ai-system";
const CONTROLLER: &str = "inference-controller";

#[tokio::test]
async fn a_killed_leader_is_replaced_and_an_upgrade_restarts_no_pods() {
    let cluster = start_real(real_spec(1)).await;
    let scene = Scene::restricted(&cluster).await;
    for name in ["chat", "vision"] {
        let spec = json!({
            "modelSource": if name == "chat" { model_in_a_claim(&scene).await } else { "pvc://models".to_owned() },
            "image": ENGINE_IMAGE,
            "engineVersion": ENGINE_VERSION,
            "gpu": { "productLabel": PRODUCT, "count": 1 },
        });
        create(&scene, name, spec).await;
    }
    for name in ["chat", "vision"] {
        until_ready(&scene, name).await;
    }
    let before = Running::now(&scene).await;

    let killed = until_led(&scene, |_| true).await;
    let pod = pod_of(&killed).to_owned();
    let pods: Api<Pod> = Api::namespaced(scene.client(), NAMESPACE);
    let leader = pods.get(&pod).await.unwrap();
    let restarts = container_status(&leader, "controller").map_or(0, |status| status.restart_count);
    kill(&pod);
    wait_for(&pods, &pod, "started again", within(), |pod: &Pod| {
        container_status(pod, "controller")
            .is_some_and(|status| status.restart_count > restarts && status.ready)
    })
    .await;
    // Each process has its own identity, also in the same pod.
    until_led(&scene, |leader| leader != killed).await;

    upgrade(&scene).await;
    assert_eq!(Running::now(&scene).await, before, "pods or children were changed");
    // The new leader works: it scales one model and leaves the other unchanged.
    change(&scene, "chat", json!({ "replicas": 2 })).await;
    let scaled = until_ready(&scene, "chat").await;
    assert_eq!(scaled.status.unwrap().ready_replicas, 2);
    let after = Running::now(&scene).await;
    assert_eq!(after.of("vision"), before.of("vision"));
    assert!(before.of("chat").pods.iter().all(|pod| after.pods.contains(pod)), "{before:?} {after:?}");
}

/// The pods and children that an upgrade must not change.
#[derive(Debug, PartialEq)]
struct Running {
    /// Name, uid and restarts.
    pods: Vec<(String, String, i32)>,
    /// Name and generation of each child with a generation.
    generations: Vec<(String, i64)>,
}

impl Running {
    async fn now(scene: &Scene<'_>) -> Self {
        let all = ListParams::default();
        let mut pods: Vec<_> = scene
            .api::<Pod>()
            .list(&all)
            .await
            .unwrap()
            .items
            .into_iter()
            .map(|pod| {
                let containers = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
                let restarts = containers.iter().map(|container| container.restart_count).sum();
                (pod.metadata.name.unwrap_or_default(), pod.metadata.uid.unwrap_or_default(), restarts)
            })
            .collect();
        pods.sort();
        let deployments =
            scene.api::<Deployment>().list(&all).await.unwrap().items.into_iter().map(|child| child.metadata);
        let sets =
            scene.api::<ReplicaSet>().list(&all).await.unwrap().items.into_iter().map(|child| child.metadata);
        let mut generations: Vec<_> = deployments
            .chain(sets)
            .map(|meta| (meta.name.unwrap_or_default(), meta.generation.unwrap_or_default()))
            .collect();
        generations.sort();
        assert!(pods.len() >= 2 && generations.len() == 4, "{pods:?} {generations:?}");
        Self { pods, generations }
    }

    /// The part of one model.
    fn of(&self, name: &str) -> Self {
        let pods = self.pods.iter().filter(|(pod, ..)| pod.starts_with(name)).cloned().collect();
        let generations =
            self.generations.iter().filter(|(child, _)| child.starts_with(name)).cloned().collect();
        Self { pods, generations }
    }
}

/// Deploys the same program with another image name, and waits until both replicas run it.
async fn upgrade(scene: &Scene<'_>) {
    let image = format!("{REGISTRY}/{CONTROLLER}:next");
    scene.load_image(&tests::layout(&format!("{REGISTRY}/{CONTROLLER}:dev")), &image).unwrap();
    let deployments: Api<Deployment> = Api::namespaced(scene.client(), NAMESPACE);
    let containers = json!([{ "name": "controller", "image": image }]);
    let patch = Patch::Strategic(json!({ "spec": { "template": { "spec": { "containers": containers } } } }));
    let changed = deployments.patch(CONTROLLER, &PatchParams::default(), &patch).await.unwrap();
    wait_for(&deployments, CONTROLLER, "rolled out", within() * 2, |deployment: &Deployment| {
        let status = deployment.status.as_ref();
        let number =
            |of: fn(&k8s_openapi::api::apps::v1::DeploymentStatus) -> Option<i32>| status.and_then(of);
        status.and_then(|status| status.observed_generation) >= changed.metadata.generation
            && number(|status| status.updated_replicas) == Some(2)
            && number(|status| status.available_replicas) == Some(2)
            && number(|status| status.replicas) == Some(2)
    })
    .await;
    let pods: Api<Pod> = Api::namespaced(scene.client(), NAMESPACE);
    let new: Vec<String> = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .filter_map(|pod| {
            let runs_it =
                pod.spec.as_ref().is_some_and(|spec| spec.containers[0].image.as_ref() == Some(&image));
            pod.metadata.name.filter(|_| runs_it)
        })
        .collect();
    until_led(scene, |leader| new.iter().any(|pod| pod_of(leader) == pod)).await;
}

/// Kills the process in a pod with SIGKILL.
fn kill(pod: &str) {
    let variable = format!("POD_NAME={pod}");
    let is_it = |process: &Path| {
        let read = |file: &str| fs::read(process.join(file)).unwrap_or_default();
        read("cmdline").starts_with(format!("/{CONTROLLER}\0").as_bytes())
            && read("environ").split(|byte| *byte == 0).any(|set| set == variable.as_bytes())
    };
    let processes = fs::read_dir("/proc").expect("processes").flatten().map(|entry| entry.path());
    let process = processes.into_iter().find(|process| is_it(process)).expect("the leader's process");
    let pid = process.file_name().expect("its pid");
    assert!(Command::new("kill").arg("-KILL").arg(pid).status().expect("kill starts").success());
}

/// Waits until a holder that fulfils the condition has the Lease, and returns its identity.
async fn until_led(scene: &Scene<'_>, will_do: impl Fn(&str) -> bool) -> String {
    let leases: Api<Lease> = Api::namespaced(scene.client(), NAMESPACE);
    let lease =
        wait_for(&leases, CONTROLLER, "held", within(), |lease: &Lease| holder(lease).is_some_and(&will_do))
            .await;
    holder(&lease).unwrap_or_default().to_owned()
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// A replica's identity begins with its pod's name.
fn pod_of(identity: &str) -> &str {
    identity.split_once('_').map_or(identity, |(pod, _)| pod)
}
