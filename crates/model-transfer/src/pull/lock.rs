//! One run at a time in a folder: two pods may mount one volume, and two runs that write the same files would mix them.
//!
//! The lock ends with the process that holds it, however that ends. It must not be waited for without an end, and a file
//! system without locks must not keep a model from being copied.

use std::{fs::File, io, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::partial::no_link;
use crate::fault::{Cause, Fault};

/// In the folder. It stays there: a lock on a file that was removed excludes no other run.
const LOCK: &str = ".model-transfer.lock";
const LOOK_EVERY: Duration = Duration::from_millis(200);
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// What a run may assume of other runs.
#[derive(Debug)]
pub(super) enum Lock {
    /// There is no other run until this file is closed.
    Held { _file: File },
    /// There may be others: the file system has no locks.
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
                "another run has held {} for {} s: look at the other pods that write to this volume",
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
    let file = no_link().read(true).write(true).create(true).truncate(false).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        // A file that was removed or replaced after it was opened locks nothing.
        Ok(()) if is_still(&file, path) => Ok(Attempt::Locked(file)),
        Ok(()) => Ok(Attempt::Busy),
        Err(error) => meaning(error),
    }
}

fn meaning(error: Errno) -> io::Result<Attempt> {
    match error {
        // Network file systems carry flock out by record locks, which answer ACCESS as well.
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
    async fn a_lock_is_waited_for_until_its_holder_ends_and_not_for_ever() {
        let root = tempfile::tempdir().unwrap();
        let held = lock(root.path(), Duration::ZERO).await.unwrap();
        let fault = lock(root.path(), Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(fault.cause, Cause::Local);
        assert!(fault.to_string().contains("another run has held"), "{fault}");
        drop(held);
        assert!(matches!(lock(root.path(), Duration::ZERO).await.unwrap(), Lock::Held { .. }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_on_a_file_that_was_removed_is_none() {
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
