//! Finds the files of a folder for a push. It must not follow a link out of the folder, and logs each entry that it skips.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustix::fs::OFlags;
use tracing::warn;

use crate::{
    fault::{Cause, Fault},
    keys::{self, OWN_NAMES},
    sums::SHA256SUMS,
};

#[derive(Clone, Debug)]
pub(super) struct LocalFile {
    /// The path below the folder, with slashes as in a key.
    pub(super) path: String,
    /// The path of the file itself, not of a link.
    pub(super) place: PathBuf,
    pub(super) size: u64,
    modified: Option<SystemTime>,
}

impl LocalFile {
    pub(super) fn open(&self) -> Result<File, Fault> {
        // The file may have been replaced by a link since the folder was read.
        let no_link = OFlags::NOFOLLOW.bits().cast_signed();
        let opened = File::options().read(true).custom_flags(no_link).open(&self.place);
        opened.map_err(Fault::io("open", &self.place))
    }

    /// Fails if the file was changed since it was found, because its digest may be of other bytes.
    pub(super) fn is_unchanged(&self) -> Result<(), Fault> {
        let metadata = self.place.symlink_metadata().map_err(Fault::io("look at", &self.place))?;
        if metadata.len() == self.size && metadata.modified().ok() == self.modified {
            return Ok(());
        }
        let message = format!("{} was changed while it was uploaded: upload it again", self.place.display());
        Err(Fault::new(Cause::Changed, message))
    }
}

/// The files and folders to upload, by path.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) files: Vec<LocalFile>,
    /// Folders with nothing to upload below them.
    pub(super) empty_folders: Vec<String>,
}

/// Blocks.
pub(super) fn walk(root: &Path) -> Result<Found, Fault> {
    let real_root = root.canonicalize().map_err(Fault::io("open", root))?;
    let mut found = Vec::new();
    let mut below_root = BTreeSet::new();
    let mut folders = vec![real_root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(Fault::io("read", &folder))? {
            let place = entry.map_err(Fault::io("read", &folder))?.path();
            let kind = place.symlink_metadata().map_err(Fault::io("look at", &place))?.file_type();
            let path = path_below(&real_root, &place)?;
            if path.starts_with(OWN_NAMES) || path == SHA256SUMS {
                // A push writes the list itself, for the files that it has uploaded.
            } else if kind.is_dir() {
                folders.push(place);
                below_root.insert(path);
            } else if kind.is_file() {
                found.push(local_file(path, place)?);
            } else if kind.is_symlink() {
                match target(&real_root, &place) {
                    Some(target) => found.push(local_file(path, target)?),
                    None => {
                        warn!("{path:?} is left out: a link to a folder, out of the folder, or to nothing")
                    }
                }
            } else {
                warn!("{path:?} is left out: not a regular file");
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    let filled: BTreeSet<&str> = found
        .iter()
        .map(|file| &file.path)
        .chain(&below_root)
        .flat_map(|path| path.match_indices('/').map(|(end, _)| &path[..end]))
        .collect();
    let empty_folders = below_root.iter().filter(|path| !filled.contains(path.as_str())).cloned().collect();
    Ok(Found { files: found, empty_folders })
}

/// The file in the folder that a link leads to.
fn target(root: &Path, link: &Path) -> Option<PathBuf> {
    let target = link.canonicalize().ok()?;
    (target.starts_with(root) && target.is_file()).then_some(target)
}

fn local_file(path: String, place: PathBuf) -> Result<LocalFile, Fault> {
    let metadata = place.symlink_metadata().map_err(Fault::io("look at", &place))?;
    Ok(LocalFile { path, place, size: metadata.len(), modified: metadata.modified().ok() })
}

/// The path as in a key. Fails for paths that a pull would refuse.
fn path_below(root: &Path, place: &Path) -> Result<String, Fault> {
    let refused =
        |why: String| Fault::new(Cause::Usage, format!("{place:?} cannot be an object ({why}): rename it"));
    let below = place
        .strip_prefix(root)
        .unwrap_or(place)
        .to_str()
        .ok_or_else(|| refused("its name is not UTF-8".into()))?;
    keys::relative_path(below, "").map_err(|invalid| refused(invalid.to_string()))?;
    Ok(below.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn paths(root: &Path) -> Vec<(String, u64)> {
        walk(root).unwrap().files.into_iter().map(|file| (file.path, file.size)).collect()
    }

    #[test]
    fn all_files_are_found_but_those_of_the_program() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("b/c")).unwrap();
        fs::create_dir_all(root.path().join(".model-transfer.partial")).unwrap();
        for name in ["b/c/d", "a", "SHA256SUMS", "b/SHA256SUMS", ".model-transfer.jsonl", ".hidden"] {
            fs::write(root.path().join(name), name).unwrap();
        }
        assert_eq!(
            paths(root.path()),
            [
                (".hidden".to_owned(), 7),
                ("a".to_owned(), 1),
                ("b/SHA256SUMS".to_owned(), 12),
                ("b/c/d".to_owned(), 5)
            ]
        );
    }

    #[test]
    fn folders_without_anything_to_upload_are_found() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["ensemble/1", "a/b/c", "a/d", ".model-transfer.partial"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("a/d/file"), "x").unwrap();
        symlink("nothing", root.path().join("a/b/c/link")).unwrap();
        assert_eq!(walk(root.path()).unwrap().empty_folders, ["a/b/c", "ensemble/1"]);
    }

    #[test]
    fn links_are_followed_to_files_of_the_folder_only() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("blobs")).unwrap();
        fs::write(at("blobs/1"), "12345").unwrap();
        fs::write(outside.path().join("secret"), "x").unwrap();
        symlink("blobs/1", at("inside")).unwrap();
        symlink(outside.path().join("secret"), at("outside")).unwrap();
        symlink("../../etc/hostname", at("relative")).unwrap();
        symlink("nothing", at("broken")).unwrap();
        symlink(".", at("loop")).unwrap();
        assert_eq!(paths(root.path()), [("blobs/1".to_owned(), 5), ("inside".to_owned(), 5)]);
    }

    #[test]
    fn a_file_that_becomes_a_link_is_not_opened() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "x").unwrap();
        let found = walk(root.path()).unwrap().files.remove(0);
        fs::remove_file(&found.place).unwrap();
        symlink("/etc/hostname", &found.place).unwrap();
        assert!(found.open().is_err());
    }

    #[test]
    fn a_file_that_is_written_to_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "x").unwrap();
        let found = walk(root.path()).unwrap().files.remove(0);
        assert!(found.is_unchanged().is_ok());
        fs::write(root.path().join("a"), "xy").unwrap();
        assert_eq!(found.is_unchanged().unwrap_err().cause, Cause::Changed);
    }

    #[test]
    fn a_name_that_a_pull_would_refuse_is_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a\nb"), "x").unwrap();
        assert_eq!(walk(root.path()).unwrap_err().cause, Cause::Usage);
    }
}
