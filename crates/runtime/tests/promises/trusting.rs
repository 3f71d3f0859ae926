//! Whom a client trusts, and what the log says of a server that it does not.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::Arc,
    thread,
    time::Duration,
};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{Api, Client, Config};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use runtime::{
    client::{self, Deadlines, LeaderGuard, WriteGuard},
    clock::Clock,
    process::lease::{Elector, Timings},
    watch::cache::Cache,
};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::given::{Logs, Watched, metrics, one_try};

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A TLS server whose certificate is of this authority. It answers each connection once, with an object.
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
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            let body = r#"{"metadata": {"name": "a"}}"#;
            let length = body.len();
            let answer =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            // A client that does not trust it ends the connection in the handshake.
            if stream.read(&mut [0; 4_096]).is_ok() && stream.write_all(answer.as_bytes()).is_ok() {
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    address
}

/// A client that trusts this authority and no other.
fn client_of(server: SocketAddr, trusted: &CertificateDer<'static>) -> Client {
    let mut config = Config::new(format!("https://{server}").parse().unwrap());
    config.root_cert = Some(vec![trusted.to_vec()]);
    client::build(&config, Deadlines::default(), WriteGuard::Always, metrics(), Clock::default()).unwrap()
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
    logs.until_logged(&["watch failed", "invalid peer certificate: "]).await;
}

#[tokio::test]
async fn a_lease_of_a_server_of_another_authority_says_so() {
    let logs = Logs::capture();
    let timings = Timings {
        duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry: Duration::from_secs(2),
    };
    let guard = LeaderGuard::default();
    let mut elector = Elector::new(distrustful_client(), "demo", "l", "a".to_owned(), timings, guard);
    let (seen, stop) = (Cache::<Lease>::default(), CancellationToken::new());
    tokio::select! {
        _ = elector.lead(&seen, &stop) => panic!("it leads"),
        _ = logs.until_logged(&["failed to get the lease", "invalid peer certificate: "]) => {}
    }
}

/// How long kube trusts what it has read, and a little more.
const READ_AGAIN_WITHIN: Duration = Duration::from_secs(75);
/// There is no event for the moment in which kube reads the file again.
const POLL: Duration = Duration::from_millis(500);

/// kube does this itself, in a pod and, as the process asks for it, with the file of a kubeconfig. So the engine has no
/// part that looks after the file.
#[tokio::test]
async fn a_new_authority_in_the_file_is_trusted_without_a_restart() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (old, new) = (authority(), authority());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.crt");
    fs::write(&file, old.pem()).unwrap();
    let client = |server: SocketAddr| {
        let mut config = Config::new(format!("https://{server}").parse().unwrap());
        config.root_cert = Some(vec![old.der().to_vec()]);
        config.root_cert_file = Some(file.clone());
        client::build(&config, Deadlines::default(), WriteGuard::Always, metrics(), Clock::default()).unwrap()
    };
    let read = async |client: &Client| Api::<ConfigMap>::namespaced(client.clone(), "demo").get("a").await;
    let of_new = client(serve(&new));
    read(&client(serve(&old))).await.expect("it trusts the old one");
    read(&of_new).await.expect_err("it trusts no other one");
    fs::write(&file, new.pem()).unwrap();
    let deadline = Instant::now() + READ_AGAIN_WITHIN;
    while let Err(error) = read(&of_new).await {
        assert!(Instant::now() < deadline, "{error:?}");
        tokio::time::sleep(POLL).await;
    }
}
