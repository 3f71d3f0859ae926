//! Truncated SHA-256 digests.

use sha2::{Digest, Sha256};

/// The first `bytes` bytes of the SHA-256 of `content`, in hexadecimal.
pub fn digest(content: impl AsRef<[u8]>, bytes: usize) -> String {
    Sha256::digest(content).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}
