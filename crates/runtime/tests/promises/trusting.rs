//! Whom a client trusts, and what the log says of a server that it does not.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::Arc,
    thread,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Client, Config};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use runtime::{
    cache::Cache,
    client::{self, Deadlines, LeaderGuard, WriteGuard},
    lease::{Elector, Timings},
};
use rustls::{
    ServerConfig, ServerConnection,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use tokio_util::sync::CancellationToken;

use crate::given::{Logs, Watched, metrics, one_try};

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A TLS server whose certificate is of this authority. It gets no further than the handshake.
fn serve(authority: &CertifiedIssuer<'static, KeyPair>) -> SocketAddr {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, authority).unwrap().der().clone();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
    let config = Arc::new(config.unwrap());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the process of the tests.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            // The client refuses it, which is the point.
            let _ = connection.complete_io(&mut stream.unwrap());
        }
    });
    address
}

/// A client that trusts this authority and no other.
fn client_of(server: SocketAddr, trusted: &CertificateDer<'static>) -> Client {
    let mut config = Config::new(format!("https://{server}").parse().unwrap());
    config.root_cert = Some(vec![trusted.to_vec()]);
    client::build(config, Deadlines::default(), WriteGuard::Always, metrics()).unwrap()
}

fn distrustful_client() -> Client {
    // Another test may have installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    client_of(serve(&authority()), authority().der())
}

#[tokio::test]
async fn a_watch_of_a_server_of_another_authority_says_so() {
    let logs = Logs::capture();
    let _watched = Watched::start(distrustful_client(), one_try());
    logs.said(&["watch failed", "invalid peer certificate: "]).await;
}

#[tokio::test]
async fn a_lease_of_a_server_of_another_authority_says_so() {
    let logs = Logs::capture();
    let timings = Timings {
        duration: std::time::Duration::from_secs(15),
        renew_deadline: std::time::Duration::from_secs(10),
        retry: std::time::Duration::from_secs(2),
    };
    let guard = LeaderGuard::default();
    let mut elector = Elector::new(distrustful_client(), "demo", "l", "a".to_owned(), timings, guard);
    let (seen, stop) = (Cache::<Lease>::default(), CancellationToken::new());
    tokio::select! {
        _ = elector.lead(&seen, &stop) => panic!("it leads"),
        _ = logs.said(&["failed to get the lease", "invalid peer certificate: "]) => {}
    }
}
