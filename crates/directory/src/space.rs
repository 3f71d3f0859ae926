//! The free space of a folder, so that a copy neither fails after most of it nor fills the disk of a node, which other pods
//! need.

use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::fs::{StatVfs, stat, statvfs};

/// The file system that holds the folder.
#[derive(Debug)]
pub struct Volume {
    folder: PathBuf,
    /// Bytes that stay free for other pods; zero on a volume with a size of its own, which may be filled to its end.
    margin: u64,
    /// For messages: how the disk gets more room.
    fix: &'static str,
    /// Bytes of small files since the free space was last read.
    unread: AtomicU64,
}

/// The free space of a volume.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub bytes: u64,
    /// `None` where the file system does not count files.
    pub files: Option<u64>,
    pub margin: u64,
}

/// Bytes of small files after which the free space is read again.
const READ_EVERY: u64 = 16 << 20;

impl Volume {
    /// `on_node`: a file that the kubelet keeps on the disk of the node and mounts into the container. If the folder is on
    /// that disk, as an emptyDir and a claim of a provisioner of host paths are, the margin applies. Claims on devices of
    /// their own, memory, and folders with a quota (whose size statvfs reports) are other file systems or other sizes.
    /// Outside a pod the file does not exist. Blocks.
    pub fn of(folder: &Path, on_node: &Path, fix: &'static str) -> io::Result<Self> {
        let volume = statvfs(folder)?;
        let is_shared = match (stat(folder), stat(on_node), statvfs(on_node)) {
            (Ok(own), Ok(node), Ok(disk)) => own.st_dev == node.st_dev && size(&volume) == size(&disk),
            _ => false,
        };
        let margin = if is_shared { margin(size(&volume), free(&volume)) } else { 0 };
        Ok(Self::keeping(folder, margin, fix))
    }

    /// Of which this many bytes stay free.
    pub fn keeping(folder: &Path, margin: u64, fix: &'static str) -> Self {
        Self { folder: folder.to_owned(), margin, fix, unread: AtomicU64::new(0) }
    }

    /// Blocks.
    pub fn room(&self) -> io::Result<Room> {
        let volume = statvfs(&self.folder)?;
        Ok(Room {
            bytes: free(&volume),
            files: (volume.f_files > 0).then_some(volume.f_favail),
            margin: self.margin,
        })
    }

    /// Fails if files of these sizes do not fit. Blocks.
    pub fn holds(&self, sizes: impl Iterator<Item = u64>) -> io::Result<()> {
        let needed = sizes.map(whole_blocks).fold(0, u64::saturating_add);
        let Room { bytes: free, margin, .. } = self.room()?;
        if needed <= free.saturating_sub(margin) {
            return Ok(());
        }
        let folder = self.folder.display();
        let why = if needed > free {
            format!("its volume has {} free: {}", Size(free), self.fix)
        } else {
            shared_disk(free, margin, self.fix)
        };
        let message = format!("{folder} needs {}, and {why}", Size(needed));
        Err(io::Error::new(io::ErrorKind::StorageFull, message))
    }

    /// Fails if the next bytes would take from the margin, because another program has filled the disk since the transfer
    /// began. Blocks.
    pub fn admit(&self, bytes: u64) -> io::Result<()> {
        if self.margin == 0 {
            return Ok(());
        }
        let free = free(&statvfs(&self.folder)?);
        if bytes <= free.saturating_sub(self.margin) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::StorageFull, shared_disk(free, self.margin, self.fix)))
    }

    /// [`Self::admit`] for a small file: the free space is read once for many of them. Blocks.
    pub fn admit_small(&self, bytes: u64) -> io::Result<()> {
        if self.unread.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) < READ_EVERY {
            return Ok(());
        }
        self.unread.store(0, Ordering::Relaxed);
        self.admit(bytes)
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

/// For messages: what keeps files off a disk with other pods, and the fix.
pub fn shared_disk(free: u64, margin: u64, fix: &str) -> String {
    let (free, margin) = (Size(free), Size(margin));
    format!("the disk has {free} free, of which {margin} stay free for other pods of the node: {fix}")
}

/// The allocation unit of nearly every file system.
const BLOCK: u64 = 4096;

pub fn whole_blocks(size: u64) -> u64 {
    size.div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// A number of bytes for messages: `14.0 GiB`.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

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

    #[test]
    fn a_disk_with_other_pods_keeps_more_free_than_the_kubelet_evicts_at() {
        let gib = 1 << 30;
        assert_eq!(margin(100 * gib, 20 * gib), 11 * gib);
        assert_eq!(
            margin(100 * gib, 8 * gib),
            4 * gib,
            "the kubelet's threshold is lower, since the pod runs"
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        let volume = |margin| Volume::keeping(folder.path(), margin, "free space");
        volume(0).holds([1, 1].into_iter()).unwrap();
        let refused = |volume: Volume, sizes: &[u64]| volume.holds(sizes.iter().copied()).unwrap_err();
        let large = refused(volume(0), &[u64::MAX, u64::MAX]);
        assert_eq!(large.kind(), io::ErrorKind::StorageFull);
        assert!(large.to_string().contains("its volume has "), "{large}");
        let shared = refused(volume(u64::MAX), &[1]).to_string();
        assert!(
            shared.contains("needs 4.0 KiB, and the disk has ") && shared.ends_with(": free space"),
            "{shared}"
        );
    }

    #[test]
    fn a_volume_with_a_size_of_its_own_is_filled_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let margin = |on_node: &Path| Volume::of(folder.path(), on_node, "").unwrap().margin;
        assert!(margin(folder.path()) > 0, "the disk of the node");
        assert_eq!(margin(Path::new("/proc/self/status")), 0, "another file system");
        assert_eq!(margin(&folder.path().join("none")), 0, "outside a pod");
    }

    #[test]
    fn a_disk_that_others_fill_during_the_copy_is_not_filled_further() {
        let folder = tempfile::tempdir().unwrap();
        let volume = |margin| Volume::keeping(folder.path(), margin, "");
        volume(0).admit(u64::MAX).unwrap();
        let error = volume(u64::MAX).admit(1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        let full = volume(u64::MAX);
        full.admit_small(READ_EVERY - 1).unwrap();
        full.admit_small(1).unwrap_err();
        full.admit_small(1).unwrap();
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
