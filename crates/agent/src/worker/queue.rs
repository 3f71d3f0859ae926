//! The order of tasks. Pure.
//!
//! Tasks of one session run one after the other. Tasks of different sessions run at once, up to a number. The oldest
//! task that may run is the next.

use std::collections::{BTreeSet, VecDeque};

use crate::session::Name;

/// A task of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(crate) session: Name,
    pub(crate) id: Name,
}

#[derive(Debug)]
pub(crate) struct Queue {
    /// The oldest first.
    waiting: VecDeque<Ticket>,
    in_hand: BTreeSet<Ticket>,
    concurrency: usize,
}

impl Queue {
    pub(crate) fn new(concurrency: usize) -> Self {
        Self { waiting: VecDeque::new(), in_hand: BTreeSet::new(), concurrency }
    }

    pub(crate) fn push(&mut self, ticket: Ticket) {
        self.waiting.push_back(ticket);
    }

    /// The next task that may run, which is in hand from then on.
    pub(crate) fn next(&mut self) -> Option<Ticket> {
        if self.in_hand.len() >= self.concurrency {
            return None;
        }
        let is_free = |ticket: &Ticket| !self.is_busy(&ticket.session);
        let at = self.waiting.iter().position(is_free)?;
        let ticket = self.waiting.remove(at)?;
        self.in_hand.insert(ticket.clone());
        Some(ticket)
    }

    pub(crate) fn finish(&mut self, ticket: &Ticket) {
        self.in_hand.remove(ticket);
    }

    pub(crate) fn is_in_hand(&self, session: &Name, id: &Name) -> bool {
        self.in_hand.iter().any(|ticket| ticket.session == *session && ticket.id == *id)
    }

    /// Whether a task of the session is in hand.
    pub(crate) fn is_busy(&self, session: &Name) -> bool {
        self.in_hand.iter().any(|ticket| ticket.session == *session)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn in_hand(&self) -> usize {
        self.in_hand.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(session: &str, id: &str) -> Ticket {
        Ticket { session: Name::parse(session).unwrap(), id: Name::parse(id).unwrap() }
    }

    #[test]
    fn tasks_of_one_session_run_one_after_the_other() {
        let mut queue = Queue::new(4);
        queue.push(ticket("a", "1"));
        queue.push(ticket("a", "2"));
        queue.push(ticket("b", "3"));
        assert_eq!(queue.next(), Some(ticket("a", "1")));
        assert_eq!(queue.next(), Some(ticket("b", "3")));
        assert_eq!(queue.next(), None);
        assert_eq!((queue.waiting(), queue.in_hand()), (1, 2));
        queue.finish(&ticket("a", "1"));
        assert_eq!(queue.next(), Some(ticket("a", "2")));
    }

    #[test]
    fn no_more_tasks_run_at_once_than_the_concurrency() {
        let mut queue = Queue::new(1);
        queue.push(ticket("a", "1"));
        queue.push(ticket("b", "2"));
        assert!(queue.next().is_some());
        assert_eq!(queue.next(), None);
        assert!(queue.is_in_hand(&ticket("a", "1").session, &ticket("a", "1").id));
        queue.finish(&ticket("a", "1"));
        assert_eq!(queue.next(), Some(ticket("b", "2")));
    }
}
