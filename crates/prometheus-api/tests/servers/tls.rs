//! Certificates: of an authority that a Secret names, of another one, for another host, and none at all.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use prometheus_api::{
    Fault, Sample,
    client::{Connections, Limits},
    secret::Authorities,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use scripted_server::{Script, play};
use tokio::{io::AsyncWriteExt as _, net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

use crate::client::{asked, number};

const VALUE: &str = r#"{"status":"success","data":{"resultType":"scalar","result":[1700000000,"12"]}}"#;

struct TlsServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A server whose certificate is of this authority and for this host.
async fn serve(authority: &CertifiedIssuer<'static, KeyPair>, host: &str) -> TlsServer {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
    let certificate: CertificateDer<'static> = params.signed_by(&key, authority).unwrap().der().clone();
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key);
    let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that does not trust it ends the handshake.
            if let Ok(stream) = acceptor.accept(stream).await {
                play(stream, Script::json(VALUE), Arc::<Mutex<Vec<String>>>::default()).await;
            }
        }
    });
    TlsServer { address, task }
}

async fn polled(authorities: &Authorities, url: &str) -> Result<Sample, Fault> {
    let connections = Connections::new(authorities).unwrap();
    number(&connections, &asked(url), Limits::NORMAL).await
}

fn of_secret(authority: &CertifiedIssuer<'static, KeyPair>) -> Authorities {
    Authorities::new("demo/ca", authority.pem().as_bytes()).unwrap()
}

#[tokio::test]
async fn a_server_of_the_named_authority_is_trusted() {
    let authority = authority();
    let server = serve(&authority, "127.0.0.1").await;
    let sample = polled(&of_secret(&authority), &format!("https://{}", server.address)).await;
    assert_eq!(sample.unwrap().value, 12.0);
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_trusted() {
    let server = serve(&authority(), "127.0.0.1").await;
    let url = format!("https://{}", server.address);
    let fault = polled(&of_secret(&authority()), &url).await.unwrap_err();
    assert!(
        matches!(&fault, Fault::Untrusted { secret: Some(secret), .. } if secret == "demo/ca"),
        "{fault}"
    );
    let fault = polled(&Authorities::System, &url).await.unwrap_err();
    assert!(matches!(&fault, Fault::Untrusted { secret: None, .. }), "{fault}");
    assert!(fault.to_string().contains("caSecretName"), "{fault}");
}

#[tokio::test]
async fn a_certificate_for_another_host_is_not_trusted() {
    let authority = authority();
    let server = serve(&authority, "prometheus.example").await;
    let fault = polled(&of_secret(&authority), &format!("https://{}", server.address)).await.unwrap_err();
    assert!(matches!(&fault, Fault::Untrusted { .. }), "{fault}");
}

#[tokio::test]
async fn a_server_without_tls_is_not_one_with_a_wrong_certificate() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let refusing = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        // As Go's server answers a handshake.
        let _ = stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request").await;
        std::future::pending::<()>().await;
    };
    let fault = tokio::select! {
        fault = polled(&Authorities::System, &url) => fault.unwrap_err(),
        () = refusing => panic!("it does not end"),
    };
    assert!(fault.to_string().contains("does not speak TLS: use http://"), "{fault}");
}
