//! Runs the trainer from its start to its end: signals, deadlines, the fence and the report.
//!
//! One loop on the main thread handles every event, and touches no file of the output folder: preparation, fence,
//! examination and copying have threads of their own. It must not leave a process behind.

use std::{
    ffi::OsStr,
    fs::{self, File},
    future::pending,
    io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use api::launcher::{Checkpoint, ExitCode, Message};
use rustix::process::{Pid, Signal};
use tokio::{
    runtime::Builder,
    signal::unix::{self, SignalKind},
    sync::oneshot,
    time::{sleep_until, timeout},
};

use crate::{
    cache,
    checkpoints::{self, Complete},
    cli::{Environment, Run},
    fault::Fault,
    marker, message,
    output::{self, SharedLog, locked},
    prepare::{self, Order, Prepared},
    resume::{ResumeSource, Wanted},
    status,
    timing::Timing,
};
use processes::Exit;
use verdict::{Facts, Verdict, verdict};
use watch::{Event, Subject, Watch};

mod processes;
mod verdict;
mod watch;

/// The option of ms-swift that names the checkpoint to resume from.
const RESUME: &str = "--resume_from_checkpoint";

/// The end of the launcher.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: u8,
    pub(crate) message: Message,
}

impl From<Fault> for Outcome {
    fn from(fault: Fault) -> Self {
        let message = Message { error: Some(fault.message), ..Message::default() };
        Self { code: status(fault.code), message }
    }
}

/// An error is one of the launcher's process, before anything was started.
pub(crate) fn supervise(wanted: &Run, environment: &Environment) -> io::Result<Outcome> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(run(wanted, environment));
    runtime.shutdown_background();
    outcome
}

async fn run(wanted: &Run, environment: &Environment) -> io::Result<Outcome> {
    let mut signals = Signals::listen()?;
    processes::adopt_orphans()?;
    let timing = Timing::new(wanted.grace_seconds, wanted.time_divisor);
    if let Some(fault) = wanted.stop_file.as_deref().and_then(remove_stale) {
        return Ok(fault.into());
    }
    let cancelled = Arc::new(AtomicBool::new(false));
    let order = Order {
        output: wanted.output_dir.clone(),
        job: wanted.job_uid.clone(),
        attempt: wanted.attempt,
        pod_uid: environment.pod_uid.clone(),
        rank: environment.rank,
        resumes: !wanted.never_resume,
        source: wanted.resume_from.clone().map(|path| ResumeSource {
            path,
            wanted: Wanted::of(&wanted.trainer, environment.processes.saturating_mul(wanted.nodes)),
        }),
        timing,
        cancelled: Arc::clone(&cancelled),
    };
    let mut preparation = on_thread(move || prepare::prepare(&order))?;
    let prepared = tokio::select! {
        biased;
        () = signals.stop() => {
            cancelled.store(true, Ordering::Relaxed);
            if let Ok(Ok(Ok(prepared))) = timeout(timing.release, &mut preparation).await {
                release(wanted, environment, &prepared, timing).await;
            }
            return Ok(prepare::stopped_before_start().into());
        }
        prepared = &mut preparation => prepared.map_err(io::Error::other)?,
    };
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(fault) => {
            output::note(&fault.message);
            return Ok(fault.into());
        }
    };
    match Trainer::start(wanted, environment, &prepared, timing) {
        Ok(mut trainer) => {
            let exit = trainer.until_ended(&mut signals).await;
            Ok(trainer.finish(exit).await)
        }
        Err(fault) => {
            // The trainer may run already.
            processes::signal_all(Signal::KILL);
            output::note(&fault.message);
            release(wanted, environment, &prepared, timing).await;
            Ok(fault.into())
        }
    }
}

/// The signals that a kubelet, a user or a child sends.
struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    child: unix::Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            child: unix::signal(SignalKind::child())?,
        })
    }

    /// Whether the pod is asked to end. Otherwise a child has ended.
    async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => true,
            _ = self.interrupt.recv() => true,
            _ = self.child.recv() => false,
        }
    }

    /// Resolves when the pod is asked to end.
    async fn stop(&mut self) {
        while !self.next().await {}
    }
}

/// A running trainer.
struct Trainer<'a> {
    wanted: &'a Run,
    environment: &'a Environment,
    prepared: &'a Prepared,
    timing: Timing,
    pid: Pid,
    log: SharedLog,
    /// Each resolves at the end of one stream.
    streams: Vec<oneshot::Receiver<()>>,
    watch: Watch,
    /// When the pod, or another one of the gang, was asked to end.
    asked: Option<Instant>,
    /// The trainer of rank 0 has ended, or that of another rank has failed: this one may wait for it for ever.
    lacks_a_rank: bool,
    ending: Ending,
    /// Since when the trainer is suspended, because the marker cannot be read.
    suspended: Option<Instant>,
    /// Why the launcher itself has ended the trainer.
    fault: Option<Fault>,
}

/// How far the end of the trainer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    None,
    /// The trainer writes a checkpoint and ends by itself.
    Saves {
        until: Instant,
    },
    Terminated {
        until: Instant,
    },
    Killed,
}

impl<'a> Trainer<'a> {
    fn start(
        wanted: &'a Run,
        environment: &'a Environment,
        prepared: &'a Prepared,
        timing: Timing,
    ) -> Result<Self, Fault> {
        let threads = |error: io::Error| Fault::local("start", "a thread", &error);
        let watch = Watch::start(Subject {
            output: wanted.output_dir.clone(),
            ownership: prepared.ownership.clone(),
            resume: prepared.resume.clone(),
            is_leader: environment.rank == 0,
            has_peers: wanted.nodes > 1,
            poll: timing.poll,
        });
        let watch = watch.map_err(threads)?;
        let mut command = command(wanted, prepared.resume.as_ref());
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| {
            let message = format!("cannot start {program}: {error}; is it in the image and in PATH?");
            Fault::new(ExitCode::TrainerNotFound, message)
        })?;
        let pid = Pid::from_child(&child);
        let log = SharedLog::default();
        let resumed = prepared.resume.as_ref().map(|resume| resume.step);
        let mut streams = Vec::new();
        // Both are pipes.
        let copied = child.stdout.map(|stdout| output::copy(stdout, io::stdout(), Arc::clone(&log), resumed));
        streams.extend(copied.transpose().map_err(threads)?);
        let copied = child.stderr.map(|stderr| output::copy(stderr, io::stderr(), Arc::clone(&log), resumed));
        streams.extend(copied.transpose().map_err(threads)?);
        let ending = Ending::None;
        Ok(Self {
            wanted,
            environment,
            prepared,
            timing,
            pid,
            log,
            streams,
            watch,
            asked: None,
            lacks_a_rank: false,
            ending,
            suspended: None,
            fault: None,
        })
    }

    /// `None` if it has not ended even after SIGKILL.
    async fn until_ended(&mut self, signals: &mut Signals) -> Option<Exit> {
        loop {
            let wake = self.wake();
            tokio::select! {
                is_stop = signals.next() => if is_stop {
                    self.stop(Origin::Signal);
                },
                event = received(&mut self.watch) => self.handle(event),
                () = sleep_until(wake.into()) => {}
            }
            // One signal may stand for many children.
            if let Some(exit) = processes::reap(self.pid) {
                return Some(exit);
            }
            self.verify();
            self.meet_deadlines();
            if self.ending == Ending::Killed {
                return processes::kill_all(self.pid, self.remaining(self.timing.drain)).await;
            }
        }
    }

    fn wake(&self) -> Instant {
        let next = Instant::now() + self.timing.poll;
        match self.ending {
            Ending::Saves { until } | Ending::Terminated { until } => next.min(until),
            Ending::None | Ending::Killed => next,
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Superseded(found) => {
                self.end_at_once(prepare::superseded(&self.prepared.ownership, &found))
            }
            Event::StopRequested => self.stop(Origin::OtherRank),
            Event::LeaderEnded => {
                output::note("the trainer of rank 0 has ended");
                self.lacks_a_rank = true;
                self.settle();
            }
            Event::RankFailed => {
                output::note("the trainer of another rank has failed");
                self.lacks_a_rank = true;
                self.settle();
            }
            Event::Saved => self.settle(),
        }
    }

    /// A second request changes nothing.
    fn stop(&mut self, origin: Origin) {
        if self.asked.is_some() {
            return;
        }
        let now = Instant::now();
        self.asked = Some(now);
        match origin {
            Origin::Signal if self.wanted.nodes > 1 => self.request_stop_of_others(),
            Origin::Signal | Origin::OtherRank => {}
        }
        let saves = self.may_have_something_to_save() && self.create_stop_file();
        if saves {
            output::note("the pod was asked to end: the trainer saves a checkpoint");
            self.watch.expect_checkpoint();
            self.ending = Ending::Saves { until: now + self.timing.save };
            if self.lacks_a_rank {
                self.settle();
            }
        } else {
            output::note("the pod was asked to end: there is nothing to save");
            self.terminate();
        }
    }

    /// Rank 0 knows by its log. Other ranks log no steps, and follow rank 0.
    fn may_have_something_to_save(&self) -> bool {
        let log = locked(&self.log);
        // A resumed training may do many steps before it logs one.
        let may_have_steps = log.has_step || (self.prepared.resume.is_some() && log.has_begun);
        self.environment.rank > 0 || may_have_steps
    }

    fn create_stop_file(&self) -> bool {
        let Some(path) = &self.wanted.stop_file else { return false };
        match File::create(path) {
            Ok(_) => true,
            Err(error) => {
                output::note(&format!("cannot create {}: {error}; mount an emptyDir there", path.display()));
                false
            }
        }
    }

    fn request_stop_of_others(&self) {
        let (output, ownership) = (self.wanted.output_dir.clone(), self.prepared.ownership.clone());
        let request = move || {
            if let Err(error) = marker::request_stop(&output, &ownership) {
                let output = output.display();
                output::note(&format!("failed to write the stop request of the gang into {output}: {error}"));
            }
        };
        // Nothing depends on its end.
        drop(on_thread(request));
    }

    /// Ends a trainer that was asked to end, if it does not do so soon.
    fn settle(&mut self) {
        if let Ending::Saves { until } = self.ending {
            self.ending = Ending::Saves { until: until.min(Instant::now() + self.timing.settle) };
        }
    }

    fn terminate(&mut self) {
        processes::signal_all(Signal::TERM);
        self.ending = Ending::Terminated { until: Instant::now() + self.timing.kill };
    }

    fn end_at_once(&mut self, fault: Fault) {
        processes::signal_all(Signal::KILL);
        output::note(&fault.message);
        self.fault.get_or_insert(fault);
        self.ending = Ending::Killed;
    }

    fn meet_deadlines(&mut self) {
        let now = Instant::now();
        match self.ending {
            Ending::Saves { until } if now >= until => self.terminate(),
            Ending::Terminated { until } if now >= until => self.ending = Ending::Killed,
            Ending::None | Ending::Saves { .. } | Ending::Terminated { .. } | Ending::Killed => {}
        }
    }

    /// Suspends the trainer while it is unknown whether the output is still that of this run.
    fn verify(&mut self) {
        let is_verified = self.watch.unverified() <= self.timing.unverified;
        match self.suspended {
            None if !is_verified => {
                processes::signal_all(Signal::STOP);
                self.suspended = Some(Instant::now());
                let path = marker::path(&self.wanted.output_dir);
                output::note(&format!(
                    "the trainer is suspended, because {} cannot be read: {}",
                    path.display(),
                    self.watch.error()
                ));
            }
            Some(_) if is_verified => {
                processes::signal_all(Signal::CONT);
                self.suspended = None;
                output::note("the trainer goes on");
            }
            Some(since) if since.elapsed() > self.timing.suspended => {
                let path = marker::path(&self.wanted.output_dir);
                self.end_at_once(Fault::output("read", &path, &io::Error::other(self.watch.error())));
            }
            None | Some(_) => {}
        }
    }

    /// Leaves no process behind, and reports.
    async fn finish(mut self, exit: Option<Exit>) -> Outcome {
        // Descendants of a trainer that has ended are orphans of this process.
        let left = processes::kill_all(self.pid, self.remaining(self.timing.drain)).await;
        let exit = exit.or(left).unwrap_or(Exit::Signal(Signal::KILL.as_raw()));
        let deadline = Instant::now() + self.remaining(self.timing.drain);
        for stream in std::mem::take(&mut self.streams) {
            let left = deadline.saturating_duration_since(Instant::now());
            if timeout(left, stream).await.is_err() {
                output::note("the end of the trainer's output is lost: it was not read in time");
            }
        }
        let outcome = match self.fault.take() {
            Some(fault) => self.failed(exit, fault).await,
            None => self.judged(exit).await,
        };
        if outcome.code != 0 && self.asked.is_none() {
            self.report_failure(&outcome).await;
        }
        if outcome.code == 0 && self.environment.rank == 0 {
            self.remove_cache(outcome.message.checkpoint.as_ref()).await;
        }
        output::note(&summary(&outcome));
        outcome
    }

    /// The result is there, and needs none of what was loaded. A folder that stays takes space, and no more.
    async fn remove_cache(&self, checkpoint: Option<&Checkpoint>) {
        let Some(cache) = self.wanted.hub_cache.clone() else { return };
        let within = self.remaining(self.timing.examine);
        let shown = cache.display().to_string();
        let checkpoint = checkpoint.map(|saved| PathBuf::from(&saved.path));
        let remove = move || {
            if let Some(checkpoint) = checkpoint {
                cache::restore_ids(&cache, &checkpoint)?;
            }
            cache::remove(&cache)
        };
        let removed = match on_thread(remove) {
            Ok(removed) => timeout(within, removed).await.ok().and_then(Result::ok),
            Err(error) => Some(Err(error)),
        };
        match removed {
            Some(Ok(())) => {}
            Some(Err(error)) => output::note(&format!("warning: {shown} was not deleted: {error}")),
            None => output::note(&format!("warning: {shown} was not deleted within {} s", within.as_secs())),
        }
    }

    /// Whether an earlier job has done all steps: the trainer ends at once, and saves nothing.
    fn has_nothing_to_do(&self, checkpoint: Option<&Complete>) -> bool {
        let resume = self.prepared.resume.as_ref();
        let is_foreign = resume.is_some_and(|resume| !prepare::is_own(&self.wanted.output_dir, resume));
        is_foreign && checkpoint.is_none() && !locked(&self.log).has_step
    }

    /// The other ranks do not wait for this one when they are asked to end. That rank 0 has ended is in the marker. What
    /// becomes of this rank after it was asked to end is not reported: rank 0 may be writing a good checkpoint.
    async fn report_failure(&self, outcome: &Outcome) {
        let is_owner = outcome.code != status(ExitCode::Superseded);
        if self.environment.rank > 0 && is_owner {
            let (output, ownership) = (self.wanted.output_dir.clone(), self.prepared.ownership.clone());
            let report = move || {
                if let Err(error) = marker::report_failure(&output, &ownership) {
                    let output = output.display();
                    output::note(&format!("failed to write the failure of this rank into {output}: {error}"));
                }
            };
            if let Ok(reported) = on_thread(report) {
                // A file system that hangs is not waited for.
                let _ = timeout(self.timing.release, reported).await;
            }
        }
    }

    /// The time for a step after the end of the trainer: once the pod is asked to end, no longer than the grace
    /// period.
    fn remaining(&self, wanted: Duration) -> Duration {
        /// Time that a step always has.
        const LEAST: Duration = Duration::from_millis(200);
        let left =
            self.asked.map(|asked| (asked + self.timing.grace).saturating_duration_since(Instant::now()));
        left.map_or(wanted, |left| wanted.min(left / 2).max(LEAST))
    }

    /// The launcher has ended the trainer. A superseded one must not write, and another one may hang if it does.
    async fn failed(&self, exit: Exit, fault: Fault) -> Outcome {
        if fault.code != ExitCode::Superseded {
            release(self.wanted, self.environment, self.prepared, self.timing).await;
        }
        let message = Message { error: Some(fault.message), ..self.message(exit, None) };
        Outcome { code: status(fault.code), message }
    }

    async fn judged(&self, exit: Exit) -> Outcome {
        let is_leader = self.environment.rank == 0;
        let examined = if is_leader { self.examine().await } else { Ok(None) };
        let checkpoint = examined.as_ref().ok().and_then(Option::as_ref);
        let (position, has_stopped_early) = {
            let log = locked(&self.log);
            (log.position, log.has_stopped_early)
        };
        let facts = Facts {
            exit,
            is_stopped: self.asked.is_some(),
            is_leader,
            checkpoint: checkpoint.map(|complete| &complete.state),
            position,
            has_stopped_early,
        };
        let verdict = verdict(&facts);
        let mut message = self.message(exit, checkpoint);
        match (verdict, &examined) {
            (Verdict::Incomplete, Err(fault)) => {
                message.error = Some(fault.message.clone());
                return Outcome { code: status(fault.code), message };
            }
            (Verdict::Succeeded, _) => (message.cause, message.error) = (None, None),
            (Verdict::StoppedEarly, _) => {
                (message.cause, message.error) = (None, None);
                message.stopped_early = true;
            }
            // Errors of the log are those of a trainer that is being ended.
            (Verdict::Stopped, _) => {
                let error = format!("stopped {}, because the pod was asked to end", place(&message));
                (message.cause, message.error) = (None, Some(error));
            }
            (Verdict::Incomplete, Ok(_)) if self.has_nothing_to_do(checkpoint) => {
                let resume = self.prepared.resume.as_ref().map_or("", |resume| &resume.path);
                let error = format!(
                    "no step is left after {resume}; create the job again with a higher --num_train_epochs or --max_steps in \
                     extraArgs, or start a new training with spec.adapters or spec.model"
                );
                (message.cause, message.error) = (None, Some(error));
                return Outcome { code: status(ExitCode::CannotResume), message };
            }
            (Verdict::Incomplete, Ok(_)) => {
                let error = format!("the trainer ended without an error {}", place(&message));
                let lacks =
                    checkpoint.map_or("without a complete checkpoint", |_| "before the last step was saved");
                (message.cause, message.error) = (None, Some(format!("{error}, {lacks}")));
            }
            (Verdict::Failed(_), _) => {}
        }
        Outcome { code: verdict.code(), message }
    }

    /// The newest complete checkpoint of this run. Then the marker says that the run has ended.
    async fn examine(&self) -> Result<Option<Complete>, Fault> {
        let (output, ownership, stale) =
            (self.wanted.output_dir.clone(), self.prepared.ownership.clone(), self.prepared.stale.clone());
        let examine = move || {
            let is_new = |found: &Complete| !stale.contains(&(found.folder.step, found.stamp.clone()));
            let examined = checkpoints::newest(&output, is_new);
            prepare::release(&output, &ownership);
            examined.map_err(|error| Fault::output("examine the checkpoints in", &output, &error))
        };
        let within = self.remaining(self.timing.examine);
        let examined = match on_thread(examine) {
            Ok(examined) => timeout(within, examined).await.ok().and_then(Result::ok),
            Err(error) => Some(Err(Fault::local("start", "a thread", &error))),
        };
        examined.unwrap_or_else(|| {
            let error =
                io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", within.as_secs()));
            Err(Fault::output("examine the checkpoints in", &self.wanted.output_dir, &error))
        })
    }

    fn message(&self, exit: Exit, checkpoint: Option<&Complete>) -> Message {
        let log = locked(&self.log);
        let (cause, error) = log.error(Instant::now());
        let saved = checkpoint.map(|complete| complete.state.global_step);
        let (exit_code, signal) = match exit {
            Exit::Code(code) => (Some(code), None),
            Exit::Signal(signal) => (None, Some(signal)),
        };
        Message {
            exit_code,
            signal,
            step: log.position.map(|position| position.step).max(saved),
            total_steps: log
                .position
                .map(|position| position.total)
                .or(checkpoint.map(|complete| complete.state.max_steps))
                .filter(|total| *total > 0),
            checkpoint: checkpoint.map(Complete::reference),
            stopped_early: false,
            cause: cause.map(|cause| cause.reason().to_owned()),
            error: error.map(str::to_owned),
            tail: message::tail(&log),
        }
    }
}

/// Who asked the trainer to end.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// A kubelet or a user, by a signal to this launcher.
    Signal,
    /// The launcher of another rank.
    OtherRank,
}

/// Never resolves once the watch has ended, which it does after its last event.
async fn received(watch: &mut Watch) -> Event {
    match watch.events.recv().await {
        Some(event) => event,
        None => pending().await,
    }
}

fn command(wanted: &Run, resume: Option<&Checkpoint>) -> Command {
    let is_own = resume.is_some_and(|resume| prepare::is_own(&wanted.output_dir, resume));
    let trainer = match wanted.hub_cache.as_ref().filter(|_| is_own) {
        Some(cache) => cache::with_local_model(cache, &wanted.trainer),
        None => wanted.trainer.clone(),
    };
    let mut words = trainer.iter();
    let mut command = Command::new(words.next().map_or_else(Default::default, OsStr::new));
    command.args(words);
    match resume {
        Some(resume) => {
            output::note(&format!("resuming from {}", resume.path));
            command.arg(RESUME).arg(&resume.path);
        }
        None => {
            command.args(&wanted.fresh_args);
        }
    }
    // A group of its own: a signal for the launcher's group, as a terminal sends it, must not reach the trainer.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    command
}

/// A file from before would stop the trainer after its first step.
fn remove_stale(stop_file: &Path) -> Option<Fault> {
    match fs::remove_file(stop_file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Some(Fault::local("remove the stale stop file", stop_file.display(), &error))
        }
        Ok(()) | Err(_) => None,
    }
}

/// Only rank 0 writes the marker.
async fn release(wanted: &Run, environment: &Environment, prepared: &Prepared, timing: Timing) {
    if environment.rank == 0 {
        let (output, ownership) = (wanted.output_dir.clone(), prepared.ownership.clone());
        if let Ok(released) = on_thread(move || prepare::release(&output, &ownership)) {
            // A file system that hangs is not waited for.
            let _ = timeout(timing.release, released).await;
        }
    }
}

/// Runs a step that may hang with a file system. The thread ends with the process.
fn on_thread<T: Send + 'static>(
    step: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (sender, receiver) = oneshot::channel();
    let run = move || drop(sender.send(step()));
    thread::Builder::new().name("files".to_owned()).spawn(run)?;
    Ok(receiver)
}

/// `at step 6 of 27`.
fn place(message: &Message) -> String {
    match (message.step, message.total_steps) {
        (Some(step), Some(total)) => format!("at step {step} of {total}"),
        (Some(step), None) => format!("at step {step}"),
        (None, _) => "before its first step".to_owned(),
    }
}

fn summary(outcome: &Outcome) -> String {
    let Outcome { code, message } = outcome;
    let checkpoint =
        message.checkpoint.as_ref().map(|checkpoint| format!(", checkpoint {}", checkpoint.path));
    format!("ended {} with code {code}{}", place(message), checkpoint.unwrap_or_default())
}
