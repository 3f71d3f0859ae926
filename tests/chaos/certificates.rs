//! The API server's certificate is renewed, and its certificate authority is replaced.

use std::{net::TcpStream, sync::Arc};

use futures::future::join_all;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{Api, config::Kubeconfig};
use local_cluster::Cluster;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tests::{Scene, within};

use crate::setup::{CONTROLLER, SYSTEM, Setup, serve, until, until_served};

#[tokio::test]
async fn a_renewed_serving_certificate_interrupts_nothing() {
    let setup = Setup::cluster(|spec| spec).await.with_controller(&[]).await;
    let scene = Scene::new(&setup).await;
    serve(&scene, "before").await;
    let process = setup.controller().await;
    let old = served_certificate(&setup);

    setup.renew_server_certificate().await.unwrap();
    let renewed = certificate(&setup, "apiserver.crt");
    assert_ne!(old, renewed);
    until("the new certificate", within(), async || served_certificate(&setup) == renewed).await;
    // More requests at once than idle connections.
    let names: Vec<String> = (0..20).map(|number| format!("after-{number}")).collect();
    join_all(names.iter().map(|name| serve(&scene, name))).await;
    let now = setup.controller().await;
    assert_eq!((now.pid, now.restarts), (process.pid, 0), "{}", setup.log());
}

/// A lease long enough for the client's re-read of the file after a minute.
const LEASE_FOR_MINUTES: [&str; 3] =
    ["--lease-duration=180", "--lease-renew-deadline=150", "--lease-retry-period=1"];

#[tokio::test]
async fn a_new_authority_is_named_in_the_log_and_trusted_without_a_restart() {
    let setup = Setup::cluster(|spec| spec).await.with_controller(&LEASE_FOR_MINUTES).await;
    let scene = Scene::new(&setup).await;
    serve(&scene, "before").await;
    let (namespace, process) = (scene.namespace().to_owned(), setup.controller().await);

    setup.replace_authority().await.unwrap();
    until_served(&setup).await;
    let namespaces = scene.cluster_api::<Namespace>();
    assert!(namespaces.get(&namespace).await.is_err(), "this client trusts the old authority");
    let scene = Scene::new(&setup).await;
    let leases: Api<Lease> = Api::namespaced(scene.client(), SYSTEM);
    let renewed = async || leases.get(CONTROLLER).await.unwrap().spec.unwrap().renew_time;
    let before = renewed().await;
    until("a renewal of the lease", 2 * within(), async || renewed().await != before).await;
    let log = setup.log();
    assert!(log.contains("invalid peer certificate: "), "{log}");
    serve(&scene, "after").await;
    let now = setup.controller().await;
    assert_eq!((now.pid, now.restarts), (process.pid, 0), "{}", setup.log());
}

/// The certificate that the API server presents to a client that trusts only the cluster's authority.
fn served_certificate(cluster: &Cluster) -> CertificateDer<'static> {
    let kubeconfig = Kubeconfig::read_from(cluster.folder().kubeconfig()).unwrap();
    let server = kubeconfig.clusters[0].cluster.as_ref().unwrap().server.clone().unwrap();
    let address = server.strip_prefix("https://").unwrap();
    let (host, _) = address.rsplit_once(':').unwrap();

    let mut roots = RootCertStore::empty();
    roots.add(certificate(cluster, "ca.crt")).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).unwrap();
    }
    connection.peer_certificates().unwrap()[0].clone().into_owned()
}

fn certificate(cluster: &Cluster, file: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(cluster.folder().root().join("credentials").join(file)).unwrap()
}
