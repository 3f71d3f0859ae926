//! mTLS from files: the authority of the sources, and the certificate and the key of this client. Files that change are
//! loaded again without a restart; files that cannot be used leave the last ones in place.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::AsyncReadExt as _,
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// A new certificate is there long before the old one ends, and reading three small files costs nothing.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// A volume that hangs must not stop the reloads for good.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// A bundle of a hundred authorities has a fifth of it.
const LARGEST_FILE: u64 = 1 << 20;
/// HTTP/2, which is all that gRPC speaks.
const PROTOCOL: &[u8] = b"h2";

/// How sources are spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Security {
    /// Without TLS: the identity of a source is not checked. An explicit option selects it.
    Plain,
    Mutual(Files),
}

/// PEM files, and the name that certificates of sources must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Authorities of sources.
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub server_name: String,
}

/// What connections are made with.
#[derive(Clone)]
pub(crate) enum Credentials {
    Plain,
    Mutual {
        config: Arc<ClientConfig>,
        server_name: ServerName<'static>,
    },
    /// Why there are none.
    Unusable(Arc<str>),
}

/// Why files are no configuration.
#[derive(Debug, thiserror::Error)]
enum TlsError {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is larger than {LARGEST_FILE} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("{} has no usable PEM section", path.display())]
    Pem { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("{} has no certificate", path.display())]
    Empty { path: PathBuf },
    #[error("{} has a certificate that cannot be an authority", path.display())]
    Authority { path: PathBuf, source: rustls::Error },
    #[error("the server name {name:?} is no name")]
    Name { name: String, source: InvalidDnsNameError },
    #[error("certificate and key do not fit")]
    Pair(#[from] rustls::Error),
}

/// The content of the files, to see whether they have changed.
#[derive(PartialEq, Eq)]
struct Content {
    ca: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// Before the files were read.
pub(crate) fn before_the_first_read(security: &Security) -> Credentials {
    match security {
        Security::Plain => Credentials::Plain,
        Security::Mutual(_) => Credentials::Unusable("the certificates have not been read yet".into()),
    }
}

/// Loads the files, and again when they have changed, for ever. What cannot be used is logged once for each change.
pub(crate) async fn follow(files: Files, credentials: &watch::Sender<Credentials>) {
    let mut last = None;
    let mut last_error = None;
    loop {
        let loaded = match read(&files).await {
            Ok(content) if last.as_ref() == Some(&content) => Ok(()),
            Ok(content) => mutual(&files, &content).map(|mutual| {
                if last.replace(content).is_some() {
                    info!("loaded new certificates for metrics agents");
                }
                credentials.send_replace(mutual);
            }),
            Err(error) => Err(error),
        };
        let error = loaded.err().map(|error| with_cause(&error));
        if let Some(error) = error.as_ref().filter(|error| last_error.as_ref() != Some(*error)) {
            warn!(error, "failed to load certificates for metrics agents; those loaded before stay in use");
            if last.is_none() {
                credentials.send_replace(Credentials::Unusable(error.as_str().into()));
            }
        }
        last_error = error;
        sleep(LOOK_AGAIN_AFTER).await;
    }
}

async fn read(files: &Files) -> Result<Content, TlsError> {
    Ok(Content {
        ca: read_file(&files.ca).await?,
        certificate: read_file(&files.certificate).await?,
        key: read_file(&files.key).await?,
    })
}

async fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    let limited = async {
        let mut bytes = Vec::new();
        tokio::fs::File::open(path).await?.take(LARGEST_FILE + 1).read_to_end(&mut bytes).await?;
        Ok(bytes)
    };
    let read = timeout(READ_WITHIN, limited).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let bytes = read.map_err(|source| TlsError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(TlsError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}

/// What the content gives. Pure.
fn mutual(files: &Files, content: &Content) -> Result<Credentials, TlsError> {
    let chain = certificates(&files.certificate, &content.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&content.key)
        .map_err(|source| TlsError::Pem { path: files.key.clone(), source })?;
    let mut roots = RootCertStore::empty();
    for authority in certificates(&files.ca, &content.ca)? {
        roots.add(authority).map_err(|source| TlsError::Authority { path: files.ca.clone(), source })?;
    }
    let server_name = ServerName::try_from(files.server_name.clone())
        .map_err(|source| TlsError::Name { name: files.server_name.clone(), source })?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Credentials::Mutual { config: Arc::new(config), server_name })
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|source| TlsError::Pem { path: path.to_owned(), source })?;
    if all.is_empty() { Err(TlsError::Empty { path: path.to_owned() }) } else { Ok(all) }
}

fn with_cause(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
