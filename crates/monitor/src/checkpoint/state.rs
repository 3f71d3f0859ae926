//! The folder of a worker's state: which files are saved, and how restored ones come into it.
//!
//! Names that begin with a dot are not saved: a worker writes a file under such a name and renames it. Links are not
//! followed.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _},
    path::{Component, Path, PathBuf},
    time::SystemTime,
};

use sha2::{Digest as _, Sha256};

/// Of one state.
pub(crate) const MOST_FILES: usize = 10_000;
const DEEPEST: usize = 16;
const LONGEST_PATH: usize = 1_024;

/// A file of the state as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Below the folder.
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) changed: SystemTime,
}

#[derive(Clone, Debug)]
pub(crate) struct State(pub(crate) PathBuf);

impl State {
    /// In the order of their paths.
    pub(crate) fn files(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        self.walk(Path::new(""), 0, &mut found)?;
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }

    fn walk(&self, below: &Path, depth: usize, found: &mut Vec<Found>) -> io::Result<()> {
        for entry in fs::read_dir(self.0.join(below))? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            if name.starts_with('.') {
                continue;
            }
            let path = below.join(&name);
            // Of the entry itself: a link is neither a folder nor a file.
            let kind = entry.file_type()?;
            if kind.is_dir() && depth < DEEPEST {
                self.walk(&path, depth + 1, found)?;
            } else if kind.is_file() {
                // It may have been renamed meanwhile.
                let Ok(known) = entry.metadata() else { continue };
                if found.len() >= MOST_FILES {
                    return Err(io::Error::other(format!("the state has more than {MOST_FILES} files")));
                }
                let (Some(path), Ok(changed)) = (path.to_str(), known.modified()) else { continue };
                if path.len() <= LONGEST_PATH {
                    found.push(Found { path: path.to_owned(), size: known.len(), changed });
                }
            }
        }
        Ok(())
    }

    pub(crate) fn open(&self, path: &str) -> io::Result<File> {
        File::open(self.0.join(path))
    }

    /// A file to be filled, beside its place.
    pub(crate) fn begin(&self, path: &str) -> io::Result<(File, PathBuf)> {
        let place = self.place(path)?;
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        let name = place.file_name().and_then(|name| name.to_str()).unwrap_or("file");
        let new = place.with_file_name(format!(".{name}.restoring"));
        Ok((File::options().read(true).write(true).create(true).truncate(true).open(&new)?, new))
    }

    pub(crate) fn finish(&self, new: &Path, path: &str) -> io::Result<()> {
        fs::rename(new, self.place(path)?)
    }

    /// Before another checkpoint is tried.
    pub(crate) fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// A manifest is not trusted: its paths stay below the folder.
    fn place(&self, path: &str) -> io::Result<PathBuf> {
        let is_plain = |component: Component<'_>| matches!(component, Component::Normal(_));
        let relative = Path::new(path);
        if path.is_empty() || path.len() > LONGEST_PATH || !relative.components().all(is_plain) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{path:?} is no path of a state"),
            ));
        }
        Ok(self.0.join(relative))
    }
}

/// The digest of a file, which is then at its begin again.
pub(crate) fn sha256(file: &mut File) -> io::Result<(u64, String)> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    let mut size = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => {
                hash.update(buffer.get(..read).unwrap_or_default());
                size += read as u64;
            }
        }
    }
    file.rewind()?;
    let digest = hash.finalize();
    Ok((size, digest.iter().map(|byte| format!("{byte:02x}")).collect()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_are_found_below_folders_and_names_with_a_dot_and_links_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let state = State(folder.path().to_owned());
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/one"), "1").unwrap();
        fs::write(folder.path().join("two"), "22").unwrap();
        fs::write(folder.path().join(".new"), "x").unwrap();
        symlink("/etc/passwd", folder.path().join("link")).unwrap();
        symlink("/etc", folder.path().join("links")).unwrap();
        let found: Vec<(String, u64)> =
            state.files().unwrap().into_iter().map(|file| (file.path, file.size)).collect();
        assert_eq!(found, [("a/b/one".to_owned(), 1), ("two".to_owned(), 2)]);
    }

    #[test]
    fn no_path_of_a_manifest_leaves_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let state = State(folder.path().join("state"));
        for path in ["", "/etc/passwd", "../x", "a/../../x", "./a/.."] {
            assert!(state.begin(path).is_err(), "{path}");
        }
        let (file, new) = state.begin("a/b").unwrap();
        drop(file);
        state.finish(&new, "a/b").unwrap();
        assert!(folder.path().join("state/a/b").exists());
    }
}
