//! Controllers that run on this machine for a cluster that exists: what they need is installed there, and nothing of it
//! ends with them.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::Api;
use local_cluster::{Cluster, ClusterSpec, NodePool, explained, sibling_binary};
use serde_json::json;
use tests::{
    Scene, controller, fresh_name,
    inference::{create, until_ready},
    tools, wait_for, within, workspace,
};

const NAME: &str = "inference-controller";

#[tokio::test]
async fn an_existing_cluster_is_served_by_controllers_of_this_machine_and_outlives_them() {
    local_cluster::install_crypto_provider();
    let supervisor = sibling_binary("local-cluster").unwrap();
    let spec = ClusterSpec::simulated(fresh_name(), tools(), NodePool::default());
    let given = Cluster::start(spec, &supervisor).await.unwrap();

    let spec = ClusterSpec::existing(fresh_name(), &given.folder().kubeconfig(), tools());
    let joined = Cluster::start(spec, &supervisor).await.unwrap();
    joined.install_shared(&workspace().join("deploy")).await.unwrap();
    joined.start_controller(&controller(NAME)).await.unwrap();
    let components = joined.status().await.unwrap().components;
    let names: BTreeSet<&str> = components.iter().map(|component| component.name.as_str()).collect();
    assert_eq!(names, BTreeSet::from(["supervisor", NAME]), "no Kubernetes is started");

    let scene = Scene::new(&given).await;
    create(&scene, "chat", json!({})).await;
    until_ready(&scene, "chat").await;
    let leases: Api<Lease> = Api::namespaced(scene.client(), "ai-system");
    let lease = wait_for(&leases, NAME, "held", within(), |lease: &Lease| holder(lease).is_some()).await;
    // Another machine may run a controller for the same cluster: the Lease names the machine and the process.
    let supervisor = components.iter().find_map(|component| component.pid).unwrap();
    assert!(holder(&lease).unwrap().contains(&format!("-{supervisor}-")), "{lease:?}");

    joined.stop().await.unwrap();
    assert!(given.status().await.unwrap().components.len() > 4);
    until_ready(&scene, "chat").await;
    scene.cluster_api::<Namespace>().get("ai-system").await.unwrap();
    let kinds = scene.cluster_api::<CustomResourceDefinition>();
    kinds.get("aiinferences.ai.infra.example.com").await.unwrap();
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_is_an_error_with_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    // Nothing listens on the port for discarded bytes.
    let text = "
current-context: gone
contexts: [{name: gone, context: {cluster: gone, user: gone}}]
clusters: [{name: gone, cluster: {server: 'https://127.0.0.1:9'}}]
users: [{name: gone, user: {token: none}}]
";
    std::fs::write(&kubeconfig, text).unwrap();
    local_cluster::install_crypto_provider();
    let spec = ClusterSpec::existing(fresh_name(), &kubeconfig, tools());
    let refused = Cluster::start(spec, &sibling_binary("local-cluster").unwrap()).await.unwrap_err();
    let refused = explained(&refused);
    assert!(refused.contains("failed to reach https://127.0.0.1:9"), "{refused}");
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}
