//! Checks the free space before a transfer starts, so that it does not fail after most of the copy.

use std::{io, os::unix::fs::MetadataExt as _, path::Path};

use rustix::fs::statvfs;

use crate::fault::{Cause, Fault};

/// The free space of a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    /// `None` where the file system does not count files.
    pub(crate) files: Option<u64>,
}

/// The free space of the volume that holds the folder.
pub(crate) fn room(folder: &Path) -> io::Result<Room> {
    let volume = statvfs(folder)?;
    Ok(Room {
        bytes: volume.f_bavail.saturating_mul(volume.f_frsize),
        files: (volume.f_files > 0).then_some(volume.f_favail),
    })
}

/// Bytes that a file occupies on its volume: fewer than its length if it has holes.
pub(crate) fn held_by(file: &Path) -> u64 {
    /// The unit of `st_blocks` on every file system.
    const BLOCK: u64 = 512;
    file.symlink_metadata().map_or(0, |metadata| metadata.blocks() * BLOCK)
}

/// The allocation unit of nearly every file system.
const BLOCK: u64 = 4096;

/// A store may list any size: sums do not overflow.
pub(crate) fn total(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

fn whole_blocks(size: u64) -> u64 {
    size.div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// Fails if files of these sizes exceed the limit of a volume whose use the kubelet measures, such as an emptyDir: it would
/// evict the pod during the copy. Files of an earlier model are not counted, because the pull removes them.
pub(crate) fn keep_limit(source: &str, sizes: impl Iterator<Item = u64>, limit: u64) -> Result<(), Fault> {
    let needed = total(sizes.map(whole_blocks));
    if needed <= limit {
        return Ok(());
    }
    let message = format!(
        "{source} needs {} ({needed} bytes) and its volume may hold {} ({limit} bytes): raise \
         spec.modelVolume.size",
        Size(needed),
        Size(limit)
    );
    Err(Fault::new(Cause::OutOfSpace, message))
}

/// Fails if the volume has too little room. `files`: size and bytes already occupied.
pub(crate) fn check(files: &[(u64, u64)], room: Room, folder: &Path) -> Result<(), Fault> {
    let needed = total(files.iter().map(|(size, held)| whole_blocks(*size).saturating_sub(*held)));
    let folder = folder.display();
    if needed > room.bytes {
        let (needed, free) = (Size(needed), Size(room.bytes));
        let message = format!("{folder} needs {needed} more and has {free} free: make its volume larger");
        return Err(Fault::new(Cause::OutOfSpace, message));
    }
    let new_files = files.len() as u64;
    match room.files {
        Some(free) if new_files > free => Err(Fault::new(
            Cause::OutOfSpace,
            format!("{folder} needs {new_files} more files and its volume can hold {free}: make it larger"),
        )),
        _ => Ok(()),
    }
}

/// A number of bytes for messages: `14.0 GiB`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(pub(crate) u64);

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let power = (self.0.ilog2() / 10).min(4);
        #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
        let amount = self.0 as f64 / f64::from(power * 10).exp2();
        write!(f, "{amount:.1} {}", units[power as usize - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(files: &[(u64, u64)], bytes: u64, count: Option<u64>) -> Option<Cause> {
        check(files, Room { bytes, files: count }, Path::new("/models")).err().map(|fault| fault.cause)
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let gib = 1 << 30;
        assert_eq!(cause(&[(gib, 0), (gib, 0)], 2 * gib, None), None);
        assert_eq!(cause(&[(gib, 0), (gib, 0)], 2 * gib - 1, None), Some(Cause::OutOfSpace));
        assert_eq!(cause(&[(gib, gib / 2)], gib / 2, None), None, "half of it is there");
        assert_eq!(cause(&[(1, 0), (1, 0)], 8191, None), Some(Cause::OutOfSpace), "a byte takes a block");
        for size in [u64::MAX, u64::MAX / 2 + 1] {
            let files = [(size, 0), (size, 0)];
            assert_eq!(cause(&files, u64::MAX - 1, None), Some(Cause::OutOfSpace), "{size}");
        }
    }

    #[test]
    fn a_volume_that_cannot_hold_so_many_files_is_refused() {
        assert_eq!(cause(&[(0, 0); 3], 0, Some(3)), None);
        assert_eq!(cause(&[(0, 0); 4], 0, Some(3)), Some(Cause::OutOfSpace));
    }

    #[test]
    fn a_model_is_refused_by_the_limit_of_its_volume() {
        let fault = |sizes: &[u64], limit| keep_limit("s3://m", sizes.iter().copied(), limit).err();
        assert!(fault(&[4096, 1], 8192).is_none());
        let fault = fault(&[4096, 4097], 8192).unwrap();
        assert_eq!(fault.cause, Cause::OutOfSpace);
        assert_eq!(
            fault.to_string(),
            "OutOfSpace: s3://m needs 12.0 KiB (12288 bytes) and its volume may hold 8.0 KiB (8192 bytes): raise \
             spec.modelVolume.size"
        );
        assert!(keep_limit("s3://m", [u64::MAX, u64::MAX].into_iter(), u64::MAX - 1).is_err());
    }

    #[test]
    fn sizes_are_read_by_people() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (15 << 29, "7.5 GiB"), (5 << 50, "5120.0 TiB")]
        {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
