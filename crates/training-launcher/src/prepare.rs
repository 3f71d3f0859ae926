//! What happens before the trainer starts: rank 0 takes the output folder and decides from where to resume; the other
//! ranks wait for its decision.
//!
//! It runs on a thread of its own, because a file system may hang. It must not touch an output that another attempt or
//! another job owns, and deletes nothing but half-written checkpoints of its own job.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use api::launcher::{Checkpoint, ExitCode};

use crate::{
    checkpoints::{self, Complete, Folder, Stamp},
    fault::Fault,
    marker::{self, Marker, Ownership, Phase, Standing},
    output,
    resume::{self, ResumeSource},
    timing::Timing,
};

/// A step of a wait that can be cancelled.
const STEP: Duration = Duration::from_millis(20);
/// How often a late write of an earlier attempt may replace the marker before the output counts as unusable.
const REWRITES: u32 = 3;
/// Checkpoints that an error names.
const NAMED: usize = 3;

#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) output: PathBuf,
    pub(crate) job: String,
    pub(crate) attempt: u32,
    pub(crate) pod_uid: String,
    pub(crate) rank: u32,
    /// Whether the trainer can go on from a checkpoint.
    pub(crate) resumes: bool,
    /// Checkpoints of an earlier job.
    pub(crate) source: Option<ResumeSource>,
    pub(crate) timing: Timing,
    /// The pod was asked to end.
    pub(crate) cancelled: Arc<AtomicBool>,
}

/// The trainer may start.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    /// The ownership of rank 0.
    pub(crate) ownership: Ownership,
    pub(crate) resume: Option<Checkpoint>,
    /// Complete checkpoints that are newer than the resume point, and do not prove anything about this run.
    pub(crate) stale: Vec<(i64, Stamp)>,
}

pub(crate) fn prepare(order: &Order) -> Result<Prepared, Fault> {
    if order.rank == 0 { lead(order) } else { follow(order) }
}

fn lead(order: &Order) -> Result<Prepared, Fault> {
    let output = &order.output;
    fs::create_dir_all(output).map_err(|error| Fault::output("create", output, &error))?;
    let ownership = Ownership { job: order.job.clone(), attempt: order.attempt, run: order.pod_uid.clone() };
    let must_wait = examine_owner(order, &ownership)?;
    write(order, &Marker { ownership: ownership.clone(), phase: Phase::Preparing, resume: None })?;
    let prepared = decide(order, &ownership, must_wait);
    if prepared.is_err() {
        release(output, &ownership);
    }
    prepared
}

/// Whether the last owner may still write. An error if the output must not be touched.
fn examine_owner(order: &Order, ownership: &Ownership) -> Result<bool, Fault> {
    let path = marker::path(&order.output);
    let found = match marker::read(&order.output) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            let path = path.display();
            let fix = "delete it if no other job uses this folder";
            let message = format!("{path} is not a marker of a training-launcher ({error}); {fix}");
            return Err(Fault::new(ExitCode::OutputNotEmpty, message));
        }
        Err(error) => return Err(Fault::output("read", &path, &error)),
    };
    match found {
        Some(found) if found.ownership.job == ownership.job => match ownership.standing(&found) {
            // The container was started again in its pod: none of its processes is left.
            Standing::Owner => Ok(false),
            Standing::Superseded if found.ownership.attempt > ownership.attempt => {
                Err(superseded(ownership, &found))
            }
            Standing::Superseded | Standing::Overwritten => Ok(found.phase != Phase::Ended),
        },
        found => {
            ensure_empty(order)?;
            match found {
                Some(found) if found.phase != Phase::Ended => {
                    let (path, job) = (path.display(), found.ownership.job);
                    let fix = format!("use another folder, or delete {path} if that job has ended");
                    let message =
                        format!("{path} says that the TrainingJob with uid {job} writes here; {fix}");
                    Err(Fault::new(ExitCode::OutputNotEmpty, message))
                }
                Some(_) | None => Ok(false),
            }
        }
    }
}

/// No checkpoint, complete or not, of another job.
fn ensure_empty(order: &Order) -> Result<(), Fault> {
    let folders = list(order)?;
    if folders.is_empty() {
        return Ok(());
    }
    let mut names: Vec<String> = folders.iter().take(NAMED).map(|folder| folder.reference().path).collect();
    if folders.len() > NAMED {
        names.push(format!("{} more", folders.len() - NAMED));
    }
    let names = names.join(", ");
    let fix = "use another folder or claim, or delete them";
    Err(Fault::new(
        ExitCode::OutputNotEmpty,
        format!("the output has checkpoints of another job: {names}; {fix}"),
    ))
}

fn decide(order: &Order, ownership: &Ownership, must_wait: bool) -> Result<Prepared, Fault> {
    let output = &order.output;
    marker::remove_old_stop_request(output, ownership)
        .map_err(|error| Fault::output("remove the old stop request in", output, &error))?;
    if must_wait {
        let seconds = order.timing.fence.as_secs_f32();
        output::note(&format!(
            "the last attempt has not reported its end: waiting {seconds} s until it cannot write"
        ));
        wait(order, order.timing.fence)?;
    }
    confirm(order, ownership)?;
    let own = checkpoints::newest(output, |complete| order.resumes && complete.is_resumable)
        .map_err(|error| Fault::output("examine the checkpoints in", output, &error))?;
    let stale = remove_half_written(order, own.as_ref())?;
    let resume = match (own, &order.source) {
        (Some(own), _) => Some(own),
        (None, Some(source)) if order.resumes => Some(of_source(order, source)?),
        (None, _) => None,
    };
    let resume = resume.map(|complete| complete.reference());
    confirm(order, ownership)?;
    write(order, &Marker { ownership: ownership.clone(), phase: Phase::Running, resume: resume.clone() })?;
    Ok(Prepared { ownership: ownership.clone(), resume, stale })
}

/// The checkpoint of an earlier job. The controller starts no attempt while another pod may write there.
fn of_source(order: &Order, source: &ResumeSource) -> Result<Complete, Fault> {
    let folder = &source.path;
    if let Ok(Some(found)) = marker::read(folder)
        && found.phase != Phase::Ended
    {
        let seconds = order.timing.fence.as_secs_f32();
        let job = found.ownership.job;
        let path = marker::path(folder);
        output::note(&format!(
            "{}: the TrainingJob with uid {job} has not reported its end: waiting {seconds} s until it cannot write",
            path.display()
        ));
        wait(order, order.timing.fence)?;
    }
    resume::newest(source)
}

/// Whether a checkpoint is one of this job.
pub(crate) fn is_own(output: &Path, resume: &Checkpoint) -> bool {
    Path::new(&resume.path).starts_with(output)
}

/// Removes half-written checkpoints that are newer than the resume point: they take space, and the trainer would write
/// into their files. Returns what else is newer.
fn remove_half_written(order: &Order, resume: Option<&Complete>) -> Result<Vec<(i64, Stamp)>, Fault> {
    let mut stale = Vec::new();
    let is_newer = |folder: &Folder| resume.is_none_or(|resume| folder.step > resume.folder.step);
    for folder in list(order)?.into_iter().filter(is_newer) {
        let path = &folder.path;
        match checkpoints::examine(&folder).map_err(|error| Fault::output("examine", path, &error))? {
            Some(complete) => stale.push((folder.step, complete.stamp)),
            None => {
                output::note(&format!("removing the half-written checkpoint {}", path.display()));
                checkpoints::remove(&folder).map_err(|error| Fault::output("remove", path, &error))?;
            }
        }
    }
    Ok(stale)
}

/// An error unless the marker is still that of this run.
fn confirm(order: &Order, ownership: &Ownership) -> Result<(), Fault> {
    for _ in 0..REWRITES {
        let path = marker::path(&order.output);
        let found = marker::read(&order.output).map_err(|error| Fault::output("read", &path, &error))?;
        let Some(found) = found else {
            let error = io::Error::from(io::ErrorKind::NotFound);
            return Err(Fault::output("read", &path, &error));
        };
        match ownership.standing(&found) {
            Standing::Owner => return Ok(()),
            Standing::Superseded => return Err(superseded(ownership, &found)),
            Standing::Overwritten => {
                write(
                    order,
                    &Marker { ownership: ownership.clone(), phase: Phase::Preparing, resume: None },
                )?;
                wait(order, order.timing.fence)?;
            }
        }
    }
    let path = marker::path(&order.output);
    let message = format!("{} is written by an earlier attempt that has not ended", path.display());
    Err(Fault::new(ExitCode::OutputUnusable, message))
}

fn follow(order: &Order) -> Result<Prepared, Fault> {
    let deadline = Instant::now() + order.timing.leader;
    let mut is_noted = false;
    loop {
        let read = marker::read(&order.output);
        match &read {
            Ok(Some(found)) if found.ownership.job == order.job => {
                let ownership = &found.ownership;
                if ownership.attempt > order.attempt {
                    let own = Ownership {
                        job: order.job.clone(),
                        attempt: order.attempt,
                        run: order.pod_uid.clone(),
                    };
                    return Err(superseded(&own, found));
                }
                match found.phase {
                    Phase::Running if ownership.attempt == order.attempt => {
                        let (ownership, resume) = (ownership.clone(), found.resume.clone());
                        return Ok(Prepared { ownership, resume, stale: Vec::new() });
                    }
                    Phase::Ended if ownership.attempt == order.attempt => {
                        let message = "rank 0 has ended before this rank could start";
                        return Err(Fault::new(ExitCode::Stopped, message.to_owned()));
                    }
                    Phase::Preparing | Phase::Running | Phase::Ended => {}
                }
            }
            Ok(_) | Err(_) => {}
        }
        if Instant::now() >= deadline {
            let found = read.map_or_else(|error| format!(" ({error})"), |_| String::new());
            let (path, attempt) = (marker::path(&order.output), order.attempt);
            let message = format!(
                "rank 0 has not written attempt {attempt} into {} within {} s{found}; is the claim shared by all pods \
                 (ReadWriteMany), and does the pod of rank 0 run?",
                path.display(),
                order.timing.leader.as_secs_f32(),
            );
            return Err(Fault::new(ExitCode::OutputUnusable, message));
        }
        if !is_noted {
            output::note("waiting until rank 0 has chosen the checkpoint to resume from");
            is_noted = true;
        }
        wait(order, order.timing.poll)?;
    }
}

/// Writes that this run writes no more, if it still owns the output.
pub(crate) fn release(output: &Path, ownership: &Ownership) {
    let released = match marker::read(output) {
        Ok(Some(found)) if found.ownership == *ownership => {
            marker::write(output, &Marker { phase: Phase::Ended, ..found })
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = released {
        let path = marker::path(output);
        output::note(&format!("failed to write the end of the attempt into {}: {error}", path.display()));
    }
}

pub(crate) fn superseded(own: &Ownership, found: &Marker) -> Fault {
    let Ownership { job, attempt, run } = &found.ownership;
    let (own_attempt, own_run) = (own.attempt, &own.run);
    let message = format!(
        "attempt {own_attempt} of pod {own_run} ends, because attempt {attempt} of pod {run} of the TrainingJob with \
         uid {job} owns the output"
    );
    Fault::new(ExitCode::Superseded, message)
}

pub(crate) fn stopped_before_start() -> Fault {
    Fault::new(ExitCode::Stopped, "the pod was asked to end before the trainer was started")
}

fn wait(order: &Order, duration: Duration) -> Result<(), Fault> {
    let deadline = Instant::now() + duration;
    while !order.cancelled.load(Ordering::Relaxed) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(STEP));
    }
    Err(stopped_before_start())
}

fn list(order: &Order) -> Result<Vec<Folder>, Fault> {
    checkpoints::list(&order.output).map_err(|error| Fault::output("list", &order.output, &error))
}

fn write(order: &Order, marker: &Marker) -> Result<(), Fault> {
    let path = marker::path(&order.output);
    marker::write(&order.output, marker).map_err(|error| Fault::output("write", &path, &error))
}
