//! The marker of the output folder: which attempt owns it, and from which checkpoint all ranks of the attempt resume.
//!
//! Rank 0 writes the marker; each write replaces the whole file atomically. A request to stop, which any rank writes, and
//! the failure of another rank than 0 have files of their own. Nothing here waits, and nothing here decides what follows
//! from a marker, except `Standing`.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use api::launcher::Checkpoint;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Hidden, because it is no part of the result.
const MARKER: &str = ".training-launcher.json";
const STOP_REQUEST: &str = ".training-launcher.stop.json";
const FAILURE: &str = ".training-launcher.failed.json";
/// A marker has a few hundred bytes; a longer file is none.
const LONGEST: u64 = 64 << 10;

/// Who owns the output: one run of an attempt. A pod that was replaced within an attempt is another run.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ownership {
    /// uid of the TrainingJob.
    pub(crate) job: String,
    pub(crate) attempt: u32,
    /// uid of the pod of rank 0.
    pub(crate) run: String,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    #[serde(flatten)]
    pub(crate) ownership: Ownership,
    pub(crate) phase: Phase,
    /// The checkpoint from which all ranks resume, once the phase is not `Preparing`.
    #[serde(default)]
    pub(crate) resume: Option<Checkpoint>,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Phase {
    /// The output has an owner, which has not yet decided from where to resume. Markers of all releases name it so.
    #[serde(rename = "claimed")]
    Preparing,
    Running,
    /// The owner's trainer has ended, and writes no more.
    Ended,
}

/// The attempt that a request or a failure is of.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
struct Attempt {
    job: String,
    attempt: u32,
}

/// What a marker says about the ownership of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Owner,
    /// An earlier attempt of the job has written after this one: its last write was late.
    Overwritten,
    Superseded,
}

impl Ownership {
    pub(crate) fn standing(&self, marker: &Marker) -> Standing {
        let found = &marker.ownership;
        if found == self {
            Standing::Owner
        } else if found.job == self.job && found.attempt < self.attempt {
            Standing::Overwritten
        } else {
            Standing::Superseded
        }
    }
}

pub(crate) fn path(output: &Path) -> PathBuf {
    output.join(MARKER)
}

pub(crate) fn read(output: &Path) -> io::Result<Option<Marker>> {
    read_file(&path(output))
}

pub(crate) fn write(output: &Path, marker: &Marker) -> io::Result<()> {
    replace(output, MARKER, marker)
}

/// Whether a rank of this attempt was asked to end.
pub(crate) fn is_stop_requested(output: &Path, ownership: &Ownership) -> io::Result<bool> {
    is_of_attempt(&output.join(STOP_REQUEST), ownership)
}

pub(crate) fn request_stop(output: &Path, ownership: &Ownership) -> io::Result<()> {
    replace(output, STOP_REQUEST, &Attempt { job: ownership.job.clone(), attempt: ownership.attempt })
}

/// Whether the trainer of another rank than 0 has failed in this attempt.
pub(crate) fn has_failed(output: &Path, ownership: &Ownership) -> io::Result<bool> {
    is_of_attempt(&output.join(FAILURE), ownership)
}

/// The failure of a rank stays: it counts for its attempt only.
pub(crate) fn report_failure(output: &Path, ownership: &Ownership) -> io::Result<()> {
    replace(output, FAILURE, &Attempt { job: ownership.job.clone(), attempt: ownership.attempt })
}

fn is_of_attempt(path: &Path, ownership: &Ownership) -> io::Result<bool> {
    let found: Option<Attempt> = read_file(path)?;
    Ok(found.is_some_and(|found| found.job == ownership.job && found.attempt == ownership.attempt))
}

/// Removes the request of an earlier attempt. One of this attempt stays: another rank may have been asked to end
/// already.
pub(crate) fn remove_old_stop_request(output: &Path, ownership: &Ownership) -> io::Result<()> {
    let path = output.join(STOP_REQUEST);
    if is_stop_requested(output, ownership).unwrap_or(false) || !path.try_exists()? {
        return Ok(());
    }
    fs::remove_file(path)
}

/// `None` if there is no file. A file that cannot be parsed is an error.
fn read_file<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// After a crash of the machine the file has either its old or its new content.
fn replace(folder: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(content)?;
    // Two ranks may write a request at the same time, from containers in which both are process 1.
    let new = folder.join(format!("{name}.{}.new", suffix()));
    let written = write_new(&new, &text).and_then(|()| fs::rename(&new, folder.join(name)));
    if let Err(error) = written {
        let _ = fs::remove_file(&new);
        return match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                overwrite(&folder.join(name), text).map_err(|_| error)
            }
            _ => Err(error),
        };
    }
    match File::open(folder)?.sync_all() {
        // Some network file systems do not support it.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Ok(())
        }
        synced => synced,
    }
}

/// For a volume that is full, for example of half-written checkpoints that the owner of the marker would remove: a
/// short file that is written in its place needs no space. A reader may see a part of it, which it cannot parse.
fn overwrite(path: &Path, mut text: Vec<u8>) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    // Blanks at the end of JSON mean nothing.
    text.resize(text.len().max(length), b' ');
    file.write_all(&text)?;
    file.sync_all()
}

pub(crate) fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text)?;
    file.sync_all()
}

/// The host name is that of the pod.
fn suffix() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}.{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ownership(job: &str, attempt: u32, run: &str) -> Ownership {
        Ownership { job: job.to_owned(), attempt, run: run.to_owned() }
    }

    #[test]
    fn a_marker_is_read_as_it_was_written_and_nothing_else_is_left() {
        let output = tempfile::tempdir().unwrap();
        assert_eq!(read(output.path()).unwrap(), None);
        let resume = Some(Checkpoint { path: "/output/checkpoint-5".to_owned(), step: 5 });
        let marker = Marker { ownership: ownership("job", 2, "pod"), phase: Phase::Running, resume };
        write(output.path(), &marker).unwrap();
        assert_eq!(read(output.path()).unwrap(), Some(marker));
        assert_eq!(fs::read_dir(output.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_marker_that_cannot_be_parsed_is_an_error_and_not_an_absent_one() {
        let output = tempfile::tempdir().unwrap();
        fs::write(path(output.path()), "").unwrap();
        assert_eq!(read(output.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_later_attempt_another_run_and_another_job_supersede() {
        let own = ownership("job", 2, "pod");
        let standing = |job, attempt, run| {
            let marker =
                Marker { ownership: ownership(job, attempt, run), phase: Phase::Running, resume: None };
            own.standing(&marker)
        };
        assert_eq!(standing("job", 2, "pod"), Standing::Owner);
        assert_eq!(standing("job", 3, "next"), Standing::Superseded);
        assert_eq!(standing("job", 2, "next"), Standing::Superseded);
        assert_eq!(standing("other", 1, "pod"), Standing::Superseded);
        assert_eq!(standing("job", 1, "before"), Standing::Overwritten);
    }

    #[test]
    fn a_request_to_stop_counts_for_its_attempt_only() {
        let output = tempfile::tempdir().unwrap();
        let (own, next) = (ownership("job", 1, "pod"), ownership("job", 2, "pod"));
        request_stop(output.path(), &own).unwrap();
        remove_old_stop_request(output.path(), &own).unwrap();
        assert!(is_stop_requested(output.path(), &own).unwrap());
        assert!(!is_stop_requested(output.path(), &next).unwrap());
        remove_old_stop_request(output.path(), &next).unwrap();
        assert!(!is_stop_requested(output.path(), &own).unwrap());
    }
}
