//! Controllers as processes of the cluster: credentials, restarts, several replicas.

use std::{collections::BTreeSet, fs, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use local_cluster::{Cluster, ClusterSpec, ComponentStatus, NodePool};
use tests::{ask_until, controller, fresh_name, start, tools, until_component, wait_for, within};

const NAME: &str = "inference-controller";
const OTHER: &str = "inference-controller-b";

#[tokio::test]
async fn a_killed_controller_is_started_again_and_a_stopped_one_is_not() {
    let cluster = with_controller().await;
    let first = component(&cluster, NAME).await;
    cluster.kill_component(NAME).await.unwrap();
    let second =
        until_component(&cluster, NAME, "running again", |now| now.pid.is_some() && now.pid != first.pid)
            .await;
    assert_eq!(second.restarts, 1);
    cluster.stop_component(NAME).await.unwrap();
    assert_eq!(component(&cluster, NAME).await.pid, None);
    cluster.start_component(NAME).await.unwrap();
    until_component(&cluster, NAME, "running", |now| now.pid.is_some()).await;
}

#[tokio::test]
async fn a_paused_leader_is_replaced_by_the_other_replica() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let quick = ["--lease-duration=2", "--lease-renew-deadline=1.5", "--lease-retry-period=0.2"];
    cluster.start_controller(&controller(NAME).with_args(quick)).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(cluster.client().await.unwrap(), "ai-system");
    wait_for(&leases, NAME, "held by the first", within(), |lease| is_held_by(lease, NAME)).await;
    cluster.start_controller(&controller(NAME).with_args(quick).replica(OTHER)).await.unwrap();
    cluster.pause_component(NAME).await.unwrap();
    wait_for(&leases, NAME, "held by the other", within(), |lease| is_held_by(lease, OTHER)).await;
    cluster.continue_component(NAME).await.unwrap();
}

#[tokio::test]
async fn a_controller_acts_under_its_service_account_and_name_and_its_reads_are_in_the_audit_log() {
    let cluster = with_controller().await;
    // It is ready after its lists; the watches start later.
    ask_until("its list and its watch of AIInferences", within(), async || {
        let events = cluster.audit_events().unwrap();
        let own = events
            .iter()
            .filter(|event| event.user == "system:serviceaccount:ai-system:inference-controller")
            .filter(|event| event.user_agent.starts_with("inference-controller/"))
            .map(|event| (event.verb.as_str(), event.resource.as_str()))
            .collect::<BTreeSet<_>>();
        let both = [("list", "aiinferences"), ("watch", "aiinferences")];
        if both.iter().all(|read| own.contains(read)) { Ok(()) } else { Err(format!("{own:?}")) }
    })
    .await;
}

#[tokio::test]
async fn the_token_of_a_controller_is_renewed() {
    let renewal = Duration::from_secs(1);
    let spec = ClusterSpec::simulated(fresh_name(), tools(), NodePool::default()).with_token_renewal(renewal);
    let cluster = start(spec).await;
    cluster.start_controller(&controller(NAME)).await.unwrap();
    let path = cluster.folder().root().join("credentials").join(format!("{NAME}.token"));
    let first = fs::read(&path).unwrap();
    ask_until("another token", within(), async || {
        if fs::read(&path).unwrap() == first { Err("it is still the first one") } else { Ok(()) }
    })
    .await;
}

async fn with_controller() -> Cluster {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    cluster.start_controller(&controller(NAME)).await.unwrap();
    cluster
}

async fn component(cluster: &Cluster, name: &str) -> ComponentStatus {
    let status = cluster.status().await.unwrap();
    status.components.into_iter().find(|component| component.name == name).unwrap()
}

fn is_held_by(lease: &Lease, component: &str) -> bool {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
    holder.is_some_and(|holder| holder.starts_with(&format!("{component}_")))
}
