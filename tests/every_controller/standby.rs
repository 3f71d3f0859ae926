//! Two replicas: one leads, the standby takes over.

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use local_cluster::{ClusterSpec, NodePool, explained};
use tests::{Scene, ask_until, controller, fresh_name, start, table::life_of, tools, wait_for, within};

use crate::for_every_controller;

#[tokio::test]
async fn the_other_replica_takes_over_when_the_leader_stops() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    for_every_controller(async |tested| {
        let (name, life) = (tested.name, life_of(tested));
        let replicas = ["a", "b"].map(|replica| format!("{name}-{replica}"));
        for replica in &replicas {
            cluster.start_controller(&controller(name).replica(replica)).await.unwrap();
        }
        let scene = Scene::new(&cluster).await;
        life.begin(&scene, "first").await;

        // The holder identity is the component's name and a part that is unique per start.
        let leader = |lease: &Lease| {
            let holder = lease.spec.as_ref()?.holder_identity.clone()?;
            replicas.iter().find(|replica| holder.starts_with(*replica)).cloned()
        };
        let leases: Api<Lease> = Api::namespaced(scene.client(), "ai-system");
        let first = leader(&leases.get(name).await.unwrap()).expect("a leader");
        // A metric may be counted after the status that the life waits for.
        ask_until("counts of the leader alone", within(), async || {
            for replica in &replicas {
                let page = cluster.metrics(replica).await.map_err(|error| explained(&error))?;
                for counted in life.counted {
                    if page.contains(counted) != (*replica == first) {
                        return Err(format!("{counted} of {replica}: {page}"));
                    }
                }
            }
            Ok(())
        })
        .await;
        cluster.stop_component(&first).await.unwrap();
        wait_for(&leases, name, "led by the other", within(), |lease: &Lease| {
            leader(lease).is_some_and(|now| now != first)
        })
        .await;
        life.begin(&scene, "second").await;
    })
    .await;
}
