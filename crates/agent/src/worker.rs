//! The worker: takes tasks, does them with the model, and keeps sessions in their files.
//!
//! ```text
//!  submit ─▶ session (saved) ─▶ queue ─▶ turn: prompt, memory, summary, model ─▶ session (saved) ─▶ Progress
//! ```
//!
//! - `queue.rs`: the order of tasks.
//! - `held.rs`: what is in memory.
//! - `files.rs`: waits for the disk.
//! - `turn.rs`: asks the model.
//! - `prompts.rs`: the prompts of roles.
//! - `copies.rs`: other workers with the same session.
//!
//! Only sessions with tasks are in memory. Of the others the worker knows their standing, and reads the file when it is
//! needed. A task is saved before it is accepted, and its answer before it is given. So a task is done once, and a task
//! that was interrupted is done by the next process with this state.

mod copies;
mod files;
mod held;
mod prompts;
mod queue;
mod turn;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::json;
use tokio::{
    sync::{Notify, watch},
    task::{Id, JoinSet, spawn_blocking},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use held::{Accepted, Held, Ids};
use turn::Done;

use crate::{
    log::Log,
    memory::Memory,
    metrics::Counts,
    model::{Completion, Fault, Model},
    session::{Cause, Name, Outcome, Place, Session, Task, store::Store},
    siblings::Report,
};
use queue::{Queue, Ticket};

/// Between two attempts to save what could not be saved. A disk that is full stays so for a while.
const SAVE_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Between two lines of the log about sessions that still cannot be saved.
const SAID_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How tasks are done.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) role: String,
    pub(crate) prompts: Option<PathBuf>,
    pub(crate) context_tokens: usize,
    /// For one task.
    pub(crate) task_within: Duration,
    pub(crate) concurrency: usize,
    /// Tasks that may wait.
    pub(crate) queue: usize,
}

/// What a task has given so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Grows when the model begins anew; then the text is empty again.
    pub(crate) attempt: u32,
    pub(crate) text: String,
    pub(crate) end: Option<End>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Outcome(Outcome),
    /// The worker has ended before the task. The task is saved.
    Unfinished,
}

/// Why a task is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Ending,
    QueueFull,
    SessionFull,
    /// The input does not fit into the context.
    TooLarge {
        context_tokens: usize,
    },
    /// The log says why.
    NotSaved,
    /// A session that a sibling hands over: this worker holds as many as it may, or works on an older copy.
    NotTaken,
}

/// The file of a session cannot be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

/// Where a task is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Queued,
    Working,
    Ended(Outcome),
}

#[derive(Clone)]
pub(crate) struct Worker(Arc<Shared>);

struct Shared {
    id: String,
    settings: Settings,
    store: Store,
    model: Model,
    memory: Memory,
    log: Arc<Log>,
    held: Mutex<Held>,
    /// Locked before `held`, while a file is read or written. So files have the order of the changes.
    disk: Mutex<()>,
    arrived: Notify,
    /// Of the embeddings endpoint.
    last_fault: Mutex<Option<Instant>>,
}

impl Worker {
    /// Reads the state. Tasks that a process before has not finished are queued.
    pub(crate) fn open(
        id: String,
        settings: Settings,
        store: Store,
        model: Model,
        memory: Memory,
        log: Arc<Log>,
    ) -> io::Result<Self> {
        let mut held = Held {
            known: BTreeMap::new(),
            live: HashMap::new(),
            unsaved: BTreeMap::new(),
            changes: 0,
            queue: Queue::new(settings.concurrency),
            progress: HashMap::new(),
            ids: Ids::default(),
            is_ending: false,
            tokens: 0,
            done: 0,
            failed: 0,
        };
        let damaged = store.read_all(|session| held.restore(session))?;
        for damaged in damaged {
            let why = text::cut(damaged.why.to_string(), 300);
            let (message, not_moved) = match damaged.not_moved {
                None => ("a file is no session and was set aside", None),
                Some(error) => ("a file is no session and cannot be set aside", Some(error.to_string())),
            };
            log.warn(message, &json!({"file": damaged.file, "error": why, "not_moved": not_moved}));
        }
        Ok(Self(Arc::new(Shared {
            id,
            settings,
            store,
            model,
            memory,
            log,
            held: Mutex::new(held),
            disk: Mutex::default(),
            arrived: Notify::new(),
            last_fault: Mutex::default(),
        })))
    }

    pub(crate) fn counts(&self) -> Counts {
        let held = self.0.held();
        Counts {
            waiting: held.queue.waiting(),
            in_hand: held.queue.in_hand(),
            tokens: held.tokens,
            done: held.done,
            failed: held.failed,
        }
    }

    pub(crate) fn report(&self, session: Option<&Name>) -> Report {
        let held = self.0.held();
        Report {
            worker: self.0.id.clone(),
            ending: held.is_ending,
            queue: held.queue.waiting(),
            in_flight: held.queue.in_hand(),
            sessions: held.known.len(),
            standing: session.and_then(|session| held.known.get(session)).map(|known| known.standing),
        }
    }

    /// Of this process.
    pub(crate) fn id(&self) -> &str {
        &self.0.id
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.0.held().is_ending
    }

    pub(crate) fn model(&self) -> &str {
        self.0.model.name()
    }

    /// Takes a task. The receiver gives its progress. An id that is known gives the task that has it.
    pub(crate) async fn submit(
        &self,
        session: &Name,
        task: Task,
    ) -> Result<watch::Receiver<Progress>, Refusal> {
        let ticket = Ticket { session: session.clone(), id: task.id.clone() };
        let fits = self.fits(&task.input).await;
        let receiver = loop {
            self.read(session).await?;
            let mut held = self.0.held();
            // A task of it may have ended meanwhile.
            if held.live.contains_key(session) {
                match held.accept(&ticket, task.clone(), fits, &self.0.settings) {
                    Accepted::New(receiver) => break receiver,
                    Accepted::Known(receiver) => {
                        held.close(session);
                        return Ok(receiver);
                    }
                    Accepted::Not(refusal) => {
                        held.close(session);
                        return Err(refusal);
                    }
                }
            }
        };
        // A client that has gone must not leave a task that is neither saved nor queued.
        let saved = tokio::spawn(self.clone().save_accepted(ticket)).await;
        saved.unwrap_or(Err(Refusal::NotSaved)).map(|()| receiver)
    }

    async fn save_accepted(self, ticket: Ticket) -> Result<(), Refusal> {
        let is_saved = self.save(&ticket.session).await;
        let mut held = self.0.held();
        if is_saved {
            held.queue.push(ticket);
            self.0.arrived.notify_one();
            return Ok(());
        }
        if let Some(session) = held.live.get_mut(&ticket.session) {
            session.withdraw(&ticket.id);
        }
        held.changed(&ticket.session);
        held.progress.remove(&ticket);
        // A session that has never been saved has nothing to keep.
        if !held.known.contains_key(&ticket.session)
            && held.live.get(&ticket.session).is_some_and(Session::is_idle)
        {
            held.live.remove(&ticket.session);
            held.unsaved.remove(&ticket.session);
        }
        Err(Refusal::NotSaved)
    }

    /// `session`: where the task is looked for, if the client names it.
    pub(crate) async fn state(
        &self,
        id: &Name,
        session: Option<&Name>,
    ) -> Result<Option<(Name, State)>, Unreadable> {
        let session = session.cloned().or_else(|| self.0.held().ids.sessions.get(id).cloned());
        let Some(session) = session else { return Ok(None) };
        let (shared, of_id) = (self.0.clone(), session.clone());
        let found = spawn_blocking(move || {
            let _disk = lock(&shared.disk);
            let live = shared.held().live.get(&of_id).cloned();
            let Some(live) = live else {
                return shared.store.read(&of_id).map_err(|error| {
                    shared.unreadable(&of_id, &error.to_string());
                    Unreadable
                });
            };
            Ok(Some(live))
        });
        let found = found.await.unwrap_or(Err(Unreadable))?;
        let Some(place) = found.and_then(|session| session.place(id)) else { return Ok(None) };
        let is_in_hand = self.0.held().queue.is_in_hand(&session, id);
        let state = match place {
            // Its answer is being saved.
            Place::Ended(_) if is_in_hand => State::Working,
            Place::Ended(outcome) => State::Ended(outcome),
            Place::Waiting if is_in_hand => State::Working,
            Place::Waiting => State::Queued,
        };
        Ok(Some((session, state)))
    }

    /// From now on, every task is refused.
    pub(crate) fn refuse_tasks(&self) {
        self.0.held().is_ending = true;
    }

    /// Works until `end`, and then for `grace` on the tasks that it has. Then everything is saved.
    pub(crate) async fn work(self, end: CancellationToken, grace: Duration) {
        let mut running = JoinSet::new();
        let mut tickets: HashMap<Id, Ticket> = HashMap::new();
        let mut ends_at: Option<Instant> = None;
        let mut saving = std::pin::pin!(self.save_again());
        loop {
            while let Some(ticket) = self.next() {
                let handle = running.spawn(self.clone().work_on(ticket.clone()));
                tickets.insert(handle.id(), ticket);
            }
            if ends_at.is_some() && running.is_empty() {
                break;
            }
            tokio::select! {
                Some(ended) = running.join_next_with_id() => {
                    let id = ended.as_ref().map_or_else(|error| error.id(), |(id, ())| *id);
                    if let (Some(ticket), true) = (tickets.remove(&id), ended.is_err()) {
                        let why = "the worker has failed; its stderr says how".to_owned();
                        self.finish(&ticket, Err(Fault::new(Cause::Model, why))).await;
                    }
                }
                () = self.0.arrived.notified() => {}
                () = &mut saving => {}
                () = end.cancelled(), if ends_at.is_none() => {
                    ends_at = Some(Instant::now() + grace);
                    self.refuse_tasks();
                }
                () = until(ends_at) => break,
            }
        }
        running.shutdown().await;
        self.save_all().await;
        let unfinished = self.0.held().progress.drain().map(|(_, progress)| progress).collect::<Vec<_>>();
        self.0.log.info("ended", &json!({"unfinished": unfinished.len()}));
        for progress in unfinished {
            progress.send_modify(|progress| progress.end = Some(End::Unfinished));
        }
    }

    fn next(&self) -> Option<Ticket> {
        self.0.held().queue.next()
    }

    async fn work_on(self, ticket: Ticket) {
        let begun = Instant::now();
        let done = self.turn(&ticket, begun + self.0.settings.task_within).await;
        let (session, id, seconds) =
            (ticket.session.as_str(), ticket.id.as_str(), begun.elapsed().as_secs_f32());
        match &done {
            Ok(Done { completion: Completion { text: _, usage, is_cut: _ }, summary: _ }) => {
                let attributes =
                    json!({"session": session, "id": id, "seconds": seconds, "tokens": usage.total()});
                self.0.log.info("task done", &attributes);
            }
            Err(Fault { cause, why, said: _ }) => {
                let attributes =
                    json!({"session": session, "id": id, "seconds": seconds, "cause": cause, "error": why});
                self.0.log.warn("task failed", &attributes);
            }
        }
        self.finish(&ticket, done).await;
    }

    async fn finish(&self, ticket: &Ticket, done: Result<Done, Fault>) {
        let (outcome, summary) = match done {
            Ok(Done { completion: Completion { text, usage, is_cut }, summary }) => {
                (Outcome::Done { output: text, usage, is_cut }, summary)
            }
            Err(fault) => (Outcome::Failed { cause: fault.cause, error: fault.message() }, None),
        };
        {
            let mut held = self.0.held();
            match &outcome {
                Outcome::Done { .. } => held.done += 1,
                Outcome::Failed { .. } => held.failed += 1,
            }
            if let Some(session) = held.live.get_mut(&ticket.session) {
                // The messages before this turn are those that the summary was made of.
                if let Some(summary) = summary {
                    session.summarized(summary, now());
                }
                session.finish(&ticket.id, outcome.clone(), now());
            }
            held.changed(&ticket.session);
        }
        // An answer that cannot be saved is given all the same. The log says that, and it is saved again later.
        self.save(&ticket.session).await;
        let mut held = self.0.held();
        held.queue.finish(ticket);
        if let Some(progress) = held.progress.remove(ticket) {
            progress.send_modify(|progress| progress.end = Some(End::Outcome(outcome)));
        }
        held.close(&ticket.session);
    }

    /// Makes sure that the session is in memory.
    async fn read(&self, session: &Name) -> Result<(), Refusal> {
        let (shared, session) = (self.0.clone(), session.clone());
        spawn_blocking(move || shared.read(&session)).await.unwrap_or(Err(Refusal::NotSaved))
    }

    /// Whether the session is saved. The log says why it is not.
    async fn save(&self, session: &Name) -> bool {
        let saved = self.try_to_save(session).await;
        if let Err(error) = &saved {
            let attributes = json!({"session": session.as_str(), "error": error.to_string()});
            self.0.log.warn("a session cannot be saved", &attributes);
        }
        saved.is_ok()
    }

    async fn try_to_save(&self, session: &Name) -> io::Result<()> {
        let (shared, session) = (self.0.clone(), session.clone());
        spawn_blocking(move || shared.save(&session)).await.map_err(io::Error::other)?
    }

    /// Saves again and again what could not be saved. It never ends.
    async fn save_again(&self) {
        let mut said: Option<Instant> = None;
        loop {
            sleep(SAVE_AGAIN_AFTER).await;
            let names: Vec<Name> = self.0.held().unsaved.keys().cloned().collect();
            let (mut failed, mut last) = (0, None);
            for name in names {
                match self.try_to_save(&name).await {
                    Ok(()) => self.0.held().close(&name),
                    Err(error) => (failed, last) = (failed + 1, Some(error)),
                }
            }
            let is_news = said.is_none_or(|said| said.elapsed() >= SAID_AGAIN_AFTER);
            if let Some(error) = last.filter(|_| is_news) {
                said = Some(Instant::now());
                let attributes = json!({"sessions": failed, "error": error.to_string()});
                self.0.log.warn("sessions still cannot be saved", &attributes);
            }
        }
    }

    async fn save_all(&self) {
        let names: Vec<Name> = self.0.held().live.keys().cloned().collect();
        for name in names {
            self.save(&name).await;
        }
    }
}

/// Never without a time.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Standing;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    fn worker(folder: &std::path::Path, queue: usize) -> Worker {
        let settings = Settings {
            role: "coder".to_owned(),
            prompts: None,
            context_tokens: 1_000,
            task_within: Duration::from_secs(5),
            concurrency: 1,
            queue,
        };
        let model = Model::new(None, None, None, None);
        let log = Arc::new(Log::open(Some(&folder.join(".log"))).unwrap());
        let store = Store::open(folder).unwrap();
        Worker::open("w".to_owned(), settings, store, model, Memory::default(), log).unwrap()
    }

    fn task(id: &str) -> Task {
        Task { id: name(id), input: "hello".to_owned() }
    }

    #[tokio::test]
    async fn an_accepted_task_is_in_the_file_and_in_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        worker(folder.path(), 9).submit(&name("s"), task("a")).await.unwrap();
        let next = worker(folder.path(), 9);
        assert_eq!(next.counts().waiting, 1);
        assert_eq!(next.state(&name("a"), None).await, Ok(Some((name("s"), State::Queued))));
        assert_eq!(next.state(&name("b"), Some(&name("s"))).await, Ok(None));
    }

    #[tokio::test]
    async fn a_turn_that_is_being_saved_outlives_a_repeated_request() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(folder.path(), 9);
        worker.submit(&name("s"), task("a")).await.unwrap();
        let ticket = worker.next().unwrap();
        let usage = crate::session::Usage::default();
        let completion = Completion { text: "answer".to_owned(), usage, is_cut: false };
        let mut finishing = std::pin::pin!(worker.finish(&ticket, Ok(Done { completion, summary: None })));
        // The write of the answer waits, because the test has the disk.
        let disk = lock(&worker.0.disk);
        assert_eq!(futures::FutureExt::now_or_never(finishing.as_mut()), None);
        // What a repeated request does once it knows the id.
        let asked = worker.0.held().accept(&ticket, task("a"), true, &worker.0.settings);
        worker.0.held().close(&name("s"));
        drop(disk);
        finishing.await;
        assert!(matches!(asked, Accepted::Known(_)));
        assert!(worker.0.held().unsaved.is_empty() && worker.0.held().live.is_empty());
        let next = self::worker(folder.path(), 9);
        let Ok(Some((_, State::Ended(outcome)))) = next.state(&name("a"), None).await else {
            panic!("the answer is lost")
        };
        assert_eq!(outcome, Outcome::Done { output: "answer".to_owned(), usage, is_cut: false });
    }

    #[tokio::test]
    async fn an_input_larger_than_the_context_is_refused_and_known_ids_are_answered() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(folder.path(), 9);
        let large = |id: &str| Task { id: name(id), input: "x".repeat(4_000) };
        let refused = worker.submit(&name("s"), large("a")).await.err();
        assert_eq!(refused, Some(Refusal::TooLarge { context_tokens: 1_000 }));
        worker.submit(&name("s"), task("b")).await.unwrap();
        assert!(worker.submit(&name("s"), large("b")).await.is_ok());
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_not_an_unknown_task() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(folder.path(), 9);
        std::os::unix::fs::symlink("s-s.json", folder.path().join("s-s.json")).unwrap();
        assert_eq!(worker.state(&name("a"), Some(&name("s"))).await, Err(Unreadable));
    }

    #[tokio::test]
    async fn a_full_queue_refuses_but_answers_ids_that_it_knows() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(folder.path(), 1);
        worker.submit(&name("s"), task("a")).await.unwrap();
        assert_eq!(worker.submit(&name("s"), task("b")).await.err(), Some(Refusal::QueueFull));
        assert!(worker.submit(&name("s"), task("a")).await.is_ok());
        assert_eq!(worker.submit(&name("other"), task("c")).await.err(), Some(Refusal::QueueFull));
        assert_eq!(worker.report(Some(&name("other"))).standing, None);
    }

    #[tokio::test]
    async fn a_session_with_tasks_is_not_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(folder.path(), 9);
        worker.submit(&name("s"), task("a")).await.unwrap();
        let copy = || worker.report(Some(&name("s"))).standing.unwrap();
        assert!(!worker.set_aside(&name("s"), copy()).await);
        let end = CancellationToken::new();
        end.cancel();
        worker.clone().work(end, Duration::from_secs(5)).await;
        assert!(!worker.set_aside(&name("s"), Standing::default()).await, "it has changed since");
        assert!(worker.set_aside(&name("s"), copy()).await);
        assert_eq!(worker.was_compared(&name("s"), Duration::MAX), None);
    }

    /// A session of another worker with so many turns, and a task that waits.
    fn other(turns: u64) -> Session {
        let text =
            json!({"name": "s", "turns": turns, "updated": 1, "waiting": [{"id": "a", "input": "hello"}]});
        serde_json::from_value(text).unwrap()
    }

    #[tokio::test]
    async fn a_session_is_taken_over_with_its_tasks_unless_this_copy_is_as_new_or_has_tasks() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(folder.path(), 9);
        assert_eq!(worker.take_over(other(2)).await, Ok(true));
        assert_eq!(worker.counts().waiting, 1);
        assert_eq!(worker.take_over(other(2)).await, Ok(false), "the answer to the first request was lost");
        assert_eq!(worker.take_over(other(3)).await, Err(Refusal::NotTaken), "its task is being worked on");
        let mut diverged = other(1);
        diverged.accept(task("b"), 1).unwrap();
        assert_eq!(worker.take_over(diverged).await, Err(Refusal::NotTaken), "a task would be lost");
        worker.refuse_tasks();
        assert_eq!(worker.take_over(other(9)).await, Err(Refusal::Ending));
        let copy = worker.copy(&name("s")).await.unwrap();
        assert_eq!(serde_json::from_slice::<Session>(&copy).unwrap(), other(2));
        worker.given(&name("s")).await;
        assert_eq!((worker.sessions(false).await, worker.copy(&name("s")).await), (vec![], None));
        assert_eq!(
            self::worker(folder.path(), 9).sessions(false).await,
            [],
            "no process has it after this one"
        );
    }

    #[tokio::test]
    async fn a_full_worker_takes_no_session_over_and_loses_none() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(folder.path(), 9);
        {
            let standing = Standing::default();
            let known = |number| (name(&format!("n-{number}")), held::Known { standing, compared: None });
            worker.0.held().known = (0..files::MOST_SESSIONS).map(known).collect();
        }
        assert_eq!(worker.take_over(other(2)).await, Err(Refusal::NotTaken));
        assert_eq!(worker.sessions(false).await.len(), files::MOST_SESSIONS);
    }

    #[tokio::test]
    async fn without_a_model_a_task_fails_with_the_field_of_the_spec() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(folder.path(), 9);
        let mut progress = worker.submit(&name("s"), task("a")).await.unwrap();
        let end = CancellationToken::new();
        end.cancel();
        worker.clone().work(end, Duration::from_secs(5)).await;
        let Some(End::Outcome(Outcome::Failed { error, cause })) = progress.borrow_and_update().end.clone()
        else {
            panic!("it is not done")
        };
        assert!(error.contains("spec.modelEndpoint"), "{error}");
        assert_eq!(cause, Cause::Spec);
        assert_eq!(worker.submit(&name("s"), task("b")).await.err(), Some(Refusal::Ending));
        assert_eq!(worker.counts().failed, 1);
    }

    #[tokio::test]
    async fn a_task_that_cannot_be_saved_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let worker = worker(&state, 9);
        std::fs::remove_dir_all(&state).unwrap();
        assert_eq!(worker.submit(&name("s"), task("a")).await.err(), Some(Refusal::NotSaved));
        assert_eq!(worker.counts().waiting, 0);
    }
}
