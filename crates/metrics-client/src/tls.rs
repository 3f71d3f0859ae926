//! mTLS from files: the authority of the sources, and the certificate and the key of this client. Files that change are
//! loaded again without a restart; files that cannot be used leave the last ones in place.

use std::{path::PathBuf, sync::Arc};

use daemon::pem::{self, LOOK_AGAIN_AFTER, PemError, with_cause};
use rustls::{
    ClientConfig,
    pki_types::{InvalidDnsNameError, ServerName},
};
use tokio::{sync::watch, time::sleep};
use tracing::{info, warn};

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
    #[error(transparent)]
    File(#[from] PemError),
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
        ca: pem::read(&files.ca).await?,
        certificate: pem::read(&files.certificate).await?,
        key: pem::read(&files.key).await?,
    })
}

/// What the content gives. Pure.
fn mutual(files: &Files, content: &Content) -> Result<Credentials, TlsError> {
    let chain = pem::certificates(&files.certificate, &content.certificate)?;
    let key = pem::key(&files.key, &content.key)?;
    let roots = pem::authorities(&files.ca, &content.ca)?;
    let server_name = ServerName::try_from(files.server_name.clone())
        .map_err(|source| TlsError::Name { name: files.server_name.clone(), source })?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Credentials::Mutual { config: Arc::new(config), server_name })
}
