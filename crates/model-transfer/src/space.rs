//! Checks the space for a model before a transfer, so that it neither fails after most of the copy nor fills the disk of a
//! node, which other pods need.

use std::path::Path;

use directory::space::{Room, Size, shared_disk, whole_blocks};

use crate::fault::{Cause, Fault};

/// For messages: how a disk with other pods gets room for a model.
pub(crate) const MORE_SPACE: &str = "free space on the node, or set spec.modelVolume.medium to Volume";

/// A store may list any size: sums do not overflow.
pub(crate) fn total(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
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
        let message =
            format!("{folder} needs {} more, and {}", Size(needed), shared_disk(free, margin, MORE_SPACE));
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
            let room =
                Room { bytes, files: None, margin: if bytes < 10 * gib { bytes / 2 } else { 11 * gib } };
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
}
