//! A turn: what one task asks the model, with the prompt of the role, the memory and the history of its session. The
//! session stays as it is until the turn has ended.

use std::{io, time::Duration};

use serde_json::json;
use tokio::{task::spawn_blocking, time::Instant};

use super::{Settings, Shared, Worker, lock, prompts::prompt, queue::Ticket};
use crate::{
    memory::section,
    model::{Completion, Fault, Piece},
    session::{Cause, Message, Name, Role, Summary, tokens, tokens_of},
};

/// Bytes of a text of which a vector is made: models take about 8,000 tokens, and the beginning says what it is about.
const VECTOR_INPUT_BYTES: usize = 8 << 10;
/// After a fault of the embeddings endpoint, which many servers do not have.
const VECTORS_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// Of the context, for a summary.
const SUMMARY_SHARE: usize = 8;
const SUMMARY_PROMPT: &str = "You summarize conversations. Keep names, numbers, decisions, open questions and what was \
                              promised. Write at most 200 words. Answer with the summary alone.";

/// What a turn has given. The session has nothing of it yet.
pub(super) struct Done {
    pub(super) completion: Completion,
    pub(super) summary: Option<Summary>,
}

/// How much of the history is sent.
#[derive(Default)]
struct History {
    summary: Option<Summary>,
    /// The oldest messages that are not sent.
    left_out: usize,
}

impl Worker {
    /// Whether an input has room beside the prompt. A prompt that cannot be read fails the task later.
    pub(super) async fn fits(&self, input: &str) -> bool {
        let prompt = self.prompt().await.unwrap_or_default();
        self.room(&prompt, input).is_some()
    }

    /// The tokens that are left for the history. `None`: the input does not fit.
    fn room(&self, system: &str, input: &str) -> Option<usize> {
        let used = tokens_of(&[Message::new(Role::System, system), Message::new(Role::User, input)]);
        self.0.settings.context_tokens.checked_sub(used)
    }

    /// One task with everything that it asks the model.
    pub(super) async fn turn(&self, ticket: &Ticket, until: Instant) -> Result<Done, Fault> {
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
            Ok(Completion { text, .. }) => Some(text).filter(|text| !text.trim().is_empty()),
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
}

impl Shared {
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
