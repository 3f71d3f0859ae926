//! Reads the marker again and again while the trainer runs, on a thread of its own: a file system that hangs must not
//! block the handling of signals.
//!
//! It reports, and decides nothing. It writes nothing, except the marker of rank 0 after a late write of an earlier
//! attempt.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use api::launcher::Checkpoint;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::{
    checkpoints,
    marker::{self, Marker, Ownership, Phase, Standing},
};

#[derive(Debug)]
pub(crate) enum Event {
    /// Another attempt, another run of this one, or another job owns the output.
    Superseded(Marker),
    /// Another rank of the attempt was asked to end.
    StopRequested,
    /// The trainer of rank 0 has ended.
    LeaderEnded,
    /// The trainer of another rank has failed.
    RankFailed,
    /// After the request to end, the trainer has completed a checkpoint before its last step.
    Saved,
}

/// Each event is sent once.
const EVENTS: usize = 5;
const STACK: usize = 256 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) output: PathBuf,
    pub(crate) ownership: Ownership,
    pub(crate) resume: Option<Checkpoint>,
    pub(crate) is_leader: bool,
    /// Other ranks may request a stop, or fail.
    pub(crate) has_peers: bool,
    pub(crate) poll: Duration,
}

pub(crate) struct Watch {
    shared: Arc<Shared>,
    pub(crate) events: Receiver<Event>,
}

struct Shared {
    seen: Mutex<Seen>,
    /// The trainer was asked to save and to end.
    is_asked: AtomicBool,
}

struct Seen {
    /// When the marker was last read and found to be that of this run.
    verified: Instant,
    /// Why it could not be read since.
    error: Option<String>,
}

impl Watch {
    pub(crate) fn start(subject: Subject) -> io::Result<Self> {
        let seen = Mutex::new(Seen { verified: Instant::now(), error: None });
        let shared = Arc::new(Shared { seen, is_asked: AtomicBool::new(false) });
        let (sender, events) = channel(EVENTS);
        let of_thread = Arc::clone(&shared);
        let run = move || watch(&subject, &of_thread, &sender);
        thread::Builder::new().name("watch".to_owned()).stack_size(STACK).spawn(run)?;
        Ok(Self { shared, events })
    }

    /// How long ago the marker was found to be that of this run.
    pub(crate) fn unverified(&self) -> Duration {
        self.shared.seen().verified.elapsed()
    }

    pub(crate) fn error(&self) -> String {
        self.shared.seen().error.clone().unwrap_or_else(|| "the file system does not answer".to_owned())
    }

    /// From now on, new checkpoints are reported.
    pub(crate) fn expect_checkpoint(&self) {
        self.shared.is_asked.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn watch(subject: &Subject, shared: &Shared, events: &Sender<Event>) {
    let (mut is_stop_sent, mut is_end_sent, mut is_failure_sent, mut is_saved_sent) =
        (false, false, false, false);
    // The newest checkpoint when the trainer was asked to save.
    let mut before: Option<i64> = None;
    while !events.is_closed() {
        match marker::read(&subject.output) {
            Ok(Some(found)) => match subject.ownership.standing(&found) {
                Standing::Owner => {
                    *shared.seen() = Seen { verified: Instant::now(), error: None };
                    if found.phase == Phase::Ended && !is_end_sent {
                        is_end_sent = events.blocking_send(Event::LeaderEnded).is_ok();
                    }
                }
                Standing::Superseded => {
                    // Nothing follows.
                    let _ = events.blocking_send(Event::Superseded(found));
                    return;
                }
                Standing::Overwritten => restore(subject, shared),
            },
            Ok(None) => shared.seen().error = Some("the marker has been deleted".to_owned()),
            Err(error) => shared.seen().error = Some(error.to_string()),
        }
        if subject.has_peers
            && !is_stop_sent
            && marker::is_stop_requested(&subject.output, &subject.ownership).unwrap_or(false)
        {
            is_stop_sent = events.blocking_send(Event::StopRequested).is_ok();
        }
        if subject.has_peers
            && !is_failure_sent
            && marker::has_failed(&subject.output, &subject.ownership).unwrap_or(false)
        {
            is_failure_sent = events.blocking_send(Event::RankFailed).is_ok();
        }
        if subject.is_leader && !is_saved_sent && shared.is_asked.load(Ordering::Relaxed) {
            match before {
                Some(before) if has_saved(&subject.output, before) => {
                    is_saved_sent = events.blocking_send(Event::Saved).is_ok();
                }
                Some(_) => {}
                None => {
                    let newest = checkpoints::newest(&subject.output, |_| true);
                    before = newest.ok().map(|newest| newest.map_or(0, |newest| newest.folder.step));
                }
            }
        }
        thread::sleep(subject.poll);
    }
}

/// Whether there is a newer complete checkpoint, before the last step.
fn has_saved(output: &Path, before: i64) -> bool {
    let folders = checkpoints::list(output).unwrap_or_default();
    folders.iter().filter(|folder| folder.step > before).any(|folder| {
        let complete = checkpoints::examine(folder).ok().flatten();
        complete.is_some_and(|complete| !complete.state.is_last_step())
    })
}

/// The owner of the output is the later attempt, whatever an earlier one has written.
fn restore(subject: &Subject, shared: &Shared) {
    if subject.is_leader {
        let Subject { ownership, resume, .. } = subject;
        let own = Marker { ownership: ownership.clone(), phase: Phase::Running, resume: resume.clone() };
        if let Err(error) = marker::write(&subject.output, &own) {
            shared.seen().error = Some(error.to_string());
        }
    }
}
