//! An open folder, and the entries in it by their names.
//!
//! Every operation is relative to the descriptor of the folder, and follows no link. So a folder that another program
//! replaces by a link leads nowhere else. model-transfer and the monitor read folders that other programs change.
//!
//! Files:
//!
//! - `install.rs`: copies the running program into a folder.
//! - `space.rs`: the free space of a folder, so that a copy does not fill the disk of a node.

#![forbid(unsafe_code)]

pub mod install;
pub mod space;

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::OwnedFd,
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, renameat, statat, unlinkat,
    },
    io::Errno,
};

/// The modes of new folders and files, as the standard library sets them; the umask of the process restricts them.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o777);
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);

#[derive(Debug)]
pub struct Directory {
    descriptor: OwnedFd,
    /// For messages.
    path: PathBuf,
}

impl Directory {
    /// Opens a folder by its path, which may itself be a link.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let descriptor = openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// Opens a folder by its path, whose last part must not be a link.
    pub fn open_unlinked(path: &Path) -> io::Result<Self> {
        // Without a slash at the end, which would follow a link.
        let path: PathBuf = path.components().collect();
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH | OFlags::CLOEXEC;
        let opened = openat(CWD, &path, flags, Mode::empty());
        let descriptor = opened.map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => {
                let why = "it is not a folder, or it is a link: name the folder that it leads to";
                io::Error::new(io::ErrorKind::NotADirectory, why)
            }
            error => error.into(),
        })?;
        Ok(Self { descriptor, path })
    }

    /// For messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A folder in this one.
    pub fn enter(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH | OFlags::CLOEXEC;
        let opened = openat(&self.descriptor, one(name)?, flags, Mode::empty());
        let descriptor = opened.map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => {
                let why = format!("{} is in the way: it is not a folder", name.display());
                io::Error::new(io::ErrorKind::NotADirectory, why)
            }
            error => error.into(),
        })?;
        Ok(Self { descriptor, path: self.path.join(name) })
    }

    /// A folder in this one, created if it does not exist.
    pub fn make(&self, name: &OsStr) -> io::Result<Self> {
        match mkdirat(&self.descriptor, one(name)?, FOLDER_MODE) {
            Ok(()) | Err(Errno::EXIST) => self.enter(name),
            Err(error) => Err(error.into()),
        }
    }

    pub fn open_file(&self, name: impl AsRef<OsStr>, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.descriptor, one(name.as_ref())?, flags, FILE_MODE)?.into())
    }

    /// Opens a regular file for reading. A pipe in its place is an error and is not waited for.
    pub fn read(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let file = self.open_file(name, OFlags::RDONLY | OFlags::NONBLOCK)?;
        if FileType::from_raw_mode(fstat(&file)?.st_mode).is_file() {
            return Ok(file);
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
    }

    /// Of a link its own, not those of its target.
    pub fn stat(&self, name: impl AsRef<OsStr>) -> io::Result<Stat> {
        Ok(statat(&self.descriptor, one(name.as_ref())?, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub fn names(&self) -> io::Result<Vec<OsString>> {
        self.entries()?.collect()
    }

    /// The names as they are read, because a folder may have more than fit into memory.
    pub fn entries(&self) -> io::Result<impl Iterator<Item = io::Result<OsString>> + use<>> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let readable = openat(&self.descriptor, ".", flags, Mode::empty())?;
        Ok(Dir::new(readable)?.filter_map(|entry| match entry {
            Ok(entry) => match entry.file_name().to_bytes() {
                b"." | b".." => None,
                name => Some(Ok(OsString::from_vec(name.to_vec()))),
            },
            Err(error) => Some(Err(error.into())),
        }))
    }

    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.descriptor, one(name.as_ref())?, AtFlags::empty())?)
    }

    pub fn remove_empty(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.descriptor, one(name)?, AtFlags::REMOVEDIR)?)
    }

    /// Moves an entry into another folder, under another name.
    pub fn rename(&self, name: impl AsRef<OsStr>, to: &Directory, new: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(renameat(&self.descriptor, one(name.as_ref())?, &to.descriptor, one(new.as_ref())?)?)
    }
}

/// Fails for what is not the name of one entry, because a path could lead through a link or out of the folder.
fn one(name: &OsStr) -> io::Result<&OsStr> {
    let bytes = name.as_bytes();
    if matches!(bytes, b"" | b"." | b"..") || bytes.contains(&b'/') {
        let why = format!("{} is not the name of a file", name.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_name_is_that_of_one_entry() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("a")).unwrap();
        fs::write(root.path().join("a/b"), "x").unwrap();
        let opened = Directory::open(&root.path().join("a")).unwrap();
        for name in ["", ".", "..", "../a", "a/b", "/etc"] {
            assert!(opened.enter(name.as_ref()).is_err(), "{name:?}");
            assert!(opened.stat(name).is_err() && opened.read(name).is_err(), "{name:?}");
        }
        assert_eq!(opened.names().unwrap(), ["b"]);
    }

    #[test]
    fn a_link_is_no_root_where_none_may_be_followed() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("a")).unwrap();
        symlink("a", root.path().join("link")).unwrap();
        fs::write(root.path().join("file"), "x").unwrap();
        for name in ["a", "a/", "a/.", "link/../a"] {
            Directory::open_unlinked(&root.path().join(name)).unwrap();
        }
        for name in ["link", "link/", "link/.", "file"] {
            let error = Directory::open_unlinked(&root.path().join(name)).unwrap_err();
            assert!(error.to_string().contains("it is a link"), "{name}: {error}");
        }
        Directory::open(&root.path().join("link")).unwrap();
    }

    #[test]
    fn only_regular_files_are_read() {
        let root = tempfile::tempdir().unwrap();
        let opened = Directory::open(root.path()).unwrap();
        symlink("/etc/hostname", root.path().join("link")).unwrap();
        fs::create_dir(root.path().join("folder")).unwrap();
        let pipe = root.path().join("pipe");
        rustix::fs::mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
        fs::write(root.path().join("file"), "x").unwrap();
        for name in ["link", "folder", "pipe", "nothing"] {
            assert!(opened.read(name).is_err(), "{name}");
        }
        assert_eq!(io::read_to_string(opened.read("file").unwrap()).unwrap(), "x");
    }
}
