//! The checksum that the headers of an answer promise for an object. Pure.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderMap, StatusCode};

/// The expected checksum of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    Sha256(String),
    /// The name that git gives to the content: SHA-1 of `blob`, its length and its bytes. Hubs list it of small files.
    GitBlob(String),
    Md5(String),
    /// CRC-64/NVME of the whole object.
    Crc64(String),
    /// The ETag of an object that was uploaded in parts is not a digest of its bytes.
    Nothing,
}

impl Expected {
    /// The ETag of an object that was uploaded in one part is its MD5, unless the answer says that it was encrypted.
    pub fn of_etag(etag: Option<&str>) -> Self {
        match etag.map(|etag| etag.trim_matches('"')) {
            Some(digest) if is_hex(digest, 32) => Self::Md5(digest.to_ascii_lowercase()),
            _ => Self::Nothing,
        }
    }

    /// The checksum of the whole object in the headers of an answer. A checksum of a range, or of the checksums of the
    /// parts (`...-12`), is not one of the object's bytes.
    pub fn of_headers(status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        let header = |name: &str| headers.get(name)?.to_str().ok();
        // Metadata that `push` writes.
        if let Some(digest) = header("x-amz-meta-sha256").filter(|digest| is_hex(digest, 64)) {
            return Some(Self::Sha256(digest.to_ascii_lowercase()));
        }
        if status == StatusCode::PARTIAL_CONTENT || header("x-amz-checksum-type") == Some("COMPOSITE") {
            return None;
        }
        let stated = |name: &str, length: usize| {
            let digest = BASE64_STANDARD.decode(header(name)?).ok()?;
            (digest.len() == length).then(|| hex(&digest))
        };
        let sha256 = stated("x-amz-checksum-sha256", 32).map(Self::Sha256);
        sha256.or_else(|| stated("x-amz-checksum-crc64nvme", 8).map(Self::Crc64))
    }
}

/// In lower case.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a text is this many hexadecimal digits.
pub fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
