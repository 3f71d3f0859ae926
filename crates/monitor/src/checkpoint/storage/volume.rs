//! Files of a volume that several pods write to: a file has all of its text or does not exist.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use directory::Directory;
use rustix::io::Errno;

use super::{LONGEST_NAME, Listing, is_name};
use crate::checkpoint::HEARTBEAT;

pub(super) fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Atomic: a reader gets either the old or the new text. Two pods or tasks may write the same key at the same time, each
/// into a file of its own.
pub(super) fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let new = write_beside(path, text)?;
    fs::rename(&new, path).inspect_err(|_| remove(&new))
}

/// Writes the text to the disk, into a new file in the same folder that no listing has.
fn write_beside(path: &Path, text: &[u8]) -> io::Result<PathBuf> {
    make_parent(path)?;
    let new = path.with_extension(format!("{:08x}.new", fastrand::u32(..)));
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(text)?;
        file.sync_all()
    });
    // Attempts go on for as long as a volume is full.
    written.inspect_err(|_| remove(&new)).map(|()| new)
}

/// A file that no listing has. One that stays takes space, and no more.
fn remove(new: &Path) {
    let _ = fs::remove_file(new);
}

/// `false`: there is one with this name. The file never has a part of the text, except where the file system has no
/// hard links.
pub(super) fn create(path: &Path, text: &[u8]) -> io::Result<bool> {
    let new = write_beside(path, text)?;
    let linked = fs::hard_link(&new, path);
    remove(&new);
    let created = match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => write_new(path, text),
        linked => linked,
    };
    match created {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

/// `None`: not found. Any other error is returned, because a worker without a heartbeat counts as ended.
fn unless_gone<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// `None`: there is no regular file. A folder is no object, as in a bucket, and a pipe is not waited for.
pub(super) fn open_regular(path: &Path) -> io::Result<Option<File>> {
    use io::ErrorKind::{InvalidInput, NotADirectory, NotFound};
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    match Directory::open(folder).and_then(|folder| folder.read(name)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if matches!(error.kind(), NotFound | NotADirectory | InvalidInput) => Ok(None),
        // A link, and a socket or the writing end of a pipe.
        Err(error)
            if [Errno::LOOP, Errno::NXIO]
                .map(Errno::raw_os_error)
                .contains(&error.raw_os_error().unwrap_or(0)) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

pub(super) fn list_folder(path: &Path, most: usize) -> io::Result<Listing> {
    let Some(entries) = unless_gone(fs::read_dir(path))? else { return Ok(Listing::default()) };
    let mut listing = Listing::default();
    let mut has_odd_name = false;
    for (index, entry) in entries.enumerate() {
        if index >= most {
            // What is not read must not count as absent.
            let folder = path.display();
            let message = format!("{folder} has more than {most} names: remove old ones");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| is_name(name)).map(str::to_owned) else {
            if !std::mem::replace(&mut has_odd_name, true) {
                listing.odd.push(text::cut(name.to_string_lossy().into_owned(), LONGEST_NAME));
            }
            continue;
        };
        let Some(known) = unless_gone(entry.metadata())? else { continue };
        if known.is_dir() && name != HEARTBEAT {
            listing.folders.push(name);
        } else if !known.is_file() {
            listing.odd.push(name);
        } else if !name.ends_with(".new") {
            listing.files.push((name, known.modified()?));
        }
    }
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn only_what_is_not_there_is_left_out_of_a_listing() {
        let read = |kind: io::ErrorKind| unless_gone::<()>(Err(kind.into()));
        assert_eq!(read(io::ErrorKind::NotFound).unwrap(), None);
        for kind in
            [io::ErrorKind::PermissionDenied, io::ErrorKind::TimedOut, io::ErrorKind::StaleNetworkFileHandle]
        {
            assert_eq!(read(kind).unwrap_err().kind(), kind);
        }
    }

    #[test]
    fn a_listing_is_whole_or_an_error() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..=10 {
            File::create(folder.path().join(format!("{number}.new"))).unwrap();
        }
        let refused = list_folder(folder.path(), 10).unwrap_err().to_string();
        assert!(refused.contains(&*folder.path().to_string_lossy()), "{refused}");
        fs::remove_file(folder.path().join("0.new")).unwrap();
        File::create(folder.path().join("heartbeat")).unwrap();
        assert!(list_folder(folder.path(), 10).is_err());
        fs::remove_file(folder.path().join("1.new")).unwrap();
        assert_eq!(list_folder(folder.path(), 10).unwrap().files.len(), 1);
    }

    #[test]
    fn what_is_no_file_and_no_folder_is_odd_and_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        mkfifoat(CWD, at("heartbeat"), Mode::RUSR | Mode::WUSR).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", at("link")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("file"), "text").unwrap();
        fs::write(at("no name"), "text").unwrap();
        let listing = list_folder(folder.path(), 10).unwrap();
        let files: Vec<&str> = listing.files.iter().map(|(name, _)| &**name).collect();
        assert_eq!((files, listing.folders), (vec!["file"], vec!["folder".to_owned()]));
        let mut odd = listing.odd;
        odd.sort_unstable();
        assert_eq!(odd, ["heartbeat", "link", "no name"]);
        for name in ["heartbeat", "link", "folder", "none", "file/none"] {
            assert!(open_regular(&at(name)).unwrap().is_none(), "{name}");
        }
        assert!(open_regular(&at("file")).unwrap().is_some());
    }

    #[test]
    fn a_text_that_cannot_be_written_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("heartbeat");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"text").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn of_two_that_create_a_file_the_first_one_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claims/0000000000");
        assert!(create(&path, b"first").unwrap());
        assert!(!create(&path, b"second").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(folder.path().join("claims")).unwrap().count(), 1);
        // As where there are no hard links.
        assert_eq!(write_new(&path, b"third").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
