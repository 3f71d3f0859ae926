//! The local folder of a model: files in their places, partial files, and the record of both. It must not write outside the
//! folder, nor follow a link in it.
//!
//! Beside the model it has `.model-transfer.jsonl`, which records the placed files and how they were checked,
//! `.model-transfer.lock`, and during a transfer `.model-transfer.partial/`. Engines that scan the folder see only complete
//! files of the model.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use directory::{Directory, space::Volume};
use rustix::{
    fs::{FileType, OFlags},
    system::uname,
};
use sha2::{Digest as _, Sha256};

use super::{
    lock::Lock,
    object::Object,
    partial::{self, Partial},
};
use crate::{
    digest::Proof,
    fault::{Cause, Fault},
    tree::Tree,
};

const RECORD: &str = ".model-transfer.jsonl";
const PARTIALS: &str = ".model-transfer.partial";
/// File in `PARTIALS` with the exit code of the previous run.
const LAST_FAULT: &str = "last-fault";
/// A run that cannot lock the folder ends within a day, see `--timeout-seconds`. After that its partial files are removed,
/// unless a run of the same host resumes them before.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// One line of the record.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Placed {
    /// The path of an empty folder of the model ends with a slash.
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) version: String,
    pub(super) proof: Proof,
    /// The boot of the machine during which the file was written, if the run did not wait until it was on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) boot: Option<String>,
}

#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    volume: Arc<Volume>,
    /// The folder for partial files of all runs that hold the lock.
    shared: Arc<Directory>,
    /// Partial files. `shared`, or where the volume has no locks a folder of this host's runs alone.
    partials: Arc<Directory>,
    /// This boot of the machine. Files of another boot that may not be on disk are fetched again.
    boot: String,
    /// Whether a file is on disk before it is in its place.
    syncs: bool,
    record: Mutex<File>,
    tree: Tree,
    _lock: Lock,
}

impl Folder {
    pub(super) fn create(root: &Path) -> Result<(), Fault> {
        fs::create_dir_all(root).map_err(Fault::io("create", root))
    }

    /// Opens a root that exists.
    pub(super) fn open(root: &Path, volume: Volume, syncs: bool, lock: Lock) -> Result<Self, Fault> {
        // In a pod this is the name of the pod, whose containers do not copy into one folder at the same time: a
        // container that is restarted finds its partial files again.
        let host = uname().nodename().to_string_lossy().into_owned();
        Self::open_as(&host, root, volume, syncs, lock)
    }

    fn open_as(host: &str, root: &Path, volume: Volume, syncs: bool, lock: Lock) -> Result<Self, Fault> {
        let tree = Tree::open(root).map_err(Fault::io("open", root))?;
        let folder = |name: &str| tree.folder(Path::new(name)).map_err(Fault::io("create", root.join(name)));
        let shared = folder(PARTIALS)?;
        let partials = match &lock {
            Lock::Held { .. } => Arc::clone(&shared),
            Lock::Unsupported => folder(&format!("{PARTIALS}.{}", hex(host)))?,
        };
        remove_abandoned(root, partials.path());
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND;
        let record = tree.root().open_file(RECORD, flags).map_err(Fault::io("open", root.join(RECORD)))?;
        // Without it (not on Linux) a crash of the machine during a transfer is not detected.
        let boot =
            fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let (root, volume, record) = (root.to_owned(), Arc::new(volume), Mutex::new(record));
        Ok(Self { root, volume, shared, partials, boot, syncs, record, tree, _lock: lock })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn volume(&self) -> &Volume {
        &self.volume
    }

    pub(super) fn syncs(&self) -> bool {
        self.syncs
    }

    pub(super) fn boot(&self) -> &str {
        &self.boot
    }

    /// Placed files by path. Invalid lines are ignored: one was cut off by a kill, or another program wrote it.
    pub(super) fn record(&self) -> BTreeMap<String, Placed> {
        let text = self.tree.root().read(RECORD).and_then(io::read_to_string).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Placed>(line).ok());
        lines.map(|placed| (placed.path.clone(), placed)).collect()
    }

    /// The sizes of recorded files that exist.
    pub(super) fn sizes(&self, record: &BTreeMap<String, Placed>) -> BTreeMap<String, u64> {
        let size = |path: &String| {
            let stat = self.tree.stat(Path::new(path)).ok()?;
            let size = u64::try_from(stat.st_size).ok()?;
            FileType::from_raw_mode(stat.st_mode).is_file().then(|| (path.clone(), size))
        };
        record.keys().filter_map(size).collect()
    }

    /// The partial file of an object, with the bytes of earlier runs. Blocks.
    pub(super) fn partial(&self, object: &Object) -> io::Result<Partial> {
        Partial::open(&self.partials, &self.volume, &name(object), object, &self.boot, self.syncs)
    }

    /// Bytes that the partial file of an object occupies on the volume: fewer than its length if it has holes.
    pub(super) fn held_by(&self, object: &Object) -> u64 {
        /// The unit of `st_blocks` on every file system.
        const BLOCK: u64 = 512;
        let stat = self.partials.stat(partial::data_name(&name(object)));
        stat.map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or_default() * BLOCK)
    }

    /// Removes the partial files of all other objects.
    pub(super) fn drop_partials_but(&self, objects: &[Object]) -> Result<(), Fault> {
        let wanted: BTreeSet<String> = objects.iter().map(name).collect();
        let read = Fault::io("read", self.partials.path());
        for entry in self.partials.names().map_err(read)? {
            let is_link = self
                .partials
                .stat(&entry)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_symlink());
            let stem = Path::new(&entry).file_stem().unwrap_or_default().to_string_lossy();
            let is_wanted = wanted.contains(&*stem) || entry == LAST_FAULT;
            if is_link || !is_wanted {
                let place = self.partials.path().join(&entry);
                self.partials.remove_file(&entry).map_err(Fault::io("remove", place))?;
            }
        }
        Ok(())
    }

    /// Moves a complete and checked file to its place. Blocks.
    pub(super) fn place(&self, object: &Object, partial: &Partial, proof: Proof) -> Result<(), Fault> {
        let placing = || {
            if self.syncs {
                partial.sync()?;
            }
            self.rename(partial.name(), &object.path)?;
            self.partials.remove_file(partial::progress_name(partial.name()))
        };
        placing().map_err(Fault::io("place", self.root.join(&object.path)))?;
        self.note(object, proof)
    }

    /// Writes a small file and moves it to its place. Blocks.
    pub(super) fn place_bytes(&self, object: &Object, bytes: &[u8], proof: Proof) -> Result<(), Fault> {
        let name = name(object);
        let placing = || {
            self.volume.admit_small(object.size)?;
            let file = write(&self.partials, &partial::data_name(&name), bytes)?;
            if self.syncs {
                file.sync_all()?;
            }
            self.rename(&name, &object.path)
        };
        placing().map_err(Fault::io("place", self.root.join(&object.path)))?;
        self.note(object, proof)
    }

    fn rename(&self, partial: &str, path: &str) -> io::Result<()> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let renamed = || {
            let folder = self.tree.folder(Path::new(folder))?;
            self.partials.rename(partial::data_name(partial), &folder, name)
        };
        match renamed() {
            Err(error) if io::Error::kind(&error) == io::ErrorKind::NotFound => {
                self.tree.forget(Path::new(folder));
                renamed()
            }
            renamed => renamed,
        }
    }

    fn note(&self, object: &Object, proof: Proof) -> Result<(), Fault> {
        let Object { path, size, version, .. } = object.clone();
        let boot = (!self.syncs).then(|| self.boot.clone());
        let placed = Placed { path, size, version, proof, boot };
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.write_all(&line(&placed)).map_err(Fault::io("write", self.root.join(RECORD)))
    }

    /// Creates the empty folders of the model, removes files that are no longer part of it and partial files, and returns how
    /// the files were checked.
    pub(super) fn finish(
        &self,
        stale: &[String],
        empty_folders: &BTreeMap<String, String>,
    ) -> Result<String, Fault> {
        let mut record = self.record();
        let stale_folders: Vec<String> = record
            .keys()
            .filter_map(|path| path.strip_suffix('/'))
            .filter(|path| !empty_folders.contains_key(*path))
            .map(str::to_owned)
            .collect();
        record.retain(|path, _| !stale.contains(path) && !path.ends_with('/'));
        for path in stale {
            // Other programs can write the record; it must not name files outside the folder.
            if crate::store::keys::relative_path(path, "").is_ok_and(|path| path.is_some()) {
                let place = self.root.join(path);
                self.tree.remove_file(Path::new(path)).map_err(Fault::io("remove", place))?;
            }
        }
        for path in &stale_folders {
            if crate::store::keys::relative_path(path, "").is_ok_and(|path| path.is_some()) {
                self.tree.remove_empty(Path::new(path));
            }
        }
        for (path, version) in empty_folders {
            self.tree.folder(Path::new(path)).map_err(Fault::io("create", self.root.join(path)))?;
            let (path, version) = (format!("{path}/"), version.clone());
            let placed = Placed { path: path.clone(), size: 0, version, proof: Proof::Length, boot: None };
            record.insert(path, placed);
        }
        let synced = if self.syncs { self.sync(&mut record) } else { Ok(()) };
        let text: Vec<u8> = record.values().flat_map(line).collect();
        write(&self.partials, RECORD, &text)
            .and_then(|_| self.partials.rename(RECORD, self.tree.root(), RECORD))
            .map_err(Fault::io("write", self.root.join(RECORD)))?;
        synced?;
        for partials in BTreeSet::from([self.partials.path(), self.shared.path()]) {
            // It removes a link in the place of the folder, and does not follow it.
            match fs::remove_dir_all(partials) {
                // A concurrent run removed it, on a volume without locks.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(Fault::io("remove", partials))?,
            }
        }
        Ok(summary(&record))
    }

    /// Waits until files of earlier runs are on disk. A file that cannot be written to disk is removed from the record,
    /// because the system reports such an error once, and the next run would consider the file complete.
    fn sync(&self, record: &mut BTreeMap<String, Placed>) -> Result<(), Fault> {
        let mut failed = None;
        for (path, placed) in record.iter_mut().filter(|(_, placed)| placed.boot.is_some()) {
            let place = self.root.join(path);
            match self.tree.read(Path::new(path)).and_then(|file| file.sync_all()) {
                Ok(()) => placed.boot = None,
                Err(error) => {
                    failed = Some((path.clone(), Fault::io("write", &place)(error)));
                    break;
                }
            }
        }
        let Some((path, fault)) = failed else { return Ok(()) };
        record.remove(&path);
        Err(fault)
    }

    /// Whether `A` and `a` are two files on this volume.
    pub(super) fn distinguishes_case(&self) -> Result<bool, Fault> {
        const UPPER: &str = "CASE";
        let place = || self.partials.path().join(UPPER);
        write(&self.partials, UPPER, b"").map_err(Fault::io("write", place()))?;
        let differ = self.partials.stat(UPPER.to_lowercase()).is_err();
        self.partials.remove_file(UPPER).map_err(Fault::io("remove", place()))?;
        Ok(differ)
    }

    /// The exit code of the previous run, if it failed.
    pub(super) fn last_fault(&self) -> Option<u8> {
        /// A code has up to three digits.
        const LONGEST: u64 = 16;
        let file = self.shared.read(LAST_FAULT).ok()?;
        io::read_to_string(file.take(LONGEST)).ok()?.trim().parse().ok()
    }

    /// Best effort: on a full volume there is no room even for that.
    pub(super) fn note_fault(&self, cause: Cause) {
        if let Err(error) = write(&self.shared, LAST_FAULT, cause.exit_code().to_string().as_bytes()) {
            tracing::debug!(%error, "failed to record the fault for the next run");
        }
    }
}

/// Removes folders of runs without a lock in which nothing was written for a day. Best effort.
fn remove_abandoned(root: &Path, own: &Path) {
    let entries = fs::read_dir(root).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    for path in entries.filter(|path| path != own && is_of_one_run(path)) {
        let age = last_write(&path).and_then(|at| SystemTime::now().duration_since(at).ok());
        if age.is_some_and(|age| age > ABANDONED_AFTER) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

fn is_of_one_run(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_folder = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    is_folder && name.strip_prefix(PARTIALS).is_some_and(|rest| rest.starts_with('.'))
}

fn last_write(folder: &Path) -> Option<SystemTime> {
    let inside = fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.metadata().ok()?.modified().ok());
    inside.chain(folder.symlink_metadata().ok()?.modified().ok()).max()
}

/// The name of an object's partial files without their suffix. A key may be longer than the name of a file.
fn name(object: &Object) -> String {
    hex(&object.path)
}

/// A valid name of a file for any text.
fn hex(text: &str) -> String {
    Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn line(placed: &Placed) -> Vec<u8> {
    // A struct of strings and numbers cannot fail to become JSON.
    let mut line = serde_json::to_vec(placed).unwrap_or_default();
    line.push(b'\n');
    line
}

fn summary(record: &BTreeMap<String, Placed>) -> String {
    let (mut by_sha256, mut by_git, mut by_md5, mut by_crc, mut by_length) = (0, 0, 0, 0, 0);
    for placed in record.values().filter(|placed| !placed.path.ends_with('/')) {
        match placed.proof {
            Proof::Sha256(_) => by_sha256 += 1,
            Proof::GitBlob => by_git += 1,
            Proof::Md5 => by_md5 += 1,
            Proof::Crc64 => by_crc += 1,
            Proof::Length => by_length += 1,
        }
    }
    // Only hubs have files that are checked by it.
    let by_git = if by_git == 0 { String::new() } else { format!(" by git's SHA-1: {by_git},") };
    format!(
        "files checked by SHA-256: {by_sha256},{by_git} by MD5: {by_md5}, by CRC-64: {by_crc}, by length only: \
         {by_length}"
    )
}

fn write(folder: &Directory, name: &str, bytes: &[u8]) -> io::Result<File> {
    let mut file = folder.open_file(name, OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC)?;
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::digest::Expected;

    /// With a size of its own.
    fn volume(root: &Path) -> Volume {
        Volume::of(root, &root.join("none"), "").unwrap()
    }

    fn open(root: &Path) -> Result<Folder, Fault> {
        let _file = tempfile::tempfile().unwrap();
        Folder::open(root, volume(root), true, Lock::Held { _file })
    }

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

    fn finish(folder: &Folder, stale: &[&str]) -> Result<String, Fault> {
        let stale: Vec<String> = stale.iter().map(|path| (*path).to_owned()).collect();
        folder.finish(&stale, &BTreeMap::new())
    }

    #[test]
    fn a_placed_file_is_recorded_and_nothing_else_is_left() {
        let root = tempfile::tempdir().unwrap();
        let folder = open(root.path()).unwrap();
        place(&folder, "sub/folder/a", b"abc").unwrap();
        finish(&folder, &[]).unwrap();
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
        let folder = open(root.path()).unwrap();
        let fault = place(&folder, "sub/a", b"abc").unwrap_err();
        assert!(fault.to_string().contains("it is not a folder"), "{fault}");
        fs::write(outside.path().join("precious"), "x").unwrap();
        finish(&folder, &["sub/precious", "../precious"]).unwrap();
        assert!(outside.path().join("precious").exists());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn links_in_the_place_of_own_files_are_not_written_through() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let precious = outside.path().join("precious");
        fs::write(&precious, "x").unwrap();
        let folder = open(root.path()).unwrap();
        let (small, large) = (object("small", b"abc"), object("large", b"abc"));
        let places = [
            &partial::data_name(&name(&small)),
            &partial::data_name(&name(&large)),
            &partial::progress_name(&name(&large)),
            LAST_FAULT,
            RECORD,
            "CASE",
        ];
        let places = places.map(|name| folder.partials.path().join(name));
        for place in &places {
            symlink(&precious, place).unwrap();
        }
        folder.place_bytes(&small, b"abc", Proof::Length).unwrap_err();
        folder.partial(&large).unwrap_err();
        folder.note_fault(Cause::NotFound);
        folder.distinguishes_case().unwrap_err();
        finish(&folder, &[]).unwrap_err();
        assert_eq!(fs::read(&precious).unwrap(), b"x");

        // The next attempt removes them and works.
        folder.drop_partials_but(&[small.clone(), large]).unwrap();
        assert!(places.iter().all(|place| !place.is_symlink()));
        folder.place_bytes(&small, b"abc", Proof::Length).unwrap();
        let record = root.path().join(RECORD);
        fs::remove_file(&record).unwrap();
        symlink(&precious, &record).unwrap();
        open(root.path()).unwrap_err();
        assert_eq!(fs::read(&precious).unwrap(), b"x");
    }

    #[test]
    fn a_folder_of_partial_files_that_becomes_a_link_is_not_followed() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = open(root.path()).unwrap();
        let (small, large) = (object("small", b"abc"), object("large", b"abc"));
        let partial = folder.partial(&large).unwrap();
        fs::write(outside.path().join("precious"), "x").unwrap();
        let partials = root.path().join(PARTIALS);
        fs::rename(&partials, root.path().join("moved")).unwrap();
        symlink(outside.path(), &partials).unwrap();

        folder.drop_partials_but(&[]).unwrap();
        partial.write(0, b"abc").unwrap();
        drop(folder.place_bytes(&small, b"abc", Proof::Length));
        drop(folder.partial(&large));
        folder.note_fault(Cause::NotFound);
        folder.distinguishes_case().unwrap();
        drop(finish(&folder, &[]));
        let left: Vec<_> =
            fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["precious"]);
        assert_eq!(fs::read(root.path().join("small")).unwrap(), b"abc");
    }

    #[test]
    fn a_file_below_a_link_is_not_in_its_place() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = open(root.path()).unwrap();
        place(&folder, "sub/a", b"abc").unwrap();
        fs::rename(root.path().join("sub"), outside.path().join("sub")).unwrap();
        symlink(outside.path().join("sub"), root.path().join("sub")).unwrap();
        assert!(folder.sizes(&folder.record()).is_empty());
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_replaced_and_not_written_through() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let precious = outside.path().join("precious");
        fs::write(&precious, "x").unwrap();
        symlink(&precious, root.path().join("a")).unwrap();
        let folder = open(root.path()).unwrap();
        place(&folder, "a", b"abc").unwrap();
        assert_eq!(fs::read(&precious).unwrap(), b"x");
        assert_eq!(fs::read(root.path().join("a")).unwrap(), b"abc");
    }

    #[test]
    fn a_folder_that_another_program_removes_is_made_again() {
        let root = tempfile::tempdir().unwrap();
        let folder = open(root.path()).unwrap();
        place(&folder, "sub/a", b"abc").unwrap();
        fs::remove_dir_all(root.path().join("sub")).unwrap();
        place(&folder, "sub/b", b"abc").unwrap();
        assert!(root.path().join("sub/b").exists());
    }

    #[test]
    fn stale_files_go_and_those_of_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let folder = open(root.path()).unwrap();
        place(&folder, "old", b"abc").unwrap();
        place(&folder, "llama/1/model.onnx", b"abc").unwrap();
        fs::write(root.path().join("theirs"), "x").unwrap();
        finish(&folder, &["old", "llama/1/model.onnx"]).unwrap();
        assert!(!root.path().join("old").exists() && root.path().join("theirs").exists());
        assert!(!root.path().join("llama").exists(), "Triton does not start with an empty folder");
        assert!(folder.record().is_empty());
    }

    #[test]
    fn empty_folders_of_the_model_are_made_and_go_with_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = open(root.path()).unwrap();
        let empty = BTreeMap::from([("ensemble/1".to_owned(), "v1".to_owned())]);
        let summary = folder.finish(&[], &empty).unwrap();
        assert!(root.path().join("ensemble/1").is_dir());
        assert!(summary.ends_with("by length only: 0"), "a folder is no file: {summary}");

        let folder = open(root.path()).unwrap();
        finish(&folder, &[]).unwrap();
        assert!(!root.path().join("ensemble").exists());
    }

    #[test]
    fn pods_without_locks_do_not_share_partial_files() {
        let root = tempfile::tempdir().unwrap();
        let [one, other] = ["chat-1", "chat-2"].map(|host| {
            Folder::open_as(host, root.path(), volume(root.path()), true, Lock::Unsupported).unwrap()
        });
        let object = object("a", b"abcdef");
        let [half, whole] = [&one, &other].map(|folder| folder.partial(&object).unwrap());
        half.write(0, b"abc").unwrap();
        whole.write(0, b"abcdef").unwrap();
        other.drop_partials_but(&[]).unwrap();
        other.place_bytes(&object, b"abcdef", Proof::Length).unwrap();
        finish(&other, &[]).unwrap();
        half.write(0, b"def").unwrap();
        one.place(&object, &half, Proof::Length).unwrap();
        finish(&one, &[]).unwrap();
        assert_eq!(fs::read(root.path().join("a")).unwrap(), b"abcdef");
        let left = fs::read_dir(root.path()).unwrap().count();
        assert_eq!(left, 2, "the file and the record");
    }

    #[test]
    fn a_run_without_locks_resumes_what_the_run_before_it_left() {
        let root = tempfile::tempdir().unwrap();
        let object = object("a", b"abcdef");
        let folder = || Folder::open(root.path(), volume(root.path()), true, Lock::Unsupported).unwrap();
        let partial = folder().partial(&object).unwrap();
        partial.write(0, b"abc").unwrap();
        partial.note(0).unwrap();
        drop(partial);

        let next = folder();
        assert!(next.held_by(&object) > 0, "not counted as missing again");
        assert_eq!(next.partial(&object).unwrap().bytes_there(), 3);
        finish(&next, &[]).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "the record");
    }

    #[test]
    fn what_a_run_without_locks_left_is_removed_a_day_later() {
        let root = tempfile::tempdir().unwrap();
        let left = |name: &str, age: Duration| {
            let place = root.path().join(format!("{PARTIALS}.{name}"));
            fs::create_dir(&place).unwrap();
            File::open(&place).unwrap().set_modified(SystemTime::now() - age).unwrap();
            place
        };
        let old = left("1", 2 * ABANDONED_AFTER);
        let young = left("2", ABANDONED_AFTER / 2);
        open(root.path()).unwrap();
        assert!(!old.exists() && young.exists());
    }

    #[test]
    fn a_record_that_was_cut_off_counts_up_to_its_last_whole_line() {
        let root = tempfile::tempdir().unwrap();
        let folder = open(root.path()).unwrap();
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
        let folder = open(root.path()).unwrap();
        assert_eq!(folder.last_fault(), None);
        folder.note_fault(Cause::NotFound);
        folder.drop_partials_but(&[]).unwrap();
        assert_eq!(open(root.path()).unwrap().last_fault(), Some(11));
    }
}
