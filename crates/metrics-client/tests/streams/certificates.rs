//! Who is believed, and that new certificates are used without a restart.

use std::{fs, path::Path, time::Duration};

use metrics_client::{
    args::{AgentsArgs, Security},
    view::Health,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::{
    given::Client,
    source::{Source, snapshot},
};

/// An authority, its certificate and what it signs.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

struct Signed {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn sign(&self, name: &str) -> Signed {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Signed { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

const NAME: &str = "metrics-agent.ai-metrics.svc";

/// Shows this certificate, and admits clients of this authority.
fn source(own: &Signed, clients: &Authority) -> Source {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(&own.certificate, &own.key))
        .client_ca_root(Certificate::from_pem(&clients.pem));
    let source = Source::start_with(tls);
    source.send(snapshot("a", 1));
    source
}

fn write(folder: &Path, servers: &Authority, own: &Signed) {
    fs::write(folder.join("ca.crt"), &servers.pem).unwrap();
    fs::write(folder.join("tls.crt"), &own.certificate).unwrap();
    fs::write(folder.join("tls.key"), &own.key).unwrap();
}

/// As a controller makes it of its options.
fn security(folder: &Path) -> Security {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        agents: AgentsArgs,
    }
    let file =
        |option: &str, name: &str| format!("--metrics-agents-{option}={}", folder.join(name).display());
    let args = ["test".to_owned(), file("ca", "ca.crt"), file("cert", "tls.crt"), file("key", "tls.key")];
    <Cli as clap::Parser>::try_parse_from(args).unwrap().agents.security().unwrap()
}

fn client(folder: &Path) -> Client {
    Client::start_with(security(folder), Duration::ZERO)
}

#[tokio::test]
async fn both_sides_are_checked_and_each_refusal_is_named() {
    let (ca, stranger) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &ca, &ca.sign("scaler-controller"));

    let right = source(&ca.sign(NAME), &ca);
    let trusting = client(folder.path());
    trusting.follows(&right);
    assert_eq!(trusting.has(1).await.health, Health::Live);

    for (own, clients, wanted) in [
        (stranger.sign(NAME), &ca, "it has no certificate that can be trusted"),
        (ca.sign("another.service"), &ca, "it has no certificate that can be trusted"),
        (ca.sign(NAME), &stranger, "it refuses the certificate of this client"),
    ] {
        let wrong = source(&own, clients);
        let client = client(folder.path());
        client.follows(&wrong);
        let named = client
            .until(|view| matches!(&view.health, Health::Unreachable { why, .. } if why.starts_with(wanted)));
        assert!(named.await.latest.is_none());
    }

    let plain = Source::start();
    let client = client(folder.path());
    client.follows(&plain);
    let named = client.until(
        |view| matches!(&view.health, Health::Unreachable { why, .. } if &**why == "it does not speak TLS"),
    );
    named.await;
}

#[tokio::test]
async fn files_that_come_late_or_change_are_used_without_a_restart() {
    let ca = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let source = source(&ca.sign(NAME), &ca);
    let client = client(folder.path());
    client.follows(&source);
    let named = |words: &'static str| {
        client
            .until(move |view| matches!(&view.health, Health::Unreachable { why, .. } if why.contains(words)))
    };
    named("failed to read").await;
    write(folder.path(), &ca, &Authority::new().sign("scaler-controller"));
    named("it refuses the certificate of this client").await;
    write(folder.path(), &ca, &ca.sign("scaler-controller"));
    assert_eq!(client.has(1).await.health, Health::Live);
    // What cannot be used is not used.
    fs::write(folder.path().join("tls.key"), "no key").unwrap();
    drop(source);
}
