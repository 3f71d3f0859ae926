//! What a worker has in memory: which sessions it holds, those with tasks, the queue and the progress of tasks.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tokio::{sync::watch, time::Instant};

use super::{
    End, Progress, Refusal, Settings, now,
    queue::{Queue, Ticket},
};
use crate::session::{Name, NotTaken, Outcome, Place, Session, Standing, Task};

/// Ids whose session is known without reading files. Older ones are found by their session.
const MOST_IDS: usize = 16_384;

pub(super) struct Held {
    /// All sessions.
    pub(super) known: BTreeMap<Name, Known>,
    /// Sessions in memory.
    pub(super) live: HashMap<Name, Session>,
    /// Sessions with changes that are not in their files, with the last change. They stay in memory. Only a write that
    /// has the last change takes a session out.
    pub(super) unsaved: BTreeMap<Name, u64>,
    /// Counts the changes of all sessions.
    pub(super) changes: u64,
    pub(super) queue: Queue,
    pub(super) progress: HashMap<Ticket, watch::Sender<Progress>>,
    pub(super) ids: Ids,
    pub(super) is_ending: bool,
    pub(super) tokens: u64,
    pub(super) done: u64,
    pub(super) failed: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) standing: Standing,
    /// When siblings were last asked for newer copies.
    pub(super) compared: Option<Instant>,
}

/// The session of an id.
#[derive(Debug, Default)]
pub(super) struct Ids {
    pub(super) sessions: HashMap<Name, Name>,
    /// The oldest first.
    pub(super) order: VecDeque<Name>,
}

impl Ids {
    pub(super) fn keep(&mut self, id: &Name, session: &Name) {
        if self.sessions.insert(id.clone(), session.clone()).is_none() {
            self.order.push_back(id.clone());
        }
        while self.order.len() > MOST_IDS {
            self.order.pop_front().and_then(|oldest| self.sessions.remove(&oldest));
        }
    }
}

pub(super) enum Accepted {
    New(watch::Receiver<Progress>),
    Known(watch::Receiver<Progress>),
    Not(Refusal),
}

impl Held {
    /// A session of a process before.
    pub(super) fn restore(&mut self, session: Session) {
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

    pub(super) fn accept(
        &mut self,
        ticket: &Ticket,
        task: Task,
        fits: bool,
        settings: &Settings,
    ) -> Accepted {
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
        if let Some(Place::Ended(outcome)) = session.place(&ticket.id)
            && let Outcome::Done { output, .. } = &outcome
        {
            let text = output.clone();
            let end = Some(End::Outcome(outcome));
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
    pub(super) fn changed(&mut self, name: &Name) {
        if self.live.contains_key(name) {
            self.changes += 1;
            self.unsaved.insert(name.clone(), self.changes);
        }
    }

    /// Takes a session out of memory if its file has everything.
    pub(super) fn close(&mut self, name: &Name) {
        let is_idle = self.live.get(name).is_some_and(Session::is_idle) && !self.queue.is_busy(name);
        if is_idle && !self.unsaved.contains_key(name) {
            self.live.remove(name);
        }
    }
}
