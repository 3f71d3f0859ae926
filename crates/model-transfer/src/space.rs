//! Checks the free space before and during a transfer, so that it neither fails after most of the copy nor fills the disk
//! of a node, which other pods need.

use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::fs::{StatVfs, stat, statvfs};

use crate::fault::{Cause, Fault};

/// The file system that holds the folder.
#[derive(Debug)]
pub(crate) struct Volume {
    folder: PathBuf,
    /// Bytes that stay free for other pods; zero on a volume with a size of its own, which may be filled to its end.
    margin: u64,
    /// Bytes of small files since the free space was last read.
    unread: AtomicU64,
}

/// The free space of a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    /// `None` where the file system does not count files.
    pub(crate) files: Option<u64>,
    pub(crate) margin: u64,
}

/// Bytes of small files after which the free space is read again.
const READ_EVERY: u64 = 16 << 20;

impl Volume {
    /// `on_node`: a file that the kubelet keeps on the disk of the node and mounts into the container. If the folder is on
    /// that disk, as an emptyDir and a claim of a provisioner of host paths are, the margin applies. Claims on devices of
    /// their own, memory, and folders with a quota (whose size statvfs reports) are other file systems or other sizes.
    /// Outside a pod the file does not exist. Blocks.
    pub(crate) fn of(folder: &Path, on_node: &Path) -> io::Result<Self> {
        let volume = statvfs(folder)?;
        let is_shared = match (stat(folder), stat(on_node), statvfs(on_node)) {
            (Ok(own), Ok(node), Ok(disk)) => own.st_dev == node.st_dev && size(&volume) == size(&disk),
            _ => false,
        };
        let margin = if is_shared { margin(size(&volume), free(&volume)) } else { 0 };
        Ok(Self { folder: folder.to_owned(), margin, unread: AtomicU64::new(0) })
    }

    /// Blocks.
    pub(crate) fn room(&self) -> io::Result<Room> {
        let volume = statvfs(&self.folder)?;
        Ok(Room {
            bytes: free(&volume),
            files: (volume.f_files > 0).then_some(volume.f_favail),
            margin: self.margin,
        })
    }

    /// Fails if the next bytes would take from the margin, because another program has filled the disk since the transfer
    /// began. Blocks.
    pub(crate) fn admit(&self, bytes: u64) -> io::Result<()> {
        if self.margin == 0 {
            return Ok(());
        }
        let free = free(&statvfs(&self.folder)?);
        if bytes <= free.saturating_sub(self.margin) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::StorageFull, shared_disk(free, self.margin)))
    }

    /// [`Self::admit`] for a small file: the free space is read once for many of them. Blocks.
    pub(crate) fn admit_small(&self, bytes: u64) -> io::Result<()> {
        if self.unread.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) < READ_EVERY {
            return Ok(());
        }
        self.unread.store(0, Ordering::Relaxed);
        self.admit(bytes)
    }
}

#[cfg(test)]
impl Volume {
    /// Of which this many bytes stay free.
    pub(crate) fn keeping(folder: &Path, margin: u64) -> Self {
        Self { folder: folder.to_owned(), margin, unread: AtomicU64::new(0) }
    }
}

fn size(volume: &StatVfs) -> u64 {
    volume.f_blocks.saturating_mul(volume.f_frsize)
}

fn free(volume: &StatVfs) -> u64 {
    volume.f_bavail.saturating_mul(volume.f_frsize)
}

/// Percent of the node's disk below which a kubelet with its default settings (`evictionHard`, `nodefs.available<10%`)
/// evicts pods and admits none.
const EVICTS_BELOW: u64 = 10;
/// One percent more, for what other programs write after the model.
const MARGIN: u64 = EVICTS_BELOW + 1;

/// What stays free of a disk with other pods. A pod that runs on a disk with less than the kubelet's default has a kubelet
/// with a lower threshold, which cannot be read from here: half of what is free then stays free.
fn margin(size: u64, free: u64) -> u64 {
    let percent = size / 100;
    if free < percent * EVICTS_BELOW { free / 2 } else { percent * MARGIN }
}

/// For messages: what keeps a model off a disk with other pods, and the fix.
fn shared_disk(free: u64, margin: u64) -> String {
    let (free, margin) = (Size(free), Size(margin));
    format!(
        "the disk has {free} free, of which {margin} stay free for other pods of the node: free space on the node, or set \
         spec.modelVolume.medium to Volume"
    )
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
    let Room { bytes: free, files: free_files, margin } = room;
    if needed > free {
        let (needed, free) = (Size(needed), Size(free));
        let message = format!("{folder} needs {needed} more and has {free} free: make its volume larger");
        return Err(Fault::new(Cause::OutOfSpace, message));
    }
    if needed > free.saturating_sub(margin) {
        let message = format!("{folder} needs {} more, and {}", Size(needed), shared_disk(free, margin));
        return Err(Fault::new(Cause::OutOfSpace, message));
    }
    let new_files = files.len() as u64;
    match free_files {
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
        let room = Room { bytes, files: count, margin: 0 };
        check(files, room, Path::new("/models")).err().map(|fault| fault.cause)
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
    fn a_disk_with_other_pods_keeps_more_free_than_the_kubelet_evicts_at() {
        let gib = 1 << 30;
        let check = |needed, bytes| {
            let room = Room { bytes, files: None, margin: margin(100 * gib, bytes) };
            check(&[(needed, 0)], room, Path::new("/models")).err()
        };
        assert!(check(9 * gib, 20 * gib).is_none());
        let fault = check(9 * gib + 1, 20 * gib).unwrap();
        assert_eq!(
            fault.to_string(),
            "OutOfSpace: /models needs 9.0 GiB more, and the disk has 20.0 GiB free, of which 11.0 GiB stay free for \
             other pods of the node: free space on the node, or set spec.modelVolume.medium to Volume"
        );
        assert!(check(0, 10 * gib).is_none(), "nothing is missing");
        assert!(check(1, 10 * gib).is_some());
        assert!(check(4 * gib, 8 * gib).is_none(), "the kubelet's threshold is lower, since the pod runs");
        assert!(check(4 * gib + 1, 8 * gib).is_some());
        assert!(check(300 * gib, 20 * gib).unwrap().to_string().contains("make its volume larger"));
    }

    #[test]
    fn a_volume_with_a_size_of_its_own_is_filled_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let margin = |on_node: &Path| Volume::of(folder.path(), on_node).unwrap().margin;
        assert!(margin(folder.path()) > 0, "the disk of the node");
        assert_eq!(margin(Path::new("/proc/self/status")), 0, "another file system");
        assert_eq!(margin(&folder.path().join("none")), 0, "outside a pod");
    }

    #[test]
    fn a_disk_that_others_fill_during_the_copy_is_not_filled_further() {
        let folder = tempfile::tempdir().unwrap();
        let volume = |margin| Volume::keeping(folder.path(), margin);
        volume(0).admit(u64::MAX).unwrap();
        let error = volume(u64::MAX).admit(1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        let full = volume(u64::MAX);
        full.admit_small(READ_EVERY - 1).unwrap();
        full.admit_small(1).unwrap_err();
        full.admit_small(1).unwrap();
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
