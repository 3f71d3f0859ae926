//! The folder of a model on this machine: what is in place, what is on its way, and nothing outside of it.
//!
//! Beside the model it holds `.model-transfer.jsonl`, which says what was placed and how it was checked, and while a
//! transfer is under way `.model-transfer.partial/`. Engines that scan the folder see files of the model only when they
//! are whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use sha2::{Digest as _, Sha256};

use super::{
    object::Object,
    partial::{self, Partial, no_link},
};
use crate::{
    digest::Proof,
    fault::{Cause, Fault},
};

const RECORD: &str = ".model-transfer.jsonl";
const PARTIALS: &str = ".model-transfer.partial";
/// In `PARTIALS`: the exit code that the run before this one ended with.
const TOLD: &str = "told";

/// One line of the record.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Placed {
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) version: String,
    pub(super) proof: Proof,
    /// Of a file that was not waited for until it was on disk: the boot of the machine that holds it in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) boot: Option<String>,
}

#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    partials: PathBuf,
    /// Of this boot of the machine; what another one left without waiting for the disk is not trusted.
    boot: String,
    /// Whether a file is on disk before it is in its place.
    syncs: bool,
    record: Mutex<File>,
}

impl Folder {
    pub(super) fn open(root: &Path, syncs: bool) -> Result<Self, Fault> {
        let partials = root.join(PARTIALS);
        fs::create_dir_all(root).map_err(Fault::io("create", root))?;
        in_folder(root, Path::new(PARTIALS)).map_err(Fault::io("create", &partials))?;
        let path = root.join(RECORD);
        let record = no_link().create(true).append(true).open(&path).map_err(Fault::io("open", &path))?;
        // Where there is none (not on Linux) a crash of the machine during a transfer is not noticed.
        let boot =
            fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        Ok(Self { root: root.to_owned(), partials, boot, syncs, record: Mutex::new(record) })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn syncs(&self) -> bool {
        self.syncs
    }

    pub(super) fn boot(&self) -> &str {
        &self.boot
    }

    /// What was placed, by path. A line that was cut off by a kill, or that is none of ours, is as good as none.
    pub(super) fn record(&self) -> BTreeMap<String, Placed> {
        let text = fs::read_to_string(self.root.join(RECORD)).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Placed>(line).ok());
        lines.map(|placed| (placed.path.clone(), placed)).collect()
    }

    /// The sizes of recorded files that are there.
    pub(super) fn sizes(&self, record: &BTreeMap<String, Placed>) -> BTreeMap<String, u64> {
        let size = |path: &String| {
            let metadata = self.root.join(path).symlink_metadata().ok()?;
            metadata.is_file().then(|| (path.clone(), metadata.len()))
        };
        record.keys().filter_map(size).collect()
    }

    /// The file on its way, with what is already there of it. Blocks.
    pub(super) fn partial(&self, object: &Object) -> io::Result<Partial> {
        Partial::open(&self.partials.join(name(object)), object, &self.boot)
    }

    /// Bytes that the volume already gave to the file on its way.
    pub(super) fn held_by(&self, object: &Object) -> u64 {
        crate::space::held_by(&partial::data_path(&self.partials.join(name(object))))
    }

    /// Removes what is on its way and no longer wanted.
    pub(super) fn drop_partials_but(&self, objects: &[Object]) -> Result<(), Fault> {
        let wanted: BTreeSet<String> = objects.iter().map(name).collect();
        let entries = fs::read_dir(&self.partials).map_err(Fault::io("read", &self.partials))?;
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let is_link = path.is_symlink();
            let is_wanted =
                !is_link && path.file_stem().is_some_and(|stem| wanted.contains(&*stem.to_string_lossy()));
            if !is_wanted && (is_link || !path.ends_with(TOLD)) {
                fs::remove_file(&path).map_err(Fault::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Puts a whole and checked file in its place. Blocks.
    pub(super) fn place(&self, object: &Object, partial: &Partial, proof: Proof) -> Result<(), Fault> {
        let placing = || {
            if self.syncs {
                partial.data().sync_all()?;
            }
            self.rename(partial.stem(), &object.path)?;
            fs::remove_file(partial::progress_path(partial.stem()))
        };
        placing().map_err(Fault::io("place", self.root.join(&object.path)))?;
        self.note(object, proof)
    }

    /// The same for a file that was not on its way before. Blocks.
    pub(super) fn place_bytes(&self, object: &Object, bytes: &[u8], proof: Proof) -> Result<(), Fault> {
        let stem = self.partials.join(name(object));
        let placing = || {
            let file = write(&partial::data_path(&stem), bytes)?;
            if self.syncs {
                file.sync_all()?;
            }
            self.rename(&stem, &object.path)
        };
        placing().map_err(Fault::io("place", self.root.join(&object.path)))?;
        self.note(object, proof)
    }

    fn rename(&self, stem: &Path, path: &str) -> io::Result<()> {
        if let Some(parent) = Path::new(path).parent() {
            in_folder(&self.root, parent)?;
        }
        fs::rename(partial::data_path(stem), self.root.join(path))
    }

    fn note(&self, object: &Object, proof: Proof) -> Result<(), Fault> {
        let Object { path, size, version, .. } = object.clone();
        let boot = (!self.syncs).then(|| self.boot.clone());
        let placed = Placed { path, size, version, proof, boot };
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.write_all(&line(&placed)).map_err(Fault::io("write", self.root.join(RECORD)))
    }

    /// Removes what left the model and what is of use only on the way, and says how the files were checked.
    pub(super) fn finish(&self, stale: &[String]) -> Result<String, Fault> {
        for path in stale {
            // The record is a file that others may have written: it names nothing outside either.
            if crate::keys::relative_path(path, "").is_ok_and(|path| path.is_some()) {
                self.remove_stale(path)?;
            }
        }
        let mut record = self.record();
        record.retain(|path, _| !stale.contains(path));
        if self.syncs {
            self.sync(&mut record)?;
        }
        let text: Vec<u8> = record.values().flat_map(line).collect();
        let (path, new) = (self.root.join(RECORD), self.partials.join(RECORD));
        write(&new, &text).map_err(Fault::io("write", &new))?;
        fs::rename(&new, &path).map_err(Fault::io("write", &path))?;
        fs::remove_dir_all(&self.partials).map_err(Fault::io("remove", &self.partials))?;
        Ok(summary(&record))
    }

    /// Waits for what an earlier run did not wait for.
    fn sync(&self, record: &mut BTreeMap<String, Placed>) -> Result<(), Fault> {
        for placed in record.values_mut().filter(|placed| placed.boot.is_some()) {
            let path = self.root.join(&placed.path);
            File::open(&path).and_then(|file| file.sync_all()).map_err(Fault::io("write", &path))?;
            placed.boot = None;
        }
        Ok(())
    }

    fn remove_stale(&self, path: &str) -> Result<(), Fault> {
        let place = self.root.join(path);
        let parent = Path::new(path).parent().unwrap_or(Path::new(""));
        if !is_plain_folder(&self.root, parent) {
            return Ok(());
        }
        match fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Fault::io("remove", place)(error)),
            _ => Ok(()),
        }
    }

    /// Whether the volume takes `A` and `a` for two names.
    pub(super) fn tells_case_apart(&self) -> Result<bool, Fault> {
        let upper = self.partials.join("CASE");
        write(&upper, b"").map_err(Fault::io("write", &upper))?;
        let told_apart = !self.partials.join("case").exists();
        fs::remove_file(&upper).map_err(Fault::io("remove", &upper))?;
        Ok(told_apart)
    }

    /// The exit code that the run before this one ended with, if it failed.
    pub(super) fn told(&self) -> Option<u8> {
        fs::read_to_string(self.partials.join(TOLD)).ok()?.trim().parse().ok()
    }

    /// Best effort: on a full volume there is no room even for that.
    pub(super) fn tell(&self, cause: Cause) {
        if let Err(error) = write(&self.partials.join(TOLD), cause.exit_code().to_string().as_bytes()) {
            tracing::debug!(%error, "failed to leave a note for the next run");
        }
    }
}

/// Of the files of an object on its way; keys may be longer than a file's name.
fn name(object: &Object) -> String {
    Sha256::digest(&object.path).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn line(placed: &Placed) -> Vec<u8> {
    // A struct of strings and numbers cannot fail to become JSON.
    let mut line = serde_json::to_vec(placed).unwrap_or_default();
    line.push(b'\n');
    line
}

fn summary(record: &BTreeMap<String, Placed>) -> String {
    let (mut by_sha256, mut by_md5, mut by_length) = (0, 0, 0);
    for placed in record.values() {
        match placed.proof {
            Proof::Sha256(_) => by_sha256 += 1,
            Proof::Md5 => by_md5 += 1,
            Proof::Length => by_length += 1,
        }
    }
    format!("files checked by SHA-256: {by_sha256}, by MD5: {by_md5}, by length only: {by_length}")
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut file = no_link().write(true).create(true).truncate(true).open(path)?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Creates a folder below the root, following no link on the way: a link that was there before could lead anywhere.
fn in_folder(root: &Path, below: &Path) -> io::Result<()> {
    let mut folder = root.to_owned();
    for name in below.components() {
        folder.push(name);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ if folder.symlink_metadata()?.is_dir() => {}
            _ => {
                let why = format!("{} is in the way: it is no folder", folder.display());
                return Err(io::Error::new(io::ErrorKind::NotADirectory, why));
            }
        }
    }
    Ok(())
}

fn is_plain_folder(root: &Path, below: &Path) -> bool {
    let mut folder = root.to_owned();
    below.components().all(|name| {
        folder.push(name);
        folder.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::digest::Expected;

    fn object(path: &str, content: &[u8]) -> Object {
        Object {
            key: path.into(),
            path: path.to_owned(),
            size: content.len() as u64,
            etag: None,
            changed: 0,
            version: "v1".to_owned(),
            expected: Expected::Nothing,
        }
    }

    fn place(folder: &Folder, path: &str, content: &[u8]) -> Result<(), Fault> {
        let object = object(path, content);
        let partial = folder.partial(&object).unwrap();
        partial.write(0, content).unwrap();
        folder.place(&object, &partial, Proof::Length)
    }

    #[test]
    fn a_placed_file_is_recorded_and_nothing_else_is_left() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), true).unwrap();
        place(&folder, "sub/folder/a", b"abc").unwrap();
        folder.finish(&[]).unwrap();
        assert_eq!(fs::read(root.path().join("sub/folder/a")).unwrap(), b"abc");
        let record = folder.record();
        assert_eq!(folder.sizes(&record), [("sub/folder/a".to_owned(), 3)].into());
        let mut left: Vec<_> =
            fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [RECORD, "sub"]);
    }

    #[test]
    fn a_link_that_leads_out_of_the_folder_is_not_followed() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(outside.path(), root.path().join("sub")).unwrap();
        let folder = Folder::open(root.path(), true).unwrap();
        let fault = place(&folder, "sub/a", b"abc").unwrap_err();
        assert!(fault.to_string().contains("it is no folder"), "{fault}");
        fs::write(outside.path().join("precious"), "x").unwrap();
        folder.finish(&["sub/precious".to_owned(), "../precious".to_owned()]).unwrap();
        assert!(outside.path().join("precious").exists());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn links_in_the_place_of_our_own_files_are_not_written_through() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let precious = outside.path().join("precious");
        fs::write(&precious, "x").unwrap();
        let folder = Folder::open(root.path(), true).unwrap();
        let (small, large) = (object("small", b"abc"), object("large", b"abc"));
        let of = |object: &Object| folder.partials.join(name(object));
        let places = [
            partial::data_path(&of(&small)),
            partial::data_path(&of(&large)),
            partial::progress_path(&of(&large)),
            folder.partials.join(TOLD),
            folder.partials.join(RECORD),
            folder.partials.join("CASE"),
        ];
        for place in &places {
            symlink(&precious, place).unwrap();
        }
        folder.place_bytes(&small, b"abc", Proof::Length).unwrap_err();
        folder.partial(&large).unwrap_err();
        folder.tell(Cause::NotFound);
        folder.tells_case_apart().unwrap_err();
        folder.finish(&[]).unwrap_err();
        assert_eq!(fs::read(&precious).unwrap(), b"x");

        // The next attempt removes them and works.
        folder.drop_partials_but(&[small.clone(), large]).unwrap();
        assert!(places.iter().all(|place| !place.is_symlink()));
        folder.place_bytes(&small, b"abc", Proof::Length).unwrap();
        let record = root.path().join(RECORD);
        fs::remove_file(&record).unwrap();
        symlink(&precious, &record).unwrap();
        Folder::open(root.path(), true).unwrap_err();
        assert_eq!(fs::read(&precious).unwrap(), b"x");
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_replaced_and_not_written_through() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let precious = outside.path().join("precious");
        fs::write(&precious, "x").unwrap();
        symlink(&precious, root.path().join("a")).unwrap();
        let folder = Folder::open(root.path(), true).unwrap();
        place(&folder, "a", b"abc").unwrap();
        assert_eq!(fs::read(&precious).unwrap(), b"x");
        assert_eq!(fs::read(root.path().join("a")).unwrap(), b"abc");
    }

    #[test]
    fn stale_files_go_and_those_of_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), true).unwrap();
        place(&folder, "old", b"abc").unwrap();
        fs::write(root.path().join("theirs"), "x").unwrap();
        folder.finish(&["old".to_owned()]).unwrap();
        assert!(!root.path().join("old").exists() && root.path().join("theirs").exists());
        assert!(folder.record().is_empty());
    }

    #[test]
    fn a_record_that_was_cut_off_counts_up_to_its_last_whole_line() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), true).unwrap();
        place(&folder, "a", b"abc").unwrap();
        fs::OpenOptions::new()
            .append(true)
            .open(root.path().join(RECORD))
            .unwrap()
            .write_all(b"{\"path\":\"b")
            .unwrap();
        assert_eq!(folder.record().into_keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn the_next_run_knows_how_this_one_ended() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), true).unwrap();
        assert_eq!(folder.told(), None);
        folder.tell(Cause::NotFound);
        folder.drop_partials_but(&[]).unwrap();
        assert_eq!(Folder::open(root.path(), true).unwrap().told(), Some(11));
    }
}
