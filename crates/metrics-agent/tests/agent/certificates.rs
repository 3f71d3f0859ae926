//! Who is admitted, and that new certificates are used without a restart.

use std::{fs, path::Path};

use fake_nvml::State as Machine;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::{process::Command, time::timeout};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};

use crate::process::{Agent, PATIENCE, Start, Subscriber};

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

fn write(folder: &Path, server: &Signed, clients: &Authority) {
    fs::write(folder.join("tls.crt"), &server.certificate).unwrap();
    fs::write(folder.join("tls.key"), &server.key).unwrap();
    fs::write(folder.join("ca.crt"), &clients.pem).unwrap();
}

fn start(folder: &Path) -> Agent {
    let file = |name: &str| folder.join(name).display().to_string();
    Start::on(Machine::with_gpus(1))
        .with("--listen=0.0.0.0:0")
        .with(format!("--tls-cert={}", file("tls.crt")))
        .with(format!("--tls-key={}", file("tls.key")))
        .with(format!("--tls-client-ca={}", file("ca.crt")))
        .start()
}

/// A stream, if the agent and this client admit one another.
async fn subscribe(agent: &Agent, servers: &Authority, own: Option<&Signed>) -> Option<Subscriber> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config =
        ClientTlsConfig::new().domain_name("agent").ca_certificate(Certificate::from_pem(&servers.pem));
    if let Some(own) = own {
        config = config.identity(Identity::from_pem(&own.certificate, &own.key));
    }
    let address = format!("https://127.0.0.1:{}", agent.grpc.port());
    let channel = Channel::from_shared(address).unwrap().tls_config(config).unwrap().connect().await.ok()?;
    Subscriber::of(channel).await.ok()
}

#[tokio::test]
async fn only_clients_of_the_authority_are_admitted() {
    let (ca, stranger) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &ca.sign("agent"), &ca);
    let agent = start(folder.path());
    subscribe(&agent, &ca, Some(&ca.sign("client"))).await.expect("a client of the authority").next().await;
    assert!(subscribe(&agent, &ca, Some(&stranger.sign("client"))).await.is_none());
    assert!(subscribe(&agent, &ca, None).await.is_none());
    let plain = Channel::from_shared(format!("http://127.0.0.1:{}", agent.grpc.port())).unwrap();
    let plain = plain.connect().await;
    assert!(plain.is_err() || Subscriber::of(plain.unwrap()).await.is_err());
}

#[tokio::test]
async fn new_files_are_used_without_a_restart_and_wrong_ones_are_not() {
    let (ca, next) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &ca.sign("agent"), &ca);
    let agent = start(folder.path());
    let client = ca.sign("client");
    let mut open = subscribe(&agent, &ca, Some(&client)).await.expect("a stream");
    fs::write(folder.path().join("tls.key"), "no key").unwrap();
    agent.says("failed to load new certificates");
    subscribe(&agent, &ca, Some(&client)).await.expect("the last files are in use");
    write(folder.path(), &next.sign("agent"), &next);
    agent.says("loaded new certificates");
    subscribe(&agent, &next, Some(&next.sign("client"))).await.expect("the new files are in use");
    assert!(subscribe(&agent, &next, Some(&client)).await.is_none(), "the old authority is not admitted");
    open.next().await;
}

#[tokio::test]
async fn a_file_that_is_too_large_for_a_certificate_is_refused_before_it_fills_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    write(folder.path(), &authority.sign("agent"), &authority);
    fs::write(folder.path().join("ca.crt"), vec![b'#'; (1 << 20) + 1]).unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let mut agent = Command::new(env!("CARGO_BIN_EXE_metrics-agent"));
    agent.args(["--listen=0.0.0.0:0", "--tls-cert", &file("tls.crt"), "--tls-key", &file("tls.key")]);
    let ended = agent.args(["--tls-client-ca", &file("ca.crt")]).kill_on_drop(true).output();
    let refused = timeout(PATIENCE, ended).await.expect("it ends by itself").unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("ca.crt is larger than 1048576 bytes"), "{text}");
}

#[tokio::test]
async fn beyond_loopback_plain_text_has_to_be_asked_for() {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_metrics-agent"));
    let ended = agent.arg("--listen=0.0.0.0:0").kill_on_drop(true).output();
    let refused = timeout(PATIENCE, ended).await.expect("it ends by itself").unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("--plaintext") && text.contains("--tls-cert"), "{text}");
    drop(Start::on(Machine::with_gpus(1)).with("--listen=0.0.0.0:0").with("--plaintext").start());
}
