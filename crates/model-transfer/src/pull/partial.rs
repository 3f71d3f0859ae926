//! A partial large file: preallocated, written at offsets, with a second file that notes which bytes are written.
//!
//! `<name>.data` has the final length from the beginning. `<name>.progress` begins with a header that identifies the
//! object, followed by one number per part: how many of its bytes are written. Bytes are written before the number that
//! counts them, so a kill loses at most the bytes since the last note.
//!
//! The numbers must never count bytes that are not written. After a crash of the machine they may: the header names the
//! boot, and partial files of another boot are fetched again. After an error of a write or of a sync they may as well,
//! because the system drops bytes that it could not write and reports that once: each such error discards the note.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

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
    stem: PathBuf,
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
}

impl Partial {
    /// Resumes the bytes of an earlier run, or begins again. `syncs`: they are used only if they are on disk. Blocks.
    pub(super) fn open(stem: &Path, object: &Object, boot: &str, syncs: bool) -> io::Result<Self> {
        let Object { path, size, version, .. } = object;
        let belongs = Belongs {
            boot: boot.to_owned(),
            path: path.clone(),
            size: *size,
            version: version.clone(),
            part: PART,
        };
        let (data, progress, parts) = match resume(stem, &belongs, syncs)? {
            Some(resumed) => resumed,
            None => begin(stem, &belongs)?,
        };
        let partial = Self {
            stem: stem.to_owned(),
            data: Arc::new(data),
            progress,
            size: *size,
            there: Mutex::new(There { parts, first_open: 0 }),
            whole: watch::Sender::new(0),
        };
        partial.report_whole();
        Ok(partial)
    }

    pub(super) fn stem(&self) -> &Path {
        &self.stem
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
        self.or_discard(self.data.write_all_at(bytes, at))?;
        self.there().parts[part] += length;
        self.report_whole();
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
        match fs::remove_file(progress_path(&self.stem)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => emptied.map_err(|_| error),
            _ => Ok(()),
        }
    }

    fn or_discard<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if done.is_err()
            && let Err(error) = self.discard()
        {
            warn!("failed to remove {}: {error}", progress_path(&self.stem).display());
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

pub(super) fn data_path(stem: &Path) -> PathBuf {
    stem.with_extension("data")
}

pub(super) fn progress_path(stem: &Path) -> PathBuf {
    stem.with_extension("progress")
}

fn offset(part: usize) -> u64 {
    (HEADER + part * size_of::<u64>()) as u64
}

fn parts_of(size: u64) -> usize {
    size.div_ceil(PART) as usize
}

/// Options that refuse a link, which could lead out of the folder.
pub(super) fn no_link() -> fs::OpenOptions {
    let mut options = File::options();
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

type Opened = (File, File, Vec<u64>);

fn open_both(stem: &Path) -> io::Result<(File, File)> {
    let open = |path: PathBuf| no_link().read(true).write(true).create(true).truncate(false).open(path);
    Ok((open(data_path(stem))?, open(progress_path(stem))?))
}

/// `None` if the bytes belong to something else, or the note is invalid.
fn resume(stem: &Path, belongs: &Belongs, syncs: bool) -> io::Result<Option<Opened>> {
    let note = match fs::read(progress_path(stem)) {
        Ok(note) => note,
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
    let (data, progress) = open_both(stem)?;
    let is_valid = parts.len() == parts_of(belongs.size)
        && parts.iter().zip(0_u64..).all(|(bytes, part)| *bytes <= PART.min(belongs.size - part * PART))
        && data.metadata()?.len() == belongs.size;
    // The previous run may have ended before the system reported that it cannot write the bytes.
    if is_valid
        && syncs
        && let Err(error) = data.sync_data()
    {
        warn!("{}: the bytes of an earlier run are not used: {error}", stem.display());
        return Ok(None);
    }
    Ok(is_valid.then_some((data, progress, parts)))
}

/// Writes the note last, so that a kill before leaves bytes that are not used.
fn begin(stem: &Path, belongs: &Belongs) -> io::Result<Opened> {
    if belongs.size.div_ceil(PART) > MOST_PARTS {
        let message = format!("a file of {} bytes is too large", belongs.size);
        return Err(io::Error::new(io::ErrorKind::StorageFull, message));
    }
    let parts = vec![0; parts_of(belongs.size)];
    let (data, progress) = open_both(stem)?;
    progress.set_len(0)?;
    data.set_len(0)?;
    allocate(&data, belongs.size)?;
    let mut note = serde_json::to_vec(belongs)?;
    if note.len() > HEADER {
        return Err(io::Error::new(io::ErrorKind::InvalidFilename, "the key or the version is too long"));
    }
    note.resize(offset(parts.len()) as usize, 0);
    progress.write_all_at(&note, 0)?;
    Ok((data, progress, parts))
}

/// Allocates the whole file, so that a volume that is too small is reported now and the file is contiguous.
fn allocate(data: &File, size: u64) -> io::Result<()> {
    match fallocate(data, FallocateFlags::empty(), 0, size) {
        Ok(()) => Ok(()),
        // Network file systems only set the length.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => data.set_len(size),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Expected;

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
        let stem = folder.path().join("a");
        let object = object(2 * PART + 5, "v1");
        let partial = Partial::open(&stem, &object, "boot", true).unwrap();
        assert_eq!(partial.open_parts(), [0, 1, 2]);
        write(&partial, 1, 100);
        write(&partial, 2, 5);
        std::mem::forget(partial);

        let partial = Partial::open(&stem, &object, "boot", true).unwrap();
        assert_eq!(partial.bytes_there(), 105);
        assert_eq!(partial.open_parts(), [0, 1]);
        assert_eq!(partial.missing(1), (PART + 100, 2 * PART));
        assert_eq!(*partial.whole().borrow(), 0);
        write(&partial, 0, PART);
        assert_eq!(*partial.whole().borrow(), PART + 100);
        write(&partial, 1, PART - 100);
        assert_eq!(*partial.whole().borrow(), object.size);
        assert!(fs::read(data_path(&stem)).unwrap().iter().all(|byte| *byte == 7));
    }

    #[test]
    fn bytes_of_another_version_or_another_boot_are_not_mixed_in() {
        for (version, boot, size) in [("v2", "boot", 10), ("v1", "next boot", 10), ("v1", "boot", 11)] {
            let folder = tempfile::tempdir().unwrap();
            let stem = folder.path().join("a");
            write(&Partial::open(&stem, &object(10, "v1"), "boot", true).unwrap(), 0, 4);
            let partial = Partial::open(&stem, &object(size, version), boot, true).unwrap();
            assert_eq!(partial.bytes_there(), 0, "{version} {boot} {size}");
            assert_eq!(fs::metadata(data_path(&stem)).unwrap().len(), size);
        }
    }

    #[test]
    fn with_an_invalid_note_all_bytes_are_fetched_again() {
        for damage in ["cut", "count", "data"] {
            let folder = tempfile::tempdir().unwrap();
            let stem = folder.path().join("a");
            let partial = Partial::open(&stem, &object(10, "v1"), "boot", true).unwrap();
            write(&partial, 0, 4);
            match damage {
                "cut" => partial.progress.set_len(100).unwrap(),
                "count" => partial.progress.write_all_at(&11_u64.to_le_bytes(), offset(0)).unwrap(),
                _ => partial.data.set_len(9).unwrap(),
            }
            drop(partial);
            assert_eq!(
                Partial::open(&stem, &object(10, "v1"), "boot", true).unwrap().bytes_there(),
                0,
                "{damage}"
            );
        }
    }

    /// A device that takes no byte, and that cannot be synced.
    fn broken(mut partial: Partial) -> Partial {
        partial.data = Arc::new(File::options().write(true).open("/dev/full").unwrap());
        partial
    }

    #[test]
    fn after_a_failed_write_or_sync_nothing_is_resumed() {
        for fails in ["write", "sync", "note"] {
            let folder = tempfile::tempdir().unwrap();
            let stem = folder.path().join("a");
            let open = || Partial::open(&stem, &object(2 * PART, "v1"), "boot", true).unwrap();
            write(&open(), 0, PART);
            assert_eq!(open().bytes_there(), PART, "resumed as long as nothing fails");
            let mut partial = broken(open());
            match fails {
                "write" => assert!(partial.write(1, b"x").is_err()),
                "sync" => assert!(partial.sync().is_err()),
                _ => {
                    partial.progress = File::open(progress_path(&stem)).unwrap();
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
            let error =
                Partial::open(&folder.path().join("a"), &object(size, "v1"), "boot", true).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        }
    }

    #[test]
    fn a_part_takes_no_more_bytes_than_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let partial = Partial::open(&folder.path().join("a"), &object(10, "v1"), "boot", true).unwrap();
        assert!(partial.write(0, &[7; 11]).is_err());
        assert_eq!(partial.bytes_there(), 0);
    }
}
