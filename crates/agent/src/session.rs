//! A session: its messages, its summary, its tasks and its last answers. Pure.
//!
//! A session is one file, so everything that must be of the same moment is in this type. Each part has a bound, and so
//! has the file. The module neither reads files nor the clock, and calls no model.

use std::{collections::VecDeque, fmt, sync::Arc};

use serde::{Deserialize, Serialize};

pub(crate) mod store;

/// An estimate that holds for most languages and models within a factor of two.
const BYTES_PER_TOKEN: usize = 4;
/// What the template of a model adds to each message.
const TOKENS_PER_MESSAGE: usize = 4;

/// Bytes of the input of one task.
pub(crate) const INPUT_BYTES: usize = 256 << 10;
/// Bytes of one answer of a model.
pub(crate) const OUTPUT_BYTES: usize = 256 << 10;
/// A client that sends faster than the model answers gets an error before the file grows beyond measure.
const MOST_WAITING: usize = 32;
/// Bytes of the inputs of all waiting tasks of a session.
const WAITING_BYTES: usize = 256 << 10;
/// Answers that are kept for a client that sends an id again.
const MOST_ANSWERED: usize = 32;
/// Bytes of these answers. The newest is always kept.
const ANSWERED_BYTES: usize = 256 << 10;
/// Bytes of the messages that are kept if the model makes no summaries. The file must stay below its bound.
const HISTORY_BYTES: usize = 2 << 20;
/// Bytes of a summary. It is sent with every task.
const SUMMARY_BYTES: usize = 8 << 10;

/// The name of a session, or the id of a task: a word that is safe in a path and in a header.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Name(Arc<str>);

impl Name {
    /// For messages about a name that is refused.
    pub(crate) const RULE: &str = "1 to 128 characters of A-Z, a-z, 0-9, `.`, `_` and `-`";
    const LONGEST: usize = 128;

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let is_name = (1..=Self::LONGEST).contains(&text.len()) && text.bytes().all(is_allowed);
        is_name.then(|| Self(text.into()))
    }

    /// For a number that was chosen at random.
    pub(crate) fn of_number(number: u128) -> Self {
        Self(format!("{number:032x}").into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("a name must have {}", Self::RULE))
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.as_str().to_owned()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    System,
    User,
    Assistant,
}

/// A message as the API of the model has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) role: Role,
    pub(crate) content: String,
}

impl Message {
    pub(crate) fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// An estimate of the tokens of a text.
pub(crate) fn tokens(text: &str) -> usize {
    text.len().div_ceil(BYTES_PER_TOKEN)
}

/// An estimate of the tokens of messages.
pub(crate) fn tokens_of(messages: &[Message]) -> usize {
    messages.iter().map(|message| tokens(&message.content) + TOKENS_PER_MESSAGE).sum()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) id: Name,
    pub(crate) input: String,
}

/// Tokens that a model has used for a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    #[serde(default)]
    pub(crate) prompt_tokens: u64,
    #[serde(default)]
    pub(crate) completion_tokens: u64,
}

impl Usage {
    pub(crate) fn total(self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }
}

/// What made a task fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cause {
    /// The spec of the AIDispatcher lacks a field.
    Spec,
    /// The server of the model refuses the request.
    Model,
    /// The time of the task has run out.
    Deadline,
}

/// How a task has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(crate) enum Outcome {
    Done {
        output: String,
        usage: Usage,
        /// The model stopped at its limit of tokens.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_cut: bool,
    },
    Failed {
        error: String,
        cause: Cause,
    },
}

impl Outcome {
    fn bytes(&self) -> usize {
        match self {
            Self::Done { output, .. } => output.len(),
            Self::Failed { error, cause: _ } => error.len(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Answered {
    id: Name,
    #[serde(flatten)]
    outcome: Outcome,
}

/// Which of two copies of a session is newer. The order of the fields is the order of comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// Answers that the session has got since it began.
    pub(crate) turns: u64,
    /// Milliseconds since 1970 of the last change.
    pub(crate) updated: u64,
    pub(crate) messages: usize,
}

/// Why a session does not take a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    TooManyWaiting,
    /// A task with this id waits already.
    Known,
}

/// A summary that replaces the oldest messages once its task is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) text: String,
    /// How many messages it replaces.
    pub(crate) oldest: usize,
}

/// Where a task of a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It waits, or it is worked on.
    Waiting,
    Ended(Outcome),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) name: Name,
    turns: u64,
    updated: u64,
    #[serde(default)]
    summary: String,
    /// In turns: a message of the user and one of the model.
    #[serde(default)]
    messages: Vec<Message>,
    /// In the order of their arrival. A task that is worked on is among them until it has ended.
    #[serde(default)]
    waiting: VecDeque<Task>,
    /// The oldest first.
    #[serde(default)]
    answered: VecDeque<Answered>,
}

impl Session {
    pub(crate) fn new(name: Name, now: u64) -> Self {
        Self {
            name,
            turns: 0,
            updated: now,
            summary: String::new(),
            messages: Vec::new(),
            waiting: VecDeque::new(),
            answered: VecDeque::new(),
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        Standing { turns: self.turns, updated: self.updated, messages: self.messages.len() }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Task> {
        self.waiting.iter()
    }

    /// Ids of all tasks that are known, the oldest first.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &Name> {
        self.answered.iter().map(|answered| &answered.id).chain(self.waiting.iter().map(|task| &task.id))
    }

    pub(crate) fn place(&self, id: &Name) -> Option<Place> {
        if self.waiting.iter().any(|task| task.id == *id) {
            return Some(Place::Waiting);
        }
        let answered = self.answered.iter().find(|answered| answered.id == *id)?;
        Some(Place::Ended(answered.outcome.clone()))
    }

    pub(crate) fn input(&self, id: &Name) -> Option<&str> {
        self.waiting.iter().find(|task| task.id == *id).map(|task| task.input.as_str())
    }

    /// A task with the id of one that has failed takes its place.
    pub(crate) fn accept(&mut self, task: Task, now: u64) -> Result<(), NotTaken> {
        if self.waiting.iter().any(|waiting| waiting.id == task.id) {
            return Err(NotTaken::Known);
        }
        let bytes: usize = self.waiting.iter().map(|task| task.input.len()).sum();
        // A single task is bounded by itself.
        let is_full = self.waiting.len() >= MOST_WAITING
            || (!self.waiting.is_empty() && bytes + task.input.len() > WAITING_BYTES);
        if is_full {
            return Err(NotTaken::TooManyWaiting);
        }
        self.answered.retain(|answered| answered.id != task.id);
        self.waiting.push_back(task);
        self.updated = now;
        Ok(())
    }

    /// Takes back a task that could not be saved.
    pub(crate) fn withdraw(&mut self, id: &Name) {
        self.waiting.retain(|task| task.id != *id);
    }

    /// A task that has failed leaves no message.
    pub(crate) fn finish(&mut self, id: &Name, outcome: Outcome, now: u64) {
        let Some(at) = self.waiting.iter().position(|task| task.id == *id) else { return };
        let Some(task) = self.waiting.remove(at) else { return };
        if let Outcome::Done { output, .. } = &outcome {
            self.messages.push(Message::new(Role::User, task.input));
            self.messages.push(Message::new(Role::Assistant, output.clone()));
            self.turns += 1;
            self.bound_history();
        }
        self.updated = now;
        self.answered.push_back(Answered { id: task.id, outcome });
        let mut bytes: usize = self.answered.iter().map(|answered| answered.outcome.bytes()).sum();
        while self.answered.len() > 1 && (self.answered.len() > MOST_ANSWERED || bytes > ANSWERED_BYTES) {
            bytes -= self.answered.pop_front().map_or(0, |answered| answered.outcome.bytes());
        }
    }

    /// Drops the oldest turns of a history that no summary has made shorter. The newest turn stays.
    fn bound_history(&mut self) {
        let mut bytes: usize = self.messages.iter().map(|message| message.content.len()).sum();
        let mut dropped = 0;
        for turn in self.messages.chunks(2) {
            if bytes <= HISTORY_BYTES || dropped + turn.len() >= self.messages.len() {
                break;
            }
            bytes -= turn.iter().map(|message| message.content.len()).sum::<usize>();
            dropped += turn.len();
        }
        self.messages.drain(..dropped);
    }

    /// How many of the oldest messages should go into the summary, so that the rest fits into `room` tokens. Then half
    /// of the room stays free, so that not every turn costs a summary.
    pub(crate) fn beyond(&self, room: usize) -> usize {
        if tokens(&self.summary) + tokens_of(&self.messages) <= room {
            return 0;
        }
        self.messages.len() - self.newest_within(room / 2)
    }

    /// How many of the oldest messages do not fit into `room` tokens beside the summary.
    pub(crate) fn unfitting(&self, room: usize) -> usize {
        self.messages.len() - self.newest_within(room.saturating_sub(tokens(&self.summary)))
    }

    /// How many of the newest messages fit, in whole turns.
    fn newest_within(&self, room: usize) -> usize {
        let (mut kept, mut used) = (0, 0);
        for turn in self.messages.rchunks(2) {
            used += tokens_of(turn);
            if used > room {
                break;
            }
            kept += turn.len();
        }
        kept
    }

    /// The text that a model makes the next summary of, and how many of the oldest messages it has. It has whole turns
    /// up to `most` bytes. The first turn is always in it, cut if need be.
    pub(crate) fn to_summarize(&self, oldest: usize, most: usize) -> (String, usize) {
        let mut text = String::new();
        if !self.summary.is_empty() {
            text = format!("Summary so far:\n{}\n\n", self.summary);
        }
        let mut taken = 0;
        for turn in self.messages[..oldest.min(self.messages.len())].chunks(2) {
            let mut spoken = String::new();
            for message in turn {
                let speaker = match message.role {
                    Role::System => "System",
                    Role::User => "User",
                    Role::Assistant => "Assistant",
                };
                spoken.push_str(&format!("{speaker}: {}\n\n", message.content));
            }
            if taken > 0 && text.len() + spoken.len() > most {
                break;
            }
            text.push_str(&spoken);
            taken += turn.len();
        }
        (text::cut(text, most), taken)
    }

    /// The oldest messages are replaced by a summary.
    pub(crate) fn summarized(&mut self, Summary { text, oldest }: Summary, now: u64) {
        self.messages.drain(..oldest.min(self.messages.len()));
        self.summary = text::cut(text, SUMMARY_BYTES);
        self.updated = now;
    }

    /// What is sent to the model. There is one system message, because some templates allow no second one. The oldest
    /// messages that are `left_out` stay in the session. A new summary replaces that of the session here alone.
    pub(crate) fn prompt(
        &self,
        mut system: String,
        summary: Option<&str>,
        left_out: usize,
        input: &str,
    ) -> Vec<Message> {
        let summary = text::cut(summary.unwrap_or(&self.summary).to_owned(), SUMMARY_BYTES);
        if !summary.is_empty() {
            system.push_str("\n\nSummary of the conversation so far:\n");
            system.push_str(&summary);
        }
        let mut messages = vec![Message::new(Role::System, system)];
        messages.extend(self.messages.iter().skip(left_out).cloned());
        messages.push(Message::new(Role::User, input));
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    fn task(id: &str, input: &str) -> Task {
        Task { id: name(id), input: input.to_owned() }
    }

    fn done(output: &str) -> Outcome {
        Outcome::Done { output: output.to_owned(), usage: Usage::default(), is_cut: false }
    }

    fn after(turns: usize, text: &str) -> Session {
        let mut session = Session::new(name("s"), 1);
        for turn in 0..turns {
            session.accept(task(&turn.to_string(), text), 2).unwrap();
            session.finish(&name(&turn.to_string()), done(text), 3);
        }
        session
    }

    #[test]
    fn a_name_is_a_word_without_slashes() {
        for good in ["a", "A-b_c.9", "..", &"x".repeat(128)] {
            assert!(Name::parse(good).is_some(), "{good}");
        }
        for bad in ["", "a/b", "a b", "é", "a\n", &"x".repeat(129)] {
            assert!(Name::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_turn_adds_two_messages_and_is_kept_by_its_id() {
        let session = after(1, "hello");
        assert_eq!(session.standing(), Standing { turns: 1, updated: 3, messages: 2 });
        assert_eq!(session.place(&name("0")), Some(Place::Ended(done("hello"))));
        assert!(session.is_idle());
    }

    #[test]
    fn a_failed_task_leaves_no_message_and_may_be_sent_again() {
        let mut session = Session::new(name("s"), 1);
        session.accept(task("a", "x"), 2).unwrap();
        session.finish(&name("a"), Outcome::Failed { error: "e".into(), cause: Cause::Model }, 3);
        assert_eq!(session.standing(), Standing { turns: 0, updated: 3, messages: 0 });
        session.accept(task("a", "x"), 4).unwrap();
        assert_eq!(session.place(&name("a")), Some(Place::Waiting));
        assert_eq!(session.ids().count(), 1);
    }

    #[test]
    fn waiting_tasks_are_bounded_by_number_and_by_bytes() {
        let mut session = Session::new(name("s"), 1);
        for n in 0..MOST_WAITING {
            session.accept(task(&n.to_string(), "x"), 1).unwrap();
        }
        assert_eq!(session.accept(task("more", "x"), 1), Err(NotTaken::TooManyWaiting));
        let mut session = Session::new(name("s"), 1);
        session.accept(task("large", &"x".repeat(WAITING_BYTES)), 1).unwrap();
        assert_eq!(session.accept(task("more", "x"), 1), Err(NotTaken::TooManyWaiting));
    }

    #[test]
    fn kept_answers_are_bounded_and_the_newest_stays() {
        let session = after(MOST_ANSWERED + 5, "x");
        assert_eq!(session.answered.len(), MOST_ANSWERED);
        let session = after(3, &"x".repeat(ANSWERED_BYTES));
        assert_eq!(session.answered.len(), 1);
        assert!(session.place(&name("2")).is_some());
    }

    #[test]
    fn a_history_within_its_room_is_sent_whole() {
        assert_eq!(after(2, "hello").beyond(1_000), 0);
    }

    #[test]
    fn beyond_the_room_the_newest_half_stays_in_whole_turns() {
        // A turn has 2 * (25 + 4) tokens.
        let session = after(10, &"x".repeat(100));
        let oldest = session.beyond(400);
        assert_eq!(oldest, 14);
        let mut session = session;
        let prompt = session.prompt("be brief".into(), Some("in short"), oldest, "next");
        assert!(prompt[0].content.contains("in short") && prompt.len() == 8);
        assert_eq!(session.messages.len(), 20, "a prompt changes nothing");
        session.summarized(Summary { text: "in short".into(), oldest }, 9);
        assert_eq!((session.beyond(400), session.messages.len()), (0, 6));
        assert_eq!(session.messages[0].role, Role::User);
        let prompt = session.prompt("be brief".into(), None, 0, "next");
        assert!(prompt[0].content.contains("be brief") && prompt[0].content.contains("in short"));
        assert_eq!(prompt.last().unwrap().content, "next");
    }

    #[test]
    fn without_a_summary_as_many_of_the_newest_messages_as_fit_are_sent() {
        // A turn has 2 * (25 + 4) tokens.
        assert_eq!(after(10, &"x".repeat(100)).unfitting(400), 8);
    }

    #[test]
    fn a_summary_replaces_no_message_that_it_was_not_made_of() {
        let session = after(10, &"x".repeat(100));
        let (text, taken) = session.to_summarize(20, 500);
        assert_eq!((text.matches("User").count(), taken), (2, 4));
        assert_eq!(session.to_summarize(20, 10).1, 2);
    }

    #[test]
    fn a_history_without_summaries_is_bounded() {
        let session = after(3, &"x".repeat(HISTORY_BYTES / 4));
        assert_eq!(session.messages.len(), 4);
    }

    #[test]
    fn an_id_that_waits_is_not_taken_again() {
        let mut session = Session::new(name("s"), 1);
        session.accept(task("a", "x"), 1).unwrap();
        assert_eq!(session.accept(task("a", "y"), 1), Err(NotTaken::Known));
        assert_eq!(session.input(&name("a")), Some("x"));
    }

    #[test]
    fn without_room_every_message_goes() {
        assert_eq!(after(2, "hello").beyond(0), 4);
    }

    #[test]
    fn more_turns_are_newer_and_then_the_later_change() {
        let standing = |turns, updated| Standing { turns, updated, messages: 0 };
        assert!(standing(3, 1) > standing(2, 9));
        assert!(standing(2, 9) > standing(2, 1));
    }

    #[test]
    fn a_session_is_the_same_after_its_file() {
        let mut session = after(2, "hello \"you\"");
        session.accept(task("w", "waits"), 5).unwrap();
        let text = serde_json::to_string(&session).unwrap();
        assert_eq!(serde_json::from_str::<Session>(&text).unwrap(), session);
    }
}
