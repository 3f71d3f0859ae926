//! Expected checksums of files, and their verification. A checksum counts as verified only if it was computed.

use std::{fmt, fs::File, io, os::unix::fs::FileExt as _, sync::Arc};

use crc_fast::CrcAlgorithm;
use md5::Md5;
use object_storage::hex;
pub(crate) use object_storage::{Expected, is_hex};
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use sha2::{Digest as _, Sha256};
use tokio::{sync::watch, task::spawn_blocking};

pub(crate) mod sums;

/// How a file that is in place was checked.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Proof {
    Sha256(String),
    GitBlob,
    Md5,
    Crc64,
    Length,
}

/// The digest of a file's first `size` bytes, in lower case; `ready` is how many of them are written so far.
///
/// The file is read shortly after its bytes are written, from the page cache, so that little remains to do at the end.
pub(crate) async fn following(
    file: Arc<File>,
    size: u64,
    mut algorithm: Algorithm,
    mut ready: watch::Receiver<u64>,
) -> io::Result<String> {
    let mut read = 0;
    while read < size {
        let upto = (*ready.borrow_and_update()).min(size);
        if upto > read {
            let file = Arc::clone(&file);
            algorithm = spawn_blocking(move || algorithm.over_file(&file, read, upto)).await??;
            read = upto;
        } else {
            ready.changed().await.map_err(io::Error::other)?;
        }
    }
    Ok(algorithm.finish())
}

/// A digest that is being computed.
#[derive(Clone, Debug)]
pub(crate) enum Algorithm {
    Sha256(Sha256),
    GitBlob(GitBlob),
    Md5(Md5),
    Crc64(Crc64),
}

impl Algorithm {
    /// `None` if no checksum is expected. `size`: the bytes of the whole file.
    pub(crate) fn of(expected: &Expected, size: u64) -> Option<Self> {
        match expected {
            Expected::Sha256(_) => Some(Self::sha256()),
            Expected::GitBlob(_) => Some(Self::GitBlob(GitBlob::new(size))),
            Expected::Md5(_) => Some(Self::Md5(Md5::new())),
            Expected::Crc64(_) => Some(Self::Crc64(Crc64::default())),
            Expected::Nothing => None,
        }
    }

    pub(crate) fn sha256() -> Self {
        Self::Sha256(Sha256::new())
    }

    pub(crate) fn over(mut self, bytes: &[u8]) -> Self {
        match &mut self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(GitBlob(hash)) => hash.update(bytes),
            Self::Md5(hash) => hash.update(bytes),
            Self::Crc64(crc) => crc.update(bytes),
        }
        self
    }

    /// Adds bytes of a file. Blocks.
    pub(crate) fn over_file(mut self, file: &File, from: u64, upto: u64) -> io::Result<Self> {
        const BUFFER: u64 = 256 * 1024;
        let mut buffer = vec![0; BUFFER.min(upto - from) as usize];
        let mut at = from;
        while at < upto {
            let length = BUFFER.min(upto - at) as usize;
            let bytes = &mut buffer[..length];
            file.read_exact_at(bytes, at)?;
            self = self.over(bytes);
            at += length as u64;
        }
        Ok(self)
    }

    pub(crate) fn finish(self) -> String {
        match self {
            Self::Sha256(hash) => hex(&hash.finalize()),
            Self::GitBlob(GitBlob(hash)) => hex(hash.finish().as_ref()),
            Self::Md5(hash) => hex(&hash.finalize()),
            Self::Crc64(crc) => crc.finish(),
        }
    }
}

/// The name that git gives to a content.
#[derive(Clone)]
pub(crate) struct GitBlob(Context);

impl GitBlob {
    fn new(size: u64) -> Self {
        let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        hash.update(format!("blob {size}\0").as_bytes());
        Self(hash)
    }
}

impl fmt::Debug for GitBlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GitBlob")
    }
}

/// CRC-64/NVME. The CRCs of consecutive parts can be combined into that of the whole.
#[derive(Clone, Debug)]
pub(crate) struct Crc64(crc_fast::Digest);

impl Default for Crc64 {
    fn default() -> Self {
        Self(crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme))
    }
}

impl Crc64 {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds the bytes that follow.
    pub(crate) fn append(&mut self, next: &Self) {
        self.0.combine(&next.0);
    }

    /// Adds bytes of a file. Blocks.
    pub(crate) fn over_file(self, file: &File, from: u64, upto: u64) -> io::Result<Self> {
        match Algorithm::Crc64(self).over_file(file, from, upto)? {
            Algorithm::Crc64(crc) => Ok(crc),
            Algorithm::Sha256(_) | Algorithm::GitBlob(_) | Algorithm::Md5(_) => {
                Err(io::Error::other("another algorithm"))
            }
        }
    }

    pub(crate) fn finish(&self) -> String {
        format!("{:016x}", self.0.finalize())
    }
}

/// SHA-256 of a whole text.
pub(crate) fn of_text(text: &[u8]) -> String {
    Algorithm::sha256().over(text).finish()
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_name_of_git_counts_the_length() {
        let name = |text: &[u8]| {
            let expected = Expected::GitBlob(String::new());
            Algorithm::of(&expected, text.len() as u64).map(|algorithm| algorithm.over(text).finish())
        };
        assert_eq!(name(b"").as_deref(), Some("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"));
        assert_eq!(name(b"hello\n").as_deref(), Some("ce013625030ba8dba906f756967f9e9ca394464a"));
    }

    #[test]
    fn only_the_etag_of_one_part_is_a_digest() {
        let md5 = "d41d8cd98f00b204e9800998ecf8427e";
        assert_eq!(Expected::of_etag(Some(&format!("\"{md5}\""))), Expected::Md5(md5.to_owned()));
        assert_eq!(Expected::of_etag(Some(&md5.to_uppercase())), Expected::Md5(md5.to_owned()));
        for etag in [
            None,
            Some(""),
            Some("\"\""),
            Some(&*format!("{md5}-3")),
            Some("zzzz8cd98f00b204e9800998ecf8427e"),
        ] {
            assert_eq!(Expected::of_etag(etag), Expected::Nothing, "{etag:?}");
        }
    }

    fn stated(status: u16, headers: &[(&'static str, &str)]) -> Option<Expected> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        Expected::of_headers(StatusCode::from_u16(status).unwrap(), &headers)
    }

    #[test]
    fn the_strongest_checksum_of_the_whole_object_is_taken_from_an_answer() {
        let digest = "ab".repeat(32);
        let sha256 = ("x-amz-checksum-sha256", "q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s=");
        let crc = ("x-amz-checksum-crc64nvme", "rosUhgrKrJU=");
        let metadata = ("x-amz-meta-sha256", digest.as_str());
        assert_eq!(stated(200, &[crc, sha256]), Some(Expected::Sha256(digest.clone())));
        assert_eq!(stated(200, &[crc]), Some(Expected::Crc64("ae8b14860acaac95".to_owned())));
        assert_eq!(stated(206, &[crc, sha256]), None, "of a range");
        assert_eq!(stated(206, &[crc, metadata]), Some(Expected::Sha256(digest.clone())));
        let composite = ("x-amz-checksum-type", "COMPOSITE");
        assert_eq!(stated(200, &[sha256, composite]), None);
        for value in ["rosUhgrKrJU=-3", "rosU", "", "zz"] {
            assert_eq!(stated(200, &[("x-amz-checksum-crc64nvme", value)]), None, "{value}");
        }
        assert_eq!(stated(200, &[("x-amz-meta-sha256", "ab")]), None);
    }

    #[test]
    fn a_crc_of_parts_is_that_of_the_whole() {
        let of = |bytes: &[u8]| {
            let mut crc = Crc64::default();
            crc.update(bytes);
            crc
        };
        assert_eq!(of(b"123456789").finish(), "ae8b14860a799888", "the check value of CRC-64/NVME");
        let mut whole = Crc64::default();
        for part in [&b"123"[..], b"", b"45678", b"9"] {
            whole.append(&of(part));
        }
        assert_eq!(whole.finish(), of(b"123456789").finish());
    }

    #[tokio::test]
    async fn a_file_is_read_as_far_as_it_is_there() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 9]).unwrap();
        file.write_all_at(b"abc", 0).unwrap();
        let (ready, receiver) = watch::channel(1);
        let digest = tokio::spawn(following(
            Arc::new(file.try_clone().unwrap()),
            9,
            Algorithm::Md5(Md5::new()),
            receiver,
        ));
        ready.send(3).unwrap();
        file.write_all_at(b"defghi", 3).unwrap();
        ready.send(9).unwrap();
        assert_eq!(digest.await.unwrap().unwrap(), "8aa99b1f439ff71293e95357bac6fd94");
    }
}
