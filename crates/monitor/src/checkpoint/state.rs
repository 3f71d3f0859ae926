//! The folder of a worker's state: which files are saved, and how restored ones come into it.
//!
//! Names that begin with a dot are not saved: a worker writes a file under such a name and renames it. Links are not
//! followed, also not those that the worker puts in the place of a file or folder that was found before: this process
//! can read more than the worker may.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _},
    path::{Component, Path, PathBuf},
};

use api::monitor::STATE_BYTES as MOST_BYTES;
use directory::Directory;
use rustix::{fs::FileType, io::Errno};
use sha2::{Digest as _, Sha256};
use tokio::task::spawn_blocking;

use super::{
    SavedFile,
    bounded::{LARGEST_MANIFEST, beyond, beyond_manifest},
};

/// Of one state.
pub(crate) const MOST_FILES: usize = 10_000;
/// Also names that are not saved take time.
const MOST_NAMES: usize = 100_000;
/// Folders in folders.
const DEEPEST: usize = 16;
/// Of a manifest, beside its files: the uids of as many workers before as there may be.
const BESIDE_FILES: u64 = 128 << 10;
pub(crate) const LONGEST_PATH: usize = 1_024;

/// A file of the state as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Below the folder.
    pub(crate) path: String,
    size: u64,
    /// Seconds and nanoseconds since 1970.
    changed: (i64, i64),
}

#[derive(Clone, Debug)]
pub(crate) struct StateFolder(pub(crate) PathBuf);

impl StateFolder {
    /// In the order of their paths.
    pub(crate) async fn files(&self) -> io::Result<Vec<Found>> {
        let folder = self.0.clone();
        off_runtime(move || {
            let mut walk = Walk::default();
            walk.folder(&Directory::open(&folder)?, Path::new(""), 0)?;
            walk.found.sort_by(|one, other| one.path.cmp(&other.path));
            Ok(walk.found)
        })
        .await
    }

    /// `None`: the worker has removed the file, or something else is in its place.
    pub(crate) fn open(&self, path: &str) -> io::Result<Option<File>> {
        let open = || {
            let path = Path::new(path);
            let mut folder = Directory::open(&self.0)?;
            for name in path.parent().into_iter().flatten() {
                folder = folder.enter(name)?;
            }
            folder.read(path.file_name().unwrap_or_default())
        };
        match open() {
            Ok(file) => Ok(Some(file)),
            Err(error) if is_replaced(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A file to be filled, beside its place.
    pub(crate) fn begin(&self, path: &str) -> io::Result<(File, PathBuf)> {
        let place = self.place(path)?;
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        // Files are restored one after the other. The name of a file may be as long as the file system allows.
        let new = place.with_file_name(".restoring");
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
        let is_deep = relative.components().count() > DEEPEST + 1;
        if path.is_empty() || path.len() > LONGEST_PATH || is_deep || !relative.components().all(is_plain) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{path:?} is no path of a state"),
            ));
        }
        Ok(self.0.join(relative))
    }
}

#[derive(Default)]
struct Walk {
    found: Vec<Found>,
    names: usize,
    bytes: u64,
    /// Of the files in the manifest.
    manifest: u64,
}

impl Walk {
    fn folder(&mut self, folder: &Directory, below: &Path, depth: usize) -> io::Result<()> {
        for name in folder.entries()? {
            let name = name?;
            self.names += 1;
            if self.names > MOST_NAMES {
                return Err(beyond(format!("it has more than {MOST_NAMES} names")));
            }
            if name.to_str().is_none_or(|name| name.starts_with('.')) {
                continue;
            }
            // It may have been renamed meanwhile.
            let Ok(known) = folder.stat(&name) else { continue };
            let path = below.join(&name);
            let kind = FileType::from_raw_mode(known.st_mode);
            if kind.is_dir() && depth < DEEPEST {
                match folder.enter(&name) {
                    Ok(entered) => self.folder(&entered, &path, depth + 1)?,
                    Err(error) if is_replaced(&error) => {}
                    Err(error) => return Err(error),
                }
            } else if let Some(path) =
                path.to_str().filter(|path| kind.is_file() && path.len() <= LONGEST_PATH)
            {
                let size = u64::try_from(known.st_size).unwrap_or_default();
                self.bytes = within_bound(self.bytes, size)?;
                self.manifest += in_manifest(path, size);
                if self.manifest > LARGEST_MANIFEST - BESIDE_FILES {
                    return Err(beyond_manifest());
                }
                if self.found.len() >= MOST_FILES {
                    return Err(beyond(format!("the state has more than {MOST_FILES} files")));
                }
                let changed = (known.st_mtime, i64::try_from(known.st_mtime_nsec).unwrap_or_default());
                self.found.push(Found { path: path.to_owned(), size, changed });
            }
        }
        Ok(())
    }
}

/// The bytes of a file in the manifest.
fn in_manifest(path: &str, size: u64) -> u64 {
    let saved = SavedFile { path: path.to_owned(), size, sha256: String::new() };
    // With its digest, and the comma after it.
    serde_json::to_vec(&saved).unwrap_or_default().len() as u64 + 64 + 1
}

/// The bytes of a state with one file more.
pub(crate) fn within_bound(bytes: u64, more: u64) -> io::Result<u64> {
    bytes.checked_add(more).filter(|sum| *sum <= MOST_BYTES).ok_or_else(|| {
        beyond(format!("the files of the state are longer than {} GiB together", MOST_BYTES >> 30))
    })
}

/// Whether a state with files of these sizes would have been saved.
pub(crate) fn is_within_bounds(sizes: impl ExactSizeIterator<Item = u64>) -> bool {
    sizes.len() <= MOST_FILES && sizes.into_iter().try_fold(0, within_bound).is_ok()
}

/// How many folders the paths have: exactly in the order of `StateFolder::files`, and at most otherwise.
pub(crate) fn folders<'p>(paths: impl Iterator<Item = &'p str>) -> usize {
    let (mut count, mut before) = (0, "");
    for path in paths {
        let of_path = folders_of(path);
        let known = folders_of(before).zip(of_path.clone()).take_while(|(one, other)| one == other);
        count += of_path.count() - known.count();
        before = path;
    }
    count
}

fn folders_of(path: &str) -> impl Iterator<Item = &str> + Clone {
    let folders = path.rsplit_once('/').map_or("", |(folders, _)| folders);
    folders.split('/').filter(|name| !name.is_empty())
}

/// Whether something else is there by now: nothing, a link, or what is neither a file nor a folder.
fn is_replaced(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidInput)
        || [Errno::LOOP, Errno::NXIO].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// The digest of at most so many bytes of a file, which is then at its begin again.
pub(crate) async fn sha256(mut file: File, most: u64) -> io::Result<(File, u64, String)> {
    off_runtime(move || {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 64 << 10];
        let (mut left, mut size) = ((&mut file).take(most), 0);
        loop {
            match left.read(&mut buffer)? {
                0 => break,
                read => {
                    hash.update(buffer.get(..read).unwrap_or_default());
                    size += read as u64;
                }
            }
        }
        file.rewind()?;
        let digest = hash.finalize();
        Ok((file, size, digest.iter().map(|byte| format!("{byte:02x}")).collect()))
    })
    .await
}

/// Returns when the content is on the disk.
pub(crate) async fn sync(file: File) -> io::Result<()> {
    off_runtime(move || file.sync_all()).await
}

/// The only thread of the runtime also answers probes.
async fn off_runtime<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    fn pipe(path: &Path) {
        mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).unwrap();
    }

    #[tokio::test]
    async fn files_are_found_below_folders_and_names_with_a_dot_and_links_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder(folder.path().to_owned());
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/one"), "1").unwrap();
        fs::write(folder.path().join("two"), "22").unwrap();
        fs::write(folder.path().join(".new"), "x").unwrap();
        symlink("/etc/passwd", folder.path().join("link")).unwrap();
        symlink("/etc", folder.path().join("links")).unwrap();
        pipe(&folder.path().join("pipe"));
        let found: Vec<(String, u64)> =
            state.files().await.unwrap().into_iter().map(|file| (file.path, file.size)).collect();
        assert_eq!(found, [("a/b/one".to_owned(), 1), ("two".to_owned(), 2)]);
    }

    #[tokio::test]
    async fn a_link_or_a_pipe_that_takes_the_place_of_a_file_or_a_folder_is_not_read() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let state = StateFolder(folder.path().to_owned());
        let place = |name: &str| folder.path().join(name);
        fs::write(outside.path().join("file"), "keys").unwrap();
        fs::create_dir(place("folder")).unwrap();
        for name in ["folder/file", "link", "pipe", "gone", "file"] {
            fs::write(place(name), "1").unwrap();
        }
        let found = state.files().await.unwrap();
        assert_eq!(found.len(), 5);
        for name in ["link", "pipe", "gone"] {
            fs::remove_file(place(name)).unwrap();
        }
        fs::remove_dir_all(place("folder")).unwrap();
        symlink(outside.path(), place("folder")).unwrap();
        symlink(outside.path().join("file"), place("link")).unwrap();
        pipe(&place("pipe"));
        let opened = found.iter().filter(|found| state.open(&found.path).unwrap().is_some());
        assert_eq!(opened.map(|found| found.path.as_str()).collect::<Vec<_>>(), ["file"]);
        assert_eq!(state.files().await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_state_is_bounded_by_the_lengths_of_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder(folder.path().to_owned());
        let sparse = File::create(folder.path().join("sparse")).unwrap();
        sparse.set_len(MOST_BYTES - 1).unwrap();
        fs::write(folder.path().join("one"), "1").unwrap();
        assert_eq!(state.files().await.unwrap().len(), 2);
        fs::write(folder.path().join("one"), "12").unwrap();
        let error = state.files().await.unwrap_err();
        assert!(error.to_string().contains("longer than 10 GiB"), "{error}");
    }

    #[test]
    fn a_manifest_is_bounded_as_a_state_is() {
        assert!(is_within_bounds([MOST_BYTES - 1, 1].into_iter()));
        assert!(!is_within_bounds([MOST_BYTES, 1].into_iter()));
        assert!(!is_within_bounds([u64::MAX, u64::MAX].into_iter()));
        assert!(is_within_bounds(vec![0; MOST_FILES].into_iter()));
        assert!(!is_within_bounds(vec![0; MOST_FILES + 1].into_iter()));
    }

    #[test]
    fn each_folder_of_a_state_counts_once() {
        let count = |paths: &[&str]| folders(paths.iter().copied());
        assert_eq!(count(&[]), 0);
        assert_eq!(count(&["file"]), 0);
        assert_eq!(count(&["a-b/file", "a/b/one", "a/b/two", "a/c/one", "b/b/one", "file"]), 6);
        assert_eq!(count(&["a/one", "b/one", "a/two"]), 3, "not in order");
    }

    #[tokio::test]
    async fn a_digest_is_of_no_more_bytes_than_wanted() {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, b"abcd").unwrap();
        file.rewind().unwrap();
        let (file, size, digest) = sha256(file, 3).await.unwrap();
        assert_eq!(size, 3);
        assert!(digest.starts_with("ba7816bf"), "{digest}");
        assert_eq!(io::read_to_string(file).unwrap(), "abcd");
    }

    #[test]
    fn no_path_of_a_manifest_leaves_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder(folder.path().join("state"));
        for path in ["", "/etc/passwd", "../x", "a/../../x", "./a/.."] {
            assert!(state.begin(path).is_err(), "{path}");
        }
        let (file, new) = state.begin("a/b").unwrap();
        drop(file);
        state.finish(&new, "a/b").unwrap();
        assert!(folder.path().join("state/a/b").exists());
    }
}
