//! Certificates and keys from PEM files that may change while a program runs. Reads are bounded in size and time.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{io::AsyncReadExt as _, time::timeout};

/// A new certificate is there long before the old one ends, and reading three small files costs nothing.
pub const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// A volume that hangs must not stop the reloads for good.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// A bundle of a hundred authorities has a fifth of it.
const LARGEST_FILE: u64 = 1 << 20;

/// Why a file has no certificate or key.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
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
}

/// Reads a file.
pub async fn read(path: &Path) -> Result<Vec<u8>, PemError> {
    let limited = async {
        let mut bytes = Vec::new();
        tokio::fs::File::open(path).await?.take(LARGEST_FILE + 1).read_to_end(&mut bytes).await?;
        Ok(bytes)
    };
    let read = timeout(READ_WITHIN, limited).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let bytes = read.map_err(|source| PemError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(PemError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}

/// The certificates of a file; never none.
pub fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|source| PemError::Pem { path: path.to_owned(), source })?;
    if all.is_empty() { Err(PemError::Empty { path: path.to_owned() }) } else { Ok(all) }
}

/// The private key of a file.
pub fn key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|source| PemError::Pem { path: path.to_owned(), source })
}

/// The authorities of a file; never none.
pub fn authorities(path: &Path, pem: &[u8]) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path, pem)? {
        roots.add(authority).map_err(|source| PemError::Authority { path: path.to_owned(), source })?;
    }
    Ok(roots)
}

/// An error in one line, with its cause.
pub fn with_cause(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
