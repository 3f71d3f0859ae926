//! What a file's bytes should be, and whether they are. It claims no more than it has computed.

use std::{fs::File, io, os::unix::fs::FileExt as _, sync::Arc};

use md5::Md5;
use sha2::{Digest as _, Sha256};
use tokio::{sync::watch, task::spawn_blocking};

/// What is known beforehand about the content of a file, beside its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Sha256(String),
    Md5(String),
    /// The ETag of an object that came in parts is no digest of its bytes.
    Nothing,
}

impl Expected {
    /// The ETag of an object that came in one part is its MD5, unless the answer says that it was encrypted.
    pub(crate) fn of_etag(etag: Option<&str>) -> Self {
        match etag.map(|etag| etag.trim_matches('"')) {
            Some(digest) if is_hex(digest, 32) => Self::Md5(digest.to_ascii_lowercase()),
            _ => Self::Nothing,
        }
    }
}

/// How a file that is in place was checked.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Proof {
    Sha256(String),
    Md5,
    Length,
}

/// Hexadecimal digits, this many.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The digest of a file's first `size` bytes, in lower case; `ready` tells how many of them are there by now.
///
/// The file is read behind the bytes that arrive, from memory the system still holds: at the end little is left to do.
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

/// A digest under way.
#[derive(Clone, Debug)]
pub(crate) enum Algorithm {
    Sha256(Sha256),
    Md5(Md5),
}

impl Algorithm {
    /// `None` where there is nothing to compare with.
    pub(crate) fn of(expected: &Expected) -> Option<Self> {
        match expected {
            Expected::Sha256(_) => Some(Self::sha256()),
            Expected::Md5(_) => Some(Self::Md5(Md5::new())),
            Expected::Nothing => None,
        }
    }

    pub(crate) fn sha256() -> Self {
        Self::Sha256(Sha256::new())
    }

    pub(crate) fn over(mut self, bytes: &[u8]) -> Self {
        match &mut self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Md5(hash) => hash.update(bytes),
        }
        self
    }

    /// Blocks while it reads.
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
        let digest = match self {
            Self::Sha256(hash) => hash.finalize().to_vec(),
            Self::Md5(hash) => hash.finalize().to_vec(),
        };
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

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
