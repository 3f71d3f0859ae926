//! Short names of content.

use sha2::{Digest, Sha256};

/// The first bytes of the SHA-256 of this content, two hexadecimal digits each.
pub fn digest(content: impl AsRef<[u8]>, bytes: usize) -> String {
    Sha256::digest(content).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}
