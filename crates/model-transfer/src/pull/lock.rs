//! A lock that allows one run at a time per folder, because two pods may mount one volume.
//!
//! The lock is released when the process ends. The wait is bounded, and a file system without locks does not prevent the
//! copy.

use std::{
    fs::File,
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, OFlags, flock},
    io::Errno,
};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::fault::{Cause, Fault};

/// The file of the lock. It is never removed, because a lock on a removed file excludes no other run.
const LOCK: &str = ".model-transfer.lock";
const LOOK_EVERY: Duration = Duration::from_millis(200);
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// Whether the folder is locked.
#[derive(Debug)]
pub(super) enum Lock {
    /// There is no other run until this file is closed.
    Held { _file: File },
    /// The file system has no locks, so there may be other runs.
    Unsupported,
}

/// Waits until no other run holds the lock, `within` this time.
pub(super) async fn lock(root: &Path, within: Duration) -> Result<Lock, Fault> {
    let path = root.join(LOCK);
    let began = Instant::now();
    let mut reported: Option<Instant> = None;
    loop {
        match try_lock(&path).map_err(Fault::io("lock", &path))? {
            Attempt::Locked(file) => {
                if reported.is_some() {
                    info!("{}: the other run has ended", root.display());
                }
                return Ok(Lock::Held { _file: file });
            }
            Attempt::Unsupported(error) => {
                warn!(
                    "{}: the file system has no locks ({error}); this run resumes only the partial files of \
                     this host or pod",
                    root.display()
                );
                return Ok(Lock::Unsupported);
            }
            Attempt::Busy => {}
        }
        if began.elapsed() >= within {
            let message = format!(
                "another run has held {} for {} s: check the other pods that write to this volume",
                path.display(),
                within.as_secs()
            );
            return Err(Fault::new(Cause::Local, message));
        }
        if reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
            reported = Some(Instant::now());
            let left = within.saturating_sub(began.elapsed()).as_secs();
            info!(
                "{}: another run copies into this folder; waiting for it, at most {left} s",
                root.display()
            );
        }
        sleep(LOOK_EVERY).await;
    }
}

#[derive(Debug)]
enum Attempt {
    Locked(File),
    Busy,
    Unsupported(Errno),
}

fn try_lock(path: &Path) -> io::Result<Attempt> {
    // A link could lead out of the folder.
    let no_link = OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = File::options();
    let file =
        options.read(true).write(true).create(true).truncate(false).custom_flags(no_link).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        // The lock has no effect if the file was removed or replaced after it was opened.
        Ok(()) if is_still(&file, path) => Ok(Attempt::Locked(file)),
        Ok(()) => Ok(Attempt::Busy),
        Err(error) => meaning(error),
    }
}

fn meaning(error: Errno) -> io::Result<Attempt> {
    match error {
        // Network file systems implement flock by record locks, which return ACCESS as well.
        Errno::WOULDBLOCK | Errno::INTR | Errno::ACCESS => Ok(Attempt::Busy),
        Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK | Errno::INVAL | Errno::NOTTY | Errno::BADF => {
            Ok(Attempt::Unsupported(error))
        }
        error => Err(error.into()),
    }
}

fn is_still(file: &File, path: &Path) -> bool {
    let same = || {
        let (held, named) = (file.metadata().ok()?, path.symlink_metadata().ok()?);
        Some((held.dev(), held.ino()) == (named.dev(), named.ino()))
    };
    same().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lock_is_waited_for_until_its_holder_ends_or_the_time_is_over() {
        let root = tempfile::tempdir().unwrap();
        let held = lock(root.path(), Duration::ZERO).await.unwrap();
        let fault = lock(root.path(), Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(fault.cause, Cause::Local);
        assert!(fault.to_string().contains("another run has held"), "{fault}");
        drop(held);
        assert!(matches!(lock(root.path(), Duration::ZERO).await.unwrap(), Lock::Held { .. }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_on_a_file_that_was_removed_has_no_effect() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(LOCK);
        let file = File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        File::create(&path).unwrap();
        assert!(!is_still(&file, &path));
        assert!(is_still(&File::open(&path).unwrap(), &path));
    }

    #[test]
    fn a_file_system_without_locks_is_not_an_error_and_a_broken_one_is() {
        for error in [Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK] {
            assert!(matches!(meaning(error), Ok(Attempt::Unsupported(_))), "{error}");
        }
        assert!(matches!(meaning(Errno::WOULDBLOCK), Ok(Attempt::Busy)));
        assert!(meaning(Errno::IO).is_err());
    }
}
