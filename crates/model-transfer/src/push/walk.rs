//! Finds the files of a folder for a push. It must not follow a link out of the folder, nor one in its place, and logs each
//! entry that it skips.

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{FileType, Stat};
use tracing::warn;

use crate::{
    digest::sums::SHA256SUMS,
    fault::{Cause, Fault},
    store::keys::{self, OWN_NAMES},
    tree::Tree,
};

/// Folder of what a program has loaded from elsewhere.
const CACHE: &str = ".cache";

#[derive(Clone, Debug)]
pub(super) struct LocalFile {
    /// The path below the folder, with slashes as in a key.
    pub(super) path: String,
    tree: Arc<Tree>,
    /// The path of the file itself, not of a link, below the root of the tree.
    place: PathBuf,
    pub(super) size: u64,
    modified: Modified,
}

/// Seconds since 1970, and nanoseconds; their types differ between architectures.
type Modified = (i128, i128);

impl LocalFile {
    /// A part of the path may have been replaced by a link since the folder was read.
    pub(super) fn open(&self) -> Result<File, Fault> {
        self.tree.read(&self.place).map_err(Fault::io("open", self.shown()))
    }

    /// Fails if the file was changed since it was found, because its digest may be of other bytes.
    pub(super) fn is_unchanged(&self) -> Result<(), Fault> {
        let stat = self.tree.stat(&self.place).map_err(Fault::io("look at", self.shown()))?;
        if size(&stat) == self.size && modified(&stat) == self.modified {
            return Ok(());
        }
        let message =
            format!("{} was changed while it was uploaded: upload it again", self.shown().display());
        Err(Fault::new(Cause::Changed, message))
    }

    /// The path for messages.
    pub(super) fn shown(&self) -> PathBuf {
        self.tree.root().path().join(&self.place)
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
    // What wrote into the volume may have put a link in the place of the folder.
    let tree = Arc::new(Tree::open_unlinked(root).map_err(Fault::io("open", root))?);
    let real_root = root.canonicalize().map_err(Fault::io("open", root))?;
    let mut found = Vec::new();
    let mut below_root = BTreeSet::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        let shown = root.join(&below);
        let folder = tree.existing(&below).map_err(Fault::io("read", &shown))?;
        for name in folder.names().map_err(Fault::io("read", &shown))? {
            let stat = folder.stat(&name).map_err(Fault::io("look at", shown.join(&name)))?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            let place = below.join(name);
            let path = path_of(&place)?;
            if path.starts_with(OWN_NAMES) || path == SHA256SUMS || path == CACHE {
                // A push writes the list itself, for the files that it has uploaded. What a training has loaded is no result.
            } else if kind.is_dir() {
                folders.push(place);
                below_root.insert(path);
            } else if kind.is_file() {
                found.push(local_file(path, &tree, place, &stat));
            } else if kind.is_symlink() {
                match target(&tree, &real_root, &place) {
                    Some((target, stat)) => found.push(local_file(path, &tree, target, &stat)),
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
fn target(tree: &Tree, real_root: &Path, link: &Path) -> Option<(PathBuf, Stat)> {
    let target = real_root.join(link).canonicalize().ok()?;
    let place = target.strip_prefix(real_root).ok()?;
    let stat = tree.stat(place).ok()?;
    FileType::from_raw_mode(stat.st_mode).is_file().then(|| (place.to_owned(), stat))
}

fn local_file(path: String, tree: &Arc<Tree>, place: PathBuf, stat: &Stat) -> LocalFile {
    LocalFile { path, tree: Arc::clone(tree), place, size: size(stat), modified: modified(stat) }
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or_default()
}

fn modified(stat: &Stat) -> Modified {
    (stat.st_mtime.into(), stat.st_mtime_nsec.into())
}

/// The path as in a key. Fails for paths that a pull would refuse.
fn path_of(place: &Path) -> Result<String, Fault> {
    let refused =
        |why: String| Fault::new(Cause::Usage, format!("{place:?} cannot be an object ({why}): rename it"));
    let path = place.to_str().ok_or_else(|| refused("its name is not UTF-8".into()))?;
    keys::relative_path(path, "").map_err(|invalid| refused(invalid.to_string()))?;
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

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
    fn what_a_training_has_loaded_is_no_result() {
        let root = tempfile::tempdir().unwrap();
        for folder in [".cache/hub/models", "checkpoint-5/.cache"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
            fs::write(root.path().join(folder).join("file"), "x").unwrap();
        }
        let found = walk(root.path()).unwrap();
        let paths: Vec<&str> = found.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!((paths, found.empty_folders.len()), (vec!["checkpoint-5/.cache/file"], 0));
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
    fn a_folder_that_is_a_link_is_refused() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("secret"), "x").unwrap();
        for name in ["checkpoint-5", "checkpoint-6/"] {
            let link = root.path().join(name);
            symlink(outside.path(), link.components().collect::<PathBuf>()).unwrap();
            let fault = walk(&link).unwrap_err().to_string();
            assert!(fault.contains(name) && fault.contains("it is a link"), "{fault}");
        }
    }

    #[test]
    fn a_file_that_becomes_a_link_is_not_opened() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "x").unwrap();
        let found = walk(root.path()).unwrap().files.remove(0);
        fs::remove_file(root.path().join("a")).unwrap();
        symlink("/etc/hostname", root.path().join("a")).unwrap();
        assert!(found.open().is_err());
    }

    #[test]
    fn a_file_in_a_folder_that_becomes_a_link_is_not_opened() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        fs::write(root.path().join("a/b/environ"), "x").unwrap();
        symlink("a/b/environ", root.path().join("link")).unwrap();
        let found = walk(root.path()).unwrap().files;
        let paths: Vec<&str> = found.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["a/b/environ", "link"]);
        fs::remove_dir_all(root.path().join("a")).unwrap();
        fs::create_dir(root.path().join("a")).unwrap();
        symlink("/proc/self", root.path().join("a/b")).unwrap();
        for file in found {
            let fault = file.open().unwrap_err().to_string();
            assert!(fault.contains("b is in the way: it is not a folder"), "{fault}");
            file.is_unchanged().unwrap_err();
        }
    }

    #[test]
    fn a_file_that_becomes_a_pipe_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("a");
        fs::write(&place, "x").unwrap();
        let found = walk(root.path()).unwrap().files.remove(0);
        fs::remove_file(&place).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &place, mode).unwrap();
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
