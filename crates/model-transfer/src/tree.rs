//! Creates, opens and removes folders below a root, and opens the files in them. It must not follow a link, which could
//! lead out of the root: each part of a path is opened in the folder before it.
//!
//! A bounded number of folders stays open, so that a folder is not looked up again for each of its files.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use directory::Directory;
use rustix::fs::Stat;

/// Limit for open folders; models have few.
const MOST_OPEN: usize = 64;

#[derive(Debug)]
pub(crate) struct Tree {
    root: Arc<Directory>,
    open: Mutex<BTreeMap<PathBuf, Arc<Directory>>>,
}

impl Tree {
    /// Opens an existing root, which may itself be a link.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        Ok(Self::below(Directory::open(root)?))
    }

    /// Opens an existing root, which must not be a link.
    pub(crate) fn open_unlinked(root: &Path) -> io::Result<Self> {
        Ok(Self::below(Directory::open_unlinked(root)?))
    }

    fn below(root: Directory) -> Self {
        Self { root: Arc::new(root), open: Mutex::default() }
    }

    pub(crate) fn root(&self) -> &Directory {
        &self.root
    }

    /// A folder below the root, created if it does not exist.
    pub(crate) fn folder(&self, below: &Path) -> io::Result<Arc<Directory>> {
        if let Some(folder) = self.opened(below) {
            return Ok(folder);
        }
        let mut folder = Arc::clone(&self.root);
        for name in below.iter() {
            folder = Arc::new(folder.make(name)?);
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MOST_OPEN {
            open.clear();
        }
        open.insert(below.to_owned(), Arc::clone(&folder));
        Ok(folder)
    }

    /// A folder below the root that exists.
    pub(crate) fn existing(&self, below: &Path) -> io::Result<Arc<Directory>> {
        let mut folder = Arc::clone(&self.root);
        for name in below.iter() {
            folder = Arc::new(folder.enter(name)?);
        }
        Ok(folder)
    }

    /// Closes a folder, because another program may have removed it; the next use opens it again.
    pub(crate) fn forget(&self, folder: &Path) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(folder);
    }

    /// Opens a regular file for reading.
    pub(crate) fn read(&self, path: &Path) -> io::Result<File> {
        let (folder, name) = parts(path)?;
        self.existing(folder)?.read(name)
    }

    /// Of a link its own, not those of its target.
    pub(crate) fn stat(&self, path: &Path) -> io::Result<Stat> {
        let (folder, name) = parts(path)?;
        self.existing(folder)?.stat(name)
    }

    /// Removes a file, if it is there, and the folders above it that are empty then.
    pub(crate) fn remove_file(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = parts(path)?;
        let Ok(folder) = self.existing(parent) else { return Ok(()) };
        match folder.remove_file(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.remove_empty(parent);
        Ok(())
    }

    /// Removes a folder, and those above it, as long as they are empty. The root stays.
    pub(crate) fn remove_empty(&self, folder: &Path) {
        for folder in folder.ancestors().filter(|folder| !folder.as_os_str().is_empty()) {
            let Ok((parent, name)) = parts(folder) else { return };
            self.forget(folder);
            if self.existing(parent).and_then(|parent| parent.remove_empty(name)).is_err() {
                return;
            }
        }
    }

    fn opened(&self, below: &Path) -> Option<Arc<Directory>> {
        if below.as_os_str().is_empty() {
            return Some(Arc::clone(&self.root));
        }
        self.open.lock().unwrap_or_else(PoisonError::into_inner).get(below).cloned()
    }
}

/// The folder of a file, and its name.
fn parts(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let parts = path.parent().zip(path.file_name());
    parts.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not the path of a file", path.display()))
    })
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
    fn a_path_does_not_lead_out_of_the_root() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("a")).unwrap();
        fs::write(root.path().join("b"), "x").unwrap();
        let tree = Tree::open(&root.path().join("a")).unwrap();
        for path in ["../b", "..", "/etc/hostname", "./../b"] {
            assert!(tree.read(Path::new(path)).is_err() && tree.stat(Path::new(path)).is_err(), "{path}");
            assert!(tree.folder(Path::new(path)).is_err(), "{path}");
        }
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
