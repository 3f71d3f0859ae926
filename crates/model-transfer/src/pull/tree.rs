//! Creates, opens and removes folders below the root. It must not follow a link, which could lead out of the folder.
//!
//! A bounded number of folders stays open, so that a folder is not looked up again for each of its files.

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, unlinkat},
    io::Errno,
};

/// Limit for open folders; models have few.
const MOST_OPEN: usize = 64;
/// The mode that `mkdir` uses; the umask of the process restricts it.
const MODE: Mode = Mode::from_raw_mode(0o777);

#[derive(Debug)]
pub(super) struct Tree {
    root: Arc<OwnedFd>,
    open: Mutex<BTreeMap<PathBuf, Arc<OwnedFd>>>,
}

impl Tree {
    /// Opens an existing root, which may itself be a link.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let root = openat(CWD, root, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root: Arc::new(root), open: Mutex::default() })
    }

    /// A folder below the root, created if it does not exist.
    pub(super) fn folder(&self, below: &Path) -> io::Result<Arc<OwnedFd>> {
        if let Some(folder) = self.opened(below) {
            return Ok(folder);
        }
        let mut folder = Arc::clone(&self.root);
        for name in below.components() {
            match mkdirat(&folder, name.as_os_str(), MODE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            folder = Arc::new(enter(&folder, name.as_os_str().as_ref()).map_err(|error| match error {
                Errno::NOTDIR | Errno::LOOP => {
                    let why = format!("{} is in the way: it is not a folder", name.as_os_str().display());
                    io::Error::new(io::ErrorKind::NotADirectory, why)
                }
                error => error.into(),
            })?);
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MOST_OPEN {
            open.clear();
        }
        open.insert(below.to_owned(), Arc::clone(&folder));
        Ok(folder)
    }

    /// Closes a folder, because another program may have removed it; the next use opens it again.
    pub(super) fn forget(&self, folder: &Path) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(folder);
    }

    /// Removes a file, if it is there, and the folders above it that are empty then.
    pub(super) fn remove_file(&self, path: &Path) -> io::Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        let Ok(folder) = self.existing(parent) else { return Ok(()) };
        match unlinkat(&folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        self.remove_empty(parent);
        Ok(())
    }

    /// Removes a folder, and those above it, as long as they are empty. The root stays.
    pub(super) fn remove_empty(&self, folder: &Path) {
        for folder in folder.ancestors().filter(|folder| !folder.as_os_str().is_empty()) {
            let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else { return };
            self.forget(folder);
            let removed =
                self.existing(parent).and_then(|parent| unlinkat(&parent, name, AtFlags::REMOVEDIR));
            if removed.is_err() {
                return;
            }
        }
    }

    fn opened(&self, below: &Path) -> Option<Arc<OwnedFd>> {
        if below.as_os_str().is_empty() {
            return Some(Arc::clone(&self.root));
        }
        self.open.lock().unwrap_or_else(PoisonError::into_inner).get(below).cloned()
    }

    /// The folder, if it exists and no part of its path is a link.
    fn existing(&self, below: &Path) -> Result<Arc<OwnedFd>, Errno> {
        let mut folder = Arc::clone(&self.root);
        for name in below.components() {
            folder = Arc::new(enter(&folder, name.as_os_str().as_ref())?);
        }
        Ok(folder)
    }
}

fn enter(folder: &OwnedFd, name: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH | OFlags::CLOEXEC;
    openat(folder, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn folders_are_made_and_a_link_or_a_file_in_their_place_is_refused() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(outside.path(), root.path().join("link")).unwrap();
        fs::write(root.path().join("file"), "x").unwrap();
        let tree = Tree::open(root.path()).unwrap();
        tree.folder(Path::new("a/b")).unwrap();
        assert!(root.path().join("a/b").is_dir());
        for wrong in ["link/b", "link", "file/b"] {
            let error = tree.folder(Path::new(wrong)).unwrap_err();
            assert!(error.to_string().contains("it is not a folder"), "{wrong}: {error}");
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_goes_with_the_folders_that_it_leaves_empty_and_never_through_a_link() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let tree = Tree::open(root.path()).unwrap();
        tree.folder(Path::new("a/b")).unwrap();
        fs::write(root.path().join("a/b/c"), "x").unwrap();
        fs::write(root.path().join("a/other"), "x").unwrap();
        tree.remove_file(Path::new("a/b/c")).unwrap();
        assert!(!root.path().join("a/b").exists() && root.path().join("a/other").exists());
        tree.folder(Path::new("a/b")).unwrap();
        assert!(root.path().join("a/b").is_dir(), "made again");

        fs::write(outside.path().join("precious"), "x").unwrap();
        symlink(outside.path(), root.path().join("link")).unwrap();
        tree.remove_file(Path::new("link/precious")).unwrap();
        tree.remove_file(Path::new("nothing/there")).unwrap();
        assert!(outside.path().join("precious").exists());
    }

    #[test]
    fn more_folders_than_stay_open_are_made() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::open(root.path()).unwrap();
        for number in 0..3 * MOST_OPEN {
            tree.folder(Path::new(&number.to_string())).unwrap();
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 3 * MOST_OPEN);
        assert!(tree.open.lock().unwrap().len() <= MOST_OPEN);
    }
}
