//! The controller with default timings and without faults.

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tests::{Scene, wait_for, within};

use crate::setup::{CONTROLLER, SYSTEM, Setup, lines_about, serve};

#[tokio::test]
async fn with_default_timings_it_leads_reconciles_and_exits_0_after_sigterm() {
    let setup = Setup::cluster(|spec| spec).await.with_controller(&[]).await;
    let scene = Scene::new(&setup).await;
    let leases: Api<Lease> = Api::namespaced(scene.client(), SYSTEM);
    let lease =
        wait_for(&leases, CONTROLLER, "held", within(), |lease: &Lease| !holder(lease).is_empty()).await;
    assert_eq!(lease.spec.unwrap().lease_duration_seconds, Some(15));
    serve(&scene, "chat").await;

    setup.stop_component(CONTROLLER).await.unwrap();
    assert_eq!(setup.controller().await.last_exit.as_deref(), Some("exit status: 0"), "{}", setup.log());
    assert_eq!(holder(&leases.get(CONTROLLER).await.unwrap()), "", "the Lease is released");
    assert_eq!(lines_about(&setup.log(), "stopped").count(), 1, "{}", setup.log());
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}
