//! mTLS from files: the certificate of the source, its key, and the authority whose clients it admits. Files that change
//! are loaded again without a restart; files that cannot be used leave the last ones in place.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{VerifierBuilderError, WebPkiClientVerifier},
};
use tokio::{
    io::AsyncReadExt as _,
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// A new certificate is there long before the old one ends, and reading three small files costs nothing.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// A volume that hangs must not stop the reloads for good.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// A bundle of a hundred authorities has a fifth of it.
const LARGEST_FILE: u64 = 1 << 20;
/// HTTP/2, the only protocol of gRPC.
const PROTOCOL: &[u8] = b"h2";

/// PEM files.
#[derive(Clone, Debug)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Authorities of clients.
    pub client_ca: PathBuf,
}

/// Why files are no configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
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
    #[error("no client can be checked")]
    Verifier(#[from] VerifierBuilderError),
    #[error("certificate and key do not fit")]
    Pair(#[from] rustls::Error),
}

/// The content of the files, to see whether they have changed.
#[derive(PartialEq, Eq)]
pub struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Vec<u8>,
}

/// Reads the files.
pub async fn read(files: &Files) -> Result<Content, TlsError> {
    Ok(Content {
        certificate: read_file(&files.certificate).await?,
        key: read_file(&files.key).await?,
        client_ca: read_file(&files.client_ca).await?,
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

/// The configuration that the content gives. Pure.
pub fn config(files: &Files, content: &Content) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(&files.certificate, &content.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&content.key)
        .map_err(|source| TlsError::Pem { path: files.key.clone(), source })?;
    let mut roots = RootCertStore::empty();
    for authority in certificates(&files.client_ca, &content.client_ca)? {
        roots
            .add(authority)
            .map_err(|source| TlsError::Authority { path: files.client_ca.clone(), source })?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|source| TlsError::Pem { path: path.to_owned(), source })?;
    if all.is_empty() { Err(TlsError::Empty { path: path.to_owned() }) } else { Ok(all) }
}

/// Loads the files again when they have changed, until `stop`. What cannot be used is logged once for each change.
pub async fn follow(
    files: Files,
    mut last: Content,
    configs: watch::Sender<Arc<ServerConfig>>,
    stop: CancellationToken,
) {
    let mut last_error = None;
    while stop.run_until_cancelled(sleep(LOOK_AGAIN_AFTER)).await.is_some() {
        let loaded = match read(&files).await {
            Ok(content) if content == last => Ok(()),
            Ok(content) => config(&files, &content).map(|config| {
                configs.send_replace(config);
                last = content;
                info!("loaded new certificates");
            }),
            Err(error) => Err(error),
        };
        let error = loaded.err().map(|error| with_cause(&error));
        if let Some(error) = error.as_ref().filter(|error| last_error.as_ref() != Some(*error)) {
            warn!(error, "failed to load new certificates; the last ones stay in use");
        }
        last_error = error;
    }
}

fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
