//! Programs that are there already: which version they have, and a folder that joins them with those that were built.

use std::{
    cmp::Ordering,
    fmt::{self, Display},
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use sha2::{Digest as _, Sha256};

use super::lock;
use crate::{Error, Result, machine::process::output_within};

/// A program that prints its version does nothing else; on a busy machine its start alone may take seconds.
const PRINTS_WITHIN: Duration = Duration::from_secs(20);

/// A semantic version without what follows the patch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) patch: u32,
}

impl Version {
    /// The first word of a text that is a version, with or without a leading `v`.
    pub(super) fn in_text(text: &str) -> Option<Self> {
        text.split_whitespace().find_map(|word| {
            let digits = word.trim_start_matches('v').split(['-', '+']).next()?;
            let mut numbers = digits.split('.').map(|number| number.parse().ok());
            let (major, minor, patch) = (numbers.next()??, numbers.next()??, numbers.next()??);
            numbers.next().is_none().then_some(Self { major, minor, patch })
        })
    }

    /// Kubernetes supports components of different patch versions side by side, and so do etcd and KWOK with it.
    pub(super) fn is_same_minor(self, other: Self) -> bool {
        let Self { major, minor, patch: _ } = self;
        (major, minor).cmp(&(other.major, other.minor)) == Ordering::Equal
    }

    /// Of the same minor version, or of the one before or after it: so far kubectl and an API server may be apart.
    pub(super) fn is_beside(self, other: Self) -> bool {
        self.major == other.major && self.minor.abs_diff(other.minor) <= 1
    }

    pub(super) fn minor_only(self) -> String {
        format!("v{}.{}", self.major, self.minor)
    }
}

impl Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The version that the program prints.
pub(super) fn version(program: &Path) -> Result<Version> {
    let is_kubectl = program.file_name().is_some_and(|name| name == "kubectl");
    let args: &[&str] = if is_kubectl { &["version", "--client"] } else { &["--version"] };
    let output = output_within(Command::new(program).args(args), PRINTS_WITHIN)
        .map_err(Error::io("start", program))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Version::in_text(&text).ok_or_else(|| {
        let asked = format!("{} {}", program.display(), args.join(" "));
        Error::invalid("find a version in the output of", asked, text.trim())
    })
}

/// The folder with a link to each of these programs.
pub(super) fn link(cache: &Path, programs: &[PathBuf]) -> Result<PathBuf> {
    let mut hash = Sha256::new();
    for program in programs {
        hash.update(program.as_os_str().as_encoded_bytes());
        hash.update([0]);
    }
    let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let folder = cache.join(format!("given-{hash}"));
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    let _lock = lock(cache)?;
    for program in programs {
        let place = folder.join(program.file_name().unwrap_or_default());
        // The name of the folder depends on the target of each link.
        if !place.is_symlink() {
            symlink(program, &place).map_err(Error::io("create", &place))?;
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_prints_its_version_in_its_own_way() {
        let printed = [
            ("Kubernetes v1.36.3", "v1.36.3"),
            ("Client Version: v1.36.3\nKustomize Version: v5.8.1", "v1.36.3"),
            ("etcd Version: 3.6.8\nGit SHA: Not provided\nGo Version: go1.26.8", "v3.6.8"),
            ("kwok version v0.8.0 go1.26.8 (linux/amd64)", "v0.8.0"),
            ("Kubernetes v1.37.0-alpha.1+abc", "v1.37.0"),
        ];
        for (text, version) in printed {
            assert_eq!(Version::in_text(text).map(|version| version.to_string()).as_deref(), Some(version));
        }
        assert_eq!(Version::in_text("no version 7 here"), None);
    }

    #[test]
    fn the_patch_does_not_matter_and_the_minor_does() {
        let version = |text| Version::in_text(text).unwrap();
        assert!(version("v1.36.0").is_same_minor(version("v1.36.3")));
        assert!(!version("v1.35.3").is_same_minor(version("v1.36.3")));
        assert!(!version("v2.36.3").is_same_minor(version("v1.36.3")));
        assert!(version("v1.9.7") < version("v1.30.0"));
        let beside = |found| version(found).is_beside(version("v1.36.3"));
        assert!(beside("v1.35.9") && beside("v1.37.0") && !beside("v1.34.1") && !beside("v2.36.3"));
    }

    #[test]
    fn the_programs_of_two_folders_are_linked_into_one() {
        let (cache, given, built) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let programs = [given.path().join("etcd"), built.path().join("kwok")];
        for program in &programs {
            fs::write(program, "").unwrap();
        }
        let folder = link(cache.path(), &programs).unwrap();
        assert_eq!(link(cache.path(), &programs).unwrap(), folder);
        assert_eq!(fs::read_link(folder.join("etcd")).unwrap(), programs[0]);
        assert_eq!(fs::read_link(folder.join("kwok")).unwrap(), programs[1]);
        assert_ne!(link(cache.path(), &programs[..1]).unwrap(), folder);
    }
}
