//! Models, their commits and files.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    sync::Arc,
};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use sha2::{Digest as _, Sha256};

/// A model with its commits.
#[derive(Clone, Debug)]
pub struct Model {
    id: String,
    pub(crate) access: Access,
    /// The newest last.
    pub(crate) commits: Vec<Commit>,
    pub(crate) tags: BTreeMap<String, String>,
}

/// Who may read a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Public,
    /// Everybody sees that it is there; its files need this token.
    Gated(String),
    /// Only this token sees that it is there.
    Private(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Commit {
    pub(crate) id: String,
    pub(crate) files: BTreeMap<String, Content>,
}

/// The bytes of a file.
#[derive(Clone, Debug)]
pub struct Content {
    bytes: Bytes,
    pub(crate) size: u64,
    pub(crate) sha256: String,
    /// The name that git gives to a small file; large ones are kept outside of git.
    pub(crate) blob: Option<String>,
}

#[derive(Clone, Debug)]
enum Bytes {
    Here(Arc<Vec<u8>>),
    File(Arc<File>),
}

impl Model {
    /// A public model whose branch has these files.
    pub fn new(id: &str, files: impl IntoIterator<Item = (String, Content)>) -> Self {
        let (id, access) = (id.to_owned(), Access::Public);
        Self { id, access, commits: Vec::new(), tags: BTreeMap::new() }.with_commit(files)
    }

    #[must_use]
    pub fn with_access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Another commit on the branch, which has these files alone.
    #[must_use]
    pub fn with_commit(mut self, files: impl IntoIterator<Item = (String, Content)>) -> Self {
        let files: BTreeMap<_, _> = files.into_iter().collect();
        let id = commit_of(&self.id, self.commits.len());
        self.commits.push(Commit { id, files });
        self
    }

    /// A tag of the newest commit.
    #[must_use]
    pub fn with_tag(mut self, tag: &str) -> Self {
        let newest = self.commits.last().map(|commit| commit.id.clone()).unwrap_or_default();
        self.tags.insert(tag.to_owned(), newest);
        self
    }

    /// As if its history was written anew: only the newest commit is left.
    #[must_use]
    pub fn with_newest_only(mut self) -> Self {
        self.commits.drain(..self.commits.len().saturating_sub(1));
        self
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn commit(&self, revision: &str) -> Option<&Commit> {
        match revision {
            "main" | "master" => self.commits.last(),
            revision => {
                let id = self.tags.get(revision).map_or(revision, String::as_str);
                self.commits.iter().find(|commit| commit.id == id)
            }
        }
    }
}

/// The name of a commit of a model by its number, the first is 0.
pub fn commit_of(id: &str, number: usize) -> String {
    sha1(&[format!("{id} {number}").as_bytes()])
}

impl Content {
    /// A small file, which git has.
    pub fn small(bytes: &[u8]) -> Self {
        let blob = sha1(&[format!("blob {}\0", bytes.len()).as_bytes(), bytes]);
        Self { blob: Some(blob), ..Self::large(bytes) }
    }

    /// A large file, which the content network has.
    pub fn large(bytes: &[u8]) -> Self {
        let (size, sha256) = (bytes.len() as u64, sha256(bytes));
        Self { bytes: Bytes::Here(Arc::new(bytes.to_vec())), size, sha256, blob: None }
    }

    /// A large file on the disk. Reads it once, for its digest.
    pub fn file(mut file: File) -> io::Result<Self> {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        let mut size = 0;
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            hash.update(&buffer[..count]);
            size += count as u64;
        }
        Ok(Self { bytes: Bytes::File(Arc::new(file)), size, sha256: hex(&hash.finalize()), blob: None })
    }

    pub(crate) fn read(&self, from: u64, buffer: &mut [u8]) -> io::Result<()> {
        match &self.bytes {
            Bytes::Here(bytes) => {
                let from = usize::try_from(from).map_err(io::Error::other)?;
                let found = bytes.get(from..from + buffer.len());
                buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            Bytes::File(file) => file.read_exact_at(buffer, from),
        }
    }
}

/// In hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn sha1(parts: &[&[u8]]) -> String {
    let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    parts.iter().for_each(|part| hash.update(part));
    hex(hash.finish().as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
