//! Two replicas: one works, the other stands by and takes over.

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use local_cluster::{ClusterSpec, NodePool};
use serde_json::json;
use tests::{Scene, controller, fresh_name, start, tools, wait_for, within};

use super::{create, until_ready};

const REPLICAS: [&str; 2] = ["inference-controller-a", "inference-controller-b"];

#[tokio::test]
async fn the_other_replica_takes_over_when_the_leader_stops() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    for replica in REPLICAS {
        cluster.start_controller(&controller("inference-controller").replica(replica)).await.unwrap();
    }
    let scene = Scene::new(&cluster).await;
    create(&scene, "first", json!({})).await;
    until_ready(&scene, "first").await;

    let leases: Api<Lease> = Api::namespaced(scene.client(), "ai-system");
    let leader = leader(&leases.get("inference-controller").await.unwrap()).expect("a leader");
    for replica in REPLICAS {
        let page = cluster.metrics(replica).await.unwrap();
        for counted in ["aiinference_phase{phase=\"ready\"} 1", "aiinference_warmup_seconds_count 1"] {
            assert_eq!(page.contains(counted), replica == leader, "{replica}: {page}");
        }
    }
    cluster.stop_component(leader).await.unwrap();
    wait_for(&leases, "inference-controller", "led by the other", within(), |lease: &Lease| {
        self::leader(lease).is_some_and(|now| now != leader)
    })
    .await;
    create(&scene, "second", json!({})).await;
    until_ready(&scene, "second").await;
}

/// Which of the two holds the Lease: a holder is the name of the component and what tells its starts apart.
fn leader(lease: &Lease) -> Option<&'static str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref()?;
    REPLICAS.into_iter().find(|replica| holder.starts_with(replica))
}
