//! The worker: takes tasks, does them with the model, and keeps sessions in their files.
//!
//! ```text
//!  submit ─▶ session (saved) ─▶ queue ─▶ turn: prompt, memory, summary, model ─▶ session (saved) ─▶ Progress
//! ```
//!
//! Only sessions with tasks are in memory. Of the others the worker knows their standing, and reads the file when it is
//! needed. A task is saved before it is accepted, and its answer before it is given. So a task is done once, and a task
//! that was interrupted is done by the next process with this state.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
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

use crate::{
    log::Log,
    memory::{Memory, section},
    metrics::Counts,
    model::{Completion, Fault, Model, Piece},
    prompts::prompt,
    queue::{Queue, Ticket},
    session::{
        Cause, Message, Name, NotTaken, Outcome, Place, Role, Session, Standing, Summary, Task, tokens,
        tokens_of,
    },
    siblings::Report,
    store::Store,
};

/// Each is a file, and files of a checkpoint are limited to 10,000 and 10 GiB.
const MOST_SESSIONS: usize = 5_000;
/// Ids whose session is known without reading files. Older ones are found by their session.
const MOST_IDS: usize = 16_384;
/// Bytes of a text of which a vector is made: models take about 8,000 tokens, and the beginning says what it is about.
const VECTOR_INPUT_BYTES: usize = 8 << 10;
/// After a fault of the embeddings endpoint, which many servers do not have.
const VECTORS_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// Between two attempts to save what could not be saved. A disk that is full stays so for a while.
const SAVE_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Of the context, for a summary.
const SUMMARY_SHARE: usize = 8;
const SUMMARY_PROMPT: &str = "You summarize conversations. Keep names, numbers, decisions, open questions and what was \
                              promised. Write at most 200 words. Answer with the summary alone.";

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
}

/// The file of a session cannot be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

/// What a turn has given. The session has nothing of it yet.
struct Done {
    completion: Completion,
    summary: Option<Summary>,
}

/// How much of the history is sent.
#[derive(Default)]
struct History {
    summary: Option<Summary>,
    /// The oldest messages that are not sent.
    left_out: usize,
}

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

struct Held {
    /// All sessions.
    known: BTreeMap<Name, Known>,
    /// Sessions in memory.
    live: HashMap<Name, Session>,
    /// Sessions with changes that are not in their files, with the last change. They stay in memory. Only a write that
    /// has the last change takes a session out.
    unsaved: BTreeMap<Name, u64>,
    /// Counts the changes of all sessions.
    changes: u64,
    queue: Queue,
    progress: HashMap<Ticket, watch::Sender<Progress>>,
    ids: Ids,
    is_ending: bool,
    tokens: u64,
    done: u64,
    failed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    standing: Standing,
    /// When siblings were last asked for newer copies.
    compared: Option<Instant>,
}

/// The session of an id.
#[derive(Debug, Default)]
struct Ids {
    sessions: HashMap<Name, Name>,
    /// The oldest first.
    order: VecDeque<Name>,
}

impl Ids {
    fn keep(&mut self, id: &Name, session: &Name) {
        if self.sessions.insert(id.clone(), session.clone()).is_none() {
            self.order.push_back(id.clone());
        }
        while self.order.len() > MOST_IDS {
            self.order.pop_front().and_then(|oldest| self.sessions.remove(&oldest));
        }
    }
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

    pub(crate) fn is_ending(&self) -> bool {
        self.0.held().is_ending
    }

    pub(crate) fn model(&self) -> &str {
        self.0.model.name()
    }

    /// Whether siblings were asked within this time for newer copies of a session. `None`: the session is not held.
    pub(crate) fn was_compared(&self, session: &Name, within: Duration) -> Option<bool> {
        let held = self.0.held();
        let known = held.known.get(session)?;
        Some(known.compared.is_some_and(|at| at.elapsed() < within))
    }

    pub(crate) fn compared(&self, session: &Name) {
        if let Some(known) = self.0.held().known.get_mut(session) {
            known.compared = Some(Instant::now());
        }
    }

    /// Gives a session up, because another worker has a newer copy. A session with tasks stays until they are done.
    pub(crate) async fn set_aside(&self, session: &Name) -> bool {
        let (shared, session) = (self.0.clone(), session.clone());
        let is_aside = spawn_blocking(move || shared.set_aside(&session)).await;
        is_aside.unwrap_or(false)
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

    /// Whether an input has room beside the prompt. A prompt that cannot be read fails the task later.
    async fn fits(&self, input: &str) -> bool {
        let prompt = self.prompt().await.unwrap_or_default();
        self.room(&prompt, input).is_some()
    }

    /// The tokens that are left for the history. `None`: the input does not fit.
    fn room(&self, system: &str, input: &str) -> Option<usize> {
        let used = tokens_of(&[Message::new(Role::System, system), Message::new(Role::User, input)]);
        self.0.settings.context_tokens.checked_sub(used)
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
            Place::Ended(outcome) => State::Ended(outcome),
            Place::Waiting if is_in_hand => State::Working,
            Place::Waiting => State::Queued,
        };
        Ok(Some((session, state)))
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
                    self.0.held().is_ending = true;
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
            Ok(Done { completion: Completion { text: _, usage }, summary: _ }) => {
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

    /// One task with everything that it asks the model.
    async fn turn(&self, ticket: &Ticket, until: Instant) -> Result<Done, Fault> {
        let input = self
            .0
            .held()
            .live
            .get(&ticket.session)
            .and_then(|session| session.input(&ticket.id).map(str::to_owned));
        let Some(input) = input else {
            return Err(Fault::new(Cause::Model, "the task is not in its session"));
        };
        let mut system = self.prompt().await?;
        let Some(mut room) = self.room(&system, &input) else {
            let most = self.0.settings.context_tokens;
            let why = format!("the input does not fit beside the prompt: AGENT_CONTEXT_TOKENS is {most}");
            return Err(Fault::new(Cause::Spec, why));
        };
        let records = self.records(&input, until).await;
        // Records are left out before an input is refused.
        if let Some(left) = room.checked_sub(tokens(&records)) {
            system.push_str(&records);
            room = left;
        }
        let History { summary, left_out } = self.history(&ticket.session, room, until).await?;
        let text = summary.as_ref().map(|summary| summary.text.as_str());
        let messages = self
            .0
            .held()
            .live
            .get(&ticket.session)
            .map(|session| session.prompt(system, text, left_out, &input));
        let messages = messages.unwrap_or_default();
        let completion = self.ask(&messages, None, until, |piece| self.0.show(ticket, piece)).await?;
        Ok(Done { completion, summary })
    }

    async fn ask(
        &self,
        messages: &[Message],
        most_tokens: Option<usize>,
        until: Instant,
        pieces: impl FnMut(Piece<'_>),
    ) -> Result<Completion, Fault> {
        let completion = self.0.model.complete(messages, most_tokens, until, pieces).await?;
        let mut held = self.0.held();
        held.tokens = held.tokens.saturating_add(completion.usage.total());
        Ok(completion)
    }

    async fn prompt(&self) -> Result<String, Fault> {
        let Settings { role, prompts, .. } = self.0.settings.clone();
        let read = spawn_blocking(move || prompt(prompts.as_deref(), &role)).await.map_err(io::Error::other);
        read.and_then(|prompt| prompt).map_err(|error| {
            let why = text::cut(error.to_string(), 300);
            Fault::new(Cause::Spec, format!("the prompt of the role cannot be read: {why}"))
        })
    }

    /// The part of the prompt with the nearest records of the memory.
    async fn records(&self, input: &str, until: Instant) -> String {
        if self.0.memory.is_empty() {
            return String::new();
        }
        let input = text::cut(input.to_owned(), VECTOR_INPUT_BYTES);
        let has_fault = lock(&self.0.last_fault).is_some_and(|at| at.elapsed() < VECTORS_AGAIN_AFTER);
        let mut vector = None;
        if self.0.memory.has_vectors() && !has_fault {
            match self.0.model.embed(&input, until).await {
                Ok(found) => vector = Some(found),
                Err(Fault { cause: _, why, said: _ }) => self.0.no_vectors(&why),
            }
        }
        let shared = self.0.clone();
        // Many records take longer than a scrape may wait.
        let found = spawn_blocking(move || {
            let by_vector = vector.and_then(|vector| {
                let found = shared.memory.nearest_by_vector(vector);
                if found.is_none() {
                    shared.no_vectors(
                        "the vectors of the memory have another dimension: set AGENT_EMBEDDING_MODEL",
                    );
                }
                found
            });
            section(&by_vector.unwrap_or_else(|| shared.memory.nearest_by_words(&input)))
        });
        found.await.unwrap_or_default()
    }

    /// What of the history is sent. Beyond `room` tokens, the model makes a summary of the oldest messages. The session
    /// stays as it is: the summary belongs to it once the task is done.
    async fn history(&self, name: &Name, room: usize, until: Instant) -> Result<History, Fault> {
        let longest = self.0.settings.context_tokens;
        let wanted = self.0.held().live.get(name).and_then(|session| {
            let beyond = session.beyond(room);
            let (conversation, oldest) = session.to_summarize(beyond, longest * 4);
            (beyond > 0).then(|| (beyond, session.unfitting(room), oldest, conversation))
        });
        let Some((beyond, unfitting, oldest, conversation)) = wanted else { return Ok(History::default()) };
        let messages = [Message::new(Role::System, SUMMARY_PROMPT), Message::new(Role::User, conversation)];
        let summary = match self.ask(&messages, Some((longest / SUMMARY_SHARE).max(64)), until, |_| {}).await
        {
            Ok(Completion { text, usage: _ }) => Some(text).filter(|text| !text.trim().is_empty()),
            // The task would fail for the same cause.
            Err(fault @ Fault { cause: Cause::Deadline | Cause::Spec, .. }) => return Err(fault),
            Err(Fault { cause: Cause::Model, why, said: _ }) => {
                let attributes = json!({"session": name.as_str(), "messages": unfitting, "error": why});
                self.0.log.warn("old messages are not sent, because there is no summary", &attributes);
                None
            }
        };
        Ok(match summary {
            Some(text) => History { summary: Some(Summary { text, oldest }), left_out: beyond },
            None => History { summary: None, left_out: unfitting },
        })
    }

    async fn finish(&self, ticket: &Ticket, done: Result<Done, Fault>) {
        let (outcome, summary) = match done {
            Ok(Done { completion: Completion { text, usage }, summary }) => {
                (Outcome::Done { output: text, usage }, summary)
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

    /// Whether the session is saved.
    async fn save(&self, session: &Name) -> bool {
        let (shared, session) = (self.0.clone(), session.clone());
        spawn_blocking(move || shared.save(&session)).await.unwrap_or(false)
    }

    /// Saves again and again what could not be saved. It never ends.
    async fn save_again(&self) {
        loop {
            sleep(SAVE_AGAIN_AFTER).await;
            let names: Vec<Name> = self.0.held().unsaved.keys().cloned().collect();
            for name in names {
                if self.save(&name).await {
                    self.0.held().close(&name);
                }
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

enum Accepted {
    New(watch::Receiver<Progress>),
    Known(watch::Receiver<Progress>),
    Not(Refusal),
}

impl Held {
    /// A session of a process before.
    fn restore(&mut self, session: Session) {
        let name = session.name.clone();
        self.known.insert(name.clone(), Known { standing: session.standing(), compared: None });
        session.ids().for_each(|id| self.ids.keep(id, &name));
        for task in session.waiting() {
            let ticket = Ticket { session: name.clone(), id: task.id.clone() };
            self.progress.insert(ticket.clone(), watch::channel(Progress::default()).0);
            self.queue.push(ticket);
        }
        if !session.is_idle() {
            self.live.insert(name, session);
        }
    }

    fn accept(&mut self, ticket: &Ticket, task: Task, fits: bool, settings: &Settings) -> Accepted {
        if self.is_ending {
            return Accepted::Not(Refusal::Ending);
        }
        if let Some(progress) = self.progress.get(ticket) {
            return Accepted::Known(progress.subscribe());
        }
        let Some(session) = self.live.get_mut(&ticket.session) else {
            return Accepted::Not(Refusal::NotSaved);
        };
        // A task that has failed has changed nothing, so it is done again.
        if let Some(Place::Ended(Outcome::Done { output, usage })) = session.place(&ticket.id) {
            let text = output.clone();
            let end = Some(End::Outcome(Outcome::Done { output, usage }));
            return Accepted::Known(watch::channel(Progress { attempt: 1, text, end }).1);
        }
        if !fits {
            return Accepted::Not(Refusal::TooLarge { context_tokens: settings.context_tokens });
        }
        if self.queue.waiting() >= settings.queue {
            return Accepted::Not(Refusal::QueueFull);
        }
        match session.accept(task, now()) {
            Ok(()) => {}
            Err(NotTaken::TooManyWaiting) => return Accepted::Not(Refusal::SessionFull),
            Err(NotTaken::Known) => {
                let progress = self.progress.entry(ticket.clone()).or_default();
                return Accepted::Known(progress.subscribe());
            }
        }
        self.changed(&ticket.session);
        self.ids.keep(&ticket.id, &ticket.session);
        let (sender, receiver) = watch::channel(Progress::default());
        self.progress.insert(ticket.clone(), sender);
        Accepted::New(receiver)
    }

    /// The file of a session lacks a change. It is called in the same lock of `held` as the change.
    fn changed(&mut self, name: &Name) {
        if self.live.contains_key(name) {
            self.changes += 1;
            self.unsaved.insert(name.clone(), self.changes);
        }
    }

    /// Takes a session out of memory if its file has everything.
    fn close(&mut self, name: &Name) {
        let is_idle = self.live.get(name).is_some_and(Session::is_idle) && !self.queue.is_busy(name);
        if is_idle && !self.unsaved.contains_key(name) {
            self.live.remove(name);
        }
    }
}

/// What waits for the disk. It runs on threads that may wait.
impl Shared {
    fn held(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }

    fn read(&self, name: &Name) -> Result<(), Refusal> {
        let _disk = lock(&self.disk);
        {
            let mut held = self.held();
            if held.live.contains_key(name) {
                return Ok(());
            }
            // A new session is known once it is saved.
            if !held.known.contains_key(name) {
                held.live.insert(name.clone(), Session::new(name.clone(), now()));
                return Ok(());
            }
        }
        match self.store.read(name) {
            Ok(Some(session)) => {
                self.held().live.insert(name.clone(), session);
                Ok(())
            }
            Ok(None) => Err(self.unreadable(name, "it does not exist any more")),
            Err(error) => Err(self.unreadable(name, &error.to_string())),
        }
    }

    fn unreadable(&self, name: &Name, why: &str) -> Refusal {
        let attributes = json!({"session": name.as_str(), "error": text::cut(why.to_owned(), 300)});
        self.log.warn("the file of a session cannot be read", &attributes);
        Refusal::NotSaved
    }

    fn save(&self, name: &Name) -> bool {
        let _disk = lock(&self.disk);
        let (standing, text, change) = {
            let held = self.held();
            // A session that has left the memory has everything in its file.
            let Some(session) = held.live.get(name) else { return true };
            (session.standing(), serde_json::to_vec(session), held.unsaved.get(name).copied())
        };
        let written = text.map_err(io::Error::from).and_then(|text| self.store.write(name, &text));
        let mut held = self.held();
        match written {
            Ok(()) => {
                // A change that came while the file was written is still to be saved.
                if held.unsaved.get(name).copied() == change {
                    held.unsaved.remove(name);
                }
                let compared = held.known.get(name).and_then(|known| known.compared);
                held.known.insert(name.clone(), Known { standing, compared });
                self.drop_oldest(&mut held);
                true
            }
            Err(error) => {
                let attributes = json!({"session": name.as_str(), "error": error.to_string()});
                self.log.warn("a session cannot be saved", &attributes);
                false
            }
        }
    }

    /// A worker that never forgets would some day be too large for a checkpoint.
    fn drop_oldest(&self, held: &mut Held) {
        while held.known.len() > MOST_SESSIONS {
            let idle = held.known.iter().filter(|(name, _)| !held.live.contains_key(*name));
            let oldest = idle.min_by_key(|(_, known)| known.standing.updated).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else { return };
            held.known.remove(&oldest);
            let removed = self.store.remove(&oldest).map_err(|error| error.to_string()).err();
            let attributes = json!({"session": oldest.as_str(), "most": MOST_SESSIONS, "error": removed});
            self.log.warn("the session that was not used for longest is removed", &attributes);
        }
    }

    fn set_aside(&self, name: &Name) -> bool {
        let _disk = lock(&self.disk);
        {
            let held = self.held();
            if held.live.contains_key(name) || !held.known.contains_key(name) {
                return false;
            }
        }
        let moved = self.store.set_aside(name);
        let attributes =
            json!({"session": name.as_str(), "error": moved.as_ref().map_err(ToString::to_string).err()});
        self.log.warn("a session is set aside: another worker has a newer copy", &attributes);
        if moved.is_ok() {
            self.held().known.remove(name);
        }
        moved.is_ok()
    }

    fn show(&self, ticket: &Ticket, piece: Piece<'_>) {
        let held = self.held();
        let Some(progress) = held.progress.get(ticket) else { return };
        progress.send_modify(|progress| match piece {
            Piece::Attempt => {
                progress.attempt += 1;
                progress.text.clear();
            }
            Piece::Text(text) => progress.text.push_str(text),
        });
    }

    fn no_vectors(&self, why: &str) {
        let mut last = lock(&self.last_fault);
        *last = Some(Instant::now());
        let attributes = json!({"error": why, "seconds": VECTORS_AGAIN_AFTER.as_secs()});
        self.log.warn("records are found by words for a while: there is no vector", &attributes);
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
        let completion = Completion { text: "answer".to_owned(), usage };
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
        assert_eq!(outcome, Outcome::Done { output: "answer".to_owned(), usage });
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
        assert!(!worker.set_aside(&name("s")).await);
        let end = CancellationToken::new();
        end.cancel();
        worker.clone().work(end, Duration::from_secs(5)).await;
        assert!(worker.set_aside(&name("s")).await);
        assert_eq!(worker.was_compared(&name("s"), Duration::MAX), None);
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
