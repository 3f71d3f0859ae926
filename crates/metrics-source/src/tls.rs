//! mTLS from files: the certificate of the source, its key, and the authority whose clients it admits. Files that change
//! are loaded again without a restart; files that cannot be used leave the last ones in place.

use std::{path::PathBuf, sync::Arc};

use daemon::pem::{self, LOOK_AGAIN_AFTER, PemError, with_cause};
use rustls::{
    ServerConfig,
    server::{VerifierBuilderError, WebPkiClientVerifier},
};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

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
    #[error(transparent)]
    File(#[from] PemError),
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
        certificate: pem::read(&files.certificate).await?,
        key: pem::read(&files.key).await?,
        client_ca: pem::read(&files.client_ca).await?,
    })
}

/// The configuration that the content gives. Pure.
pub fn config(files: &Files, content: &Content) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = pem::certificates(&files.certificate, &content.certificate)?;
    let key = pem::key(&files.key, &content.key)?;
    let roots = pem::authorities(&files.client_ca, &content.client_ca)?;
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
