//! Follows the log of rank 0 of every running attempt, and keeps what it says of the training.
//!
//! A log may have thousands of lines a second. What was read is published every ten seconds at most, and only then the job is
//! reconciled. After a restart of the process a log is read from the line on that the status has. Steps identify the points
//! of the loss curve, so a line that is read twice counts once.
//!
//! Any line may be text of the user's data. It must not name what another job loads: of a checkpoint only the step is taken
//! from the log, and only if the trainer has reached it.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::{
    launcher::{checkpoint_name, checkpoint_step},
    trainingjob::{Checkpoint, LossPoint, Progress as Report, TrainingJob, TrainingJobStatus},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::{
    key::Key,
    queue::Waker,
    read::{
        log_stream::{LogStream, Piece, Received},
        logs::Logs,
    },
    watch::cache::Cache,
    write::conditions::whole_seconds,
};
use tokio::{sync::Notify, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;
use training_log::{Entry, Parser, Step, shown_progress};

mod curve;
mod losses;

use curve::Curve;
pub(crate) use losses::{Losses, Row};

/// The log to follow: that of one container.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Target {
    pub(crate) pod: String,
    pub(crate) pod_uid: String,
    pub(crate) container: &'static str,
    /// Its number.
    pub(crate) attempt: i32,
    /// Folder of the checkpoints.
    pub(crate) output_dir: String,
}

/// What the log of an attempt has said so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogState {
    pub(crate) report: Option<Report>,
    pub(crate) curve: Vec<LossPoint>,
    /// Of this attempt, since the log was opened.
    pub(crate) losses: Losses,
    /// The newest one that the trainer has reported.
    pub(crate) checkpoint: Option<Checkpoint>,
    /// Whether this attempt has reported it: what an earlier one has reported does not count any more.
    pub(crate) has_saved: bool,
    /// Whether this attempt has made a step.
    pub(crate) has_stepped: bool,
    /// When a step, an evaluation or a checkpoint was read last, or the log became readable. Before the first step also when
    /// a download or the preparation of data advanced last.
    pub(crate) last_sign: Option<Timestamp>,
    /// The same, also by a clock that never jumps.
    heard: Option<Received>,
    pub(crate) access: Access,
    /// Whether the log was read to its end.
    pub(crate) is_complete: bool,
    last_lines: Vec<String>,
}

/// Whether the log can be read now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Access {
    #[default]
    Unknown,
    Readable,
    Unreadable(String),
    /// The controller lacks the right.
    Forbidden,
}

/// The logs that are followed, by the uid of their TrainingJob.
#[derive(Clone, Default)]
pub(crate) struct Progress(Arc<Shared>);

#[derive(Default)]
struct Shared {
    followed: Mutex<HashMap<String, Followed>>,
    changed: Notify,
}

struct Followed {
    job: Key,
    target: Target,
    /// `None` once its task runs.
    reader: Option<Reader>,
    state: Arc<Mutex<LogState>>,
    stop: CancellationToken,
}

/// A log of which the reading has to begin.
struct New {
    job: Key,
    target: Target,
    reader: Reader,
    state: Arc<Mutex<LogState>>,
    ended: CancellationToken,
}

/// At most 0.1 status writes a second for each job.
const PUBLISHED_EVERY: Duration = Duration::from_secs(10);
/// A kubelet that has rotated the log may leave the stream open for ever.
const SILENCE: Duration = Duration::from_secs(60);
/// Lines that are kept for a failure without a message of the launcher.
const LAST_LINES: usize = 8;
/// Of a line that is kept, in bytes.
const LONGEST_LINE: usize = 256;
/// What progress bars showed before the first step: a model has some hundred files, of which some are loaded at a time.
const LAST_BARS: usize = 256;
/// Of what an API server says of a log that cannot be read, in bytes: more than a condition quotes.
const LONGEST_REFUSAL: usize = 2_048;

impl LogState {
    /// The last lines.
    pub(crate) fn tail(&self) -> Option<String> {
        (!self.last_lines.is_empty()).then(|| self.last_lines.join("\n"))
    }
}

impl Progress {
    /// What is known of the log of this TrainingJob. A clock that was set makes no silence longer or shorter.
    pub(crate) fn of(&self, uid: &str, now: Timestamp) -> Option<LogState> {
        let followed = self.lock();
        let mut state = followed.get(uid)?.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
        state.last_sign = state.heard.map(|heard| heard.by(now)).or(state.last_sign);
        Some(state)
    }

    /// Follows this log, and no other one of the TrainingJob.
    pub(crate) fn follow(&self, job: &Key, uid: &str, target: &Target, status: &TrainingJobStatus) {
        let mut followed = self.lock();
        if followed.get(uid).is_some_and(|known| known.target == *target) {
            return;
        }
        let reader = Reader::new(status, target);
        let state = Arc::new(Mutex::new(reader.state.clone()));
        let new = Followed {
            job: job.clone(),
            target: target.clone(),
            reader: Some(reader),
            state,
            stop: CancellationToken::new(),
        };
        if let Some(old) = followed.insert(uid.to_owned(), new) {
            old.stop.cancel();
        }
        drop(followed);
        self.0.changed.notify_one();
    }

    /// Ends the following of the TrainingJob's log.
    pub(crate) fn forget(&self, uid: &str) {
        if let Some(old) = self.lock().remove(uid) {
            old.stop.cancel();
        }
    }

    /// Ends the following of logs of TrainingJobs that are gone, or replaced by others of the same name: nothing reconciles
    /// a TrainingJob that was deleted at once.
    pub(crate) fn forget_removed(&self, jobs: &Cache<TrainingJob>) {
        let progress = self.clone();
        jobs.subscribe(move |change| {
            if let Some(uid) = change.gone().and_then(|gone| gone.metadata.uid.as_ref()) {
                progress.forget(uid);
            }
        });
    }

    /// Runs the tasks that read, until `stop`.
    pub(crate) fn running(
        &self,
        logs: Logs,
    ) -> impl FnOnce(Waker, CancellationToken) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + use<>
    {
        let progress = self.clone();
        move |waker, stop| Box::pin(async move { progress.run(&logs, &waker, &stop).await })
    }

    async fn run(&self, logs: &Logs, waker: &Waker, stop: &CancellationToken) {
        let mut tasks = JoinSet::new();
        loop {
            for New { job, target, reader, state, ended } in self.not_started() {
                let since = reader.since();
                let stream = logs.follow(&job.namespace, &target.pod, target.container, since, SILENCE);
                let (waker, stop) = (waker.clone(), stop.clone());
                tasks.spawn(async move {
                    let read = read(stream, reader, state, || waker.wake(&job));
                    tokio::select! {
                        () = read => {}
                        () = ended.cancelled() => {}
                        () = stop.cancelled() => {}
                    }
                });
            }
            tokio::select! {
                () = self.0.changed.notified() => {}
                // A panic in a parser ends the reading of that log alone, and its `Published` says that it is not read.
                Some(_) = tasks.join_next() => {}
                () = stop.cancelled() => break,
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    fn not_started(&self) -> Vec<New> {
        let mut followed = self.lock();
        let start = |followed: &mut Followed| {
            let reader = followed.reader.take()?;
            let (job, target) = (followed.job.clone(), followed.target.clone());
            let (state, ended) = (Arc::clone(&followed.state), followed.stop.clone());
            Some(New { job, target, reader, state, ended })
        };
        followed.values_mut().filter_map(start).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Followed>> {
        self.0.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a task that reads a log publishes. In whichever way the task ends: a log that is not read must not count as a silent
/// one.
struct Published(Arc<Mutex<LogState>>);

impl Published {
    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.lock().access = Access::Unknown;
    }
}

/// Reads until it is dropped. A log that is not found may be found later: a kubelet that starts does not know its pods yet.
async fn read(mut stream: LogStream, mut reader: Reader, state: Arc<Mutex<LogState>>, wake: impl Fn()) {
    let published = Published(state);
    let mut pause = std::pin::pin!(sleep(Duration::ZERO));
    let mut is_due = true;
    loop {
        let news = tokio::select! {
            (piece, at) = stream.next() => reader.take(piece, at),
            () = &mut pause, if !is_due => {
                is_due = true;
                News::Nothing
            }
        };
        let is_urgent = news == News::Urgent;
        if reader.is_dirty && (is_due || is_urgent) {
            *published.lock() = reader.publish();
            wake();
            is_due = false;
            pause.set(sleep(PUBLISHED_EVERY));
        }
    }
}

/// Whether what was read has to be reported at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Nothing,
    /// The first step, or the end.
    Urgent,
}

/// Turns the bytes of one log into its state. Pure.
struct Reader {
    parser: Parser,
    state: LogState,
    curve: Curve,
    attempt: i32,
    /// Folder of the checkpoints.
    output_dir: String,
    /// The last step of this attempt that the log has named.
    reached: i64,
    saving: Option<Saving>,
    /// Digests of what progress bars have shown, so that one which is drawn again is no progress.
    bars: VecDeque<u64>,
    /// Nothing of this attempt was read before a restart of this process.
    is_first_reading: bool,
    is_dirty: bool,
}

/// A checkpoint that the log has named.
struct Saving {
    checkpoint: Checkpoint,
    /// It is complete once the log names this step.
    complete_at: i64,
}

impl Reader {
    fn new(status: &TrainingJobStatus, target: &Target) -> Self {
        let state = LogState {
            report: status.progress.clone(),
            checkpoint: status.checkpoint.clone(),
            ..LogState::default()
        };
        let curve = Curve::of(&status.loss_curve);
        let parser = Parser::default();
        let (attempt, output_dir) = (target.attempt, target.output_dir.clone());
        let (reached, saving, bars, is_dirty) = (0, None, VecDeque::new(), false);
        let is_first_reading = false;
        let mut reader = Self {
            parser,
            state,
            curve,
            attempt,
            output_dir,
            reached,
            saving,
            bars,
            is_first_reading,
            is_dirty,
        };
        let before = reader.read_before().map(|report| report.step);
        // Its line may have been rotated away.
        reader.state.has_stepped = before.is_some();
        reader.is_first_reading = before.is_none();
        reader.reached = before.unwrap_or_default();
        reader
    }

    /// From where on the log was not read before a restart of this process.
    fn since(&self) -> Option<Timestamp> {
        self.read_before()?.time.as_ref().map(|time| time.0)
    }

    /// What this attempt has reported. The clock of the node of an earlier attempt says nothing of this one's.
    fn read_before(&self) -> Option<&Report> {
        self.state.report.as_ref().filter(|report| report.attempt == self.attempt)
    }

    /// Whether a line was read before a restart of this process: lines are asked for again by the second.
    fn is_known(&self, step: i64, at: Timestamp) -> bool {
        let at = whole_seconds(at);
        self.read_before()
            .is_some_and(|report| step < report.step && report.time.as_ref().is_some_and(|time| at <= *time))
    }

    fn publish(&mut self) -> LogState {
        self.is_dirty = false;
        LogState { curve: self.curve.points(), ..self.state.clone() }
    }

    fn take(&mut self, piece: Piece, now: Received) -> News {
        let mut news = News::Nothing;
        let access = match piece {
            Piece::Bytes { at, bytes } => {
                // The parser is apart, because it borrows nothing of the state.
                let mut parser = std::mem::take(&mut self.parser);
                parser.feed(&bytes, &mut |entry| {
                    if self.note(&entry, at, now) == News::Urgent {
                        news = News::Urgent;
                    }
                });
                self.parser = parser;
                Access::Readable
            }
            Piece::Silent => Access::Readable,
            Piece::Closed => {
                self.is_dirty |= !self.state.is_complete;
                self.state.is_complete = true;
                news = News::Urgent;
                // A stream that ends without a byte does not prove that the log can be read.
                self.state.access.clone()
            }
            Piece::Unreadable(why) => Access::Unreadable(text::beginning(&why, LONGEST_REFUSAL)),
            Piece::Forbidden => Access::Forbidden,
        };
        // Silence counts from when the log can be read again: steps of the time before may be lost.
        if access == Access::Readable && self.state.access != Access::Readable {
            self.hears(now);
        }
        if self.state.access != access {
            // An answer in other words is no news.
            let is_same =
                matches!((&self.state.access, &access), (Access::Unreadable(_), Access::Unreadable(_)));
            self.is_dirty |= !is_same;
            self.state.access = access;
        }
        news
    }

    fn note(&mut self, entry: &Entry<'_>, at: Timestamp, now: Received) -> News {
        self.state.is_complete = false;
        let mut news = News::Nothing;
        if entry.is_sign_of_life() {
            self.hears(now);
            self.is_dirty = true;
        }
        match entry {
            Entry::Step(step) => {
                news = self.steps();
                self.reaches(step.position.step);
                self.state.losses.note(step);
                if let Some(loss) = &step.loss {
                    self.curve.add(step.position.step, loss);
                }
                if !self.is_known(step.position.step, at) {
                    self.state.report = Some(report(step, self.state.report.take(), (self.attempt, at)));
                }
            }
            Entry::Bar(position) => {
                let before = self.read_before().map(|report| report.step);
                if position.step > before.unwrap_or_default() {
                    // The first one of a resumed run is drawn before a step is made.
                    if before.is_some() {
                        news = self.steps();
                    }
                    self.reaches(position.step);
                    self.hears(now);
                    let report = self.state.report.take().unwrap_or_default();
                    self.state.report =
                        Some(moved(report, position.step, position.total, (self.attempt, at)));
                    self.is_dirty = true;
                }
            }
            Entry::Saving(path) => {
                if let Some(checkpoint) = self.checkpoint_of(path, at) {
                    // The trainer waits until a checkpoint is written before it makes the next step.
                    let complete_at = checkpoint.step.saturating_add(1);
                    self.saving = Some(Saving { checkpoint, complete_at });
                }
            }
            Entry::LastCheckpoint(path) => {
                if let Some(checkpoint) = self.checkpoint_of(path, at) {
                    // Printed after the last one was written.
                    let complete_at = checkpoint.step;
                    self.saving = Some(Saving { checkpoint, complete_at });
                    self.reaches(self.reached);
                }
            }
            Entry::Evaluation(position) | Entry::Summary(position) => self.reaches(position.step),
            Entry::Error { cause: _, line } | Entry::Text(line) => {
                if !self.state.has_stepped && self.advances(line) {
                    self.hears(now);
                    self.is_dirty = true;
                }
                self.keep(line);
            }
        }
        news
    }

    /// The first step of an attempt wakes its job at once; the status may still wait: see `plan::status::held_back`.
    fn steps(&mut self) -> News {
        let is_first = !std::mem::replace(&mut self.state.has_stepped, true);
        if is_first { News::Urgent } else { News::Nothing }
    }

    /// Whether the line is a progress bar that has moved.
    fn advances(&mut self, line: &str) -> bool {
        let Some(shown) = shown_progress(line) else { return false };
        let mut hasher = DefaultHasher::new();
        shown.hash(&mut hasher);
        let digest = hasher.finish();
        if self.bars.contains(&digest) {
            return false;
        }
        if self.bars.len() == LAST_BARS {
            self.bars.pop_front();
        }
        self.bars.push_back(digest);
        true
    }

    fn hears(&mut self, now: Received) {
        self.state.last_sign = Some(now.at);
        self.state.heard = Some(now);
    }

    /// A checkpoint that is complete then is reported.
    fn reaches(&mut self, step: i64) {
        self.reached = step;
        if let Some(saved) = self.saving.take_if(|saving| saving.complete_at <= step) {
            self.state.checkpoint = Some(saved.checkpoint);
            // If the status has progress of this attempt, its checkpoint may be of it, too.
            self.state.has_saved = self.is_first_reading;
            self.is_dirty = true;
        }
    }

    /// The checkpoint in this folder, if the trainer can write one there. Of the text only the step is kept.
    fn checkpoint_of(&self, folder: &str, at: Timestamp) -> Option<Checkpoint> {
        let name = folder.strip_prefix(self.output_dir.as_str())?.strip_prefix('/')?;
        let step = checkpoint_step(name)?;
        let total = self.read_before().map(|report| report.total_steps).filter(|total| *total > 0);
        total.is_none_or(|total| step <= total).then(|| Checkpoint {
            path: format!("{}/{}", self.output_dir, checkpoint_name(step)),
            step,
            time: Some(whole_seconds(at)),
        })
    }

    fn keep(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        if self.state.last_lines.len() == LAST_LINES {
            self.state.last_lines.remove(0);
        }
        self.state.last_lines.push(text::beginning(line, LONGEST_LINE));
    }
}

fn report(step: &Step, before: Option<Report>, line: (i32, Timestamp)) -> Report {
    let Step { position, loss, gradient_norm: _, learning_rate, epoch, seconds_per_step, remaining } = step;
    let before = before.unwrap_or_default();
    Report {
        // What this line does not say is what the last one said.
        epoch: epoch.clone().or(before.epoch.clone()),
        loss: loss.clone().or(before.loss.clone()),
        learning_rate: learning_rate.clone().or(before.learning_rate.clone()),
        seconds_per_step: seconds_per_step.clone().or(before.seconds_per_step.clone()),
        eta: remaining.map(eta),
        ..moved(before, position.step, position.total, line)
    }
}

fn moved(before: Report, step: i64, total: i64, (attempt, at): (i32, Timestamp)) -> Report {
    let percent = step.saturating_mul(100).checked_div(total).unwrap_or_default().clamp(0, 100);
    let time: Option<Time> = Some(whole_seconds(at));
    let percent = i32::try_from(percent).unwrap_or(100);
    Report { step, total_steps: total, percent, time, attempt, ..before }
}

/// `1h32m`, `12m`, `45s`: two units at most.
fn eta(remaining: Duration) -> String {
    let seconds = remaining.as_secs();
    let units = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let Some(first) = units.iter().position(|(_, size)| seconds >= *size) else { return "0s".to_owned() };
    let mut text = String::new();
    let mut rest = seconds;
    for (name, size) in units.iter().skip(first).take(2) {
        let count = rest / size;
        rest %= size;
        // The seconds of a long time are noise.
        if count > 0 && (*name != "s" || first == 3) {
            text.push_str(&format!("{count}{name}"));
        }
    }
    text
}

#[cfg(test)]
mod tests;
