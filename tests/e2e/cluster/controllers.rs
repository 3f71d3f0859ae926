//! Our controllers as processes of the cluster: their credentials, their ends, several replicas.

use std::{fs, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use local_cluster::{Cluster, ClusterSpec, ComponentStatus, NodePool};
use tests::{controller, fresh_name, start, tools, wait_for, within};
use tokio::time::{Instant, sleep};

const NAME: &str = "inference-controller";
const OTHER: &str = "inference-controller-b";

#[tokio::test]
async fn a_killed_controller_is_started_again_and_a_stopped_one_is_not() {
    let cluster = with_controller().await;
    let first = component(&cluster, NAME).await;
    cluster.kill_component(NAME).await.unwrap();
    let second =
        until(&cluster, NAME, "running again", |now| now.pid.is_some() && now.pid != first.pid).await;
    assert_eq!(second.restarts, 1);
    cluster.stop_component(NAME).await.unwrap();
    assert_eq!(component(&cluster, NAME).await.pid, None);
    cluster.start_component(NAME).await.unwrap();
    until(&cluster, NAME, "running", |now| now.pid.is_some()).await;
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
async fn a_controller_acts_under_its_service_account_and_its_reads_are_in_the_audit_log() {
    let cluster = with_controller().await;
    let events = cluster.audit_events().unwrap();
    let own: Vec<_> = events
        .iter()
        .filter(|event| event.user == "system:serviceaccount:ai-system:inference-controller")
        .collect();
    let saw =
        |verb: &str, resource: &str| own.iter().any(|event| event.verb == verb && event.resource == resource);
    assert!(saw("list", "aiinferences") && saw("watch", "aiinferences"), "{own:?}");
}

#[tokio::test]
async fn the_token_of_a_controller_is_renewed() {
    let renewal = Duration::from_secs(1);
    let spec = ClusterSpec::simulated(fresh_name(), tools(), NodePool::default()).with_token_renewal(renewal);
    let cluster = start(spec).await;
    cluster.start_controller(&controller(NAME)).await.unwrap();
    let path = cluster.folder().root().join("credentials").join(format!("{NAME}.token"));
    let first = fs::read(&path).unwrap();
    let deadline = Instant::now() + within();
    while fs::read(&path).unwrap() == first {
        assert!(Instant::now() < deadline, "the token is still the first one");
        sleep(Duration::from_millis(50)).await;
    }
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

/// A process cannot be watched, so it is asked again and again.
async fn until(
    cluster: &Cluster,
    name: &str,
    what: &str,
    holds: impl Fn(&ComponentStatus) -> bool,
) -> ComponentStatus {
    let deadline = Instant::now() + within();
    loop {
        let now = component(cluster, name).await;
        if holds(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "{name} is not {what}: {now:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

fn is_held_by(lease: &Lease, component: &str) -> bool {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
    holder.is_some_and(|holder| holder.starts_with(&format!("{component}_")))
}
