//! A partial large file: written at offsets, with a second file that notes which bytes are written.
//!
//! It must not follow a link. `<name>.data` has the final length from the beginning; its blocks are allocated as bytes
//! arrive, so that a store that lists a large object and does not send it occupies nothing. `<name>.progress` begins with a header that identifies the
//! object, followed by one number per part: how many of its bytes are written. Bytes are written before the number that
//! counts them, so a kill loses at most the bytes since the last note.
//!
//! The numbers must never count bytes that are not written. After a crash of the machine they may: the header names the
//! boot, and partial files of another boot are fetched again. After an error of a write or of a sync they may as well,
//! because the system drops bytes that it could not write and reports that once: each such error discards the note.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use directory::{Directory, space::Volume};
use rustix::{
    fs::{FallocateFlags, OFlags, fallocate},
    io::Errno,
};
use tokio::sync::watch;
use tracing::warn;

use super::object::Object;

/// The length of a range of one request: long enough to be fast, short enough for many concurrent requests for one file.
pub(super) const PART: u64 = 16 << 20;

/// Bytes of a part after which their number is noted: a kill loses at most these.
pub(super) const NOTE_EVERY: u64 = 1 << 20;

/// Limit for the parts of a file, and so for the memory of their numbers, because a store may list any size: 64 TiB.
const MOST_PARTS: u64 = 1 << 22;

/// Length of the header in the note; a key has at most 1024 bytes.
const HEADER: usize = 8192;

/// The header: the object and the boot that the bytes belong to. If any field differs, the bytes are not used.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Belongs {
    boot: String,
    path: String,
    size: u64,
    version: String,
    part: u64,
}

#[derive(Debug)]
pub(super) struct Partial {
    folder: Arc<Directory>,
    volume: Arc<Volume>,
    /// The name of both files without their suffixes.
    name: String,
    data: Arc<File>,
    progress: File,
    size: u64,
    there: Mutex<There>,
    /// The number of bytes from the beginning that are written without a gap.
    whole: watch::Sender<u64>,
}

#[derive(Debug)]
struct There {
    /// Written bytes of each part.
    parts: Vec<u64>,
    /// The first part that is not complete.
    first_open: usize,
    /// The parts before this one have their blocks, except where the file system allocates them as it writes.
    allocated: usize,
}

impl Partial {
    /// Resumes the bytes of an earlier run, or begins again. `syncs`: they are used only if they are on disk. Blocks.
    pub(super) fn open(
        folder: &Arc<Directory>,
        volume: &Arc<Volume>,
        name: &str,
        object: &Object,
        boot: &str,
        syncs: bool,
    ) -> io::Result<Self> {
        let Object { path, size, version, .. } = object;
        let belongs = Belongs {
            boot: boot.to_owned(),
            path: path.clone(),
            size: *size,
            version: version.clone(),
            part: PART,
        };
        let (data, progress, parts) = match resume(folder, name, &belongs, syncs)? {
            Some(resumed) => resumed,
            None => begin(folder, name, &belongs)?,
        };
        // Holes before it are filled by the writes themselves.
        let allocated = parts.iter().rposition(|bytes| *bytes > 0).map_or(0, |last| last + 1);
        let partial = Self {
            folder: Arc::clone(folder),
            volume: Arc::clone(volume),
            name: name.to_owned(),
            data: Arc::new(data),
            progress,
            size: *size,
            there: Mutex::new(There { parts, first_open: 0, allocated }),
            whole: watch::Sender::new(0),
        };
        partial.report_whole();
        Ok(partial)
    }

    /// For messages.
    pub(super) fn place(&self) -> PathBuf {
        self.folder.path().join(data_name(&self.name))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn data(&self) -> &Arc<File> {
        &self.data
    }

    pub(super) fn whole(&self) -> watch::Receiver<u64> {
        self.whole.subscribe()
    }

    /// Bytes that need not be fetched.
    pub(super) fn bytes_there(&self) -> u64 {
        self.there().parts.iter().sum()
    }

    /// Numbers of the incomplete parts.
    pub(super) fn open_parts(&self) -> Vec<usize> {
        let there = self.there();
        (0..there.parts.len()).filter(|part| there.parts[*part] < self.length(*part)).collect()
    }

    /// The missing range of a part: from, to.
    pub(super) fn missing(&self, part: usize) -> (u64, u64) {
        let begin = part as u64 * PART;
        (begin + self.there().parts[part], begin + self.length(part))
    }

    /// The written range of a part: from, to.
    pub(super) fn written(&self, part: usize) -> (u64, u64) {
        let begin = part as u64 * PART;
        (begin, begin + self.there().parts[part])
    }

    pub(super) fn parts(&self) -> usize {
        parts_of(self.size)
    }

    /// Adds bytes to a part; fails if the part would become too long. A kill loses them until they are noted. Blocks.
    pub(super) fn write(&self, part: usize, bytes: &[u8]) -> io::Result<()> {
        let (at, end) = self.missing(part);
        let length = bytes.len() as u64;
        if length > end - at {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more bytes than the part has"));
        }
        self.allocate(part)?;
        self.or_discard(self.data.write_all_at(bytes, at))?;
        self.there().parts[part] += length;
        self.report_whole();
        Ok(())
    }

    /// Allocates the blocks up to the end of a part, in order, so that the file is contiguous. The writers are at most
    /// `CONNECTIONS` parts apart, which bounds what is allocated and not written. Without room it fails before anything is
    /// written, and the note stays valid. Blocks.
    fn allocate(&self, part: usize) -> io::Result<()> {
        let from = self.there().allocated;
        if part < from {
            return Ok(());
        }
        let begin = from as u64 * PART;
        let length = part as u64 * PART + self.length(part) - begin;
        self.volume.admit(length)?;
        match fallocate(&*self.data, FallocateFlags::empty(), begin, length) {
            // Network file systems allocate as they write.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        self.there().allocated = part + 1;
        Ok(())
    }

    /// Notes the number of written bytes of a part. Blocks.
    pub(super) fn note(&self, part: usize) -> io::Result<()> {
        let bytes = self.there().parts[part];
        self.or_discard(self.progress.write_all_at(&bytes.to_le_bytes(), offset(part)))
    }

    /// Waits until all bytes are on disk. Blocks.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.or_discard(self.data.sync_data())
    }

    /// Discards the note, because the bytes are or may be wrong. The next attempt fetches all of them. Blocks.
    pub(super) fn discard(&self) -> io::Result<()> {
        // A note without its header is not used, even if it cannot be removed.
        let emptied = self.progress.set_len(0);
        match self.folder.remove_file(progress_name(&self.name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => emptied.map_err(|_| error),
            _ => Ok(()),
        }
    }

    fn or_discard<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if done.is_err()
            && let Err(error) = self.discard()
        {
            warn!("failed to remove the note of {}: {error}", self.place().display());
        }
        done
    }

    fn there(&self) -> std::sync::MutexGuard<'_, There> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn length(&self, part: usize) -> u64 {
        PART.min(self.size - part as u64 * PART)
    }

    fn report_whole(&self) {
        let mut there = self.there();
        while there.first_open < there.parts.len()
            && there.parts[there.first_open] == self.length(there.first_open)
        {
            there.first_open += 1;
        }
        let open = there.parts.get(there.first_open).copied().unwrap_or_default();
        let whole = (there.first_open as u64 * PART).min(self.size) + open;
        self.whole.send_replace(whole);
    }
}

pub(super) fn data_name(name: &str) -> String {
    format!("{name}.data")
}

pub(super) fn progress_name(name: &str) -> String {
    format!("{name}.progress")
}

fn offset(part: usize) -> u64 {
    (HEADER + part * size_of::<u64>()) as u64
}

fn parts_of(size: u64) -> usize {
    size.div_ceil(PART) as usize
}

type Opened = (File, File, Vec<u64>);

fn open_both(folder: &Directory, name: &str) -> io::Result<(File, File)> {
    let open = |name: String| folder.open_file(name, OFlags::RDWR | OFlags::CREATE);
    Ok((open(data_name(name))?, open(progress_name(name))?))
}

/// `None` if the bytes belong to something else, or the note is invalid.
fn resume(folder: &Directory, name: &str, belongs: &Belongs, syncs: bool) -> io::Result<Option<Opened>> {
    let mut note = Vec::new();
    match folder.read(progress_name(name)) {
        Ok(mut file) => file.read_to_end(&mut note)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some((header, numbers)) = note.split_at_checked(HEADER) else { return Ok(None) };
    let header = header.split(|byte| *byte == 0).next().unwrap_or_default();
    if serde_json::from_slice::<Belongs>(header).ok().as_ref() != Some(belongs) {
        return Ok(None);
    }
    let (numbers, _) = numbers.as_chunks::<8>();
    let parts: Vec<u64> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
    let (data, progress) = open_both(folder, name)?;
    let is_valid = parts.len() == parts_of(belongs.size)
        && parts.iter().zip(0_u64..).all(|(bytes, part)| *bytes <= PART.min(belongs.size - part * PART))
        && data.metadata()?.len() == belongs.size;
    // The previous run may have ended before the system reported that it cannot write the bytes.
    if is_valid
        && syncs
        && let Err(error) = data.sync_data()
    {
        let place = folder.path().join(data_name(name));
        warn!("{}: the bytes of an earlier run are not used: {error}", place.display());
        return Ok(None);
    }
    Ok(is_valid.then_some((data, progress, parts)))
}

/// Writes the note last, so that a kill before leaves bytes that are not used.
fn begin(folder: &Directory, name: &str, belongs: &Belongs) -> io::Result<Opened> {
    if belongs.size.div_ceil(PART) > MOST_PARTS {
        let message = format!("a file of {} bytes is too large", belongs.size);
        return Err(io::Error::new(io::ErrorKind::StorageFull, message));
    }
    let parts = vec![0; parts_of(belongs.size)];
    let (data, progress) = open_both(folder, name)?;
    progress.set_len(0)?;
    data.set_len(0)?;
    data.set_len(belongs.size)?;
    let mut note = serde_json::to_vec(belongs)?;
    if note.len() > HEADER {
        return Err(io::Error::new(io::ErrorKind::InvalidFilename, "the key or the version is too long"));
    }
    note.resize(offset(parts.len()) as usize, 0);
    progress.write_all_at(&note, 0)?;
    Ok((data, progress, parts))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt as _};

    use tempfile::TempDir;

    use super::*;
    use crate::digest::Expected;

    fn open_in(root: &TempDir, object: &Object, boot: &str) -> io::Result<Partial> {
        let volume = Arc::new(Volume::of(root.path(), &root.path().join("none"), "")?);
        Partial::open(&Arc::new(Directory::open(root.path())?), &volume, "a", object, boot, true)
    }

    fn object(size: u64, version: &str) -> Object {
        Object {
            key: "a".into(),
            path: "a".to_owned(),
            size,
            etag: None,
            changed: 0,
            version: version.to_owned(),
            expected: Expected::Nothing,
        }
    }

    fn write(partial: &Partial, part: usize, length: u64) {
        partial.write(part, &vec![7; length as usize]).unwrap();
        partial.note(part).unwrap();
    }

    #[test]
    fn what_was_written_is_still_there_after_a_kill() {
        let folder = tempfile::tempdir().unwrap();
        let object = object(2 * PART + 5, "v1");
        let partial = open_in(&folder, &object, "boot").unwrap();
        assert_eq!(partial.open_parts(), [0, 1, 2]);
        write(&partial, 1, 100);
        write(&partial, 2, 5);
        std::mem::forget(partial);

        let partial = open_in(&folder, &object, "boot").unwrap();
        assert_eq!(partial.bytes_there(), 105);
        assert_eq!(partial.open_parts(), [0, 1]);
        assert_eq!(partial.missing(1), (PART + 100, 2 * PART));
        assert_eq!(*partial.whole().borrow(), 0);
        write(&partial, 0, PART);
        assert_eq!(*partial.whole().borrow(), PART + 100);
        write(&partial, 1, PART - 100);
        assert_eq!(*partial.whole().borrow(), object.size);
        assert!(fs::read(folder.path().join("a.data")).unwrap().iter().all(|byte| *byte == 7));
    }

    /// In parts. Blocks in which the file system notes where the others are count as well, and are far fewer than a part.
    fn allocated(folder: &TempDir) -> u64 {
        fs::metadata(folder.path().join("a.data")).unwrap().blocks() * 512 / PART
    }

    #[test]
    fn blocks_are_allocated_up_to_the_part_that_is_written_and_no_further() {
        let folder = tempfile::tempdir().unwrap();
        let object = object(4 * PART, "v1");
        let partial = open_in(&folder, &object, "boot").unwrap();
        assert_eq!(allocated(&folder), 0);
        write(&partial, 1, 1);
        assert_eq!(allocated(&folder), 2);
        write(&partial, 0, 1);
        assert_eq!(allocated(&folder), 2);
        drop(partial);
        write(&open_in(&folder, &object, "boot").unwrap(), 2, 1);
        assert_eq!(allocated(&folder), 3);
    }

    #[test]
    fn what_was_written_is_still_there_after_the_disk_was_full() {
        let folder = tempfile::tempdir().unwrap();
        let object = object(2 * PART, "v1");
        let mut partial = open_in(&folder, &object, "boot").unwrap();
        write(&partial, 0, 100);
        partial.volume = Arc::new(Volume::keeping(folder.path(), u64::MAX, ""));
        let error = partial.write(1, b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        assert_eq!(allocated(&folder), 1);
        assert_eq!(open_in(&folder, &object, "boot").unwrap().bytes_there(), 100);
    }

    #[test]
    fn bytes_of_another_version_or_another_boot_are_not_mixed_in() {
        for (version, boot, size) in [("v2", "boot", 10), ("v1", "next boot", 10), ("v1", "boot", 11)] {
            let folder = tempfile::tempdir().unwrap();
            write(&open_in(&folder, &object(10, "v1"), "boot").unwrap(), 0, 4);
            let partial = open_in(&folder, &object(size, version), boot).unwrap();
            assert_eq!(partial.bytes_there(), 0, "{version} {boot} {size}");
            assert_eq!(fs::metadata(folder.path().join("a.data")).unwrap().len(), size);
        }
    }

    #[test]
    fn with_an_invalid_note_all_bytes_are_fetched_again() {
        for damage in ["cut", "count", "data"] {
            let folder = tempfile::tempdir().unwrap();
            let partial = open_in(&folder, &object(10, "v1"), "boot").unwrap();
            write(&partial, 0, 4);
            match damage {
                "cut" => partial.progress.set_len(100).unwrap(),
                "count" => partial.progress.write_all_at(&11_u64.to_le_bytes(), offset(0)).unwrap(),
                _ => partial.data.set_len(9).unwrap(),
            }
            drop(partial);
            assert_eq!(open_in(&folder, &object(10, "v1"), "boot").unwrap().bytes_there(), 0, "{damage}");
        }
    }

    /// A device that takes no byte, and that cannot be synced.
    fn broken(mut partial: Partial) -> Partial {
        partial.there().allocated = partial.parts();
        partial.data = Arc::new(File::options().write(true).open("/dev/full").unwrap());
        partial
    }

    #[test]
    fn after_a_failed_write_or_sync_nothing_is_resumed() {
        for fails in ["write", "sync", "note"] {
            let folder = tempfile::tempdir().unwrap();
            let open = || open_in(&folder, &object(2 * PART, "v1"), "boot").unwrap();
            write(&open(), 0, PART);
            assert_eq!(open().bytes_there(), PART, "resumed as long as nothing fails");
            let mut partial = broken(open());
            match fails {
                "write" => assert!(partial.write(1, b"x").is_err()),
                "sync" => assert!(partial.sync().is_err()),
                _ => {
                    partial.progress = File::open(folder.path().join("a.progress")).unwrap();
                    assert!(partial.note(0).is_err());
                }
            }
            assert_eq!(open().bytes_there(), 0, "{fails}");
        }
    }

    #[test]
    fn a_file_larger_than_any_volume_is_refused_before_memory_is_allocated() {
        let folder = tempfile::tempdir().unwrap();
        for size in [u64::MAX, 1 << 60] {
            let error = open_in(&folder, &object(size, "v1"), "boot").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        }
    }

    #[test]
    fn a_part_takes_no_more_bytes_than_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let partial = open_in(&folder, &object(10, "v1"), "boot").unwrap();
        assert!(partial.write(0, &[7; 11]).is_err());
        assert_eq!(partial.bytes_there(), 0);
    }
}
