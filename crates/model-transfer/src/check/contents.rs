//! What a model consists of, as one digest. Pods of one revision answer alike only if they have loaded the same.

use api::{labels, loader::Loaded};
use object_storage::hex;
use sha2::{Digest as _, Sha256};

use crate::fault::{Cause, Fault};

/// The files of a model, in the order in which they are added.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    hash: Sha256,
    files: u64,
    bytes: u64,
}

impl Contents {
    /// `identity`: changes with the content.
    pub(crate) fn add(&mut self, path: &str, size: u64, identity: &str) {
        for part in [path, identity] {
            // Its length first, so that no two lists have the same bytes.
            self.hash.update((part.len() as u64).to_le_bytes());
            self.hash.update(part);
        }
        self.hash.update(size.to_le_bytes());
        self.files += 1;
        self.bytes = self.bytes.saturating_add(size);
    }

    pub(crate) fn loaded(self) -> Loaded {
        let Self { hash, files, bytes } = self;
        Loaded { digest: format!("sha256:{}", hex(&hash.finalize())), files, bytes, commit: String::new() }
    }
}

/// Refuses another model than the pods of this revision have that serve. `expected`: its digest; without such a pod any
/// model is accepted.
pub(crate) fn keep(expected: Option<&str>, place: &str, found: &Loaded) -> Result<(), Fault> {
    let Some(expected) = expected.filter(|expected| **expected != found.digest) else { return Ok(()) };
    let message = format!(
        "{place} was changed: it has {}, and pods of this revision that serve when this container starts have loaded \
         {expected}; restore it, or load it into all pods with a new value of the annotation {}",
        found.digest,
        labels::REFRESH
    );
    Err(Fault::new(Cause::OtherModel, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(files: &[(&str, u64, &str)]) -> String {
        let mut contents = Contents::default();
        files.iter().for_each(|(path, size, identity)| contents.add(path, *size, identity));
        contents.loaded().digest
    }

    #[test]
    fn path_size_and_identity_of_each_file_count() {
        let digest_of_one = digest(&[("a", 1, "x")]);
        assert_eq!(digest_of_one, digest(&[("a", 1, "x")]));
        for other in [&[("a", 1, "y")][..], &[("a", 2, "x")], &[("b", 1, "x")], &[("ax", 1, "")], &[]] {
            assert_ne!(digest(other), digest_of_one, "{other:?}");
        }
    }

    #[test]
    fn another_model_is_refused_and_named() {
        let found = Contents::default().loaded();
        let other = format!("sha256:{}", "a".repeat(64));
        let kept = |expected: Option<&str>| {
            keep(expected, "s3://models/qwen", &found).map_err(|fault| fault.to_string())
        };
        assert_eq!((kept(None), kept(Some(&found.digest))), (Ok(()), Ok(())));
        let refused = kept(Some(&other)).unwrap_err();
        assert!(refused.starts_with("ModelChanged: s3://models/qwen was changed"), "{refused}");
        assert!(refused.contains(&other) && refused.contains(&found.digest), "{refused}");
    }
}
