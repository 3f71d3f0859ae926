//! At rest a controller is silent: it writes nothing but its Lease, and asks for nothing.

use std::collections::BTreeMap;

use api::aiinference::AIInference;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::ListParams};
use local_cluster::{
    ClusterSpec, NodePool,
    audit::Event,
    install::{apply, yaml_files},
};
use tests::{Scene, controller, fresh_name, start, tools, wait_for, within};

use super::is_ready;

/// Each takes two seconds: the time that passes without a write is counted in renewals of the Lease.
const RENEWALS: usize = 4;

#[tokio::test]
async fn the_samples_become_ready_and_then_nothing_is_sent() {
    let pool = NodePool::default();
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), pool)).await;
    cluster.start_controller(&controller("inference-controller")).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let samples = yaml_files(&tests::workspace().join("deploy/samples")).unwrap();
    assert!(samples.len() >= 2, "{samples:?}");
    for sample in samples {
        let yaml = std::fs::read_to_string(&sample).unwrap();
        apply(&scene.client(), "default", &yaml).await.unwrap();
    }
    let models: Api<AIInference> = Api::namespaced(scene.client(), "default");
    for model in models.list(&ListParams::default()).await.unwrap() {
        wait_for(&models, model.metadata.name.as_deref().unwrap(), "ready", within(), is_ready).await;
    }

    // A pod that has just become ready may still be told of; that is over when the Lease has been renewed once more.
    until_renewed(&scene, 2).await;
    let before = sent(&cluster.audit_events().unwrap());
    until_renewed(&scene, RENEWALS).await;
    let after = sent(&cluster.audit_events().unwrap());
    assert_eq!(before, after);
    assert!(before.values().sum::<usize>() > 0, "the audit log knows our ServiceAccount by another name");
}

pub(super) async fn until_renewed(scene: &Scene<'_>, times: usize) {
    let leases: Api<Lease> = Api::namespaced(scene.client(), "ai-system");
    let mut seen = Vec::new();
    wait_for(&leases, "inference-controller", "renewed", within(), |lease: &Lease| {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        if seen.last() != Some(&renewed) {
            seen.push(renewed);
        }
        seen.len() > times
    })
    .await;
}

/// Requests of the controller by verb and resource, watches and the Lease aside.
fn sent(events: &[Event]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in events {
        let ours = event.user == "system:serviceaccount:ai-system:inference-controller";
        if ours && event.verb != "watch" && event.resource != "leases" {
            *counts.entry(format!("{} {}/{}", event.verb, event.resource, event.subresource)).or_default() +=
                1;
        }
    }
    counts
}
