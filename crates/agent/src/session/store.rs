//! The files of sessions in STATE_DIR: `s-NAME.json`, one for each session.
//!
//! A file is written under a name that begins with `.` and renamed, so a checkpoint has whole files only. The name of a
//! copy that is set aside begins with `.`, so it is in no checkpoint. The caller must not write one session twice at
//! the same time.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use crate::session::{Name, Session};

/// What the bounds of a session add up to is far less. A larger file was not written by this program.
pub(crate) const LARGEST_FILE: u64 = 16 << 20;
const PREFIX: &str = "s-";
const SUFFIX: &str = ".json";
const NEW: &str = ".new-";
/// There is one for each session, so that these files stay few.
const SET_ASIDE: &str = ".set-aside-";

#[derive(Clone, Debug)]
pub(crate) struct Store {
    folder: PathBuf,
}

/// A file that holds no session. It was set aside, if that was possible.
#[derive(Debug)]
pub(crate) struct Damaged {
    pub(crate) file: String,
    pub(crate) why: io::Error,
    /// Why it is still there.
    pub(crate) not_moved: Option<io::Error>,
}

impl Store {
    /// The folder is created if it does not exist. What an interrupted write has left is removed.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // No write leaves a folder, and a folder must not prevent the start.
            if entry.file_name().to_string_lossy().starts_with(NEW) && !entry.file_type()?.is_dir() {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// Reads all sessions, one after the other. A file that cannot be read is an error, because it may hold a session.
    pub(crate) fn read_all(&self, mut each: impl FnMut(Session)) -> io::Result<Vec<Damaged>> {
        let mut damaged = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let file = entry?.file_name().to_string_lossy().into_owned();
            let Some(name) = name_of(&file) else { continue };
            match self.read(&name) {
                Ok(session) => session.into_iter().for_each(&mut each),
                Err(why) if is_damage(&why) => {
                    let not_moved = self.set_aside(&name).err();
                    damaged.push(Damaged { file, why, not_moved });
                }
                Err(why) => return Err(io::Error::new(why.kind(), format!("{file} cannot be read: {why}"))),
            }
        }
        Ok(damaged)
    }

    /// `None`: there is no such session.
    pub(crate) fn read(&self, name: &Name) -> io::Result<Option<Session>> {
        let file = match File::open(self.path(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = Vec::new();
        file.take(LARGEST_FILE + 1).read_to_end(&mut text)?;
        if text.len() as u64 > LARGEST_FILE {
            return Err(no_session(format!("it has more than {LARGEST_FILE} bytes")));
        }
        let session: Session =
            serde_json::from_slice(&text).map_err(|error| no_session(error.to_string()))?;
        if session.name != *name {
            return Err(no_session("it is of another session".to_owned()));
        }
        Ok(Some(session))
    }

    pub(crate) fn write(&self, name: &Name, text: &[u8]) -> io::Result<()> {
        let new = self.folder.join(format!("{NEW}{name}"));
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(text)?;
            // After a power failure the file has either the old or the new content.
            file.sync_data()
        });
        let renamed = written.and_then(|()| fs::rename(&new, self.path(name)));
        if renamed.is_err() {
            // A disk that is full keeps no half of a file. The error of the write is the one to report.
            let _ = fs::remove_file(&new);
        }
        renamed
    }

    /// Nothing reads the copy any more, but it stays until the next copy of this session is set aside.
    pub(crate) fn set_aside(&self, name: &Name) -> io::Result<()> {
        fs::rename(self.path(name), self.aside(name))
    }

    /// As `set_aside`, and the session stays.
    pub(crate) fn copy_aside(&self, name: &Name) -> io::Result<()> {
        fs::copy(self.path(name), self.aside(name)).map(|_| ())
    }

    pub(crate) fn remove(&self, name: &Name) -> io::Result<()> {
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn aside(&self, name: &Name) -> PathBuf {
        self.folder.join(format!("{SET_ASIDE}{name}{SUFFIX}"))
    }

    fn path(&self, name: &Name) -> PathBuf {
        self.folder.join(format!("{PREFIX}{name}{SUFFIX}"))
    }
}

fn no_session(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Whether there is no session in the file, and another attempt gives none.
fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::IsADirectory)
}

/// The session of a file.
fn name_of(file: &str) -> Option<Name> {
    Name::parse(file.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    fn write(store: &Store, text: &str) {
        let session = Session::new(name(text), 1);
        store.write(&session.name, &serde_json::to_vec(&session).unwrap()).unwrap();
    }

    fn files(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn names(store: &Store) -> Vec<String> {
        let mut found = Vec::new();
        assert!(store.read_all(|session| found.push(session.name.to_string())).unwrap().is_empty());
        found.sort();
        found
    }

    #[test]
    fn every_name_of_a_session_is_a_file_that_is_saved() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        for session in ["a", "..", ".hidden", &"x".repeat(128)] {
            write(&store, session);
        }
        assert_eq!(names(&store).len(), 4);
        assert!(files(folder.path()).iter().all(|file| !file.starts_with('.')));
        store.remove(&name("..")).unwrap();
        store.remove(&name("..")).unwrap();
        assert_eq!(store.read(&name("..")).unwrap(), None);
        assert_eq!(names(&store).len(), 3);
    }

    #[test]
    fn a_session_that_is_set_aside_is_in_no_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        write(&store, "a");
        store.set_aside(&name("a")).unwrap();
        assert_eq!(files(folder.path()), [".set-aside-a.json"]);
        assert_eq!(store.read(&name("a")).unwrap(), None);
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_the_others_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        write(&store, "good");
        fs::write(folder.path().join("s-bad.json"), "{").unwrap();
        fs::copy(folder.path().join("s-good.json"), folder.path().join("s-other.json")).unwrap();
        fs::write(folder.path().join("foreign.txt"), "x").unwrap();
        let mut found = Vec::new();
        let damaged = store.read_all(|session| found.push(session.name.to_string())).unwrap();
        let mut damaged: Vec<String> = damaged.into_iter().map(|damaged| damaged.file).collect();
        damaged.sort();
        assert_eq!(
            (found, damaged),
            (vec!["good".to_owned()], vec!["s-bad.json".into(), "s-other.json".into()])
        );
        assert!(files(folder.path()).contains(&".set-aside-bad.json".to_owned()));
    }

    #[test]
    fn a_file_that_cannot_be_read_ends_the_start_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        std::os::unix::fs::symlink("s-a.json", folder.path().join("s-a.json")).unwrap();
        let error = store.read_all(|_| {}).unwrap_err();
        assert!(error.to_string().contains("s-a.json cannot be read"), "{error}");
        assert_eq!(files(folder.path()), ["s-a.json"]);
    }

    #[test]
    fn folders_do_not_prevent_the_start() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["s-a.json", ".new-a", "s-b.json", ".set-aside-b.json/x"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let store = Store::open(folder.path()).unwrap();
        let mut damaged = store.read_all(|_| {}).unwrap();
        damaged.sort_by(|one, other| one.file.cmp(&other.file));
        let moved: Vec<bool> = damaged.iter().map(|damaged| damaged.not_moved.is_none()).collect();
        assert_eq!(moved, [true, false]);
    }

    #[test]
    fn what_an_interrupted_write_has_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".new-a"), "{").unwrap();
        Store::open(folder.path()).unwrap();
        assert_eq!(files(folder.path()), [""; 0]);
    }
}
